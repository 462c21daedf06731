//! Which packets were lost, and what is to be sent again (RFC 9002, 6; spec, 9).

use core::ops::{Range, RangeInclusive};
use core::time::Duration;
use std::collections::VecDeque;

use super::codec::AckFrame;
use super::congestion::delivery::{Delivery, LostPacket, RateSample, SendState};
use super::ecn::EcnCounts;
use super::rtt::Rtt;
use super::spurious::Reordering;
use crate::time::Time;

/// A packet counts as lost when as many later ones were acknowledged (RFC 9002, 6.1.1).
const PACKET_THRESHOLD: u64 = 3;

/// All of as many probe time-outs lost is persistent congestion (RFC 9002, 7.6.1).
const PERSISTENT: u32 = 3;

/// The round trip is measured at most as often for its own sake: on a short link the acknowledgements that are asked for cost
/// as much as small commands.
const STALE_MIN: Duration = Duration::from_millis(2);

/// The backoff of probes stops at this power of two.
const BACKOFF_MAX: u32 = 10;

/// What a packet carried that must arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Bytes of the message in a slot.
    Fragment { slot: u16, seq: u32, range: Range<u32> },
    /// A request for an acknowledgement, which is never repeated for its own sake.
    Query,
    /// A packet whose own timer repeats it.
    Control,
    /// A long packet that tells whether the path carries it: that it is lost says nothing of congestion (RFC 8899, 3).
    Probe,
}

/// A packet that is neither acknowledged nor lost.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    state: SendState,
    content: Content,
    /// It was sent with ECT(0), in the test of the path that counts (spec, 9.3).
    has_ect: bool,
    /// It went elsewhere: what that path carries says nothing of this one.
    is_elsewhere: bool,
}

impl Sent {
    const fn at(&self) -> Time {
        self.state.sent_at()
    }

    const fn size(&self) -> u64 {
        self.state.size()
    }
}

/// The packets in flight, in the order of their numbers.
#[derive(Debug)]
struct InFlight {
    /// A place stays without its packet until those before it are gone, or it is one of too many.
    places: VecDeque<(u64, Option<Sent>)>,
    count: usize,
}

/// Places without packets that stay at least.
const EMPTY_MAX: usize = 64;

impl InFlight {
    const fn new() -> Self {
        Self { places: VecDeque::new(), count: 0 }
    }

    const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds one whose number is higher than all before.
    fn push(&mut self, number: u64, sent: Sent) {
        self.places.push_back((number, Some(sent)));
        self.count += 1;
    }

    /// Takes out those with these numbers.
    fn remove(&mut self, numbers: &RangeInclusive<u64>, mut each: impl FnMut(u64, Sent)) {
        let from = self.places.partition_point(|(number, _)| number < numbers.start());
        for (number, place) in self.places.range_mut(from..) {
            if *number > *numbers.end() {
                break;
            }
            if let Some(sent) = place.take() {
                self.count -= 1;
                each(*number, sent);
            }
        }
        while let Some((_, None)) = self.places.front() {
            self.places.pop_front();
        }
        if self.places.len() > 2 * self.count + EMPTY_MAX {
            self.places.retain(|(_, place)| place.is_some());
        }
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.places.iter_mut().filter_map(|(_, place)| place.as_mut())
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &Sent)> {
        self.places.iter().filter_map(|(number, place)| Some((*number, place.as_ref()?)))
    }
}

/// What an acknowledgement tells.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) acked: Vec<Content>,
    pub(super) lost: Vec<Content>,
    /// Bytes acknowledged, and when the last of them was sent.
    pub(super) acked_bytes: u64,
    pub(super) acked_sent: Time,
    /// What they tell of the rate, and the round trip that was measured.
    pub(super) sample: RateSample,
    pub(super) measured: Option<Duration>,
    /// The size of the longest packet acknowledged, 0 without any.
    pub(super) acked_longest: u64,
    /// Those that were lost, and when the last of them was sent.
    pub(super) lost_packets: Vec<LostPacket>,
    pub(super) lost_sent: Option<Time>,
    /// The size of the shortest lost packet.
    pub(super) lost_shortest: Option<u64>,
    pub(super) persistent: bool,
    /// All that was lost in the last congestion event has come.
    pub(super) is_spurious: bool,
    /// Packets with ECT(0) that were acknowledged, and lost.
    pub(super) ect: (u64, u64),
    /// What the peer has counted, if it acknowledges a higher number than before.
    pub(super) counts: Option<EcnCounts>,
}

