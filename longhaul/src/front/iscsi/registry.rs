//! The sessions of a node: who is there, and how one reaches another. It is used at login, at logout
//! and by task management, never by a command.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use futures_util::FutureExt as _;
use proto::client::ClientId;
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::target::{Admission, Refusal};
use proto::iscsi::name::{IscsiName, Isid};
use proto::iscsi::sealed::Protection;
use tokio::sync::{mpsc, oneshot};
use tokio::task::coop::unconstrained;

use proto::iscsi::transport_id::initiator_port;
use proto::scsi::reservation::NexusId;

use super::wire::Wire;
use crate::target::lun::{Initiator, Nexus, TargetDevice, Waiting};
use crate::target::meter::{Activity, Meter};

/// What one session asks of another.
pub(super) enum Letter {
    /// End the tasks on a unit, or on all, and say when they are dead.
    Clear(Option<u16>, oneshot::Sender<()>),
    /// End.
    End(Why),
    /// End if it uses no other units than these.
    ColdReset(Arc<BTreeSet<u16>>),
    /// Ask the initiator to log out.
    Leave,
    /// Units of its target have come, gone or grown: this is how it sees the target now.
    /// Says when the session goes by it.
    Changed(Arc<TargetDevice>, oneshot::Sender<()>),
    /// Another connection wants to be part of it.
    Join(Box<Join>),
}

impl Letter {
    /// Nobody will read it any more. Who waits for an answer has it, or sees the letter dropped.
    fn return_to_sender(self) {
        if let Self::Join(join) = self {
            join.refuse(LoginStatus::SESSION_DOES_NOT_EXIST);
        }
    }
}

/// A connection that has logged in but for its place in a session.
pub(super) struct Join {
    pub(super) wire: Wire,
    pub(super) admission: Admission,
    pub(super) back: Back,
}

/// Whom to give a connection back to that has no place in its session. Dropped when the connection has
/// ended.
pub(super) type Back = oneshot::Sender<Box<(Wire, Refusal)>>;

impl Join {
    pub(super) fn refuse(self, status: LoginStatus) {
        // Whoever brought it waits; if not, the connection ends here.
        let _ = self.back.send(Box::new((self.wire, self.admission.refuse(status))));
    }
}

/// Why a session has to end that did not ask for it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum Why {
    #[error("the initiator has logged in anew")]
    Reinstated,
    #[error("the target was reset")]
    Reset,
}

/// What a session is called: the I_T nexus (RFC 7143, 4.4.2). Whose it is, is another question: names and ISIDs are
/// claimed, and count among the sessions of one client, which has proven who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) initiator: IscsiName,
    pub(super) isid: Isid,
    /// `None` in a discovery session.
    pub(super) target: Option<IscsiName>,
    /// The portal group it came in by, which is a port of the target.
    pub(super) port: u16,
}

/// A session's place in the registry.
pub(super) struct Seat {
    pub(super) identity: Identity,
    pub(super) nexus: Nexus,
    pub(super) tsih: u16,
    /// Where it comes from.
    pub(super) peer: SocketAddr,
    pub(super) since: SystemTime,
    pub(super) meter: Meter,
    /// What it has proven at login.
    pub(super) proven: ClientId,
    /// How it is sealed.
    pub(super) seal: Option<Protection>,
    /// How many connections it has.
    connections: AtomicUsize,
    /// The nexus under the name that outlives the session.
    id: NexusId,
    /// Its length is bounded by what the other sessions may have under way.
    letters: mpsc::UnboundedSender<Letter>,
}

impl Initiator for Seat {
    fn id(&self) -> &NexusId {
        &self.id
    }

    fn abort_tasks(&self, lun: u16) -> Waiting<()> {
        Box::pin(self.clear(Some(lun)))
    }
}

impl Seat {
    /// Drops the letter if the session has ended.
    pub(super) fn post(&self, letter: Letter) {
        if let Err(undelivered) = self.letters.send(letter) {
            undelivered.0.return_to_sender();
        }
    }

    /// Ends the session's tasks on a unit, or on all. The letter is posted at once; the rest returns when
    /// they are dead, or the session is, which then has none left.
    pub(super) fn clear(&self, unit: Option<u16>) -> impl Future<Output = ()> + use<> {
        let (done, dead) = oneshot::channel();
        self.post(Letter::Clear(unit, done));
        async { drop(dead.await) }
    }

