//! How much may be in flight.

mod bbr;
mod by_rtt;
mod cubic;
pub(super) mod delivery;
mod new_reno;

use core::fmt;
use core::time::Duration;

use super::config::CongestionControl;
use bbr::Bbr;
use by_rtt::ByRtt;
use cubic::Cubic;
use delivery::{LostPacket, RateSample};
use new_reno::NewReno;

use crate::time::Time;

/// The window begins with as many packets (RFC 9002, 7.2).
const INITIAL_PACKETS: u64 = 10;

/// It never has fewer.
const MINIMUM_PACKETS: u64 = 2;

/// Packets that were acknowledged together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Acked {
    /// Their bytes.
    pub(super) bytes: u64,
    /// When the last of them was sent.
    pub(super) sent: Time,
    /// The bytes that were in flight before.
    pub(super) in_flight: u64,
    /// Those that are left in flight.
    pub(super) left: u64,
    /// The smoothed round trip, and what was measured now.
    pub(super) rtt: Duration,
    pub(super) measured: Option<Duration>,
    /// What they tell of the rate.
    pub(super) sample: RateSample,
}

impl Acked {
    /// Whether the window had no room for what was to be sent.
    const fn is_window_used(&self, window: u64, packet: u64) -> bool {
        self.in_flight + 2 * packet > window
    }
}

/// Bytes per second that a window is per round trip.
fn per_second(window: u64, rtt: Duration) -> u64 {
    let rate = u128::from(window) * 1_000_000_000 / rtt.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// A congestion controller.
pub(super) trait Congestion: fmt::Debug + Send {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// Bytes per second at which packets leave: a quarter more than the window per round trip (RFC 9002, 7.7).
    fn pace(&self, rtt: Duration) -> u64 {
        per_second(self.window(), rtt).saturating_mul(5) / 4
    }

    /// Packets have this size from now on. As many bytes as before may be in flight.
    fn set_packet(&mut self, packet: u16);

    /// Packets were acknowledged.
    fn on_ack(&mut self, now: Time, acked: &Acked);

    /// These packets were lost, the last of which was sent at `sent`; `persistent`, if all of a long time were.
    fn on_loss(&mut self, now: Time, sent: Time, lost: &[LostPacket], persistent: bool);

    /// All that was lost in the last event has come: what losses have changed in it is undone (RFC 9438, 4.9.2; RFC 4015), if
    /// they alone have.
    fn undo(&mut self, now: Time);

    /// A router has marked packets in place of dropping them (RFC 9002, 7.1). The last one that was acknowledged was sent at
    /// `sent`, and as many bytes were in flight.
    fn on_ce(&mut self, now: Time, sent: Time, in_flight: u64);
}

/// A controller of this kind, for packets of this size.
pub(super) fn new(kind: CongestionControl, packet: u16) -> Box<dyn Congestion> {
    match kind {
        CongestionControl::NewReno => Box::new(NewReno::new(packet)),
        CongestionControl::ByRtt => Box::new(ByRtt::new(packet)),
        CongestionControl::Bbr => Box::new(Bbr::new(packet)),
        CongestionControl::Cubic => Box::new(Cubic::new(packet)),
    }
}

/// Whether what happened to a packet that was sent at `sent` is a new congestion event, after one that began at `last`.
fn is_new_event(last: Option<Time>, sent: Time) -> bool {
    last.is_none_or(|last| sent > last)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9438, 4.9.2; RFC 4015.
    #[test]
    fn window_is_as_before_when_losses_alone_had_reduced_it() {
        let at = |ms| Time::from_origin(Duration::from_millis(ms));
        for (control, reduced) in
            [(CongestionControl::Cubic, 7000), (CongestionControl::NewReno, 5000)]
        {
            for (is_marked, is_persistent, expected) in
                [(false, false, 10_000), (true, false, reduced), (false, true, 2000)]
            {
                let mut congestion = new(control, 1000);
                congestion.on_loss(at(5), at(1), &[], false);
                congestion.on_loss(at(6), at(4), &[], is_persistent);
                if is_marked {
                    congestion.on_ce(at(7), at(4), 10_000);
                }
                congestion.undo(at(8));
                assert_eq!(congestion.window(), expected);
                congestion.undo(at(9));
                assert_eq!(congestion.window(), expected, "it is undone once");
            }
        }
    }
}
