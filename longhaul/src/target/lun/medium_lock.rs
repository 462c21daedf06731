//! The lock of a medium: commands hold it shared, and those that must run alone hold it exclusively (WRITE ATOMIC,
//! SANITIZE, START STOP UNIT). Taking it shared costs two changes of one number.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::{Either, select};
use tokio::sync::{Mutex, MutexGuard, Notify};

/// Set while the lock is held exclusively, or a task waits for that.
const EXCLUSIVE: usize = 1 << (usize::BITS - 1);

/// An asynchronous readers-writer lock in which a waiting writer is not overtaken by new readers.
#[derive(Debug, Default)]
pub(super) struct MediumLock {
    /// The number of shared holders, and [`EXCLUSIVE`]. A task that finds it set takes its count back, so the number
    /// may for a moment include tasks that hold nothing.
    holders: AtomicUsize,
    /// [`EXCLUSIVE`] was cleared, or the last shared holder has left while it was set.
    changed: Notify,
    /// Held by the task that has set [`EXCLUSIVE`]; others that want it wait here.
    writer: Mutex<()>,
}

/// Holds the lock shared until it is dropped.
#[derive(Debug)]
pub(super) struct SharedGuard<'a>(&'a MediumLock);

/// Holds the lock exclusively until it is dropped.
#[derive(Debug)]
pub(super) struct ExclusiveGuard<'a> {
    lock: &'a MediumLock,
    _writer: MutexGuard<'a, ()>,
}

impl MediumLock {
    /// Takes the lock together with others, as soon as no task holds it exclusively or waits for that.
    pub(super) async fn shared(&self) -> SharedGuard<'_> {
        loop {
            if let Some(guard) = self.try_shared() {
                return guard;
            }
            let mut changed = pin!(self.changed.notified());
            // Registered before the check, so that a change in between is not missed.
            changed.as_mut().enable();
            if self.holders.load(Ordering::Acquire) & EXCLUSIVE != 0 {
                changed.await;
            }
        }
    }

    /// Takes the lock together with others, if no task holds it exclusively or waits for that.
    pub(super) fn try_shared(&self) -> Option<SharedGuard<'_>> {
        let guard = SharedGuard(self);
        let before = self.holders.fetch_add(1, Ordering::Acquire);
        (before & EXCLUSIVE == 0).then_some(guard)
    }

    /// Waits for `guard`, unless `allowed` refuses it before: a task that waits is refused at once when the answer changes.
    pub(super) async fn while_allowed<T, E>(
        &self,
        guard: impl Future<Output = T>,
        allowed: impl Fn() -> Result<(), E>,
    ) -> Result<T, E> {
        let refused = async {
            loop {
                let mut changed = pin!(self.changed.notified());
                // Registered before the check, so that a change in between is not missed.
                changed.as_mut().enable();
                if let Err(refusal) = allowed() {
                    return refusal;
                }
                changed.await;
            }
        };
        match select(pin!(guard), pin!(refused)).await {
            Either::Left((guard, _)) => Ok(guard),
            Either::Right((refusal, _)) => Err(refusal),
        }
    }

    /// Has all tasks that wait check again whether they are allowed to.
    pub(super) fn recheck(&self) {
        self.changed.notify_waiters();
    }

    /// Admits no new holder, waits for the present ones, and holds the lock alone then.
    pub(super) async fn exclusive(&self) -> ExclusiveGuard<'_> {
        let writer = self.writer.lock().await;
        self.holders.fetch_or(EXCLUSIVE, Ordering::Acquire);
        // From here on dropping the guard opens the lock again.
        let guard = ExclusiveGuard { lock: self, _writer: writer };
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.holders.load(Ordering::Acquire) == EXCLUSIVE {
                return guard;
            }
            changed.await;
        }
    }
}

impl Drop for SharedGuard<'_> {
    fn drop(&mut self) {
        if self.0.holders.fetch_sub(1, Ordering::Release) == EXCLUSIVE | 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        self.lock.holders.fetch_and(!EXCLUSIVE, Ordering::Release);
        self.lock.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use tokio::task::yield_now;

    use super::*;

    #[test]
    fn exclusive_waits_for_shared_and_shared_for_exclusive() {
        let lock = MediumLock::default();
        let first = lock.shared().now_or_never().unwrap();
        let second = lock.shared().now_or_never().unwrap();
        let mut exclusive = pin!(lock.exclusive());
        assert!(exclusive.as_mut().now_or_never().is_none());
        assert!(lock.shared().now_or_never().is_none(), "a waiting writer is not overtaken");
        drop(first);
        assert!(exclusive.as_mut().now_or_never().is_none());
        drop(second);
        let exclusive = exclusive.now_or_never().unwrap();
        let mut next = pin!(lock.shared());
        assert!(next.as_mut().now_or_never().is_none());
        drop(exclusive);
        assert!(next.now_or_never().is_some());
    }

    #[test]
    fn waiting_ends_when_it_is_not_allowed_any_more() {
        let (lock, allowed) = (MediumLock::default(), std::cell::Cell::new(true));
        let held = lock.exclusive().now_or_never().unwrap();
        let check = || if allowed.get() { Ok(()) } else { Err("refused") };
        let mut entry = pin!(lock.while_allowed(lock.shared(), check));
        let mut next = pin!(lock.while_allowed(lock.exclusive(), check));
        assert!(entry.as_mut().now_or_never().is_none());
        assert!(next.as_mut().now_or_never().is_none());
        allowed.set(false);
        lock.recheck();
        assert_eq!(entry.now_or_never().unwrap().err(), Some("refused"));
        assert_eq!(next.now_or_never().unwrap().err(), Some("refused"));
        drop(held);
        assert!(lock.shared().now_or_never().is_some());
    }

    #[test]
    fn cancelled_exclusive_wait_leaves_the_lock_open() {
        let lock = MediumLock::default();
        let shared = lock.shared().now_or_never().unwrap();
        assert!(lock.exclusive().now_or_never().is_none());
        assert!(lock.shared().now_or_never().is_some());
        drop(shared);
        assert!(lock.exclusive().now_or_never().is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn exclusive_holder_is_alone() {
        let (lock, busy) = (Arc::new(MediumLock::default()), Arc::new(AtomicUsize::new(0)));
        let tasks = (0..8).map(|task| {
            let (lock, busy) = (Arc::clone(&lock), Arc::clone(&busy));
            tokio::spawn(async move {
                for _ in 0..500 {
                    if task % 4 == 0 {
                        let _exclusive = lock.exclusive().await;
                        assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0);
                        yield_now().await;
                        assert_eq!(busy.fetch_sub(1, Ordering::SeqCst), 1);
                    } else {
                        let _shared = lock.shared().await;
                        busy.fetch_add(1, Ordering::SeqCst);
                        yield_now().await;
                        busy.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            })
        });
        for task in tasks {
            task.await.unwrap();
        }
    }
}
