//! What would keep a gateway from its part in a cluster, before it is started. Nothing is changed.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use host::rbd::PoolSpec;
use proto::cluster::{GatewayName, GroupName, Record};
use rustix::fs::{Access, access};

use super::directory::Directory;
use super::membership::{Moved, Records as _, moved};
use super::rados::Rados;
use super::records::{Places, cannot_use};
use super::store::{RecordName, RecordStore as _};
use super::units;
use crate::config::{ClusterOptions, Config, Listen, RecordPlace};
use crate::explain::explain_ceph;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;

/// What to do where a unit is in another group elsewhere.
const END_ALL: &str = "to change it, end all gateways in order before one is started with it";

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

/// All there is to be said of the `[cluster]` of `config`, if it has one.
#[must_use]
pub fn survey(config: &Config) -> Vec<Finding> {
    let Some(options) = &config.cluster else { return Vec::new() };
    let (listen, state) = (&config.listen, config.state.as_deref());
    let mut findings = Vec::new();
    // What is wrong with one record is wrong with all, and may take its time to show.
    let found = config.groups().iter().find_map(|group| of_place(options, group, state));
    let is_usable = found.as_ref().is_none_or(|found| !found.is_mistake);
    findings.extend(found);
    if is_usable {
        findings.extend(of_membership(options, config));
    }
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

fn of_place(options: &ClusterOptions, group: &GroupName, state: Option<&Path>) -> Option<Finding> {
    let (option, place) = (options.place.option(), &options.place);
    let what = || cannot_use(place);
    let found = match place {
        RecordPlace::Directory(path) => {
            of_directory((path, group), state).map_err(|why| Failure::new(what()).because(why))
        }
        RecordPlace::Rados(pool) => of_pool((pool, group), &options.gateway, what),
    };
    match found {
        Err(why) => Some(Finding::mistake(option, why.to_string())),
        Ok(Some(Record { lease, .. })) if lease != options.lease && !lease.is_zero() => {
            let why =
                format!("the record has a lease of {lease:?}: `lease` is the same at all gateways");
            Some(Finding::remark("lease", why))
        }
        Ok(_) => None,
    }
}

/// A unit that is in another group elsewhere: whether `serve` fails by that shows when it starts.
fn of_membership(options: &ClusterOptions, config: &Config) -> Vec<Finding> {
    let option = options.place.option();
    let found = Places::open(options).and_then(|places| {
        let what = || cannot_use(&options.place);
        let found = places.membership().or_fail(what)?;
        moved(&places, found.as_ref(), &units(config))
    });
    match found {
        Err(why) => vec![Finding::mistake(option, why.to_string())],
        Ok(moved) => {
            let why = |moved: &Moved| format!("{}: {END_ALL}", moved.text());
            moved.iter().map(|moved| Finding::remark(option, why(moved))).collect()
        }
    }
}

fn of_directory(
    (path, group): (&Path, &GroupName),
    state: Option<&Path>,
) -> io::Result<Option<Record>> {
    let same = |state: &Path| state.canonicalize().ok() == path.canonicalize().ok();
    if path.is_dir() && state.is_some_and(same) {
        return Err(io::Error::other("it is `state`, which is this gateway's alone"));
    }
    let directory = Directory::look(path, RecordName::Group(group))?;
    access(path, Access::WRITE_OK | Access::EXEC_OK)?;
    directory.map_or(Ok(None), |directory| directory.read())
}

/// Whether this gateway may write there, and shut out another one, shows when it starts.
fn of_pool(
    (pool, group): (&PoolSpec, &GroupName),
    gateway: &GatewayName,
    what: impl Fn() -> String,
) -> Outcome<Option<Record>> {
    let found = Rados::connect(pool)
        .and_then(|client| Rados::open(&client, pool, gateway, RecordName::Group(group)))
        .and_then(|rados| rados.first_look());
    found.map_err(|why| explain_ceph(what(), &pool.access, why))
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
