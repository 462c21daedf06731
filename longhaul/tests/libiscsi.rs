//! libiscsi's conformance suite against the served program: every test of it, and a list of those
//! that may end otherwise than passed, each with its reason.
//!
//! One process runs one suite: in libiscsi 1.19 `CompareAndWrite.InvalidDataOutSize` changes every
//! command block that later suites of the same process send.

#[expect(dead_code, reason = "each test uses its part")]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use common::{LONGHAUL, Running};

/// `Suite.Test passed|skipped|failed: why`, a line each; what is not listed must pass.
const EXPECTED: &str = include_str!("libiscsi/expected.txt");

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Passed,
    Skipped,
    Failed,
}

impl End {
    fn parse(word: &str) -> Self {
        match word {
            "passed" => Self::Passed,
            "skipped" => Self::Skipped,
            "failed" => Self::Failed,
            other => panic!("`{other}` is no way for a test to end"),
        }
    }
}

fn expected() -> BTreeMap<String, End> {
    let lines = EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (head, why) = line.split_once(": ").expect("a reason behind a colon");
            assert!(!why.trim().is_empty(), "no reason: {line}");
            let (test, end) = head.split_once(' ').expect("a test and how it ends");
            (test.to_owned(), End::parse(end))
        })
        .collect()
}

/// The suites of the tool: `ALL.Inquiry` and its like. The other families repeat them.
fn suites() -> BTreeSet<String> {
    let listed = Command::new("iscsi-test-cu").arg("--list").output().expect("iscsi-test-cu");
    let listed = String::from_utf8(listed.stdout).expect("text");
    let names = listed.lines().filter_map(|line| line.strip_prefix("ALL."));
    names.filter(|name| !name.contains('.')).map(str::to_owned).collect()
}

/// Runs one suite and says how each of its tests ended, with what the tool printed.
fn run(suite: &str, uri: &str) -> Vec<(String, End, String)> {
    let mut command = Command::new("timeout");
    command.args(["60", "iscsi-test-cu", "--dataloss", "--allow-sanitize", "-V"]);
    let done = command.arg(format!("--test=ALL.{suite}")).arg(uri).output().expect("timeout");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let body = text.split("Run Summary:").next().unwrap_or_default();
    let tests = body.split("\n  Test: ").skip(1).map(|test| {
        let name = test.split(' ').next().unwrap_or_default();
        // What the tool expects to fail is marked [FAILED] too, and is none.
        let end = if test.lines().any(|line| line.ends_with("FAILED")) {
            End::Failed
        } else if test.contains("[SKIPPED]") {
            End::Skipped
        } else if test.contains("passed") {
            End::Passed
        } else {
            // The tool hung or died in this test.
            End::Failed
        };
        (format!("{suite}.{name}"), end, test.to_owned())
    });
    let tests: Vec<_> = tests.collect();
    assert!(
        !tests.is_empty(),
        "{suite} ran no test:\n{text}\n{}",
        String::from_utf8_lossy(&done.stderr)
    );
    tests
}

#[test]
fn every_test_ends_as_expected() {
    let mut serve = Command::new(LONGHAUL);
    serve.args(["serve", "--listen", "127.0.0.1:0", "--volume", "disk=memory:100M"]);
    serve.args(["--volume", "locked=memory:100M,read_only"]);
    let served = Running::start(&mut serve);
    let uri = |_| {
        let ready = served.line().expect("a volume that is ready");
        ready.strip_prefix("ready ").expect("a line `ready URI`").to_owned()
    };
    let [disk, locked] = [0, 1].map(uri);
    let mut expected = expected();
    let mut score = BTreeMap::new();
    let mut surprises = Vec::new();
    for suite in suites() {
        let uri = if suite == "ReadOnly" { &locked } else { &disk };
        for (test, end, printed) in run(&suite, uri) {
            *score.entry(end).or_insert(0) += 1;
            let wanted = expected.remove(&test).unwrap_or(End::Passed);
            if end != wanted {
                surprises.push(format!("{test}: {end:?}, expected {wanted:?}\n{printed}"));
            }
        }
    }
    println!("libiscsi's suite: {score:?}");
    assert!(surprises.is_empty(), "{} surprises\n{}", surprises.len(), surprises.join("\n"));
    assert!(expected.is_empty(), "listed, but no such test: {expected:?}");
}
