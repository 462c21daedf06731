//! The volumes that processes of this machine write to: one file for each, locked by its process for as long as it
//! lives. So the reservation of a process that was killed is known from that of one which is only slow.
//!
//! A free lock alone says nothing: that of a copy of the file is always free. So the file says which it is, and of which
//! machine, run and process.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use crate::durable::{make_directories, sync_directory_of};
use crate::journals::is_journal;
use crate::printable::{Quoted as _, Shown as _};
use crate::regular_file::{open_regular, read_regular};
use crate::utc::now;

/// A unit, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitAddress {
    /// The name of the target.
    pub target: String,
    /// The number of the unit.
    pub lun: u16,
    /// Its serial number, if it has one.
    pub serial: Option<String>,
    /// The address of the target, as the user wrote it.
    pub portal: String,
    /// Its public key, where that is pinned.
    pub pin: Option<String>,
}

/// What is known of an attachment.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The name of the target.
    pub target: String,
    /// The number of the unit.
    pub lun: u16,
    /// Its serial number, if it has one.
    pub serial: Option<String>,
    /// The address of the target; `None` in notes of earlier releases.
    #[serde(default)]
    pub portal: Option<String>,
    /// The public key of the target, where that was pinned.
    #[serde(default)]
    pub pin: Option<String>,
    /// The key of the reservation.
    pub key: u64,
    /// The key of the attachment whose replay log this one is to write.
    #[serde(default)]
    pub replays: Option<u64>,
    /// The directory of its own replay log, if it has one.
    #[serde(default)]
    pub replay_logs: Option<PathBuf>,
    /// The replay logs that it has begun, or is to write: they are not written yet.
    #[serde(default)]
    pub unwritten_logs: Vec<PathBuf>,
    /// The process.
    pub pid: u32,
    /// When the process was started, in clock ticks since the start of the machine.
    pub started: Option<u64>,
    /// The process that starts the next one when this process ends: as long as it lives the attachment goes on.
    #[serde(default)]
    pub keeper: Option<ParentProcess>,
    /// The run of the machine.
    pub boot: Option<String>,
    /// The machine, by /etc/machine-id.
    pub machine: Option<String>,
    /// The file that this was written to; a copy is another.
    pub file: Option<FileId>,
    /// When it attached, in seconds since 1970.
    pub since: u64,
    /// It has ended, though its process may not have; its reservation could not be given back.
    #[serde(default)]
    pub ended: bool,
}

/// A process that keeps an attachment while the processes that serve it change.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ParentProcess {
    pid: u32,
    started: Option<u64>,
}

impl ParentProcess {
    fn lives(self) -> bool {
        self.started.is_some_and(|started| lives(self.pid, started))
    }
}

/// The keeper of this process, which has one or none for all its life.
static KEEPER: OnceLock<ParentProcess> = OnceLock::new();

/// The attachments of this process are kept by the process with this number.
pub fn kept_by(pid: u32) {
    KEEPER.get_or_init(|| ParentProcess { pid, started: start_of(&pid.to_string()) });
}

/// Which file something is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// That of the file of which `found` is known.
    #[must_use]
    pub fn of(found: &Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

/// Why an attachment is not taken to be gone, though nobody has its file locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AliveReason {
    /// The file is not the one that the process has locked.
    Copied,
    /// Another machine wrote it.
    OtherMachine,
    /// Something that it takes to tell was not noted, or cannot be read here.
    Unknown,
    /// There is such a process.
    Lives,
    /// It is gone or about to end, and another one goes on for it.
    Kept,
    /// It is gone, and what it could not write waits in this replay log.
    Unwritten(PathBuf),
    /// The same, but the replay log is not where it was, or cannot be read.
    LogMissing(PathBuf),
}

