//! What both ends of a connection do alike: packets, acknowledgements, recovery, timers.

mod paths;
mod terms;

use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

use terms::{Levels, PendingTerms};

use super::address::{Endpoint, OnePacket, Outbox, Transmit};
use super::codec::{AckFrame, FRAGMENT_LEN, Fragment, HEADER_LEN, Header, Opcode, Options, Sec};
use super::config::{Config, Random};
use super::ecn::Ecn;
use super::ended::Ended;
use super::epochs::{Epochs, sealed_len};
use super::keys::{FORGED_MAX, Root};
use super::outgoing::Outgoing;
use super::path::{Path, PathState, PathStats, Profile, Unacknowledged};
use super::recovery::{Content, Outcome};
use crate::cipher::TAG_LEN;
use crate::time::Time;

/// Keep-alive times without a valid packet after which a connection is over (spec, 12).
const SILENCE: u32 = 3;

/// Probe time-outs for which the last epoch's keys stay (spec, 10).
const OLD_KEYS: u32 = 3;

/// Packets of the connection itself that wait to be sent.
const CONTROLS_MAX: usize = 16;

/// Where a packet of the connection itself goes.
#[derive(Clone, Copy, Debug)]
enum Via {
    /// By the best path.
    Best,
    /// By this one.
    Path(u8),
    /// By this one, to an address that may be another than the path's.
    Address(u8, Endpoint),
}

/// A packet of the connection itself.
#[derive(Debug)]
struct Control {
    opcode: Opcode,
    body: Vec<u8>,
    via: Via,
    /// What it carries, if it is acknowledged.
    content: Option<Content>,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Transport {
    is_server: bool,
    peer_cid: u32,
    pub(super) epochs: Epochs,
    profile: Profile,
    /// At least one is active.
    paths: Vec<Path>,
    /// When the pace lets the next fragment leave, if it is what holds it back.
    pace: Option<Time>,
    outgoing: BTreeMap<u16, Outgoing>,
    /// The bytes of these messages, by their devices.
    unsent: BTreeMap<u16, u64>,
    /// Slots whose message has something to send, and its priority: the highest first.
    ready: VecDeque<(u8, u16)>,
    controls: VecDeque<Control>,
    /// Those of the epoch that this end sends in.
    options: Options,
    levels: Levels,
    /// What counts from the newest epoch on, until this end sends in it.
    next: Option<PendingTerms>,
    forged: u64,
    /// What acknowledgements grant: bytes and slots.
    grant: (u64, u16),
    granted: (u64, u16),
    ended: Option<Ended>,
}

impl Transport {
    /// A connection after its handshake; `options` are those agreed on. `None` if they have no cipher.
    pub(super) fn new(
        now: Time,
        is_server: bool,
        (peer_cid, endpoint): (u32, Endpoint),
        root: Root,
        (config, options): (&Config, Options),
    ) -> Option<Self> {
        let new_cipher = config.cipher(*options.ciphers.first()?)?;
        let profile = Profile {
            timing: config.timing,
            peer_delay: options.ack_delay,
            control: config.congestion,
            packets: (config.packet_first, options.packet_max),
            window: options.window,
            ecn: options.ecn,
        };
        Some(Self {
            is_server,
            peer_cid,
            epochs: Epochs::new(now, is_server, root, new_cipher),
            profile,
            paths: vec![Path::new(now, (0, endpoint, PathState::Active), profile)],
            pace: None,
            outgoing: BTreeMap::new(),
            unsent: BTreeMap::new(),
            ready: VecDeque::new(),
            controls: VecDeque::new(),
            forged: 0,
            grant: (0, 0),
            granted: (options.credit.unwrap_or(0), options.slots),
            options,
            levels: Levels::default(),
            next: None,
            ended: None,
        })
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

    /// How its paths are.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathStats> {
        let epoch = self.epochs.root().1;
        self.paths.iter().map(move |path| path.stats(self.forged, epoch))
    }

