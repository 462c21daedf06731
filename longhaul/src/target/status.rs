//! How a target node is, at one moment.

use std::collections::BTreeMap;

use proto::client::ClientId;
use proto::cluster::GroupName;
use serde::{Deserialize, Serialize};

use super::meter::Activity;
use super::node::{Authorization, Node};
use super::sessions::{Identity, SessionEntry};
use super::shares::ShareStatus;

/// How a node is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The sessions there are.
    pub sessions: Vec<SessionStatus>,
    /// What was done with each target since the node began, by sessions that are there and sessions that have ended.
    pub targets: BTreeMap<String, Activity>,
    /// The sizes of the units of each target in bytes, by their numbers.
    #[serde(default)]
    pub units: BTreeMap<String, BTreeMap<u16, u64>>,
    /// What units are that are no disks, or are passed through.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, BTreeMap<u16, DeviceStatus>>,
    /// Why flushes of units fail that have lost writes.
    #[serde(default)]
    pub losses: BTreeMap<String, BTreeMap<u16, String>>,
    /// Where what is written to units goes whose files were moved.
    #[serde(default)]
    pub moved: BTreeMap<String, BTreeMap<u16, String>>,
    /// Why units have no room that should have some.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub full: BTreeMap<String, BTreeMap<u16, String>>,
    /// How units are whose volume lies on another target that cannot be reached.
    #[serde(default)]
    pub outages: BTreeMap<String, BTreeMap<u16, String>>,
    /// What was lost at this end of the links of transports that have their own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, LinkLosses>,
    /// What clients are given that have a weight or a rate, and how they wait for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shares: BTreeMap<String, ShareStatus>,
    /// Reservations that are to outlast a restart (APTPL) are kept; `None` if it is not known.
    #[serde(default)]
    pub keeps_reservations: Option<bool>,
    /// How a gateway of a cluster is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
}

/// What a unit is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its type, for people.
    #[serde(rename = "type")]
    pub kind: String,
    /// The URI of the device that it passes through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// How the connection to that is, if it is the unit of a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
}

/// What a gateway says of its cluster.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ClusterStatus {
    /// This gateway.
    pub gateway: String,
    /// How it is for the only group of volumes; `None` if there are several.
    #[serde(flatten)]
    only: Option<GroupStatus>,
    /// How it is for each of several groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<GroupStatus>,
}

/// What a gateway says of a group of volumes of its cluster.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct GroupStatus {
    /// The group.
    #[serde(default = "default_group")]
    pub group: String,
    /// What it is: `active`, `standby`, `taking over`, `leaving` or `lost`.
    pub role: String,
    /// For how many seconds.
    #[serde(default)]
    pub seconds: u64,
    /// Who holds the lease.
    pub holder: Option<String>,
    /// How often the lease has changed hands.
    pub epoch: u64,
    /// The weight of the gateway for it.
    #[serde(default)]
    pub weight: u16,
    /// For how many milliseconds it may answer from the media yet, if it is active.
    #[serde(default)]
    pub permitted_ms: u64,
    /// How often it has become active since it started.
    #[serde(default)]
    pub takeovers: u64,
    /// How often the record could not be read or written since then.
    #[serde(default)]
    pub record_failures: u64,
}

/// How a session is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its number: in iSCSI, the TSIH.
    #[serde(rename = "tsih")]
    pub number: u16,
    /// The name of its initiator.
    pub initiator: String,
    /// The client it belongs to, by key or CHAP account; `None` where names are enough.
    #[serde(default)]
    pub client: Option<String>,
    /// Where its first connection comes from.
    pub address: String,
    /// How many connections it has.
    pub connections: usize,
    /// The target it uses; `None` if it is for discovery.
    pub target: Option<String>,
    /// The relative target port identifier: in iSCSI, the portal group tag.
    #[serde(default, rename = "portal_group")]
    pub target_port: u16,
    /// How long it has been there.
    pub seconds: u64,
    /// What it has done.
    pub activity: Activity,
    /// How the ways to its client are, where the transport does more than TCP shows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathStatus>,
    /// How its data are compressed, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// The checksum of its data from end to end, if they have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// How what it moves is protected, where that is chosen for each volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<String>,
    /// The cipher of its packets, where ends choose one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
}

