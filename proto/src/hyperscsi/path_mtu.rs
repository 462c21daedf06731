//! The longest packet that a path carries, found by probes (RFC 8899; spec, 9).

use core::time::Duration;

use super::config::PACKET_MIN;
use crate::time::Time;

/// Probes of one size that are lost before it counts as too long (RFC 8899, 5.1.2: MAX_PROBES).
const PROBES_MAX: u8 = 3;

/// After as long it is looked for anew whether the path carries more (RFC 8899, 5.1.1: PMTU_RAISE_TIMER).
const RAISE: Duration = Duration::from_secs(600);

/// A probe that cannot be sent is put off for as long.
const LATER: Duration = Duration::from_millis(100);

/// Sizes that are closer to each other are not told apart.
const STEP: u16 = 32;

/// Times in a row at which only long packets were found lost, and none arrived: a path that carries them no more.
const LOST_MAX: u8 = 3;

/// What fills IP and UDP headers up to the MTU of Ethernet: the most usual size, and tried before others.
const USUAL: u16 = 1452;

/// How long packets of a path may be.
#[derive(Debug)]
pub(super) struct PathMtu {
    /// Packets of this size arrive, as far as is known.
    current: u16,
    /// No end takes longer ones.
    max: u16,
    /// Packets of this size do not arrive.
    refused: Option<u16>,
    /// The size that is tried, while a probe of it is under way.
    probe: Option<u16>,
    /// Probes of the next size that were lost.
    lost_probes: u8,
    /// When the next probe is sent: none before a packet has arrived.
    next: Option<Time>,
    /// Times in a row at which long packets were found lost.
    lost: u8,
}

impl PathMtu {
    /// Of a path that is taken to carry packets of `first` bytes, between ends that take `max`.
    pub(super) const fn new((first, max): (u16, u16)) -> Self {
        Self {
            current: if first < max { first } else { max },
            max,
            refused: None,
            probe: None,
            lost_probes: 0,
            next: None,
            lost: 0,
        }
    }

    /// How long packets may be.
    pub(super) const fn current(&self) -> u16 {
        self.current
    }

    /// The size that is tried next: the longest, then the usual, then between what is known.
    fn candidate(&self) -> Option<u16> {
        let Some(refused) = self.refused else {
            return (self.current < self.max).then_some(self.max);
        };
        if (self.current + 1..refused).contains(&USUAL) {
            return Some(USUAL);
        }
        (refused - self.current > STEP).then(|| self.current + (refused - self.current) / 2)
    }

    /// The size of a probe, if one is to be sent.
    pub(super) fn poll_probe(&mut self, now: Time) -> Option<u16> {
        if self.deadline()? > now {
            return None;
        }
        if self.candidate().is_none() {
            // The path may be another one by now.
            (self.refused, self.lost_probes) = (None, 0);
        }
        self.probe = self.candidate();
        if self.probe.is_none() {
            self.next = Some(now + RAISE);
        }
        self.probe
    }

    /// No probe can be sent now: the next one comes later.
    pub(super) fn put_off(&mut self, now: Time) {
        self.next = self.next.map(|next| next.max(now + LATER));
    }

