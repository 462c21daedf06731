//! Names of sessions that outlive their process: each is that of one process at a time, and of the next one if that was killed.
//!
//! A process that is killed may leave writes under way. Where the volume was reserved they end with the reservation.
//! Elsewhere a session ends that has the same name as the new one, and nothing else does (RFC 7143, 6.3.5).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use proto::iscsi::name::{IscsiName, Isid};
use sha2::{Digest as _, Sha256};

use super::IscsiTarget;
use super::random::random;
use crate::durable::{make_directories, sync_directory_of};
use crate::printable::Shown as _;

/// How many processes of one machine may use one unit at a time.
const PORTS_MAX: u32 = 1000;

/// The name of an initiator port, locked by this process for as long as it lives.
#[derive(Debug)]
pub(super) struct InitiatorPort {
    pub(super) isid: Isid,
    /// A process that was killed had it, and may have left a session.
    pub(super) is_left: bool,
    path: PathBuf,
    /// Held for its lock.
    _file: File,
}

impl InitiatorPort {
    /// One that no living process has, by which `initiator` comes to a unit: first one that a dead process had.
    pub(super) fn take(
        state: &Path,
        initiator: &IscsiName,
        unit: &IscsiTarget,
    ) -> io::Result<Self> {
        let folder = state.join("ports");
        make_directories(&folder, 0o700)?;
        let IscsiTarget { name, lun, .. } = unit;
        let hash = Sha256::digest(format!("{}\n{}\n{lun}", initiator.as_str(), name.as_str()));
        let hash: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        for number in 0..PORTS_MAX {
            if let Some(port) = Self::take_at(folder.join(format!("{hash}-{number}")))? {
                return Ok(port);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// `None` if a living process has it.
    fn take_at(path: PathBuf) -> io::Result<Option<Self>> {
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
        let left = u64::from_str_radix(&text, 16).ok().filter(|_| text.len() == 12);
        if let Some(left) = left {
            let [_, _, isid @ ..] = left.to_be_bytes();
            return Ok(Some(Self { isid: Isid(isid), is_left: true, path, _file: file }));
        }
        let isid = Isid::random(random().map_err(io::Error::other)?, 0);
        let text: String = isid.0.iter().map(|byte| format!("{byte:02x}")).collect();
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        sync_directory_of(&path)?;
        Ok(Some(Self { isid, is_left: false, path, _file: file }))
    }

    /// Its session was logged out, so that nothing of it is under way.
    pub(super) fn forget(&self) {
        if let Err(why) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.shown(), %why, "cannot remove");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uri::Host;

    #[test]
    fn name_is_that_of_one_process_at_a_time_and_of_the_next_if_it_was_killed() {
        let state = tempfile::tempdir().unwrap();
        let name = |name: &str| IscsiName::new(name).unwrap();
        let portal = Host { name: "192.0.2.1".to_owned(), port: 3260 };
        let unit =
            |lun| IscsiTarget { portal: portal.clone(), name: name("iqn.2000-01.example:t"), lun };
        let take = |initiator: &str, lun| {
            InitiatorPort::take(state.path(), &name(initiator), &unit(lun)).unwrap()
        };
        let own = "iqn.2000-01.example:a";
        let (first, second) = (take(own, 0), take(own, 0));
        let others = [take(own, 1), take("iqn.2000-01.example:b", 0)];
        let mut isids: Vec<_> = [&first, &second, &others[0], &others[1]].map(|p| p.isid.0).into();
        isids.sort_unstable();
        isids.dedup();
        assert_eq!(isids.len(), 4);
        assert!(!first.is_left && !second.is_left);
        let isid = first.isid.0;
        drop(first);
        let again = take(own, 0);
        assert!(again.is_left && again.isid.0 == isid, "its process was killed");
        again.forget();
        drop(again);
        let new = take(own, 0);
        assert!(!new.is_left && new.isid.0 != isid, "it was logged out");
        // What a crash has left half written is nobody's name.
        fs::write(&new.path, "80").unwrap();
        drop(new);
        assert!(!take(own, 0).is_left);
    }
}
