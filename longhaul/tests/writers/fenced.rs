//! A writer that is taken over while its link is down, and one whose target cannot tell writers apart.

use super::link::Link;
use super::nbd::Nbd;
use super::{Attached, Bench};

const MIB: usize = 1 << 20;

impl Bench {
    pub(super) fn replay_logs(&self) -> Vec<String> {
        let Ok(logs) = std::fs::read_dir(self.path().join("logs")) else { return Vec::new() };
        let paths = logs.map(|log| log.unwrap().path());
        let logs =
            paths.filter(|path| path.extension().is_some_and(|extension| extension == "replay"));
        logs.map(|path| path.to_str().unwrap().to_owned()).collect()
    }
}

#[test]
fn fenced_attachment_leaves_what_it_had_not_sent_in_a_replay_log() {
    let bench = Bench::new(&[]);
    let link = Link::to(&bench.uri);
    let options = ["--initiator", "iqn.2001-04.com.example:first", "--window", "16M"];
    let first = bench.attach_to(&link.uri, "first", &options);
    let mut client = Nbd::connect(&bench.path().join("first.sock"));
    client.write(0, &[1; MIB]).unwrap();
    client.flush().unwrap();
    link.cut();
    client.write(MIB as u64, &[3; MIB]).expect("acknowledged before it is sent");
    let second =
        bench.attach("second", &["--take-over", "--initiator", "iqn.2001-04.com.example:second"]);
    assert!(bench.write(&second, 2));
    link.mend();
    assert!(client.flush().is_err(), "it is fenced");
    assert!(client.write(0, &[4; MIB]).is_err(), "and stays so");
    drop(client);
    assert_eq!(first.process.stop().code(), Some(1));
    let log = bench.log("first");
    let logs = bench.replay_logs();
    assert_eq!(logs.len(), 1, "{log}");
    for words in ["taken over", "iqn.2001-04.com.example:second", &logs[0]] {
        assert!(log.contains(words), "{words}: {log}");
    }
    let stored = |bench: &Bench| std::fs::read(bench.path().join("t.img")).unwrap();
    let now = stored(&bench);
    assert!(now[..MIB].iter().all(|byte| *byte == 2) && now[MIB..].iter().all(|byte| *byte == 0));
    replays_under_the_rules(&bench, &logs[0], second);
    let now = stored(&bench);
    assert!(now[..MIB].iter().all(|byte| *byte == 2), "what was flushed is not in the log");
    assert!(now[MIB..2 * MIB].iter().all(|byte| *byte == 3));
}

/// Only with `--force`, and only once the other writer has ended.
fn replays_under_the_rules(bench: &Bench, log: &str, second: Attached) {
    let (said, done) = bench.run(&["replay", log]);
    assert!(!done && said.contains("--force"), "{said}");
    let (said, done) = bench.run(&["replay", "--force", log]);
    assert!(!done && said.contains("another writer"), "{said}");
    assert!(said.contains("iqn.2001-04.com.example:second"), "{said}");
    assert!(second.process.stop().success());
    let (said, done) = bench.run(&["replay", "--force", log]);
    assert!(done, "{said}");
    assert!(bench.replay_logs().is_empty(), "it is kept under another name");
}

/// A reservation of this type lets everybody read: that the volume was taken over is told with the next command.
#[test]
fn taken_over_attachment_is_told_with_the_next_read() {
    let bench = Bench::new(&[]);
    let first = bench.attach("first", &[]);
    assert!(bench.write(&first, 1));
    let second = bench.attach("second", &["--take-over"]);
    assert!(bench.write(&second, 2));
    let mut client = Nbd::connect(&bench.path().join("first.sock"));
    assert!(client.read(0, 4096).is_err(), "{}", bench.log("first"));
    assert!(second.process.stop().success());
    first.process.stop();
}

#[test]
fn target_without_reservations_is_warned_about_once() {
    const WARNING: &str = "the target has no persistent reservations";
    let bench = Bench::new(&[]);
    let link = Link::without_reservations(&bench.uri);
    let first = bench.attach_to(&link.uri, "first", &[]);
    assert!(bench.write(&first, 1));
    assert_eq!(bench.log("first").matches(WARNING).count(), 1, "{}", bench.log("first"));
    link.cut();
    link.mend();
    assert!(bench.write(&first, 2) && bench.reads(&first, 2), "{}", bench.log("first"));
    for options in ["--read-only", "--shared"] {
        let other = bench.attach_to(&link.uri, "other", &[options]);
        assert!(other.process.stop().success());
        assert_eq!(bench.log("other").matches(WARNING).count(), 0, "{options} reserves nothing");
    }
    assert!(first.process.stop().success());
    let log = bench.log("first");
    assert_eq!(log.matches(WARNING).count(), 1, "{log}");
}
