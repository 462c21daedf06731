//! A volume over HyperSCSI: our client against our server, over UDP.

mod common;
#[path = "hyperscsi/paths.rs"]
mod paths;
#[path = "common/hyperscsi.rs"]
mod raw;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use common::PATIENCE;
use host::link::{Address, Link, Udp};
use longhaul::ciphers::{AES_FIRST, Ciphers};
use longhaul::compression::Compression;
use longhaul::front::hyperscsi::{Node, Offering, Server};
use longhaul::front::iscsi;
use longhaul::stop::Stopper;
use longhaul::store::hyperscsi::{self as store, Credentials, Disk, SessionError, Volume as Named};
use longhaul::store::scsi::{OpenError, Options as ScsiOptions, State};
use longhaul::target::lun::{Options, TargetDevice};
use longhaul::transports;
use longhaul::uri::{Host, HyperScsiOptions, HyperScsiServer};
use proto::hyperscsi::{
    Config, DATA_MAX, Ended, Fill, Level, SITE_KEY_LEN, SiteKey, TaskFunction, TaskResponse,
};
use proto::identity::Identity;
use proto::iscsi::login::policy::{Client, Policy, UnitName};
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::Protection;
use proto::scsi::ports::{AccessState, PORT, Port};
use proto::scsi::sense::Additional;
use proto::scsi::{DeviceType, Sense, Status};
use raw::{Raw, read, site_key, write};
use testing::Random;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use volume::store::blocked_writes::BlockedWrites;
use volume::store::memory::Memory;
use volume::{Durability, Kind, Space, Span, Volume, check};

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";
const NAME: &str = "disk";
const SIZE: u64 = 8 << 20;

fn fill(buffer: &mut [u8]) {
    getrandom::fill(buffer).unwrap();
}

fn random() -> Fill {
    Box::new(fill)
}

fn identity() -> Identity {
    Identity::fresh(&mut fill)
}

/// The keys of a site with one server and one client.
struct Keys {
    server: Identity,
    client: Identity,
    site: SiteKey,
}

impl Keys {
    fn new() -> Self {
        Self { server: identity(), client: identity(), site: site_key() }
    }

    fn credentials(&self) -> Credentials {
        Credentials {
            identity: self.client.clone(),
            site_key: self.site.clone(),
            pin: Some(self.server.public()),
            least: Level::Encrypt,
        }
    }
}

/// A server that runs as long as this lives.
struct Running {
    address: SocketAddr,
    /// All of its addresses.
    addresses: Vec<SocketAddr>,
    node: Arc<Node>,
    stopper: Stopper,
    server: tokio::task::JoinHandle<bool>,
}

/// Serves a volume by HyperSCSI and by iSCSI, to the client alone.
async fn serve(volume: Arc<dyn Volume>, keys: &Keys) -> Running {
    serve_at(SocketAddr::from(([127, 0, 0, 1], 0)), volume, keys).await
}

async fn serve_at(address: SocketAddr, volume: Arc<dyn Volume>, keys: &Keys) -> Running {
    serve_offering(address, offering(Some(volume), keys), keys, DATA_MAX).await
}

/// The volume as unit 0 of the target, for the client alone; or nothing but the target.
fn offering(volume: Option<Arc<dyn Volume>>, keys: &Keys) -> Offering {
    let options = Options { transports: transports::ALL, ..Options::default() };
    let unit = |volume| (0, volume, options.clone());
    let device = Arc::new(TargetDevice::new(TARGET, volume.into_iter().map(unit)));
    let target = IscsiName::new(TARGET).unwrap();
    let client = Client { key: Some(keys.client.public()), ..Client::default() };
    Offering {
        devices: vec![device],
        policy: Policy::closed(vec![target.clone()], vec![client], Vec::new()),
        volumes: BTreeMap::from([(NAME.to_owned(), UnitName { target, lun: 0 })]),
        access: BTreeMap::new(),
        least: Level::Integrity,
    }
}

async fn serve_offering(
    address: SocketAddr,
    offering: Offering,
    keys: &Keys,
    data_max: u32,
) -> Running {
    serve_links(&[address], offering, keys, data_max).await
}

