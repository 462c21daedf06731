//! The lock of a medium: commands hold it shared, and those that must run alone hold it exclusively (WRITE ATOMIC,
//! SANITIZE, START STOP UNIT). Taking it shared costs two changes of one number.

use std::sync::atomic::{AtomicUsize, Ordering};

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
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the check, so that a change in between is not missed.
            changed.as_mut().enable();
            if self.holders.load(Ordering::Acquire) & EXCLUSIVE != 0 {
                changed.await;
            }
        }
    }

    fn try_shared(&self) -> Option<SharedGuard<'_>> {
        let guard = SharedGuard(self);
        let before = self.holders.fetch_add(1, Ordering::Acquire);
        (before & EXCLUSIVE == 0).then_some(guard)
    }

    /// Admits no new holder, waits for the present ones, and holds the lock alone then.
    pub(super) async fn exclusive(&self) -> ExclusiveGuard<'_> {
        let writer = self.writer.lock().await;
        self.holders.fetch_or(EXCLUSIVE, Ordering::Acquire);
        // From here on dropping the guard opens the lock again.
        let guard = ExclusiveGuard { lock: self, _writer: writer };
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
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
        let mut exclusive = std::pin::pin!(lock.exclusive());
        assert!(exclusive.as_mut().now_or_never().is_none());
        assert!(lock.shared().now_or_never().is_none(), "a waiting writer is not overtaken");
        drop(first);
        assert!(exclusive.as_mut().now_or_never().is_none());
        drop(second);
        let exclusive = exclusive.now_or_never().unwrap();
        let mut next = std::pin::pin!(lock.shared());
        assert!(next.as_mut().now_or_never().is_none());
        drop(exclusive);
        assert!(next.now_or_never().is_some());
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
