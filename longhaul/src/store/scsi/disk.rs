//! The volume: what the device says of itself, on whatever link there is to it.

use std::fmt;
use std::future::ready;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use proto::scsi::writer::Registrants;
use volume::layer::reconnect::{Over, RequestError, Status, Supervisor};
use volume::{
    Durability, Error, Extent, ExtentMap, GroupChange, Kind, Ordered, Shape, Space, Span, Verb,
    Volume, Work,
};

use super::attend::{attend, watch_mark};
use super::change::{Change, Group};
use super::connect::Connector;
use super::error::OpenError;
use super::identity::Identity;
use super::mark::{Mark, MarkCheck, Unguarded};
use super::options::{Options, Seen};
use super::session::{Session as _, Transport};
use super::unit::UnitError;
use super::volume::Link;
use super::watch::Watched;
use super::writers::Predecessor;
use crate::attachments::{self, UnitAddress};
use crate::replay_log::{Header, Saved};

/// How long the end of a session is waited for of which nothing is wanted any more.
const LOGGED_OUT_WITHIN: Duration = Duration::from_secs(2);

/// How long the end waits for changes that are under way before the reservation is given back.
const CHANGED_WITHIN: Duration = Duration::from_secs(10);

/// A disk behind a SCSI target, with the size that it had when it was opened, or [has grown to](Disk::grown).
pub struct Disk<T: Transport> {
    shape: Shape,
    shared: Arc<Shared<T>>,
}

/// What is the same of a disk that has grown.
struct Shared<T: Transport> {
    tells_extents: bool,
    /// Each write comes in a buffer that holds little else.
    own_buffers: AtomicBool,
    /// How many groups there were.
    groups: AtomicU64,
    supervisor: Arc<Supervisor<Connector<T>>>,
}

impl<T: Transport> fmt::Debug for Disk<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("supervisor", &self.shared.supervisor).finish_non_exhaustive()
    }
}

/// How the connection of a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests are carried out.
    Connected,
    /// They wait.
    Reconnecting {
        /// For how long already.
        lasted: Duration,
        /// How often a connection was tried.
        attempts: u32,
    },
    /// There is a connection, on which some that had no answer before have none either.
    Unanswered {
        /// For how long already.
        lasted: Duration,
        /// How many.
        requests: usize,
    },
    /// They fail.
    Over(Over),
}

impl<T: Transport> Disk<T> {
    /// Opens the unit that a transport leads to. What fails here is not tried again: it may be a mistake, and somebody is
    /// waiting to be told.
    pub async fn open(transport: T, options: Options) -> Result<Self, OpenError<T::Error>> {
        let connector = Connector::new(transport, options);
        let link = connector.open_first().await?;
        let (shape, tells_extents) = (link.shape().clone(), link.device().tells_extents);
        let every = connector.idle();
        let supervisor = connector.watch_over(link);
        supervisor.run(attend(Arc::downgrade(&supervisor), every));
        let (own_buffers, groups) = (AtomicBool::new(false), AtomicU64::new(0));
        let shared = Arc::new(Shared { tells_extents, own_buffers, groups, supervisor });
        Ok(Self { shape, shared })
    }

    /// The same disk as large as its unit is now; `None` if that is no larger, or does not say. Whoever has this one goes on
    /// with the size that it had.
    pub async fn grown(&self) -> Option<Self> {
        let size = self.connector().ask_size(&self.link()).await?;
        (size > self.shape.size).then(|| self.of_size(size))
    }

    /// The same disk, of which that many bytes are used.
    #[must_use]
    pub fn of_size(&self, size: u64) -> Self {
        let shape = Shape { size, ..self.shape.clone() };
        Self { shape, shared: Arc::clone(&self.shared) }
    }

    /// From now on its unit is offered with the size of this one: another link must lead to one that is as large.
    pub fn offer(&self) {
        self.connector().offer(self.shape.size);
    }

    /// From now on each write comes in a buffer that holds little else: what is kept of it needs no copy.
    pub fn expect_own_buffers(&self) {
        self.shared.own_buffers.store(true, Ordering::Relaxed);
    }

    fn connector(&self) -> &Connector<T> {
        self.shared.supervisor.transport()
    }

    /// The unit on the session there is, or was last.
    pub(in crate::store) fn link(&self) -> Arc<Link<T::Session>> {
        self.shared.supervisor.link()
    }

    /// The session there is, or was last.
    #[must_use]
    pub fn session(&self) -> T::Session {
        self.link().session().clone()
    }

