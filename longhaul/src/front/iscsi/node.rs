//! What a target node serves, to whom, and within which limits.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::join_all;
use proto::client::ClientId;
use proto::iscsi::keys::Offer;
use proto::iscsi::login::policy::{Access, Policy, Rights};
use proto::iscsi::login::target::Config;
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::Sealing;
use proto::iscsi::target::{Budget, TargetRecord, WINDOW};
use proto::iscsi::text::TEXT_MAX;
use proto::scsi::ports::{AccessState, PORT, Port, Ports};
use serde::{Deserialize, Serialize};

use super::registry::{ClientQuota, Identity, Letter, Registry, Seat};
use crate::log_limiter::LogLimiter;
use crate::target::lun::{Face, TRANSFER_MAX, TargetDevice};
use crate::target::memory_quota::{Pool, Pools};
use crate::target::meter::Activity;

/// How often what a session may send at first fits into [`Limits::unsolicited`]: a burst right after the login
/// must not use that up. From the first answer on, the window follows what is left of it.
const BURSTS_AT_LOGIN: u64 = 2;

/// Unsolicited data a session may hold whatever the others do: two first bursts, unless those are made larger.
const UNSOLICITED_SHARE: u64 = 512 << 10;

/// Other data a session may hold whatever the others do.
const HELD_SHARE: u64 = 256 << 10;

/// What one session may hold beyond that without waiting for those that hold more: a request as large as most
/// initiators make them.
const MODERATE: u64 = 1 << 20;

/// How much of that all sessions hold together.
const MODERATE_IN_ALL: u64 = 8 << 20;

/// The bounds of a node. Together they keep its memory below 64 MiB and 1 MiB for each session: what is held in
/// common, the shares, a receive buffer, and the program itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time, logged in or not; more are closed as they come.
    pub connections: usize,
    /// Connections at a time that have not logged in. When there are more, the one that has taken longest
    /// is closed: a flood of them does not keep out those who get on with it.
    pub logins: usize,
    /// How long a login may take.
    pub login: Duration,
    /// Sessions at a time of one client; where it proves nothing, of one initiator name. A client that has proven who
    /// it is has at most half of `connections`, too.
    pub sessions_per_initiator: usize,
    /// Connections of one session.
    pub connections_per_session: u16,
    /// Commands a session may have outstanding, 128 at most.
    pub commands: u32,
    /// The longest text of a login or a text request, over all its PDUs.
    pub text: usize,
    /// The largest data segment of a PDU that is taken (MaxRecvDataSegmentLength).
    pub data_segment: u32,
    /// What one write may send without being asked (FirstBurstLength).
    pub first_burst: u32,
    /// Bytes of unsolicited data that all sessions hold together, beyond 512 KiB for each. When they are
    /// used up, command windows narrow, and commands are refused with TASK SET FULL.
    pub unsolicited: u64,
    /// Bytes of solicited data, answers and unsent output that all sessions hold together, beyond 256 KiB
    /// for each, and 8 MiB of which each has at most one. When they are used up, requests wait. At least
    /// the 32 MiB of one request.
    pub held: u64,
    /// How much of that one session may hold. At least the 32 MiB of one request.
    pub held_by_session: u64,
    /// After how long without a sign of life an initiator is pinged.
    pub ping_after: Duration,
    /// How long after the ping its connection is given up; and how long output may wait without any of it
    /// being taken.
    pub ping_patience: Duration,
    /// How long a session looks for the next request of a brisk initiator before it sleeps: latency for
    /// processor time. Zero never does.
    pub awake: Duration,
    /// How long initiators have to log out when the node stops.
    pub stop: Duration,
    /// Commands that take this long are logged.
    pub slow: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 512,
            logins: 64,
            login: Duration::from_secs(15),
            sessions_per_initiator: 128,
            connections_per_session: 4,
            commands: WINDOW,
            text: TEXT_MAX,
            data_segment: 1 << 20,
            first_burst: 256 << 10,
            unsolicited: 16 << 20,
            held: TRANSFER_MAX as u64,
            held_by_session: TRANSFER_MAX.into(),
            ping_after: Duration::from_secs(15),
            ping_patience: Duration::from_secs(30),
            awake: Duration::from_micros(50),
            stop: Duration::from_secs(2),
            slow: Duration::from_secs(5),
        }
    }
}

impl Limits {
    fn window_at_login(&self) -> u32 {
        let bursts = self.unsolicited / BURSTS_AT_LOGIN / u64::from(self.first_burst.max(1));
        u32::try_from(bursts).unwrap_or(u32::MAX).clamp(1, self.commands.max(1))
    }

