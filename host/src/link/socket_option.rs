//! Options of sockets that the standard library does not know.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Sets an option.
pub(super) fn set<T>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed and so open; the kernel reads as many bytes as the value has.
    let status = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
