//! Media changers of the served program: initiators and operators move cartridges between slots and drives, and each is in
//! one place whatever happens.

mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;

use common::{LONGHAUL, Running, run};
use peer::Peer;
use proto::scsi::Sense;
use proto::scsi::sense::Additional;
use tempfile::TempDir;

const TARGET: &str = "iqn.2026-11.dev.longhaul:library";
const LIBRARY: &str = "library=changer:tapes,drives=2,slots=4,mail=1";
const MARK: &[u8] = &[0x10, 0, 0, 0, 1, 0];
const REWIND: &[u8] = &[0x01, 0, 0, 0, 0, 0];
const READY: &[u8] = &[0; 6];
const LOCK: &[u8] = &[0x1E, 0, 0, 0, 1, 0];
const ALLOW: &[u8] = &[0x1E, 0, 0, 0, 0, 0];

const MAIL: u16 = 0x300;
const fn drive(index: u16) -> u16 {
    0x100 + index
}
const fn slot(number: u16) -> u16 {
    0x3FF + number
}

/// A directory with the cartridges `A1` to `C3` in `tapes`.
fn home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("tapes")).unwrap();
    for name in ["A1", "B2", "C3.tape"] {
        let tape = fs::File::create(home.path().join("tapes").join(name)).unwrap();
        tape.set_len(4 << 20).unwrap();
    }
    home
}

/// A server of the library in `home`, and its portal.
fn serve(home: &Path, words: &[&str]) -> (Running, SocketAddr) {
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--control", "control.sock"]);
    let server = Running::start(command.args(words).current_dir(home));
    let ready = server.line().unwrap();
    let uri = ready.strip_prefix("ready iscsi://").unwrap_or_else(|| panic!("{ready:?}"));
    (server, uri.split('/').next().unwrap().parse().unwrap())
}

fn serve_library(home: &Path) -> (Running, SocketAddr) {
    serve(home, &["--volume", LIBRARY])
}

/// What the program says to these words, and whether it was done.
fn longhaul(home: &Path, words: &[&str]) -> (String, bool) {
    let (said, status) = run(Command::new(LONGHAUL).args(words).current_dir(home));
    (said, status.success())
}

fn media(home: &Path, words: &[&str]) -> (String, bool) {
    longhaul(home, &[&["media"][..], words, &["--control", "control.sock"]].concat())
}

/// An initiator that has been told of the power on by each of these units.
fn initiator_of(portal: SocketAddr, number: u8, units: u16) -> Peer {
    let name = format!("iqn.2001-04.com.example:{number}");
    let mut peer = Peer::log_in(portal, &name, number, TARGET);
    for lun in 0..units {
        assert_eq!(peer.says(lun), Some(Additional::POWER_ON_OR_RESET));
    }
    peer
}

fn initiator(portal: SocketAddr) -> Peer {
    initiator_of(portal, 1, 3)
}

/// The data of a command, or why there are none.
fn ask(
    peer: &mut Peer,
    lun: u16,
    cdb: &[u8],
    data: Vec<u8>,
    room: u32,
) -> Result<Vec<u8>, Additional> {
    match peer.run_on(lun, cdb, data, room).expect("an answer") {
        (0, data) => Ok(data),
        (status, sense) => match Sense::parse(&sense) {
            Some(sense) => Err(sense.additional),
            None => panic!("status {status:#x}"),
        },
    }
}

fn run_on(peer: &mut Peer, lun: u16, cdb: &[u8]) -> Result<(), Additional> {
    ask(peer, lun, cdb, Vec::new(), 0).map(drop)
}

fn write(peer: &mut Peer, lun: u16, block: &[u8]) {
    let [_, a, b, c] = (block.len() as u32).to_be_bytes();
    assert_eq!(ask(peer, lun, &[0x0A, 0, a, b, c, 0], block.to_vec(), 0), Ok(vec![]));
}

fn read(peer: &mut Peer, lun: u16, len: u32) -> Result<Vec<u8>, Additional> {
    let [_, a, b, c] = len.to_be_bytes();
    ask(peer, lun, &[0x08, 0, a, b, c, 0], vec![], len)
}

