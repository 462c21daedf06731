//! Keeps a disk usable across lost connections: the thin part around the machine that decides.
//!
//! Whoever asks for something carries it out, on the link and at the time the machine says. One task
//! watches the link, connects again, and has written again what may be lost.

mod attend;
mod ownership;
mod ticket;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proto::iscsi::initiator::Fault;
use tokio::sync::{Notify, oneshot, watch};
use volume::Span;
use volume::layer::reconnect::{self, Action, End, Kind, Over, Recovery, Time, Turn};

use self::attend::attend;
use self::ownership::{ReservationInQuestion, in_question};
use self::ticket::{Next, Ticket};
use super::connect::{ConnectError, Connector, MaybeAlive};
use super::detached::Detached;
use super::link::{Change, Link};
use super::random::random;
use super::session::{Loss, Session};
use super::unit::UnitError;
use crate::printable::OneLine;
use crate::replay_log::{self, Saved, Writer};

type Cause = Arc<dyn StdError + Send + Sync>;

/// How long the tasks of a unit that was reset may take to be answered. Without TAS those that were aborted never are.
const DRAINED_WITHIN: Duration = Duration::from_secs(5);

/// How long the end waits for changes that are under way before the reservation is given back.
const CHANGED_WITHIN: Duration = Duration::from_secs(10);

/// Why a disk carries out nothing any more.
#[derive(Debug, thiserror::Error)]
#[error("{over}")]
pub struct Ended {
    /// What it came to.
    pub over: Over,
    /// What stood in the way last.
    #[source]
    cause: Option<Cause>,
}

impl Ended {
    pub(super) const fn kind(&self) -> volume::Kind {
        match self.over {
            Over::NotRestored | Over::NotFlushed | Over::NotWritten => volume::Kind::Medium,
            Over::GaveUp(_)
            | Over::NotCarriedOut(_)
            | Over::Refused
            | Over::Fenced
            | Over::Closed => volume::Kind::Gone,
        }
    }
}

/// What a disk's requests, and the task behind them, share.
#[derive(Debug)]
pub(super) struct Supervisor {
    connector: Connector,
    first: Arc<Link>,
    origin: Instant,
    state: Mutex<State>,
    /// The task has to look at the machine again.
    changed: Notify,
    /// Every change that has not ended watches this.
    changes: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    machine: Recovery<Change>,
    /// The link that is up, or was last, and its number.
    link: (u64, Arc<Link>),
    /// Whom to tell that a request may run. Dropped when nothing runs any more.
    waiting: HashMap<u64, oneshot::Sender<(u64, Arc<Link>)>>,
    /// An attempt to connect is to be made.
    connect: bool,
    cause: Option<Cause>,
    ended: Option<Arc<Ended>>,
    /// The first acknowledged change or flush that failed while the link stood.
    failed: Option<Arc<Ended>>,
    replay_log: Option<Writer>,
}

impl Supervisor {
    /// Begins to watch over a link.
    pub(super) fn start(connector: Connector, link: Link) -> Arc<Self> {
        let cached = link.shape().write_cache;
        let replay_log = connector.replay_log(&link);
        let first = Arc::new(link);
        let machine = Recovery::new(connector.settings(cached));
        let supervisor = Arc::new(Self {
            connector,
            first: Arc::clone(&first),
            origin: Instant::now(),
            state: Mutex::new(State {
                machine,
                link: (0, first),
                waiting: HashMap::new(),
                connect: false,
                cause: None,
                ended: None,
                failed: None,
                replay_log,
            }),
            changed: Notify::new(),
            changes: watch::Sender::new(()),
        });
        tokio::spawn(Arc::clone(&supervisor).watch());
        let every = supervisor.connector.idle();
        tokio::spawn(attend(Arc::downgrade(&supervisor), every));
        supervisor
    }

    // Requests.

