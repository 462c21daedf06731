//! The round trip without queues (draft-ietf-ccwg-bbr, 5.3.4.3 and 5.5.7).

use core::time::Duration;

use crate::time::Time;

/// A measurement counts for as long.
const LIFE: Duration = Duration::from_secs(10);

/// If the least of as long is older, it is measured again.
const PROBE_AFTER: Duration = Duration::from_secs(5);

/// A round trip that is longer by no more than one part in so many was measured with an empty queue too. The draft has only a
/// shorter one count, and has a path that is always the same be left half empty every five seconds.
const SAME: u32 = 64;

/// The least round trip of a while.
#[derive(Debug)]
pub(super) struct MinRtt {
    least: Option<Duration>,
    least_at: Time,
    /// The least one since it was last looked for.
    recent: Option<Duration>,
    recent_at: Time,
}

impl MinRtt {
    pub(super) const fn new() -> Self {
        Self { least: None, least_at: Time::ZERO, recent: None, recent_at: Time::ZERO }
    }

    pub(super) const fn get(&self) -> Option<Duration> {
        self.least
    }

    /// Adds a measurement, if there is one; whether it is time to measure with an empty queue.
    pub(super) fn update(&mut self, now: Time, measured: Option<Duration>) -> bool {
        let is_due = self.recent.is_some() && now - self.recent_at > PROBE_AFTER;
        if let Some(rtt) = measured {
            match self.recent.filter(|_| !is_due) {
                Some(recent) if rtt > recent + recent / SAME => {}
                recent => {
                    let least = recent.map_or(rtt, |recent| recent.min(rtt));
                    (self.recent, self.recent_at) = (Some(least), now);
                }
            }
        }
        let is_over = self.least.is_none() || now - self.least_at > LIFE;
        if is_over || self.recent < self.least {
            (self.least, self.least_at) = (self.recent, self.recent_at);
        }
        is_due
    }

    /// It was measured with an empty queue.
    pub(super) const fn probed(&mut self, now: Time) {
        self.recent_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn least_of_a_while_counts_and_is_looked_for_again() {
        let mut min = MinRtt::new();
        // When, what is measured; what is the least then, and whether it is to be measured.
        let rows = [
            (0, 9, 9, false),
            (1000, 8, 8, false),
            (2000, 9, 8, false),
            (6100, 12, 8, true),
            (9000, 11, 8, false),
            (11_200, 12, 11, false),
            (14_200, 13, 11, true),
        ];
        for (at, rtt, least, is_due) in rows {
            let due = min.update(Time::from_origin(ms(at)), Some(ms(rtt)));
            assert_eq!((min.get(), due), (Some(ms(least)), is_due), "{at}");
        }
    }

    #[test]
    fn round_trip_that_stays_the_same_needs_no_probe() {
        let mut min = MinRtt::new();
        for second in 0..60 {
            let rtt = ms(128 + second % 3);
            assert!(!min.update(Time::from_origin(ms(1000 * second)), Some(rtt)), "{second}");
            assert_eq!(min.get(), Some(ms(128)));
        }
        // A queue that stays is one.
        let due = |second: u64| min.update(Time::from_origin(ms(1000 * second)), Some(ms(131)));
        assert_eq!((60..67).map(due).filter(|is_due| *is_due).count(), 1);
    }
}
