//! The reservations of a disk: the rules are `proto`'s, this is who is there, in which order, and what is
//! kept.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use proto::scsi::reservation::{
    Change, Class, Conflict, Device, ImageError, NexusId, Out, Refused, Reservations,
    ReserveInAction, ReserveOutAction,
};
use proto::scsi::sense::{Additional, Key};
use proto::scsi::transport::Transports;
use proto::scsi::unit::Unit;
use proto::scsi::{Sense, Status};
use tokio::sync::MutexGuard;

use super::super::fault::Fault;
use super::super::{Initiator, Nexus, ReservationStorage, SharedReservations};
use crate::log_limiter::{LineLimiter, Permit};

/// Why a unit cannot be offered: it may be reserved, and nobody knows.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// What was kept cannot be read.
    #[error("the reservations that were kept cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// What was read is not what was kept.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// Reservations that outlive the power, and where changes of them go.
#[derive(Clone, Debug)]
pub struct StoredReservations {
    reservations: Reservations,
    keeper: Arc<dyn ReservationStorage>,
}

impl StoredReservations {
    /// What `keeper` has kept.
    pub fn by(keeper: Arc<dyn ReservationStorage>) -> Result<Self, LoadError> {
        let reservations = match keeper.load()? {
            Some(image) => Reservations::restore(&image)?,
            None => Reservations::default(),
        };
        Ok(Self { reservations, keeper })
    }

    /// Whether there is one that keeps others from something.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.reservations.restrict()
    }
}

/// The reservations of one unit.
#[derive(Default)]
pub(super) struct Reserved {
    /// Whether there is any, so that a command must ask. Commands that are under way when this changes may
    /// pass or not; a command that comes after the answer to the one that changed it came from an
    /// initiator that has seen that answer, so that no ordering beyond the flag itself is needed.
    restrict: AtomicBool,
    state: Mutex<State>,
    /// One at a time: what is decided must be kept before the next is decided. Always taken before `state`,
    /// never held while waiting for another session.
    order: tokio::sync::Mutex<Order>,
    keeper: Option<Arc<dyn ReservationStorage>>,
    /// What keeps them in place of that, for several machines.
    shared: Option<Arc<dyn SharedReservations>>,
    transports: Transports,
    log_limiter: LineLimiter,
}

/// How often a change is decided anew because others have changed something meanwhile.
const CHANGES_MAX: usize = 64;

/// What whoever changes the reservations is told.
#[derive(Default)]
struct Order {
    /// They do not change any more.
    retired: bool,
}

#[derive(Default)]
struct State {
    reservations: Reservations,
    initiators: BTreeMap<Nexus, Arc<dyn Initiator>>,
    /// A change that is being kept. Clients come and go meanwhile: it must not undo an adoption.
    pending: Option<Change>,
    /// What is in force of what is shared.
    adopted: Option<Vec<u8>>,
}

/// What is left to do when a reservation has changed.
#[derive(Default)]
pub(super) struct ReservationEffects {
    /// Who will be told what.
    pub(super) attentions: Vec<(Nexus, Additional)>,
    /// Whose tasks end.
    pub(super) abort: Vec<(Nexus, Arc<dyn Initiator>)>,
}

impl Reserved {
    /// Those that were kept through the last loss of power, if any outlive one.
    pub(super) fn new(
        kept: Option<StoredReservations>,
        shared: Option<Arc<dyn SharedReservations>>,
        transports: Transports,
    ) -> Self {
        if shared.is_some() {
            return Self { shared, transports, ..Self::default() };
        }
        let Some(StoredReservations { reservations, keeper }) = kept else {
            return Self { transports, ..Self::default() };
        };
        let restrict = AtomicBool::new(reservations.restrict());
        let state = Mutex::new(State { reservations, ..State::default() });
        Self { restrict, state, keeper: Some(keeper), transports, ..Self::default() }
    }

    /// Whether `nexus` may run a command of this class. Where nothing is reserved this is one relaxed load.
    pub(super) fn check(&self, nexus: Nexus, class: Class) -> Result<(), Fault> {
        if !self.restrict.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.with(|state| {
            let there = state.initiators.get(&nexus).ok_or(Conflict)?;
            state.reservations.check(there.id(), class)
        })
        .map_err(Fault::from)
    }

    /// A nexus that may write is about to come into being: what was registered under its bare name is its own. It is
    /// kept so with the next change.
    pub(super) fn adopt(&self, nexus: &NexusId) {
        let adopted = self.with(|state| {
            let adopted = state.reservations.adopt(nexus);
            if let (true, Some(change)) = (adopted, &mut state.pending) {
                change.adopt(nexus);
            }
            adopted
        });
        if adopted {
            let NexusId { initiator, client, .. } = nexus;
            tracing::info!(%initiator, %client, "a registration under its bare name is now this client's");
        }
    }

