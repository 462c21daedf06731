//! BBR (draft-ietf-ccwg-bbr): window and pace follow from the rate and the round trip that are measured, so that a
//! loss now and then, which says nothing of congestion, costs no more than the lost packet.
//!
//! It differs from the draft in these points:
//! - The short-term bounds (5.5.10) fall in rounds that lose more than the limit, by which the long-term ones are judged too, or
//!   that lose anything while the round trip shows a queue. Else a path that loses one packet in a hundred would lose a
//!   little of its rate in each round. Where there is a queue, they fall by a twentieth below what arrives, for the sake of flows that a loss
//!   makes slower.
//! - A few lost packets do not exceed the limit, where they are so few that chance explains them.
//! - A probe goes on while the rate grows by a tenth in a round, not a quarter (5.3.1.2), which is what it can grow by at most.
//! - The time between two probes (5.3.3.8) does not depend on the number of rounds: flows that grow slowly have more time to do so.
//! - Marks (ECN) count as losses while there is a queue, and those of two rounds in a row end the search for the rate.
//! - The round trip is not measured with an empty queue (5.3.4) where little is in flight anyway.

mod min_rtt;
mod model;

use core::time::Duration;

use super::cubic::Cubic;
use super::delivery::LostPacket;
use super::{Acked, Congestion, INITIAL_PACKETS, is_new_event};
use crate::time::Time;
use min_rtt::MinRtt;
use model::{
    AckAggregation, BETA, FullRate, MaxRate, Rounds, ShortTermBounds, bytes_in, scaled, tolerated,
};

/// The window never has fewer packets.
const LEAST_PACKETS: u64 = 4;

/// The part of the measured rate that is sent, so that queues become empty.
const PACE_MARGIN: f64 = 0.99;

/// The part of the bound that is left to others.
const HEADROOM: f64 = 0.15;

/// For as long the queue is kept empty to measure the round trip.
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);

/// The time between two probes for more, to which up to a second is added.
const PROBE_WAIT: Duration = Duration::from_secs(2);

/// What is done (draft-ietf-ccwg-bbr, 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Looks for the rate.
    Startup,
    /// Empties the queue that this has made.
    Drain,
    /// Sends less than the rate, to make the queue empty.
    Down,
    /// Sends as much as it.
    Cruise,
    /// The same, to fill the path before more is tried.
    Refill,
    /// Sends more, to see whether more arrives.
    Up,
    /// Keeps the queue empty to measure the round trip.
    ProbeRtt,
}

impl State {
    const fn pacing_gain(self) -> f64 {
        match self {
            Self::Startup => 2.77,
            Self::Drain => 0.5,
            Self::Down => 0.9,
            Self::Cruise | Self::Refill | Self::ProbeRtt => 1.0,
            Self::Up => 1.25,
        }
    }

    const fn window_gain(self) -> f64 {
        match self {
            Self::Up => 2.25,
            Self::ProbeRtt => 0.5,
            _ => 2.0,
        }
    }

    /// A rate that grows by less in a round has reached its limit. It can grow by no more than the gain, so that a path that was
    /// thought to be slow is left only by way of many rounds of one probe.
    const fn growth(self) -> f64 {
        match self {
            Self::Up => 1.1,
            _ => 1.25,
        }
    }

    /// Whether more may be sent than the path takes, on purpose.
    const fn is_probing(self) -> bool {
        matches!(self, Self::Startup | Self::Refill | Self::Up)
    }

    const fn is_cycle(self) -> bool {
        matches!(self, Self::Down | Self::Cruise | Self::Refill | Self::Up)
    }
}

/// How fast the bound is raised while a probe finds that it may be (draft-ietf-ccwg-bbr, 5.3.3.6).
#[derive(Debug, Default)]
struct Slope {
    /// Rounds of the probe.
    rounds: u32,
    /// Bytes to be acknowledged for each packet by which it is raised, and those that were.
    bytes: u64,
    acked: u64,
}

