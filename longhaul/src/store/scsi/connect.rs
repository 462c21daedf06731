//! From a session to a unit that is open: the same unit as before, still ours, with nothing old under way on it.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proto::scsi::command::Command;
use volume::Span;
use volume::layer::reconnect::{
    self, Effect, Failure, Loss, Refused, Salvage, Settings, Supervisor, Verdict,
};

use super::change::Change;
use super::device::Device;
use super::error::OpenError;
use super::identity::{Covered, Identity, KnownIdentity, Tracked};
use super::login_limits::LoginLimits;
use super::mark::MarkError;
use super::options::{Options, ReplayLogOptions};
use super::reservation::{Request, Reservation, ReservationError, end_tasks};
use super::session::{Address, Lost, ResetAnswer, Session, Transport};
use super::unit::UnitError;
use super::volume::Link;
use super::watch::Watch;
use crate::attachments::{self, UnitAddress};
use crate::printable::OneLine;
use crate::replay_log::{Header, Saved, Writer};
use crate::store::runtime::Tokio;
use crate::store::slow_login::warn_if_slow;

/// The wait after the first attempt to connect again that failed.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// How long a unit may take for each step: to say what it is, to be reserved, to be reset. One that does not within it
/// is let go, so that no peer that answers pings alone keeps us; when we connect again it is asked anew.
pub(super) const OPENED_WITHIN: Duration = Duration::from_secs(60);

/// How long a reservation that is being made is waited for by who has been told to end: half made, it would stay.
const RESERVED_WITHIN: Duration = Duration::from_secs(5);

/// The longest a target may have us wait that has not proven who says so. It could be hours by the protocol.
const UNPROVEN_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long a unit may take to say how large it is.
const SIZE_WITHIN: Duration = Duration::from_secs(5);

/// How long the tasks of a unit that was reset may take to be answered. Without TAS those that were aborted never are.
const DRAINED_WITHIN: Duration = Duration::from_secs(5);

/// How opening the units of a transport ends.
type Opened<T, V> = Result<V, OpenError<<T as Transport>::Error>>;

/// A unit may be another's: it is treated like one whose connection was lost.
#[derive(Debug, thiserror::Error)]
#[error("the reservation of the volume is in question")]
pub(super) struct ReservationInQuestion;

/// A session that is no more, of which a write may still be under way.
struct UncertainWrites<S> {
    /// What ends it has to take its place.
    session: S,
    /// That is not enough: the unit is reset before anything else is asked of it.
    reset: bool,
}

/// The most portals that an attempt tries: a target may name others at each of them.
const PORTALS_MAX: usize = 16;

/// Opens one unit of one target, again and again.
pub(super) struct Connector<T: Transport> {
    transport: T,
    lun: u16,
    options: Options,
    logins: LoginLimits<T::Portal>,
    /// How long each step to a unit may take.
    pub(super) opened_within: Duration,
    /// What the volume holds that tells it from others, once that is known.
    pub(super) identity: KnownIdentity,
    /// That nobody else writes.
    pub(super) reservation: Reservation,
    /// What saves acknowledged changes of this unit when it is given up.
    replay_log: Mutex<Option<Writer>>,
    /// Where changes are not saved in it.
    not_saved: Mutex<Option<Span>>,
    /// Where changes are told of.
    pub(super) watch: Watch,
    /// Where groups have their checkpoints.
    pub(super) checkpoint_place: OnceLock<Span>,
    /// How many bytes of the unit are offered.
    offered: AtomicU64,
    /// Somebody waits for the end.
    is_leaving: AtomicBool,
}

impl<T: Transport> fmt::Debug for Connector<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("transport", &self.transport).finish_non_exhaustive()
    }
}

impl<T: Transport> fmt::Display for Connector<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.transport)
    }
}

impl<T: Transport> Connector<T> {
    pub(super) fn new(transport: T, options: Options) -> Self {
        let identity = KnownIdentity::default();
        if let Some(seen) = options.same_as.as_ref().and_then(|seen| seen.identity.clone()) {
            identity.set(seen);
        }
        Self {
            lun: transport.address().lun,
            transport,
            logins: LoginLimits::new(options.login_within),
            options,
            opened_within: OPENED_WITHIN,
            identity,
            reservation: Reservation::default(),
            replay_log: Mutex::default(),
            not_saved: Mutex::default(),
            watch: Watch::default(),
            checkpoint_place: OnceLock::default(),
            offered: AtomicU64::default(),
            is_leaving: AtomicBool::default(),
        }
    }

