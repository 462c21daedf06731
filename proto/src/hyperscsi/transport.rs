//! What both ends of a connection do alike: packets, acknowledgements, recovery, timers.

use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use super::address::{Endpoint, Transmit};
use super::codec::{AckFrame, FRAGMENT_LEN, Fragment, HEADER_LEN, Header, Opcode, Options, Sec};
use super::config::{Config, CongestionControl};
use super::congestion::{self, Acked, Congestion};
use super::ended::Ended;
use super::epochs::Epochs;
use super::keys::{FORGED_MAX, Root};
use super::numbers::Numbers;
use super::outgoing::Outgoing;
use super::pacer::Pacer;
use super::recovery::{Content, Outcome, Recovery};
use super::replay::ReplayWindow;
use super::rtt::Rtt;
use crate::cipher::TAG_LEN;
use crate::time::Time;

/// Keep-alive times without a valid packet after which a connection is over (spec, 12).
const SILENCE: u32 = 3;

/// Probe time-outs for which the last epoch's keys stay (spec, 10).
const OLD_KEYS: u32 = 3;

/// After so many packets without a question the last one that can be sent asks for an acknowledgement at once.
const MANY: u32 = 8;

/// Packets of the connection itself that wait to be sent.
const CONTROLS_MAX: usize = 16;

/// Packets of a message and the acknowledgements that were sent when the first of them came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unacknowledged {
    since: u64,
    packets: u32,
}

/// A packet of the connection itself.
#[derive(Debug)]
struct Control {
    opcode: Opcode,
    body: Vec<u8>,
    to: Endpoint,
    content: Content,
}

/// A path to be proven (spec, 14).
#[derive(Clone, Copy, Debug)]
struct Challenge {
    to: Endpoint,
    token: [u8; 8],
}

/// How the way to a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStats {
    /// Where the peer is.
    pub endpoint: Endpoint,
    /// The smoothed round trip.
    pub rtt: Duration,
    /// Bytes that may be in flight, and that are.
    pub window: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Packets sent that have to be acknowledged.
    pub sent: u64,
    /// Those of them that were lost.
    pub lost: u64,
    /// Packets that came with a wrong tag.
    pub forged: u64,
    /// The number of the keys.
    pub epoch: u64,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Transport {
    is_server: bool,
    peer_cid: u32,
    endpoint: Endpoint,
    pub(super) epochs: Epochs,
    next_number: u64,
    replay: ReplayWindow,
    numbers: Numbers,
    recovery: Recovery,
    congestion: Box<dyn Congestion>,
    control: CongestionControl,
    pacer: Pacer,
    /// When the pace lets the next fragment leave, if it is what holds it back.
    pace: Option<Time>,
    outgoing: BTreeMap<u16, Outgoing>,
    /// The bytes of these messages, by their devices.
    unsent: BTreeMap<u16, u64>,
    /// Slots whose message has something to send.
    ready: VecDeque<u16>,
    controls: VecDeque<Control>,
    /// Packets that may leave regardless of the window.
    probes: u8,
    /// Packets since the last one that asked for an acknowledgement at once.
    unasked: u32,
    challenge: Option<Challenge>,
    options: Options,
    last_valid: Time,
    last_query: Time,
    forged: u64,
    /// What acknowledgements grant: bytes and slots.
    grant: (u64, u16),
    granted: (u64, u16),
    ended: Option<Ended>,
}

impl Transport {
    /// A connection after its handshake; `options` are those agreed on.
    pub(super) fn new(
        now: Time,
        is_server: bool,
        (peer_cid, endpoint): (u32, Endpoint),
        root: Root,
        (config, options): (&Config, Options),
    ) -> Self {
        Self {
            is_server,
            peer_cid,
            endpoint,
            epochs: Epochs::new(now, is_server, root, config.new_cipher),
            next_number: 0,
            replay: ReplayWindow::new(),
            numbers: Numbers::new(config.timing.ack_delay),
            recovery: Recovery::new(Rtt::new(config.timing, options.ack_delay)),
            congestion: congestion::new(config.congestion, options.packet_max),
            control: config.congestion,
            pacer: Pacer::new(now, options.packet_max),
            pace: None,
            outgoing: BTreeMap::new(),
            unsent: BTreeMap::new(),
            ready: VecDeque::new(),
            controls: VecDeque::new(),
            probes: 0,
            unasked: 0,
            challenge: None,
            last_valid: now,
            last_query: now,
            forged: 0,
            grant: (0, 0),
            granted: (options.credit.unwrap_or(0), options.slots),
            options,
            ended: None,
        }
    }

