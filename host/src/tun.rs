//! TUN devices: IP packets in and out of the kernel's network stack, many segments of a TCP stream in
//! one system call.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// The length of the header before each packet, `struct virtio_net_hdr`.
pub const HEADER_LEN: usize = 10;

/// The longest packet with its header: what IPv4's total length can say.
pub const PACKET_MAX: usize = HEADER_LEN + 65_535;

/// A TUN device. It lives as long as this value, in whatever network namespace it was moved to.
///
/// Each packet carries a `virtio_net_hdr` ahead of it, both ways. Checksums may be left to be filled in
/// and TCP over IPv4 comes in pieces of up to 64 KiB that stand for many segments, as it does to a
/// network card with segmentation offload.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
}

impl Tun {
    /// Makes a device in the caller's network namespace; needs `CAP_NET_ADMIN`. The kernel replaces
    /// `%d` in the name by the first free number.
    pub fn create(pattern: &str) -> Result<Self> {
        if pattern.len() >= libc::IFNAMSIZ {
            return Err(Error::new(ErrorKind::InvalidInput, "the name of a device is too long"));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        let mut request =
            Request { name: [0; libc::IFNAMSIZ], flags: flags as libc::c_short, rest: [0; 22] };
        request.name[..pattern.len()].copy_from_slice(pattern.as_bytes());
        // SAFETY: TUNSETIFF reads and writes a `struct ifreq`, whose layout `Request` has, and which
        // outlives the call.
        check(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) })?;
        let offloads = libc::c_ulong::from(libc::TUN_F_CSUM | libc::TUN_F_TSO4);
        // SAFETY: TUNSETOFFLOAD takes a number and touches no memory of ours.
        check(unsafe { libc::ioctl(file.as_raw_fd(), TUNSETOFFLOAD, offloads) })?;
        let name = request.name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        Ok(Self { file, name })
    }

    /// The name the kernel gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the next packet with its header; `None` if there is none now.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        match rustix::io::read(&self.file, buffer) {
            Ok(len) => Ok(Some(len)),
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives the kernel one packet, its header first, in as many parts as it comes in.
    pub fn send(&self, parts: &[IoSlice<'_>]) -> Result<()> {
        let all: usize = parts.iter().map(|part| part.len()).sum();
        let taken = rustix::io::writev(&self.file, parts)?;
        // The kernel takes a packet whole or not at all.
        if taken == all { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// `struct ifreq` as TUNSETIFF uses it: a name and flags, in 40 bytes.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

/// `_IOW('T', 202, int)`.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
/// `_IOW('T', 208, unsigned int)`.
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;

fn check(outcome: libc::c_int) -> Result<()> {
    if outcome < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}