    /// Opens the unit for the first time.
    pub(super) async fn open_first(&self) -> Opened<T, Link<T::Session>> {
        let link = self.options.stop.unless_called(self.attempt(None, None));
        let link = link.await.unwrap_or(Err(OpenError::Stopped))?;
        self.reserve(link).await
    }

    /// Watches over the first link from now on.
    pub(super) fn watch_over(self, link: Link<T::Session>) -> Arc<Supervisor<Self>> {
        let settings = self.settings(link.shape().write_cache);
        *self.replay_log() = self.new_replay_log(&link);
        self.offer(link.shape().size);
        Supervisor::start(self, settings, link, Arc::new(Tokio::default()))
    }

    /// How many bytes of the unit are offered.
    pub(super) fn offered(&self) -> u64 {
        self.offered.load(Ordering::Relaxed)
    }

    /// From now on `size` bytes of the unit are offered, where changes may be made that a replay log has to save.
    pub(super) fn offer(&self, size: u64) {
        self.offered.store(size, Ordering::Relaxed);
        if let Some(log) = &mut *self.replay_log() {
            log.set_size(size);
        }
    }

    /// How large the unit is now, if it says so soon: who waits can go on with the size that is offered.
    pub(super) async fn ask_size(&self, link: &Link<T::Session>) -> Option<u64> {
        let asked = tokio::time::timeout(SIZE_WITHIN, link.ask_size()).await;
        let target = self.to_string();
        let offered = self.offered();
        match asked {
            Ok(Ok(size)) if size < offered => {
                tracing::error!(target, offered, size, "the volume has shrunk: its end is lost");
            }
            Ok(Ok(size)) => return Some(size),
            Ok(Err(why)) => {
                tracing::warn!(target, why = %OneLine(&why), "cannot ask how large the volume is");
            }
            Err(_) => tracing::warn!(target, "the volume does not say how large it is: no answer"),
        }
        None
    }

    /// Reserves the unit of a first link, unless it is shared or only read.
    async fn reserve(&self, link: Link<T::Session>) -> Opened<T, Link<T::Session>> {
        if link.shape().read_only {
            return Ok(link);
        }
        let Options { writers, replays, state, replay_log, .. } = &self.options;
        let own = replay_log.as_ref().map(|options| &*options.dir);
        let request = Request {
            writers: *writers,
            replays: replays.as_ref(),
            state: state.as_deref(),
            replay_logs: own.or_else(|| replays.as_ref()?.file.parent()),
        };
        let place = self.place(&link);
        let acquired = self.reservation.acquire(link.unit(), &place, request);
        self.in_time_or_not_at_all(&link, acquired).await?;
        if self.transport.replaces_left_session() && !link.device().ends_tasks() {
            // It says itself if it cannot.
            let _ = tokio::time::timeout(self.opened_within, end_tasks(link.unit())).await;
        }
        if !link.device().is_withheld || !self.reservation.is_held() {
            return Ok(link);
        }
        // Now it tells us what it did not before.
        let whole = self.in_time(self.open(link.session()));
        let whole = self.options.stop.unless_called(whole);
        let whole = whole.await.unwrap_or(Err(OpenError::Stopped));
        if whole.is_err() {
            self.release(&link).await;
            self.reservation.leave();
        }
        whole
    }

    /// Gives the reservation back, unless a replay log needs it.
    pub(super) async fn release(&self, link: &Link<T::Session>) {
        if self.reservation.is_kept() {
            let target = self.to_string();
            tracing::warn!(target, "the volume stays reserved until its replay log is written");
        }
        self.reservation.release(link.unit()).await;
    }

    /// How this machine notes the unit of a link.
    pub(super) fn place(&self, link: &Link<T::Session>) -> UnitAddress {
        let Address { target, lun, portal, pin } = self.transport.address();
        UnitAddress { target, lun, serial: link.device().serial.clone(), portal, pin }
    }