impl fmt::Display for AliveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gone = "its process is gone, and what it could not write is in";
        f.write_str(match self {
            Self::Unwritten(log) if is_journal(log) => {
                let (log, quoted) = (log.shown(), log.quoted());
                return write!(
                    f,
                    "{gone} the journal {log}: attach with `--journal {quoted}`, or `longhaul journal drain {quoted}` sends it"
                );
            }
            Self::Unwritten(log) => {
                let (log, quoted) = (log.shown(), log.quoted());
                return write!(f, "{gone} {log}: `longhaul replay {quoted}` writes it");
            }
            Self::LogMissing(log) => {
                return write!(f, "{gone} {}, which is not there or cannot be read", log.shown());
            }
            Self::Copied => "that is a copy, and the process that wrote the original may still run",
            Self::OtherMachine => "another machine wrote that, and its process may still run there",
            Self::Unknown => "that does not say enough to tell whether its process is gone",
            Self::Lives => "its process still runs",
            Self::Kept => "its mount goes on by another process",
        })
    }
}

impl UnitAddress {
    fn of(entry: &Entry) -> Self {
        let Entry { target, lun, serial, portal, pin, .. } = entry.clone();
        Self { target, lun, serial, portal: portal.unwrap_or_default(), pin }
    }
}

impl Entry {
    /// An attachment by this process.
    #[must_use]
    pub fn new(place: &UnitAddress, key: u64) -> Self {
        let UnitAddress { target, lun, serial, portal, pin } = place.clone();
        Self {
            target,
            lun,
            serial,
            portal: Some(portal),
            pin,
            key,
            replays: None,
            replay_logs: None,
            unwritten_logs: Vec::new(),
            pid: std::process::id(),
            started: start_of("self"),
            keeper: KEEPER.get().copied(),
            boot: read_id("/proc/sys/kernel/random/boot_id"),
            machine: read_id("/etc/machine-id"),
            file: None,
            since: now(),
            ended: false,
        }
    }

    /// The same, as long as what the one `before` could not write can still be written.
    #[must_use]
    pub fn in_place_of(self, before: &Self) -> Self {
        let replays = Some(before.replays.unwrap_or(before.key));
        Self { replays, unwritten_logs: before.unwritten_logs.clone(), ..self }
    }

    /// Whether this is its key, or that of the attachment whose replay log it is to write.
    #[must_use]
    pub fn is_for(&self, key: u64) -> bool {
        self.key == key || self.replays == Some(key)
    }

    /// Whether it has ended, if this is its note and no copy.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let here = Self { file: self.file, ..Self::new(&UnitAddress::of(self), 0) };
        doubt(self, &here).is_none()
    }

    /// Whether it may be of this unit. Servers can have the same names, and then tell the same serial numbers.
    fn may_be_of(&self, place: &UnitAddress) -> bool {
        (&self.target, self.lun, &self.serial) == (&place.target, place.lun, &place.serial)
    }

    /// Whether it was found where this unit was. A server that proves who it is may be found at another address.
    #[must_use]
    pub fn is_of(&self, place: &UnitAddress) -> bool {
        self.may_be_of(place)
            && self.pin == place.pin
            && (place.pin.is_some() || self.portal.as_ref() == Some(&place.portal))
    }
}

/// Why an attachment whose file nobody has locked may still be that of a process that runs; `here` is what one of this
/// process would say, if it were noted in the file that was read.
fn doubt(entry: &Entry, here: &Entry) -> Option<AliveReason> {
    let (Some(written), Some(read)) = (entry.file, here.file) else {
        return Some(AliveReason::Unknown);
    };
    if written.inode != read.inode {
        return Some(AliveReason::Copied);
    }
    if entry.machine != here.machine {
        return Some(AliveReason::OtherMachine);
    }
    if entry.boot.is_none() || here.boot.is_none() {
        return Some(AliveReason::Unknown);
    }
    if entry.boot != here.boot {
        // No process outlives the run of its machine, if it is the same machine. Devices have new numbers in each run.
        return here.machine.is_none().then_some(AliveReason::Unknown);
    }
    if written.device != read.device {
        return Some(AliveReason::Copied);
    }
    if entry.ended {
        return None;
    }
    // Its keeper starts one process after the other, so that those before this one are gone.
    if entry.keeper.is_some_and(|keeper| Some(keeper) != here.keeper && keeper.lives()) {
        return Some(AliveReason::Kept);
    }
    let Some(started) = entry.started else { return Some(AliveReason::Unknown) };
    lives(entry.pid, started).then_some(AliveReason::Lives)
}

