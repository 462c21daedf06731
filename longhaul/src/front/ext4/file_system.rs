//! What is in a file system: directories, files, symbolic links.

use ext4_view::{Ext4, Ext4Error, File, FileType, Metadata, Path};
use serde::Serialize;

use super::error::{FilesError, Reason};
use super::name::Name;
use super::reader::VolumeReader;
use super::superblock::Superblock;
use crate::stop::Stop;

/// Symbolic links that one path may lead through, as in Linux (MAXSYMLINKS).
const LINKS_MAX: usize = 40;

/// The bytes of a path, and of the target of a symbolic link, as in Linux (PATH_MAX).
const PATH_MAX: usize = 4096;

/// The bytes of a name (EXT4_NAME_LEN).
const NAME_MAX: usize = 255;

/// The entries of a directory that are listed. A damaged one can claim any number.
const ENTRIES_MAX: usize = 4_000_000;

/// A file system.
pub(crate) struct FileSystem {
    fs: Ext4,
    pub(super) size: u64,
    pub(super) stop: Stop,
}

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    File,
    Directory,
    SymbolicLink,
    BlockDevice,
    CharacterDevice,
    Pipe,
    Socket,
}

impl Kind {
    const fn of(kind: FileType) -> Self {
        match kind {
            FileType::Regular => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::SymbolicLink,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::CharacterDevice => Self::CharacterDevice,
            FileType::Fifo => Self::Pipe,
            FileType::Socket => Self::Socket,
        }
    }

    /// Its name, of those that have no contents.
    pub(super) const fn special(self) -> Option<&'static str> {
        match self {
            Self::File | Self::Directory | Self::SymbolicLink => None,
            Self::BlockDevice => Some("block device"),
            Self::CharacterDevice => Some("character device"),
            Self::Pipe => Some("pipe"),
            Self::Socket => Some("socket"),
        }
    }
}

/// A file, directory or whatever else has a name.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Its own name; of one that was asked for by its path, that.
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    /// In bytes.
    pub(crate) size: u64,
    /// Permissions, with the bits for set-uid, set-gid and sticky.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The last change of its contents, in seconds of the Unix epoch, and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// Where it leads, if it is a symbolic link.
    pub(crate) target: Option<Name>,
}

impl Entry {
    fn new(name: Name, metadata: &Metadata) -> Self {
        let modified = metadata.modified();
        Self {
            name,
            kind: Kind::of(metadata.file_type()),
            size: metadata.len(),
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            modified: (modified.seconds(), modified.nanoseconds()),
            target: None,
        }
    }
}

impl FileSystem {
    pub(super) fn load(
        reader: VolumeReader,
        Superblock { size }: Superblock,
        stop: Stop,
    ) -> Result<Self, FilesError> {
        match Ext4::load(Box::new(reader)) {
            Ok(fs) => Ok(Self { fs, size, stop }),
            Err(Ext4Error::Io(why)) => Err(match why.downcast::<FilesError>() {
                Ok(own) => *own,
                Err(why) => FilesError::Load(Ext4Error::Io(why)),
            }),
            Err(why) => Err(FilesError::Load(why)),
        }
    }

