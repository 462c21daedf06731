//! CUBIC on short paths, BBR on long ones.
//!
//! On a short path losses are seldom chance, and a lost packet costs little time; what BBR does there costs more: bursts of small
//! requests would be spread over the time that the average of them takes. On a long one CUBIC takes seconds to come back after each loss.

use core::time::Duration;

use super::bbr::Bbr;
use super::cubic::Cubic;
use super::delivery::LostPacket;
use super::{Acked, Congestion};
use crate::time::Time;

/// A path is long from this round trip on.
const LONG: Duration = Duration::from_millis(2);

/// So many measurements decide: the first ones may be those of a server that is busy.
const MEASUREMENTS: u32 = 8;

/// The window of a path of which it is not known at first how long it is.
#[derive(Debug)]
pub(in crate::hyperscsi) enum ByRtt {
    /// Of a path that is short, as far as is known: how often it seemed to be long, until that is known.
    Short(Cubic, Option<u32>),
    Long(Box<Bbr>),
}

impl ByRtt {
    /// With packets of this size.
    pub(in crate::hyperscsi) fn new(packet: u16) -> Self {
        Self::Short(Cubic::new(packet), Some(0))
    }

    fn current(&mut self) -> &mut dyn Congestion {
        match self {
            Self::Short(cubic, _) => cubic,
            Self::Long(bbr) => bbr.as_mut(),
        }
    }

    /// Takes a measurement into account, until one has shown that the path is short, or enough of them that it is long.
    fn decide(&mut self, measured: Duration) {
        let Self::Short(cubic, long) = self else { return };
        *long = long.filter(|_| measured >= LONG).map(|count| count + 1);
        if *long == Some(MEASUREMENTS) {
            *self = Self::Long(Box::new(Bbr::after(cubic)));
        }
    }
}

impl Congestion for ByRtt {
    fn window(&self) -> u64 {
        match self {
            Self::Short(cubic, _) => cubic.window(),
            Self::Long(bbr) => bbr.window(),
        }
    }

    fn pace(&self, rtt: Duration) -> u64 {
        match self {
            Self::Short(cubic, _) => cubic.pace(rtt),
            Self::Long(bbr) => bbr.pace(rtt),
        }
    }

    fn set_packet(&mut self, packet: u16) {
        self.current().set_packet(packet);
    }

    fn on_ack(&mut self, now: Time, acked: &Acked) {
        if let Some(measured) = acked.measured {
            self.decide(measured);
        }
        self.current().on_ack(now, acked);
    }

    fn on_loss(&mut self, now: Time, sent: Time, lost: &[LostPacket], persistent: bool) {
        self.current().on_loss(now, sent, lost, persistent);
    }

    fn undo(&mut self, now: Time) {
        self.current().undo(now);
    }

    fn on_ce(&mut self, now: Time, sent: Time, in_flight: u64) {
        self.current().on_ce(now, sent, in_flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_long_if_none_of_the_first_measurements_is_short() {
        for (measured, is_long) in [
            (vec![16; 7], false),
            (vec![16; 8], true),
            (vec![16, 16, 1, 16, 16, 16, 16, 16, 16, 16, 16, 16], false),
        ] {
            let mut window = ByRtt::new(1000);
            for ms in &measured {
                let rtt = Some(Duration::from_millis(*ms));
                window.on_ack(Time::ZERO, &Acked { bytes: 0, measured: rtt, ..Acked::default() });
            }
            assert_eq!(matches!(window, ByRtt::Long(_)), is_long, "{measured:?}");
            assert_eq!(window.window(), 10_000);
        }
    }
}