    /// How the connection is.
    #[must_use]
    pub fn state(&self) -> State {
        match self.shared.supervisor.status() {
            (Status::Connected, _) => State::Connected,
            (Status::Reconnecting { since, attempts }, now) => {
                State::Reconnecting { lasted: now.saturating_sub(since), attempts }
            }
            (Status::Unanswered { since, requests }, now) => {
                State::Unanswered { lasted: now.saturating_sub(since), requests }
            }
            (Status::Over(over), _) => State::Over(over),
        }
    }

    /// Writes that were acknowledged and are not durable, and their bytes.
    #[must_use]
    pub fn unflushed(&self) -> (usize, usize) {
        self.shared.supervisor.unflushed()
    }

    /// Whether it is given up, so that nothing is carried out any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state(), State::Over(_))
    }

    /// Whether nothing that was acknowledged is missing on the unit, as far as that was watched: of what is written
    /// without a replay log it is not.
    #[must_use]
    pub fn has_flushed_all(&self) -> bool {
        self.shape.read_only
            || (self.connector().keeps_changes() && self.shared.supervisor.has_flushed_all())
    }

    /// From now on the volume must have this LUKS UUID, or the one that is written to it: another that answers in its place
    /// is not written to. Says whether it still has it: a link that came about since the UUID was read was not asked.
    pub async fn identify(&self, identity: Identity) -> volume::Result<bool> {
        self.connector().identify(identity);
        let mut copies = Vec::new();
        for span in self.connector().identity.copies() {
            copies.push((span.at, self.read(span).await));
        }
        self.connector().identity.confirm(copies)
    }

    /// By what it is known when it is opened once more.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let identity = self.connector().identity.found();
        Seen { device: self.link().device().clone(), identity }
    }

    /// The LUKS UUID that it must have, where that is known.
    #[must_use]
    pub fn luks_uuid(&self) -> Option<String> {
        self.connector().identity.uuid()
    }

    /// What is written there is the header of an encrypted volume that is open, and no data: it goes to no replay log.
    pub fn keep_out_of_log(&self, span: Span) {
        self.connector().keep_out_of_log(span);
    }

    /// Calls somebody once some places are written to.
    pub fn watch(&self, watched: Watched) {
        self.connector().watch.add(watched);
    }

    /// Whether a replay log belongs to this unit. One without a serial number is told by its place.
    #[must_use]
    pub fn is_of(&self, header: &Header, target: &str, lun: u16) -> bool {
        let link = self.link();
        let device = link.device();
        let uuids = self.connector().identity.uuid().zip(header.luks_uuid.as_ref());
        device.serial == header.serial
            && uuids.is_none_or(|(here, there)| here == *there)
            && (&device.standard.vendor, &device.standard.product)
                == (&header.vendor, &header.product)
            && (header.serial.is_some() || (target, lun) == (&header.target, header.lun))
    }

    /// What has become of acknowledged writes that the target could not be given; `None` if there are none.
    #[must_use]
    pub fn saved(&self) -> Option<Saved> {
        self.connector().saved()
    }

    /// The same, once all of them are in the replay log, or lost. Of a disk that was not closed there may be more
    /// later.
    pub async fn settled(&self) -> Option<Saved> {
        self.connector().settled().await
    }

    /// Why there is no connection, or why the last one was lost: the cause and all beneath it.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.shared.supervisor.reason()
    }

    /// The bytes that the unit has and are not offered: it has grown since.
    #[must_use]
    pub fn not_offered(&self) -> u64 {
        self.link().device().size().saturating_sub(self.connector().offered())
    }

    /// From now on an outage is waited for as long as this, or for ever.
    pub fn set_outage_limit(&self, patience: Option<Duration>) {
        self.shared.supervisor.set_outage_limit(patience);
    }

    /// From now on an outage is waited for only this long: for whoever wants to end, and to flush before.
    pub fn leave(&self, grace: Duration) {
        self.shared.supervisor.leave(grace);
    }

    /// The replay log that the reservation was kept for is written: it is given back at the end.
    pub fn log_written(&self) {
        self.connector().reservation.log_written();
    }

    /// The key by which it is reserved, if it is.
    #[must_use]
    pub fn reserved(&self) -> Option<u64> {
        let reservation = &self.connector().reservation;
        reservation.key().filter(|_| reservation.is_held())
    }

    /// What the next process of the same attachment has to know of the reservation, if there is one.
    #[must_use]
    pub fn for_successor(&self) -> Option<Predecessor> {
        self.connector().reservation.for_successor()
    }

    /// The reservation outlasts this attachment.
    pub fn keep_reserved(&self) {
        self.connector().reservation.keep();
    }

    /// From now on it may lack what is in the journal at `path`: the reservation outlasts this attachment, and its note names
    /// the journal.
    pub fn guard_journal(&self, path: &Path) -> io::Result<()> {
        self.connector().reservation.keep();
        let (Some(state), Some(key)) = (self.connector().state(), self.reserved()) else {
            tracing::warn!(
                "no state directory: only the target shows that the volume lacks what is in the journal"
            );
            return Ok(());
        };
        attachments::note_log(&attachments::folder(state), key, path)
    }

    /// It has all of that journal.
    pub fn journal_sent(&self, path: &Path) -> io::Result<()> {
        self.connector().reservation.log_written();
        match (self.connector().state(), self.reserved()) {
            (Some(state), Some(key)) => {
                attachments::forget_log(&attachments::folder(state), key, path)
            }
            _ => Ok(()),
        }
    }

    /// What keeping other writers away takes, if the target cannot do it and nothing does yet.
    #[must_use]
    pub fn unguarded(&self) -> Option<Unguarded> {
        self.connector().reservation.unguarded()
    }

    /// From now on a mark on the volume says that it is ours: `span` holds it as long as `is_ours` finds it there.
    /// Nothing is written any more once it is not.
    pub fn mark(&self, span: Span, is_ours: MarkCheck) {
        self.connector().reservation.set_mark(Mark { span, is_ours });
        self.shared.supervisor.run(watch_mark(Arc::downgrade(&self.shared.supervisor)));
    }

    /// Waits, not for ever, until every change has ended; whether all have. Only then may the mark be removed.
    pub async fn is_quiet(&self) -> bool {
        let quiet = tokio::time::timeout(CHANGED_WITHIN, self.shared.supervisor.quiet());
        let is_quiet = quiet.await.is_ok();
        if !is_quiet {
            let target = self.connector().to_string();
            tracing::warn!(target, "writes are still under way: the volume is not given back");
        }
        is_quiet
    }

    /// The mark was removed, so nothing has to be remembered.
    pub fn unmark(&self) {
        self.connector().reservation.unmark();
    }

    /// Ends it: requests that wait for a connection fail, those in flight are waited for, the reservation is
    /// given back, and the session logs out. If a change does not end for long, the volume stays reserved.
    pub async fn close(&self) {
        self.shared.supervisor.close();
        self.release().await;
        let session = self.session();
        session.close().await;
        if session.ended().await.is_logged_out {
            self.connector().note_logout();
        }
    }

    /// The same of a disk that was not used: a session whose target does not answer is not waited for.
    pub async fn let_go(&self) {
        self.shared.supervisor.close();
        self.release().await;
        let session = self.session();
        if tokio::time::timeout(LOGGED_OUT_WITHIN, session.close()).await.is_err() {
            session.abandon();
        } else if session.ended().await.is_logged_out {
            self.connector().note_logout();
        }
    }

    /// The other who has reserved the unit to write to it, if the unit tells.
    pub async fn writer(&self) -> Option<Registrants> {
        self.link().writer().await
    }

    /// The state directory.
    #[must_use]
    pub fn state_dir(&self) -> Option<PathBuf> {
        self.connector().state().map(PathBuf::from)
    }

    /// How this machine notes the unit.
    #[must_use]
    pub fn place(&self) -> UnitAddress {
        self.connector().place(&self.link())
    }

    /// The longest write that takes one round trip; the target asks for the data of longer ones.
    #[must_use]
    pub fn unsolicited(&self) -> u64 {
        self.link().unsolicited()
    }

    fn change(&self, change: Change, verb: Verb) -> Work<'_, ()> {
        let (span, weight) = (change.span(), change.weight());
        Box::pin(async move {
            self.connector().reservation.note_change();
            let is_durable = !self.shape.write_cache || change.durability() == Durability::Durable;
            let tracked = self.connector().track(&change);
            let changed = self.shared.supervisor.change(change, range(span), weight).await;
            if changed.is_ok() {
                self.connector().watch.changed(span);
            }
            if let (Ok(()), Some(tracked)) = (&changed, tracked) {
                self.connector().answered(tracked, is_durable);
            }
            changed.map_err(failed(verb, span))
        })
    }

    /// What is not durable may be lost, so that an older block was read. Waits until that would be known.
    async fn settle(&self, link: &Link<T::Session>, span: Span) -> Result<(), UnitError> {
        let session = link.session();
        if session.has_several_connections() && self.shared.supervisor.is_unflushed(&range(span)) {
            session.settle().await.map_err(UnitError::Lost)?;
        }
        Ok(())
    }

    /// Gives the reservation back, if it is still ours to give.
    async fn release(&self) {
        let (reservation, over) = (&self.connector().reservation, self.shared.supervisor.over());
        let is_quiet = reservation.is_held() && self.is_quiet().await;
        // It is in its file, and noted, before anybody else may have the volume.
        let has_replay_log = self.has_replay_log().await;
        if has_replay_log {
            // It shows that nobody has written since.
            reservation.keep();
        }
        if is_quiet {
            if over == Some(Over::Closed) {
                self.connector().release(&self.link()).await;
            }
            reservation.leave();
        }
        reservation.forget_unmarked();
    }

    async fn has_replay_log(&self) -> bool {
        self.settled().await.is_some_and(|saved| saved.path.is_some())
    }
}

