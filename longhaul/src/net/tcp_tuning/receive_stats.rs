//! What the connections of a session receive, and whether losses hold that back.
//!
//! A sender sees its losses; a receiver sees segments behind gaps. A gap stays open for a round trip, until the sender
//! has heard of it and sent again, and all that arrives meanwhile is behind it. So the share of segments behind gaps
//! gives the number of losses, and that gives what a connection carries that halves its window at each ([`loss_model`]).
//! Where the connections receive about as much, more connections help.
//!
//! If they receive much less, demand holds them back and not losses; if much more, the sender's congestion control
//! withstands losses. More connections do not help either where the link is full: losses then come with a queue, unless
//! that has hardly any room. In that case, and where segments only overtake one another, twice as many connections do
//! not receive more, and there will be no more.

use std::time::Duration;

use host::tcp;
use proto::time::Time;
use tokio::net::TcpStream;

use super::loss_model;
use super::path::{combined_info, has_queue};

/// The time between samples, while data come in.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Between samples that are further apart than this nothing arrived.
const PAUSE: Duration = SAMPLE_INTERVAL.saturating_mul(2);

/// The least time that is judged: a target that withstands losses first has to detect them.
const INTERVAL_MIN: Duration = Duration::from_secs(10);

/// Losses longer ago say nothing about the link any more.
const INTERVAL_MAX: Duration = Duration::from_secs(120);

/// Fewer losses may be chance.
const LOSSES_MIN: f64 = 8.0;

/// Losses hold a receiver back from half of what the model says, which is its accuracy, ...
const HELD_BACK_MIN: f64 = 0.5;

/// ... to what CUBIC reaches on long links. More is received where losses do not count.
const HELD_BACK_MAX: f64 = 3.0;

/// The gain that twice as many connections must bring, or there were enough.
const GAIN_MIN: f64 = 1.25;

/// Follows what the connections of one session receive.
#[derive(Debug, Default)]
pub(crate) struct ReceiveStats {
    /// When the last sample was taken, and its counters.
    before: Time,
    had: tcp::Received,
    interval: Interval,
    /// How many there were when more were needed, and their rate.
    tried: (usize, f64),
}

/// What so many connections received in a time.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    connections: usize,
    time: Duration,
    received: tcp::Received,
    /// The least round trip of all.
    round_trip_least: Duration,
}

impl ReceiveStats {
    /// Samples the connections, if it is time. Returns how many there should be, if losses hold these back.
    pub(crate) fn sample<'s>(
        &mut self,
        now: Time,
        sockets: impl Iterator<Item = &'s TcpStream> + Clone,
    ) -> Option<usize> {
        if now < self.before + SAMPLE_INTERVAL {
            return None;
        }
        let info = combined_info(sockets.clone());
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let received = tcp::Received {
            bytes: since(info.received.bytes, self.had.bytes),
            segments: since(info.received.segments, self.had.segments),
            behind_gaps: since(info.received.behind_gaps, self.had.behind_gaps),
            ..info.received
        };
        let sample = Interval {
            connections: sockets.count(),
            time: now - self.before,
            received,
            round_trip_least: info.round_trip_least,
        };
        (self.before, self.had) = (now, info.received);
        self.judge(&sample)
    }

    fn judge(&mut self, sample: &Interval) -> Option<usize> {
        let queued = has_queue(sample.received.round_trip, sample.round_trip_least);
        let anew = sample.time > PAUSE || queued || self.interval.time > INTERVAL_MAX;
        if anew || sample.connections != self.interval.connections {
            self.interval = Interval::of(sample.connections);
            return None;
        }
        self.interval.add(sample);
        if self.interval.time < INTERVAL_MIN || self.interval.losses() < LOSSES_MIN {
            return None;
        }
        let seen = std::mem::replace(&mut self.interval, Interval::of(sample.connections));
        (seen.is_held_back() && self.rate_has_grown(&seen)).then_some(2 * seen.connections)
    }

    /// Whether the connections that were added last, if there are any, have brought more.
    fn rate_has_grown(&mut self, seen: &Interval) -> bool {
        let (connections, rate) = self.tried;
        if seen.connections > connections && seen.rate() < GAIN_MIN * rate {
            return false;
        }
        self.tried = (seen.connections, seen.rate());
        true
    }
}

impl Interval {
    fn of(connections: usize) -> Self {
        Self { connections, ..Self::default() }
    }

    fn add(&mut self, sample: &Self) {
        self.time += sample.time;
        self.received.bytes += sample.received.bytes;
        self.received.segments += sample.received.segments;
        self.received.behind_gaps += sample.received.behind_gaps;
        self.received.round_trip = self.received.round_trip.max(sample.received.round_trip);
    }

    /// Bytes per second.
    fn rate(&self) -> f64 {
        self.received.bytes as f64 / self.time.as_secs_f64()
    }

    /// How many segments a connection receives in a round trip.
    fn window(&self) -> f64 {
        let segments = self.received.segments as f64 / self.connections as f64;
        (segments * self.received.round_trip.as_secs_f64() / self.time.as_secs_f64()).max(1.0)
    }

