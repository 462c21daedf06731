//! The target and the client killed at random instants under load, and the target cut off from its power: what was flushed or written with
//! FUA is there afterwards, every block is one that was written whole, and reservations with APTPL are as they
//! were answered.
//!
//! A kill takes what the process holds and leaves what the system caches. A disk that loses its own cache, block
//! by block, stands in for the loss of power.

mod client;
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod common;
mod journal;
mod keys;
#[path = "../common/nbd.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod nbd;
#[path = "../common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;
#[path = "../common/port.rs"]
mod port;
mod writer;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use common::{LONGHAUL, PATIENCE, Running};
use keys::Keys;
use longhaul::front::iscsi::{Node, Server};
use longhaul::stop::Stopper;
use longhaul::target::lun::{Options, TargetDevice};
use peer::Peer;
use proto::iscsi::login::policy::Policy;
use proto::scsi::reservation::Reservations;
use volume::Volume;
use volume::check::Random;
use volume::store::faulty::Faulty;
use writer::{BLOCK, BLOCKS, Counter, Step, Writer};

const DISK: &str = "iqn.2026-11.dev.longhaul:disk";
const KEYS: &str = "iqn.2026-11.dev.longhaul:keys";
const WRITER: &str = "iqn.2000-01.example:writer";
const WRITERS: u32 = 4;
const SIZE: u64 = 1 << 20;

/// Crashes in a run, unless `LONGHAUL_CRASHES` says how many.
const CRASHES: u64 = 40;

/// Answers after which the target dies, at most.
const ANSWERS: u64 = 400;

fn crashes() -> u64 {
    std::env::var("LONGHAUL_CRASHES").map_or(CRASHES, |number| number.parse().unwrap())
}

/// The seed of this run, printed first; `LONGHAUL_SEED` repeats one as far as the system's scheduler lets it.
fn seed() -> u64 {
    let fresh = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed =
        std::env::var("LONGHAUL_SEED").map_or_else(|_| fresh(), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    seed
}

fn writers(seed: u64) -> Vec<Writer> {
    (0..WRITERS).map(|n| Writer::new(n, seed)).collect()
}

/// A session with the disk that has been told of the power on.
fn session(portal: SocketAddr, n: u32) -> Peer {
    let mut peer = Peer::log_in(portal, WRITER, n as u8, DISK);
    peer.settle();
    peer
}

/// What the crash has left, of all writers.
fn check(portal: SocketAddr, writers: &mut [Writer], counter: &Counter) {
    let mut peer = session(portal, WRITERS);
    writers.iter_mut().for_each(|writer| writer.check(&mut peer));
    counter.check(&mut peer, WRITERS.into());
}

fn serve(home: &Path) -> Command {
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--volume", "disk=file:disk.img,size=1M"]);
    command.args(["--volume", "keys=file:keys.img,size=1M"]);
    command.args(["--listen", "127.0.0.1:0", "--state", "state"]).current_dir(home);
    command
}

/// Waits until both volumes can be used; where.
fn ready(server: &Running) -> SocketAddr {
    let mut portal = None;
    for _ in 0..2 {
        let line = server.line().expect("ready");
        portal = line.split('/').nth(2).and_then(|portal| portal.parse().ok());
    }
    portal.expect("ready iscsi://PORTAL/...")
}

/// What is kept is whole at every instant: all of the old or all of the new.
fn check_kept(home: &Path) {
    let Ok(kept) = std::fs::read_dir(home.join("state")) else { return };
    for entry in kept.map(Result::unwrap) {
        // What lies beside was to take its place, and may be half of it.
        if entry.path().extension().is_some_and(|extension| extension == "reservations") {
            let image = std::fs::read(entry.path()).unwrap();
            Reservations::restore(&image).unwrap_or_else(|why| panic!("{:?}: {why}", entry.path()));
        }
    }
}

/// How a run of the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Before it can be used.
    KilledAtStart,
    Killed,
    /// As a user would end it.
    Stopped,
}

fn some_end(random: &mut Random) -> End {
    match random.below(16) {
        0 => End::KilledAtStart,
        1..3 => End::Stopped,
        _ => End::Killed,
    }
}

/// An instant that nothing else determines.
fn pause(random: &mut Random, most: Duration) {
    thread::sleep(Duration::from_nanos(random.below(most.as_nanos() as u64)));
}

