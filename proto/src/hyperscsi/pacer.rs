//! Spreads packets over the round trip (RFC 9002, 7.7).

use core::time::Duration;

use crate::time::Time;

/// Packets that may always leave together.
const BURST: u64 = 16;

/// Packets that never leave together.
const BURST_MAX: u64 = 256;

/// What a timer of the system is late.
const SLACK: Duration = Duration::from_millis(2);

/// A bucket of bytes that may leave.
#[derive(Debug)]
pub(super) struct Pacer {
    packet: u64,
    /// Bytes; below 0 the next packet waits.
    bucket: i64,
    filled: Time,
}

impl Pacer {
    pub(super) const fn new(now: Time, packet: u16) -> Self {
        let packet = packet as u64;
        Self { packet, bucket: (BURST * packet) as i64, filled: now }
    }

    /// Packets have this size from now on.
    pub(super) const fn set_packet(&mut self, packet: u16) {
        self.packet = packet as u64;
    }

    /// When the next packet may leave: now, or later.
    pub(super) fn ready(&mut self, now: Time, window: u64, rtt: Duration) -> Time {
        // A quarter more than the window per round trip.
        let per_second = u128::from(window) * 1_250_000_000 / rtt.as_nanos().max(1);
        let rate = u64::try_from(per_second.max(1)).unwrap_or(u64::MAX);
        let bytes = |time: Duration| {
            u64::try_from(u128::from(rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
        };
        let capacity = bytes(SLACK).clamp(BURST * self.packet, BURST_MAX * self.packet) as i64;
        let gained = i64::try_from(bytes(now - self.filled)).unwrap_or(i64::MAX);
        if gained > 0 {
            self.bucket = self.bucket.saturating_add(gained).min(capacity);
            self.filled = now;
        }
        if self.bucket > 0 {
            return now;
        }
        let lacking = u128::from(self.bucket.unsigned_abs()) + 1;
        let nanoseconds = lacking * 1_000_000_000 / u128::from(rate) + 1;
        self.filled + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// A packet of this size has left.
    pub(super) const fn sent(&mut self, size: u64) {
        self.bucket = self.bucket.saturating_sub(size as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_beyond_the_burst_leave_at_the_pace() {
        let rtt = Duration::from_millis(100);
        let (mut pacer, mut now) = (Pacer::new(Time::ZERO, 1000), Time::ZERO);
        for _ in 0..116 {
            now = pacer.ready(now, 100_000, rtt).max(now);
            pacer.sent(1000);
        }
        // 100 packets at 1.25 windows of 100 packets per 100 ms.
        let took = now.since_origin();
        assert!((Duration::from_millis(78)..Duration::from_millis(82)).contains(&took), "{took:?}");
    }
}
