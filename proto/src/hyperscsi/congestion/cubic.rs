//! CUBIC (RFC 9438).

use core::time::Duration;

use super::delivery::LostPacket;
use super::{Acked, Congestion, INITIAL_PACKETS, MINIMUM_PACKETS, is_new_event};
use crate::time::Time;

/// How fast the window grows (RFC 9438, 5).
const C: f64 = 0.4;

/// To what the window is reduced (RFC 9438, 4.6).
const BETA: f64 = 0.7;

/// The same after a mark: the queue of a router that marks is short (RFC 8511, 3).
const BETA_ECN: f64 = 0.85;

/// The window of CUBIC, in packets where RFC 9438 has segments.
#[derive(Clone, Debug)]
pub(in crate::hyperscsi) struct Cubic {
    packet: f64,
    /// The window, in packets.
    window: f64,
    threshold: f64,
    /// The window before the last reduction.
    max: f64,
    /// What the window grows from after it.
    start: f64,
    /// What NewReno would have (RFC 9438, 4.3).
    reno: f64,
    /// When the last reduction was, and when the window began to grow after it.
    recovery_start: Option<Time>,
    epoch_start: Option<Time>,
    /// As it was before the last event, if that was of losses.
    before: Option<Box<Self>>,
}

impl Cubic {
    /// With packets of this size.
    pub(in crate::hyperscsi) fn new(packet: u16) -> Self {
        Self {
            packet: f64::from(packet),
            window: INITIAL_PACKETS as f64,
            threshold: f64::INFINITY,
            max: 0.0,
            start: 0.0,
            reno: 0.0,
            recovery_start: None,
            epoch_start: None,
            before: None,
        }
    }

    /// The size of packets.
    pub(in crate::hyperscsi) const fn packet(&self) -> u16 {
        self.packet as u16
    }

    /// W_cubic after as long (RFC 9438, 4.2).
    fn cubic(&self, time: Duration, start: f64) -> f64 {
        let k = ((self.max - start).max(0.0) / C).cbrt();
        C * (time.as_secs_f64() - k).powi(3) + self.max
    }

    /// Reduces the window to this part.
    fn reduce(&mut self, now: Time, beta: f64) {
        // Fast convergence (RFC 9438, 4.7).
        let falls = self.window < self.max;
        self.max = if falls { self.window * (1.0 + beta) / 2.0 } else { self.window };
        self.start = beta * self.max;
        self.window = (self.window * beta).max(MINIMUM_PACKETS as f64);
        (self.threshold, self.reno) = (self.window, self.window);
        (self.recovery_start, self.epoch_start) = (Some(now), None);
        self.before = None;
    }

    fn avoid_congestion(&mut self, now: Time, packets: f64, rtt: Duration) {
        let start = self.start;
        let since = *self.epoch_start.get_or_insert(now);
        // Without a reduction before, the window grows from where it is.
        let start = if self.max < self.window && self.max == 0.0 { self.window } else { start };
        self.max = self.max.max(if self.max == 0.0 { self.window } else { 0.0 });
        self.reno = self.reno.max(start);
        // As NewReno between two reductions, whose average is the same (RFC 9438, 4.3).
        let alpha = if self.reno < self.max { 3.0 * (1.0 - BETA) / (1.0 + BETA) } else { 1.0 };
        self.reno += alpha * packets / self.window;
        let target = self.cubic(now - since + rtt, start).clamp(self.window, 1.5 * self.window);
        let grown = self.window + (target - self.window) / self.window * packets;
        self.window = grown.max(self.reno);
    }
}

impl Congestion for Cubic {
    fn window(&self) -> u64 {
        (self.window * self.packet) as u64
    }

    fn set_packet(&mut self, packet: u16) {
        let factor = self.packet / f64::from(packet);
        (self.packet, self.before) = (f64::from(packet), None);
        let Self { window, threshold, max, start, reno, .. } = self;
        for packets in [window, threshold, max, start, reno] {
            *packets *= factor;
        }
        self.window = self.window.max(MINIMUM_PACKETS as f64);
    }

