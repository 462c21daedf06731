//! A path of a connection: its address, its packet numbers, and what may be in flight on it (spec, 9 and 14).

use core::num::NonZeroU16;
use core::time::Duration;

use super::address::{Address, Endpoint, LinkId};
use super::config::{CongestionControl, PATHS_MAX, Timing};
use super::congestion::{self, Acked, Congestion};
use super::ecn::{Ecn, PathEcn};
use super::numbers::Numbers;
use super::pacer::Pacer;
use super::path_mtu::PathMtu;
use super::recovery::{Content, Outcome, Recovery};
use super::replay::ReplayWindow;
use super::rtt::Rtt;
use super::whole_window::WholeWindow;
use crate::time::Time;

/// After so many packets without a question the last one that can be sent asks for an acknowledgement at once.
const MANY: u32 = 8;

/// A path whose probes time out so often in a row has failed, if another one is there.
const FAILED_AFTER: u32 = 2;

/// And for as long: the queue of a link may become far longer than the round trip was that probe time-outs follow from.
const FAILED_SILENCE: Duration = Duration::from_millis(100);

/// For as long a path that does not answer is used as before.
const DOUBTFUL_AFTER: Duration = Duration::from_millis(25);

/// A proof is asked for again after this time at the latest.
const PROVE_LAST: Duration = Duration::from_secs(1);

/// A server sends to an address that is not proven at most as many times the bytes that came from there.
const AMPLIFICATION: u64 = 3;

/// How a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PathState {
    /// The peer has not been reached by it yet.
    Unproven,
    /// Data go by it.
    Active,
    /// It carries nothing any more, and data go by others.
    Failed,
}

impl PathState {
    /// As it is shown.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unproven => "unproven",
            Self::Active => "active",
            Self::Failed => "failed",
        }
    }
}

/// How the way to a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStats {
    /// The number of the path.
    pub path: u8,
    /// Whether it is used.
    pub state: PathState,
    /// Where the peer is.
    pub endpoint: Endpoint,
    /// The smoothed round trip.
    pub rtt: Duration,
    /// Bytes that may be in flight, and that are.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// The longest packets that it is known to carry, in bytes.
    pub packet: u16,
    /// Packets sent that have to be acknowledged.
    pub sent: u64,
    /// Those of them that were lost.
    pub lost: u64,
    /// Packets that the peer has received with ECN's mark of congestion.
    pub marked: u64,
    /// Events of congestion that were none, as all packets came that were taken for lost.
    pub undone: u64,
    /// Packets that came with a wrong tag, by whatever path.
    pub forged: u64,
    /// The number of the keys.
    pub epoch: u64,
}

/// What all paths of a connection have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Profile {
    pub(super) timing: Timing,
    /// The peer's longest delay of acknowledgements.
    pub(super) peer_delay: Duration,
    pub(super) control: CongestionControl,
    /// The packets that every path is taken to carry, and the longest that both ends take.
    pub(super) packets: (u16, u16),
    /// Packets of a window that is acknowledged as a whole.
    pub(super) window: Option<NonZeroU16>,
    /// Acknowledgements count what packets came with.
    pub(super) ecn: bool,
}

impl Profile {
    /// Whether ECN may be used on the way to an address: Ethernet has none.
    const fn has_ecn(&self, endpoint: Endpoint) -> bool {
        self.ecn && matches!(endpoint.address, Address::Ip(_))
    }
}

/// An address that is being proven (spec, 14).
#[derive(Clone, Copy, Debug)]
pub(super) struct Proof {
    pub(super) to: Endpoint,
    pub(super) token: [u8; 8],
    /// Bytes that may be sent there before it is proven.
    allowance: u64,
    /// When ADDR_REPORT was sent last, and how often.
    sent: (Time, u32),
    next: Time,
    interval: Duration,
    /// Nobody is asked any more then.
    until: Option<Time>,
}

impl Proof {
    /// Of an address to which as many bytes may be sent.
    pub(super) fn new(
        now: Time,
        (to, token): (Endpoint, [u8; 8]),
        allowance: u64,
        (interval, until): (Duration, Option<Time>),
    ) -> Self {
        let interval = interval.min(PROVE_LAST);
        Self { to, token, allowance, sent: (now, 0), next: now, interval, until }
    }

