//! The state directory: the little that a server must remember through a loss of power.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::durable::{make_directories, sync_directory_of};
use crate::printable::Shown as _;
use crate::regular_file::read_regular;
use crate::target::lun::{Keeper, Waiting};

/// A directory for state, which is there.
#[derive(Clone, Debug)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The directory at `path`, made if it is not there.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        if path.metadata().is_ok_and(|found| !found.is_dir()) {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a directory"));
        }
        make_directories(&path, 0o777)?;
        Ok(Self(path))
    }

    /// What keeps the reservations of the volume with this serial number: one file.
    #[must_use]
    pub fn reservations(&self, serial: &str) -> Arc<dyn Keeper> {
        Arc::new(KeptFile(self.reservations_file(serial)))
    }

    /// Makes reservations that an earlier release has kept for unit `lun` of `target`, an iSCSI name, those of the volume with
    /// this serial number; forgets them if they `are_its` not.
    pub fn adopt(&self, target: &str, lun: u16, serial: &str, are_its: bool) -> io::Result<()> {
        // A name has neither slashes nor NULs (RFC 7143, 4.2.7.1).
        let old = self.0.join(format!("{target}.{lun}.reservations"));
        let new = self.reservations_file(serial);
        if are_its && !new.try_exists()? {
            stable(&old, fs::rename(&old, &new))
        } else {
            stable(&old, fs::remove_file(&old))
        }
    }

    /// Nobody has reserved the volume with this serial number any more.
    pub fn forget(&self, serial: &str) -> io::Result<()> {
        let kept = self.reservations_file(serial);
        stable(&kept, fs::remove_file(&kept))
    }

    /// Where they are kept. Serial numbers can be configured, and hold any character of ASCII.
    #[must_use]
    pub fn reservations_file(&self, serial: &str) -> PathBuf {
        let name = Sha256::digest(serial.as_bytes());
        let name: String = name[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        self.0.join(name).with_extension("reservations")
    }
}

/// Makes it stable that `file` is gone; it need not have been there.
fn stable(file: &Path, gone: io::Result<()>) -> io::Result<()> {
    match gone {
        Ok(()) => sync_directory_of(file),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(why) => Err(why),
    }
}

/// A file that is replaced as a whole.
#[derive(Debug)]
struct KeptFile(PathBuf);

impl Keeper for KeptFile {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        match read_regular(&self.0) {
            Ok(image) => Ok(Some(image)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn save(&self, image: Vec<u8>) -> Waiting<io::Result<()>> {
        let path = self.0.clone();
        Box::pin(async move {
            let work = move || replace(&path, &image);
            tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
        })
    }
}

/// Writes beside the file, then puts that in its place: at every moment there is the old file or the new
/// one, whole. The directory is synchronised last, as the change of name is its content. If that fails the old file is put
/// back: whoever is told that nothing has changed must not find the new one after a restart.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_synced(path, bytes, sync_directory_of)
}

fn replace_synced(
    path: &Path,
    bytes: &[u8],
    sync: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let old = match read_regular(path) {
        Ok(old) => Some(old),
        Err(why) if why.kind() == io::ErrorKind::NotFound => None,
        Err(why) => return Err(why),
    };
    put(path, bytes)?;
    let Err(why) = sync(path) else { return Ok(()) };
    let back = match &old {
        Some(old) => put(path, old),
        None => fs::remove_file(path),
    };
    if let Err(back) = back {
        let file = path.shown();
        tracing::error!(%file, why = %back, "a file that could not be kept could not be put back as it was");
    }
    Err(why)
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    // What a crash has left. Whatever else it is, such as a link or a pipe, is not written to.
    match fs::remove_file(&beside) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
        _ => {}
    }
    let mut file = File::create_new(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &str = "iqn.2026-11.dev.longhaul:t.1";

    #[tokio::test]
    async fn what_was_saved_last_is_there_after_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b");
        let state = StateDir::open(&path).unwrap();
        let keeper = state.reservations("1");
        assert_eq!(keeper.load().unwrap(), None);
        keeper.save(vec![1; 100]).await.unwrap();
        keeper.save(vec![2; 10]).await.unwrap();
        drop((state, keeper));
        let state = StateDir::open(&path).unwrap();
        assert_eq!(state.reservations("1").load().unwrap(), Some(vec![2; 10]));
        assert_eq!(state.reservations("2").load().unwrap(), None);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "nothing is left beside it");
    }

    #[tokio::test]
    async fn a_write_that_fails_leaves_what_was_kept() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        let (keeper, file) = (state.reservations("1"), state.reservations_file("1"));
        keeper.save(vec![1]).await.unwrap();
        // What is written beside the file cannot be created where a directory is.
        let beside = file.with_extension("new");
        fs::create_dir(&beside).unwrap();
        keeper.save(vec![2]).await.unwrap_err();
        assert_eq!(keeper.load().unwrap(), Some(vec![1]));
        fs::remove_dir(&beside).unwrap();
        keeper.save(vec![2]).await.unwrap();
        assert_eq!(keeper.load().unwrap(), Some(vec![2]));
    }

    #[test]
    fn replacement_whose_directory_cannot_be_synchronised_is_undone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.reservations");
        let fails = |_: &Path| Err(io::Error::other("broken"));
        replace_synced(&path, &[1], fails).unwrap_err();
        assert!(!path.exists());
        replace(&path, &[1]).unwrap();
        replace_synced(&path, &[2], fails).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), [1]);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_nothing() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        fs::create_dir(state.reservations_file("1")).unwrap();
        state.reservations("1").load().unwrap_err();
    }

    #[tokio::test]
    async fn what_an_earlier_release_kept_for_a_unit_is_adopted_once() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        let kept = |serial: &str| state.reservations(serial).load().unwrap();
        let old = home.path().join(format!("{TARGET}.0.reservations"));
        state.adopt(TARGET, 0, "1", true).unwrap();
        assert_eq!(kept("1"), None);
        fs::write(&old, [7]).unwrap();
        state.adopt(TARGET, 0, "1", true).unwrap();
        assert!(kept("1") == Some(vec![7]) && !old.exists());
        // Those of another volume that was the unit, and those that are older than its own.
        for (serial, are_its, left) in [("2", false, None), ("1", true, Some(vec![7]))] {
            fs::write(&old, [8]).unwrap();
            state.adopt(TARGET, 0, serial, are_its).unwrap();
            assert!(kept(serial) == left && !old.exists());
        }
    }
}
