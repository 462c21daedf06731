//! Files and directories brought here. What the file system says is believed of contents and never of places: every name goes
//! into a directory that was made, or opened without following a symbolic link, one level up.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps, fchmod, ftruncate, futimens,
    mkdirat, openat, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::{Errno, pwrite};

use super::error::{FilesError, Reason};
use super::file_system::{Entry, FileSystem, Kind};
use super::name::Name;
use crate::printable::Shown as _;

/// Directories within one another; each holds a descriptor, of which a program has 1024. Deeper ones lead back to themselves,
/// in all likelihood, and nothing that is brought of them is worth having.
const DEPTH_MAX: usize = 256;

/// A directory takes a block, of which this is the smallest: there are no more directories than such blocks.
const DIRECTORY_SIZE_MIN: u64 = 1024;

/// Of a file so much is read at once, and so much written; pieces of zeroes are left out.
const READ: usize = 1 << 20;
const PIECE: usize = 64 << 10;

/// Permissions that are kept: not those that make programs run as somebody else.
const MODE_KEPT: u16 = 0o777;

/// Where to.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    /// The path that the file or directory gets.
    pub(crate) path: PathBuf,
    /// Files that are there are replaced, and directories filled up.
    pub(crate) force: bool,
}

/// Why it ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExtractError {
    /// The file system.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Something is there already.
    #[error("{} is there already", .0.shown())]
    Exists(PathBuf),
    /// This machine.
    #[error("cannot write {}", .0.shown())]
    Destination(PathBuf, #[source] io::Error),
}

/// What was brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extracted {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) links: u64,
    /// Bytes of files, with their holes.
    pub(crate) bytes: u64,
    /// Devices, pipes and sockets, which were left out.
    pub(crate) skipped: u64,
    /// What could not be read.
    pub(crate) failed: u64,
}

/// What happens meanwhile.
pub(crate) enum Event<'e> {
    /// So much was done.
    Done(Extracted),
    /// This could not be read; the others are.
    Failed(&'e FilesError),
}

/// Brings what is at `path`, and all below it, to `destination`.
pub(crate) fn extract(
    fs: &FileSystem,
    path: &[u8],
    destination: &Destination,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Extracted, ExtractError> {
    let (entry, found) = fs.find(path)?;
    if let Some(special) = entry.kind.special() {
        return Err(FilesError::Path(entry.name, Reason::Special(special)).into());
    }
    let to = &destination.path;
    let failed = |why: Errno| ExtractError::Destination(to.clone(), why.into());
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or_else(|| Path::new("."));
    let fd = openat(CWD, parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let parent = Directory { fd: fd.map_err(failed)?, path: parent.to_owned() };
    let name = to.file_name().ok_or_else(|| failed(Errno::EXIST))?;
    let is_there = statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    if is_there && !destination.force {
        return Err(ExtractError::Exists(to.clone()));
    }
    let mut work = Extraction { fs, force: destination.force, tell, done: Extracted::default() };
    work.bring(&parent, name, &found, &entry, 0)?;
    Ok(work.done)
}

/// A directory here.
struct Directory {
    fd: OwnedFd,
    /// For messages.
    path: PathBuf,
}

impl Directory {
    fn failed(&self, name: &OsStr, why: impl Into<io::Error>) -> ExtractError {
        ExtractError::Destination(self.path.join(name), why.into())
    }
}

struct Extraction<'e> {
    fs: &'e FileSystem,
    force: bool,
    tell: &'e mut dyn FnMut(Event<'_>),
    done: Extracted,
}

