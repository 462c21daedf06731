//! What an attachment could not write, while the volume stays reserved for it, and when it does not any more.

use super::Bench;
use super::common::{PATIENCE, Running};
use super::link::Link;
use super::nbd::Nbd;

const MIB: usize = 1 << 20;

/// An attachment that was given up with a write of a MiB of threes, of whose volume only the first is reached directly.
fn given_up(bench: &Bench) -> (Link, String) {
    let link = Link::to(&bench.uri);
    let options = ["--reconnect-for", "1s", "--window", "16M"];
    let first = bench.attach_to(&link.uri, "first", &options);
    let mut client = Nbd::connect(&bench.path().join("first.sock"));
    client.write(0, &[1; MIB]).unwrap();
    client.flush().unwrap();
    link.cut();
    client.write(0, &[3; MIB]).expect("acknowledged before it is sent");
    assert!(client.flush().is_err(), "it is given up");
    drop(client);
    assert_eq!(first.process.stop().code(), Some(1));
    link.mend();
    let logs = bench.replay_logs();
    assert_eq!(logs.len(), 1, "{}", bench.log("first"));
    assert!(bench.stored().iter().all(|byte| *byte == 1));
    (link, logs[0].clone())
}

#[test]
fn log_is_written_while_the_volume_is_reserved_for_its_attachment() {
    let bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    // Nobody takes the volume meanwhile, on this machine either.
    let said = bench.refused(&["--replay-log", "logs"]);
    for words in ["another writer", &format!("`longhaul replay {log}`"), "--take-over"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let (said, done) = bench.run(&["replay", &log]);
    assert!(done, "{said}");
    assert!(bench.stored().iter().all(|byte| *byte == 3));
    assert!(bench.replay_logs().is_empty(), "it is kept under another name");
    let second = bench.attach("second", &[]);
    assert!(bench.reads(&second, 3) && second.process.stop().success());
    let noted = std::fs::read_dir(bench.path().join("state/attachments")).unwrap().count();
    assert_eq!(noted, 0);
}

#[test]
fn log_is_refused_once_another_has_had_the_volume() {
    let bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    let options = ["--take-over", "--initiator", "iqn.2001-04.com.example:second"];
    let second = bench.attach("second", &options);
    assert!(bench.write(&second, 2));
    let (said, done) = bench.run(&["replay", &log]);
    for words in ["cannot know whether", "iqn.2001-04.com.example:second", "--force"] {
        assert!(!done && said.contains(words), "{words}: {said}");
    }
    assert!(second.process.stop().success());
    let (said, done) = bench.run(&["replay", &log]);
    for words in ["cannot know whether", "is gone", "--force"] {
        assert!(!done && said.contains(words), "{words}: {said}");
    }
    assert!(bench.stored().iter().all(|byte| *byte == 2), "nothing was written");
    let (said, done) = bench.run(&["replay", "--force", &log]);
    assert!(done, "{said}");
    assert!(bench.stored().iter().all(|byte| *byte == 3));
}

#[test]
fn log_of_a_target_that_forgot_its_reservations_is_refused() {
    let mut bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    bench.server.take().unwrap().kill();
    bench.serve(&["--volume", "t=file:t.img"]);
    let (said, done) = bench.run(&["replay", &log]);
    assert!(!done && said.contains("cannot know whether") && said.contains("is gone"), "{said}");
    let (said, done) = bench.run(&["replay", "--force", &log]);
    assert!(done, "{said}");
}

/// Whoever writes the log is killed in the middle of it.
#[tokio::test]
async fn log_that_was_written_in_part_is_written_again() {
    let bench = Bench::new(&[]);
    let (link, log) = given_up(&bench);
    link.hold();
    let replay = Running::start(&mut bench.longhaul(&["replay", &log]));
    tokio::time::timeout(PATIENCE, link.held()).await.expect("it writes");
    replay.kill();
    link.drop_held();
    let (said, done) = bench.run(&["replay", &log]);
    assert!(done, "{said}");
    assert!(bench.stored().iter().all(|byte| *byte == 3));
    let second = bench.attach("second", &[]);
    assert!(bench.reads(&second, 3) && second.process.stop().success(), "it was given back");
}
