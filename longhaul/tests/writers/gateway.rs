//! A server of volumes of other targets, which comes and goes with them by its configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;

use super::Bench;
use super::common::{PATIENCE, Running, run};
use super::identity::{TWO, uri_of};
use super::link::Link;
use super::nbd::Nbd;

/// What keeps the target from writing its reservations, once it has some: it can make no file beside that.
fn in_the_way(bench: &Bench) -> PathBuf {
    let mut kept = fs::read_dir(bench.path().join("st")).unwrap().map(|kept| kept.unwrap().path());
    let kept = kept.find(|kept| kept.extension().is_some_and(|kind| kind == "reservations"));
    kept.expect("it is reserved").with_extension("new")
}

/// A gateway and its file.
struct Gateway(Running);

impl Gateway {
    fn new(bench: &Bench) -> Self {
        Self::configure(bench, true);
        let mut command = bench.longhaul(&["serve", "--config", "gateway.toml"]);
        let log = fs::File::create(bench.path().join("gateway.log")).unwrap();
        let process = Running::start(command.stderr(log));
        for _ in 0..2 {
            let ready = process.line().unwrap_or_else(|| panic!("{}", bench.log("gateway")));
            assert!(ready.starts_with("ready "), "{ready}");
        }
        Self(process)
    }

    fn configure(bench: &Bench, with_remote: bool) {
        let mut text = "listen = [\"127.0.0.1:0\"]\ncontrol = \"gateway.sock\"\n".to_owned();
        text += "[volumes.own]\nuri = \"memory:1M\"\n";
        if with_remote {
            text += &format!("[volumes.remote]\nuri = \"{}\"\n", bench.uri);
        }
        fs::write(bench.path().join("gateway.toml"), text).unwrap();
    }

    /// Has it serve the remote volume or not; what it says, and whether it did so.
    fn reload(&self, bench: &Bench, with_remote: bool) -> (String, bool) {
        Self::configure(bench, with_remote);
        bench.run(&["reload", "--control", "gateway.sock"])
    }
}

fn notes(bench: &Bench) -> usize {
    fs::read_dir(bench.path().join("state/attachments")).unwrap().count()
}

#[test]
fn attachment_whose_release_the_target_refuses_stays_noted() {
    let bench = Bench::new(&["--state", "st"]);
    let first = bench.attach("first", &[]);
    assert!(bench.write(&first, 1));
    fs::create_dir(in_the_way(&bench)).unwrap();
    first.process.stop();
    assert!(bench.log("first").contains("the volume stays reserved"), "{}", bench.log("first"));
    assert_eq!(notes(&bench), 1);
    fs::remove_dir(in_the_way(&bench)).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut other = bench.longhaul(&["attach", &bench.uri, "--nbd", "other.sock"]);
    let other = other.env("LONGHAUL_STATE_DIR", elsewhere.path()).stderr(Stdio::piped());
    let (said, status) = run(other);
    assert!(!status.success() && said.contains("another writer"), "it is reserved: {said}");
    let second = bench.attach("second", &[]);
    assert!(bench.reads(&second, 1) && second.process.stop().success());
    assert_eq!(notes(&bench), 0);
}

/// The process that has left the reservation behind still runs, and has the volume no more.
#[test]
fn volume_whose_release_was_refused_is_put_in_again() {
    let bench = Bench::new(&["--state", "st"]);
    let gateway = Gateway::new(&bench);
    fs::create_dir(in_the_way(&bench)).unwrap();
    let (said, done) = gateway.reload(&bench, false);
    assert!(done && said.contains("removed remote"), "{said}");
    assert_eq!(notes(&bench), 1);
    fs::remove_dir(in_the_way(&bench)).unwrap();
    let (said, done) = gateway.reload(&bench, true);
    assert!(done && said.contains("added remote"), "{said}");
    assert!(bench.refused(&[]).contains("another writer"));
    assert!(gateway.0.stop().success());
    assert_eq!(notes(&bench), 0);
}

/// A user without rights.
const NOBODY: u32 = 65534;

