//! Management and opening over volumes in memory: what must hold whatever breaks.

mod erase;

use bytes::Bytes;
use volume::store::faulty::Faulty;
use volume::store::memory::Memory;
use volume::{Durability, Kind, Span, check};

use super::*;
use crate::size::Size;

const SIZE: u64 = 24 << 20;

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

/// The least that libcryptsetup takes: these tests derive hundreds of keys.
fn cheap() -> CostArgs {
    CostArgs {
        pbkdf_memory: Some(Size(32 << 10)),
        pbkdf_iterations: Some(4),
        ..CostArgs::default()
    }
}

fn init_with(force: bool) -> Init {
    Init { label: Some("test".into()), cost: cheap(), force }
}

async fn sealed(volume: Arc<dyn Volume>) -> Arc<dyn Volume> {
    init(volume.clone(), secret("one"), init_with(false)).await.unwrap();
    volume
}

async fn opens(volume: &Arc<dyn Volume>, text: &str) -> bool {
    match open(volume.clone(), secret(text), Options::default()).await {
        Ok(_) => true,
        Err(why) => {
            let why = why.to_string();
            assert!(why.contains("no key slot opens"), "the header itself is broken: {why}");
            false
        }
    }
}

#[tokio::test]
async fn slots_come_and_go() {
    let volume = sealed(Arc::new(Memory::new(SIZE, 512))).await;
    assert!(opens(&volume, "one").await && !opens(&volume, "two").await);
    assert_eq!(add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap(), 1);
    assert!(opens(&volume, "one").await && opens(&volume, "two").await);
    change(volume.clone(), secret("one"), secret("three"), cheap()).await.unwrap();
    assert!(!opens(&volume, "one").await && opens(&volume, "three").await);
    remove(volume.clone(), Some(secret("two")), None, false).await.unwrap();
    assert!(!opens(&volume, "two").await && opens(&volume, "three").await);
    let last = remove(volume.clone(), Some(secret("three")), None, false).await.unwrap_err();
    assert!(last.to_string().contains("last key slot"), "{last}");
    let slots = slots(volume.clone()).await.unwrap();
    assert_eq!((slots.slots.len(), slots.label.as_str(), slots.sector_size), (1, "test", 4096));
    assert_eq!((slots.offset, slots.size), (16 << 20, SIZE - (16 << 20)));
    remove(volume.clone(), Some(secret("three")), None, true).await.unwrap();
    assert!(!opens(&volume, "three").await);
}

#[tokio::test]
async fn a_named_slot_goes_only_if_another_one_opens() {
    let volume = sealed(Arc::new(Memory::new(SIZE, 512))).await;
    add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
    let own = remove(volume.clone(), Some(secret("two")), Some(1), false).await.unwrap_err();
    assert!(own.to_string().contains("opens slot 1 itself"), "{own}");
    let none = remove(volume.clone(), Some(secret("two")), Some(7), false).await.unwrap_err();
    assert!(none.to_string().contains("no key slot 7"), "{none}");
    remove(volume.clone(), Some(secret("one")), Some(1), false).await.unwrap();
    assert!(opens(&volume, "one").await && !opens(&volume, "two").await);
}

#[tokio::test]
async fn what_holds_something_is_not_sealed_by_mistake() {
    for (at, bytes, name) in
        [(1080, &b"\x53\xef"[..], "ext4"), (510, b"\x55\xaa", "MBR"), (70_000, b"x", "data")]
    {
        let volume: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
        let mut start = vec![0; 128 << 10];
        start[at..at + bytes.len()].copy_from_slice(bytes);
        volume.write(0, Bytes::from(start), Durability::Volatile).await.unwrap();
        let refused = init(volume.clone(), secret("one"), init_with(false)).await.unwrap_err();
        assert!(refused.to_string().contains(name), "{refused}");
        init(volume.clone(), secret("one"), init_with(true)).await.unwrap();
    }
    let volume = sealed(Arc::new(Memory::new(SIZE, 512))).await;
    let refused = init(volume, secret("one"), init_with(false)).await.unwrap_err();
    assert!(refused.to_string().contains("a LUKS header"), "{refused}");
    let small: Arc<dyn Volume> = Arc::new(Memory::new(16 << 20, 512));
    let refused = init(small, secret("one"), init_with(false)).await.unwrap_err();
    assert!(refused.to_string().contains("the header alone"), "{refused}");
}

#[tokio::test]
async fn the_plain_text_keeps_the_contract() {
    for (seed, block_size) in [(1, 512), (2, 4096)] {
        let store = sealed(Arc::new(Memory::new(56 << 20, block_size))).await;
        for discards in [Discards::Refuse, Discards::Pass] {
            let options = Options { discards };
            let plain = open(store.clone(), secret("one"), options).await.unwrap();
            assert_eq!((plain.shape().block_size, plain.shape().physical_block_size), (512, 4096));
            check::volume(seed, plain).await;
        }
    }
}

#[tokio::test]
async fn a_backup_brings_back_the_old_pass_phrases() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("header");
    let volume = sealed(Arc::new(Memory::new(SIZE, 512))).await;
    backup(volume.clone(), &path).await.unwrap();
    assert!(backup(volume.clone(), &path).await.is_err(), "a backup was overwritten");
    change(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
    let wrong = Restore { secret: Some(secret("two")), force: false };
    assert!(restore(volume.clone(), &path, wrong).await.is_err());
    assert!(opens(&volume, "two").await, "a refused restore changed something");
    let right = Restore { secret: Some(secret("one")), force: false };
    restore(volume.clone(), &path, right).await.unwrap();
    assert!(opens(&volume, "one").await && !opens(&volume, "two").await);

    let other = sealed(Arc::new(Memory::new(SIZE, 512))).await;
    let refused = restore(other.clone(), &path, Restore::default()).await.unwrap_err();
    assert!(refused.to_string().contains("the backup is of volume"), "{refused}");
    let lost: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
    assert!(restore(lost.clone(), &path, Restore::default()).await.is_err());
    restore(lost.clone(), &path, Restore { secret: None, force: true }).await.unwrap();
    assert!(opens(&lost, "one").await);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000).unwrap();
    let cut = restore(volume.clone(), &path, Restore::default()).await.unwrap_err();
    assert!(cut.to_string().contains("cut short"), "{cut}");
}

