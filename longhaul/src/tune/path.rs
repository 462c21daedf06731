//! What the kernel knows of the way to a target, while something is measured that goes there.

use std::time::Duration;

use host::tcp::Info;

use super::Verb;
use crate::losses::{LONG, has_queue};

/// What the kernel knew, and when.
pub(super) type Look = (Duration, Info);

/// What held the connections back, as far as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Held {
    /// The link, which had more to carry than these bytes per second.
    Link(f64),
    /// The target's TCP window, in which what was to be sent waited for room.
    Window,
    /// Nothing that can be seen.
    Unseen,
}

/// What held them back while they were looked at.
pub(super) fn held(verb: Verb, seen: &[Look]) -> Held {
    let ([(start, first), .., (end, last)], Some(rate)) = (seen, rate(verb, seen)) else {
        return Held::Unseen;
    };
    let full = seen.iter().filter(|(_, info)| is_full(verb, info)).count();
    let waited = last.window_limited.saturating_sub(first.window_limited);
    if 2 * waited > *end - *start {
        Held::Window
    } else if 2 * full > seen.len() {
        Held::Link(rate)
    } else {
        Held::Unseen
    }
}

/// What they moved between two looks, in bytes per second, half of the time. At the end of a run of writes the link is
/// idle for a round trip.
fn rate(verb: Verb, seen: &[Look]) -> Option<f64> {
    let moved = |info: &Info| match verb {
        Verb::Read => info.received.bytes,
        Verb::Write => info.acked,
    };
    let rates = seen.windows(2).filter_map(|pair| {
        let [(start, before), (end, after)] = pair else { return None };
        let bytes = moved(after).saturating_sub(moved(before));
        Some(bytes as f64 / (*end - *start).as_secs_f64())
    });
    let mut rates: Vec<f64> = rates.collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

/// A link that is full has a queue, which makes the round trip longer, unless an algorithm such as BBR keeps what it
/// sends from queueing: that has something to send all the time, which only the sender sees. On a short link
/// processors make as much of a difference as queues.
fn is_full(verb: Verb, info: &Info) -> bool {
    let least = info.round_trip_least;
    least >= LONG
        && match verb {
            Verb::Read => has_queue(info.received.round_trip, least),
            Verb::Write => has_queue(info.round_trip, least) || !info.starved,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Nothing to send most of the time, and no queue on a way of 16 ms.
    fn calm() -> Info {
        let mut info = Info { round_trip_least: 16 * MS, starved: true, ..Info::default() };
        (info.round_trip, info.received.round_trip) = (17 * MS, 17 * MS);
        info
    }

    /// A megabyte came and two went every tenth of a second, but for the last.
    fn looks(seen: &[Info]) -> Vec<Look> {
        let look = |(at, info): (usize, &Info)| {
            let number = at.min(seen.len() - 2) as u64;
            let received = host::tcp::Received { bytes: number * 1_000_000, ..info.received };
            (at as u32 * 100 * MS, Info { received, acked: number * 2_000_000, ..*info })
        };
        seen.iter().enumerate().map(look).collect()
    }

    fn held_by(verb: Verb, seen: &[Info]) -> Held {
        held(verb, &looks(seen))
    }

    #[test]
    fn a_queue_shows_that_the_link_is_full() {
        let mut read = calm();
        read.received.round_trip = 25 * MS;
        let written = Info { round_trip: 25 * MS, ..calm() };
        assert_eq!(held_by(Verb::Read, &[calm(), read, read, read]), Held::Link(1e7));
        assert_eq!(held_by(Verb::Write, &[written; 4]), Held::Link(2e7));
        assert_eq!(held_by(Verb::Read, &[calm(), calm(), read, read]), Held::Unseen, "a burst");
        assert_eq!(held_by(Verb::Read, &[written; 4]), Held::Unseen, "what was written before");
        assert_eq!(held_by(Verb::Write, &[read; 4]), Held::Unseen);
        let short = Info { round_trip_least: MS / 10, ..written };
        assert_eq!(held_by(Verb::Write, &[short; 4]), Held::Unseen, "the processors may be");
        assert_eq!(held(Verb::Read, &[]), Held::Unseen);
        assert_eq!(held(Verb::Read, &[(MS, read)]), Held::Unseen);
    }

    #[test]
    fn who_sends_without_a_queue_has_always_something_to_send() {
        let paced = Info { starved: false, ..calm() };
        assert_eq!(held_by(Verb::Write, &[paced; 4]), Held::Link(2e7));
        assert_eq!(held_by(Verb::Read, &[paced; 4]), Held::Unseen, "those are commands");
    }

    #[test]
    fn the_window_holds_back_who_waits_for_it_most_of_the_time() {
        let waited = |milliseconds| {
            let paced = Info { starved: false, ..calm() };
            Info { window_limited: milliseconds * MS, ..paced }
        };
        let held_by = |seen: [u32; 3]| held_by(Verb::Write, &seen.map(waited));
        assert_eq!(held_by([100, 150, 220]), Held::Window);
        assert_eq!(held_by([100, 150, 180]), Held::Link(2e7));
    }
}