    fn within(&self, offer: Offer) -> Offer {
        let (max_recv_data_segment, first_burst) = (self.data_segment, self.first_burst);
        let max_connections = self.connections_per_session.max(1);
        Offer { max_recv_data_segment, first_burst, max_connections, ..offer }
    }

    pub(super) const fn client_quota(&self) -> ClientQuota {
        let connections = self.connections.div_ceil(2);
        ClientQuota { sessions: self.sessions_per_initiator, connections }
    }

    fn unsolicited(&self) -> Arc<Budget> {
        Arc::new(Budget::new(self.unsolicited, UNSOLICITED_SHARE))
    }

    /// A request that no session may ever hold would wait for ever.
    fn pools(&self) -> Pools {
        let request = TRANSFER_MAX.into();
        let moderate = Pool::new(MODERATE_IN_ALL, MODERATE);
        let large = Pool::new(self.held.max(request), self.held_by_session.max(request));
        Pools { share: HELD_SHARE, by_size: [moderate, large] }
    }
}

/// A target node: its targets, and the sessions that use them.
pub struct Node {
    /// Looked at by logins, never by a command: a session keeps what it has got.
    serving: RwLock<Arc<Serving>>,
    pub(super) registry: Registry,
    pub(super) log_limiter: Arc<LogLimiter>,
}

/// What is served, to whom.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) login: Arc<Config>,
    devices: BTreeMap<String, Arc<TargetDevice>>,
    /// The ports of every target: its portal groups (RFC 7143, 4.4.1).
    ports: Arc<[Port]>,
    /// The devices as they are seen by each of them.
    seen: BTreeMap<u16, BTreeMap<String, Arc<TargetDevice>>>,
    pub(super) limits: Limits,
    pub(super) unsolicited: Arc<Budget>,
    pub(super) pools: Pools,
}

impl Serving {
    /// Sessions to come share what the limits say. Those that are there keep what they have, so that a change
    /// of the budgets holds in full when they have gone.
    fn set_limits(&mut self, limits: Limits) {
        let old = std::mem::replace(&mut self.limits, limits);
        if old.unsolicited != limits.unsolicited {
            self.unsolicited = limits.unsolicited();
        }
        if (old.held, old.held_by_session) != (limits.held, limits.held_by_session) {
            self.pools = limits.pools();
        }
        let login = Arc::make_mut(&mut self.login);
        login.command_window = limits.window_at_login();
        login.text_max = limits.text;
        login.offer = limits.within(login.offer.clone());
    }

    /// Lets access by its ports be as `access` says; where it says nothing of a port that stays as it is.
    fn set_access(&mut self, access: &BTreeMap<u16, AccessState>) {
        let port = |port: &Port| match access.get(&port.id) {
            Some(access) if *access != port.access => {
                Port { access: *access, changed: true, ..*port }
            }
            _ => *port,
        };
        self.ports = self.ports.iter().map(port).collect();
    }

    /// Looks at the devices by each port.
    fn look(&mut self) {
        let seen = |ports: Ports| {
            let devices = self.devices.iter();
            let devices = devices.map(|(name, device)| (name.clone(), Arc::new(device.by(&ports))));
            (ports.own().id, devices.collect())
        };
        self.seen = Ports::views(&self.ports).map(seen).collect();
    }

    /// Whether a session that came in under `before` can go on: it could have come in now as it did, and each
    /// unit that it sees now and saw then is the same disk, with which it may do the same. Units may come
    /// and go.
    pub(super) fn keeps(&self, before: &Self, seat: &Seat) -> bool {
        let Identity { initiator, target, .. } = &seat.identity;
        let (policy, past) = (&self.login.policy, &before.login.policy);
        let Some(target) = target else {
            // A discovery session is told of the targets that it could see when it came.
            let visible = |policy: &Policy| policy.visible(initiator, &seat.proven);
            return policy.keeps_account(past, initiator, &seat.proven)
                && visible(policy) == visible(past);
        };
        let (Some(new), Some(old)) = (self.view(seat), before.view(seat)) else { return false };
        let same = |lun: u16| match (new.rights.with(lun), old.rights.with(lun)) {
            (Some(now), Some(then)) => now == then && new.device.shares(&old.device, lun),
            _ => true,
        };
        let both = new.device.luns().filter(|lun| old.device.luns().any(|other| other == *lun));
        policy.keeps(past, initiator, &seat.proven, target) && { both }.all(same)
    }

    /// What a session sees now, if that is not what it saw under `before`.
    fn changed_since(&self, before: &Self, seat: &Seat) -> Option<Arc<TargetDevice>> {
        let (new, old) = (self.view(seat)?, before.view(seat)?);
        let same = new.device.is_like(&old.device) && new.rights == old.rights;
        (!same).then(|| new.face())
    }