    /// Carries out something that changes nothing.
    pub(super) async fn read<T, F: Future<Output = Result<T, UnitError>>>(
        self: &Arc<Self>,
        span: Span,
        verb: impl Fn(Arc<Link>) -> F,
    ) -> Result<T, UnitError> {
        let ticket = self.submit(Kind::Read, span, 0);
        let settled = |link: Arc<Link>| {
            let answer = verb(Arc::clone(&link));
            async move {
                let answer = answer.await?;
                self.settle(&link, span).await?;
                Ok(answer)
            }
        };
        ticket.carry_out(settled).await
    }

    /// What is not durable may be lost, so that an older block was read. Waits until that would be known.
    async fn settle(&self, link: &Link, span: Span) -> Result<(), UnitError> {
        let session = link.session();
        if session.has_several_connections()
            && self.lock().machine.is_unflushed(&(span.at..span.end()))
        {
            session.settle().await.map_err(UnitError::Lost)?;
        }
        Ok(())
    }

    /// Carries out a change. It goes on if nobody waits for it any more: given up half way, it could land
    /// after a later change to the same bytes.
    pub(super) async fn change(self: &Arc<Self>, change: Change) -> Result<(), UnitError> {
        let mut ticket = self.submit(Kind::Change(change.clone()), change.span(), change.weight());
        ticket.is_hint = matches!(change, Change::Discard(_));
        let verb = move |link: Arc<Link>| {
            let change = change.clone();
            async move { link.change(&change).await }
        };
        Detached(Some(Box::pin(ticket.carry_out(verb)))).await
    }

    /// Takes a change that cannot be carried out, as if the unit had refused it: it fails, and is saved where others
    /// would be.
    pub(super) async fn refuse(self: &Arc<Self>, change: Change) -> Result<(), UnitError> {
        let span = change.span();
        let ticket = self.submit(Kind::Change(change.clone()), span, change.weight());
        let refused = |_| std::future::ready(Err(UnitError::Part));
        Detached(Some(Box::pin(ticket.carry_out(refused)))).await
    }

