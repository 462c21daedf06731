//! A passage that many commands go through at once, or one alone: what WRITE ATOMIC and SANITIZE need. For
//! the many it costs two changes of one number.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, MutexGuard, Notify};

/// Set while one is alone inside or waits to be.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// Lets many pass, or one.
#[derive(Debug, Default)]
pub(super) struct Passage {
    /// How many are inside, and [`CLOSED`]. Who finds it closed steps back, so that the number may for a
    /// moment count some who are not inside.
    inside: AtomicUsize,
    /// It was opened, or the last has left while it was closed.
    changed: Notify,
    /// Who wants to be alone comes one at a time.
    turn: Mutex<()>,
}

/// One of many inside, until this is dropped.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a Passage);

/// The only one inside, until this is dropped.
#[derive(Debug)]
pub(super) struct Alone<'a> {
    of: &'a Passage,
    _turn: MutexGuard<'a, ()>,
}

impl Passage {
    /// Goes in together with others, as soon as nobody is alone inside or waits to be.
    pub(super) async fn enter(&self) -> Inside<'_> {
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            let mut changed = std::pin::pin!(self.changed.notified());
            // Registered before the look, so that an opening in between is not missed.
            changed.as_mut().enable();
            if self.inside.load(Ordering::Acquire) & CLOSED != 0 {
                changed.await;
            }
        }
    }

    fn try_enter(&self) -> Option<Inside<'_>> {
        let inside = Inside(self);
        let before = self.inside.fetch_add(1, Ordering::Acquire);
        (before & CLOSED == 0).then_some(inside)
    }

    /// Lets nobody else in, waits for those inside, and is alone then.
    pub(super) async fn alone(&self) -> Alone<'_> {
        let turn = self.turn.lock().await;
        self.inside.fetch_or(CLOSED, Ordering::Acquire);
        // From here on dropping it opens the passage again.
        let alone = Alone { of: self, _turn: turn };
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.inside.load(Ordering::Acquire) == CLOSED {
                return alone;
            }
            changed.await;
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.0.inside.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.of.inside.fetch_and(!CLOSED, Ordering::Release);
        self.of.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use tokio::task::yield_now;

    use super::*;

    #[test]
    fn one_waits_for_many_and_many_for_one() {
        let passage = Passage::default();
        let first = passage.enter().now_or_never().unwrap();
        let second = passage.enter().now_or_never().unwrap();
        let mut alone = std::pin::pin!(passage.alone());
        assert!(alone.as_mut().now_or_never().is_none());
        assert!(passage.enter().now_or_never().is_none(), "who waits is not overtaken");
        drop(first);
        assert!(alone.as_mut().now_or_never().is_none());
        drop(second);
        let alone = alone.now_or_never().unwrap();
        let mut next = std::pin::pin!(passage.enter());
        assert!(next.as_mut().now_or_never().is_none());
        drop(alone);
        assert!(next.now_or_never().is_some());
    }

    #[test]
    fn who_gives_up_waiting_closes_nothing() {
        let passage = Passage::default();
        let inside = passage.enter().now_or_never().unwrap();
        assert!(passage.alone().now_or_never().is_none());
        assert!(passage.enter().now_or_never().is_some());
        drop(inside);
        assert!(passage.alone().now_or_never().is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn nobody_is_inside_with_one_who_is_alone() {
        let (passage, busy) = (Arc::new(Passage::default()), Arc::new(AtomicUsize::new(0)));
        let tasks = (0..8).map(|task| {
            let (passage, busy) = (Arc::clone(&passage), Arc::clone(&busy));
            tokio::spawn(async move {
                for _ in 0..500 {
                    if task % 4 == 0 {
                        let _alone = passage.alone().await;
                        assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0);
                        yield_now().await;
                        assert_eq!(busy.fetch_sub(1, Ordering::SeqCst), 1);
                    } else {
                        let _inside = passage.enter().await;
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
