//! A file that is made: it has its name only once it is whole.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::durable::sync_directory_of;
use crate::failure::{Failure, OrFail, Outcome};
use crate::printable::{Quoted as _, Shown as _};
use crate::uri::Uri;

/// The bytes of a name that are kept in the temporary one: a file name has at most 255.
const NAME_KEPT: usize = 200;

/// A file that does not exist yet, and the temporary one that is written until it does.
pub(super) struct NewFile {
    path: PathBuf,
    part: PathBuf,
}

impl NewFile {
    /// The file that `uri` names, if it must be made. Nothing is made yet. `from` is what will be copied to it.
    pub(super) fn of(uri: &Uri, from: &Uri) -> Outcome<Option<Self>> {
        let Some(path) = uri.file() else { return Ok(None) };
        refuse_directory(path, from).map_err(|why| why.within(&format!("cannot copy to {uri}")))?;
        let is_directory = path.as_os_str().as_bytes().ends_with(b"/");
        if path.exists() || is_directory || path.file_name().is_none() {
            return Ok(None);
        }
        Self::at(path).map(Some).map_err(|why| why.within(&format!("cannot copy to {uri}")))
    }

    /// The file at `path`, where none is.
    pub(super) fn at(path: &Path) -> Outcome<Self> {
        if path.is_symlink() {
            return Err(Failure::new("it is a symbolic link to what does not exist")
                .hint("name the file itself"));
        }
        let name = path.file_name().ok_or_else(|| Failure::new("it names no file"))?;
        let part = path.with_file_name(temporary_name(name)?);
        Ok(Self { path: path.to_owned(), part })
    }

    /// The path of the temporary file.
    pub(super) fn part(&self) -> &Path {
        &self.part
    }

    /// What has become of it in a copy that failed; `copied` is what it holds.
    pub(super) fn left(&self, copied: &str) -> String {
        let part = self.part.shown();
        match self.part.exists() {
            true => format!("the destination was not made; {copied} is in {part}"),
            false => format!("the destination was not made; {copied} was in {part}, which is gone"),
        }
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

/// Refuses what names a directory, or a file in none.
fn refuse_directory(path: &Path, from: &Uri) -> Outcome {
    let name = from.path().and_then(Path::file_name).unwrap_or_else(|| OsStr::new("disk.img"));
    let inside = path.join(name);
    let inside = inside.shown();
    if path.is_dir() {
        let what = Failure::new("it is a directory");
        return Err(what.hint(format!("name the file in it: {inside}")));
    }
    if path.as_os_str().as_bytes().ends_with(b"/") && !path.exists() {
        let what =
            Failure::new("it ends with a slash, as directories do, and there is none of this name");
        return Err(what.hint(format!(
            "`mkdir -p {}` makes it; then name the file in it: {inside}",
            path.quoted()
        )));
    }
    if path.exists() { Ok(()) } else { refuse_missing_directory(path) }
}

/// Refuses a file in a directory that does not exist.
pub(super) fn refuse_missing_directory(path: &Path) -> Outcome {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match parent.filter(|parent| !parent.exists()) {
        Some(parent) => {
            let (shown, quoted) = (parent.shown(), parent.quoted());
            let what = Failure::new(format!("the directory {shown} does not exist"));
            Err(what.hint(format!("`mkdir -p {quoted}` makes it, or the path is wrong")))
        }
        None => Ok(()),
    }
}

/// A name for the temporary file of `name`, which no other file has: what an earlier copy left may be all there is of
/// a failing disk, and `NAME.part` may be somebody else's.
fn temporary_name(name: &OsStr) -> Outcome<OsString> {
    let random = getrandom::u32().or_fail(|| "cannot get random bytes".to_owned())?;
    let kept = &name.as_bytes()[..name.len().min(NAME_KEPT)];
    let mut temporary = OsStr::from_bytes(kept).to_owned();
    temporary.push(format!(".part-{random:08x}"));
    Ok(temporary)
}
