//! What the connections of a session receive, and whether losses hold it back.
//!
//! Who sends sees its losses; who receives sees segments behind gaps. One gap stays open for a round trip, until the
//! sender has heard of it and sent again, and all that comes meanwhile is behind it. So the share of segments behind
//! gaps says how many losses there were, and those what a connection carries that halves its window at each (the model
//! of `volume/layer/pipeline/model.rs`). Where the connections receive about as much, others help.
//!
//! Much less is not held back by losses, but by who asks. Much more is sent by an algorithm that withstands losses.
//! Nor do others help where the link is full: its losses come with a queue, unless that has hardly any room. Then, and
//! where segments only overtake one another, twice as many connections do not receive more, and it ends with that.

use std::time::Duration;

use host::tcp;
use proto::time::Time;
use tokio::net::TcpStream;
use volume::layer::pipeline::model;

use crate::losses;

/// How often the connections are looked at, while something comes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Between looks that are further apart than this nothing came.
const PAUSE: Duration = LOOK_EVERY.saturating_mul(2);

/// What is judged lasts so long at least: a target that withstands losses first has to find them.
const STRETCH_MIN: Duration = Duration::from_secs(10);

/// Losses longer ago say nothing of the link any more.
const STRETCH_MAX: Duration = Duration::from_secs(120);

/// Fewer losses may be chance.
const LOSSES_MIN: f64 = 8.0;

/// Losses hold back who receives from half of what the model says, which is about as well as it is known, ...
const HELD_LEAST: f64 = 0.5;

/// ... to what CUBIC makes of it on long links. More is received where losses do not count.
const HELD_MOST: f64 = 3.0;

/// Twice as many connections must bring so much, or there were enough.
const GAIN_MIN: f64 = 1.25;

/// Follows what the connections of one session receive.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// When they were looked at last, and what had come by then.
    before: Time,
    had: tcp::Received,
    stretch: Stretch,
    /// How many there were when others were called for, and what they received.
    tried: (usize, f64),
}

/// What came by so many connections in a time.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    connections: usize,
    time: Duration,
    came: tcp::Received,
    /// The least round trip of all.
    round_trip_least: Duration,
}

impl Received {
    /// Looks at the connections, if it is time. Gives how many there should be, if losses hold these back.
    pub(super) fn look<'s>(
        &mut self,
        now: Time,
        sockets: impl Iterator<Item = &'s TcpStream> + Clone,
    ) -> Option<usize> {
        if now < self.before + LOOK_EVERY {
            return None;
        }
        let info = losses::together(sockets.clone());
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let came = tcp::Received {
            bytes: since(info.received.bytes, self.had.bytes),
            segments: since(info.received.segments, self.had.segments),
            behind_gaps: since(info.received.behind_gaps, self.had.behind_gaps),
            ..info.received
        };
        let look = Stretch {
            connections: sockets.count(),
            time: now - self.before,
            came,
            round_trip_least: info.round_trip_least,
        };
        (self.before, self.had) = (now, info.received);
        self.judge(&look)
    }

    fn judge(&mut self, look: &Stretch) -> Option<usize> {
        let queued = losses::has_queue(look.came.round_trip, look.round_trip_least);
        let anew = look.time > PAUSE || queued || self.stretch.time > STRETCH_MAX;
        if anew || look.connections != self.stretch.connections {
            self.stretch = Stretch::of(look.connections);
            return None;
        }
        self.stretch.add(look);
        if self.stretch.time < STRETCH_MIN || self.stretch.losses() < LOSSES_MIN {
            return None;
        }
        let seen = std::mem::replace(&mut self.stretch, Stretch::of(look.connections));
        (seen.is_held_back() && self.brought_more(&seen)).then_some(2 * seen.connections)
    }

    /// Whether the connections that were called for last, if they are there, have brought more.
    fn brought_more(&mut self, seen: &Stretch) -> bool {
        let (connections, rate) = self.tried;
        if seen.connections > connections && seen.rate() < GAIN_MIN * rate {
            return false;
        }
        self.tried = (seen.connections, seen.rate());
        true
    }
}

impl Stretch {
    fn of(connections: usize) -> Self {
        Self { connections, ..Self::default() }
    }

    fn add(&mut self, look: &Self) {
        self.time += look.time;
        self.came.bytes += look.came.bytes;
        self.came.segments += look.came.segments;
        self.came.behind_gaps += look.came.behind_gaps;
        self.came.round_trip = self.came.round_trip.max(look.came.round_trip);
    }

    /// Bytes per second.
    fn rate(&self) -> f64 {
        self.came.bytes as f64 / self.time.as_secs_f64()
    }

    /// How many segments a connection receives in a round trip.
    fn window(&self) -> f64 {
        let segments = self.came.segments as f64 / self.connections as f64;
        (segments * self.came.round_trip.as_secs_f64() / self.time.as_secs_f64()).max(1.0)
    }

