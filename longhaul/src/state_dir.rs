//! Where this machine keeps what a command must remember after its end.

use std::ffi::OsString;
use std::path::PathBuf;

/// Names another directory, as tests and those without a home need.
pub const OVERRIDE: &str = "LONGHAUL_STATE_DIR";

/// The directory, which may not exist yet: `/var/lib/longhaul` of root, and `longhaul` in the state directory of
/// the XDG of anyone else. `None` for someone without a home.
#[must_use]
pub fn state_dir() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    if let Some(path) = variable(OVERRIDE) {
        return Some(path.into());
    }
    if rustix::process::geteuid().is_root() {
        return Some("/var/lib/longhaul".into());
    }
    let state = variable("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local/state")));
    state.map(|state| state.join("longhaul"))
}
