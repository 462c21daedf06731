//! The file of a journal: all of its space is there and written, so that a change of it is one write to the device.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use host::file::{Access, File, Sync};
use host::request::Request;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use volume::layer::journal::{
    Corruption, FileError, FileWork, Identity, JournalFile, PAGE, Recovered, Superblock, recover,
    superblock_offset,
};

use super::engine::{Engine, blocking};
use super::pace::Pace;
use crate::durable::sync_directory_of;

/// Where the label stands, in bytes from the start of the file.
const LABEL_AT: u64 = 512 << 10;

/// What a label begins with.
const LABEL_MAGIC: &[u8; 8] = b"LHJLABEL";

/// Where the digest of a label stands in its page.
const LABEL_SUM: usize = PAGE as usize - 32;

/// The least bytes of a file: the ring has room for some frames of the largest block.
pub const LEAST: u64 = 8 << 20;

/// How long a file is waited for that somebody has.
const LINGERING: Duration = Duration::from_secs(2);

/// How often it is tried.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// How much is written at once while a file is prepared.
const PREPARED_AT_ONCE: usize = 1 << 20;

/// Which volume a journal is for, for people and to find it again.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Label {
    /// Its URI, which holds no secrets.
    pub volume: String,
    /// The name of its target.
    pub target: String,
    /// The logical unit.
    pub lun: u16,
    /// The serial number of the unit, if it has one.
    pub serial: Option<String>,
    /// VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION.
    pub product: String,
    /// The machine that made the journal.
    pub host: String,
    /// When it did, in seconds since 1970.
    pub created: u64,
    /// The UUID of the LUKS header that the volume had then, if it was encrypted.
    #[serde(default)]
    pub luks_uuid: Option<String>,
}

impl Label {
    /// What superblocks state of the volume: a unit with a serial number is known by that, another by its place.
    #[must_use]
    pub fn name(&self) -> [u8; 32] {
        let Self { target, lun, serial, vendor, product, .. } = self;
        let known = match serial {
            Some(serial) => format!("serial\0{vendor}\0{product}\0{serial}"),
            None => format!("place\0{target}\0{lun}"),
        };
        Sha256::digest(known).into()
    }

    fn encode(&self) -> io::Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        let mut page = LABEL_MAGIC.to_vec();
        let len = u32::try_from(json.len()).map_err(io::Error::other)?;
        page.extend_from_slice(&len.to_le_bytes());
        page.extend_from_slice(&json);
        if page.len() > LABEL_SUM {
            return Err(io::Error::other("the URI of the volume is too long for a journal"));
        }
        page.resize(LABEL_SUM, 0);
        let sum = Sha256::digest(&page);
        page.extend_from_slice(&sum);
        Ok(page)
    }

    /// `None` if these are not the bytes of a label.
    fn decode(page: &[u8]) -> Option<Self> {
        let (summed, sum) = page.split_at_checked(LABEL_SUM)?;
        let rest = summed.strip_prefix(LABEL_MAGIC)?;
        let (len, rest) = rest.split_first_chunk()?;
        let json = rest.get(..u32::from_le_bytes(*len) as usize)?;
        (sum == &*Sha256::digest(summed)).then(|| serde_json::from_slice(json).ok()).flatten()
    }
}

/// Why there is no journal to use.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be used.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("it is no journal")]
    NotOne,
    /// Somebody has it open.
    #[error("another process uses it")]
    InUse,
    /// It was made, but not for a volume yet.
    #[error("it is not for any volume yet")]
    Blank,
    /// What is in it must not be used.
    #[error(transparent)]
    Corrupt(Corruption),
}

/// A journal file that is locked by this process.
#[derive(Clone)]
pub struct OpenFile {
    path: PathBuf,
    file: Arc<File>,
    engine: Engine,
    pace: Arc<Pace>,
    len: u64,
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl OpenFile {
    /// Opens the file at `path` alone. This may wait: the requests of a process that was killed end in their own time, and its
    /// lock with them.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let last = Instant::now() + LINGERING;
        loop {
            match Self::open_for(path, Access::Write) {
                Err(JournalError::InUse) if Instant::now() < last => thread::sleep(TRY_AGAIN),
                opened => return opened,
            }
        }
    }

    /// Opens it to read what it holds.
    pub fn open_to_read(path: &Path) -> Result<Self, JournalError> {
        Self::open_for(path, Access::Read)
    }

    /// Opens it beside whoever uses it: only its label is sure to be whole.
    pub fn open_unlocked(path: &Path) -> Result<Self, JournalError> {
        Self::of(path, File::open_direct(path, Access::Read)?)
    }

    fn open_for(path: &Path, access: Access) -> Result<Self, JournalError> {
        if !fs::metadata(path)?.is_file() {
            return Err(JournalError::NotOne);
        }
        let file = File::open_direct(path, access)?;
        if !file.try_lock(access)? {
            return Err(JournalError::InUse);
        }
        Self::of(path, file)
    }