/// How a way to a client is: what the server sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Its number.
    pub path: u8,
    /// `active`, `failed` or `unproven`.
    pub state: String,
    /// Where the client is.
    pub address: String,
    /// The smoothed round trip, in microseconds.
    pub rtt_us: u64,
    /// Bytes that may be in flight.
    pub window: u64,
    /// Bytes that are.
    pub in_flight: u64,
    /// The longest packets that it is known to carry, in bytes, without headers of the network.
    pub packet: u16,
    /// Packets sent that have to be acknowledged.
    pub sent: u64,
    /// Those of them that were lost.
    pub lost: u64,
    /// Those of them that the client has received with ECN's mark of congestion.
    #[serde(default)]
    pub marked: u64,
    /// Packets that came with a wrong tag.
    pub forged: u64,
    /// How often the keys were changed.
    pub epoch: u64,
}

/// Packets that were lost at this end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkLosses {
    /// The system refused to send them.
    pub refused: u64,
    /// They came while there was no room for them.
    pub overrun: u64,
    /// They were longer than what a buffer holds.
    pub cut: u64,
}

fn default_group() -> String {
    GroupName::default().to_string()
}

impl ClusterStatus {
    /// Of this gateway.
    #[must_use]
    pub fn new(gateway: String, groups: Vec<GroupStatus>) -> Self {
        match <[GroupStatus; 1]>::try_from(groups) {
            Ok([only]) => Self { gateway, only: Some(only), groups: Vec::new() },
            Err(groups) => Self { gateway, only: None, groups },
        }
    }

    /// How it is for each group of volumes.
    #[must_use]
    pub fn groups(&self) -> &[GroupStatus] {
        if self.groups.is_empty() { self.only.as_slice() } else { &self.groups }
    }

    /// Each group in a line.
    pub fn lines(&self) -> impl Iterator<Item = (String, &GroupStatus)> {
        let groups = self.groups();
        groups.iter().map(move |status| {
            let GroupStatus { group, role, holder, epoch, .. } = status;
            let of = if groups.len() > 1 { format!(", group {group}") } else { String::new() };
            let holder = holder.as_deref().unwrap_or("nobody");
            (format!("{}{of}: {role}; the lease has {holder}, epoch {epoch}", self.gateway), status)
        })
    }
}

impl Status {
    /// Of a node now; `address` tells where a session comes from.
    #[must_use]
    pub fn of<A: Authorization>(node: &Node<A>, address: impl Fn(&A::Session) -> String) -> Self {
        let all = node.sessions.all();
        let sessions: Vec<_> =
            all.iter().map(|entry| session(entry, address(&entry.transport))).collect();
        let mut targets = node.sessions.past();
        let serving = node.serving();
        for name in serving.devices().keys() {
            targets.entry(name.clone()).or_default();
        }
        let units = serving.devices().iter();
        let units = units.map(|(name, device)| (name.clone(), device.sizes().collect()));
        for SessionStatus { target, activity, .. } in &sessions {
            if let Some(target) = target {
                *targets.entry(target.clone()).or_default() += activity;
            }
        }
        let summed_up = |(target, activity): (_, Activity)| (target, activity.summed_up());
        let targets = targets.into_iter().map(summed_up).collect();
        let shares = node.sessions.shares().status();
        Self { sessions, targets, units: units.collect(), shares, ..Self::default() }
    }

    /// Adds the sessions that use the same by another transport.
    pub fn add_beside(&mut self, beside: Self) {
        let Self { sessions, targets, links, .. } = beside;
        self.sessions.extend(sessions);
        self.links.extend(links);
        for (target, activity) in targets {
            *self.targets.entry(target).or_default() += &activity;
        }
    }
}

fn session<S>(entry: &SessionEntry<S>, address: String) -> SessionStatus {
    let Identity { name, client, target, target_port, .. } = &entry.identity;
    SessionStatus {
        number: entry.number,
        initiator: name.to_string(),
        client: (*client != ClientId::Unauthenticated).then(|| client.to_string()),
        address,
        connections: entry.connections(),
        target: target.as_ref().map(ToString::to_string),
        target_port: *target_port,
        seconds: entry.since.elapsed().map_or(0, |since| since.as_secs()),
        activity: entry.meter.activity().summed_up(),
        paths: Vec::new(),
        compression: None,
        checksum: None,
        protection: None,
        cipher: None,
    }
}
