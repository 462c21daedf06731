//! What a target node serves, to whom, and within which limits.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto::iscsi::keys::Offer;
use proto::iscsi::login::policy::Policy;
use proto::iscsi::login::target::{Config, Established};
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::{Protection, Sealing};
use proto::iscsi::target::{Budget, Joining, Session, Setup, TargetRecord, WINDOW};
use proto::iscsi::text::TEXT_MAX;
use proto::scsi::ports::Port;
use proto::scsi::rights::Rights;
use proto::time::Time;

use super::enrolment::Enrolment;
use super::joining::{Entry, SessionInfo};
use crate::log_limiter::LogLimiter;
use crate::target;
use crate::target::lun::{Administrator, TRANSFER_MAX, TargetDevice};
use crate::target::memory_quota::Pools;
use crate::target::node::{Authorization, PortAccess};
use crate::target::sessions::{ClientQuota, EndReason, Sessions};
use crate::target::shares::ListedShare;
use crate::target::status::Status;

/// How often what a session may send at first fits into [`Limits::unsolicited`]: a burst right after the login
/// must not use that up. From the first answer on, the window follows what is left of it.
const BURSTS_AT_LOGIN: u64 = 2;

/// Unsolicited data a session may hold whatever the others do: a first burst, unless that is made larger.
const UNSOLICITED_SHARE: u64 = 512 << 10;

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
            first_burst: 512 << 10,
            unsolicited: 16 << 20,
            held: TRANSFER_MAX as u64,
            held_by_session: TRANSFER_MAX.into(),
            ping_after: Duration::from_secs(15),
            ping_patience: Duration::from_secs(30),
            awake: Duration::from_micros(200),
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

    fn pools(&self) -> Pools {
        Pools::new(self.held, self.held_by_session)
    }
}

/// A target node: its targets, and the sessions that use them.
pub struct Node {
    pub(super) target: target::node::Node<Admittance>,
    pub(super) log_limiter: Arc<LogLimiter>,
    pub(super) enrolment: Option<Arc<dyn Enrolment>>,
}

/// Who is let in, and what sessions get.
#[derive(Clone)]
pub(super) struct Admittance {
    pub(super) login: Arc<Config>,
    pub(super) limits: Limits,
    pub(super) unsolicited: Arc<Budget>,
    pub(super) pools: Pools,
}

impl Admittance {
    /// Sessions to come share the memory that the limits allow. Those that are there keep their quotas, so that a change
    /// holds in full when they have ended.
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
}

impl Admittance {
    /// The protocol machine of a session that has just logged in.
    pub(super) fn machine(&self, established: &Established) -> Session {
        let limits = &self.limits;
        let setup = Setup {
            discovery: established.target.is_none(),
            exp_cmd_sn: established.exp_cmd_sn,
            window: self.login.command_window,
            text_max: self.login.text_max,
            window_max: limits.commands,
            unsolicited: Arc::clone(&self.unsolicited),
            solicited: 0,
            ping_after: limits.ping_after,
            ping_patience: limits.ping_patience,
        };
        let Established { cid, stat_sn, ref parameters, .. } = *established;
        Session::new(Time::ZERO, &Joining { cid, stat_sn, parameters }, setup)
    }
}

impl Authorization for Admittance {
    type Session = SessionInfo;

    fn rights(&self, session: &Entry) -> Option<Rights> {
        let SessionInfo { initiator, target, .. } = &session.transport;
        self.login.policy.rights(initiator, &session.identity.client, target.as_ref()?)
    }

    fn administers(&self, session: &Entry) -> bool {
        let is_encrypted = session.transport.protection == Some(Protection::Encrypt);
        let (initiator, client) = (&session.transport.initiator, &session.identity.client);
        is_encrypted && self.login.policy.administers(initiator, client)
    }

    fn keeps(&self, before: &Self, session: &Entry) -> bool {
        let SessionInfo { initiator, target, .. } = &session.transport;
        let (policy, past, client) =
            (&self.login.policy, &before.login.policy, &session.identity.client);
        match target {
            Some(target) => policy.keeps(past, initiator, client, target),
            // A discovery session is told of the targets that it could see when it began.
            None => {
                policy.keeps_account(past, initiator, client)
                    && policy.visible(initiator, client) == past.visible(initiator, client)
            }
        }
    }
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
    pub access: PortAccess,
}

