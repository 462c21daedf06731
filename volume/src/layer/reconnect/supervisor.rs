//! Keeps a volume usable across lost connections: the thin part around the machine that decides.
//!
//! Whoever asks for something carries it out, on the link and at the time the machine says. One task watches the link,
//! connects again, and has written again what may be lost.

mod request;

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, oneshot, watch};

use self::request::{Detached, Next, Request};
use super::connect::{
    Cause, Connect, Effect, Ended, Loss, Refused, RequestError, Runtime, Verdict,
};
use super::machine::{Action, End, Kind, Over, Recovery, Replay as _, Settings, Status, Turn};

/// A link, and its number.
type Numbered<V> = (u64, Arc<V>);

/// How a request ended.
type Outcome<T, C> = Result<T, RequestError<<C as Connect>::Error>>;

/// What the requests of a volume, and the task behind them, share.
pub struct Supervisor<C: Connect> {
    connect: C,
    runtime: Arc<dyn Runtime>,
    first: Arc<C::Volume>,
    state: Mutex<State<C>>,
    /// The task has to look at the machine again.
    changed: Notify,
    /// Every change that has not ended watches this.
    changes: watch::Sender<()>,
}

struct State<C: Connect> {
    machine: Recovery<C::Change>,
    /// The link that is up, or was last.
    link: Numbered<C::Volume>,
    /// Whom to tell that a request may run. Dropped when nothing runs any more.
    waiting: HashMap<u64, oneshot::Sender<Numbered<C::Volume>>>,
    /// An attempt to connect is to be made.
    connect: bool,
    cause: Option<Cause>,
    ended: Option<Arc<Ended>>,
    /// The first acknowledged change or flush that failed while the link stood.
    failed: Option<Arc<Ended>>,
}

impl<C: Connect> fmt::Debug for Supervisor<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor").field("connect", &self.connect).finish_non_exhaustive()
    }
}

impl<C: Connect> Supervisor<C> {
    /// Begins to watch over a link, until it is closed.
    pub fn start(
        connect: C,
        settings: Settings,
        first: C::Volume,
        runtime: Arc<dyn Runtime>,
    ) -> Arc<Self> {
        let first = Arc::new(first);
        let supervisor = Arc::new(Self {
            connect,
            runtime,
            first: Arc::clone(&first),
            state: Mutex::new(State {
                machine: Recovery::new(settings),
                link: (0, first),
                waiting: HashMap::new(),
                connect: false,
                cause: None,
                ended: None,
                failed: None,
            }),
            changed: Notify::new(),
            changes: watch::Sender::new(()),
        });
        supervisor.run(Arc::clone(&supervisor).watch());
        supervisor
    }

    /// Runs what the volume cannot do without. If that panics the volume ends: those who wait would wait for ever.
    pub fn run(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let me = Arc::downgrade(self);
        self.runtime.spawn(Box::pin(async move {
            if AssertUnwindSafe(work).catch_unwind().await.is_err()
                && let Some(me) = me.upgrade()
            {
                let mut state = me.lock();
                state.machine.broken();
                me.act(&mut state);
            }
        }));
    }

    // Requests.

    /// Carries out something that changes nothing.
    pub async fn read<T, F: Future<Output = Result<T, C::Error>>>(
        self: &Arc<Self>,
        range: Range<u64>,
        verb: impl Fn(Arc<C::Volume>) -> F,
    ) -> Outcome<T, C> {
        self.submit(Kind::Read, range, 0).carry_out(verb).await
    }

    /// Carries out a change of a range that takes `weight` bytes to be kept. It goes on if nobody waits for it any more:
    /// given up half way, it could land after a later change to the same bytes.
    /// Its place among others is that of this call.
    pub fn change(
        self: &Arc<Self>,
        change: C::Change,
        range: Range<u64>,
        weight: usize,
    ) -> impl Future<Output = Outcome<(), C>> + Send + use<C> {
        let mut request = self.submit(Kind::Change(change.clone()), range, weight);
        request.is_hint = !change.replaces();
        let verb = move |link: Arc<C::Volume>| {
            let change = change.clone();
            async move { C::change(&link, &change).await }
        };
        Detached::new(&self.runtime, request.carry_out(verb))
    }

    /// Takes a change that cannot be carried out, as if the volume had refused it: it fails, and is saved where others
    /// would be.
    pub async fn refuse(
        self: &Arc<Self>,
        change: C::Change,
        (range, weight): (Range<u64>, usize),
        why: C::Error,
    ) -> Outcome<(), C> {
        let request = self.submit(Kind::Change(change), range, weight);
        let refused = move |_| std::future::ready(Err(why.clone()));
        Detached::new(&self.runtime, request.carry_out(refused)).await
    }

