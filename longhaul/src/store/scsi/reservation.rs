//! One writer: the persistent reservation of a disk, from its attachment to its end. Which commands that takes is
//! decided in `proto`; here they are carried out, and what must outlive this process is noted.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use proto::scsi::Status;
use proto::scsi::command::Command;
use proto::scsi::transport::Transports;
use proto::scsi::writer::{self, Answer, Hold, NotHeld, Registrants, Released, Victims};

use super::mark::{Mark, Unguarded};
use super::options::ReplayedLog;
use super::session::{ResetAnswer, Session};
use super::unit::{Unit, UnitError};
use super::writers::Writers;
use crate::attachments::{self, Attachment, Entry, Known, MaybeAlive, Place};
use crate::printable::Shown as _;
use crate::replay_log;

/// How long an end waits for the reservation to be given back.
const RELEASED_WITHIN: Duration = Duration::from_secs(10);

/// How a unit is reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) writers: Writers,
    /// The replay log that is to be written.
    pub(super) replays: Option<&'a ReplayedLog>,
    /// The state directory, where attachments are noted.
    pub(super) state: Option<&'a Path>,
    /// Where that replay log is, or the one of this attachment would be.
    pub(super) replay_logs: Option<&'a Path>,
}

impl Request<'_> {
    /// What this machine knows of the unit at `place`. An attachment with an unwritten replay log is not one that can be
    /// replaced, unless that log is the one that is to be written.
    fn known(&self, place: &Place) -> Known {
        let Some(state) = self.state else { return Known::default() };
        let mut known = Known::of(&attachments::folder(state), place);
        if matches!(self.writers, Writers::One | Writers::Shared) {
            known.spare(|entry| self.waits(entry));
        }
        known
    }

    /// What an attachment that is gone has left to be written, but for what is to be written now.
    fn waits(&self, entry: &Entry) -> Option<MaybeAlive> {
        let keys = [Some(entry.key), entry.replays];
        let mut others = keys.into_iter().flatten().filter(|key| Some(*key) != self.replayed());
        let found = others.find_map(|key| self.unwritten(key, entry.replay_logs.as_deref()));
        if let Some(log) = found {
            return Some(MaybeAlive::Unwritten(log));
        }
        if self.replayed().is_some_and(|key| keys.contains(&Some(key))) {
            return None;
        }
        let log = entry.unwritten_logs.iter().find(|log| !replay_log::is_written(log))?.clone();
        Some(match replay_log::is_readable(&log) {
            true => MaybeAlive::Unwritten(log),
            false => MaybeAlive::LogMissing(log),
        })
    }

    /// The last attachment that this one takes the volume from, and that has left something to be written. It was found
    /// at this place, or its key is among those that were `seen` there.
    fn predecessor<'k>(&self, place: &Place, known: &'k Known, seen: &[u64]) -> Option<&'k Entry> {
        if self.writers != Writers::TakeOver {
            return None;
        }
        let is_here = |entry: &&Entry| entry.is_of(place) || seen.contains(&entry.key);
        let here = known.gone.iter().map(|(entry, _)| entry).filter(is_here);
        here.filter(|entry| self.waits(entry).is_some()).max_by_key(|entry| entry.since)
    }

    /// What keeps the reservation from being given back.
    fn kept(&self, entry: &Entry) -> Kept {
        match (self.replayed(), entry.replays) {
            (Some(_), _) => Kept::UntilWritten,
            (None, Some(_)) => Kept::UntilChanged,
            (None, None) => Kept::No,
        }
    }

    /// The key of the attachment whose replay log is to be written.
    fn replayed(&self) -> Option<u64> {
        self.replays?.key
    }

    /// The unwritten replay log of the attachment with this key, if there is one where logs are or in `noted`.
    fn unwritten(&self, key: u64, noted: Option<&Path>) -> Option<PathBuf> {
        let places = [noted, self.replay_logs, self.state];
        places.into_iter().flatten().find_map(|dir| replay_log::of_key(dir, key))
    }

    /// Whose registrations are removed on the way.
    fn victims(&self, known: &Known) -> Victims {
        match self.writers {
            Writers::One => Victims::Stale(known.gone.iter().map(|(entry, _)| entry.key).collect()),
            _ => Victims::Everyone,
        }
    }

    /// What is noted of an attachment with this key, before it is registered.
    fn entry(&self, place: &Place, key: u64, before: Option<&Entry>) -> Entry {
        // A path that is no text cannot be noted.
        let is_text = |path: &&Path| path.to_str().is_some();
        let replay_logs = self.replay_logs.filter(is_text).map(PathBuf::from);
        let replayed = self.replays.filter(|log| log.key.is_some()).map(|log| &*log.file);
        let unwritten_logs = replayed.filter(is_text).map(PathBuf::from).into_iter().collect();
        let entry = Entry { replays: self.replayed(), unwritten_logs, ..Entry::new(place, key) };
        // As long as it has changed nothing, what its predecessor has left can still be written.
        let entry = match before {
            Some(before) => entry.in_place_of(before),
            None => entry,
        };
        Entry { replay_logs, ..entry }
    }

    async fn reserve<S: Session>(
        &self,
        unit: &Unit<S>,
        key: u64,
        known: &Known,
    ) -> Result<Hold, NotHeld<UnitError>> {
        let Writers::Resume(of) = self.writers else {
            return writer::acquire(unit, key, &self.victims(known)).await;
        };
        let began_the_same = known.gone.iter().filter(|(entry, _)| entry.replays == Some(of));
        let stale: Vec<_> = began_the_same.map(|(entry, _)| entry.key).collect();
        writer::resume(unit, key, of, &stale).await
    }

    /// Notes the attachment under the key that it has in the end. The earlier note stays until that is done.
    fn renamed(&self, noted: Option<Attachment>, entry: Entry) -> Option<Attachment> {
        // What could not be noted before cannot be now.
        if noted.as_ref().is_none_or(|noted| noted.is_of(entry.key)) {
            return noted;
        }
        let renamed = self.note(&entry, true);
        if renamed.is_some() {
            noted.into_iter().for_each(Attachment::forget);
        }
        renamed
    }

    fn note(&self, entry: &Entry, again: bool) -> Option<Attachment> {
        let folder = attachments::folder(self.state?);
        let noted = match again {
            true => Attachment::note_again(&folder, entry),
            false => Attachment::note(&folder, entry),
        };
        let failed = |why: &io::Error| {
            let folder = folder.shown();
            tracing::warn!(%folder, %why, "cannot note the attachment: after a crash it takes --take-over");
        };
        noted.inspect_err(failed).ok()
    }
}

