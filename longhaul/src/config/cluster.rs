//! `[cluster]`: other gateways serve the same volumes.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use host::rbd::{ImageSpec, PoolSpec};
use proto::cluster::{GatewayName, GroupName};

use super::listen::listens;
use super::{Config, ConfigDuration, Listen, ListenAt, Served};
use crate::option_table::{
    ADDRESS, COUNT, DIRECTORY, DURATION, Entry, FILE, Kind, NAME, Place, RawValue, Standard, Table,
    ValueError, each, number, options, path, text,
};
use crate::printable::Shown as _;
use crate::uri::rbd::{parse_pool, pool_resolved_in, write_access};
use crate::uri::{Location, Uri};

/// A shorter lease ends with every pause of a busy machine.
const LEASE: RangeInclusive<ConfigDuration> = millis(500)..=millis(300_000);

const fn millis(count: u64) -> ConfigDuration {
    ConfigDuration::new(Duration::from_millis(count))
}

/// The weights of a gateway that is to be active for a group.
const WEIGHT: RangeInclusive<u16> = 1..=1000;
const DEFAULT_WEIGHT: u16 = 100;

const POOL: Kind =
    Kind::text("rados:POOL", "`rados:POOL[/NAMESPACE][?id=USER&conf=FILE&keyring=FILE]`");

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
            default: Standard::Words("or `state`"),
            place: Place::File,
            help: "Directory that all gateways reach, for the lease and the reservations of files",
            manual: "Not the server's own `state`",
        }
        state: Option<PoolAddress> = text => {
            kind: POOL,
            default: Standard::Words("or `directory`"),
            place: Place::File,
            help: "Ceph pool that all gateways reach, for the lease and the reservations of images",
            manual: "`rados:POOL[/NAMESPACE]`, and `?id=`, `conf=` and `keyring=` as behind an image. A namespace for each cluster",
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
            default: Standard::Words("the lock on the file, or Ceph's blocklist"),
            place: Place::File,
            help: "Program that ends the gateway whose name it gets, before another takes over",
            manual: "Exit status 0 says that it is done",
        }
        prefers: Vec<Preferred> = preferred => {
            kind: NAME.listed(),
            default: Standard::Words("none"),
            place: Place::File,
            help: "Groups of volumes that this gateway is to serve rather than one with less weight",
            manual: "An entry may be a table with `group` and `weight`. See [groups](#groups-of-volumes)",
        }
    }
}

options! {
    /// An entry of `prefers` that is a table.
    pub(super) struct PreferredRows in pub(super) PREFERRED {
        group: Option<GroupName> = text => {
            kind: NAME,
            default: Standard::Required,
            place: Place::File,
            help: "The group",
            manual: "",
        }
        weight: Option<u16> = number, within WEIGHT => {
            kind: COUNT,
            default: Standard::Value("100"),
            place: Place::File,
            help: "Weight of this gateway for the group; without an entry it is 0",
            manual: "Of the gateways that run the one with the most is to serve the group",
        }
    }
}

/// A group that a gateway is to be active for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Preferred {
    group: GroupName,
    weight: u16,
}

/// A list of groups and tables.
fn preferred(given: &RawValue<'_>) -> Result<Vec<Preferred>, ValueError> {
    match given {
        RawValue::File(item, _) => each(item, |entry| match entry {
            Entry::Text(text) => Some(Preferred { group: text.parse()?, weight: DEFAULT_WEIGHT }),
            Entry::Table(mut table) => {
                let said = table.read(PREFERRED, Path::new(""));
                table.finish();
                let weight = said.weight.unwrap_or(DEFAULT_WEIGHT);
                Some(Preferred { group: said.group?, weight })
            }
        }),
        RawValue::Word(_) => {
            text(given).map(|group| vec![Preferred { group, weight: DEFAULT_WEIGHT }])
        }
    }
}

/// How this gateway takes part in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterOptions {
    /// What it is called.
    pub gateway: GatewayName,
    /// Where the record is.
    pub place: RecordPlace,
    /// Where the others listen.
    pub peers: Vec<Listen>,
    /// How long its lease lasts.
    pub lease: Duration,
    /// What sees to it that another gateway touches nothing any more.
    pub fence: Option<PathBuf>,
    /// The groups that it is to be active for rather than a gateway with less weight.
    pub prefers: BTreeMap<GroupName, u16>,
}

impl ClusterOptions {
    /// How much it is to be active for this group.
    #[must_use]
    pub fn weight_for(&self, group: &GroupName) -> u16 {
        self.prefers.get(group).copied().unwrap_or(0)
    }
}

/// Where the record of a cluster is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordPlace {
    /// In files of a directory.
    Directory(PathBuf),
    /// In an object of a pool.
    Rados(PoolSpec),
}

impl RecordPlace {
    /// The option that names it.
    #[must_use]
    pub const fn option(&self) -> &'static str {
        match self {
            Self::Directory(_) => "directory",
            Self::Rados(_) => "state",
        }
    }
}

impl fmt::Display for RecordPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.shown()),
            Self::Rados(pool) => {
                write!(f, "rados:{pool}")?;
                write_access(f, &pool.access)
            }
        }
    }
}

/// `rados:POOL[/NAMESPACE][?id=USER&conf=FILE&keyring=FILE]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PoolAddress(PoolSpec);

/// A text that names no pool.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the state of a cluster is in {}", POOL.written)]
pub(super) struct NotPool;