/// A disk that is forgotten does not try to connect again.
impl<T: Transport> Drop for Shared<T> {
    fn drop(&mut self) {
        self.supervisor.close();
    }
}

impl<T: Transport> Volume for Disk<T> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(async move {
            let read = |link: Arc<Link<T::Session>>| async move {
                let bytes = link.read(span).await?;
                self.settle(&link, span).await?;
                Ok(bytes)
            };
            let bytes = self.shared.supervisor.read(range(span), read).await;
            let bytes = bytes.map_err(failed(Verb::Read, span))?;
            // A residual may say that less came; a volume has no less.
            if bytes.len() as u64 != span.len {
                return Err(Error::new(Kind::Peer, Verb::Read, span));
            }
            Ok(bytes)
        })
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let is_alone = self.shared.own_buffers.load(Ordering::Relaxed);
        self.change(Change::Write { at, data, durability, is_alone }, Verb::Write)
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.change(Change::Zero { span, durability, space }, Verb::WriteZeroes)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        if self.shape.discard.is_none() {
            return Box::pin(ready(Err(Error::new(Kind::Unsupported, Verb::Discard, span))));
        }
        self.change(Change::Discard(span), Verb::Discard)
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async move {
            let covered = self.connector().identity.covered();
            self.shared.supervisor.flush().await.map_err(failed(Verb::Flush, None))?;
            self.connector().flushed(covered);
            Ok(())
        })
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.shared.tells_extents.then_some(self)
    }

    fn is_saving(&self) -> bool {
        self.shared.supervisor.is_saving()
    }

    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        let durability = Durability::Volatile;
        let change = Change::Write { at, data, durability, is_alone: false };
        let kept = (range(span), change.weight());
        Box::pin(async move {
            let refused = self.shared.supervisor.refuse(change, kept, UnitError::Part).await;
            refused.map_err(failed(Verb::Write, span))
        })
    }

    fn ordered(&self) -> Option<&dyn Ordered> {
        self.shared.supervisor.first().keeps_order().then_some(self)
    }
}

