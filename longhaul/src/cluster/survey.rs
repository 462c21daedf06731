//! What would keep a gateway from its part in a cluster, before it is started. Nothing is changed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use proto::cluster::Record;
use rustix::fs::{Access, access};

use super::directory::Directory;
use super::store::RecordStore as _;
use crate::config::{ClusterOptions, Listen};
use crate::printable::Shown as _;

/// What there is to be said of an option of `[cluster]`.
pub struct Finding {
    /// The option.
    pub option: &'static str,
    /// What it is.
    pub why: String,
    /// Whether `serve` fails by it, or does something else than what is meant.
    pub is_mistake: bool,
}

impl Finding {
    const fn mistake(option: &'static str, why: String) -> Self {
        Self { option, why, is_mistake: true }
    }

    const fn remark(option: &'static str, why: String) -> Self {
        Self { option, why, is_mistake: false }
    }
}

/// All there is to be said of `options`, where the server listens on `listen` and has the directory `state`.
#[must_use]
pub fn survey(options: &ClusterOptions, listen: &[Listen], state: Option<&Path>) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(of_directory(options, state));
    findings.extend(options.fence.as_deref().and_then(of_fence));
    if options.peers.is_empty() {
        let why = "without `peers` clients are not told of the other gateways";
        findings.push(Finding::remark("peers", why.to_owned()));
    }
    let own = |peer: &&Listen| listen.iter().any(|listen| listen.at == peer.at);
    if options.peers.iter().any(|peer| own(&peer)) {
        let why = "this gateway itself is among its `peers`";
        findings.push(Finding::mistake("peers", why.to_owned()));
    }
    findings
}

fn of_directory(options: &ClusterOptions, state: Option<&Path>) -> Option<Finding> {
    const OPTION: &str = "directory";
    let path = &options.directory;
    let cannot = |why: &dyn std::fmt::Display| {
        Finding::mistake(
            OPTION,
            format!("cannot use the cluster directory {}: {why}", path.shown()),
        )
    };
    let same = |state: &Path| state.canonicalize().ok() == path.canonicalize().ok();
    if path.is_dir() && state.is_some_and(same) {
        return Some(cannot(&"it is `state`, which is this gateway's alone"));
    }
    let found = Directory::look(path).and_then(|directory| {
        access(path, Access::WRITE_OK | Access::EXEC_OK)?;
        directory.read()
    });
    match found {
        Err(why) => Some(cannot(&why)),
        Ok(Some(Record { lease, .. })) if lease != options.lease && !lease.is_zero() => {
            let why =
                format!("the record has a lease of {lease:?}: `lease` is the same at all gateways");
            Some(Finding::remark("lease", why))
        }
        Ok(_) => None,
    }
}

fn of_fence(program: &Path) -> Option<Finding> {
    let cannot = |why: String| {
        Finding::mistake("fence", format!("cannot run the fence {}: {why}", program.shown()))
    };
    match program.metadata() {
        Err(why) => Some(cannot(why.to_string())),
        Ok(found) if !found.is_file() || found.permissions().mode() & 0o111 == 0 => {
            Some(cannot("it is no program".to_owned()))
        }
        Ok(_) => None,
    }
}