    /// Whether acknowledged changes have failed, so that all that come go to the replay log.
    pub(super) fn is_saving(&self) -> bool {
        self.lock().machine.is_saving()
    }

    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), UnitError> {
        let ticket = self.submit(Kind::Flush, Span::new(0, 0), 0);
        ticket.carry_out(|link| async move { link.sync().await }).await
    }

    fn submit(self: &Arc<Self>, kind: Kind<Change>, span: Span, weight: usize) -> Ticket {
        let mut state = self.lock();
        let _change = matches!(kind, Kind::Change(_)).then(|| self.changes.subscribe());
        let (id, turn) = state.machine.submit(kind, span.at..span.end(), weight);
        let next = state.next(id, turn);
        self.act(&mut state);
        Ticket { supervisor: Arc::clone(self), id, next, is_hint: false, left: false, _change }
    }

    /// Says how a request ended on a link, and what becomes of it.
    fn ended(
        self: &Arc<Self>,
        id: u64,
        (number, link): (u64, &Link),
        failure: Option<&UnitError>,
        is_hint: bool,
    ) -> (Turn, Next) {
        let mut state = self.lock();
        let mut end = self.judge(&mut state, (number, link), failure);
        if end == End::Failed && is_hint {
            end = End::NotTaken;
        }
        let turn = state.machine.ended(self.now(), id, number, end);
        if !state.machine.has_outage() {
            self.connector.note_stall(false);
        }
        if let Some(why) = failure.filter(|_| state.machine.is_saving()) {
            state.failed.get_or_insert_with(|| {
                Arc::new(Ended { over: Over::NotWritten, cause: Some(Arc::new(why.clone())) })
            });
        }
        let next = state.next(id, turn);
        self.act(&mut state);
        (turn, next)
    }

    /// How something ended, with the link noted as lost if it was that.
    fn judge(
        &self,
        state: &mut State,
        (number, link): (u64, &Link),
        failure: Option<&UnitError>,
    ) -> End {
        // Whether it is lost is asked on the next link, before anything is written there.
        if self.reservation().is_held() && in_question(link, failure) {
            link.session().abandon();
            self.note_loss(state, number, Duration::ZERO, Arc::new(ReservationInQuestion));
            return End::Lost;
        }
        // What was answered after a reset shows a unit that may have lost what was written before.
        if let Some(how) = link.unit_event() {
            self.note_loss(state, number, Duration::ZERO, Arc::new(how));
            return End::Lost;
        }
        match failure {
            None => End::Done,
            Some(UnitError::Lost(loss)) => {
                self.note_end(state, (number, link), loss);
                End::Lost
            }
            // It is asked on the next link until it can be used.
            Some(why) if link.is_outage(why) => {
                self.note_loss(state, number, Duration::ZERO, Arc::new(why.clone()));
                End::NotYet
            }
            Some(_) => End::Failed,
        }
    }

    /// A session has ended.
    fn note_end(&self, state: &mut State, (number, link): (u64, &Link), loss: &Arc<Loss>) {
        let stalled = matches!(**loss, Loss::Fault(Fault::Stalled { .. }));
        if stalled {
            state.machine.unanswered(number);
        }
        let wait = self.wait_after(link, loss);
        if self.note_loss(state, number, wait, Arc::<Loss>::clone(loss)) && stalled {
            self.connector.note_stall(true);
        }
    }

    /// Whether that was news.
    fn note_loss(&self, state: &mut State, number: u64, wait: Duration, why: Cause) -> bool {
        let is_news = state.machine.lost(self.now(), number, wait);
        if is_news {
            let target = self.connector.to_string();
            tracing::warn!(target, why = %Chain(&*why), "connection lost: requests wait");
            state.cause = Some(why);
            self.changed.notify_one();
        }
        is_news
    }

    /// Does what the machine calls for.
    fn act(self: &Arc<Self>, state: &mut State) {
        while let Some(action) = state.machine.poll() {
            match action {
                Action::Connect => {
                    state.connect = true;
                    self.changed.notify_one();
                }
                Action::Run { id, .. } => {
                    let link = state.link.clone();
                    // Whoever stopped waiting has withdrawn, or will.
                    let _ = state.waiting.remove(&id).map(|waiter| waiter.send(link));
                }
                Action::Flush { id, link } => {
                    state.waiting.remove(&id);
                    let (me, on) = (Arc::clone(self), Arc::clone(&state.link.1));
                    tokio::spawn(async move {
                        let flushed = on.sync().await;
                        // If it has to run again, the machine says so again: nobody waits for it here.
                        me.ended(id, (link, &on), flushed.as_ref().err(), false);
                    });
                }
                Action::Restore { seq, link, change } => {
                    let (me, on) = (Arc::clone(self), Arc::clone(&state.link.1));
                    let running = self.changes.subscribe();
                    tokio::spawn(async move {
                        me.restore(seq, (link, &on), &change).await;
                        drop(running);
                    });
                }
                Action::Save(change) => {
                    if let Some(log) = &mut state.replay_log {
                        log.save(change.into());
                    }
                }
                Action::Over => self.end(state),
            }
        }
    }

    async fn restore(self: Arc<Self>, seq: u64, (number, link): (u64, &Link), change: &Change) {
        let restored = link.change(change).await;
        let mut state = self.lock();
        let mut end = self.judge(&mut state, (number, link), restored.as_ref().err());
        if end == End::Failed && matches!(change, Change::Discard(_)) {
            end = End::NotTaken;
        }
        if let (End::Failed, Err(why)) = (end, restored) {
            state.cause = Some(Arc::new(why));
        }
        state.machine.restored(self.now(), seq, number, end);
        self.act(&mut state);
    }

    fn end(&self, state: &mut State) {
        let over = state.machine.over().unwrap_or(Over::Closed);
        let ended = Arc::new(Ended { over, cause: state.cause.take() });
        if over != Over::Closed {
            let target = self.connector.to_string();
            tracing::error!(target, why = %Chain(&*ended), "the volume is given up");
        }
        state.ended = Some(ended);
        state.waiting.clear();
        self.changed.notify_one();
    }

    // The link.

    /// Watches the link, and gets the next when it is lost, until the end.
    async fn watch(self: Arc<Self>) {
        let mut attempt: Option<Attempt> = None;
        while let Some(Watch { deadline, number, link, connect, in_doubt }) = self.look() {
            if connect {
                attempt = Some(Box::pin(connect_again(Arc::clone(&self), in_doubt)));
            }
            let connecting = attempt.is_some();
            tokio::select! {
                outcome = poll_attempt(&mut attempt), if connecting => {
                    attempt = None;
                    self.attempted(outcome);
                }
                loss = link.session().ended(), if !connecting => {
                    self.session_ended(number, &link, loss);
                    // The link stays ended until there is another: what comes next is a change.
                    self.wait(deadline).await;
                }
                () = self.wait(deadline) => {}
            }
        }
    }

    fn session_ended(self: &Arc<Self>, number: u64, link: &Link, loss: Arc<Loss>) {
        let mut state = self.lock();
        self.note_end(&mut state, (number, link), &loss);
        self.act(&mut state);
    }

    /// How long a target wants to be left alone after a session has ended (RFC 7143, 13.15 and 11.9.1).
    fn wait_after(&self, link: &Link, loss: &Loss) -> Duration {
        let wanted = match loss {
            Loss::LoggedOut => Duration::ZERO,
            Loss::Fault(Fault::Dropped(wait)) => *wait,
            _ => {
                let parameters = &link.session().established().parameters;
                Duration::from_secs(parameters.default_time2wait.into())
            }
        };
        self.connector.wait(wanted)
    }

    /// What the task has to wait for now; `None` at the end.
    fn look(self: &Arc<Self>) -> Option<Watch> {
        let mut state = self.lock();
        state.machine.wake(self.now());
        self.act(&mut state);
        if state.ended.is_some() {
            return None;
        }
        let (number, link) = (state.link.0, Arc::clone(&state.link.1));
        Some(Watch {
            deadline: state.machine.deadline(),
            number,
            link,
            connect: std::mem::take(&mut state.connect),
            in_doubt: state.machine.in_doubt(),
        })
    }

    async fn wait(&self, deadline: Option<Time>) {
        let changed = pin!(self.changed.notified());
        match deadline {
            Some(deadline) => {
                let at = self.origin + deadline.since_origin();
                let _ = tokio::time::timeout_at(at.into(), changed).await;
            }
            None => changed.await,
        }
    }

    fn attempted(self: &Arc<Self>, outcome: Result<Link, ConnectError>) {
        let mut state = self.lock();
        let target = self.connector.to_string();
        match outcome {
            Ok(link) => {
                let (kept, bytes) = state.machine.unflushed();
                tracing::warn!(target, kept, bytes, "connected again");
                self.note_growth(&target, &state.link.1, &link);
                state.link = (state.link.0 + 1, Arc::new(link));
                state.machine.connected(self.now());
            }
            Err(error) => {
                let fenced = error.is_fence();
                let failure = error.failure(self.connector.is_secure());
                let error: Cause = Arc::new(error);
                let why = Chain(&*error).to_string();
                // A reason that stays the same for days is told once.
                if state.cause.as_deref().is_some_and(|last| Chain(last).to_string() == why) {
                    tracing::info!(target, why, "cannot connect again");
                } else {
                    tracing::warn!(target, why, "cannot connect again: requests wait");
                }
                state.cause = Some(error);
                let spread = random().map_or(0, u64::from_le_bytes);
                match fenced {
                    true => state.machine.fenced(),
                    false => state.machine.failed(self.now(), failure, spread),
                }
            }
        }
        self.act(&mut state);
    }

    /// A volume's size is fixed while it is open, as that of an NBD export is: the rest waits for the next time.
    fn note_growth(&self, target: &str, last: &Link, link: &Link) {
        let (used, size) = (self.first.device().size(), link.device().size());
        if size > last.device().size() {
            tracing::warn!(
                target,
                used,
                size,
                "the volume has grown: its first size is used until it is opened again"
            );
        }
    }

    /// The link that is up, or was last.
    pub(super) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.lock().link.1)
    }

    pub(super) fn status(&self) -> (reconnect::Status, Time) {
        (self.lock().machine.status(), self.now())
    }

    /// Changes that were answered and are not durable, and their bytes.
    pub(super) fn unflushed(&self) -> (usize, usize) {
        self.lock().machine.unflushed()
    }

    /// Whether changes are kept until they are flushed, and there are none, nor any that failed.
    pub(super) fn has_flushed_all(&self) -> bool {
        let state = self.lock();
        let machine = &state.machine;
        state.replay_log.is_some() && !machine.is_saving() && machine.unflushed().0 == 0
    }

    /// What has become of acknowledged changes that the unit could not be given; `None` if there are none.
    pub(super) fn saved(&self) -> Option<Saved> {
        self.lock().replay_log.as_ref()?.saved()
    }

    /// The same, once all of them are in the replay log, or lost.
    pub(super) async fn settled(&self) -> Option<Saved> {
        let settled = self.lock().replay_log.as_ref()?.settled();
        Some(settled?.await)
    }

    /// What stands in the way of a connection, or did last.
    pub(super) fn reason(&self) -> Option<String> {
        let state = self.lock();
        match (&state.ended, &state.cause) {
            (Some(ended), _) => Some(Chain(&**ended).to_string()),
            (None, cause) => cause.as_deref().map(|cause| Chain(cause).to_string()),
        }
    }

    /// The bytes by which the volume has grown since it was opened, which are not used.
    pub(super) fn grown(&self) -> u64 {
        self.link().device().size().saturating_sub(self.first.device().size())
    }

    /// From now on an outage is waited for only that long.
    pub(super) fn leave(&self, grace: Duration) {
        self.lock().machine.leave(self.now(), grace);
        self.changed.notify_one();
    }

    /// Nothing is carried out any more; whoever waits is told.
    pub(super) fn close(self: &Arc<Self>) {
        let mut state = self.lock();
        state.machine.close();
        self.act(&mut state);
    }

    fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }

    /// Nothing is left half done where the lock is held, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Change> for replay_log::Change {
    fn from(change: Change) -> Self {
        match change {
            Change::Write { at, data, .. } => Self::Write { at, data },
            Change::Zero { span, space, .. } => Self::Zero { span, space },
            Change::Discard(span) => Self::Discard(span),
        }
    }
}

