//! Strangers against the reservations of the target: libiscsi's conformance suites and its own tool.

mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use longhaul::front::iscsi::{Limits, Node, Server};
use longhaul::state::StateDir;
use longhaul::stop::Stopper;
use longhaul::target::lun::{Options, StoredReservations, TargetDevice};
use peer::Peer;
use proto::iscsi::login::policy::Policy;
use proto::scsi::sense::Additional;
use tokio::task::JoinHandle;
use volume::Volume;
use volume::store::memory::Memory;

const NAME: &str = "iqn.2026-11.dev.longhaul:t";

/// The suites of libiscsi that judge reservations.
const SUITES: [&str; 9] = [
    "Mandatory",
    "PrinReadKeys",
    "PrinReportCapabilities",
    "PrinServiceactionRange",
    "ProutClear",
    "ProutPreempt",
    "ProutRegister",
    "ProutReserve",
    "Reserve6",
];

/// A target that runs until the test ends it.
struct Running {
    portal: SocketAddr,
    stopper: Stopper,
    server: JoinHandle<bool>,
}

impl Running {
    /// Serves a disk whose reservations are kept in `state`.
    async fn start(state: &Path) -> Self {
        let keeper = StateDir::open(state).unwrap().reservations(NAME, 0, "1");
        let options =
            Options { kept: Some(StoredReservations::by(keeper).unwrap()), ..Options::default() };
        let volume: Arc<dyn Volume> = Arc::new(Memory::new(64 << 20, 512));
        let device = TargetDevice::new(NAME, [(0, volume, options)]);
        // Nothing but what happens may wake a session: a ping would hide an answer that is stuck.
        let limits = Limits { ping_after: Duration::from_secs(3600), ..Limits::default() };
        let node = Node::new([device], Policy::open).with_limits(limits);
        let server = Server::bind(&[SocketAddr::from(([127, 0, 0, 1], 0))], node).await.unwrap();
        let portal = server.portals()[0];
        let (stopper, stop) = Stopper::new();
        Self { portal, stopper, server: tokio::spawn(server.run(stop)) }
    }

    fn url(&self) -> String {
        format!("iscsi://{}/{NAME}/0", self.portal)
    }

    async fn stop(self) {
        self.stopper.call();
        self.server.await.unwrap();
    }
}

/// Runs a stranger, for a minute at most.
async fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    // What `timeout` says of a program that is not there, and of one that hangs.
    assert_ne!(output.status.code(), Some(127), "{program} is missing: make setup installs it");
    assert_ne!(
        output.status.code(),
        Some(124),
        "{program} {arguments:?} hangs:\n{}",
        said(&output)
    );
    output
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// What a suite said, if it failed or left out anything.
async fn judge(suite: &str) -> Option<String> {
    let home = tempfile::tempdir().unwrap();
    let target = Running::start(home.path()).await;
    let test = format!("--test=ALL.{suite}");
    let output = run("iscsi-test-cu", &["--dataloss", "-V", "-n", &test, &target.url()]).await;
    let said = said(&output);
    assert!(said.contains("Run Summary"), "{suite}:\n{said}");
    target.stop().await;
    let flawless = output.status.success() && !said.contains("[SKIPPED]");
    (!flawless).then(|| format!("{suite}:\n{said}"))
}

