//! Weights and rates of clients, by iSCSI and by HyperSCSI, of a server that runs beside them.

mod common;

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use common::{LONGHAUL, PATIENCE, Running, run};
use longhaul::store::hyperscsi::{self, Credentials};
use longhaul::store::iscsi::{self, ConnectOptions, IscsiTarget, Writers};
use longhaul::store::scsi::Options;
use longhaul::uri::{HyperScsiOptions, Uri};
use longhaul::{sealing, site_key};
use proto::hyperscsi::Level;
use proto::iscsi::login::initiator::Pinned;
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::Protection;
use tempfile::TempDir;
use volume::{Span, Volume};

/// Reads that each client has under way: more than the server carries out at once, so that some always wait.
const DEPTH: usize = 64;

/// Reads of all clients of which the parts are compared.
const READS: u64 = 1000;

const BLOCK: u64 = 4096;

/// A server of a volume that carries out so many requests a second, and the clients `nine`, of weight 9, and `one`, of which
/// nothing is said; both may administer it.
struct Site {
    dir: TempDir,
    server: Running,
    /// The volume by iSCSI and by HyperSCSI.
    uris: [Uri; 2],
}

impl Site {
    fn new(volume: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let identity = |name: &str| sealing::create(&dir.path().join(name)).unwrap().public();
        identity("server");
        site_key::create(&dir.path().join("site.key")).unwrap();
        let [nine, one] = ["nine", "one"].map(identity);
        let file = format!(
            r#"listen = ["127.0.0.1:0", "hyperscsi://127.0.0.1:0"]
identity = "server"
site_key = "site.key"
state = "state"
control = "control.sock"

[volumes.disk]
uri = "{volume}"

[clients.nine]
key = "{nine}"
volumes = ["disk"]
administrator = true
weight = 9

[clients.one]
key = "{one}"
volumes = ["disk"]
administrator = true
"#
        );
        fs::write(dir.path().join("longhaul.toml"), file).unwrap();
        let mut serve = Command::new(LONGHAUL);
        serve.args(["serve", "--config", "longhaul.toml"]).current_dir(dir.path());
        let server = Running::start(&mut serve);
        let uri = || server.line().unwrap().strip_prefix("ready ").unwrap().parse().unwrap();
        let uris = [uri(), uri()];
        Self { dir, server, uris }
    }

    /// The volume as a client has it by one of the transports.
    async fn open(&self, client: &str, by: usize) -> Arc<dyn Volume> {
        let identity = self.dir.path().join(client);
        match &self.uris[by] {
            Uri::Iscsi(uri) => {
                let target = uri.pin.unwrap();
                let sealing = sealing::sealing(&identity).unwrap();
                let (protection, invitation) = (Protection::Encrypt, None);
                let pinned = Some(Pinned { sealing, target, protection, invitation });
                let name = IscsiName::new(&format!("iqn.2000-01.example:{client}")).unwrap();
                let writers = Writers::Shared;
                let options = ConnectOptions { pinned, writers, ..ConnectOptions::new(name) };
                let (portal, name, lun) = (uri.host.clone(), uri.target.clone(), uri.lun);
                let target = IscsiTarget { portal, name, lun };
                Arc::new(iscsi::connect(&target, &options).await.expect("a session"))
            }
            Uri::HyperScsi(uri) => {
                let identity = sealing::read(&identity).unwrap();
                let site_key = site_key::read(&self.dir.path().join("site.key")).unwrap();
                let credentials =
                    Credentials { identity, site_key, pin: uri.pin, least: Level::Encrypt };
                let (server, name) = (uri.server.clone(), uri.volume.clone());
                let volume = hyperscsi::Volume {
                    server,
                    name,
                    paths: Vec::new(),
                    options: HyperScsiOptions::default(),
                };
                let options = Options { writers: Writers::Shared, ..Options::default() };
                let disk = hyperscsi::connect(&volume, &credentials, options).await;
                Arc::new(disk.expect("a session"))
            }
            other => panic!("{other}"),
        }
    }

    /// What the server answers to a client that administers it, by one of the transports.
    async fn does(&self, client: &str, by: usize, request: &[&str]) -> String {
        let mut command = Command::new(LONGHAUL);
        let uri = self.uris[by].to_string();
        command.args(["admin", &uri, "--identity", client, "--site-key", "site.key"]);
        command.args(request).current_dir(self.dir.path());
        let asked = tokio::task::spawn_blocking(move || run(&command));
        let (printed, status) = asked.await.unwrap();
        assert!(status.success(), "{request:?}: {printed}");
        printed
    }
}

