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
    /// How many changes it holds, and the bytes of their data.
    holds: Result<(u64, u64), ReadError>,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.shown();
        match &self.holds {
            Ok((changes, bytes)) => write!(f, "{path} ({changes} changes, {} bytes)", Size(*bytes)),
            Err(why) => write!(f, "{path} ({why})"),
        }
    }
}

/// A log in `dir` that has not been written, of the attachment whose reservation had this key.
#[must_use]
pub fn of_key(dir: &Path, key: u64) -> Option<PathBuf> {
    paths(dir, |header| header.key == Some(key)).into_iter().next()
}

fn paths(dir: &Path, wanted: impl Fn(&Header) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|name| name == "replay")).collect();
    paths.sort();
    paths.retain(|path| Reader::header_of(path).is_ok_and(|header| wanted(&header)));
    paths
}

/// The logs in `dir` that are wanted and have not been written. What cannot be read there is none.
pub fn pending(dir: &Path, wanted: impl Fn(&Header) -> bool) -> Vec<Pending> {
    let look = |path: PathBuf| Pending {
        holds: Reader::open_unlocked(&path).map(|log| log.holds()),
        path,
    };
    paths(dir, wanted).into_iter().map(look).collect()
}
