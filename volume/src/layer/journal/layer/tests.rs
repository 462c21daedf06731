use std::sync::Mutex;

use super::super::{FileWork, Identity, PAGE, Superblock, recover, superblock_offset};
use super::*;
use crate::check;
use crate::layer::reconnect::Task;
use crate::store::faulty::Faulty;
use crate::store::memory::Memory;

/// A file in memory.
struct InMemory(Mutex<Vec<u8>>);

impl JournalFile for InMemory {
    fn read(&self, offset: u64, len: u64) -> FileWork<'_, Bytes> {
        let (from, len) = (offset as usize, len as usize);
        let bytes = Bytes::copy_from_slice(&self.0.lock().unwrap()[from..from + len]);
        Box::pin(async move { Ok(bytes) })
    }

    fn write(&self, offset: u64, bytes: Vec<u8>) -> FileWork<'_, ()> {
        assert!(offset.is_multiple_of(PAGE) && (bytes.len() as u64).is_multiple_of(PAGE));
        let from = offset as usize;
        self.0.lock().unwrap()[from..from + bytes.len()].copy_from_slice(&bytes);
        Box::pin(async { Ok(()) })
    }

    fn sync(&self) -> FileWork<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Time that passes when it is waited for, or never.
#[derive(Debug)]
enum Virtual {
    Passing,
    Standing,
}

impl Runtime for Virtual {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep_until(&self, _at: Duration) -> Task {
        match self {
            Self::Passing => Box::pin(tokio::task::yield_now()),
            Self::Standing => Box::pin(std::future::pending()),
        }
    }
    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }
    fn random(&self) -> u64 {
        0
    }
}

fn options(flush: FlushPolicy) -> LayerOptions {
    let settings = Settings { held_max: 1 << 20, ..Settings::DEFAULT };
    LayerOptions {
        checkpoint: None,
        settings,
        flush,
        max_age: None,
        unsolicited: u64::MAX,
        is_fence: Arc::new(|_| false),
    }
}

async fn opened(
    store: &Arc<Memory>,
    file: &Arc<InMemory>,
    flush: FlushPolicy,
) -> (Journaled, tokio::task::JoinHandle<LayerStatus>) {
    opened_in(Virtual::Passing, store, file, flush).await
}

async fn opened_in(
    time: Virtual,
    store: &Arc<Memory>,
    file: &Arc<InMemory>,
    flush: FlushPolicy,
) -> (Journaled, tokio::task::JoinHandle<LayerStatus>) {
    let len = file.0.lock().unwrap().len() as u64;
    let recovered = recover(&**file, len).await.unwrap();
    let (inner, file) =
        (Arc::clone(store) as Arc<dyn Volume>, Arc::clone(file) as Arc<dyn JournalFile>);
    let (layer, worker) =
        Journaled::new(inner, file, &recovered, 1, options(flush), Arc::new(time));
    (layer, tokio::spawn(worker))
}

fn new_journal(store: &Memory, len: usize) -> Arc<InMemory> {
    let Shape { size, block_size, .. } = *store.shape();
    let volume = Identity { name: [1; 32], size, block_size };
    let mut bytes = vec![0; len];
    for superblock in Superblock::new([2; 16], [3; 32], volume, len as u64).unwrap() {
        let at = superblock_offset(superblock.number) as usize;
        bytes[at..at + PAGE as usize].copy_from_slice(&superblock.encode());
    }
    Arc::new(InMemory(Mutex::new(bytes)))
}

#[tokio::test]
async fn layer_keeps_the_contract_of_a_volume() {
    for (seed, flush) in [(1, FlushPolicy::Local), (2, FlushPolicy::Remote)] {
        for block_size in [512, 4096] {
            let store = Arc::new(Memory::new(64 << 20, block_size));
            // It goes round many times.
            let file = new_journal(&store, (2 << 20) + (3 << 20));
            let (layer, worker) = opened(&store, &file, flush).await;
            let layer = Arc::new(layer);
            check::volume(seed, Arc::clone(&layer) as Arc<dyn Volume>).await;
            let all = Span::new(0, 32 << 20);
            let seen = layer.read(all).await.unwrap();
            drop(layer);
            worker.await.unwrap();
            assert_eq!(store.read(all).await.unwrap(), seen, "the end sends everything");
        }
    }
}

/// A layer over a store that may fail, with a journal that does not.
async fn over_faulty(disk: Arc<Faulty>, flush: FlushPolicy) -> Arc<dyn Volume> {
    let shape = Memory::new(disk.shape().size, disk.shape().block_size);
    let file = new_journal(&shape, (2 << 20) + (32 << 20));
    let recovered = recover(&*file, (2 << 20) + (32 << 20)).await.unwrap();
    let options = options(flush);
    let (layer, worker) = Journaled::new(
        disk,
        file as Arc<dyn JournalFile>,
        &recovered,
        1,
        options,
        Arc::new(Virtual::Passing),
    );
    tokio::spawn(worker);
    Arc::new(layer)
}

#[tokio::test]
async fn layer_tells_the_truth_of_its_store() {
    check::truth(512, async |disk| over_faulty(disk, FlushPolicy::Remote).await).await;
}

