//! What BBR knows of a path: its rate, and how much may be in flight (draft-ietf-ccwg-bbr, 5.5).

use core::time::Duration;

use super::super::delivery::RateSample;
use crate::time::Time;

/// To what a rate or a flight that lost too much is reduced.
pub(super) const BETA: f64 = 0.7;

/// The part of what arrives that is sent on where packets were lost while there was a queue.
const YIELD: f64 = 0.95;

/// Rounds in a row with marks that show more than a burst.
const MARKED_ROUNDS: u32 = 2;

/// Rounds for which an aggregation of acknowledgements is remembered, at least.
const AGGREGATION_ROUNDS: u64 = 5;

pub(super) fn scaled(bytes: u64, factor: f64) -> u64 {
    (bytes as f64 * factor) as u64
}

/// Bytes at a rate in as long.
pub(super) fn bytes_in(rate: u64, time: Duration) -> u64 {
    u64::try_from(u128::from(rate) * time.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX)
}

/// Round trips, counted by what is acknowledged: one is over when a packet is that was sent in it.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    next: u64,
    pub(super) count: u64,
    /// A round has begun with this acknowledgement.
    pub(super) is_start: bool,
}

impl Rounds {
    pub(super) const fn update(&mut self, sample: &RateSample) {
        self.is_start = sample.delivered_before >= self.next;
        if self.is_start {
            self.next = sample.delivered_in_all;
            self.count += 1;
        }
    }

    /// The next round begins with what is sent from now on.
    pub(super) const fn restart(&mut self, delivered: u64) {
        self.next = delivered;
    }
}

/// The highest rate that was measured in the last two cycles of probing.
#[derive(Debug, Default)]
pub(super) struct MaxRate {
    current: u64,
    before: u64,
}

impl MaxRate {
    pub(super) fn get(&self) -> u64 {
        self.current.max(self.before)
    }

    /// What was limited by its sender tells at most that the path is faster.
    pub(super) fn add(&mut self, rate: u64, is_app_limited: bool) {
        if rate >= self.get() || !is_app_limited {
            self.current = self.current.max(rate);
        }
    }

    /// A cycle is over.
    pub(super) const fn advance(&mut self) {
        // A cycle without a measurement tells nothing.
        if self.current > 0 {
            (self.before, self.current) = (self.current, 0);
        }
    }
}

/// Whether the rate still grows (draft-ietf-ccwg-bbr, 5.3.1.2).
#[derive(Debug, Default)]
pub(super) struct FullRate {
    rate: u64,
    rounds: u32,
    pub(super) is_reached: bool,
}

impl FullRate {
    /// It does not any more if it has grown by less than this factor in three rounds.
    pub(super) fn update(
        &mut self,
        is_round: bool,
        sample: &RateSample,
        (rate, growth): (u64, f64),
    ) {
        if self.is_reached || !is_round || sample.is_app_limited {
            return;
        }
        if rate >= scaled(self.rate, growth) {
            *self = Self { rate, ..Self::default() };
            return;
        }
        self.rounds += 1;
        self.is_reached = self.rounds >= 3;
    }

    pub(super) fn restart(&mut self, rate: u64) {
        *self = Self { rate, ..Self::default() };
    }
}

/// What the losses of a round say (draft-ietf-ccwg-bbr, 5.5.10): how much less than what was found by probing the path takes now.
#[derive(Debug)]
pub(super) struct ShortTermBounds {
    /// None without losses.
    pub(super) rate: Option<u64>,
    pub(super) in_flight: Option<u64>,
    latest: (u64, u64),
    next: u64,
    /// Bytes lost in this round, whether any were while there was a queue, and what was delivered when it began.
    lost: u64,
    is_queued: bool,
    /// Whether any packet was marked in this round, and the rounds in a row before it of which that is so.
    is_marked: bool,
    marked: u32,
    begun: u64,
    pub(super) events: u32,
}

/// A path that loses more than this part shows congestion.
const LOSS_LIMIT: f64 = 0.02;

/// The bytes of a flight that may be lost: more than this is no chance on a path that loses as much as the limit, of which a few
/// packets say little.
pub(super) fn tolerated(in_flight: u64, packet: u64) -> u64 {
    let packets = LOSS_LIMIT * in_flight as f64 / packet as f64;
    scaled(packet, packets + 2.0 * packets.sqrt())
}

