//! This machine: what `mount` takes of it, and what the kernel allows TCP.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::thread::{CapabilitySet, capabilities};

use super::Finding;
use crate::front::nbd::KernelClient;
use crate::front::ublk;
use crate::net::tcp_tuning::congestion_control::{LOAD_HINT, withstands_loss};
use crate::size::Size;

/// A link of 1 Gbit/s with a round trip of 100 ms holds so many bytes: less makes it slower.
const LONG_LINK: u64 = 12_500_000;

/// Programs that `mount` has do something, what for, and their packages.
const HELPERS: [(&str, &str, &str); 5] = [
    ("mount", "`mount DIR`", "mount"),
    ("mkfs.ext4", "`mount --mkfs ext4`", "e2fsprogs"),
    ("mkfs.xfs", "`mount --mkfs xfs`", "xfsprogs"),
    ("mkfs.btrfs", "`mount --mkfs btrfs`", "btrfs-progs"),
    ("fusermount3", "`--fuse FILE` without root", "fuse3"),
];

pub(super) fn look() -> Vec<Finding> {
    let mut findings = vec![rights(), fuse(), loops()];
    findings.extend(memory());
    findings.extend(HELPERS.iter().filter_map(|helper| missing(*helper)));
    findings.push(block_devices());
    findings.push(kernel());
    findings.extend(tcp());
    findings
}

fn rights() -> Finding {
    match rustix::process::geteuid().is_root() {
        true => Finding::good("root: block devices can be made and mounted"),
        false => Finding::note(
            "this user is not root",
            "`mount DIR` and `mount --device` take root",
            "use sudo for these; `attach --nbd` and `attach --fuse` do without",
        ),
    }
}

fn fuse() -> Finding {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match opened {
        Ok(_) => Finding::good("/dev/fuse: a volume can be one file"),
        Err(why) => Finding::broken(
            format!("/dev/fuse cannot be opened: {why}"),
            "`mount` and `attach --fuse` take it",
            "`modprobe fuse`; a container needs this device. `attach --nbd` does without",
        ),
    }
}

fn loops() -> Finding {
    let control = Path::new("/dev/loop-control");
    if !rustix::process::geteuid().is_root() && control.exists() {
        return Finding::good("/dev/loop-control: root can make block devices");
    }
    match fs::OpenOptions::new().read(true).write(true).open(control) {
        Ok(_) => Finding::good("/dev/loop-control: a file can be a block device"),
        Err(why) => Finding::broken(
            format!("/dev/loop-control cannot be opened: {why}"),
            "`mount` makes a block device of a file",
            "`modprobe loop`; a container needs this device. `attach` does without",
        ),
    }
}

/// Whether root, who mounts, may have the process that serves a mount go on when memory is short (PR_SET_IO_FLUSHER).
fn memory() -> Option<Finding> {
    let has = capabilities(None).ok()?.effective.contains(CapabilitySet::SYS_RESOURCE);
    let matters = rustix::process::geteuid().is_root() && !has;
    matters.then(|| {
        Finding::note(
            "CAP_SYS_RESOURCE is missing, as in some containers",
            "where the processes of `mount` share a limit of memory with programs that write to the mount, all of them can stop for ever",
            "give the container this capability, or run those programs in a memory cgroup of their own",
        )
    })
}

fn missing((program, what, package): (&str, &str, &str)) -> Option<Finding> {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let is_there =
        std::env::split_paths(&places).chain(system).any(|dir| dir.join(program).exists());
    (!is_there).then(|| {
        let why = format!("{what} takes it");
        Finding::note(
            format!("{program} is not installed"),
            why,
            format!("install the package {package}"),
        )
    })
}