#[tokio::test]
async fn flushed_writes_survive_a_client_that_vanishes() {
    let store = Arc::new(Memory::new(1 << 20, 512));
    let file = new_journal(&store, (2 << 20) + (1 << 20));
    let (layer, worker) = opened(&store, &file, FlushPolicy::Local).await;
    layer.write(4096, vec![7; 8192].into(), Durability::Volatile).await.unwrap();
    layer.flush().await.unwrap();
    worker.abort();
    let _ = worker.await;
    layer.write(0, vec![8; 512].into(), Durability::Volatile).await.unwrap_err();
    layer.flush().await.unwrap_err();
    drop(layer);
    let (layer, worker) = opened(&store, &file, FlushPolicy::Local).await;
    assert_eq!(layer.read(Span::new(4096, 8192)).await.unwrap(), vec![7; 8192]);
    drop(layer);
    worker.await.unwrap();
    assert_eq!(store.read(Span::new(4096, 8192)).await.unwrap(), vec![7; 8192]);
}

/// A store that says that it may keep discarded bytes, and takes no discard.
struct DiscardRefusing(Memory, Shape);

impl Volume for DiscardRefusing {
    fn shape(&self) -> &Shape {
        &self.1
    }
    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.0.read(span)
    }
    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        self.0.write(at, data, durability)
    }
    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.0.write_zeroes(span, durability, space)
    }
    fn discard(&self, span: Span) -> Work<'_, ()> {
        Box::pin(async move { Err(Error::new(Kind::Medium, Verb::Discard, span)) })
    }
    fn flush(&self) -> Work<'_, ()> {
        self.0.flush()
    }
    fn extents(&self) -> Option<&dyn ExtentMap> {
        None
    }
    fn is_saving(&self) -> bool {
        false
    }
    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        self.0.save_part(at, data)
    }
}

#[tokio::test]
async fn discard_that_the_store_refuses_does_not_end_the_journal() {
    let memory = Memory::new(1 << 20, 512);
    let discard = Some(crate::Discard { granularity: 512, reads_zeroes: false });
    let shape = Shape { discard, ..memory.shape().clone() };
    let file = new_journal(&memory, (2 << 20) + (1 << 20));
    let store = Arc::new(DiscardRefusing(memory, shape));
    let recovered = recover(&*file, (2 << 20) + (1 << 20)).await.unwrap();
    let options = options(FlushPolicy::Remote);
    let (inner, file) = (Arc::clone(&store) as Arc<dyn Volume>, file as Arc<dyn JournalFile>);
    let (layer, worker) =
        Journaled::new(inner, file, &recovered, 1, options, Arc::new(Virtual::Passing));
    let worker = tokio::spawn(worker);
    layer.discard(Span::new(0, 4096)).await.unwrap();
    layer.write(8192, vec![7; 512].into(), Durability::Volatile).await.unwrap();
    layer.flush().await.unwrap();
    drop(layer);
    assert_eq!(worker.await.unwrap().journal.unsent, 0);
    assert_eq!(store.read(Span::new(8192, 512)).await.unwrap(), vec![7; 512]);
}

/// Who opens it next would send what the store has, over what another has written there meanwhile.
#[tokio::test]
async fn recorded_journal_has_nothing_for_the_next_one_to_send() {
    let store = Arc::new(Memory::new(1 << 20, 512));
    let file = new_journal(&store, (2 << 20) + (1 << 20));
    let (layer, worker) = opened_in(Virtual::Standing, &store, &file, FlushPolicy::Local).await;
    for at in [4096, 65_536] {
        layer.write(at, vec![7; 8192].into(), Durability::Durable).await.unwrap();
    }
    let len = file.0.lock().unwrap().len() as u64;
    while !layer.record() {
        tokio::task::yield_now().await;
    }
    let found = recover(&*file, len).await.unwrap();
    assert_eq!((found.changes.len(), layer.status().journal.unsent), (0, 0));
    drop(layer);
    worker.await.unwrap();
}

#[test]
fn map_shows_what_the_store_lacks() {
    let extent = |at, len, hole, zero| Extent { span: Span::new(at, len), hole, zero };
    let part = |at, len, source| Part { span: Span::new(at, len), source };
    let memory = Source::Memory(Bytes::from_static(&[1; 4]));
    let parts = [part(0, 4, memory), part(4, 8, Source::Store), part(12, 2, Source::Zero)];
    let hole = [extent(0, 14, true, true)];
    let expected =
        [extent(0, 4, false, false), extent(4, 8, true, true), extent(12, 2, false, true)];
    assert_eq!(combined(&parts, &hole), expected);
    // The map beneath ends early, within a part.
    let expected = [extent(0, 4, false, false), extent(4, 3, true, true)];
    assert_eq!(combined(&parts, &[extent(0, 7, true, true)]), expected);
}

#[test]
fn one_request_reads_all_that_is_beneath() {
    let part = |at, len, source| Part { span: Span::new(at, len), source };
    let parts = [
        part(0, 4, Source::Zero),
        part(4, 4, Source::Store),
        part(8, 4, Source::Zero),
        part(12, 4, Source::Store),
    ];
    assert_eq!(beneath(&parts), Some(Span::new(4, 12)));
    assert_eq!(beneath(&parts[..1]), None);
}
