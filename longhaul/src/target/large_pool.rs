//! The memory for large requests, which sessions may take in parts.
//!
//! A session that holds a part and needs more says how much that is: its claim. A part is granted only if afterwards
//! there is still an order in which all such sessions can have their claims, each from what is free and from what those
//! before it give back (the banker's algorithm). So no two of them wait for each other. A session without a claim needs
//! nothing more to end.
//!
//! Sessions with a claim are served first; the others in the order in which they ask, so that smaller requests do not
//! starve a larger one. One that cannot be granted because of the claims of others is passed over.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

/// The pool; all amounts are in units.
#[derive(Debug)]
pub(super) struct LargePool {
    size: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    leases: BTreeMap<u64, Account>,
    next_lease: u64,
    next_turn: u64,
}

/// What the pool knows of one lease.
#[derive(Debug, Default)]
struct Account {
    held: u64,
    /// What of that was granted and its session has not seen yet.
    granted: Option<u64>,
    /// What its session needs beside it before it can give anything back.
    claim: u64,
    request: Option<Request>,
}

#[derive(Debug)]
struct Request {
    turn: u64,
    now: u64,
    later: u64,
    waker: Waker,
}

impl LargePool {
    pub(super) fn new(size: u64) -> Arc<Self> {
        Arc::new(Self { size, state: Mutex::default() })
    }

    /// A lease of nothing yet.
    pub(super) fn lease(self: &Arc<Self>) -> LargeLease {
        let mut state = self.state();
        let id = state.next_lease;
        state.next_lease += 1;
        state.leases.insert(id, Account::default());
        LargeLease { pool: Arc::clone(self), id, held: 0, claim: 0, asks: false }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works on one account, then grants what can be granted.
    fn change(&self, id: u64, work: impl FnOnce(&mut Account)) {
        let mut state = self.state();
        if let Some(account) = state.leases.get_mut(&id) {
            work(account);
        }
        state.distribute(self.size);
    }
}

impl State {
    fn distribute(&mut self, size: u64) {
        while let Some(id) = self.next_grant(size) {
            let Some(account) = self.leases.get_mut(&id) else { return };
            let Some(request) = account.request.take() else { return };
            account.held += request.now;
            account.granted = Some(request.now);
            account.claim = request.later;
            request.waker.wake();
        }
    }

    /// Whose request is to be granted now.
    fn next_grant(&self, size: u64) -> Option<u64> {
        let mut requests: Vec<_> = self
            .leases
            .iter()
            .filter_map(|(id, account)| {
                let request = account.request.as_ref()?;
                let begins = account.claim < request.now + request.later;
                Some((begins, request.turn, *id, request.now))
            })
            .collect();
        requests.sort_unstable();
        let held: u64 = self.leases.values().map(|account| account.held).sum();
        let (_, _, id, now) =
            requests.into_iter().find(|(_, _, id, _)| self.is_safe_with(*id, size))?;
        (now <= size.saturating_sub(held)).then_some(id)
    }

    /// Whether what `id` asks for is not held in parts by others, and all claims could be met one after the other if it
    /// were granted.
    fn is_safe_with(&self, id: u64, size: u64) -> bool {
        // Those without a claim give back all they hold, sooner or later.
        let in_parts = |account: &&Account| account.claim > 0;
        let kept: u64 = self.leases.values().filter(in_parts).map(|account| account.held).sum();
        let request = self.leases.get(&id).and_then(|account| account.request.as_ref());
        if request.is_none_or(|request| kept + request.now > size) {
            return false;
        }
        let after = |(of, account): (&u64, &Account)| match &account.request {
            Some(request) if *of == id => (request.later, account.held + request.now),
            _ => (account.claim, account.held),
        };
        let mut partial: Vec<_> =
            self.leases.iter().map(after).filter(|(claim, _)| *claim > 0).collect();
        partial.sort_unstable();
        let in_parts: u64 = partial.iter().map(|(_, held)| held).sum();
        let Some(mut there) = size.checked_sub(in_parts) else { return false };
        partial.into_iter().all(|(claim, held)| {
            let enough = claim <= there;
            there += held;
            enough
        })
    }
}

/// What one session has of the pool.
#[derive(Debug)]
pub(super) struct LargeLease {
    pool: Arc<LargePool>,
    id: u64,
    held: u64,
    claim: u64,
    /// It has asked, and not seen yet that it was granted.
    asks: bool,
}

impl LargeLease {
    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    /// What it needs later, beside what it holds.
    pub(super) const fn claim(&self) -> u64 {
        self.claim
    }

    /// Asks for `now` units, with a claim of `later` afterwards, unless it has asked already; the task is woken when
    /// that is granted. Whether it was, be it for another amount.
    pub(super) fn poll(&mut self, cx: &Context<'_>, now: u64, later: u64) -> bool {
        let mut state = self.pool.state();
        let turn = state.next_turn;
        state.next_turn += 1;
        let Some(account) = state.leases.get_mut(&self.id) else { return false };
        let waker = cx.waker().clone();
        match &mut account.request {
            Some(request) => request.waker = waker,
            None if account.granted.is_none() => {
                account.request = Some(Request { turn, now, later, waker });
                state.distribute(self.pool.size);
            }
            None => {}
        }
        let Some(account) = state.leases.get_mut(&self.id) else { return false };
        let granted = account.granted.take().is_some();
        (self.held, self.claim, self.asks) = (account.held, account.claim, !granted);
        granted
    }