/// The window of BBR.
#[derive(Debug)]
pub(in crate::hyperscsi) struct Bbr {
    packet: u64,
    window: u64,
    /// The window before the round trip was measured, or all was lost.
    window_before: u64,
    pace: Option<u64>,
    state: State,
    /// Bytes delivered so far.
    delivered: u64,
    rounds: Rounds,
    max_rate: MaxRate,
    min_rtt: MinRtt,
    short_term: ShortTermBounds,
    /// How much may be in flight without too many losses.
    bound: Option<u64>,
    ack_aggregation: AckAggregation,
    full_rate: FullRate,
    is_filled: bool,
    /// What was sent by a probe is acknowledged when the next round begins: a cycle is over then.
    is_ending: bool,
    /// Losses are those of a probe.
    is_probed: bool,
    /// When the phase began.
    phase_at: Time,
    probe_wait: Duration,
    slope: Slope,
    /// When the round trip has been measured, once the queue is empty; whether a round has gone by since.
    rtt_until: Option<(Time, bool)>,
    /// The round trip shows that a queue has formed.
    is_queued: bool,
    /// When the last loss or mark was found that was none of what had been sent before an earlier one was.
    event: Option<Time>,
    /// As it was then, if that was a loss.
    before: Option<Before>,
}

/// What losses change (draft-ietf-ccwg-bbr, 5.5.11).
#[derive(Clone, Copy, Debug)]
struct Before {
    state: State,
    is_filled: bool,
    bound: Option<u64>,
    short_term: (Option<u64>, Option<u64>),
}

impl Bbr {
    /// With packets of this size.
    pub(in crate::hyperscsi) fn new(packet: u16) -> Self {
        let packet = u64::from(packet);
        Self {
            packet,
            window: INITIAL_PACKETS * packet,
            window_before: 0,
            pace: None,
            state: State::Startup,
            delivered: 0,
            rounds: Rounds::default(),
            max_rate: MaxRate::default(),
            min_rtt: MinRtt::new(),
            short_term: ShortTermBounds::new(),
            bound: None,
            ack_aggregation: AckAggregation::default(),
            full_rate: FullRate::default(),
            is_filled: false,
            is_ending: false,
            is_probed: true,
            phase_at: Time::ZERO,
            probe_wait: PROBE_WAIT,
            slope: Slope::default(),
            rtt_until: None,
            is_queued: false,
            event: None,
            before: None,
        }
    }

    /// With the window of another one.
    pub(in crate::hyperscsi) fn after(cubic: &Cubic) -> Self {
        Self { window: cubic.window(), ..Self::new(cubic.packet()) }
    }

    const fn least(&self) -> u64 {
        LEAST_PACKETS * self.packet
    }

    /// The rate that is sent at.
    fn bounded_rate(&self) -> u64 {
        self.short_term.rate.unwrap_or(u64::MAX).min(self.max_rate.get())
    }

    /// What is in flight at a rate.
    fn product(&self, rate: u64, gain: f64) -> u64 {
        match self.min_rtt.get() {
            Some(rtt) if rate > 0 => scaled(bytes_in(rate, rtt), gain),
            _ => scaled(INITIAL_PACKETS * self.packet, gain),
        }
    }

    /// What leaves together.
    fn quantum(&self) -> u64 {
        let pace = self.pace.unwrap_or(0);
        bytes_in(pace, Duration::from_millis(1)).clamp(2 * self.packet, 64 * 1024)
    }

    fn in_flight_at(&self, gain: f64) -> u64 {
        self.product(self.max_rate.get(), gain).max(self.least())
    }

    /// As much as may be in flight without using what is left to others.
    fn bound_with_headroom(&self) -> Option<u64> {
        let headroom = |bound| self.packet.max(scaled(bound, HEADROOM));
        self.bound.map(|bound| bound.saturating_sub(headroom(bound)).max(self.least()))
    }

    fn enter(&mut self, now: Time, state: State) {
        (self.state, self.phase_at) = (state, now);
        if state != State::Cruise {
            self.rounds.restart(self.delivered);
        }
    }

    fn go_down(&mut self, now: Time) {
        self.short_term.restart_round();
        (self.is_ending, self.is_probed) = (true, false);
        // Flows do not probe all at the same time.
        let odd = self.delivered ^ (now.since_origin().as_nanos() as u64);
        self.probe_wait = PROBE_WAIT + Duration::from_micros(odd % 1_000_000);
        self.enter(now, State::Down);
    }