/// The same at several addresses, which connections share.
async fn serve_links(
    addresses: &[SocketAddr],
    offering: Offering,
    keys: &Keys,
    data_max: u32,
) -> Running {
    let iscsi = Arc::new(iscsi::Node::new(offering.devices.clone(), Policy::open));
    let ports = vec![Port::new(PORT, AccessState::Optimized)];
    let node = Arc::new(Node::new(offering, ports, 64 << 20, &iscsi));
    let links = addresses.iter().map(|address| Link::from(Udp::bind(*address).unwrap())).collect();
    let config = Config::ip(keys.server.clone(), keys.site.clone(), AES_FIRST);
    let codecs = compression("any").0;
    let config = Config { data_max, credit: 64 << 20, paths: 4, codecs, ..config };
    let server = Server::new(Arc::clone(&node), (links, Duration::ZERO), config, random()).unwrap();
    let addresses: Vec<_> = server
        .locals()
        .map(|local| match local {
            Address::Ip { remote, .. } => remote,
            Address::Ethernet(_) => panic!("UDP"),
        })
        .collect();
    let beside = iscsi::Server::bind(&[SocketAddr::from(([127, 0, 0, 1], 0))], iscsi).await;
    let beside = beside.unwrap();
    let (stopper, stop) = Stopper::new();
    tokio::spawn(beside.run(stop.clone()));
    let server = tokio::spawn(server.run(stop));
    Running { address: addresses[0], addresses, node, stopper, server }
}

fn place(address: SocketAddr) -> HyperScsiServer {
    HyperScsiServer::Ip(Host { name: address.ip().to_string(), port: address.port() })
}

fn at(address: SocketAddr) -> Named {
    Named {
        server: place(address),
        name: NAME.to_owned(),
        paths: Vec::new(),
        options: HyperScsiOptions::default(),
    }
}

fn compression(name: &str) -> Compression {
    name.parse().unwrap()
}

async fn open(address: SocketAddr, keys: &Keys) -> Result<Disk, OpenError<SessionError>> {
    store::connect(&at(address), &keys.credentials(), ScsiOptions::default()).await
}

fn memory() -> Arc<dyn Volume> {
    Arc::new(Memory::new(SIZE, 512))
}

#[tokio::test]
async fn volume_keeps_every_promise() {
    let keys = Keys::new();
    let running = serve(memory(), &keys).await;
    let disk = open(running.address, &keys).await.expect("a session");
    assert_eq!(disk.shape().size, SIZE);
    check::volume(2, Arc::new(disk)).await;
}

#[tokio::test]
async fn volume_whose_data_are_compressed_keeps_every_promise() {
    for name in ["lz4", "zstd"] {
        let keys = Keys::new();
        let running = serve(memory(), &keys).await;
        let options = HyperScsiOptions { compression: compression(name), ..<_>::default() };
        let volume = Named { options, ..at(running.address) };
        let opened = store::connect(&volume, &keys.credentials(), ScsiOptions::default()).await;
        let disk = Arc::new(opened.expect("a session"));
        let text: Bytes = (0..SIZE).map(|at| (at / 4096) as u8).collect();
        disk.write(0, text.clone(), Durability::Volatile).await.unwrap();
        assert!(disk.read(Span::new(0, SIZE)).await.unwrap() == text);
        // It is noted ten times a second.
        while running.node.status().sessions[0].compression.as_deref() != Some(name) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        check::volume(2, Arc::clone(&disk) as Arc<dyn Volume>).await;
    }
}

#[tokio::test]
async fn volume_whose_data_have_checksums_keeps_every_promise() {
    let keys = Keys::new();
    let running = serve(memory(), &keys).await;
    let options =
        HyperScsiOptions { checksum: true, compression: compression("lz4"), ..<_>::default() };
    let volume = Named { options, ..at(running.address) };
    let opened = store::connect(&volume, &keys.credentials(), ScsiOptions::default()).await;
    let disk = Arc::new(opened.expect("a session"));
    // It is noted ten times a second.
    while running.node.status().sessions[0].checksum.as_deref() != Some("crc32c") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    check::volume(2, Arc::clone(&disk) as Arc<dyn Volume>).await;
}

#[tokio::test]
async fn cipher_is_the_one_that_the_client_asks_for() {
    for name in ["aes-256-gcm", "chacha20-poly1305"] {
        let keys = Keys::new();
        let running = serve(memory(), &keys).await;
        let ciphers = name.parse::<Ciphers>().unwrap();
        let options = HyperScsiOptions { ciphers, ..<_>::default() };
        let volume = Named { options, ..at(running.address) };
        let opened = store::connect(&volume, &keys.credentials(), ScsiOptions::default()).await;
        let disk = Arc::new(opened.expect("a session"));
        // It is noted ten times a second.
        while running.node.status().sessions[0].cipher.as_deref() != Some(name) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        check::volume(2, Arc::clone(&disk) as Arc<dyn Volume>).await;
    }
}

