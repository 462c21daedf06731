//! Reads over emulated links, from a target that takes every loss for a full link. Needs root, and fails without it.

use std::path::Path;
use std::process::{Command, Output};

const LAB: &str = env!("CARGO_BIN_EXE_lab");

/// What the initiator says when it wants more connections.
const MORE: &str = "more, since the link loses";

/// A target and, before it, a relay that sends what is read by the kernel's Reno, as targets do that change nothing.
const TARGET: &str = "
    far() { ip netns exec $LAB_FAR \"$@\"; }
    far sysctl -qw net.ipv4.tcp_congestion_control=reno
    mkfifo $0/ready $0/log
    head -c $2 /dev/zero >$0/volume
    far $1 serve --volume disk=file:$0/volume --listen 127.0.0.1:3260 >$0/ready &
    far systemd-socket-activate -l $LAB_FAR_ADDRESS:3261 /lib/systemd/systemd-socket-proxyd 127.0.0.1:3260 2>$0/relay &
    read -r _ uri <$0/ready
    for _ in $(seq 600); do
        grep -q Listening $0/relay && break
        sleep 0.1
    done
    grep Listening $0/relay >&2 || { cat $0/relay >&2; exit 1; }
    uri=iscsi://$LAB_FAR_ADDRESS:3261/${uri#iscsi://*/}
    timeout --kill-after=10 120 $1 --log info copy $uri $0/copy 2>$0/log &
";

/// Runs a script after that, with all that the initiator says on descriptor 3. The volume has so many bytes.
fn read(link: &[&str], bytes: &str, script: &str) -> Output {
    let longhaul = Path::new(LAB).with_file_name("longhaul");
    assert!(longhaul.exists(), "this test needs {}", longhaul.display());
    let scratch = tempfile::tempdir().unwrap();
    let output = Command::new(LAB)
        .args(["link", "--delay", "8ms"])
        .args(link)
        .args(["--", "sh", "-c", &format!("{TARGET} exec 3<$0/log; {script}")])
        .args([scratch.path(), &longhaul])
        .arg(bytes)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!errors.contains("needs root"), "this test needs root: {errors}");
    output
}

#[test]
fn reads_that_losses_hold_back_get_more_connections() {
    let link = ["--rate", "100M", "--loss", "0.5%"];
    let output = read(&link, "192M", &format!("grep -m 1 '{MORE}' <&3"));
    assert!(output.status.success(), "there was one to the end: {output:?}");
}

/// The link is so slow that every processor keeps it full, and its queue takes eight round trips to become empty: however
/// late a process runs, there is one. It overflows all the same, as Reno goes on until it does.
#[test]
fn a_full_link_whose_queue_overflows_gets_no_more() {
    let output = read(&["--rate", "10M", "--queue", "160000"], "24M", "cat <&3");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("copied"), "{output:?}");
    let counted = String::from_utf8_lossy(&output.stderr);
    let words: Vec<_> = counted.split_whitespace().collect();
    let told = words.windows(2).filter(|pair| pair[1].starts_with("dropped"));
    let dropped: u64 = told.filter_map(|pair| pair[0].parse::<u64>().ok()).sum();
    assert!(dropped > 8, "it did not overflow: {counted}");
    assert!(!said.contains(MORE), "{said}");
}
