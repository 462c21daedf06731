//! One writer: the persistent reservation of a disk, from its attachment to its end. Which commands that takes is
//! decided in `proto`; here they are carried out, and what must outlive this process is noted.

mod answers;
mod error;
mod request;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use proto::scsi::Status;
use proto::scsi::command::Command;
use proto::scsi::transport::Transports;
use proto::scsi::writer::{self, Answer, NotHeld, OwnReservation, Released};

use self::answers::{describe, describe_answer};
pub use self::error::{Holders, ReservationError};
use self::error::{not_held, not_resumed, since};

pub(super) use self::request::Request;
use super::key::new_key;
use super::mark::{Mark, Unguarded};
use super::session::{ResetAnswer, Session};
use super::unit::{Unit, UnitError};
use super::writers::{Predecessor, Writers};
use crate::attachments::{AliveReason, Attachment, Entry, Known, UnitAddress};
use crate::utc::now;

/// How long an end waits for the reservation to be given back.
const RELEASED_WITHIN: Duration = Duration::from_secs(10);

/// The reservation of one disk, or what takes its place.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    ownership: Mutex<Ownership>,
    /// Something was to be written, whatever came of it.
    changed: AtomicBool,
}

/// Whether a reservation is given back at the end. One that guards a replay log is not, however that end comes: what it
/// shows, that nobody else has written since, cannot be had again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Retention {
    /// It is given back.
    #[default]
    No,
    /// It guards a log that is not written yet.
    UntilWritten,
    /// It was taken over from one that did, and nothing was written since.
    UntilChanged,
}

/// What keeps other writers away.
#[derive(Debug, Default)]
enum Ownership {
    /// Nothing.
    #[default]
    None,
    /// The target.
    Reserved { hold: OwnReservation, noted: Option<Attachment>, retention: Retention },
    /// A mark on the volume, if there is one: the target has no reservations.
    Unguarded {
        unguarded: Unguarded,
        noted: Option<Attachment>,
        /// Attachments of before, until the mark stands in the place of theirs.
        before: Vec<Attachment>,
        mark: Option<Mark>,
    },
}

