//! What is served by HyperSCSI, to whom.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use host::link;
use proto::client::ClientId;
use proto::hyperscsi::transport_id::initiator_port;
use proto::hyperscsi::{Aead, Algorithm, ConnectionId, Level, PathStats, Server as Machine};
use proto::identity::PublicKey;
use proto::iscsi::login::policy::{Policy, UnitName};
use proto::scsi::ports::{AccessState, PORT, Port};
use proto::scsi::rights::Rights;

use crate::ciphers::Ciphers;
use crate::compression::Compression;
use crate::front::iscsi;
use crate::net::hyperscsi_link::shown;
use crate::net::shared_level::SharedLevel;
use crate::sealing;
use crate::target::lun::{Administrator, TargetDevice};
use crate::target::memory_quota::Pools;
use crate::target::node::{self, Authorization};
use crate::target::sessions::{ClientQuota, Identity, SessionEntry, SessionMessage, Sessions};
use crate::target::status::{LinkLosses, PathStatus, Status};

/// Sessions that one client has at a time.
const SESSIONS_MAX: usize = 128;

/// What takes the place of what was served.
#[derive(Clone)]
pub struct Offering {
    /// The targets.
    pub devices: Vec<Arc<TargetDevice>>,
    /// Who may use them.
    pub policy: Policy,
    /// The names of volumes, and the units that they are.
    pub volumes: BTreeMap<String, UnitName>,
    /// How units are accessed by the ports that are named.
    pub access: BTreeMap<u16, AccessState>,
    /// The lowest level of volumes of which nothing else is demanded.
    pub least: Level,
}

/// What is known of a session beside its identity.
#[derive(Clone, Debug)]
pub(super) struct SessionInfo {
    /// Where its client is.
    pub(super) peer: String,
    /// The level of its units.
    pub(super) level: Arc<SharedLevel>,
    /// How its connection is.
    pub(super) connection: Arc<ConnectionState>,
}

/// How a connection is: written by the server's task now and then, read by anyone.
#[derive(Debug, Default)]
pub(super) struct ConnectionState(Mutex<Noted>);

#[derive(Clone, Debug, Default)]
struct Noted {
    paths: Vec<PathStatus>,
    compression: Option<Algorithm>,
    cipher: Option<Aead>,
    has_checksum: bool,
}

