//! The server under a service manager, which the test plays: it hands sockets over and hears what it is told
//! (sd_listen_fds(3), sd_notify(3)).

mod common;

use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{LONGHAUL, PATIENCE, Running, run};
use rustix::process::Signal;

/// The manager: a directory for its service, and where that reports.
struct Manager {
    home: tempfile::TempDir,
    reports: UnixDatagram,
}

/// Passes on what the test put at standard input and error, as the first descriptors after those.
const HAND_OVER: &str = "exec 3<&0 4<&2 </dev/null 2>&1\nLISTEN_PID=$$ exec \"$0\" \"$@\"";

/// The same, but they are meant for somebody else.
const MISADDRESS: &str = "exec 3<&0 4<&2 </dev/null 2>&1\nLISTEN_PID=1 exec \"$0\" \"$@\"";

/// Passes on nothing.
const START: &str = "exec 2>&1\nexec \"$0\" \"$@\"";

impl Manager {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let reports = UnixDatagram::bind(home.path().join("notify")).unwrap();
        reports.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { home, reports }
    }

    fn path(&self) -> &Path {
        self.home.path()
    }

    fn config(&self, text: &str) {
        fs::write(self.path().join("longhaul.toml"), text).unwrap();
    }

    /// The service of the configuration, as yet not started.
    fn service(&self, how: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", how, LONGHAUL, "serve", "--config", "longhaul.toml"]);
        command.current_dir(self.path()).env("NOTIFY_SOCKET", self.path().join("notify"));
        command.stdin(Stdio::null());
        command
    }

    /// The service with sockets, one or two, and their names.
    fn service_with(
        &self,
        first: impl Into<OwnedFd>,
        second: Option<OwnedFd>,
        names: &str,
    ) -> Command {
        let mut command = self.service(HAND_OVER);
        command.env("LISTEN_FDS", if second.is_some() { "2" } else { "1" });
        command.env("LISTEN_FDNAMES", names).stdin(first.into());
        if let Some(second) = second {
            command.stderr(second);
        }
        command
    }

    /// The lines of the next report; signs of life are none.
    fn report(&self) -> Vec<String> {
        loop {
            let lines = self.report_or_sign();
            if lines != ["WATCHDOG=1"] {
                return lines;
            }
        }
    }

    fn report_or_sign(&self) -> Vec<String> {
        let mut report = [0; 4096];
        let length = self.reports.recv(&mut report).expect("it reports in time");
        std::str::from_utf8(&report[..length]).unwrap().lines().map(str::to_owned).collect()
    }

    /// Waits until the service can be used; what it serves.
    fn ready(&self) -> String {
        let report = self.report();
        assert_eq!(report.first().map(String::as_str), Some("READY=1"), "{report:?}");
        report.iter().find_map(|line| line.strip_prefix("STATUS=")).unwrap().to_owned()
    }
}

fn portal() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// The URI of the first volume.
fn uri(service: &Running) -> String {
    let line = service.line().unwrap();
    line.strip_prefix("ready ").unwrap_or_else(|| panic!("{line}")).to_owned()
}

fn longhaul(dir: &Path, args: &[&str]) -> String {
    let (printed, status) = run(Command::new(LONGHAUL).args(args).current_dir(dir));
    assert!(status.success(), "{args:?}: {printed}");
    printed
}

const VOLUME: &str = "[volumes.a]\nuri = \"memory:1M\"\n";
const LISTEN: &str = "listen = [\"127.0.0.1:0\"]\n";

#[test]
fn it_is_told_of_every_turn() {
    let manager = Manager::new();
    manager.config(&format!("{LISTEN}{VOLUME}"));
    let service = Running::start_as_it_is(&mut manager.service(START));
    assert!(manager.ready().starts_with("Serving 1 volume at 127.0.0.1:"));

    let mut last = 0;
    for (text, status) in [
        (format!("{LISTEN}{VOLUME}[volumes.b]\nuri = \"memory:1M\"\n"), "Serving 2 volumes"),
        ("nonsense".to_owned(), "the last reload failed"),
        (format!("{LISTEN}{VOLUME}"), "Serving 1 volume"),
    ] {
        manager.config(&text);
        service.signal(Signal::HUP);
        let [reloading, since] = &manager.report()[..] else { panic!("two lines") };
        assert_eq!(reloading, "RELOADING=1");
        let since = since.strip_prefix("MONOTONIC_USEC=").unwrap().parse::<u64>().unwrap();
        assert!(since > last, "a later time than that of the reload before");
        last = since;
        let told = manager.ready();
        assert!(told.contains(status), "{told}");
    }

    assert!(service.stop().success());
    assert_eq!(manager.report()[0], "STOPPING=1");
}