    /// As many bytes came from its address.
    pub(super) const fn received(&mut self, bytes: u64) {
        self.allowance = self.allowance.saturating_add(bytes.saturating_mul(AMPLIFICATION));
    }

    /// Whether as many bytes may be sent there; they are counted as sent.
    pub(super) const fn spend(&mut self, bytes: u64) -> bool {
        let left = self.allowance.checked_sub(bytes);
        if let Some(left) = left {
            self.allowance = left;
        }
        left.is_some()
    }
}

/// Packets of a message and the acknowledgements of their path that were sent when the first of them came.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    since: u64,
    packets: u32,
}

/// Packets of a message that were not acknowledged, by path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unacknowledged([Count; PATHS_MAX as usize]);

/// One path.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) number: u8,
    pub(super) endpoint: Endpoint,
    pub(super) state: PathState,
    pub(super) proof: Option<Proof>,
    /// The number of the next packet that is sent.
    next: u64,
    pub(super) replay: ReplayWindow,
    pub(super) numbers: Numbers,
    pub(super) recovery: Recovery,
    congestion: Box<dyn Congestion>,
    ecn: PathEcn,
    pacer: Pacer,
    mtu: PathMtu,
    window: Option<WholeWindow>,
    profile: Profile,
    /// Packets that may leave regardless of the window.
    pub(super) probes: u8,
    /// Packets since the last one that asked for an acknowledgement at once.
    unasked: u32,
    pub(super) last_valid: Time,
    pub(super) last_query: Time,
}

impl Path {
    pub(super) fn new(
        now: Time,
        (number, endpoint, state): (u8, Endpoint, PathState),
        profile: Profile,
    ) -> Self {
        let Profile { timing, peer_delay, control, packets, window, .. } = profile;
        let mtu = PathMtu::new(packets);
        let packet = mtu.current();
        Self {
            number,
            endpoint,
            state,
            proof: None,
            next: 0,
            replay: ReplayWindow::new(),
            numbers: Numbers::new(timing.ack_delay, window.is_some()),
            recovery: Recovery::new(Rtt::new(timing, peer_delay)),
            congestion: congestion::new(control, packet),
            ecn: PathEcn::new(profile.has_ecn(endpoint)),
            pacer: Pacer::new(now, packet),
            mtu,
            window: window.map(WholeWindow::new),
            profile,
            probes: 0,
            unasked: 0,
            last_valid: now,
            last_query: now,
        }
    }

    /// The next packet number, with that of the path.
    pub(super) const fn take_number(&mut self) -> (u8, u64) {
        self.next += 1;
        (self.number, self.next - 1)
    }

    /// Whether a packet with this number was sent.
    pub(super) const fn has_sent(&self, number: u64) -> bool {
        number < self.next
    }

    /// A packet was sent that has to be acknowledged; `asked` says whether the peer does so at once.
    pub(super) fn on_sent(
        &mut self,
        now: Time,
        (number, asked): (u64, bool),
        size: u64,
        content: Content,
    ) {
        self.unasked = if asked { 0 } else { self.unasked.saturating_add(1) };
        if let Some(window) = &mut self.window {
            window.on_sent(&content, asked);
        }
        let has_ect = self.ecn(&content) == Ecn::Ect0;
        if has_ect {
            self.ecn.on_sent();
        }
        self.recovery.on_sent(now, (number, asked), size, (content, has_ect));
        self.pacer.sent(size);
    }

    /// What a packet with this content is sent with. Where nothing is acknowledged, it may be ECN that is dropped; and probes of
    /// the MTU are lost for other reasons.
    pub(super) fn ecn(&self, content: &Content) -> Ecn {
        let is_used = self.is_answering() && *content != Content::Probe;
        if is_used { self.ecn.codepoint() } else { Ecn::NotEct }
    }

    /// A probe time-out has expired.
    pub(super) fn on_timeout(&mut self) {
        if self.ecn.on_timeout() {
            self.recovery.forget_ect();
        }
    }

