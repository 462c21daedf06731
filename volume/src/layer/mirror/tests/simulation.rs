//! Two members on servers of their own, whose links come and go and whose power fails, under a mirror whose process is killed
//! anywhere: in the middle of a record too. Members are exchanged with older copies of themselves, and used alone in turns.
//!
//! Each opening must end with the newest data that were flushed, or in a refusal that says why, and no refusal comes without a
//! reason.

mod world;

use std::fmt;
use std::future::poll_fn;
use std::sync::Mutex;
use std::task::Poll;

use futures_util::future::join_all;

use self::world::{Link, Remote, Servers, World, last_record, turns};
use super::*;
use crate::layer::reconnect::Task;

/// Bytes of a region, and of the mirror: three regions, the last of them short.
const REGION: u64 = 64 << 10;
const SIZE: u64 = 2 * REGION + 4096;
const BLOCKS: usize = SIZE as usize / 512;

/// How often tasks have their turn until five seconds have passed.
const TURNS: u64 = 40;

/// Virtual time, with numbers of its own.
struct Seeded(VirtualTime, Mutex<Random>);

impl fmt::Debug for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seeded")
    }
}

impl Runtime for Seeded {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn sleep_until(&self, at: Duration) -> Task {
        self.0.sleep_until(at)
    }

    fn spawn(&self, task: Task) {
        self.0.spawn(task);
    }

    fn random(&self) -> u64 {
        self.1.lock().unwrap().word()
    }
}

/// What a block may hold: what was flushed last, and what was written since.
#[derive(Clone, Debug, Default)]
struct Known {
    versions: Vec<u8>,
    /// The first that may be found after a crash, and the last that was acknowledged.
    floor: usize,
    acked: usize,
    /// What was read of it since it was last written to.
    seen: Option<u8>,
}

impl Known {
    fn is(byte: u8) -> Self {
        Self { versions: vec![byte], ..Self::default() }
    }

    fn permits(&self, byte: u8) -> bool {
        self.versions[self.floor..].contains(&byte)
    }
}

type Blocks = Vec<Known>;

/// A member between lives.
#[derive(Clone)]
struct MemberDisk {
    disk: Arc<Faulty>,
    /// It had all when it was last seen, or was being given what it lacked just then.
    is_whole: bool,
    is_half: bool,
}

/// The history that a member has seen, and whether something was acknowledged in it since the members went apart.
#[derive(Clone)]
struct History {
    blocks: Blocks,
    is_ahead: bool,
    /// Nobody has looked since.
    is_fresh: bool,
}

struct Sim {
    seed: u64,
    random: Random,
    members: [MemberDisk; 2],
    /// One, or one for each member since each was used without the other.
    histories: Vec<History>,
    /// Copies of members that were made in earlier lives.
    copies: Vec<(usize, MemberDisk)>,
    life: usize,
    is_calm: bool,
    counts: Counts,
}

/// What came about, so that a simulation that tries nothing is found out.
#[derive(Debug, Default)]
struct Counts {
    lives: u64,
    alone: u64,
    split: u64,
    older: u64,
    half: u64,
    killed_while_opening: u64,
    writes: u64,
    joined: u64,
    /// Members that were opened again, and that came back after they had not been there.
    reopened: u64,
    returned: u64,
}

fn names() -> [&'static str; 2] {
    ["a", "b"]
}

impl Sim {
    async fn new(seed: u64) -> Self {
        let disks = [(); 2].map(|()| Arc::new(Faulty::new(AREA + SIZE, 512)));
        create_with(members(&disks), ID, Some(REGION)).await.unwrap();
        let members = disks.map(|disk| MemberDisk { disk, is_whole: true, is_half: false });
        let [first, second] = members;
        let members = [first, MemberDisk { is_whole: false, is_half: true, ..second }];
        let blocks = vec![Known::is(0); BLOCKS];
        let histories = vec![History { blocks, is_ahead: false, is_fresh: false }];
        let random = Random::new(seed);
        Self {
            seed,
            random,
            members,
            histories,
            copies: Vec::new(),
            life: 0,
            is_calm: false,
            counts: Counts::default(),
        }
    }

