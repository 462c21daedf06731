//! The file that the volume is mounted over.

use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::printable::Shown as _;

/// What mounts for users who may not.
pub(super) const HELPER: &str = "fusermount3";

/// Why a volume cannot be mounted over a file.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// Another server has mounted something there.
    #[error("something is mounted on it")]
    InUse,
    /// What is mounted over is hidden.
    #[error("it exists and is not an empty file")]
    NotEmpty,
    /// A server that was killed has left its mount.
    #[error(
        "a process that was killed, or could not write all it had acknowledged, has left its mount there"
    )]
    Left,
    /// The kernel cannot do it, or does not let this process.
    #[error("/dev/fuse cannot be opened: {0}")]
    NoDevice(#[source] io::Error),
    /// The user may not mount, and there is nobody who does it for him.
    #[error("this user may not mount, and {HELPER}, which does it for users, is not there")]
    NoHelper,
    /// What a server that was killed had taken cannot be asked again.
    #[error(
        "this kernel cannot ask again what the process before was asked: that takes Linux 6.9 or newer ({0})"
    )]
    NoResend(#[source] io::Error),
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// A file that exists, to be mounted over.
#[derive(Debug)]
pub(super) struct MountPoint {
    path: PathBuf,
    /// It was made, and goes with the mount.
    made: bool,
}

impl MountPoint {
    /// The file at `path`, which is made if it is not there. A mount without a server is taken away only if the caller
    /// says so: those who had it open were never told that what it had acknowledged is lost.
    pub(super) fn prepare(path: &Path, replace: bool) -> Result<Self, MountError> {
        let found = match find(path) {
            Err(why) if is_dead(&why) && !replace => return Err(MountError::Left),
            Err(why) if is_dead(&why) => {
                detach(path)?;
                let made = fs::symlink_metadata(path)?.len() == 0;
                return Ok(Self { path: std::path::absolute(path)?, made });
            }
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(0o600).open(path)?;
                return Ok(Self { path: std::path::absolute(path)?, made: true });
            }
            found => found?,
        };
        let path = std::path::absolute(path)?;
        let beside = path.parent().map(fs::metadata).transpose()?;
        if beside.is_some_and(|beside| beside.dev() != found.dev()) {
            return Err(MountError::InUse);
        }
        if !found.is_file() || found.len() > 0 {
            return Err(MountError::NotEmpty);
        }
        Ok(Self { path, made: false })
    }

    /// The one of a mount that is there.
    pub(super) fn taken_over(path: &Path, made: bool) -> Self {
        Self { path: path.to_owned(), made }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it goes with the mount.
    pub(super) const fn is_made(&self) -> bool {
        self.made
    }

    /// Removes it if it was made.
    pub(super) fn remove(&self) {
        if !self.made {
            return;
        }
        if let Err(why) = fs::remove_file(&self.path) {
            tracing::warn!(%why, path = %self.path.shown(), "cannot remove the file that was mounted over");
        }
    }
}

/// What is there. The kernel still knows the attributes of a mount whose server is gone, so the server is asked.
fn find(path: &Path) -> io::Result<Metadata> {
    let found = fs::symlink_metadata(path)?;
    if found.is_file() {
        statfs(path)?;
    }
    Ok(found)
}

/// "Transport endpoint is not connected": nobody answers the requests of this mount any more.
fn is_dead(why: &io::Error) -> bool {
    matches!(Errno::from_io_error(why), Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Takes a mount out of sight. Programs that have its file open keep it, and learn of the end from its answers.
pub(super) fn detach(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        Err(Errno::PERM) => {}
        done => return Ok(done?),
    }
    let helped = Command::new(HELPER).args(["-u", "-q", "-z", "--"]).arg(path).output()?;
    match helped.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&helped.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_is_empty_is_mounted_over_and_only_one_that_was_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("full"), "x").unwrap();
        for taken in [path("full"), dir.path().to_owned()] {
            let refused = MountPoint::prepare(&taken, true).unwrap_err();
            assert!(matches!(refused, MountError::NotEmpty), "{refused}");
        }
        fs::write(path("empty"), "").unwrap();
        for (name, is_there) in [("empty", true), ("new", false)] {
            MountPoint::prepare(&path(name), false).unwrap().remove();
            assert_eq!(path(name).exists(), is_there);
        }
        assert!(MountPoint::prepare(&path("none/new"), false).is_err());
        let proc = MountPoint::prepare(Path::new("/proc"), true).unwrap_err();
        assert!(matches!(proc, MountError::InUse), "{proc}");
    }
}