/// A key that nobody else uses.
fn random_key() -> Result<u64, ReservationError> {
    let mut key = [0; 8];
    getrandom::fill(&mut key)?;
    Ok(u64::from_ne_bytes(key).max(1))
}

/// Why a volume is not reserved.
#[derive(Debug, thiserror::Error)]
pub enum ReservationError {
    /// The unit does not answer as it should.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// No randomness for a key.
    #[error("the system gives no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// Another writer has the volume, or it is kept for a replay log.
    #[error("{what}: {0}", what = .0.what())]
    Held(Holders),
    /// The last attachment has left a replay log that is gone.
    #[error(
        "what its last attachment could not write is in the replay log {}, which is not there or cannot be read", .0.shown()
    )]
    LogMissing(PathBuf),
    /// Another writer has the volume now, or had it meanwhile.
    #[error("the reservation was taken away; the volume is held by {0}")]
    Fenced(Holders),
    /// Another writer has put its mark on the volume, or ours is gone.
    #[error("the mark of this attachment is not on the volume any more; {0}")]
    Replaced(String),
    /// Nobody knows whether others have written since a writer that is gone.
    #[error("cannot know whether anybody has written to the volume since: {why}")]
    NotResumed {
        /// What shows no more that nobody has.
        why: String,
        /// Another writer has it now.
        is_held: bool,
    },
    /// The reservation can be neither had nor refused.
    #[error("cannot reserve the volume: {0}")]
    Failed(String),
}

impl ReservationError {
    /// Whether the volume is another's now, or was meanwhile.
    pub(super) const fn is_fence(&self) -> bool {
        matches!(self, Self::Fenced(_) | Self::Replaced(_))
    }
}

/// Who has a volume.
#[derive(Clone, Debug)]
pub struct Holders {
    registrants: Registrants,
    /// The process, if it is one of this machine, and since when it is attached.
    here: Option<(u32, Duration)>,
    /// It is noted in the state directory, and why it is not taken over for that.
    doubt: Option<MaybeAlive>,
}