    pub(super) fn attach(&self, nexus: Nexus, initiator: Arc<dyn Initiator>) {
        self.with(|state| state.initiators.insert(nexus, initiator));
    }

    pub(super) fn detach(&self, nexus: Nexus) {
        self.with(|state| {
            if let Some(initiator) = state.initiators.remove(&nexus) {
                state.reservations.nexus_lost(initiator.id());
            }
        });
    }

    pub(super) fn reset(&self) {
        self.with(|state| state.reservations.reset());
    }

    /// RESERVE.
    pub(super) async fn reserve(&self, nexus: Nexus) -> Result<(), Fault> {
        let _turn = self.turn().await?;
        self.with(|state| state.id(nexus).and_then(|id| state.reservations.reserve(&id)))
            .map_err(Fault::from)
    }

    /// RELEASE.
    pub(super) async fn release(&self, nexus: Nexus) -> Result<(), Fault> {
        let _turn = self.turn().await?;
        self.with(|state| state.id(nexus).and_then(|id| state.reservations.release(&id)))
            .map_err(Fault::from)
    }

    /// PERSISTENT RESERVE IN.
    pub(super) async fn report(
        &self,
        nexus: Nexus,
        action: ReserveInAction,
    ) -> Result<Vec<u8>, Fault> {
        if let Some(shared) = &self.shared {
            shared.refresh().await.map_err(|why| self.not_reached(&why))?;
        }
        self.with(|state| {
            let id = state.id(nexus)?;
            Ok(state.reservations.report(&id, action, &self.device(&[], &[])))
        })
        .map_err(|conflict: Conflict| conflict.into())
    }

    /// PERSISTENT RESERVE OUT: when this returns, what has changed is kept and in force. Where it fails,
    /// nothing has changed.
    pub(super) async fn change(
        &self,
        nexus: Nexus,
        out: Out,
        list: &[u8],
        unit: &Unit,
    ) -> Result<ReservationEffects, Fault> {
        let ports: Vec<_> = unit.ports().ids().collect();
        let _turn = self.turn().await?;
        if let Some(shared) = &self.shared {
            return self.change_shared(shared, nexus, (out, list), (unit, &ports)).await;
        }
        let keep = self.with(|state| {
            let id = state.id(nexus).map_err(Refused::from)?;
            let present = state.present();
            let device = self.device(&ports, &present);
            let mut change = match unit.is_for_reader() {
                true => state.reservations.prepare_reader(&id, out, list, &device),
                false => state.reservations.prepare(&id, out, list, &device),
            }?;
            let keep = change.keep.take();
            state.pending = Some(change);
            Ok::<_, Refused>(keep)
        })?;
        if let (Some(image), Some(keeper)) = (keep, &self.keeper) {
            keeper.save(image).await.map_err(|error| {
                if let Some((Permit { suppressed }, _)) = self.log_limiter.permit() {
                    tracing::error!(%error, suppressed, "the reservations could not be kept");
                }
                match out.action {
                    ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore => {
                        Sense::illegal(Additional::INSUFFICIENT_REGISTRATION_RESOURCES)
                    }
                    _ => Sense::new(Key::HardwareError, Additional::INTERNAL_TARGET_FAILURE),
                }
            })?;
        }
        Ok(self.with(|state| state.commit(nexus)))
    }

    /// The same where others may change them too: what is decided on what they have just changed is decided anew.
    async fn change_shared(
        &self,
        shared: &Arc<dyn SharedReservations>,
        nexus: Nexus,
        (out, list): (Out, &[u8]),
        (unit, ports): (&Unit, &[u16]),
    ) -> Result<ReservationEffects, Fault> {
        for _ in 0..CHANGES_MAX {
            shared.refresh().await.map_err(|why| self.not_reached(&why))?;
            let (base, change, image) = self.with(|state| {
                let id = state.id(nexus).map_err(Refused::from)?;
                let present = state.present();
                let device = self.device(ports, &present);
                let change = match unit.is_for_reader() {
                    true => state.reservations.prepare_reader(&id, out, list, &device),
                    false => state.reservations.prepare(&id, out, list, &device),
                }?;
                let image = state.reservations.shared_image(&change);
                Ok::<_, Refused>((state.adopted.clone(), change, image))
            })?;
            if base.as_ref() == Some(&image) {
                return Ok(ReservationEffects::default());
            }
            let kept = shared.replace(base.clone(), image.clone()).await;
            if kept.map_err(|why| self.not_reached(&why))? {
                return Ok(self.with(|state| state.commit_shared(nexus, change, base, image)));
            }
        }
        Err(Fault::Status(Status::Busy))
    }

