//! What is done to a device by others than the process that answers for it.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fsync, open};
use rustix::io::Errno;

use super::kernel::{self, Error};
use crate::block_devices::users_of;
use crate::ublk_note::{Note, number};

/// How often a device is tried that somebody uses, who may be another that ends it, and how long is waited in between.
const ATTEMPTS: usize = 50;
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// Whether this is a ublk device.
#[must_use]
pub fn has(device: &Path) -> bool {
    number(device).is_some()
}

/// Has the device go once it is not mounted any more: the process that serves it reads that in its note.
pub fn go_with_its_mount(device: &Path) -> Result<(), Error> {
    let (file, note) = noted(device)?;
    Ok(note.with_mount().write(&file)?)
}

/// Ends a device that nobody uses; an error of kind `ResourceBusy` if somebody does. One that is gone is no error.
pub fn detach(device: &Path) -> Result<(), Error> {
    for _ in 0..ATTEMPTS {
        let Some((_, note)) = Note::of_device(device) else { return Ok(()) };
        let is_open = !users_of(&note.node()).is_empty();
        if !is_open && end_unused(&note)? {
            return Ok(());
        }
        sleep(AGAIN_AFTER);
    }
    Err(io::Error::from(Errno::BUSY).into())
}

/// Ends a device that nobody serves: whoever uses it gets errors from then on.
pub fn abandon(device: &Path) -> Result<(), Error> {
    let (file, note) = noted(device)?;
    let mut control = kernel::open()?;
    control.stop(note.number)?;
    control.delete(note.number)?;
    Ok(Note::remove(&file)?)
}

/// Ends a device unless it is mounted, or a part of another; whether it did.
pub(super) fn end_unused(note: &Note) -> Result<bool, Error> {
    // Of a block device this is refused as long as a mount has it, in whatever namespace (open(2)).
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let device = match open(note.node(), flags, Mode::empty()) {
        Ok(device) => device,
        Err(Errno::BUSY) => return Ok(false),
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => return Ok(true),
        Err(why) => return Err(io::Error::from(why).into()),
    };
    // From its end on nothing that was written to the device itself would reach the volume.
    fsync(&device).map_err(io::Error::from)?;
    kernel::open()?.stop(note.number)?;
    Ok(true)
}

fn noted(device: &Path) -> Result<(std::path::PathBuf, Note), Error> {
    Note::of_device(device).ok_or_else(|| Error::NoDevice(device.to_owned()))
}
