//! An emulated link: a stream of bytes in one direction, on virtual time, seeded and pure.
//!
//! It does to a stream what a long path with TCP on it does: bytes arrive late, at a limited rate, in
//! order and complete. A lost packet shows as one more round trip before it, and all behind it, arrive.
//! What the path does to the packets themselves is in [`packets`].

pub mod packets;

use core::time::Duration;
use std::collections::VecDeque;

use bytes::Bytes;

use proto::time::Time;

/// What a packet carries; losses and jitter strike packets.
const PACKET: usize = 1448;

/// What a direction of a link is like.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// How long a byte travels.
    pub delay: Duration,
    /// Bytes per second; `None` for no limit.
    pub rate: Option<u64>,
    /// Bytes that may wait to be sent; [`Direction::room`] tells what is left.
    pub queue: usize,
    /// The most a packet is late beyond `delay`. The order stays, so one late packet delays others.
    pub jitter: Duration,
    /// Of a million packets, how many have to be sent again.
    pub losses_per_million: u32,
}

impl Conditions {
    /// Only far away.
    #[must_use]
    pub const fn far(delay: Duration) -> Self {
        let jitter = Duration::ZERO;
        Self { delay, rate: None, queue: usize::MAX, jitter, losses_per_million: 0 }
    }

    fn sending_time(&self, len: usize) -> Duration {
        let nanoseconds = |rate: u64| (len as u64).saturating_mul(1_000_000_000) / rate.max(1);
        self.rate.map_or(Duration::ZERO, |rate| Duration::from_nanos(nanoseconds(rate)))
    }
}

/// One direction of a link.
#[derive(Debug)]
pub struct Direction {
    conditions: Conditions,
    random: Random,
    /// When the last byte given so far has left.
    leaves: Time,
    /// When the last byte given so far arrives.
    arrives: Time,
    flying: VecDeque<Packet>,
}

#[derive(Debug)]
struct Packet {
    leaves: Time,
    arrives: Time,
    bytes: Bytes,
}

impl Direction {
    /// A direction with nothing on it; the same seed gives the same losses and lateness.
    #[must_use]
    pub const fn new(conditions: Conditions, seed: u64) -> Self {
        let flying = VecDeque::new();
        let random = Random(seed);
        Self { conditions, random, leaves: Time::ZERO, arrives: Time::ZERO, flying }
    }

    /// How many bytes [`send`](Self::send) would take.
    #[must_use]
    pub fn room(&self, now: Time) -> usize {
        let waiting = self.flying.iter().rev().take_while(|packet| packet.leaves > now);
        self.conditions.queue.saturating_sub(waiting.map(|packet| packet.bytes.len()).sum())
    }

    /// Sends as much of `bytes` as there is room for, and gives the rest back.
    pub fn send(&mut self, now: Time, mut bytes: Bytes) -> Bytes {
        let rest = bytes.split_off(bytes.len().min(self.room(now)));
        while !bytes.is_empty() {
            let packet = bytes.split_to(bytes.len().min(PACKET));
            self.send_packet(now, packet);
        }
        rest
    }

    fn send_packet(&mut self, now: Time, bytes: Bytes) {
        self.leaves = self.leaves.max(now) + self.conditions.sending_time(bytes.len());
        let late = self.random.lateness(&self.conditions);
        let mut arrives = self.leaves + self.conditions.delay + late;
        if self.random.loses(&self.conditions) {
            arrives = arrives + 2 * self.conditions.delay;
        }
        // A stream keeps its order: what is behind waits.
        self.arrives = self.arrives.max(arrives);
        self.flying.push_back(Packet { leaves: self.leaves, arrives: self.arrives, bytes });
    }

    /// What has arrived and was not taken yet.
    pub fn receive(&mut self, now: Time) -> Option<Bytes> {
        self.next_arrival().filter(|arrives| *arrives <= now)?;
        self.flying.pop_front().map(|packet| packet.bytes)
    }

    /// When something arrives next.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Time> {
        self.flying.front().map(|packet| packet.arrives)
    }
}

/// The chance events of a link, all from one seed.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn loses(&mut self, conditions: &Conditions) -> bool {
        self.below(1_000_000) < u64::from(conditions.losses_per_million)
    }

    fn lateness(&mut self, conditions: &Conditions) -> Duration {
        let most = u64::try_from(conditions.jitter.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.below(most.saturating_add(1)))
    }

    /// A number below `bound` (SplitMix64; the tiny bias does not matter here).
    const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(50);

    fn all(direction: &mut Direction) -> (Vec<u8>, Time) {
        let (mut bytes, mut last) = (Vec::new(), Time::ZERO);
        while let Some(at) = direction.next_arrival() {
            assert!(at >= last, "arrivals go back in time");
            last = at;
            bytes.extend(direction.receive(at).expect("it arrives now"));
        }
        (bytes, last)
    }

    #[test]
    fn bytes_arrive_after_the_delay_and_not_before() {
        let mut direction = Direction::new(Conditions::far(DELAY), 1);
        assert!(direction.send(Time::ZERO, Bytes::from_static(b"abc")).is_empty());
        assert_eq!(direction.receive(Time::from_origin(DELAY / 2)), None);
        assert_eq!(all(&mut direction), (b"abc".to_vec(), Time::from_origin(DELAY)));
    }

    #[test]
    fn a_rate_spreads_them_and_the_queue_bounds_them() {
        let conditions =
            Conditions { rate: Some(1_000_000), queue: 20_000, ..Conditions::far(DELAY) };
        let mut direction = Direction::new(conditions, 1);
        let rest = direction.send(Time::ZERO, Bytes::from(vec![7; 30_000]));
        assert_eq!((rest.len(), direction.room(Time::ZERO)), (10_000, 0));
        let (bytes, last) = all(&mut direction);
        assert_eq!(bytes.len(), 20_000);
        assert_eq!(last.since_origin(), DELAY + Duration::from_millis(20));
    }

    #[test]
    fn losses_and_jitter_cost_time_never_bytes() {
        let far = Conditions::far(DELAY);
        let rough = Conditions { jitter: DELAY / 5, losses_per_million: 100_000, ..far };
        let sent: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
        let run = |seed| {
            let mut direction = Direction::new(rough, seed);
            assert!(direction.send(Time::ZERO, Bytes::from(sent.clone())).is_empty());
            all(&mut direction)
        };
        let (bytes, last) = run(7);
        assert!(bytes == sent);
        assert!(last.since_origin() > 2 * DELAY);
        assert_eq!(run(7).1, last, "the same seed gives the same run");
    }
}
