//! Which flushes are asked for, under way and needed.

use std::collections::BTreeMap;

use super::super::WaiterId;
use super::super::piece::Seq;
use super::flush_pattern::FlushPattern;

/// A flush that comes while one is under way need not wait for its return; more than a few at a time
/// would only be work for the medium.
const FLUSHES_IN_FLIGHT: usize = 4;

/// Everything accepted before it is to have landed.
struct Barrier {
    before: Seq,
    waiter: WaiterId,
    /// And to be made durable.
    flush: bool,
}

/// A flush of the volume beneath.
struct Flush {
    /// Those who share it.
    waiters: Vec<WaiterId>,
    /// How many unstable changes it makes stable.
    unstable: u64,
}

/// What barriers have come to.
#[derive(Default)]
pub(super) struct Due {
    /// They have nothing more to wait for.
    pub(super) settled: Vec<WaiterId>,
    /// The flush to be sent.
    pub(super) flush: Option<u64>,
}

/// See the module.
#[derive(Default)]
pub(super) struct FlushTracker {
    barriers: Vec<Barrier>,
    /// Flushes under way, by their numbers.
    running: BTreeMap<u64, Flush>,
    last: u64,
    pattern: FlushPattern,
    /// How many changes have landed that are not stable, and of how many it is known that they are by now;
    /// of none before the first flush, since others may have written before.
    unstable: u64,
    stable: Option<u64>,
}

impl FlushTracker {
    /// `waiter` waits until everything before `before` has landed, and is durable if `flush` says so.
    pub(super) fn barrier(&mut self, before: Seq, waiter: WaiterId, flush: bool) {
        if flush {
            self.pattern.flushed();
        }
        self.barriers.push(Barrier { before, waiter, flush });
    }

    /// A change that is not durable was accepted.
    pub(super) const fn accepted(&mut self) {
        self.pattern.accepted();
    }

    /// Whether a flush is likely to follow what was accepted last.
    pub(super) const fn expects_flush(&self) -> bool {
        self.pattern.expects_flush()
    }

    /// A change has landed.
    pub(super) const fn landed(&mut self, stable: bool) {
        if !stable {
            self.unstable += 1;
        }
    }

    /// Whether nobody waits for changes to land.
    pub(super) const fn has_no_barrier(&self) -> bool {
        self.barriers.is_empty()
    }

    /// What follows once everything before `oldest` has landed: one flush for all who want one, and none if
    /// all that has landed is stable.
    pub(super) fn due(&mut self, oldest: Seq) -> Due {
        if self.barriers.is_empty() {
            return Due::default();
        }
        let room = self.running.len() < FLUSHES_IN_FLIGHT;
        let due = |barrier: &mut Barrier| barrier.before < oldest && (room || !barrier.flush);
        let due: Vec<Barrier> = self.barriers.extract_if(.., due).collect();
        let is_stable = self.stable == Some(self.unstable);
        let (flushing, settled): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|one| one.flush && !is_stable);
        let waiters = |barriers: Vec<Barrier>| barriers.into_iter().map(|one| one.waiter).collect();
        let settled = waiters(settled);
        if flushing.is_empty() {
            return Due { settled, flush: None };
        }
        self.last += 1;
        let flush = Flush { waiters: waiters(flushing), unstable: self.unstable };
        self.running.insert(self.last, flush);
        Due { settled, flush: Some(self.last) }
    }

    /// A flush has ended; gives those who wait for it.
    pub(super) fn ended(&mut self, flush: u64, done: bool) -> Option<Vec<WaiterId>> {
        let Flush { waiters, unstable } = self.running.remove(&flush)?;
        if done {
            self.stable = self.stable.max(Some(unstable));
        }
        Some(waiters)
    }

    /// Forgets the barriers that wait; gives those who wait for them.
    pub(super) fn take_barriers(&mut self) -> impl Iterator<Item = WaiterId> + use<> {
        std::mem::take(&mut self.barriers).into_iter().map(|barrier| barrier.waiter)
    }

    /// Whether no flush is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flushing(tracker: &mut FlushTracker, waiter: WaiterId) -> Due {
        tracker.barrier(0, waiter, true);
        tracker.due(Seq::MAX)
    }

    #[test]
    fn flush_is_needed_once_for_all_that_landed_before_it() {
        let mut tracker = FlushTracker::default();
        let first = flushing(&mut tracker, 1).flush.unwrap();
        tracker.landed(false);
        assert_eq!(tracker.ended(first, true), Some(vec![1]));
        let second = flushing(&mut tracker, 2).flush.expect("a change landed after the first");
        assert_eq!(tracker.ended(second, true), Some(vec![2]));
        tracker.landed(true);
        let third = flushing(&mut tracker, 3);
        assert_eq!((third.settled, third.flush), (vec![3], None));
    }

    #[test]
    fn failed_flush_makes_nothing_stable() {
        let mut tracker = FlushTracker::default();
        let first = flushing(&mut tracker, 1).flush.unwrap();
        tracker.ended(first, false);
        assert!(flushing(&mut tracker, 2).flush.is_some());
    }

    #[test]
    fn barrier_waits_for_what_was_accepted_before_it() {
        let mut tracker = FlushTracker::default();
        tracker.barrier(5, 1, true);
        tracker.barrier(7, 2, false);
        assert!(tracker.due(5).flush.is_none() && !tracker.has_no_barrier());
        assert!(tracker.due(6).flush.is_some());
        assert_eq!(tracker.due(8).settled, [2]);
        assert!(tracker.has_no_barrier() && !tracker.is_idle());
    }

    #[test]
    fn flushes_beyond_a_few_share_the_next() {
        let mut tracker = FlushTracker::default();
        let running: Vec<u64> =
            (0..4).map(|waiter| flushing(&mut tracker, waiter).flush.unwrap()).collect();
        assert!(flushing(&mut tracker, 4).flush.is_none());
        assert!(flushing(&mut tracker, 5).flush.is_none());
        tracker.landed(false);
        tracker.ended(running[0], true);
        let shared = tracker.due(Seq::MAX).flush.unwrap();
        assert_eq!(tracker.ended(shared, true), Some(vec![4, 5]));
    }
}
