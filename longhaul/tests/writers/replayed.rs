//! What an attachment could not write, while the volume stays reserved for it, and when it does not any more.

use rustix::process::Signal;

use super::Bench;
use super::common::{PATIENCE, Running};
use super::link::Link;
use super::nbd::Nbd;

const MIB: usize = 1 << 20;

/// An attachment that was given up with a write of a MiB of threes, of whose volume only the first is reached directly.
pub(super) fn given_up(bench: &Bench) -> (Link, String) {
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
    assert!(stores(bench, 1));
    (link, logs[0].clone())
}

/// Writes the log, of threes.
fn written(bench: &Bench, arguments: &[&str]) {
    let (said, done) = bench.run(&[&["replay"], arguments].concat());
    assert!(done && stores(bench, 3), "{said}");
}

/// Whether the file of the volume holds nothing but this byte.
fn stores(bench: &Bench, byte: u8) -> bool {
    bench.stored().iter().all(|stored| *stored == byte)
}

/// The number of attachments that are known of.
fn noted(bench: &Bench) -> usize {
    std::fs::read_dir(bench.path().join("state/attachments")).unwrap().count()
}

/// Every kind of writer but `attach` is refused with these words.
fn refuses_writers(bench: &Bench, words: &[&str]) {
    std::fs::write(bench.path().join("in.img"), vec![5; MIB]).unwrap();
    std::fs::write(bench.path().join("key"), "pass-phrase").unwrap();
    let gateway = format!("g={}", bench.uri);
    for writer in [
        &["copy", "in.img", &bench.uri][..],
        &["tune", &bench.uri, "--overwrite", "0+1M"],
        &["key", "init", &bench.uri, "--force", "--passphrase-file", "key"],
        &["serve", "--listen", "127.0.0.1:0", "--volume", &gateway],
    ] {
        refuses(bench, writer, words);
    }
}

fn refuses(bench: &Bench, writer: &[&str], words: &[&str]) {
    let (said, done) = bench.run(writer);
    for words in words {
        assert!(!done && said.contains(words), "{writer:?}: {words}: {said}");
    }
    assert!(!said.contains("another writer"), "{said}");
}

#[test]
fn log_is_written_while_the_volume_is_reserved_for_its_attachment() {
    let bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    // Nobody takes the volume meanwhile, on this machine either.
    let said = bench.refused(&["--replay-log", "logs"]);
    for words in ["reserved for the replay log", &format!("`longhaul replay {log}`"), "--take-over"]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    let said = bench.refused(&["--replay-log", "logs", "--shared"]);
    assert!(said.contains(&format!("`longhaul replay {log}`")), "{said}");
    written(&bench, &[&log]);
    assert!(bench.replay_logs().is_empty(), "it is kept under another name");
    let second = bench.attach("second", &[]);
    assert!(bench.reads(&second, 3) && second.process.stop().success());
    assert_eq!(noted(&bench), 0);
}

/// Every other writer too is kept from a volume whose last one left a log, though its process is gone.
#[test]
fn unwritten_log_keeps_every_writer_from_its_volume() {
    let bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    refuses_writers(&bench, &[&format!("`longhaul replay {log}`"), "write it first"]);
    written(&bench, &[&log]);
    let (said, done) = bench.run(&["copy", "in.img", &bench.uri, "--force"]);
    assert!(done && stores(&bench, 5), "{said}");
}

/// The log takes `--force` once somebody has gone on without it.
#[test]
fn volume_of_an_unwritten_log_is_written_to_where_that_is_said() {
    let bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    std::fs::write(bench.path().join("in.img"), vec![5; MIB]).unwrap();
    let (said, done) = bench.run(&["copy", "in.img", &bench.uri, "--take-over", "--force"]);
    assert!(done && stores(&bench, 5), "{said}");
    let (said, done) = bench.run(&["replay", &log]);
    assert!(!done && said.contains("--force"), "{said}");
    written(&bench, &["--force", &log]);
}

