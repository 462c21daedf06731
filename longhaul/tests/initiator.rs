//! Our initiator's volume against our own target, and against targets that send it elsewhere.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use longhaul::front::iscsi::{Node, Server};
use longhaul::stop::Stopper;
use longhaul::store::iscsi::{
    ConnectError, ConnectOptions, Connections, Disk, IscsiTarget, SessionError, State, connect,
    discover,
};
use longhaul::target::lun::{Options, TargetDevice};
use longhaul::uri::Host;
use proto::iscsi::chap::{Account, Algorithm, Credentials, Secret};
use proto::iscsi::header::{Header, LoginResponse};
use proto::iscsi::keys::{DigestWish, Offer};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::policy::{Client, Policy};
use proto::iscsi::login::target::PortalRules;
use proto::iscsi::name::IscsiName;
use proto::iscsi::pdu::{Decoder, Frame, Outbox, Pdu};
use proto::scsi::ports::{AccessState, Port};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use volume::store::blocked_writes::BlockedWrites;
use volume::store::faulty::Faulty;
use volume::store::memory::Memory;
use volume::{Durability, ExtentMap, Kind, Space, Span, Verb, Volume, check};

const NAME: &str = "iqn.2026-11.dev.longhaul:disk";
const SIZE: u64 = 48 << 20;

/// A target that runs as long as this lives.
struct Running {
    portal: SocketAddr,
    node: Arc<Node>,
    _stopper: Stopper,
}

async fn serve(
    volume: Arc<dyn Volume>,
    offer: Offer,
    policy: impl FnOnce(Vec<IscsiName>) -> Policy,
) -> Running {
    let device = TargetDevice::new(NAME, [(0, volume, Options::default())]);
    let node = Arc::new(Node::new([device], policy).with_offer(offer));
    let portals = [SocketAddr::from(([127, 0, 0, 1], 0))];
    let server = Server::bind(&portals, Arc::clone(&node)).await.unwrap();
    let portal = server.portals()[0];
    let (stopper, stop) = Stopper::new();
    tokio::spawn(server.run(stop));
    Running { portal, node, _stopper: stopper }
}

async fn serve_memory() -> Running {
    serve(Arc::new(Memory::new(SIZE, 512)), Offer::for_long_links(), Policy::open).await
}

fn portal(address: SocketAddr) -> Host {
    Host { name: address.ip().to_string(), port: address.port() }
}

fn target(address: SocketAddr) -> IscsiTarget {
    IscsiTarget { portal: portal(address), name: IscsiName::new(NAME).unwrap(), lun: 0 }
}

fn options() -> ConnectOptions {
    ConnectOptions::new(IscsiName::new("iqn.2026-11.dev.longhaul:client").unwrap())
}

async fn open(running: &Running) -> Disk {
    connect(&target(running.portal), &options()).await.expect("a session")
}

#[tokio::test]
async fn the_volume_keeps_every_promise() {
    let running = serve_memory().await;
    let disk = open(&running).await;
    let session = disk.session();
    assert_eq!(disk.shape().size, SIZE);
    assert!(disk.shape().discard.is_some() && disk.shape().fast_zeroes);
    check::volume(2, Arc::new(disk)).await;
    session.close().await;
}

/// Behind a target whose store tells of every failure, and behind one whose store tells each once.
#[tokio::test]
async fn no_failure_of_the_store_is_forgotten() {
    // Servers run until they are dropped.
    let kept = Mutex::new(Vec::new());
    for forgets in [false, true] {
        check::truth(512, async |store| {
            if forgets {
                store.forget();
            }
            let running = serve(store, Offer::for_long_links(), Policy::open).await;
            let disk = open(&running).await;
            kept.lock().unwrap().push(running);
            Arc::new(disk) as Arc<dyn Volume>
        })
        .await;
    }
}

