//! The sessions of a node: who is there, and how one reaches another. It is used at login, at logout
//! and by task management, never by a command.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use proto::iscsi::login::policy::Proven;
use proto::iscsi::name::{IscsiName, Isid};
use tokio::sync::{mpsc, oneshot};

use proto::scsi::reservation::{InitiatorPort, NexusId};

use super::meter::{Activity, Meter};
use crate::front::lun::{Initiator, Nexus, TARGET_PORT, TargetDevice, Waiting};

/// What one session asks of another.
pub(super) enum Letter {
    /// End the tasks on a unit, or on all, and say when they are dead.
    Clear(Option<u16>, oneshot::Sender<()>),
    /// End.
    End(Why),
    /// Ask the initiator to log out.
    Leave,
    /// Its target has grown: this is how it is now.
    Grown(Arc<TargetDevice>),
}

/// Why a session has to end that did not ask for it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum Why {
    #[error("the initiator has logged in anew")]
    Reinstated,
    #[error("the target was reset")]
    Reset,
}

/// Who a session belongs to (RFC 7143, 4.4.3.2: the I_T nexus; there is one portal group here).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) initiator: IscsiName,
    pub(super) isid: Isid,
    /// `None` in a discovery session.
    pub(super) target: Option<IscsiName>,
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
    pub(super) proven: Proven,
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
        let _ = self.letters.send(letter);
    }

    /// Ends the session's tasks on a unit, or on all. The letter is posted at once; the rest returns when
    /// they are dead, or the session is, which then has none left.
    pub(super) fn clear(&self, unit: Option<u16>) -> impl Future<Output = ()> + use<> {
        let (done, dead) = oneshot::channel();
        self.post(Letter::Clear(unit, done));
        async { drop(dead.await) }
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
    next_tsih: u16,
    next_nexus: u64,
}

/// The sessions of a node.
#[derive(Clone, Default)]
pub(super) struct Registry(Arc<Mutex<Seats>>);

/// No session can be added.
pub(super) enum NoSeat {
    /// This one has to end first.
    Taken(Arc<Seat>),
    /// It belongs to someone else, who goes by the same name.
    Foreign,
    /// There are as many as there may be.
    Full,
}

impl Registry {
    /// Gives a session its place. If one of the same identity is there, it is told to end instead, and
    /// the caller waits for that and tries again (RFC 7143, 6.3.5: the old session ends, its tasks with
    /// it, before the new login succeeds). A discovery session replaces none, and nobody replaces a sealed
    /// session but who has proven the same key: names are for the asking.
    /// One initiator name has `most` sessions at most.
    pub(super) fn join(
        &self,
        identity: &Identity,
        proven: &Proven,
        most: usize,
        peer: SocketAddr,
    ) -> Result<Ticket, NoSeat> {
        let mut seats = lock(&self.0);
        let same = |seat: &&Arc<Seat>| seat.identity == *identity && identity.target.is_some();
        if let Some(old) = seats.seats.values().find(same).cloned() {
            drop(seats);
            if matches!(old.proven, Proven::Key(_)) && old.proven != *proven {
                return Err(NoSeat::Foreign);
            }
            old.post(Letter::End(Why::Reinstated));
            return Err(NoSeat::Taken(old));
        }
        let of_initiator = |seat: &&Arc<Seat>| seat.identity.initiator == identity.initiator;
        if seats.seats.values().filter(of_initiator).count() >= most {
            return Err(NoSeat::Full);
        }
        let Some(tsih) = seats.free_tsih() else { return Err(NoSeat::Full) };
        let (sender, letters) = mpsc::unbounded_channel();
        seats.next_nexus += 1;
        let Identity { initiator, isid, .. } = identity.clone();
        let initiator = InitiatorPort { name: initiator, isid };
        let seat = Arc::new(Seat {
            identity: identity.clone(),
            nexus: Nexus(seats.next_nexus),
            tsih,
            peer,
            since: SystemTime::now(),
            meter: Meter::default(),
            proven: proven.clone(),
            id: NexusId { initiator, target_port: TARGET_PORT },
            letters: sender,
        });
        seats.seats.insert(tsih, Arc::clone(&seat));
        Ok(Ticket { seat, registry: self.clone(), letters })
    }

