//! Strangers against the target: libiscsi's tools and conformance suites, and qemu.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use longhaul::front::iscsi::{Limits, Node, Server};
use longhaul::front::lun::{Options, TargetDevice};
use longhaul::stop::{Stop, Stopper};
use proto::iscsi::chap::{Account, Algorithm, Credentials, Secret};
use proto::iscsi::header::{Header, LoginRequest, NopOut, ScsiCommand};
use proto::iscsi::login::policy::{Client, Policy};
use proto::iscsi::name::IscsiName;
use proto::iscsi::pdu::{Decoder, Frame, Outbox, Pdu};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use volume::Volume;
use volume::store::memory::Memory;

const NAME: &str = "iqn.2026-11.dev.longhaul:t";

/// The families of the libiscsi suite that judge the protocol rather than the disk.
const PROTOCOL_FAMILIES: [&str; 4] = ["iSCSIResiduals", "iSCSITMF", "iSCSIcmdsn", "iSCSIdatasn"];

/// A target that runs until the test ends it.
struct Running {
    portal: SocketAddr,
    stopper: Stopper,
    server: JoinHandle<()>,
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
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
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

/// A connection that never logs in is dropped, and so is one that sends what is no login.
#[tokio::test]
async fn logins_have_to_come_to_an_end() {
    let limits = Limits { login: Duration::from_millis(50), ..Limits::default() };
    let target = Running::start(Policy::open, limits).await;
    let mut silent = TcpStream::connect(target.portal).await.unwrap();
    assert_eq!(silent.read(&mut [0; 1]).await.unwrap(), 0);
    let mut stranger = TcpStream::connect(target.portal).await.unwrap();
    stranger.write_all(&[b'G'; 512]).await.unwrap();
    let mut said = Vec::new();
    let _ = stranger.read_to_end(&mut said).await;
    assert!(said.is_empty(), "{said:?}");
    target.stop().await;
}

/// The last answer to a login is a success or a refusal.
async fn login_status(stream: &mut TcpStream, isid: u8) -> (u8, u8) {
    let text = format!(
        "InitiatorName=iqn.2000-01.example:i\0TargetName={NAME}\0SessionType=Normal\0AuthMethod=None\0"
    );
    let request = LoginRequest {
        transit: true,
        current_stage: 0,
        next_stage: 3,
        isid: [0x80, 0, 0, 0, 0, isid],
        itt: 1,
        ..LoginRequest::default()
    };
    let mut outbox = Outbox::new();
    outbox.push_pdu(Pdu::with_data(request, text.into()));
    send(stream, &mut outbox).await;
    match receive(stream).await.expect("an answer").header {
        Header::LoginResponse(response) => (response.status_class, response.status_detail),
        other => panic!("{other:?}"),
    }
}

async fn send(stream: &mut TcpStream, outbox: &mut Outbox) {
    while !outbox.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[])];
        outbox.slices(&mut slices);
        let written = stream.write(&slices[0]).await.unwrap();
        outbox.advance(written);
    }
}

/// The next PDU, or the end.
async fn receive(stream: &mut TcpStream) -> Option<Pdu> {
    let (mut decoder, mut buffer) = (Decoder::new(), bytes::BytesMut::new());
    loop {
        match decoder.decode(&mut buffer).unwrap() {
            Some(Frame::Pdu(pdu)) => return Some(pdu),
            Some(flawed) => panic!("{flawed:?}"),
            // Never beyond one PDU, as this decoder is dropped with what it holds.
            None => {
                let mut chunk = vec![0; decoder.wanted()];
                match stream.read(&mut chunk).await.unwrap() {
                    0 => return None,
                    read => buffer.extend_from_slice(&chunk[..read]),
                }
            }
        }
    }
}

/// RFC 7143, 6.3.5: the same initiator and ISID end the older session; another ISID does not.
#[tokio::test]
async fn a_login_anew_replaces_the_session() {
    let target = Running::open().await;
    let mut first = TcpStream::connect(target.portal).await.unwrap();
    assert_eq!(login_status(&mut first, 1).await, (0, 0));
    let mut other = TcpStream::connect(target.portal).await.unwrap();
    assert_eq!(login_status(&mut other, 2).await, (0, 0));
    let mut again = TcpStream::connect(target.portal).await.unwrap();
    assert_eq!(login_status(&mut again, 1).await, (0, 0));
    let told = receive(&mut first).await.expect("a word of warning");
    assert!(matches!(told.header, Header::AsyncMessage(_)), "{told:?}");
    assert_eq!(receive(&mut first).await, None);
    let mut outbox = Outbox::new();
    outbox.push(NopOut { immediate: true, itt: 9, ttt: u32::MAX, cmd_sn: 0, ..NopOut::default() });
    send(&mut other, &mut outbox).await;
    let echo = receive(&mut other).await.expect("an echo");
    assert!(matches!(echo.header, Header::NopIn(nop) if nop.itt == 9), "{echo:?}");
    drop((other, again));
    target.stop().await;
}