    pub(super) fn has_connections(&self, count: usize) {
        self.connections.store(count, Ordering::Relaxed);
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Lets the session see its target so. The letter is posted at once; the rest returns when it does, or has
    /// ended.
    pub(super) fn change(&self, device: Arc<TargetDevice>) -> impl Future<Output = ()> + use<> {
        let (done, changed) = oneshot::channel();
        self.post(Letter::Changed(device, done));
        async { drop(changed.await) }
    }

    /// Returns when the session has ended and none of its tasks runs any more.
    pub(super) async fn gone(&self) {
        self.letters.closed().await;
    }
}

/// Holds a seat; the session that drops it has ended.
pub(super) struct Ticket {
    pub(super) seat: Arc<Seat>,
    registry: Registry,
    pub(super) letters: mpsc::UnboundedReceiver<Letter>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.letters.close();
        // One that is being sent is waited for, a moment: left in the channel it would never be answered.
        loop {
            match unconstrained(self.letters.recv()).now_or_never() {
                Some(Some(unread)) => unread.return_to_sender(),
                Some(None) => break,
                None => std::thread::yield_now(),
            }
        }
        let mut seats = lock(&self.registry.0);
        seats.seats.remove(&self.seat.tsih);
        if let Some(target) = &self.seat.identity.target {
            let past = seats.past.entry(target.as_str().to_owned()).or_default();
            // What was in flight when it ended never will be again.
            *past += &Activity { in_flight: 0, ..self.seat.meter.activity() };
        }
    }
}

#[derive(Default)]
struct Seats {
    seats: BTreeMap<u16, Arc<Seat>>,
    /// What the sessions that have ended did, by target.
    past: BTreeMap<String, Activity>,
    next_nexus: u64,
}

/// Who is there, and what it has proven.
#[derive(Clone, Debug)]
pub(super) struct Newcomer {
    pub(super) identity: Identity,
    pub(super) proven: ClientId,
    pub(super) seal: Option<Protection>,
    pub(super) peer: SocketAddr,
}

/// The sessions of a node.
#[derive(Clone, Default)]
pub(super) struct Registry(Arc<Mutex<Seats>>);

impl Newcomer {
    /// Whether a session belongs to the same client: the same proof or, where there is none, the same name.
    fn is_client_of(&self, seat: &Seat) -> bool {
        let named = self.proven != ClientId::Unauthenticated
            || seat.identity.initiator == self.identity.initiator;
        seat.proven == self.proven && named
    }

    /// Whether a login ends this session (RFC 7143, 6.3.5). A discovery session replaces none. Under a bare name
    /// anyone may come, so that such a session is replaced by anyone; any other by its own client only.
    fn replaces(&self, seat: &Seat) -> bool {
        let same = seat.identity == self.identity && self.identity.target.is_some();
        same && (seat.proven == self.proven || seat.proven == ClientId::Unauthenticated)
    }
}

/// What one client may have at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientQuota {
    pub(super) sessions: usize,
    /// Of a client that has proven who it is. Those of others cannot be told apart.
    pub(super) connections: usize,
}

/// No session can be added.
pub(super) enum NoSeat {
    /// This one has to end first.
    Taken(Arc<Seat>),
    /// There are as many as there may be.
    Full,
}

