//! The sessions of a target node, whatever their transport protocol: which there are, and how one reaches another. A
//! login, a logout and task management use this; a command does not.
//!
//! Each transport has a table of its sessions. Those of one node are [beside](Sessions::beside) one another: what a
//! session does to the tasks of others it does to those of all transports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use futures_util::FutureExt as _;
use proto::client::ClientId;
use proto::scsi::reservation::NexusId;
use proto::scsi::transport::InitiatorPort;
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop::unconstrained;

use super::lun::{Administration, Administrator, Initiator, Nexus, TargetDevice, Waiting};
use super::meter::{Activity, Meter};
use super::shares::{Shares, Turns};

/// What a session is asked for by another, or by the node.
pub enum SessionMessage {
    /// End the tasks on a unit, or on all units, and tell when none of them runs any more.
    Clear(Option<u16>, oneshot::Sender<()>),
    /// End.
    End(EndReason),
    /// End unless it uses other units than these.
    ColdReset(Arc<BTreeSet<u16>>),
    /// Ask the initiator to log out.
    LogOut,
    /// Units of its target were added, removed or have grown: from now on it has this view of the target. Tell when
    /// the session uses it.
    Changed(Arc<TargetDevice>, oneshot::Sender<()>),
    /// Another protection may be demanded of it than it has.
    Demanded,
}

/// Why a session has to end that did not ask for it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum EndReason {
    /// A new session of the same I_T nexus takes its place.
    #[error("the initiator has logged in anew")]
    Reinstated,
    /// Another gateway of the cluster serves the volumes now.
    #[error("another gateway takes over")]
    TakenOver,
    /// Its client may do less now.
    #[error("its rights were taken away")]
    Revoked,
    /// Another session has reset the target.
    #[error("the target was reset")]
    Reset,
}

/// Between which ports a session is, and which client it belongs to. The names of ports are only claimed; the client is
/// proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The initiator port.
    pub initiator: InitiatorPort,
    /// The name of the initiator device.
    pub name: Arc<str>,
    /// The client.
    pub client: ClientId,
    /// `None` in a session for discovery.
    pub target: Option<Arc<str>>,
    /// The relative target port identifier.
    pub target_port: u16,
}

impl Identity {
    /// The I_T nexus under the name that outlives the session.
    fn nexus(&self) -> NexusId {
        let (initiator, client) = (self.initiator.clone(), self.client.clone());
        NexusId { initiator, target_port: self.target_port, client }
    }

    /// Whether both belong to the same client: the same proof or, where there is none, the same name.
    fn is_of_client_of(&self, other: &Self) -> bool {
        let named = self.client != ClientId::Unauthenticated || self.name == other.name;
        self.client == other.client && named
    }

    /// Whether a login as `self` ends the session `other` (SAM-5, I_T nexus loss; RFC 7143, 6.3.5). A session for
    /// discovery ends none. A session whose client has proven nothing is ended by anyone who uses its name, any other
    /// by its own client only.
    fn replaces(&self, other: &Self) -> bool {
        self.target.is_some()
            && (&self.initiator, &self.target, self.target_port)
                == (&other.initiator, &other.target, other.target_port)
            && (self.client == other.client || other.client == ClientId::Unauthenticated)
    }
}

/// What is known of a session; `S` is what its transport adds.
pub struct SessionEntry<S> {
    /// Its ports and its client.
    pub identity: Identity,
    /// Its number for the units.
    pub nexus: Nexus,
    /// Unique while the session lives, not zero, and not to be guessed from those of other sessions.
    pub number: u16,
    /// When it began.
    pub since: SystemTime,
    /// What it has done.
    pub meter: Meter,
    /// What its transport knows of it.
    pub transport: S,
    connections: AtomicUsize,
    /// How many more are about to join; changed while the table is locked.
    joining: AtomicUsize,
    id: NexusId,
    /// Its length is bounded by what the other sessions may have under way.
    messages: mpsc::UnboundedSender<SessionMessage>,
    /// What it has asked the server for, however its view of the target changes.
    administration: OnceLock<Arc<Administration>>,
    shares: Arc<Shares>,
}