    fn refill(&mut self, now: Time) {
        self.short_term.lift();
        self.slope = Slope::default();
        self.is_ending = false;
        self.enter(now, State::Refill);
    }

    fn go_up(&mut self, now: Time, rate: u64) {
        self.is_probed = true;
        self.full_rate.restart(rate);
        self.enter(now, State::Up);
        self.raise_slope();
    }

    fn raise_slope(&mut self) {
        let growth = 1 << self.slope.rounds;
        self.slope.rounds = (self.slope.rounds + 1).min(30);
        self.slope.bytes = (self.window / growth).max(self.packet);
    }

    /// The path has taken all that was in flight, which was the bound, so that it may take more.
    fn raise_bound(&mut self, acked: &Acked, bound: u64) {
        if !acked.is_window_used(self.window, self.packet) || self.window < bound {
            return;
        }
        let acked = self.slope.acked + acked.bytes;
        self.slope.acked = acked % self.slope.bytes;
        if acked >= self.slope.bytes {
            self.bound = Some(bound + acked / self.slope.bytes * self.packet);
        }
        if self.rounds.is_start {
            self.raise_slope();
        }
    }

    /// More was lost than a path loses by itself.
    fn lower_bound(&mut self, now: Time, in_flight: u64, is_app_limited: bool) {
        self.is_probed = false;
        if !is_app_limited {
            let least = scaled(self.in_flight_at(1.0).min(self.window), BETA);
            self.bound = Some(in_flight.max(least));
        }
        if self.state == State::Up {
            self.go_down(now);
        }
    }

    /// What the acknowledgements of a probe tell of the bound and the rate (draft-ietf-ccwg-bbr, 5.3.3.6).
    fn adapt_long_term(&mut self, now: Time, acked: &Acked) {
        let sample = &acked.sample;
        if self.rounds.is_start && self.is_ending {
            self.is_ending = false;
            if self.state.is_cycle() && !sample.is_app_limited {
                self.max_rate.advance();
            }
        }
        if sample.lost > tolerated(sample.in_flight, self.packet) {
            if self.is_probed {
                self.lower_bound(now, sample.in_flight, sample.is_app_limited);
            }
        } else if let Some(bound) = self.bound {
            self.bound = Some(bound.max(sample.in_flight));
            if self.state == State::Up {
                self.raise_bound(acked, bound);
            }
        }
    }

    fn is_time_to_probe(&self, now: Time) -> bool {
        now - self.phase_at > self.probe_wait
    }

    fn is_time_to_cruise(&self, in_flight: u64) -> bool {
        self.bound_with_headroom().is_none_or(|bound| in_flight <= bound)
            && in_flight <= self.in_flight_at(1.0)
    }

    fn is_time_to_go_down(&mut self, acked: &Acked, rate: u64) -> bool {
        let is_bounded = acked.is_window_used(self.window, self.packet)
            && self.bound.is_some_and(|bound| self.window >= bound);
        if is_bounded {
            self.full_rate.restart(rate);
        }
        !is_bounded && self.full_rate.is_reached
    }

    /// Goes on to the next phase, if it is time (draft-ietf-ccwg-bbr, 5.3).
    fn advance(&mut self, now: Time, acked: &Acked, rate: u64) {
        let (state, in_flight) = (self.state, acked.left);
        match state {
            State::Startup if self.is_filled => self.enter(now, State::Drain),
            State::Drain if in_flight <= self.in_flight_at(1.0) => self.go_down(now),
            State::Down | State::Cruise if self.is_time_to_probe(now) => self.refill(now),
            State::Down if self.is_time_to_cruise(in_flight) => {
                self.enter(now, State::Cruise);
            }
            State::Refill if self.rounds.is_start => self.go_up(now, rate),
            State::Up if self.is_time_to_go_down(acked, rate) => self.go_down(now),
            _ => {}
        }
    }