    /// One step that must not be left half done. A target that does not answer, or not when we are told to end, loses
    /// the session: that fails it, and has noted what may be left of it.
    async fn in_time_or_not_at_all(
        &self,
        link: &Link<T::Session>,
        step: impl Future<Output = Result<(), ReservationError>>,
    ) -> Opened<T, ()> {
        let (within, mut step) = (self.opened_within, pin!(step));
        let timed = tokio::time::timeout(within, &mut step);
        let late = match self.options.stop.unless_late(RESERVED_WITHIN, timed).await {
            Some(Ok(done)) => return Ok(done?),
            Some(Err(_)) => self.slow(),
            None => OpenError::Stopped,
        };
        link.session().abandon();
        step.await.map_err(|_| late)
    }

    /// One step to a unit, which may not take for ever.
    async fn in_time<V>(&self, step: impl Future<Output = Opened<T, V>>) -> Opened<T, V> {
        let ended = tokio::time::timeout(self.opened_within, step).await;
        ended.unwrap_or_else(|_| Err(self.slow()))
    }

    fn slow(&self) -> OpenError<T::Error> {
        OpenError::Slow(self.transport.address().portal, self.opened_within)
    }

    /// Logs in, and opens the unit, which has nothing left to do then for the session whose writes are uncertain. It must
    /// be the one that was there `before`. Where the portal cannot be reached, or the unit not by it, the others of the
    /// target are tried. Errors from these are only logged: the first portal's error is returned.
    async fn attempt(
        &self,
        uncertain: Option<UncertainWrites<T::Session>>,
        before: Option<&Device>,
    ) -> Opened<T, Link<T::Session>> {
        let mut out_of_reach: Option<OpenError<T::Error>> = None;
        let mut tried = Vec::new();
        // By one of them others may become known.
        while let Some(portal) = self.untried(&tried) {
            tried.push(portal.clone());
            match (self.attempt_at(&portal, uncertain.as_ref(), before).await, &out_of_reach) {
                (Err(OpenError::Session(why)), None) if T::is_out_of_reach(&why) => {
                    out_of_reach = Some(OpenError::Session(why));
                }
                (Err(why), None) if why.is_passive_path() => out_of_reach = Some(why),
                (Ok(link), Some(why)) => {
                    tracing::warn!(%portal, %why, "another portal of the target is used");
                    return Ok(link);
                }
                (Err(why), Some(_)) => {
                    tracing::info!(%portal, %why, "another portal cannot be used");
                }
                (first, None) => return first,
            }
        }
        Err(out_of_reach.unwrap_or(OpenError::Stopped))
    }

    /// A portal of the target that was not tried in this attempt.
    fn untried(&self, tried: &[T::Portal]) -> Option<T::Portal> {
        let portals = self.transport.portals().into_iter().filter(|portal| !tried.contains(portal));
        portals.take(PORTALS_MAX.saturating_sub(tried.len())).next()
    }

    async fn attempt_at(
        &self,
        portal: &T::Portal,
        uncertain: Option<&UncertainWrites<T::Session>>,
        before: Option<&Device>,
    ) -> Opened<T, Link<T::Session>> {
        let ended = uncertain.map(|uncertain| &uncertain.session);
        let login = self.logins.log_in(&self.transport, portal, ended, before.is_some());
        let session = match before {
            // The supervisor tells of an outage itself.
            Some(_) => login.await,
            None => warn_if_slow(portal, login).await,
        };
        let session = session.map_err(OpenError::Session)?;
        let opened = match before {
            Some(before) => {
                let reset = uncertain.is_some_and(|uncertain| uncertain.reset);
                self.open_again(&session, before, reset).await
            }
            None => self.in_time(self.open_as_seen(&session)).await,
        };
        match &opened {
            Ok(link) => self.transport.opened(&session, link.device().is_longhaul()),
            Err(why) => {
                if why.is_passive_path() {
                    self.transport.look_elsewhere(&session).await;
                }
                session.close().await;
            }
        }
        opened
    }

    /// Opens the unit for the first time. Where it was looked at before it is the same still: it is reserved next.
    async fn open_as_seen(&self, session: &T::Session) -> Opened<T, Link<T::Session>> {
        match &self.options.same_as {
            Some(seen) => self.open_same(session, &seen.device).await,
            None => self.open(session).await,
        }
    }

    async fn open(&self, session: &T::Session) -> Opened<T, Link<T::Session>> {
        Ok(Link::open(session.clone(), self.lun, self.options.read_only).await?)
    }

