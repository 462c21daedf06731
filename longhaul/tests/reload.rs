//! A configuration that changes while sessions are on.

mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use common::{LONGHAUL, Running};
use peer::Peer;
use proto::iscsi::header::{AsyncEvent, Header};
use proto::scsi::Sense;
use proto::scsi::sense::{Additional, Key};
use rustix::process::Signal;

const TARGET: &str = "iqn.2026-11.dev.longhaul:";
const MIB: u64 = 1 << 20;

/// An initiator that logs in to one volume and sends one command after the other.
struct TestInitiator(Peer);

impl TestInitiator {
    /// Says who it is and what it wants; the status class and detail of the answer.
    fn log_in(portal: SocketAddr, name: &str, volume: &str) -> (Self, [u8; 2]) {
        let text = peer::text(name, &format!("{TARGET}{volume}"));
        let (peer, response) = Peer::ask(portal, peer::login(1), text);
        (Self(peer), [response.status_class, response.status_detail])
    }

    /// Logs in, and takes note of the power on.
    fn new(portal: SocketAddr, name: &str, volume: &str) -> Self {
        let (mut guest, status) = Self::log_in(portal, name, volume);
        assert_eq!(status, [0, 0]);
        assert_eq!(guest.attention(), Some(Additional::POWER_ON_OR_RESET));
        guest
    }

    /// The unit attention that TEST UNIT READY is told.
    fn attention(&mut self) -> Option<Additional> {
        self.0.says(0)
    }

    fn blocks(&mut self) -> u64 {
        let cdb = [0x9E, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
        let (status, data) = self.0.run(cdb, vec![], 32).expect("an answer");
        assert_eq!(status, 0);
        u64::from_be_bytes(data[..8].try_into().unwrap()) + 1
    }

    /// Writes block `lba`; the status and the sense data.
    fn try_write(&mut self, lba: u16) -> (u8, Vec<u8>) {
        let [high, low] = lba.to_be_bytes();
        let cdb = [0x2A, 0, 0, 0, high, low, 0, 0, 1, 0];
        self.0.run_on(0, &cdb, vec![0x5A; 512], 0).expect("an answer")
    }

    /// The status of writing block `lba`.
    fn write(&mut self, lba: u16) -> u8 {
        self.try_write(lba).0
    }
}

/// Where it listens.
const LISTEN: &str = "listen = [\"127.0.0.1:0\"]\n";

fn file(name: &str) -> String {
    format!("[volumes.{name}]\nuri = \"file:{name}.img\"\n")
}

/// A server of the file `longhaul.toml` in `dir`, and its portal; what it logs is its output too.
fn start(dir: &Path, volumes: usize) -> (Running, SocketAddr) {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 2>&1\nexec \"$0\" serve --config longhaul.toml", LONGHAUL]);
    let server = Running::start(command.current_dir(dir));
    let mut portal = None;
    for _ in 0..volumes {
        let line = server.line().unwrap();
        let uri = line.strip_prefix("ready iscsi://").unwrap_or_else(|| panic!("{line}"));
        portal = uri.split('/').next().map(|portal| portal.parse().unwrap());
    }
    (server, portal.expect("a volume"))
}

/// Has it read its file again; what it says of that.
fn reload(server: &Running) -> String {
    server.signal(Signal::HUP);
    loop {
        let line = server.line().expect("it says what became of it");
        if line.contains("configuration") {
            return line;
        }
    }
}

/// One that comes before there is anything to reload is not what ends the server.
#[test]
fn a_reload_that_is_asked_for_while_the_volumes_are_being_opened_ends_nothing() {
    let home = tempfile::tempdir().unwrap();
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let config =
        format!("{LISTEN}[volumes.far]\nuri = \"iscsi://{address}/iqn.2026-11.x:far/0\"\n");
    fs::write(home.path().join("longhaul.toml"), config).unwrap();
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--config", "longhaul.toml"]).current_dir(&home);
    let server = Running::start(&mut command);
    let (session, _) = upstream.accept().unwrap();
    server.signal(Signal::HUP);
    // It cannot be opened: that is why it ends.
    drop((session, upstream));
    assert_eq!(server.end().code(), Some(1));
}

