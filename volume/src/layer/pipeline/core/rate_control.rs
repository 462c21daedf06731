//! How much of one direction is put in flight: measured, and chosen from that.

use std::time::Duration;

use super::super::rate_meter::{RateMeter, Stamp};
use super::super::settings::{Chosen, Direction, Settings};
use crate::Shape;

/// A timer may be late by so much, and what was not issued meanwhile is issued then.
const LATE: Duration = Duration::from_millis(4);

/// Where requests take less nothing is spaced out: a timer is not much more exact than that.
const LATENCY_PACED: Duration = Duration::from_millis(4);

/// See the module.
pub(in crate::layer) struct RateControl {
    direction: Direction,
    settings: Settings,
    shape: Shape,
    meter: RateMeter,
    chosen: Chosen,
    /// When the next request may be issued, while requests are spaced out.
    next_at: Option<Duration>,
}

impl RateControl {
    pub(in crate::layer) fn new(direction: Direction, settings: Settings, shape: Shape) -> Self {
        let meter = match direction {
            Direction::Write => RateMeter::new(settings.unsolicited),
            Direction::Read => RateMeter::default(),
        };
        let chosen = settings.choose(direction, &meter, &shape);
        Self { direction, settings, shape, meter, chosen, next_at: None }
    }

    pub(in crate::layer) const fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// A request of so many bytes leaves, with which `in_flight` are in flight.
    pub(in crate::layer) fn issued(&mut self, bytes: u64, in_flight: u64, now: Duration) -> Stamp {
        let held_back = self.next_at.is_some_and(|at| now <= at + LATE);
        // If more could be in flight, what returns is no measure of the link.
        let limited = in_flight + self.chosen.segment < self.chosen.in_flight && !held_back;
        if let (Some(at), Some(pace)) = (self.next_at, self.meter.pace()) {
            let interval = Duration::from_secs_f64(bytes as f64 / pace);
            self.next_at = Some(at.max(now.saturating_sub(LATE)) + interval);
        }
        self.meter.issued(limited, now)
    }

    /// Until when nothing may be issued, if it is to be later than now.
    pub(super) fn held_until(&self, now: Duration) -> Option<Duration> {
        self.next_at.filter(|at| *at > now)
    }

    /// Whether all of the link is wanted, and is worth spacing out what is issued.
    pub(super) fn is_busy(&self) -> bool {
        self.meter.is_busy() && self.meter.latency().is_some_and(|least| least >= LATENCY_PACED)
    }

    /// From now on requests are spaced out, or issued as they come.
    pub(super) fn set_paced(&mut self, paced: bool, now: Duration) {
        if paced == self.next_at.is_some() {
            return;
        }
        self.next_at = paced.then_some(now);
        self.meter.set_paced(paced);
        self.chosen = self.settings.choose(self.direction, &self.meter, &self.shape);
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
