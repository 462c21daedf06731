//! Strangers against the reservations of the target: libiscsi's conformance suites and its own tool.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use longhaul::front::iscsi::{Limits, Node, Server};
use longhaul::front::lun::{Kept, Options, TargetDevice};
use longhaul::state::StateDir;
use longhaul::stop::Stopper;
use proto::iscsi::login::policy::Policy;
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
    server: JoinHandle<()>,
}

impl Running {
    /// Serves a disk whose reservations are kept in `state`.
    async fn start(state: &Path) -> Self {
        let keeper = StateDir::open(state).unwrap().reservations(NAME, 0);
        let options = Options { kept: Some(Kept::by(keeper).unwrap()), ..Options::default() };
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