    /// Withdraws the request, and gives back what was granted to it since the last look.
    pub(super) fn withdraw(&mut self) {
        if !std::mem::take(&mut self.asks) {
            return;
        }
        let claim = self.claim;
        self.pool.change(self.id, |account| {
            account.request = None;
            account.held -= account.granted.take().unwrap_or(0);
            account.claim = claim;
        });
    }

    /// Gives back all but `kept` of what was seen, and needs no more than `claim` later.
    pub(super) fn settle(&mut self, kept: u64, claim: u64) {
        let spare = self.held.saturating_sub(kept);
        if spare == 0 && claim >= self.claim {
            return;
        }
        self.held -= spare;
        self.claim = self.claim.min(claim);
        let claim = self.claim;
        self.pool.change(self.id, |account| {
            account.held -= spare;
            // The claim of what was granted since the last look stays.
            if account.granted.is_none() {
                account.claim = claim;
            }
        });
    }
}

impl Drop for LargeLease {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        state.leases.remove(&self.id);
        state.distribute(self.pool.size);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::task::noop_waker_ref;

    use super::*;

    fn asks(lease: &mut LargeLease, now: u64, later: u64) -> bool {
        lease.poll(&Context::from_waker(noop_waker_ref()), now, later)
    }

    #[test]
    fn part_is_granted_only_while_all_claims_can_be_met() {
        let pool = LargePool::new(32);
        let [mut one, mut two, mut three] = [(); 3].map(|()| pool.lease());
        assert!(asks(&mut one, 1, 31));
        assert!(!asks(&mut two, 1, 31), "neither of them could end");
        assert!(asks(&mut three, 4, 0), "one that needs no more is not concerned");
        assert!(!asks(&mut one, 31, 0), "there are 27");
        three.settle(0, 0);
        assert!(asks(&mut one, 31, 0));
        assert!(!asks(&mut two, 1, 31));
        one.settle(0, 0);
        assert!(asks(&mut two, 1, 31));
        assert_eq!((two.held(), two.claim()), (1, 31));
    }

    #[test]
    fn session_with_a_claim_is_served_before_those_that_begin() {
        let pool = LargePool::new(8);
        let [mut one, mut two, mut three] = [(); 3].map(|()| pool.lease());
        assert!(asks(&mut one, 2, 4) && asks(&mut two, 4, 0));
        assert!(!asks(&mut three, 4, 0), "there are 2");
        assert!(!asks(&mut one, 4, 0), "there are 2");
        two.settle(0, 0);
        assert!(asks(&mut one, 4, 0) && !asks(&mut three, 4, 0));
        one.settle(3, 0);
        assert!(asks(&mut three, 4, 0));
    }

    #[test]
    fn claim_that_is_given_up_and_a_lease_that_is_dropped_hold_up_nobody() {
        let pool = LargePool::new(8);
        let [mut one, mut two, mut three] = [(); 3].map(|()| pool.lease());
        assert!(asks(&mut one, 1, 7) && !asks(&mut two, 1, 7));
        one.settle(1, 0);
        assert!(asks(&mut two, 1, 6));
        assert!(!asks(&mut three, 8, 0));
        drop((one, two));
        assert!(asks(&mut three, 8, 0));
    }

    #[test]
    fn request_that_is_withdrawn_gives_back_what_it_was_granted() {
        let pool = LargePool::new(8);
        let [mut one, mut two, mut three] = [(); 3].map(|()| pool.lease());
        assert!(asks(&mut one, 8, 0) && !asks(&mut two, 4, 0) && !asks(&mut three, 8, 0));
        one.settle(0, 0);
        two.withdraw();
        assert!(asks(&mut three, 8, 0));
    }

    /// Whatever sessions ask for, part by part, all of them end.
    #[test]
    fn parts_never_wait_for_each_other() {
        const SIZE: u64 = 12;
        for seed in 0..200_u64 {
            let pool = LargePool::new(SIZE);
            let mut chance = seed;
            let mut next = |most: u64| {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (chance >> 33) % most + 1
            };
            let mut sessions: Vec<_> = (0..8).map(|_| (pool.lease(), next(SIZE), 0)).collect();
            while !sessions.is_empty() {
                let mut moved = false;
                sessions.retain_mut(|(lease, left, step)| {
                    if *step == 0 {
                        *step = next(*left);
                    }
                    if asks(lease, *step, *left - *step) {
                        moved = true;
                        *left -= std::mem::take(step);
                    }
                    *left > 0
                });
                assert!(moved, "seed {seed}: {} wait for each other", sessions.len());
            }
        }
    }
}
