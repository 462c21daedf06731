//! What callers and the worker share: the machine under a lock that is held for moments only, and those who wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::checkpoint::CHECKPOINT_LEN;
use super::machine::{
    Action, Cause, DrainWindow, Journal, Refused, Retirement, State as MachineState,
};
use super::overlay::{Part, bytes_of};
use super::status::{Failure, LayerStatus, Mode, Outcome};
use crate::Span;
use crate::layer::pipeline::{RateControl, Stamp};
use crate::layer::reconnect::Runtime;

/// Why a request was not carried out by the journal.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    /// Its file failed: it is to be asked of the store once that has the rest.
    FallBack,
    Failed(Failure),
}

pub(super) type Answer = Result<(), Refusal>;

#[derive(Debug)]
enum Slot {
    Waiting(Option<Waker>),
    Answered(Result<(), Refused>),
}

pub(super) struct Shared {
    runtime: Arc<dyn Runtime>,
    max_age: Option<Duration>,
    state: Mutex<State>,
}

struct State {
    machine: Journal,
    mode: Mode,
    /// The first failure of the file or the store.
    failure: Option<Failure>,
    /// What the worker has not fetched.
    orders: VecDeque<Action>,
    worker: Option<Waker>,
    is_worker_wanted: bool,
    requests: BTreeMap<u64, Slot>,
    next_id: u64,
    /// Those who wait until a group is at the store, or for the end of falling back.
    waiting: Vec<Waker>,
    /// The last group that these know of.
    drained: u64,
    /// When the first change of each group was accepted that the store lacks.
    ages: VecDeque<(u64, Duration)>,
    /// Something was asked since the journal was last told that nothing was.
    is_touched: bool,
    is_closing: bool,
    called: Vec<Waker>,
    /// When it was last looked at.
    now: Duration,
    /// How much is sent at a time.
    rate: RateControl,
    /// Writes and whole groups under way to the store, with their bytes, and all bytes of them.
    sent: BTreeMap<u64, (Stamp, u64)>,
    in_flight: u64,
    /// Requests to the store that have not ended.
    under_way: BTreeSet<u64>,
}

/// How the worker is.
#[derive(Clone, Copy)]
pub(super) struct WorkerState {
    /// Nothing that was ordered is under way.
    pub(super) is_quiet: bool,
    /// The checkpoint was not written lately.
    pub(super) is_checkpoint_due: bool,
}

/// What the worker does next.
pub(super) struct Work {
    pub(super) orders: VecDeque<Action>,
    /// The file failed: the store is to be given what it lacks.
    pub(super) retirement: Option<Retirement>,
    /// The journal is to be told soon that nothing was asked.
    pub(super) wants_idle: bool,
    pub(super) is_over: bool,
}

impl Shared {
    pub(super) fn new(
        machine: Journal,
        runtime: Arc<dyn Runtime>,
        max_age: Option<Duration>,
        rate: RateControl,
    ) -> Self {
        let drained = machine.drained_group();
        let now = runtime.now();
        let ages = match machine.status().unsent {
            0 => VecDeque::new(),
            _ => [(machine.last_group(), now)].into(),
        };
        let state = State {
            machine,
            mode: Mode::Journal,
            failure: None,
            orders: VecDeque::new(),
            worker: None,
            is_worker_wanted: false,
            requests: BTreeMap::new(),
            next_id: 0,
            waiting: Vec::new(),
            drained,
            ages,
            is_touched: true,
            is_closing: false,
            called: Vec::new(),
            now,
            rate,
            sent: BTreeMap::new(),
            in_flight: 0,
            under_way: BTreeSet::new(),
        };
        Self { runtime, max_age, state: Mutex::new(state) }
    }

    pub(super) fn runtime(&self) -> &dyn Runtime {
        &*self.runtime
    }

