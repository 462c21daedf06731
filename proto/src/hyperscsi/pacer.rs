//! Spreads packets over the round trip (RFC 9002, 7.7).

use core::time::Duration;

use crate::time::Time;

/// Packets that may always leave together.
const BURST: u64 = 16;

/// Packets that never leave together.
const BURST_MAX: u64 = 256;

/// What leaves later than others is what the rate gives in as long: timers of a system are no finer than a millisecond, and to wait
/// awake for each packet takes a whole processor.
const STEP: Duration = Duration::from_millis(2);

/// What a timer may be late, and what is waited for, together.
const SLACK: Duration = Duration::from_millis(8);

/// A bucket of bytes that may leave.
#[derive(Debug)]
pub(super) struct Pacer {
    packet: u64,
    /// Bytes; at 0 and below the next packet waits, until there are enough for several.
    bucket: i64,
    is_waiting: bool,
    filled: Time,
}

impl Pacer {
    pub(super) const fn new(now: Time, packet: u16) -> Self {
        let packet = packet as u64;
        Self { packet, bucket: (BURST * packet) as i64, is_waiting: false, filled: now }
    }

    /// Packets have this size from now on.
    pub(super) const fn set_packet(&mut self, packet: u16) {
        self.packet = packet as u64;
    }

    /// When the next packet may leave: now, or later.
    pub(super) fn ready(&mut self, now: Time, rate: u64) -> Time {
        let rate = rate.max(1);
        let bytes = |time: Duration| {
            u64::try_from(u128::from(rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
        };
        let capacity = bytes(SLACK).clamp(BURST * self.packet, BURST_MAX * self.packet) as i64;
        let gained = i64::try_from(bytes(now - self.filled)).unwrap_or(i64::MAX);
        if gained > 0 {
            self.bucket = self.bucket.saturating_add(gained).min(capacity);
            self.filled = now;
        }
        let step = i64::try_from(bytes(STEP)).unwrap_or(i64::MAX).min(capacity / 2).max(1);
        self.is_waiting = self.bucket < if self.is_waiting { step } else { 1 };
        if !self.is_waiting {
            return now;
        }
        let lacking = u128::from(step.abs_diff(self.bucket));
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
        let (mut pacer, mut now) = (Pacer::new(Time::ZERO, 1000), Time::ZERO);
        for _ in 0..116 {
            now = pacer.ready(now, 1_250_000).max(now);
            pacer.sent(1000);
        }
        // 100 packets of 1000 bytes.
        let took = now.since_origin();
        assert!((Duration::from_millis(78)..Duration::from_millis(82)).contains(&took), "{took:?}");
    }
}
