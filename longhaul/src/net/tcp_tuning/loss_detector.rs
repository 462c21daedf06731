//! Detects that a link loses packets of what the connections of a session send.
//!
//! The sender chooses the congestion control: an initiator for writes, a target for reads. So each end samples its own
//! sockets, ten times a second while data come in. Where losses hold a connection below what the link carries, it
//! switches to an algorithm that follows the delivery rate instead.

use std::collections::VecDeque;
use std::time::Duration;

use host::tcp::Info;
use proto::time::Time;
use tokio::net::TcpStream;

use super::congestion_control::{bound_unsent, use_bbr};
use super::loss_model;
use super::path::{LONG, combined_info, has_queue};
use super::receive_window::widen_on_long_link;
use super::slow_start::SlowStart;

/// The time between samples, while data come in, ...
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// ... and at least this many round trips: closer samples would all see the losses of one overflow.
const ROUND_TRIPS: u32 = 4;

/// A sample has at least so many segments, ...
const SAMPLE_SEGMENTS_MIN: u64 = 100;

/// ... and all together have so many: fewer say nothing about a loss of one in a thousand.
const SEGMENTS_MIN: u64 = 1000;

/// So many samples must have losses: a queue that overflowed once is not a lossy link.
const LOSSY_SAMPLES_MIN: usize = 3;

/// Of so many. A connection that losses have slowed down loses little, and nothing in most samples.
const SAMPLES_MAX: usize = 30;

/// On a link that was lossy from the start the best rate is that which the losses allowed. The link is assumed to carry
/// so many times as much.
const HIDDEN_CAPACITY: f64 = 2.0;

/// What was sent between two samples.
#[derive(Clone, Copy, Debug)]
struct Sample {
    segments: u64,
    lost: u64,
}

/// Follows the connections of one session.
#[derive(Debug)]
pub(crate) struct LossDetector {
    next_sample: Time,
    /// The counters at the last sample that was large enough.
    before: Info,
    /// The best rate of all connections together, in bytes per second.
    rate: u64,
    /// The last samples, none of them with a queue; the oldest first.
    samples: VecDeque<Sample>,
    /// The connections use a congestion control that withstands loss.
    uses_bbr: bool,
    /// What they use otherwise.
    slow_start: SlowStart,
    /// The least round trip, if it is long: then the kernel's queue of unsent bytes is bounded, and the receive window wide.
    long: Option<Duration>,
}

impl LossDetector {
    pub(crate) fn new() -> Self {
        Self {
            next_sample: Time::ZERO,
            before: Info::default(),
            rate: 0,
            samples: VecDeque::with_capacity(SAMPLES_MAX),
            uses_bbr: false,
            slow_start: SlowStart::default(),
            long: None,
        }
    }

