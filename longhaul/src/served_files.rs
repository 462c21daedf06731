//! The files that have been served as volumes, noted in the state directory: `serve` makes none of them again, and gives
//! the serial number of one to no other.
//!
//! A client knows a volume by its target, unit and serial number. If a file is missing since its disk is not mounted, a new
//! one in its place would be taken for the volume by people, and by clients that do not look at the serial number.

mod serial;

pub(crate) use serial::VolumeIdentity;

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use proto::iscsi::login::policy::UnitName;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::config::Served;
use crate::durable::make_directories;
use crate::failure::{Failure, OrFail, Outcome};
use crate::printable::Shown as _;
use crate::regular_file::read_regular;
use crate::size::Size;
use crate::state;
use crate::state_dir::state_dir;
use crate::utc::{now, utc};

/// The directory of the records.
#[derive(Clone, Debug)]
pub(crate) struct ServedFiles(Option<PathBuf>);

/// What becomes of a file that was another volume when it was served last, in the place of one that was this volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnExchange {
    /// It is not served.
    Refuse,
    /// That is only told: in a reload, which asks the sessions of the target to log in anew.
    Warn,
}

/// What is known of a file. Another file at its path has a record of its own.
#[derive(Clone, Serialize, Deserialize)]
struct Record {
    path: PathBuf,
    target: String,
    lun: u16,
    /// When it was opened last, in seconds of the Unix epoch.
    opened: u64,
    /// How many bytes it had.
    #[serde(default)]
    size: Option<u64>,
    /// Which file was there.
    #[serde(default)]
    file: Option<FileId>,
    /// Its serial number.
    #[serde(default)]
    serial: Option<String>,
    /// Its place in the order in which files were noted, since clocks are set back; 0 if an earlier release noted it.
    #[serde(default)]
    order: u64,
    /// All serial numbers that it ever had. None in a note of an earlier release, which knew the last one only.
    #[serde(default)]
    numbers: Vec<Number>,
}

/// A serial number that a file was served with.
#[derive(Clone, Serialize, Deserialize)]
struct Number {
    serial: String,
    target: String,
    lun: u16,
    /// When it was noted last.
    opened: u64,
    order: u64,
    /// It was configured.
    #[serde(default)]
    configured: bool,
    /// How the file was when a server that knew it by this number had closed it, as far as it could say so.
    #[serde(default)]
    left: Option<LeftState>,
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

/// Which file something is, wherever it is moved. Numbers of inodes are given again, so that the birth tells too.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct FileId {
    device: u64,
    inode: u64,
    /// In nanoseconds of the Unix epoch.
    born: u64,
}

impl FileId {
    /// `None` on a file system that does not note births.
    fn of(found: &Metadata) -> Option<Self> {
        let born = found.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let born = u64::try_from(born.as_nanos()).ok()?;
        Some(Self { device: found.dev(), inode: found.ino(), born })
    }

    /// Whether it is the same file, or one of a copy of the file system.
    fn resembles(self, other: Self) -> bool {
        (self.inode, self.born) == (other.inode, other.born)
    }
}

impl ServedFiles {
    /// Those that are noted in the state directory `state` of the server, or in that of the service or the user.
    pub(crate) fn in_state(state: Option<&Path>) -> Self {
        let state = state.map(PathBuf::from).or_else(state_dir);
        Self(state.map(|state| state.join("served")))
    }

