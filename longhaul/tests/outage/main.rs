//! Lost connections under load: cut, silenced, refused, late, and servers that are killed. No caller sees
//! an error, and nothing that was acknowledged is lost or overtaken.

#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "servers only die here")]
mod common;
#[path = "../common/connect.rs"]
mod connect;
mod contest;
mod given_up;
mod path;
#[path = "../common/port.rs"]
mod port;

use std::net::SocketAddr;
use std::path::Path as FilePath;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::{LONGHAUL, PATIENCE, Running};
use connect::connect_until_there;
use futures_util::future::join_all;
use longhaul::front::iscsi::{Node, Server};
use longhaul::stop::Stopper;
use longhaul::store::iscsi::{ConnectOptions, Connections, Disk, State, Writers};
use longhaul::target::lun::{Options, TargetDevice};
use path::Path;
use port::Port;
use proto::iscsi::initiator::Timeouts;
use proto::iscsi::login::policy::Policy;
use proto::iscsi::name::IscsiName;
use tokio::task::JoinHandle;
use volume::check::Random;
use volume::layer::reconnect::Over;
use volume::store::blocked_writes::BlockedWrites;
use volume::store::faulty::Faulty;
use volume::store::hooked::Hooked;
use volume::{Durability, Kind, Space, Span, Verb, Volume};

const NAME: &str = "iqn.2026-11.dev.longhaul:disk";
const BLOCK: u64 = 512;
/// Blocks that one worker has for itself.
const REGION: u64 = 64;
const WORKERS: u64 = 8;
const SIZE: u64 = WORKERS * REGION * BLOCK;

