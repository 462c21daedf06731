//! A unit of systemd that mounts a volume at boot.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::printable::Shown as _;
use crate::state;

/// Where an administrator's units are.
const UNITS: &str = "/etc/systemd/system";

/// Names another directory, as tests and images of other machines need.
const OVERRIDE: &str = "LONGHAUL_UNIT_DIR";

/// What shows that systemd runs (sd_booted(3)).
const RUNNING: &str = "/run/systemd/system";

/// Writes the unit of the volume that is remembered by `name`, and has it started at boot.
pub(super) fn write(name: &str, place: &Path) -> Outcome<PathBuf> {
    let other = std::env::var_os(OVERRIDE).map(PathBuf::from);
    let unit = format!("longhaul-mount-{name}.service");
    let path = other.clone().unwrap_or_else(|| UNITS.into()).join(&unit);
    let what = || format!("cannot write the unit {}", path.shown());
    let program = std::env::current_exe().or_fail(what)?;
    let text = text(name, place, &program).ok_or_else(|| {
        Failure::new(what()).because("a path has a character that no unit can hold")
    })?;
    state::replace(&path, text.as_bytes()).or_fail(what)?;
    if other.is_none() && Path::new(RUNNING).exists() {
        systemctl(&["daemon-reload"]);
        systemctl(&["enable", "--quiet", &unit]);
    } else {
        print_error(&format_args!("longhaul: `systemctl enable {unit}` has it mounted at boot"));
    }
    Ok(path)
}

/// It is mounted all the same if that fails.
fn systemctl(args: &[&str]) {
    let done = Command::new("systemctl").args(args).status();
    if !done.is_ok_and(|status| status.success()) {
        print_error(&format_args!(
            "longhaul: cannot run `systemctl {}`: run it by hand",
            args.join(" ")
        ));
    }
}

/// Ended before file systems are unmounted and before the network goes: systemd would otherwise kill the process that
/// answers for what is mounted. Who is killed with it must not have been asked to end: `mixed`.
fn text(name: &str, place: &Path, program: &Path) -> Option<String> {
    let program = quoted(program)?;
    let above = quoted(place.parent().unwrap_or(place))?;
    Some(format!(
        "[Unit]
Description=Longhaul: mount the volume {name}
Documentation=man:longhaul-mount(1)
DefaultDependencies=no
Requires=sysinit.target
Wants=network-online.target
After=sysinit.target network-online.target
Before=remote-fs.target umount.target
Conflicts=umount.target
RequiresMountsFor={above}
StartLimitIntervalSec=0

[Service]
Type=notify
# What a process left that was killed.
ExecStartPre=-{program} umount {name}
ExecStart={program} mount {name} --foreground
ExecReload={program} upgrade {name}
# The process that serves is started again by the one that keeps the mount.
OOMPolicy=continue
KillMode=mixed
Restart=on-failure
RestartSec=5s
TimeoutStartSec=infinity
# What was written has to be sent, and file systems in use are waited for.
TimeoutStopSec=10min

[Install]
WantedBy=remote-fs.target
"
    ))
}

/// A path as units take it (systemd.syntax(7), systemd.unit(5)); `None` for one that they cannot.
fn quoted(path: &Path) -> Option<String> {
    let text = path.to_str().filter(|text| !text.contains(char::is_control))?;
    let escaped =
        text.replace('\\', r"\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    Some(if text.contains([' ', '"', '\\', '\'', ';']) {
        format!("\"{escaped}\"")
    } else {
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_as_units_take_them() {
        let quoted = |path: &str| quoted(Path::new(path));
        assert_eq!(quoted("/usr/bin/longhaul").as_deref(), Some("/usr/bin/longhaul"));
        assert_eq!(quoted("/a b/100%").as_deref(), Some("\"/a b/100%%\""));
        assert_eq!(quoted("/a\nExecStart=x"), None);
    }
}