    /// Samples the connections, if it is time. On a long link their unsent bytes are bounded and their slow start kept, on a
    /// lossy one their congestion control is switched. Returns how many connections the link needs, if one is not enough for its losses.
    pub(crate) fn sample<'s>(
        &mut self,
        now: Time,
        sockets: impl Iterator<Item = &'s TcpStream> + Clone,
    ) -> Option<usize> {
        if now < self.next_sample {
            return None;
        }
        let info = combined_info(sockets.clone());
        self.next_sample = now + SAMPLE_INTERVAL.max(ROUND_TRIPS * info.round_trip);
        self.tune_long(info.round_trip_least, sockets.clone());
        if !self.uses_bbr {
            self.slow_start.sample(&info, sockets.clone());
        }
        let seen = self.since(info)?;
        let needed = self.judge(&seen)?;
        if !self.uses_bbr {
            self.uses_bbr = true;
            tracing::info!(
                needed,
                ?seen.round_trip,
                "packet loss detected: switching congestion control"
            );
            sockets.for_each(use_bbr);
        }
        Some(needed)
    }

    /// Tunes the connections for a long link, once.
    fn tune_long<'s>(&mut self, least: Duration, sockets: impl Iterator<Item = &'s TcpStream>) {
        if least >= LONG && self.long.is_none() {
            self.long = Some(least);
            sockets.for_each(|socket| self.added(socket));
        }
    }

    /// What was counted since the last sample that was large enough.
    fn since(&mut self, info: Info) -> Option<Info> {
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let segments = since(info.segments, self.before.segments);
        // A connection that has gone took its counts along.
        let fewer = info.segments < self.before.segments;
        if segments < SAMPLE_SEGMENTS_MIN && !fewer {
            return None;
        }
        let lost = since(info.lost, self.before.lost);
        self.before = info;
        (!fewer).then_some(Info { segments, lost, ..info })
    }

    /// How many connections the link needs, if one is not enough for its losses.
    fn judge(&mut self, seen: &Info) -> Option<usize> {
        self.rate = self.rate.max(seen.delivery_rate);
        if has_queue(seen.round_trip, seen.round_trip_least) {
            self.samples.clear();
            return None;
        }
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { segments: seen.segments, lost: seen.lost });
        let loss = self.loss()?;
        let carried = HIDDEN_CAPACITY * self.rate as f64;
        let needed = loss_model::connections(carried, loss, seen.round_trip, seen.segment);
        (needed > 1).then_some(needed)
    }

    /// The share of segments that the link loses, if it loses all the time.
    fn loss(&self) -> Option<f64> {
        let lossy = self.samples.iter().filter(|sample| sample.lost > 0).count();
        let (segments, lost) = self.samples.iter().fold((0, 0), |(segments, lost), sample| {
            (segments + sample.segments, lost + sample.lost)
        });
        (lossy >= LOSSY_SAMPLES_MIN && segments >= SEGMENTS_MIN)
            .then(|| lost as f64 / segments as f64)
    }

    /// Tunes a connection that was added as the others are.
    pub(crate) fn added(&self, socket: &TcpStream) {
        if let Some(least) = self.long {
            bound_unsent(socket);
            widen_on_long_link(socket, least);
        }
        if self.uses_bbr {
            use_bbr(socket);
        } else {
            self.slow_start.added(socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::socket_recv_buffer_size;
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
        let mut detector = LossDetector::new();
        seconds.iter().fold(None, |_, seen| detector.judge(seen))
    }

    #[test]
    fn link_that_keeps_losing_needs_more_connections() {
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
    fn link_lossy_from_the_start_is_assumed_to_carry_more() {
        let held_back = Info { delivery_rate: 3_000_000, ..second(1000, 17 * MS) };
        assert_eq!(after(&[held_back; 3]), Some(2));
        // Others share it, or nobody asks for more.
        let idle = Info { delivery_rate: 1_500_000, ..second(1000, 17 * MS) };
        assert_eq!(after(&[idle; 9]), None);
    }

    #[test]
    fn queue_that_overflows_is_not_a_lossy_link() {
        assert_eq!(after(&[second(1000, 25 * MS); 9]), None, "the link is full");
        let once = [second(1000, 17 * MS), second(1000, 17 * MS)];
        let passed = [second(0, 16 * MS); SAMPLES_MAX];
        assert_eq!(after(&[&once[..], &passed, &once].concat()), None, "it passed");
        let full = [second(1000, 25 * MS)];
        assert_eq!(after(&[&once[..], &full, &once].concat()), None, "it is full again");
    }

    #[test]
    fn rare_losses_are_detected() {
        // 3.5 MB/s: a loss in every fifth tenth of a second.
        let tenth =
            |lost| Info { delivery_rate: 3_500_000, segments: 240, lost, ..second(0, 17 * MS) };
        let mut detector = LossDetector::new();
        let called =
            (0..SAMPLES_MAX).find_map(|sample| detector.judge(&tenth(u64::from(sample % 5 == 4))));
        assert_eq!(called, Some(2));
        assert_eq!(after(&[tenth(1); 3]), None, "too few segments to know");
    }

    #[tokio::test]
    async fn connection_that_joins_later_has_as_wide_a_window_as_the_first() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || async { TcpStream::connect(address).await.unwrap() };
        for (least, is_wider) in [(30 * MS, true), (5 * MS, false)] {
            let (first, later) = (connect().await, connect().await);
            let before = socket_recv_buffer_size(&later).unwrap();
            let mut detector = LossDetector::new();
            detector.tune_long(least, [&first].into_iter());
            detector.added(&later);
            for socket in [&first, &later] {
                assert_eq!(socket_recv_buffer_size(socket).unwrap() > before, is_wider);
            }
        }
    }

    #[tokio::test]
    async fn too_few_segments_are_no_sample() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        bound_unsent(&near);
        near.write_all(&[7; 1000]).await.unwrap();
        far.read_exact(&mut [0; 1000]).await.unwrap();
        let mut detector = LossDetector::new();
        assert!(detector.sample(Time::ZERO, [&near].into_iter()).is_none());
        assert_eq!(detector.before, Info::default(), "it counts when there is more");
    }
}
