//! A takeover that is interrupted: the process that takes a mount over, or its keeper, is told to end, hangs, or is never ready;
//! and several commands at once.

use std::fs;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::common::{Running, run};
use super::stage::{Stage, write_stable};
use super::takeover::{install_failing, mount_by_a_copy};

/// A mount with something that is not flushed, whose process is killed while the server is silent; the next one waits for that.
pub(super) fn waiting_for_its_server(stage: &Stage) -> Running {
    let server = stage.serve("--state reservations");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M", stage.uri()));
    write_stable(&stage.mnt().join("stable"), "kept");
    fs::write(stage.mnt().join("file"), "not synced").unwrap();
    server.signal(Signal::STOP);
    stage.signal(Signal::KILL);
    let is_opening = || stage.log("disk").contains("waiting for its login response");
    stage.wait_until("the next process waits for the server", is_opening);
    server
}

pub(super) fn signal_all(processes: &[u32], signal: Signal) {
    for pid in processes {
        let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
    }
}

fn is_kept(stage: &Stage) {
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    stage.longhaul("mount disk");
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "not synced");
    stage.longhaul("umount disk");
}

/// As `killall` ends them.
#[test]
fn mount_whose_processes_are_all_told_to_end_during_a_takeover_is_unmounted_and_flushed() {
    let stage = Stage::new();
    let server = waiting_for_its_server(&stage);
    signal_all(&stage.processes(), Signal::TERM);
    server.signal(Signal::CONT);
    stage.wait_until("it has ended", || stage.processes().is_empty());
    is_kept(&stage);
    assert!(server.stop().success());
}

/// A process serves the mount once the server answers, and it ends in order.
pub(super) fn goes_on(stage: &Stage, server: Running) {
    server.signal(Signal::CONT);
    stage.server_after(None);
    stage.longhaul("umount disk");
    is_kept(stage);
    assert!(server.stop().success());
}

/// It is as if it had not been there: the next one goes on.
#[test]
fn process_that_is_told_to_end_before_it_serves_leaves_the_mount_to_the_next() {
    let stage = Stage::new();
    let server = waiting_for_its_server(&stage);
    signal_all(&stage.kept_processes(), Signal::TERM);
    let is_told = || stage.log("disk").contains("it was ended before it was open");
    stage.wait_until("it has ended", is_told);
    goes_on(&stage, server);
}

/// As one whose keeper is killed while it serves.
#[test]
fn process_whose_keeper_is_killed_before_it_serves_goes_on_with_the_mount() {
    let stage = Stage::new();
    let server = waiting_for_its_server(&stage);
    stage.kill_keepers();
    goes_on(&stage, server);
}