    /// The bytes of messages of these devices that the peer has not taken.
    pub(super) fn unsent(&self, devices: Range<u16>) -> u64 {
        self.unsent.range(devices).map(|(_, bytes)| bytes).sum()
    }

    /// When the pace lets the next fragment leave, if it is what holds it back.
    pub(super) const fn pace(&self) -> Option<Time> {
        self.pace
    }

    /// What the peer has granted: bytes and slots.
    pub(super) const fn granted(&self) -> (u64, u16) {
        self.granted
    }

    /// Whether something is in flight, so that an answer will come.
    pub(super) fn is_waiting(&self) -> bool {
        self.paths.iter().any(|path| path.recovery.in_flight() > 0)
    }

    /// Sets what acknowledgements grant.
    pub(super) fn set_grant(&mut self, now: Time, grant: (u64, u16), at_once: bool) {
        self.grant = grant;
        let best = self.best();
        let numbers = &mut self.paths[best].numbers;
        if at_once && !numbers.is_empty() {
            numbers.hurry(now);
        }
    }

    /// Opens a packet. Packets that are not valid have no effect; [`received`](Self::received) is to be called for
    /// those that are, once they were used.
    pub(super) fn open<'p>(
        &mut self,
        now: Time,
        from: Endpoint,
        (header, packet): (&Header, &'p mut [u8]),
        random: &mut Random,
    ) -> Option<&'p [u8]> {
        let is_new = match self.find(header.path) {
            Some(at) => self.paths[at].replay.is_new(header.number),
            None => self.is_server && header.path < self.options.paths,
        };
        if header.from_server == self.is_server || self.ended.is_some() || !is_new {
            return None;
        }
        let slowest = self.paths.iter().map(|path| path.recovery.rtt.probe_timeout()).max()?;
        let Some(body) = self.epochs.open(now, slowest * OLD_KEYS, header, packet) else {
            self.forged += 1;
            if self.forged >= FORGED_MAX {
                self.end(Ended::KeyWornOut);
            }
            return None;
        };
        self.change_terms();
        let is_command = matches!(header.opcode, Opcode::Request | Opcode::Reply);
        if header.sec != Sec::Encrypt && !is_command {
            self.end(Ended::Violation("a packet that only commands may send unencrypted"));
            return None;
        }
        self.came_by_path(now, from, header, random);
        Some(body)
    }

    /// A valid packet was used.
    pub(super) fn received(&mut self, now: Time, header: &Header, ecn: Ecn) {
        let Some(at) = self.find(header.path) else { return };
        let path = &mut self.paths[at];
        path.replay.mark(header.number);
        let is_acknowledged = is_acknowledged(header.opcode);
        path.numbers.add(now, header.number, is_acknowledged.then_some(header.ack_now), ecn);
    }

    /// A valid packet was dropped, as if it were lost: its sender sends the content again.
    pub(super) fn dropped(&mut self, header: &Header) {
        if let Some(at) = self.find(header.path) {
            self.paths[at].replay.mark(header.number);
        }
    }

    /// Takes a packet that both roles treat alike; false if it is another.
    pub(super) fn handle_common(
        &mut self,
        now: Time,
        from: Endpoint,
        (header, body): (&Header, &[u8]),
        random: &mut Random,
    ) -> bool {
        let Some(at) = self.find(header.path) else { return true };
        match header.opcode {
            Opcode::AckQuery => self.paths[at].numbers.hurry(now),
            Opcode::AckReply => self.handle_ack(now, at, body),
            Opcode::Disconnect => {
                self.end(
                    body.first()
                        .map_or(Ended::Violation("DISCONNECT"), |reason| Ended::ByPeer(*reason)),
                );
            }
            Opcode::AddrReport => self.answer_proof(at, from, body),
            Opcode::AddrReply => self.handle_proof(now, (at, from), body, random),
            _ => return false,
        }
        true
    }

