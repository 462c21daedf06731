//! How much may be in flight.

mod cubic;
mod new_reno;

use core::fmt;
use core::time::Duration;

use super::config::CongestionControl;
use cubic::Cubic;
use new_reno::NewReno;

use crate::time::Time;

/// The window begins with as many packets (RFC 9002, 7.2).
const INITIAL_PACKETS: u64 = 10;

/// It never has fewer.
const MINIMUM_PACKETS: u64 = 2;

/// Packets that were acknowledged together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acked {
    /// Their bytes.
    pub(super) bytes: u64,
    /// When the last of them was sent.
    pub(super) sent: Time,
    /// The bytes that were in flight before.
    pub(super) in_flight: u64,
    /// The smoothed round trip.
    pub(super) rtt: Duration,
}

/// A congestion controller.
pub(super) trait Congestion: fmt::Debug + Send {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// Packets have this size from now on. As many bytes as before may be in flight.
    fn set_packet(&mut self, packet: u16);

    /// Packets were acknowledged.
    fn on_ack(&mut self, now: Time, acked: Acked);

    /// Packets were lost, the last of which was sent at `sent`; `persistent`, if all of a long time were.
    fn on_loss(&mut self, now: Time, sent: Time, persistent: bool);
}

/// A controller of this kind, for packets of this size.
pub(super) fn new(kind: CongestionControl, packet: u16) -> Box<dyn Congestion> {
    match kind {
        CongestionControl::NewReno => Box::new(NewReno::new(packet)),
        CongestionControl::Cubic => Box::new(Cubic::new(packet)),
    }
}
