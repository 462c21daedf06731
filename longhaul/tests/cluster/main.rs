//! Two gateways of one file, or of one image of Ceph: who is active, what the other one says, and what clients notice when that changes.

#[path = "../common/ceph.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod ceph;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/connect.rs"]
mod connect;
mod faults;
mod groups;
mod images;
mod partition;
#[path = "../common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;
#[path = "../common/port.rs"]
mod port;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{LONGHAUL, PATIENCE, Running, run};
use connect::connect_until_there;
use futures_util::future::join_all;
use longhaul::store::iscsi::{ConnectOptions, Disk};
use peer::{Peer, login, read_16, text};
use port::Port;
use proto::iscsi::header::{Header, ScsiCommand};
use proto::iscsi::initiator::Timeouts;
use proto::iscsi::name::IscsiName;
use proto::iscsi::pdu::Pdu;
use proto::scsi::Sense;
use proto::scsi::sense::{Additional, Key};
use rustix::process::Signal;
use volume::check::Random;
use volume::{Durability, Span, Volume};

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";
const SIZE: u64 = 1 << 20;

const GOOD: u8 = 0x00;
const CONFLICT: u8 = 0x18;

/// What fences: it ends the process whose number is noted. One that the test has ended itself is gone already.
const FENCE: &str = "#!/bin/sh\nset -e\ncd \"$(dirname \"$0\")\"\ntest -f \"$1.pid\" || exit 0\n\
    kill -9 \"$(cat \"$1.pid\")\"\nrm \"$1.pid\"\n";

/// The two gateways `a` and `b`, and the directory that both reach.
struct Pair {
    /// The cluster and the name of the image that they serve, if it is no file.
    image: Option<(Arc<ceph::Cluster>, String)>,
    home: tempfile::TempDir,
    ports: [Port; 2],
    running: [Option<Running>; 2],
    /// The namespaces that they are in, if those are not that of the test. Removed after they have ended.
    links: Option<partition::Links>,
}

const NAMES: [&str; 2] = ["a", "b"];