    /// Whether nothing is overdue.
    pub(super) fn is_answering(&self) -> bool {
        self.state == PathState::Active && self.recovery.backoff() == 0
    }

    /// Whether data go by it, and arrive as far as is known.
    pub(super) fn is_good(&self, now: Time) -> bool {
        self.state == PathState::Active && self.recovery.silence(now) <= DOUBTFUL_AFTER
    }

    /// Whether nothing arrives by it, so that it fails where another one is there.
    pub(super) fn is_lost(&self, now: Time) -> bool {
        let is_silent = self.recovery.silence(now) >= FAILED_SILENCE;
        self.state == PathState::Active && is_silent && self.recovery.backoff() >= FAILED_AFTER
    }

    /// Whether acknowledgements may be sent: not to an address that somebody else may have given (spec, 14).
    pub(super) fn may_acknowledge(&self, is_server: bool) -> bool {
        !is_server || self.state != PathState::Unproven
    }

    /// How long packets may be.
    pub(super) const fn packet(&self) -> u16 {
        self.mtu.current()
    }

    /// The size of a probe of longer packets, if one is due, and `takes` says that its link takes it.
    pub(super) fn poll_mtu_probe(
        &mut self,
        now: Time,
        takes: impl FnOnce(LinkId) -> bool,
    ) -> Option<u16> {
        self.mtu.deadline().filter(|at| *at <= now && self.is_answering())?;
        if !takes(self.endpoint.link) {
            self.mtu.put_off(now);
            return None;
        }
        self.mtu.poll_probe(now)
    }

    /// How much may be in flight.
    pub(super) fn window(&self) -> u64 {
        self.congestion.window()
    }

    /// When the next packet may leave, as far as the window has room for it.
    pub(super) fn ready(&mut self, now: Time) -> Option<Time> {
        if self.probes > 0 {
            return Some(now);
        }
        let in_flight = self.recovery.in_flight();
        if let Some(window) = &mut self.window
            && !window.is_open(in_flight)
        {
            return None;
        }
        let has_room = in_flight + u64::from(self.packet()) <= self.window();
        let pace = self.congestion.pace(self.recovery.rtt.smoothed());
        has_room.then(|| self.pacer.ready(now, pace))
    }

