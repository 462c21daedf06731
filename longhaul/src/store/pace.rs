//! How long durable writes to a file take: one that takes less time than handing it to the system and being called back
//! is waited for where it is asked for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A write that takes longer keeps other tasks from the thread for too long.
const QUICK: Duration = Duration::from_millis(1);

/// The most bytes of a write of which that can be expected.
const SMALL: usize = 64 << 10;

/// What is known of the writes to one file.
#[derive(Debug)]
pub(super) struct Pace {
    is_quick: AtomicBool,
    under_way: AtomicUsize,
}

/// A write that is under way.
pub(super) struct Turn<'a> {
    pace: &'a Pace,
    begun: Instant,
    is_alone: bool,
}

impl Pace {
    /// Nothing is known yet.
    pub(super) const fn new() -> Self {
        Self { is_quick: AtomicBool::new(false), under_way: AtomicUsize::new(0) }
    }

    /// A write begins.
    pub(super) fn begin(&self) -> Turn<'_> {
        let is_alone = self.under_way.fetch_add(1, Ordering::Relaxed) == 0;
        Turn { pace: self, begun: Instant::now(), is_alone }
    }

    fn learn(&self, len: usize, took: Duration) {
        if len <= SMALL {
            self.is_quick.store(took < QUICK, Ordering::Relaxed);
        }
    }
}

impl Turn<'_> {
    /// Whether a write of `len` bytes may be waited for: no other runs, and the last small one was quick. One that is slow
    /// all the same, because the disk stalls, is the last.
    pub(super) fn is_alone_and_quick(&self, len: usize) -> bool {
        self.is_alone && len <= SMALL && self.pace.is_quick.load(Ordering::Relaxed)
    }

    /// It has ended.
    pub(super) fn end(self, len: usize) {
        self.pace.learn(len, self.begun.elapsed());
    }
}

/// Also where nobody waited for the end.
impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pace.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_write_is_waited_for_after_a_quick_one_and_alone() {
        let pace = Pace::new();
        assert!(!pace.begin().is_alone_and_quick(8192), "nothing is known");
        pace.learn(SMALL, Duration::ZERO);
        let first = pace.begin();
        assert!(first.is_alone_and_quick(SMALL) && !first.is_alone_and_quick(SMALL + 1));
        assert!(!pace.begin().is_alone_and_quick(8192), "another runs");
        drop(first);
        assert!(pace.begin().is_alone_and_quick(8192), "that was given up");
    }

    #[test]
    fn slow_write_is_the_last_that_is_waited_for() {
        let pace = Pace::new();
        pace.learn(8192, Duration::ZERO);
        pace.learn(SMALL + 1, QUICK);
        assert!(pace.begin().is_alone_and_quick(8192), "a large one tells nothing");
        pace.learn(8192, QUICK);
        assert!(!pace.begin().is_alone_and_quick(8192));
    }
}
