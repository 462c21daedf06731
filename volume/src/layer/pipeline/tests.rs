//! The layer over the test stores, on a real executor.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::check;
use crate::layer::reconnect::Task;
use crate::store::blocked_writes::BlockedWrites;
use crate::store::faulty::Faulty;
use crate::store::memory::Memory;

/// Time that goes on whenever it is looked at, so that rates are measured.
#[derive(Debug, Default)]
struct TickingClock(AtomicU64);

impl Runtime for TickingClock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
    fn sleep_until(&self, at: Duration) -> Task {
        self.0.fetch_max(at.as_micros() as u64, Ordering::Relaxed);
        Box::pin(tokio::task::yield_now())
    }
    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }
    fn random(&self) -> u64 {
        0
    }
}

fn over(inner: Arc<dyn Volume>, settings: Settings) -> Pipeline {
    let (pipeline, worker) = Pipeline::new(inner, settings, Arc::new(TickingClock::default()));
    tokio::spawn(worker);
    pipeline
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 512])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_the_contract() {
    let tiny = Settings {
        window: Some(8192),
        segments: Some(2),
        segment: Some(4096),
        read_ahead: Some(16_384),
        ..Settings::default()
    };
    for (seed, settings) in [(21, Settings::default()), (22, tiny)] {
        let memory = Arc::new(Memory::new(40 << 20, 4096));
        check::volume(seed, Arc::new(over(memory, settings))).await;
        let faulty = Arc::new(Faulty::new(5 << 20, 512));
        check::volume(seed, Arc::new(over(faulty, settings))).await;
        for forgets in [false, true] {
            check::truth(512, async |disk| {
                if forgets {
                    disk.forget();
                }
                Arc::new(over(disk, settings)) as Arc<dyn Volume>
            })
            .await;
        }
    }
}

#[tokio::test]
async fn announces_a_write_cache() {
    let memory = Memory::new(4096, 512);
    assert!(!memory.shape().write_cache);
    assert!(over(Arc::new(memory), Settings::default()).shape().write_cache);
}

#[tokio::test]
async fn a_failed_write_is_told_on_every_flush_and_refuses_every_change() {
    let disk = Arc::new(Faulty::new(8192, 512));
    let pipeline = over(Arc::clone(&disk) as Arc<dyn Volume>, Settings::default());
    pipeline.write(0, block(1), Durability::Volatile).await.unwrap();
    pipeline.flush().await.unwrap();
    disk.fail(Verb::Write, Kind::Medium);
    pipeline.write(512, block(2), Durability::Volatile).await.unwrap();
    for _ in 0..3 {
        let told = pipeline.flush().await.unwrap_err();
        assert_eq!((told.kind, told.verb), (Kind::Medium, Verb::Flush));
        let cause = std::error::Error::source(&told).unwrap().to_string();
        assert_eq!(cause, "write of 512 bytes at 512 failed: medium error");
        for durability in [Durability::Volatile, Durability::Durable] {
            let refused = pipeline.write(1024, block(3), durability).await.unwrap_err();
            assert_eq!(refused.kind, Kind::Medium);
        }
    }
    // What is lost is not read as what was there before; everything else is read as ever.
    assert_eq!(pipeline.read(Span::new(0, 1024)).await.unwrap_err().kind, Kind::Medium);
    assert_eq!(pipeline.read(Span::new(0, 512)).await.unwrap(), block(1));
}

#[tokio::test]
async fn a_refused_durable_write_is_told_to_its_caller_alone() {
    let disk = Arc::new(Faulty::new(8192, 512));
    let pipeline = over(Arc::clone(&disk) as Arc<dyn Volume>, Settings::default());
    disk.fail(Verb::Write, Kind::Busy);
    let told = pipeline.write(0, block(1), Durability::Durable).await.unwrap_err();
    assert_eq!(told.kind, Kind::Busy);
    pipeline.write(0, block(2), Durability::Durable).await.unwrap();
    pipeline.flush().await.unwrap();
    assert_eq!(disk.crash(1).contents()[..512], block(2));
}

/// The volume beneath tells of a write that it lost once, to whoever syncs next.
#[tokio::test]
async fn a_flush_after_a_failed_durable_write_fails() {
    let disk = Arc::new(Faulty::new(8192, 512));
    disk.forget();
    let pipeline = over(Arc::clone(&disk) as Arc<dyn Volume>, Settings::default());
    pipeline.write(0, block(1), Durability::Durable).await.unwrap();
    disk.fail(Verb::Write, Kind::NoSpace);
    pipeline.write(512, block(2), Durability::Durable).await.unwrap_err();
    for _ in 0..2 {
        let told = pipeline.flush().await.unwrap_err();
        let cause = std::error::Error::source(&told).unwrap().to_string();
        assert_eq!(cause, "write of 512 bytes at 512 failed: no space left");
        pipeline.write(1024, block(3), Durability::Durable).await.unwrap_err();
    }
    // Its caller was told: what is there is read as ever.
    assert_eq!(pipeline.read(Span::new(512, 512)).await.unwrap(), block(0));
}

