//! An encrypted volume whose target has no reservations: the token in its header.

use std::path::Path;
use std::process::{Command, Stdio};

use super::common::{LONGHAUL, Running, run};
use super::link::Link;
use super::{Attached, Bench};

const TOKEN: &str = "longhaul-writer";
const OPEN: [&str; 2] = ["--passphrase-file", "key"];
const CHEAP: [&str; 4] = ["--pbkdf-iterations", "4", "--pbkdf-memory", "32K"];

/// A server of an encrypted volume, behind links that hide its reservations.
struct UnguardedServer {
    bench: Bench,
    link: Link,
}

impl UnguardedServer {
    fn new() -> Self {
        let bench = Bench::new(&[]);
        let link = Link::without_reservations(&bench.uri);
        std::fs::write(bench.path().join("key"), "pass-phrase").unwrap();
        let init = [&["key", "init", &link.uri, "--force"][..], &OPEN, &CHEAP].concat();
        let (said, done) = bench.run(&init);
        assert!(done, "{said}");
        Self { bench, link }
    }

    fn path(&self) -> &Path {
        self.bench.path()
    }

    fn attach(&self, name: &str, options: &[&str]) -> Attached {
        self.bench.attach_to(&self.link.uri, name, &[&OPEN, options].concat())
    }

    /// A command of the machine whose state directory this is.
    fn run(&self, state: &str, command: &[&str]) -> (String, bool) {
        let mut process = self.bench.longhaul(command);
        process.args(OPEN).env("LONGHAUL_STATE_DIR", self.path().join(state));
        let (said, status) = run(&process);
        (said, status.success())
    }

    /// What an attachment that is refused says.
    fn refused(&self, state: &str, options: &[&str]) -> String {
        let attach = ["attach", &self.link.uri, "--nbd", "refused.sock"];
        let (said, done) = self.run(state, &[&attach, options].concat());
        assert!(!done && said.contains("another writer"), "{said}");
        said
    }

    /// What cryptsetup says of the header, which it must take.
    fn dump(&self) -> String {
        let copy = self.path().join("copy.img");
        std::fs::copy(self.path().join("t.img"), &copy).unwrap();
        let cryptsetup = |arguments: &[&str]| {
            let mut command = Command::new("cryptsetup");
            let (said, status) = run(command.args(arguments).arg(&copy));
            assert!(status.success(), "{said}");
            said
        };
        let key = self.path().join("key");
        cryptsetup(&["open", "--test-passphrase", "--key-file", key.to_str().unwrap()]);
        cryptsetup(&["luksDump"])
    }
}

#[test]
fn token_in_the_header_keeps_others_away_until_its_attachment_ends() {
    let place = UnguardedServer::new();
    assert!(!place.dump().contains(TOKEN));
    let first = place.attach("first", &[]);
    assert!(place.bench.write(&first, 1));
    assert!(place.dump().contains(TOKEN));
    let said = place.refused("other", &[]);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for words in [&*format!("host {host}, since 20"), "attached and not ended", "--take-over"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let said = place.refused("state", &["--shared"]);
    assert!(said.contains("another writer"), "{said}");
    let said = place.refused("state", &[]);
    assert!(said.contains(&format!("process {} of this machine", first.process.pid())), "{said}");
    let uri = &place.link.uri;
    std::fs::write(place.path().join("in.img"), [5; 4096]).unwrap();
    for command in [
        &["key", "init", uri, "--force"][..],
        &["key", "add", uri, "--new-key-file", "in.img"],
        &["copy", "in.img", uri],
    ] {
        let (said, done) = place.run("other", command);
        assert!(!done && said.contains("another writer"), "{command:?}: {said}");
    }
    let reader = place.attach("reader", &["--read-only"]);
    assert!(place.bench.write(&first, 7) && place.bench.reads(&reader, 7));
    assert!(reader.process.stop().success() && first.process.stop().success());
    assert!(!place.dump().contains(TOKEN));
    let second = place.attach("second", &[]);
    assert!(place.bench.reads(&second, 7) && second.process.stop().success());
    let noted = std::fs::read_dir(place.path().join("state/attachments")).unwrap().count();
    assert_eq!(noted, 0);
}

#[test]
fn token_of_a_killed_attachment_is_replaced_by_its_machine_and_no_other() {
    let place = UnguardedServer::new();
    let first = place.attach("first", &[]);
    assert!(place.bench.write(&first, 1));
    first.process.kill();
    assert!(place.refused("other", &[]).contains("attached and not ended"));
    // The same note, as another machine would have written it.
    let state = place.path().join("state/attachments");
    let note = std::fs::read_dir(&state).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&note).unwrap();
    let mut entry: serde_json::Value = serde_json::from_str(&text).unwrap();
    entry["machine"] = "0123456789abcdef0123456789abcdef".into();
    std::fs::write(&note, entry.to_string()).unwrap();
    let said = place.refused("state", &[]);
    assert!(said.contains("another machine wrote that"), "{said}");
    std::fs::write(&note, text).unwrap();
    let second = place.attach("second", &["--replace"]);
    assert!(place.bench.reads(&second, 1) && place.bench.write(&second, 2));
    assert!(second.process.stop().success());
    assert!(!place.dump().contains(TOKEN));
    assert_eq!(std::fs::read_dir(&state).unwrap().count(), 0);
}