/// A volume that takes its time, a different one for each request, so that much is under way when the
/// connection is lost.
fn slow(medium: &Arc<Faulty>) -> Arc<dyn Volume> {
    Arc::new(Hooked::new(Arc::clone(medium), |_, span: Span| {
        Box::pin(async move {
            for _ in 0..(span.at / BLOCK) % 7 * 5 {
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    }))
}

/// A target that runs until it is killed.
struct Target {
    address: SocketAddr,
    running: JoinHandle<bool>,
    _stopper: Stopper,
}

impl Target {
    async fn start(volume: Arc<dyn Volume>) -> Self {
        Self::start_as(volume, Options::default()).await
    }

    async fn start_as(volume: Arc<dyn Volume>, options: Options) -> Self {
        let device = TargetDevice::new(NAME, [(0, volume, options)]);
        let node = Node::new([device], Policy::open);
        let server = Server::bind(&[SocketAddr::from(([127, 0, 0, 1], 0))], node).await.unwrap();
        let address = server.portals()[0];
        let (stopper, stop) = Stopper::new();
        Self { address, running: tokio::spawn(server.run(stop)), _stopper: stopper }
    }

    async fn kill(self) {
        self.running.abort();
        let _ = self.running.await;
    }
}

fn options() -> ConnectOptions {
    let milliseconds = Duration::from_millis;
    ConnectOptions {
        reconnect_for: None,
        reconnect_every: milliseconds(20),
        // Past the path on which things go wrong.
        other_portals: false,
        // Little enough that flushes are made unasked.
        unflushed_max: 128 << 10,
        // A silent path is found out soon; a slow answer taken for one only costs another login.
        timeouts: Timeouts {
            login: milliseconds(500),
            logout: milliseconds(500),
            idle: milliseconds(50),
            answer: milliseconds(300),
            ..Timeouts::default()
        },
        // Each of them that is cut takes the other with it.
        connections: Connections::Fixed(2),
        ..ConnectOptions::new(IscsiName::new("iqn.2026-11.dev.longhaul:client").unwrap())
    }
}

async fn open(address: SocketAddr, options: &ConnectOptions) -> Arc<Disk> {
    let connected = connect_until_there(address, NAME, options);
    Arc::new(tokio::time::timeout(Duration::from_secs(60), connected).await.expect("a session"))
}

/// Works on a region of its own until told to stop; gives what the region holds then.
async fn work(disk: Arc<Disk>, worker: u64, seed: u64, stop: Arc<AtomicBool>) -> Vec<u8> {
    let mut random = Random::new(seed + worker);
    let base = worker * REGION * BLOCK;
    let mut model = disk.read(Span::new(base, REGION * BLOCK)).await.unwrap().to_vec();
    let mut stamp = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let mut span = || {
            let first = random.below(REGION);
            Span::new(first * BLOCK, (1 + random.below((REGION - first).min(16))) * BLOCK)
        };
        let (a, b) = (span(), span());
        let mut data = |span: Span| {
            stamp += 1;
            let block = [worker.to_le_bytes(), stamp.to_le_bytes()].concat();
            Bytes::from(block.repeat(span.len as usize / block.len()))
        };
        let mut keep = |span: Span, data: &[u8]| {
            model[span.at as usize..span.end() as usize].copy_from_slice(data);
        };
        let durability = match random.below(8) {
            0 => Durability::Durable,
            _ => Durability::Volatile,
        };
        match random.below(16) {
            0..6 => {
                let data = data(a);
                disk.write(base + a.at, data.clone(), durability).await.expect("a write");
                keep(a, &data);
            }
            // Two at once, which may overlap: the one asked for later is on top.
            6..10 => {
                let (first, second) = (data(a), data(b));
                let (one, two) = tokio::join!(
                    disk.write(base + a.at, first.clone(), durability),
                    disk.write(base + b.at, second.clone(), Durability::Volatile),
                );
                one.and(two).expect("two writes");
                keep(a, &first);
                keep(b, &second);
            }
            10 => {
                let zero = Span::new(base + a.at, a.len);
                disk.write_zeroes(zero, durability, Space::Release).await.expect("zeroes");
                keep(a, &vec![0; a.len as usize]);
            }
            11 => disk.flush().await.expect("a flush"),
            // Given up half way: it happens all the same, before what comes later.
            12 => {
                let (first, second) = (data(a), data(a));
                let mut given_up = disk.write(base + a.at, first, durability);
                let _ = futures_util::poll!(&mut given_up);
                drop(given_up);
                disk.write(base + a.at, second.clone(), durability).await.expect("a write");
                keep(a, &second);
            }
            _ => {
                let read = disk.read(Span::new(base + a.at, a.len)).await.expect("a read");
                assert!(read == model[a.at as usize..a.end() as usize], "worker {worker} read {a}");
            }
        }
    }
    model
}

/// Runs the load while `fault` makes trouble, and compares what the volume holds afterwards.
async fn under_load(disk: &Arc<Disk>, seed: u64, fault: impl Future<Output = ()>) -> Vec<u8> {
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| tokio::spawn(work(Arc::clone(disk), worker, seed, Arc::clone(&stop))))
        .collect();
    fault.await;
    stop.store(true, Ordering::Relaxed);
    let models = tokio::time::timeout(PATIENCE, join_all(workers)).await.expect("no worker hangs");
    let model: Vec<u8> = models.into_iter().flat_map(|model| model.expect("no error")).collect();
    disk.flush().await.expect("a flush");
    let read = disk.read(Span::new(0, SIZE)).await.expect("a read");
    assert!(read == model, "what is read back is not what was written");
    model
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_lost_connections_cost_nothing_but_time() {
    const TROUBLES: u32 = 300;
    let seed = 1;
    let medium = Arc::new(Faulty::new(SIZE, 512));
    let target = Target::start(slow(&medium)).await;
    let path = Path::new(target.address, seed).await;
    let disk = open(path.address, &options()).await;
    path.rage();
    let model = under_load(&disk, seed, async {
        path.troubled(TROUBLES).await;
        path.calm();
    })
    .await;
    assert!(path.troubles() >= TROUBLES);
    disk.close().await;
    // What a crash after the last flush would leave, and what is there.
    assert!(medium.crash(seed).contents() == model && medium.contents() == model);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loses_its_power_loses_nothing_that_was_acknowledged() {
    let mut random = Random::new(2);
    let mut medium = Arc::new(Faulty::new(SIZE, 512));
    let mut target = Some(Target::start(slow(&medium)).await);
    let path = Path::new(target.as_ref().unwrap().address, 2).await;
    let disk = open(path.address, &options()).await;
    let last = &mut medium;
    let model = under_load(&disk, 2, async {
        for round in 0..60 {
            path.passed(random.below(200_000)).await;
            path.close().await;
            target.take().unwrap().kill().await;
            // Of what was not flushed each block keeps this or that version, or none.
            *last = Arc::new(last.crash(round));
            let next = Target::start(slow(last)).await;
            path.lead_to(next.address);
            target = Some(next);
        }
    })
    .await;
    disk.close().await;
    assert!(medium.crash(0).contents() == model);
}

fn serve(file: &FilePath, port: u16) -> Running {
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
    command.arg(format!("--volume=disk=file:{},size={SIZE}", file.display()));
    command.current_dir(file.parent().unwrap());
    let running = Running::start(&mut command);
    assert!(running.line().is_some_and(|line| line.starts_with("ready ")));
    running
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_started_again_is_used_on() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk.img");
    let reserved = Port::reserve();
    let port = reserved.number;
    let mut server = Some(serve(&file, port));
    let path = Path::new(SocketAddr::from(([127, 0, 0, 1], port)), 3).await;
    let disk = open(path.address, &options()).await;
    let model = under_load(&disk, 3, async {
        for _ in 0..12 {
            path.passed(100_000).await;
            // Dropped means killed, with a signal that cannot be caught.
            drop(server.take());
            server = Some(serve(&file, port));
        }
    })
    .await;
    disk.close().await;
    assert!(std::fs::read(&file).unwrap() == model);
    drop(server);
}

#[tokio::test]
async fn patience_ends_and_then_everything_fails_with_the_reason() {
    let target = Target::start(Arc::new(Faulty::new(SIZE, 512))).await;
    let path = Path::new(target.address, 4).await;
    let patience = Some(Duration::from_millis(300));
    let disk = open(path.address, &ConnectOptions { reconnect_for: patience, ..options() }).await;
    path.close().await;
    let error = disk.read(Span::new(0, BLOCK)).await.expect_err("no connection comes");
    assert_eq!(error.kind, Kind::Gone);
    let mut text = String::new();
    let mut beneath: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = beneath {
        text += &format!("{error}: ");
        beneath = error.source();
    }
    assert!(
        text.contains("no connection for 300ms") && text.contains("closed the connection"),
        "{text}"
    );
    assert!(matches!(disk.state(), State::Over(Over::GaveUp(_))));
    path.lead_to(target.address);
    assert_eq!(disk.flush().await.expect_err("it has been given up").kind, Kind::Gone);
}

#[tokio::test]
async fn endless_wait_can_be_ended() {
    let target = Target::start(Arc::new(Faulty::new(SIZE, 512))).await;
    let path = Path::new(target.address, 5).await;
    let disk = open(path.address, &options()).await;
    path.close().await;
    let write = disk.write(0, vec![1; 512].into(), Durability::Volatile);
    let end = async {
        while !matches!(disk.state(), State::Reconnecting { attempts: 2.., .. }) {
            tokio::task::yield_now().await;
        }
        disk.close().await;
    };
    let (write, ()) =
        tokio::time::timeout(PATIENCE, async { tokio::join!(write, end) }).await.expect("it ends");
    assert_eq!(write.expect_err("it never happened").kind, Kind::Gone);

    // Or it is given a time to end in, for a last flush.
    path.lead_to(target.address);
    let disk = open(path.address, &options()).await;
    path.close().await;
    disk.leave(Duration::from_millis(200));
    let flushed = tokio::time::timeout(PATIENCE, disk.flush()).await.expect("it ends");
    assert_eq!(flushed.expect_err("no connection came").kind, Kind::Gone);
}

/// Where nothing proves who says so another volume is no reason to give up either: it may be there for a moment only,
/// behind the address of the one that was lost.
#[tokio::test]
async fn another_volume_in_its_place_is_not_written_to() {
    let target = Target::start(Arc::new(Faulty::new(SIZE, 512))).await;
    let path = Path::new(target.address, 6).await;
    let disk = open(path.address, &options()).await;
    disk.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
    path.close().await;
    target.kill().await;
    let smaller = Arc::new(Faulty::new(SIZE / 2, 512));
    let target = Target::start(Arc::<Faulty>::clone(&smaller)).await;
    path.lead_to(target.address);
    let other = || disk.reason().is_some_and(|why| why.contains("its size has changed"));
    while !(matches!(disk.state(), State::Reconnecting { attempts: 3.., .. }) && other()) {
        tokio::task::yield_now().await;
    }
    assert_eq!(smaller.changes(), 0);
    // The right one is back.
    target.kill().await;
    let right = Arc::new(Faulty::new(SIZE, 512));
    let target = Target::start(Arc::<Faulty>::clone(&right)).await;
    path.lead_to(target.address);
    tokio::time::timeout(PATIENCE, disk.flush()).await.expect("it ends").expect("a flush");
    assert!(right.contents()[..512] == [1; 512]);
    disk.close().await;

    // Who does not wait for ever is told what stood in the way.
    let patience = Some(Duration::from_millis(300));
    let disk = open(path.address, &ConnectOptions { reconnect_for: patience, ..options() }).await;
    path.close().await;
    target.kill().await;
    let target = Target::start(smaller).await;
    path.lead_to(target.address);
    let error = disk.flush().await.expect_err("another volume");
    assert_eq!(error.kind, Kind::Gone);
    let why = disk.reason().expect("there is a reason");
    assert!(why.contains("its size has changed"), "{why}");
    target.kill().await;
}

/// Waits until the disk has found a volume of another size in its place.
async fn finds_another_size(disk: &Disk) {
    let other = || disk.reason().is_some_and(|why| why.contains("its size has changed"));
    while !(matches!(disk.state(), State::Reconnecting { attempts: 2.., .. }) && other()) {
        tokio::task::yield_now().await;
    }
}

/// A server that keeps no reservations knows as little of ours after a restart as another volume does.
#[tokio::test]
async fn another_volume_in_its_place_is_not_reserved() {
    let target = Target::start(Arc::new(Faulty::new(SIZE, 512))).await;
    let path = Path::new(target.address, 9).await;
    let disk = open(path.address, &ConnectOptions { writers: Writers::One, ..options() }).await;
    path.close().await;
    target.kill().await;
    let target = Target::start(Arc::new(Faulty::new(SIZE / 2, 512))).await;
    path.lead_to(target.address);
    tokio::time::timeout(PATIENCE, finds_another_size(&disk)).await.expect("it looks");
    let others = open(target.address, &options()).await;
    assert_eq!(others.writer().await, None, "a reservation on the volume of others");
    others.close().await;
    disk.close().await;
    target.kill().await;
}

/// LOGICAL UNIT RESET would end the commands of those who use that volume.
#[tokio::test]
async fn another_volume_in_its_place_is_not_reset() {
    let foreign = || Options { vendor: Some("EXAMPLE".into()), ..Options::default() };
    let held = Arc::new(BlockedWrites::new(Faulty::new(SIZE, 512)));
    let target = Target::start_as(Arc::<BlockedWrites<Faulty>>::clone(&held), foreign()).await;
    let path = Path::new(target.address, 10).await;
    let disk = open(path.address, &options()).await;
    let write = tokio::spawn({
        let disk = Arc::clone(&disk);
        async move { disk.write(0, vec![1; 512].into(), Durability::Volatile).await }
    });
    while held.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    path.close().await;
    target.kill().await;
    let target = Target::start_as(Arc::new(Faulty::new(SIZE / 2, 512)), foreign()).await;
    let at_once = ConnectOptions { reconnect_for: Some(Duration::ZERO), ..options() };
    let other = open(target.address, &at_once).await;
    path.lead_to(target.address);
    tokio::time::timeout(PATIENCE, finds_another_size(&disk)).await.expect("it looks");
    other.read(Span::new(0, 512)).await.expect("nobody has reset the unit");
    other.close().await;
    disk.close().await;
    assert_eq!(write.await.unwrap().expect_err("it was never carried out").kind, Kind::Gone);
    target.kill().await;
}

/// The size of a volume is fixed while it is open, but what it holds is not lost for that.
#[tokio::test]
async fn volume_that_has_grown_is_used_on_with_its_first_size() {
    let target = Target::start(Arc::new(Faulty::new(SIZE, 512))).await;
    let path = Path::new(target.address, 8).await;
    let disk = open(path.address, &options()).await;
    disk.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
    path.close().await;
    target.kill().await;
    let larger = Arc::new(Faulty::new(2 * SIZE, 512));
    let target = Target::start(Arc::<Faulty>::clone(&larger)).await;
    path.lead_to(target.address);
    tokio::time::timeout(PATIENCE, disk.flush()).await.expect("it ends").expect("a flush");
    assert!(larger.contents()[..512] == [1; 512]);
    assert_eq!((disk.shape().size, disk.not_offered()), (SIZE, SIZE));
    disk.close().await;
    target.kill().await;
}

#[tokio::test]
async fn another_portal_of_the_target_is_used_where_the_first_is_gone() {
    let target = Target::start(Arc::new(Faulty::new(SIZE, 512))).await;
    let path = Path::new(target.address, 7).await;
    let disk = open(path.address, &ConnectOptions { other_portals: true, ..options() }).await;
    disk.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
    // The target says that it listens on its own address too; that comes before the answers to these.
    for _ in 0..8 {
        disk.read(Span::new(0, 512)).await.unwrap();
    }
    path.close().await;
    drop(path);
    let ended = tokio::time::timeout(PATIENCE, disk.read(Span::new(0, 512))).await;
    assert!(ended.expect("it is reached").expect("a read") == vec![1; 512]);
    disk.close().await;
}
