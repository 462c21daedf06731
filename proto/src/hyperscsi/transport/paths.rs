//! The paths of a connection: how they are opened, proven, used, and given up (spec, 14).

use core::time::Duration;

use super::super::address::{Endpoint, Outbox};
use super::super::codec::{HEADER_LEN, Header, Opcode};
use super::super::config::{PACKET_MIN, Random};
use super::super::ecn::Ecn;
use super::super::ended::Ended;
use super::super::path::{Path, PathState, Proof};
use super::super::recovery::Content;
use super::{SILENCE, Transport, Via};
use crate::cipher::TAG_LEN;
use crate::time::Time;

/// Probes of a path that are as long as other packets, before short ones.
const SHORT_AFTER: u32 = 2;

/// Bytes of ADDR_REPORT and ADDR_REPLY.
const PROOF_LEN: u64 = (HEADER_LEN + 8 + TAG_LEN) as u64;

impl Transport {
    /// The place of a path in the list.
    pub(super) fn find(&self, number: u8) -> Option<usize> {
        self.paths.iter().position(|path| path.number == number)
    }

    /// The path for what is no data: an active one, by which packets arrive, and soon.
    pub(super) fn best(&self) -> usize {
        let rank = |path: &Path| {
            let recovery = &path.recovery;
            (path.state != PathState::Active, recovery.backoff(), recovery.rtt.smoothed())
        };
        let best = self.paths.iter().enumerate().min_by_key(|(_, path)| rank(path));
        best.map_or(0, |(at, _)| at)
    }

    /// Probe time-outs in a row, of the path that has fewest.
    pub(in crate::hyperscsi) fn backoff(&self) -> u32 {
        self.paths[self.best()].recovery.backoff()
    }

    /// The probe time-out of the best path.
    pub(in crate::hyperscsi) fn probe_timeout(&self) -> Duration {
        self.paths[self.best()].recovery.rtt.probe_timeout()
    }

    /// Opens another path to the server; false if there are as many as were agreed on.
    pub(in crate::hyperscsi) fn add_path(
        &mut self,
        now: Time,
        endpoint: Endpoint,
        random: &mut Random,
    ) -> bool {
        let number = self.paths.len() as u8;
        if number >= self.options.paths {
            return false;
        }
        let path = (number, endpoint, PathState::Unproven);
        self.paths.push(Path::new(now, path, self.profile));
        self.prove(now, usize::from(number), (endpoint, u64::MAX), random);
        true
    }

    /// Begins to prove an address, to which as many bytes may be sent before it is proven.
    fn prove(
        &mut self,
        now: Time,
        at: usize,
        (to, allowance): (Endpoint, u64),
        random: &mut Random,
    ) {
        // A client goes on as long as it wants the path.
        let until = self.is_server.then(|| now + self.options.keep_alive * SILENCE);
        let path = &mut self.paths[at];
        let interval = path.recovery.rtt.probe_timeout();
        path.proof = Some(Proof::new(now, (to, random.array()), allowance, (interval, until)));
    }

    /// A valid packet has come: a server makes the path that it came by, and has an address proven that is new.
    pub(super) fn came_by_path(
        &mut self,
        now: Time,
        from: Endpoint,
        header: &Header,
        random: &mut Random,
    ) {
        let at = self.find(header.path).unwrap_or_else(|| {
            let path = (header.path, from, PathState::Unproven);
            self.paths.push(Path::new(now, path, self.profile));
            self.paths.len() - 1
        });
        let path = &mut self.paths[at];
        path.last_valid = now;
        if !self.is_server {
            return;
        }
        let is_proven = from == path.endpoint && path.state == PathState::Active;
        let is_asked = path.proof.is_some_and(|proof| proof.to == from);
        if path.replay.is_highest(header.number) && !is_proven && !is_asked {
            self.prove(now, at, (from, 0), random);
        }
        if let Some(proof) = self.paths[at].proof.as_mut().filter(|proof| proof.to == from) {
            proof.received(HEADER_LEN as u64 + u64::from(header.length));
        }
    }

    /// Answers ADDR_REPORT. A client answers to where it sends to anyway: what somebody on the way passed on from
    /// elsewhere proves nothing about that place.
    pub(super) fn answer_proof(&mut self, at: usize, from: Endpoint, body: &[u8]) {
        if body.len() != 8 {
            return self.end(Ended::Violation("a malformed address report"));
        }
        let path = &mut self.paths[at];
        let to = if self.is_server { from } else { path.endpoint };
        let is_known = path.endpoint == to && path.may_acknowledge(self.is_server);
        let proof = path.proof.as_mut().filter(|proof| proof.to == to);
        if !is_known && !proof.is_some_and(|proof| proof.spend(PROOF_LEN)) {
            return;
        }
        let via = Via::Address(path.number, to);
        self.push_control(Opcode::AddrReply, body.to_vec(), via, None);
    }