    /// Measures the round trip when that is due; it is known already where little was in flight.
    fn probe_rtt(&mut self, now: Time, acked: &Acked) {
        let is_due = self.min_rtt.update(now, acked.measured);
        if let (Some(rtt), Some(least)) = (acked.measured, self.min_rtt.get()) {
            self.is_queued = rtt > least * 5 / 4;
        }
        let few =
            self.product(self.bounded_rate(), State::ProbeRtt.window_gain()).max(self.least());
        if self.state != State::ProbeRtt {
            if is_due && acked.measured.is_some() && acked.in_flight <= few {
                self.min_rtt.probed(now);
            } else if is_due {
                self.window_before = self.window;
                self.is_ending = true;
                self.rtt_until = None;
                self.enter(now, State::ProbeRtt);
            }
            return;
        }
        match &mut self.rtt_until {
            None if acked.left <= few => {
                self.rtt_until = Some((now + PROBE_RTT_TIME, false));
                self.rounds.restart(self.delivered);
            }
            None => {}
            Some((until, is_round)) => {
                *is_round |= self.rounds.is_start;
                if *is_round && now > *until {
                    self.end_probe_rtt(now);
                }
            }
        }
    }

    fn end_probe_rtt(&mut self, now: Time) {
        self.min_rtt.probed(now);
        self.window = self.window.max(self.window_before);
        self.short_term.lift();
        if self.is_filled {
            self.go_down(now);
            self.enter(now, State::Cruise);
        } else {
            self.enter(now, State::Startup);
        }
    }

    fn set_pace(&mut self, rtt: Duration) {
        let rate = self.bounded_rate();
        if rate == 0 {
            return;
        }
        let pace = scaled(rate, self.state.pacing_gain() * PACE_MARGIN);
        // Little is known at first: a few small requests have a low rate, and the path may be fast (draft-ietf-ccwg-bbr, 5.6.2).
        self.pace = Some(if self.is_filled { pace } else { pace.max(self.pace(rtt)) });
    }

    fn set_window(&mut self, acked: &Acked) {
        let product = self.product(self.bounded_rate(), self.state.window_gain());
        let full = (product + self.ack_aggregation.get()).max(3 * self.quantum()).max(self.least());
        if self.is_filled {
            self.window = (self.window + acked.bytes).min(full);
        } else if self.window < full || self.delivered < INITIAL_PACKETS * self.packet {
            self.window += acked.bytes;
        }
        let bound = match self.state {
            State::Cruise | State::ProbeRtt => self.bound_with_headroom(),
            State::Down | State::Refill | State::Up => self.bound,
            State::Startup | State::Drain => None,
        };
        let few = (self.state == State::ProbeRtt).then_some(product);
        let bounds = [bound, self.short_term.in_flight, few].into_iter().flatten();
        self.window = bounds.fold(self.window, u64::min).max(self.least());
    }
}

impl Congestion for Bbr {
    fn window(&self) -> u64 {
        self.window
    }

    fn pace(&self, rtt: Duration) -> u64 {
        let initial = || super::per_second(self.window, rtt);
        self.pace.unwrap_or_else(|| scaled(initial(), State::Startup.pacing_gain()))
    }

    fn set_packet(&mut self, packet: u16) {
        self.packet = packet.into();
        self.window = self.window.max(self.least());
    }

    fn on_ack(&mut self, now: Time, acked: &Acked) {
        let sample = &acked.sample;
        // What seems to have been faster than the path is long came late and together.
        let is_long = self.min_rtt.get().is_none_or(|rtt| sample.interval >= rtt);
        let rate = if is_long { sample.rate() } else { 0 };
        self.delivered = sample.delivered_in_all;
        self.rounds.update(sample);
        if rate > 0 {
            self.max_rate.add(rate, sample.is_app_limited);
        }
        let known = (self.max_rate.get(), self.window, self.packet);
        let is_high = self.short_term.update(sample, rate, known, self.state.is_probing());
        self.ack_aggregation.update(
            now,
            acked.bytes,
            (self.bounded_rate(), self.window),
            self.rounds.count,
        );
        if rate > 0 {
            self.full_rate.update(self.rounds.is_start, sample, (rate, self.state.growth()));
        }
        let latest = self.short_term.latest_in_flight();
        // Losses of a few small packets, such as replies to writes whose acknowledgements wait in the queue that these make, tell
        // nothing of what the path carries.
        let is_much = latest >= INITIAL_PACKETS * self.packet;
        if !self.is_filled && is_high && is_much && self.state == State::Startup {
            (self.is_filled, self.bound) = (true, Some(latest.max(self.in_flight_at(1.0))));
        }
        self.is_filled |= self.full_rate.is_reached;
        if self.is_filled {
            self.adapt_long_term(now, acked);
        }
        self.advance(now, acked, rate);
        self.probe_rtt(now, acked);
        self.set_pace(acked.rtt);
        self.set_window(acked);
    }