#[tokio::test]
async fn either_copy_of_the_header_is_enough_and_is_repaired() {
    for at in [0, 16 << 10] {
        let volume = sealed(Arc::new(Memory::new(SIZE, 512))).await;
        let rubbish = Bytes::from(vec![0xaa; 16 << 10]);
        volume.write(at, rubbish, Durability::Volatile).await.unwrap();
        assert!(opens(&volume, "one").await, "the copy beside {at} was not used");
        add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
        let other = (16 << 10) - at;
        let rubbish = Bytes::from(vec![0xaa; 16 << 10]);
        volume.write(other, rubbish, Durability::Volatile).await.unwrap();
        assert!(opens(&volume, "two").await, "the copy at {at} was not repaired");
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Add,
    Change,
    Remove,
}

async fn carry_out(operation: Operation, volume: Arc<dyn Volume>) -> Outcome {
    match operation {
        Operation::Add => add(volume, secret("one"), secret("new"), cheap()).await.map(drop),
        Operation::Change => change(volume, secret("one"), secret("new"), cheap()).await.map(drop),
        Operation::Remove => remove(volume, Some(secret("new")), None, false).await.map(drop),
    }
}

/// The power goes after each write and flush of each operation in turn, and the cache is lost in
/// several ways: the header always opens with what opened it before or is to open it.
#[tokio::test]
async fn no_moment_without_a_header_that_opens() {
    for operation in [Operation::Add, Operation::Change, Operation::Remove] {
        let before: Arc<Faulty> = Arc::new(Faulty::new(SIZE - (7 << 20), 512));
        let store: Arc<dyn Volume> = before.clone();
        sealed(store.clone()).await;
        if matches!(operation, Operation::Remove) {
            add(store.clone(), secret("one"), secret("new"), cheap()).await.unwrap();
        }
        store.flush().await.unwrap();
        let start = before.contents();
        let mut cut = 0;
        loop {
            let disk = Arc::new(Faulty::holding(start.clone(), 512));
            disk.cut_after(cut);
            let finished = carry_out(operation, disk.clone()).await.is_ok();
            for seed in 0..2 {
                let found: Arc<dyn Volume> = Arc::new(disk.crash(seed));
                let (one, new) = (opens(&found, "one").await, opens(&found, "new").await);
                let fine = match operation {
                    Operation::Add => one && (new || !finished),
                    Operation::Change if finished => new && !one,
                    Operation::Change => one || new,
                    Operation::Remove => one && (!finished || !new),
                };
                assert!(fine, "{operation:?} cut after {cut}, seed {seed}: {one} {new} {finished}");
                // And no slot is listed whose material is not there yet, or is wiped already.
                let listed = slots(found).await.unwrap().slots.len();
                assert_eq!(
                    listed,
                    usize::from(one) + usize::from(new),
                    "{operation:?} {cut} {seed}"
                );
            }
            if finished {
                break;
            }
            cut += 1;
        }
        assert!(cut > 4, "{operation:?} was never cut in the middle");
    }
}

#[tokio::test]
async fn a_removed_slot_is_wiped() {
    let volume = sealed(Arc::new(Memory::new(SIZE, 512))).await;
    add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
    let before = image::Image::fetch(&volume).await.unwrap();
    let area = before.header.slot_areas().nth(1).unwrap();
    remove(volume.clone(), Some(secret("two")), None, false).await.unwrap();
    let after = image::read(&volume, area).await.unwrap();
    let old = &before.bytes[area.at as usize..area.end() as usize];
    let left = old.chunks(512).zip(after.chunks(512)).filter(|(old, new)| old == new).count();
    assert_eq!(left, 0, "sectors of the old slot are still there");
}

#[tokio::test]
async fn a_failed_write_is_reported_and_the_header_still_opens() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let volume: Arc<dyn Volume> = disk.clone();
    sealed(volume.clone()).await;
    disk.fail(volume::Verb::Write, Kind::NoSpace);
    let failed = add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap_err();
    assert!(failed.to_string().contains("no space left"), "{failed}");
    assert!(opens(&volume, "one").await);
}

#[tokio::test]
async fn a_read_only_volume_opens_and_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    use crate::chain::OpenOptions;
    let uri = crate::uri::Uri::File(path);
    let create = OpenOptions { size: Some(Size(SIZE)), ..OpenOptions::default() };
    let store = crate::chain::open(&uri, create).await.unwrap().volume();
    sealed(store.clone()).await;
    drop(store);
    let look = OpenOptions { read_only: true, ..OpenOptions::default() };
    let store = crate::chain::open(&uri, look).await.unwrap().volume();
    let plain = open(store, secret("one"), Options::default()).await.unwrap();
    assert_eq!(plain.read(Span::new(0, 512)).await.unwrap().len(), 512);
    let refused = plain.write(0, Bytes::from(vec![0; 512]), Durability::Volatile).await;
    assert_eq!(refused.unwrap_err().kind, Kind::ReadOnly);
}
