//! Servers of drives and changers, and what the program says of them.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::common::{LONGHAUL, Running, run};

pub(crate) const TARGET: &str = "iqn.2026-11.dev.longhaul:";

/// A server of these volumes in `home`, which is controlled by `control.sock` there and listens at `listen`; and its portal.
pub(crate) fn serve_at(home: &Path, listen: &str, volumes: &[&str]) -> (Running, SocketAddr) {
    let mut command = Command::new(LONGHAUL);
    command.args(["serve", "--listen", listen, "--control", "control.sock"]);
    for volume in volumes {
        command.args(["--volume", volume]);
    }
    let server = Running::start(command.current_dir(home));
    let ready: Vec<_> = volumes.iter().map(|_| server.line().unwrap()).collect();
    let uri = ready[0].strip_prefix("ready iscsi://").unwrap_or_else(|| panic!("{ready:?}"));
    (server, uri.split('/').next().unwrap().parse().unwrap())
}

/// What the program says to these words, and whether it was done. `out` of an earlier `tape read` gives way to the next.
pub(crate) fn longhaul(home: &Path, words: &[&str]) -> (String, bool) {
    if words.starts_with(&["tape", "read"]) {
        let _ = fs::remove_file(home.join("out"));
    }
    let (said, status) = run(Command::new(LONGHAUL).args(words).current_dir(home));
    (said, status.success())
}

/// The same of what must be done.
pub(crate) fn done(home: &Path, words: &[&str]) -> String {
    let (said, done) = longhaul(home, words);
    assert!(done, "{words:?}: {said}");
    said
}

/// The same of what must not.
pub(crate) fn refused(home: &Path, words: &[&str]) -> String {
    let (said, done) = longhaul(home, words);
    assert!(!done, "{words:?}: {said}");
    said
}