impl Reservation {
    /// Reserves a unit that was just opened, and found at `place`.
    pub(super) async fn acquire<S: Session>(
        &self,
        unit: &Unit<S>,
        place: &UnitAddress,
        request: Request<'_>,
    ) -> Result<(), ReservationError> {
        if request.writers == Writers::Unasked {
            return Ok(());
        }
        let known = request.known(place);
        refuse_if_left_behind(unit, place, &known, request.replays.is_some()).await?;
        if request.writers == Writers::Shared {
            return self.share(unit, &known, &request).await;
        }
        let seen = match known.may_be_elsewhere(place) {
            true => writer::registered(unit).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let key = new_key(now())?;
        let predecessor = request.predecessor(place, &known, &seen);
        let entry = request.entry(place, key, predecessor);
        let noted = request.note(&entry, false);
        match request.reserve(unit, key, &known).await {
            Ok(hold) => {
                if hold.leaves_tasks {
                    end_tasks(unit).await;
                }
                let retention = request.retention(&entry);
                let noted = request.renamed(noted, Entry { key: hold.key, ..entry });
                known.ended_at(place, &seen, hold.key).for_each(Attachment::forget);
                *self.lock() = Ownership::reserved(hold, noted, retention);
                Ok(())
            }
            Err(NotHeld::Unsupported) if !request.writers.continues() => {
                // Nothing shows that nobody else writes meanwhile.
                let noted = match request.retention(&entry) {
                    Retention::UntilChanged => noted.and_then(Attachment::succeed),
                    _ => noted,
                };
                *self.lock() = Ownership::unguarded(request.writers, (key, noted), place, known);
                Ok(())
            }
            Err(why) => Err(not_acquired(why, (key, noted), &known, &request)),
        }
    }

    /// Makes sure that no reservation keeps us from writing.
    async fn share<S: Session>(
        &self,
        unit: &Unit<S>,
        known: &Known,
        request: &Request<'_>,
    ) -> Result<(), ReservationError> {
        match writer::may_write(unit).await {
            Ok(()) => Ok(()),
            Err(NotHeld::Unsupported) => {
                let unguarded = Unguarded {
                    writers: Writers::Shared,
                    key: 0,
                    gone: Vec::new(),
                    others: Vec::new(),
                };
                *self.lock() = Ownership::of(unguarded, None, Vec::new());
                Ok(())
            }
            Err(why) => Err(not_held(why, known, request)),
        }
    }

    /// Whether there is one.
    pub(super) fn is_held(&self) -> bool {
        matches!(*self.lock(), Ownership::Reserved { .. })
    }

    /// What the next process of the same attachment has to know of it, if it is held.
    pub(super) fn for_successor(&self) -> Option<Predecessor> {
        match &*self.lock() {
            Ownership::Reserved { hold, .. } => {
                Some(Predecessor { key: hold.key, through_power_loss: hold.through_power_loss })
            }
            _ => None,
        }
    }

    /// The key of the attachment, under which it is noted.
    pub(super) fn key(&self) -> Option<u64> {
        match &*self.lock() {
            Ownership::Reserved { hold, .. } => Some(hold.key),
            Ownership::Unguarded { unguarded, .. } => Some(unguarded.key).filter(|key| *key != 0),
            Ownership::None => None,
        }
    }

    /// It guards a replay log of this attachment, or is for the next process that goes on: it is not given back at the end.
    pub(super) fn keep(&self) {
        self.set_retention(Retention::UntilWritten);
    }

    /// The replay log that it guards is written.
    pub(super) fn log_written(&self) {
        self.set_retention(Retention::No);
    }

    fn set_retention(&self, new: Retention) {
        if let Ownership::Reserved { retention, .. } = &mut *self.lock() {
            *retention = new;
        }
    }

    /// Whether it is not given back at the end.
    pub(super) fn is_kept(&self) -> bool {
        matches!(&*self.lock(), Ownership::Reserved { retention, .. } if *retention != Retention::No)
    }

    /// Something is about to be written. From the first time on a log that was there before is not the newest any more.
    pub(super) fn note_change(&self) {
        if self.changed.load(Ordering::Acquire) {
            return;
        }
        let mut ownership = self.lock();
        if let Ownership::Reserved {
            retention: retention @ Retention::UntilChanged, noted, ..
        } = &mut *ownership
        {
            *retention = Retention::No;
            *noted = noted.take().and_then(Attachment::succeed);
        }
        // Whoever changes something at the same moment waits until that is noted.
        self.changed.store(true, Ordering::Release);
    }

    /// What a mark takes, where the target has no reservations.
    pub(super) fn unguarded(&self) -> Option<Unguarded> {
        match &*self.lock() {
            Ownership::Unguarded { unguarded, .. } => Some(unguarded.clone()),
            _ => None,
        }
    }

    /// The mark that is on the volume.
    pub(super) fn mark(&self) -> Option<Mark> {
        match &*self.lock() {
            Ownership::Unguarded { mark, .. } => mark.clone(),
            _ => None,
        }
    }

    /// The volume has our mark, and no other.
    pub(super) fn set_mark(&self, new: Mark) {
        if let Ownership::Unguarded { before, mark, .. } = &mut *self.lock() {
            std::mem::take(before).into_iter().for_each(Attachment::forget);
            *mark = Some(new);
        }
    }

    /// The volume has our mark no more, and nobody needs to know whose it was.
    pub(super) fn unmark(&self) {
        if let Ownership::Unguarded { mark, .. } = &mut *self.lock() {
            *mark = None;
        }
        self.forget_unmarked();
    }

    /// Forgets an attachment that no mark names, and those that it has taken the volume from.
    pub(super) fn forget_unmarked(&self) {
        if let Ownership::Unguarded { unguarded, noted, before, mark: None } = &mut *self.lock() {
            noted.take().into_iter().for_each(Attachment::forget_without_log);
            if unguarded.writers == Writers::TakeOver {
                std::mem::take(before).into_iter().for_each(Attachment::forget);
            }
        }
    }

    /// Finds out on a new session whether it is still ours.
    pub(super) async fn confirm<S: Session>(&self, unit: &Unit<S>) -> Result<(), ReservationError> {
        let held = match &*self.lock() {
            Ownership::Reserved { hold, .. } => *hold,
            _ => return Ok(()),
        };
        match writer::confirm(unit, &held).await {
            Ok(confirmed) => {
                if let Ownership::Reserved { hold, .. } = &mut *self.lock() {
                    *hold = confirmed;
                }
                Ok(())
            }
            Err(NotHeld::By(registrants)) => Err(ReservationError::Fenced(registrants.into())),
            Err(NotHeld::Unit(why)) => Err(why.into()),
            Err(other) => Err(ReservationError::Failed(describe(&other))),
        }
    }

    /// Gives it back, if it is not kept. One that cannot be given back stays noted: the next attachment of this machine
    /// removes it.
    pub(super) async fn release<S: Session>(&self, unit: &Unit<S>) {
        let ownership = std::mem::take(&mut *self.lock());
        let (hold, noted) = match ownership {
            Ownership::Reserved { hold, noted, retention: Retention::No } => (hold, noted),
            other => {
                *self.lock() = other;
                return;
            }
        };
        match tokio::time::timeout(RELEASED_WITHIN, writer::release(unit, &hold)).await {
            Ok(Ok(Released::Gone)) => {
                noted.into_iter().for_each(Attachment::forget);
                return;
            }
            Ok(Ok(Released::Registered(answer))) => {
                let answer = describe_answer(&answer);
                tracing::warn!(
                    answer,
                    "the volume stays reserved: the target did not let go of it"
                );
            }
            Ok(Err(why)) => tracing::warn!(%why, "the reservation could not be given back"),
            Err(_) => tracing::warn!("the reservation could not be given back in time"),
        }
        noted.into_iter().for_each(Attachment::leave);
    }

    /// Nothing is written by this attachment any more, and its reservation stays: the next attachment of this machine
    /// need not wait for the end of this process.
    pub(super) fn leave(&self) {
        if let Ownership::Reserved { noted, .. } = &mut *self.lock() {
            noted.take().into_iter().for_each(Attachment::leave);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ownership> {
        self.ownership.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ownership {
    fn reserved(hold: OwnReservation, noted: Option<Attachment>, retention: Retention) -> Self {
        let OwnReservation { key, through_power_loss, .. } = hold;
        tracing::info!(
            key,
            durable = through_power_loss,
            "the volume is reserved: nobody else can write to it"
        );
        if hold.is_forgetful {
            tracing::warn!(
                "the target says that it keeps reservations through a restart, and has refused to keep this one: after a \
                 restart another writer may come before this one is back; its log may tell why"
            );
        }
        Self::Reserved { hold, noted, retention }
    }

    fn unguarded(
        writers: Writers,
        (key, noted): (u64, Option<Attachment>),
        place: &UnitAddress,
        known: Known,
    ) -> Self {
        let here = known.living.iter().map(|entry| {
            let ago = since(entry.since).as_secs();
            (entry.key, format!("process {} of this machine, attached {ago} s ago", entry.pid))
        });
        let doubtful = known
            .doubtful
            .iter()
            .map(|(entry, _, doubt)| (entry.key, format!("noted in the state directory; {doubt}")));
        let unguarded = Unguarded {
            writers,
            key,
            gone: known.gone.iter().map(|(entry, _)| entry.key).collect(),
            others: here.chain(doubtful).collect(),
        };
        Self::of(unguarded, noted, known.ended_at(place, &[], key).collect())
    }

    const fn of(unguarded: Unguarded, noted: Option<Attachment>, before: Vec<Attachment>) -> Self {
        Self::Unguarded { unguarded, noted, before, mark: None }
    }
}

/// Refuses a unit whose last attachment has left a replay log that is not there, or a journal: whoever goes on sets aside
/// what it holds. A target that has forgotten its reservations says nothing of it. Where somebody else has the unit, that
/// comes first.
async fn refuse_if_left_behind<S: Session>(
    unit: &Unit<S>,
    place: &UnitAddress,
    known: &Known,
    is_replay: bool,
) -> Result<(), ReservationError> {
    let Some(left) = known.left_behind(place) else { return Ok(()) };
    let registered = writer::registered(unit).await.unwrap_or_default();
    let is_gone = |key: &u64| known.gone.iter().any(|(entry, _)| entry.key == *key);
    if !registered.iter().all(is_gone) {
        return Ok(());
    }
    match left {
        AliveReason::LogMissing(log) => Err(ReservationError::LogMissing(log.clone())),
        // It may have been exported as the log that is written now.
        AliveReason::Unwritten(_) if is_replay => Ok(()),
        AliveReason::Unwritten(journal) => Err(ReservationError::JournalUnsent(journal.clone())),
        _ => Ok(()),
    }
}

/// Ends what the writer before has under way, where the take-over did not: a reset leaves reservations as they are.
pub(super) async fn end_tasks<S: Session>(unit: &Unit<S>) {
    match unit.reset().await {
        Ok(ResetAnswer::Complete) => {
            // It reports the reset, which has lost nothing of ours.
            let _ = unit.execute(Command::test_unit_ready(), Bytes::new()).await;
            unit.session().announced().forget();
        }
        refused => {
            tracing::warn!(
                ?refused,
                "the unit cannot end what the writer before has under way: it may still land"
            );
        }
    }
}

/// Why a reservation was not acquired. Its note stays if a session that was lost may have left a registration behind.
fn not_acquired(
    why: NotHeld<UnitError>,
    (key, noted): (u64, Option<Attachment>),
    known: &Known,
    request: &Request<'_>,
) -> ReservationError {
    let ended = if why.may_leave(key) { Attachment::leave } else { Attachment::forget };
    noted.into_iter().for_each(ended);
    match request.writers.continues() {
        true => not_resumed(why),
        false => not_held(why, known, request),
    }
}

impl<S: Session> writer::Unit for Unit<S> {
    type Error = UnitError;

    async fn ask(&self, command: Command, data: Vec<u8>) -> Result<Answer, UnitError> {
        match self.execute(command, data.into()).await {
            Ok(bytes) => Ok(Answer::Good(bytes.into())),
            Err(UnitError::Status(Status::ReservationConflict)) => Ok(Answer::Conflict),
            Err(UnitError::Sense(sense)) => Ok(Answer::Check(sense)),
            Err(why) => Err(why),
        }
    }

    fn transports(&self) -> Transports {
        S::TRANSPORTS
    }
}
