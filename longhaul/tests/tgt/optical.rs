//! The optical drive of tgt beside ours, with the same disc: what both tell of it is the same.

use std::net::SocketAddr;

use crate::common::{LONGHAUL, Running, run};
use crate::peer::Peer;
use crate::server::{NAME, Tgt};

/// Answers of a drive, by what they are of.
struct Initiator(Peer, u16);

impl Initiator {
    fn new(portal: SocketAddr, target: &str, lun: u16) -> Self {
        let mut peer = Peer::log_in(portal, "iqn.2001-04.com.example:beside", 1, target);
        peer.says(lun);
        Self(peer, lun)
    }

    fn ask(&mut self, cdb: &[u8]) -> Vec<u8> {
        let (status, data) = self.0.run_on(self.1, cdb, vec![], 255).expect("an answer");
        assert_eq!(status, 0, "{cdb:02X?}: {data:02X?}");
        data
    }
}

#[test]
fn drive_tells_of_a_disc_what_that_of_tgt_tells() {
    let dir = tempfile::tempdir().unwrap();
    let disc = dir.path().join("a.iso");
    std::fs::write(&disc, vec![7; 5000 * 2048]).unwrap();
    let mut command = std::process::Command::new(LONGHAUL);
    command.args(["serve", "--listen", "127.0.0.1:0", "--volume", "movies=cdrom:a.iso"]);
    let server = Running::start(command.current_dir(dir.path()));
    let ready = server.line().unwrap();
    let portal = ready.strip_prefix("ready iscsi://").unwrap().split('/').next().unwrap();
    let mut ours = Initiator::new(portal.parse().unwrap(), "iqn.2026-11.dev.longhaul:movies", 0);
    let tgt = Tgt::start();
    tgt.insert(&disc);
    let mut theirs = Initiator::new(tgt.address(), NAME, 2);
    let mut both = |cdb: &[u8]| (ours.ask(cdb), theirs.ask(cdb));
    let (ours, theirs) = both(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ours, theirs, "READ CAPACITY");
    // Tracks, and sessions. tgt's answers end two bytes too early: before the last two of the address that is last.
    for format in [0, 1] {
        let (ours, theirs) = both(&[0x43, 0, format, 0, 0, 0, 0, 0, 255, 0]);
        assert_eq!(ours[..ours.len() - 2], theirs, "READ TOC, format {format}");
    }
    // The device type, and that the medium is removable.
    let (ours, theirs) = both(&[0x12, 0, 0, 0, 96, 0]);
    assert_eq!(ours[..2], theirs[..2], "INQUIRY");
    // Complete; one session and one track. tgt tells nothing of the identification of the disc.
    let (ours, theirs) = both(&[0x51, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(ours[..7], theirs[..7], "READ DISC INFORMATION");
    // Of track 1: its numbers, mode, beginning and size. tgt's is the shorter one of MMC-3.
    let (ours, theirs) = both(&[0x52, 1, 0, 0, 0, 1, 0, 0, 255, 0]);
    for part in [2..7, 8..12, 24..28] {
        assert_eq!(ours[part.clone()], theirs[part], "READ TRACK INFORMATION");
    }
    // The first four features are there and current. tgt calls every disc a DVD.
    let (ours, theirs) = both(&[0x46, 0, 0, 0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(ours[8..10], theirs[8..10], "GET CONFIGURATION");
    assert_eq!(ours[10] & 3, theirs[10] & 3, "GET CONFIGURATION");
    // Our own client asks for the capacity then.
    let mut toc = std::process::Command::new(LONGHAUL);
    let (told, status) =
        run(toc.args(["cd", "toc", &format!("iscsi://{}/{NAME}/2", tgt.address())]));
    assert!(status.success(), "{told}");
    assert!(told.contains("data, session 1, 5000 blocks from 0 on"), "{told}");
    assert!(server.stop().success());
}