impl Pair {
    /// Each has a portal of this group.
    fn new(groups: [u16; 2]) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("record")).unwrap();
        fs::File::create(home.path().join("disk.img")).unwrap().set_len(SIZE).unwrap();
        fs::write(home.path().join("fence"), FENCE).unwrap();
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(home.path().join("fence"), executable).unwrap();
        let ports = [Port::reserve(), Port::reserve()];
        let pair = Self { image: None, home, ports, running: [None, None], links: None };
        for (at, name) in NAMES.iter().enumerate() {
            let portal = |at: usize| {
                format!(
                    "{{ address = '127.0.0.1:{}', group = {} }}",
                    pair.ports[at].number, groups[at]
                )
            };
            let config = format!(
                "listen = [{}]\ncontrol = 'control.sock'\n[cluster]\ngateway = '{name}'\ndirectory = '../record'\n\
                 peers = [{}]\nlease = '4s'\nfence = '../fence'\n[volumes.disk]\nuri = 'file:../disk.img'\n",
                portal(at),
                portal(1 - at)
            );
            fs::create_dir(pair.dir(at)).unwrap();
            fs::write(pair.dir(at).join("longhaul.toml"), config).unwrap();
        }
        pair
    }

    /// The same without a fence.
    fn without_fence(groups: [u16; 2]) -> Self {
        let pair = Self::new(groups);
        pair.edit(|config| config.replace("fence = '../fence'\n", ""));
        pair
    }

    /// What the volume holds.
    fn content(&self) -> Vec<u8> {
        let Some((cluster, image)) = &self.image else {
            return fs::read(self.home.path().join("disk.img")).unwrap();
        };
        let copy = self.home.path().join("copy.img");
        cluster.ceph(&format!("rbd export --no-progress rbd/{image} {}", copy.display()));
        let content = fs::read(&copy).unwrap();
        fs::remove_file(copy).unwrap();
        content
    }

    /// Changes the configuration of both.
    fn edit(&self, change: impl Fn(String) -> String) {
        for at in 0..2 {
            let path = self.dir(at).join("longhaul.toml");
            fs::write(&path, change(fs::read_to_string(&path).unwrap())).unwrap();
        }
    }

    fn dir(&self, at: usize) -> PathBuf {
        self.home.path().join(NAMES[at])
    }

    fn pid_file(&self, at: usize) -> PathBuf {
        self.home.path().join(format!("{}.pid", NAMES[at]))
    }

    fn address(&self, at: usize) -> SocketAddr {
        let host = self.links.as_ref().map_or(Ipv4Addr::LOCALHOST, |links| links.hosts[at]);
        SocketAddr::from((host, self.ports[at].number))
    }

    fn start(&mut self, at: usize) {
        let here = || Command::new(LONGHAUL);
        let mut command = self.links.as_ref().map_or_else(here, |links| links.enter(at, LONGHAUL));
        command.args(["serve", "--config", "longhaul.toml"]).current_dir(self.dir(at));
        let running = Running::start(&mut command);
        fs::write(self.pid_file(at), running.pid().to_string()).unwrap();
        assert!(running.line().is_some_and(|line| line.starts_with("ready ")));
        self.running[at] = Some(running);
    }

    /// Both run, and the first one is active.
    fn started(mut self) -> Self {
        self.start(0);
        self.wait_for(0);
        self.start(1);
        self
    }

    /// Ends a gateway as a loss of power would.
    fn kill(&mut self, at: usize) {
        let _ = fs::remove_file(self.pid_file(at));
        self.running[at].take().unwrap().kill();
    }

    fn signal(&self, at: usize, signal: Signal) {
        self.running[at].as_ref().unwrap().signal(signal);
    }

    /// Waits until the fence has ended it.
    fn is_ended(&mut self, at: usize) {
        assert!(!self.running[at].take().unwrap().end().success());
    }

    fn ask(&self, at: usize, words: &[&str]) -> String {
        let mut command = Command::new(LONGHAUL);
        command.arg("cluster").args(words).args(["--control", "control.sock"]);
        let (said, status) = run(command.current_dir(self.dir(at)));
        assert!(status.success(), "{said}");
        said
    }

    /// Returns when it is that.
    fn until(&self, at: usize, role: &str) {
        let last = std::time::Instant::now() + PATIENCE;
        while !self.is(at, role) {
            let now = self.ask(at, &["show"]);
            assert!(std::time::Instant::now() < last, "it is not {role}: {now}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn is(&self, at: usize, role: &str) -> bool {
        self.ask(at, &["show", "--json"]).contains(&format!("\"role\":\"{role}\""))
    }

    /// Returns when it is active.
    fn wait_for(&self, at: usize) {
        self.until(at, "active");
    }

    fn end(mut self) {
        for running in self.running.iter_mut().filter_map(Option::take) {
            assert!(running.stop().success());
        }
    }
}

/// A session of the host `name`.
fn session(portal: SocketAddr, name: &str) -> Peer {
    session_with(portal, name, TARGET)
}

fn session_with(portal: SocketAddr, name: &str, target: &str) -> Peer {
    let mut peer = Peer::connect(portal);
    peer.send(login(1), text(name, target));
    peer.receive().expect("an answer");
    assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
    peer
}

const HOST: &str = "iqn.2001-04.com.example:host";
const OTHER: &str = "iqn.2001-04.com.example:other";

fn good(peer: &mut Peer, cdb: &[u8]) -> Vec<u8> {
    let (status, data) = peer.run_on(0, cdb, Bytes::new(), 252).unwrap();
    assert_eq!(status, GOOD, "{:?}", Sense::parse(&data));
    data
}

/// What a command that reads a block is refused with, if it is.
fn refusal(peer: &mut Peer) -> Option<(Key, Additional)> {
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let (status, data) = peer.run_on(0, &read, Bytes::new(), 512).unwrap();
    if status == GOOD {
        return None;
    }
    Sense::parse(&data).map(|sense| (sense.key, sense.additional))
}

fn write(peer: &mut Peer) -> u8 {
    let (status, _) = peer.run_on(0, &[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], vec![7; 512], 0).unwrap();
    status
}

/// REPORT TARGET PORT GROUPS: each group and its state.
fn groups(peer: &mut Peer) -> Vec<(u16, u8)> {
    let data = good(peer, &[0xA3, 0x0A, 0, 0, 0, 0, 0, 0, 0, 252, 0, 0]);
    data[4..].chunks(12).map(|group| (u16::from(group[3]), group[0] & 0x0F)).collect()
}

fn reserve_out(peer: &mut Peer, action: u8, kind: u8, keys: [u64; 2]) -> u8 {
    let list = [keys[0].to_be_bytes(), keys[1].to_be_bytes(), [0; 8]].concat();
    let cdb = [0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0];
    peer.run_on(0, &cdb, list, 0).unwrap().0
}

/// READ KEYS, but for the generation.
fn keys(peer: &mut Peer) -> Vec<u64> {
    let data = good(peer, &[0x5E, 0, 0, 0, 0, 0, 0, 0, 252, 0]);
    let keys = data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap()));
    keys.collect()
}

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const PREEMPT: u8 = 4;
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;

