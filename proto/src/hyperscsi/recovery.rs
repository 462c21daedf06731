//! Which packets were lost, and what is to be sent again (RFC 9002, 6; spec, 9).

use core::ops::{Range, RangeInclusive};
use core::time::Duration;
use std::collections::BTreeMap;

use super::rtt::Rtt;
use crate::time::Time;

/// A packet counts as lost when as many later ones were acknowledged (RFC 9002, 6.1.1).
const PACKET_THRESHOLD: u64 = 3;

/// All of as many probe time-outs lost is persistent congestion (RFC 9002, 7.6.1).
const PERSISTENT: u32 = 3;

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
}

/// A packet that is neither acknowledged nor lost.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    at: Time,
    size: u64,
    content: Content,
}

/// What an acknowledgement tells.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) acked: Vec<Content>,
    pub(super) lost: Vec<Content>,
    /// Bytes acknowledged, and when the last of them was sent.
    pub(super) acked_bytes: u64,
    pub(super) acked_sent: Time,
    /// When the last lost packet was sent.
    pub(super) lost_sent: Option<Time>,
    pub(super) persistent: bool,
}

/// The packets of a path in flight.
#[derive(Debug)]
pub(super) struct Recovery {
    pub(super) rtt: Rtt,
    sent: BTreeMap<u64, Sent>,
    in_flight: u64,
    largest_acked: Option<u64>,
    loss_at: Option<Time>,
    last_sent: Time,
    /// Probe time-outs since the last acknowledgement.
    backoff: u32,
    measured: Option<Time>,
}

impl Recovery {
    pub(super) const fn new(rtt: Rtt) -> Self {
        Self {
            rtt,
            sent: BTreeMap::new(),
            in_flight: 0,
            largest_acked: None,
            loss_at: None,
            last_sent: Time::ZERO,
            backoff: 0,
            measured: None,
        }
    }

    pub(super) const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Probe time-outs in a row.
    pub(super) const fn backoff(&self) -> u32 {
        self.backoff
    }

    /// Whether the round trip was not measured lately, so that an acknowledgement should be asked for.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        self.measured.is_none_or(|at| now - at > self.rtt.smoothed() * 4)
    }

    pub(super) fn on_sent(&mut self, now: Time, number: u64, size: u64, content: Content) {
        self.sent.insert(number, Sent { at: now, size, content });
        self.in_flight += size;
        self.last_sent = now;
    }

    /// Takes an acknowledgement of numbers that were all sent.
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        ranges: &[RangeInclusive<u64>],
        held: Duration,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let largest = ranges.first().map(|range| *range.end());
        for range in ranges {
            while let Some((number, _)) = self.sent.range(range.clone()).next() {
                let number = *number;
                let sent = self.sent.remove(&number).expect("it was just found");
                if largest == Some(number) {
                    self.rtt.add(now - sent.at, held);
                    self.measured = Some(now);
                }
                self.acknowledged(sent, &mut outcome);
            }
        }
        self.largest_acked = self.largest_acked.max(largest);
        if !outcome.acked.is_empty() {
            self.backoff = 0;
        }
        self.detect(now, &mut outcome);
        outcome
    }

    /// A message has implied the acknowledgement of these packets. It tells nothing of the round trip.
    pub(super) fn imply(&mut self, numbers: &[u64]) -> Outcome {
        let mut outcome = Outcome::default();
        for number in numbers {
            if let Some(sent) = self.sent.remove(number) {
                self.acknowledged(sent, &mut outcome);
            }
        }
        if !outcome.acked.is_empty() {
            self.backoff = 0;
        }
        outcome
    }

    fn acknowledged(&mut self, sent: Sent, outcome: &mut Outcome) {
        self.in_flight -= sent.size;
        outcome.acked_bytes += sent.size;
        outcome.acked_sent = outcome.acked_sent.max(sent.at);
        outcome.acked.push(sent.content);
    }

    /// Moves what is lost by now to `outcome` (RFC 9002, A.10).
    fn detect(&mut self, now: Time, outcome: &mut Outcome) {
        self.loss_at = None;
        let Some(largest) = self.largest_acked else { return };
        let delay = self.rtt.loss_delay();
        let mut lost = Vec::new();
        for (number, sent) in self.sent.range(..largest) {
            if largest - number >= PACKET_THRESHOLD || now - sent.at >= delay {
                lost.push(*number);
            } else {
                let at = sent.at + delay;
                self.loss_at = Some(self.loss_at.map_or(at, |first| first.min(at)));
            }
        }
        let mut first_sent = None;
        for number in lost {
            let sent = self.sent.remove(&number).expect("it was just found");
            self.in_flight -= sent.size;
            first_sent = first_sent.or(Some(sent.at));
            outcome.lost_sent = outcome.lost_sent.max(Some(sent.at));
            outcome.lost.push(sent.content);
        }
        if let (Some(first), Some(last)) = (first_sent, outcome.lost_sent) {
            let long = self.rtt.probe_timeout() * PERSISTENT;
            let none_between = outcome.acked.is_empty() || outcome.acked_sent > last;
            outcome.persistent = self.measured.is_some() && none_between && last - first > long;
        }
    }

    /// When [`on_timeout`](Self::on_timeout) is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        if self.loss_at.is_some() {
            return self.loss_at;
        }
        let backoff = 1 << self.backoff.min(BACKOFF_MAX);
        (!self.sent.is_empty()).then(|| self.last_sent + self.rtt.probe_timeout() * backoff)
    }

    /// The timer has expired: packets are lost, or (`None`) a probe is to be sent.
    pub(super) fn on_timeout(&mut self, now: Time) -> Option<Outcome> {
        if self.loss_at.is_some() {
            let mut outcome = Outcome::default();
            self.detect(now, &mut outcome);
            return Some(outcome);
        }
        self.backoff += 1;
        // The next probe is counted from here, even if none can be sent now.
        self.last_sent = now;
        None
    }

    /// The oldest bytes of a message in flight, for a probe.
    pub(super) fn oldest_fragment(&self) -> Option<(u16, u32, Range<u32>)> {
        self.sent.values().find_map(|sent| match &sent.content {
            Content::Fragment { slot, seq, range } => Some((*slot, *seq, range.clone())),
            Content::Query | Content::Control => None,
        })
    }
}
