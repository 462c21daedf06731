//! Our initiator with a target that knows no command of 16 bytes, or only some (SBC-2 does not demand READ (16) and
//! WRITE (16) of a unit that READ (10) and WRITE (10) can address).

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use longhaul::front::iscsi::{Node, Server};
use longhaul::stop::Stopper;
use longhaul::store::iscsi::{ConnectOptions, Disk, IscsiTarget, connect};
use longhaul::target::lun::{Options, TargetDevice};
use longhaul::uri::Host;
use proto::iscsi::header::BHS_LEN;
use proto::iscsi::login::policy::Policy;
use proto::iscsi::name::IscsiName;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use volume::store::faulty::Faulty;
use volume::store::memory::Memory;
use volume::{Durability, Kind, Space, Span, Volume};

#[path = "common/relay.rs"]
mod relay;

use relay::{CDB, UNKNOWN, is_command, is_unknown_operation, pass};

const NAME: &str = "iqn.2026-11.dev.longhaul:disk";
const SIZE: u64 = 4 << 20;

const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2A;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8A;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;

/// Where a SCSI Response has the additional sense code of fixed format sense data, behind their length.
const ADDITIONAL: Range<usize> = BHS_LEN + 2 + 12..BHS_LEN + 2 + 14;

/// How the target is.
#[derive(Clone, Copy)]
struct Behaviour {
    knows: fn(u8) -> bool,
    refusal: Refusal,
}

/// How it answers what it does not know.
#[derive(Clone, Copy, PartialEq)]
enum Refusal {
    Proper,
    /// ILLEGAL REQUEST with NO ADDITIONAL SENSE INFORMATION.
    Vague,
    /// Without the sense data that RFC 7143, 11.4.7.2, demands.
    Silent,
}

/// SPC-4, 4.2.5.1: the group of an operation code tells the length of its block.
const fn is_of_16_bytes(code: u8) -> bool {
    code >> 5 == 4
}

const SHORT_ONLY: Behaviour =
    Behaviour { knows: |code| !is_of_16_bytes(code), refusal: Refusal::Proper };

const CAPACITY_ONLY: Behaviour =
    Behaviour { knows: |code| !is_of_16_bytes(code) || code == 0x9E, refusal: Refusal::Proper };

/// Likewise, and it does not say what is wrong.
const SILENT: Behaviour = Behaviour { refusal: Refusal::Silent, ..CAPACITY_ONLY };

/// As jSCSI's target: it has neither MODE SENSE (10), nor a caching page, nor a command to empty a cache, nor reservations.
const FEW: Behaviour = Behaviour {
    knows: |code| matches!(code, 0x00 | 0x03 | 0x12 | 0x25 | READ_10 | WRITE_10 | 0x9E | 0xA0),
    refusal: Refusal::Vague,
};

/// A target that gets another operation code in place of each it shall not know.
struct Target {
    way: SocketAddr,
    /// The operation codes that came.
    seen: Arc<Mutex<Vec<u8>>>,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
    _stopper: Stopper,
}

