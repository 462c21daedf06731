//! How the file system is mounted: by this process, or for users by a helper that may.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::process::{getegid, geteuid};

use super::mount_point::{HELPER, MountError};
use crate::passed_descriptors::receive;

const DEVICE: &str = "/dev/fuse";

/// What the mount is called, and its kind.
const NAME: &str = "longhaul";

/// A descriptor of /dev/fuse, for one mount.
pub type Device = OwnedFd;

/// Opens one. The kernel's module is loaded by this.
pub fn open_device() -> Result<Device, MountError> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map(OwnedFd::from).map_err(MountError::NoDevice)
}

/// Mounts the file system that `device` is to answer for over the file at `path`; the descriptor that does, which is
/// another one if a helper had to mount.
pub(super) fn mount(device: Device, path: &Path) -> Result<Device, MountError> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // The root is a regular file: S_IFREG of stat(2), in octal.
    let options =
        format!("fd={},rootmode=100000,user_id={uid},group_id={gid}", device.as_fd().as_raw_fd());
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let kind = format!("fuse.{NAME}");
    match rustix::mount::mount(NAME, path, kind, flags, Some(&*options)) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => mount_by_helper(path),
        Err(why) => Err(io::Error::from(why).into()),
    }
}

/// fusermount3(1) sends the descriptor over the socket that `_FUSE_COMMFD` names: here its standard input.
fn mount_by_helper(path: &Path) -> Result<Device, MountError> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(HELPER);
    command.args(["-o", &format!("fsname={NAME},subtype={NAME},noexec"), "--"]).arg(path);
    command.env("_FUSE_COMMFD", "0").stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    let helper = command.stderr(Stdio::piped()).spawn();
    // It holds the other end of the socket, which has to close with the helper.
    drop(command);
    let helper = helper.map_err(|why| match why.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => MountError::NoHelper,
        _ => MountError::System(why),
    })?;
    let received = receive(&ours).map(|mut received| received.pop());
    let output = helper.wait_with_output()?;
    match received? {
        Some(device) if output.status.success() => Ok(device),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(MountError::System(io::Error::other(said)))
        }
    }
}
