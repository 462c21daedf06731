//! The volumes that processes of this machine write to: one file for each, locked by its process for as long as it
//! lives. So the reservation of a process that was killed is known from that of one which is only slow.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::state_dir::state_dir;

/// What is known of an attachment.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The name of the target.
    pub target: String,
    /// The number of the unit.
    pub lun: u16,
    /// Its serial number, if it has one.
    pub serial: Option<String>,
    /// The key of the reservation.
    pub key: u64,
    /// The process.
    pub pid: u32,
    /// When the process was started, in clock ticks since the start of the machine.
    pub started: Option<u64>,
    /// The run of the machine.
    pub boot: Option<String>,
    /// When it attached, in seconds since 1970.
    pub since: u64,
}

impl Entry {
    /// An attachment by this process.
    #[must_use]
    pub fn new(target: &str, lun: u16, serial: Option<String>, key: u64) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            target: target.to_owned(),
            lun,
            serial,
            key,
            pid: std::process::id(),
            started: started(),
            boot: boot.map(|id| id.trim().to_owned()),
            since: since.as_secs(),
        }
    }

    fn is_of(&self, target: &str, lun: u16, serial: Option<&str>) -> bool {
        self.target == target && self.lun == lun && self.serial.as_deref() == serial
    }
}

/// Field 22 of /proc/self/stat; the second, the name of the program, may hold anything but ends with the last `)`.
fn started() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// A file that this process has locked.
#[derive(Debug)]
pub struct Attachment {
    path: PathBuf,
    /// Held for its lock.
    _file: File,
}

impl Attachment {
    /// Notes an attachment in `folder`, before its key is registered.
    pub fn note(folder: &Path, entry: &Entry) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(format!("{:016x}", entry.key));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        // Locked before there is anything in it: an empty file is nobody's.
        file.lock()?;
        file.write_all(&serde_json::to_vec(entry)?)?;
        file.sync_all()?;
        Ok(Self { path, _file: file })
    }

    /// The reservation is no more, so nothing has to be remembered.
    pub fn forget(self) {
        if let Err(why) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %why, "cannot remove");
        }
    }
}

/// What this machine knows of a unit.
#[derive(Debug, Default)]
pub struct Known {
    /// Attachments of processes that are gone; nobody else can take them over meanwhile.
    pub gone: Vec<(Entry, Attachment)>,
    /// Those of processes that live.
    pub living: Vec<Entry>,
}

impl Known {
    /// What `folder` tells of a unit.
    #[must_use]
    pub fn of(folder: &Path, target: &str, lun: u16, serial: Option<&str>) -> Self {
        let concerns = |entry: &Entry| entry.is_of(target, lun, serial);
        let mut known = Self::default();
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()) {
            match look(&path) {
                Ok((entry, lock)) if concerns(&entry) => match lock {
                    Some(file) => known.gone.push((entry, Attachment { path, _file: file })),
                    None => known.living.push(entry),
                },
                Ok(_) => {}
                Err(why) => tracing::debug!(path = %path.display(), %why, "no attachment"),
            }
        }
        known
    }
}

/// What a file says, and the file with its lock if nobody else has that.
fn look(path: &Path) -> io::Result<(Entry, Option<File>)> {
    let mut file = File::open(path)?;
    let free = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(why)) => return Err(why),
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let entry = serde_json::from_slice(&text)?;
    Ok((entry, free.then_some(file)))
}

/// Where they are noted, if there is a state directory.
#[must_use]
pub fn folder() -> Option<PathBuf> {
    state_dir().map(|dir| dir.join("attachments"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "iqn.2026-11.dev.longhaul:t";

    fn entry(key: u64) -> Entry {
        Entry::new(TARGET, 0, Some("s".to_owned()), key)
    }

    #[test]
    fn attachment_of_a_living_process_is_told_from_that_of_one_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let look = || Known::of(dir.path(), TARGET, 0, Some("s"));
        let first = Attachment::note(dir.path(), &entry(7)).unwrap();
        assert_eq!(look().living, [entry(7)]);
        assert!(look().gone.is_empty());
        // As at the end of the process: the file stays, its lock goes.
        drop(first);
        let known = look();
        assert_eq!(known.gone[0].0.key, 7);
        assert!(look().gone.is_empty(), "who takes it over keeps others from it");
        for (_, gone) in known.gone {
            gone.forget();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_attachment_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("1"), "").unwrap();
        fs::write(dir.path().join("2"), "{}").unwrap();
        let other = Entry { lun: 1, ..entry(3) };
        drop(Attachment::note(dir.path(), &other).unwrap());
        let known = Known::of(dir.path(), TARGET, 0, Some("s"));
        assert!(known.gone.is_empty() && known.living.is_empty());
    }

    #[test]
    fn process_is_known_by_its_start() {
        assert!(started().is_some_and(|ticks| ticks > 0));
        let entry = entry(1);
        assert!(entry.boot.is_some_and(|boot| boot.len() == 36));
    }
}
