//! What the kernel knows of the path of a session's connections.

use std::time::Duration;

use host::tcp::{self, Info, Received};
use tokio::net::TcpStream;

/// A round trip longer than the least by this factor has a queue in it.
const QUEUED: f64 = 1.2;

/// From here on a link is long. On a short one nothing waits in the kernel for long, and a target that gives it less
/// at a time is only woken more often.
pub(super) const LONG: Duration = Duration::from_millis(1);

/// Whether something on the path has a queue: losses then show that the link is full, and pass.
pub(super) fn has_queue(round_trip: Duration, least: Duration) -> bool {
    round_trip > least.mul_f64(QUEUED)
}

/// What the kernel knows of several connections together: the longest round trip, and the sums of the counters.
pub(crate) fn combined_info<'s>(sockets: impl Iterator<Item = &'s TcpStream>) -> Info {
    let infos = sockets.filter_map(|socket| tcp::info(socket).ok());
    let combined = infos.reduce(|all, one| Info {
        round_trip: all.round_trip.max(one.round_trip),
        round_trip_least: all.round_trip_least.min(one.round_trip_least),
        segment: all.segment.max(one.segment),
        delivery_rate: all.delivery_rate + one.delivery_rate,
        starved: all.starved || one.starved,
        window_limited: all.window_limited.max(one.window_limited),
        unheard: all.unheard.max(one.unheard),
        acked: all.acked + one.acked,
        segments: all.segments + one.segments,
        lost: all.lost + one.lost,
        received: Received {
            bytes: all.received.bytes + one.received.bytes,
            segments: all.received.segments + one.received.segments,
            behind_gaps: all.received.behind_gaps + one.received.behind_gaps,
            round_trip: all.received.round_trip.max(one.received.round_trip),
        },
    });
    combined.unwrap_or_default()
}

/// A sample, and when it was taken.
pub(crate) type Sample = (Duration, Info);

/// Which way data flow.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flow {
    /// From the target: reads.
    Received,
    /// To the target: writes.
    Sent,
}

/// What held connections back, as far as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Constraint {
    /// The link, which was full at these bytes per second.
    Link(f64),
    /// The target's TCP window.
    Window,
    /// Nothing that the kernel sees.
    Unknown,
}

/// What held the connections back while these samples were taken.
pub(crate) fn constraint(flow: Flow, seen: &[Sample]) -> Constraint {
    let ([(start, first), .., (end, last)], Some(rate)) = (seen, rate(flow, seen)) else {
        return Constraint::Unknown;
    };
    let full = seen.iter().filter(|(_, info)| is_full(flow, info)).count();
    let waited = last.window_limited.saturating_sub(first.window_limited);
    if 2 * waited > *end - *start {
        Constraint::Window
    } else if 2 * full > seen.len() {
        Constraint::Link(rate)
    } else {
        Constraint::Unknown
    }
}

/// The median rate between two samples, in bytes per second. At the end of a run of writes the link is idle for a round
/// trip.
fn rate(flow: Flow, seen: &[Sample]) -> Option<f64> {
    let moved = |info: &Info| match flow {
        Flow::Received => info.received.bytes,
        Flow::Sent => info.acked,
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
fn is_full(flow: Flow, info: &Info) -> bool {
    let least = info.round_trip_least;
    least >= LONG
        && match flow {
            Flow::Received => has_queue(info.received.round_trip, least),
            Flow::Sent => has_queue(info.round_trip, least) || !info.starved,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Nothing to send most of the time, and no queue on a path of 16 ms.
    fn calm() -> Info {
        let mut info = Info { round_trip_least: 16 * MS, starved: true, ..Info::default() };
        (info.round_trip, info.received.round_trip) = (17 * MS, 17 * MS);
        info
    }

    /// A megabyte came and two went every tenth of a second, but for the last.
    fn samples(seen: &[Info]) -> Vec<Sample> {
        let sample = |(at, info): (usize, &Info)| {
            let number = at.min(seen.len() - 2) as u64;
            let received = Received { bytes: number * 1_000_000, ..info.received };
            (at as u32 * 100 * MS, Info { received, acked: number * 2_000_000, ..*info })
        };
        seen.iter().enumerate().map(sample).collect()
    }

    fn constrained_by(flow: Flow, seen: &[Info]) -> Constraint {
        constraint(flow, &samples(seen))
    }

    #[test]
    fn queue_shows_that_the_link_is_full() {
        let mut read = calm();
        read.received.round_trip = 25 * MS;
        let written = Info { round_trip: 25 * MS, ..calm() };
        assert_eq!(
            constrained_by(Flow::Received, &[calm(), read, read, read]),
            Constraint::Link(1e7)
        );
        assert_eq!(constrained_by(Flow::Sent, &[written; 4]), Constraint::Link(2e7));
        assert_eq!(
            constrained_by(Flow::Received, &[calm(), calm(), read, read]),
            Constraint::Unknown,
            "a burst"
        );
        assert_eq!(
            constrained_by(Flow::Received, &[written; 4]),
            Constraint::Unknown,
            "what was written before"
        );
        assert_eq!(constrained_by(Flow::Sent, &[read; 4]), Constraint::Unknown);
        let short = Info { round_trip_least: MS / 10, ..written };
        assert_eq!(
            constrained_by(Flow::Sent, &[short; 4]),
            Constraint::Unknown,
            "the processors may be"
        );
        assert_eq!(constraint(Flow::Received, &[]), Constraint::Unknown);
        assert_eq!(constraint(Flow::Received, &[(MS, read)]), Constraint::Unknown);
    }

    #[test]
    fn paced_sender_that_never_starves_fills_the_link() {
        let paced = Info { starved: false, ..calm() };
        assert_eq!(constrained_by(Flow::Sent, &[paced; 4]), Constraint::Link(2e7));
        assert_eq!(
            constrained_by(Flow::Received, &[paced; 4]),
            Constraint::Unknown,
            "those are commands"
        );
    }

    #[test]
    fn window_is_the_constraint_of_a_sender_that_waits_for_it_mostly() {
        let waited = |milliseconds| {
            let paced = Info { starved: false, ..calm() };
            Info { window_limited: milliseconds * MS, ..paced }
        };
        let by_wait = |seen: [u32; 3]| constrained_by(Flow::Sent, &seen.map(waited));
        assert_eq!(by_wait([100, 150, 220]), Constraint::Window);
        assert_eq!(by_wait([100, 150, 180]), Constraint::Link(2e7));
    }
}