/// Nothing is unmounted then, and nobody is told that all was well.
#[test]
fn mount_that_nothing_can_serve_when_it_is_to_end_is_told_of_and_left() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let mount =
        format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M --foreground", stage.uri());
    let mount = Running::start(&mut stage.command(&mount));
    assert!(mount.line().is_some_and(|line| line.contains("is mounted at")));
    write_stable(&stage.mnt().join("stable"), "kept");
    server.kill();
    stage.signal(Signal::KILL);
    stage.wait_until("it is tried again", || stage.log("disk").contains("cannot connect"));
    signal_all(&stage.processes(), Signal::TERM);
    assert_eq!(mount.end().code(), Some(1));
    let log = stage.log("disk");
    let journal = stage.path("j");
    for told in [
        "the mount of disk could not be ended as it should: no process serves it",
        &format!("is in the journal {}", journal.display()),
        &format!("{}, /dev/loop", stage.mnt().display()),
        "until `longhaul umount disk`",
    ] {
        assert!(log.contains(told), "{told}: {log}");
    }
    let (printed, status) = run(&stage.command("umount disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    stage.wait_until("the loop device is gone", || stage.leftovers().is_empty());
    let server = stage.serve("--state reservations");
    stage.longhaul("mount disk");
    assert_eq!(fs::read_to_string(stage.mnt().join("stable")).unwrap(), "kept");
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

#[test]
fn installed_program_that_hangs_is_killed_and_the_other_one_goes_on() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let program = mount_by_a_copy(&stage);
    write_stable(&stage.mnt().join("file"), "kept");
    install_failing(&program, "exec sleep 1000");
    let (printed, status) = run(&stage.command("upgrade disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    for told in [
        "the process that is to take it over is waited for",
        "the program of before goes on, as process ",
        "has not taken the mount over (it did not ask for it within 30 seconds)",
    ] {
        assert!(printed.contains(told), "{told}: {printed}");
    }
    write_stable(&stage.mnt().join("file"), "not synced");
    stage.longhaul("umount disk");
    is_kept(&stage);
    assert!(server.stop().success());
}

#[test]
fn mount_is_unmounted_by_a_signal_while_the_installed_program_hangs() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let program = mount_by_a_copy(&stage);
    fs::write(stage.mnt().join("file"), "not synced").unwrap();
    let begun = stage.path("begun");
    install_failing(&program, &format!("touch {}; exec sleep 1000", begun.display()));
    let upgrade = start(&stage, "upgrade disk");
    stage.wait_until("the installed program is started", || begun.exists());
    signal_all(&stage.processes(), Signal::TERM);
    stage.wait_until("it has ended", || stage.processes().is_empty());
    let (printed, code) = ended(upgrade);
    assert_eq!(code, Some(1), "{printed}");
    is_kept(&stage);
    assert!(server.stop().success());
}

#[test]
fn installed_program_that_never_reaches_the_server_takes_turns_with_the_other_one() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let program = mount_by_a_copy(&stage);
    fs::write(stage.mnt().join("file"), "not synced").unwrap();
    install_failing(&program, "exit 69");
    let (printed, status) = run(&stage.command("upgrade disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    let told = format!("{} has not taken the mount over (exit status: 69)", program.display());
    assert!(printed.contains(&told), "{printed}");
    stage.longhaul("umount disk");
    is_kept(&stage);
    assert!(server.stop().success());
}

pub(super) fn start(stage: &Stage, args: &str) -> Child {
    stage.command(args).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// What a command printed, and how it ended.
pub(super) fn ended(command: Child) -> (String, Option<i32>) {
    let output = command.wait_with_output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

#[test]
fn umount_beside_an_upgrade_tells_what_has_become_of_the_volume() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M", stage.uri()));
    for round in 0..16 {
        let file = stage.mnt().join("file");
        fs::write(&file, format!("{round}")).unwrap();
        let upgrade = start(&stage, "upgrade disk");
        // As far as it gets in the time that so many programs take.
        for _ in 0..round {
            run(&Command::new("true"));
        }
        let told = stage.longhaul("umount disk");
        assert!(told.contains("all that was written is on it"), "{round}: {told}");
        let (printed, code) = ended(upgrade);
        let is_true = match code {
            Some(0) => printed.contains("is served by process"),
            _ => [
                "somebody unmounts it",
                "no process serves it any more",
                "nothing that Longhaul has",
            ]
            .iter()
            .any(|told| printed.contains(told)),
        };
        assert!(is_true, "{round}: {code:?} {printed}");
        stage.wait_until("its processes have ended", || stage.processes().is_empty());
        stage.longhaul("mount disk");
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("{round}"));
    }
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}

#[test]
fn several_upgrades_at_once_are_all_told_which_process_serves() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    stage.longhaul(&format!("mount {} mnt --mkfs ext4 --raw --journal j,size=64M", stage.uri()));
    let before = stage.server_after(None);
    let upgrades: Vec<_> = (0..6).map(|_| start(&stage, "upgrade disk")).collect();
    let told: Vec<_> = upgrades.into_iter().map(ended).collect();
    let now = stage.server_after(Some(before));
    for (printed, code) in &told {
        assert_eq!(*code, Some(0), "{told:?}");
        assert!(printed.contains("is served by process"), "{told:?}");
    }
    let is_told = |(printed, _): &(String, _)| printed.contains(&format!("by process {now},"));
    assert!(told.iter().any(is_told), "{now}: {told:?}");
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}
