//! A volume as one file of this machine, through the kernel's FUSE: what programs see of it, how it ends, and what is left
//! of an attachment that was killed. It takes /dev/fuse and root, as `make test` has them.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use common::{LONGHAUL, PATIENCE, Running, run};
use longhaul::front::{Record, fuse};
use longhaul::stop::Stopper;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use volume::store::memory::Memory;

const MIB: u64 = 1 << 20;

/// A directory without mounts at its end, whatever becomes of a test.
struct Stage(tempfile::TempDir);

impl Stage {
    fn new() -> Self {
        assert!(Path::new("/dev/fuse").exists(), "these tests need /dev/fuse: `modprobe fuse`");
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec \"$0\" {args} 2>&1"), LONGHAUL]).current_dir(&self.0);
        shell.env("RUNTIME_DIRECTORY", self.path("run"));
        shell
    }

    /// An attachment at `disk`.
    fn attach(&self, args: &str) -> Running {
        let attached = Running::start(&mut self.command(&format!("attach {args} --fuse disk")));
        let line = attached.line();
        assert_eq!(line, Some(format!("ready {}", self.path("disk").display())));
        attached
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.path("disk")).unwrap()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Of an attachment that a test has killed.
        let _ = rustix::mount::unmount(self.path("disk"), rustix::mount::UnmountFlags::DETACH);
    }
}

/// What a file operation failed with.
fn errno<T>(done: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&done.err().expect("it must fail")).unwrap()
}

#[test]
fn file_is_the_volume_of_its_size_and_is_gone_at_the_end() {
    let stage = Stage::new();
    let attached = stage.attach("file:disk.img --size 64M");
    let file = stage.open();
    let found = file.metadata().unwrap();
    assert_eq!((found.len(), found.permissions().mode() & 0o777), (64 * MIB, 0o600));
    // Any bytes, also over the blocks of the volume, and their neighbours stay.
    file.write_all_at(&[7; 5000], 4 * MIB - 1234).unwrap();
    let mut read = [1; 5002];
    file.read_exact_at(&mut read, 4 * MIB - 1235).unwrap();
    assert!((read[0], read[5001]) == (0, 0) && read[1..5001].iter().all(|byte| *byte == 7));
    // The size is that of the volume.
    assert_eq!(errno(file.set_len(MIB)), Errno::PERM);
    assert_eq!(errno(file.write_at(&[1], 64 * MIB)), Errno::NOSPC);
    assert_eq!(file.write_at(&[1; 100], 64 * MIB - 10).unwrap(), 10);
    file.sync_all().unwrap();
    drop(file);
    assert!(attached.stop().success());
    assert!(!stage.path("disk").exists(), "the file that was made is removed");
    let stored = fs::read(stage.path("disk.img")).unwrap();
    assert_eq!(stored[4 << 20..][..100], [7; 100]);
    assert_eq!(stored[(64 << 20) - 10..], [1; 10]);
}

#[test]
fn holes_that_are_punched_read_as_zeroes_and_free_their_space() {
    let stage = Stage::new();
    let attached = stage.attach("file:disk.img --size 64M");
    let file = stage.open();
    file.write_all_at(&vec![7; 8 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let blocks =
        || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(stage.path("disk.img")).unwrap());
    let full = blocks();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, MIB, 4 * MIB).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 6 * MIB, MIB).unwrap();
    let mut read = vec![1; 8 << 20];
    file.read_exact_at(&mut read, 0).unwrap();
    let zero = |at: usize| (1 << 20..5 << 20).contains(&at) || (6 << 20..7 << 20).contains(&at);
    assert!(read.iter().zip(0..).all(|(byte, at)| *byte == if zero(at) { 0 } else { 7 }));
    assert!(blocks() <= full - 8192 + 64, "{} of {full} blocks", blocks());
    // Room for what will be written is promised by nobody.
    assert_eq!(fallocate(&file, FallocateFlags::KEEP_SIZE, 0, MIB), Err(Errno::OPNOTSUPP));
    drop(file);
    assert!(attached.stop().success());
}