/// Whether the process with this number is still the one that was started then.
fn lives(pid: u32, started: u64) -> bool {
    start_of(&pid.to_string()) == Some(started)
}

/// An identifier that is alone in a file.
fn read_id(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

/// When a process was started, if it is there and does not only wait for its parent to ask how it ended: fields 22 and 3
/// of /proc/pid/stat. The second, the name of the program, may hold anything but ends with the last `)`.
fn start_of(process: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// A file that this process has locked.
#[derive(Debug)]
pub struct Attachment {
    path: PathBuf,
    /// Held for its lock.
    file: File,
}

impl Attachment {
    /// Notes an attachment in `folder`, before its key is registered.
    pub fn note(folder: &Path, entry: &Entry) -> io::Result<Self> {
        make_directories(folder, 0o700)?;
        let path = folder.join(name_of(entry.key));
        let file = Self::write(&path, entry)?;
        sync_directory_of(&path)?;
        Ok(Self { path, file })
    }

    /// Notes an attachment in the place of another that had the same key: there is the old note or the new one.
    pub fn note_again(folder: &Path, entry: &Entry) -> io::Result<Self> {
        make_directories(folder, 0o700)?;
        let path = folder.join(name_of(entry.key));
        let beside = path.with_extension("new");
        // Of a process that died between the two steps.
        let _ = fs::remove_file(&beside);
        let file = Self::write(&beside, entry)?;
        fs::rename(&beside, &path)?;
        sync_directory_of(&path)?;
        Ok(Self { path, file })
    }

    /// Takes the note of a predecessor that had the same key, where no other can be made. Its lock tells that the attachment
    /// lives, also where nothing can be written.
    pub fn adopt(folder: &Path, entry: &Entry) -> io::Result<Self> {
        let path = folder.join(name_of(entry.key));
        let file = open_regular(&path)?;
        file.try_lock()?;
        let file_id = FileId::of(&file.metadata()?);
        let rewritten =
            rewrite(&path, |noted| *noted = Entry { file: Some(file_id), ..entry.clone() });
        if let Err(why) = rewritten {
            tracing::warn!(path = %path.shown(), %why, "the note of the attachment stays that of the process before");
        }
        Ok(Self { path, file })
    }

    fn write(path: &Path, entry: &Entry) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let written = Self::fill(&file, entry);
        if written.is_err() {
            // On a full disk, for one: half a note says nothing.
            let _ = fs::remove_file(path);
        }
        written.map(|()| file)
    }

    fn fill(mut file: &File, entry: &Entry) -> io::Result<()> {
        // Locked before there is anything in it: an empty file is nobody's.
        file.lock()?;
        let entry = Entry { file: Some(FileId::of(&file.metadata()?)), ..entry.clone() };
        file.write_all(&serde_json::to_vec(&entry)?)?;
        file.sync_all()
    }

    /// Whether it is noted under this key.
    pub fn is_of(&self, key: u64) -> bool {
        self.path.file_name().is_some_and(|name| name == &*name_of(key))
    }

    /// It has ended and nothing of it is written any more, but its reservation may stand: so the next attachment of this
    /// machine may take that away, even if it is one of this process.
    pub fn leave(self) {
        if let Err(why) = rewrite(&self.path, |entry| entry.ended = true) {
            let path = self.path.shown();
            tracing::warn!(%path, %why, "until this process has ended only --take-over of `attach`, `mount`, `copy`, `tune` and `key` gets the volume");
        }
    }

    /// It is about to write: what was left by the one before it is not to be written any more. Without a note where that
    /// cannot be noted.
    pub fn succeed(self) -> Option<Self> {
        let noted = rewrite(&self.path, |entry| {
            entry.replays = None;
            entry.unwritten_logs.clear();
        });
        match noted {
            Ok(()) => Some(self),
            Err(why) => {
                let path = self.path.shown();
                tracing::warn!(%path, %why, "cannot note the attachment: after a crash only --take-over of `attach`, `mount`, `copy`, `tune` and `key` gets the volume");
                self.forget();
                None
            }
        }
    }

    /// Nothing shows any more that it was there, but for a replay log that it may have left.
    pub fn forget_without_log(self) {
        match look(&self.path) {
            Ok((entry, _)) if !entry.unwritten_logs.is_empty() => self.leave(),
            _ => self.forget(),
        }
    }

    /// The reservation is no more, so nothing has to be remembered.
    pub fn forget(self) {
        if let Err(why) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.shown(), %why, "cannot remove");
        }
    }
}

