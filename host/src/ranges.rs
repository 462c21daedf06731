//! Locks on ranges of a file, of an open file description (`F_OFD_SETLK`): QEMU and its tools take no others. They and
//! `flock` do not see each other.
//!
//! QEMU locks single bytes for reading, and looks for the locks of others (block/file-posix.c): byte 100 + n says that the
//! permission n is used, byte 200 + n that it is not shared.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::RawFd;
use std::ptr;

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
    libc::flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: start,
        l_len: len,
        // Must be 0 (fcntl(2)).
        l_pid: 0,
    }
}

fn set(fd: RawFd, kind: libc::c_int, start: libc::off_t, len: libc::off_t) -> Result<bool> {
    match control(fd, libc::F_OFD_SETLK, &mut range(kind, start, len)) {
        Ok(()) => Ok(true),
        Err(why) => refusal(why),
    }
}

fn is_locked(fd: RawFd, byte: libc::off_t) -> Result<bool> {
    let mut range = range(libc::F_WRLCK, byte, 1);
    match control(fd, libc::F_OFD_GETLK, &mut range) {
        Ok(()) => Ok(range.l_type != libc::F_UNLCK as libc::c_short),
        Err(why) => refusal(why).map(|free| !free),
    }
}

/// Sets a lock, or asks for one: both take a range.
fn control(fd: RawFd, command: libc::c_int, range: &mut libc::flock) -> Result<()> {
    // SAFETY: the kernel reads and writes at most `range`, which is mutably borrowed through the call.
    match unsafe { libc::fcntl(fd, command, ptr::from_mut(range)) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
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
