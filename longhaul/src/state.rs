//! The state directory: the little that a server must remember through a loss of power.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Access;
use sha2::{Digest as _, Sha256};

use crate::durable::{make_directories, sync_directory_of};
use crate::printable::Shown as _;
use crate::regular_file::read_regular;
use crate::target::lun::{ReservationStorage, Waiting};

/// The magic numbers of file systems in which a program makes no files, though it may seem to be allowed to (statfs(2)): proc,
/// sysfs, cgroup, cgroup2, debugfs, tracefs, securityfs, devpts.
const HOLDS_NO_FILES: [i64; 8] =
    [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0x1cd1];

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

    /// Whether there could be one at `path`, as far as that shows without anything being made.
    pub fn could_be(path: &Path) -> io::Result<()> {
        let nearest = path.ancestors().find_map(|at| Some((at, fs::metadata(at).ok()?)));
        let (nearest, found) = match nearest {
            // Of a relative path.
            None => (Path::new("."), fs::metadata(".")?),
            Some(nearest) => nearest,
        };
        if !found.is_dir() {
            let what = format!("{} is not a directory", nearest.shown());
            return Err(io::Error::new(io::ErrorKind::NotADirectory, what));
        }
        if HOLDS_NO_FILES.contains(&rustix::fs::statfs(nearest)?.f_type) {
            let what = format!(
                "{} is in a file system of the kernel, where no files are made",
                nearest.shown()
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        rustix::fs::access(nearest, Access::WRITE_OK | Access::EXEC_OK)?;
        Ok(())
    }

    /// What keeps the reservations of unit `lun` of `target`, an iSCSI name, as long as it is the volume with this identity:
    /// one file.
    #[must_use]
    pub fn reservations(
        &self,
        target: &str,
        lun: u16,
        identity: &str,
    ) -> Arc<dyn ReservationStorage> {
        Arc::new(ReservationFile(self.reservations_file(target, lun, identity)))
    }

    /// Nobody has reserved the unit as another volume than those with these `identities` any more.
    pub fn forget_others(&self, target: &str, lun: u16, identities: &[String]) -> io::Result<()> {
        let keep = identities.iter().map(|identity| self.reservations_file(target, lun, identity));
        let keep: Vec<_> = keep.collect();
        let unit = unit_name(target, lun);
        for kept in fs::read_dir(&self.0)? {
            let kept = kept?.path();
            let name = kept.file_name().unwrap_or_default().to_string_lossy();
            let is_its = name.starts_with(&unit) && name.ends_with(".reservations");
            if is_its && !keep.contains(&kept) {
                fs::remove_file(&kept)?;
            }
        }
        Ok(())
    }

    /// Where they are kept.
    #[must_use]
    pub fn reservations_file(&self, target: &str, lun: u16, identity: &str) -> PathBuf {
        self.0.join(format!("{}{identity}.reservations", unit_name(target, lun)))
    }
}

/// What the names of all files of a unit begin with.
fn unit_name(target: &str, lun: u16) -> String {
    format!("{}-", file_name(format!("{target}/{lun}").as_bytes()))
}

/// The name of a file for what is called `name`, which may be longer than those of files and hold slashes: as many digits of
/// its SHA-256 as tell all names apart.
pub(crate) fn file_name(name: &[u8]) -> String {
    Sha256::digest(name)[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file that is replaced as a whole.
#[derive(Debug)]
struct ReservationFile(PathBuf);

impl ReservationStorage for ReservationFile {
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
    async fn last_stored_image_is_there_after_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b");
        let state = StateDir::open(&path).unwrap();
        let keeper = state.reservations(TARGET, 0, "1");
        assert_eq!(keeper.load().unwrap(), None);
        keeper.save(vec![1; 100]).await.unwrap();
        keeper.save(vec![2; 10]).await.unwrap();
        drop((state, keeper));
        let state = StateDir::open(&path).unwrap();
        assert_eq!(state.reservations(TARGET, 0, "1").load().unwrap(), Some(vec![2; 10]));
        assert_eq!(state.reservations(TARGET, 0, "2").load().unwrap(), None);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "nothing is left beside it");
    }

    #[tokio::test]
    async fn a_write_that_fails_leaves_what_was_kept() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        let (keeper, file) =
            (state.reservations(TARGET, 0, "1"), state.reservations_file(TARGET, 0, "1"));
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
    fn unreadable_image_is_not_taken_for_an_empty_one() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        fs::create_dir(state.reservations_file(TARGET, 0, "1")).unwrap();
        state.reservations(TARGET, 0, "1").load().unwrap_err();
    }

    #[tokio::test]
    async fn stored_reservations_of_one_volume_are_not_those_of_another() {
        let home = tempfile::tempdir().unwrap();
        let state = StateDir::open(home.path()).unwrap();
        let all = [
            (TARGET, 0, "1"),
            (TARGET, 0, "2"),
            (TARGET, 1, "1"),
            ("iqn.2026-11.dev.longhaul:u", 0, "1"),
        ];
        for (n, (target, lun, identity)) in (0..).zip(all) {
            state.reservations(target, lun, identity).save(vec![n]).await.unwrap();
        }
        let kept = || {
            all.map(|(target, lun, identity)| {
                state.reservations(target, lun, identity).load().unwrap()
            })
        };
        assert_eq!(kept(), [Some(vec![0]), Some(vec![1]), Some(vec![2]), Some(vec![3])]);
        state.forget_others(TARGET, 0, &["2".to_owned()]).unwrap();
        assert_eq!(kept(), [None, Some(vec![1]), Some(vec![2]), Some(vec![3])]);
    }
}
