//! What the connection beneath is like, measured by what passes through it anyway.
//!
//! Two numbers say how much must be in flight: the least time a request takes, and the highest rate
//! at which bytes come back. The first shows only while nothing queues, the second only while enough
//! is in flight, so each is kept by a filter: a minimum and a maximum, both over a limited past, so
//! that a link that changes is noticed either way. This is the idea of BBR, applied to requests.

use std::time::Duration;

/// While the rate still grows, this many times the product of rate and latency is put in flight: it nearly doubles
/// every round trip, as what a new TCP connection may send does. When the link turns out to be full there is no
/// more in flight than it holds twice, for which the queue of a router that holds as much as the link has room.
/// More than that is lost, and all of it is sent again in the middle of everything else ...
const GAIN_GROWING: f64 = 1.9;

/// ... this many times when more is tried although it was full ...
const GAIN_TRIED: f64 = 1.5;

/// ... and this many times once it is: enough to notice a link that became faster and to ride
/// over jitter, and a queue beneath of a quarter round trip, which is what a read has to wait for.
const GAIN_STEADY: f64 = 1.25;

/// While both directions are full, requests and answers wait in the queues that the other's data make, and come out of
/// them many at a time. What is issued at once in their place makes the next queue, so that each direction is idle for a part
/// of the time although enough is in flight. What is issued at even intervals makes none: at slightly less than the rate
/// that was measured, for the queue that there is ...
const PACE_STEADY: f64 = 0.98;

/// ... at more while more is tried ...
const PACE_TRIED: f64 = 1.25;

/// ... for as long afterwards at as much less, as what was tried may all be in the queue ...
const PACE_AFTERWARDS: f64 = 0.75;

/// ... and with room in flight for a queue that is as long as the link, as BBR has it: it is the intervals that keep it short.
const GAIN_PACED: f64 = 2.0;

/// A rate that grew by less than this factor did not grow ...
const GROWTH: f64 = 1.15;

/// ... and after so many rounds without growth the link is full.
const ROUNDS_FULL: u32 = 3;

/// After so many rounds with a full link more is tried again, for two: the first fills the link, the
/// second shows what came of it. Where requests meet queues that are not theirs, such as those of the
/// other direction, less than the link takes would otherwise look like all it takes, for ever.
const ROUNDS_STEADY: u32 = 8;
const ROUNDS_TRIED: u32 = 2;

/// A maximum is remembered for at least this many rounds, and at most twice as many: longer than a
/// dip, and a link that became slower is followed within some ten round trips.
const ROUNDS_REMEMBERED: u32 = 4;

/// A minimum that nothing confirmed for this long may be that of a path that is no more. BBR takes
/// the same ten seconds; measuring anew leaves the link idle for up to two round trips ...
const LATENCY_LIFE: Duration = Duration::from_secs(10);

/// ... which on a link by satellite would be a ninth of ten seconds: so it is not done more often than once in so many.
const LATENCY_LIFE_ROUNDS: u32 = 80;

/// A link that holds less is slow: two requests keep it busy, and what seems to be its latency is often its queue.
const LATENCY_LIFE_PRODUCT: u64 = 1 << 20;

/// How long a latency of so much is believed, of a link that holds `product` bytes.
fn latency_life(least: Duration, product: Option<u64>) -> Duration {
    match product {
        Some(LATENCY_LIFE_PRODUCT..) => LATENCY_LIFE.max(least * LATENCY_LIFE_ROUNDS),
        _ => LATENCY_LIFE,
    }
}

/// To see the latency without a queue, only so many requests are left in flight, and the least
/// latency of so many is believed. It must not depend on what was measured before: that may be the
/// queue of a link that has become slower.
pub(super) const PROBE_REQUESTS: usize = 2;

/// Remembers what was true when a request was issued.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::layer) struct Stamp {
    at: Duration,
    delivered: u64,
    delivered_at: Duration,
    returned_issued_at: Duration,
    limited: bool,
    /// Hardly anything else was in flight, so it met no queue.
    alone: bool,
    /// How many requests were issued before it.
    number: u64,
}

