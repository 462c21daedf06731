//! The kernel's own NBD client, which makes block devices: told what to do over generic netlink.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proto::nbd::netlink::{self, Answer, Change, Connect};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink as protocol, recv, send,
    socket_with,
};

use crate::block_devices::{devices_over, file_of};

/// What an answer may have: each is much smaller.
const ANSWER_MAX: usize = 8192;

/// It is there as long as the module is.
const MODULE: &str = "/sys/module/nbd";

/// Why the kernel makes no device.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// Its module is not there.
    #[error(
        "this kernel has no NBD: the module `nbd` is not loaded, and `modprobe nbd` cannot load it"
    )]
    NoModule,
    /// The module is there; its family of messages belongs to the first network namespace.
    #[error(
        "the kernel's NBD cannot be asked from here: this network namespace is not the machine's own"
    )]
    NotFromHere,
    /// `NBD_ATTR_BACKEND_IDENTIFIER` came with that.
    #[error("this kernel's NBD is too old: it takes Linux 5.14 or newer")]
    Old,
    /// There is no such device.
    #[error("{0} is no device of the kernel's NBD client that is used")]
    NoDevice(PathBuf),
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
    /// What is on the volume cannot be read.
    #[error(transparent)]
    Volume(#[from] volume::Error),
}

/// The way to it.
#[derive(Debug)]
pub struct KernelClient {
    socket: OwnedFd,
    family: u16,
}

impl KernelClient {
    /// Finds it; its module is loaded if it is not there.
    pub fn open() -> Result<Self, KernelError> {
        if let Some(found) = Self::find()? {
            return Ok(found);
        }
        let mut modprobe = Command::new("modprobe");
        let modprobe = modprobe.args(["-q", "nbd"]).stdin(Stdio::null());
        // Whether it did is seen below.
        let _ = modprobe.stdout(Stdio::null()).stderr(Stdio::null()).status();
        Self::find()?.ok_or_else(|| match Self::is_loaded() {
            true => KernelError::NotFromHere,
            false => KernelError::NoModule,
        })
    }

    /// The same, unless its module is not loaded.
    pub fn find() -> io::Result<Option<Self>> {
        let (kind, flags) = (SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::NETLINK, kind, flags, Some(protocol::GENERIC))?;
        let mut client = Self { socket, family: 0 };
        match client.ask(&netlink::ask_for_family()) {
            Ok(Some(Answer::Family(family))) => {
                client.family = family;
                Ok(Some(client))
            }
            Ok(_) => Err(io::Error::other("the kernel does not answer which families it has")),
            Err(why) if Errno::from_io_error(&why) == Some(Errno::NOENT) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Whether its module is loaded, which says nothing of whether it can be asked.
    #[must_use]
    pub fn is_loaded() -> bool {
        Path::new(MODULE).exists()
    }

    /// Makes a device of a socket; its number.
    pub(super) fn connect<'a>(
        &self,
        socket: &OwnedFd,
        device: impl FnOnce(u32) -> Connect<'a>,
    ) -> Result<u32, KernelError> {
        let device = device(socket.as_raw_fd().cast_unsigned());
        let Some(Answer::Device(index)) = self.ask(&netlink::connect(self.family, &device))? else {
            return Err(io::Error::other("the kernel does not answer which device it made").into());
        };
        if file_of(&node(index)).as_deref() == Some(Path::new(device.identifier)) {
            return Ok(index);
        }
        self.disconnect(index)?;
        Err(KernelError::Old)
    }

    /// Hands the device another socket, if it takes one: it does when that of before is dead.
    pub(super) fn offer(&self, index: u32, identifier: &str, socket: &OwnedFd) -> io::Result<()> {
        let socket = socket.as_raw_fd().cast_unsigned();
        self.reconfigure(index, identifier, Change::Socket(socket))
    }

    /// Ends the device: whoever uses it gets errors.
    pub(super) fn disconnect(&self, index: u32) -> io::Result<()> {
        self.ask(&netlink::disconnect(self.family, index)).map(drop)
    }

    fn reconfigure(&self, index: u32, identifier: &str, change: Change) -> io::Result<()> {
        let message = netlink::reconfigure(self.family, index, identifier, change);
        self.ask(&message).map(drop)
    }

    /// Sends a message and waits until it is done; the answer besides that.
    fn ask(&self, message: &[u8]) -> io::Result<Option<Answer>> {
        send(&self.socket, message, SendFlags::empty())?;
        let (mut buffer, mut told) = (vec![0; ANSWER_MAX], None);
        loop {
            let (len, _) = match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                received => received?,
            };
            for answer in netlink::answers(buffer.get(..len).unwrap_or_default()) {
                match answer {
                    Answer::Done => return Ok(told),
                    Answer::Error(code) => return Err(io::Error::from_raw_os_error(code)),
                    _ => told = Some(answer),
                }
            }
        }
    }
}

/// What is done to a device by others than the process that serves it.
impl KernelClient {
    /// Has the device go when nobody has it open any more.
    pub fn disconnect_on_close(device: &Path) -> Result<(), KernelError> {
        change(device, Change::DisconnectOnClose)
    }

    /// Makes the device as large as its volume is now.
    pub fn resize(device: &Path, size: u64) -> Result<(), KernelError> {
        change(device, Change::Size(size))
    }

    /// Ends a device that nobody serves: whoever uses it gets errors from then on.
    pub fn abandon(device: &Path) -> Result<(), KernelError> {
        let missing = || KernelError::NoDevice(device.to_owned());
        Ok(Self::open()?.disconnect(index(device).ok_or_else(missing)?)?)
    }

    /// The number of the device that is known by the file at `path`.
    pub(super) fn made_of(path: &Path) -> Option<u32> {
        devices_over(path).iter().find_map(|device| index(device))
    }

    /// Whether this is one of its devices.
    #[must_use]
    pub fn has(device: &Path) -> bool {
        index(device).is_some()
    }
}

fn change(device: &Path, change: Change) -> Result<(), KernelError> {
    let known = index(device).zip(file_of(device));
    let (index, identifier) = known.ok_or_else(|| KernelError::NoDevice(device.to_owned()))?;
    let client = KernelClient::open()?;
    Ok(client.reconfigure(index, &identifier.to_string_lossy(), change)?)
}

/// The device with this number.
pub(super) fn node(index: u32) -> PathBuf {
    PathBuf::from(format!("/dev/nbd{index}"))
}

fn index(device: &Path) -> Option<u32> {
    device.file_name()?.to_str()?.strip_prefix("nbd")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_known_by_its_name() {
        assert!(KernelClient::has(Path::new("/dev/nbd12")));
        for other in ["/dev/nbd12p1", "/dev/loop1", "/dev/nbd", "/"] {
            assert!(!KernelClient::has(Path::new(other)));
        }
        let refused = KernelClient::resize(Path::new("/dev/nbd4294967295"), 512).unwrap_err();
        assert!(matches!(refused, KernelError::NoDevice(_)), "{refused}");
    }
}