    fn what(&self) -> String {
        format!("seed {}, life {}", self.seed, self.life)
    }

    fn history_of(&self, member: usize) -> usize {
        member.min(self.histories.len() - 1)
    }

    /// What happens to the servers between two lives of the mirror.
    fn pause(&mut self) {
        for at in 0..2 {
            let kept = &mut self.members[at];
            // It goes on, or its power fails; one whose session has ended is opened again in any case.
            kept.disk = match self.random.below(2) {
                0 => Arc::new(kept.disk.crash(self.random.word())),
                _ => Arc::new(Faulty::holding(kept.disk.contents(), 512)),
            };
        }
        if self.random.below(4) == 0 {
            let at = self.random.index(2);
            let disk = Arc::new(Faulty::holding(self.members[at].disk.contents(), 512));
            self.copies.push((at, MemberDisk { disk, ..self.members[at].clone() }));
        }
    }

    async fn run(&mut self) {
        for life in 0..6 {
            self.life = life;
            self.counts.lives += 1;
            match self.random.below(10) {
                0 if self.histories.len() == 1 => self.older_copy().await,
                1 => self.one_life(self.random.clone().index(2), false).await,
                2 => self.one_life(self.random.clone().index(2), true).await,
                _ => self.both().await,
            }
            self.pause();
        }
        self.both().await;
    }

    /// A member is exchanged with a copy of itself: it is refused, or it was as good as the member itself.
    async fn older_copy(&mut self) {
        let Some(copy) = self.copies.pop() else { return self.both().await };
        let (at, copy) = copy;
        // Nothing knows of it that the only one that had all has been exchanged.
        if !self.members[at ^ 1].is_whole {
            return self.both().await;
        }
        let now = std::mem::replace(&mut self.members[at], copy);
        self.is_calm = true;
        let opened = self.try_open(&[0, 1], false).await;
        self.is_calm = false;
        match opened {
            Err(MirrorError::Older(_) | MirrorError::Split(..)) => {
                self.counts.older += 1;
                self.members[at] = now;
            }
            Err(why) => panic!("{}: {why}", self.what()),
            Ok(()) => self.copies.clear(),
        }
    }

    async fn both(&mut self) {
        match self.try_open(&[0, 1], false).await {
            Ok(()) => {}
            Err(MirrorError::Split(..)) if self.histories.len() == 2 => {
                self.counts.split += 1;
                self.replace().await;
            }
            Err(why) => panic!("{}: {why}", self.what()),
        }
    }

    /// Somebody decides which of two histories is kept.
    async fn replace(&mut self) {
        let keep = self.random.index(2);
        let keep = if self.members[keep].is_whole { keep } else { keep ^ 1 };
        let lost = keep ^ 1;
        let new = Arc::new(Faulty::new(AREA + SIZE, 512));
        self.members[lost] = MemberDisk { disk: new, is_whole: false, is_half: true };
        let disks = self.members.each_ref().map(|kept| Arc::clone(&kept.disk));
        replace(members(&disks), true).await.unwrap_or_else(|why| panic!("{}: {why}", self.what()));
        self.histories = vec![self.histories.swap_remove(keep)];
        self.histories[0].is_ahead = false;
        self.copies.clear();
    }

    async fn one_life(&mut self, at: usize, alone: bool) {
        self.random.word();
        match self.try_open(&[at], alone).await {
            Ok(()) => self.counts.alone += 1,
            Err(MirrorError::Missing { .. }) => assert!(!alone, "{}", self.what()),
            Err(MirrorError::NoneWhole) => {
                assert!(!self.members[at].is_whole, "{}: it is whole", self.what());
                self.counts.half += 1;
            }
            Err(why) => panic!("{}: {why}", self.what()),
        }
    }

