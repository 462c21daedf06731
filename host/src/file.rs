//! Files and block devices by position: reads that do not wait, durable writes, holes.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::aligned;
use crate::ioctl::{Request, ioctl};
use crate::ranges;
use crate::syncs::Syncs;

/// An open file or block device. All I/O is by position; nothing moves a shared offset but the
/// search for holes, which sets it before each use.
#[derive(Debug)]
pub struct File {
    fd: OwnedFd,
    /// Its requests go past the page cache.
    direct: bool,
    /// The first failure that may have cost bytes which were taken before. The system tells of a failed
    /// write-back once per open file, to whichever call syncs next; so it is kept here, where no call can
    /// be forgotten, whether or not anybody waits for its answer.
    failed: OnceLock<Failed>,
    pub(crate) syncs: Arc<Syncs>,
}

/// A failure after which it is not known which earlier writes are stable.
#[derive(Clone, Debug)]
pub struct Failed {
    what: String,
    why: String,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, why } = self;
        write!(f, "an earlier {what} failed, so writes before it may be lost: {why}")
    }
}

impl std::error::Error for Failed {}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
    /// Reading and writing a file that must not exist yet; it is made, readable by its owner only.
    Create,
}

/// Where an open file is, by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Where it was. A device always is.
    AtPath,
    /// It has no name any more: it goes when it is closed.
    Removed,
    /// Elsewhere, and another file is at the path.
    Replaced,
    /// Elsewhere, and nothing is at the path.
    Moved,
}

/// Whether a write returns before it is on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// It may still be in the page cache.
    Later,
    /// It is stable.
    Now,
}