    /// Changes the state, draws what follows from it, and wakes whom it concerns.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| {
            // A panic has left it half way, so that nothing it says can be relied on.
            let mut state = poisoned.into_inner();
            state.fail(&Failure::new(crate::Kind::Gone, "the journal was left half way"));
            state
        });
        state.now = self.runtime.now();
        let answer = act(&mut state);
        state.draw();
        let called = std::mem::take(&mut state.called);
        let worker = match std::mem::take(&mut state.is_worker_wanted) {
            true => state.worker.take(),
            false => None,
        };
        drop(state);
        called.into_iter().chain(worker).for_each(Waker::wake);
        answer
    }

    /// Asks something of the machine under a new id. Says how it ended, or the id if it has not.
    pub(super) fn submit(&self, ask: impl FnOnce(&mut Journal, u64)) -> Result<Answer, u64> {
        let now = self.runtime.now();
        self.with(|state| {
            if let Some(refusal) = state.refusal() {
                return Ok(Err(refusal));
            }
            let id = state.next_id;
            state.next_id += 1;
            state.requests.insert(id, Slot::Waiting(None));
            ask(&mut state.machine, id);
            state.touched(now);
            state.draw();
            state.answered(id).ok_or(id)
        })
    }

    /// How a request has ended.
    pub(super) fn answer(&self, id: u64, context: &Context<'_>) -> Poll<Answer> {
        self.with(|state| {
            if let Some(answer) = state.answered(id) {
                return Poll::Ready(answer);
            }
            if let Some(refusal) = state.refusal() {
                return Poll::Ready(Err(refusal));
            }
            state.requests.insert(id, Slot::Waiting(Some(context.waker().clone())));
            Poll::Pending
        })
    }

    /// Nobody waits for a request any more.
    pub(super) fn leave(&self, id: u64) {
        self.with(|state| state.requests.remove(&id));
    }

    /// Waits while the oldest change that the store lacks is too old (rule 5).
    pub(super) fn poll_age(&self, context: &Context<'_>) -> Poll<()> {
        let Some(max_age) = self.max_age else { return Poll::Ready(()) };
        let now = self.runtime.now();
        self.with(|state| {
            let oldest = state.ages.front().filter(|_| state.mode == Mode::Journal);
            let is_over = state.refusal().is_some();
            if is_over || oldest.is_none_or(|(_, since)| now.saturating_sub(*since) <= max_age) {
                return Poll::Ready(());
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
    }

    /// The last group in which a change was accepted.
    pub(super) fn last_group(&self) -> u64 {
        self.with(|state| state.machine.last_group())
    }

    /// Waits until the store has this group, durably.
    pub(super) fn poll_group(&self, group: u64, context: &Context<'_>) -> Poll<Answer> {
        self.with(|state| {
            if state.mode == Mode::Journal && state.machine.drained_group() >= group {
                return Poll::Ready(Ok(()));
            }
            if let Some(refusal) = state.refusal() {
                return Poll::Ready(Err(refusal));
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
    }

    /// Waits, after a failure, until nothing is under way to the store: what a verb left running that has failed could land
    /// over what is written next.
    pub(super) fn poll_ended(&self, context: &Context<'_>) -> Poll<()> {
        self.with(|state| {
            if state.under_way.is_empty() {
                return Poll::Ready(());
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
    }

    /// Waits for the end of falling back.
    pub(super) fn poll_direct(&self, context: &Context<'_>) -> Poll<Result<(), Failure>> {
        self.with(|state| match state.mode {
            Mode::Direct => Poll::Ready(Ok(())),
            Mode::Failed => Poll::Ready(Err(state.cause())),
            Mode::Journal | Mode::FallingBack => {
                state.waiting.push(context.waker().clone());
                Poll::Pending
            }
        })
    }

    /// Where the bytes of `span` are, and the number of the reader if any are in the journal.
    pub(super) fn read(&self, span: Span) -> Result<(Vec<Part>, Option<u64>), Failure> {
        self.with(|state| match state.mode {
            Mode::Direct => Ok((vec![Part::of_store(span)], None)),
            _ if state.machine.status().state == MachineState::Frozen => Err(state.cause()),
            _ => Ok(state.machine.read(span)),
        })
    }

    pub(super) fn read_done(&self, reader: u64) {
        self.with(|state| state.machine.read_done(reader));
    }

    /// Nothing more is asked.
    pub(super) fn close(&self) {
        self.with(|state| {
            state.is_closing = true;
            state.machine.close();
            state.is_worker_wanted = true;
        });
    }

    /// Nothing was asked for a while.
    pub(super) fn idle(&self) {
        self.with(|state| {
            state.is_touched = false;
            state.machine.idle();
        });
    }

    /// Has the file say what the store has, as when nothing is asked; whether it says of everything that the store has it.
    pub(super) fn record(&self) -> bool {
        self.with(|state| match state.mode {
            Mode::Journal => {
                state.machine.idle();
                state.is_worker_wanted = true;
                state.machine.status().is_recorded
            }
            Mode::Direct => true,
            Mode::FallingBack | Mode::Failed => false,
        })
    }

    /// The worker is gone.
    pub(super) fn abandon(&self) {
        self.with(|state| {
            state.under_way.clear();
            state.fail(&Failure::new(crate::Kind::Gone, "the journal has ended"));
        });
    }

    pub(super) fn status(&self) -> LayerStatus {
        let now = self.runtime.now();
        self.with(|state| LayerStatus {
            journal: state.machine.status(),
            mode: state.mode,
            oldest: state.ages.front().map(|(_, since)| now.saturating_sub(*since)),
            failure: state.failure.clone(),
        })
    }

    /// Takes what became of the worker's orders, and gives it new ones.
    pub(super) fn work(
        &self,
        context: &Context<'_>,
        outcomes: &mut Vec<Outcome>,
        WorkerState { is_quiet, is_checkpoint_due }: WorkerState,
    ) -> Work {
        self.with(|state| {
            outcomes.drain(..).for_each(|outcome| state.finish(outcome));
            if is_checkpoint_due && state.mode == Mode::Journal && !state.is_closing {
                state.machine.checkpoint();
            }
            state.draw();
            let mut orders = std::mem::take(&mut state.orders);
            let mut retirement = None;
            if state.mode == Mode::FallingBack {
                // The machine wants nothing more done. What is under way ends first: it must not land behind the rest.
                orders.clear();
                state.under_way.clear();
                if is_quiet {
                    retirement = state.machine.retire();
                }
            }
            let is_quiet = is_quiet && orders.is_empty() && retirement.is_none();
            let is_over = is_quiet && state.is_over();
            if orders.is_empty() && retirement.is_none() && !is_over {
                state.worker = Some(context.waker().clone());
            }
            Work { orders, retirement, wants_idle: state.is_touched, is_over }
        })
    }
}

impl State {
    /// Why nothing can be asked of the journal.
    fn refusal(&self) -> Option<Refusal> {
        match self.mode {
            Mode::FallingBack | Mode::Direct => Some(Refusal::FallBack),
            Mode::Failed => Some(Refusal::Failed(self.cause())),
            Mode::Journal => match self.machine.status().state {
                MachineState::Broken(Cause::File) => Some(Refusal::FallBack),
                MachineState::Broken(Cause::Store) | MachineState::Frozen | MachineState::Clean => {
                    Some(Refusal::Failed(self.cause()))
                }
                MachineState::Open | MachineState::Full | MachineState::Draining => None,
            },
        }
    }

    fn cause(&self) -> Failure {
        let frozen = || Failure::new(crate::Kind::Gone, Refused::Frozen);
        self.failure.clone().unwrap_or_else(frozen)
    }

    /// The answer of a request, if there is one: it is taken away.
    fn answered(&mut self, id: u64) -> Option<Answer> {
        let Some(Slot::Answered(answer)) = self.requests.get(&id) else { return None };
        let answer = match *answer {
            Ok(()) => Ok(()),
            Err(Refused::Broken(Cause::File)) => Err(Refusal::FallBack),
            Err(_) => Err(Refusal::Failed(self.cause())),
        };
        self.requests.remove(&id);
        Some(answer)
    }

    /// Something was asked: the store lacks a group from now on, and the journal will be idle some time after it.
    fn touched(&mut self, now: Duration) {
        let group = self.machine.last_group();
        let is_new = self.ages.back().is_none_or(|(last, _)| *last < group);
        if is_new && group > self.machine.drained_group() {
            self.ages.push_back((group, now));
        }
        if !std::mem::replace(&mut self.is_touched, true) {
            self.is_worker_wanted = true;
        }
    }

    /// Takes what the machine wants done.
    fn draw(&mut self) {
        while let Some(action) = self.machine.poll() {
            if let Some((id, len)) = written(&action) {
                self.in_flight += len;
                let stamp = self.rate.issued(len, self.in_flight, self.now);
                self.sent.insert(id, (stamp, len));
            }
            if let Action::DrainWrite { id, .. }
            | Action::DrainZero { id, .. }
            | Action::DrainDiscard { id, .. }
            | Action::DrainFlush { id }
            | Action::DrainGroup { id, .. } = &action
            {
                self.under_way.insert(*id);
            }
            let Action::Answer { id, result } = action else {
                self.orders.push_back(action);
                continue;
            };
            // Absent if nobody waits any more.
            if let Some(slot) = self.requests.get_mut(&id) {
                let before = std::mem::replace(slot, Slot::Answered(result));
                if let Slot::Waiting(Some(waker)) = before {
                    self.called.push(waker);
                }
            }
        }
        if self.mode == Mode::Journal
            && self.machine.status().state == MachineState::Broken(Cause::File)
        {
            self.enter(Mode::FallingBack);
        }
        let drained = self.machine.drained_group();
        if drained > self.drained || self.refusal().is_some() {
            self.drained = drained;
            while self.ages.front().is_some_and(|(group, _)| *group <= drained) {
                self.ages.pop_front();
            }
            self.called.append(&mut self.waiting);
        }
        self.is_worker_wanted |= !self.orders.is_empty();
    }

    /// Wakes everybody: they ask again.
    fn enter(&mut self, mode: Mode) {
        self.mode = mode;
        self.is_worker_wanted = true;
        self.called.append(&mut self.waiting);
        for slot in self.requests.values_mut() {
            if let Slot::Waiting(waker) = slot {
                self.called.extend(waker.take());
            }
        }
    }

    fn fail(&mut self, why: &Failure) {
        self.failure.get_or_insert_with(|| why.clone());
        self.enter(Mode::Failed);
    }

    /// A write to the store, or a group, has ended.
    fn returned(&mut self, id: u64, is_done: bool) {
        let Some((stamp, len)) = self.sent.remove(&id) else { return };
        self.in_flight -= len;
        self.rate.returned(stamp, len, is_done, self.now);
        let chosen = self.rate.chosen();
        let (requests, bytes, segment) = (chosen.requests, chosen.in_flight, chosen.segment);
        self.machine.set_drain_window(DrainWindow { requests, bytes, segment });
    }

    fn finish(&mut self, outcome: Outcome) {
        if let Outcome::Drained(id, result) = &outcome {
            self.under_way.remove(id);
            self.returned(*id, result.is_ok());
        }
        let (machine, failure) = (&mut self.machine, &mut self.failure);
        let mut told = |result: Result<(), Failure>| {
            result.map_err(|why| {
                failure.get_or_insert(why);
            })
        };
        match outcome {
            Outcome::Synced(result) => machine.synced(told(result)),
            Outcome::Appended(seq, result) => machine.appended(seq, told(result)),
            Outcome::Superblock(number, result) => {
                machine.superblock_written(number, told(result));
            }
            Outcome::Drained(_, Err(why)) if why.is_fence => {
                let _ = told(Err(why));
                machine.fenced();
            }
            Outcome::Drained(id, result) => machine.drained(id, told(result)),
            Outcome::Checkpointed(result) => {
                machine.checkpointed(result.map_err(|why| {
                    tracing::debug!(%why, "no checkpoint was written");
                }));
            }
            Outcome::FellBack(Ok(())) => self.enter(Mode::Direct),
            Outcome::FellBack(Err(why)) => {
                // What stands in the way now says more than what failed first.
                self.failure = Some(why.clone());
                self.fail(&why);
            }
        }
    }

    /// Nothing will be ordered any more.
    fn is_over(&self) -> bool {
        self.is_closing
            && match self.mode {
                Mode::FallingBack => false,
                Mode::Direct | Mode::Failed => true,
                Mode::Journal => matches!(
                    self.machine.status().state,
                    MachineState::Clean | MachineState::Frozen | MachineState::Broken(_)
                ),
            }
    }
}

/// What sends bytes of writes to the store, and how many.
fn written(action: &Action) -> Option<(u64, u64)> {
    match action {
        Action::DrainWrite { id, span, .. } => Some((*id, span.len)),
        Action::DrainGroup { id, changes, checkpoint } => {
            let more = if checkpoint.is_some() { CHECKPOINT_LEN } else { 0 };
            Some((*id, bytes_of(changes) + more))
        }
        _ => None,
    }
}
