//! How much of one direction is put in flight: measured, and chosen from that.

use std::time::Duration;

use super::super::rate_meter::{RateMeter, Stamp};
use super::super::settings::{Chosen, Direction, Settings};
use crate::Shape;

/// A timer may be late by so much, and what was not issued meanwhile is issued then.
const LATE: Duration = Duration::from_millis(2);

/// Where requests take less nothing is paced: a timer is not much more exact than that.
const LATENCY_PACED: Duration = Duration::from_millis(4);

/// See the module.
pub(in crate::layer) struct RateControl {
    direction: Direction,
    settings: Settings,
    shape: Shape,
    meter: RateMeter,
    chosen: Chosen,
    /// What counts while requests are paced.
    pacer: Pacer,
}

/// How much was issued beyond the pace. It is kept in bytes, so that what is waited for follows a pace that changes.
struct Pacer {
    /// Bytes that were still to be waited for at `at`; below zero for a time in which nothing was issued.
    ahead: f64,
    at: Duration,
}

impl Pacer {
    const fn new(now: Duration) -> Self {
        Self { ahead: 0.0, at: now }
    }

    /// When the next request may be issued, in seconds.
    fn due(&self, pace: f64) -> f64 {
        self.at.as_secs_f64() + self.ahead / pace
    }

    fn issue(&mut self, bytes: u64, pace: f64, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        let ahead = (self.ahead - passed * pace).max(-LATE.as_secs_f64() * pace);
        *self = Self { ahead: ahead + bytes as f64, at: now };
    }
}

impl RateControl {
    pub(in crate::layer) fn new(direction: Direction, settings: Settings, shape: Shape) -> Self {
        let meter = match direction {
            Direction::Write => RateMeter::new(settings.unsolicited),
            Direction::Read => RateMeter::default(),
        };
        let chosen = settings.choose(direction, &meter, &shape);
        Self { direction, settings, shape, meter, chosen, pacer: Pacer::new(Duration::ZERO) }
    }

    pub(in crate::layer) const fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// A request of so many bytes leaves, with which `in_flight` are in flight.
    pub(in crate::layer) fn issued(&mut self, bytes: u64, in_flight: u64, now: Duration) -> Stamp {
        let room = in_flight + self.chosen.segment < self.chosen.in_flight;
        // If more could be in flight, what returns is no measure of the link.
        let limited = room && !self.is_due(now);
        if let Some(pace) = self.meter.pace() {
            self.pacer.issue(bytes, pace, now);
        }
        self.meter.issued(limited, now)
    }

    /// Whether requests are paced.
    pub(super) const fn is_paced(&self) -> bool {
        self.meter.is_paced()
    }

    /// Whether requests are paced, and this is the time for the next one.
    fn is_due(&self, now: Duration) -> bool {
        let due = self.meter.pace().map(|pace| self.pacer.due(pace));
        due.is_some_and(|due| now.saturating_sub(LATE).as_secs_f64() <= due)
    }

    /// Until when nothing may be issued, if it is to be later than now.
    pub(super) fn held_until(&self, now: Duration) -> Option<Duration> {
        let due = self.pacer.due(self.meter.pace()?).max(0.0);
        Some(Duration::try_from_secs_f64(due).unwrap_or(Duration::MAX)).filter(|due| *due > now)
    }

    /// Whether all of the link is wanted, and is worth pacing what is issued.
    pub(super) fn is_busy(&self) -> bool {
        self.meter.is_busy() && self.meter.latency().is_some_and(|least| least >= LATENCY_PACED)
    }

    /// From now on requests are paced, or issued as they come.
    pub(super) fn set_paced(&mut self, paced: bool, now: Duration) {
        if paced != self.is_paced() {
            self.pacer = Pacer::new(now);
            self.meter.set_paced(paced);
            self.choose();
        }
    }

    /// Observes the opposite direction: while that has much in flight too, the latency without a queue is seen only if both have
    /// little in flight at the same time.
    pub(super) fn observe_opposite(&mut self, other: &Self) {
        self.meter.set_opposite_quiet(!self.is_paced() || other.meter.is_quiet());
        if self.is_paced() && other.meter.is_draining() && !self.meter.is_probing() {
            self.meter.probe();
            self.choose();
        }
    }

    fn choose(&mut self) {
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
            self.choose();
        }
    }

    /// A request that is not counted, a caller's own read, took from `issued` until now.
    pub(super) fn latency_beside(&mut self, issued: Duration, now: Duration) {
        self.meter.latency_beside(issued, now);
    }
}
