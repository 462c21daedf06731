//! How a server ends: with initiators that work, and with those that do not let go.

#[expect(dead_code, reason = "each test uses its part")]
mod common;
#[expect(dead_code, reason = "each test uses its part")]
#[path = "common/peer.rs"]
mod peer;

use std::fs;
use std::process::{Child, Command, Stdio};

use common::{LONGHAUL, Running};
use peer::Peer;
use proto::iscsi::header::Header;
use rustix::process::Signal;

const TARGET: &str = "iqn.2026-11.dev.longhaul:disk";

/// A server whose log is its output, and its portal.
fn serve(home: &std::path::Path, limits: &str) -> (Running, String) {
    let config = format!(
        "listen = [\"127.0.0.1:0\"]\n[volumes.disk]\nuri = \"file:disk.img\"\nsize = \"64M\"\n[limits]\n{limits}\n"
    );
    fs::write(home.join("longhaul.toml"), config).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "exec 2>&1\nexec \"$0\" serve --config longhaul.toml", LONGHAUL]);
    let server = Running::start(command.current_dir(home));
    let ready = server.line().unwrap();
    let portal = ready.split('/').nth(2).unwrap_or_else(|| panic!("{ready}")).to_owned();
    (server, portal)
}

fn wait_for(server: &Running, what: &str) {
    while !server.line().unwrap_or_else(|| panic!("nothing is said of: {what}")).contains(what) {}
}

/// Ended with the test, whatever becomes of that.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// libiscsi, with 32 writes in flight for longer than the test takes.
fn load(portal: &str) -> Load {
    let mut command = Command::new("qemu-img");
    command.args(["bench", "-f", "raw", "-w", "-c", "100000000", "-d", "32", "-s", "4096"]);
    command.args(["--pattern", "165", "-S", "4096", &format!("iscsi://{portal}/{TARGET}/0")]);
    Load(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// The server ends under the load of a foreign initiator, in its time, and what it wrote is whole.
#[test]
fn under_load() {
    let home = tempfile::tempdir().unwrap();
    let (server, portal) = serve(home.path(), "stop = \"500ms\"");
    let loads = [load(&portal), load(&portal)];
    for _ in &loads {
        wait_for(&server, "logged in");
    }
    // They do write.
    let image = home.path().join("disk.img");
    while !fs::read(&image).unwrap().contains(&165) {}
    assert!(server.stop().success(), "everything was flushed, nobody was left hanging");
    drop(loads);
    for block in fs::read(&image).unwrap().chunks(4096) {
        assert!(block.iter().all(|byte| *byte == block[0]), "a torn write");
    }
    // Nobody holds it any more.
    let (again, _) = serve(home.path(), "");
    assert!(again.stop().success());
}

/// A second signal does not wait for anyone, and the exit code tells.
#[test]
fn a_second_signal_ends_it_at_once() {
    let home = tempfile::tempdir().unwrap();
    let (server, portal) = serve(home.path(), "stop = \"24h\"");
    let mut peer = Peer::log_in(portal.parse().unwrap(), "iqn.2000-01.example:stays", 1, TARGET);
    server.signal(Signal::TERM);
    let asked = peer.receive().expect("it is asked to log out").header;
    assert!(matches!(asked, Header::AsyncMessage(_)), "{asked:?}");
    // Within a second it is taken for the same.
    server.signal_during(Signal::INT, |server| {
        wait_for(server, "ended by a second signal; what was not flushed may be lost");
    });
    assert_eq!(server.end().code(), Some(1));
}

/// Who sends such a signal does not mean the end of the process, or means one in its time.
#[test]
fn stray_signals_do_not_end_it_and_limits_of_its_time_end_it_as_it_should() {
    for last in [Signal::ALARM, Signal::XCPU] {
        let home = tempfile::tempdir().unwrap();
        let (server, portal) = serve(home.path(), "stop = \"24h\"");
        [Signal::USR1, Signal::USR2, Signal::XFSZ]
            .into_iter()
            .for_each(|stray| server.signal(stray));
        let mut peer = Peer::log_in(portal.parse().unwrap(), "iqn.2000-01.example:a", 1, TARGET);
        server.signal(last);
        let asked = peer.receive().expect("it is asked to log out").header;
        assert!(matches!(asked, Header::AsyncMessage(_)), "{asked:?}");
        drop(peer);
        assert!(server.end().success(), "{last:?}");
    }
}
