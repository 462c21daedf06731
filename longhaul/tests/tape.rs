//! Tapes of the served program: what initiators have written outlives the server, is read without a drive, and is
//! exchanged under them.

mod common;
#[path = "common/peer.rs"]
#[expect(dead_code, reason = "each test uses its part")]
mod peer;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use common::{LONGHAUL, Running, run};
use peer::Peer;
use proto::iscsi::header::{DataOut, Header, R2t, ScsiCommand};
use proto::scsi::Sense;
use proto::scsi::sense::Additional;

const REWIND: &[u8] = &[0x01, 0, 0, 0, 0, 0];
const MARK: &[u8] = &[0x10, 0, 0, 0, 1, 0];

/// A server of this volume in `home`, and its portal.
fn serve(home: &Path, volume: &str) -> (Running, SocketAddr) {
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--control", "control.sock"]);
    command.args(["--volume", volume]);
    let server = Running::start(command.current_dir(home));
    let ready = server.line().unwrap();
    let uri = ready.strip_prefix("ready iscsi://").unwrap_or_else(|| panic!("{ready:?}"));
    let portal = uri.split('/').next().unwrap().parse().unwrap();
    (server, portal)
}

/// What the program says to these words, and whether it was done.
fn longhaul(home: &Path, words: &[&str]) -> (String, bool) {
    let (said, status) = run(Command::new(LONGHAUL).args(words).current_dir(home));
    (said, status.success())
}

/// An initiator that has been told of the power on.
fn initiator(portal: SocketAddr) -> Peer {
    let name = "iqn.2001-04.com.example:1";
    let mut peer = Peer::log_in(portal, name, 1, "iqn.2026-11.dev.longhaul:backup");
    assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
    peer
}

/// The data of a command, or why there are none.
fn ask(peer: &mut Peer, cdb: &[u8], data: Vec<u8>, room: u32) -> Result<Vec<u8>, Additional> {
    match peer.run_on(0, cdb, data, room).expect("an answer") {
        (0, data) => Ok(data),
        (_, sense) => Err(Sense::parse(&sense).unwrap().additional),
    }
}

fn write(peer: &mut Peer, block: &[u8]) {
    let [_, a, b, c] = (block.len() as u32).to_be_bytes();
    assert_eq!(ask(peer, &[0x0A, 0, a, b, c, 0], block.to_vec(), 0), Ok(vec![]));
}

fn read(peer: &mut Peer, len: u32) -> Result<Vec<u8>, Additional> {
    let [_, a, b, c] = len.to_be_bytes();
    ask(peer, &[0x08, 0, a, b, c, 0], vec![], len)
}

#[test]
fn file_before_a_mark_outlives_the_server_and_is_read_without_a_drive() {
    let home = tempfile::tempdir().unwrap();
    let volume = "backup=tape:a.tape,size=4M";
    let (server, portal) = serve(home.path(), volume);
    let mut peer = initiator(portal);
    let blocks = [vec![1; 10_240], vec![2; 10_240], vec![3; 77]];
    blocks.iter().for_each(|block| write(&mut peer, block));
    assert_eq!(ask(&mut peer, MARK, vec![], 0), Ok(vec![]));
    write(&mut peer, &[4; 500]);
    // The tape is in a drive.
    assert!(!longhaul(home.path(), &["tape", "verify", "a.tape"]).1);
    server.kill();
    let (said, whole) = longhaul(home.path(), &["tape", "verify", "a.tape"]);
    assert!(whole && said.contains("all 5 records are whole"), "{said}");
    let (said, done) = longhaul(home.path(), &["tape", "export", "a.tape", "--dir", "out"]);
    assert!(done, "{said}");
    assert_eq!(fs::read(home.path().join("out/0000")).unwrap(), blocks.concat());
    let (server, portal) = serve(home.path(), volume);
    let mut peer = initiator(portal);
    for block in &blocks {
        assert_eq!(read(&mut peer, block.len() as u32).as_ref(), Ok(block));
    }
    assert_eq!(read(&mut peer, 500), Err(Additional::FILEMARK_DETECTED));
    assert_eq!(read(&mut peer, 500), Ok(vec![4; 500]));
    assert_eq!(read(&mut peer, 500), Err(Additional::END_OF_DATA));
    assert!(server.stop().success());
}

