//! How many bytes a session may hold: solicited data, answers under way, and output.
//!
//! All of these can wait, so they are paid for before they are asked for: out of the share that every session
//! has, or by a lease on what all have in common. Whoever has been given one needs nothing more to end, so
//! nobody waits in a circle.
//!
//! There are two funds. A request that fits into what one session may have of the first takes it from there, and
//! never waits for one that does not: a few initiators that ask for much and take nothing of it hold up others
//! like themselves, and nobody else. Leases of one fund are given in turn, so that a larger request is not
//! starved by smaller ones.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// What leases are counted in.
const UNIT: u64 = 1 << 10;

type Asked = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// What all sessions may hold in common.
#[derive(Clone, Debug)]
pub(super) struct Fund {
    units: Arc<Semaphore>,
    lease_max: u64,
}

impl Fund {
    /// `bytes` in common, of which one session has `lease_max` at most.
    pub(super) fn new(bytes: u64, lease_max: u64) -> Self {
        let units = usize::try_from(bytes / UNIT).unwrap_or(usize::MAX);
        let units = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
        Self { units, lease_max: lease_max.min(bytes) / UNIT * UNIT }
    }
}

/// What sessions may hold: a share of `share` bytes each, and two funds.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) share: u64,
    /// For requests of moderate size, then for large ones.
    pub(super) funds: [Fund; 2],
}

/// One session's part.
pub(super) struct Purse {
    pool: Pool,
    leases: [Option<OwnedSemaphorePermit>; 2],
    /// A lease that has to be waited for, and of which fund.
    asked: Option<(usize, Asked)>,
    /// Something has had to wait since the session was last settled.
    wanting: bool,
}

impl Purse {
    pub(super) fn new(pool: &Pool) -> Self {
        Self { pool: pool.clone(), leases: [None, None], asked: None, wanting: false }
    }

    fn leased(&self, fund: usize) -> u64 {
        let lease = self.leases.get(fund).and_then(Option::as_ref);
        lease.map_or(0, |lease| lease.num_permits() as u64 * UNIT)
    }

    /// The most one request can hold.
    pub(super) const fn request_max(&self) -> u64 {
        let [_, large] = &self.pool.funds;
        large.lease_max
    }

    /// How much the session may hold now.
    pub(super) fn limit(&self) -> u64 {
        self.pool.share + self.leased(0) + self.leased(1)
    }

    /// Whether the session may hold `total`; if not, it is woken when it is worth asking again.
    pub(super) fn covers(&mut self, cx: &mut Context<'_>, total: u64) -> bool {
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
            let mut funds = self.pool.funds.iter().enumerate();
            let fund = funds.find(|(at, fund)| self.leased(*at) + missing <= fund.lease_max);
            // It would exceed its part: something it holds has to go first, and that wakes it.
            let Some((fund, _)) = fund else { return false };
            let Poll::Ready(lease) = self.poll_lease(cx, fund, missing) else { return false };
            match self.leases.get_mut(fund) {
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
        fund: usize,
        missing: u64,
    ) -> Poll<OwnedSemaphorePermit> {
        self.asked.take_if(|(of, _)| *of != fund);
        let Some(units) = self.pool.funds.get(fund).map(|fund| &fund.units) else {
            return Poll::Pending;
        };
        let (_, asked) = self.asked.get_or_insert_with(|| {
            let count = u32::try_from(missing.div_ceil(UNIT)).unwrap_or(u32::MAX);
            (fund, Box::pin(Arc::clone(units).acquire_many_owned(count)))
        });
        match asked.as_mut().poll(cx) {
            Poll::Ready(Ok(lease)) => {
                self.asked = None;
                Poll::Ready(lease)
            }
            // Nobody closes the pool.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }

    /// Gives back what holding `used` does not need, and its place in the queue if nothing of it waits any
    /// more: what waited was aborted.
    pub(super) fn settle(&mut self, used: u64) {
        if !std::mem::take(&mut self.wanting) {
            self.asked = None;
        }
        let mut needed = used.saturating_sub(self.pool.share).div_ceil(UNIT) as usize;
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

    /// A pool with a large fund only.
    fn pool(bytes: u64, lease_max: u64, share: u64) -> Pool {
        Pool { share, funds: [Fund::new(0, 0), Fund::new(bytes, lease_max)] }
    }

    fn covers(purse: &mut Purse, total: u64) -> bool {
        purse.covers(&mut Context::from_waker(noop_waker_ref()), total)
    }

    #[test]
    fn a_share_needs_no_lease_and_is_always_there() {
        let pool = pool(8 * KIB, 8 * KIB, 2 * KIB);
        let (mut greedy, mut modest) = (Purse::new(&pool), Purse::new(&pool));
        assert!(covers(&mut greedy, 10 * KIB));
        assert!(!covers(&mut greedy, 10 * KIB + 1));
        assert!(covers(&mut modest, 2 * KIB));
        assert!(!covers(&mut modest, 2 * KIB + 1));
    }

    #[test]
    fn one_session_has_a_part_of_the_pool_at_most() {
        let mut purse = Purse::new(&pool(8 * KIB, 5 * KIB, 0));
        assert!(!covers(&mut purse, 6 * KIB));
        assert!(covers(&mut purse, 5 * KIB));
    }

    #[test]
    fn leases_come_in_turn() {
        let pool = pool(8 * KIB, 8 * KIB, 0);
        let mut purses = [(); 3].map(|()| Purse::new(&pool));
        assert!(covers(&mut purses[0], 8 * KIB));
        assert!(!covers(&mut purses[1], 8 * KIB));
        assert!(!covers(&mut purses[2], KIB));
        purses[0].settle(KIB);
        assert!(!covers(&mut purses[2], KIB), "the large one is first");
        purses[0].settle(0);
        assert!(covers(&mut purses[1], 8 * KIB));
        purses[1].settle(0);
        assert!(covers(&mut purses[2], KIB));
    }

    #[test]
    fn who_goes_gives_back_and_does_not_wait_any_more() {
        let pool = pool(8 * KIB, 8 * KIB, 0);
        let mut first = Purse::new(&pool);
        assert!(covers(&mut first, 8 * KIB));
        let mut second = Purse::new(&pool);
        assert!(!covers(&mut second, 8 * KIB));
        drop((second, first));
        assert!(covers(&mut Purse::new(&pool), 8 * KIB));
    }

    /// One that asked and then had nothing left to ask for would be given what nobody uses.
    #[test]
    fn who_wants_nothing_any_more_leaves_the_queue() {
        let pool = pool(8 * KIB, 8 * KIB, 0);
        let [mut holder, mut aborted, mut next] = [(); 3].map(|()| Purse::new(&pool));
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
        let funds = [Fund::new(4 * KIB, 2 * KIB), Fund::new(8 * KIB, 8 * KIB)];
        let pool = Pool { share: KIB, funds };
        let [mut greedy, mut patient, mut modest] = [(); 3].map(|()| Purse::new(&pool));
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
