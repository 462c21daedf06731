//! How much of one direction is put in flight: measured, and chosen from that.

use std::time::Duration;

use super::super::rate_meter::{RateMeter, Stamp};
use super::super::settings::{Chosen, Direction, Settings};
use crate::Shape;

/// See the module.
pub(in crate::layer) struct RateControl {
    direction: Direction,
    settings: Settings,
    shape: Shape,
    meter: RateMeter,
    chosen: Chosen,
}

impl RateControl {
    pub(in crate::layer) fn new(direction: Direction, settings: Settings, shape: Shape) -> Self {
        let meter = match direction {
            Direction::Write => RateMeter::new(settings.unsolicited),
            Direction::Read => RateMeter::default(),
        };
        let chosen = settings.choose(direction, &meter, &shape);
        Self { direction, settings, shape, meter, chosen }
    }

    pub(in crate::layer) const fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// A request leaves, with which `in_flight` bytes are in flight.
    pub(in crate::layer) fn issued(&mut self, in_flight: u64, now: Duration) -> Stamp {
        // If more could be in flight, what returns is no measure of the link.
        let limited = in_flight + self.chosen.segment < self.chosen.in_flight;
        self.meter.issued(limited, now)
    }

    /// A request has returned.
    pub(in crate::layer) fn returned(
        &mut self,
        stamp: Stamp,
        bytes: u64,
        done: bool,
        now: Duration,
    ) {
        if self.meter.returned(stamp, bytes, done, now) {
            self.chosen = self.settings.choose(self.direction, &self.meter, &self.shape);
        }
    }

    /// A request that is not counted, a caller's own read, took from `issued` until now.
    pub(super) fn latency_beside(&mut self, issued: Duration, now: Duration) {
        self.meter.latency_beside(issued, now);
    }
}
