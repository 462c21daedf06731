//! Volumes of a target that answers pings and no commands, or goes away while they are opened: whoever opens them can end,
//! and gives back what was reserved.

mod common;
#[expect(dead_code, reason = "each test uses its part")]
#[path = "common/peer.rs"]
mod peer;
#[expect(dead_code, reason = "each test uses its part")]
#[path = "common/relay.rs"]
mod relay;

use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use common::{LONGHAUL, PATIENCE, Running, run};
use peer::Peer;
use relay::{CDB, is_command, pass};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

const PREFIX: &str = "iqn.2026-11.dev.longhaul:";

/// READ (16) (SBC-3).
const READ: u8 = 0x88;

/// By which an idle unit is asked how it is (SPC-4).
const TEST_UNIT_READY: u8 = 0;

/// What is in the way.
#[derive(Clone, Copy, PartialEq)]
enum Obstacle {
    /// No command gets to the target.
    Mute,
    /// The target, a gateway, answers all but READ: nothing gets to where its bytes are.
    Unread,
    /// At the first READ all connections end, and there is no other.
    Cut,
}

/// A target, and a way to it.
struct Upstream {
    server: Running,
    gateway: Option<Running>,
    uri: String,
    /// A command that did not get there.
    met: Receiver<()>,
    _runtime: Runtime,
    home: TempDir,
}

impl Upstream {
    fn new(obstacle: Obstacle) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (server, direct) = serve(home.path(), "up", "file:up.img,size=64M");
        let target = direct.split('/').nth(2).unwrap().to_owned();
        let runtime = Runtime::new().unwrap();
        let near = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let mut uri = format!("iscsi://{}/{PREFIX}up/0", near.local_addr().unwrap());
        let (tell, met) = channel();
        let closed = Arc::new(AtomicBool::new(obstacle != Obstacle::Unread));
        let is_closed = Arc::clone(&closed);
        runtime.spawn(async move {
            while let Ok((near, _)) = near.accept().await {
                let far = TcpStream::connect(&target).await.unwrap();
                let cut =
                    lose(near, far, (obstacle, &is_closed), || tell.send(()).unwrap_or(())).await;
                if cut {
                    return;
                }
            }
        });
        let gateway = (obstacle == Obstacle::Unread).then(|| serve(home.path(), "mid", &uri));
        let gateway = gateway.map(|(gateway, through)| {
            uri = through;
            gateway
        });
        closed.store(true, Ordering::Relaxed);
        Self { server, gateway, uri, met, _runtime: runtime, home }
    }

    fn dir(&self) -> &Path {
        self.home.path()
    }

    /// Waits until a command has met its fate.
    fn meets(&self) {
        self.met.recv_timeout(PATIENCE).expect("a command on its way");
    }

    /// Nobody has registered to write through the gateway (PERSISTENT RESERVE IN, READ KEYS).
    fn is_free(&self) {
        let portal = self.uri.split('/').nth(2).unwrap().parse().unwrap();
        let target = format!("{PREFIX}mid");
        let mut peer = Peer::log_in(portal, "iqn.2001-04.com.example:looks", 9, &target);
        while peer.says(0).is_some() {}
        let keys = [0x5E, 0, 0, 0, 0, 0, 0, 0, 64, 0];
        let (status, keys) = peer.run_on(0, &keys, vec![], 64).expect("an answer");
        assert_eq!((status, &keys[4..]), (0, &[0; 4][..]), "it is still registered");
    }

    fn end(self) {
        // What it had to flush has nowhere to go.
        if let Some(gateway) = self.gateway {
            gateway.kill();
        }
        assert!(self.server.stop().success());
    }
}

/// A server of one volume, and how it is named.
fn serve(home: &Path, name: &str, store: &str) -> (Running, String) {
    let mut serve = longhaul(home, name);
    serve.args(["serve", "--listen", "127.0.0.1:0", "--volume", &format!("{name}={store}")]);
    let server = Running::start(&mut serve);
    loop {
        let line = server.line().expect("it is ready");
        if let Some(uri) = line.strip_prefix("ready ") {
            return (server, uri.to_owned());
        }
    }
}