    fn handle_ack(&mut self, now: Time, at: usize, body: &[u8]) {
        let Some(ack) = AckFrame::parse(body, self.options.ecn) else {
            return self.end(Ended::Violation("a malformed acknowledgement"));
        };
        let path = &mut self.paths[at];
        if ack.ranges.first().is_none_or(|range| !path.has_sent(*range.end())) {
            return self.end(Ended::Violation("an acknowledgement of what was never sent"));
        }
        if !self.is_server {
            // Acknowledgements overtake one another, also by other paths: more bytes, or as many, are the later grant.
            if ack.max_bytes >= self.granted.0 {
                self.granted = (ack.max_bytes, ack.max_slots);
            }
        }
        let in_flight = path.recovery.in_flight();
        let outcome = path.recovery.on_ack(now, &ack);
        self.apply(now, at, in_flight, outcome);
    }

    fn apply(&mut self, now: Time, at: usize, in_flight: u64, outcome: Outcome) {
        self.paths[at].adapt(now, in_flight, &outcome);
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
        let again = self.paths[at].window_again(&outcome.lost);
        self.send_lost(outcome.lost);
        for content in again {
            let Content::Fragment { slot, seq, range } = content else { continue };
            if let Some(message) = self.outgoing.get_mut(&slot).filter(|it| it.seq == seq) {
                message.send_whole(range.clone());
                self.send_again(slot, seq, range);
            }
        }
    }

    /// Sends again what was in packets that are lost.
    fn send_lost(&mut self, lost: Vec<Content>) {
        for content in lost {
            let Content::Fragment { slot, seq, range } = content else { continue };
            self.send_again(slot, seq, range);
        }
    }

    fn send_again(&mut self, slot: u16, seq: u32, range: Range<u32>) -> bool {
        let Some(message) = self.outgoing.get_mut(&slot).filter(|it| it.seq == seq) else {
            return false;
        };
        message.on_lost(range);
        let one = (message.priority, slot);
        if message.is_ready() && !self.ready.contains(&one) {
            // Before all of the same priority.
            let at = self.ready.iter().position(|other| other.0 <= one.0);
            self.ready.insert(at.unwrap_or(self.ready.len()), one);
        }
        true
    }

    /// Begins to send a message.
    pub(super) fn send(&mut self, slot: u16, message: Outgoing) {
        self.remove(slot);
        *self.unsent.entry(message.device.0).or_default() += u64::from(message.len());
        // Behind all of the same priority.
        let at = self.ready.iter().rposition(|other| other.0 >= message.priority);
        self.ready.insert(at.map_or(0, |at| at + 1), (message.priority, slot));
        self.outgoing.insert(slot, message);
    }

    /// Whether the peer has not acknowledged all of the message in this slot.
    pub(super) fn sends(&self, slot: u16) -> bool {
        self.outgoing.contains_key(&slot)
    }

    /// A message of the peer has shown that it has all of the one in this slot.
    pub(super) fn imply(&mut self, now: Time, slot: u16) {
        let Some(message) = self.remove(slot) else { return };
        for at in 0..self.paths.len() {
            let path = &mut self.paths[at];
            let in_flight = path.recovery.in_flight();
            let mut outcome = path.recovery.imply(now, message.packets_of(path.number));
            outcome.acked.clear();
            self.apply(now, at, in_flight, outcome);
        }
    }

    fn remove(&mut self, slot: u16) -> Option<Outgoing> {
        let message = self.outgoing.remove(&slot)?;
        self.ready.retain(|one| one.1 != slot);
        if let Some(unsent) = self.unsent.get_mut(&message.device.0) {
            *unsent -= u64::from(message.len());
        }
        Some(message)
    }

    /// A packet of a message has come by a path.
    pub(super) fn count(&self, path: u8, packets: &mut Unacknowledged) {
        if let Some(at) = self.find(path) {
            self.paths[at].count(packets);
        }
    }

    /// A message is sent that acknowledges these packets.
    pub(super) fn acknowledged_by_message(&mut self, packets: &Unacknowledged) {
        self.paths.iter_mut().for_each(|path| path.acknowledged_by_message(packets));
    }

