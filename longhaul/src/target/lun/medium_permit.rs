//! Whether a gateway of several may use the medium: until a moment that is moved on as long as its lease is renewed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine has started, that of a suspension included: a lease goes on meanwhile.
#[must_use]
pub fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// See the module.
#[derive(Debug, Default)]
pub struct MediumPermit {
    /// In nanoseconds since the machine has started.
    until: AtomicU64,
}

impl MediumPermit {
    /// The medium may be used until then, as [`since_boot`] tells it.
    pub fn extend(&self, until: Duration) {
        self.until.store(until.as_nanos() as u64, Ordering::Release);
    }

    /// It may not be used any more.
    pub fn withdraw(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Whether it may be used now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.left().is_zero()
    }

    /// For how long it may be used yet.
    #[must_use]
    pub fn left(&self) -> Duration {
        match self.until.load(Ordering::Acquire) {
            0 => Duration::ZERO,
            until => Duration::from_nanos(until.saturating_sub(since_boot().as_nanos() as u64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permit_holds_until_its_time_or_its_withdrawal() {
        let permit = MediumPermit::default();
        assert!(!permit.is_valid());
        permit.extend(since_boot() + Duration::from_secs(3600));
        assert!(permit.is_valid());
        permit.withdraw();
        assert!(!permit.is_valid());
        permit.extend(since_boot().saturating_sub(Duration::from_nanos(1)));
        assert!(!permit.is_valid());
    }
}