    /// Opens the unit on a later session. It is only asked questions until it has turned out to be the one that was there
    /// `before`: a registration, a reservation or a reset would disturb those who use another. Nor is a unit reset that
    /// has become another's.
    async fn open_again(
        &self,
        session: &T::Session,
        before: &Device,
        reset: bool,
    ) -> Opened<T, Link<T::Session>> {
        let mut link = self.in_time(self.open_same(session, before)).await?;
        self.in_time(self.confirm(&link)).await?;
        if reset {
            self.in_time(self.reset(&link)).await?;
        }
        // Opening it again takes note of what the reset has made the unit report, and of what it told nobody who was not
        // registered.
        if reset || link.device().is_withheld {
            link = self.in_time(self.open_same(session, before)).await?;
        }
        let prepared = async {
            // A path in standby says what the unit is, and does nothing else.
            if let Err(why) = link.unit().ask(Command::test_unit_ready()).await
                && why.is_outage()
            {
                return Err(why.into());
            }
            link.match_first_link(before, self.checkpoint_place.get()).await?;
            Ok(link)
        };
        self.in_time(prepared).await
    }

    /// Asks the unit what it is: it must be the one that was there `before`.
    async fn open_same(
        &self,
        session: &T::Session,
        before: &Device,
    ) -> Opened<T, Link<T::Session>> {
        let link = self.open(session).await?;
        if let Some(what) = link.device().differs(before) {
            return Err(OpenError::Changed(what));
        }
        if link.device().size() < self.offered() {
            return Err(OpenError::Changed("size"));
        }
        match self.refuse_other(&link).await {
            Ok(()) => Ok(link),
            // The reservation of another keeps us from reading: it tells whose the volume is now.
            Err(conflict) if conflict.is_conflict() => {
                let confirmed = self.reservation.confirm(link.unit()).await;
                Err(confirmed.err().map_or(conflict, OpenError::from))
            }
            Err(other) => Err(other),
        }
    }

    /// Refuses a volume that is not the one that the first link led to, as far as its bytes tell.
    async fn refuse_other(&self, link: &Link<T::Session>) -> Opened<T, ()> {
        match self.identity.is_of(link).await? {
            true => Ok(()),
            false => Err(OpenError::Changed("LUKS UUID")),
        }
    }

    /// Finds out whether the reservation or the mark on the volume is still ours, where there is one.
    async fn confirm(&self, link: &Link<T::Session>) -> Opened<T, ()> {
        self.reservation.confirm(link.unit()).await?;
        let Some(mark) = self.reservation.mark() else { return Ok(()) };
        mark.look(link).await.map_err(|not_there| match not_there {
            MarkError::Unread(why) => why.into(),
            MarkError::Replaced(by) => ReservationError::Replaced(by).into(),
        })
    }

    /// Resets the unit, so that nothing old runs on it.
    async fn reset(&self, link: &Link<T::Session>) -> Opened<T, ()> {
        match link.unit().reset().await.map_err(OpenError::Lost)? {
            ResetAnswer::Complete => {
                tracing::info!("the unit was reset: nothing old runs on it");
                Ok(())
            }
            // Without it nothing can be sent again: a write of the earlier session may land after it.
            ResetAnswer::Refused { is_final, answer } => {
                Err(OpenError::NotReset { is_final, answer })
            }
        }
    }

    /// From now on each link must lead to a volume with this identity.
    pub(super) fn identify(&self, identity: Identity) {
        self.identity.set(identity);
        self.note_identity();
    }