    /// Sends a packet of the connection itself.
    pub(super) fn control(&mut self, opcode: Opcode, body: Vec<u8>) {
        self.push_control(opcode, body, Via::Best, Some(Content::Control));
    }

    /// Asks for an acknowledgement.
    pub(super) fn query(&mut self, now: Time) {
        self.query_by(now, self.best());
    }

    fn query_by(&mut self, now: Time, at: usize) {
        let path = &mut self.paths[at];
        path.last_query = now;
        let via = Via::Path(path.number);
        self.push_control(Opcode::AckQuery, vec![0; 4], via, Some(Content::Query));
    }

    fn push_control(&mut self, opcode: Opcode, body: Vec<u8>, via: Via, content: Option<Content>) {
        if self.controls.len() < CONTROLS_MAX {
            self.controls.push_back(Control { opcode, body, via, content });
        }
    }

    /// The packet that tells the peer of the end.
    pub(super) fn disconnect(&mut self, reason: u8) -> Option<Transmit> {
        let (best, mut outbox) = (self.best(), OnePacket::default());
        let header = self.header(best, Opcode::Disconnect);
        let to = (self.paths[best].endpoint, Ecn::NotEct);
        self.seal((header, &[reason, 0, 0, 0]), to, &mut outbox);
        outbox.0
    }

    /// The header of the next packet of a path.
    fn header(&mut self, at: usize, opcode: Opcode) -> Header {
        let (path, number) = self.paths[at].take_number();
        let header = Header::new(opcode, Sec::Encrypt, self.is_server);
        Header { cid: self.peer_cid, path, number, ..header }
    }

    /// Seals a packet without data; how long it is, unless the keys are worn out.
    fn seal(
        &mut self,
        (header, body): (Header, &[u8]),
        to: (Endpoint, Ecn),
        outbox: &mut dyn Outbox,
    ) -> Option<u64> {
        let sealed = push(&mut self.epochs, (header, &[body]), to, outbox);
        if sealed.is_none() {
            self.end(Ended::KeyWornOut);
        }
        sealed
    }

    /// Sends what there is to be sent, at most as many packets and as many as are taken; whether there was any.
    pub(super) fn transmit(&mut self, now: Time, most: usize, outbox: &mut dyn Outbox) -> bool {
        let mut sent = 0;
        while sent < most && outbox.has_room() && self.transmit_one(now, outbox).is_some() {
            sent += 1;
        }
        sent > 0
    }

    /// Whether there is anything to be sent, if the pace and the links let it.
    pub(super) fn has_unsent(&self) -> bool {
        !self.ready.is_empty() || !self.controls.is_empty()
    }

    /// Sends the next packet; one of data only by links that take more.
    fn transmit_one(&mut self, now: Time, outbox: &mut dyn Outbox) -> Option<u64> {
        if self.ended.is_some() {
            return None;
        }
        let owes = |path: &Path| {
            let is_due = path.numbers.due().is_some_and(|due| due <= now);
            is_due && path.may_acknowledge(self.is_server)
        };
        if let Some(at) = self.paths.iter().position(owes) {
            return self.send_ack(now, at, outbox);
        }
        if let Some(report) = self.send_proof(now, outbox) {
            return Some(report);
        }
        while let Some(control) = self.controls.pop_front() {
            let sent = self.send_control(now, control, outbox);
            if sent.is_some() || self.ended.is_some() {
                return sent;
            }
        }
        if self.ready.is_empty() {
            self.paths.iter_mut().for_each(Path::note_limit);
        }
        self.send_mtu_probe(now, outbox).or_else(|| self.send_fragment(now, outbox))
    }

    fn send_ack(&mut self, now: Time, at: usize, outbox: &mut dyn Outbox) -> Option<u64> {
        let numbers = &mut self.paths[at].numbers;
        let (ranges, delay) = numbers.take(now);
        let ecn = self.options.ecn.then(|| numbers.ecn());
        let (max_bytes, max_slots) = self.grant;
        let body = AckFrame { ranges, delay, max_bytes, max_slots, ecn }.emit();
        let header = self.header(at, Opcode::AckReply);
        self.seal((header, &body), (self.paths[at].endpoint, Ecn::NotEct), outbox)
    }

