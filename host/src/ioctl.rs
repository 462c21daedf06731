//! Requests to drivers (ioctl(2)). What the system reads or writes follows from the number of a request alone: so a number
//! and its argument stand together here, and no caller can join others.

use std::ffi::{c_int, c_ulong, c_void};
use std::io::{Error, Result};
use std::marker::PhantomData;
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

/// `struct sg_io_v4` of include/uapi/linux/bsg.h. Its addresses are of memory that it borrows.
#[repr(C)]
#[derive(Default)]
pub(crate) struct SgIo<'a> {
    pub(crate) guard: i32,
    pub(crate) protocol: u32,
    pub(crate) subprotocol: u32,
    request_len: u32,
    request: u64,
    request_tag: u64,
    request_attr: u32,
    request_priority: u32,
    request_extra: u32,
    max_response_len: u32,
    response: u64,
    dout_iovec_count: u32,
    dout_xfer_len: u32,
    din_iovec_count: u32,
    din_xfer_len: u32,
    dout_xferp: u64,
    din_xferp: u64,
    /// In milliseconds.
    pub(crate) timeout: u32,
    pub(crate) flags: u32,
    usr_ptr: u64,
    spare_in: u32,
    pub(crate) driver_status: u32,
    pub(crate) transport_status: u32,
    pub(crate) device_status: u32,
    retry_delay: u32,
    info: u32,
    duration: u32,
    pub(crate) response_len: u32,
    pub(crate) din_resid: i32,
    pub(crate) dout_resid: i32,
    generated_tag: u64,
    spare_out: u32,
    padding: u32,
    borrowed: PhantomData<&'a mut [u8]>,
}

const _: () = assert!(size_of::<SgIo<'_>>() == 160);

/// An address as the kernel takes it.
fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

impl<'a> SgIo<'a> {
    /// A command block, with room for its sense. It has no data yet.
    pub(crate) fn new(block: &'a [u8], sense: &'a mut [u8]) -> Self {
        Self {
            request_len: block.len() as u32,
            request: address(block.as_ptr()),
            max_response_len: sense.len() as u32,
            response: address(sense.as_mut_ptr()),
            ..Self::default()
        }
    }

    /// The same with data from the device, which must be fewer than 4 GiB.
    pub(crate) fn with_input(mut self, data: &'a mut [u8]) -> Self {
        self.din_xfer_len = u32::try_from(data.len()).expect("a transfer is limited");
        self.din_xferp = address(data.as_mut_ptr());
        self
    }

    /// The same with data to the device, which must be fewer than 4 GiB.
    pub(crate) fn with_output(mut self, data: &'a [u8]) -> Self {
        self.dout_xfer_len = u32::try_from(data.len()).expect("a transfer is limited");
        self.dout_xferp = address(data.as_ptr());
        self
    }
}

/// A request with its argument.
pub(crate) enum Request<'a, 'b> {
    /// SG_IO of version 4: a command block is carried out.
    ScsiCommand(&'a mut SgIo<'b>),
    /// SG_SCSI_RESET: the argument says of what.
    ScsiReset(&'a mut c_int),
    /// BLKSECTGET of a generic SCSI device, which answers in bytes.
    TransferMax(&'a mut c_int),
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

impl Request<'_, '_> {
    /// The number, by include/uapi/linux/fs.h and loop.h and by include/scsi/sg.h, and the argument.
    fn parts(self) -> (c_ulong, *mut c_void) {
        match self {
            Self::ScsiCommand(command) => (0x2285, ptr::from_mut(command).cast()),
            Self::ScsiReset(what) => (0x2284, ptr::from_mut(what).cast()),
            Self::TransferMax(answer) => (0x1267, ptr::from_mut(answer).cast()),
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
pub(crate) fn ioctl(fd: impl AsFd, request: Request<'_, '_>) -> Result<c_int> {
    let (number, argument) = request.parts();
    // SAFETY: the descriptor is borrowed and so open. The argument is null where the request takes none. Otherwise it
    // points to the type that the kernel writes for this number, mutably borrowed through the call, or only reads. The
    // addresses in that of SG_IO are of slices of the lengths beside them, which it borrows, mutably those that are written.
    // The type of a number differs between C libraries.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), number as _, argument) } {
        answer @ 0.. => Ok(answer),
        _ => Err(Error::last_os_error()),
    }
}