    /// What is at `path`, and its path without symbolic links. The last one is followed too.
    pub(crate) fn find(&self, path: &[u8]) -> Result<(Entry, Name), FilesError> {
        let asked = Name(path.to_vec());
        let refused = |reason| Err(FilesError::Path(asked.clone(), reason));
        let mut found = Name(b"/".to_vec());
        let mut rest: Vec<Vec<u8>> = components(path);
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == b".." {
                found = parent(&found);
                continue;
            }
            // The crate takes no longer ones.
            if name.len() > NAME_MAX || found.0.len() + name.len() >= PATH_MAX {
                return refused(Reason::Path);
            }
            let next = found.join(&name);
            let entry = self.entry_at(&next)?;
            match entry.kind {
                Kind::SymbolicLink if links == LINKS_MAX => return refused(Reason::Path),
                Kind::SymbolicLink => {
                    links += 1;
                    let target = self.target(&next, &entry)?.0;
                    if target.first() == Some(&b'/') {
                        found = Name(b"/".to_vec());
                    }
                    rest.extend(components(&target));
                    if rest.len() > PATH_MAX {
                        return refused(Reason::Path);
                    }
                }
                Kind::Directory => found = next,
                _ if rest.is_empty() => found = next,
                _ => return refused(Reason::NotDirectory),
            }
        }
        let entry = self.entry_at(&found)?;
        Ok((Entry { name: asked, ..entry }, found))
    }

    /// What is at a path in which there is no symbolic link but the last name.
    fn entry_at(&self, path: &Name) -> Result<Entry, FilesError> {
        let failed = |why| FilesError::of(path, why);
        let absolute = Path::try_from(&path.0[..]).map_err(|_| failed(Ext4Error::MalformedPath))?;
        let metadata = self.fs.symlink_metadata(absolute).map_err(failed)?;
        Ok(Entry::new(path.clone(), &metadata))
    }

    /// Where a symbolic link leads.
    fn target(&self, path: &Name, entry: &Entry) -> Result<Name, FilesError> {
        // The crate would take memory for whatever a damaged one claims.
        if entry.size > PATH_MAX as u64 {
            let reason = Reason::Limit("it is a symbolic link of more than 4096 bytes");
            return Err(FilesError::Path(path.clone(), reason));
        }
        let target = self.fs.read_link(&path.0[..]).map_err(|why| FilesError::of(path, why))?;
        Ok(Name(target.as_ref().to_vec()))
    }

    /// What is in the directory at `path`, without itself and its parent, by name. What cannot be read is told to `failed`.
    pub(crate) fn list(
        &self,
        path: &Name,
        failed: &mut dyn FnMut(FilesError),
    ) -> Result<Vec<Entry>, FilesError> {
        let wrong = |why| FilesError::of(path, why);
        let mut entries = Vec::new();
        for entry in self.fs.read_dir(&path.0[..]).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let name = Name(entry.file_name().as_ref().to_vec());
            if matches!(&name.0[..], b"." | b"..") {
                continue;
            }
            if entries.len() == ENTRIES_MAX {
                let reason = Reason::Limit("it claims more than 4000000 entries");
                return Err(FilesError::Path(path.clone(), reason));
            }
            let own = path.join(&name.0);
            let read = entry.metadata().map_err(|why| FilesError::of(&own, why));
            match read.and_then(|metadata| self.with_target(&own, Entry::new(name, &metadata))) {
                Ok(entry) => entries.push(entry),
                Err(why) if why.is_of_one_path() => failed(why),
                Err(why) => return Err(why),
            }
        }
        entries.sort_by(|one, two| one.name.cmp(&two.name));
        Ok(entries)
    }

    fn with_target(&self, path: &Name, mut entry: Entry) -> Result<Entry, FilesError> {
        if entry.kind == Kind::SymbolicLink {
            entry.target = Some(self.target(path, &entry)?);
        }
        Ok(entry)
    }

    /// Opens the file at `path`, which goes through no symbolic link.
    pub(super) fn open(&self, path: &Name) -> Result<File, FilesError> {
        self.fs.open(&path.0[..]).map_err(|why| FilesError::of(path, why))
    }

    /// Fills `buffer` from `file`, which is at `path`; less only at its end.
    pub(super) fn fill(
        &self,
        path: &Name,
        file: &mut File,
        buffer: &mut [u8],
    ) -> Result<usize, FilesError> {
        if self.stop.is_called() {
            return Err(FilesError::Stopped);
        }
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_bytes(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(why) => return Err(FilesError::of(path, why)),
            }
        }
        Ok(filled)
    }

    /// Hands the contents of the file at `path` to `take`, a piece at a time.
    pub(crate) fn read<E: From<FilesError>>(
        &self,
        path: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (entry, found) = self.find(path)?;
        let refused = |reason| Err(FilesError::Path(Name(path.to_vec()), reason).into());
        match entry.kind {
            Kind::File => {}
            Kind::Directory => return refused(Reason::IsDirectory),
            kind => return refused(Reason::Special(kind.special().unwrap_or("link"))),
        }
        let mut file = self.open(&found)?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let len = self.fill(&found, &mut file, &mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            take(&buffer[..len])?;
        }
    }
}

/// The names of a path, the last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').rev();
    names.filter(|name| !matches!(*name, b"" | b".")).map(<[u8]>::to_vec).collect()
}

fn parent(path: &Name) -> Name {
    let slash = path.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    Name(path.0[..slash.max(1)].to_vec())
}