#[test]
fn a_volume_is_added_one_removed_one_grown_and_one_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    for name in ["grows", "goes", "stays", "comes"] {
        fs::File::create(path(&format!("{name}.img"))).unwrap().set_len(MIB).unwrap();
    }
    let config = |text: String| fs::write(path("longhaul.toml"), text).unwrap();
    config(LISTEN.to_owned() + &file("grows") + &file("goes") + &file("stays"));
    let (server, portal) = start(home.path(), 3);
    let name = "iqn.2001-04.com.example:guest";
    let mut grows = TestInitiator::new(portal, name, "grows");
    let goes = TestInitiator::new(portal, name, "goes");
    let mut stays = TestInitiator::new(portal, name, "stays");
    let (_, status) = TestInitiator::log_in(portal, name, "comes");
    assert_eq!(status, [2, 3], "there is none yet");
    assert_eq!(stays.write(7), 0);

    fs::OpenOptions::new().write(true).open(path("grows.img")).unwrap().set_len(2 * MIB).unwrap();
    config(LISTEN.to_owned() + &file("grows") + &file("stays") + &file("comes"));
    let leaves = std::thread::spawn(move || goes.0.leave());
    let said = reload(&server);
    assert!(said.contains("added comes; removed goes; grown grows; sessions that must"), "{said}");
    leaves.join().unwrap();
    assert_eq!(grows.attention(), Some(Additional::CAPACITY_CHANGED));
    assert_eq!(grows.blocks(), 4096);
    assert_eq!(grows.write(4095), 0);
    assert_eq!((stays.attention(), stays.blocks()), (None, 2048), "nobody touched it");
    TestInitiator::new(portal, name, "comes");
    assert_eq!(TestInitiator::log_in(portal, name, "goes").1, [2, 3]);
    // What was removed is free for others.
    let info = common::run(
        Command::new(LONGHAUL).args(["info", "file:goes.img"]).current_dir(home.path()),
    );
    assert!(info.1.success(), "{}", info.0);

    // A size in the file makes the file larger.
    config(LISTEN.to_owned() + &file("grows") + "size = \"3M\"\n" + &file("stays"));
    let said = reload(&server);
    assert!(said.contains("removed comes; grown grows"), "{said}");
    assert_eq!((grows.attention(), grows.blocks()), (Some(Additional::CAPACITY_CHANGED), 6144));
    assert!(server.stop().success());
    assert_eq!(fs::metadata(path("grows.img")).unwrap().len(), 3 * MIB);
}

#[test]
fn a_wrong_file_changes_nothing_and_says_why() {
    let home = tempfile::tempdir().unwrap();
    let config = |text: String| fs::write(home.path().join("longhaul.toml"), text).unwrap();
    let memory = "[volumes.a]\nuri = \"memory:1M\"\n";
    config(format!("{LISTEN}{memory}"));
    let (server, portal) = start(home.path(), 1);
    let mut guest = TestInitiator::new(portal, "iqn.2001-04.com.example:guest", "a");
    for (text, why) in [
        ("nonsense".to_owned(), "longhaul.toml:1"),
        (format!("{LISTEN}[volumes.b]\nuri = \"file:missing\"\n"), "does not exist"),
        (
            format!("{LISTEN}[volumes.a]\nuri = \"memory:2M\"\n"),
            "`uri` of volume a cannot change while it is served",
        ),
        (format!("{LISTEN}{memory}read_only = true\n"), "`read_only` of volume a cannot change"),
        (format!("{LISTEN}{memory}block_size = 4096\n"), "`block_size` of volume a cannot change"),
        (memory.to_owned(), "`listen` cannot change"),
        (
            format!(
                "{LISTEN}{memory}[clients.c]\nvolumes = [\"a\"]\nchap_secret_file = \"none\"\n"
            ),
            "cannot read the secret",
        ),
    ] {
        config(text);
        let said = reload(&server);
        assert!(said.contains("not applied, nothing has changed") && said.contains(why), "{said}");
        assert_eq!((guest.attention(), guest.write(1)), (None, 0));
    }
    assert!(server.stop().success());
}

#[test]
fn rights_that_change_concern_only_those_who_had_them() {
    let home = tempfile::tempdir().unwrap();
    let config = |[one, two]: [&str; 2]| {
        let client = |name: &str, key: &str| {
            format!(
                "[clients.{name}]\ninitiator = \"iqn.2001-04.com.example:{name}\"\n{key} = [\"a\"]\n"
            )
        };
        let text = format!("{LISTEN}[volumes.a]\nuri = \"memory:1M\"\n");
        fs::write(
            home.path().join("longhaul.toml"),
            text + &client("one", one) + &client("two", two),
        )
        .unwrap();
    };
    config(["volumes", "volumes"]);
    let (server, portal) = start(home.path(), 1);
    let name = |name: &str| format!("iqn.2001-04.com.example:{name}");
    let mut one = TestInitiator::new(portal, &name("one"), "a");
    let mut two = TestInitiator::new(portal, &name("two"), "a");
    assert_eq!((one.write(0), two.write(0)), (0, 0));
    config(["volumes", "read_only"]);
    let said = reload(&server);
    assert!(said.contains("sessions that must log in anew: 1"), "{said}");
    let told = two.0.receive().map(|pdu| pdu.header);
    let Some(Header::AsyncMessage(told)) = told else { panic!("{told:?}") };
    assert_eq!(told.event, AsyncEvent::DROP_SESSION, "it may do less: it is not asked");
    assert!(two.0.is_over());
    assert_eq!((one.attention(), one.write(0)), (None, 0));
    let mut two = TestInitiator::new(portal, &name("two"), "a");
    let (status, sense) = two.try_write(0);
    let sense = Sense::parse(&sense).unwrap();
    assert_eq!(
        (status, sense.key, sense.additional),
        (2, Key::DataProtect, Additional::WRITE_PROTECTED)
    );
    assert!(server.stop().success());
}

