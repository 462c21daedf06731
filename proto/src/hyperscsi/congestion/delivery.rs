//! How fast a path delivers what is sent by it: delivery rate samples (draft-ietf-ccwg-bbr, 4.1).

use core::time::Duration;

use crate::time::Time;

/// What was known of a path when a packet was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::hyperscsi) struct SendState {
    sent_at: Time,
    size: u64,
    delivered: u64,
    delivered_at: Time,
    first_sent: Time,
    lost: u64,
    in_flight: u64,
    is_app_limited: bool,
}

impl SendState {
    /// When the packet was sent.
    pub(in crate::hyperscsi) const fn sent_at(&self) -> Time {
        self.sent_at
    }

    /// Its bytes.
    pub(in crate::hyperscsi) const fn size(&self) -> u64 {
        self.size
    }
}

/// What the acknowledgement of packets tells of the rate, by the one of them that was sent last.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::hyperscsi) struct RateSample {
    /// Bytes delivered since it was sent, in as long.
    pub(super) delivered: u64,
    pub(super) interval: Duration,
    /// Bytes delivered before it was sent, and until now.
    pub(super) delivered_before: u64,
    pub(super) delivered_in_all: u64,
    /// Bytes in flight when it had been sent.
    pub(super) in_flight: u64,
    /// Bytes lost since it was sent.
    pub(super) lost: u64,
    /// There was less to send than the path would have taken.
    pub(super) is_app_limited: bool,
}

