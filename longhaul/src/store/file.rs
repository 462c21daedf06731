//! A volume in a file: sparse, locked, as large as the file is.

use std::fs::Metadata;
use std::io::{self, ErrorKind::NotFound};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use host::file::{Access, File};
use volume::{Discard, Shape};

pub use super::open_error::OpenError;
use super::open_error::whole_blocks;
use super::{Local, in_use};
use crate::durable::sync_directory_of;

/// How a file is opened as a volume.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// Bytes the file is made of if it does not exist; an existing file must have this size.
    pub size: Option<u64>,
    /// Do not make it.
    pub existing_only: bool,
    /// Make it: a file that is there is not touched.
    pub new_only: bool,
    /// Refuse writes.
    pub read_only: bool,
    /// The unit of requests, in bytes.
    pub block_size: u32,
    /// Leave out what is behind the last whole block.
    pub whole_blocks_only: bool,
    /// Past the page cache.
    pub direct: bool,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            size: None,
            existing_only: false,
            new_only: false,
            read_only: false,
            block_size: 512,
            whole_blocks_only: false,
            direct: false,
        }
    }
}

/// Whether what was found can be a volume: a file, or a block `device`. Pipes, terminals and the like cannot, and
/// opening one may hang.
pub fn suits(found: &Metadata, device: bool) -> Result<(), OpenError> {
    let kind = found.file_type();
    let (found, fits) = match () {
        () if kind.is_file() => ("a file", !device),
        () if kind.is_block_device() => ("a block device", device),
        () if kind.is_dir() => ("a directory", false),
        () if kind.is_char_device() => ("a character device", false),
        () if kind.is_fifo() => ("a pipe", false),
        () => ("a socket", false),
    };
    let wanted = if device { "a block device" } else { "a file" };
    if fits { Ok(()) } else { Err(OpenError::NotA { found, wanted }) }
}

/// Whether a file that was found can be a volume of `asked` bytes: what it would be refused for when it is opened, but
/// for being shorter than that.
pub fn fits(found: &Metadata, asked: Option<u64>, block_size: u32) -> Result<(), OpenError> {
    let found = whole_blocks(found.len(), block_size)?;
    match asked {
        Some(asked) if asked < found => Err(OpenError::OtherSize { found, asked }),
        _ => Ok(()),
    }
}

/// Whether a file of `size` bytes can be made for a volume, as far as its file system allows.
pub fn can_be_made(size: u64, block_size: u32) -> Result<(), OpenError> {
    if i64::try_from(size).is_err() {
        return Err(OpenError::TooLarge(size));
    }
    whole_blocks(size, block_size).map(drop).map_err(|why| match why {
        OpenError::Empty => OpenError::NoSize,
        OpenError::PartialBlock { size, block_size } => OpenError::PartialSize { size, block_size },
        why => why,
    })
}

/// Opens the file at `path` as a volume; makes it, sparse, if it is missing and a size is given.
pub fn open(path: &Path, options: &FileOptions) -> Result<Local, OpenError> {
    open_or_make(path, options).map(|(local, _)| local)
}

/// The same, and whether it was made.
pub fn open_or_make(path: &Path, options: &FileOptions) -> Result<(Local, bool), OpenError> {
    let access = if options.read_only { Access::Read } else { Access::Write };
    if let Ok(found) = path.metadata() {
        suits(&found, false)?;
    }
    let mut made = false;
    let may_make = !options.read_only && !options.existing_only;
    let there = if options.new_only { Err(NotFound.into()) } else { File::open(path, access) };
    let file = match (there, options.size) {
        (Err(why), Some(size)) if why.kind() == NotFound && may_make => {
            can_be_made(size, options.block_size)?;
            made = true;
            create(path, size)?
        }
        (Err(why), _) if why.kind() == NotFound => return Err(OpenError::Missing),
        (file, _) => file?,
    };
    let file = match options.direct {
        true => uncached(file, options.block_size)
            .inspect_err(|_| drop(made.then(|| std::fs::remove_file(path))))?,
        false => file,
    };
    if file.is_block_device()? {
        return Err(OpenError::NotA { found: "a block device", wanted: "a file" });
    }
    let found = lock(&file, access)?;
    in_use::refuse(path, access)?;
    let len = file.len()?;
    let part = if options.whole_blocks_only { len % u64::from(options.block_size) } else { 0 };
    let size = whole_blocks(len - part, options.block_size)?;
    match options.size {
        Some(asked) if asked != size => return Err(OpenError::OtherSize { found: size, asked }),
        _ => {}
    }
    let shape = shape(&file, size, options)?;
    Ok((Local::new(path, file, found, shape)?, made))
}

