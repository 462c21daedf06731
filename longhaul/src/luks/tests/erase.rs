//! The key of an open volume is destroyed: what is lost, what is not, and what a crash leaves.

use volume::{CryptoErase as _, Verb};

use super::super::erase::Erasable;
use super::super::header::Header;
use super::super::image::Image;
use super::*;

const BLOCK: u64 = 512;

async fn erasable(volume: &Arc<dyn Volume>) -> Erasable {
    let encrypted = recognise(volume.clone()).await.unwrap().expect("it is encrypted");
    Erasable::open(encrypted, &secret("one").into(), Options::default()).await.unwrap()
}

/// A volume that `one` and `two` open, with sevens in its first block.
async fn shared(volume: Arc<dyn Volume>) -> Arc<dyn Volume> {
    let volume = encrypted_volume(volume).await;
    add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
    let plain = open(volume.clone(), secret("one"), Options::default()).await.unwrap();
    plain.write(0, sevens(), Durability::Durable).await.unwrap();
    volume
}

fn sevens() -> Bytes {
    Bytes::from(vec![7; BLOCK as usize])
}

async fn first_block(plain: &dyn Volume) -> Bytes {
    plain.read(Span::new(0, BLOCK)).await.unwrap()
}

/// What `one` finds in the first block.
async fn found(volume: &Arc<dyn Volume>) -> Bytes {
    let plain = open(volume.clone(), secret("one"), Options::default()).await.unwrap();
    first_block(&*plain).await
}

/// Where the material of the slots lies, and what it is.
async fn material(volume: &Arc<dyn Volume>) -> Vec<(Span, Vec<u8>)> {
    let image = Image::fetch(volume).await.unwrap();
    let slots = image.header.slot_areas();
    slots.map(|area| (area, image.bytes[area.at as usize..area.end() as usize].to_vec())).collect()
}

/// How many sectors of that are still there.
async fn left(volume: &Arc<dyn Volume>, material: &[(Span, Vec<u8>)]) -> usize {
    let mut left = 0;
    for (area, old) in material {
        let now = image::read(volume, *area).await.unwrap();
        left += old.chunks(512).zip(now.chunks(512)).filter(|(old, now)| old == now).count();
    }
    left
}

#[tokio::test]
async fn erased_contents_are_lost_and_only_the_secret_in_use_opens_new_ones() {
    let volume = shared(Arc::new(Memory::new(SIZE, 512))).await;
    let (before, material) = (slots(volume.clone()).await.unwrap(), material(&volume).await);
    let erasable = erasable(&volume).await;
    assert_eq!(first_block(&erasable).await, sevens());
    erasable.crypto_erase().await.unwrap();
    assert_ne!(first_block(&erasable).await, sevens());
    erasable.write(0, sevens(), Durability::Durable).await.unwrap();
    assert_eq!(found(&volume).await, sevens(), "the header has the key that is in force");
    assert!(!opens(&volume, "two").await);
    assert_eq!(left(&volume, &material).await, 0, "sectors of the old slots are still there");
    let after = slots(volume.clone()).await.unwrap();
    assert_eq!((after.uuid, after.label), (before.uuid, before.label));
    assert_eq!((after.offset, after.size), (before.offset, before.size));
    let [slot] = &after.slots[..] else { panic!("{:?}", after.slots) };
    let model = &before.slots[0];
    assert_eq!(
        (slot.time, slot.memory_kib, slot.threads),
        (model.time, model.memory_kib, model.threads)
    );
    assert_eq!((slot.key_bits, &slot.kdf), (model.key_bits, &model.kdf));
    // And once more.
    erasable.crypto_erase().await.unwrap();
    assert_ne!(first_block(&erasable).await, sevens());
    assert!(opens(&volume, "one").await);
}

#[tokio::test]
async fn nothing_is_left_in_the_header_that_knows_the_old_key() {
    let volume = shared(Arc::new(Memory::new(SIZE, 512))).await;
    erasable(&volume).await.crypto_erase().await.unwrap();
    let image = Image::fetch(&volume).await.unwrap();
    assert!(Header::superseded(&image.bytes).is_none(), "the copies differ");
    for at in [0, image.header.size] {
        let json = &image.bytes[at as usize + 4096..][..image.header.size as usize - 4096];
        let json = json.split(|byte| *byte == 0).next().unwrap();
        let json: serde_json::Value = serde_json::from_slice(json).unwrap();
        for kind in ["keyslots", "digests"] {
            assert_eq!(json[kind].as_object().unwrap().len(), 1, "{kind}: {json}");
        }
        assert!(json["tokens"].as_object().unwrap().is_empty(), "{json}");
    }
}

#[tokio::test]
async fn it_keeps_the_contract_with_either_key() {
    let volume = encrypted_volume(Arc::new(Memory::new(56 << 20, 512))).await;
    let erasable = Arc::new(erasable(&volume).await);
    check::volume(3, erasable.clone()).await;
    erasable.crypto_erase().await.unwrap();
    check::volume(4, erasable).await;
}