/// MOVE MEDIUM.
fn move_medium(peer: &mut Peer, from: u16, to: u16) -> Result<(), Additional> {
    let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
    run_on(peer, 0, &[0xA5, 0, 0, 0, a, b, c, d, 0, 0, 0, 0])
}

/// EXCHANGE MEDIUM.
fn exchange(peer: &mut Peer, source: u16, first: u16, second: u16) -> Result<(), Additional> {
    let addresses = [source, first, second].map(u16::to_be_bytes).concat();
    run_on(peer, 0, &[&[0xA6, 0, 0, 0], &addresses[..], &[0, 0]].concat())
}

/// READ ELEMENT STATUS with volume tags: the address and barcode of each element that is full.
fn status(peer: &mut Peer) -> Vec<(u16, String)> {
    let cdb = [0xB8, 0x10, 0, 0, 0xFF, 0xFF, 0, 0, 0xFF, 0xFF, 0, 0];
    let data = ask(peer, 0, &cdb, vec![], 0xFFFF).unwrap();
    let (mut rest, mut full) = (&data[8..], Vec::new());
    while let [_, _, high, low, _, a, b, c, ..] = *rest {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (page, others) = rest[8..].split_at(u32::from_be_bytes([0, a, b, c]) as usize);
        for element in page.chunks(length).filter(|element| element[2] & 1 != 0) {
            let barcode = String::from_utf8(element[12..44].to_vec()).unwrap();
            let address = u16::from_be_bytes([element[0], element[1]]);
            full.push((address, barcode.trim_end().to_owned()));
        }
        rest = others;
    }
    full
}

fn full(of: &[(u16, &str)]) -> Vec<(u16, String)> {
    of.iter().map(|(at, barcode)| (*at, (*barcode).to_owned())).collect()
}

