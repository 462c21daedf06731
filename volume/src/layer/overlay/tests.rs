use std::sync::Arc;

use super::*;
use crate::store::faulty::Faulty;
use crate::store::memory::Memory;
use crate::{Kind, check};

const MIB: u64 = 1 << 20;

fn member(name: &str, volume: Arc<dyn Volume>) -> Member {
    Member::new(name, volume)
}

/// A base of bytes that are not zero.
fn base(size: u64) -> Arc<Faulty> {
    let bytes = (0..size).map(|at| (at / 512 % 251) as u8 + 1).collect();
    Arc::new(Faulty::holding(bytes, 512))
}

/// A new one.
async fn over(base: &Arc<Faulty>, file: Arc<dyn Volume>) -> Overlay {
    let base = member("base", Arc::clone(base) as Arc<dyn Volume>);
    Overlay::create(base, member("file", file)).await.unwrap()
}

/// One that was made.
async fn again(base: &Arc<Faulty>, file: Arc<dyn Volume>) -> Overlay {
    let base = member("base", Arc::clone(base) as Arc<dyn Volume>);
    Overlay::open(base, member("file", file), false).await.unwrap()
}

#[tokio::test]
async fn empty_file_becomes_an_overlay_only_when_told_to() {
    let base = base(MIB);
    let file = Arc::new(Memory::new(file_size(MIB), 512));
    let member_of = |volume: Arc<dyn Volume>| member("it", volume);
    let (beneath, own) = (member_of(Arc::clone(&base) as _), member_of(Arc::clone(&file) as _));
    let opened = Overlay::open(beneath, own, false).await;
    assert!(matches!(opened.err(), Some(OverlayError::New)), "what was written would be forgotten");
    let overlay = over(&base, Arc::clone(&file) as Arc<dyn Volume>).await;
    overlay.write(0, vec![9; 512].into(), Durability::Durable).await.unwrap();
    let made =
        Overlay::create(member_of(Arc::clone(&base) as _), member_of(Arc::clone(&file) as _)).await;
    assert!(matches!(made.err(), Some(OverlayError::Made)), "it would be made anew");
    let found = again(&base, file).await.read(Span::new(0, 512)).await.unwrap();
    assert_eq!(found, vec![9; 512]);
}