impl<S: Send + Sync + 'static> Initiator for SessionEntry<S> {
    fn id(&self) -> &NexusId {
        &self.id
    }

    fn abort_tasks(&self, lun: u16) -> Waiting<()> {
        Box::pin(self.clear(Some(lun)))
    }
}

impl<S> SessionEntry<S> {
    /// By which it administers the server. Whether it may is for others to know.
    pub fn administration(&self, administrator: &Arc<dyn Administrator>) -> Arc<Administration> {
        let new = || {
            let (client, administrator) = (self.identity.client.clone(), Arc::clone(administrator));
            Arc::new(Administration::new(client, administrator))
        };
        Arc::clone(self.administration.get_or_init(new))
    }

    /// The turns of its commands beside those of other clients.
    pub fn turns(&self) -> Turns {
        let Identity { client, name, target, .. } = &self.identity;
        self.shares.join((client, name), self.nexus.0, target.as_ref())
    }

    /// Drops the message if the session has ended.
    pub fn send(&self, message: SessionMessage) {
        let _ = self.messages.send(message);
    }

    /// Ends the session's tasks on a unit, or on all. The message is sent at once; the future returns when none of
    /// them runs any more, or the session has ended.
    pub fn clear(&self, unit: Option<u16>) -> impl Future<Output = ()> + use<S> {
        let (done, cleared) = oneshot::channel();
        self.send(SessionMessage::Clear(unit, done));
        async { drop(cleared.await) }
    }

    /// Notes how many connections it has.
    pub fn set_connections(&self, count: usize) {
        self.connections.store(count, Ordering::Relaxed);
    }

    /// How many connections it has.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The same with those that are about to join.
    fn connections_claimed(&self) -> usize {
        // In this order: a place is given back after the connection was counted.
        let joining = self.joining.load(Ordering::Acquire);
        joining + self.connections()
    }

    /// Gives the session another view of its target. The message is sent at once; the future returns when the session
    /// uses it, or has ended.
    pub fn change(&self, device: Arc<TargetDevice>) -> impl Future<Output = ()> + use<S> {
        let (done, changed) = oneshot::channel();
        self.send(SessionMessage::Changed(device, done));
        async { drop(changed.await) }
    }

    /// Returns when the session has ended and none of its tasks runs any more.
    pub async fn gone(&self) {
        self.messages.closed().await;
    }
}

/// A session of whatever transport, as another one sees it.
pub trait Peer: Send + Sync {
    /// Its ports and its client.
    fn identity(&self) -> &Identity;

    /// Drops the message if the session has ended.
    fn send(&self, message: SessionMessage);

    /// Ends the session's tasks on a unit. The message is sent at once; the future returns when none of them runs any
    /// more, or the session has ended.
    fn clear(&self, unit: u16) -> Waiting<()>;
}

impl<S: Send + Sync + 'static> Peer for SessionEntry<S> {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn send(&self, message: SessionMessage) {
        Self::send(self, message);
    }

    fn clear(&self, unit: u16) -> Waiting<()> {
        Box::pin(Self::clear(self, Some(unit)))
    }
}

/// The sessions of all transports of a node, and the shares of their clients.
#[derive(Clone, Default)]
struct Peers(Arc<Mutex<PeerTable>>, Arc<Shares>);

#[derive(Default)]
struct PeerTable {
    entries: BTreeMap<Nexus, Arc<dyn Peer>>,
    /// Units know a nexus by its number, so that no two of whatever transports have the same.
    last_nexus: u64,
}

impl Peers {
    /// Adds the session that `make` makes with a number of its own.
    fn add<S: Send + Sync + 'static>(
        &self,
        make: impl FnOnce(Nexus) -> SessionEntry<S>,
    ) -> Arc<SessionEntry<S>> {
        let mut table = lock(&self.0);
        table.last_nexus += 1;
        let nexus = Nexus(table.last_nexus);
        let entry = Arc::new(make(nexus));
        table.entries.insert(nexus, Arc::clone(&entry) as _);
        entry
    }

    fn remove(&self, nexus: Nexus) {
        lock(&self.0).entries.remove(&nexus);
    }
}