/// Reads until the session has so many connections.
async fn await_connections(running: &Running, disk: &Disk, count: usize) {
    loop {
        disk.read(Span::new(0, 4096)).await.unwrap();
        let sessions = running.node.status().sessions;
        assert_eq!(sessions.len(), 1);
        if sessions[0].connections == count {
            return;
        }
    }
}

#[tokio::test]
async fn it_keeps_them_over_several_connections() {
    let several = Offer { max_connections: 4, ..Offer::for_long_links() };
    let running = serve(Arc::new(Memory::new(SIZE, 512)), several, Policy::open).await;
    let options = ConnectOptions { connections: Connections::Fixed(4), ..options() };
    let disk = connect(&target(running.portal), &options).await.expect("a session");
    await_connections(&running, &disk, 4).await;
    let session = disk.session();
    check::volume(4, Arc::new(disk)).await;
    session.close().await;
    // All of them have logged out; the target may not have turned to that yet.
    while !running.node.status().sessions.is_empty() {
        tokio::task::yield_now().await;
    }
}

/// A target that allows one connection gets no other.
#[tokio::test]
async fn as_many_connections_as_the_target_allows() {
    for (allowed, has) in [(1, 1), (2, 2)] {
        let offer = Offer { max_connections: allowed, ..Offer::for_long_links() };
        let running = serve(Arc::new(Memory::new(SIZE, 512)), offer, Policy::open).await;
        let options = ConnectOptions { connections: Connections::Fixed(3), ..options() };
        let disk = connect(&target(running.portal), &options).await.expect("a session");
        await_connections(&running, &disk, has).await;
        for at in 0..64 {
            let data = Bytes::from(vec![at as u8; 1 << 16]);
            disk.write(at << 16, data, Durability::Volatile).await.unwrap();
        }
        await_connections(&running, &disk, has).await;
    }
}

#[tokio::test]
async fn it_keeps_them_where_every_limit_is_small() {
    let small = Offer {
        initial_r2t: true,
        immediate_data: false,
        max_recv_data_segment: 4096,
        max_burst: 16_384,
        first_burst: 512,
        max_outstanding_r2t: 2,
        header_digest: DigestWish::Require,
        data_digest: DigestWish::Require,
        ..Offer::for_long_links()
    };
    let running = serve(Arc::new(Memory::new(SIZE, 512)), small.clone(), Policy::open).await;
    let options = ConnectOptions { offer: small, ..options() };
    let disk = connect(&target(running.portal), &options).await.expect("a session");
    check::volume(3, Arc::new(disk)).await;
}

#[tokio::test]
async fn zeroes_and_holes_cross_the_wire_as_such() {
    let running = serve_memory().await;
    let disk = open(&running).await;
    let all = Span::new(0, SIZE);
    let data = Bytes::from(vec![7; 1 << 20]);
    disk.write(1 << 20, data, Durability::Durable).await.unwrap();
    disk.write_zeroes(all, Durability::Durable, Space::Release).await.unwrap();
    let read = disk.read(Span::new(1 << 20, 1 << 20)).await.unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
    disk.discard(all).await.unwrap();
    if let Some(map) = Volume::extents(&disk) {
        let first = ExtentMap::extents(map, all).await.unwrap()[0];
        assert!(first.hole && first.zero, "{first:?}");
    }
}

#[tokio::test]
async fn every_algorithm_proves_both_sides() {
    let credentials = |name: &str, secret: &str| Credentials {
        name: name.into(),
        secret: Secret::new(secret).unwrap(),
    };
    let mutual = || {
        let alice = credentials("alice", "alice's secret");
        Account::mutual(alice, credentials("disk", "the disk's secret")).unwrap()
    };
    let running = serve(Arc::new(Memory::new(SIZE, 512)), Offer::for_long_links(), |targets| {
        let client = Client { account: Some(mutual()), ..Client::default() };
        Policy::closed(targets, vec![client], Algorithm::ALL.to_vec())
    })
    .await;
    for algorithm in Algorithm::ALL {
        let options =
            ConnectOptions { account: Some(mutual()), algorithms: vec![algorithm], ..options() };
        let disk = connect(&target(running.portal), &options).await.expect("a session");
        disk.read(Span::new(0, 512)).await.expect("a read");
        disk.close().await;
        let found = discover(&portal(running.portal), &options).await.expect("discovery");
        assert_eq!(found[0].name, NAME);
        assert_eq!(found[0].portals, [portal(running.portal)]);
    }
    assert!(discover(&portal(running.portal), &options()).await.is_err(), "without credentials");
}