impl File {
    /// Opens `path`. A block device is opened exclusively: it fails if the system has it mounted.
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        let exclusive = match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => OFlags::EXCL,
            _ => OFlags::empty(),
        };
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR | exclusive,
            Access::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::open(path, flags | OFlags::CLOEXEC, mode)?;
        Ok(Self::new(fd, false))
    }

    fn new(fd: OwnedFd, direct: bool) -> Self {
        Self { fd, direct, failed: OnceLock::new(), syncs: Arc::default() }
    }

    /// The same file, whose requests go past the page cache (`O_DIRECT`); an error of kind `Unsupported` where its file
    /// system has no such requests. [`Self::can_request`] tells how small they may be.
    pub fn uncached(mut self) -> Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        match rustix::fs::fcntl_setfl(&self.fd, flags | OFlags::DIRECT) {
            Err(Errno::INVAL) => return Err(ErrorKind::Unsupported.into()),
            set => set?,
        }
        // tmpfs takes the flag and has nothing but a cache; others tell that this file has no such requests.
        if self.lies_in_memory()? || self.direct_unit()? == Some(0) {
            return Err(ErrorKind::Unsupported.into());
        }
        self.direct = true;
        Ok(self)
    }

    /// The unit of direct requests, where the system tells it (statx(2), STATX_DIOALIGN); 0 if there are none.
    fn direct_unit(&self) -> Result<Option<u32>> {
        use rustix::fs::{AtFlags, StatxFlags};
        let found = rustix::fs::statx(&self.fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
        let told = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        Ok(told.then_some(found.stx_dio_offset_align))
    }

    /// Whether its requests go past the page cache.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether requests may have units of `len` bytes: direct ones may not be smaller than a block of the device. It is
    /// tried, as not every file system tells.
    pub fn can_request(&self, len: usize) -> Result<bool> {
        match self.read_aligned(0, len) {
            Err(why) if why.kind() == ErrorKind::InvalidInput => Ok(false),
            read => read.map(|_| true),
        }
    }

    /// Opens or makes a file whose bytes go past the page cache, where its file system has that (`O_DIRECT`). Requests to
    /// it, and the memory that they use, are of whole pages.
    pub fn open_direct(path: &Path, access: Access) -> Result<Self> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
            Access::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let (flags, mode) = (flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let fd = match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
            Err(Errno::INVAL) => {
                // The system makes the file before it refuses.
                rustix::fs::open(path, flags & !OFlags::EXCL, mode)?
            }
            opened => opened?,
        };
        Ok(Self::new(fd, true))
    }

    /// Reads `len` bytes at `at` into memory that direct reads take, waiting as long as it takes. Both are of whole
    /// units. Fewer come back only at the end of the file.
    pub fn read_aligned(&self, at: u64, len: usize) -> Result<Bytes> {
        let (mut bytes, before) = aligned::with_capacity(len);
        bytes.resize(before + len, 0);
        let mut filled = 0;
        while filled < len {
            match rustix::io::pread(&self.fd, &mut bytes[before + filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        bytes.truncate(before + filled);
        Ok(Bytes::from(bytes).slice(before..))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Keeps a failure of `what` for good, unless an earlier one is kept.
    pub fn fail(&self, what: impl std::fmt::Display, why: &Error) {
        let first = || Failed { what: what.to_string(), why: why.to_string() };
        self.failed.get_or_init(first);
    }

    /// Whether a sync that has just succeeded is to be believed: waits for those that were under way beside it,
    /// since the system may have told one of them instead.
    pub async fn confirm_sync(&self) -> std::result::Result<(), Failed> {
        self.syncs.wait_for_earlier().await;
        self.still_whole()
    }

    /// An error if something has failed that may have cost bytes which were taken before.
    pub fn still_whole(&self) -> std::result::Result<(), Failed> {
        self.failed.get().map_or(Ok(()), |failed| Err(failed.clone()))
    }

    /// What the system knows of it.
    pub fn metadata(&self) -> Result<std::fs::Metadata> {
        std::fs::File::from(self.fd.try_clone()?).metadata()
    }

    /// Takes the locks that keep others from using the file at the same time: shared for readers, alone for a
    /// writer. They go when the file is closed. `false` if somebody else has one.
    pub fn try_lock(&self, access: Access) -> Result<bool> {
        let operation = match access {
            Access::Read => FlockOperation::NonBlockingLockShared,
            Access::Write | Access::Create => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&self.fd, operation) {
            Ok(()) => ranges::try_lock(self.raw(), access != Access::Read),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What the system knows of it, once all of that is stable: size, and the time of the last change.
    pub fn settled(&self) -> Result<std::fs::Metadata> {
        let file = std::fs::File::from(self.fd.try_clone()?);
        file.sync_all()?;
        file.metadata()
    }

    /// Bytes that its file system has for this user, and bytes that it takes of that once all of it is written to.
    pub fn free_space(&self) -> Result<(u64, u64)> {
        /// st_blocks counts these (stat(2)).
        const SECTOR: u64 = 512;
        let system = rustix::fs::fstatvfs(&self.fd)?;
        let found = rustix::fs::fstat(&self.fd)?;
        let available = system.f_bavail.saturating_mul(system.f_frsize);
        let allocated = found.st_blocks.unsigned_abs().saturating_mul(SECTOR);
        Ok((available, found.st_size.unsigned_abs().saturating_sub(allocated)))
    }

    /// Whether holes can be punched here, `unit` bytes long. It is tried beyond the end, which changes nothing but, on
    /// some file systems, the time of the last change: that is put back.
    pub fn can_punch(&self, len: u64, unit: u64) -> Result<bool> {
        let file = std::fs::File::from(self.fd.try_clone()?);
        let before = file.metadata()?.modified()?;
        let punches = self.punch(len, unit).is_ok();
        if file.metadata()?.modified()? != before {
            // Only its owner may do that.
            let _ = file.set_modified(before);
        }
        Ok(punches)
    }

    /// The size in bytes, of a block device too.
    pub fn len(&self) -> Result<u64> {
        Ok(rustix::fs::seek(&self.fd, SeekFrom::End(0))?)
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Makes the file `len` bytes long; what is added is a hole.
    pub fn set_len(&self, len: u64) -> Result<()> {
        Ok(rustix::fs::ftruncate(&self.fd, len)?)
    }

    /// Whether `path` still leads to this file.
    pub fn placement(&self, path: &Path) -> Result<Placement> {
        let own = rustix::fs::fstat(&self.fd)?;
        if !rustix::fs::FileType::from_raw_mode(own.st_mode).is_file() {
            return Ok(Placement::AtPath);
        }
        if own.st_nlink == 0 {
            return Ok(Placement::Removed);
        }
        match rustix::fs::stat(path) {
            Ok(found) if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino) => {
                Ok(Placement::AtPath)
            }
            Ok(_) => Ok(Placement::Replaced),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Placement::Moved),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it has no name any more, as far as the system knows without asking anybody else: this does not wait.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        use rustix::fs::{AtFlags, StatxFlags};
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(&self.fd, c"", flags, StatxFlags::NLINK)
            .is_ok_and(|found| found.stx_nlink == 0)
    }

    /// Whether it is a block device.
    pub fn is_block_device(&self) -> Result<bool> {
        let mode = rustix::fs::fstat(&self.fd)?.st_mode;
        Ok(rustix::fs::FileType::from_raw_mode(mode).is_block_device())
    }

    /// The unit the file system works in, in bytes.
    pub fn allocation_unit(&self) -> Result<u32> {
        let unit = rustix::fs::fstat(&self.fd)?.st_blksize;
        u32::try_from(unit).map_err(|_| Error::from(ErrorKind::InvalidData))
    }

    /// The logical and the physical block size of a block device, in bytes.
    pub fn device_blocks(&self) -> Result<(u32, u32)> {
        Ok((rustix::fs::ioctl_blksszget(&self.fd)?, rustix::fs::ioctl_blkpbszget(&self.fd)?))
    }

    /// Whether a block device refuses writes. It can be opened for writing all the same.
    pub fn is_write_protected(&self) -> Result<bool> {
        let mut protected = 0;
        ioctl(&self.fd, Request::IsReadOnly(&mut protected))?;
        Ok(protected != 0)
    }

    /// Whether a block device can give space back, as the system says of its queue. A partition
    /// shares the queue of its disk.
    pub fn discards(&self) -> Result<bool> {
        let device = rustix::fs::fstat(&self.fd)?.st_rdev;
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let block = format!("/sys/dev/block/{major}:{minor}");
        let limit = ["queue", "../queue"]
            .iter()
            .find_map(|queue| {
                std::fs::read_to_string(format!("{block}/{queue}/discard_max_bytes")).ok()
            })
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("{block} has no queue")))?;
        Ok(limit.trim() != "0")
    }

    /// Whether I/O on it never waits for a device: it lies in memory.
    pub fn lies_in_memory(&self) -> Result<bool> {
        // The file of a device is in /dev, which is a tmpfs; what the device does is not.
        if !rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&self.fd)?.st_mode).is_file() {
            return Ok(false);
        }
        self.is_in_memory()
    }

    /// Whether its file system is one in memory: of a directory, whether the files in it are.
    pub fn is_in_memory(&self) -> Result<bool> {
        // The magic number of tmpfs, include/uapi/linux/magic.h.
        const TMPFS_MAGIC: i64 = 0x0102_1994;
        Ok(rustix::fs::fstatfs(&self.fd)?.f_type == TMPFS_MAGIC)
    }

    /// Reads `len` bytes at `at`, waiting as long as it takes. Fewer come back only at the end of
    /// the file.
    pub fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            match self.read_more(&mut bytes, at, 0) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(bytes)
    }

    /// The same if it need not wait; `None` if some of it would, or the file system cannot tell.
    pub fn read_now(&self, at: u64, len: usize) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::with_capacity(len);
        match self.read_more(&mut bytes, at, libc::RWF_NOWAIT) {
            Ok(n) if n == len => Ok(Some(bytes)),
            // A short answer is the end of the file or of what is cached: only waiting tells which.
            Ok(_) | Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Reads into the spare capacity of `bytes` what follows those it holds, `at` being where its
    /// first byte came from.
    fn read_more(
        &self,
        bytes: &mut Vec<u8>,
        at: u64,
        flags: libc::c_int,
    ) -> std::result::Result<usize, Errno> {
        let offset = i64::try_from(at + bytes.len() as u64).map_err(|_| Errno::INVAL)?;
        let spare = bytes.spare_capacity_mut();
        let iov = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() };
        // SAFETY: `iov` describes the spare capacity of `bytes`, which is writable, borrowed for the
        // whole call, and not read by anyone; the kernel writes at most `iov_len` bytes to it.
        let n = unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const iov, 1, offset, flags) };
        let n = usize::try_from(n).map_err(|_| last_errno())?;
        let filled = bytes.len() + n;
        // SAFETY: the kernel has just initialised the first `n` bytes of the spare capacity.
        unsafe { bytes.set_len(filled) };
        Ok(n)
    }

    /// Writes all of `bytes` at `at`.
    pub fn write(&self, at: u64, bytes: &[u8], sync: Sync) -> Result<()> {
        let flags = match sync {
            Sync::Later => rustix::io::ReadWriteFlags::empty(),
            Sync::Now => rustix::io::ReadWriteFlags::DSYNC,
        };
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let slice = [std::io::IoSlice::new(rest)];
            match rustix::io::pwritev2(&self.fd, &slice, at, flags) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => (at, rest) = (at + n as u64, &rest[n..]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Makes `len` bytes at `at` read as zeroes and gives their space back.
    pub fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.allocate_with(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
    }

    /// Makes `len` bytes at `at` read as zeroes and keeps their space.
    pub fn zero(&self, at: u64, len: u64) -> Result<()> {
        self.allocate_with(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, at, len)
    }

    /// Reserves space for `len` bytes at `at`; what was a hole reads as zeroes.
    pub fn allocate(&self, at: u64, len: u64) -> Result<()> {
        self.allocate_with(FallocateFlags::KEEP_SIZE, at, len)
    }

    fn allocate_with(&self, flags: FallocateFlags, at: u64, len: u64) -> Result<()> {
        loop {
            match rustix::fs::fallocate(&self.fd, flags, at, len) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    /// Makes every completed write stable.
    pub fn sync(&self) -> Result<()> {
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    /// Has the system begin to write what it keeps in its cache. A failure of that is told by the next [`sync`](Self::sync): only
    /// SYNC_FILE_RANGE_WAIT_BEFORE and SYNC_FILE_RANGE_WAIT_AFTER would take note of it here, and nobody would learn it then.
    pub fn begin_write_back(&self) -> Result<()> {
        // SAFETY: it takes numbers, of which the first is a descriptor that is open as long as `self`.
        match unsafe { libc::sync_file_range(self.raw(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) } {
            0 => Ok(()),
            _ => Err(last_errno().into()),
        }
    }

    /// Where the next data at or after `at` begins; `None` if only a hole follows.
    pub fn next_data(&self, at: u64) -> Result<Option<u64>> {
        match rustix::fs::seek(&self.fd, SeekFrom::Data(at)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Where the next hole at or after `at` begins: at the latest where the file ends.
    pub fn next_hole(&self, at: u64) -> Result<u64> {
        Ok(rustix::fs::seek(&self.fd, SeekFrom::Hole(at))?)
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn scratch() -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().unwrap();
        let file = File::open(&dir.path().join("file"), Access::Create).unwrap();
        (dir, file)
    }

    #[test]
    fn written_data_are_read_back() {
        let (_dir, file) = scratch();
        file.write(4096, b"there", Sync::Now).unwrap();
        assert_eq!(file.read(4096, 5).unwrap(), b"there");
        assert_eq!(file.read(0, 2).unwrap(), [0, 0]);
        assert_eq!(file.len().unwrap(), 4101);
    }

    #[test]
    fn direct_file_is_read_and_written_by_pages() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        let file = File::open_direct(&path, Access::Create).unwrap();
        let page = vec![7; 3 * PAGE];
        let from = page.as_ptr().align_offset(PAGE);
        file.write(PAGE as u64, &page[from..from + 2 * PAGE], Sync::Now).unwrap();
        assert_eq!(file.read_aligned(PAGE as u64, PAGE).unwrap(), vec![7; PAGE]);
        assert_eq!(file.read_aligned(2 * PAGE as u64, 4 * PAGE).unwrap(), vec![7; PAGE], "its end");
        assert!(File::open_direct(&path, Access::Create).is_err());
        assert_eq!(File::open_direct(&path, Access::Read).unwrap().len().unwrap(), 3 * PAGE as u64);
    }

    #[test]
    fn uncached_file_in_memory_is_refused() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("file");
        let refused = File::open(&path, Access::Create).unwrap().uncached().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn unit_that_is_smaller_than_a_block_is_told() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = File::open(&path, Access::Read).unwrap().uncached().unwrap();
        assert!(file.can_request(4096).unwrap() && !file.can_request(100).unwrap());
    }

    #[test]
    fn a_read_beyond_the_end_is_short() {
        let (_dir, file) = scratch();
        file.write(0, b"end", Sync::Later).unwrap();
        assert_eq!(file.read(1, 10).unwrap(), b"nd");
        assert_eq!(file.read_now(1, 10).unwrap(), None);
    }

    #[test]
    fn a_read_that_does_not_wait_reads_the_same() {
        let (_dir, file) = scratch();
        file.write(0, &[7; 4096], Sync::Later).unwrap();
        let now = file.read_now(0, 4096).unwrap();
        assert!(now.is_none_or(|bytes| bytes == [7; 4096]));
    }

    #[test]
    fn holes_are_found_and_made() {
        let (_dir, file) = scratch();
        file.write(0, &[7; 16384], Sync::Later).unwrap();
        file.punch(4096, 8192).unwrap();
        assert_eq!(file.next_hole(0).unwrap(), 4096);
        assert_eq!(file.next_data(4096).unwrap(), Some(12288));
        assert_eq!(file.next_data(16384).unwrap(), None);
        assert!(file.read(4096, 8192).unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_lock_keeps_the_second_out() {
        let (dir, file) = scratch();
        assert!(file.try_lock(Access::Write).unwrap());
        let second = File::open(&dir.path().join("file"), Access::Read).unwrap();
        assert!(!second.try_lock(Access::Read).unwrap());
        drop(file);
        assert!(second.try_lock(Access::Read).unwrap());
    }

    /// QEMU does not see `flock`, nor does `flock` see QEMU.
    #[test]
    fn lock_keeps_out_who_locks_ranges() {
        let (dir, file) = scratch();
        let open = |access| File::open(&dir.path().join("file"), access).unwrap();
        let ranges = |file: &File, writes| ranges::try_lock(file.raw(), writes).unwrap();
        assert!(file.try_lock(Access::Write).unwrap());
        assert!(!ranges(&open(Access::Write), true) && !ranges(&open(Access::Read), false));
        drop(file);
        let reader = open(Access::Read);
        assert!(reader.try_lock(Access::Read).unwrap());
        assert!(!ranges(&open(Access::Write), true));
        assert!(ranges(&open(Access::Read), false), "readers share");
        drop(reader);
        let other = open(Access::Write);
        assert!(ranges(&other, true) && !open(Access::Write).try_lock(Access::Write).unwrap());
    }
}
