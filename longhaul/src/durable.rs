//! Files that survive a loss of power.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use tempfile::NamedTempFile;

/// How long another process is waited for that has locked a file: it does so for a few writes.
const LOCKED_WITHIN: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Locks the file at `path`, made if it is missing, until what is returned is dropped: for whoever reads another file, changes it and
/// replaces it. Only its owner may open it, so that nobody else can keep him out. Blocks.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    let lock = options.open(path)?;
    let deadline = Instant::now() + LOCKED_WITHIN;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(LOCK_POLL),
            Err(TryLockError::WouldBlock) => {
                let why = "another process has locked it, and does not let go";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Err(TryLockError::Error(why)) => return Err(why),
        }
    }
}

/// Makes the name of the file at `path` stable, as it was made or changed: its bytes alone are not enough to find them
/// again after a loss of power.
pub(crate) fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

/// Makes the directory at `path`, and those above it that are missing, with these permissions. Their names are stable
/// when this returns, so that a file in them is found again after a loss of power.
pub(crate) fn make_directories(path: &Path, mode: u32) -> io::Result<()> {
    make_directories_synced(path, mode, &mut sync_directory_of)
}

fn make_directories_synced(
    path: &Path,
    mode: u32,
    sync: &mut impl FnMut(&Path) -> io::Result<()>,
) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_directories_synced(parent, mode, sync)?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        // Another process has just made it, and need not have synchronised it.
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        Err(_) if path.is_symlink() && !path.exists() => {
            let why = "it is a symbolic link to what is not there";
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        made => made?,
    }
    sync(path).inspect_err(|_| {
        // The next call would take it for one that is stable. It stays only if somebody else uses it.
        let _ = fs::remove_dir(path);
    })
}

/// A new file in the directory of `path`, which only its owner may read, and which is gone unless it is kept.
pub(crate) fn new_beside(path: &Path) -> io::Result<NamedTempFile> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    NamedTempFile::new_in(directory.unwrap_or_else(|| Path::new(".")))
}

/// Puts a file with these bytes in the place of the one at `path`, with the owner and the permissions of that; a new one is its
/// owner's alone. At every moment there is the old file or the new one, whole, also after a loss of power.
pub(crate) fn replace_as_owned(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = new_beside(path)?;
    match path.metadata() {
        Ok(old) => keep_owner(file.as_file(), &old)?,
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        Err(why) => return Err(why),
    }
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync_directory_of(path)
}

/// An error if the file at `path`, which may be missing, could not be replaced so.
pub(crate) fn refuse_irreplaceable(path: &Path) -> io::Result<()> {
    let file = new_beside(path)?;
    let old = match path.metadata() {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        old => old?,
    };
    let unlike = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if !old.is_file() {
        return unlike("it is no regular file");
    }
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS)?;
    // rename(2): EBUSY and EPERM.
    if found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return unlike("it is mounted there by itself, as for a container: mount its directory");
    }
    if found.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND) {
        return unlike("it must not be changed: `lsattr` shows that");
    }
    keep_owner(file.as_file(), &old)
}

fn keep_owner(file: &File, old: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        fchown(file, Some(old.uid()), Some(old.gid()))?;
    }
    file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_synchronised_before_anything_is_made_in_it() {
        let home = tempfile::tempdir().unwrap();
        let place = |name: &str| home.path().join(name);
        let mut synced = Vec::new();
        let mut make = |path: &Path| {
            make_directories_synced(path, 0o700, &mut |made: &Path| {
                assert_eq!(fs::read_dir(made)?.count(), 0);
                synced.push(made.to_owned());
                Ok(())
            })
        };
        make(&place("a/b")).unwrap();
        make(&place("a/b/c")).unwrap();
        make(&place("a/b/c")).unwrap();
        assert_eq!(synced, ["a", "a/b", "a/b/c"].map(place));
    }

    #[test]
    fn directory_that_cannot_be_synchronised_is_not_left_behind() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b");
        let mut fails = |made: &Path| match made.ends_with("b") {
            true => Err(io::Error::other("broken")),
            false => Ok(()),
        };
        make_directories_synced(&path, 0o700, &mut fails).unwrap_err();
        assert!(home.path().join("a").is_dir() && !path.exists());
        make_directories(&path, 0o700).unwrap();
        assert!(path.is_dir());
    }

    /// Another user who may read the directory must not be able to keep its owner waiting.
    #[test]
    fn lock_file_is_its_owners_alone_and_can_be_taken_once_it_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = lock_file(&path).unwrap();
        assert_eq!(lock.metadata().unwrap().mode() & 0o777, 0o600);
        let other = File::open(&path).unwrap();
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(lock);
        other.try_lock().unwrap();
        drop(other);
        lock_file(&path).unwrap();
    }

    #[test]
    fn file_in_the_place_of_a_directory_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("a"), "").unwrap();
        make_directories(&home.path().join("a"), 0o700).unwrap_err();
        make_directories(&home.path().join("a/b"), 0o700).unwrap_err();
    }
}
