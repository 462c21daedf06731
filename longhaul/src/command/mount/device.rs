//! The block device, the file system on it, and its mount, made by programs of the system.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use host::loop_device::{self, LoopOptions};
use tokio::process::Command;
use tokio::task::spawn_blocking;

use super::super::attach::{cannot_make_device, cannot_make_ublk_device};
use super::{FileSystem, Via};
use crate::block_devices::devices_over;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::front::block_size::{FRONT, block_size};
use crate::front::nbd::KernelClient;
use crate::front::{kernel_device, ublk};
use crate::printable::Shown as _;

const CONTROL: &str = "/dev/loop-control";

/// What is mounted may come from anybody: programs and devices on it have no power here. Each access would cost a write.
const MOUNT_OPTIONS: &str = "nosuid,nodev,noatime";

/// Refuses early what would fail after a pass-phrase was typed.
pub(super) fn refuse_without_rights(via: Via) -> Outcome {
    match via {
        Via::Fuse => refuse_without_loops(),
        Via::Nbd | Via::Ublk if !rustix::process::geteuid().is_root() => {
            Err(Failure::new("cannot make a block device")
                .because("this user is not root")
                .hint("run this as root; `longhaul attach --nbd` offers a volume without"))
        }
        Via::Nbd => KernelClient::open().map(drop).map_err(cannot_make_device),
        Via::Ublk => ublk::check().map_err(cannot_make_ublk_device),
    }
}

fn refuse_without_loops() -> Outcome {
    let opened = OpenOptions::new().read(true).write(true).open(CONTROL);
    opened.map(drop).map_err(|why| {
        let hint = match why.kind() {
            io::ErrorKind::PermissionDenied => {
                "run this as root; --fuse FILE, or `longhaul attach`, offers a volume without"
            }
            _ => "load the kernel's module (`modprobe loop`); a container needs this device and the right to mount",
        };
        Failure::new("cannot make a block device").because(format!("{CONTROL}: {why}")).hint(hint)
    })
}

/// A block device of what a server serves.
pub(super) struct BlockDevice {
    node: PathBuf,
    /// A loop device that goes by itself stays as long as this is open.
    _device: Option<File>,
}

impl BlockDevice {
    /// Makes it. One that is to be mounted goes with its mount, any other when it is told to.
    pub(super) async fn make(
        file: &Path,
        via: Via,
        read_only: bool,
        mounted: bool,
    ) -> Outcome<Self> {
        match via {
            Via::Fuse => Self::make_loop(file, read_only, mounted).await,
            // Its server has made it.
            Via::Nbd | Via::Ublk => {
                let node = devices_over(file).into_iter().next();
                let node = node.ok_or_else(|| Failure::new("the block device is gone already"))?;
                Ok(Self { node, _device: None })
            }
        }
    }

    async fn make_loop(file: &Path, read_only: bool, mounted: bool) -> Outcome<Self> {
        let what = || format!("cannot make a block device of {}", file.shown());
        let path = file.to_owned();
        let made = spawn_blocking(move || {
            // Opened once: the server ends when nobody has it open any more.
            let backing = OpenOptions::new().read(true).write(!read_only).open(path)?;
            let mut front = vec![0; FRONT as usize];
            let read = backing.read_at(&mut front, 0)?;
            let block_size = block_size(&front[..read], backing.metadata()?.len());
            let options =
                LoopOptions { block_size, read_only, autoclear: mounted, partitions: !mounted };
            loop_device::attach(&backing, options)
        });
        let (node, device) = made.await.or_fail(what)?.map_err(|why| {
            let failure = Failure::new(what());
            match why.kind() {
                io::ErrorKind::ReadOnlyFilesystem => {
                    failure.because(why).hint("--read-only mounts what takes no writes")
                }
                _ => failure.because(why),
            }
        })?;
        Ok(Self { node, _device: Some(device) })
    }

    /// It is mounted, and needed no longer than that.
    pub(super) fn go_with_its_mount(&self) -> Outcome {
        let told = kernel_device::go_with_its_mount(&self.node);
        told.or_fail(|| format!("cannot have {} go with its mount", self.node.shown()))
    }

    pub(super) fn node(&self) -> &Path {
        &self.node
    }
}

/// How often its size ext4 can grow to by its resize inode; by default it is 1,024, and the blocks kept for that are 4 MiB that
/// have to be sent.
const GROWTH: u64 = 4;

/// Makes a file system; that there was nothing before is known.
pub(super) async fn make_file_system(kind: FileSystem, device: &BlockDevice) -> Outcome {
    let (name, program, package) = kind.maker();
    let what = format!("cannot make an {name} file system on {}", device.node.shown());
    let mut command = Command::new(program);
    command.arg("-q");
    if kind == FileSystem::Ext4 {
        let size = File::open(&device.node).and_then(|mut node| node.seek(SeekFrom::End(0)));
        let size = size.or_fail(|| what.clone())?;
        command.args(["-E", &format!("resize={}K", size.saturating_mul(GROWTH) / 1024)]);
    }
    let output = command.arg(&device.node).output().await;
    let output = output.map_err(|why| missing(&what, program, package, why))?;
    refuse_failed(&output, &what)
}

/// Mounts the device.
pub(super) async fn mount_device(
    device: &BlockDevice,
    place: &Path,
    kind: Option<FileSystem>,
    more: Option<&str>,
) -> Outcome {
    let what = format!("cannot mount {} at {}", device.node.shown(), place.shown());
    let options =
        more.map_or_else(|| MOUNT_OPTIONS.to_owned(), |more| format!("{MOUNT_OPTIONS},{more}"));
    let mut command = Command::new("mount");
    command.args(["-o", &options]);
    if let Some(kind) = kind {
        command.args(["-t", kind.maker().0]);
    }
    let output = command.arg(&device.node).arg(place).output().await;
    let output = output.map_err(|why| missing(&what, "mount", "mount", why))?;
    refuse_failed(&output, &what).map_err(|failure| match (kind, more) {
        (None, None) => failure.hint(
            "if it has no file system yet, --mkfs ext4 makes one where it is blank; if it was not unmounted the last time, it has to be mounted to \
             be written once, or with -o noload (ext4) or -o norecovery (XFS) to be read as it is",
        ),
        (_, Some(more)) => failure.hint(format!("it was to be mounted with -o {more}")),
        (Some(_), None) => failure,
    })
}

fn missing(what: &str, program: &str, package: &str, why: io::Error) -> Failure {
    let failure = Failure::new(what).because(format!("{program}: {why}"));
    failure.hint(format!("install the package {package}"))
}

fn refuse_failed(output: &Output, what: &str) -> Outcome {
    if output.status.success() {
        return Ok(());
    }
    let said = [&output.stderr, &output.stdout]
        .map(|text| String::from_utf8_lossy(text).trim().to_owned());
    let said = said.iter().find(|said| !said.is_empty()).map(|said| said.replace('\n', "; "));
    Err(Failure::new(what).because(said.unwrap_or_else(|| output.status.to_string())))
}