    /// Takes note of a change that is about to be made, and may give the volume another identity.
    pub(super) fn track(&self, change: &Change) -> Option<Tracked<'_>> {
        let tracked = self.identity.track(change);
        if tracked.is_some() {
            self.note_identity();
        }
        tracked
    }

    /// The last session was logged out.
    pub(super) fn note_logout(&self) {
        self.transport.note_logout();
    }

    /// Such a change was answered.
    pub(super) fn answered(&self, tracked: Tracked<'_>, is_durable: bool) {
        if tracked.answered(is_durable) {
            self.note_identity();
        }
    }

    /// A flush has succeeded.
    pub(super) fn flushed(&self, covered: Covered) {
        if self.identity.settle(covered) {
            self.note_identity();
        }
    }

    /// A replay log tells the identity only if the volume can have no other when the log is written.
    fn note_identity(&self) {
        let uuid = self.identity.uuid();
        if let Some(log) = &mut *self.replay_log() {
            log.set_luks_uuid(uuid.as_deref());
        }
    }

    /// What is written there goes to no replay log: it is no data, and only of use now.
    pub(super) fn keep_out_of_log(&self, span: Span) {
        *self.not_saved.lock().unwrap_or_else(PoisonError::into_inner) = Some(span);
    }

    /// What has become of acknowledged changes that the unit could not be given; `None` if there are none.
    pub(super) fn saved(&self) -> Option<Saved> {
        self.replay_log().as_ref()?.saved()
    }

    /// The same, once all of them are in the replay log, or lost.
    pub(super) async fn settled(&self) -> Option<Saved> {
        let settled = self.replay_log().as_ref()?.settled();
        Some(settled?.await)
    }

    /// Whether acknowledged changes are kept when the unit is given up.
    pub(super) fn keeps_changes(&self) -> bool {
        self.replay_log().is_some()
    }

    fn replay_log(&self) -> MutexGuard<'_, Option<Writer>> {
        self.replay_log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> Option<&Path> {
        self.options.state.as_deref()
    }

    pub(super) const fn idle(&self) -> Duration {
        self.options.idle
    }

    /// What saves acknowledged changes of this unit when it is given up, if that was asked for.
    fn new_replay_log(&self, link: &Link<T::Session>) -> Option<Writer> {
        let ReplayLogOptions { dir, volume, .. } = self.options.replay_log.as_ref()?;
        let opened = SystemTime::now().duration_since(UNIX_EPOCH);
        let (device, shape) = (link.device(), link.shape());
        let Address { target, lun, .. } = self.transport.address();
        let header = Header {
            volume: volume.clone(),
            target,
            lun,
            serial: device.serial.clone(),
            vendor: device.standard.vendor.clone(),
            product: device.standard.product.clone(),
            size: shape.size,
            block_size: shape.block_size,
            opened: opened.map_or(0, |since| since.as_secs()),
            created: 0,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            key: self.reservation.key(),
            luks_uuid: None,
        };
        let attachments = self.state().map(attachments::folder);
        Some(Writer::new(dir.clone(), header, attachments))
    }

    /// How outages are met, by a unit that has a volatile cache or by one that has none.
    fn settings(&self, cached: bool) -> Settings {
        let patience = self.options.reconnect_for;
        let salvage = match &self.options.replay_log {
            None => Salvage::Nothing,
            Some(options) if options.write_behind => Salvage::Submitted,
            Some(_) => Salvage::Answered,
        };
        // Where nothing is ever sent again, nor saved, nothing has to be kept.
        let sends_again = patience != Some(Duration::ZERO);
        let keeps = cached && (sends_again || salvage != Salvage::Nothing);
        Settings {
            patience,
            first_wait: FIRST_WAIT,
            longest_wait: self.options.reconnect_every,
            unflushed_max: keeps.then_some(self.options.unflushed_max),
            salvage,
        }
    }

    /// What a failed attempt to connect again is worth.
    fn effect(&self, why: &OpenError<T::Error>) -> Effect {
        Effect::Failed(match why {
            OpenError::Reservation(why) if why.is_fence() => return Effect::Fenced,
            why if why.is_conflict() => Failure::Reserved,
            OpenError::Changed(_) | OpenError::NotReset { is_final: true, .. } => {
                Failure::Unusable { secure: self.transport.is_secure() }
            }
            OpenError::Session(why) => T::failure(why),
            OpenError::Reservation(
                ReservationError::Random(_)
                | ReservationError::Held(_)
                | ReservationError::LogMissing(_)
                | ReservationError::JournalUnsent(_),
            ) => Failure::Local,
            // A target or a unit that is not found may be there again when its server has come up.
            _ => Failure::NoSession,
        })
    }

    /// What the end of a session means. What a target asks us to wait that has not proven who it is, is bounded.
    fn loss(&self, lost: Lost) -> Loss {
        let Lost { why, is_stalled, wait, .. } = lost;
        let wait = if self.transport.is_secure() { wait } else { wait.min(UNPROVEN_WAIT_MAX) };
        Loss { why, wait, is_unanswered: is_stalled }
    }
}

