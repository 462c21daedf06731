//! How much data nobody asked for the sessions of a target may hold together.
//!
//! Unsolicited data come as the initiator likes, so they cannot be made to wait, as answers and solicited
//! data can. What bounds them is the command window, which narrows as the budget is used up, and behind it
//! TASK SET FULL: the data of a command that is refused are dropped as they come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that all sessions may hold together, beyond the share that each may hold anyway.
#[derive(Debug)]
pub struct Budget {
    free: AtomicU64,
    share: u64,
}

impl Budget {
    /// `bytes` in common, and a share of `share` bytes for each session.
    #[must_use]
    pub const fn new(bytes: u64, share: u64) -> Self {
        Self { free: AtomicU64::new(bytes), share }
    }

    fn borrow(&self, bytes: u64) -> bool {
        let less = |free: u64| free.checked_sub(bytes);
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.free.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// What one session holds.
#[derive(Debug)]
pub(super) struct Account {
    budget: Arc<Budget>,
    held: u64,
}

impl Account {
    pub(super) const fn new(budget: Arc<Budget>) -> Self {
        Self { budget, held: 0 }
    }

    /// Whether the session holds more than its share.
    pub(super) fn is_borrowing(&self) -> bool {
        self.held > self.budget.share
    }

    fn borrowed(&self) -> u64 {
        self.held.saturating_sub(self.budget.share)
    }

    /// Holds `bytes` more, if there is room for them.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        let before = self.borrowed();
        self.held += bytes;
        let more = self.borrowed() - before;
        let there = more == 0 || self.budget.borrow(more);
        if !there {
            self.held -= bytes;
        }
        there
    }

    pub(super) fn give(&mut self, bytes: u64) {
        let before = self.borrowed();
        self.held = self.held.saturating_sub(bytes);
        let less = before - self.borrowed();
        if less > 0 {
            self.budget.give_back(less);
        }
    }

    /// How much the session could hold in all, if it were the only one to ask from now on.
    pub(super) fn reach(&self) -> u64 {
        self.budget.share + self.borrowed() + self.budget.free.load(Ordering::Relaxed)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.give(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_left_to_everyone() {
        let budget = Arc::new(Budget::new(100, 10));
        let mut greedy = Account::new(Arc::clone(&budget));
        assert!(greedy.take(110));
        assert!(!greedy.take(1));
        let mut modest = Account::new(Arc::clone(&budget));
        assert_eq!(modest.reach(), 10);
        assert!(modest.take(10));
        assert!(!modest.take(1));
        greedy.give(50);
        assert_eq!((modest.reach(), greedy.reach()), (60, 110));
        assert!(modest.take(50));
    }

    #[test]
    fn session_that_ends_frees_its_budget() {
        let budget = Arc::new(Budget::new(100, 10));
        let mut account = Account::new(Arc::clone(&budget));
        assert!(account.take(70));
        account.give(5);
        drop(account);
        assert_eq!(budget.free.load(Ordering::Relaxed), 100);
    }
}
