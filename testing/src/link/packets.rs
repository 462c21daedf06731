//! One direction of a path as IP sees it: packets are late, queued, dropped by a full queue, or lost.
//!
//! It is what [`Direction`](super::Direction) is to a stream, for those who bring a TCP of their own.
//! A packet is whatever the caller wants it to be; the path only needs its length.

use core::time::Duration;
use std::collections::VecDeque;

use super::{Conditions, Random};
use proto::time::Time;

/// One direction of a path.
#[derive(Debug)]
pub struct Path<P> {
    conditions: Conditions,
    random: Random,
    /// When the last packet accepted so far has left the queue.
    leaves: Time,
    /// When the last packet accepted so far arrives.
    arrives: Time,
    flying: VecDeque<(Time, P)>,
    counts: Counts,
}

/// What has become of the packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that were taken into the queue.
    pub sent: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets lost on the way, of those sent.
    pub lost: u64,
    /// Packets refused because the queue was full; not sent.
    pub dropped: u64,
}

impl<P> Path<P> {
    /// A path with nothing on it; the same seed and the same packets lose the same ones.
    #[must_use]
    pub const fn new(conditions: Conditions, seed: u64) -> Self {
        let counts = Counts { sent: 0, bytes: 0, lost: 0, dropped: 0 };
        let flying = VecDeque::new();
        let random = Random(seed);
        Self { conditions, random, leaves: Time::ZERO, arrives: Time::ZERO, flying, counts }
    }

    /// Sends a packet of `len` bytes, or drops it if the queue is full.
    pub fn send(&mut self, now: Time, len: usize, packet: P) {
        if self.waiting(now).saturating_add(len) > self.conditions.queue {
            self.counts.dropped += 1;
            return;
        }
        self.counts.sent += 1;
        self.counts.bytes += len as u64;
        self.leaves = self.leaves.max(now) + self.conditions.sending_time(len);
        // Both are drawn for every packet, so that one setting does not change the other's events.
        let late = self.random.lateness(&self.conditions);
        if self.random.loses(&self.conditions) {
            // It was on the wire and took its time there.
            self.counts.lost += 1;
            return;
        }
        // A path is one wire: what is behind a late packet waits.
        self.arrives = self.arrives.max(self.leaves + self.conditions.delay + late);
        self.flying.push_back((self.arrives, packet));
    }

    /// A packet that has arrived and was not taken yet, and when it did.
    pub fn receive(&mut self, now: Time) -> Option<(Time, P)> {
        self.next_arrival().filter(|arrives| *arrives <= now)?;
        self.flying.pop_front()
    }