impl ConnectionState {
    pub(super) fn note(&self, machine: &Machine, id: ConnectionId) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.paths.clear();
        noted.paths.extend(machine.paths(id).iter().map(path_status));
        (noted.compression, noted.cipher) = (machine.compression(id), machine.cipher(id));
        noted.has_checksum = machine.has_checksum(id);
    }

    fn noted(&self) -> Noted {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn path_status(stats: &PathStats) -> PathStatus {
    let PathStats { path, state, endpoint, rtt, .. } = *stats;
    let PathStats { window, in_flight, packet, sent, lost, marked, forged, epoch, .. } = *stats;
    let rtt_us = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
    let (state, address) = (state.name().to_owned(), shown(endpoint));
    PathStatus {
        path,
        state,
        address,
        rtt_us,
        window,
        in_flight,
        packet,
        sent,
        lost,
        marked,
        forged,
        epoch,
    }
}

/// A session, as the node knows it.
pub(super) type Entry = SessionEntry<SessionInfo>;

/// Who is let in.
#[derive(Clone)]
pub(super) struct Admittance {
    policy: Policy,
    volumes: BTreeMap<String, UnitName>,
    least: Level,
}

impl Admittance {
    /// The lowest level at which a client may use the units of a target.
    fn least(&self, client: PublicKey, target: &str) -> Level {
        let demanded = self.policy.demanded_of_key(client, target);
        demanded.map_or(self.least, |protection| sealing::level(protection).max(self.least))
    }
}

impl Authorization for Admittance {
    type Session = SessionInfo;

    fn rights(&self, session: &Entry) -> Option<Rights> {
        let Identity { client, target, .. } = &session.identity;
        let ClientId::Key(key) = client else { return None };
        self.policy.rights_of_key(*key, target.as_deref()?)
    }

    fn administers(&self, session: &Entry) -> bool {
        match &session.identity.client {
            // Below that level whoever is on the path could read what is asked for, or write it himself.
            ClientId::Key(key) if session.transport.level.get() == Level::Encrypt => {
                self.policy.key_administers(*key)
            }
            _ => false,
        }
    }

    /// A session gets the level that is demanded of it by a re-authentication, and ends if its client takes none.
    fn keeps(&self, _before: &Self, session: &Entry) -> bool {
        let Identity { client, target, .. } = &session.identity;
        matches!(client, ClientId::Key(_)) && target.is_some()
    }
}

/// A target node, as it is reached by HyperSCSI.
pub struct Node {
    pub(super) target: node::Node<Admittance>,
    pub(super) pools: Pools,
    /// What was lost at this end of each link.
    links: Mutex<BTreeMap<String, LinkLosses>>,
}

impl Node {
    /// A node that serves `offering` within `held` bytes of answers of all sessions, beside `other`, by which the same
    /// is served.
    #[must_use]
    pub fn new(offering: Offering, ports: Vec<Port>, held: u64, other: &iscsi::Node) -> Self {
        let Offering { devices, policy, volumes, access: _, least } = offering;
        let target = node::Node::new(devices, Admittance { policy, volumes, least });
        let mut target = target.beside(other.sessions());
        target.set_ports(ports);
        Self { target, pools: Pools::new(held, held), links: Mutex::default() }
    }

    /// The same node, whose clients may administer the server, where they are listed so.
    #[must_use]
    pub fn with_administrator(mut self, administrator: Arc<dyn Administrator>) -> Self {
        self.target.set_administrator(administrator);
        self
    }

    /// Puts `offering` in place of what was served. Sessions that it still permits are not disturbed; the others are
    /// ended. Returns how many these are, and a future that ends when none of their commands runs any more. Sessions of which
    /// another level is demanded go over to it while their commands run.
    pub fn replace(&self, offering: Offering) -> (usize, impl Future<Output = ()> + use<>) {
        let Offering { devices, policy, volumes, access, least } = offering;
        let admittance = Admittance { policy, volumes, least };
        let (ended, gone) = self.target.replace(devices, &access.into(), admittance);
        self.sessions().all().iter().for_each(|session| session.send(SessionMessage::Demanded));
        (ended, gone)
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> Status {
        let mut status = Status::of(&self.target, |session| session.peer.clone());
        for session in &mut status.sessions {
            let entry = self.target.sessions.find(session.number);
            let Some(entry) = entry else { continue };
            let Noted { paths, compression, cipher, has_checksum } =
                entry.transport.connection.noted();
            session.paths = paths;
            session.compression = compression.map(|agreed| Compression::name_of(agreed).to_owned());
            session.checksum = has_checksum.then(|| "crc32c".to_owned());
            session.protection = Some(entry.transport.level.get().name().to_owned());
            session.cipher = cipher.map(|agreed| Ciphers::name_of(agreed).to_owned());
        }
        status.links = self.links.lock().unwrap_or_else(PoisonError::into_inner).clone();
        status
    }

    /// Notes what was lost at this end of a link.
    pub(super) fn note_losses(&self, link: String, losses: link::Losses) {
        let link::Losses { refused, overrun, cut } = losses;
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.insert(link, LinkLosses { refused, overrun, cut });
    }

    /// The volumes that a client may use, by target.
    pub(super) fn volumes(&self, client: PublicKey) -> BTreeMap<String, Vec<(String, u16)>> {
        let serving = self.target.serving();
        let Admittance { policy, volumes, .. } = &serving.authorization;
        let mut found = BTreeMap::<_, Vec<_>>::new();
        for (name, UnitName { target, lun }) in volumes {
            let rights = policy.rights_of_key(client, target.as_str());
            if rights.is_some_and(|rights| rights.with(*lun).is_some()) {
                found.entry(target.as_str().to_owned()).or_default().push((name.clone(), *lun));
            }
        }
        found
    }

    /// The lowest level at which a client may use the units of a target.
    pub(super) fn least(&self, client: PublicKey, target: &str) -> Level {
        self.target.serving().authorization.least(client, target)
    }

    /// The level that a session is to have, whose client takes `least`. One that administers the server keeps what it has: below
    /// it, it may not.
    pub(super) fn level(&self, session: &Entry, least: Level) -> Level {
        let now = session.transport.level.get();
        let Identity { client: ClientId::Key(client), target: Some(target), .. } =
            &session.identity
        else {
            return now;
        };
        let serving = self.target.serving();
        let demanded = serving.authorization.least(*client, target).max(least);
        if serving.authorization.administers(session) { demanded.max(now) } else { demanded }
    }

    /// Whether a client may do nothing for now.
    pub(super) fn pauses(&self, client: PublicKey) -> bool {
        self.target.serving().authorization.policy.pauses_key(client)
    }

    pub(super) fn sessions(&self) -> &Sessions<SessionInfo> {
        &self.target.sessions
    }

    pub(super) const fn quota(&self) -> ClientQuota {
        ClientQuota { sessions: SESSIONS_MAX, connections: SESSIONS_MAX }
    }
}

/// The I_T nexus of a client with a target.
pub(super) fn identity(client: PublicKey, port: u64, target: &str) -> Identity {
    let name = client.to_string();
    Identity {
        initiator: initiator_port(&name, port),
        name: name.into(),
        client: ClientId::Key(client),
        target: Some(target.into()),
        target_port: PORT,
    }
}
