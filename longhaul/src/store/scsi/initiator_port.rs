//! Initiator ports that outlive their process: each is that of one process at a time, and of the next one if that was killed.
//!
//! A process that is killed may leave writes under way. Where the volume was reserved they end with the reservation.
//! Elsewhere a session ends that is of the same port as the new one, and nothing else does (RFC 7143, 6.3.5, and so it is in
//! HyperSCSI).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::writers::Writers;
use crate::durable::{make_directories, sync_directory_of};
use crate::printable::Shown as _;

/// How many processes of one machine may use one unit at a time.
const PORTS_MAX: u32 = 1000;

/// How long the text of one is: as it is written, and as it was for iSCSI alone.
const DIGITS: [usize; 2] = [16, 12];

/// An initiator port, locked by this process for as long as it lives.
#[derive(Debug)]
pub(in crate::store) struct InitiatorPort {
    pub(in crate::store) number: u64,
    /// A process that was killed had it, and may have left a session.
    pub(in crate::store) is_left: bool,
    path: PathBuf,
    /// Held for its lock.
    _file: File,
}

impl InitiatorPort {
    /// One for somebody who writes beside others, and whose writes no reservation ends if it is killed. Others need none.
    pub(in crate::store) fn for_shared(
        (writers, read_only, state): (Writers, bool, Option<&Path>),
        user: &str,
        fresh: impl Fn() -> u64,
    ) -> Option<Self> {
        if writers != Writers::Shared || read_only {
            return None;
        }
        let failed = |why: &io::Error| {
            tracing::warn!(%why, "cannot note the name of the session: if this process is killed, what it has under way may land late");
        };
        Self::take(state?, user, fresh).inspect_err(failed).ok()
    }

    /// One that no living process has, by which `user`, who names an initiator and a unit, comes: first one that a dead process
    /// had.
    fn take(state: &Path, user: &str, fresh: impl Fn() -> u64) -> io::Result<Self> {
        let folder = state.join("ports");
        make_directories(&folder, 0o700)?;
        let hash = Sha256::digest(user);
        let hash: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        for number in 0..PORTS_MAX {
            if let Some(port) = Self::take_at(folder.join(format!("{hash}-{number}")), &fresh)? {
                return Ok(port);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// `None` if a living process has it.
    fn take_at(path: PathBuf, fresh: &impl Fn() -> u64) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(why)) => return Err(why),
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let left = u64::from_str_radix(&text, 16).ok().filter(|_| DIGITS.contains(&text.len()));
        if let Some(number) = left {
            return Ok(Some(Self { number, is_left: true, path, _file: file }));
        }
        let number = fresh();
        let text = format!("{number:016x}");
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        sync_directory_of(&path)?;
        Ok(Some(Self { number, is_left: false, path, _file: file }))
    }

    /// Its session was logged out, so that nothing of it is under way.
    pub(in crate::store) fn forget(&self) {
        if let Err(why) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.shown(), %why, "cannot remove");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_that_of_one_process_at_a_time_and_of_the_next_if_it_was_killed() {
        let state = tempfile::tempdir().unwrap();
        let next = std::cell::Cell::new(0);
        let fresh = || next.replace(next.get() + 1);
        let take = |user: &str| InitiatorPort::take(state.path(), user, fresh).unwrap();
        let (first, second) = (take("a\nt\n0"), take("a\nt\n0"));
        let others = [take("a\nt\n1"), take("b\nt\n0")];
        assert_eq!([&first, &second, &others[0], &others[1]].map(|port| port.number), [0, 1, 2, 3]);
        assert!(!first.is_left && !second.is_left);
        drop(first);
        let again = take("a\nt\n0");
        assert!(again.is_left && again.number == 0, "its process was killed");
        again.forget();
        drop(again);
        let new = take("a\nt\n0");
        assert!(!new.is_left && new.number == 4, "it was logged out");
        // What a crash has left half written is nobody's.
        fs::write(&new.path, "80").unwrap();
        drop(new);
        assert!(!take("a\nt\n0").is_left);
    }

    #[test]
    fn port_is_noted_only_by_those_who_write_beside_others() {
        let state = tempfile::tempdir().unwrap();
        let port = |writers, read_only| {
            InitiatorPort::for_shared((writers, read_only, Some(state.path())), "a", || 7)
        };
        assert!(port(Writers::Shared, false).is_some());
        assert!(port(Writers::Shared, true).is_none() && port(Writers::One, false).is_none());
    }
}