/// Keeps a session in the table: the session that drops it has ended.
pub struct SessionHandle<S> {
    /// The session.
    pub entry: Arc<SessionEntry<S>>,
    /// Messages to it.
    pub messages: mpsc::UnboundedReceiver<SessionMessage>,
    sessions: Sessions<S>,
}

impl<S> Drop for SessionHandle<S> {
    fn drop(&mut self) {
        drain(&mut self.messages, drop);
        let Identity { target, .. } = &self.entry.identity;
        self.sessions.peers.remove(self.entry.nexus);
        let mut table = lock(&self.sessions.table);
        table.entries.remove(&self.entry.number);
        if let Some(target) = target {
            let past = table.past.entry(target.to_string()).or_default();
            // Commands that were in flight when it ended never will be again.
            *past += &Activity { in_flight: 0, ..self.entry.meter.activity() };
        }
    }
}

/// The place of a connection that is about to join a session. Until this is dropped the connection counts, so that many
/// that come at once are not more than their client may have.
pub struct ConnectionPlace<S>(Arc<SessionEntry<S>>);

impl<S> ConnectionPlace<S> {
    /// The session.
    #[must_use]
    pub fn session(&self) -> Arc<SessionEntry<S>> {
        Arc::clone(&self.0)
    }
}

impl<S> Drop for ConnectionPlace<S> {
    fn drop(&mut self) {
        self.0.joining.fetch_sub(1, Ordering::Release);
    }
}

/// Closes a queue of messages to a session that ends, and gives back each that nobody will read any more.
pub fn drain<M>(messages: &mut mpsc::UnboundedReceiver<M>, mut unread: impl FnMut(M)) {
    messages.close();
    loop {
        match unconstrained(messages.recv()).now_or_never() {
            Some(Some(message)) => unread(message),
            Some(None) => return,
            // A message that is being sent would stay in the queue, and its sender wait for ever.
            None => std::thread::yield_now(),
        }
    }
}

struct Table<S> {
    entries: BTreeMap<u16, Arc<SessionEntry<S>>>,
    /// What the sessions that have ended did, by target.
    past: BTreeMap<String, Activity>,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), past: BTreeMap::new() }
    }
}

/// The sessions of a node by one transport.
pub struct Sessions<S> {
    table: Arc<Mutex<Table<S>>>,
    peers: Peers,
}

impl<S> Clone for Sessions<S> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), peers: self.peers.clone() }
    }
}

impl<S> Default for Sessions<S> {
    fn default() -> Self {
        Self { table: Arc::default(), peers: Peers::default() }
    }
}

/// How much one client may have.
#[derive(Clone, Copy, Debug)]
pub struct ClientQuota {
    /// Sessions at a time.
    pub sessions: usize,
    /// Connections at a time, of a client that has proven its identity. The connections of others cannot be told apart.
    pub connections: usize,
}

/// Why a session cannot be added.
pub enum AddSessionError<S> {
    /// This session has to end first.
    Taken(Arc<SessionEntry<S>>),
    /// There are as many as there may be.
    Full,
}

