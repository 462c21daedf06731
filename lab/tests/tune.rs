//! What `longhaul tune` says of emulated links. Needs root, and fails without it.

use std::path::Path;
use std::process::Command;

const LAB: &str = env!("CARGO_BIN_EXE_lab");

/// A target at the far end with a volume of this size, and `tune` with these options, of which all may be written to.
const TUNE: &str = "
    mkfifo $0/ready
    head -c $3 /dev/zero >$0/volume
    ip netns exec $LAB_FAR $1 serve --volume disk=file:$0/volume --insecure --listen $LAB_FAR_ADDRESS:3260 >$0/ready &
    read -r _ uri <$0/ready
    timeout --kill-after=10 240 $1 tune $uri --overwrite 0+$3 --json $2
";

/// The findings of a run over such a link with such options. Of a volume of `size` only blocks are tried of which it holds four: at
/// slow links large ones take longest, and show nothing more.
fn tune(link: &[&str], options: &str, size: &str) -> String {
    let longhaul = Path::new(LAB).with_file_name("longhaul");
    assert!(longhaul.exists(), "this test needs {}", longhaul.display());
    let scratch = tempfile::tempdir().unwrap();
    let output = Command::new(LAB)
        .arg("link")
        .args(link)
        .args(["--", "sh", "-c", TUNE])
        .args([scratch.path(), &longhaul])
        .args([options, size])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// As much is on its way as on a shorter and faster link, for a fifth of the processor.
#[test]
fn a_link_that_is_full_is_named() {
    let found = tune(&["--delay", "40ms", "--rate", "10M"], "", "2M");
    let (reads, writes) = found.split_once("\"writes\"").unwrap();
    // The target sends what is read, and only it knows whether it had always something left to send. Where it sends no faster than
    // the link takes it, nothing queues: then it may be the link or the store. A pipeline that tries more at the end of each run has
    // not found out. Nothing else may be named.
    let told = ["link", "link-or-store", "unknown"];
    let told = told.map(|limit| format!("\"limited_by\":\"{limit}\""));
    assert!(told.iter().any(|told| reads.contains(told)), "{found}");
    assert!(writes.contains("\"limited_by\":\"link\""), "{found}");
    assert!(!writes.contains("\"link\":null"), "{found}");
}

/// What waits for a processor looks like a queue. Beside a round trip of 200 ms it is short.
#[test]
fn a_link_that_is_not_filled_is_not_named() {
    let found = tune(&["--delay", "100ms"], "--window 64K --read-ahead 64K", "1M");
    assert_eq!(found.matches("\"link\":null").count(), 2, "{found}");
    assert!(!found.contains("\"limited_by\":\"link"), "{found}");
}