    /// Whether there is such a session of this initiator.
    pub(super) fn has(&self, tsih: u16, initiator: &IscsiName) -> bool {
        lock(&self.0).seats.get(&tsih).is_some_and(|seat| seat.identity.initiator == *initiator)
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
    /// A number no session has; zero stands for a session to be made (RFC 7143, 11.12.6).
    fn free_tsih(&mut self) -> Option<u16> {
        (0..=u16::MAX).find_map(|_| {
            self.next_tsih = self.next_tsih.wrapping_add(1);
            let free = self.next_tsih != 0 && !self.seats.contains_key(&self.next_tsih);
            free.then_some(self.next_tsih)
        })
    }
}

/// Nothing is left half done where the lock is held, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use proto::iscsi::sealed::PublicKey;

    use super::*;

    const PEER: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

    fn identity(target: Option<&str>) -> Identity {
        let name = |name: &str| IscsiName::new(name).unwrap();
        Identity {
            initiator: name("iqn.2000-01.example:i"),
            isid: Isid([1; 6]),
            target: target.map(name),
        }
    }

    #[tokio::test]
    async fn a_second_login_ends_the_first_session() {
        let registry = Registry::default();
        let identity = identity(Some("iqn.2000-01.example:t"));
        let mut first = registry.join(&identity, &Proven::Nothing, 9, PEER).ok().unwrap();
        let Err(NoSeat::Taken(old)) = registry.join(&identity, &Proven::Nothing, 9, PEER) else {
            panic!("two")
        };
        assert!(matches!(first.letters.try_recv(), Ok(Letter::End(Why::Reinstated))));
        let ended = tokio::spawn(async move { old.gone().await });
        drop(first);
        ended.await.unwrap();
        let second = registry.join(&identity, &Proven::Nothing, 9, PEER).ok().unwrap();
        assert_ne!(second.seat.tsih, 0);
        assert_eq!(second.seat.nexus, Nexus(2));
    }

    /// Each row: what the session that is there has proven, what the login has, and whether it replaces it.
    #[test]
    fn a_sealed_session_is_replaced_by_its_own_client_only() {
        let key = |byte| Proven::Key(PublicKey::from_bytes([byte; 32]));
        for (old, new, replaces) in [
            (Proven::Nothing, Proven::Nothing, true),
            (Proven::Nothing, key(1), true),
            (key(1), key(1), true),
            (key(1), key(2), false),
            (key(1), Proven::Nothing, false),
        ] {
            let registry = Registry::default();
            let identity = identity(Some("iqn.2000-01.example:t"));
            let mut first = registry.join(&identity, &old, 9, PEER).ok().unwrap();
            let taken = matches!(registry.join(&identity, &new, 9, PEER), Err(NoSeat::Taken(_)));
            assert_eq!((taken, first.letters.try_recv().is_ok()), (replaces, replaces));
        }
    }

    #[test]
    fn discovery_sessions_live_side_by_side() {
        let registry = Registry::default();
        let _first = registry.join(&identity(None), &Proven::Nothing, 9, PEER).ok().unwrap();
        assert!(registry.join(&identity(None), &Proven::Nothing, 9, PEER).is_ok());
    }

    #[test]
    fn one_initiator_has_so_many_sessions_and_no_more() {
        let registry = Registry::default();
        let join = |identity| registry.join(&identity, &Proven::Nothing, 2, PEER);
        let mut held: Vec<_> = (0..2).map(|_| join(identity(None)).ok().unwrap()).collect();
        assert!(matches!(join(identity(None)), Err(NoSeat::Full)));
        let other = IscsiName::new("iqn.2000-01.example:other").unwrap();
        assert!(join(Identity { initiator: other, ..identity(None) }).is_ok());
        held.pop();
        assert!(join(identity(None)).is_ok());
    }

    #[test]
    fn session_numbers_skip_zero_and_those_in_use() {
        let registry = Registry::default();
        let _first = registry.join(&identity(None), &Proven::Nothing, 9, PEER).ok().unwrap();
        lock(&registry.0).next_tsih = u16::MAX;
        assert_eq!(
            registry.join(&identity(None), &Proven::Nothing, 9, PEER).ok().unwrap().seat.tsih,
            2
        );
    }
}