impl<S: Send + Sync + 'static> Sessions<S> {
    /// A table of another transport of the same node as `other`.
    pub fn beside<T>(other: &Sessions<T>) -> Self {
        Self { peers: other.peers.clone(), ..Self::default() }
    }

    /// Adds a session. If it [replaces](Identity::replaces) one that is there, that one is told to end instead, and the
    /// caller waits for its end and tries again: the tasks of the old session end before the new login succeeds.
    pub fn add(
        &self,
        identity: &Identity,
        quota: ClientQuota,
        transport: impl FnOnce() -> S,
    ) -> Result<SessionHandle<S>, AddSessionError<S>> {
        let mut table = lock(&self.table);
        let replaced = table.entries.values().find(|entry| identity.replaces(&entry.identity));
        if let Some(old) = replaced.cloned() {
            drop(table);
            old.send(SessionMessage::End(EndReason::Reinstated));
            return Err(AddSessionError::Taken(old));
        }
        let (sessions, connections) = table.of_client(identity);
        if sessions >= quota.sessions || connections >= quota.connections {
            return Err(AddSessionError::Full);
        }
        let Some(number) = table.free_number() else { return Err(AddSessionError::Full) };
        let (sender, messages) = mpsc::unbounded_channel();
        let entry = self.peers.add(|nexus| SessionEntry {
            identity: identity.clone(),
            nexus,
            number,
            since: SystemTime::now(),
            meter: Meter::default(),
            transport: transport(),
            connections: AtomicUsize::new(1),
            joining: AtomicUsize::new(0),
            id: identity.nexus(),
            messages: sender,
            administration: OnceLock::new(),
            shares: Arc::clone(self.shares()),
        });
        table.entries.insert(number, Arc::clone(&entry));
        Ok(SessionHandle { entry, messages, sessions: self.clone() })
    }

    /// What clients are given, by whatever transport.
    pub const fn shares(&self) -> &Arc<Shares> {
        &self.peers.1
    }

    /// The session with this number.
    pub fn find(&self, number: u16) -> Option<Arc<SessionEntry<S>>> {
        lock(&self.table).entries.get(&number).cloned()
    }

    /// A place in the session `entry` for another connection, unless its client has as many as it may have. A client that
    /// has proven nothing has none.
    pub fn reserve_connection(
        &self,
        entry: Arc<SessionEntry<S>>,
        quota: ClientQuota,
    ) -> Option<ConnectionPlace<S>> {
        let table = lock(&self.table);
        if table.of_client(&entry.identity).1 >= quota.connections {
            return None;
        }
        entry.joining.fetch_add(1, Ordering::Relaxed);
        Some(ConnectionPlace(entry))
    }

    /// Whether another client uses the name of the initiator device of this session.
    pub fn has_same_name(&self, entry: &SessionEntry<S>) -> bool {
        let Identity { name, client, .. } = &entry.identity;
        let same = |other: &Identity| other.name == *name && other.client != *client;
        lock(&self.table).entries.values().any(|other| same(&other.identity))
    }

    /// What the sessions that have ended did, by target.
    pub fn past(&self) -> BTreeMap<String, Activity> {
        lock(&self.table).past.clone()
    }

    /// All sessions by this transport.
    pub fn all(&self) -> Vec<Arc<SessionEntry<S>>> {
        lock(&self.table).entries.values().cloned().collect()
    }

    /// The other sessions with the target of `entry`, by whatever transport.
    pub fn others(&self, entry: &SessionEntry<S>) -> Vec<Arc<dyn Peer>> {
        let same_target = |(nexus, other): &(&Nexus, &Arc<dyn Peer>)| {
            other.identity().target == entry.identity.target && **nexus != entry.nexus
        };
        let table = lock(&self.peers.0);
        table.entries.iter().filter(same_target).map(|(_, other)| Arc::clone(other)).collect()
    }
}

impl<S> Table<S> {
    /// How many sessions and connections a client has.
    fn of_client(&self, identity: &Identity) -> (usize, usize) {
        let entries = self.entries.values();
        let own: Vec<_> =
            entries.filter(|entry| identity.is_of_client_of(&entry.identity)).collect();
        let connections = match identity.client {
            ClientId::Unauthenticated => 0,
            _ => own.iter().map(|entry| entry.connections_claimed()).sum(),
        };
        (own.len(), connections)
    }

    /// A number that no session has.
    fn free_number(&self) -> Option<u16> {
        let start = getrandom::u32().ok()? as u16;
        let mut numbers = (0..=u16::MAX).map(|step| start.wrapping_add(step));
        numbers.find(|number| *number != 0 && !self.entries.contains_key(number))
    }
}

