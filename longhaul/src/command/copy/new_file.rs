//! The file that a copy makes: it has its name only once it is whole.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::durable::sync_directory_of;
use crate::failure::{Failure, OrFail, Outcome};
use crate::store::file::{self, FileOptions, OpenError};
use crate::uri::Uri;

/// A file that does not exist yet, and what is written until it does.
pub(super) struct NewFile {
    path: PathBuf,
    part: PathBuf,
}

impl NewFile {
    /// The file that `uri` names, if it must be made. What an earlier copy has left of it goes.
    pub(super) fn of(uri: &Uri) -> Outcome<Option<Self>> {
        let what = || format!("cannot copy to {uri}");
        let Uri::File(path) = uri else { return Ok(None) };
        let is_directory = path.as_os_str().as_bytes().ends_with(b"/");
        let (false, false, Some(name)) = (path.exists(), is_directory, path.file_name()) else {
            return Ok(None);
        };
        if path.is_symlink() {
            let why = "it is a symbolic link to what does not exist";
            return Err(Failure::new(what()).because(why).hint("name the file itself"));
        }
        let mut name = name.to_owned();
        name.push(".part");
        let part = path.with_file_name(name);
        clear(&part).or_fail(what)?;
        Ok(Some(Self { path: path.clone(), part }))
    }

    /// What it is called while it is written.
    pub(super) fn part(&self) -> &Path {
        &self.part
    }

    /// Gives it its name, unless another file has got that meanwhile.
    pub(super) fn finish(&self) -> io::Result<()> {
        match renameat_with(CWD, &self.part, CWD, &self.path, RenameFlags::NOREPLACE) {
            // Not every file system can; a link does not replace a file either.
            Err(Errno::INVAL | Errno::NOSYS) => {
                fs::hard_link(&self.part, &self.path)?;
                fs::remove_file(&self.part)?;
            }
            renamed => renamed?,
        }
        sync_directory_of(&self.path)
    }
}

/// Removes what a copy that was cut short has left, but not what another one is writing.
fn clear(part: &Path) -> Result<(), OpenError> {
    if !part.is_file() {
        return Ok(());
    }
    let options =
        FileOptions { read_only: true, whole_blocks_only: true, ..FileOptions::default() };
    match file::open(part, &options) {
        Err(why @ (OpenError::InUse | OpenError::LockedBy(_) | OpenError::UsedBySystem(_))) => {
            Err(why)
        }
        _ => Ok(fs::remove_file(part)?),
    }
}