    /// Makes every change durable that was answered.
    pub async fn flush(self: &Arc<Self>) -> Outcome<(), C> {
        let request = self.submit(Kind::Flush, 0..0, 0);
        request.carry_out(|link| async move { C::flush(&link).await }).await
    }

    fn submit(
        self: &Arc<Self>,
        kind: Kind<C::Change>,
        range: Range<u64>,
        weight: usize,
    ) -> Request<C> {
        let mut state = self.lock();
        let _change = matches!(kind, Kind::Change(_)).then(|| self.changes.subscribe());
        let (id, turn) = state.machine.submit(kind, range, weight);
        self.put_in_order(&state, id, turn);
        let next = state.next(id, turn);
        self.act(&mut state);
        Request {
            supervisor: Arc::clone(self),
            id,
            next,
            is_hint: false,
            runs: false,
            left: false,
            _change,
        }
    }

    /// Says how a request ended on a link, and what becomes of it.
    fn ended(
        self: &Arc<Self>,
        id: u64,
        (number, link): (u64, &C::Volume),
        failure: Option<&C::Error>,
        is_hint: bool,
    ) -> (Turn, Next<C>) {
        let mut state = self.lock();
        let mut end = self.judge(&mut state, (number, link), failure);
        if end == End::Failed && is_hint {
            end = End::NotTaken;
        }
        let turn = state.machine.ended(self.runtime.now(), id, number, end);
        if !state.machine.has_outage() {
            self.connect.recovered();
        }
        if let Some(why) = failure.filter(|_| state.machine.is_saving()) {
            state.failed.get_or_insert_with(|| {
                Arc::new(Ended { over: Over::NotWritten, cause: Some(Arc::new(why.clone())) })
            });
        }
        self.put_in_order(&state, id, turn);
        let next = state.next(id, turn);
        self.act(&mut state);
        (turn, next)
    }

    /// A group that runs now has its place on the link.
    fn put_in_order(&self, state: &State<C>, id: u64, turn: Turn) {
        if let (Turn::Run(_), Some(change)) = (turn, state.machine.group(id)) {
            self.connect.put_in_order(&state.link.1, change);
        }
    }

    /// How something ended, with the link noted as lost if it was that.
    fn judge(
        &self,
        state: &mut State<C>,
        (number, link): (u64, &C::Volume),
        failure: Option<&C::Error>,
    ) -> End {
        match self.connect.judge(link, failure) {
            Verdict::Done => End::Done,
            Verdict::Failed => End::Failed,
            Verdict::Lost(loss) => {
                self.note_loss(state, number, loss);
                End::Lost
            }
            // It is asked on the next link until it can be used.
            Verdict::NotYet(why) => {
                let loss = Loss { why, wait: Duration::ZERO, is_unanswered: false };
                self.note_loss(state, number, loss);
                End::NotYet
            }
        }
    }

    fn note_loss(&self, state: &mut State<C>, number: u64, loss: Loss) {
        if loss.is_unanswered {
            state.machine.unanswered(number);
        }
        if !state.machine.lost(self.runtime.now(), number, loss.wait) {
            return;
        }
        let (target, why) = (self.connect.to_string(), self.connect.describe(&*loss.why));
        tracing::warn!(target, why, "connection lost: requests wait");
        state.cause = Some(loss.why);
        self.changed.notify_one();
        if loss.is_unanswered {
            self.connect.unanswered();
        }
    }

    /// Does what the machine calls for.
    fn act(self: &Arc<Self>, state: &mut State<C>) {
        while let Some(action) = state.machine.poll() {
            match action {
                Action::Connect => {
                    state.connect = true;
                    self.changed.notify_one();
                }
                Action::Run { id, link } => {
                    self.put_in_order(state, id, Turn::Run(link));
                    let link = state.link.clone();
                    // Whoever stopped waiting has withdrawn, or will.
                    let _ = state.waiting.remove(&id).map(|waiter| waiter.send(link));
                }
                Action::Flush { id, link } => {
                    state.waiting.remove(&id);
                    let (me, on) = (Arc::clone(self), Arc::clone(&state.link.1));
                    self.run(async move {
                        let flushed = C::flush(&on).await;
                        // If it has to run again, the machine says so again: nobody waits for it here.
                        me.ended(id, (link, &on), flushed.as_ref().err(), false);
                    });
                }
                Action::Restore { seq, link, change } => {
                    let (me, on) = (Arc::clone(self), Arc::clone(&state.link.1));
                    let running = self.changes.subscribe();
                    self.run(async move {
                        me.restore(seq, (link, &on), &change).await;
                        drop(running);
                    });
                }
                Action::Save(change) => self.connect.save(change),
                Action::Over => self.end(state),
            }
        }
    }