impl Outcome {
    fn acknowledged(&mut self, sent: Sent) {
        self.acked_bytes += sent.size();
        if !sent.is_elsewhere {
            self.acked_longest = self.acked_longest.max(sent.size());
        }
        self.acked_sent = self.acked_sent.max(sent.at());
        self.ect.0 += u64::from(sent.has_ect);
        self.acked.push(sent.content);
    }
}

/// The packets of a path in flight.
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) rtt: Rtt,
    sent: InFlight,
    delivery: Delivery,
    in_flight: u64,
    largest_acked: Option<u64>,
    acked_sent: Time,
    loss_at: Option<Time>,
    last_sent: Time,
    /// The peer holds back no acknowledgement of the last packet.
    asked: bool,
    /// Probe time-outs since the last acknowledgement, and when the first of them was.
    backoff: u32,
    silent_since: Time,
    measured: Option<Time>,
    /// When the first round trip was measured.
    first_measured: Option<Time>,
    /// Packets sent, and those of them that were lost.
    counts: (u64, u64),
    /// Congestion events that were none.
    undone: u64,
    reordering: Reordering,
}

impl Recovery {
    pub(super) fn new(rtt: Rtt) -> Self {
        Self {
            rtt,
            sent: InFlight::new(),
            delivery: Delivery::new(),
            in_flight: 0,
            largest_acked: None,
            acked_sent: Time::ZERO,
            loss_at: None,
            last_sent: Time::ZERO,
            asked: false,
            backoff: 0,
            silent_since: Time::ZERO,
            measured: None,
            first_measured: None,
            counts: (0, 0),
            undone: 0,
            reordering: Reordering::default(),
        }
    }

    pub(super) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Packets sent, and those of them that were lost.
    pub(super) const fn counts(&self) -> (u64, u64) {
        self.counts
    }

    /// Probe time-outs in a row.
    pub(super) const fn backoff(&self) -> u32 {
        self.backoff
    }

    /// For how long packets have not been acknowledged that should have been.
    pub(super) fn silence(&self, now: Time) -> Duration {
        if self.backoff > 0 { now - self.silent_since } else { Duration::ZERO }
    }

