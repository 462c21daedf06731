//! Our initiator against istgt, the target of FreeBSD before its kernel had one.

#[path = "common/port.rs"]
mod port;

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longhaul::store::iscsi::{ConnectOptions, Disk, IscsiTarget, connect, discover};
use longhaul::uri::Host;
use port::Port;
use proto::iscsi::name::IscsiName;
use volume::{Durability, Space, Span, Volume};

const NAME: &str = "iqn.2026-11.dev.longhaul:istgt";
const SIZE: u64 = 64 << 20;

/// The length of each write while it is killed.
const LEN: usize = 1 << 20;

/// How long it may take to start on a busy machine.
const START_MAX: Duration = Duration::from_secs(30);

/// An istgt of our own with one sparse disk, gone when dropped.
struct Istgt {
    port: Port,
    _control: Port,
    dir: tempfile::TempDir,
    process: Child,
}

impl Istgt {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = dir.path().join("disk");
        std::fs::File::create(&disk).expect("a file").set_len(SIZE).expect("a sparse file");
        std::fs::write(dir.path().join("auth.conf"), "").expect("a file");
        let (port, control) = (Port::reserve(), Port::reserve());
        let path = dir.path().display();
        let (node, unit) = NAME.split_once(':').expect("a name of two parts");
        let config = format!(
            "[Global]\n  NodeBase \"{node}\"\n  PidFile {path}/pid\n  AuthFile {path}/auth.conf\n  \
             LogFacility \"local7\"\n  DiscoveryAuthMethod None\n  MaxSessions 16\n  MaxConnections 4\n  \
             MaxR2T 32\n  MaxOutstandingR2T 16\n  FirstBurstLength 65536\n  MaxBurstLength 262144\n  \
             MaxRecvDataSegmentLength 65536\n  InitialR2T Yes\n  ImmediateData Yes\n\
             [UnitControl]\n  AuthMethod None\n  AuthGroup None\n  Portal UC1 127.0.0.1:{}\n  \
             Netmask 127.0.0.1\n\
             [PortalGroup1]\n  Portal DA1 127.0.0.1:{}\n\
             [InitiatorGroup1]\n  InitiatorName \"ALL\"\n  Netmask 127.0.0.1\n\
             [LogicalUnit1]\n  TargetName {unit}\n  Mapping PortalGroup1 InitiatorGroup1\n  AuthMethod None\n  \
             AuthGroup None\n  UnitType Disk\n  LUN0 Storage {path}/disk 64MB\n",
            control.number, port.number,
        );
        std::fs::write(dir.path().join("istgt.conf"), config).expect("a file");
        let process = run(dir.path().join("istgt.conf"));
        let istgt = Self { port, _control: control, dir, process };
        istgt.wait();
        istgt
    }

    /// It says nothing when it listens: it is asked until it answers.
    fn wait(&self) {
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port.number)).is_err() {
            assert!(begun.elapsed() < START_MAX, "istgt does not answer");
            std::thread::yield_now();
        }
    }

    /// Kills it, connections and all, and starts it again on the same disk.
    fn restart(&mut self) {
        self.end();
        self.process = run(self.dir.path().join("istgt.conf"));
        self.wait();
    }

    fn end(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn portal(&self) -> Host {
        Host { name: "127.0.0.1".into(), port: self.port.number }
    }

    async fn open(&self) -> Disk {
        let name = IscsiName::new(NAME).expect("a name");
        let target = IscsiTarget { portal: self.portal(), name, lun: 0 };
        connect(&target, &options()).await.expect("a session with istgt")
    }
}

impl Drop for Istgt {
    fn drop(&mut self) {
        self.end();
    }
}

fn run(config: PathBuf) -> Child {
    Command::new("istgt")
        .arg("-c")
        .arg(config)
        .arg("-D")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("istgt must be installed (Debian: istgt) and runnable")
}

fn options() -> ConnectOptions {
    ConnectOptions::new(IscsiName::new("iqn.2026-11.dev.longhaul:client").expect("a name"))
}

fn pattern(at: usize, len: usize) -> Bytes {
    (0..len).map(|i| (i * 31 + i / 509 + at) as u8).collect()
}

/// What a program that starts meanwhile has inherited counts as if it were still open here.
#[test]
fn reserved_port_with_inherited_copy_refuses_connections_and_can_be_listened_on() {
    let port = Port::reserve();
    let _inherited = port.bound.try_clone().expect("a copy");
    let address = ("127.0.0.1", port.number);
    let refused = TcpStream::connect(address).expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    let listener = TcpListener::bind(address).expect("a server can have it");
    TcpStream::connect(address).expect("it listens");
    drop(listener);
}

#[tokio::test]
async fn a_volume_on_istgt_keeps_its_data_and_none_of_its_rules_is_broken() {
    let istgt = Istgt::start();
    let found = discover(&istgt.portal(), &options()).await.expect("a list");
    assert_eq!(found.iter().map(|target| target.name.as_str()).collect::<Vec<_>>(), [NAME]);
    let disk = istgt.open().await;
    assert_eq!(disk.session().established().deviations, []);
    assert_eq!(disk.shape().size, SIZE);
    let mut at = 0;
    for len in [512, 8704, 65_536, 262_144, 1 << 20, 9 << 20] {
        disk.write(at as u64, pattern(at, len), Durability::Volatile).await.expect("write");
        let back = disk.read(Span::new(at as u64, len as u64)).await.expect("read");
        assert!(back == pattern(at, len), "{len} bytes at {at} came back changed");
        at += len;
    }
    let zeroed = Span::new(4096, 1 << 20);
    disk.write_zeroes(zeroed, Durability::Durable, Space::Keep).await.expect("zeroes");
    assert!(disk.read(zeroed).await.expect("read").iter().all(|byte| *byte == 0));
    disk.flush().await.expect("flush");
    disk.close().await;
}

/// RFC 7143, 6.3.5, and the reset of a unit whose target is not known to end old tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_istgt_is_ridden_out() {
    let mut istgt = Istgt::start();
    let disk = istgt.open().await;
    for round in 0..3 {
        let writes = (0..8).map(|i| {
            let at = (round * 8 + i) * LEN;
            disk.write(at as u64, pattern(at, LEN), Durability::Volatile)
        });
        let writes: Vec<_> = writes.collect();
        let all = futures_util::future::join_all(writes);
        let (results, ()) = tokio::join!(all, async { istgt.restart() });
        results.into_iter().for_each(|result| result.expect("it waits, and is carried out"));
    }
    disk.flush().await.expect("flush");
    for at in (0..24).map(|i| i * LEN) {
        let back = disk.read(Span::new(at as u64, LEN as u64)).await.expect("read");
        assert!(back == pattern(at, LEN), "what was written at {at} is not there");
    }
    disk.close().await;
}