impl Target {
    async fn start(volume: Arc<dyn Volume>, behaviour: Behaviour) -> Self {
        let device = TargetDevice::new(NAME, [(0, volume, Options::default())]);
        let portals = [SocketAddr::from(([127, 0, 0, 1], 0))];
        let server = Server::bind(&portals, Node::new([device], Policy::open)).await.unwrap();
        let portal = server.portals()[0];
        let (stopper, stop) = Stopper::new();
        tokio::spawn(server.run(stop));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = listener.local_addr().unwrap();
        let (seen, connections) = (Arc::<Mutex<_>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let target = Self {
            way,
            seen: Arc::clone(&seen),
            connections: Arc::clone(&connections),
            _stopper: stopper,
        };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let relayed = tokio::spawn(relay(near, portal, behaviour, Arc::clone(&seen)));
                connections.lock().unwrap().push(relayed);
            }
        });
        target
    }

    async fn open(&self) -> Disk {
        let portal = Host { name: self.way.ip().to_string(), port: self.way.port() };
        let target = IscsiTarget { portal, name: IscsiName::new(NAME).unwrap(), lun: 0 };
        let name = IscsiName::new("iqn.2026-11.dev.longhaul:client").unwrap();
        let reconnect_every = Duration::from_millis(20);
        let options =
            ConnectOptions { reconnect_for: None, reconnect_every, ..ConnectOptions::new(name) };
        let disk = connect(&target, &options).await.expect("a session");
        // What is relayed is told apart by its headers alone.
        let parameters = disk.session().established().parameters.clone();
        assert!(!parameters.header_digest && !parameters.data_digest);
        disk
    }

    /// How often one came.
    fn came(&self, code: u8) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| **seen == code).count()
    }

    fn cut(&self) {
        self.connections.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }
}

async fn relay(
    mut near: TcpStream,
    portal: SocketAddr,
    behaviour: Behaviour,
    seen: Arc<Mutex<Vec<u8>>>,
) {
    let mut far = TcpStream::connect(portal).await.unwrap();
    let (mut from_near, mut to_near) = near.split();
    let (mut from_far, mut to_far) = far.split();
    let up = pass(&mut from_near, &mut to_far, |pdu| {
        if is_command(pdu) {
            seen.lock().unwrap().push(pdu[CDB]);
            if !(behaviour.knows)(pdu[CDB]) {
                pdu[CDB] = UNKNOWN;
            }
        }
    });
    let down = pass(&mut from_far, &mut to_near, |pdu| match behaviour.refusal {
        Refusal::Proper => {}
        _ if !is_unknown_operation(pdu) => {}
        Refusal::Vague => pdu[ADDITIONAL].fill(0),
        Refusal::Silent => {
            pdu.truncate(BHS_LEN);
            pdu[5..8].fill(0);
        }
    });
    tokio::select! { () = up => {}, () = down => {} }
}

/// A volume with a cache that is lost with its power.
fn cached() -> Arc<Faulty> {
    Arc::new(Faulty::new(SIZE, 512))
}

fn pattern(at: u64, len: u64) -> Bytes {
    (at..at + len).map(|i| (i * 31 + i / 509) as u8).collect()
}

#[tokio::test]
async fn unit_without_16_byte_commands_is_used_by_those_of_10_bytes() {
    for behaviour in [SHORT_ONLY, CAPACITY_ONLY, SILENT] {
        let medium = cached();
        let target = Target::start(Arc::<Faulty>::clone(&medium), behaviour).await;
        let disk = target.open().await;
        assert_eq!(disk.shape().size, SIZE);
        for (at, len) in [(0, 512), (512, 1 << 20), (SIZE - 4096, 4096)] {
            disk.write(at, pattern(at, len), Durability::Volatile).await.expect("write");
            let back = disk.read(Span::new(at, len)).await.expect("read");
            assert!(back == pattern(at, len), "{len} bytes at {at} came back changed");
        }
        // FUA stands in the short block too: nothing is to be flushed besides.
        disk.write(4096, pattern(7, 4096), Durability::Durable).await.expect("durable write");
        assert_eq!(target.came(SYNCHRONIZE_CACHE_10), 0);
        assert!(disk.read(Span::new(4096, 4096)).await.expect("read") == pattern(7, 4096));
        disk.flush().await.expect("flush");
        assert_eq!(target.came(SYNCHRONIZE_CACHE_10), 1);
        let long = target.came(WRITE_16) + target.came(READ_16);
        assert_eq!(long, 1, "it was asked once only");
        assert!(target.came(WRITE_10) > 0 && target.came(READ_10) > 0);
        // Another session has to find it out again, and writes again what was not flushed.
        disk.write(0, pattern(9, 8192), Durability::Volatile).await.expect("write");
        target.cut();
        assert!(disk.read(Span::new(0, 8192)).await.expect("read") == pattern(9, 8192));
        disk.flush().await.expect("flush");
        assert!(medium.crash(1).contents()[..8192] == pattern(9, 8192));
        disk.close().await;
    }
}

