//! A volume over HyperSCSI: our client against our server, over UDP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use host::link::{Address, Link, Udp};
use longhaul::front::hyperscsi::{Node, Offering, Server};
use longhaul::front::iscsi;
use longhaul::sealing::new_cipher;
use longhaul::stop::Stopper;
use longhaul::store::hyperscsi::{self as store, Credentials, Disk, SessionError, Volume as Named};
use longhaul::store::scsi::{OpenError, Options as ScsiOptions};
use longhaul::target::lun::{Options, TargetDevice};
use longhaul::transports;
use longhaul::uri::{Host, HyperScsiServer};
use proto::hyperscsi::{Config, Fill, SITE_KEY_LEN, SiteKey};
use proto::identity::Identity;
use proto::iscsi::login::policy::{Client, Policy, UnitName};
use proto::iscsi::name::IscsiName;
use proto::scsi::ports::{AccessState, PORT, Port};
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
        let site = SiteKey::from_bytes([7; SITE_KEY_LEN]);
        Self { server: identity(), client: identity(), site }
    }

    fn credentials(&self) -> Credentials {
        Credentials {
            identity: self.client.clone(),
            site_key: self.site.clone(),
            pin: Some(self.server.public()),
        }
    }
}

/// A server that runs as long as this lives.
struct Running {
    address: SocketAddr,
    node: Arc<Node>,
    stopper: Stopper,
    server: tokio::task::JoinHandle<bool>,
}

/// Serves a volume by HyperSCSI and by iSCSI, to the client alone.
async fn serve(volume: Arc<dyn Volume>, keys: &Keys) -> Running {
    serve_at(SocketAddr::from(([127, 0, 0, 1], 0)), volume, keys).await
}

async fn serve_at(address: SocketAddr, volume: Arc<dyn Volume>, keys: &Keys) -> Running {
    let options = Options { transports: transports::ALL, ..Options::default() };
    let device = Arc::new(TargetDevice::new(TARGET, [(0, volume, options)]));
    let target = IscsiName::new(TARGET).unwrap();
    let client = Client { key: Some(keys.client.public()), ..Client::default() };
    let policy = Policy::closed(vec![target.clone()], vec![client], Vec::new());
    let iscsi = Arc::new(iscsi::Node::new([Arc::clone(&device)], Policy::open));
    let offering = Offering {
        devices: vec![device],
        policy,
        volumes: BTreeMap::from([(NAME.to_owned(), UnitName { target, lun: 0 })]),
        access: BTreeMap::new(),
    };
    let ports = vec![Port::new(PORT, AccessState::Optimized)];
    let node = Arc::new(Node::new(offering, ports, 64 << 20, &iscsi));
    let link = Udp::bind(address).unwrap();
    let config = Config::ip(keys.server.clone(), keys.site.clone(), new_cipher);
    let server = Server::new(Arc::clone(&node), Link::from(link), config, random()).unwrap();
    let Address::Ip { remote: address, .. } = server.local() else { panic!("UDP") };
    let beside = iscsi::Server::bind(&[SocketAddr::from(([127, 0, 0, 1], 0))], iscsi).await;
    let beside = beside.unwrap();
    let (stopper, stop) = Stopper::new();
    tokio::spawn(beside.run(stop.clone()));
    Running { address, node, stopper, server: tokio::spawn(server.run(stop)) }
}

fn at(address: SocketAddr) -> Named {
    let host = Host { name: address.ip().to_string(), port: address.port() };
    Named { server: HyperScsiServer::Ip(host), name: NAME.to_owned() }
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
