//! Two attachments take one volume from each other, over links that come and go: no flushed byte of the holder is
//! overwritten by the other, and each flush that succeeded is kept.
//!
//! Each take-over begins an epoch, and each block is stamped with the epoch and the number of its write. Those
//! who lost the volume go on trying to write. So a stamp may only ever rise over the one that was flushed last.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use longhaul::pipelined::Pipelined;
use longhaul::store::iscsi::Writers;
use volume::layer::pipeline::Settings;

use super::*;

/// Contests in a run, unless `LONGHAUL_CONTESTS` says how many.
const CONTESTS: u64 = 5;

/// How often the volume changes hands in one of them.
const EPOCHS: u64 = 5;

/// Blocks that all of them write to: few, so that they meet.
const BLOCKS: u64 = 64;

/// An epoch and the number of a write in it.
type Stamp = (u64, u64);

/// What two clients fight for, and what is known of it.
struct Contest {
    medium: Arc<Faulty>,
    seed: u64,
    /// The stamps that are flushed, by block.
    flushed: Mutex<Vec<Stamp>>,
    /// The epoch that somebody tries to begin, or has begun.
    claimed: AtomicU64,
    /// The epoch that has begun.
    held: AtomicU64,
}

/// What a run comes to.
#[derive(Debug, Default)]
struct Counts {
    flushes: u64,
    fenced: u64,
    troubles: u32,
}

impl Contest {
    /// Looks whether what a crash would leave holds all that was flushed before this moment.
    fn check(&self) {
        let flushed = self.flushed.lock().unwrap().clone();
        for contents in [self.medium.crash(self.seed).contents(), self.medium.contents()] {
            for (block, flushed) in (0..).zip(&flushed) {
                let found = stamp(&contents, block);
                assert!(
                    found >= *flushed,
                    "seed {}: block {block} held {flushed:?} when it was flushed, and now {found:?}",
                    self.seed
                );
            }
        }
    }

    /// Writes and flushes as the holder of `epoch` until another has the volume, and some time after that; gives
    /// how many flushes succeeded.
    async fn work(self: Arc<Self>, volume: Arc<dyn Volume>, epoch: u64) -> u64 {
        let mut random = Random::new(self.seed ^ epoch << 32);
        let mut written = vec![(0, 0); BLOCKS as usize];
        let mut flushes = 0;
        for number in 1.. {
            let was_lost = self.held.load(Ordering::SeqCst) > epoch;
            let block = random.below(BLOCKS - 3);
            let blocks = block..block + 1 + random.below(4);
            let data: Vec<u8> = blocks.clone().flat_map(|at| fill((epoch, number), at)).collect();
            let durability =
                if random.below(16) == 0 { Durability::Durable } else { Durability::Volatile };
            let mut done = volume.write(block * BLOCK, data.into(), durability).await;
            if done.is_ok() {
                blocks.for_each(|at| written[at as usize] = (epoch, number));
            }
            let flush = was_lost || random.below(8) == 0;
            if done.is_ok() && flush {
                done = volume.flush().await;
            }
            match done {
                Ok(()) if flush => {
                    assert!(!was_lost, "seed {}: epoch {epoch} flushed after its end", self.seed);
                    flushes += 1;
                    self.note(&written);
                    self.check();
                }
                Ok(()) => {}
                Err(why) => {
                    let claimed = self.claimed.load(Ordering::SeqCst) > epoch;
                    assert!(claimed, "seed {}: the holder is told {why}", self.seed);
                    break;
                }
            }
        }
        let again = volume.write(0, fill((epoch, u64::MAX), 0).into(), Durability::Durable).await;
        assert!(again.is_err(), "seed {}: epoch {epoch} writes after its end", self.seed);
        flushes
    }

    /// A flush succeeded: a later epoch may have flushed more since.
    fn note(&self, written: &[Stamp]) {
        let mut flushed = self.flushed.lock().unwrap();
        for (flushed, written) in flushed.iter_mut().zip(written) {
            *flushed = *written.max(flushed);
        }
    }
}

/// The bytes of a block of this stamp: they say where they belong.
fn fill((epoch, number): Stamp, block: u64) -> Vec<u8> {
    let stamp = [epoch, number, block, epoch ^ number ^ block].map(u64::to_le_bytes).concat();
    stamp.repeat(BLOCK as usize / stamp.len())
}

