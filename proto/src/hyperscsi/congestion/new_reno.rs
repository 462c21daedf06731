//! NewReno (RFC 9002, 7).

use super::delivery::LostPacket;
use super::{Acked, Congestion, INITIAL_PACKETS, MINIMUM_PACKETS, is_new_event};
use crate::time::Time;

/// To how many tenths a mark reduces the window: the queue of a router that marks is short (RFC 8511, 3).
const BETA_ECN: u64 = 8;

/// The window of NewReno.
#[derive(Clone, Debug)]
pub(in crate::hyperscsi) struct NewReno {
    packet: u64,
    window: u64,
    threshold: u64,
    /// When the window was last reduced: losses of what was sent before belong to the same event.
    recovery_start: Option<Time>,
    /// Bytes acknowledged since the window last grew by a packet.
    acked: u64,
    /// As it was before the last event, if that was of losses.
    before: Option<Box<Self>>,
}

impl NewReno {
    /// With packets of this size.
    pub(in crate::hyperscsi) fn new(packet: u16) -> Self {
        let packet = packet as u64;
        Self {
            packet,
            window: INITIAL_PACKETS * packet,
            threshold: u64::MAX,
            recovery_start: None,
            acked: 0,
            before: None,
        }
    }

    fn reduce(&mut self, now: Time, window: u64) {
        self.recovery_start = Some(now);
        self.window = window.max(MINIMUM_PACKETS * self.packet);
        self.threshold = self.window;
        (self.acked, self.before) = (0, None);
    }
}

impl Congestion for NewReno {
    fn window(&self) -> u64 {
        self.window
    }

    fn set_packet(&mut self, packet: u16) {
        (self.packet, self.before) = (packet.into(), None);
        self.window = self.window.max(MINIMUM_PACKETS * self.packet);
    }

    fn on_ack(&mut self, _now: Time, acked: &Acked) {
        // A window that is not used says nothing about the path (RFC 9002, 7.8).
        let is_used = acked.in_flight.saturating_mul(2) >= self.window;
        if !is_used || self.recovery_start.is_some_and(|start| acked.sent <= start) {
            return;
        }
        if self.window < self.threshold {
            self.window += acked.bytes;
            return;
        }
        self.acked += acked.bytes;
        if self.acked >= self.window {
            self.acked -= self.window;
            self.window += self.packet;
        }
    }

    fn on_loss(&mut self, now: Time, sent: Time, _lost: &[LostPacket], persistent: bool) {
        if is_new_event(self.recovery_start, sent) {
            let before = Box::new(Self { before: None, ..self.clone() });
            self.reduce(now, self.window / 2);
            self.before = Some(before);
        }
        if persistent {
            self.window = MINIMUM_PACKETS * self.packet;
            (self.recovery_start, self.before) = (None, None);
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
            self.reduce(now, self.window * BETA_ECN / 10);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_origin(Duration::from_millis(ms))
    }

    fn acked(bytes: u64, sent: u64, in_flight: u64) -> Acked {
        let rtt = Duration::from_millis(1);
        Acked { bytes, sent: at(sent), in_flight, rtt, ..Acked::default() }
    }

    #[test]
    fn window_doubles_per_round_trip_before_the_first_loss() {
        let mut reno = NewReno::new(1000);
        reno.on_ack(at(1), &acked(10_000, 0, 10_000));
        assert_eq!(reno.window(), 20_000);
        reno.on_ack(at(2), &acked(1000, 1, 1000));
        assert_eq!(reno.window(), 20_000, "it was not used");
    }

    #[test]
    fn losses_of_one_round_trip_halve_the_window_once() {
        let mut reno = NewReno::new(1000);
        reno.on_loss(at(5), at(1), &[], false);
        reno.on_loss(at(6), at(4), &[], false);
        assert_eq!(reno.window(), 5000);
        reno.on_ack(at(7), &acked(5000, 6, 5000));
        assert_eq!(reno.window(), 6000, "one packet per window");
        reno.on_loss(at(9), at(7), &[], true);
        assert_eq!(reno.window(), 2000);
    }

    /// RFC 9002, 7.1; RFC 8511, 3.
    #[test]
    fn mark_reduces_the_window_less_than_a_loss_and_once_per_round_trip() {
        let mut reno = NewReno::new(1000);
        reno.on_ce(at(5), at(1), 10_000);
        reno.on_ce(at(6), at(4), 10_000);
        reno.on_loss(at(7), at(5), &[], false);
        assert_eq!(reno.window(), 8000);
        reno.on_ce(at(9), at(6), 8000);
        assert_eq!(reno.window(), 6400);
    }
}