/// A block that is still on its way is not overtaken by one that came with its command.
#[test]
fn blocks_are_on_the_tape_in_the_order_of_their_commands() {
    let home = tempfile::tempdir().unwrap();
    let (server, portal) = serve(home.path(), "backup=tape:a.tape,size=4M");
    let mut peer = initiator(portal);
    let mut write = |itt, len: u32, data: Vec<u8>| {
        let mut block = [0; 16];
        block[0] = 0x0A;
        block[2..5].copy_from_slice(&len.to_be_bytes()[1..]);
        let command = peer.command(itt, block);
        peer.send(ScsiCommand { write: true, expected_len: len, ..command }, data);
    };
    write(0x51, 600, vec![]);
    write(0x52, 500, vec![2; 500]);
    let Some(Header::R2t(R2t { ttt, .. })) = peer.receive().map(|pdu| pdu.header) else {
        panic!("the second has overtaken the first");
    };
    peer.send(DataOut { is_final: true, itt: 0x51, ttt, ..DataOut::default() }, vec![1; 600]);
    assert_eq!([0x51, 0x52].map(|itt| peer.status(itt)), [Some(true); 2]);
    assert_eq!(ask(&mut peer, REWIND, vec![], 0), Ok(vec![]));
    assert_eq!(read(&mut peer, 600), Ok(vec![1; 600]));
    assert_eq!(read(&mut peer, 500), Ok(vec![2; 500]));
    assert!(server.stop().success());
}

/// What a crash has left behind the label is no reason to write to a tape that takes no writes.
#[test]
fn protected_tape_is_read_after_a_crash() {
    let home = tempfile::tempdir().unwrap();
    let (server, portal) = serve(home.path(), "backup=tape:a.tape,size=4M");
    write(&mut initiator(portal), &[4; 500]);
    server.kill();
    let (server, portal) = serve(home.path(), "backup=tape:a.tape,read_only");
    let mut peer = initiator(portal);
    for _ in 0..2 {
        assert_eq!(ask(&mut peer, REWIND, vec![], 0), Ok(vec![]));
        assert_eq!(read(&mut peer, 500), Ok(vec![4; 500]));
    }
    assert_eq!(ask(&mut peer, MARK, vec![], 0), Err(Additional::WRITE_PROTECTED));
    assert!(server.stop().success());
}

/// What no file mark has made stable is when the server ends by itself.
#[test]
fn stopped_server_names_the_end_of_what_was_written() {
    let home = tempfile::tempdir().unwrap();
    let (server, portal) = serve(home.path(), "backup=tape:a.tape,size=4M");
    let mut peer = initiator(portal);
    (1..4).for_each(|fill| write(&mut peer, &[fill; 600]));
    // docs/spec/tape.md: the number of records before the end that the label names.
    let records = || {
        let bytes = fs::read(home.path().join("a.tape")).unwrap();
        [44, 4096 + 44].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()))
    };
    assert_eq!(records(), [0, 0]);
    assert!(server.stop().success());
    assert_eq!(records(), [3, 3]);
}