/// The sessions of the server in `home`: who has which.
fn sessions(home: &Path) -> BTreeMap<String, u64> {
    let status = longhaul(home, &["status", "--json", "--control", "control"]).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let session = |session: &serde_json::Value| {
        let initiator = session["initiator"].as_str().unwrap();
        (initiator.rsplit(':').next().unwrap().to_owned(), session["tsih"].as_u64().unwrap())
    };
    status["sessions"].as_array().unwrap().iter().map(session).collect()
}

/// Runs the program; what it prints, or what it says of its failure.
fn longhaul(home: &Path, args: &[&str]) -> Result<String, String> {
    let (printed, status) = common::run(Command::new(LONGHAUL).args(args).current_dir(home));
    if status.success() { Ok(printed) } else { Err(printed) }
}

/// A client that stays: an attached volume, with the secret that it knows at first.
fn attach(home: &Path, uri: &str, name: &str) -> Running {
    fs::copy(home.join(format!("{name}.secret")), home.join(format!("{name}.known"))).unwrap();
    let mut command = Command::new(LONGHAUL);
    command.args(["attach", uri, "--initiator", &format!("iqn.2001-04.com.example:{name}")]);
    command.args(["--chap-user", name, "--chap-secret-file", &format!("{name}.known")]);
    command.args(["--shared", "--nbd", &format!("{name}.sock")]);
    let attached = Running::start(command.current_dir(home));
    assert!(attached.line().unwrap().starts_with("ready "));
    attached
}

