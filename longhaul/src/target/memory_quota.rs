//! Bounds the memory that a session holds: solicited data, answers under way, and unsent output.
//!
//! All of these can wait, so a session reserves memory before it asks for them: out of the share that each session
//! has, or by a lease on a pool that all sessions have in common. A request that has its lease needs nothing more to
//! end, so no two sessions wait for each other.
//!
//! There are two pools. A request of moderate size takes its lease from the first and never waits for a large one: a
//! few initiators that request much and do not take the answers hold up only each other. A pool grants leases in the
//! order in which they were asked for, so that smaller requests do not starve a larger one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

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

type Asked = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// Memory that all sessions have in common.
#[derive(Clone, Debug)]
struct Pool {
    units: Arc<Semaphore>,
    lease_max: u64,
}

impl Pool {
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
    /// For requests of moderate size, then for large ones.
    by_size: [Pool; 2],
}

impl Pools {
    /// Pools of which the large one has `held` bytes, and one session `held_by_session` of those: both at least one
    /// request, for a request that no session may ever hold would wait for ever.
    pub(crate) fn new(held: u64, held_by_session: u64) -> Self {
        let request = TRANSFER_MAX.into();
        let moderate = Pool::new(MODERATE_IN_ALL, MODERATE);
        let large = Pool::new(held.max(request), held_by_session.max(request));
        Self { share: SHARE, by_size: [moderate, large] }
    }
}

/// The memory of one session.
pub(crate) struct Quota {
    pools: Pools,
    leases: [Option<OwnedSemaphorePermit>; 2],
    /// A lease that has to be waited for, and of which pool.
    asked: Option<(usize, Asked)>,
    /// Something has had to wait since the session was last settled.
    wanting: bool,
}

impl Quota {
    pub(crate) fn new(pools: &Pools) -> Self {
        Self { pools: pools.clone(), leases: [None, None], asked: None, wanting: false }
    }

    fn leased(&self, pool: usize) -> u64 {
        let lease = self.leases.get(pool).and_then(Option::as_ref);
        lease.map_or(0, |lease| lease.num_permits() as u64 * UNIT)
    }

    /// The most one request can hold.
    pub(crate) const fn request_max(&self) -> u64 {
        let [_, large] = &self.pools.by_size;
        large.lease_max
    }

    /// How much the session may hold now.
    pub(crate) fn limit(&self) -> u64 {
        self.pools.share + self.leased(0) + self.leased(1)
    }

    /// Whether the session may hold `total`; if not, it is woken when it is worth asking again.
    pub(crate) fn covers(&mut self, cx: &mut Context<'_>, total: u64) -> bool {
        let covered = self.poll_cover(cx, total);
        self.wanting |= !covered;
        covered
    }

    fn poll_cover(&mut self, cx: &mut Context<'_>, total: u64) -> bool {
        loop {
            let missing = total.saturating_sub(self.limit());
            if missing == 0 {
                self.asked = None;
                return true;
            }
            let mut pools = self.pools.by_size.iter().enumerate();
            let pool = pools.find(|(at, pool)| self.leased(*at) + missing <= pool.lease_max);
            // It would exceed its part: something it holds has to go first, and that wakes it.
            let Some((pool, _)) = pool else { return false };
            let Poll::Ready(lease) = self.poll_lease(cx, pool, missing) else { return false };
            match self.leases.get_mut(pool) {
                Some(Some(had)) => had.merge(lease),
                Some(none) => *none = Some(lease),
                None => {}
            }
        }
    }

    /// The lease that was asked for; one of `missing` bytes, if none was.
    fn poll_lease(
        &mut self,
        cx: &mut Context<'_>,
        pool: usize,
        missing: u64,
    ) -> Poll<OwnedSemaphorePermit> {
        self.asked.take_if(|(of, _)| *of != pool);
        let Some(units) = self.pools.by_size.get(pool).map(|pool| &pool.units) else {
            return Poll::Pending;
        };
        let (_, asked) = self.asked.get_or_insert_with(|| {
            let count = u32::try_from(missing.div_ceil(UNIT)).unwrap_or(u32::MAX);
            (pool, Box::pin(Arc::clone(units).acquire_many_owned(count)))
        });
        match asked.as_mut().poll(cx) {
            Poll::Ready(Ok(lease)) => {
                self.asked = None;
                Poll::Ready(lease)
            }
            // Nobody closes the pools.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }

    /// Gives back what holding `used` does not need, and its place in the queue if nothing of it waits any
    /// more: what waited was aborted.
    pub(crate) fn settle(&mut self, used: u64) {
        if !std::mem::take(&mut self.wanting) {
            self.asked = None;
        }
        let mut needed = used.saturating_sub(self.pools.share).div_ceil(UNIT) as usize;
        for lease in &mut self.leases {
            if let Some(lease) = lease {
                let spare = lease.num_permits().saturating_sub(needed);
                drop(lease.split(spare));
                needed = needed.saturating_sub(lease.num_permits());
            }
            lease.take_if(|lease| lease.num_permits() == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::task::noop_waker_ref;

    const KIB: u64 = 1 << 10;

    /// A pools with a large pool only.
    fn pools(bytes: u64, lease_max: u64, share: u64) -> Pools {
        Pools { share, by_size: [Pool::new(0, 0), Pool::new(bytes, lease_max)] }
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
        quotas[0].settle(KIB);
        assert!(!covers(&mut quotas[2], KIB), "the large one is first");
        quotas[0].settle(0);
        assert!(covers(&mut quotas[1], 8 * KIB));
        quotas[1].settle(0);
        assert!(covers(&mut quotas[2], KIB));
    }

    #[test]
    fn who_goes_gives_back_and_does_not_wait_any_more() {
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
    fn who_wants_nothing_any_more_leaves_the_queue() {
        let pools = pools(8 * KIB, 8 * KIB, 0);
        let [mut holder, mut aborted, mut next] = [(); 3].map(|()| Quota::new(&pools));
        assert!(covers(&mut holder, 8 * KIB));
        assert!(!covers(&mut aborted, 8 * KIB));
        assert!(!covers(&mut next, 8 * KIB));
        aborted.settle(0);
        assert!(aborted.asked.is_some(), "it was asked for since");
        aborted.settle(0);
        holder.settle(0);
        assert!(covers(&mut next, 8 * KIB));
    }

    #[test]
    fn moderate_requests_do_not_wait_for_large_ones() {
        let by_size = [Pool::new(4 * KIB, 2 * KIB), Pool::new(8 * KIB, 8 * KIB)];
        let pools = Pools { share: KIB, by_size };
        let [mut greedy, mut patient, mut modest] = [(); 3].map(|()| Quota::new(&pools));
        assert!(covers(&mut greedy, 9 * KIB));
        assert!(!covers(&mut patient, 9 * KIB));
        assert!(covers(&mut modest, 3 * KIB));
        assert!(!covers(&mut modest, 4 * KIB), "that is a large one");
        // As long as anything of it is held, the next large one waits.
        greedy.settle(3 * KIB);
        assert_eq!((greedy.leased(0), greedy.leased(1)), (0, 2 * KIB));
        assert!(!covers(&mut patient, 9 * KIB));
        greedy.settle(KIB);
        assert!(covers(&mut patient, 9 * KIB));
    }
}