/// The stamp of a block, which is whole.
fn stamp(contents: &[u8], block: u64) -> Stamp {
    let at = (block * BLOCK) as usize;
    let bytes = &contents[at..at + BLOCK as usize];
    let word = |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().unwrap());
    let stamp = (word(0), word(1));
    let whole = if stamp == (0, 0) { vec![0; BLOCK as usize] } else { fill(stamp, block) };
    assert!(bytes == whole, "block {block} is torn, or of another place");
    stamp
}

/// Takes the volume over along a path on which anything may go wrong.
async fn take_over(path: &Path, client: &str) -> Arc<Disk> {
    let name = IscsiName::new(&format!("iqn.2026-11.dev.longhaul:{client}")).unwrap();
    let options = ConnectOptions { initiator: name, writers: Writers::TakeOver, ..options() };
    Arc::new(connect_until_there(path.address, NAME, &options).await)
}

async fn contest(seed: u64) -> Counts {
    let mut random = Random::new(seed);
    let medium = Arc::new(Faulty::new(BLOCKS * BLOCK, 512));
    let target = Target::start(slow(&medium)).await;
    let contest = Arc::new(Contest {
        medium,
        seed,
        flushed: Mutex::new(vec![(0, 0); BLOCKS as usize]),
        claimed: AtomicU64::new(0),
        held: AtomicU64::new(0),
    });
    let paths = [Path::new(target.address, seed).await, Path::new(target.address, !seed).await];
    paths.iter().for_each(Path::rage);
    let (mut disks, mut workers) = (Vec::new(), Vec::new());
    for epoch in 1..=EPOCHS {
        let side = (epoch % 2) as usize;
        contest.claimed.store(epoch, Ordering::SeqCst);
        let disk = take_over(&paths[side], ["one", "two"][side]).await;
        contest.held.store(epoch, Ordering::SeqCst);
        let inner = Arc::<Disk>::clone(&disk);
        let pipelined = Pipelined::new("disk".to_owned(), inner, Settings::default());
        let work = Arc::clone(&contest).work(pipelined.volume(), epoch);
        workers.push(tokio::spawn(work));
        disks.push((disk, pipelined));
        // Sometimes before it has flushed at all.
        paths[side].passed(random.below(100_000)).await;
    }
    // The last one is ended by somebody whose way is calm, and who reads what there is.
    paths.iter().for_each(Path::calm);
    contest.claimed.store(EPOCHS + 1, Ordering::SeqCst);
    let calm = Path::new(target.address, 0).await;
    let last = take_over(&calm, "last").await;
    contest.held.store(EPOCHS + 1, Ordering::SeqCst);
    let mut counts = Counts::default();
    for worker in workers {
        counts.flushes += worker.await.expect("no violation");
    }
    contest.check();
    let read = last.read(Span::new(0, BLOCKS * BLOCK)).await.expect("a read");
    assert!(read == contest.medium.contents(), "seed {seed}: it reads something else");
    for (disk, pipelined) in disks {
        pipelined.close().await;
        assert_eq!(disk.state(), State::Over(Over::Fenced), "seed {seed}");
        counts.fenced += 1;
        disk.close().await;
    }
    last.close().await;
    contest.check();
    counts.troubles = paths.iter().map(Path::troubles).sum();
    target.kill().await;
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_flushed_byte_of_the_holder_is_overwritten_by_another() {
    let number = std::env::var("LONGHAUL_CONTESTS");
    let number = number.map_or(CONTESTS, |number| number.parse().unwrap());
    let first = std::env::var("LONGHAUL_SEED");
    let first = first.map_or_else(|_| fresh(), |seed| seed.parse().unwrap());
    println!("LONGHAUL_SEED={first} LONGHAUL_CONTESTS={number}");
    let mut all = Counts::default();
    for seed in (first..).take(number as usize) {
        let one = tokio::time::timeout(3 * PATIENCE, contest(seed)).await;
        let one = one.unwrap_or_else(|_| panic!("seed {seed} does not end"));
        println!("seed {seed}: {one:?}");
        all.flushes += one.flushes;
        all.fenced += one.fenced;
        all.troubles += one.troubles;
    }
    println!("in all: {all:?}");
    assert_eq!(all.fenced, number * EPOCHS, "all of them lost the volume in the end");
    assert!(all.flushes > 0 && u64::from(all.troubles) > number, "{all:?}");
}

fn fresh() -> u64 {
    // Short enough to be counted on from.
    u64::from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().subsec_nanos())
}
