//! What callers and the worker share: the state machine under a lock that is held for moments only,
//! and the wakers of those who wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::WaiterId;
use super::core::{Answer, Change, Core, Entry, Found, Order, Outcome};
use crate::layer::reconnect::{Runtime, Task};
use crate::{Result, Span};

pub(super) struct Shared {
    runtime: Arc<dyn Runtime>,
    state: Mutex<State>,
}

/// What the worker does once it has carried out its orders.
pub(super) enum Next {
    /// It waits for a result, to be woken, or for a time.
    Later(Option<Duration>),
    /// Nothing: there will be no more orders.
    Over,
}

struct State {
    core: Core,
    /// What the worker has not fetched yet; no more than may be in flight.
    orders: VecDeque<Order>,
    worker: Option<Waker>,
    /// When the worker looks again by itself.
    timer: Option<Duration>,
    wakers: BTreeMap<WaiterId, Waker>,
}

impl Shared {
    pub(super) fn new(core: Core, runtime: Arc<dyn Runtime>) -> Self {
        let (orders, wakers) = (VecDeque::new(), BTreeMap::new());
        let state = State { core, orders, worker: None, timer: None, wakers };
        Self { runtime, state: Mutex::new(state) }
    }

    pub(super) fn now(&self) -> Duration {
        self.runtime.now()
    }

    /// Ends at that time.
    pub(super) fn sleep_until(&self, at: Duration) -> Task {
        self.runtime.sleep_until(at)
    }

    /// Changes the state, draws the orders that follow, and wakes whoever they concern.
    fn with<T>(&self, act: impl FnOnce(&mut State, Duration) -> T) -> T {
        let now = self.now();
        let mut state = self.state.lock().unwrap_or_else(|poisoned| {
            // A panic has left it half way, so that nothing it says can be relied on.
            let mut state = poisoned.into_inner();
            state.core.abandon();
            state
        });
        let answer = act(&mut state, now);
        state.draw(now);
        let wake_worker = !state.orders.is_empty() || state.core.is_over() || state.lacks_timer();
        let worker = state.worker.take_if(|_| wake_worker);
        let State { core, wakers, .. } = &mut *state;
        // Nearly always empty, and then nothing is allocated.
        let called: Vec<Waker> =
            core.called().filter_map(|waiter| wakers.remove(&waiter)).collect();
        drop(state);
        worker.into_iter().chain(called).for_each(Waker::wake);
        answer
    }

    /// Changes or asks the state machine.
    pub(super) fn core<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        self.with(|state, _| act(&mut state.core))
    }

    /// Begins a read.
    pub(super) fn read(&self, span: Span) -> Result<Found> {
        self.with(|state, now| state.core.read(span, now))
    }

    /// Accepts a change, or keeps its place in the line.
    pub(super) fn accept(&self, change: &mut Change, context: &Context<'_>) -> Poll<Result<()>> {
        self.with(|state, _| match state.core.accept(change) {
            Ok(Entry::Accepted) => {
                change.waiter.map(|waiter| state.wakers.remove(&waiter));
                Poll::Ready(Ok(()))
            }
            Ok(Entry::Wait(waiter)) => {
                state.wakers.insert(waiter, context.waker().clone());
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        })
    }

    /// The answer to `waiter`.
    pub(super) fn answer(&self, waiter: WaiterId, context: &Context<'_>) -> Poll<Answer> {
        self.with(|state, _| match state.core.answer(waiter) {
            Some(answer) => {
                state.wakers.remove(&waiter);
                Poll::Ready(answer)
            }
            None => {
                state.wakers.insert(waiter, context.waker().clone());
                Poll::Pending
            }
        })
    }

    /// Nobody waits for `waiter` any more.
    pub(super) fn leave(&self, waiter: WaiterId) {
        self.with(|state, _| {
            state.wakers.remove(&waiter);
            state.core.leave(waiter);
        });
    }

    /// Takes what became of the worker's orders, and gives it new ones.
    pub(super) fn work(
        &self,
        context: &Context<'_>,
        outcomes: &mut Vec<Outcome>,
        orders: &mut VecDeque<Order>,
    ) -> Next {
        self.with(|state, now| {
            outcomes.drain(..).for_each(|outcome| state.core.finish(outcome, now));
            state.draw(now);
            std::mem::swap(orders, &mut state.orders);
            state.timer = state.core.held_until();
            if orders.is_empty() && state.core.is_over() {
                return Next::Over;
            }
            if orders.is_empty() {
                state.worker = Some(context.waker().clone());
            }
            Next::Later(state.timer)
        })
    }

    pub(super) fn gathered(&self, at: u64, data: Bytes) {
        self.core(|core| core.gathered(at, data));
    }

    pub(super) fn abandon(&self) {
        self.core(Core::abandon);
    }
}

impl State {
    /// Whether something is held back for a shorter time than the worker sleeps.
    fn lacks_timer(&self) -> bool {
        let is_earlier = |until| self.timer.is_none_or(|timer| until < timer);
        self.core.held_until().is_some_and(is_earlier)
    }

    fn draw(&mut self, now: Duration) {
        while let Some(order) = self.core.next(now) {
            self.orders.push_back(order);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::Settings;
    use super::*;
    use crate::Volume as _;
    use crate::store::memory::Memory;
    use crate::store::virtual_time::VirtualTime;

    #[test]
    fn after_a_panic_half_way_no_flush_succeeds() {
        let shape = Memory::new(4096, 512).shape().clone();
        let time = Arc::new(VirtualTime::default());
        let shared = Shared::new(Core::new(Settings::default(), shape), time);
        assert!(shared.core(|core| core.barrier(true)).is_ok());
        let broken = catch_unwind(AssertUnwindSafe(|| shared.core(|_| panic!("a mistake"))));
        broken.unwrap_err();
        assert!(shared.core(|core| core.barrier(true)).is_err());
    }
}
