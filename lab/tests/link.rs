//! The emulated link between real namespaces. Needs root, and fails without it.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

const LAB: &str = env!("CARGO_BIN_EXE_lab");

fn link(options: &[&str], command: &[&str]) -> Output {
    let output =
        Command::new(LAB).arg("link").args(options).arg("--").args(command).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("needs root"), "this test needs root: {errors}");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The numbers before a word in what was printed.
fn before<'a>(text: &'a str, word: &str) -> impl Iterator<Item = u64> + use<'a> {
    let parts: Vec<_> = text.match_indices(word).map(|(at, _)| &text[..at]).collect();
    parts.into_iter().filter_map(|part| part.split_whitespace().next_back()?.parse().ok())
}

const PING: [&str; 7] = ["ping", "-q", "-c", "3", "-i", "0.01", "10.77.0.2"];

#[test]
fn no_packet_is_early() {
    never_early(&link(&["--delay", "20ms"], &PING));
}

fn never_early(output: &Output) {
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    assert!(printed.contains("3 received"), "{printed}");
    let least = printed.rsplit(" = ").next().and_then(|times| times.split('/').next());
    let least: f64 =
        least.and_then(|least| least.parse().ok()).unwrap_or_else(|| panic!("{printed}"));
    assert!(least >= 40.0, "{printed}");
}

#[test]
fn tcp_crosses_whole_however_the_link_treats_it() {
    // The same stream through trains of segments, with losses that cut them, and through a queue of
    // three packets that drops what comes in bursts.
    for options in [
        &["--delay", "1ms", "--rate", "1G"][..],
        &["--delay", "1ms", "--rate", "1G", "--loss", "1%"],
        &["--rate", "100M", "--queue", "4500", "--jitter", "1ms"],
    ] {
        let script = format!(
            "mkfifo $0/ready; ip netns exec $LAB_FAR timeout 120 {LAB} receive 10.77.0.2:9000 >$0/ready &
             read _ <$0/ready; timeout 120 {LAB} send 10.77.0.2:9000 4M; wait"
        );
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().to_str().unwrap();
        let output = link(options, &["sh", "-c", &script, path]);
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{options:?}: {errors}");
        let taken: f64 = text(&output.stdout).trim().parse().unwrap();
        assert!(taken > 0.0);
        // 4 MiB are 2,897 full packets; with 1 % of them lost, TCP sends more, and is told of both.
        let (packets, lost) = (before(&errors, " packets"), before(&errors, " lost"));
        let (packets, lost): (Vec<_>, Vec<_>) = (packets.collect(), lost.collect());
        assert!(packets[0] >= 2897, "{errors}");
        assert_eq!(lost[0] > 0, options.contains(&"--loss"), "{errors}");
        let dropped = before(&errors, " dropped").next();
        assert_eq!(dropped > Some(0), options.contains(&"--queue"), "{errors}");
    }
}

#[test]
fn netem_makes_the_link_where_the_kernel_has_it_and_is_missed_where_not() {
    let try_it = ["-n", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"];
    let has_netem = Command::new("unshare").args(try_it).output().unwrap().status.success();
    let output = link(&["--by", "netem", "--delay", "20ms"], &PING);
    let errors = text(&output.stderr);
    if has_netem {
        never_early(&output);
        assert!(errors.contains("out 3 packets, 252 bytes, 0 lost, 0 dropped;"), "{errors}");
    } else {
        assert!(!output.status.success() && output.stdout.is_empty(), "{errors}");
        let told =
            "this kernel has no netem: load it (modprobe sch_netem), or leave out --by netem";
        assert!(errors.contains(told), "{errors}");
    }
    let output = link(&["--by", "netem", "--exchanges"], &PING);
    assert!(text(&output.stderr).contains("leave out --exchanges"), "{}", text(&output.stderr));
}

#[test]
fn namespaces_that_were_left_are_removed_by_several_at_the_same_time() {
    // No process has this number, so these have no maker any more.
    let left: Vec<_> = (0..20).map(|n| format!("lab-4194305-{n}")).collect();
    for name in &left {
        assert!(Command::new("ip").args(["netns", "add", name]).status().unwrap().success());
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let output = link(&[], &["true"]);
                assert!(output.status.success(), "{}", text(&output.stderr));
            });
        }
    });
    let is_there = |name: &String| std::path::Path::new("/run/netns").join(name).exists();
    assert!(!left.iter().any(is_there), "left behind still");
}

#[test]
fn a_signal_ends_what_runs_inside_and_removes_the_ends() {
    let script = "ip netns exec $LAB_FAR sleep 1000 & echo $$ $! $LAB_FAR; wait";
    let mut command = Command::new(LAB);
    command.args(["link", "--", "sh", "-c", script]).stdout(Stdio::piped());
    let mut lab = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(lab.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let said: Vec<_> = said.split_whitespace().collect();
    let [shell, sleep, far] = said[..] else { panic!("{said:?}") };
    let exists = |path: String| std::path::Path::new(&path).exists();
    assert!(exists(format!("/run/netns/{far}")));

    let ended = Command::new("kill").args(["-INT", &lab.id().to_string()]).status().unwrap();
    assert!(ended.success());
    assert_eq!(lab.wait().unwrap().code(), Some(1));
    assert!(!exists(format!("/run/netns/{far}")), "{far} is still there");
    for pid in [shell, sleep] {
        // An ended process that nobody waited for has no command line any more.
        let runs = std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
        assert!(!runs, "process {pid} still runs");
    }
}
