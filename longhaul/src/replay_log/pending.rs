//! Replay logs that wait to be written.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use volume::Span;

use super::superseded::superseded_at;
use super::{Header, ReadError, Reader};
use crate::printable::{Counted, Quoted as _, Shown as _};
use crate::size::Size;
use crate::utc::utc;

/// A log that has not been written yet.
#[derive(Debug)]
pub struct Pending {
    /// Its file.
    pub path: PathBuf,
    /// The key of the attachment that it is from, if that had one.
    pub key: Option<u64>,
    /// When this machine has written to its places since, so that it is not the newest.
    pub superseded: Option<u64>,
    /// What it says of itself; `None` of one that is missing.
    pub header: Option<Header>,
    /// The places that it changes.
    pub places: Vec<Span>,
    /// How many changes it holds, and the bytes of their data.
    holds: Result<(u64, u64), ReadError>,
    /// It was closed: no more comes.
    has_end: bool,
}

impl Pending {
    /// One that is not at its place any more.
    #[must_use]
    pub const fn missing(path: PathBuf, key: u64) -> Self {
        Self {
            path,
            key: Some(key),
            superseded: None,
            header: None,
            places: Vec::new(),
            holds: Err(ReadError::Missing),
            has_end: false,
        }
    }

    /// Whether a volume with this UUID, if it is encrypted, and this size may be its own. Serial numbers alone may be
    /// alike. A log of a plain volume is of none that was encrypted since, but by its own attachment, which is told by its key
    /// that is `registered` still.
    #[must_use]
    pub fn may_be_of(&self, luks_uuid: Option<&str>, size: u64, registered: &[u64]) -> bool {
        let Some(header) = &self.header else { return true };
        let is_uuid = match (header.luks_uuid.as_deref(), luks_uuid) {
            (Some(there), Some(here)) => there == here,
            (None, Some(_)) => self.key.is_some_and(|key| registered.contains(&key)),
            (_, None) => true,
        };
        is_uuid && header.size <= size
    }

    /// What to do about it before the volume is used, which is called `volume`.
    #[must_use]
    pub fn advice(&self, volume: &str) -> String {
        let path = self.path.quoted();
        match self.superseded {
            Some(at) => format!(
                "the {} {self} of {volume} is older than what was written from this machine at its places since {}: \
                 delete it if it is of no use; `longhaul replay --force {path}` replaces what is newer",
                self.kind(),
                utc(at)
            ),
            None => format!(
                "{volume} lacks what is in the {} {self}: end this and run `{}` first, since it replaces what is \
                 written from now on",
                self.kind(),
                self.command()
            ),
        }
    }

    /// Whether it is a journal that is not there, as far as its name tells: logs are made with a name of their own.
    #[must_use]
    pub fn is_journal(&self) -> bool {
        self.header.is_none() && !has_name_of_log(&self.path)
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if self.is_journal() { "journal" } else { "replay log" }
    }

    /// What writes it.
    #[must_use]
    pub fn command(&self) -> String {
        let path = self.path.quoted();
        if self.is_journal() {
            return format!("longhaul journal drain {path}");
        }
        // What has no end may still be written, by a process that ends yet.
        match self.has_end || self.holds.is_err() {
            true => format!("longhaul replay {path}"),
            false => format!("longhaul replay --partial {path}"),
        }
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.shown();
        match &self.holds {
            Ok((changes, bytes)) if !self.has_end => {
                let (changes, bytes) = (Counted(*changes, "change"), Size(*bytes));
                write!(
                    f,
                    "{path} ({changes}, {bytes} bytes so far: it is being written, or was cut off)"
                )
            }
            Ok((changes, bytes)) => {
                write!(f, "{path} ({}, {} bytes)", Counted(*changes, "change"), Size(*bytes))
            }
            Err(why) => write!(f, "{path} ({why})"),
        }
    }
}

/// A log in `dir` that has not been written, of the attachment whose reservation had this key.
#[must_use]
pub fn of_key(dir: &Path, key: u64) -> Option<PathBuf> {
    found(dir, |header| header.key == Some(key)).into_iter().next().map(|(path, _)| path)
}

/// The name that a log gets when it has been written.
#[must_use]
pub fn applied_name(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".applied");
    name.into()
}

/// Whether the log that was at this path has been written. One that is missing has not.
#[must_use]
pub fn is_written(log: &Path) -> bool {
    !log.exists() && applied_name(log).exists()
}

/// When the log at this path was begun; `None` if there is none.
#[must_use]
pub fn created(log: &Path) -> Option<u64> {
    Some(Reader::header_of(log).ok()?.created)
}

