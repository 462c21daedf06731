//! Requests to drivers (ioctl(2)). What the system reads or writes follows from the number of a request alone: so a number
//! and its argument stand together here, and no caller can join others.

use std::ffi::{c_int, c_ulong, c_void};
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr;

/// `struct loop_info64` of include/uapi/linux/loop.h, which begins with `lo_device` and `lo_inode`.
pub(crate) type LoopInfo = [u64; 29];

/// `struct loop_config`.
#[repr(C, align(8))]
pub(crate) struct LoopConfig {
    pub(crate) fd: u32,
    pub(crate) block_size: u32,
    pub(crate) info: [u32; size_of::<LoopInfo>() / 4],
    pub(crate) reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

/// A request with its argument.
pub(crate) enum Request<'a> {
    /// BLKROGET: whether a block device refuses writes, as 0 or 1.
    IsReadOnly(&'a mut c_int),
    /// LOOP_CTL_GET_FREE: the answer is the number of a free loop device.
    LoopFree,
    /// LOOP_CONFIGURE.
    LoopConfigure(&'a LoopConfig),
    /// LOOP_GET_STATUS64.
    LoopStatus(&'a mut LoopInfo),
    /// LOOP_SET_CAPACITY.
    LoopFollowSize,
    /// LOOP_CLR_FD.
    LoopClear,
}

impl Request<'_> {
    /// The number, by include/uapi/linux/fs.h and loop.h, and the argument.
    fn parts(self) -> (c_ulong, *mut c_void) {
        match self {
            Self::IsReadOnly(answer) => (0x125E, ptr::from_mut(answer).cast()),
            Self::LoopFree => (0x4C82, ptr::null_mut()),
            Self::LoopConfigure(config) => (0x4C0A, ptr::from_ref(config).cast_mut().cast()),
            Self::LoopStatus(info) => (0x4C05, ptr::from_mut(info).cast()),
            Self::LoopFollowSize => (0x4C07, ptr::null_mut()),
            Self::LoopClear => (0x4C01, ptr::null_mut()),
        }
    }
}

/// Has the driver behind `fd` carry out a request; gives its answer, which few have.
pub(crate) fn ioctl(fd: impl AsFd, request: Request<'_>) -> Result<c_int> {
    let (number, argument) = request.parts();
    // SAFETY: the descriptor is borrowed and so open. The argument is null where the request takes none. Otherwise it
    // points to the type that the kernel writes for this number, mutably borrowed through the call, or only reads.
    // The type of a number differs between C libraries.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number as _, argument) } {
        answer @ 0.. => Ok(answer),
        _ => Err(Error::last_os_error()),
    }
}
