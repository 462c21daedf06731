//! What goes wrong with a pair of gateways: pauses, preemption while a change is under way, a record that cannot be used, files
//! that are not there, a file system that hangs.

use std::fs;
use std::process::Command;
use std::sync::atomic::AtomicU64;
use std::thread::{scope, sleep, spawn};
use std::time::{Duration, Instant};

use proto::cluster::Record;
use proto::iscsi::header::ScsiCommand;
use rustix::process::Signal;

use crate::common::{PATIENCE, run};
use crate::{
    CONFLICT, GOOD, HOST, LONGHAUL, OTHER, Pair, REGISTER, RESERVE, STANDBY, TARGET,
    WRITE_EXCLUSIVE_REGISTRANTS, keys, progress, refusal, reserve_out, session, under_load, write,
};

const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const BUSY: u8 = 0x08;

pub(crate) fn until_one_is_active(pair: &Pair) {
    let last = Instant::now() + PATIENCE;
    while !pair.is(0, "active") && !pair.is(1, "active") {
        assert!(Instant::now() < last, "{}{}", pair.ask(0, &["show"]), pair.ask(1, &["show"]));
        sleep(Duration::from_millis(20));
    }
}

/// The command block of PERSISTENT RESERVE OUT.
fn out(action: u8) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..10].copy_from_slice(&[0x5F, action, 0, 0, 0, 0, 0, 0, 24, 0]);
    cdb
}

fn list(keys: [u64; 2]) -> Vec<u8> {
    [keys[0].to_be_bytes(), keys[1].to_be_bytes(), [0; 8]].concat()
}

/// What came to it while it was stopped is found when its lease is over. It lets go of the file all the same.
#[test]
fn change_of_reservations_that_comes_after_the_lease_does_not_keep_the_file() {
    let pair = Pair::without_fence([1, 2]).started();
    let mut active = session(pair.address(0), HOST);
    let mut other = session(pair.address(0), OTHER);
    pair.signal(0, Signal::STOP);
    pair.until(1, "taking over");
    for (peer, key) in [(&mut active, 7_u64), (&mut other, 9)] {
        for itt in 100..104 {
            let command = peer.command(itt, out(REGISTER_AND_IGNORE));
            peer.send(ScsiCommand { write: true, expected_len: 24, ..command }, list([0, key]));
        }
    }
    pair.signal(0, Signal::CONT);
    pair.wait_for(1);
    pair.until(0, "standby");
    let mut later = session(pair.address(1), HOST);
    assert!(keys(&mut later).is_empty(), "nobody was told that it is registered");
    assert_eq!(reserve_out(&mut later, REGISTER, 0, [0, 8]), GOOD);
    assert_eq!(keys(&mut session(pair.address(0), HOST)), [8]);
    pair.end();
}

/// The tasks that a preemption ends may be waiting for a change of the reservations themselves.
#[test]
fn preemption_of_one_who_changes_reservations_all_the_time_is_answered() {
    let pair = Pair::new([1, 2]).started();
    let mut other = session(pair.address(1), OTHER);
    assert_eq!(reserve_out(&mut other, REGISTER, 0, [0, 9]), GOOD);
    for _ in 0..4 {
        let mut victim = session(pair.address(0), HOST);
        assert_eq!(reserve_out(&mut victim, REGISTER_AND_IGNORE, 0, [0, 7]), GOOD);
        let mut twin = victim.twin();
        scope(|threads| {
            let preempted = threads.spawn(|| reserve_out(&mut other, PREEMPT_AND_ABORT, 0, [9, 7]));
            for itt in 1000.. {
                if preempted.is_finished() {
                    break;
                }
                let command = twin.command(itt, out(REGISTER_AND_IGNORE));
                let command = ScsiCommand { write: true, expected_len: 24, ..command };
                if twin.try_send(command, list([0, 7])).is_err() {
                    break;
                }
                sleep(Duration::from_millis(10));
            }
            assert_eq!(preempted.join().unwrap(), GOOD);
        });
        assert!(pair.is(0, "active"), "it has kept its lease");
    }
    pair.end();
}