/// One process per suite, as one of the suites leaves the tool damaged for those after it, and one target,
/// as they sleep a lot and would otherwise reserve it from each other.
#[tokio::test]
async fn libiscsi_judges_the_reservations() {
    let verdicts = join_all(SUITES.map(judge)).await;
    let failed: Vec<String> = verdicts.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

const GOOD: u8 = 0x00;
const CONFLICT: u8 = 0x18;

/// An initiator that sends one command after the other.
struct TestInitiator(Peer);

impl TestInitiator {
    /// Initiator `n` at the unit that is ready at `uri`; it has been told of the power on.
    fn new(uri: &str, n: u8) -> Self {
        let (portal, rest) = uri.strip_prefix("iscsi://").unwrap().split_once('/').unwrap();
        let (portal, target) = (portal.parse().unwrap(), rest.strip_suffix("/0").unwrap());
        let name = format!("iqn.2001-04.com.example:{n}");
        let mut peer = Peer::log_in(portal, &name, n, target);
        assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
        Self(peer)
    }

    /// The status of a command without data-in.
    fn run(&mut self, cdb: &[u8], data: Vec<u8>) -> u8 {
        self.0.run_on(0, cdb, data, 0).expect("an answer").0
    }

    /// PERSISTENT RESERVE OUT, with APTPL.
    fn change(&mut self, action: u8, kind: u8, key: u64, action_key: u64) -> u8 {
        let mut list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
        list[20] = 0x01;
        self.run(&[0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0], list)
    }

    fn write(&mut self) -> u8 {
        self.run(&[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], vec![0x5A; 512])
    }
}

fn serve(home: &Path) -> Command {
    let mut command = Command::new(common::LONGHAUL);
    command.args(["serve", "--volume", "t=file:t.img,size=1M", "--listen", "127.0.0.1:0"]);
    command.args(["--state", "state"]).current_dir(home);
    command
}

/// Starts `longhaul serve`, and waits until it is ready.
fn start(home: &Path) -> (common::Running, String) {
    let running = common::Running::start(&mut serve(home));
    let line = running.line().expect("a line that says ready");
    let uri = line.strip_prefix("ready ").expect("ready").to_owned();
    (running, uri)
}

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const WRITE_EXCLUSIVE: u8 = 1;

/// What was answered GOOD is there after a kill (SPC-4, 5.13.5); damaged, it is not taken for nothing.
#[test]
fn a_reservation_survives_the_server() {
    let home = tempfile::tempdir().unwrap();
    let (server, uri) = start(home.path());
    let mut owner = TestInitiator::new(&uri, 1);
    assert_eq!(owner.change(REGISTER, 0, 0, 7), GOOD);
    assert_eq!(owner.change(RESERVE, WRITE_EXCLUSIVE, 7, 0), GOOD);
    drop(server); // Killed.
    let (server, uri) = start(home.path());
    assert_eq!(TestInitiator::new(&uri, 2).write(), CONFLICT);
    let mut owner = TestInitiator::new(&uri, 1);
    assert_eq!(owner.write(), GOOD);
    assert_eq!(owner.change(REGISTER, 0, 7, 8), GOOD, "its key is known");
    assert!(server.stop().success());
    let kept = std::fs::read_dir(home.path().join("state")).unwrap().map(|it| it.unwrap().path());
    let kept: Vec<_> = kept.filter(|it| it.is_file()).collect();
    let [kept] = &kept[..] else { panic!("{kept:?}") };
    let mut image = std::fs::read(kept).unwrap();
    let middle = image.len() / 2;
    image[middle] ^= 1;
    std::fs::write(kept, image).unwrap();
    let (printed, status) = common::run(&serve(home.path()));
    assert_eq!(status.code(), Some(1), "{printed}");
    assert!(printed.contains("cannot tell who has reserved unit 0 of iqn"), "{printed}");
    let name = kept.file_name().unwrap().to_str().unwrap();
    let hint = format!("{name} is damaged or cannot be read: bring it back");
    assert!(printed.contains(&hint), "{printed}");
}

/// The loss of a nexus ends its reservation (SPC-2, 5.5.1), and who is told that a session is closed has lost its nexus.
#[test]
fn a_reservation_ends_before_the_logout_is_answered() {
    let home = tempfile::tempdir().unwrap();
    let (server, uri) = start(home.path());
    let mut other = TestInitiator::new(&uri, 2);
    for _ in 0..300 {
        let mut holder = TestInitiator::new(&uri, 1);
        assert_eq!(holder.run(&[0x16, 0, 0, 0, 0, 0], Vec::new()), GOOD);
        assert_eq!(other.write(), CONFLICT);
        holder.0.log_out();
        assert_eq!(other.write(), GOOD);
    }
    assert!(server.stop().success());
}