    /// The target of a session as that sees it; `None` in a discovery session, and where it may see nothing.
    pub(super) fn face(&self, seat: &Seat) -> Option<Arc<TargetDevice>> {
        self.view(seat).map(View::face)
    }

    fn view(&self, seat: &Seat) -> Option<View> {
        let Identity { initiator, target, port, .. } = &seat.identity;
        let target = target.as_ref()?;
        let device = Arc::clone(self.seen.get(port)?.get(target.as_str())?);
        let rights = self.login.policy.rights(initiator, &seat.proven, target)?;
        Some(View { device, rights })
    }
}

/// A target, and what someone may do with it.
struct View {
    device: Arc<TargetDevice>,
    rights: Rights,
}

impl View {
    fn face(self) -> Arc<TargetDevice> {
        if self.rights == Rights::All {
            return self.device;
        }
        Arc::new(self.device.seen(|lun| {
            self.rights.with(lun).map(|access| match access {
                Access::Write => Face::Whole,
                Access::Read => Face::Guarded,
            })
        }))
    }
}

/// How a node is, at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Who is there.
    pub sessions: Vec<SessionStatus>,
    /// What was done with each target since the node began, by those who are there and those who were.
    pub targets: BTreeMap<String, Activity>,
    /// The sizes of the units of each target in bytes, by their numbers.
    #[serde(default)]
    pub units: BTreeMap<String, BTreeMap<u16, u64>>,
    /// Why flushes of units fail that have lost what was written.
    #[serde(default)]
    pub losses: BTreeMap<String, BTreeMap<u16, String>>,
}

/// How a session is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its number.
    pub tsih: u16,
    /// What its initiator calls itself.
    pub initiator: String,
    /// Which client it has proven to be, by key or CHAP account; nothing where names are enough.
    #[serde(default)]
    pub client: Option<String>,
    /// Where its first connection comes from.
    pub address: SocketAddr,
    /// How many connections it has.
    pub connections: usize,
    /// What it uses; nothing if it only looks around.
    pub target: Option<String>,
    /// The portal group it came in by.
    #[serde(default)]
    pub portal_group: u16,
    /// How long it has been there.
    pub seconds: u64,
    /// What it has done.
    pub activity: Activity,
}

/// What takes the place of what was served.
pub struct Offering {
    /// The targets: of those that stay, disks may have come, gone and grown.
    pub devices: Vec<Arc<TargetDevice>>,
    /// Who may use them.
    pub policy: Policy,
    /// The bounds of the sessions to come.
    pub limits: Limits,
    /// How units are accessed by the ports that are named.
    pub access: BTreeMap<u16, AccessState>,
}

impl Node {
    /// A node that serves `devices`; those with a name no iSCSI node may have are not among them.
    /// `policy` says who may use which of their names.
    #[must_use]
    pub fn new(
        devices: impl IntoIterator<Item = impl Into<Arc<TargetDevice>>>,
        policy: impl FnOnce(Vec<IscsiName>) -> Policy,
    ) -> Self {
        let named = |device: Arc<TargetDevice>| Some((IscsiName::new(device.name()).ok()?, device));
        let devices = devices.into_iter().map(Into::into);
        let (names, devices): (Vec<_>, Vec<_>) = devices.filter_map(named).unzip();
        let by_name = names.iter().map(|name: &IscsiName| name.as_str().to_owned()).zip(devices);
        let devices = by_name.collect();
        let limits = Limits::default();
        let login = Config {
            policy: policy(names),
            offer: limits.within(Offer::long_haul()),
            sealing: None,
            command_window: limits.window_at_login(),
            text_max: limits.text,
        };
        let (unsolicited, pools) = (limits.unsolicited(), limits.pools());
        let ports = Arc::new([Port::new(PORT, AccessState::Optimized)]);
        let seen = BTreeMap::new();
        let login = Arc::new(login);
        let mut serving = Serving { login, devices, ports, seen, limits, unsolicited, pools };
        serving.look();
        Self {
            serving: RwLock::new(Arc::new(serving)),
            registry: Registry::default(),
            log_limiter: Arc::default(),
        }
    }

