//! How much data nobody asked for the sessions of a target may hold together.
//!
//! Unsolicited data come as the initiator likes, so they cannot be made to wait, as answers and solicited
//! data can. What bounds them is the command window, which narrows as the budget is used up, and behind it
//! TASK SET FULL: the data of a command that is refused are dropped as they come.
//!
//! A long link has more data under way than are ever held here, if what comes is soon written. The window of a session
//! for which that has been so is wider than there is room for ([`Overcommit`]).

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

/// What a command is reckoned to bring as long as none brought more: the first burst that most initiators agree on.
/// One that agrees on more and sends small writes is not to have fewer of them under way for it.
const BURST_USUAL: u64 = 256 << 10;

/// What one session holds.
#[derive(Debug)]
pub(super) struct Account {
    budget: Arc<Budget>,
    held: u64,
    overcommit: Overcommit,
    bursts: Bursts,
}

impl Account {
    pub(super) const fn new(budget: Arc<Budget>) -> Self {
        Self { budget, held: 0, overcommit: Overcommit::NONE, bursts: Bursts::NONE }
    }

    /// Whether the session holds more than its share.
    pub(super) fn is_borrowing(&self) -> bool {
        self.held > self.budget.share
    }

    fn borrowed(&self) -> u64 {
        self.held.saturating_sub(self.budget.share)
    }

    /// Holds `bytes` more, which a command brings, if there is room for them.
    pub(super) fn take(&mut self, bytes: u64) -> bool {
        self.bursts.record(bytes);
        let before = self.borrowed();
        self.held += bytes;
        let more = self.borrowed() - before;
        let there = more == 0 || self.budget.borrow(more);
        if there {
            let (held, reach) = (self.held, self.reach());
            self.overcommit.taken(bytes, held, reach);
        } else {
            self.held -= bytes;
            self.overcommit = Overcommit::NONE;
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

    /// How much the session may have under way and held together: more than [`reach`](Self::reach) if it has shown that
    /// it holds little.
    pub(super) fn credit(&self) -> u64 {
        self.reach().saturating_mul(self.overcommit.factor)
    }

    /// How much each command is reckoned to bring, of the `most` that was agreed on.
    pub(super) fn burst(&self, most: u64) -> u64 {
        self.bursts.largest().max(BURST_USUAL).min(most)
    }
}

/// The largest burst of the last commands.
#[derive(Debug)]
struct Bursts {
    recent: u64,
    before: u64,
    commands: u32,
}

impl Bursts {
    const NONE: Self = Self { recent: 0, before: 0, commands: 0 };

    /// It is that of the last so many commands, up to twice as many.
    const REMEMBERED: u32 = 64;

    fn record(&mut self, bytes: u64) {
        if self.commands == Self::REMEMBERED {
            *self = Self { recent: 0, before: self.recent, commands: 0 };
        }
        self.commands += 1;
        self.recent = self.recent.max(bytes);
    }

    fn largest(&self) -> u64 {
        self.recent.max(self.before)
    }
}

/// How many times what a session could hold it may have under way.
///
/// It is 4 once as much has come as could be held, and never more than a quarter of that was held at a time. It is 1 again
/// when more than half was, as where a slow disk makes data wait, and when a command was refused.
#[derive(Debug)]
struct Overcommit {
    factor: u64,
    came: u64,
    most_held: u64,
}

impl Overcommit {
    const NONE: Self = Self { factor: 1, came: 0, most_held: 0 };
    const FACTOR_MAX: u64 = 4;

    /// `bytes` more came, so that `held` are held, of the `reach` that could be.
    fn taken(&mut self, bytes: u64, held: u64, reach: u64) {
        self.came += bytes;
        self.most_held = self.most_held.max(held);
        if self.most_held > reach / 2 {
            *self = Self::NONE;
        } else if self.came >= reach {
            let factor = if self.most_held <= reach / 4 { Self::FACTOR_MAX } else { self.factor };
            *self = Self { factor, came: 0, most_held: held };
        }
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

    /// Brings 10 bytes ten times, and keeps the last `kept` of these tens.
    fn bring(account: &mut Account, kept: u64) {
        for n in 0..10 {
            assert!(account.take(10));
            if n >= kept {
                account.give(10);
            }
        }
        account.give(10 * kept);
    }

    #[test]
    fn session_that_holds_little_may_have_more_under_way() {
        let mut account = Account::new(Arc::new(Budget::new(100, 0)));
        let mut credit_after = |kept| {
            bring(&mut account, kept);
            account.credit()
        };
        assert_eq!(
            [credit_after(3), credit_after(1), credit_after(0)],
            [100, 100, 400],
            "the second began with what the first kept"
        );
        assert_eq!(credit_after(4), 400, "more than a quarter, and less than half");
        assert_eq!(credit_after(6), 100);
    }

    #[test]
    fn session_that_was_refused_has_no_more_under_way_than_it_can_hold() {
        let budget = Arc::new(Budget::new(100, 10));
        let mut account = Account::new(Arc::clone(&budget));
        (0..2).for_each(|_| bring(&mut account, 0));
        assert!(account.credit() > account.reach());
        let mut greedy = Account::new(budget);
        assert!(greedy.take(110));
        assert_eq!(account.credit(), 40, "the factor is of what there is room for");
        assert!(!account.take(11));
        assert_eq!(account.credit(), 10);
    }

    #[test]
    fn commands_are_reckoned_to_bring_what_the_last_ones_brought() {
        const MOST: u64 = 2 * BURST_USUAL;
        let mut account = Account::new(Arc::new(Budget::new(8 * MOST, 0)));
        let mut burst_after = |bytes, commands| {
            for _ in 0..commands {
                assert!(account.take(bytes));
                account.give(bytes);
            }
            account.burst(MOST)
        };
        assert_eq!(burst_after(0, 0), BURST_USUAL, "nothing came yet");
        assert_eq!(burst_after(MOST, 1), MOST);
        assert_eq!(burst_after(4096, Bursts::REMEMBERED - 1), MOST);
        assert_eq!(burst_after(4096, Bursts::REMEMBERED), MOST);
        assert_eq!(burst_after(4096, 1), BURST_USUAL, "it was long ago");
        assert_eq!(account.burst(4096), 4096, "no more than was agreed on");
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