#[tokio::test]
async fn a_failure_keeps_its_kind_across_the_wire() {
    let faulty = Arc::new(Faulty::new(1 << 20, 512));
    let volume: Arc<dyn Volume> = Arc::<Faulty>::clone(&faulty);
    let running = serve(volume, Offer::for_long_links(), Policy::open).await;
    let disk = open(&running).await;
    for kind in [Kind::Medium, Kind::Integrity, Kind::NoSpace, Kind::ReadOnly] {
        faulty.fail(Verb::Write, kind);
        let data = Bytes::from(vec![1; 512]);
        let error = disk.write(0, data, Durability::Volatile).await.expect_err("it fails once");
        assert_eq!(
            (error.kind, error.verb, error.span),
            (kind, Verb::Write, Some(Span::new(0, 512)))
        );
    }
    // What only time can mend is tried again.
    faulty.fail(Verb::Read, Kind::Busy);
    faulty.fail(Verb::Read, Kind::Busy);
    disk.read(Span::new(0, 512)).await.expect("the third try");
    faulty.fail(Verb::Read, Kind::Gone);
    disk.read(Span::new(0, 512)).await.expect("the next connection");
    faulty.fail(Verb::Flush, Kind::Medium);
    assert_eq!(disk.flush().await.expect_err("it fails once").kind, Kind::Medium);
}

#[tokio::test]
async fn a_read_only_disk_says_so() {
    let running = serve_memory().await;
    let options = ConnectOptions { read_only: true, ..options() };
    let disk = connect(&target(running.portal), &options).await.unwrap();
    assert!(disk.shape().read_only);
}

#[tokio::test]
async fn a_target_that_goes_away_is_gone_where_no_outage_is_ridden_out() {
    let running = serve_memory().await;
    let options = ConnectOptions { reconnect_for: Some(Duration::ZERO), ..options() };
    let disk = connect(&target(running.portal), &options).await.expect("a session");
    drop(running);
    // Until the target has gone a read may still succeed.
    let error = loop {
        if let Err(error) = disk.read(Span::new(0, 512)).await {
            break error;
        }
    };
    assert_eq!(error.kind, Kind::Gone);
}

/// Answers every login with a redirection to `address`.
async fn redirect_to(address: Option<SocketAddr>) -> SocketAddr {
    Redirector::leading_to(address).await.own
}

/// Answers every login with a redirection, which can change.
struct Redirector {
    own: SocketAddr,
    address: Arc<Mutex<SocketAddr>>,
}

impl Redirector {
    /// To itself if to nowhere else.
    async fn leading_to(address: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap();
        let address = Arc::new(Mutex::new(address.unwrap_or(own)));
        let told = Arc::clone(&address);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let address = *told.lock().unwrap();
                answer_with(socket, &format!("TargetAddress={address},1\0")).await;
            }
        });
        Self { own, address }
    }

    fn lead_to(&self, address: SocketAddr) {
        *self.address.lock().unwrap() = address;
    }
}

async fn answer_with(mut socket: TcpStream, text: &str) {
    let (mut decoder, mut buffer) = (Decoder::new(), BytesMut::new());
    let request = loop {
        match decoder.decode(&mut buffer).unwrap() {
            Some(Frame::Pdu(Pdu { header: Header::LoginRequest(request), .. })) => break request,
            Some(other) => panic!("{other:?}"),
            None => assert_ne!(socket.read_buf(&mut buffer).await.unwrap(), 0),
        }
    };
    let status = LoginStatus::MOVED_TEMPORARILY;
    let response = LoginResponse {
        current_stage: request.current_stage,
        isid: request.isid,
        status_class: status.class,
        status_detail: status.detail,
        ..LoginResponse::default()
    };
    let mut outbox = Outbox::new();
    outbox.push_data(response, Bytes::copy_from_slice(text.as_bytes()));
    let mut slices = [std::io::IoSlice::new(&[])];
    outbox.slices(&mut slices);
    socket.write_all(&slices[0]).await.unwrap();
}