    fn send_control(
        &mut self,
        now: Time,
        control: Control,
        outbox: &mut dyn Outbox,
    ) -> Option<u64> {
        let Control { opcode, body, via, content } = control;
        let at = match via {
            Via::Best => self.best(),
            Via::Path(number) | Via::Address(number, _) => self.find(number)?,
        };
        let to = match via {
            Via::Address(_, to) => to,
            Via::Best | Via::Path(_) => self.paths[at].endpoint,
        };
        // A question of a path that has failed meanwhile.
        if content.is_some() && self.paths[at].state != PathState::Active {
            return None;
        }
        let header = Header { ack_now: content.is_some(), ..self.header(at, opcode) };
        let ecn = content.as_ref().map_or(Ecn::NotEct, |content| self.paths[at].ecn(content));
        let len = self.seal((header, &body), (to, ecn), outbox)?;
        if let Some(content) = content {
            self.paths[at].on_sent(now, (header.number, header.ack_now), len, content);
        }
        Some(len)
    }

    fn send_fragment(&mut self, now: Time, outbox: &mut dyn Outbox) -> Option<u64> {
        let at = self.schedule(now, outbox)?;
        let (_, slot) = *self.ready.front()?;
        let most = usize::from(self.paths[at].packet()) - HEADER_LEN - FRAGMENT_LEN - TAG_LEN;
        let message = self.outgoing.get_mut(&slot)?;
        let part = message.take(most as u32)?;
        let fragment =
            Fragment { seq: message.seq, offset: part.range.start, message_len: message.len() };
        let path = &mut self.paths[at];
        let (path_number, number) = path.take_number();
        message.carried_by(path_number, number);
        if !message.is_ready() {
            self.ready.pop_front();
        }
        let header = Header {
            cid: self.peer_cid,
            path: path_number,
            number,
            sec: self.levels.sec(message),
            slot,
            last: part.last,
            frag: (part.range.start as usize / most % 1024) as u16,
            ack_now: path.asks(now, self.ready.is_empty()),
            again: part.again,
            priority: message.priority,
            device: message.device,
            ..Header::new(message.opcode, Sec::Encrypt, self.is_server)
        };
        let [head, data] = message.slices(&part.range);
        let body = [&fragment.emit()[..], head, data];
        let content = Content::Fragment { slot, seq: message.seq, range: part.range };
        let to = (path.endpoint, path.ecn(&content));
        let Some(len) = push(&mut self.epochs, (header, &body), to, outbox) else {
            self.end(Ended::KeyWornOut);
            return None;
        };
        path.on_sent(now, (number, header.ack_now), len, content);
        Some(len)
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, now: Time, random: &mut Random) {
        if self.ended.is_some() {
            return;
        }
        self.epochs.expire(now);
        if now >= self.silence_at() {
            return self.end(Ended::Silent);
        }
        for at in 0..self.paths.len() {
            let recovery = &mut self.paths[at].recovery;
            if recovery.deadline().is_some_and(|at| at <= now) {
                match recovery.on_timeout(now) {
                    Some(outcome) => {
                        let in_flight = recovery.in_flight();
                        self.apply(now, at, in_flight, outcome);
                    }
                    None => self.probe(now, at),
                }
            }
            let keep_alive_at = self.paths[at].keep_alive_at(self.options.keep_alive);
            if keep_alive_at.is_some_and(|at| at <= now) {
                self.query_by(now, at);
            }
            self.paths[at].expire(now);
        }
        self.fail_lost(now, random);
    }

    fn silence_at(&self) -> Time {
        self.last_valid() + self.options.keep_alive * SILENCE
    }

    /// When something authentic came last.
    pub(super) fn last_valid(&self) -> Time {
        let last_valid = self.paths.iter().map(|path| path.last_valid).max();
        last_valid.unwrap_or(Time::ZERO)
    }