#[test]
fn attachment_that_was_taken_over_while_its_link_was_down_writes_nothing_more() {
    let place = UnguardedServer::new();
    let first = place.attach("first", &["--window", "16M"]);
    assert!(place.bench.write(&first, 1));
    place.link.cut();
    let mut client = super::nbd::Nbd::connect(&place.path().join("first.sock"));
    client.write(0, &[3; 1 << 20]).expect("acknowledged before it is sent");
    let way = Link::without_reservations(&place.bench.uri);
    let options = [&OPEN[..], &["--take-over"]].concat();
    let second = place.bench.attach_to(&way.uri, "second", &options);
    assert!(place.bench.write(&second, 2));
    place.link.mend();
    assert!(client.flush().is_err() && client.write(0, &[4; 4096]).is_err(), "it is fenced");
    drop(client);
    assert_eq!(first.process.stop().code(), Some(1));
    let log = place.bench.log("first");
    for words in ["taken over", "it is held by host", ".replay"] {
        assert!(log.contains(words), "{words}: {log}");
    }
    assert!(place.bench.reads(&second, 2) && second.process.stop().success());
    assert!(!place.dump().contains(TOKEN));
}

#[test]
fn volume_whose_replay_log_waits_is_refused_until_that_is_written() {
    let place = UnguardedServer::new();
    let first = place.attach("first", &["--reconnect-for", "1s", "--window", "16M"]);
    assert!(place.bench.write(&first, 1));
    place.link.cut();
    let mut client = super::nbd::Nbd::connect(&place.path().join("first.sock"));
    client.write(0, &[3; 1 << 20]).expect("acknowledged before it is sent");
    assert!(client.flush().is_err(), "it is given up");
    drop(client);
    assert_eq!(first.process.stop().code(), Some(1));
    place.link.mend();
    let logs = place.bench.replay_logs();
    assert_eq!(logs.len(), 1, "{}", place.bench.log("first"));
    let said = place.refused("state", &["--replay-log", "logs"]);
    assert!(said.contains(&format!("`longhaul replay {}`", logs[0])), "{said}");
    let (said, done) = place.bench.run(&["replay", &logs[0]]);
    assert!(!done && said.contains("no persistent reservations"), "{said}");
    let (said, done) = place.bench.run(&["replay", "--force", &logs[0]]);
    assert!(done, "{said}");
    let second = place.attach("second", &["--replace"]);
    assert!(place.bench.reads(&second, 3) && second.process.stop().success());
    assert!(!place.dump().contains(TOKEN));
}

#[test]
fn attachment_that_is_taken_over_while_it_is_connected_notices_before_the_other_begins() {
    let place = UnguardedServer::new();
    let first = place.attach("first", &[]);
    assert!(place.bench.write(&first, 1));
    let second = place.attach("second", &["--take-over"]);
    assert!(!place.bench.write(&first, 3), "{}", place.bench.log("first"));
    assert!(place.bench.reads(&second, 1) && place.bench.write(&second, 2));
    assert!(second.process.stop().success());
    assert!(!place.bench.write(&first, 4), "and stays so when the other has gone");
    first.process.stop();
    let third = place.attach("third", &[]);
    assert!(place.bench.reads(&third, 2) && third.process.stop().success());
}

#[test]
fn of_two_attachments_that_begin_at_once_at_most_one_gets_the_volume() {
    let place = UnguardedServer::new();
    for round in 0..3 {
        let begin = |name: &str| {
            let mut command = Command::new(LONGHAUL);
            let socket = format!("{name}{round}.sock");
            command.args(["attach", &place.link.uri, "--nbd", &socket]).args(OPEN);
            command.current_dir(place.path()).stderr(Stdio::null());
            Running::start(command.env("LONGHAUL_STATE_DIR", place.path().join(name)))
        };
        let both = [begin("one"), begin("two")];
        let got = both.map(|process| (process.line().is_some(), process));
        let count = got.iter().filter(|(ready, _)| *ready).count();
        assert!(count <= 1, "both write");
        for (ready, process) in got {
            let status = process.stop();
            assert!(!ready || status.success());
        }
    }
    assert!(!place.dump().contains(TOKEN), "nothing is left behind");
}

#[test]
fn log_that_was_moved_away_is_missed_without_reservations() {
    let place = UnguardedServer::new();
    misses_its_log(&place.bench, &place.link, &OPEN);
    let bench = Bench::new(&[]);
    // Not encrypted, so that there is no token either.
    misses_its_log(&bench, &Link::without_reservations(&bench.uri), &[]);
}

fn misses_its_log(bench: &Bench, link: &Link, open: &[&str]) {
    let given_up = [open, &["--reconnect-for", "1s", "--window", "16M"]].concat();
    let first = bench.attach_to(&link.uri, "first", &given_up);
    link.cut();
    let mut client = super::nbd::Nbd::connect(&bench.path().join("first.sock"));
    client.write(0, &[3; 1 << 20]).expect("acknowledged before it is sent");
    assert!(client.flush().is_err(), "it is given up");
    drop(client);
    assert_eq!(first.process.stop().code(), Some(1));
    link.mend();
    let logs = bench.replay_logs();
    std::fs::rename(&logs[0], bench.path().join("elsewhere.replay")).unwrap();
    let refused = [&["attach", &link.uri, "--nbd", "refused.sock"], open].concat();
    let (said, done) = bench.run(&refused);
    assert!(!done && said.contains(&logs[0]) && said.contains("which is not there"), "{said}");
    let second = bench.attach_to(&link.uri, "second", &[open, &["--take-over"]].concat());
    assert!(second.process.stop().success(), "{}", bench.log("second"));
    let third = bench.attach_to(&link.uri, "third", open);
    assert!(third.process.stop().success(), "{}", bench.log("third"));
}