#[tokio::test]
async fn overlay_keeps_the_contract_and_its_base_as_it_was() {
    for (size, block) in [(40 * MIB, 512), (5 * MIB + 512, 512), (3 * MIB, 4096)] {
        let base = base(size);
        let before = base.contents();
        let file = Arc::new(Memory::new(file_size(size), block));
        if size.is_multiple_of(block.into()) {
            check::volume(8, Arc::new(over(&base, file).await)).await;
        }
        assert!(base.contents() == before && base.changes() == 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn overlay_keeps_neighbours_apart() {
    let file = Arc::new(Memory::new(file_size(MIB), 512));
    check::neighbours(Arc::new(over(&base(MIB), file).await)).await;
}

#[tokio::test]
async fn overlay_tells_the_truth() {
    let base = base(9 * MIB);
    check::truth(512, async |disk| Arc::new(over(&base, disk).await) as Arc<dyn Volume>).await;
}

#[tokio::test]
async fn file_that_is_no_overlay_of_this_base_is_refused() {
    let open = async |size, file: Arc<dyn Volume>| {
        let base = member("base", base(size));
        Overlay::open(base, member("file", file), false).await.err().unwrap().to_string()
    };
    let other = Arc::new(Memory::new(file_size(2 * MIB), 512));
    drop(over(&base(MIB), Arc::clone(&other) as Arc<dyn Volume>).await);
    let said = open(2 * MIB, other).await;
    assert_eq!(said, "it is over a volume of 1048576 bytes, and this one has 2097152");
    let short = Arc::new(Memory::new(MIB, 512));
    assert!(open(MIB, short).await.contains("takes a file of 2097152 bytes, and it has 1048576"));
    for (at, why) in [(0, "it is no overlay"), (PAGE, "it is no overlay")] {
        let used = Arc::new(Memory::new(file_size(MIB), 512));
        used.write(at, vec![7; 512].into(), Durability::Volatile).await.unwrap();
        let base = member("base", base(MIB));
        let refused = Overlay::create(base, member("file", used)).await.err().unwrap();
        assert_eq!(refused.to_string(), why);
    }
    let damaged = Arc::new(Memory::new(file_size(MIB), 512));
    drop(over(&base(MIB), Arc::clone(&damaged) as Arc<dyn Volume>).await);
    damaged.write(PAGE, vec![7; 512].into(), Durability::Volatile).await.unwrap();
    assert!(open(MIB, damaged).await.starts_with("its map is damaged in page 0"));
}

#[tokio::test]
async fn base_that_is_not_as_it_was_is_refused_unless_it_may_be() {
    let size = 5 * MIB;
    let file = Arc::new(Memory::new(file_size(size), 512));
    drop(over(&base(size), Arc::clone(&file) as Arc<dyn Volume>).await);
    let open = async |base: Arc<dyn Volume>, changed| {
        let file = Arc::clone(&file) as Arc<dyn Volume>;
        Overlay::open(member("base", base), member("file", file), changed).await.err()
    };
    assert!(open(base(size), false).await.is_none());
    // The superblock of a file system that was mounted, and the copy of a partition table at the end.
    for at in [1024, size - 512] {
        let other = base(size);
        other.write(at, vec![0xee; 512].into(), Durability::Volatile).await.unwrap();
        let refused = open(Arc::clone(&other) as _, false).await;
        assert!(matches!(refused, Some(OverlayError::OtherBase)), "{at}");
        assert!(open(other, true).await.is_none(), "it was said that it may have");
    }
    let another = Arc::new(Memory::new(size, 512));
    assert!(matches!(open(another, false).await, Some(OverlayError::OtherBase)));
}

#[tokio::test]
async fn failure_of_a_member_names_it() {
    let (base, file) = (base(MIB), Arc::new(Faulty::new(file_size(MIB), 512)));
    let overlay = over(&base, Arc::clone(&file) as Arc<dyn Volume>).await;
    base.fail(Verb::Read, Kind::Medium);
    let data = Bytes::from(vec![9; 512]);
    let failed = overlay.write(512, data.clone(), Durability::Volatile).await.unwrap_err();
    assert!(failed.source.unwrap().to_string().starts_with("base: "));
    file.fail(Verb::Write, Kind::NoSpace);
    let failed = overlay.write(512, data, Durability::Volatile).await.unwrap_err();
    assert_eq!(failed.kind, Kind::NoSpace);
    assert!(failed.source.unwrap().to_string().starts_with("file: "));
    assert_eq!(overlay.held().0, 0);
}

/// What blocks may hold after a crash: the last durable version and those since.
struct Model {
    versions: Vec<Vec<u8>>,
}

impl Model {
    fn wrote(&mut self, span: Span, byte: u8, is_certain: bool) {
        for versions in &mut self.versions[(span.at / 512) as usize..(span.end() / 512) as usize] {
            if is_certain {
                versions.clear();
            }
            versions.push(byte);
        }
    }

    /// What was written last is durable.
    fn flushed(&mut self) {
        for versions in &mut self.versions {
            let last = versions.len() - 1;
            versions.drain(..last);
        }
    }

    fn compare(&mut self, read: &[u8], seed: u64) {
        for (at, (block, versions)) in read.chunks(512).zip(&mut self.versions).enumerate() {
            assert!(block.iter().all(|byte| *byte == block[0]), "seed {seed}: torn block {at}");
            assert!(
                versions.contains(&block[0]),
                "seed {seed}: block {at}: {} of {versions:?}",
                block[0]
            );
            // It was read, and stays so.
            *versions = vec![block[0]];
        }
    }
}

/// Some blocks, often across the border of a cluster.
fn some_span(random: &mut check::Random, blocks: u64) -> Span {
    let from = random.below(blocks);
    let most = [4, 40, 300][random.index(3)];
    Span::new(from * 512, (1 + random.below((blocks - from).min(most))) * 512)
}

async fn step(overlay: &Overlay, model: &mut Model, random: &mut check::Random) -> Result<()> {
    let blocks = model.versions.len() as u64;
    let span = some_span(random, blocks);
    let byte = 1 + random.below(255) as u8;
    let durability = [Durability::Volatile, Durability::Durable][usize::from(random.below(4) == 0)];
    let is_durable = durability == Durability::Durable;
    let (byte, done) = match random.below(8) {
        0..4 => {
            let data = Bytes::from(vec![byte; span.len as usize]);
            (byte, overlay.write(span.at, data, durability).await)
        }
        4 => (0, overlay.write_zeroes(span, durability, Space::Release).await),
        5 => {
            let done = overlay.discard(span).await;
            model.wrote(span, 0, false);
            return done;
        }
        6 => {
            overlay.flush().await?;
            model.flushed();
            return Ok(());
        }
        _ => {
            let read = overlay.read(span).await?;
            let known = &model.versions[(span.at / 512) as usize..];
            for (block, versions) in read.chunks(512).zip(known) {
                assert_eq!(versions.last(), block.first(), "what was written is read");
            }
            return Ok(());
        }
    };
    model.wrote(span, byte, is_durable && done.is_ok());
    done
}

/// Power cuts at random places, one after the other, on the same file.
#[tokio::test]
async fn crashed_overlay_has_all_that_was_durable_and_whole_blocks() {
    let size = 5 * CLUSTER / 2;
    let (seeds, crashes) = (60, 8);
    for seed in 0..seeds {
        let mut random = check::Random::new(seed);
        let base = base(size);
        let before = base.contents();
        let mut model =
            Model { versions: before.chunks(512).map(|block| vec![block[0]]).collect() };
        let mut file = Arc::new(Faulty::new(file_size(size), 512));
        drop(over(&base, Arc::clone(&file) as Arc<dyn Volume>).await);
        for _ in 0..crashes {
            let overlay = again(&base, Arc::clone(&file) as Arc<dyn Volume>).await;
            let read = overlay.read(Span::new(0, size)).await.unwrap();
            model.compare(&read, seed);
            // What was read after a crash counts for later ones once it is durable.
            overlay.flush().await.unwrap();
            file.cut_after(random.below(30));
            while step(&overlay, &mut model, &mut random).await.is_ok() {}
            file = Arc::new(file.crash(random.word()));
        }
        assert!(base.contents() == before, "seed {seed}: the base was changed");
    }
}