    pub(super) const fn options(&self) -> &Options {
        &self.options
    }

    pub(super) const fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Ends the connection; the first reason counts.
    pub(super) fn end(&mut self, reason: Ended) {
        self.ended.get_or_insert(reason);
    }

    /// Probe time-outs in a row.
    pub(super) const fn backoff(&self) -> u32 {
        self.recovery.backoff()
    }

    pub(super) fn path(&self) -> PathStats {
        let (sent, lost) = self.recovery.counts();
        PathStats {
            endpoint: self.endpoint,
            rtt: self.recovery.rtt.smoothed(),
            window: self.congestion.window(),
            in_flight: self.recovery.in_flight(),
            sent,
            lost,
            forged: self.forged,
            epoch: self.epochs.root().1,
        }
    }

    /// The bytes of messages of these devices that the peer has not taken.
    pub(super) fn unsent(&self, devices: Range<u16>) -> u64 {
        self.unsent.range(devices).map(|(_, bytes)| bytes).sum()
    }

    pub(super) fn probe_timeout(&self) -> Duration {
        self.recovery.rtt.probe_timeout()
    }

    /// What the peer has granted: bytes and slots.
    pub(super) const fn granted(&self) -> (u64, u16) {
        self.granted
    }

    /// Whether something is in flight, so that an answer will come.
    pub(super) const fn is_waiting(&self) -> bool {
        self.recovery.in_flight() > 0
    }

    /// Sets what acknowledgements grant.
    pub(super) fn set_grant(&mut self, now: Time, grant: (u64, u16), at_once: bool) {
        self.grant = grant;
        if at_once && !self.numbers.is_empty() {
            self.numbers.hurry(now);
        }
    }

