//! A copy whose source is lost when all of it was read.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::common::{LONGHAUL, PATIENCE, Running};
use super::link::Link;
use super::replayed::{given_up, move_away};
use super::{Attached, Bench};

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
    // It is not to be done before it has noticed.
    let last = Instant::now() + PATIENCE;
    while !to.log("copy").contains("connection lost") {
        assert!(Instant::now() < last, "it does not notice: {}", to.log("copy"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    destination.let_go();
    assert_eq!(copy.end().code(), Some(0), "all of it was read");
    let said = to.log("copy");
    assert!(said.contains(&format!("{} is gone; nothing is lost", source.uri)), "{said}");
    assert!(to.stored().iter().all(|byte| *byte == 9));
    let next = to.attach("next", &[]);
    assert!(to.reads(&next, 9) && next.process.stop().success());
}

/// A copy whose destination does not answer gets a signal, and then answers.
async fn copy_with_signal(
    bench: &Bench,
    mut copy: Command,
    signal: Signal,
    ends: bool,
) -> Option<i32> {
    std::fs::write(bench.path().join("in.img"), vec![9; MIB]).unwrap();
    let destination = Link::to(&bench.uri);
    destination.hold();
    copy.args(["--log", "info", "copy", "in.img", &destination.uri]).current_dir(bench.path());
    copy.env("LONGHAUL_STATE_DIR", bench.path().join("elsewhere"));
    let log = std::fs::File::create(bench.path().join("copy.log")).unwrap();
    let copy = Running::start(copy.stderr(log));
    tokio::time::timeout(PATIENCE, destination.held()).await.unwrap();
    copy.signal(signal);
    let heard = async {
        while !bench.log("copy").contains("stopping") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // A signal that is ignored is gone once it was sent.
    if ends {
        tokio::time::timeout(PATIENCE, heard).await.expect("the copy says that it stops");
    }
    destination.let_go();
    copy.end().code()
}

#[tokio::test]
async fn copy_that_is_ended_by_a_signal_says_so_and_gives_its_destination_back() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let bench = Bench::new(&[]);
        // Whoever runs this may ignore SIGHUP, and what it starts would too.
        let mut copy = Command::new("env");
        copy.args(["--default-signal=HUP", LONGHAUL]);
        let code = copy_with_signal(&bench, copy, signal, true).await;
        let said = bench.log("copy");
        assert_eq!(code, Some(1), "{signal:?}: {said}");
        assert!(
            said.contains("it was ended by a signal\n  the destination is incomplete"),
            "{said}"
        );
        let next = bench.attach("next", &[]);
        assert!(next.process.stop().success());
    }
}

#[tokio::test]
async fn copy_under_nohup_goes_on_when_its_terminal_ends() {
    let bench = Bench::new(&[]);
    let mut nohup = Command::new("nohup");
    nohup.arg(LONGHAUL);
    assert_eq!(
        copy_with_signal(&bench, nohup, Signal::HUP, false).await,
        Some(0),
        "{}",
        bench.log("copy")
    );
    assert!(bench.stored().iter().take(MIB).all(|byte| *byte == 9));
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

/// A backup without what was acknowledged must not look like a whole one.
#[test]
fn copy_of_a_volume_that_lacks_its_replay_log_says_so_and_fails() {
    let bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    let lacks = |options: &[&str], name: &str| {
        let (said, done) = bench.run(&[&["copy", &bench.uri, name], options].concat());
        let words = format!("the copy lacks what is in the replay log {log} (");
        assert!(!done && said.contains(&words), "{said}");
        assert!(!said.contains("another writer"), "{said}");
        assert!(said.contains(&format!("`longhaul replay {log}`")), "{said}");
        let copied = std::fs::read(bench.path().join(name)).unwrap();
        assert!(copied[..MIB].iter().all(|byte| *byte == 1), "all else is there");
        said
    };
    lacks(&[], "beside.img");
    let said = lacks(&["--json"], "json.img");
    assert!(said.contains(&format!(r#""lacks":["{log}"]"#)), "{said}");
    // Also where it was taken over, and is kept for the log under another key. While that one lives it is a writer.
    let taker = bench.attach("taker", &["--take-over"]);
    let (said, _) = bench.run(&["copy", &bench.uri, "taken.img"]);
    assert!(said.contains("another writer"), "{said}");
    assert!(taker.process.stop().success());
    lacks(&[], "kept.img");
    // Wherever it is now.
    let moved = move_away(&bench);
    let said = lacks(&[], "moved.img");
    assert!(said.contains("it is not there"), "{said}");
    let (said, done) = bench.run(&["replay", &moved]);
    assert!(done, "{said}");
    let (said, done) = bench.run(&["copy", &bench.uri, "whole.img", "--json"]);
    assert!(done && !said.contains("lacks"), "{said}");
    let copied = std::fs::read(bench.path().join("whole.img")).unwrap();
    assert!(copied[..MIB].iter().all(|byte| *byte == 3));
}

/// A journal is sent by another command than a log is, also when it is brought back only later.
#[test]
fn copy_of_a_volume_whose_journal_is_not_there_names_it_as_one() {
    let mut bench = Bench::new(&[]);
    // Not in memory: there are no direct writes.
    let disk = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let journal = disk.path().join("a.jnl");
    let journal = journal.to_str().unwrap();
    let options = ["--nbd", "first.sock", "--journal", &format!("{journal},size=8M")];
    let attach = [&["attach", &*bench.uri], &options[..]].concat();
    let process = Running::start(&mut bench.longhaul(&attach));
    let uri = process.line().expect("it says when it is ready");
    let attached = Attached { uri: uri.strip_prefix("ready ").unwrap().to_owned(), process };
    bench.server.take().unwrap().kill();
    assert!(bench.write(&attached, 3));
    attached.process.kill();
    let (said, done) = bench.run(&["replay", journal, "--dry-run"]);
    assert!(!done && said.contains("it is a journal"), "{said}");
    assert!(said.contains(&format!("`longhaul journal drain {journal}` sends")), "{said}");
    bench.serve(&["--volume", "t=file:t.img"]);
    let moved = format!("{journal}.moved");
    std::fs::rename(journal, &moved).unwrap();
    let (said, done) = bench.run(&["copy", &bench.uri, "out.img"]);
    let words = format!("the copy lacks what is in the journal {journal} (it is not there");
    assert!(!done && said.contains(&words) && !said.contains("replay"), "{said}");
    assert!(said.contains(&format!("`longhaul journal drain {journal}` sends it")), "{said}");
    std::fs::rename(&moved, journal).unwrap();
    let (said, done) = bench.run(&["journal", "drain", journal, "--force"]);
    assert!(done, "{said}");
    let (said, done) = bench.run(&["copy", &bench.uri, "whole.img", "--json"]);
    assert!(done && !said.contains("lacks"), "{said}");
}

/// Where the target has forgotten its reservations whoever writes is warned.
#[test]
fn writer_is_warned_of_a_log_that_no_reservation_protects() {
    let mut bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    bench.server.take().unwrap().kill();
    bench.serve(&["--volume", "t=file:t.img"]);
    std::fs::write(bench.path().join("in.img"), [5; 4096]).unwrap();
    let (said, done) = bench.run(&["copy", "in.img", &bench.uri]);
    let words = format!("lacks what is in the replay log {log} (");
    assert!(done && said.contains(&words), "{said}");
}

/// A note that cannot be made is told of once.
#[test]
fn attachment_that_cannot_be_noted_is_told_of_once() {
    let bench = Bench::new(&[]);
    std::fs::create_dir_all(bench.path().join("state")).unwrap();
    std::fs::write(bench.path().join("state/attachments"), "a file").unwrap();
    let attached = bench.attach("first", &[]);
    assert!(attached.process.stop().success());
    let log = bench.log("first");
    assert_eq!(log.matches("cannot note the attachment").count(), 1, "{log}");
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