    /// Whether the round trip was not measured lately, so that an acknowledgement should be asked for.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        let long = (self.rtt.smoothed() * 4).max(STALE_MIN);
        self.measured.is_none_or(|at| now - at > long)
    }

    /// A packet was sent; `asked` says whether the peer acknowledges it at once.
    pub(super) fn on_sent(
        &mut self,
        now: Time,
        (number, asked): (u64, bool),
        size: u64,
        (content, has_ect): (Content, bool),
    ) {
        self.asked = asked;
        let state = self.delivery.on_sent(now, self.in_flight, size);
        self.sent.push(number, Sent { state, content, has_ect, is_elsewhere: false });
        self.in_flight += size;
        self.counts.0 += 1;
        self.last_sent = now;
    }

    /// Takes an acknowledgement of numbers that were all sent.
    pub(super) fn on_ack(&mut self, now: Time, ack: &AckFrame) -> Outcome {
        let AckFrame { ranges, delay: held, .. } = ack;
        let mut outcome = Outcome::default();
        let largest = ranges.first().map(|range| *range.end());
        outcome.counts = ack.ecn.filter(|_| largest > self.largest_acked);
        let mut newest = None;
        for range in ranges {
            self.sent.remove(range, |number, sent| {
                if largest == Some(number) {
                    outcome.measured = Some(self.rtt.without_delay(now - sent.at(), *held));
                    self.rtt.add(now - sent.at(), *held);
                    self.measured = Some(now);
                    self.first_measured.get_or_insert(now);
                }
                self.delivery.on_delivered(now, sent.state, &mut newest);
                outcome.acknowledged(sent);
            });
        }
        self.delivered(newest, &mut outcome);
        self.largest_acked = self.largest_acked.max(largest);
        if !outcome.acked.is_empty() {
            self.backoff = 0;
        }
        self.came_late(now, ranges, &mut outcome);
        self.detect(now, ranges, &mut outcome);
        outcome
    }

    /// Looks for packets among these that were taken for lost.
    fn came_late(&mut self, now: Time, acked: &[RangeInclusive<u64>], outcome: &mut Outcome) {
        let latest = self.rtt.probe_timeout() * PERSISTENT;
        let Self { reordering, delivery, counts, .. } = self;
        outcome.is_spurious = reordering.on_ack(now, (acked, latest), |state| {
            delivery.on_late(state);
            outcome.acked_longest = outcome.acked_longest.max(state.size());
            counts.1 -= 1;
        });
        self.undone += u64::from(outcome.is_spurious);
    }

    /// Congestion events whose packets have all come late.
    pub(super) const fn undone(&self) -> u64 {
        self.undone
    }

    /// A message has implied the acknowledgement of these packets, all of the one that it answers. The round trip is no longer
    /// than that took, if none was lost: else the answer may be to one that was sent before.
    pub(super) fn imply(&mut self, now: Time, numbers: impl Iterator<Item = u64>) -> Outcome {
        let mut outcome = Outcome::default();
        let (mut first, mut all_are_known, mut newest) = (None, true, None);
        for number in numbers {
            let before = outcome.acked.len();
            self.sent.remove(&(number..=number), |_, sent| {
                let at = sent.at();
                first = Some(first.map_or(at, |first: Time| first.min(at)));
                self.delivery.on_delivered(now, sent.state, &mut newest);
                outcome.acknowledged(sent);
            });
            all_are_known &= outcome.acked.len() > before;
        }
        self.delivered(newest, &mut outcome);
        // A client whose requests are only answered, and not acknowledged, has no other measurement.
        let took = first.filter(|_| all_are_known).map(|first| now - first);
        if let Some(took) = took.filter(|took| *took < self.rtt.smoothed()) {
            self.rtt.add(took, Duration::ZERO);
            outcome.measured = Some(took);
        }
        if !outcome.acked.is_empty() {
            self.backoff = 0;
            self.detect_late(now, &mut outcome);
        }
        outcome
    }

    /// What is in flight belongs to no test of ECN any more.
    pub(super) fn forget_ect(&mut self) {
        self.sent.iter_mut().for_each(|sent| sent.has_ect = false);
    }

    /// When the last of the packets was sent that were acknowledged.
    pub(super) const fn acked_sent(&self) -> Time {
        self.acked_sent
    }

    fn delivered(&mut self, newest: Option<SendState>, outcome: &mut Outcome) {
        self.in_flight -= outcome.acked_bytes;
        self.acked_sent = self.acked_sent.max(outcome.acked_sent);
        if let Some(newest) = newest {
            outcome.sample = self.delivery.sample(newest);
        }
    }

    /// Nothing is there to be sent, although the path would take more.
    pub(super) fn limit(&mut self, in_flight: u64) {
        self.delivery.limit(in_flight);
    }

    /// Moves what is lost by now to `outcome` (RFC 9002, A.10). The numbers that the peer has are `acked`.
    fn detect(&mut self, now: Time, acked: &[RangeInclusive<u64>], outcome: &mut Outcome) {
        self.loss_at = None;
        let Some(largest) = self.largest_acked else { return };
        let delay = self.rtt.loss_delay(self.reordering.eighths());
        let threshold = if self.reordering.is_seen() { u64::MAX } else { PACKET_THRESHOLD };
        let mut lost = Vec::new();
        for (number, sent) in self.sent.iter().take_while(|(number, _)| *number < largest) {
            if largest - number >= threshold || now - sent.at() >= delay {
                lost.push(number);
            } else {
                let at = sent.at() + delay;
                self.loss_at = Some(self.loss_at.map_or(at, |first| first.min(at)));
            }
        }
        let times = self.lose(now, lost, outcome);
        outcome.persistent = self.is_persistent(&times, acked);
        if outcome.persistent {
            self.reordering.confirm();
        }
    }

    /// While all that is sent is answered, no acknowledgements come, and the timer begins anew with each packet: what has not been
    /// acknowledged in either way for longer than an acknowledgement may take is lost.
    fn detect_late(&mut self, now: Time, outcome: &mut Outcome) {
        let late = self.rtt.late_delay(self.reordering.eighths());
        let is_late = |(_, sent): &(u64, &Sent)| now - sent.at() >= late;
        let lost = self.sent.iter().take_while(is_late).map(|(number, _)| number).collect();
        self.lose(now, lost, outcome);
    }

    /// Moves these packets to `outcome`; those of them that say something of congestion, and when they were sent.
    fn lose(&mut self, now: Time, lost: Vec<u64>, outcome: &mut Outcome) -> Vec<(u64, Time)> {
        let (mut times, mut states) = (Vec::new(), Vec::new());
        for number in lost {
            self.sent.remove(&(number..=number), |_, sent| {
                self.in_flight -= sent.size();
                self.counts.1 += 1;
                outcome.ect.1 += u64::from(sent.has_ect);
                if sent.content != Content::Probe {
                    times.push((number, sent.at()));
                    states.push((number, sent.state));
                    outcome.lost_packets.push(self.delivery.on_lost(sent.state));
                    outcome.lost_sent = outcome.lost_sent.max(Some(sent.at()));
                    let size = sent.size();
                    let shortest = outcome.lost_shortest.map_or(size, |it| it.min(size));
                    outcome.lost_shortest = Some(shortest);
                }
                outcome.lost.push(sent.content);
            });
        }
        if let Some((_, last)) = times.last() {
            self.reordering.lost(now, states, *last);
        }
        times
    }

    /// Whether all packets of a long time are among those lost (RFC 9002, 7.6.2). They are known in their order, and only
    /// those count that were sent when there was a measurement. A timer that finds packets lost says nothing of it.
    fn is_persistent(&self, lost: &[(u64, Time)], acked: &[RangeInclusive<u64>]) -> bool {
        let (Some(measured), false) = (self.first_measured, acked.is_empty()) else { return false };
        let long = self.rtt.probe_timeout() * PERSISTENT;
        let mut first: Option<(u64, Time)> = None;
        for (number, at) in lost.iter().copied().filter(|(_, at)| *at > measured) {
            let is_apart = |(from, _): (u64, Time)| {
                acked.iter().any(|range| *range.start() < number && from < *range.end())
            };
            if first.is_none_or(is_apart) {
                first = Some((number, at));
            }
            if first.is_some_and(|(_, begun)| at - begun > long) {
                return true;
            }
        }
        false
    }

    /// When [`on_timeout`](Self::on_timeout) is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        if self.loss_at.is_some() {
            return self.loss_at;
        }
        let backoff = 1 << self.backoff.min(BACKOFF_MAX);
        let timeout = if self.asked { self.rtt.asked_timeout() } else { self.rtt.probe_timeout() };
        (!self.sent.is_empty()).then(|| self.last_sent + timeout * backoff)
    }

    /// The timer has expired: packets are lost, or (`None`) a probe is to be sent.
    pub(super) fn on_timeout(&mut self, now: Time) -> Option<Outcome> {
        if self.loss_at.is_some() {
            let mut outcome = Outcome::default();
            self.detect(now, &[], &mut outcome);
            return Some(outcome);
        }
        if self.backoff == 0 {
            self.silent_since = now;
        }
        self.backoff += 1;
        // The next probe is counted from here, even if none can be sent now.
        self.last_sent = now;
        None
    }

    /// The path goes elsewhere: the round trip is another one.
    pub(super) fn restart(&mut self, rtt: Rtt) {
        (self.rtt, self.backoff) = (rtt, 0);
        (self.measured, self.first_measured) = (None, None);
        self.reordering.restart();
        for sent in self.sent.iter_mut() {
            (sent.has_ect, sent.is_elsewhere) = (false, true);
        }
    }

    /// Nothing of what is in flight will be acknowledged: what it carried.
    pub(super) fn abandon(&mut self) -> Vec<Content> {
        let sent = core::mem::replace(&mut self.sent, InFlight::new());
        self.counts.1 += sent.count as u64;
        (self.in_flight, self.loss_at) = (0, None);
        sent.places.into_iter().filter_map(|(_, place)| place).map(|sent| sent.content).collect()
    }

    /// The oldest bytes of a message in flight, for a probe.
    pub(super) fn oldest_fragment(&self) -> Option<(u16, u32, Range<u32>)> {
        self.sent.iter().find_map(|(_, sent)| match &sent.content {
            Content::Fragment { slot, seq, range } => Some((*slot, *seq, range.clone())),
            Content::Query | Content::Control | Content::Probe => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Timing;
    use super::*;

    const RTT: Duration = Duration::from_millis(1);

    fn ack(ranges: &[RangeInclusive<u64>]) -> AckFrame {
        let (ranges, delay) = (ranges.to_vec(), Duration::ZERO);
        AckFrame { ranges, delay, max_bytes: 0, max_slots: 0, ecn: None }
    }

    /// Packets of 100 bytes, 10 ms apart, before which one of number 0 was acknowledged after a millisecond, if it is so.
    fn sent(is_measured: bool, count: u64) -> (Recovery, Time) {
        let mut recovery = Recovery::new(Rtt::new(Timing::ETHERNET, Duration::ZERO));
        let mut now = Time::from_origin(Duration::from_secs(1));
        recovery.on_sent(now, (0, true), 100, (Content::Query, false));
        now = now + RTT;
        if is_measured {
            recovery.on_ack(now, &ack(&[0..=0]));
        }
        for number in 1..=count {
            now = now + Duration::from_millis(10);
            recovery.on_sent(now, (number, true), 100, (Content::Query, false));
        }
        (recovery, now + RTT)
    }

    /// RFC 9002, 7.6.2: the probe time-out is 3 ms here, so that two packets 10 ms apart are enough.
    #[test]
    fn congestion_is_persistent_only_if_nothing_between_has_arrived() {
        let rows: [(bool, &[RangeInclusive<u64>], bool); 5] = [
            (true, &[9..=9], true),
            (true, &[9..=9, 7..=7, 5..=5, 3..=3, 1..=1], false),
            (true, &[9..=9, 8..=8, 6..=6, 4..=4, 2..=2], false),
            (true, &[9..=9, 1..=7], false),
            (false, &[9..=9], false),
        ];
        for (is_measured, acked, expected) in rows {
            let (mut recovery, now) = sent(is_measured, 9);
            let outcome = recovery.on_ack(now, &ack(acked));
            assert_eq!(outcome.persistent, expected, "{acked:?}");
        }
    }

    /// A client that only reads is sent answers and no acknowledgements: a guess of the round trip would hold its requests back.
    #[test]
    fn answer_bounds_the_round_trip_unless_a_packet_was_lost_before() {
        let begun = Time::from_origin(Duration::from_secs(1));
        let (now, guess) = (begun + RTT, Timing::IP.initial_rtt);
        for (numbers, expected) in [(vec![0], RTT), (vec![7, 0], guess), (vec![], guess)] {
            let mut recovery = Recovery::new(Rtt::new(Timing::IP, Duration::ZERO));
            recovery.on_sent(begun, (0, true), 100, (Content::Query, false));
            recovery.imply(now, numbers.into_iter());
            assert_eq!(recovery.rtt.smoothed(), expected);
        }
        let (mut recovery, now) = sent(true, 1);
        recovery.imply(now + RTT, [1].into_iter());
        assert_eq!(recovery.rtt.smoothed(), RTT, "to execute something takes time too");
    }

    /// Each packet is answered but one, and no acknowledgements come: the timer would never expire.
    #[test]
    fn packet_that_is_not_answered_while_others_are_is_lost() {
        let mut recovery = Recovery::new(Rtt::new(Timing::IP, Duration::from_millis(5)));
        let mut lost = Vec::new();
        for number in 0..100 {
            let now = Time::from_origin(Duration::from_millis(1000 + number));
            recovery.on_sent(now, (number, false), 100, (Content::Query, false));
            if number != 20 {
                let outcome = recovery.imply(now + RTT, core::iter::once(number));
                lost.extend(outcome.lost_packets.iter().map(|_| number));
            }
            assert!(recovery.deadline().is_none_or(|due| due > now + RTT), "{number}");
        }
        assert!(matches!(lost[..], [22..60]), "{lost:?}");
        assert_eq!(recovery.in_flight(), 0);
    }
}