/// A gateway that was killed is started again by its manager, with nobody there to say --take-over. Where the user has no
/// state directory what the server keeps is in its own.
#[test]
fn gateway_that_was_killed_takes_its_volume_back() {
    let bench = Bench::new(&["--state", "st"]);
    let volume = format!("g={}", bench.uri);
    let serve = ["serve", "--listen", "127.0.0.1:0", "--volume", &volume, "--state", "kept"];
    fs::set_permissions(bench.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for has_home in [true, false] {
        let start = || {
            let mut command = bench.longhaul(&serve);
            if !has_home {
                for variable in ["LONGHAUL_STATE_DIR", "STATE_DIRECTORY", "XDG_STATE_HOME", "HOME"]
                {
                    command.env_remove(variable);
                }
                // Root has a state directory without that.
                if rustix::process::geteuid().is_root() {
                    command.uid(NOBODY);
                }
            }
            Running::start(command.stderr(Stdio::inherit()))
        };
        let first = start();
        assert!(first.line().is_some_and(|line| line.starts_with("ready ")), "{has_home}");
        first.kill();
        let elsewhere = tempfile::tempdir().unwrap();
        let mut other = bench.longhaul(&["attach", &bench.uri, "--nbd", "other.sock"]);
        let (said, status) = run(other.env("LONGHAUL_STATE_DIR", elsewhere.path()));
        assert!(!status.success() && said.contains("another writer"), "it stays reserved: {said}");
        let again = start();
        assert!(again.line().is_some_and(|line| line.starts_with("ready ")), "{has_home}");
        assert!(again.stop().success());
        fs::remove_dir_all(bench.path().join("kept")).unwrap();
    }
}

/// Where a volume is shared no reservation ends what a gateway that was killed has under way.
#[tokio::test]
async fn write_of_a_killed_gateway_does_not_overtake_those_of_the_next() {
    let bench = Bench::new(&[]);
    let link = Link::to(&bench.uri);
    let text =
        format!("listen = [\"127.0.0.1:0\"]\n[volumes.g]\nuri = \"{}\"\nshared = true\n", link.uri);
    fs::write(bench.path().join("gateway.toml"), text).unwrap();
    let start = || {
        let process = Running::start(&mut bench.longhaul(&["serve", "--config", "gateway.toml"]));
        let uri = process.line().unwrap().strip_prefix("ready ").unwrap().to_owned();
        (process, uri)
    };
    let (first, uri) = start();
    let client = bench.attach_to(&uri, "first", &["--shared"]);
    link.hold();
    let mut nbd = Nbd::connect(&bench.path().join("first.sock"));
    nbd.write(0, &[2; 4096]).unwrap();
    tokio::time::timeout(PATIENCE, link.held()).await.expect("it is on its way");
    first.kill();
    client.process.kill();
    link.hold_no_more();
    let (second, uri) = start();
    let client = bench.attach_to(&uri, "second", &["--shared"]);
    let mut nbd = Nbd::connect(&bench.path().join("second.sock"));
    nbd.write(0, &[3; 4096]).unwrap();
    nbd.flush().unwrap();
    link.let_go();
    let (said, done) = bench.run(&["copy", &bench.uri, "out.img"]);
    assert!(done, "{said}");
    let copied = fs::read(bench.path().join("out.img")).unwrap();
    assert!(copied[..4096].iter().all(|byte| *byte == 3), "it was overtaken: {}", copied[0]);
    drop(nbd);
    assert!(client.process.stop().success() && second.stop().success());
    let ports = fs::read_dir(bench.path().join("state/ports")).unwrap();
    assert_eq!(ports.count(), 0, "what was logged out has nothing under way");
}

#[test]
fn volume_that_is_out_of_reach_is_removed_while_the_gateway_answers() {
    let mut bench = Bench::new(&["--state", "st"]);
    let gateway = Gateway::new(&bench);
    bench.server.take().unwrap().kill();
    Gateway::configure(&bench, false);
    let mut reload = bench.longhaul(&["reload", "--control", "gateway.sock"]);
    let reload = reload.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (said, done) = bench.run(&["status", "--control", "gateway.sock"]);
    assert!(done, "{said}");
    let said = reload.wait_with_output().unwrap();
    let said = String::from_utf8([said.stdout, said.stderr].concat()).unwrap();
    assert!(said.contains("removed remote"), "{said}");
    let (said, done) = bench.run(&["status", "--control", "gateway.sock"]);
    assert!(done && said.contains("longhaul:own") && !said.contains("longhaul:remote"), "{said}");
    // It is reserved for the gateway, which is the same process still.
    bench.serve(&["--volume", "t=file:t.img", "--state", "st"]);
    let (said, done) = gateway.reload(&bench, true);
    assert!(done && said.contains("added remote"), "{said}");
    assert!(gateway.0.stop().success());
    assert_eq!(notes(&bench), 0);
}

/// The target of one volume says nothing any more, which is found out late.
#[test]
fn volume_is_given_back_at_the_end_while_another_waits_for_its_target() {
    let (silent, bench) = (Bench::new(&TWO), Bench::new(&[]));
    let volumes = [format!("a={}", uri_of(&silent, "o")), format!("b={}", bench.uri)];
    let [a, b] = &volumes;
    let serve = ["serve", "--listen", "127.0.0.1:0", "--volume", a, "--volume", b];
    let log = fs::File::create(bench.path().join("gateway.log")).unwrap();
    let gateway = Running::start(bench.longhaul(&serve).stderr(log));
    for _ in &volumes {
        gateway.line().unwrap_or_else(|| panic!("{}", bench.log("gateway")));
    }
    silent.server.as_ref().unwrap().signal(Signal::STOP);
    gateway.signal(Signal::TERM);
    fs::write(bench.path().join("in.img"), [1; 4096]).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut copy = bench.longhaul(&["copy", "in.img", &bench.uri]);
    copy.env("LONGHAUL_STATE_DIR", elsewhere.path());
    let waits = || !bench.log("gateway").contains("the volume is given up");
    while !run(&copy).1.success() {
        assert!(waits(), "b is reserved until a is given up: {}", bench.log("gateway"));
    }
    assert!(waits(), "b was given back after a was given up: {}", bench.log("gateway"));
    gateway.kill();
}
