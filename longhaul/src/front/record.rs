//! What a successor has to know of a mount whose server was killed or replaced: who has the file open, whether anything was
//! acknowledged that is not stable, and the first change that failed. It is kept in a file that outlives the process and need not outlive the machine.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use volume::Durability;

/// How many may have the file open. A mount has one, its loop device.
const OPEN_MAX: usize = 500;

/// What a record begins with.
const MAGIC: [u8; 8] = *b"LHFUSE\0\x01";

// Where its parts are: whether something is not stable, then how many have the file open, and as what.
const UNFLUSHED_AT: u64 = 8;
const OPEN_AT: u64 = 16;

/// Where the first change that failed is told: its length, and the text.
const FAILURE_AT: u64 = 4096;

/// How much of that is kept.
const FAILURE_MAX: usize = 512;

/// The record, as its server keeps it.
#[derive(Debug, Default)]
pub struct Record {
    file: Option<File>,
    /// Nothing is acknowledged before it is stable.
    is_stable: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The handles of those who have the file open.
    open: Vec<u64>,
    /// It says that something is not stable.
    unflushed: bool,
    /// Changes that have begun, in all.
    begun: u64,
    /// Changes that have not ended.
    running: usize,
    /// The first change that failed.
    failure: Option<String>,
}

/// What a flush has to cover so that everything is stable: nothing that has begun was running, and this many had begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Covered(Option<u64>);

impl Record {
    /// A new one in a file that is empty.
    pub fn create(file: File) -> io::Result<Self> {
        let record = Self { file: Some(file), ..Self::default() };
        record.write(0, &MAGIC)?;
        record.write_open(&record.lock())?;
        record.write(UNFLUSHED_AT, &[0; 8])?;
        Ok(record)
    }

    /// The one that a server before has kept in this file.
    pub fn read(file: File) -> io::Result<Self> {
        let mut head = [0; 24];
        file.read_exact_at(&mut head, 0)?;
        let [magic, unflushed, count] = [0, 8, 16].map(|at| word(&head, at));
        let count = usize::try_from(u64::from_ne_bytes(count)).unwrap_or(usize::MAX);
        if magic != MAGIC || count > OPEN_MAX {
            return Err(io::Error::other("the record of the mount cannot be read"));
        }
        let mut handles = vec![0; count * 8];
        file.read_exact_at(&mut handles, OPEN_AT + 8)?;
        let open = (0..count).map(|index| u64::from_ne_bytes(word(&handles, index * 8))).collect();
        let failure = read_failure(&file)?;
        let state = State { open, unflushed: unflushed != [0; 8], failure, ..State::default() };
        Ok(Self { file: Some(file), is_stable: false, state: Mutex::new(state) })
    }

    /// The same of a file whose changes are acknowledged when they are stable, or of one whose are before.
    #[must_use]
    pub fn of_stable(self, is_stable: bool) -> Self {
        Self { is_stable, ..self }
    }

    /// How stable a change has to be that was asked to be so.
    pub(super) const fn durability(&self, asked: Durability) -> Durability {
        if self.is_stable { Durability::Durable } else { asked }
    }

    /// Whether something was acknowledged, or under way, and not flushed.
    #[must_use]
    pub fn is_unflushed(&self) -> bool {
        self.lock().unflushed
    }

    /// How many have the file open.
    pub(super) fn open_count(&self) -> usize {
        self.lock().open.len()
    }

    /// Somebody opens the file, and is known by this number from now on; says how many have it open. The same twice is one.
    pub(super) fn opened(&self, handle: u64) -> io::Result<usize> {
        let mut state = self.lock();
        if !state.open.contains(&handle) {
            if state.open.len() >= OPEN_MAX {
                return Err(rustix::io::Errno::NFILE.into());
            }
            state.open.push(handle);
            self.write_open(&state)?;
        }
        Ok(state.open.len())
    }

    /// The one of this number closes it; says how many still have it open.
    pub(super) fn released(&self, handle: u64) -> usize {
        let mut state = self.lock();
        state.open.retain(|open| *open != handle);
        if let Err(why) = self.write_open(&state) {
            tracing::warn!(%why, "cannot note that the file was closed");
        }
        state.open.len()
    }

    /// A change failed: whoever ends the mount is told of the first one, and by whom it may be.
    pub(super) fn failed(&self, why: &impl ToString) {
        let mut state = self.lock();
        if state.failure.is_some() {
            return;
        }
        let why = why.to_string();
        let kept = why.as_bytes().get(..FAILURE_MAX).unwrap_or(why.as_bytes());
        let bytes = [&(kept.len() as u64).to_ne_bytes(), kept].concat();
        if let Err(why) = self.write(FAILURE_AT, &bytes) {
            tracing::warn!(%why, "cannot note that a change failed");
        }
        state.failure = Some(why);
    }

