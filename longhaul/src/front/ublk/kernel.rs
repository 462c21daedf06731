//! Which kernels can make ublk devices, and may.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use host::ublk::Control;

/// The series that this was tried on. On several others the first device is an oops of the kernel, which then holds a lock of all
/// of them: nobody can find out by trying.
const TRIED: (u32, u32) = (6, 12);

/// The module.
const MODULE: &str = "ublk_drv";

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel is of another series.
    #[error(
        "Linux {0} is not trusted with it: this was tried on Linux 6.12 only, and some others, such as 6.17 of Ubuntu and \
         6.18.4, crash at the first device"
    )]
    NotTried(String),
    /// The driver is not there.
    #[error(
        "this kernel has no ublk: the module `ublk_drv` is not loaded, and `modprobe ublk_drv` cannot load it"
    )]
    NoModule,
    /// It is there, and lacks something.
    #[error("this kernel's ublk lacks user copy or recovery")]
    Lacking,
    /// There is no such device.
    #[error("{0} is no ublk device that is used")]
    NoDevice(PathBuf),
    /// The process before has not been noticed to be gone.
    #[error("the kernel does not let go of the process that served the device before")]
    StillServed,
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
    /// What is on the volume cannot be read.
    #[error(transparent)]
    Volume(#[from] volume::Error),
}

/// The way to the driver, on a kernel that is trusted with it; its module is loaded if it is not there.
pub(super) fn open() -> Result<Control, Error> {
    check_release(&release())?;
    let mut control = match Control::open() {
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            let mut modprobe = Command::new("modprobe");
            let modprobe = modprobe.args(["-q", MODULE]).stdin(Stdio::null());
            // Whether it did is seen below.
            let _ = modprobe.stdout(Stdio::null()).stderr(Stdio::null()).status();
            Control::open().map_err(|why| match why.kind() {
                io::ErrorKind::NotFound => Error::NoModule,
                _ => why.into(),
            })?
        }
        opened => opened?,
    };
    if control.can_serve()? { Ok(control) } else { Err(Error::Lacking) }
}

/// An error where no device can be made; none is.
pub fn check() -> Result<(), Error> {
    open().map(drop)
}

/// Whether this kernel may make one, if it has ublk.
#[must_use]
pub fn is_trusted() -> bool {
    check_release(&release()).is_ok()
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn check_release(release: &str) -> Result<(), Error> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let series = numbers.next().zip(numbers.next());
    match series {
        Some((Ok(major), Ok(minor))) if (major, minor) == TRIED => Ok(()),
        _ => Err(Error::NotTried(release.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_of_the_series_that_was_tried_are_trusted() {
        for trusted in ["6.12.117+deb12-amd64", "6.12.0", "6.12-rc1"] {
            check_release(trusted).unwrap();
        }
        for other in ["6.1.0-50-amd64", "6.17.0-35-generic", "6.18.4", "6.120.1", "rolling", ""] {
            let why = check_release(other).unwrap_err().to_string();
            assert!(why.contains(other) && why.contains("tried on Linux 6.12 only"), "{why}");
        }
    }
}