/// The server tells the lowest level of a volume, and the client that which it takes.
#[tokio::test]
async fn volume_has_the_higher_level_of_both_ends() {
    use Level::{Encrypt, Integrity, None};
    for (server, demanded, client, level) in [
        (Integrity, Option::None, Encrypt, Encrypt),
        (Integrity, Option::None, Integrity, Integrity),
        (Integrity, Option::None, None, Integrity),
        (Integrity, Some(Protection::Encrypt), Integrity, Encrypt),
        (None, Option::None, None, None),
        (None, Option::None, Encrypt, Encrypt),
        (None, Some(Protection::Integrity), None, Integrity),
    ] {
        let keys = Keys::new();
        let mut offering = Offering { least: server, ..offering(Some(memory()), &keys) };
        if let Some(demanded) = demanded {
            let target = IscsiName::new(TARGET).unwrap();
            offering.policy = offering.policy.demanding(target, demanded);
        }
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let running = serve_offering(any, offering.clone(), &keys, DATA_MAX).await;
        let credentials = Credentials { least: client, ..keys.credentials() };
        let volume = at(running.address);
        let opened = store::connect(&volume, &credentials, ScsiOptions::default()).await;
        let disk = Arc::new(opened.expect("a session"));
        let status = running.node.status();
        assert_eq!(status.sessions[0].protection.as_deref(), Some(level.name()));
        check::volume(1, Arc::clone(&disk) as Arc<dyn Volume>).await;
        let number = status.sessions[0].number;
        // More is demanded now: what is below goes over to it.
        let target = IscsiName::new(TARGET).unwrap();
        let policy = offering.policy.clone().demanding(target, Protection::Encrypt);
        let (ended, gone) = running.node.replace(Offering { policy, ..offering.clone() });
        assert_eq!(ended, 0);
        gone.await;
        while running.node.status().sessions[0].protection.as_deref() != Some("encrypt") {
            disk.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
        }
        check::volume(1, Arc::clone(&disk) as Arc<dyn Volume>).await;
        // And back, as far as the client lets it.
        running.node.replace(offering).1.await;
        while running.node.status().sessions[0].protection.as_deref() != Some(level.name()) {
            disk.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
        }
        assert_eq!(running.node.status().sessions[0].number, number, "it is the same session");
    }
}

/// PREVENT ALLOW MEDIUM REMOVAL holds for the nexus: for as long as there is a connection.
#[tokio::test]
async fn medium_stays_locked_until_the_connection_ends() {
    const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 2, 0];
    const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 3, 0];
    let keys = Keys::new();
    let options = Options { transports: transports::ALL, removable: true, ..Options::default() };
    let device = Arc::new(TargetDevice::new(TARGET, [(0, memory(), options)]));
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let offering = Offering { devices: vec![device], ..offering(None, &keys) };
    let running = serve_offering(any, offering, &keys, DATA_MAX).await;
    let mut other = Raw::connect(running.address, &keys.client, 7).await;
    let _told = other.run(NAME, &[0; 6], vec![], 0).await;
    for media_lock in [false, true] {
        let options = HyperScsiOptions { media_lock, ..<_>::default() };
        let volume = Named { options, ..at(running.address) };
        let opened = store::connect(&volume, &keys.credentials(), ScsiOptions::default()).await;
        let disk = opened.expect("a session");
        let reply = other.run(NAME, &EJECT, vec![], 0).await.unwrap();
        if !media_lock {
            assert_eq!(reply.status, Status::Good);
            assert_eq!(other.run(NAME, &LOAD, vec![], 0).await.unwrap().status, Status::Good);
            continue;
        }
        let sense = Sense::parse(&reply.sense).unwrap();
        assert_eq!(sense.additional, Additional::MEDIUM_REMOVAL_PREVENTED);
        drop(disk);
        let ejected = async {
            while other.run(NAME, &EJECT, vec![], 0).await.unwrap().status != Status::Good {}
        };
        timeout(PATIENCE, ejected).await.expect("nobody holds the medium any more");
    }
}