    /// When something arrives next.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Time> {
        self.flying.front().map(|(arrives, _)| *arrives)
    }

    /// When what arrives next in close succession is all there: the last packet before a gap of more than `gap`,
    /// but no later than `most` after the first. A network card interrupts its machine then.
    #[must_use]
    pub fn next_burst(&self, gap: Duration, most: Duration) -> Option<Time> {
        let first = self.next_arrival()?;
        let mut end = first;
        for (arrives, _) in &self.flying {
            if *arrives > end + gap {
                return Some(end);
            }
            if *arrives > first + most {
                return Some(first + most);
            }
            end = *arrives;
        }
        Some(end)
    }

    /// How long the queue needs to send what is in it.
    #[must_use]
    pub fn backlog(&self, now: Time) -> Duration {
        self.leaves - now
    }

    /// What has become of the packets so far.
    #[must_use]
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// The bytes that have not left the queue: what the rate moves until the queue is empty.
    fn waiting(&self, now: Time) -> usize {
        let Some(rate) = self.conditions.rate else { return 0 };
        let bytes = (self.leaves - now).as_nanos() * u128::from(rate) / 1_000_000_000;
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const DELAY: Duration = Duration::from_millis(8);
    const LEN: usize = 1000;

    fn arrivals(conditions: Conditions, packets: usize) -> (Vec<(Time, usize)>, Counts) {
        let mut path = Path::new(conditions, 7);
        for number in 0..packets {
            path.send(Time::ZERO, LEN, number);
        }
        let mut arrived = Vec::new();
        while let Some(at) = path.next_arrival() {
            arrived.push(path.receive(at).expect("it arrives now"));
        }
        (arrived, path.counts())
    }

    #[test]
    fn packets_arrive_at_the_rate_after_the_delay() {
        let conditions = Conditions { rate: Some(1_000_000), ..Conditions::far(DELAY) };
        let (arrived, _) = arrivals(conditions, 3);
        let expected = (0..3).map(|number| {
            let sending = Duration::from_millis(number as u64 + 1);
            (Time::from_origin(DELAY + sending), number)
        });
        assert_eq!(arrived, expected.collect::<Vec<_>>());
    }

    #[test]
    fn nothing_is_received_early() {
        let mut path = Path::new(Conditions::far(DELAY), 7);
        path.send(Time::ZERO, LEN, ());
        assert_eq!(path.receive(Time::from_origin(DELAY - Duration::from_nanos(1))), None);
        assert_eq!(path.receive(Time::from_origin(DELAY)).map(|(_, ())| ()), Some(()));
    }

    #[test]
    fn a_burst_ends_before_a_gap_or_when_it_has_lasted_long_enough() {
        // One packet a millisecond, and a gap behind the fifth.
        let conditions = Conditions { rate: Some(1_000_000), ..Conditions::far(DELAY) };
        let mut path = Path::new(conditions, 7);
        let at = |ms| Time::from_origin(Duration::from_millis(ms));
        let burst = |path: &Path<u64>, most| {
            path.next_burst(Duration::from_millis(1), Duration::from_millis(most))
        };
        assert_eq!(burst(&path, 9), None);
        (0..5).for_each(|number| path.send(Time::ZERO, LEN, number));
        path.send(at(7), LEN, 5);
        assert_eq!(path.backlog(at(7)), Duration::from_millis(1));
        assert_eq!(burst(&path, 9), Some(at(8 + 5)));
        assert_eq!(burst(&path, 2), Some(at(8 + 3)));
        while path.receive(at(8 + 5)).is_some() {}
        assert_eq!(burst(&path, 9), Some(at(8 + 8)));
    }

    #[test]
    fn a_full_queue_drops_and_an_emptied_one_takes_again() {
        let queue = 10 * LEN;
        let conditions = Conditions { rate: Some(1_000_000), queue, ..Conditions::far(DELAY) };
        let mut path = Path::new(conditions, 7);
        for number in 0..15 {
            path.send(Time::ZERO, LEN, number);
        }
        assert_eq!(path.counts(), Counts { sent: 10, bytes: 10_000, lost: 0, dropped: 5 });
        path.send(Time::from_origin(Duration::from_millis(1)), LEN, 15);
        assert_eq!(path.counts().sent, 11);
    }

    #[test]
    fn losses_come_as_often_as_configured_and_the_same_each_time() {
        let conditions = Conditions { losses_per_million: 10_000, ..Conditions::far(DELAY) };
        let (arrived, counts) = arrivals(conditions, 100_000);
        assert_eq!(arrived.len() as u64, counts.sent - counts.lost);
        // 1000 are expected, with a standard deviation of 31; the seed makes the run repeatable.
        assert!((900..1100).contains(&counts.lost), "{} lost", counts.lost);
        assert_eq!(arrivals(conditions, 100_000), (arrived, counts));
    }

    #[test]
    fn jitter_makes_packets_late_and_keeps_their_order() {
        let jitter = Duration::from_millis(2);
        let (arrived, _) = arrivals(Conditions { jitter, ..Conditions::far(DELAY) }, 1000);
        let (earliest, latest) = (Time::from_origin(DELAY), Time::from_origin(DELAY + jitter));
        assert!(arrived.iter().all(|(at, _)| (earliest..=latest).contains(at)));
        assert!(arrived.is_sorted(), "overtaken");
        assert!(arrived.iter().any(|(at, _)| *at > earliest), "nobody was late");
    }
}
