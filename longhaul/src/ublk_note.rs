//! Which ublk device was made of a volume. The kernel keeps no name of ours for it, as it does for loop and NBD devices: so a
//! note beside the file by which the volume is known has it, with the sequence number that no other device of this boot has.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::control;

/// What a note's name ends with, and its contents if the device is to go with its mount.
const ENDING: &str = ".ublk";
const WITH_MOUNT: &str = "with-mount";

/// A note is one short line.
const NOTE_MAX: u64 = 128;

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// The number of the device.
    pub(crate) number: u32,
    sequence: u64,
    /// It is needed no longer than it is mounted.
    pub(crate) goes_with_mount: bool,
}

impl Note {
    /// That of the device with this number.
    pub(crate) fn new(number: u32) -> io::Result<Self> {
        let path = format!("/sys/block/ublkb{number}/diskseq");
        let sequence = fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)?;
        Ok(Self { number, sequence, goes_with_mount: false })
    }

    /// The same of a device that is to go with its mount.
    pub(crate) fn with_mount(self) -> Self {
        Self { goes_with_mount: true, ..self }
    }

    /// Writes it for the volume that is known by `file`.
    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        let path = path(file).ok_or(io::ErrorKind::InvalidInput)?;
        let part = path.with_extension("part");
        fs::write(&part, self.text())?;
        // Whoever reads it meanwhile finds that of before.
        fs::rename(part, path)
    }

    /// That of the volume that is known by `file`, as long as its device is there.
    pub(crate) fn of(file: &Path) -> Option<Self> {
        Self::read(&path(file)?).filter(Self::is_there)
    }

    /// The file by which the volume of a device is known, and its note.
    pub(crate) fn of_device(node: &Path) -> Option<(PathBuf, Self)> {
        let number = number(node)?;
        let dir = control::runtime_dir()?.join("volumes");
        let mut files = fs::read_dir(&dir).ok()?.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(dir.join(name.strip_prefix('.')?.strip_suffix(ENDING)?))
        });
        files.find_map(|file| {
            let note = Self::of(&file).filter(|note| note.number == number)?;
            Some((file, note))
        })
    }

    /// Removes that of a volume.
    pub(crate) fn remove(file: &Path) -> io::Result<()> {
        path(file).map_or(Ok(()), fs::remove_file)
    }

    /// The block device.
    pub(crate) fn node(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.number))
    }

    fn text(&self) -> String {
        let more = if self.goes_with_mount { WITH_MOUNT } else { "" };
        format!("{} {} {more}\n", self.number, self.sequence)
    }

    fn read(path: &Path) -> Option<Self> {
        if fs::symlink_metadata(path).ok()?.len() > NOTE_MAX {
            return None;
        }
        Self::parse(&fs::read_to_string(path).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let (number, sequence) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { number, sequence, goes_with_mount: words.next() == Some(WITH_MOUNT) })
    }

    /// Another device may have its number by now.
    fn is_there(&self) -> bool {
        Self::new(self.number).is_ok_and(|found| found.sequence == self.sequence)
    }
}

/// The number of a ublk device.
pub(crate) fn number(node: &Path) -> Option<u32> {
    node.file_name()?.to_str()?.strip_prefix("ublkb")?.parse().ok()
}

fn path(file: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(file.file_name()?);
    name.push(ENDING);
    Some(file.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn note_says_what_was_written() {
        for goes_with_mount in [false, true] {
            let note = Note { number: 3, sequence: 57, goes_with_mount };
            assert_eq!(Note::parse(&note.text()), Some(note));
        }
        for damaged in ["", "3", "three 57", "3 -1"] {
            assert_eq!(Note::parse(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn device_that_is_gone_has_no_note() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("backup");
        let note = Note { number: u32::MAX, sequence: 1, goes_with_mount: false };
        note.write(&file).unwrap();
        assert_eq!(Note::read(&path(&file).unwrap()), Some(note));
        assert_eq!(Note::of(&file), None);
        Note::remove(&file).unwrap();
        assert!(dir.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn device_is_known_by_its_name() {
        assert_eq!(number(Path::new("/dev/ublkb12")), Some(12));
        for other in ["/dev/ublkb12p1", "/dev/ublkc1", "/dev/ublkb", "/dev/loop1", "/"] {
            assert_eq!(number(Path::new(other)), None);
        }
    }
}