    /// The first change that failed, if one did: those who asked for it were told.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    /// A change begins. That something is not stable is noted before it can be acknowledged.
    pub(super) fn change_begins(&self) -> io::Result<()> {
        let mut state = self.lock();
        if !state.unflushed && !self.is_stable {
            self.write(UNFLUSHED_AT, &1_u64.to_ne_bytes())?;
            state.unflushed = true;
        }
        state.begun += 1;
        state.running += 1;
        Ok(())
    }

    /// It has ended, however it ended.
    pub(super) fn change_ends(&self) {
        let mut state = self.lock();
        state.running = state.running.saturating_sub(1);
    }

    /// A flush begins.
    pub(super) fn flush_begins(&self) -> Covered {
        let state = self.lock();
        Covered((state.running == 0).then_some(state.begun))
    }

    /// It has succeeded.
    pub(super) fn flushed(&self, covered: Covered) {
        let mut state = self.lock();
        if !state.unflushed || covered.0 != Some(state.begun) {
            return;
        }
        match self.write(UNFLUSHED_AT, &0_u64.to_ne_bytes()) {
            Ok(()) => state.unflushed = false,
            Err(why) => tracing::warn!(%why, "cannot note that everything is flushed"),
        }
    }

    fn write_open(&self, state: &State) -> io::Result<()> {
        let count = state.open.len() as u64;
        let words = std::iter::once(count).chain(state.open.iter().copied());
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        self.write(OPEN_AT, &bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.write_all_at(bytes, at))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first change that failed under the servers before; records that end before it have none.
fn read_failure(file: &File) -> io::Result<Option<String>> {
    let mut bytes = [0; 8 + FAILURE_MAX];
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, FAILURE_AT + read as u64)? {
            0 => break,
            more => read += more,
        }
    }
    let len = usize::try_from(u64::from_ne_bytes(word(&bytes, 0))).unwrap_or(usize::MAX);
    let text = bytes.get(8..8 + len.min(FAILURE_MAX)).filter(|text| !text.is_empty());
    Ok(text.map(|text| String::from_utf8_lossy(text).into_owned()))
}

/// Eight bytes of what was read as long as that.
fn word(bytes: &[u8], at: usize) -> [u8; 8] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_tells_a_successor_who_has_the_file_open() {
        let file = tempfile::tempfile().unwrap();
        let record = Record::create(file.try_clone().unwrap()).unwrap();
        assert_eq!(record.opened(4).unwrap(), 1);
        assert_eq!(record.opened(4).unwrap(), 1, "it was sent again");
        assert_eq!(record.opened(6).unwrap(), 2);
        assert_eq!(record.released(4), 1);
        assert_eq!(record.released(4), 1, "it was sent again");
        let successor = Record::read(file).unwrap();
        assert_eq!((successor.open_count(), successor.is_unflushed()), (1, false));
        assert_eq!(successor.released(6), 0);
    }

    #[test]
    fn only_a_flush_that_covers_every_change_makes_the_record_clean() {
        let file = tempfile::tempfile().unwrap();
        let record = Record::create(file.try_clone().unwrap()).unwrap();
        let noted = || Record::read(file.try_clone().unwrap()).unwrap().is_unflushed();
        record.change_begins().unwrap();
        assert!(noted(), "it could be acknowledged at any moment");
        // One that is under way when the flush begins.
        let covered = record.flush_begins();
        record.change_ends();
        record.flushed(covered);
        assert!(noted());
        // One that begins while it runs.
        let covered = record.flush_begins();
        record.change_begins().unwrap();
        record.change_ends();
        record.flushed(covered);
        assert!(noted());
        let covered = record.flush_begins();
        record.flushed(covered);
        assert!(!noted() && !record.is_unflushed());
    }

    #[test]
    fn record_tells_a_successor_of_the_first_change_that_failed() {
        let file = tempfile::tempfile().unwrap();
        let record = Record::create(file.try_clone().unwrap()).unwrap();
        let successor = || Record::read(file.try_clone().unwrap()).unwrap();
        assert_eq!((record.failure(), successor().failure()), (None, None));
        let why = "é".repeat(FAILURE_MAX);
        record.failed(&why);
        record.failed(&"another");
        assert_eq!(record.failure().unwrap(), why);
        assert_eq!(successor().failure().unwrap(), "é".repeat(FAILURE_MAX / 2));
        successor().failed(&"a later one");
        assert!(successor().failure().unwrap().starts_with('é'));
    }

    #[test]
    fn nothing_is_unflushed_where_changes_are_acknowledged_when_they_are_stable() {
        let record = Record::create(tempfile::tempfile().unwrap()).unwrap().of_stable(true);
        record.change_begins().unwrap();
        assert!(!record.is_unflushed());
        assert_eq!(record.durability(Durability::Volatile), Durability::Durable);
    }

    #[test]
    fn file_that_is_no_record_is_refused() {
        let file = tempfile::tempfile().unwrap();
        Record::read(file.try_clone().unwrap()).unwrap_err();
        file.write_all_at(&[1; 64], 0).unwrap();
        Record::read(file).unwrap_err();
    }
}
