//! The round trip of a path (RFC 9002, 5).

use core::time::Duration;

use super::config::Timing;

/// Estimates of the round trip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rtt {
    timing: Timing,
    latest: Duration,
    smoothed: Option<Duration>,
    variation: Duration,
    least: Duration,
    /// The peer's longest delay of acknowledgements.
    peer_delay: Duration,
}

impl Rtt {
    pub(super) fn new(timing: Timing, peer_delay: Duration) -> Self {
        Self {
            timing,
            latest: timing.initial_rtt,
            smoothed: None,
            variation: timing.initial_rtt / 2,
            least: Duration::MAX,
            peer_delay,
        }
    }

    /// Adds a measurement; the peer has held the acknowledgement back for `held`.
    pub(super) fn add(&mut self, latest: Duration, held: Duration) {
        self.latest = latest;
        self.least = self.least.min(latest);
        let Some(smoothed) = self.smoothed else {
            // A server answers the first packets only when it has decided about the client, however long that takes.
            let latest = latest.saturating_sub(held);
            self.smoothed = Some(latest);
            self.variation = latest / 2;
            return;
        };
        let held = held.min(self.peer_delay);
        let adjusted = if latest >= self.least + held { latest - held } else { latest };
        self.variation = (self.variation * 3 + smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = Some((smoothed * 7 + adjusted) / 8);
    }

    /// What took so long, without that the peer has held the acknowledgement back.
    pub(super) fn without_delay(&self, latest: Duration, held: Duration) -> Duration {
        latest.saturating_sub(held.min(self.peer_delay))
    }

    pub(super) fn smoothed(&self) -> Duration {
        self.smoothed.unwrap_or(self.timing.initial_rtt)
    }

    /// How long after it was sent a packet counts as lost if a later one was acknowledged (RFC 9002, 6.1.2), in eighths of
    /// the round trip.
    pub(super) fn loss_delay(&self, eighths: u32) -> Duration {
        (self.smoothed().max(self.latest) * eighths / 8).max(self.timing.granularity)
    }

    /// How long after it was sent a packet counts as lost that was not acknowledged, while others are.
    pub(super) fn late_delay(&self, eighths: u32) -> Duration {
        self.loss_delay(eighths).max(self.probe_timeout()) + self.peer_delay
    }

    /// The probe time-out (RFC 9002, 6.2.1).
    pub(super) fn probe_timeout(&self) -> Duration {
        self.asked_timeout() + self.peer_delay
    }

    /// The same of a packet whose acknowledgement the peer does not hold back.
    pub(super) fn asked_timeout(&self) -> Duration {
        self.smoothed() + (self.variation * 4).max(self.timing.granularity)
    }
}
