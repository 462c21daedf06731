//! How a mount ends: by a signal, in use, and by the death of the process that serves it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::common::{Running, run};
use super::stage::{Stage, must, write_stable};

const MOUNT: &str = "mount file:disk.img mnt --size 64M --mkfs ext4 --raw";

/// A process that keeps a file system in use.
fn sleep_in(dir: &Path) -> Child {
    let mut sleep = Command::new("sleep");
    sleep.arg("1000").current_dir(dir).stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn signal_to_the_process_in_the_background_unmounts_first() {
    let stage = Stage::new();
    stage.longhaul(MOUNT);
    fs::write(stage.mnt().join("file"), vec![7; 1 << 20]).unwrap();
    stage.signal(Signal::TERM);
    stage.wait_until("nothing is attached", || stage.leftovers().is_empty());
    stage.longhaul("mount disk");
    assert_eq!(fs::read(stage.mnt().join("file")).unwrap(), vec![7; 1 << 20]);
    stage.longhaul("umount disk");
}

#[test]
fn file_system_that_is_in_use_outlives_a_signal_until_it_is_not() {
    let stage = Stage::new();
    stage.longhaul(MOUNT);
    let mut user = sleep_in(&stage.mnt());
    fs::write(stage.mnt().join("file"), vec![7; 1 << 20]).unwrap();
    stage.signal(Signal::TERM);
    let is_told = || stage.log("disk").contains("is in use");
    stage.wait_until("the log tells of it", is_told);
    assert!(
        stage.log("disk").contains(&format!("process {} (sleep)", user.id())),
        "{}",
        stage.log("disk")
    );
    // It is there, and works.
    fs::write(stage.mnt().join("another"), "x").unwrap();
    assert_eq!(stage.mounted().len(), 2, "{:?}", stage.mounted());
    user.kill().unwrap();
    user.wait().unwrap();
    stage.wait_until("nothing is attached", || stage.leftovers().is_empty());
    stage.longhaul("mount disk");
    assert_eq!(fs::read(stage.mnt().join("file")).unwrap(), vec![7; 1 << 20]);
    assert_eq!(fs::read_to_string(stage.mnt().join("another")).unwrap(), "x");
    stage.longhaul("umount disk");
}

#[test]
fn umount_of_what_is_in_use_names_the_user_and_changes_nothing() {
    let stage = Stage::new();
    stage.longhaul(MOUNT);
    let mut user = sleep_in(&stage.mnt());
    let (printed, status) = run(&stage.command("umount mnt"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains(&format!("used by process {} (sleep)", user.id())), "{printed}");
    fs::write(stage.mnt().join("file"), "x").unwrap();
    user.kill().unwrap();
    user.wait().unwrap();
    stage.longhaul("umount mnt");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
}

#[test]
fn mount_in_the_foreground_is_unmounted_by_a_signal() {
    let stage = Stage::new();
    let mount = Running::start(&mut stage.command(&format!("{MOUNT} --foreground")));
    assert!(mount.line().is_some_and(|line| line.contains("is mounted at")));
    fs::write(stage.mnt().join("file"), "x").unwrap();
    assert!(mount.stop().success());
    assert_eq!(stage.leftovers(), Vec::<String>::new());
}

/// What was acknowledged and not flushed is gone, and nothing pretends that it is not: programs get errors, and what is
/// mounted next is checked by its own journal.
#[test]
fn process_that_is_killed_leaves_errors_and_is_cleared_away() {
    let stage = Stage::new();
    stage.longhaul(MOUNT);
    fs::write(stage.mnt().join("file"), "kept").unwrap();
    must(Command::new("sync").arg("-f").arg(stage.mnt()));
    stage.signal(Signal::KILL);
    stage.wait_until("writes fail", || {
        let path = stage.mnt().join("more");
        fs::write(&path, vec![1; 1 << 20]).and_then(|()| fs::File::open(path)?.sync_all()).is_err()
    });
    let (printed, status) = run(&stage.command("mount disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("is mounted there already"), "{printed}");
    let (printed, status) = run(&stage.command("umount disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("what had not been flushed is lost"), "{printed}");
    stage.wait_until("the loop device is gone", || stage.leftovers().is_empty());
    stage.longhaul("mount disk");
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    stage.longhaul("umount disk");
}

/// The journal has what the server lacks, so that nothing is lost; but who detaches a volume takes it for whole.
#[test]
fn umount_says_what_the_volume_lacks_and_its_journal_keeps() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let mount = format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M", stage.uri());
    stage.longhaul(&mount);
    write_stable(&stage.mnt().join("before"), "kept");
    stage.wait_until("that is sent", || {
        stage.longhaul("journal status j").contains("holds     0 changes")
    });
    server.kill();
    write_stable(&stage.mnt().join("file"), "kept");
    let (printed, status) = run(&stage.command("umount disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(!printed.contains("all that was written is on it"), "{printed}");
    for words in ["lacks", "in the journal", "longhaul journal drain"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    let server = stage.serve("--state reservations");
    // Who reads the volume elsewhere does not take older data for what was written here.
    for (reads, to, shown) in [("ls", "", "before"), ("copy", "out.img", "copied")] {
        let (printed, status) = run(&stage.command(&format!("{reads} {} {to}", stage.uri())));
        assert_eq!(status.code(), Some(1), "{reads}: {printed}");
        assert!(printed.contains("lacks what is in the journal"), "{reads}: {printed}");
        assert!(printed.contains(shown), "{reads}: {printed}");
    }
    let told = stage.longhaul("mount disk --read-only -o noload");
    assert!(told.contains("lacks what is in the journal"), "{told}");
    let told = stage.longhaul("umount disk");
    assert!(told.contains("to be read only") && !told.contains("all that was written"), "{told}");
    stage.longhaul("mount disk");
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    let told = stage.longhaul("umount disk");
    assert!(told.contains("all that was written is on it"), "{told}");
    assert!(server.stop().success());
}

/// With a journal `fsync` waits for a disk of this machine only, and what it has promised outlives the process and the server.
#[test]
fn flushed_data_in_a_journal_outlive_the_process_and_the_server() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let mount = format!(
        "mount {} mnt --mkfs ext4 --passphrase-file secret --journal j,size=64M",
        stage.uri()
    );
    stage.longhaul(&mount);
    server.kill();
    let file = stage.mnt().join("file");
    write_stable(&file, vec![7; 4 << 20]);
    stage.crash();
    let server = stage.serve("--state reservations");
    let (printed, status) = run(&stage.command("umount disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    stage.wait_until("the loop device is gone", || stage.leftovers().is_empty());
    let printed = stage.longhaul("mount disk");
    assert!(printed.contains("in the journal") && printed.contains("are to be sent"), "{printed}");
    assert!(fs::read(file).unwrap() == vec![7; 4 << 20]);
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

/// Beside a mount that has sent all there is nothing that a reader lacks; beside one that has not, it is told who sends it.
#[test]
fn reader_beside_a_mount_is_told_what_its_journal_has_not_sent() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let mount = format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M", stage.uri());
    stage.longhaul(&mount);
    write_stable(&stage.mnt().join("file"), "kept");
    let status = || stage.longhaul("journal status j");
    stage.wait_until("all is sent", || status().contains("holds     0 changes"));
    let listed = stage.longhaul(&format!("ls {}", stage.uri()));
    assert!(listed.contains("file"), "{listed}");
    server.kill();
    write_stable(&stage.mnt().join("more"), "kept");
    let held = status();
    assert!(held.contains("holds ") && !held.contains("holds     0 changes"), "{held}");
    let server = stage.serve("--state reservations");
    stage.wait_until("all is sent", || status().contains("holds     0 changes"));
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

/// The kernel writes what it has before it unmounts, and waits for the server with that.
#[test]
fn umount_says_what_it_waits_for() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw --journal none", stage.uri()));
    fs::write(stage.mnt().join("file"), vec![7; 1 << 20]).unwrap();
    server.signal(Signal::STOP);
    let mut umount = stage.command("umount disk").stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut printed = BufReader::new(umount.stdout.take().unwrap());
    printed.read_line(&mut said).unwrap();
    server.signal(Signal::CONT);
    assert!(umount.wait().unwrap().success(), "{said}");
    assert!(said.contains("bytes are not flushed yet"), "{said}");
    assert!(server.stop().success());
}

/// Nobody has to ask for one, and nobody has to have one.
#[test]
fn mount_keeps_a_journal_in_the_state_directory_unless_that_is_declined() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let journal = stage.path("state/disk.journal");
    let mount = format!("mount {} mnt --mkfs ext4 --passphrase-file secret", stage.uri());
    let printed = stage.longhaul(&format!("{mount} --journal none"));
    assert!(!journal.exists() && !printed.contains("journal"), "{printed}");
    stage.longhaul("umount disk");
    let printed = stage.longhaul("mount disk");
    assert!(!journal.exists() && !printed.contains("journal"), "{printed}");
    stage.longhaul("umount disk");
    let mount = format!("mount {} mnt --passphrase-file secret", stage.uri());
    let printed = stage.longhaul(&mount);
    assert!(printed.contains("disk.journal") && printed.contains("--journal none"), "{printed}");
    assert_eq!(fs::metadata(&journal).unwrap().len(), 32 << 20, "a quarter of the volume");
    write_stable(&stage.mnt().join("file"), "kept");
    stage.crash();
    run(&stage.command("umount disk"));
    stage.wait_until("the loop device is gone", || stage.leftovers().is_empty());
    let printed = stage.longhaul("mount disk");
    assert!(!printed.contains("written once"), "{printed}");
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    stage.longhaul("umount disk");
    let status = stage.longhaul("journal status state/disk.journal");
    assert!(status.contains("clean"), "{status}");
    assert!(server.stop().success());

    // It has nothing to give to another volume of this name, nor does it keep that from being used.
    let server = stage.serve_file("other.img", "--state others");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw", stage.uri()));
    fs::write(stage.mnt().join("file"), "new").unwrap();
    stage.longhaul("umount disk");
    let status = stage.longhaul("journal status state/disk.journal");
    assert!(status.contains("clean"), "{status}");
    assert!(server.stop().success());
}

/// mount(8) calls this for a line of `/etc/fstab`.
#[test]
fn line_of_fstab_is_mounted_with_its_options() {
    let stage = Stage::new();
    stage.longhaul(&MOUNT.replace("--raw", "--passphrase-file secret"));
    stage.longhaul("umount mnt");
    std::os::unix::fs::symlink(super::common::LONGHAUL, stage.path("mount.longhaul")).unwrap();
    let script = "./mount.longhaul file:disk.img \"$PWD/mnt\" -n -o rw,_netdev,noexec,passphrase_file=$PWD/secret";
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(stage.home());
    stage.environment(&mut command);
    must(&mut command);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(stage.mnt().to_str().unwrap())).unwrap();
    assert!(line.contains("noexec") && line.contains("nosuid"), "{line}");
    stage.longhaul("umount mnt");
}

#[test]
fn unit_that_mounts_at_boot_is_one_that_systemd_takes() {
    let stage = Stage::new();
    fs::create_dir(stage.path("units")).unwrap();
    let units = stage.path("units");
    let mut command = stage.command(&format!("{MOUNT} --persist"));
    let printed = must(command.env("LONGHAUL_UNIT_DIR", &units));
    assert!(printed.contains("`systemctl enable longhaul-mount-disk.service`"), "{printed}");
    let unit = units.join("longhaul-mount-disk.service");
    must(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit));
    // What the unit runs, as its service manager would.
    let text = fs::read_to_string(&unit).unwrap();
    let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    stage.longhaul("umount disk");
    let mut service = Command::new("sh");
    service.args(["-c", &format!("exec {start} 2>&1")]).current_dir("/");
    stage.environment(&mut service);
    let service = Running::start(&mut service);
    assert!(service.line().is_some_and(|line| line.contains("is mounted at")));
    fs::write(stage.mnt().join("file"), "x").unwrap();
    assert!(service.stop().success());
    assert_eq!(stage.leftovers(), Vec::<String>::new());
}