    /// Whether the file of `volume` has been served before, so that it must be there; an error if it is missing, has
    /// become shorter, or was served as another volume.
    pub(crate) fn must_exist(&self, volume: &Served, exchanged: OnExchange) -> Outcome<bool> {
        let Some(path) = volume.uri.file() else { return Ok(false) };
        let Some(file) = self.file_of(path)? else { return Ok(false) };
        let noted = match (self.noted_at(path)?, read(&file)) {
            (Some(record), _) => Some(Ok(record)),
            (None, Err(why)) if why.kind() == io::ErrorKind::NotFound => None,
            (None, unreadable) => Some(unreadable),
        };
        match path.metadata() {
            Ok(found) => {
                if let Some(Ok(record)) = &noted {
                    record.refuse_shorter(&found, volume)?;
                }
                self.look_whether_exchanged(&absolute(path)?, &found, volume, exchanged)?;
                Ok(noted.is_some())
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => match noted {
                None => self.refuse_new_file(path, volume).map(|()| false),
                Some(Ok(record)) => Err(record.refusal(path, volume)),
                Some(Err(why)) => Err(Failure::new(format!(
                    "cannot tell whether {} has been served before: {}",
                    volume.uri,
                    file.shown()
                ))
                .because(why)
                .hint(to_do(path, volume.size))),
            },
            // Opening it tells why.
            Err(_) => Ok(noted.is_some()),
        }
    }

    /// The record of the file that was at `path` last, also under another name: by links, mounts, or `..`.
    fn noted_at(&self, path: &Path) -> Outcome<Option<Record>> {
        let path = absolute(path)?;
        let records = self.records().into_iter().map(|(_, record)| record);
        let there = records.filter(|record| is_same_place(&record.path, &path));
        Ok(there.max_by_key(Record::age))
    }

    /// Refuses to make a file for a unit that was another file.
    fn refuse_new_file(&self, path: &Path, volume: &Served) -> Outcome {
        if volume.size.is_none() || volume.read_only {
            return Ok(());
        }
        let records = self.records().into_iter().map(|(_, record)| record);
        let before = records.filter(|record| record.is_of(volume));
        let Some(Record { path: other, target, lun, opened, .. }) = before.max_by_key(Record::age)
        else {
            return Ok(());
        };
        let (other, opened) = (other.shown(), utc(opened));
        Err(Failure::new(format!("cannot make {}", volume.uri))
            .because(format!("{target}/{lun} was {other} on {opened}"))
            .hint(format!(
                "clients would find a new, empty volume in the place of the one that they know: name the file that it is in; {}",
                to_begin_anew(path, volume.size)
            )))
    }

    /// Refuses a file that was another volume when it was served last, in the place of one that was this volume: its
    /// clients would write into it what they have not flushed. Where they cannot know the volume, as it has a new name,
    /// that is only told.
    fn look_whether_exchanged(
        &self,
        path: &Path,
        found: &Metadata,
        volume: &Served,
        exchanged: OnExchange,
    ) -> Outcome {
        let records = self.records();
        let Some((note, last)) = last_as_another(&records, path, found, volume) else {
            return Ok(());
        };
        let here = FileId::of(found);
        let mut before = records.iter().filter(|(_, record)| record.is_of(volume));
        let (was, unit) = (last.was(), unit_of(volume));
        let other = before.find(|(_, record)| !record.is_file(path, here));
        match other.filter(|_| exchanged == OnExchange::Refuse) {
            Some((_, other)) => Err(Failure::new(format!("cannot serve {} as {unit}", volume.uri))
                .because(format!("{was}, and {unit} was {}", other.path.shown()))
                .hint(format!(
                    "clients would take it for the volume that they know, and write into it what they have not flushed: \
                     look which file belongs to which volume; if this is wanted, and no client has anything left to write, \
                     remove {}",
                    note.shown()
                ))),
            None => Ok(()),
        }
    }

    /// Says that the file of `volume`, which is open now, was another volume when it was served last.
    pub(crate) fn tell_of_new_name(&self, volume: &Served) {
        let Some(path) = volume.uri.file() else { return };
        let (Ok(path), Ok(found)) = (absolute(path), path.metadata()) else { return };
        if let Some((_, last)) = last_as_another(&self.records(), &path, &found, volume) {
            tracing::warn!("{} is served as {}: {}", volume.uri, unit_of(volume), last.was());
        }
    }

    /// All that are noted. One that cannot be read tells nothing but that it is there.
    fn records(&self) -> Vec<(PathBuf, Record)> {
        self.notes().filter_map(|note| read(&note).ok().map(|record| (note, record))).collect()
    }

    /// A note that cannot be read, and why.
    fn damaged_note(&self) -> Option<(PathBuf, io::Error)> {
        self.notes().find_map(|note| read(&note).err().map(|why| (note, why)))
    }

    fn notes(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let notes = self.0.as_ref().and_then(|directory| fs::read_dir(directory).ok());
        let notes = notes.into_iter().flatten().flatten().map(|note| note.path());
        // The others are what a crash has left of one that was being written.
        notes.filter(|note| note.extension().is_some_and(|kind| kind == "json"))
    }

    /// Notes that the file of `volume` is there, and served with this serial number.
    pub(crate) fn note(&self, volume: &Served, serial: &str) -> Outcome {
        let Some(path) = volume.uri.file() else { return Ok(()) };
        let found = path.metadata().ok();
        let (path, file) = (absolute(path)?, found.as_ref().and_then(FileId::of));
        let records = self.records();
        let order = records.iter().map(|(_, record)| record.order).max().unwrap_or(0) + 1;
        let own = newest(&records, &path, file);
        let mut numbers = own.map(|(_, own)| own.numbers()).unwrap_or_default();
        let UnitName { target, lun } = volume.unit();
        let (target, opened) = (target.as_str().to_owned(), now());
        let before = numbers.iter().position(|number| number.serial == serial);
        let before = before.map(|at| numbers.swap_remove(at));
        let left = match before {
            // Until it is closed.
            _ if !volume.read_only => None,
            Some(before) => before.left,
            None => found.as_ref().map(LeftState::of),
        };
        let configured = volume.appearance.serial.is_some();
        let (number, unit) = (serial.to_owned(), target.clone());
        let number = Number { serial: number, target: unit, lun, opened, order, configured, left };
        numbers.push(number);
        let note = match own {
            Some((note, _)) => note.clone(),
            None => self.new_note(&path)?,
        };
        let (size, serial) = (found.as_ref().map(Metadata::len), Some(serial.to_owned()));
        write(&note, &Record { path, target, lun, opened, size, file, serial, order, numbers })
    }

    /// How the file of `volume` is now, if there is one.
    pub(crate) fn state_of(volume: &Served) -> Option<LeftState> {
        let path = volume.uri.file()?;
        path.metadata().ok().as_ref().map(LeftState::of)
    }

    /// Notes how the file was left that was served with this serial number.
    pub(crate) fn note_left(&self, serial: &str, left: LeftState) -> Outcome {
        let mut records = self.records();
        let numbers = records.iter_mut().flat_map(|(note, record)| {
            let Record { numbers, .. } = record;
            let place = numbers.iter().position(|number| number.serial == serial)?;
            Some((numbers[place].age(), place, note, record))
        });
        let Some((_, place, note, record)) = numbers.max_by_key(|(age, ..)| *age) else {
            return Ok(());
        };
        record.numbers[place].left = Some(left);
        write(note, record)
    }

    /// Notes how large the file of `volume` is, which has grown.
    pub(crate) fn note_size(&self, volume: &Served) -> Outcome {
        let Some(path) = volume.uri.file() else { return Ok(()) };
        let Ok(found) = path.metadata() else { return Ok(()) };
        let records = self.records();
        match newest(&records, &absolute(path)?, FileId::of(&found)) {
            Some((note, own)) => write(note, &Record { size: Some(found.len()), ..own.clone() }),
            None => Ok(()),
        }
    }

    /// Where a file at `path` is noted that was not noted before. The note of another that was there stays.
    fn new_note(&self, path: &Path) -> Outcome<PathBuf> {
        let Some(first) = self.file_of(path)? else {
            return Err(Failure::new("there is no state directory").hint("give one with --state"));
        };
        let name = first.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let other = |n: u64| first.with_file_name(format!("{name}-{n}.json"));
        let free = |note: &PathBuf| note.symlink_metadata().is_err();
        Ok(std::iter::once(first.clone()).chain((2..).map(other)).find(free).unwrap_or(first))
    }

    /// Where the first file at `path` is noted. The path is as it is written: links lead elsewhere while a disk is not
    /// mounted.
    fn file_of(&self, path: &Path) -> Outcome<Option<PathBuf>> {
        let Some(directory) = &self.0 else { return Ok(None) };
        let name = Sha256::digest(absolute(path)?.as_os_str().as_encoded_bytes());
        // As many digits as tell all paths apart.
        let name: String = name[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Some(directory.join(name).with_extension("json")))
    }
}

/// The note of the file that is at `path`, with this identity.
fn newest<'a>(
    records: &'a [(PathBuf, Record)],
    path: &Path,
    file: Option<FileId>,
) -> Option<&'a (PathBuf, Record)> {
    let own = records.iter().filter(|(_, record)| record.is_file(path, file));
    own.max_by_key(|(_, record)| record.age())
}

