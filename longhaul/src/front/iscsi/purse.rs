//! How many bytes a session may hold: solicited data, answers under way, and output.
//!
//! All of these can wait, so they are paid for before they are asked for: out of the share that every session
//! has, or by a lease on what all have in common. Leases are given in turn, so that a large request is not
//! starved by small ones. Whoever has been given one needs nothing more to end, so nobody waits in a circle.

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
pub(super) struct Pool {
    units: Arc<Semaphore>,
    share: u64,
    lease_max: u64,
}

impl Pool {
    /// `bytes` in common, of which one session has `lease_max` at most, and a share of `share` for each.
    pub(super) fn new(bytes: u64, lease_max: u64, share: u64) -> Self {
        let units = usize::try_from(bytes / UNIT).unwrap_or(usize::MAX);
        let units = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
        Self { units, share, lease_max: lease_max.min(bytes) / UNIT * UNIT }
    }
}

/// One session's part.
pub(super) struct Purse {
    pool: Pool,
    lease: Option<OwnedSemaphorePermit>,
    /// A lease that has to be waited for.
    asked: Option<Asked>,
}

impl Purse {
    pub(super) fn new(pool: &Pool) -> Self {
        Self { pool: pool.clone(), lease: None, asked: None }
    }

    fn leased(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.num_permits() as u64 * UNIT)
    }

    /// The most one request can hold.
    pub(super) const fn request_max(&self) -> u64 {
        self.pool.lease_max
    }

    /// How much the session may hold now.
    pub(super) fn limit(&self) -> u64 {
        self.pool.share + self.leased()
    }

    /// Whether the session may hold `total`; if not, it is woken when it is worth asking again.
    pub(super) fn covers(&mut self, cx: &mut Context<'_>, total: u64) -> bool {
        loop {
            let missing = total.saturating_sub(self.limit());
            if missing == 0 {
                self.asked = None;
                return true;
            }
            // It would exceed its part: something it holds has to go first, and that wakes it.
            if self.leased() + missing > self.pool.lease_max {
                return false;
            }
            let Poll::Ready(lease) = self.poll_lease(cx, missing) else { return false };
            match &mut self.lease {
                Some(had) => had.merge(lease),
                none => *none = Some(lease),
            }
        }
    }

    /// The lease that was asked for; one of `missing` bytes, if none was.
    fn poll_lease(&mut self, cx: &mut Context<'_>, missing: u64) -> Poll<OwnedSemaphorePermit> {
        let asked = self.asked.get_or_insert_with(|| {
            let units = u32::try_from(missing.div_ceil(UNIT)).unwrap_or(u32::MAX);
            Box::pin(Arc::clone(&self.pool.units).acquire_many_owned(units))
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

    /// Gives back what holding `used` does not need.
    pub(super) fn settle(&mut self, used: u64) {
        let needed = used.saturating_sub(self.pool.share).div_ceil(UNIT) as usize;
        if let Some(lease) = &mut self.lease {
            let spare = lease.num_permits().saturating_sub(needed);
            drop(lease.split(spare));
        }
        self.lease.take_if(|lease| lease.num_permits() == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::task::noop_waker_ref;

    const KIB: u64 = 1 << 10;

    fn covers(purse: &mut Purse, total: u64) -> bool {
        purse.covers(&mut Context::from_waker(noop_waker_ref()), total)
    }

    #[test]
    fn a_share_needs_no_lease_and_is_always_there() {
        let pool = Pool::new(8 * KIB, 8 * KIB, 2 * KIB);
        let (mut greedy, mut modest) = (Purse::new(&pool), Purse::new(&pool));
        assert!(covers(&mut greedy, 10 * KIB));
        assert!(!covers(&mut greedy, 10 * KIB + 1));
        assert!(covers(&mut modest, 2 * KIB));
        assert!(!covers(&mut modest, 2 * KIB + 1));
    }

    #[test]
    fn one_session_has_a_part_of_the_pool_at_most() {
        let pool = Pool::new(8 * KIB, 5 * KIB, 0);
        let mut purse = Purse::new(&pool);
        assert!(!covers(&mut purse, 6 * KIB));
        assert!(covers(&mut purse, 5 * KIB));
    }

    #[test]
    fn leases_come_in_turn() {
        let pool = Pool::new(8 * KIB, 8 * KIB, 0);
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
        let pool = Pool::new(8 * KIB, 8 * KIB, 0);
        let mut first = Purse::new(&pool);
        assert!(covers(&mut first, 8 * KIB));
        let mut second = Purse::new(&pool);
        assert!(!covers(&mut second, 8 * KIB));
        drop((second, first));
        assert!(covers(&mut Purse::new(&pool), 8 * KIB));
    }
}
