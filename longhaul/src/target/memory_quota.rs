//! Bounds the memory that a session holds: solicited data, answers under way, and unsent output.
//!
//! All of these can wait, so a session reserves memory before it asks for them: out of the share that each session
//! has, or by a lease on a pool that all sessions have in common. A request that has its lease needs nothing more to
//! end, so no two sessions wait for each other. One that gets its data-out in parts has a lease on the first part only,
//! and the pool sees to it that the others can be had ([`large_pool`](super::large_pool)).
//!
//! There are two pools. A request of moderate size takes its lease from the first and never waits for a large one: a
//! few initiators that request much and do not take the answers hold up only each other. A pool grants leases in the
//! order in which they were asked for, so that smaller requests do not starve a larger one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::large_pool::{LargeLease, LargePool};
use super::lun::TRANSFER_MAX;

/// What leases are counted in.
const UNIT: u64 = 1 << 10;

/// Bytes that a session may hold whatever the others do.
const SHARE: u64 = 256 << 10;

/// Bytes that one session may hold beyond its share without waiting for those that hold more: a request as large as
/// most initiators make them.
const MODERATE: u64 = 1 << 20;

/// Bytes of that which all sessions hold together.
const MODERATE_IN_ALL: u64 = 8 << 20;

type Acquiring = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// The pool of requests of moderate size.
#[derive(Clone, Debug)]
struct ModeratePool {
    units: Arc<Semaphore>,
    lease_max: u64,
}

impl ModeratePool {
    /// `bytes` in common, of which one session has `lease_max` at most.
    fn new(bytes: u64, lease_max: u64) -> Self {
        let units = usize::try_from(bytes / UNIT).unwrap_or(usize::MAX);
        let units = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
        Self { units, lease_max: lease_max.min(bytes) / UNIT * UNIT }
    }
}

/// The memory of all sessions: a share for each, and two pools.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    /// Bytes that each session has for itself.
    share: u64,
    moderate: ModeratePool,
    large: Arc<LargePool>,
    /// Bytes that one session has of the large pool, at most.
    large_max: u64,
}

impl Pools {
    /// Pools of which the large one has `held` bytes, and one session `held_by_session` of those: both at least one
    /// request, for a request that no session may ever hold would wait for ever.
    pub(crate) fn new(held: u64, held_by_session: u64) -> Self {
        let request = TRANSFER_MAX.into();
        let moderate = ModeratePool::new(MODERATE_IN_ALL, MODERATE);
        Self::of(SHARE, moderate, (held.max(request), held_by_session.max(request)))
    }

    fn of(share: u64, moderate: ModeratePool, (bytes, lease_max): (u64, u64)) -> Self {
        let large_max = lease_max.min(bytes) / UNIT * UNIT;
        Self { share, moderate, large: LargePool::new(bytes / UNIT), large_max }
    }
}

/// The memory of one session.
pub(crate) struct Quota {
    pools: Pools,
    moderate: Option<OwnedSemaphorePermit>,
    large: LargeLease,
    /// A moderate lease that has to be waited for.
    acquiring: Option<Acquiring>,
    /// Whether a moderate and a large lease have had to be waited for since the session was last settled.
    wanting: [bool; 2],
}

impl Quota {
    pub(crate) fn new(pools: &Pools) -> Self {
        let (pools, large) = (pools.clone(), pools.large.lease());
        Self { pools, moderate: None, large, acquiring: None, wanting: [false; 2] }
    }

    fn moderate(&self) -> u64 {
        self.moderate.as_ref().map_or(0, |lease| lease.num_permits() as u64 * UNIT)
    }

    const fn large(&self) -> u64 {
        self.large.held() * UNIT
    }

    /// The most one request can hold.
    pub(crate) const fn request_max(&self) -> u64 {
        self.pools.large_max
    }

    /// How much the session may hold now.
    pub(crate) fn limit(&self) -> u64 {
        self.pools.share + self.moderate() + self.large()
    }

    /// Whether the session may hold `total`; if not, it is woken when it is worth asking again. Until it has all that
    /// it holds a part of it gets nothing else that is large: the rest of that comes first.
    pub(crate) fn covers(&mut self, cx: &mut Context<'_>, total: u64) -> bool {
        loop {
            let missing = total.saturating_sub(self.limit());
            if missing == 0 {
                return true;
            }
            if self.moderate() + missing > self.pools.moderate.lease_max {
                return self.large.claim() == 0 && self.poll_large(cx, total, 0);
            }
            if !self.poll_moderate(cx, missing) {
                return false;
            }
        }
    }

