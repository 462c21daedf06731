//! The record as files of a directory that all gateways reach: one for each version.
//!
//! A version comes to be by a link of its name, which fails if the name is there: that compares and swaps without a lock,
//! which a gateway that is stopped could hold for ever. The newest version counts. Old ones are removed, the oldest first,
//! so that a gateway that was stopped in the middle of a change notices that the version it has read is gone.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use proto::cluster::{GatewayName, RECORD_MAX, Record, Sign, Signs, UNITS_MAX};
use tempfile::{NamedTempFile, TempPath};

use super::store::{RecordName, RecordStore};
use crate::printable::Shown as _;

/// How many versions stay.
const KEPT: u64 = 64;

const PREFIX: &str = "record-";

/// What the name of a gateway ends with in that of a new file. It is in none: that of another gateway may begin as this one's.
const NEW_END: char = '~';

/// How the names of files begin that tell when a gateway has looked.
const SEEN: &str = "seen-";

/// The length of a line with a weight.
const WEIGHT_LEN: u64 = 6;

/// The digits of a version in a name.
const DIGITS: usize = 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// How the names of new files begin before they are a version: they are this gateway's.
    new: String,
    /// The file whose time of change tells when this gateway has looked at the record last.
    seen: PathBuf,
}

impl Directory {
    /// The directory of a record in that at `path`, for this gateway. The latter has to be there: one that is made where a file
    /// system is not mounted would be another than that of the other gateways.
    pub(super) fn open(
        path: &Path,
        gateway: &GatewayName,
        record: RecordName<'_>,
    ) -> io::Result<Self> {
        let own = place(path, record);
        if own != path {
            make(&own)?;
            // With the record its directory must not be lost.
            File::open(path)?.sync_all()?;
        }
        let (path, new) = (own, format!("new-{gateway}{NEW_END}"));
        let seen = path.join(format!("{SEEN}{gateway}"));
        let directory = Self { path, new, seen };
        directory.remove_left()?;
        Ok(directory)
    }

    /// The same to be read only; `None` if nobody has made it yet.
    pub(super) fn look(path: &Path, record: RecordName<'_>) -> io::Result<Option<Self>> {
        fs::read_dir(path)?;
        let path = place(path, record);
        match fs::read_dir(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(why),
            Ok(_) => Ok(Some(Self { path, new: String::new(), seen: PathBuf::new() })),
        }
    }

    fn path(&self, version: u64) -> PathBuf {
        self.path.join(format!("{PREFIX}{version:0DIGITS$}"))
    }