    /// Puts in force what another machine has made of them.
    pub(super) fn adopt_shared(&self, image: &[u8]) -> Result<ReservationEffects, ImageError> {
        self.with(|state| {
            if state.adopted.as_deref() == Some(image) {
                return Ok(ReservationEffects::default());
            }
            let present = state.present();
            let change = state.reservations.adopt_shared(image, &present)?;
            state.adopted = Some(image.to_vec());
            Ok(state.effects(None, &change))
        })
    }

    /// Returns when what `action` ends has ended at every device server: what one that is stopped has begun may land when
    /// it goes on.
    pub(super) async fn settled(&self, action: ReserveOutAction) -> Result<(), Fault> {
        use ReserveOutAction::{Clear, Preempt, PreemptAndAbort};
        match &self.shared {
            Some(shared) if matches!(action, Clear | Preempt | PreemptAndAbort) => {
                shared.settled().await.map_err(|why| self.not_reached(&why))
            }
            _ => Ok(()),
        }
    }

    /// SAM-5, 5.3.1: the initiator may try it again.
    fn not_reached(&self, error: &std::io::Error) -> Fault {
        if let Some((Permit { suppressed }, _)) = self.log_limiter.permit() {
            tracing::error!(%error, suppressed, "the shared reservations cannot be reached");
        }
        Fault::Status(Status::Busy)
    }

    /// Refuses all changes from now on. When this returns, none is being kept: whoever reads what was kept reads the
    /// last of it.
    pub(super) async fn retire(&self) {
        self.order.lock().await.retired = true;
    }

    /// The turn to change something.
    async fn turn(&self) -> Result<MutexGuard<'_, Order>, Fault> {
        let turn = self.order.lock().await;
        if turn.retired {
            return Err(Sense::illegal(Additional::LOGICAL_UNIT_NOT_SUPPORTED).into());
        }
        Ok(turn)
    }

    fn device<'a>(&self, target_ports: &'a [u16], present: &'a [NexusId]) -> Device<'a> {
        let durable = self.keeper.is_some() || self.shared.is_some();
        Device { target_ports, present, durable, transports: self.transports }
    }

    /// Works on the state, then sets the flag that saves commands the lock.
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut state);
        self.restrict.store(state.reservations.restrict(), Ordering::Relaxed);
        done
    }
}

impl State {
    /// A nexus that is not there is nobody: it cannot hold anything.
    fn id(&self, nexus: Nexus) -> Result<NexusId, Conflict> {
        self.initiators.get(&nexus).map(|initiator| initiator.id().clone()).ok_or(Conflict)
    }

    fn present(&self) -> Vec<NexusId> {
        self.initiators.values().map(|there| there.id().clone()).collect()
    }

    /// The pending change comes true, for those who are there now.
    fn commit(&mut self, by: Nexus) -> ReservationEffects {
        let Some(change) = self.pending.take() else { return ReservationEffects::default() };
        let present = self.present();
        self.reservations.commit(&change, &present);
        self.effects(Some(by), &change)
    }

    /// A change that is shared comes true, unless what others have made of it meanwhile already has.
    fn commit_shared(
        &mut self,
        by: Nexus,
        change: Change,
        base: Option<Vec<u8>>,
        image: Vec<u8>,
    ) -> ReservationEffects {
        if self.adopted == base {
            let present = self.present();
            self.reservations.commit(&change, &present);
            self.adopted = Some(image);
        }
        self.effects(Some(by), &change)
    }

    fn effects(&self, by: Option<Nexus>, change: &Change) -> ReservationEffects {
        let present =
            |id: &NexusId| self.initiators.iter().find(|(_, initiator)| initiator.id() == id);
        let attentions = change.attentions.iter();
        let attentions = attentions
            .filter_map(|(id, condition)| present(id).map(|(nexus, _)| (*nexus, *condition)))
            .collect();
        // One that preempts itself would end the command that says so.
        let others =
            change.abort.iter().filter_map(present).filter(|(nexus, _)| Some(**nexus) != by);
        let abort = others.map(|(nexus, initiator)| (*nexus, Arc::clone(initiator))).collect();
        ReservationEffects { attentions, abort }
    }
}

impl From<Conflict> for Fault {
    fn from(_: Conflict) -> Self {
        Self::Status(Status::ReservationConflict)
    }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Conflict => Conflict.into(),
            Refused::Sense(sense) => sense.into(),
        }
    }
}

#[cfg(test)]
mod tests;