/// RFC 7143, 11.4.5.1: what the initiator has room for and the block has not is underflow, beside the sense data.
#[test]
fn block_of_another_length_is_a_residual_too() {
    let home = tempfile::tempdir().unwrap();
    let (server, portal) = serve(home.path(), "backup=tape:a.tape,size=4M");
    let mut peer = initiator(portal);
    write(&mut peer, &[1; 300]);
    write(&mut peer, &[2; 500]);
    assert_eq!(ask(&mut peer, MARK, vec![], 0), Ok(vec![]));
    assert_eq!(ask(&mut peer, REWIND, vec![], 0), Ok(vec![]));
    let mut read = |itt, len: u32| {
        let mut block = [0; 16];
        block[0] = 0x08;
        block[2..5].copy_from_slice(&len.to_be_bytes()[1..]);
        let command = peer.command(itt, block);
        peer.send(ScsiCommand { read: true, expected_len: len, ..command }, vec![]);
        let mut came = 0;
        loop {
            let pdu = peer.receive().unwrap();
            match pdu.header {
                Header::DataIn(header) => {
                    assert!(!header.has_status);
                    came += pdu.data.len();
                }
                Header::ScsiResponse(response) => {
                    assert!(!response.overflow && response.underflow == (response.residual > 0));
                    let sense = Sense::parse(&pdu.data[2..]).unwrap();
                    break (came, response.residual, sense.information.map(u64::cast_signed));
                }
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(read(0x51, 1000), (300, 700, Some(700)));
    assert_eq!(read(0x52, 100), (100, 0, Some(-400)));
    assert_eq!(read(0x53, 1000), (0, 1000, Some(1000)));
    assert!(server.stop().success());
}

#[test]
fn tape_is_not_written_over_as_a_disk_unless_that_is_forced() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("file"), vec![9; 4096]).unwrap();
    assert!(longhaul(home.path(), &["tape", "import", "a.tape", "--size", "1M", "file"]).1);
    let (said, done) = longhaul(home.path(), &["copy", "file", "file:a.tape"]);
    assert!(!done && said.contains("a tape") && said.contains("--force"), "{said}");
    assert!(longhaul(home.path(), &["tape", "verify", "a.tape"]).1);
    assert!(longhaul(home.path(), &["copy", "file", "file:a.tape", "--force"]).1);
}

#[test]
fn tape_is_exchanged_under_an_initiator() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("file"), vec![9; 3000]).unwrap();
    let import = ["tape", "import", "b.tape", "--size", "1M", "file"];
    let (said, done) = longhaul(home.path(), &import);
    assert!(done, "{said}");
    let (server, portal) = serve(home.path(), "backup=tape:a.tape,size=4M");
    let mut peer = initiator(portal);
    write(&mut peer, &[1; 600]);
    let media = |words: &[&str]| {
        longhaul(home.path(), &[&["media"][..], words, &["--control", "control.sock"]].concat())
    };
    let (said, done) = media(&["load", "backup", "b.tape"]);
    assert!(done && said.trim_end().ends_with("b.tape is in backup"), "{said}");
    assert_eq!(read(&mut peer, 3000), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    // It was sent for the one before, for all that the drive knows, until the initiator asks how it is.
    assert_eq!(read(&mut peer, 3000), Err(Additional::SEQUENTIAL_POSITIONING_ERROR));
    assert_eq!(ask(&mut peer, &[0; 6], vec![], 0), Ok(vec![]));
    assert_eq!(read(&mut peer, 3000), Ok(vec![9; 3000]));
    assert!(media(&["list"]).0.contains("b.tape, 1M"), "{}", media(&["list"]).0);
    // A file that is no tape is not put in the place of one.
    fs::write(home.path().join("c.tape"), vec![9; 1 << 20]).unwrap();
    let (said, done) = media(&["load", "backup", "c.tape"]);
    assert!(!done && said.contains("no tape"), "{said}");
    assert_eq!(read(&mut peer, 100), Err(Additional::FILEMARK_DETECTED));
    assert!(media(&["eject", "backup"]).1);
    assert_eq!(ask(&mut peer, REWIND, vec![], 0), Err(Additional::MEDIUM_NOT_PRESENT));
    // What was written to the first one was not lost with the exchange.
    let (said, whole) = longhaul(home.path(), &["tape", "verify", "a.tape"]);
    assert!(whole && said.contains("all 1 records are whole"), "{said}");
    assert!(server.stop().success());
}

#[test]
fn tape_that_is_in_a_drive_already_is_loaded_again_there_and_nowhere_else() {
    const UNLOAD: &[u8] = &[0x1B, 0, 0, 0, 0, 0];
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--control", "control.sock"]);
    command.args(["--volume", "one=tape:a.tape,size=4M", "--volume", "two=tape:"]);
    let server = Running::start(command.current_dir(home.path()));
    let uri = server.line().unwrap();
    let portal = uri.split('/').nth(2).unwrap().parse().unwrap();
    let mut peer =
        Peer::log_in(portal, "iqn.2001-04.com.example:1", 1, "iqn.2026-11.dev.longhaul:one");
    assert_eq!(peer.says(0), Some(Additional::POWER_ON_OR_RESET));
    write(&mut peer, &[1; 600]);
    assert_eq!(ask(&mut peer, UNLOAD, vec![], 0), Ok(vec![]));
    let media = |words: &[&str]| {
        longhaul(home.path(), &[&["media"][..], words, &["--control", "control.sock"]].concat())
    };
    fs::hard_link(home.path().join("a.tape"), home.path().join("same.tape")).unwrap();
    let (said, done) = media(&["load", "two", "same.tape"]);
    assert!(!done && said.contains("it is in the drive one of this server"), "{said}");
    let (said, done) = media(&["load", "one", "a.tape"]);
    assert!(done && said.trim_end().ends_with("a.tape is in one"), "{said}");
    assert_eq!(read(&mut peer, 600), Err(Additional::MEDIUM_MAY_HAVE_CHANGED));
    // It was sent for the one before, for all that the drive knows, until the initiator asks how it is.
    assert_eq!(read(&mut peer, 600), Err(Additional::SEQUENTIAL_POSITIONING_ERROR));
    assert_eq!(ask(&mut peer, &[0; 6], vec![], 0), Ok(vec![]));
    assert_eq!(read(&mut peer, 600), Ok(vec![1; 600]));
    assert!(media(&["eject", "one"]).1);
    let (said, done) = media(&["load", "two", "same.tape"]);
    assert!(done && said.trim_end().ends_with("same.tape is in two"), "{said}");
    assert!(server.stop().success());
}