    async fn restore(
        self: Arc<Self>,
        seq: u64,
        (number, link): (u64, &C::Volume),
        change: &C::Change,
    ) {
        let restored = C::change(link, change).await;
        let mut state = self.lock();
        let mut end = self.judge(&mut state, (number, link), restored.as_ref().err());
        if end == End::Failed && !change.replaces() {
            end = End::NotTaken;
        }
        if let (End::Failed, Err(why)) = (end, restored) {
            state.cause = Some(Arc::new(why));
        }
        state.machine.restored(self.runtime.now(), seq, number, end);
        self.act(&mut state);
    }

    fn end(&self, state: &mut State<C>) {
        let over = state.machine.over().unwrap_or(Over::Closed);
        let ended = Arc::new(Ended { over, cause: state.cause.take() });
        if over != Over::Closed {
            let (target, why) = (self.connect.to_string(), self.connect.describe(&*ended));
            tracing::error!(target, why, "the volume is given up");
            // What is under way may have no answer for long, and is saved.
            self.connect.abandon(&state.link.1);
        }
        state.ended = Some(ended);
        state.waiting.clear();
        self.changed.notify_one();
    }

    // The link.

    /// Watches the link, and gets the next when it is lost, until the end.
    async fn watch(self: Arc<Self>) {
        let mut attempt: Option<Attempt<C>> = None;
        while let Some(Watch { deadline, number, link, connect, is_uncertain }) = self.look() {
            if connect {
                let supervisor = Arc::clone(&self);
                let last = Arc::clone(&link);
                attempt = Some(Box::pin(async move {
                    let first = Arc::clone(&supervisor.first);
                    supervisor.connect.connect(first, last, is_uncertain).await
                }));
            }
            let connecting = attempt.is_some();
            tokio::select! {
                biased;
                outcome = poll_attempt::<C>(&mut attempt), if connecting => {
                    attempt = None;
                    self.attempted(outcome);
                }
                loss = self.connect.ended(&link), if !connecting => {
                    self.lose(number, loss);
                    // The link stays ended until there is another: what comes next is a change.
                    self.wait(deadline).await;
                }
                () = self.wait(deadline) => {}
            }
        }
    }

    /// What the task has to wait for now; `None` at the end.
    fn look(self: &Arc<Self>) -> Option<Watch<C>> {
        let mut state = self.lock();
        state.machine.wake(self.runtime.now());
        self.act(&mut state);
        if state.ended.is_some() {
            return None;
        }
        let (number, link) = state.link.clone();
        Some(Watch {
            deadline: state.machine.deadline(),
            number,
            link,
            connect: std::mem::take(&mut state.connect),
            is_uncertain: state.machine.in_doubt(),
        })
    }

    async fn wait(&self, deadline: Option<Duration>) {
        let changed = self.changed.notified();
        match deadline {
            Some(deadline) => tokio::select! {
                biased;
                () = changed => {}
                () = self.runtime.sleep_until(deadline) => {}
            },
            None => changed.await,
        }
    }

    fn attempted(self: &Arc<Self>, outcome: Result<C::Volume, Refused>) {
        let mut state = self.lock();
        let target = self.connect.to_string();
        match outcome {
            Ok(link) => {
                let (kept, bytes) = state.machine.unflushed();
                tracing::warn!(target, kept, bytes, "connected again");
                self.connect.connected(&state.link.1, &link);
                self.connect.resume(&link, state.machine.groups());
                state.link = (state.link.0 + 1, Arc::new(link));
                state.machine.connected(self.runtime.now());
            }
            Err(Refused { why, effect }) => {
                let reason = self.connect.describe(&*why);
                // A reason that stays the same for days is told once.
                let last = state.cause.as_deref().map(|last| self.connect.describe(last));
                if last.is_some_and(|last| last == reason) {
                    tracing::info!(target, why = reason, "cannot connect again");
                } else {
                    tracing::warn!(target, why = reason, "cannot connect again: requests wait");
                }
                state.cause = Some(why);
                let (now, random) = (self.runtime.now(), self.runtime.random());
                match effect {
                    Effect::Fenced => state.machine.fenced(),
                    Effect::Failed(failure) => state.machine.failed(now, failure, random),
                }
            }
        }
        self.act(&mut state);
    }

