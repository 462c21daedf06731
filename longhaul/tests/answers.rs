//! What the answers of a unit tell of earlier commands, and what becomes of it at our initiator.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use longhaul::front::iscsi::{Node, Server};
use longhaul::front::lun::{Options, TargetDevice};
use longhaul::stop::Stopper;
use longhaul::store::iscsi::{ConnectOptions, Disk, IscsiTarget, connect};
use longhaul::uri::Host;
use proto::iscsi::header::BHS_LEN;
use proto::iscsi::login::policy::Policy;
use proto::iscsi::name::IscsiName;
use proto::scsi::sense::Key;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use volume::store::memory::Memory;
use volume::{Durability, Span, Volume};

const NAME: &str = "iqn.2026-11.dev.longhaul:disk";
const SIZE: u64 = 4 << 20;

/// A target that runs as long as this lives.
struct Running {
    portal: SocketAddr,
    _stopper: Stopper,
}

async fn serve(volume: Arc<dyn Volume>) -> Running {
    let device = TargetDevice::new(NAME, [(0, volume, Options::default())]);
    let portals = [SocketAddr::from(([127, 0, 0, 1], 0))];
    let server = Server::bind(&portals, Node::new([device], Policy::open)).await.unwrap();
    let portal = server.portals()[0];
    let (stopper, stop) = Stopper::new();
    tokio::spawn(server.run(stop));
    Running { portal, _stopper: stopper }
}

async fn open(address: SocketAddr) -> Disk {
    let portal = Host { name: address.ip().to_string(), port: address.port() };
    let target = IscsiTarget { portal, name: IscsiName::new(NAME).unwrap(), lun: 0 };
    let name = IscsiName::new("iqn.2026-11.dev.longhaul:client").unwrap();
    let reconnect_every = Duration::from_millis(20);
    let options =
        ConnectOptions { reconnect_for: None, reconnect_every, ..ConnectOptions::new(name) };
    connect(&target, &options).await.expect("a session")
}

/// No deferred error is to come.
const NONE: u8 = 0xFF;

/// A way to a target on which the next WRITE (16) is not carried out, and is answered with a deferred error of the
/// sense key that `deferred` holds then.
async fn way_with_deferred_errors(to: SocketAddr, deferred: Arc<AtomicU8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let way = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(to).await.unwrap();
            tokio::spawn(relay(near, far, Arc::clone(&deferred)));
        }
    });
    way
}

async fn relay(near: TcpStream, far: TcpStream, deferred: Arc<AtomicU8>) {
    /// Where a SCSI Command PDU has its command block (RFC 7143, 11.3), and a vendor specific operation code.
    const CDB: usize = 32;
    const UNKNOWN: u8 = 0xC0;
    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
    let told = AtomicU8::new(NONE);
    let up = pass(from_near, to_far, |pdu| {
        if pdu[0] & 0x3F == 0x01 && pdu[CDB] == 0x8A {
            let key = deferred.swap(NONE, Ordering::SeqCst);
            if key != NONE {
                told.store(key, Ordering::SeqCst);
                pdu[CDB] = UNKNOWN;
            }
        }
    });
    let down = pass(from_far, to_near, |pdu| {
        // A SCSI Response with CHECK CONDITION, and sense data of fixed format behind their length.
        if pdu[0] & 0x3F == 0x21 && pdu[3] == 2 && pdu[BHS_LEN + 2 + 12] == 0x20 {
            let key = told.swap(NONE, Ordering::SeqCst);
            let sense = &mut pdu[BHS_LEN + 2..];
            if key != NONE {
                (sense[0], sense[2], sense[12]) = (0x71, key, 0x0C);
            }
        }
    });
    tokio::select! { () = up => {}, () = down => {} }
}

/// Passes PDUs on without digests, each as `change` leaves it.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut change: impl FnMut(&mut [u8]),
) {
    loop {
        let mut pdu = vec![0; BHS_LEN];
        if from.read_exact(&mut pdu).await.is_err() {
            return;
        }
        let data = u32::from_be_bytes([0, pdu[5], pdu[6], pdu[7]]) as usize;
        pdu.resize(BHS_LEN + usize::from(pdu[4]) * 4 + data.next_multiple_of(4), 0);
        if from.read_exact(&mut pdu[BHS_LEN..]).await.is_err() {
            return;
        }
        change(&mut pdu);
        if to.write_all(&pdu).await.is_err() {
            return;
        }
    }
}

/// SPC-4, 4.5.7: the command that is told of it was not processed, and an earlier one has failed after GOOD, unless
/// the sense key says that it was carried out.
#[tokio::test]
async fn deferred_error_fails_flushes_and_the_command_runs_again() {
    for (key, lost) in [
        (Key::MediumError, true),
        (Key::AbortedCommand, true),
        (Key::UnitAttention, true),
        (Key::RecoveredError, false),
        (Key::NoSense, false),
    ] {
        let running = serve(Arc::new(Memory::new(SIZE, 512))).await;
        let deferred = Arc::new(AtomicU8::new(NONE));
        let disk =
            open(way_with_deferred_errors(running.portal, Arc::clone(&deferred)).await).await;
        deferred.store(key as u8, Ordering::SeqCst);
        let data = Bytes::from(vec![7; 4096]);
        disk.write(0, data.clone(), Durability::Volatile).await.unwrap();
        assert_eq!(deferred.load(Ordering::SeqCst), NONE, "it came to the unit");
        assert!(disk.read(Span::new(0, 4096)).await.unwrap() == data, "{key:?}: it was written");
        let flushed = disk.flush().await;
        assert_eq!(flushed.is_err(), lost, "{key:?}: {flushed:?}");
        let durable = disk.write(0, data, Durability::Durable).await;
        assert_eq!(durable.is_err(), lost, "{key:?}: {durable:?}");
    }
}