    /// A life of the mirror on these members, if it can be opened.
    async fn try_open(
        &mut self,
        there: &[usize],
        alone: bool,
    ) -> std::result::Result<(), MirrorError> {
        let world = World::new(&mut self.random);
        world.state.lock().unwrap().is_calm = self.is_calm;
        let runtime =
            Arc::new(Seeded(VirtualTime::default(), Mutex::new(Random::new(self.random.word()))));
        let openings = (0..2).map(|at| match there.contains(&at) {
            true => {
                let disk = Arc::clone(&self.members[at].disk);
                let remote = Remote { disk, world: Arc::clone(&world), at, session: 0 };
                Ok(Member::new(names()[at], Arc::new(remote) as Arc<dyn Volume>))
            }
            false => Err((names()[at].into(), "not plugged in".to_owned())),
        });
        let options = MirrorOptions { wait: WAIT, alone, inspect_only: false };
        let openings = openings.collect();
        // While it is opened all links are up, but it may be killed.
        let servers = self.servers(there, &world);
        let reopen = Some(Arc::clone(&servers) as Arc<dyn Reopen>);
        let open = Mirror::open_with(openings, options, Arc::clone(&runtime) as _, reopen);
        let mirror = match until_over(&world, &runtime, open).await {
            Some(Ok(mirror)) => mirror,
            Some(Err(MirrorError::Volume(..) | MirrorError::Missing { .. } | MirrorError::New))
                if world.was_disturbed() =>
            {
                self.may_be_apart(there);
                self.power(&world);
                return Ok(());
            }
            Some(Err(why)) => return Err(why),
            None => {
                self.counts.killed_while_opening += 1;
                self.may_be_apart(there);
                self.power(&world);
                return Ok(());
            }
        };
        if let ([at], true) = (there, alone) {
            assert!(!self.members[*at].is_half, "{}: {at} was half copied", self.what());
        }
        world.state.lock().unwrap().is_calm = false;
        // One that could not be read is not there.
        let members = mirror.status().members;
        let is_there = |at: &usize| !matches!(members[*at].1, MemberState::Missing(_));
        let there: Vec<_> = there.iter().copied().filter(is_there).collect();
        let before = self.members.each_ref().map(|kept| last_record(&kept.disk));
        self.live((&there, alone), mirror, &world, &runtime, (&servers, before)).await;
        self.power(&world);
        Ok(())
    }

    /// What opens members again: one that is not there may come.
    fn servers(&mut self, there: &[usize], world: &Arc<World>) -> Arc<Servers> {
        for at in (0..2).filter(|at| !there.contains(at)) {
            let comes = self.random.below(2) == 0;
            world.state.lock().unwrap().absent[at] = comes.then(|| self.random.below(60));
        }
        // What only an exchanged member had is gone.
        let is_one = self.histories.len() == 1;
        let copies = self.copies.iter();
        let copies =
            copies.map(|(at, copy)| (*at, Arc::new(Faulty::holding(copy.disk.contents(), 512))));
        Arc::new(Servers {
            world: Arc::clone(world),
            disks: Mutex::new(self.members.each_ref().map(|kept| Arc::clone(&kept.disk))),
            others: copies.filter(|_| is_one).collect(),
            before: Mutex::default(),
            opened: Mutex::new(0),
        })
    }

