//! The notes: one file for each volume that was served, with the identity by which its clients know it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proto::iscsi::login::policy::UnitName;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::ServedFiles;
use super::source::Source;
use crate::config::Served;
use crate::durable::make_directories;
use crate::failure::{Failure, OrFail, Outcome};
use crate::printable::Shown as _;
use crate::regular_file::read_regular;
use crate::state;
use crate::utc::utc;

/// What is known of a volume: a source, as the clients of one unit know it.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Note {
    /// Random, and never that of another.
    pub(super) identity: String,
    /// The serial number that clients were shown.
    pub(super) serial: String,
    pub(super) target: String,
    pub(super) lun: u16,
    pub(super) source: Source,
    /// When it was opened last, in seconds of the Unix epoch.
    pub(super) opened: u64,
    /// Its place in the order in which volumes were noted, since clocks are set back.
    pub(super) order: u64,
    /// How many bytes its file had.
    pub(super) size: Option<u64>,
    /// How its file was when it was closed, as far as the server could say so.
    pub(super) left: Option<LeftState>,
    /// Where this is noted.
    #[serde(skip)]
    pub(super) file: PathBuf,
}

/// What shows that somebody has written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftState {
    size: u64,
    /// Seconds and nanoseconds of the Unix epoch.
    modified: (i64, i64),
}

impl LeftState {
    pub(crate) fn of(found: &Metadata) -> Self {
        Self { size: found.len(), modified: (found.mtime(), found.mtime_nsec()) }
    }
}

impl Note {
    /// That of the one noted later is the larger.
    pub(super) const fn age(&self) -> (u64, u64) {
        (self.order, self.opened)
    }

    /// Whether this was the unit of the volume that is to be served.
    pub(super) fn is_of(&self, volume: &Served) -> bool {
        let UnitName { target, lun } = volume.unit();
        (target.as_str(), lun) == (&*self.target, self.lun)
    }

    /// As what, and when, it was served.
    pub(super) fn said(&self) -> String {
        format!("served as {}/{} on {}", self.target, self.lun, utc(self.opened))
    }

    pub(super) fn write(&self) -> Outcome {
        let directory = self.file.parent().unwrap_or(&self.file);
        let made = make_directories(directory, 0o700);
        let written = made.and_then(|()| {
            let text = serde_json::to_vec(self)?;
            state::replace(&self.file, &text)
        });
        written.or_fail(|| format!("cannot remember it in {}", directory.shown()))
    }

    fn read(file: PathBuf) -> io::Result<Self> {
        let note: Self = serde_json::from_slice(&read_regular(&file)?)?;
        Ok(Self { file, ..note })
    }
}

/// What may be a note, and cannot be read.
pub(super) struct Unreadable {
    pub(super) file: PathBuf,
    pub(super) why: io::Error,
}

impl ServedFiles {
    /// All notes that can be read.
    pub(super) fn notes(&self) -> Vec<Note> {
        self.read().0
    }

    /// All notes, and those that cannot be read.
    pub(super) fn read(&self) -> (Vec<Note>, Vec<Unreadable>) {
        let (mut notes, mut unreadable) = (Vec::new(), Vec::new());
        let Some(directory) = &self.0 else { return (notes, unreadable) };
        let files = match fs::read_dir(directory) {
            Ok(files) => files.flatten().map(|file| file.path()),
            Err(why) => {
                if why.kind() != io::ErrorKind::NotFound {
                    unreadable.push(Unreadable { file: directory.clone(), why });
                }
                return (notes, unreadable);
            }
        };
        // The others are what a crash has left of one that was being written.
        for file in files.filter(|file| file.extension().is_some_and(|kind| kind == "json")) {
            match Note::read(file.clone()) {
                Ok(note) => notes.push(note),
                Err(why) => unreadable.push(Unreadable { file, why }),
            }
        }
        (notes, unreadable)
    }

    /// What may be the note of what is at `place`, and cannot be read.
    pub(super) fn unreadable_of(&self, place: &Path) -> Option<Unreadable> {
        let (name, (_, mut unreadable)) = (name_of(place), self.read());
        let is_its = |file: &Path| {
            self.0.as_deref() == Some(file)
                || file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name))
        };
        let at = unreadable.iter().position(|unreadable| is_its(&unreadable.file))?;
        Some(unreadable.swap_remove(at))
    }

    /// Where a volume with this identity is noted, whose source is at `place`.
    pub(super) fn file_of(&self, place: &Path, identity: &str) -> Outcome<PathBuf> {
        let Some(directory) = &self.0 else {
            return Err(Failure::new("there is no state directory").hint("give one with --state"));
        };
        Ok(directory.join(format!("{}-{identity}.json", name_of(place))))
    }
}

/// The path is as it is written: links lead elsewhere while a disk is not mounted.
fn name_of(place: &Path) -> String {
    let name = Sha256::digest(place.as_os_str().as_encoded_bytes());
    // As many digits as tell all paths apart.
    name[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The one that was noted last.
pub(super) fn newest<'a>(notes: impl Iterator<Item = &'a Note>) -> Option<&'a Note> {
    notes.max_by_key(|note| note.age())
}