/// The ways to a block device, and which one is used.
fn block_devices() -> Finding {
    let nbd = match () {
        () if is_asked_of_kernel() => "the kernel's NBD is there: `mount --via nbd` uses it",
        () if KernelClient::is_loaded() => {
            "the kernel's NBD cannot be asked from this network namespace, so that `mount --via nbd` is refused"
        }
        () if module("nbd") => {
            "the kernel's NBD is not loaded: `mount --via nbd` loads and uses it"
        }
        () => "this kernel has no NBD, so that `mount --via nbd` is refused",
    };
    Finding {
        why: Some(
            "every kernel has both of these, and from Linux 6.9 on they outlive the process that serves them; with NBD a mount outlives it on older \
             kernels too, and waits up to 30 s then; with ublk it waits no longer than another process takes to begin, but only Linux 6.12 is \
             trusted with it, since several others crash at its first device"
                .to_owned(),
        ),
        ..Finding::good(format!("block devices are made by FUSE and loop; {nbd}; {}", ublk()))
    }
}

/// Whether there is ublk, and it is used. No device is made, and no module loaded, to find out.
fn ublk() -> &'static str {
    match ublk::is_trusted() {
        false => "ublk is not trusted on this kernel, so that `mount --via ublk` is refused",
        true if Path::new("/dev/ublk-control").exists() => {
            "ublk is there: `mount --via ublk` uses it"
        }
        true if module("ublk_drv") => "ublk is not loaded: `mount --via ublk` loads and uses it",
        true => "this kernel has no ublk, so that `mount --via ublk` is refused",
    }
}

/// Whether the kernel's NBD client is there; that it cannot be asked says the same as that it is not.
fn is_asked_of_kernel() -> bool {
    KernelClient::find().is_ok_and(|found| found.is_some())
}

/// Whether the kernel that runs has this module, loaded or not.
fn module(name: &str) -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let known = Path::new("/lib/modules").join(release);
    let lists = ["modules.dep", "modules.builtin"].map(|list| fs::read_to_string(known.join(list)));
    let file = format!("/{name}.ko");
    lists.iter().flatten().any(|list| list.contains(&file))
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    match version(&release) {
        Some(version) if version < (6, 9) => Finding::note(
            format!("Linux {release} cannot ask again what a process was asked that is killed"),
            "a mount whose process is killed fails then, but for one by `--via nbd`; `upgrade` works",
            "Linux 6.9 or newer, if mounts are to outlive that",
        ),
        _ => Finding::good(format!(
            "Linux {release}: a mount can outlive the process that serves it"
        )),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// What the kernel allows the buffers of a connection, against what a long link holds.
fn tcp() -> Vec<Finding> {
    let limit = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.split_whitespace().nth(2)?.parse::<u64>().ok()
    };
    let limits = ["tcp_rmem", "tcp_wmem"].into_iter().filter_map(|name| Some((name, limit(name)?)));
    let mut findings: Vec<_> = limits.map(|(name, most)| window(name, most)).collect();
    if let Some(is_available) = withstands_loss() {
        findings.push(match is_available {
            true => {
                Finding::good("TCP: the kernel has BBR, which keeps its rate when packets are lost")
            }
            false => Finding::note(
                "TCP: the kernel has no BBR loaded",
                "on long links that lose packets the others are much slower",
                LOAD_HINT,
            ),
        });
    }
    findings
}

fn window(name: &str, most: u64) -> Finding {
    // Half of it is for bookkeeping, by the kernel's `tcp_adv_win_scale`.
    let window = most / 2;
    let megabits = window * 8 / 100_000;
    let what = format!("TCP: net.ipv4.{name} allows windows of {}", Size(window));
    match window < LONG_LINK {
        false => Finding::good(what),
        true => Finding::note(
            what,
            format!(
                "one connection moves at most {megabits} Mbit/s over a round trip of 100 ms by that"
            ),
            format!(
                "on long fast links `sysctl -w net.ipv4.{name}='4096 131072 67108864'`, and several connections (`--connections`)"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn release_of_the_kernel_is_read_as_numbers() {
        assert_eq!(version("6.18.5-amd64"), Some((6, 18)));
        assert_eq!(version("6.1.0"), Some((6, 1)));
        assert_eq!(version("rolling"), None);
    }

    #[test]
    fn small_windows_are_told_with_the_rate_that_they_allow() {
        let small = window("tcp_rmem", 6 << 20);
        assert_eq!(small.state, State::Note);
        assert!(small.why.unwrap().contains("251 Mbit/s"));
        assert_eq!(window("tcp_rmem", 64 << 20).state, State::Good);
    }
}