    /// Opens a packet. Packets that are not valid have no effect; [`received`](Self::received) is to be called for
    /// those that are, once they were used.
    pub(super) fn open<'p>(
        &mut self,
        now: Time,
        header: &Header,
        packet: &'p mut [u8],
    ) -> Option<&'p [u8]> {
        let is_mine = header.from_server != self.is_server && header.path == 0;
        if !is_mine || self.ended.is_some() || !self.replay.is_new(header.number) {
            return None;
        }
        let keep = self.probe_timeout() * OLD_KEYS;
        let Some(body) = self.epochs.open(now, keep, header, packet) else {
            self.forged += 1;
            if self.forged >= FORGED_MAX {
                self.end(Ended::KeyWornOut);
            }
            return None;
        };
        if header.sec == Sec::Integrity && !matches!(header.opcode, Opcode::Request | Opcode::Reply)
        {
            self.end(Ended::Violation("a packet that only commands may send unencrypted"));
            return None;
        }
        self.last_valid = now;
        Some(body)
    }

    /// A valid packet was used. Where it came from is challenged if that is new.
    pub(super) fn received(
        &mut self,
        now: Time,
        from: Endpoint,
        header: &Header,
        token: &mut dyn FnMut() -> [u8; 8],
    ) {
        let is_highest = self.replay.is_highest(header.number);
        self.replay.mark(header.number);
        let is_counted = !matches!(header.opcode, Opcode::AckReply | Opcode::Disconnect);
        self.numbers.add(now, header.number, is_counted.then_some(header.ack_now));
        if !self.is_server || !is_highest || from == self.endpoint {
            return;
        }
        if self.challenge.is_none_or(|challenge| challenge.to != from) {
            let challenge = Challenge { to: from, token: token() };
            self.challenge = Some(challenge);
            let body = challenge.token.to_vec();
            self.push_control(Opcode::AddrReport, body, from, Content::Control);
        }
    }

    /// A valid packet was dropped, as if it were lost: its sender sends the content again.
    pub(super) fn dropped(&mut self, header: &Header) {
        self.replay.mark(header.number);
    }

    /// Takes a packet that both roles treat alike; false if it is another.
    pub(super) fn handle_common(
        &mut self,
        now: Time,
        from: Endpoint,
        header: &Header,
        body: &[u8],
    ) -> bool {
        match header.opcode {
            Opcode::AckQuery => self.numbers.hurry(now),
            Opcode::AckReply => self.handle_ack(now, body),
            Opcode::Disconnect => {
                self.end(
                    body.first()
                        .map_or(Ended::Violation("DISCONNECT"), |reason| Ended::ByPeer(*reason)),
                );
            }
            Opcode::AddrReport if !self.is_server => {
                let body = body.to_vec();
                self.push_control(Opcode::AddrReply, body, from, Content::Control);
            }
            Opcode::AddrReply if self.is_server => self.handle_address(now, from, body),
            _ => return false,
        }
        true
    }

    fn handle_address(&mut self, now: Time, from: Endpoint, body: &[u8]) {
        if self.challenge.is_some_and(|it| it.to == from && it.token[..] == *body) {
            self.challenge = None;
            self.endpoint = from;
            let packet = self.options.packet_max;
            self.congestion = congestion::new(self.control, packet);
            self.pacer = Pacer::new(now, packet);
        }
    }

    fn handle_ack(&mut self, now: Time, body: &[u8]) {
        let Some(ack) = AckFrame::parse(body) else {
            return self.end(Ended::Violation("a malformed acknowledgement"));
        };
        if ack.ranges.first().is_none_or(|range| *range.end() >= self.next_number) {
            return self.end(Ended::Violation("an acknowledgement of what was never sent"));
        }
        if !self.is_server {
            // Acknowledgements overtake one another; the number of bytes never falls.
            if ack.max_bytes >= self.granted.0 {
                self.granted = (ack.max_bytes, ack.max_slots);
            }
        }
        let in_flight = self.recovery.in_flight();
        let outcome = self.recovery.on_ack(now, &ack.ranges, ack.delay);
        self.apply(now, in_flight, outcome);
    }

    fn apply(&mut self, now: Time, in_flight: u64, outcome: Outcome) {
        for content in outcome.acked {
            let Content::Fragment { slot, seq, range } = content else { continue };
            let Some(message) = self.outgoing.get_mut(&slot) else { continue };
            if message.seq == seq {
                message.on_acked(range);
                if message.is_acked() {
                    self.remove(slot);
                }
            }
        }
        for content in outcome.lost {
            let Content::Fragment { slot, seq, range } = content else { continue };
            self.send_again(slot, seq, range);
        }
        if outcome.acked_bytes > 0 {
            let rtt = self.recovery.rtt.smoothed();
            let (bytes, sent) = (outcome.acked_bytes, outcome.acked_sent);
            self.congestion.on_ack(now, Acked { bytes, sent, in_flight, rtt });
        }
        if let Some(sent) = outcome.lost_sent {
            self.congestion.on_loss(now, sent, outcome.persistent);
        }
    }

    fn send_again(&mut self, slot: u16, seq: u32, range: Range<u32>) -> bool {
        let Some(message) = self.outgoing.get_mut(&slot).filter(|it| it.seq == seq) else {
            return false;
        };
        message.on_lost(range);
        if message.is_ready() && !self.ready.contains(&slot) {
            self.ready.push_front(slot);
        }
        true
    }

    /// Begins to send a message.
    pub(super) fn send(&mut self, slot: u16, message: Outgoing) {
        self.remove(slot);
        *self.unsent.entry(message.device.0).or_default() += u64::from(message.len());
        self.outgoing.insert(slot, message);
        self.ready.push_back(slot);
    }

    /// Whether the peer has not acknowledged all of the message in this slot.
    pub(super) fn sends(&self, slot: u16) -> bool {
        self.outgoing.contains_key(&slot)
    }

    /// A message of the peer has shown that it has all of the one in this slot.
    pub(super) fn imply(&mut self, now: Time, slot: u16) {
        if let Some(message) = self.remove(slot) {
            let in_flight = self.recovery.in_flight();
            let mut outcome = self.recovery.imply(&message.numbers);
            outcome.acked.clear();
            self.apply(now, in_flight, outcome);
        }
    }

    fn remove(&mut self, slot: u16) -> Option<Outgoing> {
        let message = self.outgoing.remove(&slot)?;
        self.ready.retain(|one| *one != slot);
        if let Some(unsent) = self.unsent.get_mut(&message.device.0) {
            *unsent -= u64::from(message.len());
        }
        Some(message)
    }

    /// A packet of a message has come.
    pub(super) fn count(&self, packets: &mut Unacknowledged) {
        if packets.since != self.numbers.sent() {
            *packets = Unacknowledged { since: self.numbers.sent(), packets: 0 };
        }
        packets.packets += 1;
    }

    /// A message is sent that acknowledges these packets.
    pub(super) fn acknowledged_by_message(&mut self, packets: Unacknowledged) {
        self.numbers.implied(packets.since, packets.packets);
    }

    /// Sends a packet of the connection itself.
    pub(super) fn control(&mut self, opcode: Opcode, body: Vec<u8>) {
        self.push_control(opcode, body, self.endpoint, Content::Control);
    }

    /// Asks for an acknowledgement.
    pub(super) fn query(&mut self, now: Time) {
        self.last_query = now;
        self.push_control(Opcode::AckQuery, vec![0; 4], self.endpoint, Content::Query);
    }

    fn push_control(&mut self, opcode: Opcode, body: Vec<u8>, to: Endpoint, content: Content) {
        if self.controls.len() < CONTROLS_MAX {
            self.controls.push_back(Control { opcode, body, to, content });
        }
    }

    /// The packet that tells the peer of the end.
    pub(super) fn disconnect(&mut self, reason: u8) -> Option<Transmit> {
        let header = self.header(Opcode::Disconnect);
        self.seal(header, &[reason, 0, 0, 0], self.endpoint)
    }

    fn header(&mut self, opcode: Opcode) -> Header {
        let number = self.next_number;
        self.next_number += 1;
        Header { cid: self.peer_cid, number, ..Header::new(opcode, Sec::Encrypt, self.is_server) }
    }

    fn seal(&mut self, header: Header, body: &[u8], to: Endpoint) -> Option<Transmit> {
        let Some(packet) = self.epochs.seal(header, body) else {
            self.end(Ended::KeyWornOut);
            return None;
        };
        Some(Transmit { to, bytes: packet.into() })
    }

    /// The next packet.
    pub(super) fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        if self.ended.is_some() {
            return None;
        }
        if self.numbers.due().is_some_and(|due| due <= now) {
            return self.poll_ack(now);
        }
        if let Some(control) = self.controls.pop_front() {
            let Control { opcode, body, to, content } = control;
            let header = Header { ack_now: true, ..self.header(opcode) };
            return self.sent(now, header, &body, to, content);
        }
        self.poll_fragment(now)
    }

    fn poll_ack(&mut self, now: Time) -> Option<Transmit> {
        let (ranges, delay) = self.numbers.take(now);
        let (max_bytes, max_slots) = self.grant;
        let body = AckFrame { ranges, delay, max_bytes, max_slots }.emit();
        let header = self.header(Opcode::AckReply);
        self.seal(header, &body, self.endpoint)
    }

    fn sent(
        &mut self,
        now: Time,
        header: Header,
        body: &[u8],
        to: Endpoint,
        content: Content,
    ) -> Option<Transmit> {
        let number = header.number;
        let transmit = self.seal(header, body, to)?;
        let size = transmit.bytes.len() as u64;
        self.unasked = if header.ack_now { 0 } else { self.unasked.saturating_add(1) };
        self.recovery.on_sent(now, (number, header.ack_now), size, content);
        self.pacer.sent(size);
        Some(transmit)
    }

    /// When the next fragment may be sent, if there is one and the window has room.
    fn fragment_time(&mut self, now: Time) -> Option<Time> {
        if self.ready.is_empty() {
            return None;
        }
        if self.probes > 0 {
            return Some(now);
        }
        let window = self.congestion.window();
        if self.recovery.in_flight() + u64::from(self.options.packet_max) > window {
            return None;
        }
        Some(self.pacer.ready(now, window, self.recovery.rtt.smoothed()))
    }

    fn poll_fragment(&mut self, now: Time) -> Option<Transmit> {
        let at = self.fragment_time(now);
        self.pace = at.filter(|at| *at > now);
        if at? > now {
            return None;
        }
        let slot = self.next_slot()?;
        let most = usize::from(self.options.packet_max) - HEADER_LEN - FRAGMENT_LEN - TAG_LEN;
        let number = self.next_number;
        let message = self.outgoing.get_mut(&slot)?;
        let part = message.take(most as u32)?;
        message.numbers.push(number);
        let fragment =
            Fragment { seq: message.seq, offset: part.range.start, message_len: message.len() };
        let mut body = Vec::with_capacity(FRAGMENT_LEN + most);
        fragment.emit(&mut body);
        message.copy(&part.range, &mut body);
        let (opcode, sec) = (message.opcode, message.sec);
        let (device, priority, seq) = (message.device, message.priority, message.seq);
        if !message.is_ready() {
            self.ready.retain(|one| *one != slot);
        }
        // The packet that closes the window asks for an answer: nothing else is sent until there is one.
        let packet_max = u64::from(self.options.packet_max);
        let closes = self.recovery.in_flight() + 2 * packet_max > self.congestion.window();
        // So does the last one of many, as nothing behind it would show that it was lost.
        let ends = self.ready.is_empty() && self.unasked >= MANY;
        let ack_now = self.probes > 0 || closes || ends || self.recovery.is_stale(now);
        self.probes = self.probes.saturating_sub(1);
        let header = Header {
            sec,
            slot,
            last: part.last,
            frag: (part.range.start as usize / most % 1024) as u16,
            ack_now,
            again: part.again,
            priority,
            device,
            ..self.header(opcode)
        };
        let content = Content::Fragment { slot, seq, range: part.range };
        self.sent(now, header, &body, self.endpoint, content)
    }

    /// The first of the slots with the highest priority.
    fn next_slot(&self) -> Option<u16> {
        let priority = |slot: &u16| self.outgoing.get(slot).map_or(0, |message| message.priority);
        let highest = self.ready.iter().map(priority).max()?;
        self.ready.iter().copied().find(|slot| priority(slot) == highest)
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.ended.is_some() {
            return;
        }
        self.epochs.expire(now);
        if now >= self.silence_at() {
            return self.end(Ended::Silent);
        }
        if self.recovery.deadline().is_some_and(|at| at <= now) {
            match self.recovery.on_timeout(now) {
                Some(outcome) => self.apply(now, self.recovery.in_flight(), outcome),
                None => self.probe(now),
            }
        }
        if now >= self.keep_alive_at() {
            self.query(now);
        }
    }

    fn probe(&mut self, now: Time) {
        if let Some((slot, seq, range)) = self.recovery.oldest_fragment()
            && self.send_again(slot, seq, range)
            && !self.ready.is_empty()
        {
            self.probes = 1;
        } else {
            self.query(now);
        }
    }

    fn silence_at(&self) -> Time {
        self.last_valid + self.options.keep_alive * SILENCE
    }

    fn keep_alive_at(&self) -> Time {
        self.last_valid.max(self.last_query) + self.options.keep_alive
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`poll_transmit`](Self::poll_transmit) has something to do.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        if self.ended.is_some() {
            return None;
        }
        let timers = [
            self.numbers.due(),
            self.recovery.deadline(),
            self.epochs.deadline(),
            self.pace,
            Some(self.silence_at()),
            Some(self.keep_alive_at()),
        ];
        timers.into_iter().flatten().min()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use core::net::SocketAddr;

    use super::super::address::{Address, LinkId};
    use super::super::config::{SITE_KEY_LEN, SiteKey};
    use super::*;
    use crate::identity::Identity;
    use crate::iscsi::sealed::soft;

    const PEER: u32 = 7;

    fn endpoint() -> Endpoint {
        let address = Address::Ip(SocketAddr::from(([127, 0, 0, 1], 1)));
        Endpoint { link: LinkId::default(), address }
    }

    /// One end of a connection; those of both sides understand each other.
    pub(in crate::hyperscsi) fn transport(is_server: bool) -> Transport {
        let identity = Identity::fresh(&mut |buffer| buffer.fill(1));
        let config = Config::ip(identity, SiteKey::from_bytes([1; SITE_KEY_LEN]), soft::new_cipher);
        let mut options = Options::of(&config);
        options.credit = Some(1 << 20);
        let root = Root::extract([1; 32], &[2; 32], &[3; 32]);
        Transport::new(Time::ZERO, is_server, (PEER, endpoint()), root, (&config, options))
    }

    /// Spec, 5.3: only commands have the level of a device.
    #[test]
    fn packet_of_the_connection_that_is_not_encrypted_ends_it() {
        use Opcode::{Abort, AckQuery, AckReply, AdnReply, Disconnect, LocalRequest, Request};
        let all = [Abort, AckQuery, AckReply, AdnReply, Disconnect, LocalRequest, Request];
        for opcode in all {
            let (mut client, mut server) = (transport(false), transport(true));
            let header = Header { sec: Sec::Integrity, ..client.header(opcode) };
            let packet = client.seal(header, &[0; 16], endpoint()).unwrap();
            let (mut bytes, header) = (packet.bytes.to_vec(), Header::parse(&packet.bytes));
            let opened = server.open(Time::ZERO, &header.unwrap(), &mut bytes).is_some();
            let is_broken = matches!(server.ended(), Some(Ended::Violation(_)));
            assert_eq!((opened, is_broken), (opcode == Request, opcode != Request), "{opcode:?}");
        }
    }
}
