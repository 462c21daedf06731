//! What the connections of a session lose of what they send, and what both ends do about it.
//!
//! Whoever sends decides how: an initiator for writes, a target for reads. So each looks at its own end of the
//! connections, ten times a second while something comes, and where a connection is held below what the link
//! carries by its losses it is controlled by an algorithm that follows the rate at which data arrive instead.

use std::collections::VecDeque;
use std::time::Duration;

use host::tcp::{self, Info, Received};
use proto::time::Time;
use tokio::net::TcpStream;
use volume::layer::pipeline::model;

/// How often the connections are looked at, while something comes, ...
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// ... but not more often than in so many round trips: each look would find losses of one and the same overflow.
const ROUND_TRIPS: u32 = 4;

/// A look that finds fewer segments waits for more, ...
const SEGMENTS_LEAST: u64 = 100;

/// ... and fewer than these in all tell nothing of a loss of one in a thousand.
const SEGMENTS_MIN: u64 = 1000;

/// So many looks must find losses: a queue that overflowed once is not a link that loses.
const LOSING_MIN: usize = 3;

/// Of so many. A connection that losses have left little loses little in a look, and none in most.
const LOOKS_MAX: usize = 30;

/// A round trip longer than the least by this factor has a queue in it.
const QUEUED: f64 = 1.2;

/// Whether something on the way has a queue: what it loses then says that the link is full, and passes.
pub(crate) fn has_queue(round_trip: Duration, least: Duration) -> bool {
    round_trip > least.mul_f64(QUEUED)
}

/// A link that has lost from the start was never seen at its best: what came through was what the losses let through.
/// It is taken to carry so many times as much, so that a connection that is held back by its losses gets help.
const HIDDEN: f64 = 2.0;

/// What the kernel takes beyond what it can send at once. More would only wait behind a loss, where another
/// connection could have taken it, or be in the way of a smaller answer; less would let a fast link run dry
/// between two turns of the task.
const UNSENT_MAX: u32 = 256 << 10;

/// From here on a link is long. On a short one nothing waits in the kernel for long, and a target that gives it less
/// at a time is only woken more often.
pub(crate) const LONG: Duration = Duration::from_millis(1);

/// Bounds what the kernel takes ahead of a connection.
pub(crate) fn bound_unsent(socket: &TcpStream) {
    // It is only slower without.
    if let Err(error) = tcp::bound_unsent(socket, UNSENT_MAX) {
        tracing::debug!(%error, "what the kernel takes ahead cannot be bounded");
    }
}

/// What was sent between two looks.
#[derive(Clone, Copy, Debug)]
struct Look {
    segments: u64,
    lost: u64,
}

/// Follows the connections of one session.
#[derive(Debug)]
pub(crate) struct Losses {
    next_look: Time,
    /// What was known of them at the last look that found enough to go by.
    before: Info,
    /// The best rate of all connections together, in bytes per second.
    rate: u64,
    /// What the last looks found, none of them a queue; the oldest first.
    looks: VecDeque<Look>,
    /// The connections are controlled by an algorithm that withstands loss.
    hardened: bool,
    /// The kernel takes little ahead of them.
    bounded: bool,
}

impl Losses {
    pub(crate) fn new() -> Self {
        Self {
            next_look: Time::ZERO,
            before: Info::default(),
            rate: 0,
            looks: VecDeque::with_capacity(LOOKS_MAX),
            hardened: false,
            bounded: false,
        }
    }

    /// Looks at the connections, if it is time. They are bounded if the link is long, and hardened if it loses. Gives
    /// how many it calls for, if it loses so much that one is not enough.
    pub(crate) fn look<'s>(
        &mut self,
        now: Time,
        sockets: impl Iterator<Item = &'s TcpStream> + Clone,
    ) -> Option<usize> {
        if now < self.next_look {
            return None;
        }
        let info = together(sockets.clone());
        self.next_look = now + LOOK_EVERY.max(ROUND_TRIPS * info.round_trip);
        if info.round_trip_least >= LONG && !self.bounded {
            self.bounded = true;
            sockets.clone().for_each(bound_unsent);
        }
        let seen = self.since(info)?;
        let needed = self.judge(&seen)?;
        if !self.hardened {
            self.hardened = true;
            tracing::info!(needed, ?seen.round_trip, "the link loses");
            sockets.for_each(harden);
        }
        Some(needed)
    }

    /// What happened since the last look that found enough.
    fn since(&mut self, info: Info) -> Option<Info> {
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let segments = since(info.segments, self.before.segments);
        // A connection that has gone took its counts along.
        let fewer = info.segments < self.before.segments;
        if segments < SEGMENTS_LEAST && !fewer {
            return None;
        }
        let lost = since(info.lost, self.before.lost);
        self.before = info;
        (!fewer).then_some(Info { segments, lost, ..info })
    }

    /// How many connections the link calls for, if one is not enough for what it loses.
    fn judge(&mut self, seen: &Info) -> Option<usize> {
        self.rate = self.rate.max(seen.delivery_rate);
        if has_queue(seen.round_trip, seen.round_trip_least) {
            self.looks.clear();
            return None;
        }
        if self.looks.len() == LOOKS_MAX {
            self.looks.pop_front();
        }
        self.looks.push_back(Look { segments: seen.segments, lost: seen.lost });
        let loss = self.loss()?;
        let carried = HIDDEN * self.rate as f64;
        let needed = model::connections(carried, loss, seen.round_trip, seen.segment);
        (needed > 1).then_some(needed)
    }

    /// The share of segments that the link loses, if it goes on losing.
    fn loss(&self) -> Option<f64> {
        let losing = self.looks.iter().filter(|look| look.lost > 0).count();
        let (segments, lost) = self
            .looks
            .iter()
            .fold((0, 0), |(segments, lost), look| (segments + look.segments, lost + look.lost));
        (losing >= LOSING_MIN && segments >= SEGMENTS_MIN).then(|| lost as f64 / segments as f64)
    }

    /// A connection was added: it is treated as the others are.
    pub(crate) fn added(&self, socket: &TcpStream) {
        if self.bounded {
            bound_unsent(socket);
        }
        if self.hardened {
            harden(socket);
        }
    }
}

