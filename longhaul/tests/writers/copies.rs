//! A copy whose source is lost when all of it was read.

use super::Bench;
use super::common::{PATIENCE, Running};
use super::link::Link;

const MIB: usize = 1 << 20;

#[tokio::test]
async fn copy_whose_source_is_gone_at_its_end_gives_its_destination_back() {
    let (from, to) = (Bench::new(&[]), Bench::new(&[]));
    std::fs::write(from.path().join("in.img"), vec![9; MIB]).unwrap();
    let (said, done) = from.run(&["copy", "in.img", &from.uri]);
    assert!(done, "{said}");
    let (source, destination) = (Link::to(&from.uri), Link::to(&to.uri));
    destination.hold();
    // One piece: when some of it is on its way, all of it was read.
    let mut copy = to.longhaul(&["copy", &source.uri, &destination.uri, "--size", "1M"]);
    copy.args(["--reconnect-for", "0s"]);
    // Another machine, as far as the one can tell that looks at the volume next.
    copy.env("LONGHAUL_STATE_DIR", to.path().join("elsewhere"));
    let log = std::fs::File::create(to.path().join("copy.log")).unwrap();
    let copy = Running::start(copy.stderr(log));
    tokio::time::timeout(PATIENCE, destination.held()).await.unwrap();
    source.cut();
    destination.let_go();
    assert_eq!(copy.end().code(), Some(0), "all of it was read");
    let said = to.log("copy");
    assert!(said.contains(&format!("{} is gone; nothing is lost", source.uri)), "{said}");
    assert!(to.stored().iter().all(|byte| *byte == 9));
    let next = to.attach("next", &[]);
    assert!(to.reads(&next, 9) && next.process.stop().success());
}

#[tokio::test]
async fn copy_that_is_ended_by_a_signal_says_so_and_gives_its_destination_back() {
    let bench = Bench::new(&[]);
    std::fs::write(bench.path().join("in.img"), vec![9; MIB]).unwrap();
    let destination = Link::to(&bench.uri);
    destination.hold();
    let mut copy = bench.longhaul(&["--log", "info", "copy", "in.img", &destination.uri]);
    copy.env("LONGHAUL_STATE_DIR", bench.path().join("elsewhere"));
    let log = std::fs::File::create(bench.path().join("copy.log")).unwrap();
    let copy = Running::start(copy.stderr(log));
    tokio::time::timeout(PATIENCE, destination.held()).await.unwrap();
    copy.signal(rustix::process::Signal::TERM);
    let stopping = async {
        while !bench.log("copy").contains("stopping") {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, stopping).await.unwrap();
    destination.let_go();
    assert_eq!(copy.end().code(), Some(1));
    let said = bench.log("copy");
    assert!(said.contains("it was ended by a signal\n  the destination is incomplete"), "{said}");
    let next = bench.attach("next", &[]);
    assert!(next.process.stop().success());
}

#[test]
fn copy_of_a_volume_that_somebody_writes_to_says_so() {
    let bench = Bench::new(&[]);
    let (said, done) = bench.run(&["copy", &bench.uri, "alone.img"]);
    assert!(done && !said.contains("another writer"), "{said}");
    let writer = bench.attach("writer", &["--initiator", "iqn.2001-04.com.example:first"]);
    let (said, done) = bench.run(&["copy", &bench.uri, "beside.img"]);
    assert!(done && said.contains("another writer has iscsi://"), "{said}");
    assert!(said.contains("initiator iqn.2001-04.com.example:first"), "{said}");
    assert!(writer.process.stop().success());
}

#[test]
fn file_of_a_copy_that_fails_has_another_name() {
    let bench = Bench::new(&[]);
    std::fs::write(bench.path().join("in.img"), vec![9; 32 * MIB]).unwrap();
    let (said, done) = bench.run(&["copy", "in.img", &bench.uri]);
    assert!(done, "{said}");
    let source = Link::with_unreadable_end(&bench.uri);
    let (said, done) = bench.run(&["copy", &source.uri, "out.img"]);
    assert!(!done && said.contains("is in out.img.part-"), "{said}");
    let (_, part) = said.trim_end().rsplit_once("is in ").unwrap();
    assert!(!bench.path().join("out.img").exists() && bench.path().join(part).exists());
    let (said, done) = bench.run(&["copy", &bench.uri, "out.img"]);
    assert!(done, "{said}");
    assert_eq!(std::fs::read(bench.path().join("out.img")).unwrap(), vec![9; 32 * MIB]);
    assert!(bench.path().join(part).exists(), "what the first one saved is left to its owner");
}

/// What fails before or after the work of a command does not keep its volume either.
#[test]
fn command_that_fails_gives_its_volume_back() {
    let bench = Bench::new(&[]);
    std::fs::write(bench.path().join("key"), "pass-phrase").unwrap();
    let missing = "iscsi://127.0.0.1:1/iqn.2026-11.dev.longhaul:none/0";
    for arguments in [
        &["tune", &bench.uri, "--overwrite", "0+99T"][..],
        &["copy", &bench.uri, missing, "--reconnect-for", "0s"],
        &["key", "add", &bench.uri, "--passphrase-file", "key", "--new-passphrase-file", "key"],
    ] {
        let mut command = bench.longhaul(arguments);
        command.env("LONGHAUL_STATE_DIR", bench.path().join("elsewhere"));
        let (said, status) = super::common::run(&command);
        assert!(!status.success(), "{said}");
        let next = bench.attach("next", &[]);
        assert!(next.process.stop().success(), "{arguments:?}: {said}");
    }
}