impl Registry {
    /// Gives a session its place. If it [replaces](Newcomer::replaces) one that is there, that is told to end
    /// instead, and the caller waits for that and tries again (RFC 7143, 6.3.5: the old session ends, its tasks with
    /// it, before the new login succeeds).
    pub(super) fn join(&self, newcomer: &Newcomer, quota: ClientQuota) -> Result<Ticket, NoSeat> {
        let Newcomer { identity, proven, seal, peer } = newcomer;
        let mut seats = lock(&self.0);
        let replaced = seats.seats.values().find(|seat| newcomer.replaces(seat)).cloned();
        if let Some(old) = replaced {
            drop(seats);
            old.post(Letter::End(Why::Reinstated));
            return Err(NoSeat::Taken(old));
        }
        let (sessions, connections) = seats.of_client(newcomer);
        if sessions >= quota.sessions || connections >= quota.connections {
            return Err(NoSeat::Full);
        }
        let Some(tsih) = seats.free_tsih() else { return Err(NoSeat::Full) };
        let (sender, letters) = mpsc::unbounded_channel();
        seats.next_nexus += 1;
        let Identity { initiator, isid, port, .. } = identity.clone();
        let initiator = initiator_port(&initiator, isid);
        let seat = Arc::new(Seat {
            identity: identity.clone(),
            nexus: Nexus(seats.next_nexus),
            tsih,
            peer: *peer,
            since: SystemTime::now(),
            meter: Meter::default(),
            proven: proven.clone(),
            seal: *seal,
            connections: AtomicUsize::new(1),
            id: NexusId { initiator, target_port: port, client: proven.clone() },
            letters: sender,
        });
        seats.seats.insert(tsih, Arc::clone(&seat));
        Ok(Ticket { seat, registry: self.clone(), letters })
    }

    /// The session a connection may join: that of the same initiator port (RFC 7143, 6.3.1), with the same
    /// target and by the same portal group (RFC 7143, 4.4.1), proven and sealed as its first connection was.
    pub(super) fn host(
        &self,
        tsih: u16,
        newcomer: &Newcomer,
        quota: ClientQuota,
    ) -> Result<Arc<Seat>, LoginStatus> {
        let Newcomer { identity, proven, seal, .. } = newcomer;
        let seats = lock(&self.0);
        let (_, connections) = seats.of_client(newcomer);
        let seat = seats.seats.get(&tsih).cloned().filter(|seat| {
            seat.identity.initiator == identity.initiator && seat.identity.isid == identity.isid
        });
        drop(seats);
        let seat = seat.ok_or(LoginStatus::SESSION_DOES_NOT_EXIST)?;
        if seat.identity.target != identity.target || seat.identity.port != identity.port {
            return Err(LoginStatus::CANNOT_INCLUDE);
        }
        // Names, ISIDs and TSIHs are in clear and prove nothing.
        if seat.proven != *proven || seat.seal != *seal {
            return Err(LoginStatus::AUTHORIZATION_FAILURE);
        }
        if connections >= quota.connections {
            return Err(LoginStatus::TOO_MANY_CONNECTIONS);
        }
        Ok(seat)
    }

    /// Whether another client uses the name that the initiator of `seat` goes by.
    pub(super) fn shares_its_name(&self, seat: &Seat) -> bool {
        let name = &seat.identity.initiator;
        let same =
            |other: &Arc<Seat>| other.identity.initiator == *name && other.proven != seat.proven;
        lock(&self.0).seats.values().any(same)
    }

    /// What the sessions that have ended did, by target.
    pub(super) fn past(&self) -> BTreeMap<String, Activity> {
        lock(&self.0).past.clone()
    }

    /// All sessions.
    pub(super) fn all(&self) -> Vec<Arc<Seat>> {
        lock(&self.0).seats.values().cloned().collect()
    }

    /// The other sessions with the target of `seat`.
    pub(super) fn others(&self, seat: &Seat) -> Vec<Arc<Seat>> {
        let same_target = |other: &&Arc<Seat>| {
            other.identity.target == seat.identity.target && other.tsih != seat.tsih
        };
        lock(&self.0).seats.values().filter(same_target).cloned().collect()
    }
}

impl Seats {
    /// How many sessions and connections a client has. Connections count where it has proven who it is.
    fn of_client(&self, newcomer: &Newcomer) -> (usize, usize) {
        let of_client = || self.seats.values().filter(|seat| newcomer.is_client_of(seat));
        let connections = match newcomer.proven {
            ClientId::Unauthenticated => 0,
            _ => of_client().map(|seat| seat.connections()).sum(),
        };
        (of_client().count(), connections)
    }

    /// A number no session has; zero stands for a session to be made (RFC 7143, 11.12.6). It is not to be guessed
    /// from those of other sessions.
    fn free_tsih(&self) -> Option<u16> {
        let start = getrandom::u32().ok()? as u16;
        let mut numbers = (0..=u16::MAX).map(|step| start.wrapping_add(step));
        numbers.find(|tsih| *tsih != 0 && !self.seats.contains_key(tsih))
    }
}