const STANDBY: Option<(Key, Additional)> = Some((Key::NotReady, Additional::PORT_IN_STANDBY));

/// SPC-4, 5.16: what a path in standby answers, and that every nexus is told when it is none any more. Reservations are
/// those of the unit, whichever path they were made by, with APTPL or without.
#[test]
fn standby_knows_the_reservations_and_takes_over_when_the_active_gateway_is_killed() {
    killed_gateway_is_replaced(Pair::new([1, 2]).started());
}

fn killed_gateway_is_replaced(mut pair: Pair) {
    let (mut active, mut standby) =
        (session(pair.address(0), HOST), session(pair.address(1), HOST));
    assert_eq!(
        (groups(&mut active), groups(&mut standby)),
        (vec![(1, 0), (2, 2)], vec![(1, 0), (2, 2)])
    );
    assert_eq!((refusal(&mut active), refusal(&mut standby)), (None, STANDBY));
    let ready = |peer: &mut Peer| peer.says(0);
    assert_eq!(ready(&mut standby), Some(Additional::PORT_IN_STANDBY));
    let identity = |peer: &mut Peer| good(peer, &[0x12, 1, 0x80, 0, 252, 0]);
    assert_eq!(identity(&mut active), identity(&mut standby), "one serial number");
    let limits = |peer: &mut Peer| good(peer, &[0x12, 1, 0xB0, 0, 252, 0]);
    assert_eq!(limits(&mut active), limits(&mut standby));

    // Registered by each path, and reserved by one.
    assert_eq!(reserve_out(&mut active, REGISTER, 0, [0, 7]), GOOD);
    assert_eq!(keys(&mut standby), [7]);
    assert_eq!(reserve_out(&mut standby, REGISTER, 0, [0, 7]), GOOD);
    assert_eq!(keys(&mut active), [7, 7]);
    let kind = WRITE_EXCLUSIVE_REGISTRANTS;
    assert_eq!(reserve_out(&mut active, RESERVE, kind, [7, 0]), GOOD);
    let mut stranger = session(pair.address(0), OTHER);
    assert_eq!((write(&mut active), write(&mut stranger)), (GOOD, CONFLICT));
    // By the path in standby, and in force at the active one when it is answered.
    let mut other = session(pair.address(1), OTHER);
    assert_eq!(reserve_out(&mut other, REGISTER, 0, [0, 9]), GOOD);
    assert_eq!(reserve_out(&mut other, PREEMPT, kind, [9, 7]), GOOD);
    assert_eq!((keys(&mut stranger), write(&mut active)), (vec![9], CONFLICT));

    pair.kill(0);
    pair.wait_for(1);
    assert_eq!(refusal(&mut other), Some((Key::UnitAttention, Additional::ACCESS_STATE_CHANGED)));
    assert_eq!((groups(&mut other), keys(&mut other)), (vec![(1, 2), (2, 0)], vec![9]));
    assert_eq!((write(&mut other), refusal(&mut other)), (GOOD, None));
    let mut late = session(pair.address(1), HOST);
    assert_eq!(write(&mut late), CONFLICT);
    pair.start(0);
    assert_eq!(refusal(&mut session(pair.address(0), HOST)), STANDBY);
    let last = std::time::Instant::now() + PATIENCE;
    while !pair.ask(0, &["show"]).starts_with("a: standby; the lease has b, epoch ") {
        assert!(std::time::Instant::now() < last, "{}", pair.ask(0, &["show"]));
    }
    pair.end();
}