/// Whoever writes the log is killed before each command by which it takes the reservation over.
#[tokio::test]
async fn replay_that_is_killed_while_it_begins_is_resumed_and_nobody_comes_before_it() {
    for passed in 0..3 {
        let bench = Bench::new(&[]);
        let (link, log) = given_up(&bench);
        link.stop_before_reserve_out(passed);
        let replay = Running::start(&mut bench.longhaul(&["replay", &log]));
        tokio::time::timeout(PATIENCE, link.stopped()).await.expect("it begins");
        replay.kill();
        link.go_on();
        let said = bench.refused(&[]);
        let words = format!("`longhaul replay {log}`");
        assert!(said.contains(&words), "{passed}: {said}");
        written(&bench, &[&log]);
        let second = bench.attach("second", &[]);
        assert!(bench.reads(&second, 3) && second.process.stop().success(), "{passed}");
        assert_eq!(noted(&bench), 0, "{passed}");
    }
}

/// Starts what reserves the volume, and ends it by a signal before it is open.
async fn end_while_it_opens(bench: &Bench, link: &Link, arguments: &[&str]) {
    link.park_after_reserve_out(3);
    let process = Running::start(&mut bench.longhaul(arguments));
    tokio::time::timeout(PATIENCE, link.parked(1)).await.expect("it has the volume");
    process.signal(Signal::TERM);
    tokio::time::timeout(PATIENCE, link.parked(2)).await.expect("it lets go");
    link.unpark();
    assert!(!process.end().success(), "it was ended before it was done");
}

/// A signal is no crash: what has a reservation gives it back, but not the one that the log needs.
#[tokio::test]
async fn replay_ended_by_a_signal_while_it_opens_keeps_the_volume_for_the_log() {
    for force in [&[][..], &["--force"]] {
        let bench = Bench::new(&[]);
        let (link, log) = given_up(&bench);
        end_while_it_opens(&bench, &link, &[&["replay", &log], force].concat()).await;
        let moved = move_away(&bench);
        refuses_writers(&bench, &[&log, "which is not there"]);
        written(&bench, &[&moved]);
        let second = bench.attach("second", &[]);
        assert!(bench.reads(&second, 3) && second.process.stop().success());
        assert_eq!(noted(&bench), 0);
    }
}

/// Nor does one who takes the volume over, and ends before anything was written: the log is still the newest there is.
#[tokio::test]
async fn take_over_that_writes_nothing_keeps_the_volume_for_the_log() {
    let bench = Bench::new(&[]);
    let (link, log) = given_up(&bench);
    let words = [&*format!("`longhaul replay {log}`"), "write it first"];
    let uri = &*link.uri;
    std::fs::write(bench.path().join("in.img"), vec![5; MIB]).unwrap();
    for taker in [
        &["copy", "in.img", uri, "--take-over", "--force"][..],
        &["attach", uri, "--nbd", "taker.sock", "--take-over", "--replay-log", "logs"],
    ] {
        end_while_it_opens(&bench, &link, taker).await;
        refuses_writers(&bench, &words);
    }
    let second = bench.attach("second", &["--take-over"]);
    assert!(bench.reads(&second, 1) && second.process.stop().success());
    assert!(bench.log("second").contains("stays reserved"), "{}", bench.log("second"));
    refuses_writers(&bench, &words);
    written(&bench, &[&log]);
    let third = bench.attach("third", &[]);
    assert!(bench.reads(&third, 3) && third.process.stop().success());
    assert_eq!(noted(&bench), 0);
}