impl Holders {
    /// Whether the volume waits for a replay log to be written.
    pub(crate) const fn has_unwritten_log(&self) -> bool {
        matches!(self.doubt, Some(MaybeAlive::Unwritten(_) | MaybeAlive::LogMissing(_)))
    }

    /// Whether that log is not there.
    pub(crate) const fn has_missing_log(&self) -> bool {
        matches!(self.doubt, Some(MaybeAlive::LogMissing(_)))
    }

    /// What they are to somebody who wants to write.
    pub(super) const fn what(&self) -> &'static str {
        match self.has_unwritten_log() {
            true => "it is reserved for the replay log of its last writer",
            false => "another writer has the volume",
        }
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.registrants.fmt(f)?;
        if let Some((pid, ago)) = self.here {
            let ago = ago.as_secs();
            write!(f, " (process {pid} of this machine, attached {ago} s ago)")?;
        }
        match &self.doubt {
            Some(why) => write!(f, " (noted in the state directory; {why})"),
            None => Ok(()),
        }
    }
}

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
enum Kept {
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
    Reserved { hold: Hold, noted: Option<Attachment>, kept: Kept },
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
        place: &Place,
        request: Request<'_>,
    ) -> Result<(), ReservationError> {
        if request.writers == Writers::Unasked {
            return Ok(());
        }
        let known = request.known(place);
        refuse_without_log(unit, place, &known).await?;
        if request.writers == Writers::Shared {
            return self.share(unit, &known, &request).await;
        }
        let seen = match known.may_be_elsewhere(place) {
            true => writer::registered(unit).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let key = random_key()?;
        let predecessor = request.predecessor(place, &known, &seen);
        let entry = request.entry(place, key, predecessor);
        let noted = request.note(&entry, false);
        match request.reserve(unit, key, &known).await {
            Ok(hold) => {
                if hold.leaves_tasks {
                    end_tasks(unit).await;
                }
                let kept = request.kept(&entry);
                let noted = request.renamed(noted, Entry { key: hold.key, ..entry });
                known.ended_at(place, &seen, hold.key).for_each(Attachment::forget);
                *self.lock() = Ownership::reserved(hold, noted, kept);
                Ok(())
            }
            Err(NotHeld::Unsupported) if !matches!(request.writers, Writers::Resume(_)) => {
                // Nothing shows that nobody else writes meanwhile.
                let noted = match request.kept(&entry) {
                    Kept::UntilChanged => noted.and_then(Attachment::succeed),
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

    /// The key of the attachment, under which it is noted.
    pub(super) fn key(&self) -> Option<u64> {
        match &*self.lock() {
            Ownership::Reserved { hold, .. } => Some(hold.key),
            Ownership::Unguarded { unguarded, .. } => Some(unguarded.key).filter(|key| *key != 0),
            Ownership::None => None,
        }
    }

    /// It guards a replay log of this attachment: it is not given back at the end.
    pub(super) fn keep(&self) {
        self.set_kept(Kept::UntilWritten);
    }

    /// The replay log that it guards is written.
    pub(super) fn log_written(&self) {
        self.set_kept(Kept::No);
    }

    fn set_kept(&self, new: Kept) {
        if let Ownership::Reserved { kept, .. } = &mut *self.lock() {
            *kept = new;
        }
    }

    /// Whether it is not given back at the end.
    pub(super) fn is_kept(&self) -> bool {
        matches!(&*self.lock(), Ownership::Reserved { kept, .. } if *kept != Kept::No)
    }

    /// Something is about to be written. From the first time on a log that was there before is not the newest any more.
    pub(super) fn note_change(&self) {
        if self.changed.load(Ordering::Acquire) {
            return;
        }
        let mut ownership = self.lock();
        if let Ownership::Reserved { kept: kept @ Kept::UntilChanged, noted, .. } = &mut *ownership
        {
            *kept = Kept::No;
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
            Err(NotHeld::By(registrants)) => {
                Err(ReservationError::Fenced(Holders { registrants, here: None, doubt: None }))
            }
            Err(NotHeld::Unit(why)) => Err(why.into()),
            Err(other) => Err(ReservationError::Failed(describe(&other))),
        }
    }

    /// Gives it back, if it is not kept. One that cannot be given back stays noted: the next attachment of this machine
    /// removes it.
    pub(super) async fn release<S: Session>(&self, unit: &Unit<S>) {
        let ownership = std::mem::take(&mut *self.lock());
        let (hold, noted) = match ownership {
            Ownership::Reserved { hold, noted, kept: Kept::No } => (hold, noted),
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
    fn reserved(hold: Hold, noted: Option<Attachment>, kept: Kept) -> Self {
        let Hold { key, through_power_loss, .. } = hold;
        tracing::info!(
            key,
            durable = through_power_loss,
            "the volume is reserved: nobody else can write to it"
        );
        Self::Reserved { hold, noted, kept }
    }

    fn unguarded(
        writers: Writers,
        (key, noted): (u64, Option<Attachment>),
        place: &Place,
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

/// Refuses a unit whose last attachment has left a replay log that is not there: whoever goes on sets aside what it holds.
/// Where somebody else has the unit, that comes first.
async fn refuse_without_log<S: Session>(
    unit: &Unit<S>,
    place: &Place,
    known: &Known,
) -> Result<(), ReservationError> {
    let Some(log) = known.missing_log(place) else { return Ok(()) };
    let registered = writer::registered(unit).await.unwrap_or_default();
    let is_gone = |key: &u64| known.gone.iter().any(|(entry, _)| entry.key == *key);
    match registered.iter().all(is_gone) {
        true => Err(ReservationError::LogMissing(log.to_owned())),
        false => Ok(()),
    }
}

/// Ends what the writer before has under way, where the take-over did not: a reset leaves reservations as they are.
async fn end_tasks<S: Session>(unit: &Unit<S>) {
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
    match request.writers {
        Writers::Resume(_) => not_resumed(why),
        _ => not_held(why, known, request),
    }
}

/// What it means at an attachment that the reservation cannot be had.
fn not_held(why: NotHeld<UnitError>, known: &Known, request: &Request<'_>) -> ReservationError {
    match why {
        NotHeld::By(registrants) => {
            let key = registrants.0.first().map(|first| first.key);
            let here = known.living.iter().find(|entry| Some(entry.key) == key);
            let here = here.map(|entry| (entry.pid, since(entry.since)));
            let doubt = known.doubtful.iter().find(|(entry, ..)| Some(entry.key) == key);
            let doubt = doubt.map(|(.., doubt)| doubt.clone());
            // The note may be gone, or that of another machine.
            let log = || Some(MaybeAlive::Unwritten(request.unwritten(key?, None)?));
            let doubt = doubt.or_else(|| log().filter(|_| here.is_none()));
            ReservationError::Held(Holders { registrants, here, doubt })
        }
        NotHeld::Unit(why) => why.into(),
        other => ReservationError::Failed(describe(&other)),
    }
}

/// What it means for one who goes on for a writer that is gone.
fn not_resumed(why: NotHeld<UnitError>) -> ReservationError {
    let is_held = matches!(&why, NotHeld::By(Registrants(found)) if !found.is_empty());
    let why = match why {
        NotHeld::By(Registrants(found)) if found.is_empty() => {
            "the reservation of the attachment it is from is gone".to_owned()
        }
        NotHeld::By(found) => {
            format!("the attachment it is from does not have the volume any more; {found} has")
        }
        NotHeld::Unsupported => "the target has no persistent reservations".to_owned(),
        NotHeld::Unit(why) => return why.into(),
        other => describe(&other),
    };
    ReservationError::NotResumed { why, is_held }
}

fn since(seconds: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(Duration::from_secs(seconds))
}

fn describe(why: &NotHeld<UnitError>) -> String {
    match why {
        NotHeld::Answer(what, answer) | NotHeld::Kept(what, answer) => {
            format!("{what} {}", describe_answer(answer))
        }
        NotHeld::Registered(what, answer) => format!(
            "{what} {}, and the target does not remove the registration either",
            describe_answer(answer)
        ),
        NotHeld::Malformed(what) => format!("{what} cannot be read"),
        _ => "the unit has no persistent reservations any more".to_owned(),
    }
}

fn describe_answer(answer: &Answer) -> String {
    match answer {
        Answer::Check(sense) => format!("is answered by {sense}"),
        Answer::Conflict => "meets a reservation conflict".to_owned(),
        Answer::Good(_) => "is answered by GOOD".to_owned(),
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