impl<T: Transport> reconnect::Connect for Connector<T> {
    type Volume = Link<T::Session>;
    type Change = Change;
    type Error = UnitError;

    async fn connect(
        &self,
        first: Arc<Self::Volume>,
        last: Arc<Self::Volume>,
        is_uncertain: bool,
    ) -> Result<Self::Volume, Refused> {
        let session = last.session().clone();
        let uncertain = (is_uncertain && !drained(&session).await)
            .then(|| UncertainWrites { session, reset: !first.device().ends_tasks() });
        let attempt = self.attempt(uncertain, Some(first.device())).await;
        attempt.map_err(|why| Refused { effect: self.effect(&why), why: Arc::new(why) })
    }

    /// What is offered of a unit does not change by itself, as the size of an NBD export does not.
    fn connected(&self, last: &Self::Volume, new: &Self::Volume) {
        new.group_order.inherit(&last.group_order);
        if self.is_leaving.load(Ordering::Relaxed) {
            new.session().hurry();
        }
        let (used, size) = (self.offered(), new.device().size());
        if size > used.max(last.device().size()) {
            let target = self.to_string();
            tracing::warn!(
                target,
                used,
                size,
                "the volume has grown: the rest is used when it is opened again, or its server reads its configuration again"
            );
        }
    }

    async fn ended(&self, on: &Self::Volume) -> Loss {
        self.loss(on.session().ended().await)
    }

    fn judge(&self, on: &Self::Volume, failure: Option<&UnitError>) -> Verdict {
        // Whether it is lost is asked on the next link, before anything is written there.
        if self.reservation.is_held() && on.is_in_question(failure) {
            on.session().abandon();
            return Verdict::Lost(Loss::new(ReservationInQuestion));
        }
        // What was answered after a reset shows a unit that may have lost what was written before.
        if let Some(how) = on.unit_event() {
            return Verdict::Lost(Loss::new(how));
        }
        match failure {
            None => Verdict::Done,
            Some(UnitError::Lost(lost)) => Verdict::Lost(self.loss(lost.clone())),
            // It is asked on the next link until it can be used.
            Some(why) if on.is_outage(why) => Verdict::NotYet(Arc::new(why.clone())),
            Some(_) => Verdict::Failed,
        }
    }

    async fn change(on: &Self::Volume, change: &Change) -> Result<(), UnitError> {
        on.change(change).await
    }

    async fn flush(on: &Self::Volume) -> Result<(), UnitError> {
        on.sync().await
    }

    fn abandon(&self, on: &Self::Volume) {
        on.session().abandon();
    }

    fn hurry(&self, on: &Self::Volume) {
        self.is_leaving.store(true, Ordering::Relaxed);
        on.session().hurry();
    }

    fn save(&self, change: Change) {
        let not_saved = *self.not_saved.lock().unwrap_or_else(PoisonError::into_inner);
        if not_saved.is_some_and(|span| span.contains(change.span().at)) {
            return;
        }
        if let Some(log) = &mut *self.replay_log() {
            change.logged().into_iter().for_each(|change| log.save(change));
        }
    }

    fn put_in_order(&self, on: &Self::Volume, change: &Change) {
        if let Change::Group(group) = change {
            on.group_order.append(group.id);
        }
    }

    fn resume<'a>(&self, on: &Self::Volume, groups: impl Iterator<Item = &'a Change>) {
        on.resume(groups.filter_map(Change::group));
    }

    fn unanswered(&self) {
        self.transport.note_stall(true);
    }

    fn recovered(&self) {
        self.transport.note_stall(false);
    }

    fn describe(&self, why: &(dyn StdError + 'static)) -> String {
        let mut described = OneLine(why).to_string();
        let mut beneath = why.source();
        while let Some(why) = beneath {
            described += &format!(": {}", OneLine(why));
            beneath = why.source();
        }
        described
    }
}

/// Ends a session that still stands, as after a reset that the unit told of; says whether each of its tasks was
/// answered. Then nothing of it is under way, and the unit need not be reset: two initiators that both did that on
/// hearing of the other's reset would never come to an end.
async fn drained<S: Session>(session: &S) -> bool {
    let ended = async {
        session.close().await;
        session.ended().await
    };
    let ended = tokio::time::timeout(DRAINED_WITHIN, ended).await;
    ended.is_ok_and(|lost| lost.is_logged_out)
}