#[test]
fn secrets_and_clients_that_change_concern_only_those_who_used_them() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let names = ["laptop", "desk", "tower"];
    let secret = |name: &str, what: &str| {
        let path = home.join(format!("{name}.secret"));
        fs::write(&path, format!("the {what} secret of {name}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    let config = |clients: &[&str]| {
        let client = |name: &&str| {
            format!("[clients.{name}]\nvolumes = [\"a\"]\nchap_secret_file = \"{name}.secret\"\n")
        };
        let clients: String = clients.iter().map(client).collect();
        let text =
            format!("control = \"control\"\n{LISTEN}[volumes.a]\nuri = \"memory:1M\"\n{clients}");
        fs::write(home.join("longhaul.toml"), text).unwrap();
    };
    let reload = || longhaul(home, &["reload", "--control", "control"]).unwrap();
    names.iter().for_each(|name| secret(name, "first"));
    config(&names);
    let (server, portal) = start(home, 1);
    let uri = format!("iscsi://{portal}/{TARGET}a");
    let info = |name: &str, file: &str| {
        longhaul(home, &["info", &uri, "--chap-user", name, "--chap-secret-file", file])
    };
    let _attached: Vec<_> = names.iter().map(|name| attach(home, &uri, name)).collect();
    let before = sessions(home);
    assert_eq!(before.len(), 3);

    // The file is as it was, but not the secret in another.
    secret("laptop", "second");
    assert_eq!(reload(), "sessions that must log in anew: 1\n");
    let mut left = before.clone();
    left.remove("laptop");
    assert_eq!(sessions(home), left, "the others go on");
    let refused = info("laptop", "laptop.known").unwrap_err();
    assert!(refused.contains("authentication failure"), "{refused}");
    info("laptop", "laptop.secret").unwrap();

    config(&["laptop", "tower"]);
    assert_eq!(reload(), "sessions that must log in anew: 1\n");
    left.remove("desk");
    assert_eq!(sessions(home), left);
    info("desk", "desk.known").unwrap_err();

    // Nothing has changed, so nobody is told anything.
    assert_eq!(reload(), "nothing to tell sessions\n");
    assert_eq!(sessions(home), left);
    assert!(server.stop().success());
}

#[test]
fn log_level_follows_the_file() {
    let home = tempfile::tempdir().unwrap();
    let config = |log: &str| {
        let text = format!("{LISTEN}[volumes.a]\nuri = \"memory:1M\"\n[log]\n{log}\n");
        fs::write(home.path().join("longhaul.toml"), text).unwrap();
    };
    config("level = \"error\"");
    let (server, portal) = start(home.path(), 1);
    // It stays: the end of its session would be logged whenever the server notices it.
    let unseen = TestInitiator::new(portal, "iqn.2001-04.com.example:unseen", "a");
    config("level = \"info\"");
    server.signal(Signal::HUP);
    let said = server.line().unwrap();
    assert!(said.contains("configuration applied"), "the first line there is: {said}");
    let seen = TestInitiator::new(portal, "iqn.2001-04.com.example:seen", "a");
    let said = server.line().unwrap();
    assert!(said.contains("logged in") && said.contains("com.example:seen"), "{said}");
    drop((unseen, seen));
    config("level = \"nonsense=x\"");
    assert!(reload(&server).contains("cannot log at level `nonsense=x`"));
    config("level = \"info\"\nformat = \"json\"");
    assert!(reload(&server).contains("`log.format` cannot change"));
    assert!(server.stop().success());
}

/// What is kept of a volume stays with it under another name: a reload that reads that must not do so while it still
/// changes.
#[test]
fn volume_gets_another_name_in_two_reloads() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("a.img"), [0; 1 << 20]).unwrap();
    let config = |volume: &str| {
        let text = format!("state = \"state\"\n{LISTEN}{volume}");
        fs::write(home.path().join("longhaul.toml"), text).unwrap();
    };
    let of = |name: &str| format!("[volumes.{name}]\nuri = \"file:a.img\"\nread_only = true\n");
    let new = of("new") + "target = \"iqn.2026-11.dev.longhaul:old\"\n";
    config(&of("old"));
    let (server, portal) = start(home.path(), 1);
    let mut guest = TestInitiator::new(portal, "iqn.2001-04.com.example:guest", "old");
    config(&new);
    let said = reload(&server);
    let why = "volume new cannot become unit 0 of iqn.2026-11.dev.longhaul:old while volume old is";
    assert!(said.contains("nothing has changed") && said.contains(why), "{said}");
    assert_eq!((guest.attention(), guest.blocks()), (None, 2048));
    config("[volumes.other]\nuri = \"memory:1M\"\n");
    let leaves = std::thread::spawn(move || guest.0.leave());
    let said = reload(&server);
    assert!(said.contains("removed old"), "{said}");
    leaves.join().unwrap();
    config(&new);
    let said = loop {
        let said = reload(&server);
        if !said.contains("volume new is still being closed") {
            break said;
        }
    };
    assert!(said.contains("added new"), "{said}");
    let mut guest = TestInitiator::new(portal, "iqn.2001-04.com.example:guest", "old");
    assert_eq!(guest.blocks(), 2048);
    assert!(server.stop().success());
}

/// A volume that is added with its file, one that grows, and one that cannot be: nothing of it stays.
#[test]
fn reload_that_fails_late_leaves_nothing_behind() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let config = |text: &str| fs::write(path("longhaul.toml"), LISTEN.to_owned() + text).unwrap();
    let made = |name: &str, size: &str| format!("{}size = \"{size}\"\n", file(name));
    config(&(made("a", "1M") + &made("z", "1M")));
    let (server, portal) = start(home.path(), 2);
    let mut guest = TestInitiator::new(portal, "iqn.2001-04.com.example:guest", "a");
    let length = |name: &str| fs::metadata(path(name)).map(|found| found.len()).ok();
    let grown = made("a", "2M");
    for (more, why) in [
        // Volumes are opened in this order, so that a file was made before the failure.
        (made("z", "1M") + &made("new", "1M") + &file("missing"), "missing.img"),
        // One has grown before the other cannot: it would lose its end.
        (made("new", "1M") + &made("z", "512K"), "cannot shrink"),
        (
            made("z", "1M") + &made("new", "1M") + "[volumes.m]\nuri = \"memory:99999T\"\n",
            "of memory",
        ),
        (made("z", "1M") + "[log]\nlevel = \"loud\"\n", "`loud` is no level"),
    ] {
        config(&(grown.clone() + &more));
        let said = reload(&server);
        assert!(said.contains("not applied, nothing has changed"), "{why}: {said}");
        assert_eq!((length("new.img"), length("a.img")), (None, Some(MIB)), "{why}");
        assert_eq!((guest.attention(), guest.write(1), guest.blocks()), (None, 0, 2048), "{why}");
    }
    config(&(grown + &made("z", "1M") + &made("new", "1M")));
    let said = reload(&server);
    assert!(said.contains("added new; grown a"), "{said}");
    assert_eq!((length("new.img"), length("a.img")), (Some(MIB), Some(2 * MIB)));
    assert!(server.stop().success());
}