impl ShortTermBounds {
    pub(super) const fn new() -> Self {
        Self {
            rate: None,
            in_flight: None,
            latest: (0, 0),
            next: 0,
            lost: 0,
            is_queued: false,
            is_marked: false,
            marked: 0,
            begun: 0,
            events: 0,
        }
    }

    /// As many bytes were lost, while there was a queue or not.
    pub(super) const fn on_loss(&mut self, bytes: u64, is_queued: bool) {
        self.lost += bytes;
        self.is_queued |= is_queued;
        self.events += 1;
    }

    /// A packet was marked, while the round trip shows a queue or not.
    pub(super) const fn on_ce(&mut self, is_queued: bool) {
        self.is_marked = true;
        self.is_queued |= is_queued;
    }

    /// Takes a sample; what is lost counts at the end of its round, whether that was too much. Nothing is learned while more
    /// than the path takes is sent on purpose.
    pub(super) fn update(
        &mut self,
        sample: &RateSample,
        rate: u64,
        (max_rate, window, packet): (u64, u64, u64),
        is_probing: bool,
    ) -> bool {
        self.latest = (self.latest.0.max(rate), self.latest.1.max(sample.delivered));
        if sample.delivered_before < self.next {
            return false;
        }
        let delivered = sample.delivered_in_all - self.begun;
        let is_lossy = self.lost > tolerated(delivered + self.lost, packet);
        if (is_lossy || self.is_queued || self.is_marked) && !is_probing {
            let part = if self.is_queued { YIELD } else { 1.0 };
            let fall = |value: Option<u64>, full, latest: u64| {
                Some(scaled(value.unwrap_or(full), BETA).max(scaled(latest, part)))
            };
            self.rate = fall(self.rate, max_rate, self.latest.0);
            self.in_flight = fall(self.in_flight, window, self.latest.1);
        }
        (self.next, self.begun) = (sample.delivered_in_all, sample.delivered_in_all);
        self.latest = (rate, sample.delivered);
        self.marked = if self.is_marked { self.marked + 1 } else { 0 };
        let is_high = is_lossy && self.events >= 6 || self.marked >= MARKED_ROUNDS;
        (self.lost, self.events, self.is_queued, self.is_marked) = (0, 0, false, false);
        is_high
    }

    /// The losses of this round were none; the bounds are no lower than these.
    pub(super) fn undo(&mut self, (rate, in_flight): (Option<u64>, Option<u64>)) {
        (self.lost, self.events, self.is_queued) = (0, 0, false);
        self.rate = self.rate.zip(rate).map(|(now, before)| now.max(before));
        self.in_flight = self.in_flight.zip(in_flight).map(|(now, before)| now.max(before));
    }

    pub(super) const fn latest_in_flight(&self) -> u64 {
        self.latest.1
    }

    /// Forgets what the last rounds have said.
    pub(super) const fn restart_round(&mut self) {
        (self.latest, self.lost, self.events, self.is_queued) = ((0, 0), 0, 0, false);
        (self.is_marked, self.marked) = (false, 0);
    }

    /// Forgets the bounds.
    pub(super) const fn lift(&mut self) {
        (self.rate, self.in_flight) = (None, None);
    }
}

/// How much more than the rate tells arrives together (draft-ietf-ccwg-bbr, 5.5.9).
#[derive(Debug, Default)]
pub(super) struct AckAggregation {
    begun: Option<Time>,
    delivered: u64,
    current: u64,
    before: u64,
    since: u64,
}

impl AckAggregation {
    pub(super) fn get(&self) -> u64 {
        self.current.max(self.before)
    }

    pub(super) fn update(&mut self, now: Time, bytes: u64, (rate, window): (u64, u64), round: u64) {
        let begun = *self.begun.get_or_insert(now);
        let mut expected = bytes_in(rate, now - begun);
        if self.delivered <= expected {
            (self.begun, self.delivered, expected) = (Some(now), 0, 0);
        }
        self.delivered += bytes;
        if round - self.since >= AGGREGATION_ROUNDS {
            (self.before, self.current, self.since) = (self.current, 0, round);
        }
        self.current = self.current.max((self.delivered - expected).min(window));
    }
}
