//! What reads of holes cost on a long link: nothing travels for what is known to be zero, and what is full of
//! data is not asked for its map.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use volume::check::Random;
use volume::layer::pipeline::{Pipeline, Settings};
use volume::layer::reconnect::Runtime;
use volume::store::memory::Memory;
use volume::{Durability, Space, Span, Volume};

use crate::link::{Conditions, Link};
use crate::sim::Sim;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A home uplink: 1 Mbit/s, a ping of 75 ms.
const UPLINK: Conditions = Conditions {
    one_way: Duration::from_micros(37_500),
    jitter: Duration::ZERO,
    rate: 125e3,
    slow_start: false,
    unsolicited: u64::MAX,
};

const FAST: Conditions = Conditions { one_way: Duration::from_millis(64), rate: 125e6, ..UPLINK };

struct Fixture {
    sim: Sim,
    link: Arc<Link<Memory>>,
    pipeline: Pipeline,
}

impl Fixture {
    async fn read(&self, at: u64, len: u64) -> Bytes {
        self.pipeline.read(Span::new(at, len)).await.unwrap()
    }

    async fn write(&self, at: u64, len: u64) {
        let data = Bytes::from(vec![7; len as usize]);
        self.pipeline.write(at, data, Durability::Volatile).await.unwrap();
    }
}

fn run<T: Send + 'static, S: Future<Output = T> + Send + 'static>(
    line: Conditions,
    store: Memory,
    settings: Settings,
    story: impl FnOnce(Fixture) -> S,
) -> T {
    let sim = Sim::default();
    let link = Link::new(&sim, line, store);
    let beneath = Arc::clone(&link) as Arc<dyn Volume>;
    let (pipeline, worker) = Pipeline::new(beneath, settings, Arc::new(sim.clone()));
    sim.spawn(worker);
    sim.run(1, story(Fixture { sim: sim.clone(), link, pipeline }))
}

/// The disk that gets a file system.
const DISK: u64 = 16 * GIB;

/// Where a file system of that size has groups of tables.
fn groups() -> impl Iterator<Item = u64> {
    (0..DISK).step_by(400 << 20)
}

/// What mke2fs and the kernel beneath it do to a disk: they look for what may be there, at both ends,
/// zero what they need, and read each page before they change a part of it.
async fn makes_a_file_system(fixture: &Fixture) {
    let doubling = (12..34).map(|power| 1 << power);
    let from_the_end = (1..16).map(|page| DISK - page * 60 * KIB);
    for at in [0].into_iter().chain(doubling).chain(from_the_end) {
        fixture.read(at, 4 * KIB).await;
    }
    for size in [8, 24, 60, 124, 252] {
        fixture.read(2 * size * KIB, size * KIB).await;
        fixture.read(DISK - 512 * KIB, size * KIB).await;
    }
    for group in groups() {
        fixture
            .pipeline
            .write_zeroes(Span::new(group + 64 * KIB, 2 * MIB), Durability::Volatile, Space::Keep)
            .await
            .unwrap();
        for table in 0..4 {
            fixture.read(group + table * 512 * KIB, 4 * KIB).await;
            fixture.write(group + table * 512 * KIB, 4 * KIB).await;
        }
        // The kernel reads on beyond what it was asked for.
        fixture.read(group + 4 * KIB, 28 * KIB).await;
    }
    fixture.pipeline.flush().await.unwrap();
}

async fn is_as_it_was_made(fixture: &Fixture) {
    for group in groups() {
        assert_eq!(fixture.read(group + 512 * KIB, 4 * KIB).await, vec![7; 4096]);
        assert_eq!(fixture.read(group + 32 * KIB, 4 * KIB).await, vec![0; 4096]);
    }
}

#[test]
fn a_file_system_is_made_on_an_empty_disk_without_reading_it() {
    let made = |settings| {
        run(UPLINK, Memory::new(DISK, 512), settings, |fixture| async move {
            makes_a_file_system(&fixture).await;
            let (taken, (sent, received)) = (fixture.sim.now(), fixture.link.carried());
            println!("{taken:?}: {sent} sent, {received} received");
            is_as_it_was_made(&fixture).await;
            (taken, sent, received)
        })
    };
    let (taken, sent, received) = made(Settings::default());
    let (longer, as_much, more) = made(Settings { read_ahead: Some(0), ..Settings::default() });
    assert_eq!(sent, as_much, "what is written is the same");
    // What the first read of the disk gave rise to, before anything was known.
    assert!(received < 96 * KIB && more > 2 * MIB, "{received} {more}");
    let writing = Duration::from_secs_f64(sent as f64 / UPLINK.rate);
    assert!(taken < writing + Duration::from_secs(1), "{taken:?} for what takes {writing:?}");
    assert!(longer > taken * 4, "{longer:?}");
}

#[test]
fn a_large_hole_is_crossed_at_once_and_what_follows_is_read_ahead() {
    const DATA: u64 = 4 * GIB;
    let store = Memory::new(8 * GIB, 512);
    let bytes = Random::new(3).bytes(64 << 20);
    for (at, piece) in (DATA..).step_by(1 << 20).zip(bytes.chunks(1 << 20)) {
        drop(store.write(at, Bytes::copy_from_slice(piece), Durability::Volatile));
    }
    run(FAST, store, Settings::default(), |fixture| async move {
        for at in (0..DATA).step_by(1 << 20) {
            assert_eq!(fixture.read(at, MIB).await.len(), 1 << 20);
        }
        println!("{:?} for the hole, {} questions", fixture.sim.now(), fixture.link.questions());
        assert!(fixture.sim.now() < Duration::from_secs(2), "{:?}", fixture.sim.now());
        let before = fixture.sim.now();
        for (at, piece) in (DATA..).step_by(64 << 10).zip(bytes.chunks(64 << 10)) {
            assert_eq!(fixture.read(at, 64 << 10).await, piece);
        }
        let rate = bytes.len() as f64 / (fixture.sim.now() - before).as_secs_f64();
        println!("{:.3} of the line for the data behind it", rate / FAST.rate);
    });
}

#[test]
fn a_volume_full_of_data_is_not_asked_for_its_map() {
    const SIZE: u64 = 32 << 20;
    let store = Memory::new(SIZE, 512);
    for at in (0..SIZE).step_by(4096) {
        drop(store.write(at, Bytes::from(vec![(at >> 12 | 1) as u8; 4096]), Durability::Volatile));
    }
    run(FAST, store, Settings::default(), |fixture| async move {
        let mut random = Random::new(7);
        for _ in 0..500 {
            fixture.read(random.below(SIZE >> 12) << 12, 4096).await;
        }
        for at in (0..SIZE).step_by(1 << 16) {
            fixture.read(at, 1 << 16).await;
        }
        assert_eq!(fixture.link.questions(), 0);
    });
}

/// Zeroes that were written as such look like a hole, and are none.
#[test]
fn zeroes_that_are_no_hole_are_hardly_asked_about() {
    let zeroes = Memory::new(16 << 20, 512);
    for at in (0..16 << 20).step_by(4096) {
        // A chunk of this store that was once written is no hole any more.
        drop(zeroes.write(at, Bytes::from(vec![0; 4096]), Durability::Volatile));
    }
    run(FAST, zeroes, Settings::default(), |fixture| async move {
        for page in 0..4096 {
            fixture.read((page * 1021 % 4096) << 12, 4096).await;
        }
        println!("{} questions", fixture.link.questions());
        assert!(fixture.link.questions() <= 16, "{}", fixture.link.questions());
    });
}
