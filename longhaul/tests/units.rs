//! Several volumes as units of one target: who sees which, and what becomes of sessions when that changes.

mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use common::{LONGHAUL, Running};
use peer::Peer;
use proto::scsi::Sense;
use proto::scsi::sense::{Additional, Key};
use rustix::process::Signal;

const TARGET: &str = "iqn.2026-11.dev.longhaul:vm";
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const WRITE: [u8; 10] = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0];

fn name(who: &str) -> String {
    format!("iqn.2001-04.com.example:{who}")
}

/// The file `longhaul.toml`: volumes with what is said of each, and what each client may read and write, and
/// only read.
fn configure(dir: &Path, volumes: &[(&str, &str)], clients: &[(&str, &[&str], &[&str])]) {
    let mut text = "listen = ['127.0.0.1:0']\ncontrol = 'control.sock'\n".to_owned();
    for (volume, more) in volumes {
        let file = dir.join(format!("{volume}.img"));
        fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .unwrap()
            .set_len(1 << 20)
            .unwrap();
        text += &format!("[volumes.{volume}]\nuri = 'file:{volume}.img'\n{more}\n");
    }
    for (client, writes, reads) in clients {
        text += &format!("[clients.{client}]\ninitiator = '{}'\n", name(client));
        text += &format!("volumes = {writes:?}\nread_only = {reads:?}\n");
    }
    fs::write(dir.join("longhaul.toml"), text).unwrap();
}

/// A server of the file in `dir`, its portal, and what it says is ready.
fn start(dir: &Path, volumes: usize) -> (Running, SocketAddr, Vec<String>) {
    let mut command = Command::new("sh");
    command.args(["-c", "exec 2>&1\nexec \"$0\" serve --config longhaul.toml", LONGHAUL]);
    let server = Running::start(command.current_dir(dir));
    let ready: Vec<_> = (0..volumes).map(|_| server.line().unwrap()).collect();
    let portal = ready[0].split('/').nth(2).unwrap().parse().unwrap();
    (server, portal, ready)
}

/// Has it read its file again; what it says of that.
fn reload(server: &Running) -> String {
    server.signal(Signal::HUP);
    std::iter::from_fn(|| server.line())
        .find(|line| line.contains("configuration") && !line.contains("served_volumes"))
        .unwrap()
}

/// Writes the first block of a unit.
fn write(peer: &mut Peer, lun: u16, byte: u8) -> (u8, Vec<u8>) {
    peer.run_on(lun, &WRITE, vec![byte; 512], 0).unwrap()
}

fn key(sense: &[u8]) -> Key {
    Sense::parse(sense).unwrap().key
}