#[test]
fn flushed_writes_survive_a_kill() {
    let seed = seed();
    let home = tempfile::tempdir().unwrap();
    let mut random = Random::new(seed);
    let (mut writers, mut keys) = (writers(seed), Keys::new(seed));
    let counter = Counter::new(WRITERS * BLOCKS);
    let (mut kills, mut answers) = (0, 0);
    while kills < crashes() {
        let end = some_end(&mut random);
        kills += u64::from(end == End::Killed);
        let server = Running::start(&mut serve(home.path()));
        if end == End::KilledAtStart {
            pause(&mut random, Duration::from_millis(20));
            server.kill();
        } else {
            let portal = ready(&server);
            check(portal, &mut writers, &counter);
            let until = random.below(ANSWERS);
            answers += until;
            under_load(portal, &mut writers, &mut keys, &counter, |answered| {
                (0..until).for_each(|_| answered.recv_timeout(PATIENCE).expect("it stands still"));
                pause(&mut random, Duration::from_millis(1));
                match end {
                    End::Stopped => assert!(server.stop().success()),
                    End::Killed | End::KilledAtStart => server.kill(),
                }
            });
        }
        if end == End::Stopped {
            writers.iter_mut().for_each(Writer::expect_all);
        }
        check_kept(home.path());
    }
    let server = Running::start(&mut serve(home.path()));
    check(ready(&server), &mut writers, &counter);
    assert!(server.stop().success());
    let lost: u64 = writers.iter().map(|writer| writer.lost).sum();
    println!("{kills} kills under load, {answers} commands answered before them");
    // More than is promised, but the target keeps nothing to itself that it has answered.
    assert_eq!(lost, 0, "a kill has taken what was answered and not yet flushed");
}

/// Runs all initiators until `end` has ended the server; it hears of every answer.
fn under_load(
    portal: SocketAddr,
    writers: &mut [Writer],
    keys: &mut Keys,
    counter: &Counter,
    end: impl FnOnce(&Receiver<()>),
) {
    let mut pair = Keys::log_in(portal, KEYS);
    keys.check(&mut pair);
    let sessions: Vec<_> = (0..WRITERS).map(|n| session(portal, n)).collect();
    let (sender, answered) = channel();
    thread::scope(|scope| {
        for (writer, mut peer) in writers.iter_mut().zip(sessions) {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some(step) = writer.step(&mut peer, counter) {
                    assert_eq!(step, Step::Done, "a command failed");
                    let _ = sender.send(());
                }
            });
        }
        scope.spawn(move || {
            keys.run(&mut pair, || {
                let _ = sender.send(());
            })
        });
        end(&answered);
    });
}

/// The disk forgets what was not flushed, block by block as it likes; the target has to have asked it to keep what
/// it promised.
#[test]
fn flushed_writes_survive_a_loss_of_power() {
    let seed = seed();
    let mut random = Random::new(seed);
    let mut writers = writers(seed);
    let counter = Counter::new(WRITERS * BLOCKS);
    let mut disk = Arc::new(Faulty::new(SIZE, BLOCK));
    for _ in 0..crashes() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let unit: Arc<dyn Volume> = Arc::clone(&disk) as _;
        let device = TargetDevice::new(DISK, [(0, unit, Options::default())]);
        let listen = [SocketAddr::from(([127, 0, 0, 1], 0))];
        let node = Node::new([device], Policy::open);
        let server = runtime.block_on(Server::bind(&listen, node)).unwrap();
        let portal = server.portals()[0];
        let (_stopper, stop) = Stopper::new();
        runtime.spawn(server.run(stop));
        check(portal, &mut writers, &counter);
        let sessions: Vec<_> = (0..WRITERS).map(|n| session(portal, n)).collect();
        disk.cut_after(random.below(ANSWERS));
        thread::scope(|scope| {
            for (writer, mut peer) in writers.iter_mut().zip(sessions) {
                let counter = &counter;
                scope.spawn(move || while writer.step(&mut peer, counter) == Some(Step::Done) {});
            }
        });
        disk = Arc::new(disk.crash(random.word()));
    }
    let lost: u64 = writers.iter().map(|writer| writer.lost).sum();
    println!("{lost} blocks fell back to an older version");
    assert!(lost > 0, "the disk has forgotten nothing, so that nothing was tried");
}