    fn undo(&mut self, now: Time) {
        let Some(before) = self.before.take() else { return };
        self.event = None;
        self.short_term.undo(before.short_term);
        self.bound = self.bound.zip(before.bound).map(|(now, before)| now.max(before));
        if self.state == before.state || self.state == State::ProbeRtt {
            return;
        }
        if !before.is_filled {
            self.is_filled = false;
            self.full_rate.restart(self.max_rate.get());
            self.enter(now, State::Startup);
        } else if before.state == State::Up {
            self.go_up(now, self.max_rate.get());
        }
    }

    fn on_ce(&mut self, now: Time, _sent: Time, in_flight: u64) {
        (self.event, self.before) = (Some(now), None);
        self.short_term.on_ce(self.is_queued);
        // More than the path takes without a queue.
        if self.is_filled && self.is_probed && self.state == State::Up {
            self.lower_bound(now, in_flight, false);
        }
    }

    fn on_loss(&mut self, now: Time, sent: Time, lost: &[LostPacket], persistent: bool) {
        if is_new_event(self.event, sent) {
            let Self { state, is_filled, bound, .. } = *self;
            let short_term = (self.short_term.rate, self.short_term.in_flight);
            self.before = Some(Before { state, is_filled, bound, short_term });
            self.event = Some(now);
        }
        for packet in lost {
            self.short_term.on_loss(packet.size, self.is_queued);
            let tolerated = tolerated(packet.in_flight, self.packet);
            if self.is_filled && self.is_probed && packet.lost > tolerated {
                self.lower_bound(now, packet.in_flight, packet.is_app_limited);
            }
        }
        if persistent {
            self.before = None;
            self.window = self.least();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::delivery::Delivery;
    use super::*;

    /// draft-ietf-ccwg-bbr, 5.5.11; spec, 9.4.
    #[test]
    fn probe_that_losses_have_ended_goes_on_if_they_were_none() {
        let at = |ms| Time::from_origin(Duration::from_millis(ms));
        for (is_marked, expected) in [(false, State::Up), (true, State::Down)] {
            let mut bbr = Bbr { state: State::Up, is_filled: true, ..Bbr::new(1000) };
            bbr.bound = Some(100_000);
            let lost =
                LostPacket { size: 1000, in_flight: 50_000, lost: 40_000, is_app_limited: false };
            bbr.on_loss(at(5), at(1), &[lost], false);
            assert_eq!(bbr.state, State::Down);
            assert!(bbr.bound < Some(100_000));
            if is_marked {
                bbr.on_ce(at(6), at(1), 50_000);
            }
            bbr.undo(at(7));
            assert_eq!((bbr.state, bbr.bound == Some(100_000)), (expected, !is_marked));
        }
    }

    #[test]
    fn small_requests_do_not_slow_down_what_comes_after_them() {
        let (mut bbr, mut delivery) = (Bbr::new(1000), Delivery::new());
        let rtt = Duration::from_millis(16);
        let initial = bbr.pace(rtt);
        let mut now = Time::from_origin(rtt);
        for _ in 0..20 {
            delivery.limit(0);
            let sent = delivery.on_sent(now, 0, 100);
            now = now + rtt;
            let mut newest = None;
            delivery.on_delivered(now, sent, &mut newest);
            let sample = delivery.sample(newest.unwrap());
            let measured = Some(rtt);
            bbr.on_ack(
                now,
                &Acked { bytes: 100, in_flight: 100, rtt, measured, sample, ..Acked::default() },
            );
            assert!(bbr.pace(rtt) >= initial, "{} of {initial}", bbr.pace(rtt));
            let lost = LostPacket { size: 64, in_flight: 600, lost: 64, is_app_limited: true };
            (0..8).for_each(|_| bbr.on_loss(now, now, &[lost], false));
        }
        assert_eq!(bbr.state, State::Startup);
    }
}
