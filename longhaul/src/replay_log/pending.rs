//! Replay logs that wait to be written.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Header, ReadError, Reader};
use crate::printable::Shown as _;
use crate::size::Size;

/// A log that has not been written yet.
#[derive(Debug)]
pub struct Pending {
    /// Its file.
    pub path: PathBuf,
    /// The key of the attachment that it is from, if that had one.
    pub key: Option<u64>,
    /// The UUID of its volume, if that was opened as an encrypted one.
    luks_uuid: Option<String>,
    /// The size of its volume.
    size: u64,
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
            luks_uuid: None,
            size: 0,
            holds: Err(ReadError::Missing),
            has_end: false,
        }
    }

    /// Whether a volume with this UUID, if it has one, and this size may be its own. Serial numbers alone may be alike.
    #[must_use]
    pub fn may_be_of(&self, luks_uuid: Option<&str>, size: u64) -> bool {
        let uuids = self.luks_uuid.as_deref().zip(luks_uuid);
        uuids.is_none_or(|(there, here)| there == here) && self.size <= size
    }

    /// Whether it can be told by a UUID.
    #[must_use]
    pub const fn has_uuid(&self) -> bool {
        self.luks_uuid.is_some()
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.shown();
        match &self.holds {
            Ok((changes, bytes)) if !self.has_end => {
                let bytes = Size(*bytes);
                write!(
                    f,
                    "{path} ({changes} changes, {bytes} bytes so far: it is being written, or was cut off)"
                )
            }
            Ok((changes, bytes)) => write!(f, "{path} ({changes} changes, {} bytes)", Size(*bytes)),
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

/// Whether there is a log at this path.
#[must_use]
pub fn is_readable(log: &Path) -> bool {
    Reader::header_of(log).is_ok()
}

fn found(dir: &Path, wanted: impl Fn(&Header) -> bool) -> Vec<(PathBuf, Header)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|name| name == "replay")).collect();
    paths.sort();
    let header = |path: PathBuf| {
        let header = Reader::header_of(&path).ok().filter(|header| wanted(header))?;
        Some((path, header))
    };
    paths.into_iter().filter_map(header).collect()
}

/// The logs in `dir` that are wanted and have not been written. What cannot be read there is none.
pub fn pending(dir: &Path, wanted: impl Fn(&Header) -> bool) -> Vec<Pending> {
    let look = |(path, header): (PathBuf, Header)| {
        let log = Reader::open_unlocked(&path);
        Pending {
            has_end: log.as_ref().is_ok_and(|log| log.torn().is_none()),
            holds: log.map(|log| log.holds()),
            key: header.key,
            path,
            luks_uuid: header.luks_uuid,
            size: header.size,
        }
    };
    found(dir, wanted).into_iter().map(look).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_without_an_end_is_not_said_to_hold_all() {
        let log = |has_end| Pending {
            path: "a.replay".into(),
            key: None,
            luks_uuid: None,
            size: 8,
            holds: Ok((0, 0)),
            has_end,
        };
        assert!(log(false).to_string().contains("so far: it is being written"));
        assert_eq!(log(true).to_string(), "a.replay (0 changes, 0 bytes)");
    }

    #[test]
    fn log_of_another_uuid_or_a_larger_volume_is_of_another_volume() {
        let log = |uuid: Option<&str>| Pending {
            path: "a.replay".into(),
            key: None,
            luks_uuid: uuid.map(str::to_owned),
            size: 8,
            holds: Ok((0, 0)),
            has_end: true,
        };
        for (there, here, size, may_be) in [
            (Some("a"), Some("a"), 8, true),
            (Some("a"), Some("b"), 8, false),
            (Some("a"), None, 8, true),
            (None, Some("b"), 8, true),
            (None, None, 9, true),
            (Some("a"), Some("a"), 7, false),
        ] {
            assert_eq!(log(there).may_be_of(here, size), may_be, "{there:?} {here:?} {size}");
        }
    }
}