#[test]
fn a_client_sees_the_units_it_may_use() {
    let home = tempfile::tempdir().unwrap();
    configure(
        home.path(),
        &[("root", "target = 'vm'"), ("data", "target = 'vm'\nlun = 3"), ("other", "")],
        &[("one", &["root", "data"], &[]), ("two", &[], &["data"]), ("three", &["other"], &[])],
    );
    let (server, portal, ready) = start(home.path(), 3);
    assert!(ready[0].ends_with(":vm/0") && ready[1].ends_with(":vm/3"), "{ready:?}");

    let mut one = Peer::log_in(portal, &name("one"), 1, TARGET);
    assert_eq!(one.luns(), [0, 3]);
    for lun in [0, 3] {
        assert_eq!(one.says(lun), Some(Additional::POWER_ON_OR_RESET));
        assert_eq!(write(&mut one, lun, lun as u8).0, 0);
    }
    let mut two = Peer::log_in(portal, &name("two"), 1, TARGET);
    assert_eq!(two.luns(), [3], "asked of a unit that is not there for it");
    assert_eq!(two.says(0), Some(Additional::LOGICAL_UNIT_NOT_SUPPORTED));
    assert_eq!(two.says(3), Some(Additional::POWER_ON_OR_RESET));
    let (status, sense) = write(&mut two, 3, 9);
    assert_eq!((status, key(&sense)), (2, Key::DataProtect));
    let (_, block) = two.run_on(3, &READ, Vec::new(), 512).unwrap();
    assert_eq!(block, [3; 512]);

    let seen = |who: &str| {
        let portal = portal.to_string();
        let mut discover = Command::new(LONGHAUL);
        discover.args(["discover", &portal, "--initiator", &name(who)]);
        let (told, _) = common::run(&discover);
        told.lines().map(|line| line.rsplit(':').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((seen("two"), seen("three")), (vec!["vm/0".to_owned()], vec!["other/0".to_owned()]));

    let mut status = Command::new(LONGHAUL);
    status.args(["status", "--control", "control.sock"]).current_dir(home.path());
    let (status, _) = common::run(&status);
    assert!(status.contains(":vm\n  unit 0, 1M bytes\n  unit 3, 1M bytes\n"), "{status}");
    assert!(server.stop().success());
}

#[test]
fn units_come_and_go_under_a_session() {
    let home = tempfile::tempdir().unwrap();
    let root = ("root", "target = 'vm'");
    let (data, more) = (("data", "target = 'vm'\nlun = 3"), ("more", "target = 'vm'\nlun = 5"));
    configure(home.path(), &[root, data], &[]);
    let (server, portal, _) = start(home.path(), 2);
    let mut one = Peer::log_in(portal, &name("one"), 1, TARGET);
    let mut two = Peer::log_in(portal, &name("two"), 2, TARGET);
    for peer in [&mut one, &mut two] {
        assert_eq!(
            (peer.says(0), peer.says(3)),
            (Some(Additional::POWER_ON_OR_RESET), Some(Additional::POWER_ON_OR_RESET))
        );
    }
    assert_eq!(write(&mut one, 3, 7).0, 0);

    configure(home.path(), &[root, more], &[]);
    let said = reload(&server);
    assert!(said.ends_with("added more; removed data"), "nobody logs out: {said}");
    assert_eq!(one.says(0), Some(Additional::REPORTED_LUNS_CHANGED));
    assert_eq!(one.says(0), None);
    assert_eq!(one.says(3), Some(Additional::LOGICAL_UNIT_NOT_SUPPORTED));
    assert_eq!((one.says(5), one.luns()), (Some(Additional::POWER_ON_OR_RESET), vec![0, 5]));
    assert_eq!(write(&mut one, 5, 7).0, 0);
    assert_eq!((two.luns(), two.says(0)), (vec![0, 5], None), "who has read the list knows");
    // What was removed is free for others, and what was written to it is there.
    let mut info = Command::new(LONGHAUL);
    let info = common::run(info.args(["info", "file:data.img"]).current_dir(home.path()));
    assert!(info.1.success(), "{}", info.0);
    assert_eq!(fs::read(home.path().join("data.img")).unwrap()[..512], [7; 512]);

    // Another disk under the same number is another matter: who uses the target has to look at it anew.
    configure(home.path(), &[root, ("data", "target = 'vm'\nlun = 5")], &[]);
    drop(two);
    let leaves = std::thread::spawn(move || {
        one.leave();
    });
    let said = reload(&server);
    assert!(said.contains("sessions that must log in anew: "), "{said}");
    leaves.join().unwrap();
    assert!(server.stop().success());
}

#[test]
fn a_right_to_another_unit_comes_without_a_new_login() {
    let home = tempfile::tempdir().unwrap();
    let volumes = [("root", "target = 'vm'"), ("data", "target = 'vm'\nlun = 3")];
    configure(home.path(), &volumes, &[("one", &["root"], &[])]);
    let (server, portal, _) = start(home.path(), 2);
    let mut one = Peer::log_in(portal, &name("one"), 1, TARGET);
    assert_eq!((one.says(0), one.luns()), (Some(Additional::POWER_ON_OR_RESET), vec![0]));
    configure(home.path(), &volumes, &[("one", &["root"], &["data"])]);
    let said = reload(&server);
    assert!(said.contains("configuration applied"), "{said}");
    assert_eq!(one.says(0), Some(Additional::REPORTED_LUNS_CHANGED));
    assert_eq!((one.luns(), one.says(3)), (vec![0, 3], Some(Additional::POWER_ON_OR_RESET)));
    assert!(server.stop().success());
}