/// Behind a server whose store tells of every failure, and behind one whose store tells each once.
#[tokio::test]
async fn no_failure_of_the_store_is_forgotten() {
    // Servers run until they are dropped.
    let kept = std::sync::Mutex::new(Vec::new());
    for forgets in [false, true] {
        check::truth(512, async |store| {
            if forgets {
                store.forget();
            }
            let keys = Keys::new();
            let running = serve(store, &keys).await;
            let disk = open(running.address, &keys).await.expect("a session");
            kept.lock().unwrap().push((running, keys));
            Arc::new(disk) as Arc<dyn Volume>
        })
        .await;
    }
}

#[tokio::test]
async fn large_requests_arrive_whole() {
    let keys = Keys::new();
    let running = serve(memory(), &keys).await;
    let disk = open(running.address, &keys).await.expect("a session");
    let data: Bytes = (0..4 << 20).map(|at: u32| (at / 512 * 31 + at) as u8).collect();
    disk.write(0, data.clone(), Durability::Durable).await.unwrap();
    let read = disk.read(Span::new(0, data.len() as u64)).await.unwrap();
    assert!(read == data);
    disk.write_zeroes(Span::new(0, 1 << 20), Durability::Volatile, Space::Keep).await.unwrap();
    assert!(disk.read(Span::new(0, 4096)).await.unwrap().iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn stranger_is_told_nothing() {
    let keys = Keys::new();
    let running = serve(memory(), &keys).await;
    let with = |credentials| async move {
        let volume = at(running.address);
        let connected = store::connect(&volume, &credentials, ScsiOptions::default()).await;
        connected.map(drop).unwrap_err()
    };
    let other_site = SiteKey::from_bytes([8; SITE_KEY_LEN]);
    let (site, client, server) = tokio::join!(
        with(Credentials { site_key: other_site, ..keys.credentials() }),
        with(Credentials { identity: identity(), ..keys.credentials() }),
        with(Credentials { pin: Some(identity().public()), ..keys.credentials() }),
    );
    for why in [site, client, server] {
        assert!(matches!(why, OpenError::Session(_)), "{why}");
    }
    assert!(running.node.status().sessions.is_empty());
}

#[tokio::test]
async fn volume_that_is_not_there_is_named_with_those_that_are() {
    let keys = Keys::new();
    let running = serve(memory(), &keys).await;
    let volume = Named { name: "other".to_owned(), ..at(running.address) };
    let why = store::connect(&volume, &keys.credentials(), ScsiOptions::default()).await;
    let why = why.map(drop).unwrap_err().to_string();
    assert!(why.contains("has no volume other") && why.contains("it has disk"), "{why}");
    let names = store::volumes(&volume.server, &keys.credentials()).await.unwrap();
    assert_eq!(names, [NAME]);
}

/// What was acknowledged and not flushed is written again by the new connection.
#[tokio::test]
async fn disk_goes_on_when_the_server_is_there_again() {
    let keys = Keys::new();
    let store = memory();
    let running = serve(Arc::clone(&store), &keys).await;
    let address = running.address;
    let disk = Arc::new(open(address, &keys).await.expect("a session"));
    disk.write(0, vec![1; 4096].into(), Durability::Volatile).await.unwrap();
    running.stopper.call();
    assert!(running.server.await.unwrap());
    let write = {
        let disk = Arc::clone(&disk);
        tokio::spawn(
            async move { disk.write(4096, vec![2; 4096].into(), Durability::Durable).await },
        )
    };
    let _again = serve_at(address, Arc::clone(&store), &keys).await;
    write.await.unwrap().unwrap();
    let both = disk.read(Span::new(0, 8192)).await.unwrap();
    assert!(both[..4096].iter().all(|b| *b == 1) && both[4096..].iter().all(|b| *b == 2));
}

/// Long before the connection is given up.
#[tokio::test]
async fn server_that_does_not_answer_is_told_while_there_is_a_connection() {
    let keys = Keys::new();
    let running = serve(memory(), &keys).await;
    let opened = open(running.address, &keys).await.unwrap().opened();
    let probe = opened.abilities.probe.clone().unwrap();
    assert_eq!((probe.state(), probe.silence()), (State::Connected, None));
    running.server.abort();
    let read = tokio::spawn(async move { opened.volume.read(Span::new(0, 4096)).await });
    let until = std::time::Instant::now() + PATIENCE;
    while probe.silence().is_none() {
        assert_eq!(probe.state(), State::Connected, "it is given up, and nothing was told before");
        assert!(std::time::Instant::now() < until, "it is not told");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    read.abort();
}

#[tokio::test]
async fn server_that_is_gone_is_an_error_when_the_outage_lasts() {
    let keys = Keys::new();
    let running = serve(memory(), &keys).await;
    let options = ScsiOptions { reconnect_for: Some(Duration::ZERO), ..ScsiOptions::default() };
    let disk = store::connect(&at(running.address), &keys.credentials(), options).await.unwrap();
    running.stopper.call();
    assert!(running.server.await.unwrap());
    let failed = disk.read(Span::new(0, 4096)).await.unwrap_err();
    assert_eq!(failed.kind, Kind::Gone, "{failed}");
}

/// What another connection ends is answered so (docs/spec/hyperscsi.md): it is sent again, and the disk goes on.
#[tokio::test]
async fn write_that_another_connection_has_ended_is_carried_out() {
    for function in [TaskFunction::LogicalUnitReset, TaskFunction::ClearTaskSet] {
        let keys = Keys::new();
        let blocked = Arc::new(BlockedWrites::new(Memory::new(SIZE, 512)));
        let running = serve(Arc::clone(&blocked) as Arc<dyn Volume>, &keys).await;
        let disk = Arc::new(open(running.address, &keys).await.expect("a session"));
        let write = tokio::spawn({
            let disk = Arc::clone(&disk);
            async move { disk.write(0, vec![7; 4096].into(), Durability::Volatile).await }
        });
        while blocked.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        let mut other = Raw::connect(running.address, &keys.client, 1).await;
        let managed = other.begin_to_manage(NAME, function);
        // The server has taken that, and told the session of the disk, when it answers what is sent afterwards.
        for _ in 0..3 {
            assert!(other.run(NAME, &[0; 6], vec![], 0).await.is_some());
        }
        blocked.let_through(usize::MAX);
        assert_eq!(other.managed(managed).await, TaskResponse::Complete);
        write.await.unwrap().expect("it is carried out");
        disk.flush().await.expect("the disk goes on");
        let data = disk.read(Span::new(0, 4096)).await.unwrap();
        assert!(data.iter().all(|byte| *byte == 7));
    }
}

/// A unit that never ends a command is not waited for by who leaves, whatever else the server answers.
#[tokio::test]
async fn unit_that_hangs_is_given_up() {
    let keys = Keys::new();
    let blocked = Arc::new(BlockedWrites::new(Memory::new(SIZE, 512)));
    let running = serve(Arc::clone(&blocked) as Arc<dyn Volume>, &keys).await;
    let milliseconds = Duration::from_millis;
    let options = ScsiOptions {
        reconnect_for: None,
        login_within: milliseconds(200),
        reconnect_every: milliseconds(20),
        idle: milliseconds(50),
        stall: milliseconds(600),
        ..ScsiOptions::default()
    };
    let disk = store::connect(&at(running.address), &keys.credentials(), options).await.unwrap();
    let disk = Arc::new(disk);
    let write = tokio::spawn({
        let disk = Arc::clone(&disk);
        async move { disk.write(0, vec![7; 4096].into(), Durability::Volatile).await }
    });
    while blocked.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    disk.leave(milliseconds(100));
    let written = timeout(PATIENCE, write).await.expect("it is given up").unwrap();
    assert_eq!(written.unwrap_err().kind, Kind::Gone);
    timeout(PATIENCE, disk.close()).await.expect("it is closed");
}

const GOOD: Status = Status::Good;

/// Answers that a client does not take count as memory that it holds, so that it gets no more of them.
#[tokio::test]
async fn client_that_takes_no_answers_holds_no_more_than_its_memory() {
    const READ: u32 = 2 << 20;
    let keys = Keys::new();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let running = serve_offering(address, offering(Some(memory()), &keys), &keys, READ).await;
    let mut deaf = Raw::connect(running.address, &keys.client, 1).await;
    let mut other = Raw::connect(running.address, &keys.client, 2).await;
    for raw in [&mut deaf, &mut other] {
        // POWER ON is told once.
        let _told = raw.run(NAME, &[0; 6], vec![], 0).await;
    }
    deaf.is_deaf = true;
    let cdb = read(0, (READ / 512) as u16);
    let ids: Vec<_> = (0..64).map(|_| deaf.submit(NAME, &cdb, vec![], READ)).collect();
    let read_so_far = || {
        let sessions = running.node.status().sessions;
        sessions.iter().map(|session| session.activity.reads.bytes).sum::<u64>()
    };
    deaf.until(|_| read_so_far() >= 48 << 20).await;
    for _ in 0..300 {
        let reply = other.run(NAME, &read(0, 8), vec![], 4096).await.unwrap();
        assert_eq!(reply.data_in.len(), 4096, "others go on");
        deaf.step().await;
    }
    let held = read_so_far();
    assert!(held < 80 << 20, "{held} bytes lie there");
    deaf.is_deaf = false;
    deaf.until(|deaf| ids.iter().all(|id| deaf.replies.contains_key(id))).await;
    assert!(deaf.replies.values().all(|reply| reply.data_in.len() == READ as usize));
}

/// Each initiator port of a client has a connection of its own; one of the same port takes its place.
#[tokio::test]
async fn connections_of_one_client_live_side_by_side() {
    let keys = Keys::new();
    let running = serve(memory(), &keys).await;
    let mut first = Raw::connect(running.address, &keys.client, 1).await;
    let mut second = Raw::connect(running.address, &keys.client, 2).await;
    let names = store::volumes(&at(running.address).server, &keys.credentials()).await.unwrap();
    assert_eq!(names, [NAME]);
    for raw in [&mut first, &mut second] {
        let _told = raw.run(NAME, &[0; 6], vec![], 0).await;
        let reply = raw.run(NAME, &read(0, 1), vec![], 512).await.expect("it goes on");
        assert_eq!(reply.status, GOOD);
    }
    let mut again = Raw::connect(running.address, &keys.client, 1).await;
    first.until(|first| first.ended.is_some()).await;
    assert_eq!(first.ended, Some(Ended::ByPeer(1)), "it was replaced");
    for raw in [&mut again, &mut second] {
        assert!(raw.run(NAME, &read(0, 1), vec![], 512).await.is_some());
    }
}

/// PERSISTENT RESERVE OUT with a service action, write exclusive, and a key.
fn reserve(action: u8, (key, action_key): (u64, u64)) -> ([u8; 10], Vec<u8>) {
    let list = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    ([0x5F, action, 1, 0, 0, 0, 0, 0, 24, 0], list)
}

/// SPC-4, 5.12: a reservation belongs to an I_T nexus, and stays with it when its connection is made again.
#[tokio::test]
async fn reservation_belongs_to_the_initiator_port() {
    let keys = Keys::new();
    let running = serve(memory(), &keys).await;
    let mut holder = Raw::connect(running.address, &keys.client, 1).await;
    let mut other = Raw::connect(running.address, &keys.client, 2).await;
    for raw in [&mut holder, &mut other] {
        // POWER ON is told once.
        let _told = raw.run(NAME, &[0; 6], vec![], 0).await;
    }
    for (action, keys) in [(0, (0, 7)), (1, (7, 0))] {
        let (cdb, list) = reserve(action, keys);
        assert_eq!(holder.run(NAME, &cdb, list, 0).await.unwrap().status, GOOD);
    }
    holder.disconnect().await;
    let mut holder = Raw::connect(running.address, &keys.client, 1).await;
    let _told = holder.run(NAME, &[0; 6], vec![], 0).await;
    for (raw, status) in [(&mut other, Status::ReservationConflict), (&mut holder, GOOD)] {
        let reply = raw.run(NAME, &write(0, 1), vec![1; 512], 0).await.unwrap();
        assert_eq!(reply.status, status);
    }
}

/// SSC-4, 7.4: a block that is shorter than was asked for ends the command with CHECK CONDITION, and comes all the same.
#[tokio::test]
async fn short_block_of_a_tape_comes_with_its_sense() {
    let keys = Keys::new();
    let options = Options { device: DeviceType::Tape, ..Options::default() };
    let tape: Arc<dyn Volume> = Arc::new(Memory::new(1 << 20, 512));
    let device = Arc::new(TargetDevice::new(TARGET, [(0, tape, options)]));
    let offering = Offering { devices: vec![device], ..offering(Some(memory()), &keys) };
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let running = serve_offering(address, offering, &keys, 1 << 20).await;
    let mut raw = Raw::connect(running.address, &keys.client, 1).await;
    let _told = raw.run(NAME, &[0; 6], vec![], 0).await;
    let write = [0x0A, 0, 0, 0x03, 0xE8, 0];
    assert_eq!(raw.run(NAME, &write, vec![7; 1000], 0).await.unwrap().status, GOOD);
    for cdb in [[0x10, 0, 0, 0, 1, 0], [0x01, 0, 0, 0, 0, 0]] {
        assert_eq!(raw.run(NAME, &cdb, vec![], 0).await.unwrap().status, GOOD);
    }
    let short = raw.run(NAME, &[0x08, 0, 0, 0x10, 0, 0], vec![], 4096).await.unwrap();
    assert_eq!((short.status, &short.data_in[..]), (Status::CheckCondition, &[7; 1000][..]));
    let sense = Sense::parse(&short.sense).unwrap();
    assert!(sense.stream.incorrect_length && sense.information == Some(3096), "{sense}");
    let mark = raw.run(NAME, &[0x08, 0, 0, 0x10, 0, 0], vec![], 4096).await.unwrap();
    assert!(Sense::parse(&mark.sense).unwrap().stream.filemark && mark.data_in.is_empty());
}

/// A handle is for the disk that it was given out for. Another one in its place is not reached by it.
#[tokio::test]
async fn handle_of_a_disk_does_not_reach_another_one_in_its_place() {
    let keys = Keys::new();
    let (old, new) = (memory(), memory());
    let running = serve(old, &keys).await;
    let mut raw = Raw::connect(running.address, &keys.client, 1).await;
    let _told = raw.run(NAME, &[0; 6], vec![], 0).await;
    assert_eq!(raw.run(NAME, &write(0, 1), vec![1; 512], 0).await.unwrap().status, GOOD);
    for next in [None, Some(Arc::clone(&new))] {
        let (_, applied) = running.node.replace(offering(next, &keys));
        raw.until_then(applied).await;
    }
    for _ in 0..3 {
        if raw.ended.is_none() {
            let _answer = raw.run(NAME, &write(0, 1), vec![2; 512], 0).await;
        }
    }
    let there = new.read(Span::new(0, 512)).await.unwrap();
    assert!(there.iter().all(|byte| *byte == 0), "the other disk was written to");
    assert_eq!(raw.ended, Some(Ended::ByPeer(3)), "it is told that the disk has gone");
    let mut again = Raw::connect(running.address, &keys.client, 1).await;
    let _told = again.run(NAME, &[0; 6], vec![], 0).await;
    assert_eq!(again.run(NAME, &write(0, 1), vec![2; 512], 0).await.unwrap().status, GOOD);
}

/// A client that has as many sessions as it may is told so: each connection has one with each target.
#[tokio::test]
async fn client_with_too_many_sessions_is_told_so() {
    let keys = Keys::new();
    let of_one = offering(Some(memory()), &keys);
    let names: Vec<_> = (0..70).map(|number| format!("{TARGET}{number}")).collect();
    let device = |name: &String| {
        let options = Options { transports: transports::ALL, ..Options::default() };
        Arc::new(TargetDevice::new(name, [(0, memory(), options)]))
    };
    let targets: Vec<_> = names.iter().map(|name| IscsiName::new(name).unwrap()).collect();
    let client = Client { key: Some(keys.client.public()), ..Client::default() };
    let volume = |target: &IscsiName| {
        (target.as_str().to_owned(), UnitName { target: target.clone(), lun: 0 })
    };
    let offering = Offering {
        devices: names.iter().map(device).collect(),
        volumes: targets.iter().map(volume).collect(),
        policy: Policy::closed(targets, vec![client], Vec::new()),
        ..of_one
    };
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let running = serve_offering(address, offering, &keys, DATA_MAX).await;
    let mut first = Raw::connect(running.address, &keys.client, 1).await;
    assert_eq!(first.devices.len(), 70);
    let mut second = Raw::start(running.address, &keys.client, 2).await;
    second.until(|second| second.ended.is_some()).await;
    assert_eq!(second.ended, Some(Ended::ByPeer(4)));
    assert_eq!(running.node.status().sessions.len(), 70, "nothing is left of it");
    let device = first.devices[3].name.clone();
    assert!(first.run(&device, &[0; 6], vec![], 0).await.is_some(), "the first one goes on");
    first.disconnect().await;
}

/// A client that comes again and again holds one admission at most, and its connection is the last one.
#[tokio::test]
async fn admissions_of_a_port_make_way_for_the_last_one() {
    let keys = Keys::new();
    let blocked = Arc::new(BlockedWrites::new(Memory::new(SIZE, 512)));
    let running = serve(Arc::clone(&blocked) as _, &keys).await;
    let mut first = Raw::connect(running.address, &keys.client, 1).await;
    let _told = first.run(NAME, &[0; 6], vec![], 0).await;
    // Whoever replaces this session has to wait for it.
    first.submit(NAME, &write(0, 1), vec![1; 512], 0);
    first.until(|_| blocked.waiting() == 1).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let mut next = Raw::start(running.address, &keys.client, 1).await;
        for _ in 0..20 {
            next.step().await;
        }
        waiting.push(next);
    }
    blocked.let_through(1);
    let mut last = waiting.pop().unwrap();
    last.until(|last| !last.devices.is_empty()).await;
    let _told = last.run(NAME, &[0; 6], vec![], 0).await;
    for earlier in &mut waiting {
        for _ in 0..5 {
            earlier.step().await;
        }
        assert!(earlier.devices.is_empty(), "it was never let in");
    }
    assert!(last.run(NAME, &read(0, 1), vec![], 512).await.is_some());
    assert_eq!(running.node.status().sessions.len(), 1);
}

/// A server moves less at a time than a volume takes: what is larger goes in several commands.
#[tokio::test]
async fn commands_are_no_longer_than_what_was_agreed_on() {
    let keys = Keys::new();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let running = serve_offering(address, offering(Some(memory()), &keys), &keys, 64 << 10).await;
    let disk = open(running.address, &keys).await.expect("a session");
    let data: Bytes = (0..1 << 20).map(|at: u32| (at / 512 * 31 + at) as u8).collect();
    disk.write(0, data.clone(), Durability::Durable).await.unwrap();
    assert!(disk.read(Span::new(0, data.len() as u64)).await.unwrap() == data);
}

/// A way that loses, repeats, delays and so reorders packets of one client: as many of a thousand.
async fn lossy_way(server: SocketAddr, seed: u64, chances: u64) -> SocketAddr {
    let (address, _stays) = cuttable_way(server, seed, chances).await;
    address
}

/// The same, and what cuts it.
async fn cuttable_way(server: SocketAddr, seed: u64, chances: u64) -> (SocketAddr, AbortHandle) {
    let near = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let far = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    far.connect(server).await.unwrap();
    let address = near.local_addr().unwrap();
    let client = Arc::new(OnceLock::<SocketAddr>::new());
    let mut random = Random::new(seed);
    let way = tokio::spawn(async move {
        let (mut ahead, mut back) = ([0; 2048], [0; 2048]);
        loop {
            let (bytes, is_ahead) = tokio::select! {
                Ok((len, from)) = near.recv_from(&mut ahead) => {
                    client.get_or_init(|| from);
                    (ahead[..len].to_vec(), true)
                }
                Ok(len) = far.recv(&mut back) => (back[..len].to_vec(), false),
                else => return,
            };
            let mut happens = || random.below(1000) < chances;
            if happens() {
                continue;
            }
            let (near, far, client) = (Arc::clone(&near), Arc::clone(&far), Arc::clone(&client));
            let (twice, late) = (happens(), happens());
            let send = async move {
                if late {
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
                for _ in 0..=u8::from(twice) {
                    // What the system does not take is lost too.
                    let _ = match client.get() {
                        Some(client) if !is_ahead => near.send_to(&bytes, *client).await,
                        _ => far.send(&bytes).await,
                    };
                }
            };
            if late {
                tokio::spawn(send);
            } else {
                send.await;
            }
        }
    });
    (address, way.abort_handle())
}

#[tokio::test]
async fn volume_keeps_every_promise_over_a_lossy_way() {
    for (seed, chances) in [(1, 10), (2, 50)] {
        println!("seed {seed}");
        let keys = Keys::new();
        let running = serve(memory(), &keys).await;
        let way = lossy_way(running.address, seed, chances).await;
        let disk = Arc::new(open(way, &keys).await.expect("a session"));
        check::volume(seed, Arc::clone(&disk) as _).await;
        let sessions = running.node.status().sessions;
        let lost: u64 = sessions.iter().flat_map(|one| &one.paths).map(|path| path.lost).sum();
        assert!(lost > 0, "the status tells of losses");
    }
}
