use std::future::ready;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use volume::store::hooked::{Hooked, go_on};
use volume::store::memory::Memory;
use volume::{ExtentMap, Kind, Shape, Verb, Work};

use super::*;

const KIB: usize = 1 << 10;
const SIZE: usize = 3 * CHUNK as usize + 64 * KIB;

/// Counts what reaches a volume; its map can be hidden.
struct Watched {
    inner: Memory,
    mapped: bool,
    calls: Mutex<Vec<(Verb, Span)>>,
}

impl Watched {
    fn new(size: usize, mapped: bool) -> Self {
        Self { inner: Memory::new(size as u64, 512), mapped, calls: Mutex::default() }
    }

    fn saw(&self, verb: Verb, span: Span) {
        self.calls.lock().unwrap().push((verb, span));
    }

    fn bytes(&self, verb: Verb) -> u64 {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|call| call.0 == verb).map(|call| call.1.len).sum()
    }

    fn last(&self) -> Option<Verb> {
        self.calls.lock().unwrap().last().map(|call| call.0)
    }
}

impl Volume for Watched {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.saw(Verb::Read, span);
        self.inner.read(span)
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        self.saw(Verb::Write, Span::new(at, data.len() as u64));
        self.inner.write(at, data, durability)
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.saw(Verb::WriteZeroes, span);
        self.inner.write_zeroes(span, durability, space)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.saw(Verb::Discard, span);
        self.inner.discard(span)
    }

    fn flush(&self) -> Work<'_, ()> {
        self.saw(Verb::Flush, Span::new(0, 0));
        self.inner.flush()
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        if self.mapped { Volume::extents(&self.inner) } else { None }
    }
}

async fn fill(volume: &Watched, at: usize, len: usize, byte: u8) {
    let data = Bytes::from(vec![byte; len]);
    volume.inner.write(at as u64, data, Durability::Volatile).await.unwrap();
}

async fn contents(volume: &Watched, len: usize) -> Bytes {
    volume.inner.read(Span::new(0, len as u64)).await.unwrap()
}

#[tokio::test]
async fn holes_of_a_map_are_neither_read_nor_written() {
    let (source, destination) = (Watched::new(SIZE, true), Watched::new(SIZE, true));
    fill(&source, CHUNK as usize, 256 * KIB, 7).await;
    let report = copy(&source, &destination, |_| {}).await.unwrap();
    assert_eq!(report.written, 256 << 10);
    assert_eq!(report.skipped, (SIZE - 256 * KIB) as u64);
    assert_eq!(source.bytes(Verb::Read), CHUNK, "only the chunk that holds data");
    assert_eq!(destination.bytes(Verb::WriteZeroes), 0);
    assert_eq!(contents(&source, SIZE).await, contents(&destination, SIZE).await);
}

#[tokio::test]
async fn old_bytes_under_a_hole_are_zeroed_by_command() {
    let (source, destination) = (Watched::new(SIZE, true), Watched::new(SIZE, true));
    fill(&destination, 0, SIZE, 9).await;
    let report = copy(&source, &destination, |_| {}).await.unwrap();
    assert_eq!(report, Report { written: 0, zeroed: SIZE as u64, skipped: 0 });
    assert_eq!(contents(&destination, SIZE).await, vec![0; SIZE]);
}

#[tokio::test]
async fn without_maps_zeroes_are_found_and_nothing_is_believed_blank() {
    let (source, destination) = (Watched::new(SIZE, false), Watched::new(SIZE, false));
    fill(&source, 64 * KIB, 64 * KIB, 7).await;
    fill(&destination, 0, SIZE, 9).await;
    let report = copy(&source, &destination, |_| {}).await.unwrap();
    assert_eq!(report.written, 64 << 10);
    assert_eq!(report.zeroed, (SIZE - 64 * KIB) as u64);
    assert_eq!(contents(&source, SIZE).await, contents(&destination, SIZE).await);
}

#[tokio::test]
async fn reported_progress_was_flushed_and_announced() {
    let (source, destination) = (Watched::new(SIZE, true), Watched::new(2 * SIZE, true));
    fill(&source, 0, SIZE, 1).await;
    fill(&destination, SIZE, SIZE, 2).await;
    let told = std::cell::Cell::new(0);
    copy(&source, &destination, |bytes| told.set(told.get() + bytes)).await.unwrap();
    assert_eq!(destination.last(), Some(Verb::Flush));
    assert_eq!(told.get(), SIZE as u64);
    let all = contents(&destination, 2 * SIZE).await;
    assert!(all[SIZE..].iter().all(|&byte| byte == 2), "the remainder is left alone");
}

#[tokio::test]
async fn a_smaller_destination_is_refused_untouched() {
    let (source, destination) = (Watched::new(SIZE, true), Watched::new(SIZE - 512, true));
    let refused = copy(&source, &destination, |_| {}).await;
    assert!(matches!(refused, Err(CopyError::TooSmall { .. })));
    assert_eq!(destination.last(), None);
}

#[tokio::test]
async fn verify_names_the_first_byte_that_differs() {
    let (source, destination) = (Watched::new(SIZE, true), Watched::new(SIZE, true));
    verify(&source, &destination, |_| {}).await.unwrap();
    fill(&destination, SIZE - 512, 512, 1).await;
    let differs = verify(&source, &destination, |_| {}).await;
    assert!(matches!(differs, Err(CopyError::Differs(at)) if at == (SIZE - 512) as u64));
}

#[tokio::test]
async fn a_full_destination_says_where() {
    let source = Watched::new(SIZE, true);
    fill(&source, 0, SIZE, 3).await;
    let destination = Arc::new(Watched::new(SIZE, true));
    let full = Hooked::new(Arc::clone(&destination), |verb, span| match verb {
        Verb::Write if span.end() > 2 * CHUNK => {
            Box::pin(ready(Err(volume::Error::new(Kind::NoSpace, verb, span))))
        }
        _ => go_on(),
    });
    let error = copy(&source, &full, |_| {}).await.unwrap_err();
    let CopyError::Destination(why) = &error else { panic!("{error}") };
    assert_eq!(why.kind, Kind::NoSpace);
    assert_eq!(why.to_string(), "write of 1048576 bytes at 2097152 failed: no space left");
    assert_ne!(destination.last(), Some(Verb::Flush), "a failed copy claims nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever lies on either side and whoever has a map, afterwards both are the same.
    #[test]
    fn a_copy_is_equal(
        here in prop::collection::vec((0..SIZE / 512, 1..1200_usize, any::<u8>()), 0..8),
        there in prop::collection::vec((0..SIZE / 512, 1..1200_usize, 1..=u8::MAX), 0..8),
        maps: (bool, bool),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (source, destination) = (Watched::new(SIZE, maps.0), Watched::new(SIZE, maps.1));
            for (volume, writes) in [(&source, here), (&destination, there)] {
                for (block, blocks, byte) in writes {
                    let blocks = blocks.min(SIZE / 512 - block);
                    fill(volume, block * 512, blocks * 512, byte).await;
                }
            }
            let report = copy(&source, &destination, |_| {}).await.unwrap();
            assert_eq!(report.written + report.zeroed + report.skipped, SIZE as u64);
            assert_eq!(contents(&source, SIZE).await, contents(&destination, SIZE).await);
            verify(&source, &destination, |_| {}).await.unwrap();
        });
    }
}