    fn on_ack(&mut self, now: Time, acked: &Acked) {
        // A window that is not used says nothing about the path (RFC 9438, 4.2).
        let is_used = acked.in_flight.saturating_mul(2) >= self.window();
        if !is_used || self.recovery_start.is_some_and(|start| acked.sent <= start) {
            return;
        }
        let packets = acked.bytes as f64 / self.packet;
        if self.window < self.threshold {
            self.window += packets;
        } else {
            self.avoid_congestion(now, packets, acked.rtt);
        }
    }

    fn on_loss(&mut self, now: Time, sent: Time, _lost: &[LostPacket], persistent: bool) {
        if is_new_event(self.recovery_start, sent) {
            let before = Box::new(Self { before: None, ..self.clone() });
            self.reduce(now, BETA);
            self.before = Some(before);
        }
        if persistent {
            self.window = MINIMUM_PACKETS as f64;
            (self.recovery_start, self.epoch_start) = (None, None);
            self.before = None;
        }
    }

    fn undo(&mut self, _now: Time) {
        if let Some(before) = self.before.take() {
            let window = self.window.max(before.window);
            *self = Self { window, ..*before };
        }
    }

    fn on_ce(&mut self, now: Time, sent: Time, _in_flight: u64) {
        self.before = None;
        if is_new_event(self.recovery_start, sent) {
            self.reduce(now, BETA_ECN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// Full windows without loss for as many round trips; the windows.
    fn grow(cubic: &mut Cubic, from: u32, rounds: u32) -> Vec<u64> {
        let grown = (from..from + rounds).map(|round| {
            let (sent, now) =
                (Time::from_origin(RTT * round), Time::from_origin(RTT * (round + 1)));
            let bytes = cubic.window();
            let acked = Acked { bytes, sent, in_flight: bytes, rtt: RTT, ..Acked::default() };
            cubic.on_ack(now, &acked);
            cubic.window()
        });
        grown.collect()
    }

    #[test]
    fn window_doubles_per_round_trip_before_the_first_loss() {
        assert_eq!(grow(&mut Cubic::new(1000), 0, 3), [20_000, 40_000, 80_000]);
    }

    /// RFC 9438, 4.2: K = cbrt(W_max (1 - beta) / C) is 9.08 s for 1000 packets.
    #[test]
    fn window_is_back_after_k_and_is_flat_there() {
        let mut cubic = Cubic::new(1000);
        cubic.window = 1000.0;
        let now = Time::from_origin(RTT);
        cubic.on_loss(now, Time::ZERO, &[], false);
        assert_eq!(cubic.window(), 700_000);
        let windows = grow(&mut cubic, 1, 140);
        let at = |seconds: usize| windows[seconds * 10];
        assert!((980_000..=1_000_500).contains(&at(8)), "{}", at(8));
        assert!((999_000..=1_003_000).contains(&at(10)), "{}", at(10));
        assert!(at(13) > 1_010_000, "{}", at(13));
        assert!(at(1) - at(0) > 4 * (at(8) - at(7)), "it grows fast far from the last maximum");
    }

    #[test]
    fn losses_of_one_round_trip_reduce_the_window_once() {
        let mut cubic = Cubic::new(1000);
        let at = |ms| Time::from_origin(Duration::from_millis(ms));
        cubic.on_loss(at(5), at(1), &[], false);
        cubic.on_loss(at(6), at(4), &[], false);
        assert_eq!(cubic.window(), 7000);
        cubic.on_loss(at(9), at(7), &[], true);
        assert_eq!(cubic.window(), 2000);
    }

    /// RFC 9002, 7.1; RFC 8511, 3.
    #[test]
    fn mark_reduces_the_window_less_than_a_loss_and_once_per_round_trip() {
        let mut cubic = Cubic::new(1000);
        let at = |ms| Time::from_origin(Duration::from_millis(ms));
        cubic.on_ce(at(5), at(1), 10_000);
        cubic.on_ce(at(6), at(4), 10_000);
        cubic.on_loss(at(7), at(5), &[], false);
        assert_eq!(cubic.window(), 8500);
        cubic.on_ce(at(9), at(6), 8500);
        assert_eq!(cubic.window(), 7225);
    }
}
