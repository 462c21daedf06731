//! Strangers against the target: libiscsi's tools and conformance suites, and qemu.

#[expect(dead_code, reason = "each test uses its part")]
mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use bytes::Bytes;
use longhaul::front::iscsi::{Limits, Node, Server};
use longhaul::stop::{Stop, Stopper};
use longhaul::target::lun::{Options, TargetDevice};
use peer::{NO_ITT, Peer, login, read_16};
use proto::iscsi::chap::{Account, Algorithm, Credentials, Secret};
use proto::iscsi::header::{Header, LoginRequest, NopOut, ScsiCommand};
use proto::iscsi::login::policy::{Client, Policy};
use proto::iscsi::name::IscsiName;
use proto::iscsi::pdu::Pdu;
use tokio::task::{JoinHandle, spawn_blocking};
use volume::Volume;
use volume::store::memory::Memory;

const NAME: &str = "iqn.2026-11.dev.longhaul:t";
const INITIATOR: &str = "iqn.2000-01.example:i";

/// The families of the libiscsi suite that judge the protocol rather than the disk.
const PROTOCOL_FAMILIES: [&str; 4] = ["iSCSIResiduals", "iSCSITMF", "iSCSIcmdsn", "iSCSIdatasn"];

/// A target that runs until the test ends it.
struct Running {
    portal: SocketAddr,
    stopper: Stopper,
    server: JoinHandle<bool>,
}

impl Running {
    async fn start(policy: impl FnOnce(Vec<IscsiName>) -> Policy, limits: Limits) -> Self {
        let volume: Arc<dyn Volume> = Arc::new(Memory::new(64 << 20, 512));
        let device = TargetDevice::new(NAME, [(0, volume, Options::default())]);
        let node = Node::new([device], policy).with_limits(limits);
        let portal = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(&[portal], node).await.unwrap();
        let portal = server.portals()[0];
        let (stopper, stop): (_, Stop) = Stopper::new();
        Self { portal, stopper, server: tokio::spawn(server.run(stop)) }
    }

    async fn open() -> Self {
        Self::start(Policy::open, Limits::default()).await
    }

    fn url(&self) -> String {
        format!("iscsi://{}/{NAME}/0", self.portal)
    }

    async fn stop(self) {
        self.stopper.call();
        self.server.await.unwrap();
    }
}