impl RateSample {
    /// Bytes per second; 0 if nothing is known.
    pub(super) fn rate(&self) -> u64 {
        let nanoseconds = self.interval.as_nanos();
        let rate = (u128::from(self.delivered) * 1_000_000_000).checked_div(nanoseconds);
        rate.map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

/// A packet that was lost.
#[derive(Clone, Copy, Debug)]
pub(in crate::hyperscsi) struct LostPacket {
    pub(super) size: u64,
    /// Bytes in flight when it had been sent.
    pub(super) in_flight: u64,
    /// Bytes lost since then, its own among them.
    pub(super) lost: u64,
    pub(super) is_app_limited: bool,
}

/// What was delivered by a path so far.
#[derive(Debug)]
pub(in crate::hyperscsi) struct Delivery {
    delivered: u64,
    delivered_at: Time,
    /// When the packet was sent with which the current sample begins.
    first_sent: Time,
    lost: u64,
    /// Until as much is delivered, there was less to send than the path would have taken.
    app_limited: u64,
}

impl Delivery {
    pub(in crate::hyperscsi) const fn new() -> Self {
        let (delivered_at, first_sent) = (Time::ZERO, Time::ZERO);
        Self { delivered: 0, delivered_at, first_sent, lost: 0, app_limited: 0 }
    }

    /// A packet is sent while as many bytes are in flight.
    pub(in crate::hyperscsi) const fn on_sent(
        &mut self,
        now: Time,
        in_flight: u64,
        size: u64,
    ) -> SendState {
        if in_flight == 0 {
            (self.first_sent, self.delivered_at) = (now, now);
        }
        SendState {
            sent_at: now,
            size,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            lost: self.lost,
            in_flight: in_flight + size,
            is_app_limited: self.app_limited > 0,
        }
    }

    /// Nothing is there to be sent, although the path would take more than the bytes that are in flight.
    pub(in crate::hyperscsi) fn limit(&mut self, in_flight: u64) {
        self.app_limited = (self.delivered + in_flight).max(1);
    }

    /// A packet was delivered; `newest` is the one of those acknowledged together that was sent last.
    pub(in crate::hyperscsi) fn on_delivered(
        &mut self,
        now: Time,
        packet: SendState,
        newest: &mut Option<SendState>,
    ) {
        self.delivered += packet.size;
        self.delivered_at = now;
        if newest.is_none_or(|newest| packet.sent_at >= newest.sent_at) {
            *newest = Some(packet);
        }
    }

    /// A packet was lost.
    pub(in crate::hyperscsi) const fn on_lost(&mut self, packet: SendState) -> LostPacket {
        self.lost += packet.size;
        let SendState { size, in_flight, is_app_limited, .. } = packet;
        LostPacket { size, in_flight, lost: self.lost.saturating_sub(packet.lost), is_app_limited }
    }

    /// A packet that was taken for lost was not.
    pub(in crate::hyperscsi) const fn on_late(&mut self, packet: SendState) {
        self.lost = self.lost.saturating_sub(packet.size);
    }

    /// What these acknowledgements tell. The time of sending counts where that is longer than the time of arriving: what arrives
    /// together may have waited on its way.
    pub(in crate::hyperscsi) fn sample(&mut self, newest: SendState) -> RateSample {
        self.first_sent = newest.sent_at;
        if self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let sending = newest.sent_at - newest.first_sent;
        let arriving = self.delivered_at - newest.delivered_at;
        RateSample {
            delivered: self.delivered - newest.delivered,
            interval: sending.max(arriving),
            delivered_before: newest.delivered,
            delivered_in_all: self.delivered,
            in_flight: newest.in_flight,
            lost: self.lost.saturating_sub(newest.lost),
            is_app_limited: newest.is_app_limited,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_origin(Duration::from_millis(ms))
    }

    /// Packets of 1000 bytes are sent every millisecond; they arrive when `arrives` says. The rates of the last ones.
    fn rates(arrives: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut delivery, mut under_way, mut rates) = (Delivery::new(), Vec::new(), Vec::new());
        for ms in 0..200 {
            while let Some((_, packet)) = under_way.first().copied().filter(|(due, _)| *due <= ms) {
                under_way.remove(0);
                let mut newest = None;
                delivery.on_delivered(at(ms), packet, &mut newest);
                rates.push(delivery.sample(newest.unwrap()).rate());
            }
            if ms < 100 {
                let in_flight = 1000 * under_way.len() as u64;
                under_way.push((arrives(ms), delivery.on_sent(at(ms), in_flight, 1000)));
            }
        }
        rates.split_off(50)
    }

    #[test]
    fn rate_is_that_of_sending_or_of_arriving_whichever_is_less() {
        assert!(rates(|sent| sent + 10).iter().all(|rate| *rate == 1_000_000));
        let slow = rates(|sent| 10 + 2 * sent);
        assert!(slow.iter().all(|rate| (450_000..=550_000).contains(rate)), "{slow:?}");
        let late = rates(|sent| if sent < 40 { sent + 10 } else { 110.max(sent + 10) });
        assert!(late.iter().all(|rate| *rate <= 1_000_000), "{late:?}");
    }

    #[test]
    fn sample_is_limited_by_what_there_was_to_send_until_all_of_that_has_arrived() {
        let mut delivery = Delivery::new();
        let first = delivery.on_sent(at(0), 0, 1000);
        delivery.limit(1000);
        let second = delivery.on_sent(at(1), 1000, 1000);
        let mut newest = None;
        delivery.on_delivered(at(10), first, &mut newest);
        assert!(!delivery.sample(newest.unwrap()).is_app_limited);
        let mut newest = None;
        delivery.on_delivered(at(11), second, &mut newest);
        assert!(delivery.sample(newest.unwrap()).is_app_limited);
        assert!(!delivery.on_sent(at(12), 0, 1000).is_app_limited);
    }

    #[test]
    fn lost_packet_knows_what_was_lost_since_it_was_sent() {
        let mut delivery = Delivery::new();
        let sent: Vec<_> = (0..3).map(|n| delivery.on_sent(at(n), 1000 * n, 1000)).collect();
        let lost: Vec<_> = sent.into_iter().map(|packet| delivery.on_lost(packet)).collect();
        assert_eq!(lost.iter().map(|one| one.lost).collect::<Vec<_>>(), [1000, 2000, 3000]);
        assert_eq!(lost[2].in_flight, 3000);
    }
}