/// Measures one direction of a connection.
pub(super) struct RateMeter {
    /// Longer requests take two round trips.
    unsolicited: u64,
    /// How many those take that came back lately.
    round_trips: Peak,
    requests_in_flight: usize,
    /// How many were issued.
    requests: u64,
    delivered: u64,
    delivered_at: Duration,
    /// When that was issued that came back, the latest.
    returned_issued_at: Duration,
    /// A round ends when a request that was issued after the last one ended comes back.
    round_ends: u64,
    rate: Peak,
    /// The least time of one round trip, and when it was seen.
    latency: Option<(Duration, Duration)>,
    growth: Growth,
    probe: Option<Probe>,
    limited: bool,
    /// Whether as much as could be was in flight in the last round, and in this one so far.
    was_busy: bool,
    busy: bool,
    paced: bool,
    /// The other direction has hardly anything in flight either, or is not used much.
    is_opposite_quiet: bool,
}

/// A maximum over the last rounds.
#[derive(Default)]
struct Peak {
    recent: f64,
    before: f64,
    rounds: u32,
}

impl Peak {
    const fn value(&self) -> f64 {
        self.recent.max(self.before)
    }

    const fn sample(&mut self, value: f64) {
        self.recent = self.recent.max(value);
    }

    const fn end_round(&mut self) {
        self.rounds += 1;
        if self.rounds == ROUNDS_REMEMBERED {
            *self = Self { recent: 0.0, before: self.recent, rounds: 0 };
        }
    }
}

/// Whether the rate still follows what is put in flight.
#[derive(Default)]
struct Growth {
    reference: f64,
    /// Rounds without growth.
    stalled: u32,
    /// The link was full, and more is only tried.
    tried: bool,
}

impl Growth {
    fn end_round(&mut self, rate: f64) {
        self.stalled += 1;
        if rate > self.reference * GROWTH {
            (self.reference, self.stalled, self.tried) = (rate, 0, false);
        } else if self.stalled == ROUNDS_FULL + ROUNDS_STEADY {
            self.stalled = ROUNDS_FULL - ROUNDS_TRIED;
            self.tried = true;
        }
        // A link that became slower may become faster again, and is then to be followed.
        self.reference = self.reference.min(rate);
    }

    const fn is_full(&self) -> bool {
        self.stalled >= ROUNDS_FULL
    }

    const fn phase(&self) -> Phase {
        match self.is_full() {
            false if self.tried => Phase::Trying,
            false => Phase::Growing,
            true if self.tried && self.stalled < ROUNDS_FULL + ROUNDS_TRIED => Phase::Tried,
            true => Phase::Full,
        }
    }
}

/// What is known of how much the link takes.
enum Phase {
    /// Nothing yet: the rate follows what is put in flight.
    Growing,
    /// The link was full, and more is tried.
    Trying,
    /// More was tried a moment ago, in vain.
    Tried,
    /// The link is full.
    Full,
}

/// A look at the latency without a queue.
enum Probe {
    /// Less is issued until the queue beneath must be gone: that of so many requests, with numbers below `before`.
    Draining { before: u64, left: usize },
    /// Requests issued from `since` on met no queue.
    Measuring { since: Duration, samples: usize, least: Duration },
}

impl Default for RateMeter {
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

impl RateMeter {
    /// Nothing is known, but that requests of more than `unsolicited` bytes take two round trips.
    pub(super) fn new(unsolicited: u64) -> Self {
        Self {
            unsolicited,
            round_trips: Peak::default(),
            requests_in_flight: 0,
            requests: 0,
            delivered: 0,
            delivered_at: Duration::ZERO,
            returned_issued_at: Duration::ZERO,
            round_ends: 0,
            rate: Peak::default(),
            latency: None,
            growth: Growth::default(),
            probe: None,
            limited: false,
            was_busy: false,
            busy: false,
            paced: false,
            is_opposite_quiet: true,
        }
    }

