//! The block device, the file system on it, and its mount, made by programs of the system.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use host::loop_device::{self, LoopOptions};
use tokio::process::Command;
use tokio::task::spawn_blocking;

use super::FileSystem;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;

const CONTROL: &str = "/dev/loop-control";

/// What is mounted may come from anybody: programs and devices on it have no power here. Each access would cost a write.
const MOUNT_OPTIONS: &str = "nosuid,nodev,noatime";

/// Refuses early what would fail after a pass-phrase was typed.
pub(super) fn refuse_without_rights() -> Outcome {
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

/// A loop device over the file of a server.
pub(super) struct BlockDevice {
    node: PathBuf,
    /// One that goes by itself stays as long as this is open.
    _device: File,
}

impl BlockDevice {
    /// Makes it. One that is to be mounted goes with its mount, any other when it is told to.
    pub(super) async fn make(file: &Path, read_only: bool, mounted: bool) -> Outcome<Self> {
        let what = || format!("cannot make a block device of {}", file.shown());
        let path = file.to_owned();
        let made = spawn_blocking(move || {
            // Opened once: the server ends when nobody has it open any more.
            let backing = OpenOptions::new().read(true).write(!read_only).open(path)?;
            let mut front = vec![0; FRONT];
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
        Ok(Self { node, _device: device })
    }

    pub(super) fn node(&self) -> &Path {
        &self.node
    }
}

/// As much of a volume as tells its block size.
const FRONT: usize = 4096;

/// The block size of the device: 4096, unless what is on the volume was made for less.
fn block_size(front: &[u8], size: u64) -> u32 {
    const LARGE: u32 = 4096;
    const SMALL: u32 = 512;
    let at = |offset: usize, len: usize| front.get(offset..offset + len).unwrap_or_default();
    // `sb_sectsize` of XFS is big-endian; `s_log_block_size` of ext4 counts doublings of 1 KiB; a partition table lies in the
    // second block.
    let made_for_less = match at(0, 4) {
        b"XFSB" => at(102, 2) < &LARGE.to_be_bytes()[2..],
        _ if at(1080, 2) == b"\x53\xef" => at(1048, 4) < &[2, 0, 0, 0][..],
        _ => at(512, 8) == b"EFI PART" || at(510, 2) == b"\x55\xaa",
    };
    if made_for_less || !size.is_multiple_of(LARGE.into()) { SMALL } else { LARGE }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_large_unless_something_was_made_for_small_ones() {
        let with = |parts: &[(usize, &[u8])]| {
            let mut front = vec![0; FRONT];
            for (at, bytes) in parts {
                front[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            block_size(&front, 1 << 20)
        };
        assert_eq!(with(&[]), 4096);
        assert_eq!(with(&[(0, b"XFSB"), (102, &[2, 0])]), 512);
        assert_eq!(with(&[(0, b"XFSB"), (102, &[16, 0])]), 4096);
        assert_eq!(with(&[(1080, b"\x53\xef"), (1048, &[0, 0, 0, 0])]), 512);
        assert_eq!(with(&[(1080, b"\x53\xef"), (1048, &[2, 0, 0, 0])]), 4096);
        assert_eq!(with(&[(512, b"EFI PART")]), 512);
        assert_eq!(block_size(&[0; FRONT], 4096 + 512), 512);
    }
}
