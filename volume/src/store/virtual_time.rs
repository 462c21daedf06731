//! Time that a test lets pass, for layers that ask for it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::layer::reconnect::{Runtime, Task};

/// A clock. Tasks run on the runtime of the test.
#[derive(Debug, Default)]
pub(crate) struct VirtualTime {
    state: std::sync::Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    now: Duration,
    wakers: Vec<Waker>,
    /// Whoever sleeps wakes at once, at the time that he wanted.
    flies: bool,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VirtualTime {
    /// One on which nobody waits: it is as late as it has to be.
    pub(crate) fn flying() -> Self {
        let time = Self::default();
        lock(&time.state).flies = true;
        time
    }

    /// It is later now.
    pub(crate) fn pass(&self, time: Duration) {
        let mut state = lock(&self.state);
        state.now += time;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Runtime for VirtualTime {
    fn now(&self) -> Duration {
        lock(&self.state).now
    }

    fn sleep_until(&self, at: Duration) -> Task {
        let state = std::sync::Arc::clone(&self.state);
        Box::pin(std::future::poll_fn(move |context| {
            let mut state = lock(&state);
            if state.flies {
                state.now = state.now.max(at);
            }
            if state.now >= at {
                return Poll::Ready(());
            }
            state.wakers.push(context.waker().clone());
            Poll::Pending
        }))
    }

    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }

    fn random(&self) -> u64 {
        0
    }
}