    /// A request leaves; `limited` if more could be in flight but nobody asked for it.
    pub(super) fn issued(&mut self, limited: bool, now: Duration) -> Stamp {
        if self.requests_in_flight == 0 {
            // The time in which nothing was asked for says nothing of the link.
            (self.delivered_at, self.returned_issued_at) = (now, now);
        }
        if matches!(self.probe, Some(Probe::Draining { .. }))
            && !self.is_draining()
            && self.is_opposite_quiet
        {
            self.probe = Some(Probe::Measuring { since: now, samples: 0, least: Duration::MAX });
        }
        let (alone, number) = (self.is_alone(), self.requests);
        self.requests_in_flight += 1;
        self.requests += 1;
        self.limited = limited;
        self.busy |= !limited;
        Stamp {
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            returned_issued_at: self.returned_issued_at,
            limited,
            alone,
            number,
        }
    }

    /// Whether what is issued now meets no queue.
    const fn is_alone(&self) -> bool {
        self.requests_in_flight < PROBE_REQUESTS && self.is_opposite_quiet
    }

    /// A request came back. A failed one says nothing of the link. True if what follows from the
    /// measurements may have changed.
    pub(super) fn returned(&mut self, stamp: Stamp, bytes: u64, ok: bool, now: Duration) -> bool {
        self.requests_in_flight -= 1;
        if let Some(Probe::Draining { before, left }) = &mut self.probe
            && stamp.number < *before
        {
            *left -= 1;
        }
        if !ok || bytes == 0 {
            return false;
        }
        self.delivered += bytes;
        self.delivered_at = now;
        self.returned_issued_at = self.returned_issued_at.max(stamp.at);
        let round_trips = if bytes > self.unsolicited { 2 } else { 1 };
        self.round_trips.sample(round_trips.into());
        let latency_changed = self.latency_seen(stamp, round_trips, now);
        // What returns within a round trip is told at once while the link is not full: told at its
        // end, it would take two round trips to double what is in flight.
        let grew = self.rate_seen(stamp, now) && !self.growth.is_full();
        let round = stamp.delivered >= self.round_ends;
        if round {
            self.round_ends = self.delivered;
            self.end_round(stamp.limited, now);
        }
        latency_changed || grew || round
    }

    /// A request that is not counted, a caller's own read, took this long.
    pub(super) fn latency_beside(&mut self, issued: Duration, now: Duration) {
        let stamp = Stamp { at: issued, alone: self.is_alone(), ..Stamp::default() };
        self.latency_seen(stamp, 1, now);
    }

    fn latency_seen(&mut self, stamp: Stamp, round_trips: u32, now: Duration) -> bool {
        let sample = now.saturating_sub(stamp.at) / round_trips;
        if let Some(Probe::Measuring { since, samples, least }) = &mut self.probe
            && stamp.at >= *since
        {
            *samples += 1;
            *least = sample.min(*least);
            if *samples == PROBE_REQUESTS {
                self.latency = Some((*least, now));
                self.probe = None;
                return true;
            }
        }
        let product = self.product();
        match self.latency {
            Some((least, seen)) if sample > least => {
                let life = latency_life(least, product);
                let outlived = now.saturating_sub(seen) > life && stamp.alone;
                if outlived {
                    self.latency = Some((sample, now));
                }
                outlived
            }
            known => {
                self.latency = Some((sample, now));
                known.is_none_or(|(least, _)| sample < least)
            }
        }
    }

    /// Takes a sample of the rate; whether it is the highest so far.
    fn rate_seen(&mut self, stamp: Stamp, now: Duration) -> bool {
        let returned = now.saturating_sub(stamp.delivered_at);
        // Answers that have queued come back faster than any link takes what they answer: so the time counts in which
        // that was issued, if it is longer.
        let issued =
            if self.paced { stamp.at.saturating_sub(stamp.returned_issued_at) } else { returned };
        let elapsed = returned.max(issued).as_secs_f64();
        if elapsed <= 0.0 {
            return false;
        }
        let rate = (self.delivered - stamp.delivered) as f64 / elapsed;
        let highest = rate > self.rate.value();
        // What was not asked for was not delivered: such a rate is a lower bound.
        if !stamp.limited || highest {
            self.rate.sample(rate);
        }
        highest
    }