    /// The same, where what it is for cannot end without `later` bytes more, which are asked for while this is held; or
    /// it is such a later part itself.
    pub(crate) fn covers_part(&mut self, cx: &mut Context<'_>, total: u64, later: u64) -> bool {
        // What is held in parts is of the large pool, so that nobody waits for it who needs little.
        if later > 0 || self.large.claim() > 0 {
            self.poll_large(cx, total, later)
        } else {
            self.covers(cx, total)
        }
    }

    /// What it holds in parts needs no more than so many bytes: none, if that was aborted.
    pub(crate) fn needs_later(&mut self, later: u64) {
        self.large.settle(self.large.held(), later.div_ceil(UNIT));
    }

    fn poll_large(&mut self, cx: &Context<'_>, total: u64, later: u64) -> bool {
        loop {
            let missing = total.saturating_sub(self.limit());
            if missing == 0 && later.div_ceil(UNIT) <= self.large.claim() {
                return true;
            }
            // If it would exceed its part, something it holds has to go first, and that wakes it.
            if self.large() + missing + later > self.pools.large_max {
                return false;
            }
            if !self.large.poll(cx, missing.div_ceil(UNIT), later.div_ceil(UNIT)) {
                self.wanting[1] = true;
                return false;
            }
        }
    }

    /// Whether a lease was granted, which may have been asked for when less was missing.
    fn poll_moderate(&mut self, cx: &mut Context<'_>, missing: u64) -> bool {
        let count = u32::try_from(missing.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let Some(lease) = self.free_lease(count).or_else(|| self.poll_lease(cx, count)) else {
            self.wanting[0] = true;
            return false;
        };
        match &mut self.moderate {
            Some(had) => had.merge(lease),
            none => *none = Some(lease),
        }
        true
    }

    /// A lease on what is free, at once: a future of the runtime is put off when its task has run for long, and then each
    /// of many reads would wait for its own write. Nothing is free while others wait for it.
    fn free_lease(&self, count: u32) -> Option<OwnedSemaphorePermit> {
        let units = &self.pools.moderate.units;
        self.acquiring.is_none().then(|| Arc::clone(units).try_acquire_many_owned(count).ok())?
    }

    fn poll_lease(&mut self, cx: &mut Context<'_>, count: u32) -> Option<OwnedSemaphorePermit> {
        let units = &self.pools.moderate.units;
        let acquiring = self
            .acquiring
            .get_or_insert_with(|| Box::pin(Arc::clone(units).acquire_many_owned(count)));
        // Nobody closes the pool.
        let Poll::Ready(Ok(lease)) = acquiring.as_mut().poll(cx) else { return None };
        self.acquiring = None;
        Some(lease)
    }

    /// Gives back what holding `used` does not need, and its place in a queue if nothing of it waits there any more:
    /// what waited was aborted. `later` is what it needs beside that for what it holds in parts.
    pub(crate) fn settle(&mut self, used: u64, later: u64) {
        let [moderate, large] = std::mem::take(&mut self.wanting);
        if !moderate {
            self.acquiring = None;
        }
        if !large {
            self.large.withdraw();
        }
        let mut needed = used.saturating_sub(self.pools.share).div_ceil(UNIT);
        if let Some(lease) = &mut self.moderate {
            let spare = lease.num_permits().saturating_sub(needed as usize);
            drop(lease.split(spare));
            needed = needed.saturating_sub(lease.num_permits() as u64);
        }
        self.moderate.take_if(|lease| lease.num_permits() == 0);
        self.large.settle(needed, later.div_ceil(UNIT));
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::task::noop_waker_ref;
    use tokio::task::coop::poll_proceed;

    use super::*;

    const KIB: u64 = 1 << 10;

    /// A pools with a large pool only.
    fn pools(bytes: u64, lease_max: u64, share: u64) -> Pools {
        Pools::of(share, ModeratePool::new(0, 0), (bytes, lease_max))
    }

    fn covers(quota: &mut Quota, total: u64) -> bool {
        quota.covers(&mut Context::from_waker(noop_waker_ref()), total)
    }

    #[test]
    fn a_share_needs_no_lease_and_is_always_there() {
        let pools = pools(8 * KIB, 8 * KIB, 2 * KIB);
        let (mut greedy, mut modest) = (Quota::new(&pools), Quota::new(&pools));
        assert!(covers(&mut greedy, 10 * KIB));
        assert!(!covers(&mut greedy, 10 * KIB + 1));
        assert!(covers(&mut modest, 2 * KIB));
        assert!(!covers(&mut modest, 2 * KIB + 1));
    }

    #[test]
    fn one_session_has_a_part_of_the_pool_at_most() {
        let mut quota = Quota::new(&pools(8 * KIB, 5 * KIB, 0));
        assert!(!covers(&mut quota, 6 * KIB));
        assert!(covers(&mut quota, 5 * KIB));
    }

    #[test]
    fn leases_come_in_turn() {
        let pools = pools(8 * KIB, 8 * KIB, 0);
        let mut quotas = [(); 3].map(|()| Quota::new(&pools));
        assert!(covers(&mut quotas[0], 8 * KIB));
        assert!(!covers(&mut quotas[1], 8 * KIB));
        assert!(!covers(&mut quotas[2], KIB));
        quotas[0].settle(KIB, 0);
        assert!(!covers(&mut quotas[2], KIB), "the large one is first");
        quotas[0].settle(0, 0);
        assert!(covers(&mut quotas[1], 8 * KIB));
        quotas[1].settle(0, 0);
        assert!(covers(&mut quotas[2], KIB));
    }

    #[test]
    fn quota_that_is_dropped_frees_its_share_and_its_place() {
        let pools = pools(8 * KIB, 8 * KIB, 0);
        let mut first = Quota::new(&pools);
        assert!(covers(&mut first, 8 * KIB));
        let mut second = Quota::new(&pools);
        assert!(!covers(&mut second, 8 * KIB));
        drop((second, first));
        assert!(covers(&mut Quota::new(&pools), 8 * KIB));
    }

    /// One that asked and then had nothing left to ask for would be given what nobody uses.
    #[test]
    fn quota_that_wants_nothing_any_more_leaves_the_queue() {
        let pools = pools(8 * KIB, 8 * KIB, 0);
        let [mut holder, mut aborted, mut next] = [(); 3].map(|()| Quota::new(&pools));
        assert!(covers(&mut holder, 8 * KIB));
        assert!(!covers(&mut aborted, 8 * KIB));
        assert!(!covers(&mut next, 8 * KIB));
        aborted.settle(0, 0);
        assert!(!covers(&mut next, 8 * KIB));
        aborted.settle(0, 0);
        holder.settle(0, 0);
        assert!(covers(&mut next, 8 * KIB));
    }

    #[tokio::test]
    async fn task_that_has_run_for_long_has_what_is_free_at_once() {
        let pools = Pools::of(0, ModeratePool::new(4 * KIB, 2 * KIB), (8 * KIB, 8 * KIB));
        let mut quota = Quota::new(&pools);
        poll_fn(|cx| {
            while let Poll::Ready(proceed) = poll_proceed(cx) {
                proceed.made_progress();
            }
            assert!(quota.covers(cx, KIB), "the runtime would have it wait");
            Poll::Ready(())
        })
        .await;
    }

    #[test]
    fn moderate_requests_do_not_wait_for_large_ones() {
        let pools = Pools::of(KIB, ModeratePool::new(4 * KIB, 2 * KIB), (8 * KIB, 8 * KIB));
        let [mut greedy, mut patient, mut modest] = [(); 3].map(|()| Quota::new(&pools));
        assert!(covers(&mut greedy, 9 * KIB));
        assert!(!covers(&mut patient, 9 * KIB));
        assert!(covers(&mut modest, 3 * KIB));
        assert!(!covers(&mut modest, 4 * KIB), "that is a large one");
        // As long as anything of it is held, the next large one waits.
        greedy.settle(3 * KIB, 0);
        assert_eq!((greedy.moderate(), greedy.large()), (0, 2 * KIB));
        assert!(!covers(&mut patient, 9 * KIB));
        greedy.settle(KIB, 0);
        assert!(covers(&mut patient, 9 * KIB));
    }

    /// A session that holds a part of what it needs keeps it from nobody who needs less than the rest, and waits for
    /// nobody who waits for it.
    #[test]
    fn session_that_holds_a_part_leaves_the_rest_to_others() {
        let pools = Pools::of(0, ModeratePool::new(4 * KIB, KIB), (32 * KIB, 32 * KIB));
        let [mut greedy, mut second, mut modest] = [(); 3].map(|()| Quota::new(&pools));
        let cx = &mut Context::from_waker(noop_waker_ref());
        assert!(greedy.covers_part(cx, KIB, 31 * KIB));
        greedy.settle(KIB, 31 * KIB);
        assert_eq!((greedy.moderate(), greedy.large()), (0, KIB));
        assert!(!second.covers_part(cx, KIB, 31 * KIB), "the two would wait for each other");
        assert!(covers(&mut modest, 31 * KIB));
        assert!(covers(&mut greedy, 2 * KIB), "what is moderate goes on");
        assert!(!greedy.covers_part(cx, 3 * KIB, 30 * KIB));
        modest.settle(0, 0);
        assert!(greedy.covers_part(cx, 3 * KIB, 30 * KIB));
        assert!(!covers(&mut greedy, 8 * KIB), "what is large waits until that has all");
        // The rest is not needed any more.
        greedy.settle(0, 0);
        assert!(second.covers_part(cx, KIB, 31 * KIB));
    }
}