/// What the kernel knows of connections, taken together: the longest round trip, and the sum of what is counted.
pub(crate) fn together<'s>(sockets: impl Iterator<Item = &'s TcpStream>) -> Info {
    let infos = sockets.filter_map(|socket| tcp::info(socket).ok());
    let together = infos.reduce(|all, one| Info {
        round_trip: all.round_trip.max(one.round_trip),
        round_trip_least: all.round_trip_least.min(one.round_trip_least),
        segment: all.segment.max(one.segment),
        delivery_rate: all.delivery_rate + one.delivery_rate,
        starved: all.starved || one.starved,
        window_limited: all.window_limited.max(one.window_limited),
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
    together.unwrap_or_default()
}

/// BBR follows the rate at which data arrive and not the losses. Where the kernel has none, or does not let us,
/// the connections stay as they are.
fn harden(socket: &TcpStream) {
    if let Err(error) = tcp::control_congestion(socket, "bbr") {
        tracing::debug!(%error, "no BBR here");
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A second on a gigabit link in which so many of a million segments were lost.
    fn second(losses_per_million: u64, round_trip: Duration) -> Info {
        Info {
            round_trip,
            round_trip_least: 16 * MS,
            segment: 1448,
            delivery_rate: 100_000_000,
            segments: 1_000_000,
            lost: losses_per_million,
            ..Info::default()
        }
    }

    fn after(seconds: &[Info]) -> Option<usize> {
        let mut losses = Losses::new();
        seconds.iter().fold(None, |_, seen| losses.judge(seen))
    }

    #[test]
    fn a_link_that_goes_on_losing_calls_for_more_connections() {
        assert_eq!(after(&[second(1000, 17 * MS); 2]), None);
        // Each carries 3.3 MB/s where one in a thousand is lost.
        assert_eq!(after(&[second(1000, 17 * MS); 3]), Some(61));
        assert_eq!(after(&[second(0, 17 * MS); 9]), None);
        // The best rate counts, not what the losses have left of it.
        let slow = Info { delivery_rate: 1_000_000, ..second(1000, 17 * MS) };
        assert_eq!(after(&[slow; 9]), None);
        let fast = Info { segments: 0, ..second(0, 17 * MS) };
        assert_eq!(after(&[fast, slow, slow, slow]), Some(61));
    }

    #[test]
    fn a_link_that_has_always_lost_is_believed_to_carry_more() {
        let held_back = Info { delivery_rate: 3_000_000, ..second(1000, 17 * MS) };
        assert_eq!(after(&[held_back; 3]), Some(2));
        // Others share it, or nobody asks for more.
        let idle = Info { delivery_rate: 1_500_000, ..second(1000, 17 * MS) };
        assert_eq!(after(&[idle; 9]), None);
    }

    #[test]
    fn a_queue_that_overflows_is_no_link_that_loses() {
        assert_eq!(after(&[second(1000, 25 * MS); 9]), None, "the link is full");
        let once = [second(1000, 17 * MS), second(1000, 17 * MS)];
        let passed = [second(0, 16 * MS); LOOKS_MAX];
        assert_eq!(after(&[&once[..], &passed, &once].concat()), None, "it passed");
        let full = [second(1000, 25 * MS)];
        assert_eq!(after(&[&once[..], &full, &once].concat()), None, "it is full again");
    }

    #[test]
    fn seldom_losses_are_losses_too() {
        // 3.5 MB/s: a loss in every fifth tenth of a second.
        let tenth =
            |lost| Info { delivery_rate: 3_500_000, segments: 240, lost, ..second(0, 17 * MS) };
        let mut losses = Losses::new();
        let called = (0..LOOKS_MAX).find_map(|look| losses.judge(&tenth(u64::from(look % 5 == 4))));
        assert_eq!(called, Some(2));
        assert_eq!(after(&[tenth(1); 3]), None, "too few segments to know");
    }

    #[tokio::test]
    async fn too_little_tells_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        bound_unsent(&near);
        near.write_all(&[7; 1000]).await.unwrap();
        far.read_exact(&mut [0; 1000]).await.unwrap();
        let mut losses = Losses::new();
        assert!(losses.look(Time::ZERO, [&near].into_iter()).is_none());
        assert_eq!(losses.before, Info::default(), "it counts when there is more");
    }
}