/// Whoever writes the log is killed when all is written and the volume is about to be given back, or cannot rename the log.
/// Either it is known as written by then, or it is still to be written, and nobody comes before it.
#[tokio::test]
async fn log_is_known_as_written_before_its_volume_is_given_back() {
    let bench = Bench::new(&[]);
    let (link, log) = given_up(&bench);
    let dir = std::path::Path::new(&log).parent().unwrap();
    // Too long a name with `.applied`.
    let long = dir.join(format!("{}.replay", "x".repeat(243))).to_str().unwrap().to_owned();
    std::fs::rename(&log, &long).unwrap();
    let (said, done) = bench.run(&["replay", &long]);
    assert!(!done && said.contains("it was written, but") && stores(&bench, 3), "{said}");
    refuses_writers(&bench, &[&format!("`longhaul replay {long}`")]);
    std::fs::rename(&long, &log).unwrap();
    link.stop_before_reserve_out(3);
    let replay = Running::start(&mut bench.longhaul(&["replay", &log]));
    tokio::time::timeout(PATIENCE, link.stopped()).await.expect("it gives the volume back");
    replay.kill();
    link.go_on();
    assert!(bench.replay_logs().is_empty(), "it has its other name");
    let second = bench.attach("second", &[]);
    assert!(bench.write(&second, 2) && second.process.stop().success());
    assert!(!bench.log("second").contains("replay log"), "{}", bench.log("second"));
    assert_eq!(noted(&bench), 0);
}

/// So does a log that is written over what others may have written: nobody comes before the rest of it.
#[tokio::test]
async fn forced_replay_that_is_killed_keeps_the_volume() {
    let bench = Bench::new(&[]);
    let (link, log) = given_up(&bench);
    let second = bench.attach("second", &["--take-over"]);
    assert!(bench.write(&second, 2) && second.process.stop().success());
    link.hold();
    let replay = Running::start(&mut bench.longhaul(&["replay", "--force", &log]));
    tokio::time::timeout(PATIENCE, link.held()).await.expect("it writes");
    replay.kill();
    link.drop_held();
    let said = bench.refused(&[]);
    assert!(said.contains(&format!("`longhaul replay {log}`")), "{said}");
    written(&bench, &[&log]);
}

/// Two servers with one target name: what is known of the one is kept while the other is attached.
#[test]
fn note_of_a_killed_attachment_outlives_one_at_another_server_of_its_names() {
    let (here, there) = (Bench::new(&[]), Bench::new(&[]));
    let first = here.attach("first", &[]);
    assert!(here.write(&first, 1));
    first.process.kill();
    let other = here.attach_to(&there.uri, "other", &[]);
    assert!(other.process.stop().success());
    let again = here.attach("again", &[]);
    assert!(here.reads(&again, 1) && again.process.stop().success());
    assert_eq!(noted(&here), 0);
}