/// Whoever connects before the service runs is served by it, and neither socket is closed with it.
#[test]
fn passed_socket_is_served() {
    let manager = Manager::new();
    manager.config(VOLUME);
    let (portal, control) = (portal(), UnixListener::bind(manager.path().join("control")).unwrap());
    let address = portal.local_addr().unwrap();
    let mut early = TcpStream::connect(address).unwrap();
    let handed = portal.try_clone().unwrap();
    let mut service = manager.service_with(handed, Some(control.into()), "iscsi:control");
    let service = Running::start_as_it_is(&mut service);
    let uri = uri(&service);
    assert!(uri.starts_with(&format!("iscsi://{address}/")), "{uri}");
    assert_eq!(manager.ready(), format!("Serving 1 volume at {address}"));

    assert!(longhaul(manager.path(), &["info", &uri]).contains("1M (1048576 bytes)"));
    let status = longhaul(manager.path(), &["status", "--control", "control"]);
    assert!(status.contains("iqn.2026-11.dev.longhaul:a"), "{status}");
    assert!(service.stop().success());
    assert_eq!(early.read(&mut [0]).unwrap(), 0, "it was accepted, and closed at the end");
    assert!(manager.path().join("control").exists(), "it belongs to the manager");
    TcpStream::connect(address).unwrap();
}

#[test]
fn metrics_are_told_on_the_socket_of_that_name() {
    let manager = Manager::new();
    manager.config(VOLUME);
    let (portal, metrics) = (portal(), portal());
    let (at, told_at) = (portal.local_addr().unwrap(), metrics.local_addr().unwrap());
    let mut service = manager.service_with(portal, Some(metrics.into()), "disks:metrics");
    let service = Running::start_as_it_is(&mut service);
    assert_eq!(manager.ready(), format!("Serving 1 volume at {at}"));
    let url = format!("http://{told_at}/metrics");
    let (told, status) = run(Command::new("curl").args(["-sS", &url]));
    assert!(status.success() && told.contains("\nlonghaul_sessions{"), "{told}");
    assert!(service.stop().success());
}

/// A socket of the unit that the file does not know, and one that is open to everyone.
#[test]
fn passed_socket_must_be_allowed() {
    let manager = Manager::new();
    let refused = |portal: &str, why: &str| {
        let portal = TcpListener::bind(portal).unwrap();
        let mut service = manager.service_with(portal, None, "iscsi");
        let service = Running::start_as_it_is(&mut service);
        let said = service.line().unwrap();
        assert!(said.starts_with("longhaul: ") && said.contains(why), "{said}");
        assert_eq!(service.end().code(), Some(2));
    };
    manager.config(&format!("{LISTEN}{VOLUME}"));
    refused("127.0.0.1:0", "is none that `listen` names");
    manager.config(VOLUME);
    refused("0.0.0.0:0", "refusing to listen on 0.0.0.0:");
    // The address that the file names is the one that was handed over, and demands what the file says.
    let portal = portal();
    let at = portal.local_addr().unwrap();
    manager.config(&format!("listen = [\"{at}\"]\n{VOLUME}"));
    let service =
        Running::start_as_it_is(&mut manager.service_with(portal, None, "whatever it is called"));
    assert_eq!(manager.ready(), format!("Serving 1 volume at {at}"));
    assert!(service.stop().success());
}

#[test]
fn socket_for_another_process_is_left_alone() {
    let manager = Manager::new();
    manager.config(&format!("{LISTEN}{VOLUME}"));
    let portal = portal();
    let at = portal.local_addr().unwrap();
    let mut command = manager.service(MISADDRESS);
    command.env("LISTEN_FDS", "1").stdin(OwnedFd::from(portal));
    let service = Running::start_as_it_is(&mut command);
    assert!(!uri(&service).contains(&at.to_string()));
    assert!(service.stop().success());
}

#[test]
fn signs_of_life_come_when_they_are_asked_for_and_only_then() {
    let manager = Manager::new();
    manager.config(&format!("{LISTEN}{VOLUME}"));
    let watched = |micros: &str, pid: Option<&str>| {
        let mut command = manager.service(START);
        command.env("WATCHDOG_USEC", micros);
        pid.map(|pid| command.env("WATCHDOG_PID", pid));
        Running::start_as_it_is(&mut command)
    };
    let service = watched("100000", None);
    let mut signs = 0;
    while signs < 5 {
        signs += usize::from(manager.report_or_sign() == ["WATCHDOG=1"]);
    }
    assert!(service.stop().success());
    while manager.report()[0] != "STOPPING=1" {}

    for (micros, pid) in [("100000", Some("1")), ("0", None)] {
        let service = watched(micros, pid);
        manager.ready();
        service.signal(Signal::HUP);
        assert_eq!(manager.report_or_sign()[0], "RELOADING=1");
        assert_eq!(manager.report_or_sign()[0], "READY=1");
        assert!(service.stop().success());
        assert_eq!(manager.report_or_sign()[0], "STOPPING=1");
    }
}