#[tokio::test]
async fn a_redirection_is_followed_and_a_circle_is_left() {
    let running = serve_memory().await;
    let redirector = redirect_to(Some(running.portal)).await;
    let disk =
        connect(&target(redirector), &options()).await.expect("a session behind the redirector");
    disk.read(Span::new(0, 512)).await.expect("a read");

    let circle = redirect_to(None).await;
    let error = connect(&target(circle), &options()).await.expect_err("a circle");
    let error = match error {
        ConnectError::Session(why) => why,
        other => panic!("{other:?}"),
    };
    assert!(matches!(error, SessionError::Redirections(_)), "{error:?}");
}

/// A server with a portal in each of two groups.
async fn serve_groups(volume: Arc<dyn Volume>) -> (Vec<SocketAddr>, Arc<Node>, Stopper) {
    let device = TargetDevice::new(NAME, [(0, volume, Options::default())]);
    let groups = [1, 2];
    let ports = groups.map(|group| Port::new(group, AccessState::Optimized));
    let node = Arc::new(Node::new([device], Policy::open).with_ports(ports));
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let portals = groups.map(|portal_group_tag| longhaul::front::iscsi::Portal {
        address,
        rules: PortalRules { portal_group_tag, demanded: None },
    });
    let server = Server::bind(&portals, Arc::clone(&node)).await.unwrap();
    let portals = server.portals().to_vec();
    let (stopper, stop) = Stopper::new();
    tokio::spawn(server.run(stop));
    (portals, node, stopper)
}

/// A way to `address` for one connection, until it is aborted.
async fn lane(address: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap();
    let lane = tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(address).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    (own, lane)
}

/// RFC 7143, 6.3.5: a session is ended by the next of the same portal group. One by another group leaves it
/// alone, and what that has under way could land on top of what is written later.
#[tokio::test]
async fn write_under_way_in_one_portal_group_is_not_sent_again_by_another() {
    let held = Arc::new(BlockedWrites::new(Memory::new(1 << 20, 512)));
    let (portals, node, _stopper) = serve_groups(Arc::clone(&held) as Arc<dyn Volume>).await;
    let under_way = || node.status().targets[NAME].in_flight;
    let (start, lane) = lane(portals[0]).await;
    let redirector = Redirector::leading_to(Some(start)).await;
    let reconnect_every = Duration::from_millis(20);
    let options = ConnectOptions { reconnect_for: None, reconnect_every, ..options() };
    let disk = Arc::new(connect(&target(redirector.own), &options).await.expect("a session"));
    let write = tokio::spawn({
        let disk = Arc::clone(&disk);
        async move { disk.write(0, vec![1; 512].into(), Durability::Volatile).await }
    });
    while under_way() == 0 {
        tokio::task::yield_now().await;
    }
    redirector.lead_to(portals[1]);
    lane.abort();
    while !matches!(disk.state(), State::Reconnecting { attempts: 3.., .. }) && under_way() == 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(under_way(), 1, "nothing was sent to the other group");
    redirector.lead_to(portals[0]);
    held.let_through(2);
    write.await.unwrap().expect("it is carried out in the end");
    assert_eq!(held.passed(), 2);

    // With nothing under way either will do.
    let established = |disk: &Disk| disk.session().established().portal_group_tag;
    assert_eq!(established(&disk), Some(1));
    redirector.lead_to(portals[1]);
    disk.close().await;
    let disk = connect(&target(redirector.own), &options).await.expect("a session");
    assert_eq!(established(&disk), Some(2));
}