/// SPC-4, 5.13.11.2.6: what the gateway before has begun may land as long as it has not let go of the file.
#[test]
fn preempt_and_abort_waits_for_the_gateway_that_may_still_write() {
    let pair = Pair::without_fence([1, 2]).started();
    let kind = WRITE_EXCLUSIVE_REGISTRANTS;
    let mut victim = session(pair.address(0), HOST);
    assert_eq!(reserve_out(&mut victim, REGISTER, 0, [0, 7]), GOOD);
    assert_eq!(reserve_out(&mut victim, RESERVE, kind, [7, 0]), GOOD);
    let (mut other, mut witness) =
        (session(pair.address(1), OTHER), session(pair.address(1), HOST));
    assert_eq!(reserve_out(&mut other, REGISTER, 0, [0, 9]), GOOD);
    pair.signal(0, Signal::STOP);
    pair.until(1, "taking over");
    let preempted = spawn(move || reserve_out(&mut other, PREEMPT_AND_ABORT, kind, [9, 7]));
    while keys(&mut witness) != [9] {
        sleep(Duration::from_millis(10));
    }
    // The record has it, and the other gateway is where it was stopped.
    assert!(pair.is(1, "taking over") && !preempted.is_finished());
    pair.signal(0, Signal::CONT);
    assert_eq!(preempted.join().unwrap(), GOOD);
    assert!(pair.is(1, "active"));
    assert_eq!(write(&mut session(pair.address(1), HOST)), CONFLICT);
    pair.end();
}

/// As where the file system of the volumes is not mounted.
#[test]
fn file_that_is_missing_is_not_made_and_keeps_nobody_else_from_taking_over() {
    let mut pair = Pair::new([1, 2]);
    pair.edit(|config| format!("{config}size = '1M'\n"));
    pair.start(0);
    pair.wait_for(0);
    pair.start(1);
    let (there, away) = (pair.home.path().join("disk.img"), pair.home.path().join("away.img"));
    fs::rename(&there, &away).unwrap();
    pair.kill(0);
    pair.until(1, "taking over");
    assert_eq!(refusal(&mut session(pair.address(1), HOST)), STANDBY);
    // It gives the lease back after a while, so that another one can try.
    pair.until(1, "standby");
    assert!(!there.exists());
    fs::rename(&away, &there).unwrap();
    pair.wait_for(1);
    assert_eq!(refusal(&mut session(pair.address(1), HOST)), None);
    pair.end();
}

/// To serve a unit without the reservations that others rely on would be to ignore them.
#[test]
fn gateway_that_cannot_read_the_reservations_is_not_active() {
    let mut pair = Pair::new([1, 2]);
    let later = [&[0, 0, 0, 1][..], b"LHRS", &[0xFF; 40]].concat();
    let units = [(format!("{TARGET}/0"), later)].into();
    let record = Record { version: 1, units, ..Record::default() };
    let path = pair.home.path().join(format!("record/record-{:020}", 1));
    fs::write(&path, record.encode()).unwrap();
    pair.start(0);
    sleep(Duration::from_secs(1));
    assert!(pair.ask(0, &["show"]).starts_with("a: standby; the lease has nobody"));
    let mut peer = session(pair.address(0), HOST);
    assert_eq!(refusal(&mut peer), STANDBY);
    assert_eq!(reserve_out(&mut peer, REGISTER, 0, [0, 7]), BUSY);
    // Not touched: another release may know it.
    assert_eq!(fs::read(path).unwrap(), record.encode());
    pair.end();
}

/// A file system of its own, which can be frozen: then what writes to it hangs.
struct FreezableFileSystem {
    place: std::path::PathBuf,
    is_frozen: bool,
}

impl FreezableFileSystem {
    fn mount(pair: &Pair) -> Self {
        let (image, place) = (pair.home.path().join("fs.img"), pair.home.path().join("record"));
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        must(Command::new("mkfs.ext4").arg("-q").arg(&image));
        must(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place));
        Self { place, is_frozen: false }
    }

    fn turn(&mut self, freeze: bool) {
        must(Command::new("fsfreeze").arg(if freeze { "-f" } else { "-u" }).arg(&self.place));
        self.is_frozen = freeze;
    }
}