    /// How long as many bytes take to arrive, the first of which leaves at once.
    pub(super) fn arrival(&self, bytes: u64) -> Duration {
        let rtt = self.recovery.rtt.smoothed();
        let nanoseconds = u128::from(bytes) * rtt.as_nanos() / u128::from(self.window().max(1));
        rtt / 2 + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// Whether the packet of data that leaves now asks for an acknowledgement at once; `is_last`: nothing else waits.
    pub(super) fn asks(&mut self, now: Time, is_last: bool) -> bool {
        // The packet that closes the window: nothing else is sent until there is an answer.
        let two = 2 * u64::from(self.packet());
        let closes = self.recovery.in_flight() + two > self.window();
        // The last one of many, as nothing behind it would show that it was lost.
        let ends = is_last && self.unasked >= MANY;
        let asks = match &self.window {
            Some(window) => self.probes > 0 || closes || ends || window.is_last(),
            None => self.probes > 0 || closes || ends || self.recovery.is_stale(now),
        };
        self.probes = self.probes.saturating_sub(1);
        asks
    }

    /// Nothing is there to be sent: notes whether it would take more.
    pub(super) fn note_limit(&mut self) {
        let in_flight = self.recovery.in_flight();
        if in_flight + u64::from(self.packet()) <= self.window() {
            self.recovery.limit(in_flight);
        }
    }

    /// What an acknowledgement, or a timer, tells of the congestion; as much was in flight before.
    pub(super) fn adapt(&mut self, now: Time, in_flight: u64, outcome: &Outcome) {
        self.ecn.settled(outcome.ect.0, outcome.ect.1);
        if outcome.counts.is_some_and(|counts| self.ecn.on_counts(counts, outcome.ect.0)) {
            self.congestion.on_ce(now, self.recovery.acked_sent(), in_flight);
        }
        if outcome.is_spurious {
            self.congestion.undo(now);
        }
        if outcome.acked_bytes > 0 {
            let acked = Acked {
                bytes: outcome.acked_bytes,
                sent: outcome.acked_sent,
                in_flight,
                left: self.recovery.in_flight(),
                rtt: self.recovery.rtt.smoothed(),
                measured: outcome.measured,
                sample: outcome.sample,
            };
            self.congestion.on_ack(now, &acked);
        }
        if let Some(sent) = outcome.lost_sent {
            self.congestion.on_loss(now, sent, &outcome.lost_packets, outcome.persistent);
        }
        self.adapt_mtu(now, outcome);
    }

    fn adapt_mtu(&mut self, now: Time, outcome: &Outcome) {
        let before = self.packet();
        if outcome.acked_longest > 0 {
            self.mtu.on_acked(now, outcome.acked_longest);
        }
        if outcome.lost.contains(&Content::Probe) {
            self.mtu.on_probe_lost(now);
        }
        if let Some(shortest) = outcome.lost_shortest {
            self.mtu.on_lost(now, shortest);
        }
        if self.packet() != before {
            self.congestion.set_packet(self.packet());
            self.pacer.set_packet(self.packet());
        }
    }

    /// The next ADDR_REPORT of its proof, if that is due: where it goes, and its token.
    pub(super) fn poll_proof(&mut self, now: Time, len: u64) -> Option<(Endpoint, [u8; 8])> {
        let proof = self.proof.as_mut().filter(|proof| proof.next <= now)?;
        proof.next = now + proof.interval;
        proof.interval = (proof.interval * 2).min(PROVE_LAST);
        if !proof.spend(len) {
            return None;
        }
        proof.sent = (now, proof.sent.1 + 1);
        Some((proof.to, proof.token))
    }

    /// Its address is proven: everything goes there. RTT and window begin anew if that was not so before.
    pub(super) fn proven(&mut self, now: Time, proof: &Proof) {
        self.proof = None;
        if self.state == PathState::Active && self.endpoint == proof.to {
            return;
        }
        (self.endpoint, self.state) = (proof.to, PathState::Active);
        self.last_query = now;
        self.restart(now);
        // Of several questions it is not known which one was answered.
        if proof.sent.1 == 1 {
            self.recovery.rtt.add(now - proof.sent.0, Duration::ZERO);
        }
    }

    fn restart(&mut self, now: Time) {
        let Profile { timing, peer_delay, control, packets, window, .. } = self.profile;
        self.recovery.restart(Rtt::new(timing, peer_delay));
        self.ecn.restart(self.profile.has_ecn(self.endpoint));
        self.mtu = PathMtu::new(packets);
        let packet = self.packet();
        self.congestion = congestion::new(control, packet);
        self.pacer = Pacer::new(now, packet);
        self.window = window.map(WholeWindow::new);
        self.probes = 0;
    }

    /// What is to be sent again beside these that are lost: the whole window that they are of (spec, 9.2).
    pub(super) fn window_again(&mut self, lost: &[Content]) -> Vec<Content> {
        let window = self.window.as_mut().filter(|window| lost.iter().any(|it| window.has(it)));
        window.map(WholeWindow::take).unwrap_or_default()
    }

    /// It has failed: what was in flight is to be sent by others.
    pub(super) fn fail(&mut self) -> Vec<Content> {
        (self.state, self.probes) = (PathState::Failed, 0);
        self.recovery.abandon()
    }

    /// Gives up proofs that take too long.
    pub(super) fn expire(&mut self, now: Time) {
        let is_over = |proof: &mut Proof| proof.until.is_some_and(|until| until <= now);
        if self.proof.take_if(is_over).is_some() && self.state == PathState::Failed {
            self.state = PathState::Unproven;
        }
    }

    /// When it is asked whether an idle path still is one.
    pub(super) fn keep_alive_at(&self, keep_alive: Duration) -> Option<Time> {
        let at = self.last_valid.max(self.last_query) + keep_alive;
        (self.state == PathState::Active).then_some(at)
    }

    /// When something is due.
    pub(super) fn deadline(&self, is_server: bool, keep_alive: Duration) -> Option<Time> {
        let proof = self.proof.as_ref();
        let timers = [
            self.numbers.due().filter(|_| self.may_acknowledge(is_server)),
            self.recovery.deadline(),
            self.keep_alive_at(keep_alive),
            self.mtu.deadline().filter(|_| self.is_answering()),
            proof.map(|proof| proof.next),
            proof.and_then(|proof| proof.until),
        ];
        timers.into_iter().flatten().min()
    }

    /// A packet of a message has come.
    pub(super) fn count(&self, packets: &mut Unacknowledged) {
        let Some(count) = packets.0.get_mut(usize::from(self.number)) else { return };
        if count.since != self.numbers.sent() {
            *count = Count { since: self.numbers.sent(), packets: 0 };
        }
        count.packets += 1;
    }

    /// A message is sent that acknowledges these packets.
    pub(super) fn acknowledged_by_message(&mut self, packets: &Unacknowledged) {
        let Some(count) = packets.0.get(usize::from(self.number)) else { return };
        // A closed window lets the message wait for a round trip, or more: the peer would take the packets for lost.
        let in_flight = self.recovery.in_flight();
        let waits = self.window.as_mut().is_some_and(|window| !window.is_open(in_flight));
        if count.packets > 0 && !waits {
            self.numbers.implied(count.since, count.packets);
        }
    }

    /// How it is, without what belongs to the connection.
    pub(super) fn stats(&self, forged: u64, epoch: u64) -> PathStats {
        let (sent, lost) = self.recovery.counts();
        PathStats {
            path: self.number,
            state: self.state,
            endpoint: self.endpoint,
            rtt: self.recovery.rtt.smoothed(),
            window: self.window(),
            in_flight: self.recovery.in_flight(),
            packet: self.packet(),
            sent,
            lost,
            undone: self.recovery.undone(),
            marked: self.ecn.marked(),
            forged,
            epoch,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::super::codec::AckFrame;
    use super::super::ecn::{Ecn, EcnCounts};
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_origin(Duration::from_millis(ms))
    }

    fn endpoint(port: u16) -> Endpoint {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Endpoint { link: LinkId::default(), address: Address::Ip(address) }
    }

    fn path() -> Path {
        let profile = Profile {
            timing: Timing::IP,
            peer_delay: Duration::from_millis(5),
            control: CongestionControl::default(),
            packets: (1200, 1452),
            window: None,
            ecn: true,
        };
        Path::new(Time::ZERO, (0, endpoint(1), PathState::Active), profile)
    }

    fn acknowledge(path: &mut Path, now: Time, last: u64, ecn: Option<EcnCounts>) {
        let (ranges, delay) = (vec![0..=last], Duration::ZERO);
        let frame = AckFrame { ranges, delay, max_bytes: 0, max_slots: 0, ecn };
        let in_flight = path.recovery.in_flight();
        let outcome = path.recovery.on_ack(now, &frame);
        path.adapt(now, in_flight, &outcome);
    }

    /// Spec, 14.1.
    #[test]
    fn packet_that_went_to_the_old_address_says_nothing_of_the_new_ones_mtu() {
        let mut path = path();
        path.on_sent(at(1), (0, true), 1452, Content::Probe);
        acknowledge(&mut path, at(20), 0, None);
        assert_eq!(path.packet(), 1452);
        path.on_sent(at(21), (1, false), 1452, Content::Query);
        let proof = Proof::new(at(22), (endpoint(2), [0; 8]), 0, (Duration::from_secs(1), None));
        path.proven(at(30), &proof);
        acknowledge(&mut path, at(40), 1, None);
        assert_eq!(path.packet(), 1200);
    }

    #[test]
    fn counts_that_add_up_to_too_much_are_mangled() {
        let mut path = path();
        path.on_sent(at(1), (0, true), 100, Content::Query);
        acknowledge(&mut path, at(20), 0, Some(EcnCounts { ect0: u64::MAX, ect1: 0, ce: 2 }));
        assert_eq!(path.ecn.codepoint(), Ecn::NotEct);
    }
}