    /// Whether packets were sent that the peer has not acknowledged.
    pub(super) fn awaits_acknowledgement(&self) -> bool {
        self.paths.iter().any(|path| path.recovery.in_flight() > 0)
    }

    /// When [`handle_timeout`](Self::handle_timeout) or [`transmit`](Self::transmit) has something to do.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        if self.ended.is_some() {
            return None;
        }
        let keep_alive = self.options.keep_alive;
        let paths = self.paths.iter().filter_map(|path| path.deadline(self.is_server, keep_alive));
        let timers = [self.epochs.deadline(), self.pace, Some(self.silence_at())];
        paths.chain(timers.into_iter().flatten()).min()
    }
}

/// Seals a packet with a body in parts; how long it is, or nothing if the keys are worn out.
fn push(
    epochs: &mut Epochs,
    (header, body): (Header, &[&[u8]]),
    (to, ecn): (Endpoint, Ecn),
    outbox: &mut dyn Outbox,
) -> Option<u64> {
    if epochs.is_worn_out() {
        return None;
    }
    outbox.push(to, ecn, &mut |buffer| epochs.seal(header, body, buffer));
    Some(sealed_len(body) as u64)
}

/// Whether a packet of sec 1 or 2 is acknowledged (spec, 8).
const fn is_acknowledged(opcode: Opcode) -> bool {
    !matches!(
        opcode,
        Opcode::AckReply | Opcode::Disconnect | Opcode::AddrReport | Opcode::AddrReply
    )
}

#[cfg(test)]
pub(super) mod tests {
    use core::net::SocketAddr;

    use super::super::address::{Address, LinkId};
    use super::super::config::{SITE_KEY_LEN, SiteKey};
    use super::super::keys::tests::CIPHERS;
    use super::*;
    use crate::identity::Identity;

    const PEER: u32 = 7;

    fn endpoint() -> Endpoint {
        let address = Address::Ip(SocketAddr::from(([127, 0, 0, 1], 1)));
        Endpoint { link: LinkId::default(), address }
    }

    /// One end of a connection; those of both sides understand each other.
    pub(in crate::hyperscsi) fn transport(is_server: bool) -> Transport {
        let identity = Identity::fresh(&mut |buffer| buffer.fill(1));
        let config = Config::ip(identity, SiteKey::from_bytes([1; SITE_KEY_LEN]), CIPHERS);
        let mut options = Options::of(&config);
        options.credit = Some(1 << 20);
        let root = Root::extract([1; 32], &[2; 32], &[3; 32]);
        Transport::new(Time::ZERO, is_server, (PEER, endpoint()), root, (&config, options)).unwrap()
    }

    /// Spec, 5.3: only commands have the level of a device.
    #[test]
    fn packet_of_the_connection_that_is_not_encrypted_ends_it() {
        use Opcode::{Abort, AckQuery, AckReply, AdnReply, Disconnect, LocalRequest, Request};
        let all = [Abort, AckQuery, AckReply, AdnReply, Disconnect, LocalRequest, Request];
        for (opcode, sec) in
            all.into_iter().flat_map(|one| [(one, Sec::None), (one, Sec::Integrity)])
        {
            let (mut client, mut server) = (transport(false), transport(true));
            let header = Header { sec, ..client.header(0, opcode) };
            let mut outbox = OnePacket::default();
            client.seal((header, &[0; 16]), (endpoint(), Ecn::NotEct), &mut outbox);
            let packet = outbox.0.unwrap();
            let (mut bytes, header) = (packet.bytes.to_vec(), Header::parse(&packet.bytes));
            let packet = (&header.unwrap(), &mut bytes[..]);
            let random = &mut Random(Box::new(|buffer| buffer.fill(1)));
            let opened = server.open(Time::ZERO, endpoint(), packet, random).is_some();
            let is_broken = matches!(server.ended(), Some(Ended::Violation(_)));
            let is_command = opcode == Request;
            assert_eq!((opened, is_broken), (is_command, !is_command), "{opcode:?} {sec:?}");
        }
    }
}