fn write(note: &Path, record: &Record) -> Outcome {
    let directory = note.parent().unwrap_or(note);
    let made = make_directories(directory, 0o700);
    let written = made.and_then(|()| {
        let text = serde_json::to_vec(record)?;
        state::replace(note, &text)
    });
    written.or_fail(|| format!("cannot remember it in {}", directory.shown()))
}

fn read(note: &Path) -> io::Result<Record> {
    Ok(serde_json::from_slice(&read_regular(note)?)?)
}

/// The note of the file at `path`, if it was another volume when it was served last.
fn last_as_another<'a>(
    records: &'a [(PathBuf, Record)],
    path: &Path,
    found: &Metadata,
    volume: &Served,
) -> Option<&'a (PathBuf, Record)> {
    let here = FileId::of(found);
    let last = records.iter().filter(|(_, record)| record.is_file(path, here));
    let last = last.max_by_key(|(_, record)| (record.age(), record.is_of(volume)));
    last.filter(|(_, record)| !record.is_of(volume))
}

fn unit_of(volume: &Served) -> String {
    let UnitName { target, lun } = volume.unit();
    format!("{}/{lun}", target.as_str())
}

impl Record {
    /// As what it was served, and when.
    fn was(&self) -> String {
        let Self { target, lun, opened, .. } = self;
        format!("on {} it was served as {target}/{lun}", utc(*opened))
    }