    /// Whether a member that was not there at first has come back: then there is one history again.
    fn came_back(
        &mut self,
        there: &[usize],
        (servers, before): (&Servers, [Option<Record>; 2]),
        status: &MirrorStatus,
    ) -> bool {
        for (at, (_, state)) in status.members.iter().enumerate() {
            if matches!(state, MemberState::Missing(_)) {
                servers.refuse(at);
            }
        }
        let disks = servers.disks.lock().unwrap().clone();
        self.counts.reopened += *servers.opened.lock().unwrap();
        for (kept, disk) in self.members.iter_mut().zip(disks) {
            kept.disk = disk;
        }
        let [at] = there else { return false };
        let other = at ^ 1;
        let has_returned = last_record(&self.members[other].disk) != before[other];
        let was_ahead = self.histories.get(other).is_some_and(|history| history.is_ahead);
        assert!(!(has_returned && was_ahead), "{}: what only {other} had is gone", self.what());
        self.counts.returned += u64::from(has_returned);
        has_returned
    }

    /// Servers whose power has failed have lost what was not flushed.
    fn power(&mut self, world: &World) {
        let links = world.state.lock().unwrap().links;
        for (kept, link) in self.members.iter_mut().zip(links) {
            if matches!(link, Link::Dark(_)) {
                kept.disk = Arc::new(kept.disk.crash(self.random.word()));
            }
        }
    }

    /// It was opened, and nobody knows how far: a member that was opened alone may be a history of its own from now on.
    fn may_be_apart(&mut self, there: &[usize]) {
        if there.len() == 1 && self.histories.len() == 1 {
            let fresh = History { is_fresh: true, ..self.histories[0].clone() };
            self.histories = vec![fresh.clone(), fresh];
        }
    }

    async fn live(
        &mut self,
        (there, alone): (&[usize], bool),
        mirror: Mirror,
        world: &Arc<World>,
        runtime: &Arc<Seeded>,
        returns: (&Servers, [Option<Record>; 2]),
    ) {
        let read = until_over(world, runtime, read_all(&mirror)).await;
        let Some(Ok(found)) = read else { return self.end(there, &mirror, None) };
        let blocks = self.found((there, alone), &mirror, &found);
        let blocks = Arc::new(Mutex::new(blocks));
        let clients = [0..BLOCKS / 2, BLOCKS / 2..BLOCKS].map(|range| {
            let random = Random::new(self.random.word());
            let client = Client { mirror: mirror.clone(), blocks: Arc::clone(&blocks), range };
            client.run(random, self.what())
        });
        let works = mirror.clone();
        let worker = async move { works.work().await };
        let all = async {
            let clients = join_all(clients.map(Box::pin));
            futures_util::future::select(Box::pin(clients), Box::pin(worker)).await;
        };
        if until_over(world, runtime, all).await.is_some() && self.random.below(2) == 0 {
            mirror.stop();
            until_over(world, runtime, mirror.close()).await;
        }
        let blocks = std::mem::take(&mut *blocks.lock().unwrap());
        self.counts.writes +=
            blocks.iter().map(|known| known.versions.len() as u64 - 1).sum::<u64>();
        let has_returned = self.came_back(there, returns, &mirror.status());
        self.end(there, &mirror, Some(blocks));
        if has_returned {
            let own = self.history_of(there[0]);
            let history = History { is_ahead: false, ..self.histories[own].clone() };
            self.histories = vec![history];
            self.end(&[0, 1], &mirror, None);
        }
    }

