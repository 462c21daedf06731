//! The record as files of a directory that all gateways reach: one for each version.
//!
//! A version comes to be by a link of its name, which fails if the name is there: that compares and swaps without a lock,
//! which a gateway that is stopped could hold for ever. The newest version counts. Old ones are removed, the oldest first,
//! so that a gateway that was stopped in the middle of a change notices that the version it has read is gone.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proto::cluster::{RECORD_MAX, Record, UNITS_MAX};

use super::store::RecordStore;
use crate::durable::make_directories;

/// How many versions stay.
const KEPT: u64 = 64;

const PREFIX: &str = "record-";

/// See the module.
#[derive(Debug)]
pub(super) struct Directory(PathBuf);

impl Directory {
    /// The directory at `path`, made if it is not there.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        make_directories(path, 0o777)?;
        Ok(Self(path.to_owned()))
    }

    fn path(&self, version: u64) -> PathBuf {
        self.0.join(format!("{PREFIX}{version:020}"))
    }

    /// The versions that are there, in order.
    fn versions(&self) -> io::Result<Vec<u64>> {
        let mut versions = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            versions.extend(version.and_then(|version| version.parse::<u64>().ok()));
        }
        versions.sort_unstable();
        Ok(versions)
    }

    /// Makes `version` a name of the file at `new`; `false` if it is one of another file.
    fn link(&self, new: &Path, version: u64) -> io::Result<bool> {
        match fs::hard_link(new, self.path(version)) {
            Ok(()) => {}
            // The server of a network file system may have done it before and its answer was lost.
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {
                return Ok(fs::metadata(new)?.nlink() > 1);
            }
            Err(why) => return Err(why),
        }
        if version > 1 && !self.path(version - 1).try_exists()? {
            // This name was there, and is gone since it is old.
            fs::remove_file(self.path(version))?;
            return Ok(false);
        }
        Ok(true)
    }

    fn forget_before(&self, newest: u64) -> io::Result<()> {
        let old = self.versions()?.into_iter().filter(|version| version + KEPT <= newest);
        for version in old {
            match fs::remove_file(self.path(version)) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
                _ => {}
            }
        }
        Ok(())
    }
}

impl RecordStore for Directory {
    fn read(&self) -> io::Result<Option<Record>> {
        let Some(newest) = self.versions()?.pop() else { return Ok(None) };
        let mut bytes = Vec::new();
        File::open(self.path(newest))?.take(RECORD_MAX as u64 + 1).read_to_end(&mut bytes)?;
        let record = Record::decode(&bytes).map_err(io::Error::other)?;
        match record.version == newest {
            true => Ok(Some(record)),
            false => {
                Err(io::Error::other("the record of the cluster has the name of another version"))
            }
        }
    }

    fn replace(&self, record: &Record) -> io::Result<bool> {
        let bytes = record.encode();
        if bytes.len() > RECORD_MAX || record.units.len() > UNITS_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut file = tempfile::Builder::new().prefix("new-").tempfile_in(&self.0)?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        if !self.link(file.path(), record.version)? {
            return Ok(false);
        }
        File::open(&self.0)?.sync_all()?;
        self.forget_before(record.version)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(version: u64, epoch: u64) -> Record {
        Record { version, epoch, ..Record::default() }
    }

    #[test]
    fn of_two_that_replace_one_version_the_second_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let [one, two] = [(); 2].map(|()| Directory::open(home.path()).unwrap());
        assert_eq!(one.read().unwrap(), None);
        assert!(one.replace(&record(1, 1)).unwrap());
        assert!(!two.replace(&record(1, 2)).unwrap());
        assert_eq!(two.read().unwrap(), Some(record(1, 1)));
        assert!(two.replace(&record(2, 2)).unwrap());
        assert_eq!(one.read().unwrap(), Some(record(2, 2)));
    }

    /// What a gateway wrote that was stopped for long, and takes the place of nothing.
    #[test]
    fn write_that_comes_long_after_its_version_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let store = Directory::open(home.path()).unwrap();
        for version in 1..=2 * KEPT {
            assert!(store.replace(&record(version, 1)).unwrap());
        }
        assert_eq!(store.versions().unwrap().len(), KEPT as usize);
        assert!(!store.replace(&record(5, 9)).unwrap());
        assert_eq!(store.read().unwrap(), Some(record(2 * KEPT, 1)));
        assert_eq!(store.versions().unwrap().len(), KEPT as usize, "nothing is left of it");
    }

    #[test]
    fn damaged_record_is_not_taken_for_none() {
        let home = tempfile::tempdir().unwrap();
        let store = Directory::open(home.path()).unwrap();
        assert!(store.replace(&record(1, 1)).unwrap());
        fs::write(store.path(2), b"LHGW").unwrap();
        store.read().unwrap_err();
        fs::rename(store.path(1), store.path(2)).unwrap();
        store.read().unwrap_err();
    }
}