    /// When a probe is to be sent.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.next.filter(|_| self.probe.is_none() && self.current < self.max)
    }

    /// Packets arrived, the longest of which had this size.
    pub(super) fn on_acked(&mut self, now: Time, size: u64) {
        self.next.get_or_insert(now);
        if size >= u64::from(self.current) {
            self.lost = 0;
        }
        let size = u16::try_from(size).unwrap_or(u16::MAX).min(self.max);
        if size > self.current {
            // A probe, or what was taken for lost.
            (self.current, self.lost_probes) = (size, 0);
            self.refused = self.refused.filter(|refused| *refused > size);
            self.probe = self.probe.filter(|probe| *probe > size);
            self.settle(now);
        }
    }

    /// A probe was lost.
    pub(super) fn on_probe_lost(&mut self, now: Time) {
        let Some(probe) = self.probe.take() else { return };
        self.lost_probes += 1;
        if self.lost_probes >= PROBES_MAX {
            (self.refused, self.lost_probes) = (Some(probe), 0);
        }
        self.settle(now);
    }

    fn settle(&mut self, now: Time) {
        let is_found = self.refused.is_some() && self.candidate().is_none();
        self.next = Some(if is_found { now + RAISE } else { now });
    }

    /// Packets were found lost, the shortest of which had this size. If no long one arrives for some time, none are sent.
    pub(super) fn on_lost(&mut self, now: Time, shortest: u64) {
        if self.current <= PACKET_MIN || shortest <= u64::from(PACKET_MIN) {
            return;
        }
        self.lost += 1;
        if self.lost < LOST_MAX {
            return;
        }
        (self.refused, self.current) = (Some(self.current), PACKET_MIN);
        (self.probe, self.lost_probes, self.lost) = (None, 0, 0);
        self.settle(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends probes by a path that carries packets of `carries` bytes, until none is sent for a minute; how many.
    fn probe(mtu: &mut PathMtu, now: &mut Time, carries: u16) -> usize {
        let (mut count, end) = (0, *now + Duration::from_secs(60));
        mtu.on_acked(*now, 100);
        while let Some(at) = mtu.deadline().filter(|at| *at < end) {
            *now = at.max(*now);
            let Some(size) = mtu.poll_probe(*now) else { continue };
            count += 1;
            if size <= carries { mtu.on_acked(*now, size.into()) } else { mtu.on_probe_lost(*now) }
        }
        count
    }

    /// Spec, 9.4: losses that were none.
    #[test]
    fn long_packet_that_comes_late_shows_that_the_path_carries_it() {
        let (mut mtu, now) = (PathMtu::new((1452, 1452)), Time::ZERO);
        (0..LOST_MAX).for_each(|_| mtu.on_lost(now, 1452));
        assert_eq!(mtu.current(), PACKET_MIN);
        mtu.on_acked(now, 1452);
        assert_eq!((mtu.current(), mtu.deadline()), (1452, None));
    }

    #[test]
    fn longest_packet_is_found_by_few_probes() {
        for (carries, most, probes) in [
            (9000, 8952, 1),
            (1452, 1452, 28),
            (1472, 1472, 28),
            (1420, 1420, 28),
            (1200, 1200, 28),
            (4000, 4000, 28),
        ] {
            let (mut mtu, mut now) = (PathMtu::new((1200, 8952)), Time::ZERO);
            let count = probe(&mut mtu, &mut now, carries);
            let found = mtu.current();
            assert!(
                (most - STEP..=most).contains(&found) && count <= probes,
                "{carries}: {found}, {count}"
            );
        }
        let mut mtu = PathMtu::new((1500, 1300));
        assert_eq!((probe(&mut mtu, &mut Time::ZERO.clone(), 9000), mtu.current()), (0, 1300));
    }

    #[test]
    fn nothing_is_probed_before_a_packet_has_arrived_nor_while_the_link_takes_none() {
        let mut mtu = PathMtu::new((1200, 8952));
        mtu.put_off(Time::ZERO);
        assert_eq!(mtu.deadline(), None);
        mtu.on_acked(Time::ZERO, 100);
        mtu.put_off(Time::ZERO);
        let later = Time::ZERO + LATER;
        assert_eq!((mtu.poll_probe(Time::ZERO), mtu.deadline()), (None, Some(later)));
        assert_eq!(mtu.poll_probe(later), Some(8952));
    }

    #[test]
    fn path_that_carries_more_later_is_noticed() {
        let (mut mtu, mut now) = (PathMtu::new((1200, 8952)), Time::ZERO);
        probe(&mut mtu, &mut now, 1420);
        assert!(mtu.deadline().unwrap() >= now + RAISE);
        now = mtu.deadline().unwrap();
        probe(&mut mtu, &mut now, 9000);
        assert_eq!((mtu.current(), mtu.deadline()), (8952, None), "nothing is left to look for");
    }

    #[test]
    fn path_that_carries_long_packets_no_more_is_noticed() {
        let (mut mtu, mut now) = (PathMtu::new((1200, 8952)), Time::ZERO);
        probe(&mut mtu, &mut now, 9000);
        for size in [8952, 1200] {
            (0..2).for_each(|_| mtu.on_lost(now, 8952));
            mtu.on_acked(now, 8952);
            (0..9).for_each(|_| mtu.on_lost(now, size.min(1200)));
            assert_eq!(mtu.current(), 8952, "one has arrived between, or short ones are lost too");
        }
        (0..3).for_each(|_| mtu.on_lost(now, 5000));
        assert_eq!(mtu.current(), PACKET_MIN);
        probe(&mut mtu, &mut now, 1500);
        assert!((1452..=1500).contains(&mtu.current()));
    }
}