/// Runs a stranger, for a minute at most; gives whether it succeeded and all it said.
async fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new("timeout");
    command.arg("60").arg(program).args(arguments).stdin(Stdio::null());
    let output = spawn_blocking(move || command.output()).await.unwrap().unwrap();
    // What `timeout` says of a program that is not there, and of one that hangs.
    assert_ne!(output.status.code(), Some(127), "{program} is missing: make setup installs it");
    assert_ne!(output.status.code(), Some(124), "{program} hangs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

async fn succeed(program: &str, arguments: &[&str]) -> String {
    let (success, said) = run(program, arguments).await;
    assert!(success, "{program} {arguments:?}:\n{said}");
    said
}

#[tokio::test]
async fn libiscsi_finds_and_reads_the_disk() {
    let target = Running::open().await;
    let found = succeed("iscsi-ls", &[&format!("iscsi://{}", target.portal)]).await;
    assert!(found.contains(&format!("Target:{NAME} Portal:{},1", target.portal)), "{found}");
    let inquiry = succeed("iscsi-inq", &[&target.url()]).await;
    assert!(inquiry.contains("DIRECT_ACCESS"), "{inquiry}");
    target.stop().await;
}

/// One process per suite: one of the suites leaves the tool damaged for those after it.
#[tokio::test]
async fn libiscsi_judges_the_protocol() {
    let target = Running::open().await;
    let mut failed = BTreeMap::new();
    for family in PROTOCOL_FAMILIES {
        let test = format!("--test=ALL.{family}");
        let (success, said) =
            run("iscsi-test-cu", &["--dataloss", "-V", "-n", &test, &target.url()]).await;
        assert!(said.contains("Run Summary"), "{family}:\n{said}");
        if !success {
            failed.insert(family, said);
        }
    }
    for (family, said) in &failed {
        println!("{family}:\n{said}");
    }
    assert!(failed.is_empty(), "{:?}", failed.keys());
    target.stop().await;
}

#[tokio::test]
async fn qemu_writes_and_reads() {
    let target = Running::open().await;
    let url = target.url();
    let script = ["-c", "write -P 0x5a 0 8M", "-c", "write -P 0xa5 512 4k", "-c", "flush"];
    let said = succeed("qemu-io", &[&["-f", "raw"][..], &script, &[&url]].concat()).await;
    assert!(!said.contains("failed"), "{said}");
    let script =
        ["-c", "read -P 0x5a 0 512", "-c", "read -P 0xa5 512 4k", "-c", "read -P 0x5a 8k 8180k"];
    let said = succeed("qemu-io", &[&["-f", "raw"][..], &script, &[&url]].concat()).await;
    assert!(!said.contains("failed"), "{said}");
    target.stop().await;
}

#[tokio::test]
async fn libiscsi_with_header_digests() {
    let target = Running::open().await;
    let url = format!("{}?header_digest=crc32c", target.url());
    let inquiry = succeed("iscsi-inq", &[&url]).await;
    assert!(inquiry.contains("DIRECT_ACCESS"), "{inquiry}");
    target.stop().await;
}

fn chap(names: Vec<IscsiName>) -> Policy {
    let secret = Secret::new(*b"correct horse").unwrap();
    let credentials = Credentials { name: "user".to_owned(), secret };
    let account = Some(Account::one_way(credentials));
    let client = Client { account, ..Client::default() };
    Policy::closed(names, vec![client], vec![Algorithm::Sha256, Algorithm::Md5])
}

#[tokio::test]
async fn libiscsi_proves_itself() {
    let target = Running::start(chap, Limits::default()).await;
    let url = |account: &str| format!("iscsi://{account}{}/{NAME}/0", target.portal);
    succeed("iscsi-inq", &[&url("user%correct horse@")]).await;
    for wrong in ["user%battery staple@", "other%correct horse@", ""] {
        let (success, said) = run("iscsi-inq", &[&url(wrong)]).await;
        assert!(!success && said.contains("Login Failed"), "{wrong}: {said}");
    }
    target.stop().await;
}

/// A session with the target.
fn session(portal: SocketAddr, isid: u8) -> Peer {
    Peer::log_in(portal, INITIATOR, isid, NAME)
}

/// A connection that never logs in is dropped, and so is one that sends what is no login.
#[tokio::test]
async fn logins_have_to_come_to_an_end() {
    let limits = Limits { login: Duration::from_millis(50), ..Limits::default() };
    let target = Running::start(Policy::open, limits).await;
    let portal = target.portal;
    let strangers = move || {
        assert!(Peer::connect(portal).is_over());
        let mut stranger = Peer::connect(portal);
        stranger.send_raw(&[b'G'; 512]);
        assert!(stranger.is_over());
    };
    spawn_blocking(strangers).await.unwrap();
    target.stop().await;
}

/// RFC 7143, 6.3: who proves nothing may go from the security stage straight to work.
#[tokio::test]
async fn a_login_without_proof_takes_one_step_from_either_stage() {
    let target = Running::open().await;
    let portal = target.portal;
    let logins = move || {
        for (isid, current_stage, method) in [(1, 0, "AuthMethod=None\0"), (2, 1, "")] {
            let keys = format!("InitiatorName={INITIATOR}\0TargetName={NAME}\0{method}");
            let request = LoginRequest { current_stage, ..login(isid) };
            let (mut peer, response) = Peer::ask(portal, request, keys.into());
            assert_eq!((response.status_class, response.next_stage), (0, 3));
            peer.settle();
        }
    };
    spawn_blocking(logins).await.unwrap();
    target.stop().await;
}

/// RFC 7143, 6.3.5: the same initiator and ISID end the older session; another ISID does not.
#[tokio::test]
async fn a_login_anew_replaces_the_session() {
    let target = Running::open().await;
    let portal = target.portal;
    let logins = move || {
        let (mut first, mut other) = (session(portal, 1), session(portal, 2));
        let _again = session(portal, 1);
        let told = first.receive().expect("a word of warning");
        assert!(matches!(told.header, Header::AsyncMessage(_)), "{told:?}");
        assert!(first.is_over());
        other.send(ping(9), Bytes::new());
        let echo = other.receive().expect("an echo");
        assert!(matches!(echo.header, Header::NopIn(nop) if nop.itt == 9), "{echo:?}");
    };
    spawn_blocking(logins).await.unwrap();
    target.stop().await;
}

fn ping(itt: u32) -> NopOut {
    NopOut { immediate: true, itt, ttt: NO_ITT, ..NopOut::default() }
}

/// However much output waits for an initiator that sends without taking answers, nothing of it is lost
/// and the session goes on.
#[tokio::test]
async fn output_that_waits_is_sent_in_the_end() {
    const PINGS: u32 = 6 << 10;
    // More than is held for who does not read, less than the system takes beside it.
    const BEFORE_READING: u32 = 64;
    // All that the initiator takes back.
    const LEN: usize = 8192;
    let target = Running::open().await;
    let portal = target.portal;
    let pings = move || {
        let keys = format!("InitiatorName={INITIATOR}\0TargetName={NAME}\0");
        let (mut answers, _) = Peer::ask(portal, login(1), keys.into());
        let mut questions = answers.twin();
        let (begin, begun) = channel();
        let asking = std::thread::spawn(move || {
            for itt in 0..PINGS {
                questions.send(ping(itt), vec![itt as u8; LEN]);
                if itt == BEFORE_READING {
                    begin.send(()).unwrap();
                }
            }
        });
        begun.recv().unwrap();
        for echoed in 0..PINGS {
            let Some(Pdu { header: Header::NopIn(nop), data, .. }) = answers.receive() else {
                panic!("no echo of {echoed}")
            };
            assert_eq!((nop.itt, data.len()), (echoed, LEN));
        }
        asking.join().unwrap();
    };
    spawn_blocking(pings).await.unwrap();
    target.stop().await;
}

/// More data than a session may hold at once: the commands wait for one another, and all are answered.
#[tokio::test]
async fn reads_beyond_what_is_held_wait_their_turn() {
    const BLOCKS: u32 = longhaul::target::lun::TRANSFER_MAX / 512;
    let target = Running::open().await;
    let portal = target.portal;
    let reads = move || {
        let mut peer = session(portal, 1);
        // The first command of a session is told of the power-on.
        for (itt, blocks) in [(0, 1), (1, BLOCKS), (2, BLOCKS), (3, BLOCKS)] {
            let command = peer.command(itt, read_16(0, blocks));
            let read = ScsiCommand { read: true, expected_len: blocks * 512, ..command };
            peer.send(read, Bytes::new());
        }
        let (mut bytes, mut ended) = (0, Vec::new());
        while ended.len() < 4 {
            let Pdu { header, data, .. } = peer.receive().expect("an answer");
            match header {
                Header::ScsiResponse(response) => ended.push((response.itt, response.status)),
                Header::DataIn(header) => {
                    bytes += data.len();
                    ended.extend(header.has_status.then_some((header.itt, header.status)));
                }
                other => panic!("{other:?}"),
            }
        }
        ended.sort_unstable();
        assert_eq!(ended, [(0, 2), (1, 0), (2, 0), (3, 0)]);
        assert_eq!(bytes, 3 * BLOCKS as usize * 512);
    };
    spawn_blocking(reads).await.unwrap();
    target.stop().await;
}

/// An initiator that does not log out when asked to is told that it is dropped.
#[tokio::test]
async fn a_stop_asks_and_then_ends() {
    let limits = Limits { stop: Duration::from_millis(10), ..Limits::default() };
    let target = Running::start(Policy::open, limits).await;
    let portal = target.portal;
    let mut peer = spawn_blocking(move || session(portal, 1)).await.unwrap();
    target.stop().await;
    let mut events = Vec::new();
    while let Some(pdu) = peer.receive() {
        let Header::AsyncMessage(message) = pdu.header else { panic!("{pdu:?}") };
        events.push(message.event.0);
    }
    assert_eq!(events, [1, 3]);
}
