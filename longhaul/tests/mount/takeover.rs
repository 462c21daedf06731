//! A mount outlives the process that serves it: handed over, or killed.

use std::fs;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};

use super::common::{LONGHAUL, run};
use super::link::Link;
use super::stage::{Stage, must, write_stable};

/// How often a process is replaced.
fn rounds() -> usize {
    let rounds = std::env::var("LONGHAUL_RESTARTS");
    rounds.map_or(4, |rounds| rounds.parse().expect("LONGHAUL_RESTARTS is a number"))
}

/// The block device that was told of.
fn node(told: &str) -> String {
    let from = told.find("/dev/loop").unwrap_or_else(|| panic!("no device: {told}"));
    let is_its = |c: &char| c.is_ascii_alphanumeric() || *c == '/';
    told[from..].chars().take_while(is_its).collect()
}

/// Writes and verifies, again and again, until it is told to stop; how often.
fn fio(node: &str, stop: &Arc<AtomicBool>) -> thread::JoinHandle<usize> {
    let (node, stop) = (node.to_owned(), Arc::clone(stop));
    thread::spawn(move || {
        let mut runs = 0;
        while !stop.load(Ordering::Relaxed) {
            // What is killed as soon as it serves lets little pass: one run may take as long as all rounds.
            let mut fio = Command::new("timeout");
            fio.args([
                "900",
                "fio",
                "--name=verify",
                "--rw=randwrite",
                "--bsrange=4k-128k",
                "--blockalign=4k",
            ]);
            fio.args(["--direct=1", "--ioengine=libaio", "--iodepth=16", "--size=8M"]);
            fio.args(["--verify=crc32c", "--verify_fatal=1", "--fsync=32"]);
            fio.args([&format!("--filename={node}"), "--output-format=terse"]);
            let ended =
                fio.arg(format!("--randseed={}", runs + 1)).current_dir("/tmp").output().unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
            runs += 1;
        }
        runs
    })
}

fn device(stage: &Stage, options: &str) -> String {
    stage.longhaul(&format!("key init {} --passphrase-file secret", stage.uri()));
    let mount = format!("mount {} --device --passphrase-file secret {options}", stage.uri());
    node(&stage.longhaul(&mount))
}