#[test]
fn log_is_refused_once_another_has_had_the_volume() {
    let bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    let options = ["--take-over", "--initiator", "iqn.2001-04.com.example:second"];
    let second = bench.attach("second", &options);
    assert!(bench.write(&second, 2));
    let (said, done) = bench.run(&["replay", &log]);
    for words in ["cannot know whether", "iqn.2001-04.com.example:second", "end it, before"] {
        assert!(!done && said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("add --force"), "it has the volume: {said}");
    assert!(second.process.stop().success());
    let (said, done) = bench.run(&["replay", &log]);
    for words in ["it is older than what", "was written from this machine", "--force"] {
        assert!(!done && said.contains(words), "{words}: {said}");
    }
    assert!(stores(&bench, 2), "nothing was written");
    written(&bench, &["--force", &log]);
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
    written(&bench, &[&log]);
    let second = bench.attach("second", &[]);
    assert!(bench.reads(&second, 3) && second.process.stop().success(), "it was given back");
}

/// Moves the log away, as when its disk is not mounted; where it is now.
pub(super) fn move_away(bench: &Bench) -> String {
    let elsewhere = bench.path().join("elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    let logs = bench.replay_logs();
    let name = std::path::Path::new(&logs[0]).file_name().unwrap();
    std::fs::rename(&logs[0], elsewhere.join(name)).unwrap();
    elsewhere.join(name).to_str().unwrap().to_owned()
}

#[test]
fn log_that_was_moved_away_keeps_every_writer_from_its_volume() {
    let bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    let moved = move_away(&bench);
    let words = [&*log, "which is not there", "--take-over"];
    refuses_writers(&bench, &words);
    for options in [&[][..], &["--replay-log", "logs"], &["--shared"]] {
        let attach = [&["attach", &*bench.uri, "--nbd", "refused.sock"], options].concat();
        refuses(&bench, &attach, &words);
    }
    assert!(stores(&bench, 1), "nothing was written");
    // It is written from where it is, and missed no more.
    written(&bench, &[&moved]);
    let second = bench.attach("second", &[]);
    assert!(bench.reads(&second, 3) && second.process.stop().success());
    assert_eq!(noted(&bench), 0);
}

/// The reservation may be gone as well: what is noted here stays.
#[test]
fn log_that_was_moved_away_is_missed_where_the_target_forgot_its_reservations() {
    let mut bench = Bench::new(&[]);
    let (link, log) = given_up(&bench);
    bench.server.take().unwrap().kill();
    bench.serve(&["--volume", "t=file:t.img"]);
    let moved = move_away(&bench);
    let refused = |options: &[&str]| {
        let arguments = [&["attach", &link.uri, "--nbd", "refused.sock"], options].concat();
        let (said, done) = bench.run(&arguments);
        assert!(!done && said.contains(&log) && said.contains("which is not there"), "{said}");
    };
    refused(&[]);
    refused(&["--shared"]);
    std::fs::write(&log, "damaged").unwrap();
    refused(&[]);
    std::fs::remove_file(&log).unwrap();
    // One that another state directory's `replay` has written is missed no more.
    std::fs::rename(&moved, format!("{log}.applied")).unwrap();
    for name in ["second", "third"] {
        let attached = bench.attach_to(&link.uri, name, &[]);
        assert!(attached.process.stop().success(), "{}", bench.log(name));
    }
}

#[test]
fn volume_of_a_log_that_was_moved_away_is_taken_over_where_that_is_said() {
    for forgets in [false, true] {
        let mut bench = Bench::new(&[]);
        let (link, _log) = given_up(&bench);
        if forgets {
            bench.server.take().unwrap().kill();
            bench.serve(&["--volume", "t=file:t.img"]);
        }
        move_away(&bench);
        let second = bench.attach_to(&link.uri, "second", &["--take-over"]);
        assert!(bench.write(&second, 2) && second.process.stop().success());
        let third = bench.attach_to(&link.uri, "third", &[]);
        assert!(bench.reads(&third, 2) && third.process.stop().success());
    }
}

/// Whoever goes on with the log is killed, and then the log is moved away.
#[tokio::test]
async fn log_that_was_moved_away_after_its_replay_was_killed_is_missed() {
    for passed in 0..3 {
        let bench = Bench::new(&[]);
        let (link, log) = given_up(&bench);
        link.stop_before_reserve_out(passed);
        let replay = Running::start(&mut bench.longhaul(&["replay", &log]));
        tokio::time::timeout(PATIENCE, link.stopped()).await.expect("it begins");
        replay.kill();
        link.go_on();
        let moved = move_away(&bench);
        let said = bench.refused(&[]);
        assert!(said.contains(&log) && said.contains("which is not there"), "{passed}: {said}");
        written(&bench, &[&moved]);
        let second = bench.attach("second", &[]);
        assert!(second.process.stop().success(), "{passed}");
    }
}

/// Nobody loses a volume to a log of another one, whatever the user says: it is compared first, and nothing is reserved at a
/// server that was exchanged after that.
#[test]
fn holder_of_another_volume_keeps_it_from_a_log_that_is_forced() {
    let bench = Bench::new(&["--volume", "u=file:u.img,size=32M"]);
    let (_link, log) = given_up(&bench);
    let volume = bench.uri.replace(":t/", ":u/");
    let holder = bench.attach_to(&volume, "holder", &[]);
    let elsewhere = Bench::serving(&["--volume", "t=file:t.img,size=32M,serial=another"]);
    let other = elsewhere.attach("other", &[]);
    let exchanged = Link::to_one_then(&bench.uri, &elsewhere.uri);
    for (uri, words) in [
        (&volume, "this is not the volume of the replay log"),
        (&exchanged.uri, "its serial number has changed"),
    ] {
        let (said, done) = bench.run(&["replay", "--force", "--take-over", &log, uri]);
        assert!(!done && said.contains(words), "{words}: {said}");
    }
    let is_fenced = |at: &super::Attached| !bench.write(at, 2);
    assert!(!is_fenced(&holder) && !is_fenced(&other), "{}", elsewhere.log("other"));
    assert!(holder.process.stop().success() && other.process.stop().success());
}

/// A volume is compared with that of the log before anything else is asked of the user.
#[test]
fn replay_to_another_volume_names_the_difference_first() {
    let bench = Bench::new(&["--volume", "u=file:u.img,size=32M"]);
    let (_link, log) = given_up(&bench);
    let other = bench.uri.replace(":t/", ":u/");
    for options in [&[][..], &["--force"], &["--take-over"]] {
        let (said, done) = bench.run(&[&["replay", &log, &other], options].concat());
        let words = "this is not the volume of the replay log: its serial number is";
        assert!(!done && said.contains(words) && said.contains(&other), "{options:?}: {said}");
        assert!(!said.contains("add --force"), "{said}");
    }
    let (said, done) = bench.run(&["replay", &log, "file:missing.img"]);
    assert!(!done && said.contains("cannot open file:missing.img"), "{said}");
    std::fs::write(bench.path().join("same.img"), vec![0; 32 * MIB]).unwrap();
    let (said, done) = bench.run(&["replay", &log, "file:same.img", "--unverified"]);
    let words = "cannot know whether anybody has written to file:same.img since";
    assert!(!done && said.contains(words) && said.contains("--force"), "{said}");
    // The reservation is still that of the log.
    written(&bench, &[&log]);
}

#[test]
fn replay_whose_first_write_fails_says_that_the_log_is_as_it_was() {
    let mut bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    assert!(bench.server.take().unwrap().stop().success());
    bench.serve(&["--volume", "t=file:t.img,read_only"]);
    let (said, done) = bench.run(&["replay", &log, "--force"]);
    assert!(!done && said.contains("the log is as it was: it can be written again"), "{said}");
}

/// What this machine has written over is not lacking any more, and not to come first.
#[test]
fn log_at_whose_places_this_machine_has_written_since_is_older() {
    let bench = Bench::new(&[]);
    let (_link, found) = given_up(&bench);
    // Where every command looks.
    let name = std::path::Path::new(&found).file_name().unwrap();
    let log = bench.path().join("state").join(name).to_str().unwrap().to_owned();
    std::fs::rename(&found, &log).unwrap();
    let second = bench.attach("second", &["--take-over"]);
    let (said, done) = bench.qemu_io(&second, &["-c", "write -P 2 1M 1M", "-c", "flush"]);
    assert!(done, "{said}");
    assert!(second.process.stop().success());
    // Elsewhere: the volume still lacks what the log holds.
    let (said, done) = bench.run(&["copy", &bench.uri, "one.img"]);
    assert!(!done && said.contains("the copy lacks what is in the replay log"), "{said}");
    let third = bench.attach("third", &[]);
    let advice = format!("run `longhaul replay {log}` first");
    assert!(bench.log("third").contains(&advice), "{}", bench.log("third"));
    assert!(bench.write(&third, 2) && third.process.stop().success());
    let fourth = bench.attach("fourth", &[]);
    let said = bench.log("fourth");
    assert!(said.contains("older than what was written from this machine"), "{said}");
    assert!(!said.contains("first"), "{said}");
    assert!(fourth.process.stop().success());
    let (said, done) = bench.run(&["copy", &bench.uri, "two.img"]);
    assert!(done && !said.contains("replay"), "{said}");
    let (said, done) = bench.run(&["replay", &log]);
    assert!(!done && said.contains("it is older than what"), "{said}");
    assert!(said.contains("delete it") && !said.contains("if nobody has"), "{said}");
    let (said, done) = bench.run(&["replay", "--dry-run", &log]);
    assert!(done && said.contains("places    0+1M") && said.contains("  older     "), "{said}");
    assert!(stores(&bench, 2));
    written(&bench, &["--force", &log]);
    let (said, done) = bench.run(&["replay", "--dry-run", &format!("{log}.applied")]);
    assert!(done && !said.contains("older"), "{said}");
}

/// Logs are written in the order in which they were begun: the later one makes the earlier one old, and not the reverse.
#[test]
fn later_log_that_is_written_makes_an_earlier_one_old() {
    let bench = Bench::new(&[]);
    let (link, log) = given_up(&bench);
    let copy = bench.path().join("logs/copy.replay");
    let older = |said: &str| said.contains("  older     ");
    std::fs::copy(&log, &copy).unwrap();
    let copy = copy.to_str().unwrap();
    written(&bench, &[&log]);
    let (said, done) = bench.run(&["replay", "--dry-run", copy]);
    assert!(done && !older(&said), "they were begun at once: {said}");
    let begun = std::time::SystemTime::now();
    let second = || begun.elapsed().unwrap() >= std::time::Duration::from_secs(1);
    while !second() {
        std::thread::yield_now();
    }
    let options = ["--reconnect-for", "1s", "--window", "16M", "--replay-log", "logs"];
    let again = bench.attach_to(&link.uri, "again", &options[..4]);
    let mut client = Nbd::connect(&bench.path().join("again.sock"));
    link.cut();
    client.write(0, &[0; 512]).expect("acknowledged before it is sent");
    client.flush().unwrap_err();
    drop(client);
    again.process.stop();
    link.mend();
    let logs = bench.replay_logs();
    let later = logs.iter().find(|log| *log != copy).expect("it was given up");
    let (said, done) = bench.run(&["replay", "--dry-run", copy]);
    assert!(done && !older(&said), "nothing of it was written: {said}");
    let (said, done) = bench.run(&["replay", later]);
    assert!(done, "{said}");
    let (said, done) = bench.run(&["replay", "--dry-run", copy]);
    assert!(done && older(&said), "{said}");
}

/// What the log of a plain volume holds would destroy the header that was made since.
#[test]
fn log_of_a_volume_that_was_encrypted_since_is_not_advised() {
    let bench = Bench::new(&[]);
    let (_link, log) = given_up(&bench);
    std::fs::write(bench.path().join("key"), "pass-phrase").unwrap();
    let key = ["--passphrase-file", "key"];
    let init = ["key", "init", &bench.uri, "--force", "--take-over"];
    let cheap = ["--pbkdf-memory", "32K", "--pbkdf-iterations", "4"];
    let (said, done) = bench.run(&[&init[..], &key, &cheap].concat());
    assert!(done, "{said}");
    let again = bench.attach("again", &key);
    assert!(again.process.stop().success());
    assert!(!bench.log("again").contains("replay log"), "{}", bench.log("again"));
    let raw = bench.attach("raw", &["--raw", "--read-only"]);
    assert!(raw.process.stop().success());
    assert!(!bench.log("raw").contains("replay log"), "{}", bench.log("raw"));
    let copy = ["copy", &bench.uri, "out.img"];
    let (said, done) = bench.run(&[&copy[..], &key].concat());
    assert!(done && !said.contains("replay"), "{said}");
    for force in [&[][..], &["--force"]] {
        let (said, done) = bench.run(&[&["replay", &log], force].concat());
        assert!(!done && said.contains("encrypted since"), "{said}");
        assert!(!said.contains("--force"), "{said}");
    }
}