    /// A link is lost, for a reason that its transport has not found by itself.
    pub fn lose(self: &Arc<Self>, number: u64, loss: Loss) {
        let mut state = self.lock();
        self.note_loss(&mut state, number, loss);
        self.act(&mut state);
    }

    /// Something that is no request of a caller ended so on a link.
    pub fn observe(
        self: &Arc<Self>,
        (number, link): (u64, &C::Volume),
        failure: Option<&C::Error>,
    ) {
        let mut state = self.lock();
        if self.judge(&mut state, (number, link), failure) == End::Done {
            state.machine.answered(number);
        }
        self.act(&mut state);
    }

    // What is known.

    /// What makes the connections.
    pub const fn transport(&self) -> &C {
        &self.connect
    }

    /// The first link.
    pub fn first(&self) -> &C::Volume {
        &self.first
    }

    /// The link that is up, or was last.
    pub fn link(&self) -> Arc<C::Volume> {
        Arc::clone(&self.lock().link.1)
    }

    /// The same, with its number; none at the end.
    pub fn current(&self) -> Option<Numbered<C::Volume>> {
        let state = self.lock();
        state.ended.is_none().then(|| state.link.clone())
    }

    /// How the link is, and the time.
    pub fn status(&self) -> (Status, Duration) {
        (self.lock().machine.status(), self.runtime.now())
    }

    /// Changes that were answered and are not durable, and their bytes.
    pub fn unflushed(&self) -> (usize, usize) {
        self.lock().machine.unflushed()
    }

    /// Whether what a link shows there may be lost with a cache: a change was answered and is not durable.
    pub fn is_unflushed(&self, range: &Range<u64>) -> bool {
        self.lock().machine.is_unflushed(range)
    }

    /// Whether acknowledged changes have failed, so that all that come are saved.
    pub fn is_saving(&self) -> bool {
        self.lock().machine.is_saving()
    }

    /// Whether no change is kept, and none has failed.
    pub fn has_flushed_all(&self) -> bool {
        let state = self.lock();
        !state.machine.is_saving() && state.machine.unflushed().0 == 0
    }

    /// Why nothing is carried out any more, if that is so.
    pub fn over(&self) -> Option<Over> {
        self.lock().ended.as_ref().map(|ended| ended.over)
    }

    /// What stands in the way of a connection, or did last.
    pub fn reason(&self) -> Option<String> {
        let state = self.lock();
        match (&state.ended, &state.cause) {
            (Some(ended), _) => Some(self.connect.describe(&**ended)),
            (None, cause) => cause.as_deref().map(|cause| self.connect.describe(cause)),
        }
    }

    // The end.

    /// From now on an outage is waited for as long as this, or for ever.
    pub fn set_outage_limit(&self, patience: Option<Duration>) {
        self.lock().machine.set_outage_limit(patience);
        self.changed.notify_one();
    }

    /// From now on an outage is waited for only that long.
    pub fn leave(&self, grace: Duration) {
        let mut state = self.lock();
        state.machine.leave(self.runtime.now(), grace);
        self.connect.hurry(&state.link.1);
        drop(state);
        self.changed.notify_one();
    }

    /// Returns when every change has ended, also those that nobody waits for any more.
    pub async fn quiet(&self) {
        self.changes.closed().await;
    }

    /// Nothing is carried out any more; whoever waits is told.
    pub fn close(self: &Arc<Self>) {
        let mut state = self.lock();
        state.machine.close();
        self.act(&mut state);
    }

    /// A panic where it is held may leave the machine half way, so that it ends.
    fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            state.machine.broken();
            state
        })
    }
}

impl<C: Connect> State<C> {
    fn next(&mut self, id: u64, turn: Turn) -> Next<C> {
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
struct Watch<C: Connect> {
    deadline: Option<Duration>,
    number: u64,
    link: Arc<C::Volume>,
    connect: bool,
    is_uncertain: bool,
}

type Attempt<C> = Pin<Box<dyn Future<Output = Result<<C as Connect>::Volume, Refused>> + Send>>;

async fn poll_attempt<C: Connect>(attempt: &mut Option<Attempt<C>>) -> Result<C::Volume, Refused> {
    match attempt {
        Some(attempt) => attempt.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod mistakes;
