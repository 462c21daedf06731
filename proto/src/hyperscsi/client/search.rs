//! Looking for a server on an Ethernet link (spec, 6.1).

use core::time::Duration;
use std::collections::VecDeque;

use super::super::address::{Endpoint, Transmit};
use super::super::codec::{Header, MAC_LEN, Opcode, Sec};
use super::super::ended::Ended;
use super::super::keys::SiteKeys;
use super::{START_FIRST, START_LAST};
use crate::time::Time;

/// Servers that are asked at most.
const SERVERS_MAX: usize = 64;

const NONCE_LEN: usize = 16;

/// The servers of a link that have answered a PROBE.
#[derive(Debug)]
pub(super) struct Search {
    /// All stations of the link.
    everybody: Endpoint,
    nonce: [u8; NONCE_LEN],
    next: Time,
    interval: Duration,
    /// Those that were not asked yet.
    waiting: VecDeque<Endpoint>,
    found: Vec<Endpoint>,
    /// What was wrong with the last one that was asked.
    pub(super) refused: Option<Ended>,
}

impl Search {
    pub(super) const fn new(now: Time, everybody: Endpoint, nonce: [u8; NONCE_LEN]) -> Self {
        Self {
            everybody,
            nonce,
            next: now,
            interval: START_FIRST,
            waiting: VecDeque::new(),
            found: Vec::new(),
            refused: None,
        }
    }

    /// PROBE, if it is due.
    pub(super) fn poll_probe(&mut self, now: Time, site: &SiteKeys) -> Option<Transmit> {
        if now < self.next {
            return None;
        }
        self.next = now + self.interval;
        self.interval = (self.interval * 2).min(START_LAST);
        let mac = site.mac(&[b"P", &self.nonce]);
        let body = [&[1, 0, 0, 0], &self.nonce[..], &mac].concat();
        let packet = Header::new(Opcode::Discovery, Sec::Handshake, false).with_body(&body);
        Some(Transmit::new(self.everybody, packet.into()))
    }

    pub(super) const fn deadline(&self) -> Time {
        self.next
    }

    /// Takes OFFER: another server, if it is one of the site that answers this PROBE.
    pub(super) fn handle_offer(&mut self, site: &SiteKeys, from: Endpoint, body: &[u8]) {
        let Some((nonce, rest)) = body.split_at_checked(NONCE_LEN) else { return };
        let Some((mac, [length, name @ ..])) = rest.split_at_checked(MAC_LEN) else { return };
        let is_answer = nonce == self.nonce
            && name.len() == usize::from(*length)
            && site.is_mac(&[b"O", nonce, name], mac);
        if is_answer && self.found.len() < SERVERS_MAX && !self.found.contains(&from) {
            self.found.push(from);
            self.waiting.push_back(from);
        }
    }

    /// The next server to be asked.
    pub(super) fn next_server(&mut self) -> Option<Endpoint> {
        self.waiting.pop_front()
    }
}