impl State {
    fn next(&mut self, id: u64, turn: Turn) -> Next {
        match turn {
            Turn::Run(number) => Next::Run(number, Arc::clone(&self.link.1)),
            Turn::Wait => {
                let (waiter, told) = oneshot::channel();
                self.waiting.insert(id, waiter);
                Next::Wait(told)
            }
            Turn::Answer | Turn::Over => Next::Over,
        }
    }
}

/// What the task waits for.
struct Watch {
    deadline: Option<Time>,
    number: u64,
    link: Arc<Link>,
    connect: bool,
    in_doubt: bool,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Link, ConnectError>> + Send>>;

async fn poll_attempt(attempt: &mut Option<Attempt>) -> Result<Link, ConnectError> {
    match attempt {
        Some(attempt) => attempt.await,
        None => std::future::pending().await,
    }
}

async fn connect_again(supervisor: Arc<Supervisor>, in_doubt: bool) -> Result<Link, ConnectError> {
    let Supervisor { connector, first, .. } = &*supervisor;
    let session = supervisor.link().session().clone();
    let doubt = (in_doubt && !drained(&session).await)
        .then(|| MaybeAlive { session, reset: !first.device().ends_tasks() });
    connector.connect(doubt, Some(first.device())).await
}

/// Ends a session that still stands, as after a reset that the unit told of; says whether each of its tasks was
/// answered. Then nothing of it is under way, and the unit need not be reset: two initiators that both did that on
/// hearing of the other's reset would never come to an end.
async fn drained(session: &Session) -> bool {
    let ended = async {
        session.close().await;
        session.ended().await
    };
    let ended = tokio::time::timeout(DRAINED_WITHIN, ended).await;
    ended.is_ok_and(|loss| matches!(*loss, Loss::LoggedOut))
}

/// An error and all beneath it, on one line.
struct Chain<'a>(&'a dyn StdError);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", OneLine(self.0))?;
        let mut beneath = self.0.source();
        while let Some(error) = beneath {
            write!(f, ": {}", OneLine(error))?;
            beneath = error.source();
        }
        Ok(())
    }
}
