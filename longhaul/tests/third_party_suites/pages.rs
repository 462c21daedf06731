//! The vital product data pages, read by a stranger: `sg_vpd` of sg3-utils.

use std::fs;
use std::process::Command;

use bytes::Bytes;
use proto::scsi::command::{Command as Request, vital_pages};
use proto::scsi::inquiry::page;

use super::{NAME, TARGET, serve_memory};
use crate::common::run;
use crate::peer::Peer;

const ROOM: u32 = 252;

fn ask(peer: &mut Peer, cdb: [u8; 16]) -> Vec<u8> {
    let (status, data) = peer.run(cdb, Bytes::new(), ROOM).expect("an answer");
    assert_eq!(status, 0, "{cdb:02X?}");
    data
}

/// What `sg_vpd` makes of a page.
fn read(page: &[u8]) -> String {
    let home = tempfile::tempdir().unwrap();
    let hex: Vec<_> = page.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(home.path().join("page"), hex.join(" ") + "\n").unwrap();
    let (said, status) = run(Command::new("sg_vpd").arg("--inhex=page").current_dir(home.path()));
    assert!(status.success(), "{said}");
    said
}

#[test]
fn sg_vpd_reads_every_page_there_is() {
    let (server, portal) = serve_memory(&["disk".to_owned()]);
    let mut peer = Peer::log_in(portal, NAME, 1, TARGET);
    peer.settle();
    let listed = vital_pages(&ask(&mut peer, Request::vital(page::SUPPORTED).cdb)).unwrap();
    assert!(listed.is_sorted() && listed.contains(&page::THIRD_PARTY_COPY));
    // From C0h on they are those of a vendor, which nobody else reads.
    for code in listed.into_iter().filter(|code| *code < page::VOLUME) {
        let said = read(&ask(&mut peer, Request::vital(code).cdb));
        assert!(said.lines().next().is_some_and(|title| title.ends_with(':')), "{said}");
        // What it says of a page that it does not know, or that ends too early.
        for complaint in ["Only hex output", "too short", "overflow", "bad", "unexpected"] {
            assert!(!said.contains(complaint), "page {code:02X}: {said}");
        }
    }
    drop(peer);
    assert!(server.stop().success());
}

/// SPC-4, 7.8.17: the page says what RECEIVE COPY OPERATING PARAMETERS says, and which commands there are.
#[test]
fn sg_vpd_finds_the_limits_of_copies() {
    let (server, portal) = serve_memory(&["disk".to_owned()]);
    let mut peer = Peer::log_in(portal, NAME, 1, TARGET);
    peer.settle();
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x84, 0x03);
    cdb[10..14].copy_from_slice(&ROOM.to_be_bytes());
    let parameters = ask(&mut peer, cdb);
    let number = |at: usize, len: usize| {
        parameters[at..at + len].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let said = read(&ask(&mut peer, Request::vital(page::THIRD_PARTY_COPY).cdb));
    for line in [
        "  Extended copy(LID1)".to_owned(),
        "  Receive copy status(LID1)".to_owned(),
        "  Receive copy operating parameters".to_owned(),
        format!("  Maximum CSCD descriptor count: {}", number(8, 2)),
        format!("  Maximum segment descriptor count: {}", number(10, 2)),
        format!("  Maximum descriptor list length: {}", number(12, 4)),
        "  Maximum inline data length: 0".to_owned(),
        "  block -> block [0x2]".to_owned(),
        "  CSCD: Identification Descriptor [0xe4]".to_owned(),
        format!("  Total concurrent copies: {}", number(34, 2)),
        format!("  Maximum identified concurrent copies: {}", number(36, 1)),
        format!("  Maximum segment length: {}", number(16, 4)),
        format!("  Data segment granularity: {}", 1 << number(37, 1)),
    ] {
        assert!(said.lines().any(|said| said == line), "{line:?} is not in\n{said}");
    }
    drop(peer);
    assert!(server.stop().success());
}