#[test]
fn mount_that_is_upgraded_under_load_loses_and_fails_nothing() {
    let stage = Stage::new();
    let server = stage.serve("");
    let node = device(&stage, "");
    // The pass-phrase is not read again.
    fs::remove_file(stage.path("secret")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let fio = fio(&node, &stop);
    for round in 0..rounds() {
        assert!(!fio.is_finished(), "fio has failed before round {round}: {}", stage.log("disk"));
        let before = stage.server_after(None);
        let told = stage.longhaul("upgrade disk");
        assert!(told.contains("is served by process"), "{told}");
        assert!(told.contains("of the same program as before"), "{told}");
        assert_ne!(stage.server_after(Some(before)), before);
    }
    stop.store(true, Ordering::Relaxed);
    let runs = fio.join().unwrap();
    println!("{} upgrades, {runs} runs of fio verified", rounds());
    let told = stage.longhaul("umount disk");
    assert!(told.contains("all that was written is on it"), "{told}");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

#[test]
fn mount_with_a_journal_goes_on_when_its_process_is_killed_under_load() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let node = device(&stage, "--journal j,size=64M");
    let stop = Arc::new(AtomicBool::new(false));
    let fio = fio(&node, &stop);
    let mut pid = stage.server_after(None);
    for round in 0..rounds() {
        assert!(!fio.is_finished(), "fio has failed before round {round}: {}", stage.log("disk"));
        stage.signal(Signal::KILL);
        pid = stage.server_after(Some(pid));
    }
    stop.store(true, Ordering::Relaxed);
    let runs = fio.join().unwrap();
    println!("{} kills, {runs} runs of fio verified", rounds());
    let told = stage.longhaul("umount disk");
    assert!(told.contains("all that was written is on it"), "{told}");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

/// There was no place for one when it was made: a state directory in memory. There is one now, and programs do not wait for it.
#[test]
fn mount_without_a_journal_gets_none_when_its_process_is_replaced() {
    let stage = Stage::new();
    let server = stage.serve("");
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    std::os::unix::fs::symlink(memory.path(), stage.path("state")).unwrap();
    stage.longhaul(&format!("mount {} --device", stage.uri()));
    assert!(
        memory.path().join("disk.log").exists() && !memory.path().join("disk.journal").exists()
    );
    must(Command::new("cp").arg("-a").args([memory.path(), &stage.path("on-disk")]));
    fs::remove_file(stage.path("state")).unwrap();
    fs::rename(stage.path("on-disk"), stage.path("state")).unwrap();
    let before = stage.server_after(None);
    let told = stage.longhaul("upgrade disk");
    assert!(told.contains("is served by process"), "{told}");
    stage.server_after(Some(before));
    assert!(!stage.path("state/disk.journal").exists(), "{}", stage.log("disk"));
    let before = stage.server_after(None);
    stage.signal(Signal::KILL);
    stage.server_after(Some(before));
    assert!(!stage.path("state/disk.journal").exists(), "{}", stage.log("disk"));
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

/// Nothing tells a program later that what it was promised is gone: so nothing goes on.
#[test]
fn mount_without_a_journal_that_lost_acknowledged_writes_does_not_go_on() {
    let stage = Stage::new();
    let server = stage.serve("");
    let node = device(&stage, "--journal none");
    let open = || {
        let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        fs::OpenOptions::new().read(true).write(true).custom_flags(direct).open(&node)
    };
    let device = open().unwrap();
    let page = aligned();
    device.write_all_at(&page[page.as_ptr().align_offset(4096)..][..4096], 8192).unwrap();
    device.sync_all().unwrap();
    // Nothing is lost: it goes on.
    let before = stage.server_after(None);
    stage.signal(Signal::KILL);
    stage.server_after(Some(before));
    device.write_all_at(&page[page.as_ptr().align_offset(4096)..][..4096], 16384).unwrap();
    stage.signal(Signal::KILL);
    stage.wait_until("the loss is told", || stage.log("disk").contains("not flushed is lost"));
    device.sync_all().unwrap_err();
    drop(device);
    let (printed, status) = run(&stage.command("umount disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("what had not been flushed is lost"), "{printed}");
    stage.wait_until("the loop device is gone", || stage.leftovers().is_empty());
    assert!(server.stop().success());
}

/// Bytes among which there is an aligned page.
fn aligned() -> Vec<u8> {
    vec![7; 8192]
}

#[test]
fn block_device_is_as_large_as_its_volume_has_become_after_an_upgrade() {
    let stage = Stage::new();
    let image = fs::File::create(stage.path("disk.img")).unwrap();
    image.set_len(128 << 20).unwrap();
    let listen = format!("listen = [\"127.0.0.1:{}\"]\n", stage.port());
    let config = format!("{listen}[volumes.disk]\nuri = \"file:disk.img\"\n");
    fs::write(stage.path("server.toml"), config).unwrap();
    let server = stage.serve_args("--config server.toml");
    let node = node(&stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw", stage.uri())));
    fs::write(stage.mnt().join("file"), "kept").unwrap();
    image.set_len(256 << 20).unwrap();
    server.signal(Signal::HUP);
    let size = || must(Command::new("blockdev").args(["--getsize64", &node]));
    // The server may not have read its configuration when the first one is ready.
    stage.wait_until("the device has grown", || {
        stage.longhaul("upgrade mnt");
        size().trim() == (256 << 20).to_string()
    });
    // Behind the file system, which grows when it is told to.
    let device = fs::OpenOptions::new().write(true).open(&node).unwrap();
    device.write_all_at(&[7; 4096], 200 << 20).unwrap();
    device.sync_all().unwrap();
    drop(device);
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    stage.longhaul("umount mnt");
    let mut written = [0; 4096];
    fs::File::open(stage.path("disk.img")).unwrap().read_exact_at(&mut written, 200 << 20).unwrap();
    assert_eq!(written, [7; 4096]);
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

#[test]
fn process_that_cannot_reach_the_server_is_tried_again_until_it_can() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let mount = format!(
        "mount {} mnt --mkfs ext4 --passphrase-file secret --journal j,size=64M",
        stage.uri()
    );
    stage.longhaul(&mount);
    fs::write(stage.mnt().join("file"), "kept").unwrap();
    must(Command::new("sync").arg("-f").arg(stage.mnt()));
    let before = stage.server_after(None);
    server.kill();
    let writer = {
        let path = stage.mnt().join("later");
        stage.signal(Signal::KILL);
        thread::spawn(move || fs::write(path, "written in the outage"))
    };
    stage.wait_until("it is tried again", || stage.log("disk").contains("cannot connect"));
    let (printed, status) = run(&stage.command("status"));
    assert_eq!(status.code(), Some(1), "{printed}");
    let said = format!("{} is served by nobody at the moment", stage.mnt().display());
    assert!(printed.contains(&said), "{printed}");
    let server = stage.serve("--state reservations");
    stage.server_after(Some(before));
    writer.join().unwrap().unwrap();
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    stage.longhaul("umount mnt");
    assert!(server.stop().success());
}

/// The server keeps no reservations through its own end, and is down when the process is killed.
#[test]
fn process_that_is_killed_while_the_reservation_is_lost_is_replaced() {
    let stage = Stage::new();
    let server = stage.serve("");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M", stage.uri()));
    let before = stage.server_after(None);
    server.kill();
    let path = stage.mnt().join("file");
    write_stable(&path, "promised");
    stage.signal(Signal::KILL);
    stage.wait_until("it is tried again", || stage.log("disk").contains("cannot connect"));
    let server = stage.serve("");
    let second = stage.server_after(Some(before));
    assert_eq!(fs::read_to_string(&path).unwrap(), "promised");
    // The same where nothing is left to be sent.
    stage.longhaul("upgrade disk");
    let third = stage.server_after(Some(second));
    write_stable(&path, "and again");
    stage.signal(Signal::KILL);
    stage.server_after(Some(third));
    stage.longhaul("umount disk");
    stage.longhaul("mount disk");
    assert_eq!(fs::read_to_string(&path).unwrap(), "and again");
    stage.longhaul("umount disk");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

/// What the file system remembers of the disk is not true any more.
#[test]
fn mount_does_not_go_on_where_another_wrote_while_nothing_served_it() {
    let stage = Stage::new();
    let server = stage.serve("");
    let link = Link::to(stage.port());
    let uri = stage.uri().replace(&format!(":{}/", stage.port()), &format!(":{}/", link.port));
    stage.longhaul(&format!("mount {uri} mnt --mkfs ext4 --raw --journal j,size=64M"));
    fs::write(stage.mnt().join("file"), "kept").unwrap();
    must(Command::new("sync").arg("-f").arg(stage.mnt()));
    link.shut();
    server.kill();
    stage.signal(Signal::KILL);
    stage.wait_until("another process is started", || stage.log("disk").contains("takes it over"));
    // Another machine is there first, and gone before the way is open.
    let server = stage.serve("");
    fs::write(stage.path("other.img"), vec![7; 4096]).unwrap();
    let mut other = stage.command(&format!("copy other.img {} --force", stage.uri()));
    must(other.env("LONGHAUL_STATE_DIR", stage.path("another-machine")));
    link.open();
    stage.wait_until("it gives up", || stage.log("disk").contains("cannot know whether anybody"));
    run(&stage.command("umount disk"));
    stage.wait_until("the loop device is gone", || stage.leftovers().is_empty());
    assert!(server.stop().success());
}

/// The process is gone, and its mount is not: who would write asks for --take-over.
#[test]
fn mount_that_waits_for_its_next_process_loses_its_volume_to_nobody_of_this_machine() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let link = Link::to(stage.port());
    let uri = stage.uri().replace(&format!(":{}/", stage.port()), &format!(":{}/", link.port));
    // A file system would have something unflushed again and again, and then nothing goes on.
    let node = node(&stage.longhaul(&format!("mount {uri} --device --raw --journal none")));
    let before = stage.server_after(None);
    let device = fs::File::options().write(true).read(true).open(&node).unwrap();
    device.write_all_at(&[1; 4096], 0).unwrap();
    device.sync_all().unwrap();
    link.shut();
    stage.signal(Signal::KILL);
    stage.wait_until("another process is started", || stage.log("disk").contains("takes it over"));
    fs::write(stage.path("other.img"), vec![7; 4096]).unwrap();
    let (printed, status) = run(&stage.command(&format!("copy other.img {} --force", stage.uri())));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("--take-over"), "{printed}");
    link.open();
    stage.server_after(Some(before));
    device.write_all_at(&[2; 4096], 4096).unwrap();
    device.sync_all().unwrap();
    drop(device);
    stage.longhaul("umount disk");
    let volume = fs::read(stage.path("disk.img")).unwrap();
    assert!(volume[..4096] == [1; 4096] && volume[4096..8192] == [2; 4096]);
    assert!(server.stop().success());
}

/// Puts a program in the place of the one at `path`: it answers `--version`, and with a mount to take over does as `ends`
/// says, where `$REAL` is the tested one.
pub(super) fn install_failing(path: &Path, ends: &str) {
    let new = path.with_extension("new");
    let program = format!("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\nREAL={LONGHAUL}\n{ends}\n");
    fs::write(&new, program).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(new, path).unwrap();
}

/// Mounts the volume, by a copy of the program that can be replaced.
pub(super) fn mount_by_a_copy(stage: &Stage) -> PathBuf {
    let program = stage.path("longhaul");
    fs::copy(LONGHAUL, &program).unwrap();
    let mount = format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M", stage.uri());
    let mut command = Command::new(&program);
    stage.environment(command.args(mount.split(' ')).current_dir(stage.home()));
    must(&mut command);
    program
}

/// A mount whose installed program is replaced by one that `ends` so: it goes on by the program that keeps it, `upgrade` says
/// why, and one that is installed later is tried again.
fn mount_goes_on_by_its_own_program_where_the_installed_one(ends: &str, why: &str) {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let program = mount_by_a_copy(&stage);
    let before = stage.server_after(None);
    write_stable(&stage.mnt().join("file"), "kept");
    install_failing(&program, ends);
    let (printed, status) = run(&stage.command("upgrade disk"));
    let own = stage.server_after(Some(before));
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    write_stable(&stage.mnt().join("file"), "and written");
    assert_eq!(status.code(), Some(1), "{printed}");
    let said = format!("{} has not taken the mount over ({why})", program.display());
    assert!(printed.contains(&said), "{printed}");
    // One that is installed later is tried again.
    fs::copy(LONGHAUL, program.with_extension("new")).unwrap();
    fs::rename(program.with_extension("new"), &program).unwrap();
    let told = stage.longhaul("upgrade disk");
    assert!(!told.contains("of the same program as before"), "{told}");
    let installed = stage.server_after(Some(own));
    assert_eq!(fs::read_link(format!("/proc/{installed}/exe")).unwrap(), program);
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "and written");
    stage.longhaul("umount disk");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

/// It may not know how the mount was begun.
#[test]
fn mount_goes_on_by_its_own_program_where_the_installed_one_refuses() {
    mount_goes_on_by_its_own_program_where_the_installed_one("exit 2", "exit status: 2");
}

/// As one does that is something else.
#[test]
fn mount_goes_on_by_its_own_program_where_the_installed_one_ends_without_serving() {
    mount_goes_on_by_its_own_program_where_the_installed_one("exit 0", "exit status: 0");
}

/// It may be for another processor.
#[test]
fn mount_goes_on_by_its_own_program_where_the_installed_one_crashes() {
    let why = "signal: 11 (SIGSEGV)";
    mount_goes_on_by_its_own_program_where_the_installed_one("ulimit -c 0; kill -SEGV $$", why);
}

/// The volume stays reserved: otherwise nobody would know whether others have written since.
#[test]
fn mount_goes_on_by_its_own_program_where_the_installed_one_fails_with_the_volume_open() {
    // It finds no such device.
    let ends = "exec \"$REAL\" \"$@\" --via nbd";
    mount_goes_on_by_its_own_program_where_the_installed_one(ends, "exit status: 1");
}

/// As `journal status` and `journal export` do, which may take long.
#[test]
fn successor_whose_journal_somebody_reads_is_tried_again() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M", stage.uri()));
    let before = stage.server_after(None);
    write_stable(&stage.mnt().join("file"), "kept");
    server.kill();
    stage.signal(Signal::KILL);
    // A process that does not reach the server gives it back, until the next one.
    let journal = fs::File::open(stage.path("j")).unwrap();
    journal.lock_shared().unwrap();
    let in_use = || stage.log("disk").contains("another process uses it");
    stage.wait_until("a successor meets the reader", in_use);
    drop(journal);
    let server = stage.serve("--state reservations");
    stage.server_after(Some(before));
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

/// A read that the server does not answer must not keep everything else waiting.
#[test]
fn mount_whose_server_is_silent_refuses_an_upgrade_and_goes_on() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let mount = format!("mount {} --device --raw --journal j,size=64M", stage.uri());
    let node = node(&stage.longhaul(&mount));
    let device = fs::File::options().read(true).write(true).open(&node).unwrap();
    server.signal(Signal::STOP);
    let reader = device.try_clone().unwrap();
    let reader = thread::spawn(move || reader.read_exact_at(&mut [0; 4096], 64 << 20));
    // It is asked for by the time that this is stable.
    device.write_all_at(&[1; 4096], 0).unwrap();
    device.sync_all().unwrap();
    let (printed, status) = run(&stage.command("upgrade disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("the process goes on as it is"), "{printed}");
    device.write_all_at(&[2; 4096], 4096).unwrap();
    device.sync_all().unwrap();
    server.signal(Signal::CONT);
    reader.join().unwrap().unwrap();
    drop(device);
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

/// A successor could not open what the server lacks, or has as another volume.
#[test]
fn mount_without_a_connection_is_served_on_and_refuses_an_upgrade() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw", stage.uri()));
    server.kill();
    write_stable(&stage.mnt().join("file"), "kept");
    stage.wait_until("the outage is noticed", || stage.log("disk").contains("cannot connect"));
    let (printed, status) = run(&stage.command("upgrade disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("the process goes on as it is"), "{printed}");
    let server = stage.serve("--state reservations");
    stage.longhaul("umount disk");
    stage.longhaul("mount disk");
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

/// It is there all the same.
#[test]
fn process_that_is_stopped_is_named_by_who_would_upgrade_or_end_it() {
    let stage = Stage::new();
    let server = stage.serve("");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw", stage.uri()));
    let pid = stage.server_after(None);
    stage.signal(Signal::STOP);
    for command in ["upgrade", "upgrade disk", "umount disk"] {
        let (printed, status) = run(&stage.command(command));
        assert_eq!(status.code(), Some(1), "{printed}");
        let said = format!("attach-{pid}.sock did not answer");
        assert!(printed.contains(&said) && printed.contains("kill -CONT"), "{printed}");
    }
    let (printed, status) = run(&stage.command("status"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("kill -CONT") && !printed.contains("by nobody"), "{printed}");
    stage.signal(Signal::CONT);
    stage.longhaul("upgrade disk");
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

/// It has handed its mount over by then, and nobody takes that over.
#[test]
fn keeper_that_is_stopped_is_named_by_who_waits_for_a_process() {
    let stage = Stage::new();
    let server = stage.serve("");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw", stage.uri()));
    let kept = stage.kept_processes();
    let keeper = stage.processes().into_iter().find(|pid| !kept.contains(pid)).unwrap();
    let signal = |signal| kill_process(Pid::from_raw(keeper.cast_signed()).unwrap(), signal);
    signal(Signal::STOP).unwrap();
    let goes_on = format!("`kill -CONT {keeper}` lets it go on");
    thread::scope(|scope| {
        let upgrade = scope.spawn(|| stage.longhaul("upgrade disk >upgrade.log"));
        stage.wait_until("status names it", || {
            run(&stage.command("status")).0.contains(&format!("is stopped: {goes_on}"))
        });
        stage.wait_until("upgrade names it", || {
            let said = fs::read_to_string(stage.path("upgrade.log")).unwrap_or_default();
            said.contains(&format!("which is stopped, is waited for; {goes_on}"))
        });
        signal(Signal::CONT).unwrap();
        upgrade.join().unwrap();
    });
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

/// A process that handed over to nobody would end the mount.
#[test]
fn mount_without_its_keeper_is_served_on_and_refuses_an_upgrade() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw", stage.uri()));
    stage.kill_keepers();
    let (printed, status) = run(&stage.command("upgrade disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("kept the mount is gone"), "{printed}");
    fs::write(stage.mnt().join("file"), "kept").unwrap();
    stage.longhaul("umount disk");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

/// The keeper of the last mount may be about to end still.
#[test]
fn volume_is_mounted_again_at_once_after_umount() {
    let stage = Stage::new();
    let server = stage.serve("");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw --journal none", stage.uri()));
    for _ in 0..6 {
        stage.longhaul("umount disk");
        stage.longhaul("mount disk");
    }
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}