    /// How many were lost, if each left a gap for a round trip.
    fn losses(&self) -> f64 {
        self.came.behind_gaps as f64 / self.window()
    }

    /// Whether each connection receives what losses leave of it.
    fn is_held_back(&self) -> bool {
        let segments = self.came.segments as f64;
        let segment = self.came.bytes as f64 / segments;
        let one = model::carried(self.losses() / segments, self.came.round_trip, segment);
        let share = self.rate() / (one * self.connections as f64);
        tracing::debug!(share, losses = self.losses(), "losses were received");
        (HELD_LEAST..HELD_MOST).contains(&share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SEGMENT: u64 = 1448;

    /// A second in which each connection received so many bytes, of whose segments so many per million were lost, and
    /// the gap of each stayed open for a round trip of 16 ms.
    fn second(connections: usize, each: u64, lost_per_million: u64) -> Stretch {
        let segments = each / SEGMENT;
        let window = segments * 16 / 1000;
        let behind_gaps = segments * lost_per_million * window / 1_000_000;
        let all = connections as u64;
        let came = tcp::Received {
            bytes: all * each,
            segments: all * segments,
            behind_gaps: all * behind_gaps,
            round_trip: 17 * MS,
        };
        Stretch { connections, time: LOOK_EVERY, came, round_trip_least: 16 * MS }
    }

    /// What four minutes of such seconds called for at last.
    fn called(received: &mut Received, seconds: Stretch) -> Option<usize> {
        (0..240).fold(None, |called, _| received.judge(&seconds).or(called))
    }

    fn at_length(seconds: Stretch) -> Option<usize> {
        called(&mut Received::default(), seconds)
    }

    #[test]
    fn a_connection_that_losses_hold_back_calls_for_another() {
        // Five in a thousand leave a connection 1.6 MB/s, one in a thousand 3.5 MB/s, one in ten thousand 11 MB/s.
        for (each, lost_per_million) in [(1_600_000, 5000), (3_500_000, 1000), (11_000_000, 100)] {
            assert_eq!(at_length(second(1, each, lost_per_million)), Some(2), "{each}");
        }
        assert_eq!(at_length(second(1, 11_000_000, 0)), None);
    }

    #[test]
    fn it_takes_longer_than_a_target_needs_to_withstand_them() {
        let mut received = Received::default();
        let lossy = second(1, 1_600_000, 5000);
        let called = (0..).find(|_| received.judge(&lossy).is_some());
        assert!(called >= Some(10), "{called:?}");
        // From then on it sends as fast as the link goes.
        assert_eq!(at_length(second(1, 12_000_000, 5000)), None);
    }

    #[test]
    fn there_are_more_as_long_as_they_bring_more() {
        let mut received = Received::default();
        for connections in [1, 2, 4] {
            let seconds = second(connections, 1_600_000, 5000);
            assert_eq!(called(&mut received, seconds), Some(2 * connections));
        }
        // As much as four received.
        assert_eq!(called(&mut received, second(8, 800_000, 20_000)), None, "the link is full");
        assert_eq!(called(&mut received, second(8, 1_600_000, 5000)), Some(16), "it was busy");
    }

    #[test]
    fn a_queue_that_overflows_is_no_link_that_loses() {
        let lossy = second(1, 1_600_000, 5000);
        let came = tcp::Received { round_trip: 25 * MS, ..lossy.came };
        let queued = Stretch { came, ..lossy };
        assert_eq!(at_length(queued), None);
        let mut received = Received::default();
        let mut call = |seconds: &Stretch| (0..4).find_map(|_| received.judge(seconds));
        for _ in 0..9 {
            assert_eq!(call(&lossy), None);
            assert_eq!(call(&queued), None, "what was before does not count any more");
        }
    }

    #[test]
    fn who_asks_for_little_is_not_held_back() {
        // A link that loses one in ten thousand carries five times as much.
        assert_eq!(at_length(second(1, 2_000_000, 100)), None);
        let pause = Stretch { time: 3 * LOOK_EVERY, ..second(1, 1_600_000, 5000) };
        assert_eq!(at_length(pause), None);
    }

    #[test]
    fn segments_that_overtake_others_are_few_behind_each_gap() {
        // One in a hundred, on a full link of 100 Mbit/s; were each lost, losses would not hold it back either.
        let full = second(1, 12_000_000, 0);
        let came = tcp::Received { behind_gaps: full.came.segments / 100, ..full.came };
        let mut received = Received::default();
        let overtaken = |connections| Stretch { connections, came, ..full };
        assert_eq!(called(&mut received, overtaken(1)), Some(2), "it may be");
        assert_eq!(called(&mut received, overtaken(2)), None, "it was not");
    }

    #[test]
    fn few_losses_may_be_chance() {
        let mut received = Received::default();
        let seldom = second(1, 11_000_000, 80);
        let called = (0..).find(|_| received.judge(&seldom).is_some());
        assert!(called > Some(10), "{called:?}");
    }
}
