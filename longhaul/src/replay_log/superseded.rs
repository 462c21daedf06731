//! What this machine has written itself at places of a replay log since that was begun: the log is older there.
//!
//! It is noted in the state directory, for the log may be moved, and its directory be read-only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Header;
use crate::durable::make_directories;
use crate::regular_file::read_regular;
use crate::state;
use crate::utc::now;

/// What is noted.
#[derive(Debug, Deserialize, Serialize)]
struct Note {
    /// When the first of it was written, in seconds since 1970.
    at: u64,
}

/// Notes in the state directory `state` that something was written at places of the log with this header.
pub fn note_superseded(state: &Path, header: &Header) -> io::Result<()> {
    let path = path(state, header);
    make_directories(path.parent().unwrap_or(&path), 0o700)?;
    state::replace(&path, &serde_json::to_vec(&Note { at: now() })?)
}

/// When something was first written at places of the log with this header, as far as that is noted in the state directory
/// `state`.
#[must_use]
pub fn superseded_at(state: &Path, header: &Header) -> Option<u64> {
    let text = read_regular(&path(state, header)).ok()?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    Some(note.at)
}

/// The log with this header was written over that.
pub fn forget_superseded(state: &Path, header: &Header) {
    let _ = fs::remove_file(path(state, header));
}

/// The header of a log has when it was begun, by whom, and his key.
fn path(state: &Path, header: &Header) -> PathBuf {
    let header = serde_json::to_vec(header).expect("strings and numbers");
    state.join("superseded").join(format!("{}.json", state::file_name(&header)))
}
