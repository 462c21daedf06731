//! libiscsi's conformance suite against the served program: every test of it, and a list of those
//! that may end otherwise than passed, each with its reason.
//!
//! One process runs one suite: in libiscsi 1.19 `CompareAndWrite.InvalidDataOutSize` changes every
//! command block that later suites of the same process send.

#[expect(dead_code, reason = "each test uses its part")]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::process::Command;

use common::{LONGHAUL, Running};

/// `volume/Suite.Test passed|skipped|failed: why`, a line each; what is not listed must pass.
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

/// Runs one suite and says how each of its tests ended, with what the tool printed. `paths` are one unit
/// by one or two portals.
fn run(suite: &str, paths: &[String]) -> Vec<(String, End, String)> {
    let mut command = Command::new("timeout");
    command.args(["250", "iscsi-test-cu", "--dataloss", "--allow-sanitize", "-V"]);
    let done = command.arg(format!("--test=ALL.{suite}")).args(paths).output().expect("timeout");
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

/// What is served: a name, what the file says of it, and the suites that are for such a volume; `disk` takes
/// all that no other does.
const VOLUMES: [(&str, &str, &[&str]); 8] = [
    ("disk", "uri = 'memory:100M'", &[]),
    ("locked", "uri = 'memory:100M'\nread_only = true", &["ReadOnly"]),
    (
        "tray",
        "uri = 'memory:100M'\nremovable = true",
        &["NoMedia", "PreventAllow", "StartStopUnit"],
    ),
    (
        "coarse",
        "uri = 'memory:100M'\nphysical_block_size = 4096",
        // `WriteAtomic16.VPD` looks for limits, which are those of physical blocks.
        &["CompareAndWrite", "Unmap", "WriteAtomic16", "WriteSame10", "WriteSame16"],
    ),
    ("large", "uri = 'memory:100M'\nblock_size = 4096\nphysical_block_size = 16384", LARGE),
    ("slow", SLOW, &["Sanitize"]),
    ("drive", "uri = 'cdrom:drive.iso'", DRIVE),
    // `CompareAndWrite` takes the block behind those it wrote for zeroes.
    ("paths", "uri = 'memory:100M'", &["MultipathIO"]),
];

/// A sealed volume with 1 MiB for data. `Sanitize.Reset` wants an overwrite to be still under way when it has slept four
/// seconds. `Sanitize.CryptoErase` looks at WABEREQ where it means WACEREQ, so that there must be BLOCK ERASE
/// too.
const SLOW: &str = "uri = 'file:slow.img'
sanitize_rate = '120K'
passphrase_file = 'slow.secret'
crypto_erase = true
allow_discards = true";

/// Makes that volume: the header takes 16 MiB.
fn seal(home: &Path) {
    File::create(home.join("slow.img")).expect("a file").set_len(17 << 20).expect("room");
    std::fs::write(home.join("slow.secret"), "secret\n").expect("a file");
    let mut init = Command::new(LONGHAUL);
    init.args(["key", "init", "file:slow.img", "--passphrase-file", "slow.secret"]);
    init.args(["--pbkdf-memory", "32K", "--pbkdf-iterations", "4"]);
    assert!(init.current_dir(home).status().expect("key init").success());
}

/// `Sanitize.Reset` sleeps for a minute at a time, and answers no ping meanwhile.
const SERVER: &str = "listen = ['127.0.0.1:0', { address = '127.0.0.2:0', group = 2 }]
[limits]
ping_after = '2m'
";

/// The suites that depend on the block size run with both. Not `GetLBAStatus`, which takes physical blocks
/// for the unit of unmapping, whatever the block limits page says.
const LARGE: &[&str] = &[
    "CompareAndWrite",
    "ExtendedCopy",
    "Inquiry",
    "OrWrite",
    "Read10",
    "Read16",
    "ReadCapacity16",
    "Unmap",
    "Verify16",
    "Write10",
    "Write16",
    "WriteAtomic16",
    "WriteSame16",
    "WriteVerify16",
];

/// The suites that test something of an optical drive. Those of reservations are the same for all units.
const DRIVE: &[&str] = &[
    "Inquiry",
    "ModeSense6",
    "PrinReadKeys",
    "ProutRegister",
    "Read10",
    "Read12",
    "ReadCapacity10",
    "ReportSupportedOpcodes",
    "Reserve6",
    "StartStopUnit",
    "TestUnitReady",
    "Verify10",
];

/// Where each volume can be reached: of the lines, one for each portal, those of the first portal.
fn uris(served: &Running) -> BTreeMap<String, String> {
    let mut uris = BTreeMap::new();
    while uris.len() < VOLUMES.len() {
        let line = served.line().expect("a volume that is ready");
        let uri = line.strip_prefix("ready ").expect("a line `ready URI`");
        let target = uri.split('/').nth(3).expect("iscsi://PORTAL/IQN/LUN");
        let (_, name) = target.split_once(':').expect("IQN:NAME");
        if uri.contains("//127.0.0.1:") {
            uris.insert(name.to_owned(), uri.to_owned());
        }
    }
    uris
}

#[test]
fn every_test_ends_as_expected() {
    let volumes = VOLUMES.map(|(name, volume, _)| format!("[volumes.{name}]\n{volume}\n"));
    let home = tempfile::tempdir().expect("a directory");
    seal(home.path());
    let disc = File::create(home.path().join("drive.iso")).expect("a file");
    disc.set_len(20 << 20).expect("room");
    let file = home.path().join("longhaul.toml");
    std::fs::write(&file, SERVER.to_owned() + &volumes.concat()).expect("a file");
    let served = Running::start(Command::new(LONGHAUL).args(["serve", "--config"]).arg(&file));
    let uris = uris(&served);
    let (slow, others): (Vec<_>, Vec<_>) =
        suites().into_iter().partition(|suite| suite == "Sanitize");
    // It sleeps most of the time.
    let tests: Vec<_> = std::thread::scope(|scope| {
        let slow = scope.spawn(|| run_all(&slow, &uris));
        run_all(&others, &uris).into_iter().chain(slow.join().expect("an end")).collect()
    });
    let (mut expected, mut score, mut surprises) = (expected(), BTreeMap::new(), Vec::new());
    for (test, end, printed) in tests {
        *score.entry(end).or_insert(0) += 1;
        let wanted = expected.remove(&test).unwrap_or(End::Passed);
        if end != wanted {
            surprises.push(format!("{test}: {end:?}, expected {wanted:?}\n{printed}"));
        }
    }
    println!("libiscsi's suite: {score:?}");
    assert!(surprises.is_empty(), "{} surprises\n{}", surprises.len(), surprises.join("\n"));
    assert!(expected.is_empty(), "listed, but no such test: {expected:?}");
}

/// How each test of these suites ended on each volume that is for it.
fn run_all(suites: &[String], uris: &BTreeMap<String, String>) -> Vec<(String, End, String)> {
    let mut tests = Vec::new();
    for suite in suites {
        for name in volumes_for(suite) {
            let mut paths = vec![uris[name].clone()];
            if suite == "MultipathIO" {
                paths.extend(other_paths(&uris[name]));
            }
            let named = |(test, end, printed)| (format!("{name}/{test}"), end, printed);
            tests.extend(run(suite, &paths).into_iter().map(named));
        }
    }
    tests
}

/// The volumes a suite runs on.
fn volumes_for(suite: &str) -> Vec<&'static str> {
    let made_for = VOLUMES.iter().filter(|(_, _, suites)| suites.contains(&suite));
    let mut names: Vec<_> = made_for.map(|(name, _, _)| *name).collect();
    if names.iter().all(|name| ["large", "drive"].contains(name)) {
        names.push("disk");
    }
    names
}

/// The same unit by the other portals, as the target tells them.
fn other_paths(uri: &str) -> Vec<String> {
    let portal = uri.split('/').nth(2).expect("iscsi://PORTAL/IQN/LUN");
    let told = Command::new(LONGHAUL).args(["discover", portal]).output().expect("discover");
    let told = String::from_utf8(told.stdout).expect("text");
    let target = uri.split_once(portal).expect("the portal").1;
    let paths = told.lines().filter(|path| path.ends_with(target) && *path != uri);
    let paths: Vec<_> = paths.map(str::to_owned).collect();
    assert_eq!(paths.len(), 1, "one more portal: {told}");
    paths
}
