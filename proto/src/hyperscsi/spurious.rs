//! Losses that were none: packets that were taken for lost, and came late (RFC 9002, 6.1.1; spec, 9.4).

use core::ops::RangeInclusive;
use core::time::Duration;

use super::congestion::delivery::SendState;
use crate::time::Time;

/// Lost packets of an event that are remembered: it is taken for true if there are more.
const REMEMBERED: usize = 4096;

/// Eighths of the round trip that each late packet adds to what is waited for (a quarter, RFC 8985, 6.2, step 4).
const STEP: u32 = 2;

/// And at most: with the eighth of RFC 9002, 6.1.2, a round trip is waited for beyond the usual one.
const WINDOW_MAX: u32 = 7;

/// Events without a packet that came late after which nothing is waited for any more (RFC 8985, 6.2, step 4).
const PERSISTS: u32 = 16;

/// The packets of the last congestion event that are lost as far as is known.
#[derive(Debug, Default)]
struct Event {
    /// Losses of what was sent before belong to it.
    begun: Option<Time>,
    /// In their order, but for those that came.
    packets: Vec<(u64, SendState)>,
    /// It stays: there were too many packets, or nothing got through for long.
    is_true: bool,
}

/// What is known of packets that come late.
#[derive(Debug, Default)]
pub(super) struct Reordering {
    event: Event,
    /// Eighths of the round trip beyond the usual.
    window: u32,
    /// The last packet was sent then by which it grew, and as many events may have none before it ends.
    grown: Option<Time>,
    persists: u32,
}

impl Reordering {
    /// Packets were lost together; when the last of them was sent.
    pub(super) fn lost(&mut self, now: Time, packets: Vec<(u64, SendState)>, last: Time) {
        if self.event.begun.is_none_or(|begun| last > begun) {
            self.event = Event { begun: Some(now), ..Event::default() };
            self.persists = self.persists.saturating_sub(1);
            if self.persists == 0 {
                self.window = 0;
            }
        }
        let event = &mut self.event;
        event.is_true |= event.packets.len() + packets.len() > REMEMBERED;
        if event.is_true {
            event.packets.clear();
            return;
        }
        event.packets.extend(packets);
        event.packets.sort_unstable_by_key(|(number, _)| *number);
    }

    /// The last event is true, whatever comes.
    pub(super) fn confirm(&mut self) {
        self.event.is_true = true;
        self.event.packets.clear();
    }

    /// Takes out the lost packets that these acknowledgements show to have come, if it is no longer ago than `latest` that they
    /// were found lost; whether all of the event have.
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        (acked, latest): (&[RangeInclusive<u64>], Duration),
        mut each: impl FnMut(SendState),
    ) -> bool {
        if self.event.begun.is_some_and(|begun| now - begun > latest) {
            self.confirm();
        }
        let mut grown = None;
        let before = self.event.packets.len();
        self.event.packets.retain(|(number, state)| {
            // Highest first.
            let at = acked.partition_point(|range| range.start() > number);
            let has_come = acked.get(at).is_some_and(|range| range.contains(number));
            if has_come {
                grown = grown.max(Some(state.sent_at()));
                each(*state);
            }
            !has_come
        });
        if self.event.packets.len() == before {
            return false;
        }
        // Once in a round trip, as all of one come late together.
        if self.grown.is_none_or(|at| grown > Some(at)) {
            self.window = (self.window + STEP).min(WINDOW_MAX);
            self.grown = Some(now);
        }
        self.persists = PERSISTS;
        let is_spurious = self.event.packets.is_empty();
        if is_spurious {
            self.event = Event::default();
        }
        is_spurious
    }

    /// Whether packets overtake one another, so that those that were acknowledged behind a packet say nothing about it.
    pub(super) const fn is_seen(&self) -> bool {
        self.window > 0
    }

    /// Eighths of the round trip after which a packet is lost.
    pub(super) const fn eighths(&self) -> u32 {
        9 + self.window
    }

    /// The path goes elsewhere, or nothing of what is in flight will be acknowledged.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::congestion::delivery::Delivery;
    use super::*;

    const LATEST: Duration = Duration::from_millis(30);

    fn at(ms: u64) -> Time {
        Time::from_origin(Duration::from_millis(ms))
    }

    /// Packets with these numbers, each sent at its number in milliseconds.
    fn packets(numbers: &[u64]) -> Vec<(u64, SendState)> {
        let mut delivery = Delivery::new();
        numbers.iter().map(|number| (*number, delivery.on_sent(at(*number), 0, 100))).collect()
    }

    fn lose(reordering: &mut Reordering, now: u64, numbers: &[u64]) {
        reordering.lost(at(now), packets(numbers), at(*numbers.last().unwrap()));
    }

    #[test]
    fn event_is_spurious_once_all_of_its_packets_have_come() {
        let mut reordering = Reordering::default();
        lose(&mut reordering, 20, &[5, 6, 8]);
        lose(&mut reordering, 21, &[12]);
        let mut come = 0;
        for (acked, expected) in [
            (vec![13..=20, 9..=11, 7..=7], false),
            (vec![13..=20, 6..=7], false),
            (vec![12..=12, 0..=5], false),
            (vec![0..=20], true),
            (vec![0..=20], false),
        ] {
            assert_eq!(
                reordering.on_ack(at(30), (&acked, LATEST), |_| come += 1),
                expected,
                "{acked:?}"
            );
        }
        assert_eq!(come, 4);
    }

    /// A later event cannot be undone by packets of an earlier one, nor persistent congestion at all.
    #[test]
    fn event_that_is_over_or_persistent_is_not_undone() {
        let mut reordering = Reordering::default();
        lose(&mut reordering, 20, &[5]);
        lose(&mut reordering, 40, &[25]);
        assert!(!reordering.on_ack(at(41), (&[0..=5], LATEST), |_| panic!("it is forgotten")));
        lose(&mut reordering, 42, &[26]);
        reordering.confirm();
        lose(&mut reordering, 43, &[27]);
        assert!(!reordering.on_ack(at(44), (&[0..=99], LATEST), |_| panic!("it is forgotten")));
        lose(&mut reordering, 60, &[50]);
        assert!(!reordering.on_ack(at(91), (&[0..=99], LATEST), |_| panic!("it is too late")));
        let many: Vec<u64> = (100..=100 + REMEMBERED as u64).collect();
        lose(&mut reordering, 5000, &many);
        assert!(
            !reordering.on_ack(at(5001), (&[0..=9999], LATEST), |_| panic!("they are too many"))
        );
    }

    /// RFC 8985, 6.2, step 4.
    #[test]
    fn window_grows_once_per_round_trip_and_ends_after_some_true_losses() {
        let mut reordering = Reordering::default();
        let mut windows = Vec::new();
        for round in 0..6 {
            let first = 100 * round;
            lose(&mut reordering, first + 50, &[first + 1, first + 2]);
            for number in [first + 1, first + 2] {
                reordering.on_ack(at(first + 60), (&[number..=number], LATEST), |_| {});
            }
            windows.push(reordering.eighths());
        }
        assert_eq!(windows, [11, 13, 15, 16, 16, 16], "at most two round trips");
        for event in 0..u64::from(PERSISTS) {
            assert!(reordering.is_seen(), "{event}");
            lose(&mut reordering, 1050 + 100 * event, &[1000 + 100 * event]);
        }
        assert_eq!((reordering.is_seen(), reordering.eighths()), (false, 9));
    }
}
