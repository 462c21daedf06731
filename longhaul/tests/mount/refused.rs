//! What is refused, with the reason, and without anything that stays.

use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;

use super::common::{LONGHAUL, run};
use super::stage::{Stage, must};

/// What fails says this, and leaves nothing behind.
fn refused(stage: &Stage, args: &str, code: i32, why: &str) {
    let (printed, status) = run(&stage.command(args));
    assert_eq!(status.code(), Some(code), "{printed}");
    assert!(printed.contains(why), "{printed}");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
}

#[test]
fn place_must_be_a_directory_where_nothing_is_mounted() {
    let stage = Stage::new();
    fs::write(stage.path("file"), "").unwrap();
    refused(&stage, "mount memory:64M none", 1, "`mkdir none` makes it");
    refused(&stage, "mount memory:64M file", 1, "it is not a directory");
    refused(&stage, "mount memory:64M", 2, "no directory to mount it at");
    must(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(stage.mnt()));
    let (printed, status) = run(&stage.command("mount memory:64M mnt"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("is mounted there already"), "{printed}");
    must(Command::new("umount").arg(stage.mnt()));
}

#[test]
fn volume_that_is_mounted_is_not_mounted_again() {
    let stage = Stage::new();
    stage.longhaul("mount file:disk.img mnt --size 64M --mkfs ext4 --raw");
    fs::create_dir(stage.path("other")).unwrap();
    let (printed, status) = run(&stage.command("mount file:disk.img other"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("is attached already: mounted at"), "{printed}");
    stage.longhaul("umount mnt");
}

#[test]
fn file_system_is_made_only_where_there_is_nothing() {
    let stage = Stage::new();
    stage.longhaul("mount file:disk.img mnt --size 64M --mkfs ext4 --raw");
    stage.longhaul("umount mnt");
    let before = fs::read(stage.path("disk.img")).unwrap();
    let known = "the volume is not empty: it holds an ext2, ext3 or ext4 file system";
    refused(&stage, "mount file:disk.img mnt --mkfs xfs --raw", 1, known);
    refused(&stage, "mount file:disk.img mnt --mkfs ext4 --passphrase-file secret", 1, known);
    assert!(fs::read(stage.path("disk.img")).unwrap() == before, "it was written to");

    stage.longhaul("mount file:private.img mnt --size 64M --mkfs ext4 --passphrase-file secret");
    stage.longhaul("umount mnt");
    let before = fs::read(stage.path("private.img")).unwrap();
    let args = "mount file:private.img mnt --mkfs ext4 --passphrase-file secret";
    refused(&stage, args, 1, "is encrypted and not empty");
    assert!(fs::read(stage.path("private.img")).unwrap() == before, "it was written to");

    // What was begun and is of no use is replaced as it is said there.
    refused(&stage, args, 1, "`longhaul mount --device file:private.img` prints a block device");
    let made = stage.longhaul("mount --device file:private.img --passphrase-file secret");
    let device = made.split([' ', ';']).find(|word| word.starts_with("/dev/")).unwrap();
    must(Command::new("mkfs.ext4").args(["-q", "-L", "second", device]));
    stage.longhaul("umount private");
    stage.longhaul("mount file:private.img mnt --passphrase-file secret");
    let label = must(Command::new("findmnt").args(["-no", "LABEL"]).arg(stage.mnt()));
    assert_eq!(label.trim(), "second");
    stage.longhaul("umount mnt");
}

/// The kernel has nothing but errors for who makes the file system.
#[test]
fn log_that_tells_of_a_server_without_room_is_named() {
    let stage = Stage::new();
    fs::create_dir(stage.path("small")).unwrap();
    let small = stage.path("small");
    must(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64K", "none"]).arg(&small));
    let server = stage.serve_file("small/disk.img", "");
    let args = format!("mount {} mnt --mkfs ext4 --raw --journal none --name disk", stage.uri());
    let (printed, status) = run(&stage.command(&args));
    assert_eq!(status.code(), Some(1), "{printed}");
    let log = stage.path("state/disk.log");
    let named = format!("the log of this mount may say why: {}", log.display());
    assert!(printed.contains("cannot make an ext4 file system on /dev/"), "{printed}");
    assert!(printed.contains(&named), "{printed}");
    assert!(stage.log("disk").contains("no space left"), "{}", stage.log("disk"));
    assert!(server.stop().success());
    must(Command::new("umount").arg(&small));
}

#[test]
fn volume_without_a_file_system_is_not_mounted() {
    let stage = Stage::new();
    refused(
        &stage,
        "mount file:disk.img mnt --size 64M",
        1,
        "--mkfs ext4 makes one where it is blank",
    );
    refused(&stage, "mount file:none.img mnt", 1, "cannot open file:none.img");
    refused(&stage, "mount nobody", 2, "`nobody` is neither a URI nor the name of a volume");
    refused(&stage, "umount nobody", 1, "nothing that Longhaul has attached is `nobody`");
}

#[test]
fn machine_without_the_devices_says_so() {
    let stage = Stage::new();
    let script = "mount -t tmpfs none /dev && exec \"$0\" mount memory:64M mnt --mkfs ext4 2>&1";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, LONGHAUL]).current_dir(stage.home());
    stage.environment(&mut command);
    let (printed, status) = run(&command);
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("cannot make a block device: /dev/loop-control"), "{printed}");
}