/// Nothing is left half done where the lock is held, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proto::identity::PublicKey;

    use super::*;

    const PEER: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    const QUOTA: ClientQuota = ClientQuota { sessions: 9, connections: 99 };

    fn newcomer(target: Option<&str>) -> Newcomer {
        let proven = ClientId::Unauthenticated;
        Newcomer { identity: identity(target), proven, seal: None, peer: PEER }
    }

    fn identity(target: Option<&str>) -> Identity {
        let name = |name: &str| IscsiName::new(name).unwrap();
        Identity {
            initiator: name("iqn.2000-01.example:i"),
            isid: Isid([1; 6]),
            target: target.map(name),
            port: 1,
        }
    }

    #[tokio::test]
    async fn a_second_login_ends_the_first_session() {
        let registry = Registry::default();
        let newcomer = newcomer(Some("iqn.2000-01.example:t"));
        let mut first = registry.join(&newcomer, QUOTA).ok().unwrap();
        let Err(NoSeat::Taken(old)) = registry.join(&newcomer, QUOTA) else { panic!("two") };
        assert!(matches!(first.letters.try_recv(), Ok(Letter::End(Why::Reinstated))));
        let ended = tokio::spawn(async move { old.gone().await });
        drop(first);
        ended.await.unwrap();
        let second = registry.join(&newcomer, QUOTA).ok().unwrap();
        assert_ne!(second.seat.tsih, 0);
        assert_eq!(second.seat.nexus, Nexus(2));
    }

    /// Each row: what the session that is there has proven, what the login has, and whether it replaces it. Where it
    /// does not, both are there.
    #[test]
    fn a_session_is_replaced_by_its_own_client_only() {
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
            let registry = Registry::default();
            let newcomer = |proven| Newcomer { proven, ..newcomer(Some("iqn.2000-01.example:t")) };
            let mut first = registry.join(&newcomer(old), QUOTA).ok().unwrap();
            let second = registry.join(&newcomer(new), QUOTA);
            assert_eq!(matches!(second, Err(NoSeat::Taken(_))), replaces);
            assert_eq!(first.letters.try_recv().is_ok(), replaces);
            assert_eq!(second.is_ok(), !replaces);
            if let Ok(second) = second {
                assert_ne!(second.seat.id, first.seat.id, "another nexus");
                assert!(
                    registry.shares_its_name(&first.seat) && registry.shares_its_name(&second.seat)
                );
            }
        }
    }

    /// Each row: how a connection differs from the first of the session, and what it is told.
    #[test]
    fn a_session_is_joined_by_its_own_initiator_only() {
        let registry = Registry::default();
        let first = Newcomer {
            proven: ClientId::Key(PublicKey::from_bytes([1; 32])),
            seal: Some(Protection::Encrypt),
            ..newcomer(Some("iqn.2000-01.example:t"))
        };
        let ticket = registry.join(&first, QUOTA).ok().unwrap();
        let tsih = ticket.seat.tsih;
        let told = |tsih, change: &dyn Fn(&mut Newcomer)| {
            let mut newcomer = first.clone();
            change(&mut newcomer);
            registry.host(tsih, &newcomer, QUOTA).err()
        };
        let name = |name| IscsiName::new(name).unwrap();
        let none = Some(LoginStatus::SESSION_DOES_NOT_EXIST);
        let unproven = Some(LoginStatus::AUTHORIZATION_FAILURE);
        assert_eq!(told(tsih, &|_| {}), None);
        assert_eq!(told(tsih ^ 1, &|_| {}), none);
        assert_eq!(told(tsih, &|it| it.identity.initiator = name("iqn.2000-01.example:x")), none);
        assert_eq!(told(tsih, &|it| it.identity.isid = Isid([2; 6])), none);
        let other = Some(LoginStatus::CANNOT_INCLUDE);
        assert_eq!(
            told(tsih, &|it| it.identity.target = Some(name("iqn.2000-01.example:u"))),
            other
        );
        assert_eq!(told(tsih, &|it| it.identity.port = 2), other);
        assert_eq!(told(tsih, &|it| it.proven = ClientId::Unauthenticated), unproven);
        assert_eq!(
            told(tsih, &|it| it.proven = ClientId::Key(PublicKey::from_bytes([2; 32]))),
            unproven
        );
        assert_eq!(told(tsih, &|it| it.seal = Some(Protection::Integrity)), unproven);
        assert_eq!(told(tsih, &|it| it.seal = None), unproven);
    }

    /// RFC 7143, 4.4.2: the same initiator port with another target port is another nexus.
    #[test]
    fn sessions_by_several_ports_live_side_by_side() {
        let registry = Registry::default();
        let by = |port| {
            let first = newcomer(Some("iqn.2000-01.example:t"));
            Newcomer { identity: Identity { port, ..first.identity }, ..first }
        };
        let seats = [1, 2].map(|port| registry.join(&by(port), QUOTA).ok().unwrap());
        assert_eq!(seats.each_ref().map(|ticket| ticket.seat.id().target_port), [1, 2]);
        assert!(
            matches!(registry.join(&by(2), QUOTA), Err(NoSeat::Taken(old)) if old.tsih == seats[1].seat.tsih)
        );
    }

    #[test]
    fn discovery_sessions_live_side_by_side() {
        let registry = Registry::default();
        let _first = registry.join(&newcomer(None), QUOTA).ok().unwrap();
        assert!(registry.join(&newcomer(None), QUOTA).is_ok());
    }

    /// Each row: what the sessions have proven, the name of the third, and whether that is one too many.
    #[test]
    fn one_client_has_so_many_sessions_and_no_more() {
        let chap = |name: &str| ClientId::Account(name.to_owned());
        let (own, other) = ("iqn.2000-01.example:i", "iqn.2000-01.example:other");
        for (first, third, name, full) in [
            (ClientId::Unauthenticated, ClientId::Unauthenticated, own, true),
            (ClientId::Unauthenticated, ClientId::Unauthenticated, other, false),
            (ClientId::Unauthenticated, chap("a"), own, false),
            (chap("a"), chap("a"), own, true),
            (chap("a"), chap("a"), other, true),
            (chap("a"), chap("b"), own, false),
        ] {
            let registry = Registry::default();
            let join = |proven: &ClientId, name: &str| {
                let initiator = IscsiName::new(name).unwrap();
                let identity = Identity { initiator, ..identity(None) };
                let newcomer = Newcomer { identity, proven: proven.clone(), ..newcomer(None) };
                registry.join(&newcomer, ClientQuota { sessions: 2, ..QUOTA })
            };
            let mut held: Vec<_> = (0..2).map(|_| join(&first, own).ok().unwrap()).collect();
            assert_eq!(
                matches!(join(&third, name), Err(NoSeat::Full)),
                full,
                "{first:?} {third:?}"
            );
            held.pop();
            assert!(join(&third, name).is_ok());
        }
    }

    #[test]
    fn one_proven_client_has_so_many_connections_and_no_more() {
        let registry = Registry::default();
        let quota = ClientQuota { connections: 4, ..QUOTA };
        let proven = ClientId::Account("a".to_owned());
        let greedy = Newcomer { proven, ..newcomer(None) };
        let ticket = registry.join(&greedy, quota).ok().unwrap();
        ticket.seat.has_connections(3);
        assert!(registry.host(ticket.seat.tsih, &greedy, quota).is_ok());
        ticket.seat.has_connections(4);
        let refused = registry.host(ticket.seat.tsih, &greedy, quota).err();
        assert_eq!(refused, Some(LoginStatus::TOO_MANY_CONNECTIONS));
        assert!(matches!(registry.join(&greedy, quota), Err(NoSeat::Full)));
        let other = Newcomer { proven: ClientId::Account("b".to_owned()), ..newcomer(None) };
        assert!(registry.join(&other, quota).is_ok());
    }

    #[test]
    fn session_numbers_skip_zero_and_those_in_use() {
        let registry = Registry::default();
        let mut seats = Seats::default();
        let seat = registry.join(&newcomer(None), QUOTA).ok().unwrap().seat.clone();
        // All numbers but one are in use.
        seats.seats =
            (1..=u16::MAX).filter(|tsih| *tsih != 9).map(|tsih| (tsih, seat.clone())).collect();
        assert_eq!(seats.free_tsih(), Some(9));
        seats.seats.insert(9, seat);
        assert_eq!(seats.free_tsih(), None);
    }
}