/// Nothing is left half done where the lock is held, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proto::identity::PublicKey;
    use proto::scsi::transport::Protocol;

    use super::*;

    const QUOTA: ClientQuota = ClientQuota { sessions: 9, connections: 99 };

    fn identity(target: Option<&str>) -> Identity {
        let initiator = InitiatorPort { protocol: Protocol::new(0), id: "i.1".into() };
        Identity {
            initiator,
            name: "i".into(),
            client: ClientId::Unauthenticated,
            target: target.map(Arc::from),
            target_port: 1,
        }
    }

    fn add(
        sessions: &Sessions<()>,
        identity: &Identity,
    ) -> Result<SessionHandle<()>, AddSessionError<()>> {
        sessions.add(identity, QUOTA, || ())
    }

    #[tokio::test]
    async fn second_login_ends_the_first_session() {
        let (sessions, identity) = (Sessions::default(), identity(Some("t")));
        let mut first = add(&sessions, &identity).ok().unwrap();
        let Err(AddSessionError::Taken(old)) = add(&sessions, &identity) else { panic!("two") };
        let message = first.messages.try_recv();
        assert!(matches!(message, Ok(SessionMessage::End(EndReason::Reinstated))));
        let ended = tokio::spawn(async move { old.gone().await });
        drop(first);
        ended.await.unwrap();
        let second = add(&sessions, &identity).ok().unwrap();
        assert_ne!(second.entry.number, 0);
        assert_eq!(second.entry.nexus, Nexus(2));
    }

    /// Each row: what the session that is there has proven, what the login has, and whether it replaces it. Where it
    /// does not, both are there.
    #[test]
    fn session_is_replaced_by_its_own_client_only() {
        let key = |byte| ClientId::Key(PublicKey::from_bytes([byte; 32]));
        let chap = |name: &str| ClientId::Account(name.to_owned());
        for (old, new, replaces) in [
            (ClientId::Unauthenticated, ClientId::Unauthenticated, true),
            (ClientId::Unauthenticated, key(1), true),
            (ClientId::Unauthenticated, chap("a"), true),
            (key(1), key(1), true),
            (key(1), key(2), false),
            (key(1), ClientId::Unauthenticated, false),
            (chap("a"), chap("a"), true),
            (chap("a"), chap("b"), false),
            (chap("a"), key(1), false),
            (chap("a"), ClientId::Unauthenticated, false),
        ] {
            let sessions = Sessions::default();
            let of = |client| Identity { client, ..identity(Some("t")) };
            let mut first = add(&sessions, &of(old)).ok().unwrap();
            let second = add(&sessions, &of(new));
            assert_eq!(matches!(second, Err(AddSessionError::Taken(_))), replaces);
            assert_eq!(first.messages.try_recv().is_ok(), replaces);
            assert_eq!(second.is_ok(), !replaces);
            if let Ok(second) = second {
                assert_ne!(second.entry.id(), first.entry.id(), "another nexus");
                assert!(sessions.has_same_name(&first.entry));
                assert!(sessions.has_same_name(&second.entry));
            }
        }
    }

    /// The same initiator port with another target port is another nexus.
    #[test]
    fn sessions_by_several_ports_live_side_by_side() {
        let sessions = Sessions::default();
        let by = |target_port| Identity { target_port, ..identity(Some("t")) };
        let both = [1, 2].map(|port| add(&sessions, &by(port)).ok().unwrap());
        assert_eq!(both.each_ref().map(|handle| handle.entry.id().target_port), [1, 2]);
        let Err(AddSessionError::Taken(old)) = add(&sessions, &by(2)) else { panic!("two") };
        assert_eq!(old.number, both[1].entry.number);
    }

    #[test]
    fn sessions_of_two_transports_are_peers() {
        let sessions = Sessions::default();
        let beside = Sessions::<u8>::beside(&sessions);
        let first = add(&sessions, &identity(Some("t"))).ok().unwrap();
        let by = |target| {
            let initiator = InitiatorPort { protocol: Protocol::new(1), id: "i.1".into() };
            Identity { initiator, ..identity(Some(target)) }
        };
        let mut second = beside.add(&by("t"), QUOTA, || 7).ok().unwrap();
        let _third = beside.add(&by("u"), QUOTA, || 8).ok().unwrap();
        assert_ne!(first.entry.nexus, second.entry.nexus);
        let others = sessions.others(&first.entry);
        let [other] = &others[..] else { panic!("{}", others.len()) };
        assert_eq!(other.identity(), &second.entry.identity);
        drop(other.clear(3));
        let message = second.messages.try_recv();
        assert!(matches!(message, Ok(SessionMessage::Clear(Some(3), _))));
        assert_eq!((sessions.all().len(), beside.all().len()), (1, 2));
        drop(second);
        assert!(sessions.others(&first.entry).is_empty());
    }

    #[test]
    fn sessions_for_discovery_live_side_by_side() {
        let sessions = Sessions::default();
        let _first = add(&sessions, &identity(None)).ok().unwrap();
        assert!(add(&sessions, &identity(None)).is_ok());
    }

    /// Each row: what the sessions have proven, the name of the third, and whether that is one too many.
    #[test]
    fn client_has_as_many_sessions_as_its_quota() {
        let chap = |name: &str| ClientId::Account(name.to_owned());
        for (first, third, name, full) in [
            (ClientId::Unauthenticated, ClientId::Unauthenticated, "i", true),
            (ClientId::Unauthenticated, ClientId::Unauthenticated, "other", false),
            (ClientId::Unauthenticated, chap("a"), "i", false),
            (chap("a"), chap("a"), "i", true),
            (chap("a"), chap("a"), "other", true),
            (chap("a"), chap("b"), "i", false),
        ] {
            let sessions = Sessions::default();
            let add = |client: &ClientId, name: &str| {
                let identity =
                    Identity { client: client.clone(), name: name.into(), ..identity(None) };
                sessions.add(&identity, ClientQuota { sessions: 2, ..QUOTA }, || ())
            };
            let mut held: Vec<_> = (0..2).map(|_| add(&first, "i").ok().unwrap()).collect();
            let is_full = matches!(add(&third, name), Err(AddSessionError::Full));
            assert_eq!(is_full, full, "{first:?} {third:?}");
            held.pop();
            assert!(add(&third, name).is_ok());
        }
    }

    #[test]
    fn proven_client_has_as_many_connections_as_its_quota() {
        let sessions = Sessions::default();
        let quota = ClientQuota { connections: 4, ..QUOTA };
        let greedy = Identity { client: ClientId::Account("a".to_owned()), ..identity(None) };
        let handle = sessions.add(&greedy, quota, || ()).ok().unwrap();
        handle.entry.set_connections(3);
        let place = sessions.reserve_connection(Arc::clone(&handle.entry), quota).unwrap();
        assert!(sessions.reserve_connection(place.session(), quota).is_none());
        assert!(matches!(sessions.add(&greedy, quota, || ()), Err(AddSessionError::Full)));
        let other = Identity { client: ClientId::Account("b".to_owned()), ..identity(None) };
        assert!(sessions.add(&other, quota, || ()).is_ok());
        drop(place);
        assert!(sessions.reserve_connection(Arc::clone(&handle.entry), quota).is_some());
    }

    #[test]
    fn numbers_skip_zero_and_those_in_use() {
        let sessions = Sessions::default();
        let handle = add(&sessions, &identity(None)).ok().unwrap();
        let entry = || Arc::clone(&handle.entry);
        // All numbers but one are in use.
        let entries = (1..=u16::MAX).filter(|number| *number != 9).map(|number| (number, entry()));
        let mut table = Table { entries: entries.collect(), ..Table::default() };
        assert_eq!(table.free_number(), Some(9));
        table.entries.insert(9, entry());
        assert_eq!(table.free_number(), None);
    }

    /// The sender waits for an answer, and would for ever if the message stayed in the queue.
    #[tokio::test]
    async fn message_to_a_session_that_has_ended_is_dropped() {
        let sessions = Sessions::default();
        let handle = add(&sessions, &identity(None)).ok().unwrap();
        let (entry, before) = (Arc::clone(&handle.entry), handle.entry.clear(None));
        drop(handle);
        before.await;
        entry.clear(None).await;
        entry.gone().await;
    }
}