    /// What the mirror says first is one of the histories, and the newest that there is.
    fn found(&mut self, (there, alone): (&[usize], bool), mirror: &Mirror, found: &[u8]) -> Blocks {
        let read = || found.iter().map(|byte| Known { seen: Some(*byte), ..Known::is(*byte) });
        if let [only] = &mut self.histories[..]
            && only.is_fresh
        {
            // It was kept, by whoever decided, before anybody had looked at it.
            *only = History { blocks: read().collect(), is_ahead: false, is_fresh: false };
        }
        let permits = |history: &History| {
            found.iter().zip(&history.blocks).all(|(byte, known)| known.permits(*byte))
        };
        if let [at] = there {
            let is_apart = matches!(mirror.status().members[at ^ 1].1, MemberState::Missing(_));
            assert!(is_apart);
            let own = self.history_of(*at);
            let is_newest = permits(&self.histories[own]);
            if self.histories.len() == 1 {
                assert!(is_newest || alone, "{}: {at} is not the newest", self.what());
                self.may_be_apart(there);
            }
            assert!(
                is_newest || self.histories[*at].is_fresh,
                "{}: {at} is not as it was",
                self.what()
            );
            self.histories[at ^ 1].is_ahead |= !is_newest;
            self.histories[*at].is_fresh = false;
            return read().collect();
        }
        let fits: Vec<_> =
            (0..self.histories.len()).filter(|at| permits(&self.histories[*at])).collect();
        let others_are_behind = |at: &&usize| {
            (0..self.histories.len()).all(|other| other == **at || !self.histories[other].is_ahead)
        };
        let kept = fits.iter().find(others_are_behind);
        let differing = || {
            let known = &self.histories[0].blocks;
            let pairs = found.iter().zip(known).enumerate();
            pairs
                .filter(|(_, (byte, known))| !known.permits(**byte))
                .map(|(at, (byte, known))| (at, *byte, known.clone()))
                .take(3)
                .collect::<Vec<_>>()
        };
        let Some(kept) = kept else {
            panic!(
                "{}: what was flushed is gone: {fits:?} of {}: {:?}",
                self.what(),
                self.histories.len(),
                differing()
            );
        };
        if self.histories.len() == 2 {
            self.counts.joined += 1;
        }
        let kept = self.histories[*kept].clone();
        self.histories = vec![History { is_ahead: false, is_fresh: false, ..kept }];
        // What was read stays so once it is flushed.
        let blocks = self.histories[0].blocks.iter().zip(found);
        blocks
            .map(|(known, byte)| {
                let mut versions = known.versions[known.floor..].to_vec();
                versions.push(*byte);
                Known { acked: versions.len() - 1, versions, floor: 0, seen: Some(*byte) }
            })
            .collect()
    }

    fn end(&mut self, there: &[usize], mirror: &Mirror, blocks: Option<Blocks>) {
        let status = mirror.status();
        for at in there {
            // One that is being copied to is not whole; one that is out may be as it was.
            let kept = &mut self.members[*at];
            let state = &status.members[*at].1;
            kept.is_whole = matches!(state, MemberState::InSync | MemberState::Equalized(_));
            kept.is_half = matches!(state, MemberState::Resyncing(1..));
        }
        let Some(blocks) = blocks else { return self.may_be_apart(there) };
        let own = match there {
            [at] => self.history_of(*at),
            _ => 0,
        };
        let history = &mut self.histories[own];
        history.is_ahead |= there.len() == 1 && blocks.iter().any(|known| known.acked > 0);
        history.blocks = blocks;
    }
}

impl World {
    fn was_disturbed(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.is_over || state.was_disturbed
    }
}

async fn read_all(mirror: &Mirror) -> Result<Vec<u8>> {
    let read = mirror.read(Span::new(0, SIZE)).await?;
    let blocks = read.chunks(512);
    blocks.clone().for_each(|block| assert!(block.iter().all(|byte| *byte == block[0]), "torn"));
    Ok(blocks.map(|block| block[0]).collect())
}