impl<T: Transport> Ordered for Disk<T> {
    fn write_group(&self, group: Vec<GroupChange>) -> Work<'_, ()> {
        let group = Arc::new(Group::new(self.shared.groups.fetch_add(1, Ordering::Relaxed), group));
        if let Some((place, _)) = &group.checkpoint {
            self.connector().checkpoint_place.get_or_init(|| *place);
        }
        self.connector().reservation.note_change();
        let tracked: Vec<_> =
            group.changes.iter().filter_map(|change| self.connector().track(change)).collect();
        let change = Change::Group(Arc::clone(&group));
        let (span, weight) = (change.span(), change.weight());
        // It has its place from here on, whenever it is polled.
        let changed = self.shared.supervisor.change(change, range(span), weight);
        Box::pin(async move {
            let changed = changed.await;
            if changed.is_ok() {
                let spans = group.changes.iter().map(Change::span);
                spans.for_each(|span| self.connector().watch.changed(span));
                tracked.into_iter().for_each(|it| self.connector().answered(it, true));
            }
            changed.map_err(failed(Verb::Write, None))
        })
    }
}

impl<T: Transport> ExtentMap for Disk<T> {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let runs = |link: Arc<Link<T::Session>>| async move {
                let runs = link.runs(span).await?;
                self.settle(&link, span).await?;
                Ok(runs)
            };
            let runs = self.shared.supervisor.read(range(span), runs).await;
            runs.map_err(failed(Verb::Extents, span))
        })
    }
}

const fn range(span: Span) -> Range<u64> {
    span.at..span.end()
}

fn failed(
    verb: Verb,
    span: impl Into<Option<Span>>,
) -> impl FnOnce(RequestError<UnitError>) -> Error {
    let span = span.into();
    move |error| {
        let kind = match &error {
            RequestError::Volume(why) => why.kind(),
            RequestError::Over(ended) => ended.kind(),
        };
        Error::new(kind, verb, span).because(error)
    }
}
