//! Locks on ranges of a file, of an open file description (`F_OFD_SETLK`): QEMU and its tools take no others. They and
//! `flock` do not see each other.
//!
//! QEMU locks single bytes for reading, and looks for the locks of others (block/file-posix.c): byte 100 + n says that the
//! permission n is used, byte 200 + n that it is not shared.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::RawFd;

/// Permissions of include/block/block-common.h: consistent reads, writes, and changes of the size.
const READS: libc::off_t = 100;
const WRITES: libc::off_t = 101;
const RESIZES: libc::off_t = 103;
const SHARES_NO_WRITES: libc::off_t = 201;
const SHARES_NO_RESIZES: libc::off_t = 203;

/// Locks the whole file for a writer; for a reader, the bytes by which QEMU knows one that wants no writer beside it.
/// `false` if somebody else is in the way.
pub(crate) fn try_lock(fd: RawFd, writes: bool) -> Result<bool> {
    // A length of 0 reaches to the end, wherever that is.
    if writes {
        return set(fd, libc::F_WRLCK, 0, 0);
    }
    for byte in [READS, SHARES_NO_WRITES, SHARES_NO_RESIZES] {
        if !set(fd, libc::F_RDLCK, byte, 1)? {
            return Ok(false);
        }
    }
    for byte in [WRITES, RESIZES] {
        if is_locked(fd, byte)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn range(kind: libc::c_int, start: libc::off_t, len: libc::off_t) -> libc::flock {
    // SAFETY: a structure of integers, for which zeroes are valid; `l_pid` must be 0 (fcntl(2)).
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    (range.l_type, range.l_whence) = (kind as _, libc::SEEK_SET as _);
    (range.l_start, range.l_len) = (start, len);
    range
}

fn set(fd: RawFd, kind: libc::c_int, start: libc::off_t, len: libc::off_t) -> Result<bool> {
    let range = range(kind, start, len);
    // SAFETY: the kernel reads `range`, which lives through the call.
    match unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const range) } {
        0 => Ok(true),
        _ => refusal(Error::last_os_error()),
    }
}

fn is_locked(fd: RawFd, byte: libc::off_t) -> Result<bool> {
    let mut range = range(libc::F_WRLCK, byte, 1);
    // SAFETY: the kernel reads and writes `range`, which lives through the call and is borrowed by nobody else.
    match unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut range) } {
        0 => Ok(range.l_type != libc::F_UNLCK as libc::c_short),
        _ => refusal(Error::last_os_error()).map(|free| !free),
    }
}

/// Whether a lock that was not given is as good as given: a file system without such locks leaves `flock`.
fn refusal(why: Error) -> Result<bool> {
    match why.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        Some(libc::ENOLCK | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => Ok(true),
        _ if why.kind() == ErrorKind::Interrupted => Ok(false),
        _ => Err(why),
    }
}