    /// Takes ADDR_REPLY.
    pub(super) fn handle_proof(
        &mut self,
        now: Time,
        (at, from): (usize, Endpoint),
        body: &[u8],
        random: &mut Random,
    ) {
        let path = &mut self.paths[at];
        let Some(proof) = path
            .proof
            .filter(|proof| proof.token[..] == *body && (!self.is_server || proof.to == from))
        else {
            return;
        };
        path.proven(now, &proof);
        self.fail_lost(now, random);
    }

    /// Sends the next ADDR_REPORT.
    pub(super) fn send_proof(&mut self, now: Time, outbox: &mut dyn Outbox) -> Option<u64> {
        let mut paths = self.paths.iter_mut().enumerate();
        let (at, (to, token)) =
            paths.find_map(|(at, path)| Some((at, path.poll_proof(now, PROOF_LEN)?)))?;
        let header = self.header(at, Opcode::AddrReport);
        self.seal((header, &token), (to, Ecn::NotEct), outbox)
    }

    /// Asks by a long packet for an acknowledgement, if a path may carry longer ones than it is known to.
    pub(super) fn send_mtu_probe(&mut self, now: Time, outbox: &mut dyn Outbox) -> Option<u64> {
        let mut paths = self.paths.iter_mut().enumerate();
        let takes = |link| outbox.takes(link);
        let (at, size) =
            paths.find_map(|(at, path)| Some((at, path.poll_mtu_probe(now, takes)?)))?;
        let padding = vec![0; usize::from(size) - HEADER_LEN - TAG_LEN];
        let header = Header { ack_now: true, ..self.header(at, Opcode::AckQuery) };
        let to = (self.paths[at].endpoint, Ecn::NotEct);
        let len = self.seal((header, &padding), to, outbox)?;
        self.paths[at].on_sent(now, (header.number, true), len, Content::Probe);
        Some(len)
    }

    /// Asks whether packets still arrive by a path whose last ones were not acknowledged.
    pub(super) fn probe(&mut self, now: Time, at: usize) {
        self.paths[at].on_timeout();
        let path = &self.paths[at];
        // A path may carry no long packets any more: a short one tells whether it carries any.
        let is_short = path.packet() > PACKET_MIN && path.recovery.backoff() >= SHORT_AFTER;
        let oldest = path.recovery.oldest_fragment().filter(|_| !is_short);
        let is_sent_again =
            oldest.is_some_and(|(slot, seq, range)| self.send_again(slot, seq, range));
        // By another path that is good, if there is one.
        if is_sent_again && !self.ready.is_empty() && !self.paths.iter().any(Path::is_answering) {
            self.paths[at].probes = 1;
        } else {
            self.query_by(now, at);
        }
    }

    /// Paths by which nothing arrives fail, while there is one by which something does.
    pub(super) fn fail_lost(&mut self, now: Time, random: &mut Random) {
        let is_alive = |path: &Path| path.state == PathState::Active && !path.is_lost(now);
        if !self.paths.iter().any(is_alive) {
            return;
        }
        for at in 0..self.paths.len() {
            if self.paths[at].is_lost(now) {
                let lost = self.paths[at].fail();
                self.send_lost(lost);
                let to = self.paths[at].endpoint;
                self.prove(now, at, (to, u64::MAX), random);
            }
        }
    }

    /// The path that the next fragment takes now: the one by which it arrives first. Nothing if all are full, or if
    /// those that are not would be slower than to wait for another one.
    pub(super) fn schedule(&mut self, now: Time, outbox: &dyn Outbox) -> Option<usize> {
        self.pace = None;
        if self.ready.is_empty() {
            return None;
        }
        let waiting = if self.paths.len() > 1 { self.waiting() } else { 0 };
        let is_any_good = self.paths.iter().any(|path| path.is_good(now));
        let (mut first, mut later): (Option<(Duration, usize)>, Option<Duration>) = (None, None);
        for (at, path) in self.paths.iter_mut().enumerate() {
            let is_usable = path.state == PathState::Active && (path.is_good(now) || !is_any_good);
            if !is_usable {
                continue;
            }
            // A link that takes nothing now is as good as a full window.
            let ready = path.ready(now).filter(|_| outbox.takes(path.endpoint.link));
            if ready.is_some_and(|time| time <= now) {
                let packet = u64::from(path.packet());
                let arrival = if path.probes > 0 { Duration::ZERO } else { path.arrival(packet) };
                first = first.into_iter().chain([(arrival, at)]).min();
                continue;
            }
            // A full window has room again within a round trip, half of which is what is to be expected.
            let wait = ready.map_or_else(|| path.arrival(0), |time| time - now);
            later = later.into_iter().chain([wait + path.arrival(waiting)]).min();
            self.pace = self.pace.into_iter().chain(ready).min();
        }
        let (arrival, at) = first?;
        if later.is_some_and(|later| later < arrival) {
            return None;
        }
        self.pace = None;
        Some(at)
    }

    /// Bytes of messages that are to be sent.
    fn waiting(&self) -> u64 {
        let messages = self.ready.iter().filter_map(|(_, slot)| self.outgoing.get(slot));
        messages.map(super::Outgoing::waiting).sum()
    }
}