/// What the volume of a file would be that is there, which another process may have: it is neither locked nor changed.
pub(super) fn shape_of(path: &Path, options: &FileOptions) -> Result<Shape, OpenError> {
    suits(&path.metadata().map_err(missing)?, false)?;
    let access = if options.read_only { Access::Read } else { Access::Write };
    let file = File::open(path, access).map_err(missing)?;
    let size = whole_blocks(file.len()?, options.block_size)?;
    match options.size {
        Some(asked) if asked != size => Err(OpenError::OtherSize { found: size, asked }),
        _ => Ok(shape(&file, size, options)?),
    }
}

/// Whether another process has the lock on the file at `path`; not if that cannot be told.
pub(crate) fn is_locked(path: &Path) -> bool {
    let access = Access::Write;
    File::open(path, access).is_ok_and(|file| matches!(file.try_lock(access), Ok(false)))
}

fn missing(why: io::Error) -> OpenError {
    if why.kind() == NotFound { OpenError::Missing } else { why.into() }
}

/// Whether the file at `path` has requests past the page cache, of `block_size` bytes. Of one that is not there its directory
/// tells, as far as it can. It is neither locked nor changed.
pub(crate) fn can_be_direct(path: &Path, block_size: u32) -> Result<(), OpenError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match File::open(path, Access::Read) {
        Ok(file) => uncached(file, block_size).map(drop),
        Err(why) if why.kind() == NotFound => {
            let directory = File::open(directory.unwrap_or_else(|| Path::new(".")), Access::Read);
            match directory.and_then(|directory| directory.is_in_memory()) {
                Ok(true) => Err(OpenError::NotDirect),
                _ => Ok(()),
            }
        }
        // Whoever opens it is told.
        Err(_) => Ok(()),
    }
}

/// The same file past the page cache, if its file system has that with requests of `block_size` bytes.
pub(super) fn uncached(file: File, block_size: u32) -> Result<File, OpenError> {
    let file = file.uncached().map_err(|why| match why.kind() {
        io::ErrorKind::Unsupported => OpenError::NotDirect,
        _ => why.into(),
    })?;
    match file.can_request(block_size as usize)? {
        true => Ok(file),
        false => Err(OpenError::DirectBlocks(block_size)),
    }
}

/// What a file has behind its last whole block.
pub fn part_of_block(path: &Path, block_size: u32) -> io::Result<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len - len % u64::from(block_size)))?;
    let mut part = Vec::new();
    file.take(block_size.into()).read_to_end(&mut part)?;
    Ok(part)
}

/// A new sparse file. One that cannot be given its size, or whose name cannot be made stable, is not left behind.
fn create(path: &Path, size: u64) -> Result<File, OpenError> {
    create_synced(path, size, sync_directory_of)
}

/// Its name is stable when this returns: whoever is told that a flush is done must find the file after a loss of power.
fn create_synced(
    path: &Path,
    size: u64,
    sync: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<File, OpenError> {
    if is_among_devices(path) {
        return Err(OpenError::NoDevice);
    }
    let file = File::open(path, Access::Create).map_err(|why| match why.kind() {
        io::ErrorKind::ReadOnlyFilesystem => OpenError::Unmakeable(why),
        _ => why.into(),
    })?;
    if let Err(why) = file.set_len(size).and_then(|()| sync(path)) {
        std::fs::remove_file(path)?;
        let large = why.kind() == io::ErrorKind::FileTooLarge;
        return Err(if large { OpenError::TooLarge(size) } else { why.into() });
    }
    Ok(file)
}

/// Whether a file would be made in `/dev`, where a device was meant, and where a file is in memory. `/dev/shm` is for files.
fn is_among_devices(path: &Path) -> bool {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new(".")).canonicalize();
    directory
        .is_ok_and(|directory| directory.starts_with("/dev") && !directory.starts_with("/dev/shm"))
}

/// Keeps one file from being served twice; how it is then.
pub(super) fn lock(file: &File, access: Access) -> Result<Metadata, OpenError> {
    if file.try_lock(access)? { Ok(file.metadata()?) } else { Err(OpenError::InUse) }
}