#[test]
fn read_only_volume_takes_no_writer() {
    let stage = Stage::new();
    fs::write(stage.path("disk.img"), vec![7; 1 << 20]).unwrap();
    let attached = stage.attach("file:disk.img --read-only");
    assert_eq!(errno(OpenOptions::new().write(true).open(stage.path("disk"))), Errno::ROFS);
    assert_eq!(fs::read(stage.path("disk")).unwrap(), vec![7; 1 << 20]);
    assert!(attached.stop().success());
}

#[test]
fn write_that_the_store_cannot_keep_fails_for_its_program() {
    let stage = Stage::new();
    let store = stage.path("store");
    fs::create_dir(&store).unwrap();
    let mount = |args: &[&str]| run(Command::new("mount").args(args).arg(&store));
    assert!(mount(&["-t", "tmpfs", "-o", "size=4M", "none"]).1.success());
    let attached = stage.attach("file:store/disk.img --size 64M");
    let file = stage.open();
    let failed =
        (0..16).map(|at| file.write_all_at(&vec![7; 1 << 20], at * MIB)).find_map(Result::err);
    assert_eq!(failed.map(|why| why.kind()), Some(ErrorKind::StorageFull));
    drop(file);
    attached.stop();
    assert!(run(Command::new("umount").arg(&store)).1.success());
}

#[test]
fn acknowledged_and_synchronised_writes_outlive_a_signal_under_load() {
    let stage = Stage::new();
    let attached = stage.attach("file:disk.img --size 64M");
    let file =
        OpenOptions::new().write(true).custom_flags(0o1_0000).open(stage.path("disk")).unwrap();
    let (written, first) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut at = 0;
        while file.write_all_at(&[7; 4096], at).is_ok() {
            at += 4096;
            let _ = written.send(());
            if at == 64 * MIB {
                break;
            }
        }
        at
    });
    first.recv_timeout(PATIENCE).unwrap();
    assert!(attached.stop().success());
    let written = writer.join().unwrap() as usize;
    assert!(fs::read(stage.path("disk.img")).unwrap()[..written].iter().all(|byte| *byte == 7));
}

#[test]
fn file_that_is_still_open_at_the_end_fails_for_whoever_has_it() {
    let stage = Stage::new();
    let attached = stage.attach("memory:1M");
    let file = stage.open();
    file.write_all_at(&[7; 4096], 0).unwrap();
    assert!(attached.stop().success());
    // Nothing serves it, and nothing pretends to.
    file.write_all_at(&[7; 4096], 0).unwrap_err();
    file.sync_all().unwrap_err();
    assert!(!stage.path("disk").exists());
}

#[test]
fn file_that_others_unmount_ends_the_attachment_in_order() {
    let stage = Stage::new();
    let attached = stage.attach("file:disk.img --size 1M");
    stage.open().write_all_at(&[7; 4096], 0).unwrap();
    let (printed, status) = run(Command::new("umount").arg(stage.path("disk")));
    assert!(status.success(), "{printed}");
    assert!(attached.end().success());
    assert_eq!(fs::read(stage.path("disk.img")).unwrap()[..4096], [7; 4096]);
}

/// Where nobody takes the mount over, the process goes on, and has to notice its end as before.
#[tokio::test(flavor = "multi_thread")]
async fn file_that_others_unmount_after_a_refused_hand_over_ends_the_server() {
    let stage = Stage::new();
    let path = stage.path("disk");
    let volume = Arc::new(Memory::new(MIB, 4096));
    let device = fuse::open_device().unwrap();
    let server = fuse::Server::mount(&path, false, volume, device, Record::default());
    let server = server.await.unwrap();
    let (_stopper, stop) = Stopper::new();
    let changes = async {
        for _ in 0..2 {
            server.hand_over().await.unwrap();
            server.serve_on().await.unwrap();
        }
        let file = stage.open();
        spawn_blocking(move || file.write_all_at(&[7; 4096], 0).unwrap()).await.unwrap();
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
    };
    let ended = async { tokio::join!(server.run(stop), changes) };
    assert!(timeout(PATIENCE, ended).await.is_ok(), "it does not end");
    server.end().await;
}