impl Drop for FreezableFileSystem {
    fn drop(&mut self) {
        if self.is_frozen {
            self.turn(false);
        }
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}

fn must(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}

#[test]
fn record_whose_file_system_hangs_holds_up_nobody_who_asks() {
    let mut pair = Pair::without_fence([1, 2]);
    let mut disk = FreezableFileSystem::mount(&pair);
    pair.start(0);
    pair.wait_for(0);
    pair.start(1);
    let (mut active, mut standby) =
        (session(pair.address(0), HOST), session(pair.address(1), OTHER));
    disk.turn(true);
    pair.until(0, "standby");
    assert_eq!(refusal(&mut session(pair.address(0), HOST)), STANDBY);
    while active.receive().is_some() {}
    for at in 0..2 {
        let mut status = Command::new(LONGHAUL);
        status.args(["status", "--json", "--control", "control.sock"]);
        let (said, status) = run(status.current_dir(pair.dir(at)));
        assert!(status.success() && said.contains("\"cluster\":{\"gateway\":"), "{said}");
    }
    // It is answered, and may be tried again.
    assert_eq!(reserve_out(&mut standby, REGISTER, 0, [0, 9]), BUSY);
    disk.turn(false);
    until_one_is_active(&pair);
    pair.end();
}

/// A directory that was emptied, or beneath which nothing is mounted any more, is not that of a new cluster.
#[test]
fn record_that_was_removed_is_not_begun_anew() {
    let pair = Pair::without_fence([1, 2]).started();
    let mut active = session(pair.address(0), HOST);
    assert_eq!(reserve_out(&mut active, REGISTER, 0, [0, 7]), GOOD);
    assert_eq!(keys(&mut session(pair.address(1), HOST)), [7]);
    let (record, away) = (pair.home.path().join("record"), pair.home.path().join("away"));
    fs::rename(&record, &away).unwrap();
    fs::create_dir(&record).unwrap();
    pair.until(0, "standby");
    assert!(pair.is(1, "standby"));
    assert_eq!(fs::read_dir(&record).unwrap().count(), 0);
    assert_eq!(refusal(&mut session(pair.address(0), HOST)), STANDBY);
    fs::remove_dir(&record).unwrap();
    fs::rename(&away, &record).unwrap();
    until_one_is_active(&pair);
    assert_eq!(keys(&mut session(pair.address(1), HOST)), [7]);
    pair.end();
}

/// What happens besides: the record hangs, everybody asks for the volumes at once, a gateway is ended and started anew.
fn worse_trouble(mut pair: Pair, done: &AtomicU64) -> Pair {
    let mut disk = FreezableFileSystem { place: pair.home.path().join("record"), is_frozen: false };
    for round in 0..6 {
        progress(done);
        let active = usize::from(pair.is(1, "active"));
        match round % 3 {
            0 => {
                disk.turn(true);
                pair.until(active, "standby");
                disk.turn(false);
            }
            1 => {
                let asked = [0, 1, 0, 1, 0, 1].map(|at| {
                    let mut command = Command::new(LONGHAUL);
                    command.args(["cluster", "move", "--control", "control.sock"]);
                    command.current_dir(pair.dir(at)).spawn().unwrap()
                });
                for mut asked in asked {
                    assert!(asked.wait().unwrap().success());
                }
            }
            _ => {
                assert!(pair.running[active].take().unwrap().stop().success());
                pair.wait_for(1 - active);
                pair.start(active);
            }
        }
        until_one_is_active(&pair);
        progress(done);
    }
    pair
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_goes_on_without_a_failed_request_when_the_record_hangs_or_all_move_at_once() {
    let pair = Pair::without_fence([1, 1]);
    let _disk = FreezableFileSystem::mount(&pair);
    under_load(pair, worse_trouble).await;
}

/// Nobody keeps others from preempting him by changing reservations all the time.
#[test]
fn preemption_by_a_standby_comes_between_changes_at_the_active_gateway() {
    let pair = Pair::new([1, 2]).started();
    let mut other = session(pair.address(1), OTHER);
    assert_eq!(reserve_out(&mut other, REGISTER, 0, [0, 9]), GOOD);
    let address = pair.address(0);
    for _ in 0..3 {
        let (tell, told) = std::sync::mpsc::channel();
        // Its last command is aborted, and has no answer.
        spawn(move || {
            let mut victim = session(address, HOST);
            while reserve_out(&mut victim, REGISTER_AND_IGNORE, 0, [0, 7]) == GOOD {
                let _ = tell.send(());
            }
        });
        (0..10).for_each(|_| told.recv().unwrap());
        assert_eq!(reserve_out(&mut other, PREEMPT_AND_ABORT, 0, [9, 7]), GOOD);
        assert!(pair.is(0, "active"));
    }
    pair.end();
}