    /// Removes what an earlier life of this gateway has left that was killed.
    fn remove_left(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(self.new.as_bytes()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// The versions that are there, in order.
    fn versions(&self) -> io::Result<Vec<u64>> {
        let mut versions = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let version = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let version = version.filter(|version| is_version(version));
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

    /// A file with these bytes that has no version yet. Where the file system is full the oldest version becomes it, whose
    /// space it has: the lease must not end because a volume has grown.
    fn new_file(&self, bytes: &[u8]) -> io::Result<NamedTempFile> {
        match self.empty_file().and_then(|file| written(file, bytes)) {
            Err(why) if is_full(&why) => written(self.oldest_file()?.ok_or(why)?, bytes),
            done => done,
        }
    }

    fn empty_file(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new().prefix(&self.new).tempfile_in(&self.path)
    }

    /// The oldest version, which is none any more. The newer ones that are kept say that it is old.
    fn oldest_file(&self) -> io::Result<Option<NamedTempFile>> {
        let versions = self.versions()?;
        let [oldest, _, ..] = *versions else { return Ok(None) };
        // A name of its own, which no other call of this gateway has.
        let new = self.path.join(format!("{}of-{oldest}", self.new));
        fs::rename(self.path(oldest), &new)?;
        let file = File::options().write(true).truncate(false).open(&new)?;
        // `link` goes by the number of its names, which one that was killed may have left at two.
        if file.metadata()?.nlink() > 1 {
            fs::remove_file(new)?;
            return Ok(None);
        }
        Ok(Some(NamedTempFile::from_parts(file, TempPath::try_from_path(new)?)))
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

/// Where a record is: no name of a group is that of something else which is there.
fn place(path: &Path, record: RecordName<'_>) -> PathBuf {
    match record {
        RecordName::Group(group) if group.is_default() => path.to_owned(),
        RecordName::Group(group) => path.join(format!("group-{group}")),
        RecordName::Membership => path.join("groups"),
    }
}

/// Makes a directory, unless another gateway has.
fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

/// The same file with these bytes, which are stable.
fn written(mut file: NamedTempFile, bytes: &[u8]) -> io::Result<NamedTempFile> {
    file.write_all(bytes)?;
    file.as_file().set_len(bytes.len() as u64)?;
    file.as_file().sync_all()?;
    Ok(file)
}

/// Only such a name is found again: other spellings of a number are none.
fn is_version(digits: &str) -> bool {
    digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit())
}

/// What a gateway shows by this file.
fn sign_at(path: &Path) -> io::Result<Sign> {
    let found = fs::symlink_metadata(path)?;
    let at = found.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    // Whether it runs shows all the same where the weight cannot be read.
    let weight = match found.is_file() {
        true => File::open(path).and_then(weight_in).unwrap_or(0),
        false => 0,
    };
    Ok(Sign { mark: at.as_nanos().to_be_bytes().to_vec(), weight })
}

/// 0 without a number: a release without weights leaves the file empty.
fn weight_in(file: impl Read) -> io::Result<u16> {
    let mut text = Vec::new();
    file.take(WEIGHT_LEN).read_to_end(&mut text)?;
    Ok(str::from_utf8(&text).ok().and_then(|text| text.trim_end().parse().ok()).unwrap_or(0))
}

fn is_full(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl RecordStore for Directory {
    fn read(&self) -> io::Result<Option<Record>> {
        let Some(newest) = self.versions()?.pop() else { return Ok(None) };
        let mut bytes = Vec::new();
        let path = self.path(newest);
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(io::Error::other(format!("{} is no file", path.shown())));
        }
        File::open(path)?.take(RECORD_MAX as u64 + 1).read_to_end(&mut bytes)?;
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
        let file = self.new_file(&bytes)?;
        if !self.link(file.path(), record.version)? {
            return Ok(false);
        }
        File::open(&self.path)?.sync_all()?;
        self.forget_before(record.version)?;
        Ok(true)
    }

    /// By the time of change of a file, whose content is written once: a full file system takes no more.
    fn show_presence(&self, weight: u16) -> io::Result<()> {
        let mut options = File::options();
        let file = options.create(true).read(true).write(true).truncate(false).open(&self.seen)?;
        file.set_modified(SystemTime::now())?;
        if weight_in(&file)? == weight {
            return Ok(());
        }
        // As long as any other, so that nobody reads a part.
        file.write_all_at(format!("{weight:05}\n").as_bytes(), 0)?;
        file.set_len(WEIGHT_LEN)
    }

    /// When each of them has looked last, by a clock of its own.
    fn others_seen(&self) -> io::Result<Signs> {
        let mut seen = Signs::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let gateway = name.to_str().and_then(|name| name.strip_prefix(SEEN)?.parse().ok());
            if let Some(gateway) = gateway.filter(|_| entry.path() != self.seen) {
                match sign_at(&entry.path()) {
                    Ok(sign) => _ = seen.insert(gateway, sign),
                    // One that is not there any more shows nothing.
                    Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                    Err(why) => return Err(why),
                }
            }
        }
        Ok(seen)
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
        let [one, two] = ["a", "b"].map(|name| directory(home.path(), name));
        assert_eq!(one.read().unwrap(), None);
        assert!(one.replace(&record(1, 1)).unwrap());
        assert!(!two.replace(&record(1, 2)).unwrap());
        assert_eq!(two.read().unwrap(), Some(record(1, 1)));
        assert!(two.replace(&record(2, 2)).unwrap());
        assert_eq!(one.read().unwrap(), Some(record(2, 2)));
    }

    fn directory(path: &Path, gateway: &str) -> Directory {
        of(path, gateway, "default").unwrap()
    }

    fn of(path: &Path, gateway: &str, group: &str) -> io::Result<Directory> {
        let group = group.parse().unwrap();
        Directory::open(path, &gateway.parse().unwrap(), RecordName::Group(&group))
    }

    #[test]
    fn each_group_has_a_record_of_its_own_and_the_default_one_that_of_before() {
        let home = tempfile::tempdir().unwrap();
        let [default, web, db] = ["default", "web", "record-00000000000000000009"]
            .map(|group| of(home.path(), "a", group).unwrap());
        assert!(default.replace(&record(1, 1)).unwrap());
        assert!(home.path().join(format!("record-{:020}", 1)).is_file());
        assert_eq!((web.read().unwrap(), db.read().unwrap()), (None, None));
        assert!(web.replace(&record(1, 2)).unwrap() && web.replace(&record(2, 3)).unwrap());
        let again = of(home.path(), "b", "web").unwrap();
        assert_eq!(again.read().unwrap(), Some(record(2, 3)));
        assert_eq!(default.read().unwrap(), Some(record(1, 1)));
        again.show_presence(0).unwrap();
        assert_eq!(
            (default.others_seen().unwrap().len(), web.others_seen().unwrap().len()),
            (0, 1)
        );
    }

    /// What a gateway wrote that was stopped for long, and takes the place of nothing.
    #[test]
    fn write_that_comes_long_after_its_version_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let store = directory(home.path(), "a");
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
        let store = directory(home.path(), "a");
        assert!(store.replace(&record(1, 1)).unwrap());
        fs::write(store.path(2), b"LHGW").unwrap();
        store.read().unwrap_err();
        fs::rename(store.path(1), store.path(2)).unwrap();
        store.read().unwrap_err();
    }

    #[test]
    fn gateway_that_looks_again_is_seen_by_others_and_not_by_itself() {
        let home = tempfile::tempdir().unwrap();
        let [one, two] = ["a", "b"].map(|name| directory(home.path(), name));
        one.show_presence(7).unwrap();
        assert_eq!(one.others_seen().unwrap().len(), 0);
        let before = two.others_seen().unwrap();
        assert_eq!(before.len(), 1);
        assert_eq!(before[&"a".parse().unwrap()].weight, 7);
        // With another configuration.
        one.show_presence(1000).unwrap();
        let after = two.others_seen().unwrap();
        assert_ne!(before, after);
        assert_eq!(after[&"a".parse().unwrap()].weight, 1000);
        // A release without weights leaves it empty.
        fs::write(home.path().join("seen-a"), "").unwrap();
        assert_eq!(two.others_seen().unwrap()[&"a".parse().unwrap()].weight, 0);
    }

    /// Beneath a file system that is not mounted there is another directory, or none.
    #[test]
    fn directory_that_is_not_there_is_not_made() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("record");
        for group in ["default", "web"] {
            assert_eq!(of(&path, "a", group).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert!(!path.exists());
        }
    }

    #[test]
    fn files_of_a_life_that_was_killed_are_removed_and_those_of_others_are_not() {
        let home = tempfile::tempdir().unwrap();
        for name in ["new-a~x1", "new-a-b~x1", "else"] {
            fs::write(home.path().join(name), "").unwrap();
        }
        directory(home.path(), "a");
        let left = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(
            left.collect::<std::collections::BTreeSet<_>>(),
            ["else", "new-a-b~x1"].map(Into::into).into()
        );
    }

    #[test]
    fn file_without_the_name_of_a_version_is_no_record() {
        let home = tempfile::tempdir().unwrap();
        let store = directory(home.path(), "a");
        assert!(store.replace(&record(1, 1)).unwrap());
        for name in ["record-99", "record-+0000000000000000009", "record-00000000000000000009.bak"]
        {
            fs::write(home.path().join(name), "").unwrap();
        }
        assert_eq!(store.read().unwrap(), Some(record(1, 1)));
        // A pipe in its place must not hold up whoever reads it.
        let pipe = store.path(2);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        store.read().unwrap_err();
    }

    /// A file system of one mebibyte, which is unmounted at the end.
    struct SmallFileSystem(tempfile::TempDir);

    impl SmallFileSystem {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let mut mount = std::process::Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=1M", "tmpfs"]).arg(home.path());
            assert!(mount.status().unwrap().success());
            Self(home)
        }
    }

    impl Drop for SmallFileSystem {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg(self.0.path()).status();
        }
    }

