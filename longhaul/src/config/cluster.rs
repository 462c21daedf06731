//! `[cluster]`: other gateways serve the same volumes.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::cluster::GatewayName;

use super::listen::listens;
use super::{Config, ConfigDuration, Listen, ListenAt};
use crate::option_table::{
    ADDRESS, DIRECTORY, DURATION, FILE, NAME, Place, Standard, Table, options, path, text,
};
use crate::uri::Location;

/// A shorter lease ends with every pause of a busy machine.
const LEASE: RangeInclusive<ConfigDuration> = millis(500)..=millis(300_000);

const fn millis(count: u64) -> ConfigDuration {
    ConfigDuration::new(Duration::from_millis(count))
}

options! {
    /// What the table says.
    pub(super) struct ClusterRows in pub(super) CLUSTER {
        gateway: Option<GatewayName> = text => {
            kind: NAME,
            default: Standard::Required,
            place: Place::File,
            help: "Name of this gateway; each has another",
            manual: "",
        }
        directory: Option<PathBuf> = path => {
            kind: DIRECTORY,
            default: Standard::Required,
            place: Place::File,
            help: "Directory that all gateways reach, for the lease and the reservations",
            manual: "Not that of `state`",
        }
        peers: Vec<Listen> = listens => {
            kind: ADDRESS.listed(),
            default: Standard::Words("none"),
            place: Place::File,
            help: "Portals of the other gateways, which clients are told too",
            manual: "An entry may be a table with `address` and `group`, as in `listen`",
        }
        lease: Option<ConfigDuration> = text, within LEASE => {
            kind: DURATION,
            default: Standard::Value("5s"),
            place: Place::File,
            help: "Silence of the active gateway after which another takes over",
            manual: "The same for all",
        }
        fence: Option<PathBuf> = path => {
            kind: FILE,
            default: Standard::Words("the lock on the file of the volume"),
            place: Place::File,
            help: "Program that ends the gateway whose name it gets, before another takes over",
            manual: "Exit status 0 says that it is done",
        }
    }
}

/// How this gateway takes part in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// What it is called.
    pub gateway: GatewayName,
    /// Where the record is.
    pub directory: PathBuf,
    /// Where the others listen.
    pub peers: Vec<Listen>,
    /// How long its lease lasts.
    pub lease: Duration,
    /// What sees to it that another gateway touches nothing any more.
    pub fence: Option<PathBuf>,
}

/// `None` if what must be said is not.
pub(super) fn cluster(mut table: Table<'_>, base: &Path) -> Option<ClusterOptions> {
    let said = table.read(CLUSTER, base);
    if said.peers.iter().any(|peer| !matches!(peer.at, ListenAt::Iscsi(_))) {
        table.note_at("peers", "gateways of a cluster are reached by iSCSI alone");
    }
    table.finish();
    let ClusterRows { gateway, directory, peers, lease, fence } = said;
    let lease = lease.map_or(Duration::ZERO, ConfigDuration::into_inner);
    Some(ClusterOptions { gateway: gateway?, directory: directory?, peers, lease, fence })
}

/// What of a configuration cannot be together with a cluster.
pub(super) fn cluster_conflicts(config: &Config) -> Vec<String> {
    let mut conflicts = Vec::new();
    for volume in &config.volumes {
        let name = &volume.name;
        if !matches!(volume.uri.location(), Location::File(_)) || volume.unlock.is_some() {
            conflicts.push(format!(
                "volume {name}: a cluster serves files (uri = \"file:PATH\"), and their bytes as they are"
            ));
        }
        if volume.appearance.removable {
            conflicts.push(format!("volume {name}: in a cluster no medium can be ejected"));
        }
    }
    if config.listen.iter().any(|listen| !matches!(listen.at, ListenAt::Iscsi(_))) {
        conflicts.push("gateways of a cluster are reached by iSCSI alone".to_owned());
    }
    if config.listen.iter().any(|listen| listen.access.is_some()) {
        conflicts.push("the lease decides how a group is accessed: leave out `access`".to_owned());
    }
    conflicts
}