    /// That of the one noted later is the larger.
    const fn age(&self) -> (u64, u64) {
        (self.order, self.opened)
    }

    /// Whether this was the volume that is to be served.
    fn is_of(&self, volume: &Served) -> bool {
        let UnitName { target, lun } = volume.unit();
        (target.as_str(), lun) == (&*self.target, self.lun)
    }

    /// Whether it is of the file that is at `path`, with this identity. Devices may have other numbers in each run of a
    /// machine.
    fn is_file(&self, path: &Path, here: Option<FileId>) -> bool {
        let Some((noted, here)) = self.file.zip(here) else {
            return is_same_place(&self.path, path);
        };
        let still_there = || {
            let there = self.path.metadata().ok().as_ref().and_then(FileId::of);
            there.is_some_and(|there| there.resembles(noted))
        };
        noted.resembles(here)
            && (noted.device == here.device || self.path == path || !still_there())
    }

    /// A file that was cut off is served only to someone who knows of it, and says so by its size.
    fn refuse_shorter(&self, found: &Metadata, volume: &Served) -> Outcome {
        let Some(was) = self.size else { return Ok(()) };
        let is = Size(found.len());
        if found.len() >= was || volume.size == Some(is) {
            return Ok(());
        }
        let (was, since) = (Size(was), utc(self.opened));
        Err(Failure::new(format!("cannot open {}", volume.uri))
            .because(format!("it is {is} long, and was {was} on {since}"))
            .hint(format!(
                "what is missing is lost to the clients: bring the file back; to serve it as it is, give its size: size={is}"
            )))
    }

    fn refusal(&self, path: &Path, volume: &Served) -> Failure {
        let Self { target, lun, opened, .. } = self;
        let what = format!(
            "cannot open {}: it is missing, and it was there on {}, as {target}/{lun}",
            volume.uri,
            utc(*opened)
        );
        Failure::new(what).hint(to_do(path, volume.size))
    }
}

fn to_do(path: &Path, size: Option<Size>) -> String {
    let anew = to_begin_anew(path, size);
    format!(
        "clients would take a new file for the volume that they know: mount its disk, or bring the file back; {anew}"
    )
}

fn to_begin_anew(path: &Path, size: Option<Size>) -> String {
    let size = size.map_or_else(|| "SIZE".to_owned(), |size| size.to_string());
    let path = path.shown();
    format!("to begin anew, with an empty volume, make the file: `truncate -s {size} {path}`")
}

/// Whether a file at either path would be the same one, whether or not there is one.
fn is_same_place(one: &Path, other: &Path) -> bool {
    if one == other {
        return true;
    }
    let directory = |path: &Path| {
        let found = path.parent()?.metadata().ok()?;
        Some((found.dev(), found.ino()))
    };
    one.file_name().is_some()
        && one.file_name() == other.file_name()
        && directory(one).is_some()
        && directory(one) == directory(other)
}

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).or_fail(|| format!("cannot tell where {} is", path.shown()))
}