/// The program, as on a machine with this name.
fn longhaul(home: &Path, machine: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 2>&1\nexec \"$0\" \"$@\"", LONGHAUL]).current_dir(home);
    command.env("LONGHAUL_STATE_DIR", home.join(machine)).env("XDG_RUNTIME_DIR", home);
    command
}

/// Relays a connection; whether it was cut.
async fn lose(
    near: TcpStream,
    far: TcpStream,
    (obstacle, is_closed): (Obstacle, &AtomicBool),
    tell: impl Fn(),
) -> bool {
    let (near, far) = (near.into_split(), far.into_split());
    let (cut, mut is_cut) = tokio::sync::mpsc::unbounded_channel();
    let mut is_stuck = obstacle == Obstacle::Mute;
    let out = pass(near.0, far.1, |pdu| {
        if !is_command(pdu) || !is_closed.load(Ordering::Relaxed) {
            return;
        }
        // What follows one that is missing waits for it at the target (RFC 7143, 4.2.2.1).
        is_stuck |= pdu[CDB] == READ;
        if !is_stuck {
            return;
        }
        if pdu[CDB] != TEST_UNIT_READY {
            tell();
        }
        pdu.clear();
        if obstacle == Obstacle::Cut {
            let _ = cut.send(());
        }
    });
    tokio::select! {
        () = out => false,
        () = pass(far.0, near.1, |_| ()) => false,
        _ = is_cut.recv() => true,
    }
}

/// Ends a program that opens a volume; how it ended, and the last that it said.
fn end(running: Running) -> (ExitStatus, String) {
    running.signal(Signal::TERM);
    let mut said = String::new();
    while let Some(line) = running.line() {
        said = said + &line + "\n";
    }
    (running.end(), said)
}

#[test]
fn attachment_that_is_being_opened_ends_and_is_not_reserved() {
    for obstacle in [Obstacle::Mute, Obstacle::Unread, Obstacle::Cut] {
        let upstream = Upstream::new(obstacle);
        let mut attach = longhaul(upstream.dir(), "here");
        let attach = Running::start(attach.args(["attach", &upstream.uri, "--nbd", "disk.sock"]));
        upstream.meets();
        let (status, said) = end(attach);
        assert_eq!(status.code(), Some(1), "{said}");
        assert!(said.contains("it was ended before it was open"), "{said}");
        if matches!(obstacle, Obstacle::Unread) {
            upstream.is_free();
        }
        upstream.end();
    }
}

#[test]
fn commands_that_are_opening_a_volume_end() {
    for command in [
        &["key", "init", "URI", "--passphrase-file", "right"][..],
        &["copy", "file:from.img", "URI"],
        &["copy", "URI", "file:to.img"],
        &["tune", "URI"],
        &["serve", "--listen", "127.0.0.1:0", "--volume", "through=URI"],
    ] {
        let upstream = Upstream::new(Obstacle::Mute);
        fs::write(upstream.dir().join("from.img"), [0; 512]).unwrap();
        let arguments = command.iter().map(|argument| argument.replace("URI", &upstream.uri));
        let running = Running::start(longhaul(upstream.dir(), "here").args(arguments));
        upstream.meets();
        let (status, said) = end(running);
        assert_eq!(status.code(), Some(1), "{command:?}: {said}");
        assert!(said.contains("it was ended before it was open"), "{command:?}: {said}");
        upstream.end();
    }
}

/// A server, and the file that it reads.
struct Gateway {
    server: Running,
    dir: std::path::PathBuf,
}

const OWN: &str =
    "listen = [\"127.0.0.1:0\"]\ncontrol = \"control.sock\"\n[volumes.own]\nuri = \"memory:1M\"\n";

