//! Which file something is, wherever it is moved.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

/// Numbers of inodes are given again, so that the birth tells too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileId {
    pub(super) device: u64,
    inode: u64,
    /// In nanoseconds of the Unix epoch.
    born: u64,
}

impl FileId {
    /// `None` on a file system that does not note births.
    pub(super) fn of(found: &Metadata) -> Option<Self> {
        let born = found.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let born = u64::try_from(born.as_nanos()).ok()?;
        Some(Self { device: found.dev(), inode: found.ino(), born })
    }

    /// Whether it is the same file, or one of a copy of the file system.
    pub(super) fn resembles(self, other: Self) -> bool {
        (self.inode, self.born) == (other.inode, other.born)
    }
}

impl fmt::Display for FileId {
    /// Without the device, which may have another number in each run of a machine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} born {})", self.inode, self.born)
    }
}