/// Lets time pass until it has ended, or the life is over.
async fn until_over<T>(
    world: &World,
    runtime: &Seeded,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = std::pin::pin!(work);
    let mut turns = 0;
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        if world.is_over() {
            return Poll::Ready(None);
        }
        turns += 1;
        if turns % TURNS == 0 {
            runtime.0.pass(Duration::from_secs(5));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Somebody who uses a part of the mirror.
struct Client {
    mirror: Mirror,
    blocks: Arc<Mutex<Blocks>>,
    range: std::ops::Range<usize>,
}

impl Client {
    async fn run(self, mut random: Random, what: String) {
        for _ in 0..40 {
            let done = match random.below(8) {
                0..4 => self.write(&mut random).await,
                4 => self.flush().await,
                5 => {
                    turns(TURNS * 2).await;
                    Ok(())
                }
                _ => self.read(&mut random, &what).await,
            };
            // A volume that has failed is opened again, in the next life.
            if done.is_err() {
                return;
            }
        }
    }

    fn some_blocks(&self, random: &mut Random) -> std::ops::Range<usize> {
        let most = [1, 8, 60][random.index(3)];
        let from = self.range.start + random.index(self.range.len());
        from..(from + 1 + random.index(most)).min(self.range.end)
    }

    async fn write(&self, random: &mut Random) -> Result<()> {
        let range = self.some_blocks(random);
        let byte = 1 + random.below(255) as u8;
        let span = Span::new(range.start as u64 * 512, range.len() as u64 * 512);
        let durability =
            [Durability::Volatile, Durability::Durable][usize::from(random.below(3) == 0)];
        let is_zero = random.below(5) == 0;
        let byte = if is_zero { 0 } else { byte };
        for known in &mut self.blocks.lock().unwrap()[range.clone()] {
            known.versions.push(byte);
            known.seen = None;
        }
        let data = Bytes::from(vec![byte; span.len as usize]);
        match is_zero {
            true => self.mirror.write_zeroes(span, durability, Space::Release).await?,
            false => self.mirror.write(span.at, data, durability).await?,
        }
        for known in &mut self.blocks.lock().unwrap()[range] {
            known.acked = known.versions.len() - 1;
            if durability == Durability::Durable {
                known.floor = known.acked;
            }
            known.seen = Some(byte);
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        let acked: Vec<_> = self.blocks.lock().unwrap().iter().map(|known| known.acked).collect();
        self.mirror.flush().await?;
        for (known, acked) in self.blocks.lock().unwrap().iter_mut().zip(acked) {
            known.floor = known.floor.max(acked);
        }
        Ok(())
    }

    async fn read(&self, random: &mut Random, what: &str) -> Result<()> {
        let range = self.some_blocks(random);
        let span = Span::new(range.start as u64 * 512, range.len() as u64 * 512);
        let read = self.mirror.read(span).await?;
        let mut blocks = self.blocks.lock().unwrap();
        for (block, known) in read.chunks(512).zip(&mut blocks[range]) {
            assert!(block.iter().all(|byte| *byte == block[0]), "{what}: torn");
            assert!(
                known.seen.is_none_or(|seen| seen == block[0]),
                "{what}: {} is read of {known:?}",
                block[0]
            );
        }
        Ok(())
    }
}

fn simulate(seeds: std::ops::Range<u64>) -> Counts {
    let mut all = Counts::default();
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let counts = runtime.block_on(async {
            let mut sim = Sim::new(seed).await;
            sim.run().await;
            sim.counts
        });
        let Counts { lives, alone, split, older, half, .. } = counts;
        let Counts { killed_while_opening, writes, joined, reopened, returned, .. } = counts;
        all.lives += lives;
        all.alone += alone;
        all.split += split;
        all.older += older;
        all.half += half;
        all.killed_while_opening += killed_while_opening;
        all.writes += writes;
        all.joined += joined;
        all.reopened += reopened;
        all.returned += returned;
    }
    all
}

/// `LONGHAUL_MIRROR_SEEDS` says how many; `LONGHAUL_MIRROR_FIRST` with which it begins.
#[test]
fn mirror_ends_with_the_newest_data_or_says_why_not() {
    // The environment of the build: this crate knows no operating system.
    let number =
        |text: Option<&str>, or: u64| text.map_or(or, |text| text.parse().expect("it is a number"));
    let first = number(option_env!("LONGHAUL_MIRROR_FIRST"), 0);
    let seeds = number(option_env!("LONGHAUL_MIRROR_SEEDS"), 60);
    let counts = simulate(first..first + seeds);
    println!("{counts:?}");
}