/// The name of the file of an attachment.
fn name_of(key: u64) -> String {
    format!("{key:016x}")
}

/// Notes a replay log of the attachment of this process that has this key, as soon as there is such a file.
pub fn note_log(folder: &Path, key: u64, log: &Path) -> io::Result<()> {
    // A path that is no text cannot be noted; what stands for it is missed.
    let log = PathBuf::from(log.to_string_lossy().into_owned());
    rewrite(&folder.join(name_of(key)), |entry| entry.unwritten_logs.push(log))
}

/// A replay log of the attachment with this key has been written.
pub fn forget_log(folder: &Path, key: u64, written: &Path) -> io::Result<()> {
    let forget = |entry: &mut Entry| {
        let is_it = |noted: &Path| {
            noted.file_name() == written.file_name() && !is_other_journal(noted, written)
        };
        let has_its_name = entry.unwritten_logs.iter().any(|noted| is_it(noted));
        // One that has another name now is one of those that are not at their places.
        entry.unwritten_logs.retain(|noted| match has_its_name {
            true => !is_it(noted),
            false => noted.exists(),
        });
    };
    match rewrite(&folder.join(name_of(key)), forget) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Whether a journal that is noted lies where it was, and is not the one that was sent or discarded: that was a copy, which says
/// nothing of what the other one holds.
fn is_other_journal(noted: &Path, written: &Path) -> bool {
    // What was discarded is gone; its directory is not.
    let place = |path: &Path| {
        let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
        let directory = directory.unwrap_or_else(|| Path::new("."));
        fs::canonicalize(directory)
            .map(|directory| directory.join(path.file_name().unwrap_or_default()))
    };
    is_journal(noted) && place(noted).ok() != place(written).ok()
}

/// Changes what is noted in the file at `path`. The file stays the same one, which is how a copy is told from it, and is
/// written at once, so that it is whole whatever happens.
fn rewrite(path: &Path, change: impl FnOnce(&mut Entry)) -> io::Result<()> {
    /// The end of an attachment and its replay log are noted by two threads.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let text = read_regular(path)?;
    let mut entry: Entry = serde_json::from_slice(&text)?;
    change(&mut entry);
    let mut bytes = serde_json::to_vec(&entry)?;
    bytes.resize(bytes.len().max(text.len()), b' ');
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(&bytes, 0)?;
    file.sync_all()
}

/// What is noted in `folder` of attachments that may be of this unit. It locks nothing, for those who only read.
#[must_use]
pub fn noted(folder: &Path, place: &UnitAddress) -> Vec<Entry> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = files.filter_map(|file| read_regular(&file.path()).ok());
    let entries = texts.filter_map(|text| serde_json::from_slice::<Entry>(&text).ok());
    entries.filter(|entry| entry.may_be_of(place)).collect()
}

/// What this machine knows of a unit.
#[derive(Debug, Default)]
pub struct Known {
    /// Attachments of processes that are gone; nobody else can take them over meanwhile.
    pub gone: Vec<(Entry, Attachment)>,
    /// Those of which that cannot be told.
    pub doubtful: Vec<(Entry, Attachment, AliveReason)>,
    /// Those of processes that live.
    pub living: Vec<Entry>,
}

