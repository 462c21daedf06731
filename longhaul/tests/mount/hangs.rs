//! A process that hangs when it takes a mount over, and a keeper that is killed meanwhile.

use std::fs;
use std::io::{BufRead, BufReader};

use rustix::process::Signal;

use super::common::run;
use super::interrupted::{ended, goes_on, signal_all, start, waiting_for_its_server};
use super::stage::{Stage, write_stable};
use super::takeover::{install_failing, mount_by_a_copy};

/// It has asked for the mount, and does not end by itself.
#[test]
fn process_that_hangs_while_it_opens_the_volume_is_killed_and_the_next_one_goes_on() {
    let stage = Stage::new();
    let server = waiting_for_its_server(&stage);
    signal_all(&stage.kept_processes(), Signal::STOP);
    goes_on(&stage, server);
    let log = stage.log("disk");
    assert!(log.contains("it had not opened the volume within 90 seconds"), "{log}");
}

/// It may have begun to serve: what it has read of the kernel is asked again.
#[test]
fn program_that_hangs_as_it_begins_to_serve_is_killed_and_the_other_one_goes_on() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let program = mount_by_a_copy(&stage);
    write_stable(&stage.mnt().join("file"), "kept");
    // It says what a process says that is about to read what the kernel asks, and then nothing more.
    let ends = r#"exec perl -MSocket -e '
        my ($at) = grep { $ARGV[$_] eq "--kept-by" } 0 .. $#ARGV;
        socket(my $keeper, PF_UNIX, SOCK_STREAM, 0) or die;
        connect($keeper, pack_sockaddr_un($ARGV[$at + 1])) or die;
        $keeper->autoflush(1);
        my $greeting = <$keeper>;
        for my $phase ("opening", "taking") { print $keeper "$phase\n"; <$keeper> eq "kept\n" or die; }
        sleep 1000' -- "$@""#;
    install_failing(&program, ends);
    let (printed, status) = run(&stage.command("upgrade disk"));
    assert_eq!(status.code(), Some(1), "{printed}");
    let told = "has not taken the mount over (it had not begun to serve within 30 seconds)";
    assert!(printed.contains(told), "{printed}");
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    stage.longhaul("umount disk");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

/// A process that has what it takes goes on without its keeper, and serves the mount a moment later.
#[test]
fn upgrade_whose_keeper_is_killed_waits_for_the_process_that_takes_the_mount_over() {
    let stage = Stage::new();
    let server = stage.serve("--state reservations");
    let program = mount_by_a_copy(&stage);
    write_stable(&stage.mnt().join("file"), "kept");
    let (begun, goes) = (stage.path("begun"), stage.path("goes"));
    let ends = format!(
        "touch {}; until [ -e {} ]; do sleep 0.02; done; exec \"$REAL\" \"$@\"",
        begun.display(),
        goes.display()
    );
    install_failing(&program, &ends);
    let before = stage.server_after(None);
    let upgrade = start(&stage, "upgrade disk");
    stage.wait_until("the next process is started", || begun.exists());
    server.signal(Signal::STOP);
    fs::write(&goes, "").unwrap();
    let is_opening = || stage.log("disk").contains("waiting for its login response");
    stage.wait_until("the next process waits for the server", is_opening);
    stage.kill_keepers();
    let (printed, status) = run(&stage.command("status"));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("is served by nobody at the moment"), "{printed}");
    server.signal(Signal::CONT);
    let (printed, code) = ended(upgrade);
    let now = stage.server_after(Some(before));
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains(&format!("is served by process {now}")), "{printed}");
    assert_eq!(fs::read_to_string(stage.mnt().join("file")).unwrap(), "kept");
    stage.longhaul("umount disk");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    assert!(server.stop().success());
}

/// Nobody else ends it.
#[test]
fn process_without_a_keeper_that_hangs_is_named_to_the_command_that_waits_for_it() {
    let stage = Stage::new();
    let server = waiting_for_its_server(&stage);
    stage.kill_keepers();
    let process = stage.kept_processes();
    let mut umount = start(&stage, "umount disk");
    let mut told = String::new();
    BufReader::new(umount.stdout.as_mut().unwrap()).read_line(&mut told).unwrap();
    assert!(told.contains(&format!("`kill -KILL {}` ends it if it hangs", process[0])), "{told}");
    signal_all(&process, Signal::KILL);
    server.signal(Signal::CONT);
    let (printed, code) = ended(umount);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("what had not been flushed is lost"), "{printed}");
    assert_eq!(stage.leftovers(), Vec::<String>::new());
    stage.longhaul("mount disk");
    assert_eq!(fs::read_to_string(stage.mnt().join("stable")).unwrap(), "kept");
    stage.longhaul("umount disk");
    assert!(server.stop().success());
}
