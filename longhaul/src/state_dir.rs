//! Where this machine keeps what a command must remember after its end: replay logs, attachments, and which files were
//! served.

use std::path::PathBuf;

/// Names another directory, as tests and those without a home need. It is stronger than all else.
pub const OVERRIDE: &str = "LONGHAUL_STATE_DIR";

/// That of a service (systemd.exec(5), `StateDirectory=`); of several, separated by colons, the first.
const OF_SERVICE: &str = "STATE_DIRECTORY";

/// That of the system, for root.
const OF_SYSTEM: &str = "/var/lib/longhaul";

/// The directory, which may not exist yet: the one that is named, that of the service, that of the system for root, and
/// `longhaul` in the state directory of the XDG for anyone else. `None` for someone without a home.
#[must_use]
pub fn state_dir() -> Option<PathBuf> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(path) = variable(OVERRIDE) {
        return Some(path.into());
    }
    let absolute = |path: &str| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let service = variable(OF_SERVICE);
    if let Some(path) = service.and_then(|paths| absolute(paths.split(':').next()?)) {
        return Some(path);
    }
    if rustix::process::geteuid().is_root() {
        return Some(OF_SYSTEM.into());
    }
    let state = variable("XDG_STATE_HOME").and_then(|path| absolute(&path));
    let home = || Some(absolute(&variable("HOME")?)?.join(".local/state"));
    state.or_else(home).map(|state| state.join("longhaul"))
}