/// SBC-3, 5.22: who has no cache need not know SYNCHRONIZE CACHE.
#[tokio::test]
async fn unit_that_knows_little_and_does_not_say_what_is_wrong_is_used() {
    for refusal in [Refusal::Vague, Refusal::Silent] {
        let medium = Arc::new(Memory::new(SIZE, 512));
        let target = Target::start(medium, Behaviour { refusal, ..FEW }).await;
        let disk = target.open().await;
        assert!(disk.shape().write_cache, "it has not said that it has none");
        disk.write(0, pattern(3, 1 << 20), Durability::Volatile).await.expect("write");
        disk.flush().await.expect("flush");
        disk.write(4096, pattern(7, 4096), Durability::Durable).await.expect("durable write");
        assert_eq!(target.came(SYNCHRONIZE_CACHE_10), 2);
        assert!(disk.read(Span::new(4096, 4096)).await.expect("read") == pattern(7, 4096));
        disk.close().await;
    }
}

/// One that says that it has a cache is not taken for one without.
#[tokio::test]
async fn cache_that_cannot_be_flushed_fails_the_flush() {
    let knows = |code| code != SYNCHRONIZE_CACHE_10;
    let target = Target::start(cached(), Behaviour { knows, refusal: Refusal::Vague }).await;
    let disk = target.open().await;
    disk.write(0, pattern(3, 4096), Durability::Volatile).await.expect("write");
    disk.flush().await.expect_err("what is cached cannot be made durable");
    disk.close().await;
}

#[tokio::test]
async fn zeroes_are_written_by_short_commands_where_no_other_is_known() {
    let target = Target::start(cached(), SHORT_ONLY).await;
    let disk = target.open().await;
    disk.write(0, pattern(0, 1 << 20), Durability::Volatile).await.expect("write");
    let zeroed = Span::new(4096, 512 << 10);
    disk.write_zeroes(zeroed, Durability::Durable, Space::Keep).await.expect("zeroes");
    assert!(disk.read(zeroed).await.expect("read").iter().all(|byte| *byte == 0));
    let rest = Span::new(zeroed.end(), 4096);
    assert!(disk.read(rest).await.expect("read") == pattern(rest.at, rest.len));
    disk.close().await;
}

#[tokio::test]
async fn unit_that_short_commands_cannot_address_is_not_used_by_them() {
    let target = Target::start(Arc::new(Memory::new((512 << 32) + 512, 512)), CAPACITY_ONLY).await;
    let disk = target.open().await;
    let error = disk.read(Span::new(0, 512)).await.expect_err("it cannot be addressed");
    assert_eq!(error.kind, Kind::Unsupported);
    let error = disk.write(0, pattern(0, 512), Durability::Volatile).await.expect_err("likewise");
    assert_eq!(error.kind, Kind::Unsupported);
    assert_eq!(target.came(READ_10) + target.came(WRITE_10), 0);
    disk.close().await;
}

/// Another failure is not taken for a command that is not known.
#[tokio::test]
async fn failure_of_a_16_byte_command_is_not_tried_with_10_bytes() {
    let target =
        Target::start(cached(), Behaviour { knows: |_| true, refusal: Refusal::Proper }).await;
    let disk = target.open().await;
    disk.write(0, pattern(0, 4096), Durability::Volatile).await.expect("write");
    disk.read(Span::new(SIZE, 512)).await.expect_err("beyond its end");
    assert!(target.came(WRITE_16) > 0 && target.came(READ_16) > 0);
    assert_eq!(target.came(READ_10) + target.came(WRITE_10), 0);
    disk.close().await;
}