    /// Makes a file of `len` bytes, all of which are written: blocks that were never written cost a change of the file
    /// system at each first write. One that cannot be made whole is removed.
    pub fn create(path: &Path, len: u64) -> Result<Self, JournalError> {
        let file = File::open_direct(path, Access::Create)?;
        let made = Self::of(path, file).and_then(|made| made.prepare(len));
        if made.is_err() {
            let _ = fs::remove_file(path);
        }
        made
    }

    fn of(path: &Path, file: File) -> Result<Self, JournalError> {
        let path = std::path::absolute(path)?;
        let len = file.len()?;
        let (file, pace) = (Arc::new(file), Arc::new(Pace::new()));
        Ok(Self { path, file, engine: Engine::chosen()?, pace, len })
    }

    fn prepare(mut self, len: u64) -> Result<Self, JournalError> {
        if !self.file.try_lock(Access::Write)? {
            return Err(JournalError::InUse);
        }
        self.len = len / PAGE * PAGE;
        self.file.allocate(0, self.len)?;
        self.file.set_len(self.len)?;
        let zeroes = aligned(&vec![0; PREPARED_AT_ONCE]);
        let mut at = 0;
        while at < self.len {
            let part = zeroes.slice(..zeroes.len().min((self.len - at) as usize));
            self.file.write(at, &part, Sync::Later)?;
            at += part.len() as u64;
        }
        self.file.sync()?;
        sync_directory_of(&self.path)?;
        Ok(self)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long it is, in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes it the journal of a volume. What was in it is gone.
    pub async fn begin(
        &self,
        label: &Label,
        size: u64,
        block_size: u32,
    ) -> Result<(), JournalError> {
        let (mut id, mut salt) = ([0; 16], [0; 32]);
        getrandom::fill(&mut id)
            .and_then(|()| getrandom::fill(&mut salt))
            .map_err(io::Error::other)?;
        let volume = Identity { name: label.name(), size, block_size };
        let superblocks = Superblock::new(id, salt, volume, self.len);
        let superblocks = superblocks.map_err(io::Error::other)?;
        for (at, part) in beginning(label.encode()?, &superblocks) {
            self.write(at, part).await.map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Reads which volume it is for, and what it holds for it.
    pub async fn read_all(&self) -> Result<(Label, Recovered), JournalError> {
        let label = self.label().await?;
        let recovered = recover(self, self.len).await.map_err(JournalError::Corrupt)?;
        Ok((label, recovered))
    }

    /// Which volume it is for.
    pub async fn label(&self) -> Result<Label, JournalError> {
        if self.len < LABEL_AT + PAGE {
            return Err(JournalError::NotOne);
        }
        let page = self.file_read(LABEL_AT, PAGE).await?;
        match Label::decode(&page) {
            Some(label) => Ok(label),
            None if page.iter().all(|byte| *byte == 0) => Err(JournalError::Blank),
            None => Err(JournalError::NotOne),
        }
    }

    async fn file_read(&self, offset: u64, len: u64) -> io::Result<Bytes> {
        // Direct reads are of whole pages.
        let start = offset / PAGE * PAGE;
        let end = (offset + len).next_multiple_of(PAGE);
        let wanted = usize::try_from(end - start).map_err(io::Error::other)?;
        let bytes = blocking(&self.file, move |file| file.read_aligned(start, wanted)).await?;
        let from = (offset - start) as usize;
        match bytes.get(from..from + len as usize) {
            Some(_) => Ok(bytes.slice(from..from + len as usize)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// What is written where, one after the other, of a journal that begins.
///
/// It is for no volume while it has superblocks of two: those of before may have greater numbers, and what they hold must not
/// be taken for this volume's after a crash.
fn beginning(label: Vec<u8>, [first, second]: &[Superblock; 2]) -> [(u64, Vec<u8>); 4] {
    [
        (LABEL_AT, vec![0; PAGE as usize]),
        (superblock_offset(first.number), first.encode()),
        (superblock_offset(second.number), second.encode()),
        (LABEL_AT, label),
    ]
}

/// A copy that direct writes take.
fn aligned(bytes: &[u8]) -> Bytes {
    let mut copy: Vec<u8> = Vec::with_capacity(bytes.len() + PAGE as usize);
    let from = copy.as_ptr().align_offset(PAGE as usize);
    copy.resize(from, 0);
    copy.extend_from_slice(bytes);
    Bytes::from(copy).slice(from..)
}

fn shared(why: io::Error) -> FileError {
    Arc::new(why)
}

impl JournalFile for OpenFile {
    fn read(&self, offset: u64, len: u64) -> FileWork<'_, Bytes> {
        Box::pin(async move { self.file_read(offset, len).await.map_err(shared) })
    }

    fn write(&self, offset: u64, bytes: Vec<u8>) -> FileWork<'_, ()> {
        let data = aligned(&bytes);
        Box::pin(async move {
            let len = data.len();
            let request = Request::Write { at: offset, data, sync: Sync::Now };
            let turn = self.pace.begin();
            let done = match turn.is_alone_and_quick(len) {
                true => self.file.perform(&request),
                false => self.engine.perform(&self.file, request).await,
            };
            turn.end(len);
            done.map(drop).map_err(shared)
        })
    }

    fn sync(&self) -> FileWork<'_, ()> {
        Box::pin(async move {
            self.engine.perform(&self.file, Request::Sync).await.map(drop).map_err(shared)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journals::{is_journal, is_sent};

    fn label() -> Label {
        Label {
            volume: "iscsi://a/iqn.2026-11.dev.longhaul:a/0".to_owned(),
            target: "iqn.2026-11.dev.longhaul:a".to_owned(),
            lun: 0,
            serial: Some("s".to_owned()),
            vendor: "V".to_owned(),
            product: "P".to_owned(),
            host: "here".to_owned(),
            created: 1,
            luks_uuid: None,
        }
    }

    #[tokio::test]
    async fn journal_that_was_begun_is_found_and_empty() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("journal");
        let file = OpenFile::create(&path, LEAST + 5).unwrap();
        assert!(matches!(file.read_all().await, Err(JournalError::Blank)));
        assert!(!is_journal(&path));
        file.begin(&label(), 1 << 20, 512).await.unwrap();
        let (found, recovered) = file.read_all().await.unwrap();
        assert_eq!((found, recovered.changes.len()), (label(), 0));
        assert_eq!(recovered.superblock.volume.name, label().name());
        assert!(is_journal(&path) && is_sent(&path));
        assert!(matches!(OpenFile::open(&path), Err(JournalError::InUse)));
        drop(file);
        let again = OpenFile::open(&path).unwrap();
        assert_eq!(again.len(), LEAST);
        again.write(RING_AT, vec![7; 8192]).await.unwrap();
        assert_eq!(JournalFile::read(&again, RING_AT + 4000, 200).await.unwrap(), vec![7; 200]);
    }

    /// At any instant it is that of the volume before, that of the new one, or none.
    #[tokio::test]
    async fn journal_that_begins_anew_is_never_that_of_two_volumes() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = OpenFile::create(&dir.path().join("journal"), LEAST).unwrap();
        let named = |name: &str| Label { serial: Some(name.to_owned()), ..label() };
        let superblocks = |name: &str, numbers: [u64; 2]| {
            let volume = Identity { name: named(name).name(), size: 1 << 20, block_size: 512 };
            let mut both = Superblock::new([1; 16], [2; 32], volume, file.len()).unwrap();
            both.iter_mut().zip(numbers).for_each(|(one, number)| one.number = number);
            both
        };
        let old = beginning(named("old").encode().unwrap(), &superblocks("old", [40, 41]));
        let new = beginning(named("new").encode().unwrap(), &superblocks("new", [0, 1]));
        for crash_before in 0..=new.len() {
            for (at, part) in old.iter().chain(&new[..crash_before]) {
                file.write(*at, part.clone()).await.unwrap();
            }
            match file.read_all().await {
                Ok((label, found)) => assert_eq!(label.name(), found.superblock.volume.name),
                Err(why) => assert!(matches!(why, JournalError::Blank), "{crash_before}: {why}"),
            }
        }
        assert_eq!(file.read_all().await.unwrap().0, named("new"));
    }

    const RING_AT: u64 = 2 << 20;

    #[test]
    fn file_that_is_something_else_is_refused() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("notes");
        fs::write(&path, "a shopping list").unwrap();
        assert!(!is_journal(&path) && !is_sent(&path));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let file = OpenFile::open(&path).unwrap();
        let found = runtime.block_on(file.read_all());
        assert!(matches!(found, Err(JournalError::NotOne)), "{found:?}");
        assert!(matches!(OpenFile::open(dir.path()), Err(JournalError::NotOne)));
        assert!(matches!(OpenFile::create(&path, LEAST), Err(JournalError::Io(_))));
        assert_eq!(fs::read(&path).unwrap(), b"a shopping list");
    }

    #[test]
    fn label_survives_and_its_damage_is_told() {
        let page = label().encode().unwrap();
        assert_eq!(page.len() as u64, PAGE);
        assert_eq!(Label::decode(&page), Some(label()));
        for at in [0, 9, 20, LABEL_SUM - 1, LABEL_SUM] {
            let mut damaged = page.clone();
            damaged[at] ^= 1;
            assert_eq!(Label::decode(&damaged), None, "{at}");
        }
        assert_eq!(Label::decode(&page[..100]), None);
    }

    #[test]
    fn unit_is_known_by_its_serial_number_and_without_one_by_its_place() {
        let other = Label { lun: 1, target: "b".to_owned(), ..label() };
        assert_eq!(other.name(), label().name());
        let none = Label { serial: None, ..label() };
        assert_ne!(Label { lun: 1, ..none.clone() }.name(), none.name());
        assert_ne!(none.name(), label().name());
    }
}
