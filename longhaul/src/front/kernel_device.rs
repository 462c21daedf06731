//! The block devices that the kernel makes of a volume, by whichever of its drivers: what is done to them from outside.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::nbd::KernelClient;
use super::ublk;
use crate::block_devices::file_of;

/// What makes a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The kernel reads and writes a file.
    Loop,
    /// Its NBD client asks this machine's processes.
    Nbd,
    /// It asks a process by io_uring.
    Ublk,
}

impl Driver {
    /// That of a device.
    #[must_use]
    pub fn of(device: &Path) -> Self {
        match () {
            () if KernelClient::has(device) => Self::Nbd,
            () if ublk::has(device) => Self::Ublk,
            () => Self::Loop,
        }
    }
}

/// Has a device go once it is mounted no more. A loop device was made so.
pub fn go_with_its_mount(device: &Path) -> io::Result<()> {
    match Driver::of(device) {
        Driver::Loop => Ok(()),
        Driver::Nbd => KernelClient::disconnect_on_close(device).map_err(io::Error::other),
        Driver::Ublk => ublk::go_with_its_mount(device).map_err(io::Error::other),
    }
}

/// Has a device go, at the latest when nobody has it open any more.
pub fn detach(device: &Path) -> io::Result<()> {
    match Driver::of(device) {
        Driver::Loop => host::loop_device::detach(device),
        Driver::Nbd => {
            KernelClient::disconnect_on_close(device).map_err(io::Error::other)?;
            drop(File::open(device)?);
            match file_of(device) {
                None => Ok(()),
                Some(_) => Err(Errno::BUSY.into()),
            }
        }
        Driver::Ublk => ublk::detach(device).map_err(|why| match why {
            ublk::Error::System(why) => why,
            why => io::Error::other(why),
        }),
    }
}

/// Ends a device that nobody serves, so that whoever uses it gets errors. One of a file gives them by itself.
pub fn abandon(device: &Path) -> io::Result<()> {
    match Driver::of(device) {
        Driver::Loop => Ok(()),
        Driver::Nbd => KernelClient::abandon(device).map_err(io::Error::other),
        Driver::Ublk => ublk::abandon(device).map_err(io::Error::other),
    }
}

/// Makes a device as large as its volume is now.
pub fn resize(device: &Path, size: u64) -> io::Result<()> {
    match Driver::of(device) {
        Driver::Loop => host::loop_device::follow_size(device),
        Driver::Nbd => KernelClient::resize(device, size).map_err(io::Error::other),
        Driver::Ublk => Err(io::Error::other(
            "a ublk device of Linux 6.12 keeps its size; `longhaul umount` and `longhaul mount` make a larger one",
        )),
    }
}