/// A gateway that is stopped and goes on later answers nothing from the medium: the fence has ended it before another one
/// took over. Without a fence nobody takes over, as the file is locked.
/// The volumes are not closed for nobody: not where the other gateway was never there, nor where it is gone.
#[test]
fn move_without_another_gateway_is_refused_and_changes_nothing() {
    let mut pair = Pair::new([1, 2]);
    pair.start(0);
    pair.wait_for(0);
    let epoch = |pair: &Pair| {
        let told: serde_json::Value =
            serde_json::from_str(&pair.ask(0, &["show", "--json"])).unwrap();
        assert_eq!(told["role"], "active", "{told}");
        told["epoch"].as_u64().unwrap()
    };
    let before = epoch(&pair);
    let refused = |pair: &Pair| {
        let mut command = Command::new(LONGHAUL);
        command.args(["cluster", "move", "--control", "control.sock"]).current_dir(pair.dir(0));
        let (said, status) = run(&command);
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(
            said.contains("no other gateway") && said.contains("nothing was changed"),
            "{said}"
        );
    };
    refused(&pair);
    assert_eq!(epoch(&pair), before);
    pair.start(1);
    pair.until(1, "standby");
    pair.kill(1);
    refused(&pair);
    assert_eq!(epoch(&pair), before);
    pair.start(1);
    pair.ask(0, &["move"]);
    pair.wait_for(1);
    pair.end();
}

#[test]
fn gateway_that_is_stopped_keeps_the_file_until_it_is_fenced() {
    let pair = Pair::without_fence([1, 2]).started();
    let mut active = session(pair.address(0), HOST);
    assert_eq!(refusal(&mut active), None);
    pair.signal(0, Signal::STOP);
    pair.until(1, "taking over");
    assert_eq!(refusal(&mut session(pair.address(1), HOST)), STANDBY);
    // What comes to it meanwhile is not answered from the medium when it goes on, however soon that is.
    for itt in 100..110 {
        let read = active.command(itt, read_16(0, 1));
        active.send(ScsiCommand { read: true, expected_len: 512, ..read }, "");
    }
    pair.signal(0, Signal::CONT);
    // It has lost its lease, lets go of the file, and ends its sessions.
    pair.wait_for(1);
    while let Some(Pdu { header, .. }) = active.receive() {
        let answered = match &header {
            Header::DataIn(_) => true,
            Header::ScsiResponse(response) => response.status == GOOD,
            _ => false,
        };
        assert!(!answered, "{header:?}");
    }
    assert_eq!(refusal(&mut session(pair.address(0), HOST)), STANDBY);
    assert_eq!(refusal(&mut session(pair.address(1), HOST)), None);
    pair.end();
}

fn options() -> ConnectOptions {
    ConnectOptions {
        reconnect_for: None,
        reconnect_every: Duration::from_millis(100),
        timeouts: Timeouts {
            login: Duration::from_secs(2),
            logout: Duration::from_secs(2),
            ..Timeouts::default()
        },
        ..ConnectOptions::new(IscsiName::new("iqn.2026-11.dev.longhaul:client").unwrap())
    }
}

const WORKERS: u64 = 4;
const REGION: u64 = SIZE / WORKERS;
const BLOCK: u64 = 512;

