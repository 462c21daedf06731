//! Our initiator with targets that break rules of the login: they are used, and nothing is written twice.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul::front::iscsi::{Node, Server};
use longhaul::stop::Stopper;
use longhaul::store::iscsi::{ConnectOptions, Connections, Disk, IscsiTarget, State, connect};
use longhaul::target::lun::{Options, TargetDevice};
use longhaul::uri::Host;
use proto::iscsi::header::BHS_LEN;
use proto::iscsi::keys::Offer;
use proto::iscsi::login::initiator::Deviation;
use proto::iscsi::login::policy::Policy;
use proto::iscsi::name::IscsiName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tracing::Level;
use volume::store::blocked_writes::BlockedWrites;
use volume::store::memory::Memory;
use volume::{Durability, Kind, Span, Volume};

const NAME: &str = "iqn.2026-11.dev.longhaul:disk";

/// Where a Login Response has its ISID and its TSIH (RFC 7143, 11.13).
const ISID: Range<usize> = 8..14;
const TSIH: Range<usize> = 14..16;

/// A target that runs as long as this lives, and a way to it on which part of each Login Response is lost.
struct Running {
    node: Arc<Node>,
    way: SocketAddr,
    logins: Arc<AtomicUsize>,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
    _stopper: Stopper,
}

impl Running {
    async fn start(volume: Arc<dyn Volume>, blanked: Range<usize>) -> Self {
        let device = TargetDevice::new(NAME, [(0, volume, Options::default())]);
        let several = Offer { max_connections: 4, ..Offer::for_long_links() };
        let node = Arc::new(Node::new([device], Policy::open).with_offer(several));
        let portals = [SocketAddr::from(([127, 0, 0, 1], 0))];
        let server = Server::bind(&portals, Arc::clone(&node)).await.unwrap();
        let portal = server.portals()[0];
        let (stopper, stop) = Stopper::new();
        tokio::spawn(server.run(stop));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = listener.local_addr().unwrap();
        let (logins, connections) = (Arc::<AtomicUsize>::default(), Arc::default());
        let running = Self { node, way, logins, connections, _stopper: stopper };
        let (logins, connections) = (Arc::clone(&running.logins), Arc::clone(&running.connections));
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                logins.fetch_add(1, Ordering::Relaxed);
                let connection = tokio::spawn(relay(near, portal, blanked.clone()));
                connections.lock().unwrap().push(connection);
            }
        });
        running
    }

    async fn open(&self) -> Disk {
        let portal = Host { name: self.way.ip().to_string(), port: self.way.port() };
        let target = IscsiTarget { portal, name: IscsiName::new(NAME).unwrap(), lun: 0 };
        let options = ConnectOptions {
            connections: Connections::Fixed(3),
            reconnect_for: None,
            reconnect_every: Duration::from_millis(20),
            ..ConnectOptions::new(IscsiName::new("iqn.2026-11.dev.longhaul:client").unwrap())
        };
        connect(&target, &options).await.expect("a session")
    }

    fn cut(&self) {
        self.connections.lock().unwrap().drain(..).for_each(|connection| connection.abort());
    }

    fn under_way(&self) -> u64 {
        self.node.status().targets[NAME].in_flight
    }
}

/// What is logged, by all tests here.
#[derive(Clone, Default)]
struct LogCopy(Arc<Mutex<Vec<u8>>>);

impl LogCopy {
    fn lines_with(&self, what: &[String]) -> usize {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| what.iter().all(|part| line.contains(part))).count()
    }
}

impl io::Write for LogCopy {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Without authentication there is one Login Response, the first PDU.
async fn relay(mut near: TcpStream, portal: SocketAddr, blanked: Range<usize>) {
    let mut far = TcpStream::connect(portal).await.unwrap();
    let (mut from_near, mut to_near) = near.split();
    let (mut from_far, mut to_far) = far.split();
    let down = async {
        let mut response = [0; BHS_LEN];
        from_far.read_exact(&mut response).await?;
        response[blanked].fill(0);
        to_near.write_all(&response).await?;
        tokio::io::copy(&mut from_far, &mut to_near).await
    };
    let _ = tokio::join!(down, tokio::io::copy(&mut from_near, &mut to_far));
}

#[tokio::test]
async fn a_session_that_is_not_named_as_asked_is_used_with_one_connection() {
    let log = LogCopy::default();
    let (lines, warnings) = (log.clone(), tracing_subscriber::fmt().with_max_level(Level::WARN));
    warnings.with_ansi(false).with_writer(move || lines.clone()).init();
    for (blanked, deviation) in [(ISID, Deviation::OtherIsid), (TSIH, Deviation::NoTsih)] {
        let running = Running::start(Arc::new(Memory::new(1 << 20, 512)), blanked).await;
        let disk = running.open().await;
        assert_eq!(disk.session().established().deviations, [deviation]);
        let what = [running.way.to_string(), deviation.to_string()];
        assert_eq!(log.lines_with(&what), 1, "one warning for the session");
        for at in 0..8 {
            let data = vec![at as u8; 4096];
            disk.write(at * 4096, data.clone().into(), Durability::Volatile).await.unwrap();
            assert_eq!(disk.read(Span::new(at * 4096, 4096)).await.unwrap(), data);
        }
        disk.flush().await.unwrap();
        assert_eq!(running.node.status().sessions[0].connections, 1);
        assert_eq!(running.logins.load(Ordering::Relaxed), 1);
        assert_eq!(log.lines_with(&what), 1, "nothing of what followed tells it again");
    }
}

/// RFC 7143, 6.3.5: a session ends the one before of its name. Where the target does not know the name nothing does,
/// and what was under way could land on top of what is written later. So nothing is written any more.
#[tokio::test]
async fn a_write_under_way_is_not_sent_again_where_its_session_may_live_on() {
    for blanked in [ISID, TSIH] {
        let held = Arc::new(BlockedWrites::new(Memory::new(1 << 20, 512)));
        let running = Running::start(Arc::clone(&held) as Arc<dyn Volume>, blanked).await;
        let disk = Arc::new(running.open().await);
        let write = tokio::spawn({
            let disk = Arc::clone(&disk);
            async move { disk.write(0, vec![1; 512].into(), Durability::Volatile).await }
        });
        while running.under_way() == 0 {
            tokio::task::yield_now().await;
        }
        running.cut();
        let error = write.await.unwrap().expect_err("it cannot be known whether it lands");
        assert_eq!(error.kind, Kind::Gone);
        assert!(matches!(disk.state(), State::Over(_)), "{:?}", disk.state());
        held.let_through(2);
        let later = disk.write(0, vec![2; 512].into(), Durability::Volatile).await;
        assert_eq!(later.expect_err("the volume was given up").kind, Kind::Gone);
        assert_eq!(running.logins.load(Ordering::Relaxed), 1, "nobody logged in again");
        assert!(held.passed() <= 1, "it was carried out once at most");
    }
}

/// With nothing under way nothing can land late.
#[tokio::test]
async fn with_no_write_under_way_the_connection_is_made_again() {
    for blanked in [ISID, TSIH] {
        let running = Running::start(Arc::new(Memory::new(1 << 20, 512)), blanked).await;
        let disk = running.open().await;
        disk.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
        running.cut();
        assert_eq!(disk.read(Span::new(0, 512)).await.unwrap(), vec![1; 512]);
        disk.flush().await.expect("what was written is there");
        assert_eq!(running.logins.load(Ordering::Relaxed), 2);
    }
}
