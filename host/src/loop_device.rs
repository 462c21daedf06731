//! The file that a loop device stands on.

use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::path::Path;

/// The number of the device with its file system, and its inode, as `stat` reports them.
pub type FileId = (u64, u64);

// include/uapi/linux/loop.h: the request, and the size of `struct loop_info64`, which begins with `lo_device` and
// `lo_inode`.
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_INFO64_WORDS: usize = 232 / 8;

/// The file behind the loop device at `path`. Unlike the path in sysfs this holds for a file that was removed, renamed or
/// mounted elsewhere. It takes the right to open the device.
pub fn backing_file(path: &Path) -> Result<FileId> {
    let device = std::fs::File::open(path)?;
    let mut info = [0_u64; LOOP_INFO64_WORDS];
    // The type of a request differs between C libraries.
    let request = LOOP_GET_STATUS64 as _;
    // SAFETY: the descriptor is open for the whole call, and the kernel writes at most a `struct loop_info64` to
    // `info`, which is as large and aligned for it.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), request, info.as_mut_ptr()) };
    if done < 0 {
        return Err(Error::last_os_error());
    }
    Ok((info[0], info[1]))
}