impl Gateway {
    fn new(upstream: &Upstream) -> Self {
        let dir = upstream.dir().to_owned();
        fs::write(dir.join("gateway.toml"), OWN).unwrap();
        let mut serve = longhaul(&dir, "gateway");
        let server = Running::start(serve.args(["serve", "--config", "gateway.toml"]));
        while !server.line().expect("it is ready").starts_with("ready") {}
        Self { server, dir }
    }

    /// From now on its file names this volume too.
    fn add(&self, uri: &str) {
        let with = format!("{OWN}[volumes.through]\nuri = \"{uri}\"\n");
        fs::write(self.dir.join("gateway.toml"), with).unwrap();
    }

    fn asks(&self, what: &str) -> Command {
        let mut command = longhaul(&self.dir, "admin");
        command.args([what, "--control", "control.sock"]);
        command
    }
}

/// A volume that cannot be opened is taken out again by the next reload.
#[test]
fn reload_that_hangs_is_replaced_by_the_next() {
    let upstream = Upstream::new(Obstacle::Unread);
    let gateway = Gateway::new(&upstream);
    gateway.add(&upstream.uri);
    let first = Running::start(&mut gateway.asks("reload"));
    upstream.meets();
    fs::write(gateway.dir.join("gateway.toml"), OWN).unwrap();
    let (said, status) = run(&gateway.asks("reload"));
    assert!(status.success() && said.contains("nothing to tell sessions"), "{said}");
    let said = first.line().unwrap();
    assert!(said.contains("another reload has taken its place"), "{said}");
    assert_eq!(first.end().code(), Some(1));
    upstream.is_free();
    assert!(gateway.server.stop().success());
    upstream.end();
}

/// Who asks is told that it takes long, others are answered, and the server ends meanwhile.
#[test]
fn server_ends_while_a_reload_hangs() {
    let upstream = Upstream::new(Obstacle::Unread);
    let gateway = Gateway::new(&upstream);
    gateway.add(&upstream.uri);
    let (said, status) = run(&gateway.asks("reload"));
    assert!(said.contains("not applied yet"), "{said}");
    assert_eq!(status.code(), Some(1));
    let (said, status) = run(&gateway.asks("status"));
    assert!(status.success(), "{said}");
    while upstream.met.try_recv().is_ok() {}
    let third = Running::start(&mut gateway.asks("reload"));
    upstream.meets();
    assert!(gateway.server.stop().success());
    let said = third.line().unwrap();
    assert!(said.contains("the server ends"), "{said}");
    assert_eq!(third.end().code(), Some(1));
    upstream.is_free();
    upstream.end();
}

/// A server that takes connections and says nothing: each command says which one, and within what was asked for.
#[test]
fn server_that_does_not_answer_a_login_is_named_within_the_limit() {
    let home = tempfile::tempdir().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    let uri = format!("iscsi://{at}/{PREFIX}a");
    let commands = [
        format!("info {uri}"),
        format!("attach {uri} --raw --nbd a.sock"),
        format!("copy {uri} a.img"),
        format!("key list {uri}"),
        format!("tune {uri}"),
        format!("ls {uri}"),
        format!("mount {uri} mnt"),
    ];
    fs::create_dir(home.path().join("mnt")).unwrap();
    let started = commands.map(|command| {
        let mut longhaul = Command::new(LONGHAUL);
        longhaul.args(command.split(' ')).args(["--reconnect-for", "5s"]);
        longhaul.current_dir(home.path()).env("HOME", home.path());
        longhaul.env("LONGHAUL_CONFIG_DIR", home.path()).env("LONGHAUL_STATE_DIR", home.path());
        longhaul.stdout(Stdio::piped()).stderr(Stdio::piped());
        (command, longhaul.spawn().unwrap())
    });
    let error = format!("{at} takes the connection, but does not answer the login within 5s");
    for (command, child) in started {
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains(&error), "{command}: {said}");
        assert!(said.contains(&format!("no answer from {at} yet")), "{command}: {said}");
    }
}