impl Known {
    /// What `folder` tells of a unit.
    #[must_use]
    pub fn of(folder: &Path, place: &UnitAddress) -> Self {
        let mut known = Self::default();
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()) {
            match look(&path) {
                Ok((entry, lock)) if entry.may_be_of(place) => match lock {
                    Some(file) => known.take(entry, Attachment { path, file }),
                    None => known.living.push(entry),
                },
                Ok(_) => {}
                Err(why) => tracing::debug!(path = %path.shown(), %why, "no attachment"),
            }
        }
        known
    }

    /// Those whose keys are not registered with the unit at `place` any more, once this machine has it: they were found
    /// there, or their keys are among those that it had `seen` there before. Not that of `now`, which is ours.
    pub fn ended_at(
        self,
        place: &UnitAddress,
        seen: &[u64],
        now: u64,
    ) -> impl Iterator<Item = Attachment> {
        let gone = self.gone.into_iter();
        let noted = gone.chain(self.doubtful.into_iter().map(|(entry, file, _)| (entry, file)));
        let ended = noted.filter(move |(entry, _)| {
            entry.key != now && (entry.is_of(place) || seen.contains(&entry.key))
        });
        ended.map(|(_, attachment)| attachment)
    }

    /// Whether some may be of another unit that has the same names.
    #[must_use]
    pub fn may_be_elsewhere(&self, place: &UnitAddress) -> bool {
        let doubtful = self.doubtful.iter().map(|(entry, ..)| entry);
        let mut noted = self.gone.iter().map(|(entry, _)| entry).chain(doubtful);
        noted.any(|entry| !entry.is_of(place))
    }

    /// Keeps those from being taken for gone that have something waiting.
    pub fn spare(&mut self, waits: impl Fn(&Entry) -> Option<AliveReason>) {
        for (entry, attachment) in std::mem::take(&mut self.gone) {
            match waits(&entry) {
                Some(log) => self.doubtful.push((entry, attachment, log)),
                None => self.gone.push((entry, attachment)),
            }
        }
    }

    /// What an attachment to the unit at `place` has left that must not be passed over: a replay log that is not where it
    /// was, or a journal, which holds what was acknowledged as stable.
    #[must_use]
    pub fn left_behind(&self, place: &UnitAddress) -> Option<&AliveReason> {
        let here = self.doubtful.iter().filter(|(entry, ..)| entry.is_of(place));
        here.map(|(_, _, doubt)| doubt).find(|doubt| match doubt {
            AliveReason::LogMissing(_) => true,
            AliveReason::Unwritten(log) => is_journal(log),
            _ => false,
        })
    }

    fn take(&mut self, entry: Entry, attachment: Attachment) {
        let file = attachment.file.metadata().ok().as_ref().map(FileId::of);
        let here = Entry { file, ..Entry::new(&UnitAddress::of(&entry), 0) };
        match doubt(&entry, &here) {
            Some(doubt) => self.doubtful.push((entry, attachment, doubt)),
            None => self.gone.push((entry, attachment)),
        }
    }
}