/// Reads that are repeated for as long as this lives.
struct Load {
    done: Arc<AtomicU64>,
    tasks: tokio::task::JoinSet<()>,
}

impl Load {
    fn on(disk: &Arc<dyn Volume>) -> Self {
        let done = Arc::<AtomicU64>::default();
        let mut tasks = tokio::task::JoinSet::new();
        for at in 0..DEPTH as u64 {
            let (disk, done) = (Arc::clone(disk), Arc::clone(&done));
            tasks.spawn(async move {
                loop {
                    disk.read(Span::new(at * BLOCK, BLOCK)).await.expect("no error");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { done, tasks }
    }

    fn count(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until all has ended that was begun.
    async fn end(mut self) {
        self.tasks.shutdown().await;
    }
}

/// How many reads of the first there are for each of the second, once both have been at it for a while.
async fn ratio(loads: &[Load; 2]) -> f64 {
    let counts = || [loads[0].count(), loads[1].count()];
    let more = async |start: [u64; 2], reads: u64| {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = counts();
            let done = [now[0] - start[0], now[1] - start[1]];
            if done[0] + done[1] >= reads {
                return done;
            }
            assert!(Instant::now() < until, "{done:?}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    // What was under way before they met, and before a change, is none of it; nor what sessions before these have left, which
    // is their clients' too: as many commands as one has at a time, of which one in ten is that of the smaller share.
    more(counts(), 10 * DEPTH as u64 + 200).await;
    let [first, second] = more(counts(), READS).await;
    first as f64 / second as f64
}

fn assert_within_a_tenth(ratio: f64, wanted: f64) {
    assert!((ratio / wanted - 1.0).abs() <= 0.1, "{ratio} instead of {wanted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_hold_for_a_volume_that_has_not_enough_for_all() {
    let site = Site::new("limit:(memory:8M,iops=200)");
    for by in [[0, 0], [1, 1], [1, 0]] {
        let disks = [site.open("nine", by[0]).await, site.open("one", by[1]).await];
        let loads = [Load::on(&disks[0]), Load::on(&disks[1])];
        assert_within_a_tenth(ratio(&loads).await, 9.0);
        if by == [1, 0] {
            // In force at once, for sessions that are there; by an administrator whose own commands do not wait.
            let change = ["config", "set", "clients.one.weight=9", "clients.nine.weight=1"];
            let said = site.does("one", 0, &change).await;
            assert!(!said.contains("log in anew"), "{said}");
            assert_within_a_tenth(1.0 / ratio(&loads).await, 9.0);
            let status = site.does("nine", 1, &["status"]).await;
            assert!(status.contains("client one: weight=9; "), "{status}");
            let listed = site.does("nine", 1, &["clients"]).await;
            assert!(listed.contains("writes disk; administrator; weight=1; "), "{listed}");
        }
        for load in loads {
            load.end().await;
        }
    }
    assert!(site.server.stop().success());
}

/// With one command a second, what was begun here would take a minute.
#[tokio::test(flavor = "multi_thread")]
async fn rate_makes_commands_wait_and_nothing_else() {
    let site = Site::new("memory:8M");
    for by in [0, 1] {
        let disk = site.open("one", by).await;
        site.does("nine", 0, &["config", "set", "clients.one.iops=1"]).await;
        let load = Load::on(&disk);
        let waits = |status: &str| {
            let status: serde_json::Value = serde_json::from_str(status.trim()).unwrap();
            status["shares"]["one"]["waiting"].as_u64().unwrap()
        };
        let until = Instant::now() + PATIENCE;
        // Both of the same client, whose reads wait, and by both transports.
        while waits(&site.does("one", by, &["status", "--json"]).await) < 30 {
            assert!(Instant::now() < until, "nothing waits");
        }
        // Who has no rate does not wait for who has.
        let other = site.open("nine", 1 - by).await;
        for at in 0..100 {
            other.read(Span::new(at * BLOCK, BLOCK)).await.unwrap();
        }
        // To log out is no command, and what waits is dropped with its session.
        let second = site.open("one", by).await;
        let reading = Load::on(&second);
        drop((reading, second));
        site.does("one", by, &["config", "unset", "clients.one.iops"]).await;
        let (start, until) = (load.count(), Instant::now() + PATIENCE);
        while load.count() < start + 1000 {
            assert!(Instant::now() < until, "they wait still");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        load.end().await;
    }
    assert!(site.server.stop().success());
}