impl Extraction<'_> {
    fn bring(
        &mut self,
        parent: &Directory,
        name: &OsStr,
        path: &Name,
        entry: &Entry,
        depth: usize,
    ) -> Result<(), ExtractError> {
        match entry.kind {
            Kind::Directory => self.directory(parent, name, path, entry, depth)?,
            Kind::File => {
                self.place(parent, name, path, |work, temporary| {
                    work.file(parent, temporary, path, entry)
                })?;
                self.done.files += 1;
            }
            Kind::SymbolicLink => {
                let target = entry.target.as_ref().and_then(|target| CString::new(&*target.0).ok());
                let target = target.unwrap_or_default();
                self.place(parent, name, path, |_, temporary| {
                    symlinkat(&*target, &parent.fd, temporary)
                        .map_err(|why| parent.failed(temporary, why))
                })?;
                self.done.links += 1;
            }
            _ => self.done.skipped += 1,
        }
        (self.tell)(Event::Done(self.done));
        Ok(())
    }

    fn directory(
        &mut self,
        parent: &Directory,
        name: &OsStr,
        path: &Name,
        entry: &Entry,
        depth: usize,
    ) -> Result<(), ExtractError> {
        self.done.directories += 1;
        if depth == DEPTH_MAX || self.done.directories > self.fs.size / DIRECTORY_SIZE_MIN {
            return Err(FilesError::Loop.into());
        }
        let own = self.make(parent, name, path)?;
        let mut unread = Vec::new();
        let listed = self.fs.list(path, &mut |why| unread.push(why));
        unread.into_iter().for_each(|why| self.failed(&why));
        for child in listed? {
            let below = path.join(&child.name.0);
            let brought = match file_name(&child.name) {
                Some(name) => self.bring(&own, name, &below, &child, depth + 1),
                None => {
                    let reason = Reason::Limit("its name cannot be that of a file");
                    Err(FilesError::Path(below.clone(), reason).into())
                }
            };
            match brought {
                Err(ExtractError::Files(why)) if why.is_of_one_path() => self.failed(&why),
                brought => brought?,
            }
        }
        finish(&own.fd, entry);
        Ok(())
    }

    /// Makes a directory, or opens the one that is there.
    fn make(
        &self,
        parent: &Directory,
        name: &OsStr,
        path: &Name,
    ) -> Result<Directory, ExtractError> {
        match mkdirat(&parent.fd, name, Mode::RWXU) {
            Err(Errno::EXIST) if !self.force => return Err(taken(path)),
            Err(Errno::EXIST) => {}
            made => made.map_err(|why| parent.failed(name, why))?,
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&parent.fd, name, flags, Mode::empty());
        let fd = fd.map_err(|why| parent.failed(name, why))?;
        Ok(Directory { fd, path: parent.path.join(name) })
    }

    /// Has `make` make something under a temporary name, which then gets its own.
    fn place(
        &mut self,
        parent: &Directory,
        name: &OsStr,
        path: &Name,
        make: impl FnOnce(&mut Self, &OsStr) -> Result<(), ExtractError>,
    ) -> Result<(), ExtractError> {
        let random = getrandom::u64().map_err(|why| parent.failed(name, io::Error::other(why)))?;
        let temporary = format!(".longhaul-{random:016x}");
        let temporary: &OsStr = temporary.as_ref();
        let placed = make(self, temporary).and_then(|()| {
            let renamed = match self.force {
                true => renameat(&parent.fd, temporary, &parent.fd, name),
                false => rename_to_new(parent, temporary, name),
            };
            renamed.map_err(|why| match why {
                Errno::EXIST if !self.force => taken(path),
                why => parent.failed(name, why),
            })
        });
        if placed.is_err() {
            let _ = unlinkat(&parent.fd, temporary, AtFlags::empty());
        }
        placed
    }

    fn file(
        &mut self,
        parent: &Directory,
        name: &OsStr,
        path: &Name,
        entry: &Entry,
    ) -> Result<(), ExtractError> {
        let failed = |why: Errno| parent.failed(name, why);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let to = openat(&parent.fd, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        ftruncate(&to, entry.size).map_err(failed)?;
        let mut from = self.fs.open(path)?;
        let (mut at, mut written, before) = (0, 0, self.done);
        let mut buffer = vec![0; READ.min(entry.size.try_into().unwrap_or(READ))];
        loop {
            let len = self.fs.fill(path, &mut from, &mut buffer)?;
            if len == 0 {
                break;
            }
            for piece in buffer[..len].chunks(PIECE) {
                if piece.iter().any(|byte| *byte != 0) {
                    write_at(&to, piece, at).map_err(failed)?;
                    written += piece.len() as u64;
                }
                at += piece.len() as u64;
            }
            if written > self.fs.size.saturating_add(PIECE as u64) {
                let reason = Reason::Limit("it claims more data than the volume has");
                return Err(FilesError::Path(path.clone(), reason).into());
            }
            self.done.bytes = before.bytes + at;
            (self.tell)(Event::Done(self.done));
        }
        finish(&to, entry);
        Ok(())
    }

    fn failed(&mut self, why: &FilesError) {
        self.done.failed += 1;
        (self.tell)(Event::Failed(why));
    }
}

/// What is there already came from an entry of the same name.
fn taken(path: &Name) -> ExtractError {
    let reason = Reason::Limit("another entry of its directory has the same name");
    FilesError::Path(path.clone(), reason).into()
}

fn rename_to_new(parent: &Directory, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    match renameat_with(&parent.fd, from, &parent.fd, to, RenameFlags::NOREPLACE) {
        // Not every file system can; a link does not replace a file either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(&parent.fd, from, &parent.fd, to, AtFlags::empty())?;
            unlinkat(&parent.fd, from, AtFlags::empty())
        }
        renamed => renamed,
    }
}

fn write_at(to: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(to, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(len) => (at, bytes) = (at + len as u64, &bytes[len..]),
            Err(Errno::INTR) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

/// Gives it its permissions and the time of its last change, as far as this file system has them.
fn finish(fd: &OwnedFd, entry: &Entry) {
    let (seconds, nanoseconds) = entry.modified;
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds % 1_000_000_000) };
    let _ = futimens(fd.as_fd(), &Timestamps { last_access: time, last_modification: time });
    let _ = fchmod(fd, Mode::from_raw_mode((entry.mode & MODE_KEPT).into()));
}

/// The name of a file here.
fn file_name(name: &Name) -> Option<&OsStr> {
    let fits = !name.0.iter().any(|byte| matches!(byte, b'/' | 0));
    let fits = fits && !matches!(&name.0[..], b"" | b"." | b"..");
    fits.then(|| OsStr::from_bytes(&name.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_leads_elsewhere_is_no_file_name() {
        for name in ["", ".", "..", "/", "a/b", "../a", "a\0b"] {
            assert!(file_name(&Name(name.into())).is_none(), "{name:?}");
        }
        for name in ["a", "...", ".a", "-", "a b\n"] {
            assert_eq!(file_name(&Name(name.into())), Some(OsStr::new(name)));
        }
    }
}