impl Node {
    /// A node that serves `devices`. Devices whose name no iSCSI node may have are left out.
    /// `policy` says who may use which of their names.
    #[must_use]
    pub fn new(
        devices: impl IntoIterator<Item = impl Into<Arc<TargetDevice>>>,
        policy: impl FnOnce(Vec<IscsiName>) -> Policy,
    ) -> Self {
        let named = |device: Arc<TargetDevice>| Some((IscsiName::new(device.name()).ok()?, device));
        let devices = devices.into_iter().map(Into::into);
        let (names, devices): (Vec<_>, Vec<_>) = devices.filter_map(named).unzip();
        let limits = Limits::default();
        let login = Config {
            policy: policy(names),
            offer: limits.within(Offer { stops_at_failure: true, ..Offer::for_long_links() }),
            sealing: None,
            command_window: limits.window_at_login(),
            text_max: limits.text,
        };
        let (unsolicited, pools) = (limits.unsolicited(), limits.pools());
        let admittance = Admittance { login: Arc::new(login), limits, unsolicited, pools };
        let target = target::node::Node::new(devices, admittance);
        Self { target, log_limiter: Arc::default(), enrolment: None }
    }

    /// The same node with other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.target.change_authorization(|admittance| admittance.set_limits(limits));
        self
    }

    /// The same node with other ports than the one, which is 1 and optimized.
    #[must_use]
    pub fn with_ports(mut self, ports: impl IntoIterator<Item = Port>) -> Self {
        self.target.set_ports(ports);
        self
    }

    /// The same node, which asks for other values at login, those of its limits among them.
    #[must_use]
    pub fn with_offer(self, offer: Offer) -> Self {
        self.with_login(|login| login.offer = offer)
    }

    /// The same node, which secures sessions with those who want it.
    #[must_use]
    pub fn with_sealing(self, sealing: Sealing) -> Self {
        self.with_login(|login| login.sealing = Some(sealing))
    }

    /// The same node, to which clients can come that were invited.
    #[must_use]
    pub fn with_enrolment(self, enrolment: Arc<dyn Enrolment>) -> Self {
        Self { enrolment: Some(enrolment), ..self }
    }

    /// The same node, whose clients may administer the server, where they are listed so.
    #[must_use]
    pub fn with_administrator(mut self, administrator: Arc<dyn Administrator>) -> Self {
        self.target.set_administrator(administrator);
        self
    }

    fn with_login(mut self, change: impl FnOnce(&mut Config)) -> Self {
        self.target.change_authorization(|admittance| change(Arc::make_mut(&mut admittance.login)));
        self
    }

    /// Puts `offering` in place of what was served. Sessions that the new offering still permits are not disturbed, but
    /// for being told which units of their target were added, removed or have grown; the others are asked to log out.
    /// Returns how many these are, and a future that ends when all of that is done: no command of those that left runs
    /// then.
    pub fn replace(&self, offering: Offering) -> (usize, impl Future<Output = ()> + use<>) {
        let Offering { devices, policy, limits, access } = offering;
        let mut admittance = self.target.serving().authorization.clone();
        Arc::make_mut(&mut admittance.login).policy = policy;
        admittance.set_limits(limits);
        self.target.replace(devices, &access, admittance)
    }

    /// What clients are given from now on, by HyperSCSI beside this too.
    pub fn set_shares(&self, listed: Vec<ListedShare>) {
        self.target.sessions.shares().set(listed);
    }

    /// Ends every session with one of these targets; returns when none of their tasks runs any more.
    pub fn end_sessions(
        &self,
        targets: &BTreeSet<&str>,
        why: EndReason,
    ) -> impl Future<Output = ()> + use<> {
        self.target.end_sessions(targets, why)
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> Status {
        Status::of(&self.target, |session| session.peer.to_string())
    }

    /// The sessions by this transport, beside which there may be others.
    pub(in crate::front) const fn sessions(&self) -> &Sessions<SessionInfo> {
        &self.target.sessions
    }

    /// Whether its targets have this port.
    pub(super) fn has_port(&self, id: u16) -> bool {
        self.target.has_port(id)
    }

    pub(super) fn limits(&self) -> Limits {
        self.target.serving().authorization.limits
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