    /// The same node with other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.change(|serving| serving.set_limits(limits));
        self
    }

    /// The same node with other ports than the one, which is 1 and optimized.
    #[must_use]
    pub fn with_ports(mut self, ports: impl IntoIterator<Item = Port>) -> Self {
        self.change(|serving| {
            serving.ports = ports.into_iter().collect();
            serving.look();
        });
        self
    }

    /// The same node, which asks for other values at login, those of its limits among them.
    #[must_use]
    pub fn with_offer(mut self, offer: Offer) -> Self {
        self.change(|serving| Arc::make_mut(&mut serving.login).offer = offer);
        self
    }

    /// The same node, which seals sessions with those who want it.
    #[must_use]
    pub fn with_sealing(mut self, sealing: Sealing) -> Self {
        self.change(|serving| Arc::make_mut(&mut serving.login).sealing = Some(sealing));
        self
    }

    fn change(&mut self, change: impl FnOnce(&mut Serving)) {
        let serving = self.serving.get_mut().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(serving));
    }

    /// Puts `offering` in place of what was served. Sessions that could have come in to the same are left
    /// alone, but for being told which units of their target have come, gone or grown; the others are asked to
    /// log out. Returns how many, and what ends when all of that is done: of those who left no command runs then.
    pub fn replace(&self, offering: Offering) -> (usize, impl Future<Output = ()> + use<>) {
        let Offering { devices, policy, limits, access } = offering;
        let devices =
            devices.into_iter().map(|device| (device.name().to_owned(), device)).collect();
        let old = self.serving();
        let login = Arc::new(Config { policy, ..Config::clone(&old.login) });
        let mut new = Serving { login, devices, ..Serving::clone(&old) };
        new.set_limits(limits);
        new.set_access(&access);
        new.look();
        let new = Arc::new(new);
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&new);
        let (mut leaving, mut changing) = (Vec::new(), Vec::new());
        for seat in self.registry.all() {
            if !new.keeps(&old, &seat) {
                seat.post(Letter::Leave);
                leaving.push(seat);
            } else if let Some(device) = new.changed_since(&old, &seat) {
                changing.push(seat.change(device));
            }
        }
        let count = leaving.len();
        let gone = async move {
            join_all(changing).await;
            join_all(leaving.iter().map(|seat| seat.gone())).await;
        };
        (count, gone)
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> Status {
        let sessions: Vec<_> = self.registry.all().iter().map(|seat| session(seat)).collect();
        let mut targets = self.registry.past();
        let serving = self.serving();
        for name in serving.devices.keys() {
            targets.entry(name.clone()).or_default();
        }
        let units =
            serving.devices.iter().map(|(name, device)| (name.clone(), device.sizes().collect()));
        for SessionStatus { target, activity, .. } in &sessions {
            if let Some(target) = target {
                *targets.entry(target.clone()).or_default() += activity;
            }
        }
        let summed_up = |(target, activity): (_, Activity)| (target, activity.summed_up());
        let targets = targets.into_iter().map(summed_up).collect();
        Status { sessions, targets, units: units.collect(), losses: BTreeMap::new() }
    }

    pub(super) fn serving(&self) -> Arc<Serving> {
        Arc::clone(&self.serving.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether its targets have this port.
    pub(super) fn has_port(&self, id: u16) -> bool {
        self.serving().ports.iter().any(|port| port.id == id)
    }

    pub(super) fn limits(&self) -> Limits {
        self.serving().limits
    }
}

fn session(seat: &Seat) -> SessionStatus {
    let Identity { initiator, target, port, .. } = &seat.identity;
    SessionStatus {
        tsih: seat.tsih,
        initiator: initiator.as_str().to_owned(),
        client: (seat.proven != ClientId::Unauthenticated).then(|| seat.proven.to_string()),
        address: seat.peer,
        connections: seat.connections(),
        target: target.as_ref().map(|target| target.as_str().to_owned()),
        portal_group: *port,
        seconds: seat.since.elapsed().map_or(0, |since| since.as_secs()),
        activity: seat.meter.activity().summed_up(),
    }
}

/// What SendTargets says of a target that is reached by `portals`, each of a group, to an initiator that came
/// to `here`. A portal that listens on every address is the address the initiator knows it by.
pub(super) fn record(
    name: &IscsiName,
    portals: &[(SocketAddr, u16)],
    here: SocketAddr,
) -> TargetRecord {
    let reachable = |(portal, group): &(SocketAddr, u16)| {
        let ip = if portal.ip().is_unspecified() { here.ip() } else { portal.ip() };
        (SocketAddr::new(ip.to_canonical(), portal.port()), *group)
    };
    TargetRecord {
        name: name.as_str().to_owned(),
        portals: portals.iter().map(reachable).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_portal_is_told_as_the_address_the_initiator_came_to() {
        let name = IscsiName::new("iqn.2026-11.dev.longhaul:t").unwrap();
        let portals = [("[::]:3260".parse().unwrap(), 1), ("192.0.2.1:3261".parse().unwrap(), 2)];
        let here = "[::ffff:198.51.100.4]:3260".parse().unwrap();
        let told: Vec<_> = record(&name, &portals, here)
            .portals
            .iter()
            .map(|(portal, group)| format!("{portal},{group}"))
            .collect();
        assert_eq!(told, ["198.51.100.4:3260,1", "192.0.2.1:3261,2"]);
    }
}
