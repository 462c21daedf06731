//! Loop devices: the file that one stands on, and block devices made of files.

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::ioctl::{LoopConfig, LoopInfo, Request, ioctl};

/// The number of the device with its file system, and its inode, as `stat` reports them.
pub type FileId = (u64, u64);

/// The number of a free device is only advice: another process may take it first.
const ATTEMPTS: usize = 64;

/// The file behind the loop device at `path`. Unlike the path in sysfs this holds for a file that was removed, renamed or
/// mounted elsewhere. It takes the right to open the device.
pub fn backing_file(path: &Path) -> Result<FileId> {
    let device = File::open(path)?;
    let mut info = [0; 29];
    ioctl(device, Request::LoopStatus(&mut info))?;
    Ok((info[0], info[1]))
}

/// How a loop device is made.
#[derive(Clone, Copy, Debug)]
pub struct LoopOptions {
    /// The smallest unit that it takes, in bytes.
    pub block_size: u32,
    /// It takes no writes.
    pub read_only: bool,
    /// It goes when nobody has it open any more.
    pub autoclear: bool,
    /// Its partitions become devices.
    pub partitions: bool,
}

// `lo_flags`.
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Where `lo_flags` is in `struct loop_info64`, counted in words of 32 bits.
const FLAGS_AT: usize = 13;

impl LoopOptions {
    fn flags(self) -> u32 {
        let flag = |set, flag| if set { flag } else { 0 };
        // Without a cache of its own: the file has the data, and a second copy would only have to be written too.
        LO_FLAGS_DIRECT_IO
            | flag(self.read_only, LO_FLAGS_READ_ONLY)
            | flag(self.autoclear, LO_FLAGS_AUTOCLEAR)
            | flag(self.partitions, LO_FLAGS_PARTSCAN)
    }
}

/// Makes a block device of `backing`: its path, and the device, open. One that goes by itself lives as long as that, or
/// a mount of it.
pub fn attach(backing: &File, options: LoopOptions) -> Result<(PathBuf, File)> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let mut config = LoopConfig {
        fd: backing.as_raw_fd().cast_unsigned(),
        block_size: options.block_size,
        info: [0; size_of::<LoopInfo>() / 4],
        reserved: [0; 8],
    };
    config.info[FLAGS_AT] = options.flags();
    for _ in 0..ATTEMPTS {
        let number = ioctl(&control, Request::LoopFree)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(!options.read_only).open(&path)?;
        match ioctl(&device, Request::LoopConfigure(&config)) {
            Ok(_) => return Ok((path, device)),
            Err(why) if why.raw_os_error() == Some(libc::EBUSY) => {}
            Err(why) => return Err(why),
        }
    }
    Err(Error::from_raw_os_error(libc::EBUSY))
}

/// Takes the file from the loop device at `path`, at the latest when nobody has it open any more.
pub fn detach(path: &Path) -> Result<()> {
    ioctl(File::open(path)?, Request::LoopClear).map(drop)
}

/// Makes the loop device at `path` as large as its file is now.
pub fn follow_size(path: &Path) -> Result<()> {
    ioctl(File::open(path)?, Request::LoopFollowSize).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom};
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    #[test]
    fn file_is_a_block_device_until_nobody_has_it_open() {
        let backing = tempfile::tempfile().unwrap();
        backing.set_len(1 << 20).unwrap();
        let options =
            LoopOptions { block_size: 512, read_only: false, autoclear: true, partitions: false };
        let (path, device) = attach(&backing, options).unwrap();
        let found = backing.metadata().unwrap();
        assert_eq!(backing_file(&path).unwrap(), (found.dev(), found.ino()));
        backing.set_len(2 << 20).unwrap();
        follow_size(&path).unwrap();
        assert_eq!((&device).seek(SeekFrom::End(0)).unwrap(), 2 << 20);
        device.write_all_at(&[7; 4096], 8192).unwrap();
        device.sync_all().unwrap();
        let mut read = [0; 4096];
        backing.read_exact_at(&mut read, 8192).unwrap();
        assert_eq!(read, [7; 4096]);
        drop(device);
        // Another test may have made it the device of another file by now.
        let last = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while backing_file(&path).is_ok_and(|file| file == (found.dev(), found.ino())) {
            assert!(std::time::Instant::now() < last, "{} is not free", path.display());
            std::thread::yield_now();
        }
    }
}
