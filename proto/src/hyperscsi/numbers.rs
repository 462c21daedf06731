//! Which packets have come, and when that is to be said (spec, 8).

use core::ops::RangeInclusive;
use core::time::Duration;

use super::codec::RANGES_MAX;
use super::ecn::{Ecn, EcnCounts};
use crate::time::Time;

/// Packets after which an acknowledgement is sent at once.
const PACKETS: u32 = 32;

/// Packets behind one that leaves a gap whose acknowledgement is sent at once: with it they are as many as show a loss.
const BEHIND_GAP: u8 = 2;

/// The packet numbers that have come on a path.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Highest first.
    ranges: Vec<RangeInclusive<u64>>,
    highest_at: Time,
    /// Packets that want an acknowledgement and have none.
    wanting: u32,
    /// Acknowledgements sent so far.
    sent: u64,
    due: Option<Time>,
    /// Packets whose acknowledgement is sent at once, as they are behind a gap.
    hurried: u8,
    delay: Duration,
    /// Only what asks for it is acknowledged at once (spec, 9.2).
    by_window: bool,
    /// What the packets to be acknowledged came with, and whether the last of them had CE.
    ecn: EcnCounts,
    was_marked: bool,
    /// One had CE, which is to be told at once.
    is_marked: bool,
}

impl Numbers {
    pub(super) fn new(delay: Duration, by_window: bool) -> Self {
        Self {
            ranges: Vec::new(),
            highest_at: Time::ZERO,
            wanting: 0,
            sent: 0,
            due: None,
            hurried: 0,
            delay,
            by_window,
            ecn: EcnCounts::default(),
            was_marked: false,
            is_marked: false,
        }
    }

    /// A packet has come; `wants` says whether it is to be acknowledged, and at once.
    pub(super) fn add(&mut self, now: Time, number: u64, wants: Option<bool>, ecn: Ecn) {
        let highest = self.ranges.first().map(|range| *range.end());
        let in_order = highest.map_or(number == 0, |highest| number == highest + 1);
        if highest.is_none_or(|highest| number > highest) {
            self.highest_at = now;
        }
        self.insert(number);
        let Some(at_once) = wants else { return };
        self.wanting += 1;
        let late = now + self.delay;
        let is_behind_gap = in_order && self.hurried > 0;
        self.hurried = if in_order { self.hurried.saturating_sub(1) } else { BEHIND_GAP };
        let hurries = !in_order || is_behind_gap || self.wanting >= PACKETS;
        let begins = self.count(ecn);
        let hurries = at_once || begins || hurries && !self.by_window;
        let at = if hurries { now } else { late };
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Counts a codepoint; whether congestion begins by it, which is told at once (spec, 9.3).
    fn count(&mut self, ecn: Ecn) -> bool {
        self.ecn.add(ecn);
        let was_marked = core::mem::replace(&mut self.was_marked, ecn == Ecn::Ce);
        let begins = self.was_marked && !was_marked;
        self.is_marked |= begins;
        begins
    }

    /// What the packets to be acknowledged came with.
    pub(super) const fn ecn(&self) -> EcnCounts {
        self.ecn
    }

    fn insert(&mut self, number: u64) {
        // Nearly always it follows the highest.
        let at = self.ranges.iter().position(|range| *range.end() < number);
        let at = at.unwrap_or(self.ranges.len());
        if at > 0 && self.ranges[at - 1].contains(&number) {
            return;
        }
        let above = at > 0 && *self.ranges[at - 1].start() == number + 1;
        let below = self.ranges.get(at).is_some_and(|range| *range.end() + 1 == number);
        match (above, below) {
            (true, true) => {
                self.ranges[at - 1] = *self.ranges[at].start()..=*self.ranges[at - 1].end();
                self.ranges.remove(at);
            }
            (true, false) => self.ranges[at - 1] = number..=*self.ranges[at - 1].end(),
            (false, true) => self.ranges[at] = *self.ranges[at].start()..=number,
            (false, false) => self.ranges.insert(at, number..=number),
        }
        self.ranges.truncate(RANGES_MAX);
    }

    /// How many acknowledgements were sent so far, for [`implied`](Self::implied).
    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// A message is sent that implies the acknowledgement of packets which have come since as many acknowledgements
    /// were sent.
    pub(super) fn implied(&mut self, since: u64, packets: u32) {
        if since != self.sent {
            return;
        }
        self.wanting = self.wanting.saturating_sub(packets);
        // That a packet is missing, or was marked, is told in any case.
        if self.wanting == 0 && self.hurried == 0 && !self.is_marked {
            self.due = None;
        }
    }

    /// An acknowledgement is to be sent at once.
    pub(super) fn hurry(&mut self, now: Time) {
        self.due = Some(now);
    }

    /// When the next acknowledgement is due.
    pub(super) const fn due(&self) -> Option<Time> {
        self.due
    }

    /// The ranges of an acknowledgement that is sent now, and how old the highest number is.
    pub(super) fn take(&mut self, now: Time) -> (Vec<RangeInclusive<u64>>, Duration) {
        (self.due, self.is_marked) = (None, false);
        self.wanting = 0;
        self.sent += 1;
        (self.ranges.clone(), now - self.highest_at)
    }

    /// Whether nothing has come.
    pub(super) const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Spec, 8: a gap is told of again until the sender knows that what lacks is lost (RFC 9002, 6.1.1).
    #[test]
    fn packets_behind_a_gap_are_acknowledged_at_once() {
        let delay = Duration::from_millis(5);
        let mut kept = Numbers::new(delay, false);
        for (number, at_once) in
            [(0, false), (1, false), (3, true), (4, true), (5, true), (6, false)]
        {
            kept.add(Time::ZERO, number, Some(false), Ecn::NotEct);
            let due = kept.due().unwrap();
            assert_eq!(due == Time::ZERO, at_once, "{number}");
            kept.take(Time::ZERO);
        }
    }

    /// Spec, 9.3: not each of many, and also if a reply has acknowledged the packet.
    #[test]
    fn first_mark_of_several_is_told_at_once() {
        let mut kept = Numbers::new(Duration::from_millis(5), false);
        for (number, ecn, at_once) in [
            (0, Ecn::Ect0, false),
            (1, Ecn::Ce, true),
            (2, Ecn::Ce, false),
            (3, Ecn::Ect0, false),
            (4, Ecn::Ce, true),
        ] {
            let since = kept.sent();
            kept.add(Time::ZERO, number, Some(false), ecn);
            kept.implied(since, 1);
            assert_eq!(kept.due(), at_once.then_some(Time::ZERO), "{number}");
            kept.take(Time::ZERO);
        }
        assert_eq!(kept.ecn(), EcnCounts { ect0: 2, ect1: 0, ce: 3 });
    }

    proptest! {
        #[test]
        fn ranges_hold_the_highest_numbers_that_came(numbers in proptest::collection::vec(0..300_u64, 1..200)) {
            let mut kept = Numbers::new(Duration::ZERO, false);
            let (mut all, mut was_full) = (BTreeSet::new(), false);
            for number in numbers {
                kept.add(Time::ZERO, number, None, Ecn::NotEct);
                all.insert(number);
                was_full |= kept.ranges.len() == RANGES_MAX;
            }
            let (ranges, _) = kept.take(Time::ZERO);
            let listed: BTreeSet<_> = ranges.iter().cloned().flatten().collect();
            prop_assert!(listed.is_subset(&all));
            if !was_full {
                prop_assert_eq!(&listed, &all);
            }
            prop_assert!(ranges.windows(2).all(|pair| pair[1].end() + 1 < *pair[0].start()));
        }
    }
}
