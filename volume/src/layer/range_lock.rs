//! A lock on ranges of bytes: many sharers or one owner, first come, first served.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::range_index::RangeIndex;
use crate::Span;

/// Locks spans. It keeps one entry per holder and waiter, so its size is that of the queue of
/// requests, which the front bounds.
#[derive(Default)]
pub struct RangeLock {
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    /// Holders and waiters by the order they came. One holds its span as soon as nobody before it
    /// stands in its way, so nobody is overtaken by one it would wait for, and nobody starves.
    entries: BTreeMap<u64, Entry>,
    spans: RangeIndex,
    next_id: u64,
}

struct Entry {
    span: Range<u64>,
    mode: Mode,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shared,
    Exclusive,
}

impl RangeLock {
    /// Locks `span` together with other sharers.
    pub fn shared(&self, span: Span) -> impl Future<Output = Guard<'_>> + Send {
        self.lock(span, Mode::Shared)
    }

    /// Locks `span` alone.
    pub fn exclusive(&self, span: Span) -> impl Future<Output = Guard<'_>> + Send {
        self.lock(span, Mode::Exclusive)
    }

    async fn lock(&self, span: Span, mode: Mode) -> Guard<'_> {
        // The place in the queue is the guard's from the start: a waiter that is dropped leaves it.
        let guard = Guard { lock: self, id: self.queue().push(span.at..span.end(), mode) };
        Turn(&guard).await;
        guard
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn push(&mut self, span: Range<u64>, mode: Mode) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.spans.insert(&span, id);
        self.entries.insert(id, Entry { span, mode, waker: None });
        id
    }

    /// Those that cannot hold their spans beside an entry.
    fn barred(&self, id: u64) -> impl Iterator<Item = u64> {
        let entry = &self.entries[&id];
        let is_alone = |other| entry.mode == Mode::Exclusive || other == Mode::Exclusive;
        let others = self.spans.overlapping(&entry.span).filter(move |other| *other != id);
        others.filter(move |other| is_alone(self.entries[other].mode))
    }
}

/// A held span, or a place in the queue for one; freed when dropped.
pub struct Guard<'a> {
    lock: &'a RangeLock,
    id: u64,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut queue = self.lock.queue();
        let later: Vec<_> = queue.barred(self.id).filter(|other| *other > self.id).collect();
        for other in later {
            if let Some(waker) = queue.entries.get_mut(&other).and_then(|other| other.waker.take())
            {
                waker.wake();
            }
        }
        if let Some(gone) = queue.entries.remove(&self.id) {
            queue.spans.remove(&gone.span, self.id);
        }
    }
}

/// Resolves when the guard's turn has come.
struct Turn<'a, 'b>(&'a Guard<'b>);

impl Future for Turn<'_, '_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.0.lock.queue();
        if queue.barred(self.0.id).all(|other| other > self.0.id) {
            return Poll::Ready(());
        }
        if let Some(entry) = queue.entries.get_mut(&self.0.id) {
            entry.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn span(at: u64, len: u64) -> Span {
        Span::new(at, len)
    }

    #[test]
    fn sharers_share_and_an_owner_is_alone() {
        let lock = RangeLock::default();
        let one = lock.shared(span(0, 10)).now_or_never().expect("free");
        let two = lock.shared(span(5, 10)).now_or_never().expect("shared");
        let mut owner = pin!(lock.exclusive(span(8, 4)));
        assert!(owner.as_mut().now_or_never().is_none());
        drop(one);
        assert!(owner.as_mut().now_or_never().is_none());
        drop(two);
        assert!(owner.now_or_never().is_some());
    }

    #[test]
    fn spans_that_do_not_overlap_do_not_wait() {
        let lock = RangeLock::default();
        let _one = lock.exclusive(span(0, 10)).now_or_never().expect("free");
        assert!(lock.exclusive(span(10, 10)).now_or_never().is_some());
    }

    #[test]
    fn nobody_overtakes_a_waiter_in_his_way() {
        let lock = RangeLock::default();
        let first = lock.shared(span(0, 10)).now_or_never().expect("free");
        let mut owner = Box::pin(lock.exclusive(span(0, 10)));
        assert!(owner.as_mut().now_or_never().is_none());
        let mut late = pin!(lock.shared(span(0, 10)));
        assert!(late.as_mut().now_or_never().is_none());
        drop(owner);
        assert!(late.now_or_never().is_some(), "a waiter that gave up still bars the way");
        drop(first);
        assert!(lock.queue().entries.is_empty());
    }

    #[tokio::test]
    async fn waiters_are_woken() {
        let lock = std::sync::Arc::new(RangeLock::default());
        let counter = std::sync::Arc::new(Mutex::new((0, 0)));
        let tasks = (0..64).map(|index| {
            let (lock, counter) = (lock.clone(), counter.clone());
            tokio::spawn(async move {
                let _guard = lock.exclusive(span(index % 3, 3)).await;
                let before = counter.lock().unwrap().0;
                tokio::task::yield_now().await;
                *counter.lock().unwrap() = (before + 1, index);
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!(
            counter.lock().unwrap().0,
            64,
            "spans all share byte 2, so none ran beside another"
        );
    }
}