    /// How many were lost, if each left a gap for a round trip.
    fn losses(&self) -> f64 {
        self.received.behind_gaps as f64 / self.window()
    }

    /// Whether each connection receives what the losses allow.
    fn is_held_back(&self) -> bool {
        let segments = self.received.segments as f64;
        let segment = self.received.bytes as f64 / segments;
        let one = loss_model::carried(self.losses() / segments, self.received.round_trip, segment);
        let share = self.rate() / (one * self.connections as f64);
        tracing::debug!(share, losses = self.losses(), "the sender lost packets");
        (HELD_BACK_MIN..HELD_BACK_MAX).contains(&share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SEGMENT: u64 = 1448;

    /// A second in which each connection received so many bytes, of whose segments so many per million were lost, and
    /// the gap of each stayed open for a round trip of 16 ms.
    fn second(connections: usize, each: u64, lost_per_million: u64) -> Interval {
        let segments = each / SEGMENT;
        let window = segments * 16 / 1000;
        let behind_gaps = segments * lost_per_million * window / 1_000_000;
        let all = connections as u64;
        let received = tcp::Received {
            bytes: all * each,
            segments: all * segments,
            behind_gaps: all * behind_gaps,
            round_trip: 17 * MS,
        };
        Interval { connections, time: SAMPLE_INTERVAL, received, round_trip_least: 16 * MS }
    }

    /// What four minutes of such seconds called for at last.
    fn called(stats: &mut ReceiveStats, seconds: Interval) -> Option<usize> {
        (0..240).fold(None, |called, _| stats.judge(&seconds).or(called))
    }

    fn at_length(seconds: Interval) -> Option<usize> {
        called(&mut ReceiveStats::default(), seconds)
    }

    #[test]
    fn connection_that_losses_hold_back_needs_another() {
        // Five in a thousand leave a connection 1.6 MB/s, one in a thousand 3.5 MB/s, one in ten thousand 11 MB/s.
        for (each, lost_per_million) in [(1_600_000, 5000), (3_500_000, 1000), (11_000_000, 100)] {
            assert_eq!(at_length(second(1, each, lost_per_million)), Some(2), "{each}");
        }
        assert_eq!(at_length(second(1, 11_000_000, 0)), None);
    }

    #[test]
    fn losses_count_after_the_time_that_a_target_needs_to_detect_them() {
        let mut stats = ReceiveStats::default();
        let lossy = second(1, 1_600_000, 5000);
        let called = (0..).find(|_| stats.judge(&lossy).is_some());
        assert!(called >= Some(10), "{called:?}");
        // From then on it sends as fast as the link goes.
        assert_eq!(at_length(second(1, 12_000_000, 5000)), None);
    }

    #[test]
    fn connections_double_as_long_as_that_brings_more() {
        let mut stats = ReceiveStats::default();
        for connections in [1, 2, 4] {
            let seconds = second(connections, 1_600_000, 5000);
            assert_eq!(called(&mut stats, seconds), Some(2 * connections));
        }
        // As much as four received.
        assert_eq!(called(&mut stats, second(8, 800_000, 20_000)), None, "the link is full");
        assert_eq!(called(&mut stats, second(8, 1_600_000, 5000)), Some(16), "it was busy");
    }

    #[test]
    fn queue_that_overflows_is_not_a_lossy_link() {
        let lossy = second(1, 1_600_000, 5000);
        let received = tcp::Received { round_trip: 25 * MS, ..lossy.received };
        let queued = Interval { received, ..lossy };
        assert_eq!(at_length(queued), None);
        let mut stats = ReceiveStats::default();
        let mut call = |seconds: &Interval| (0..4).find_map(|_| stats.judge(seconds));
        for _ in 0..9 {
            assert_eq!(call(&lossy), None);
            assert_eq!(call(&queued), None, "what was before does not count any more");
        }
    }

    #[test]
    fn receiver_that_asks_for_little_is_not_held_back() {
        // A link that loses one in ten thousand carries five times as much.
        assert_eq!(at_length(second(1, 2_000_000, 100)), None);
        let pause = Interval { time: 3 * SAMPLE_INTERVAL, ..second(1, 1_600_000, 5000) };
        assert_eq!(at_length(pause), None);
    }

    #[test]
    fn reordered_segments_need_no_further_connections() {
        // One in a hundred, on a full link of 100 Mbit/s; were each lost, losses would not hold it back either.
        let full = second(1, 12_000_000, 0);
        let received = tcp::Received { behind_gaps: full.received.segments / 100, ..full.received };
        let mut stats = ReceiveStats::default();
        let overtaken = |connections| Interval { connections, received, ..full };
        assert_eq!(called(&mut stats, overtaken(1)), Some(2), "it may be");
        assert_eq!(called(&mut stats, overtaken(2)), None, "it was not");
    }

    #[test]
    fn few_losses_may_be_chance() {
        let mut stats = ReceiveStats::default();
        let seldom = second(1, 11_000_000, 80);
        let called = (0..).find(|_| stats.judge(&seldom).is_some());
        assert!(called > Some(10), "{called:?}");
    }
}