impl FromStr for PoolAddress {
    type Err = NotPool;

    fn from_str(text: &str) -> Result<Self, NotPool> {
        let pool = text.strip_prefix("rados:").and_then(parse_pool);
        pool.map(Self).ok_or(NotPool)
    }
}

/// `None` if what must be said is not.
pub(super) fn cluster(mut table: Table<'_>, base: &Path) -> Option<ClusterOptions> {
    let said = table.read(CLUSTER, base);
    if said.peers.iter().any(|peer| !matches!(peer.at, ListenAt::Iscsi(_))) {
        table.note_at("peers", "gateways of a cluster are reached by iSCSI alone");
    }
    let ClusterRows { gateway, directory, state, peers, lease, fence, prefers } = said;
    let place = match (directory, state) {
        (Some(directory), None) => Some(RecordPlace::Directory(directory)),
        (None, Some(PoolAddress(pool))) => Some(RecordPlace::Rados(pool_resolved_in(pool, base))),
        (Some(_), Some(_)) => {
            table.note_at("state", "a cluster has `directory` or `state`, not both");
            None
        }
        // What cannot be read is told of where it stands.
        (None, None) if table.has("state") || table.has("directory") => None,
        (None, None) => {
            table.note("a cluster of files needs `directory`, one of Ceph images `state`");
            None
        }
    };
    let mut weights = BTreeMap::new();
    for Preferred { group, weight } in prefers {
        if weights.insert(group.clone(), weight).is_some() {
            table.note_at("prefers", format!("`prefers` names the group {group} twice"));
        }
    }
    table.finish();
    let lease = lease.map_or(Duration::ZERO, ConfigDuration::into_inner);
    Some(ClusterOptions { gateway: gateway?, place: place?, peers, lease, fence, prefers: weights })
}

/// What of a configuration cannot be together with a cluster.
pub(super) fn cluster_conflicts(config: &Config) -> Vec<String> {
    let mut conflicts = Vec::new();
    for volume in &config.volumes {
        let name = &volume.name;
        if let Some(why) = unsuited(&volume.uri, config) {
            conflicts.push(format!("volume {name}: {why}"));
        }
        if volume.unlock.is_some() {
            conflicts
                .push(format!("volume {name}: a cluster serves the bytes of a volume as they are"));
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

/// Where something stands that contradicts the groups of volumes, as [`Config::line`] knows it, and what it is.
pub(super) type GroupConflict<'a> = (&'static str, &'a str, String);

/// What of a configuration cannot be together with its groups of volumes.
pub(super) fn group_conflicts(config: &Config) -> Vec<GroupConflict<'_>> {
    let volumes = config.volumes.iter().enumerate();
    let mut conflicts: Vec<GroupConflict<'_>> = volumes
        .filter_map(|(at, volume)| {
            let why = match config.cluster {
                Some(_) => target_of_two_groups(volume, &config.volumes[..at]),
                None => without_cluster(volume),
            };
            Some(("volumes", volume.name.as_str(), why?))
        })
        .collect();
    let groups = config.groups();
    let prefers = config.cluster.iter().flat_map(|cluster| cluster.prefers.keys());
    for group in prefers.filter(|group| !groups.contains(group)) {
        let there: Vec<_> = groups.iter().map(ToString::to_string).collect();
        let there = there.join(", ");
        let why = format!(
            "prefers: no volume is in the group {group}; the groups of the volumes are {there}"
        );
        conflicts.push(("cluster", "prefers", why));
    }
    conflicts
}

fn target_of_two_groups(volume: &Served, others: &[Served]) -> Option<String> {
    let is_apart = |other: &&Served| other.target == volume.target && other.group != volume.group;
    let other = others.iter().find(is_apart)?;
    let (name, group, target) = (&volume.name, &volume.group, &volume.target);
    Some(format!(
        "volume {name} is in the group {group}, and volume {}, another unit of {target}, in {}: a session with the target would end \
         with either, so give both one `group`, or one of them another `target`",
        other.name, other.group
    ))
}

fn without_cluster(volume: &Served) -> Option<String> {
    let name = &volume.name;
    let is_said = volume.given.volume.group.as_ref().is_some_and(|group| !group.is_default());
    is_said
        .then(|| format!("volume {name}: only volumes of a cluster have a `group`: leave it out"))
}

/// Why a cluster with such a record does not serve this volume.
fn unsuited(uri: &Uri, config: &Config) -> Option<&'static str> {
    match (&config.cluster.as_ref()?.place, uri.location()) {
        (RecordPlace::Directory(_), Location::File(_)) => None,
        (RecordPlace::Rados(pool), Location::Image(image)) => unsuited_image(image, pool),
        (RecordPlace::Directory(_), _) => {
            Some("a cluster with `directory` serves files (uri = \"file:PATH\")")
        }
        (RecordPlace::Rados(_), _) => {
            Some("a cluster with `state` serves images of Ceph (uri = \"rbd:POOL/IMAGE\")")
        }
    }
}

fn unsuited_image(image: &ImageSpec, pool: &PoolSpec) -> Option<&'static str> {
    if image.snapshot.is_some() {
        return Some("a cluster serves no snapshot");
    }
    let is_same = image.pool.access == pool.access;
    (!is_same).then_some("it is opened as `state` is: give both the same ?id=, conf= and keyring=")
}