    #[test]
    fn record_is_replaced_where_the_file_system_is_full() {
        let small = SmallFileSystem::new();
        let store = directory(small.0.path(), "a");
        for version in 1..=3 {
            assert!(store.replace(&record(version, 1)).unwrap());
        }
        let full = fs::write(small.0.path().join("volume"), vec![1; 2 << 20]).unwrap_err();
        assert!(is_full(&full));
        for version in 4..=3 * KEPT {
            assert!(store.replace(&record(version, 1)).unwrap());
            assert_eq!(store.read().unwrap(), Some(record(version, 1)));
        }
        assert!(!store.replace(&record(5, 9)).unwrap(), "it is old");
        assert_eq!(store.read().unwrap(), Some(record(3 * KEPT, 1)));
    }

    /// A gateway was killed between two names of one file. The second name tells a link that was made from one that was not.
    #[test]
    fn version_that_has_another_name_still_does_not_become_a_new_one() {
        let small = SmallFileSystem::new();
        let store = directory(small.0.path(), "a");
        for version in 1..=3 {
            assert!(store.replace(&record(version, 1)).unwrap());
        }
        fs::hard_link(store.path(1), small.0.path().join("new-b~left")).unwrap();
        fs::write(small.0.path().join("volume"), vec![1; 2 << 20]).unwrap_err();
        let replaced = store.replace(&record(3, 9));
        assert!(!matches!(replaced, Ok(true)), "another one is there");
        assert_eq!(store.read().unwrap(), Some(record(3, 1)));
    }
}