#[test]
fn mount_that_a_killed_attachment_left_is_not_replaced_unasked() {
    let stage = Stage::new();
    let attached = stage.attach("file:disk.img --size 1M");
    stage.attach_is_refused("something is mounted on it");
    attached.kill();
    stage.attach_is_refused(
        "a process that was killed, or could not write all it had acknowledged, has left its mount there",
    );
    let attached = stage.attach("file:disk.img --replace");
    stage.open().write_all_at(&[7; 4096], 0).unwrap();
    assert!(attached.stop().success());
    assert!(!stage.path("disk").exists());
}

impl Stage {
    fn attach_is_refused(&self, why: &str) {
        let (printed, status) = run(&self.command("attach memory:1M --fuse disk"));
        assert_eq!(status.code(), Some(1), "{printed}");
        assert!(printed.contains(&format!("cannot mount over the file disk: {why}")), "{printed}");
    }
}

#[test]
fn file_with_contents_is_not_mounted_over() {
    let stage = Stage::new();
    fs::write(stage.path("disk"), "precious").unwrap();
    stage.attach_is_refused("it exists and is not an empty file");
    assert_eq!(fs::read_to_string(stage.path("disk")).unwrap(), "precious");
}

#[test]
fn machine_without_fuse_says_so() {
    let stage = Stage::new();
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /dev && exec \"$0\" attach memory:1M --fuse disk 2>&1";
    command.args(["-m", "sh", "-c", script, LONGHAUL]).current_dir(&stage.0);
    let (printed, status) = run(&command);
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("cannot mount over the file disk: /dev/fuse cannot be opened"),
        "{printed}"
    );
    assert!(printed.contains("modprobe fuse"), "{printed}");
    assert!(!stage.path("disk").exists(), "nothing is left behind");
}

/// A user without rights.
const NOBODY: u32 = 65534;

/// What runs as this user: with a copy of the program, since the build may lie where only root can read.
fn as_user(stage: &Stage, script: &str) -> Command {
    let copy = stage.path("longhaul");
    if !copy.exists() {
        fs::copy(LONGHAUL, &copy).unwrap();
        chown(stage.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut command = Command::new("setpriv");
    let user = NOBODY.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    command.args(["sh", "-c", script]).arg(copy).current_dir(&stage.0);
    command.env_remove("RUNTIME_DIRECTORY").env("XDG_RUNTIME_DIR", stage.path("run"));
    command
}

#[test]
fn user_has_the_file_by_fusermount() {
    let stage = Stage::new();
    let script = "exec \"$0\" attach file:disk.img --size 1M --fuse disk 2>&1";
    let attached = Running::start(&mut as_user(&stage, script));
    let line = attached.line().unwrap_or_default();
    assert_eq!(line, format!("ready {}", stage.path("disk").display()));
    let write = "printf hello | dd of=disk conv=notrunc,fsync 2>&1";
    let (printed, status) = run(&as_user(&stage, write));
    assert!(status.success(), "{printed}");
    assert!(attached.stop().success());
    assert!(!stage.path("disk").exists());
    assert!(fs::read(stage.path("disk.img")).unwrap().starts_with(b"hello"));
}

#[test]
fn user_without_fusermount_is_told_what_is_missing() {
    let stage = Stage::new();
    drop(as_user(&stage, ""));
    // A file system in which there are no programs at all.
    let script = "cp \"$(command -v setpriv)\" . && mount -t tmpfs none /usr/bin && \
                  exec ./setpriv --reuid 65534 --regid 65534 --clear-groups \
                  ./longhaul attach memory:1M --fuse disk 2>&1";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).current_dir(&stage.0);
    let (printed, status) = run(&command);
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("install the package fuse3, or run this as root"), "{printed}");
    assert!(!stage.path("disk").exists(), "nothing is left behind");
}