/// The power goes after each write and flush in turn, and the cache is lost in several ways: the volume opens
/// with the secret in use and has all it had or nothing of it; and once it has nothing, no other secret opens
/// it, and nothing of the old slots is left.
#[tokio::test]
async fn a_crash_leaves_the_old_key_or_none_of_it() {
    let first: Arc<Faulty> = Arc::new(Faulty::new(SIZE - (7 << 20), 512));
    let store: Arc<dyn Volume> = first.clone();
    shared(store.clone()).await;
    store.flush().await.unwrap();
    let (start, material) = (first.contents(), material(&store).await);
    let mut seen = [0; 2];
    for cut in 0.. {
        let disk = Arc::new(Faulty::holding(start.clone(), 512));
        let erasable = erasable(&(disk.clone() as Arc<dyn Volume>)).await;
        disk.cut_after(cut);
        let finished = erasable.crypto_erase().await.is_ok();
        for seed in 0..2 {
            let crashed: Arc<dyn Volume> = Arc::new(disk.crash(seed));
            let lost = found(&crashed).await != sevens();
            assert!(lost || !finished, "cut after {cut}, seed {seed}");
            assert_eq!(opens(&crashed, "two").await, !lost, "cut after {cut}, seed {seed}");
            if lost {
                assert_eq!(left(&crashed, &material).await, 0, "cut after {cut}, seed {seed}");
            }
            seen[usize::from(lost)] += 1;
        }
        if finished {
            break;
        }
    }
    assert!(seen[0] > 4 && seen[1] > 4, "it was never cut in the middle: {seen:?}");
}

/// What a crash has left to do is done by whoever opens the volume next, however often that is cut short too.
#[tokio::test]
async fn a_removal_that_was_cut_short_is_finished() {
    let first: Arc<Faulty> = Arc::new(Faulty::new(SIZE - (7 << 20), 512));
    let store: Arc<dyn Volume> = first.clone();
    shared(store.clone()).await;
    store.flush().await.unwrap();
    let material: Vec<_> = material(&store).await.into_iter().skip(1).collect();
    let cut_short = |start: Vec<u8>, cut| {
        let disk = Arc::new(Faulty::holding(start, 512));
        disk.cut_after(cut);
        disk
    };
    let mut unfinished = 0;
    for cut in 0.. {
        let disk = cut_short(first.contents(), cut);
        if remove(disk.clone(), Some(secret("two").into()), None, false).await.is_ok() {
            break;
        }
        let crashed = disk.crash(cut);
        let image = Image::fetch(&(Arc::new(disk.crash(cut)) as Arc<dyn Volume>)).await.unwrap();
        if Header::superseded(&image.bytes).is_none() || image.header.slot_areas().count() == 2 {
            continue;
        }
        unfinished += 1;
        let again = cut_short(crashed.contents(), 1);
        let opened = open(again.clone(), secret("one"), Options::default()).await;
        assert!(opened.is_err(), "the power went while it was finished");
        let crashed: Arc<dyn Volume> = Arc::new(again.crash(cut));
        assert_eq!(found(&crashed).await, sevens());
        assert_eq!(left(&crashed, &material).await, 0, "cut after {cut}");
        let image = Image::fetch(&crashed).await.unwrap();
        assert!(Header::superseded(&image.bytes).is_none(), "cut after {cut}");
    }
    assert!(unfinished > 1, "it was never cut in the middle");
}

#[tokio::test]
async fn a_medium_that_fails_leaves_a_volume_that_can_be_erased_again() {
    for verb in [Verb::Write, Verb::Flush] {
        let disk = Arc::new(Faulty::new(SIZE, 512));
        // One that remembers its failure has to be opened anew.
        disk.forget();
        let volume = shared(disk.clone() as Arc<dyn Volume>).await;
        let erasable = erasable(&volume).await;
        disk.fail(verb, Kind::Medium);
        let failed = erasable.crypto_erase().await.unwrap_err();
        assert_eq!((failed.kind, failed.verb), (Kind::Medium, Verb::CryptoErase));
        assert_eq!(first_block(&erasable).await, found(&volume).await, "they have the same key");
        erasable.crypto_erase().await.unwrap();
        assert_ne!(first_block(&erasable).await, sevens());
        assert_eq!(first_block(&erasable).await, found(&volume).await);
    }
}

#[tokio::test]
async fn where_nobody_can_tell_the_key_nothing_is_read() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let volume = shared(disk.clone() as Arc<dyn Volume>).await;
    let erasable = erasable(&volume).await;
    disk.cut_after(2);
    assert!(erasable.crypto_erase().await.is_err());
    let gone = erasable.read(Span::new(0, BLOCK)).await.unwrap_err();
    assert_eq!(gone.kind, Kind::Gone);
}

/// The UUID stays with a new key, so that it does not tell the header of before from that of now.
#[tokio::test]
async fn backup_of_the_destroyed_key_does_not_replace_the_new_one_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("header");
    let volume = shared(Arc::new(Memory::new(SIZE, 512))).await;
    backup(volume.clone(), &path).await.unwrap();
    let erasable = erasable(&volume).await;
    erasable.crypto_erase().await.unwrap();
    erasable.write(0, Bytes::from(vec![8; BLOCK as usize]), Durability::Durable).await.unwrap();
    let forced = Restore { force: true, ..Restore::default() };
    let refused = restore(volume.clone(), &path, forced).await.unwrap_err().to_string();
    assert!(refused.contains("the backup holds another key of volume"), "{refused}");
    assert_eq!(found(&volume).await, vec![8; BLOCK as usize]);
    let replace = Some(slots(volume.clone()).await.unwrap().uuid);
    restore(volume.clone(), &path, Restore { replace, ..Restore::default() }).await.unwrap();
    assert_ne!(found(&volume).await, vec![8; BLOCK as usize]);
}
