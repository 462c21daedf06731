//! A tgtd of our own: its own control socket, its own port on loopback, gone when dropped.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use longhaul::store::iscsi::IscsiTarget;
use longhaul::uri::Host;
use proto::iscsi::name::IscsiName;

use crate::port::Port;

pub(crate) const NAME: &str = "iqn.2026-11.dev.longhaul:tgt";

/// How long it may take to start on a busy machine.
const START_MAX: Duration = Duration::from_secs(30);

pub(crate) struct Tgt {
    control: u16,
    port: Port,
    dir: tempfile::TempDir,
}

impl Tgt {
    /// A daemon with one target and, as LUN 1, a sparse thin disk of 64 MiB.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let backing = dir.path().join("disk");
        let disk = std::fs::File::create(&backing).expect("a file");
        disk.set_len(64 << 20).expect("a sparse file");
        let (control, port) = (control(), Port::reserve());
        let tgt = Self { control, port, dir };
        let started = Command::new("tgtd")
            .args(["--control-port", &control.to_string()])
            .args(["--iscsi", &format!("portal=127.0.0.1:{}", tgt.port.number)])
            .arg("--pid-file")
            .arg(tgt.pid_file())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("tgtd must be installed (Debian: tgt) and runnable");
        assert!(started.success(), "tgtd did not start: {started}");
        tgt.wait();
        tgt.admin(&["--mode", "target", "--op", "new", "--tid", "1", "-T", NAME]);
        let path = backing.to_str().expect("a plain path");
        tgt.admin(&[
            "--mode",
            "logicalunit",
            "--op",
            "new",
            "--tid",
            "1",
            "--lun",
            "1",
            "-b",
            path,
        ]);
        let lun = ["--mode", "logicalunit", "--op", "update", "--tid", "1", "--lun", "1"];
        tgt.admin(&[&lun[..], &["--params", "thin_provisioning=1"]].concat());
        tgt.admin(&["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"]);
        tgt
    }

    /// Has, as LUN 2, an optical drive with this disc in it.
    pub(crate) fn insert(&self, disc: &Path) {
        let path = disc.to_str().expect("a plain path");
        let new = ["--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "2"];
        self.admin(&[&new[..], &["--device-type", "cd", "-b", path]].concat());
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        (std::net::Ipv4Addr::LOCALHOST, self.port.number).into()
    }

    /// Sets a parameter of the target.
    pub(crate) fn set(&self, name: &str, value: &str) {
        let update = ["--mode", "target", "--op", "update", "--tid", "1"];
        self.admin(&[&update[..], &["--name", name, "--value", value]].concat());
    }

    /// Makes an account and demands it of whoever logs in or, `outgoing`, proves the target by it.
    pub(crate) fn account(&self, user: &str, password: &str, outgoing: bool) {
        let account = ["--mode", "account", "--user", user];
        self.admin(&[&account[..], &["--op", "new", "--password", password]].concat());
        let mut bind = [&account[..], &["--op", "bind", "--tid", "1"]].concat();
        if outgoing {
            bind.push("--outgoing");
        }
        self.admin(&bind);
    }

    pub(crate) fn portal(&self) -> Host {
        Host { name: "127.0.0.1".into(), port: self.port.number }
    }

    pub(crate) fn disk(&self) -> IscsiTarget {
        let name = IscsiName::new(NAME).expect("a name");
        IscsiTarget { portal: self.portal(), name, lun: 1 }
    }

    /// Kills it, connections and all.
    pub(crate) fn kill(&self) {
        let pid = std::fs::read_to_string(self.pid_file()).expect("the pid file");
        // tgtd passes over SIGTERM while it has sessions.
        let killed = run("kill", &["-9", pid.trim()]);
        assert!(killed.status.success(), "cannot end tgtd {pid}");
        std::fs::remove_file(self.pid_file()).expect("the pid file");
    }

    fn pid_file(&self) -> std::path::PathBuf {
        self.dir.path().join("pid")
    }

    fn admin(&self, args: &[&str]) {
        let output = self.ask(args);
        assert!(output.status.success(), "tgtadm {args:?}: {output:?}");
    }

    fn ask(&self, args: &[&str]) -> Output {
        let control = self.control.to_string();
        run("tgtadm", &[&["-C", control.as_str(), "--lld", "iscsi"], args].concat())
    }

    /// It goes into the background before it listens, and says nothing when it does: it is asked
    /// until it answers.
    fn wait(&self) {
        let begun = Instant::now();
        loop {
            let output = self.ask(&["--mode", "target", "--op", "show"]);
            if output.status.success() && self.pid_file().exists() {
                return;
            }
            assert!(begun.elapsed() < START_MAX, "tgtd does not answer: {output:?}");
        }
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        if self.pid_file().exists() {
            self.kill();
        }
        let socket = format!("/var/run/tgtd/socket.{}", self.control);
        for leftover in [socket.clone(), format!("{socket}.lock")] {
            let _ = std::fs::remove_file(Path::new(&leftover));
        }
    }
}

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program} must be installed: {error}"))
}

/// The number of a control socket that no other daemon has: tgtd takes it as a signed number of 16 bits.
fn control() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let candidate = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
    10_000 + (candidate % 20_000) as u16
}