#[test]
fn tapes_are_moved_between_slots_and_drives_and_keep_what_was_written() {
    let home = home();
    let (server, portal) = serve_library(home.path());
    let mut peer = initiator(portal);
    assert_eq!(peer.luns(), [0, 1, 2]);
    assert_eq!(status(&mut peer), full(&[(slot(1), "A1"), (slot(2), "B2"), (slot(3), "C3")]));
    assert_eq!(run_on(&mut peer, 1, READY), Err(Additional::MEDIUM_NOT_PRESENT));
    assert_eq!(move_medium(&mut peer, slot(2), drive(0)), Ok(()));
    assert_eq!(run_on(&mut peer, 1, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    write(&mut peer, 1, b"on B2");
    // It is moved without having been unloaded, nor made stable by a file mark.
    assert_eq!(move_medium(&mut peer, drive(0), drive(1)), Ok(()));
    assert_eq!(run_on(&mut peer, 1, READY), Err(Additional::MEDIUM_NOT_PRESENT));
    assert_eq!(run_on(&mut peer, 2, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    assert_eq!(read(&mut peer, 2, 5), Ok(b"on B2".to_vec()));
    // The one goes into the drive, the other where that was.
    assert_eq!(exchange(&mut peer, slot(1), drive(1), slot(1)), Ok(()));
    let placed = full(&[(drive(1), "A1"), (slot(1), "B2"), (slot(3), "C3")]);
    assert_eq!(status(&mut peer), placed);
    assert_eq!(run_on(&mut peer, 2, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    assert_eq!(read(&mut peer, 2, 5), Err(Additional::END_OF_DATA));
    for (from, to, why) in [
        (slot(2), drive(0), Additional::SOURCE_ELEMENT_EMPTY),
        (slot(1), drive(1), Additional::DESTINATION_ELEMENT_FULL),
        (slot(1), slot(5), Additional::INVALID_ELEMENT_ADDRESS),
    ] {
        assert_eq!(move_medium(&mut peer, from, to), Err(why));
    }
    assert_eq!(status(&mut peer), placed);
    // One that was unloaded is moved likewise.
    assert_eq!(run_on(&mut peer, 2, &[0x1B, 0, 0, 0, 0, 0]), Ok(()));
    assert_eq!(move_medium(&mut peer, drive(1), slot(4)), Ok(()));
    assert!(server.stop().success());
    let (said, whole) = longhaul(home.path(), &["tape", "verify", "tapes/B2"]);
    assert!(whole && said.contains("all 1 records are whole"), "{said}");
}

#[test]
fn drives_are_named_in_the_element_status_as_they_name_themselves() {
    let home = home();
    let (server, portal) = serve_library(home.path());
    let mut peer = initiator(portal);
    let cdb = [0xB8, 0x14, 0, 0, 0, 9, 1, 0, 0xFF, 0xFF, 0, 0];
    let data = ask(&mut peer, 0, &cdb, vec![], 0xFFFF).unwrap();
    let length = usize::from(u16::from_be_bytes([data[10], data[11]]));
    for (lun, element) in (1..).zip(data[16..].chunks(length)) {
        // The first designator of the drive's device identification page.
        let page = ask(&mut peer, lun, &[0x12, 1, 0x83, 1, 0, 0], vec![], 256).unwrap();
        let designator = &page[4..8 + usize::from(page[7])];
        assert_eq!(element[48..], *designator);
    }
    assert_eq!(data[16..].len(), 2 * length);
    // What exceeds the allocation length is dropped, and lengths do not change (SPC-4, 4.2.5.6).
    for room in [0, 8, 21] {
        let cdb = [0xB8, 0x14, 0, 0, 0, 9, 1, 0, 0, room, 0, 0];
        let cut = ask(&mut peer, 0, &cdb, vec![], 256).unwrap();
        assert_eq!(cut, data[..room.into()]);
    }
    assert!(server.stop().success());
}

#[test]
fn cartridges_are_where_they_were_after_a_restart_and_after_a_kill() {
    let home = home();
    let (server, portal) = serve_library(home.path());
    let mut peer = initiator(portal);
    assert_eq!(move_medium(&mut peer, slot(3), drive(1)), Ok(()));
    assert_eq!(run_on(&mut peer, 2, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    write(&mut peer, 2, b"on C3");
    assert_eq!(run_on(&mut peer, 2, MARK), Ok(()));
    server.kill();
    let placed = full(&[(drive(1), "C3"), (slot(1), "A1"), (slot(2), "B2")]);
    let (server, portal) = serve_library(home.path());
    let mut peer = initiator(portal);
    assert_eq!(status(&mut peer), placed);
    assert_eq!(run_on(&mut peer, 2, REWIND), Ok(()));
    assert_eq!(read(&mut peer, 2, 5), Ok(b"on C3".to_vec()));
    // It goes back to the slot that it came from.
    assert!(server.stop().success());
    let (server, portal) = serve_library(home.path());
    assert_eq!(status(&mut initiator(portal)), placed);
    assert!(server.stop().success());
}

/// The server is killed while cartridges are moved as fast as they can be: each is in one place, and what was acknowledged is so.
#[test]
fn server_killed_while_it_moves_has_each_cartridge_in_one_place() {
    let home = home();
    let mut last = Vec::new();
    for round in 0..12_u32 {
        let (server, portal) = serve_library(home.path());
        let mut peer = initiator_of(portal, 1, 1);
        let found = status(&mut peer);
        let mut barcodes: Vec<_> = found.iter().map(|(_, barcode)| barcode.as_str()).collect();
        barcodes.sort_unstable();
        assert_eq!(barcodes, ["A1", "B2", "C3"], "{found:?}");
        if let [(_, before), (_, after)] = &last[..] {
            let states: [&Vec<_>; 2] = [before, after];
            assert!(states.contains(&&found), "{found:?} is none of {states:?}");
        }
        let mover = thread::spawn(move || {
            let (mut before, mut after) = (found.clone(), found);
            loop {
                let free = [drive(0), drive(1), MAIL, slot(1), slot(2), slot(3), slot(4)];
                let is_free = |at: &u16| before.iter().all(|(full, _)| full != at);
                let free: Vec<_> = free.into_iter().filter(is_free).collect();
                let from = (round as usize + before.len()) % before.len();
                let to = free[(round as usize * 7 + usize::from(before[from].0)) % free.len()];
                let (a, barcode) = after.remove(from);
                after.push((to, barcode));
                after.sort_unstable();
                let ([a, b], [c, d]) = (a.to_be_bytes(), to.to_be_bytes());
                let cdb = [0xA5, 0, 0, 0, a, b, c, d, 0, 0, 0, 0];
                match peer.run_on(0, &cdb, Vec::new(), 0) {
                    Some((0, _)) => before.clone_from(&after),
                    // The connection is gone: it was done, or not.
                    _ => return [(0, before), (1, after)],
                }
            }
        });
        // At no moment that was chosen: after as many changes of the file as this.
        let places = home.path().join("tapes/.longhaul-places.json");
        let (mut changes, mut seen) = (0, Vec::new());
        while changes < 2 + round {
            let now = fs::read(&places).unwrap();
            if now != seen {
                (seen, changes) = (now, changes + 1);
            }
        }
        server.kill();
        last = mover.join().unwrap().to_vec();
    }
}

#[test]
fn locked_drive_and_locked_changer_keep_what_is_in_them() {
    let home = home();
    let (server, portal) = serve_library(home.path());
    let mut peer = initiator(portal);
    assert_eq!(move_medium(&mut peer, slot(1), drive(0)), Ok(()));
    assert_eq!(run_on(&mut peer, 1, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    assert_eq!(run_on(&mut peer, 1, LOCK), Ok(()));
    let locked = Err(Additional::MEDIUM_REMOVAL_PREVENTED);
    assert_eq!(move_medium(&mut peer, drive(0), slot(1)), locked);
    assert_eq!(exchange(&mut peer, slot(2), drive(0), slot(4)), locked);
    // The element status says so: ACCESS is zero.
    let cdb = [0xB8, 0x04, 1, 0, 0, 1, 0, 0, 0, 64, 0, 0];
    assert_eq!(ask(&mut peer, 0, &cdb, vec![], 64).unwrap()[18], 0x01);
    let (said, done) = media(home.path(), &["move", "library", "drive:0", "slot:1"]);
    assert!(!done && said.contains("locked the drive") && said.contains("--force"), "{said}");
    assert!(media(home.path(), &["move", "library", "A1", "mail:1", "--force"]).1);
    assert_eq!(run_on(&mut peer, 0, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    assert_eq!(run_on(&mut peer, 1, READY), Err(Additional::MEDIUM_NOT_PRESENT));
    assert_eq!(run_on(&mut peer, 0, LOCK), Ok(()));
    let (said, done) = media(home.path(), &["export", "library", "mail:1"]);
    assert!(!done && said.contains("locked"), "{said}");
    // An initiator may move all the same: the lock is for people.
    assert_eq!(move_medium(&mut peer, slot(2), drive(1)), Ok(()));
    assert_eq!(run_on(&mut peer, 0, ALLOW), Ok(()));
    assert!(media(home.path(), &["export", "library", "mail:1"]).1);
    assert!(server.stop().success());
}

#[test]
fn operator_imports_and_exports_and_initiators_are_told() {
    let home = home();
    let (server, portal) = serve_library(home.path());
    let mut peer = initiator(portal);
    let (said, done) = media(home.path(), &["move", "library", "A1", "mail:1"]);
    assert!(done && said.contains("slot:1 of library is in mail:1"), "{said}");
    assert_eq!(run_on(&mut peer, 0, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    let (said, done) = media(home.path(), &["export", "library", "A1"]);
    assert!(done && said.contains("A1 is not in library any more"), "{said}");
    assert_eq!(run_on(&mut peer, 0, READY), Err(Additional::IMPORT_OR_EXPORT_ACCESSED));
    assert_eq!(status(&mut peer), full(&[(slot(2), "B2"), (slot(3), "C3")]));
    let (said, done) = media(home.path(), &["import", "library", "D4", "--size", "1M"]);
    assert!(done && said.contains("D4 is in mail:1 of library"), "{said}");
    assert_eq!(run_on(&mut peer, 0, READY), Err(Additional::IMPORT_OR_EXPORT_ACCESSED));
    // IMPEXP, until it is moved.
    let cdb = [0xB8, 0x03, 3, 0, 0, 1, 0, 0, 0, 64, 0, 0];
    assert_eq!(ask(&mut peer, 0, &cdb, vec![], 64).unwrap()[18], 0x3B);
    assert_eq!(move_medium(&mut peer, MAIL, drive(0)), Ok(()));
    let listed = media(home.path(), &["list"]).0;
    for line in ["library drive:0: D4", "library slot:1: empty", "library slot:2: B2"] {
        assert!(listed.contains(line), "{listed}");
    }
    assert!(listed.contains("library-drive0: ") && listed.contains("tapes/D4, 1M"), "{listed}");
    for (words, why) in [
        (&["import", "library", "E5"][..], "there is no file"),
        (&["import", "library", "B2"], "cartridge B2 is in slot:2"),
        (&["export", "library", "slot:2"], "cartridges go out by an import and export element"),
        (&["export", "library", "mail:1"], "there is nothing in mail:1"),
        (&["move", "library", "E5", "slot:1"], "there is no cartridge E5"),
        (&["move", "library", "slot:1", "slot:3"], "slot:1"),
        (&["move", "library", "B2", "slot:9"], "there is no slot:9"),
        (&["move", "library", "B2", "slot:3"], "there is a cartridge in slot:3 already"),
        (&["move", "other", "B2", "slot:1"], "it has library"),
        (&["load", "library-drive0", "tapes/A1"], "is a drive of the media changer library"),
        // The first slot that is free.
        (&["eject", "library-drive0"], "`longhaul media move library drive:0 slot:1 --control"),
        (&["eject", "library-drive1"], "there is no cartridge in it"),
        // The first that is full.
        (&["load", "library-drive1", "x"], "`longhaul media move library slot:2 drive:1 --control"),
    ] {
        let (said, done) = media(home.path(), words);
        assert!(!done && said.contains(why), "{words:?}: {said}");
    }
    // What cannot be a tape is not left behind.
    let (said, done) = media(home.path(), &["import", "library", "E5", "--size", "1K"]);
    assert!(!done && said.contains("cannot import E5 into library"), "{said}");
    assert!(!home.path().join("tapes/E5").exists());
    // A file that is no tape does not come in.
    fs::write(home.path().join("tapes/F6"), vec![7; 1 << 20]).unwrap();
    let (said, done) = media(home.path(), &["import", "library", "F6"]);
    assert!(!done && said.contains("/F6") && said.contains("no tape"), "{said}");
    assert!(server.stop().success());
}

/// One of the operator's making, a blank one that is there, and one that was made before; a cartridge that was used is none.
#[test]
fn cartridge_is_imported_as_one_that_is_written_once() {
    let home = home();
    let longhaul = |words: &[&str]| longhaul(home.path(), words);
    fs::write(home.path().join("in"), vec![5; 1000]).unwrap();
    for (name, worm) in [("F6", &["--worm"][..]), ("G7", &[])] {
        let tape = format!("elsewhere/{name}");
        fs::create_dir_all(home.path().join("elsewhere")).unwrap();
        let words = [&["tape", "import", &tape, "in", "--size", "4M"], worm].concat();
        let (said, done) = longhaul(&words);
        assert!(done, "{said}");
    }
    let (server, portal) = serve_library(home.path());
    for name in ["F6", "G7"] {
        let [from, to] = ["elsewhere", "tapes"].map(|dir| home.path().join(dir).join(name));
        fs::rename(from, to).unwrap();
    }
    let tape = fs::File::create(home.path().join("tapes/E5")).unwrap();
    tape.set_len(4 << 20).unwrap();
    let media = |words: &[&str]| media(home.path(), words);
    let (said, done) = media(&["import", "library", "B2", "--worm"]);
    assert!(!done && said.contains("cartridge B2 is in slot:2"), "{said}");
    let (said, done) = media(&["import", "library", "G7", "--worm"]);
    assert!(!done && said.contains("cannot import G7") && said.contains("written over"), "{said}");
    let uri = format!("iscsi://{portal}/{TARGET}/1");
    for (name, size, appends) in
        [("D4", &["--size", "4M"][..], false), ("E5", &[], false), ("F6", &[], true)]
    {
        let (said, done) = media(&[&["import", "library", name, "--worm"], size].concat());
        assert!(done && said.contains("and is written once"), "{said}");
        let (said, done) = media(&["move", "library", name, "drive:0"]);
        assert!(done, "{said}");
        let (listed, _) = media(&["list"]);
        assert!(listed.contains(&format!("tapes/{name}, 4M, write once")), "{listed}");
        let write = |more: &[&str]| longhaul(&[&["tape", "write", &uri, "in"], more].concat());
        if !appends {
            assert!(write(&[]).1);
        }
        let (said, done) = write(&[]);
        assert!(!done && said.contains("is written once"), "{said}");
        assert!(write(&["--append"]).1);
        for words in [["move", "library", "drive:0", "mail:1"], ["export", "library", "mail:1", ""]]
        {
            let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
            assert!(media(&words).1, "{words:?}");
        }
    }
    // It has been in the drive, and is what it was.
    assert!(media(&["move", "library", "B2", "drive:0"]).1);
    assert!(!media(&["list"]).0.contains("write once"));
    assert!(server.stop().success());
}

/// A cartridge whose file was spoilt behind the server's back stays in its slot, and the drive as it was.
#[test]
fn cartridge_that_cannot_be_loaded_stays_where_it_is() {
    let home = home();
    let (server, portal) = serve_library(home.path());
    let mut peer = initiator(portal);
    assert_eq!(move_medium(&mut peer, slot(1), drive(0)), Ok(()));
    assert_eq!(run_on(&mut peer, 1, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    write(&mut peer, 1, b"on A1");
    fs::write(home.path().join("tapes/B2"), vec![7; 1 << 20]).unwrap();
    let before = status(&mut peer);
    let unusable = Err(Additional::INCOMPATIBLE_FORMAT);
    assert_eq!(move_medium(&mut peer, slot(2), drive(1)), unusable);
    assert_eq!(exchange(&mut peer, slot(2), drive(0), slot(4)), unusable);
    assert_eq!(status(&mut peer), before);
    // What was in the drive is in it again.
    assert_eq!(run_on(&mut peer, 1, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    assert_eq!(run_on(&mut peer, 1, REWIND), Ok(()));
    assert_eq!(read(&mut peer, 1, 5), Ok(b"on A1".to_vec()));
    assert!(server.stop().success());
}

const CONFIG: &str = r#"
listen = ["127.0.0.1:0"]
control = "control.sock"
[volumes.library]
uri = "changer:tapes"
drives = 2
slots = 4
[clients.one]
initiator = "iqn.2001-04.com.example:1"
volumes = ["library"]
[clients.two]
initiator = "iqn.2001-04.com.example:2"
read_only = ["library"]
"#;

#[test]
fn client_that_may_only_read_sees_all_and_moves_nothing() {
    let home = home();
    fs::write(home.path().join("longhaul.toml"), CONFIG).unwrap();
    let (said, fine) = longhaul(home.path(), &["check", "--config", "longhaul.toml"]);
    assert!(fine && said.contains("3 volumes, 2 clients, no mistakes"), "{said}");
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--config", "longhaul.toml"]);
    let server = Running::start(command.current_dir(home.path()));
    let ready = server.line().unwrap();
    let uri = ready.strip_prefix("ready iscsi://").unwrap();
    let portal = uri.split('/').next().unwrap().parse().unwrap();
    let mut writer = initiator_of(portal, 1, 3);
    let mut reader = initiator_of(portal, 2, 3);
    let denied = Err(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS);
    assert_eq!(move_medium(&mut reader, slot(1), drive(0)), denied);
    assert_eq!(exchange(&mut reader, slot(1), drive(0), slot(4)), denied);
    assert_eq!(run_on(&mut reader, 0, LOCK), denied);
    assert_eq!(move_medium(&mut writer, slot(1), drive(0)), Ok(()));
    assert_eq!(status(&mut reader), status(&mut writer));
    assert_eq!(run_on(&mut reader, 1, READY), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    // What a changer is about is told by a reload, too.
    let (said, done) = longhaul(home.path(), &["reload", "--control", "control.sock"]);
    assert!(done, "{said}");
    assert_eq!(status(&mut reader)[0], (drive(0), "A1".to_owned()));
    fs::write(home.path().join("longhaul.toml"), CONFIG.replace("drives = 2", "drives = 1"))
        .unwrap();
    let (said, done) = longhaul(home.path(), &["reload", "--control", "control.sock"]);
    assert!(!done && said.contains("`drives` of volume library cannot change"), "{said}");
    assert!(server.stop().success());
}

/// Who has not reserved the changer moves nothing.
#[test]
fn reservation_of_the_changer_keeps_others_from_moving() {
    let home = home();
    let (server, portal) = serve_library(home.path());
    let mut one = initiator(portal);
    let mut two = initiator_of(portal, 2, 3);
    assert_eq!(run_on(&mut one, 0, &[0x16, 0, 0, 0, 0, 0]), Ok(()));
    let cdb = [0xA5, 0, 0, 0, 4, 0, 1, 0, 0, 0, 0, 0];
    let conflict = 0x18;
    assert_eq!(two.run_on(0, &cdb, Vec::new(), 0).unwrap().0, conflict);
    assert_eq!(
        two.run_on(0, &[0xB8, 0, 0, 0, 0, 1, 2, 0, 0, 8, 0, 0], Vec::new(), 8).unwrap().0,
        0
    );
    assert_eq!(move_medium(&mut one, slot(1), drive(0)), Ok(()));
    assert!(server.stop().success());
}

#[test]
fn directory_or_number_that_cannot_be_is_refused_before_anything_is_served() {
    let home = home();
    fs::create_dir(home.path().join("none")).unwrap();
    fs::write(home.path().join("none/A1"), vec![7; 1 << 20]).unwrap();
    for (volume, why) in [
        ("l=changer:missing", "cannot read the directory missing: No such file"),
        ("l=changer:none", "none/A1"),
        ("l=changer:tapes,slots=2", "3 cartridges without a place, and 2 free slots"),
        ("l=changer:tapes,drives=0", "a media changer has from 1 to 32 drives, not 0"),
        ("l=changer:tapes,size=1M", "leave it out"),
    ] {
        let words = ["serve", "--listen", "127.0.0.1:0", "--volume", volume];
        let (said, done) = longhaul(home.path(), &words);
        assert!(!done && said.contains(why), "{volume}: {said}");
    }
    fs::copy(home.path().join("tapes/A1"), home.path().join("tapes/A1.tape")).unwrap();
    let words = ["serve", "--listen", "127.0.0.1:0", "--volume", LIBRARY];
    let (said, done) = longhaul(home.path(), &words);
    assert!(!done && said.contains("two cartridges with the barcode A1"), "{said}");
    assert!(!longhaul(home.path(), &["info", "changer:tapes"]).1);
}

#[test]
fn own_client_tells_what_each_unit_is() {
    let home = home();
    fs::write(home.path().join("one.iso"), vec![1; 20 * 2048]).unwrap();
    let volumes =
        ["--volume", LIBRARY, "--volume", "movies=cdrom:one.iso", "--volume", "disk=memory:1M"];
    let (server, portal) = serve(home.path(), &volumes);
    let longhaul = |words: &[&str]| {
        let (said, status) = run(Command::new(LONGHAUL).args(words).current_dir(home.path()));
        assert!(status.success(), "{said}");
        said
    };
    let library = format!("iscsi://{portal}/{TARGET}/0");
    let said = longhaul(&["info", &library]);
    assert!(
        said.contains("media changer, drive: 0 of 2 full, slot: 3 of 4 full, mail: 0 of 1 full"),
        "{said}"
    );
    assert!(said.contains("slot         0x0400, full, A1"), "{said}");
    let json = longhaul(&["info", &library, "--json"]);
    assert!(json.contains(r#""type":"slot","address":1024,"full":true,"barcode":"A1""#), "{json}");
    let said = longhaul(&["discover", &portal.to_string(), "--units"]);
    let units: Vec<_> = said.lines().filter_map(|line| line.split_once("  ")).collect();
    for (name, kind) in [
        ("library/0", "media changer, drive: 0 of 2 full"),
        ("library/1", "tape drive, empty"),
        ("library/2", "tape drive, empty"),
        ("movies/0", "optical drive, with a disc of 40K"),
        ("disk/0", "disk of 1M"),
    ] {
        let is_there = |(uri, told): &(&str, &str)| uri.ends_with(name) && told.starts_with(kind);
        assert!(units.iter().any(is_there), "{name}: {said}");
    }
    assert!(longhaul(&["discover", &portal.to_string()]).lines().count() == 3);
    assert!(server.stop().success());
}
