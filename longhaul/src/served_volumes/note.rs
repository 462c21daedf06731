//! The notes: one file for each volume that was served, with the identity by which its clients know it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proto::iscsi::login::policy::UnitName;
use serde::{Deserialize, Serialize};

use super::ServedVolumes;
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
    /// How its file was when it was opened: everything that was written since has made it newer.
    #[serde(default)]
    pub(super) begun: Option<LeftState>,
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

    /// Whether its time has come.
    pub(super) fn is_past(&self, now: u64) -> bool {
        u64::try_from(self.modified.0).is_ok_and(|modified| modified <= now)
    }

    /// Whether a file that is so cannot be one that was so `before` and has only been written to since.
    pub(super) fn is_older_than(&self, before: &Self) -> bool {
        self.size < before.size || self.modified < before.modified
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
    pub(super) fn served_as(&self) -> String {
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

    /// That of the volume with this identity, if it can be read.
    pub(super) fn find(directory: &Path, identity: &str) -> Option<Self> {
        let is_its = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            name.ends_with(&format!("-{identity}.json"))
        };
        let mut files = fs::read_dir(directory).ok()?.flatten().map(|file| file.path());
        Self::read(files.find(is_its)?).ok()
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

impl Unreadable {
    /// Whether it is of a volume whose source was at `place`.
    pub(super) fn is_of(&self, place: &Path) -> bool {
        let name = name_of(place);
        self.file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&name))
    }
}

impl ServedVolumes {
    /// All notes in a directory, and those that cannot be read.
    pub(super) fn read_from(directory: Option<PathBuf>) -> Self {
        let mut read = Self { directory, notes: Vec::new(), unreadable: Vec::new() };
        let Some(directory) = &read.directory else { return read };
        let files = match fs::read_dir(directory) {
            Ok(files) => files.flatten().map(|file| file.path()),
            Err(why) => {
                if why.kind() != io::ErrorKind::NotFound {
                    read.unreadable.push(Unreadable { file: directory.clone(), why });
                }
                return read;
            }
        };
        // The others are what a crash has left of one that was being written.
        for file in files.filter(|file| file.extension().is_some_and(|kind| kind == "json")) {
            match Note::read(file.clone()) {
                Ok(note) => read.notes.push(note),
                Err(why) => read.unreadable.push(Unreadable { file, why }),
            }
        }
        read
    }

    /// What may be the note of what is at `place`, and cannot be read.
    pub(super) fn unreadable_of(&self, place: &Path) -> Option<&Unreadable> {
        let is_its = |unreadable: &&Unreadable| {
            self.directory.as_deref() == Some(&*unreadable.file) || unreadable.is_of(place)
        };
        self.unreadable.iter().find(is_its)
    }

    /// Where a volume with this identity is noted, whose source is at `place`.
    pub(super) fn file_of(&self, place: &Path, identity: &str) -> Outcome<PathBuf> {
        let Some(directory) = &self.directory else {
            return Err(Failure::new("there is no state directory").hint("give one with --state"));
        };
        Ok(directory.join(format!("{}-{identity}.json", name_of(place))))
    }
}

/// The path is as it is written: links lead elsewhere while a disk is not mounted.
fn name_of(place: &Path) -> String {
    state::file_name(place.as_os_str().as_encoded_bytes())
}

/// The one that was noted last.
pub(super) fn newest<'a>(notes: impl Iterator<Item = &'a Note>) -> Option<&'a Note> {
    notes.max_by_key(|note| note.age())
}
