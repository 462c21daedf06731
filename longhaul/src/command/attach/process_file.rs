//! Which process serves the mount that has a keeper, or is about to: a file that holds its number, and that it keeps locked.
//! The keeper may be gone by then.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The file of this process.
pub(super) struct ProcessFile {
    path: PathBuf,
    _locked: File,
}

impl ProcessFile {
    /// That of a process which asks the keeper that listens at `socket`.
    pub(super) fn create(socket: &Path) -> io::Result<Self> {
        let path = path_of(socket);
        let mut options = File::options();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&path)?;
        // Before it is locked: who finds it locked reads whose it is.
        write!(file, "{}", std::process::id())?;
        // Shared, as a process whose keeper is gone may not have ended yet.
        file.lock_shared()?;
        Ok(Self { path, _locked: file })
    }
}

impl Drop for ProcessFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn path_of(socket: &Path) -> PathBuf {
    socket.with_extension("process")
}

/// The process whose keeper listens, or has listened, at `socket`.
pub(super) fn process_of(socket: &Path) -> Option<u32> {
    let mut file = File::open(path_of(socket)).ok()?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let mut number = String::new();
            file.read_to_string(&mut number).ok()?;
            number.parse().ok()
        }
        // It is the file of one that was killed.
        _ => None,
    }
}

/// Removes the file of a process that was killed.
pub(super) fn remove_if_left(socket: &Path) {
    if process_of(socket).is_none() {
        let _ = fs::remove_file(path_of(socket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_found_as_long_as_it_has_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join(".a.b.keeper");
        assert_eq!(process_of(&socket), None);
        let file = ProcessFile::create(&socket).unwrap();
        remove_if_left(&socket);
        assert_eq!(process_of(&socket), Some(std::process::id()));
        drop(file);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn file_of_a_process_that_was_killed_names_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join(".a.keeper");
        fs::write(path_of(&socket), "1").unwrap();
        assert_eq!(process_of(&socket), None);
        remove_if_left(&socket);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