    fn end_round(&mut self, limited: bool, now: Duration) {
        self.was_busy = std::mem::take(&mut self.busy);
        if limited {
            return;
        }
        let probing = self.probe.is_some();
        if !probing {
            self.growth.end_round(self.rate.value());
        }
        self.rate.end_round();
        self.round_trips.end_round();
        let aged = self.latency.is_some_and(|(least, seen)| {
            now.saturating_sub(seen) > latency_life(least, self.product())
        });
        if aged && self.growth.is_full() {
            self.probe();
        }
    }

    /// From now on less is issued, until the latency without a queue is known.
    pub(super) fn probe(&mut self) {
        let (before, left) = (self.requests, self.requests_in_flight);
        self.probe.get_or_insert(Probe::Draining { before, left });
    }

    /// Whether it makes no queue.
    pub(super) const fn is_quiet(&self) -> bool {
        self.requests_in_flight < PROBE_REQUESTS || self.is_probing() && !self.is_draining()
    }

    /// Whether the queue is still there that was when a look at the latency began.
    pub(super) const fn is_draining(&self) -> bool {
        matches!(self.probe, Some(Probe::Draining { left: PROBE_REQUESTS.., .. }))
    }

    /// Whether what is in flight in the other direction makes no queue.
    pub(super) const fn set_opposite_quiet(&mut self, is_quiet: bool) {
        self.is_opposite_quiet = is_quiet;
    }

    /// Bytes per second, if any were measured.
    pub(super) fn rate(&self) -> Option<f64> {
        Some(self.rate.value()).filter(|rate| *rate > 0.0)
    }

    /// The least time a request takes, of those that take the most round trips.
    pub(super) fn latency(&self) -> Option<Duration> {
        self.latency.map(|(least, _)| least.mul_f64(self.round_trips.value().max(1.0)))
    }

    /// Whether fewer requests were made than could have been.
    pub(super) const fn is_limited(&self) -> bool {
        self.limited
    }

    /// Whether all of the link is wanted.
    pub(super) const fn is_busy(&self) -> bool {
        self.requests_in_flight > 0 && (self.was_busy || self.busy)
    }

    /// From now on requests are issued at even intervals, or as they come.
    pub(super) const fn set_paced(&mut self, paced: bool) {
        self.paced = paced;
    }

    /// Whether they are issued at even intervals.
    pub(super) const fn is_paced(&self) -> bool {
        self.paced
    }

    /// How many bytes a second may be issued, if that is bounded.
    pub(super) fn pace(&self) -> Option<f64> {
        if !self.paced {
            return None;
        }
        let factor = match self.growth.phase() {
            Phase::Growing => GAIN_GROWING,
            Phase::Trying => PACE_TRIED,
            Phase::Tried => PACE_AFTERWARDS,
            Phase::Full => PACE_STEADY,
        };
        self.rate().map(|rate| rate * factor)
    }

    /// Whether nobody knows yet how much the link takes.
    pub(super) const fn is_growing(&self) -> bool {
        matches!(self.growth.phase(), Phase::Growing)
    }

    /// What keeps the connection busy, in bytes.
    pub(super) fn product(&self) -> Option<u64> {
        Some((self.rate()? * self.latency()?.as_secs_f64()) as u64)
    }

    /// Whether less is to be in flight for a moment, to see the latency without a queue.
    pub(super) const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// What to put in flight, in bytes.
    pub(super) fn wanted(&self) -> Option<u64> {
        let gain = match self.growth.phase() {
            Phase::Growing => GAIN_GROWING,
            _ if self.paced => GAIN_PACED,
            Phase::Trying => GAIN_TRIED,
            Phase::Tried | Phase::Full => GAIN_STEADY,
        };
        self.product().map(|product| (product as f64 * gain) as u64)
    }
}

#[cfg(test)]
mod tests;