/// Whether there is a log at this path.
#[must_use]
pub fn is_readable(log: &Path) -> bool {
    Reader::header_of(log).is_ok()
}

fn has_name_of_log(path: &Path) -> bool {
    path.extension().is_some_and(|name| name == "replay")
}

fn found(dir: &Path, wanted: impl Fn(&Header) -> bool) -> Vec<(PathBuf, Header)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = entries.filter(|path| has_name_of_log(path)).collect();
    paths.sort();
    let header = |path: PathBuf| {
        let header = Reader::header_of(&path).ok().filter(|header| wanted(header))?;
        Some((path, header))
    };
    paths.into_iter().filter_map(header).collect()
}

/// The logs in `dir` that are wanted and have not been written. What cannot be read there is none. What this machine has
/// written since is noted in the state directory `state`.
pub fn pending(dir: &Path, state: Option<&Path>, wanted: impl Fn(&Header) -> bool) -> Vec<Pending> {
    let look = |(path, header): (PathBuf, Header)| {
        let log = Reader::open_unlocked(&path);
        Pending {
            has_end: log.as_ref().is_ok_and(|log| log.torn().is_none()),
            places: log.as_ref().map(|log| log.places().to_vec()).unwrap_or_default(),
            holds: log.map(|log| log.holds()),
            key: header.key,
            path,
            superseded: state.and_then(|state| superseded_at(state, &header)),
            header: Some(header),
        }
    };
    found(dir, wanted).into_iter().map(look).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(luks_uuid: Option<&str>) -> Pending {
        let header = Header {
            volume: "iscsi://a/iqn.2001-04.com.example:t/1".to_owned(),
            target: "iqn.2001-04.com.example:t".to_owned(),
            lun: 1,
            serial: None,
            vendor: "v".to_owned(),
            product: "p".to_owned(),
            size: 8,
            block_size: 1,
            opened: 0,
            created: 0,
            host: "here".to_owned(),
            luks_uuid: luks_uuid.map(str::to_owned),
            key: Some(7),
        };
        Pending {
            path: "a.replay".into(),
            key: header.key,
            superseded: None,
            header: Some(header),
            places: Vec::new(),
            holds: Ok((0, 0)),
            has_end: true,
        }
    }

    #[test]
    fn log_without_an_end_is_not_said_to_hold_all() {
        let log = |has_end| Pending { has_end, ..log(None) };
        assert!(log(false).to_string().contains("so far: it is being written"));
        assert!(log(false).advice("v").contains("`longhaul replay --partial a.replay`"));
        assert_eq!(log(true).to_string(), "a.replay (0 changes, 0 bytes)");
        assert!(log(true).advice("v").contains("`longhaul replay a.replay` first"));
    }

    #[test]
    fn missing_file_without_the_name_of_a_log_is_a_journal() {
        let journal = Pending::missing("a b.journal".into(), 7);
        let advice = journal.advice("v");
        for words in ["in the journal a b.journal (", "`longhaul journal drain 'a b.journal'`"] {
            assert!(advice.contains(words), "{advice}");
        }
        let advice = Pending::missing("a.replay".into(), 7).advice("v");
        for words in ["in the replay log a.replay (", "`longhaul replay a.replay`"] {
            assert!(advice.contains(words), "{advice}");
        }
    }

    #[test]
    fn log_that_was_superseded_is_not_to_come_first() {
        let advice = Pending { superseded: Some(0), ..log(None) }.advice("v");
        assert!(advice.contains("older than what was written") && advice.contains("1970-01-01"));
        assert!(!advice.contains("first"), "{advice}");
    }

    #[test]
    fn log_of_another_uuid_or_a_larger_volume_is_of_another_volume() {
        for (there, here, size, registered, may_be) in [
            (Some("a"), Some("a"), 8, &[][..], true),
            (Some("a"), Some("b"), 8, &[7], false),
            (Some("a"), None, 8, &[], true),
            (None, Some("b"), 8, &[], false),
            (None, Some("b"), 8, &[8], false),
            (None, Some("b"), 8, &[8, 7], true),
            (None, None, 9, &[], true),
            (Some("a"), Some("a"), 7, &[], false),
        ] {
            let found = log(there).may_be_of(here, size, registered);
            assert_eq!(found, may_be, "{there:?} {here:?} {size} {registered:?}");
        }
        assert!(Pending::missing("a".into(), 7).may_be_of(Some("a"), 0, &[]));
    }
}