/// A ping of 8 KiB, which is all that the initiator takes back.
fn ping(itt: u32) -> Pdu {
    let header = NopOut { immediate: true, itt, ttt: u32::MAX, ..NopOut::default() };
    Pdu::with_data(header, vec![itt as u8; 8192].into())
}

/// However much output waits for an initiator that sends without taking answers, nothing of it is lost
/// and the session goes on.
#[tokio::test]
async fn output_that_waits_is_sent_in_the_end() {
    const PINGS: u32 = 6 << 10;
    // More than is held for who does not read, less than the system takes beside it.
    const BEFORE_READING: u32 = 64;
    let target = Running::open().await;
    let mut stream = TcpStream::connect(target.portal).await.unwrap();
    assert_eq!(login_status(&mut stream, 1).await, (0, 0));
    let (mut answers, mut questions) = stream.into_split();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let asking = tokio::spawn(async move {
        let mut begin = Some(begin);
        for itt in 0..PINGS {
            let mut outbox = Outbox::new();
            outbox.push_pdu(ping(itt));
            while !outbox.is_empty() {
                let mut slices = [std::io::IoSlice::new(&[]); 2];
                let filled = outbox.slices(&mut slices);
                let written = questions.write_vectored(&slices[..filled]).await.unwrap();
                outbox.advance(written);
            }
            if itt == BEFORE_READING {
                begin.take().unwrap().send(()).unwrap();
            }
        }
        questions
    });
    begun.await.unwrap();
    let (mut decoder, mut buffer) = (Decoder::new(), bytes::BytesMut::new());
    let mut echoed = 0;
    while echoed < PINGS {
        match decoder.decode(&mut buffer).unwrap() {
            Some(Frame::Pdu(Pdu { header: Header::NopIn(nop), data, .. })) => {
                assert_eq!((nop.itt, data.len()), (echoed, 8192));
                echoed += 1;
            }
            Some(other) => panic!("{other:?}"),
            None => assert_ne!(answers.read_buf(&mut buffer).await.unwrap(), 0, "at {echoed}"),
        }
    }
    drop((answers, asking.await.unwrap()));
    target.stop().await;
}

/// More data than a session may hold at once: the commands wait for one another, and all are answered.
#[tokio::test]
async fn reads_beyond_what_is_held_wait_their_turn() {
    const BLOCKS: u32 = longhaul::front::lun::TRANSFER_MAX / 512;
    let target = Running::open().await;
    let mut stream = TcpStream::connect(target.portal).await.unwrap();
    assert_eq!(login_status(&mut stream, 1).await, (0, 0));
    let read = |itt: u32, blocks: u32| {
        let mut cdb = [0; 16];
        cdb[0] = 0x88;
        cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
        ScsiCommand {
            is_final: true,
            read: true,
            itt,
            expected_len: blocks * 512,
            cmd_sn: itt,
            cdb,
            ..ScsiCommand::default()
        }
    };
    let mut outbox = Outbox::new();
    // The first command of a session is told of the power-on.
    outbox.push(read(0, 1));
    (1..=3).for_each(|itt| outbox.push(read(itt, BLOCKS)));
    send(&mut stream, &mut outbox).await;
    let (mut decoder, mut buffer) = (Decoder::new(), bytes::BytesMut::new());
    let (mut bytes, mut ended) = (0, Vec::new());
    while ended.len() < 4 {
        match decoder.decode(&mut buffer).unwrap() {
            Some(Frame::Pdu(Pdu { header: Header::ScsiResponse(response), .. })) => {
                ended.push((response.itt, response.status));
            }
            Some(Frame::Pdu(Pdu { header: Header::DataIn(header), data, .. })) => {
                bytes += data.len();
                if header.has_status {
                    ended.push((header.itt, header.status));
                }
            }
            Some(other) => panic!("{other:?}"),
            None => {
                let read =
                    tokio::time::timeout(Duration::from_secs(20), stream.read_buf(&mut buffer));
                assert_ne!(read.await.expect("the session stands still").unwrap(), 0);
            }
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, [(0, 2), (1, 0), (2, 0), (3, 0)]);
    assert_eq!(bytes, 3 * BLOCKS as usize * 512);
    drop(stream);
    target.stop().await;
}

/// An initiator that does not log out when asked to is told that it is dropped.
#[tokio::test]
async fn a_stop_asks_and_then_ends() {
    let limits = Limits { stop: Duration::from_millis(10), ..Limits::default() };
    let target = Running::start(Policy::open, limits).await;
    let mut stream = TcpStream::connect(target.portal).await.unwrap();
    assert_eq!(login_status(&mut stream, 1).await, (0, 0));
    target.stop().await;
    let mut events = Vec::new();
    while let Some(pdu) = receive(&mut stream).await {
        let Header::AsyncMessage(message) = pdu.header else { panic!("{pdu:?}") };
        events.push(message.event.0);
    }
    assert_eq!(events, [1, 3]);
}