/// Writes, reads and flushes on a region of its own until told to stop; gives what the region holds then.
async fn work(
    disk: Arc<Disk>,
    worker: u64,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> Vec<u8> {
    let (mut random, base) = (Random::new(worker), worker * REGION);
    let mut model = vec![0; REGION as usize];
    while !stop.load(Ordering::Relaxed) {
        let first = random.below(REGION / BLOCK);
        let count = 1 + random.below((REGION / BLOCK - first).min(16));
        let span = Span::new(first * BLOCK, count * BLOCK);
        let range = span.at as usize..span.end() as usize;
        match random.below(8) {
            0 => disk.flush().await.expect("a flush"),
            1..4 => {
                let read = disk.read(Span::new(base + span.at, span.len)).await.expect("a read");
                assert!(read == model[range], "worker {worker} read {span}");
            }
            kind => {
                let data = Bytes::from(random.word().to_le_bytes().repeat(span.len as usize / 8));
                let durability = if kind == 4 { Durability::Durable } else { Durability::Volatile };
                disk.write(base + span.at, data.clone(), durability).await.expect("a write");
                model[range].copy_from_slice(&data);
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    model
}

/// Returns when a hundred more requests were answered.
fn progress(done: &AtomicU64) {
    let (before, last) = (done.load(Ordering::Relaxed), std::time::Instant::now() + PATIENCE);
    while done.load(Ordering::Relaxed) < before + 100 {
        assert!(std::time::Instant::now() < last, "no request is answered");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What happens to the active gateway in each round. `LONGHAUL_TAKEOVERS` says how often.
fn trouble(mut pair: Pair, done: &AtomicU64) -> Pair {
    let rounds = std::env::var("LONGHAUL_TAKEOVERS").ok().and_then(|rounds| rounds.parse().ok());
    let mut active = 0;
    for round in 0..rounds.unwrap_or(6) {
        progress(done);
        let next = 1 - active;
        match round % 3 {
            0 => pair.kill(active),
            1 => {
                pair.signal(active, Signal::STOP);
                pair.is_ended(active);
            }
            _ => drop(pair.ask(active, &["move"])),
        }
        pair.wait_for(next);
        progress(done);
        if pair.running[active].is_none() {
            pair.start(active);
        }
        active = next;
    }
    pair
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_goes_on_without_a_failed_request_when_a_gateway_is_killed_stopped_or_moved() {
    under_load(Pair::new([1, 1]), trouble).await;
}

/// The gateway is gone, and its portal takes connections and answers nothing.
fn freeze(mut pair: Pair, done: &AtomicU64) -> Pair {
    progress(done);
    pair.kill(0);
    let frozen = std::net::TcpListener::bind(pair.address(0)).unwrap();
    pair.wait_for(1);
    progress(done);
    drop(frozen);
    pair
}

/// It does not wait for the whole time that a login may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_goes_on_by_the_other_portal_when_one_answers_no_login() {
    let timeouts = Timeouts { login: 2 * PATIENCE, ..options().timeouts };
    let options = ConnectOptions { timeouts, ..options() };
    under_load_with(options, Pair::new([1, 1]), freeze).await;
}

/// A client uses the volume while there is `trouble`: none of its requests fails, and all is there in the end.
async fn under_load(pair: Pair, trouble: fn(Pair, &AtomicU64) -> Pair) {
    under_load_with(options(), pair, trouble).await;
}

async fn under_load_with(
    options: ConnectOptions,
    mut pair: Pair,
    trouble: fn(Pair, &AtomicU64) -> Pair,
) {
    pair.start(0);
    pair.wait_for(0);
    pair.start(1);
    let connected = connect_until_there(pair.address(0), TARGET, &options);
    let disk = Arc::new(tokio::time::timeout(PATIENCE, connected).await.expect("a session"));
    let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| tokio::spawn(work(disk.clone(), worker, stop.clone(), done.clone())))
        .collect();
    let pair = tokio::task::spawn_blocking(move || trouble(pair, &done)).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let models = tokio::time::timeout(PATIENCE, join_all(workers)).await.expect("no worker hangs");
    let model: Vec<u8> = models.into_iter().flat_map(|model| model.expect("no error")).collect();
    disk.flush().await.expect("a flush");
    assert!(disk.read(Span::new(0, SIZE)).await.expect("a read") == model);
    disk.close().await;
    assert!(pair.content() == model);
    pair.end();
}

/// A URI names the portal of either gateway: the one in standby tells where the other is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_opens_the_volume_by_the_portal_of_the_gateway_in_standby() {
    let pair = Pair::new([1, 1]).started();
    let options = options();
    let connected = connect_until_there(pair.address(1), TARGET, &options);
    let disk = tokio::time::timeout(PATIENCE, connected).await.expect("a session");
    let block = Bytes::from(vec![7; 512]);
    disk.write(512, block.clone(), Durability::Durable).await.expect("a write");
    assert_eq!(disk.read(Span::new(512, 512)).await.expect("a read"), block);
    disk.close().await;
    pair.end();
}
