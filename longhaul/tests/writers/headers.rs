//! What the commands that write a header say of it when they cannot, are ended, or are not heard.

use std::fs::OpenOptions;
use std::process::Stdio;

use rustix::process::Signal;

use super::Bench;
use super::common::{PATIENCE, Running, run};
use super::link::Link;

const CHEAP: [&str; 4] = ["--pbkdf-iterations", "4", "--pbkdf-memory", "32K"];

/// A volume that `one` opens.
fn encrypted() -> Bench {
    let bench = Bench::new(&[]);
    for name in ["one", "two"] {
        std::fs::write(bench.path().join(name), name).unwrap();
    }
    let init = ["key", "init", &bench.uri, "--passphrase-file", "one"];
    let (said, done) = bench.run(&[&init[..], &CHEAP].concat());
    assert!(done, "{said}");
    bench
}

#[test]
fn header_is_not_written_to_what_may_only_be_read_and_nothing_is_said_to_be_lost() {
    let bench = encrypted();
    let (said, done) = bench.run(&["key", "backup", &bench.uri, "header"]);
    assert!(done, "{said}");
    let mut reading = Bench::serving(&["--volume", "t=file:t.img,size=32M"]);
    reading.server.take().unwrap().stop();
    std::fs::copy(bench.path().join("t.img"), reading.path().join("r.img")).unwrap();
    for name in ["one", "two", "header"] {
        std::fs::copy(bench.path().join(name), reading.path().join(name)).unwrap();
    }
    reading.serve(&["--volume", "t=file:r.img,read_only"]);
    let uri = &*reading.uri;
    let secret = ["--passphrase-file", "one"];
    for command in [
        &["key", "init", uri, "--force", secret[0], secret[1]][..],
        &["key", "restore", uri, "header", "--force"],
        &["key", "remove", uri, "--slot", "0", "--force"],
        &["key", "change", uri, secret[0], secret[1], "--new-passphrase-file", "two"],
    ] {
        let (said, done) = reading.run(command);
        for words in ["it is read-only", "nothing was written"] {
            assert!(!done && said.contains(words), "{command:?}: {words}: {said}");
        }
        for words in ["lost", "incomplete", "not known"] {
            assert!(!said.contains(words), "{command:?}: {said}");
        }
    }
}

#[tokio::test]
async fn change_ended_by_a_signal_does_not_say_that_it_was_not_done() {
    let bench = encrypted();
    let link = Link::to(&bench.uri);
    link.park_after_reserve_out(2);
    let change = ["key", "change", &link.uri, "--passphrase-file", "one"];
    let mut command =
        bench.longhaul(&[&change[..], &["--new-passphrase-file", "two", "--log", "info"]].concat());
    let said = bench.path().join("said");
    let process = Running::start(command.stderr(std::fs::File::create(&said).unwrap()));
    tokio::time::timeout(PATIENCE, link.parked(1)).await.expect("it has the volume");
    link.hold();
    link.unpark();
    tokio::time::timeout(PATIENCE, link.held()).await.expect("it writes the header");
    process.signal(Signal::TERM);
    // It has heard of that before what it has sent is answered.
    let hears = async {
        while !std::fs::read_to_string(&said).unwrap().contains("stopping") {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, hears).await.expect("it is told to end");
    link.let_go();
    assert!(!process.end().success());
    let said = std::fs::read_to_string(&said).unwrap();
    for words in ["ended by a signal", "as it was, or has changed", "`longhaul key list`"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("before it was done"), "{said}");
}

#[test]
fn change_that_nobody_can_be_told_of_is_said_to_be_done() {
    let bench = encrypted();
    let change = ["key", "change", &bench.uri, "--passphrase-file", "one"];
    let mut command =
        bench.longhaul(&[&change[..], &["--new-passphrase-file", "two"], &CHEAP].concat());
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command.stdin(Stdio::null()).stdout(full).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("all was done: changed;"), "{said}");
    let test = bench.longhaul(&["key", "test", &bench.uri, "--passphrase-file", "two"]);
    assert!(run(&test).1.success());
}

/// A reader loses nothing by that.
#[tokio::test]
async fn copy_whose_source_is_removed_meanwhile_is_done() {
    let bench = Bench::new(&[]);
    let link = Link::to(&bench.uri);
    let source = bench.path().join("in.img");
    std::fs::write(&source, vec![5; 1 << 20]).unwrap();
    link.hold();
    let copy = Running::start(&mut bench.longhaul(&["copy", "in.img", &link.uri]));
    tokio::time::timeout(PATIENCE, link.held()).await.expect("it writes");
    std::fs::remove_file(&source).unwrap();
    link.let_go();
    assert!(copy.line().is_some_and(|line| line.starts_with("copied ")));
    assert!(copy.end().success());
    assert!(bench.stored().iter().all(|byte| *byte == 5));
}
