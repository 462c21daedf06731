//! The name that a listening Unix socket has in the file system.

use crate::printable::Shown as _;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The path of a socket that this process listens on.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode of the socket.
    id: (u64, u64),
}

impl SocketFile {
    /// The socket that was just bound to `path`.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: id(path)? })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it, unless another one is at the path by now. The socket must still be open: its inode has no other
    /// owner until then.
    pub(crate) fn remove(&self) {
        let path = self.path.shown();
        match id(&self.path) {
            Ok(found) if found == self.id => {}
            Ok(_) => {
                tracing::warn!(%path, "the socket was replaced by another one, which is left");
                return;
            }
            Err(why) => {
                tracing::warn!(%why, %path, "the socket is gone already");
                return;
            }
        }
        if let Err(why) = fs::remove_file(&self.path) {
            tracing::warn!(%why, %path, "cannot remove the socket");
        }
    }
}

fn id(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_socket_that_was_bound_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let first = UnixListener::bind(&path).unwrap();
        let file = SocketFile::of(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = UnixListener::bind(&path).unwrap();
        let newer = SocketFile::of(&path).unwrap();
        file.remove();
        assert!(path.exists(), "the first socket removed the second");
        newer.remove();
        assert!(!path.exists());
        drop((first, second));
    }
}