/// What a file says, and the file with its lock if nobody else has that.
fn look(path: &Path) -> io::Result<(Entry, Option<File>)> {
    let mut file = open_regular(path)?;
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

/// Where they are noted in the state directory.
#[must_use]
pub fn folder(state: &Path) -> PathBuf {
    state.join("attachments")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "iqn.2026-11.dev.longhaul:t";

    fn place() -> UnitAddress {
        UnitAddress {
            target: TARGET.to_owned(),
            lun: 0,
            serial: Some("s".to_owned()),
            portal: "127.0.0.1:3260".to_owned(),
            pin: None,
        }
    }

    fn entry(key: u64) -> Entry {
        Entry::new(&place(), key)
    }

    #[test]
    fn attachment_of_a_living_process_is_told_from_that_of_one_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let look = || Known::of(dir.path(), &place());
        let first = Attachment::note(dir.path(), &entry(7)).unwrap();
        let living = look().living;
        assert_eq!((living.len(), living[0].key, living[0].pid), (1, 7, std::process::id()));
        assert!(look().gone.is_empty());
        // As at the end of the process: the file stays, its lock goes.
        drop(first);
        let known = unlocked(&look);
        assert_eq!(known.doubtful[0].2, AliveReason::Lives, "this process has not ended");
        drop(known);
        ends(&dir.path().join(format!("{:016x}", 7)));
        let known = unlocked(&look);
        assert_eq!(known.gone[0].0.key, 7);
        let second = look();
        assert!(
            second.gone.is_empty() && second.doubtful.is_empty(),
            "who takes it over keeps others from it"
        );
        for (_, gone) in known.gone {
            gone.forget();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn log_that_was_written_is_the_only_one_that_is_missed_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let logs = ["a", "b"].map(|name| dir.path().join(name));
        let folder = dir.path().join("notes");
        let _attachment = Attachment::note(&folder, &entry(7)).unwrap();
        let missed = || look(&folder.join(name_of(7))).unwrap().0.unwritten_logs;
        for log in &logs {
            fs::write(log, "").unwrap();
            note_log(&folder, 7, log).unwrap();
        }
        // Written where it was moved to.
        forget_log(&folder, 7, Path::new("/elsewhere/a")).unwrap();
        assert_eq!(missed(), logs[1..]);
        // Under another name, which it is not any more.
        fs::remove_file(&logs[1]).unwrap();
        forget_log(&folder, 7, Path::new("/elsewhere/c")).unwrap();
        assert!(missed().is_empty());
        forget_log(&folder, 8, &logs[0]).unwrap();
    }

    #[test]
    fn attachment_that_has_ended_is_gone_though_its_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        let look = || Known::of(dir.path(), &place());
        Attachment::note(dir.path(), &entry(7)).unwrap().leave();
        let known = unlocked(&look);
        assert_eq!((known.doubtful.len(), known.gone[0].0.key), (0, 7));
        // A copy of it says nothing of the original, as before.
        let original = dir.path().join(format!("{:016x}", 7));
        fs::copy(&original, dir.path().join("copy")).unwrap();
        fs::remove_file(&original).unwrap();
        drop(known);
        let known = unlocked(&look);
        assert_eq!((known.gone.len(), &known.doubtful[0].2), (0, &AliveReason::Copied));
    }

    /// Looks until the lock is gone that was given back: a process that another test starts has it too, for the moment
    /// between its fork and its exec.
    fn unlocked(look: &impl Fn() -> Known) -> Known {
        let begun = std::time::Instant::now();
        loop {
            let known = look();
            if known.gone.len() + known.doubtful.len() > 0 {
                return known;
            }
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it is locked for ever");
        }
    }

    /// The process that is named in a file is one that never was.
    fn ends(path: &Path) {
        let mut entry: Entry = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        entry.started = entry.started.map(|ticks| ticks + 1);
        fs::write(path, serde_json::to_vec(&entry).unwrap()).unwrap();
    }

    #[test]
    fn process_is_gone_only_where_nothing_speaks_against_it() {
        let file = Some(FileId { device: 1, inode: 2 });
        let id = |id: &str| Some(id.to_owned());
        let here = Entry { file, machine: id("m"), boot: id("b"), ..entry(1) };
        let gone = Entry { started: here.started.map(|ticks| ticks + 1), ..here.clone() };
        let other = |device, inode| Some(FileId { device, inode });
        let earlier = Entry { boot: id("a"), ..here.clone() };
        let nowhere = Entry { machine: None, ..here.clone() };
        let cases = [
            (gone.clone(), &here, None),
            (here.clone(), &here, Some(AliveReason::Lives)),
            (Entry { started: None, ..here.clone() }, &here, Some(AliveReason::Unknown)),
            (Entry { ended: true, ..here.clone() }, &here, None),
            (
                Entry { ended: true, machine: id("n"), ..here.clone() },
                &here,
                Some(AliveReason::OtherMachine),
            ),
            (Entry { file: other(1, 3), ..gone.clone() }, &here, Some(AliveReason::Copied)),
            (Entry { file: other(3, 2), ..gone.clone() }, &here, Some(AliveReason::Copied)),
            (Entry { file: None, ..gone.clone() }, &here, Some(AliveReason::Unknown)),
            (Entry { machine: id("n"), ..gone.clone() }, &here, Some(AliveReason::OtherMachine)),
            (Entry { boot: None, ..gone.clone() }, &here, Some(AliveReason::Unknown)),
            (earlier.clone(), &here, None),
            (Entry { file: other(3, 2), ..earlier.clone() }, &here, None),
            (Entry { file: other(1, 3), ..earlier.clone() }, &here, Some(AliveReason::Copied)),
            (Entry { machine: None, ..earlier }, &nowhere, Some(AliveReason::Unknown)),
            (Entry { machine: None, ..gone }, &nowhere, None),
        ];
        for (entry, here, expected) in cases {
            assert_eq!(doubt(&entry, here), expected, "{entry:?}");
        }
    }

    #[test]
    fn attachment_that_is_kept_lives_while_its_processes_change() {
        let file = Some(FileId { device: 1, inode: 2 });
        let gone = Entry { file, started: entry(1).started.map(|ticks| ticks + 1), ..entry(1) };
        let here = Entry { file, ..entry(2) };
        assert_eq!(doubt(&gone, &here), None);
        let alive = ParentProcess { pid: std::process::id(), started: start_of("self") };
        let dead = ParentProcess { started: alive.started.map(|ticks| ticks + 1), ..alive };
        let kept = |keeper| Entry { keeper: Some(keeper), ..gone.clone() };
        assert_eq!(doubt(&kept(alive), &here), Some(AliveReason::Kept));
        assert_eq!(doubt(&kept(dead), &here), None);
        // For the next process of the same keeper those before are gone.
        assert_eq!(doubt(&kept(alive), &Entry { keeper: Some(alive), ..here }), None);
    }

    /// As on a full disk, where the successor can make no note of its own.
    #[test]
    fn note_that_is_adopted_is_that_of_a_living_attachment() {
        let dir = tempfile::tempdir().unwrap();
        let before = Entry { since: 1, ..entry(7) };
        let first = Attachment::note(dir.path(), &before).unwrap();
        let look = || Known::of(dir.path(), &place());
        assert!(Attachment::adopt(dir.path(), &entry(7)).is_err(), "the one before has its lock");
        drop(first);
        drop(unlocked(&look));
        let now = Entry { since: 2, ..entry(7) };
        let adopted = adopt(dir.path(), &now);
        assert_eq!(look().living.iter().map(|entry| entry.since).collect::<Vec<_>>(), [2]);
        drop(adopted);
        let known = unlocked(&look);
        assert_eq!(known.doubtful[0].2, AliveReason::Lives, "it is no copy");
        assert!(Attachment::adopt(dir.path(), &entry(8)).is_err(), "there is none");
    }

    /// A process that another test starts has the lock too, for the moment between its fork and its exec.
    fn adopt(folder: &Path, entry: &Entry) -> Attachment {
        let begun = std::time::Instant::now();
        loop {
            match Attachment::adopt(folder, entry) {
                Ok(adopted) => return adopted,
                Err(why) => assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{why}"),
            }
        }
    }

    #[test]
    fn process_that_only_waits_to_be_asked_how_it_ended_is_gone() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let process = child.id().to_string();
        assert!(start_of(&process).is_some());
        drop(child.stdin.take());
        let last = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while start_of(&process).is_some() && std::time::Instant::now() < last {
            std::thread::yield_now();
        }
        assert_eq!(start_of(&process), None);
        child.wait().unwrap();
    }

    #[test]
    fn file_that_is_no_attachment_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("1"), "").unwrap();
        fs::write(dir.path().join("2"), "{}").unwrap();
        let other = Entry { lun: 1, ..entry(3) };
        drop(Attachment::note(dir.path(), &other).unwrap());
        let known = Known::of(dir.path(), &place());
        assert!(known.gone.is_empty() && known.living.is_empty() && known.doubtful.is_empty());
    }

    #[test]
    fn process_is_known_by_its_start() {
        assert!(start_of("self").is_some_and(|ticks| ticks > 0));
        let entry = entry(1);
        assert!(entry.boot.is_some_and(|boot| boot.len() == 36));
    }
}
