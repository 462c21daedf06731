//! Command blocks to SCSI devices of this machine, by SG_IO of version 4, which the nodes in /dev/bsg take.

use std::fs::{File, OpenOptions, canonicalize, read_dir};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ioctl::{Request, SgIo, ioctl};

/// What travels with a command.
#[derive(Debug)]
pub enum Data<'a> {
    /// Nothing.
    None,
    /// Data from the device.
    In(&'a mut [u8]),
    /// Data to the device.
    Out(&'a [u8]),
}

/// How a command ended, as far as the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The status byte.
    pub status: u8,
    /// `DID_...` of include/scsi/scsi_status.h: what went wrong on the way to the device.
    pub host: u32,
    /// How many bytes of sense data there are.
    pub sense: usize,
    /// How many bytes did not travel.
    pub residual: usize,
}

/// A device, which no other user of these functions has.
#[derive(Debug)]
pub struct Device {
    /// Takes commands.
    commands: File,
    /// Takes what is not a command. It keeps others from opening it.
    generic: File,
    /// The block device, if it is one: while it is held nobody mounts it.
    _block: Option<File>,
}

/// `'Q'`: the version.
const GUARD: i32 = 0x51;
/// BSG_FLAG_Q_AT_TAIL: behind the commands before.
const AT_TAIL: u32 = 0x10;
/// SG_SCSI_RESET_DEVICE, and SG_SCSI_RESET_NO_ESCALATE: other devices of the bus are left alone.
const RESET_DEVICE: i32 = 0x101;

impl Device {
    /// Opens the device that a node is of: sg, st, sr, sd or ch, or one in /dev/bsg.
    pub fn open(path: &Path) -> Result<Self> {
        let device = sysfs(path)?;
        let address = device.file_name().ok_or(ErrorKind::NotFound)?;
        let generic = only_entry(&device.join("scsi_generic"))
            .ok_or_else(|| missing("it has no generic node: load the module sg"))?;
        let exclusive = |write| {
            let mut options = OpenOptions::new();
            // Without O_NONBLOCK the open would wait for others, or for a medium.
            options.read(true).write(write).custom_flags(libc::O_EXCL | libc::O_NONBLOCK);
            options
        };
        let generic = exclusive(true).open(Path::new("/dev").join(generic))?;
        let block = only_entry(&device.join("block"));
        let block = block.map(|name| exclusive(false).open(Path::new("/dev").join(name)));
        let block = block.transpose()?;
        let commands = Path::new("/dev/bsg").join(address);
        let commands = OpenOptions::new().read(true).write(true).open(commands)?;
        Ok(Self { commands, generic, _block: block })
    }

    /// The most bytes that go with one command.
    pub fn transfer_max(&self) -> Result<usize> {
        let mut bytes = 0;
        ioctl(&self.generic, Request::TransferMax(&mut bytes))?;
        Ok(usize::try_from(bytes).unwrap_or_default())
    }

    /// Has a command block carried out; returns when it has ended, at the latest after `timeout`, when the kernel aborts it
    /// or resets the device.
    pub fn execute(
        &self,
        block: &[u8],
        data: Data<'_>,
        sense: &mut [u8],
        timeout: Duration,
    ) -> Result<Outcome> {
        let sense_max = sense.len();
        let command = SgIo::new(block, sense);
        let mut command = match data {
            Data::None => command,
            Data::In(data) => command.with_input(data),
            Data::Out(data) => command.with_output(data),
        };
        command.guard = GUARD;
        command.flags = AT_TAIL;
        command.timeout = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        ioctl(&self.commands, Request::ScsiCommand(&mut command))?;
        let residual = command.din_resid.max(command.dout_resid);
        Ok(Outcome {
            status: command.device_status as u8,
            host: command.transport_status,
            sense: (command.response_len as usize).min(sense_max),
            residual: usize::try_from(residual).unwrap_or_default(),
        })
    }

    /// Resets the device, which ends what it is doing.
    pub fn reset(&self) -> Result<()> {
        ioctl(&self.generic, Request::ScsiReset(&mut { RESET_DEVICE })).map(drop)
    }
}

fn missing(what: &str) -> Error {
    Error::new(ErrorKind::NotFound, what)
}

/// The directory of the SCSI device that a node is of.
fn sysfs(path: &Path) -> Result<PathBuf> {
    let found = path.metadata()?;
    let kind = match found.file_type() {
        kind if kind.is_char_device() => "char",
        kind if kind.is_block_device() => "block",
        _ => return Err(Error::new(ErrorKind::InvalidInput, "it is no device")),
    };
    let number = found.rdev();
    let node = format!("/sys/dev/{kind}/{}:{}/device", libc::major(number), libc::minor(number));
    let device = canonicalize(node).map_err(|_| missing("it is no SCSI device"))?;
    match device.join("scsi_level").exists() {
        true => Ok(device),
        false => Err(missing("it is no SCSI device")),
    }
}

/// The name of the one entry of a directory of sysfs.
fn only_entry(directory: &Path) -> Option<std::ffi::OsString> {
    Some(read_dir(directory).ok()?.next()?.ok()?.file_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_file_is_refused_with_the_reason() {
        let refused = |path: &str| Device::open(Path::new(path)).unwrap_err().to_string();
        assert!(refused("/dev/null").contains("no SCSI device"));
        assert!(refused("/").contains("no device"));
        assert!(refused("/dev/does-not-exist").contains("No such file"));
    }

    /// The kernel answers a file that takes no such request.
    #[test]
    fn command_of_another_file_fails() {
        let null = || OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
        let device = Device { commands: null(), generic: null(), _block: None };
        let mut sense = [0; 96];
        let mut data = [7; 36];
        let inquiry = [0x12, 0, 0, 0, 36, 0];
        let timeout = Duration::from_secs(1);
        for data in [Data::None, Data::In(&mut data), Data::Out(&[1; 8])] {
            let failed = device.execute(&inquiry, data, &mut sense, timeout).unwrap_err();
            assert_eq!(failed.raw_os_error(), Some(libc::ENOTTY));
        }
        assert!(device.reset().is_err() && device.transfer_max().is_err());
    }
}
