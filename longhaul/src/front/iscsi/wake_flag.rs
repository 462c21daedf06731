//! Polls what rarely happens only when it has happened.
//!
//! The task of a session is woken for each burst of commands. Channels and timers that are silent for hours would be
//! polled each time; so they get a waker of their own, which sets a flag.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

#[derive(Debug, Default)]
struct Shared {
    woken: AtomicBool,
    /// The task that polls.
    task: Mutex<Option<Waker>>,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = &*task {
            task.wake_by_ref();
        }
    }
}

/// Whether something rare may have happened.
#[derive(Debug)]
pub(super) struct WakeFlag {
    shared: Arc<Shared>,
    /// Sets the flag.
    waker: Waker,
    /// The same as in `shared`, without its lock.
    task: Option<Waker>,
}

impl WakeFlag {
    pub(super) fn new() -> Self {
        let shared = Arc::<Shared>::default();
        Self { waker: Waker::from(Arc::clone(&shared)), shared, task: None }
    }

    /// Has the next poll look.
    pub(super) fn set(&self) {
        self.shared.woken.store(true, Ordering::Release);
    }

    /// Calls `poll` if it has not been called yet, was ready the last time, or was woken since.
    pub(super) fn poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.register(cx.waker());
        }
        if !self.shared.woken.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        // Cleared before the poll: what happens from here on sets it again.
        self.shared.woken.swap(false, Ordering::AcqRel);
        let polled = poll(&mut Context::from_waker(&self.waker));
        if polled.is_ready() {
            self.set();
        }
        polled
    }

    fn register(&mut self, task: &Waker) {
        *self.shared.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.clone());
        self.task = Some(task.clone());
        self.set();
    }
}

#[cfg(test)]
mod tests {
    use testing::WakeCounter;
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn silent_channel_is_polled_once_and_wakes_the_task_when_it_speaks() {
        let woken = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let (mut flag, mut polls) = (WakeFlag::new(), 0);
        let mut poll = |cx: &mut Context<'_>| {
            flag.poll(cx, |cx| {
                polls += 1;
                receiver.poll_recv(cx)
            })
        };
        for _ in 0..9 {
            assert!(poll(&mut cx).is_pending());
        }
        sender.send(1).unwrap();
        assert_eq!(woken.count(), 1);
        sender.send(2).unwrap();
        assert_eq!([1, 2].map(|_| poll(&mut cx)), [1, 2].map(|one| Poll::Ready(Some(one))));
        for _ in 0..9 {
            assert!(poll(&mut cx).is_pending());
        }
        // Another task that polls is woken from then on.
        let other = Arc::new(WakeCounter::default());
        let other_waker = Waker::from(Arc::clone(&other));
        let mut other_cx = Context::from_waker(&other_waker);
        assert!(poll(&mut other_cx).is_pending());
        sender.send(3).unwrap();
        assert_eq!(other.count(), 1);
        assert_eq!(poll(&mut other_cx), Poll::Ready(Some(3)));
        assert_eq!(polls, 6);
    }
}