fn shape(file: &File, size: u64, options: &FileOptions) -> io::Result<Shape> {
    let unit = file.allocation_unit()?;
    let unit = if unit.is_power_of_two() { unit.clamp(options.block_size, 65_536) } else { 4096 };
    let punches = !options.read_only && file.can_punch(size, u64::from(unit))?;
    Ok(Shape {
        size,
        block_size: options.block_size,
        physical_block_size: unit,
        read_only: options.read_only,
        write_cache: true,
        discard: punches.then_some(Discard { granularity: unit, reads_zeroes: true }),
        fast_zeroes: punches,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use bytes::Bytes;
    use volume::{Durability, Kind, Space, Span, Volume, check};

    use super::super::engine::tests::engines;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn new_file(options: &FileOptions) -> (tempfile::TempDir, PathBuf, Result<Local, OpenError>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume.img");
        let opened = open(&path, options);
        (dir, path, opened)
    }

    fn of_size(size: u64) -> FileOptions {
        FileOptions { size: Some(size), ..FileOptions::default() }
    }

    #[tokio::test]
    async fn keeps_the_contract_by_every_engine() {
        for block_size in [512, 4096] {
            for engine in engines() {
                let options = FileOptions { block_size, ..of_size(40 * MIB) };
                let (_dir, _, opened) = new_file(&options);
                check::volume(3, Arc::new(opened.unwrap().by(engine))).await;
            }
        }
    }

    #[tokio::test]
    async fn keeps_the_contract_in_memory_too() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let opened = open(&dir.path().join("volume.img"), &of_size(40 * MIB));
        check::volume(4, Arc::new(opened.unwrap())).await;
    }

    #[tokio::test]
    async fn direct_file_keeps_the_contract_by_every_engine() {
        for block_size in [512, 4096] {
            for engine in engines() {
                let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
                let options = FileOptions { block_size, direct: true, ..of_size(40 * MIB) };
                let opened = open(&dir.path().join("volume.img"), &options).unwrap();
                check::volume(5, Arc::new(opened.by(engine))).await;
            }
        }
    }

    #[test]
    fn direct_file_is_refused_where_there_is_only_a_cache_and_not_left_behind() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("volume.img");
        let options = FileOptions { direct: true, ..of_size(MIB) };
        assert!(matches!(open(&path, &options), Err(OpenError::NotDirect)));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_discarded_range_frees_its_space() {
        use std::os::unix::fs::MetadataExt;
        for engine in engines() {
            let (_dir, path, opened) = new_file(&of_size(8 * MIB));
            let volume = opened.unwrap().by(engine);
            let used = || std::fs::metadata(&path).unwrap().blocks() * 512;
            assert_eq!(used(), 0);
            let data = Bytes::from(vec![7; 4 * MIB as usize]);
            volume.write(0, data, Durability::Durable).await.unwrap();
            assert!(used() >= 4 * MIB);
            volume.discard(Span::new(0, 4 * MIB)).await.unwrap();
            assert!(used() < MIB);
        }
    }

    #[tokio::test]
    async fn a_file_that_shrinks_is_an_error() {
        for engine in engines() {
            let (_dir, path, opened) = new_file(&of_size(MIB));
            let volume = opened.unwrap().by(engine);
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
            let error = volume.read(Span::new(8192, 512)).await.unwrap_err();
            assert_eq!(error.kind, Kind::Medium);
            assert!(error.source.unwrap().to_string().contains("4096 bytes long now"));
            let lost = volume.extents().unwrap().extents(Span::new(8192, 512));
            assert_eq!(lost.await.unwrap_err().kind, Kind::Medium, "no hole");
            assert_eq!(volume.flush().await.unwrap_err().kind, Kind::Medium);
        }
    }

    /// What the system refuses, every engine says in the same words.
    #[tokio::test]
    async fn a_write_that_fails_says_so() {
        for engine in engines() {
            let (_dir, path, opened) = new_file(&of_size(MIB));
            let shape = opened.unwrap().shape().clone();
            let file = File::open(&path, Access::Read).unwrap();
            let found = file.metadata().unwrap();
            let volume = Local::new(&path, file, found, shape).unwrap().by(engine);
            let write = volume.write(0, Bytes::from_static(&[7; 512]), Durability::Volatile);
            let error = write.await.unwrap_err();
            assert_eq!(error.kind, Kind::Medium);
            assert!(error.source.unwrap().to_string().starts_with("Bad file descriptor"));
            let zeroes = volume.write_zeroes(Span::new(0, 512), Durability::Durable, Space::Keep);
            assert_eq!(zeroes.await.unwrap_err().kind, Kind::Medium);
        }
    }

    #[tokio::test]
    async fn opening_a_file_does_not_change_the_time_of_its_last_change() {
        let (_dir, path, opened) = new_file(&of_size(MIB));
        let modified = || std::fs::metadata(&path).unwrap().modified().unwrap();
        let before = modified();
        drop(opened);
        let again = open(&path, &FileOptions::default()).unwrap();
        assert_eq!(
            (modified(), again.settled().await.unwrap().modified().unwrap()),
            (before, before)
        );
    }

    #[tokio::test]
    async fn durable_write_to_a_file_that_was_removed_fails() {
        for engine in engines() {
            for durable in [0, 1] {
                let (_dir, path, opened) = new_file(&of_size(MIB));
                let volume = opened.unwrap().by(engine.clone());
                std::fs::remove_file(&path).unwrap();
                let data = Bytes::from_static(&[7; 512]);
                volume.write(0, data.clone(), Durability::Volatile).await.unwrap();
                let failed = match durable {
                    0 => volume.write(0, data, Durability::Durable).await,
                    _ => {
                        let zeroes = Span::new(0, 512);
                        volume.write_zeroes(zeroes, Durability::Durable, Space::Release).await
                    }
                };
                let why = failed.unwrap_err().source.unwrap().to_string();
                assert!(why.contains("has been removed"), "{why}");
                volume.flush().await.unwrap_err();
            }
        }
    }

    #[tokio::test]
    async fn flush_of_read_only_file_that_was_removed_succeeds() {
        let (_dir, path, opened) = new_file(&of_size(MIB));
        drop(opened);
        let volume = open(&path, &FileOptions { read_only: true, ..FileOptions::default() });
        let volume = volume.unwrap();
        std::fs::remove_file(&path).unwrap();
        volume.flush().await.unwrap();
        volume.read(Span::new(0, 512)).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_grows_while_it_is_used() {
        let (_dir, path, opened) = new_file(&of_size(MIB));
        let volume = opened.unwrap();
        assert!(volume.grown(None).unwrap().is_none(), "as it was");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2 * MIB).unwrap();
        let grown = volume.grown(None).unwrap().unwrap();
        assert_eq!(grown.shape().size, 2 * MIB);
        let larger = volume.grown(Some(3 * MIB)).unwrap().unwrap();
        let end = Bytes::from(vec![7; 512]);
        larger.write(3 * MIB - 512, end, Durability::Durable).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * MIB);
        let shrunk = larger.grown(Some(MIB));
        assert!(matches!(shrunk, Err(OpenError::Shrinks { .. })));
        drop((volume, grown));
        let again = open(&path, &FileOptions::default());
        assert!(matches!(again, Err(OpenError::InUse)), "the lock is shared");
    }

    #[test]
    fn new_file_whose_directory_cannot_be_synchronised_is_not_left_behind() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("volume.img");
        let sync = |made: &Path| {
            assert_eq!(std::fs::metadata(made)?.len(), MIB);
            Err(io::Error::other("broken"))
        };
        assert!(matches!(create_synced(&path, MIB, sync), Err(OpenError::System(_))));
        assert!(!path.exists());
    }

    #[test]
    fn one_file_is_not_served_twice() {
        let (_dir, path, first) = new_file(&of_size(MIB));
        let read_only = FileOptions { read_only: true, ..FileOptions::default() };
        assert!(matches!(open(&path, &FileOptions::default()), Err(OpenError::InUse)));
        assert!(matches!(open(&path, &read_only), Err(OpenError::InUse)));
        drop(first);
        assert!(open(&path, &read_only).is_ok());
    }

    #[test]
    fn path_that_is_no_file_is_refused_and_named() {
        let home = tempfile::tempdir().unwrap();
        let pipe = home.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        for read_only in [false, true] {
            for (path, what) in [
                (Path::new("/dev/null"), "a character device"),
                (Path::new("/dev/zero"), "a character device"),
                (home.path(), "a directory"),
                (&pipe, "a pipe"),
            ] {
                let options = FileOptions { read_only, ..of_size(MIB) };
                let said = open(path, &options).err().unwrap().to_string();
                assert_eq!(said, format!("it is {what}, not a file"));
            }
        }
    }

    #[test]
    fn sizes_are_honest() {
        let (_dir, path, opened) = new_file(&of_size(1000));
        assert!(matches!(opened, Err(OpenError::PartialSize { size: 1000, block_size: 512 })));
        assert!(!path.exists(), "a refused volume leaves no file behind");
        let (_dir, path, opened) = new_file(&of_size(MIB));
        drop(opened);
        let other = open(&path, &of_size(2 * MIB));
        assert!(matches!(other, Err(OpenError::OtherSize { found, .. }) if found == MIB));
        let existing_only = FileOptions { existing_only: true, ..of_size(MIB) };
        for options in [FileOptions::default(), existing_only] {
            let (_dir, path, opened) = new_file(&options);
            assert!(matches!(opened, Err(OpenError::Missing)));
            assert!(!path.exists());
        }
    }
}
