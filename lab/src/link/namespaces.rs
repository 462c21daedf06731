//! The two machines at the ends: network namespaces, made and removed with iproute2.
//!
//! ```text
//! near 10.77.0.1  lab0 ── TUN ── emulator ── TUN ── lab0  10.77.0.2 far
//! ```

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Error;

/// The two ends, the near one first.
pub(crate) const ENDS: [(&str, &str); 2] = [("near", NEAR), ("far", FAR)];
/// The address of the near end, where clients are.
pub(crate) const NEAR: &str = "10.77.0.1";
/// The address of the far end, where servers are.
pub(crate) const FAR: &str = "10.77.0.2";

/// The device's name inside.
pub(super) const DEVICE: &str = "lab0";
/// What Ethernet carries.
const MTU: &str = "1500";
/// Packets the kernel keeps for the emulator while that is not running; they are no part of the
/// emulated queue, so this is ample.
const BACKLOG: &str = "5000";
/// What the ends are set to. Buffers may grow to four times 1 Gbit/s for 128 ms, because the kernel
/// counts its overhead in them too; no connection learns from the one before; and nothing but what is
/// measured is on the link.
const SETTINGS: [&str; 4] = [
    "net.ipv4.tcp_rmem=4096 131072 67108864",
    "net.ipv4.tcp_wmem=4096 65536 67108864",
    "net.ipv4.tcp_no_metrics_save=1",
    "net.ipv6.conf.all.disable_ipv6=1",
];

/// The congestion control that Linux comes with, whatever this machine was set to.
const CONGESTION: &str = "cubic";
/// Those that the kernel has, and those among which a namespace may choose.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// How long a process may take to end when asked to, before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Both namespaces; dropping them ends what runs inside and removes them.
#[derive(Debug)]
pub(crate) struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    /// Makes both, and has a [`DEVICE`] put into each, which are joined.
    pub(crate) fn create(
        join: impl FnOnce(&[String; 2]) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        remove_stale()?;
        let congestion = usual_congestion();
        // Made before anything exists, so that a failure half-way removes what there is.
        let made =
            Self { names: ENDS.map(|(end, _)| format!("{}{end}", prefix(std::process::id()))) };
        for name in &made.names {
            ip(&["netns", "add", name])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        join(&made.names)?;
        for (name, (_, address)) in made.names.iter().zip(ENDS) {
            ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", DEVICE])?;
            for setting in SETTINGS.into_iter().chain(congestion.as_deref()) {
                ip(&["netns", "exec", name, "sysctl", "-qw", setting])?;
            }
            ip(&["-n", name, "link", "set", DEVICE, "mtu", MTU, "txqueuelen", BACKLOG, "up"])?;
        }
        Ok(made)
    }

    /// What they are called, the near one first.
    pub(crate) const fn names(&self) -> &[String; 2] {
        &self.names
    }

    /// A command in the near namespace that can reach the far one: both are named in its environment.
    pub(crate) fn command(&self, program: &str) -> Command {
        let [near, far] = &self.names;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", near, program]);
        command.env("LAB_NEAR", near).env("LAB_FAR", far);
        command.env("LAB_NEAR_ADDRESS", NEAR).env("LAB_FAR_ADDRESS", FAR);
        command
    }

    /// A command in the far namespace.
    pub(crate) fn far_command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[1], program]);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            // What could not be made is not there to be removed.
            if let Err(why) = remove_if_there(name) {
                eprintln!("lab: {why}");
            }
        }
    }
}

/// The setting that makes TCP what it is on most machines; none if this one's kernel does not have that.
fn usual_congestion() -> Option<String> {
    let has = |list: &str| list.split_whitespace().any(|name| name == CONGESTION);
    let allow = || {
        let allowed = fs::read_to_string(ALLOWED)?;
        // What the machine itself uses stays as it is.
        if has(&allowed) {
            Ok(())
        } else {
            fs::write(ALLOWED, format!("{} {CONGESTION}", allowed.trim()))
        }
    };
    if !fs::read_to_string(AVAILABLE).is_ok_and(|available| has(&available)) || allow().is_err() {
        eprintln!("lab: this kernel has no {CONGESTION}; TCP is as this machine is set");
        return None;
    }
    Some(format!("net.ipv4.tcp_congestion_control={CONGESTION}"))
}

/// The start of the names of the namespaces that a process made.
fn prefix(pid: u32) -> String {
    format!("lab-{pid}-")
}

/// Removes namespaces whose makers were killed before they could.
fn remove_stale() -> Result<(), Error> {
    for name in ip(&["netns", "list"])?.lines().filter_map(|line| line.split(' ').next()) {
        let maker = name.strip_prefix("lab-").and_then(|rest| rest.split('-').next());
        let alive = |pid: &str| Path::new("/proc").join(pid).exists();
        if maker.is_some_and(|pid| pid.parse::<u32>().is_ok() && !alive(pid)) {
            eprintln!("lab: removing {name}, which was left behind");
            // Another that is being made at this time may find and remove it as well.
            remove_if_there(name)?;
        }
    }
    Ok(())
}

/// Removes a namespace; that it is not there, or not any more, is no failure.
fn remove_if_there(name: &str) -> Result<(), Error> {
    let is_there = || Path::new("/run/netns").join(name).exists();
    remove(name).or_else(|why| if is_there() { Err(why) } else { Ok(()) })
}

fn remove(name: &str) -> Result<(), Error> {
    let start = Instant::now();
    let mut signal = Signal::TERM;
    loop {
        let inside = pids(name)?;
        if inside.is_empty() {
            break;
        }
        for pid in inside {
            // It may have ended by itself meanwhile.
            let _ = kill_process(pid, signal);
        }
        if start.elapsed() > PATIENCE {
            signal = Signal::KILL;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ip(&["netns", "delete", name]).map(drop)
}

fn pids(name: &str) -> Result<Vec<Pid>, Error> {
    let listed = ip(&["netns", "pids", name])?;
    Ok(listed.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect())
}

pub(super) fn ip(arguments: &[&str]) -> Result<String, Error> {
    tool("ip", arguments)
}

/// Runs a program of iproute2 and gives back what it prints.
pub(super) fn tool(program: &'static str, arguments: &[&str]) -> Result<String, Error> {
    let failed = |why: String| Error::Tool { program, arguments: arguments.join(" "), why };
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|why| failed(why.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
