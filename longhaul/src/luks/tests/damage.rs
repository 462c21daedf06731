//! Headers and backups with damage: what is lost only if the owner says so.

use std::path::{Path, PathBuf};

use super::*;

/// Where the material of the first key slot starts, and how much there is.
const SLOT_0: usize = 32 << 10;
const MATERIAL: usize = 4000 * 64;

/// Where the second copy of a header starts.
const SECOND_COPY: usize = 16 << 10;

/// A volume that the pass-phrases `one` (slot 0) and `two` (slot 1) open, and a backup of its header.
struct Saved {
    volume: Arc<dyn Volume>,
    folder: tempfile::TempDir,
}

impl Saved {
    async fn new() -> Self {
        let volume = encrypted_volume(Arc::new(Memory::new(SIZE, 512))).await;
        add(volume.clone(), secret("one"), secret("two"), cheap()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        backup(volume.clone(), &folder.path().join("whole")).await.unwrap();
        Self { volume, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A backup to which this has happened.
    fn damaged(&self, damage: impl FnOnce(&mut [u8])) -> PathBuf {
        let path = self.path("damaged");
        let mut bytes = std::fs::read(self.path("whole")).unwrap();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Restores from `path` what is refused, for a reason with these words.
    #[track_caller]
    fn refused(&self, path: &Path, how: Restore, words: &str) -> impl Future<Output = ()> {
        let restored = restore(self.volume.clone(), path, how);
        async move {
            let why = restored.await.expect_err(words).to_string();
            for words in [words, "--force"] {
                assert!(why.contains(words), "{words}: {why}");
            }
        }
    }

    async fn open_with_both(&self) -> (bool, bool) {
        (opens(&self.volume, "one").await, opens(&self.volume, "two").await)
    }

    /// Zeroes a slot on the volume.
    async fn zero_slot(&self, slot: u32) {
        let found = Image::fetch(&self.volume).await.unwrap();
        let area = found.header.slot_areas().nth(slot as usize).unwrap();
        let zeroes = Bytes::from(vec![0; area.len as usize]);
        self.volume.write(area.at, zeroes, Durability::Volatile).await.unwrap();
    }
}

fn noise(bytes: &mut [u8]) {
    getrandom::fill(bytes).unwrap();
}

#[tokio::test]
async fn restore_of_damaged_slots_over_a_whole_header_is_refused() {
    type Happen = fn(&mut [u8]);
    let saved = Saved::new().await;
    let cases: [(Happen, &str); 5] = [
        (|bytes| noise(&mut bytes[SLOT_0..][..4096]), "key slot 0"),
        (|bytes| noise(&mut bytes[SLOT_0..][..MATERIAL]), "key slot 0"),
        (|bytes| bytes[SLOT_0..][..MATERIAL].fill(0), "key slot 0 of the backup is damaged"),
        (|bytes| bytes[SLOT_0..][..MATERIAL].fill(b'a'), "key slot 0 of the backup is damaged"),
        // A power cut, after which the rest of the file is a hole.
        (|bytes| bytes[64 << 10..].fill(0), "key slot 1 of the backup is damaged"),
    ];
    for (damage, words) in cases {
        let path = saved.damaged(damage);
        saved.refused(&path, Restore::default(), words).await;
        // That one pass-phrase opens it does not bring the other one back.
        assert_eq!(saved.open_with_both().await, (true, true), "{words}");
    }
    let path = saved.damaged(|bytes| bytes[SLOT_0..][..MATERIAL].fill(0));
    let two = Restore { secret: Some(secret("two")), ..Restore::default() };
    saved.refused(&path, two, "key slot 0 of the backup is damaged").await;
    let forced = Restore { force: true, ..Restore::default() };
    restore(saved.volume.clone(), &path, forced).await.unwrap();
    assert_eq!(saved.open_with_both().await, (false, true));
    // That slot is lost already.
    restore(saved.volume.clone(), &path, Restore::default()).await.unwrap();
    restore(saved.volume.clone(), &saved.path("whole"), Restore::default()).await.unwrap();
    assert_eq!(saved.open_with_both().await, (true, true));
}

#[tokio::test]
async fn restore_writes_both_copies_from_the_one_that_is_whole() {
    let saved = Saved::new().await;
    for (at, words) in [(0, "the first copy"), (SECOND_COPY, "the second copy")] {
        let path = saved.damaged(|bytes| bytes[at..][..4096].fill(0xaa));
        saved.refused(&path, Restore::default(), words).await;
        let forced = Restore { force: true, ..Restore::default() };
        restore(saved.volume.clone(), &path, forced).await.unwrap();
        let restored = Image::fetch(&saved.volume).await.unwrap();
        assert_eq!(restored.damaged, None, "{words}");
        assert_eq!(saved.open_with_both().await, (true, true), "{words}");
        damage(&saved.volume, at as u64).await;
        restore(saved.volume.clone(), &path, Restore::default()).await.expect("no worse");
    }
}

/// Which of two different slots is the right one, only a pass-phrase tells.
#[tokio::test]
async fn restore_over_a_slot_of_noise_takes_a_pass_phrase_or_force() {
    let saved = Saved::new().await;
    let mut other = vec![0; 4096];
    noise(&mut other);
    saved.volume.write(SLOT_0 as u64, other.into(), Durability::Volatile).await.unwrap();
    assert_eq!(saved.open_with_both().await, (false, true));
    let whole = saved.path("whole");
    saved.refused(&whole, Restore::default(), "one of the two is damaged").await;
    let one = Restore { secret: Some(secret("one")), ..Restore::default() };
    restore(saved.volume.clone(), &whole, one).await.unwrap();
    assert_eq!(saved.open_with_both().await, (true, true));
}

#[tokio::test]
async fn last_slot_that_may_open_is_removed_only_by_force() {
    let saved = Saved::new().await;
    saved.zero_slot(0).await;
    let listed = serde_json::to_value(slots(saved.volume.clone()).await.unwrap()).unwrap();
    let damaged = [0, 1].map(|slot: usize| listed["slots"][slot]["damaged"].as_bool());
    assert_eq!(damaged, [Some(true), Some(false)], "{listed}");
    let found = recognise(saved.volume.clone()).await.unwrap().unwrap().summary();
    assert!(found.trouble.is_some_and(|trouble| trouble.contains("key slot 0 is damaged")));
    for slot in [None, Some(1)] {
        let key = slot.is_none().then(|| secret("two").into());
        let last = remove(saved.volume.clone(), key, slot, false).await.unwrap_err().to_string();
        assert!(last.contains("last key slot") && last.contains("key slot 0 is damaged"), "{last}");
    }
    assert_eq!(saved.open_with_both().await, (false, true));
    remove(saved.volume.clone(), Some(secret("two").into()), Some(0), false).await.unwrap();
    remove(saved.volume.clone(), Some(secret("two").into()), None, true).await.unwrap();
}