/// The kernel's NBD answers only in the machine's own network namespace; of one that has none this is said too.
#[test]
fn machine_without_the_kernels_nbd_says_so() {
    let stage = Stage::new();
    let mut command = Command::new("unshare");
    // Nothing is loaded for it: `modprobe` is not found.
    let script = "PATH=; exec \"$0\" mount memory:64M mnt --mkfs ext4 --via nbd 2>&1";
    command.args(["-n", "sh", "-c", script, LONGHAUL]).current_dir(stage.home());
    stage.environment(&mut command);
    let (printed, status) = run(&command);
    assert_eq!(status.code(), Some(1), "{printed}");
    let what = "cannot make a block device of the kernel's NBD client: ";
    assert!(printed.contains(what), "{printed}");
    assert!(printed.contains("without `--via nbd` FUSE and a loop device make it"), "{printed}");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
}

/// Of a kernel that is not trusted with ublk, and of one that is and has none: nothing is left, and no device is made.
#[test]
fn machine_without_ublk_says_so() {
    let stage = Stage::new();
    // No kernel has it there, and nothing is loaded: `modprobe` is not found.
    let script = "mount -t tmpfs none /dev && PATH=; exec \"$0\" mount memory:64M mnt --mkfs ext4 --via ublk 2>&1";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, LONGHAUL]).current_dir(stage.home());
    stage.environment(&mut command);
    let (printed, status) = run(&command);
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("cannot make a block device of the kernel's ublk: "), "{printed}");
    assert!(printed.contains("without `--via ublk` FUSE and a loop device make it"), "{printed}");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
}

#[test]
fn user_who_is_not_root_is_told_what_he_can_have() {
    let stage = Stage::new();
    let program = stage.path("longhaul");
    fs::copy(LONGHAUL, &program).unwrap();
    chown(stage.home(), Some(65534), Some(65534)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c"]);
    command.args(["exec \"$0\" mount memory:64M mnt --mkfs ext4 2>&1"]).arg(program);
    stage.environment(command.current_dir(stage.home()));
    let (printed, status) = run(&command);
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("run this as root; --fuse FILE"), "{printed}");
}

/// Two volumes whose URIs end in the same way are not taken for one another.
#[test]
fn name_that_is_taken_is_not_given_to_another_volume() {
    let stage = Stage::new();
    fs::create_dir_all(stage.path("other")).unwrap();
    stage.longhaul("mount file:disk.img mnt --size 64M --mkfs ext4 --raw");
    stage.longhaul("umount disk");
    stage.longhaul("mount file:other/disk.img mnt --size 64M --mkfs ext4 --raw");
    fs::write(stage.mnt().join("other"), "").unwrap();
    stage.longhaul("umount disk-2");
    stage.longhaul("mount disk");
    assert!(!stage.mnt().join("other").exists());
    stage.longhaul("umount disk");
    let volumes = stage.longhaul("volumes");
    assert_eq!(volumes.lines().count(), 2, "{volumes}");
    fs::remove_file(stage.path("disk.img")).unwrap();
    refused(&stage, "mount disk", 1, "disk.img: it does not exist");
}