#[tokio::test]
async fn a_failed_flush_stays() {
    let disk = Arc::new(Faulty::new(8192, 512));
    let pipeline = over(Arc::clone(&disk) as Arc<dyn Volume>, Settings::default());
    disk.fail(Verb::Flush, Kind::Medium);
    for _ in 0..2 {
        assert_eq!(pipeline.flush().await.unwrap_err().kind, Kind::Medium);
    }
    assert_eq!(disk.changes(), 0, "a flush after a failed one proves nothing");
}

#[tokio::test]
async fn the_worker_ends_when_the_handle_is_gone_and_all_is_written() {
    let disk = Arc::new(Faulty::new(8192, 512));
    let beneath = Arc::clone(&disk) as Arc<dyn Volume>;
    let clock = Arc::new(TickingClock::default());
    let (pipeline, worker) = Pipeline::new(beneath, Settings::default(), clock);
    for at in 0..16 {
        pipeline.write(at * 512, block(at as u8), Durability::Volatile).await.unwrap();
    }
    drop(pipeline);
    assert_eq!(disk.changes(), 0, "nothing is written behind the worker's back");
    worker.await;
    let contents = disk.contents();
    assert!((0..16).all(|at| contents[at * 512..][..512] == block(at as u8)));
}

#[tokio::test]
async fn without_its_worker_everything_fails_and_nothing_hangs() {
    let disk = Arc::new(Memory::new(8192, 512));
    let clock = Arc::new(TickingClock::default());
    let (pipeline, worker) = Pipeline::new(disk, Settings::default(), clock);
    pipeline.write(0, block(1), Durability::Volatile).await.unwrap();
    let mut flush = pipeline.flush();
    assert!(flush.as_mut().now_or_never().is_none());
    drop(worker);
    assert_eq!(flush.await.unwrap_err().kind, Kind::Gone);
    assert_eq!(pipeline.flush().await.unwrap_err().kind, Kind::Gone);
    let refused = pipeline.write(512, block(1), Durability::Volatile).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Gone);
    assert_eq!(pipeline.read(Span::new(0, 512)).await.unwrap_err().kind, Kind::Gone);
    assert_eq!(pipeline.read(Span::new(512, 512)).await.unwrap(), block(0));
}

#[tokio::test]
async fn the_map_shows_what_was_accepted() {
    let pipeline = over(Arc::new(Memory::new(1 << 20, 512)), Settings::default());
    pipeline.write(0, block(1), Durability::Volatile).await.unwrap();
    let map = Volume::extents(&pipeline).unwrap();
    let extents = map.extents(Span::new(0, 512)).await.unwrap();
    assert!(!extents[0].hole && !extents[0].zero);
}

/// A buffer that tells when it is gone.
struct Buffer(Vec<u8>, Arc<AtomicU64>);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
    }
}

/// Data of `len` bytes, which are counted as long as anything of them is held.
fn counted(len: u64, live: &Arc<AtomicU64>) -> Bytes {
    live.fetch_add(len, Ordering::Relaxed);
    Bytes::from_owner(Buffer(vec![1; len as usize], Arc::clone(live)))
}

/// What is counted is what is held: little that is left of much, when it was written again, leaves the buffer of the
/// rest. Of buffers with other requests, which are of 128 KiB, no more than 16 MiB are held.
#[tokio::test]
async fn memory_is_that_of_the_buffers() {
    let settings = Settings { window: Some(16 << 20), ..Settings::default() };
    for (len, step, part, beside) in [
        (64 << 10, 512, 64 << 10, 4 << 20),
        (1 << 20, 4096, 1 << 20, 4 << 20),
        (4 << 20, 64 << 10, 4 << 20, 16 << 20),
        (128 << 10, 512, 512, 20 << 20),
    ] {
        let live = Arc::<AtomicU64>::default();
        let memory = Memory::new(64 << 20, 512);
        let pipeline = over(Arc::new(BlockedWrites::new(memory)), settings);
        for at in 0..512_u64 {
            let data = counted(len, &live).slice(..part);
            let write = pipeline.write((1 << 20) + at * step, data, Durability::Volatile);
            if write.now_or_never().is_none() {
                break; // The window is full.
            }
            tokio::task::yield_now().await;
        }
        let (pending, live) = (pipeline.pending(), live.load(Ordering::Relaxed));
        assert!(live <= 2 * pending + beside, "{pending} bytes are counted, {live} are held");
    }
}
