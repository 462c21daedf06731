//! The keys of a connection, from epoch to epoch (spec, 5 and 10).

use super::codec::{HEADER_LEN, Header, Sec};
use super::keys::{DirectionKeys, PACKETS_MAX, Root};
use crate::cipher::{NewCipher, TAG_LEN};
use crate::time::Time;

/// The length of the packet with this body.
pub(super) fn sealed_len(body: &[&[u8]]) -> usize {
    HEADER_LEN + body.iter().map(|part| part.len()).sum::<usize>() + TAG_LEN
}

/// Keys to receive with.
#[derive(Debug)]
struct Receiving {
    epoch: u64,
    keys: DirectionKeys,
    /// When they are erased.
    until: Option<Time>,
}

/// The keys of both directions.
#[derive(Debug)]
pub(super) struct Epochs {
    is_server: bool,
    new_cipher: NewCipher,
    /// Of the newest epoch.
    root: Root,
    newest: u64,
    sending: DirectionKeys,
    sending_epoch: u64,
    /// Packets sent in this epoch.
    sent: u64,
    /// Packets received in the newest epoch.
    opened: u64,
    /// The client's keys of the newest epoch, until the server has used its own.
    next: Option<DirectionKeys>,
    receiving: Vec<Receiving>,
    begun: Time,
}

impl Epochs {
    pub(super) fn new(now: Time, is_server: bool, root: Root, new_cipher: NewCipher) -> Self {
        let receiving =
            Receiving { epoch: 0, keys: root.keys(!is_server, new_cipher), until: None };
        Self {
            is_server,
            new_cipher,
            newest: 0,
            sending: root.keys(is_server, new_cipher),
            sending_epoch: 0,
            sent: 0,
            opened: 0,
            next: None,
            receiving: vec![receiving],
            begun: now,
            root,
        }
    }

    /// What the next re-authentication starts from, and its number.
    pub(super) const fn root(&self) -> (&Root, u64) {
        (&self.root, self.newest)
    }

    /// Whether only one epoch is alive, so that the next may begin.
    pub(super) const fn is_settled(&self) -> bool {
        self.receiving.len() == 1 && self.next.is_none()
    }

    /// Whether the peer has sent a packet of the newest epoch.
    pub(super) const fn is_confirmed(&self) -> bool {
        self.opened > 0
    }

    /// When the newest epoch began, and the packets protected with its keys by the direction that has more.
    pub(super) fn age(&self) -> (Time, u64) {
        (self.begun, self.sent.max(self.opened))
    }

    /// The epoch whose keys this end sends with.
    pub(super) const fn sending(&self) -> u64 {
        self.sending_epoch
    }

    /// A re-authentication has succeeded; the keys of the new epoch may be for another cipher.
    pub(super) fn advance(&mut self, now: Time, root: Root, new_cipher: Option<NewCipher>) {
        self.new_cipher = new_cipher.unwrap_or(self.new_cipher);
        self.newest += 1;
        self.begun = now;
        self.opened = 0;
        let keys = root.keys(!self.is_server, self.new_cipher);
        self.receiving.push(Receiving { epoch: self.newest, keys, until: None });
        let sending = root.keys(self.is_server, self.new_cipher);
        self.root = root;
        if self.is_server {
            self.send_with(sending);
        } else {
            self.next = Some(sending);
        }
    }

    fn send_with(&mut self, keys: DirectionKeys) {
        self.sending = keys;
        self.sending_epoch = self.newest;
        self.sent = 0;
    }

    /// Whether another packet may be sealed.
    pub(super) const fn is_worn_out(&self) -> bool {
        self.sent >= PACKETS_MAX
    }

    /// Appends the packet whose header lacks epoch and length, with a body in parts, which is shorter than a packet may be.
    pub(super) fn seal(&mut self, mut header: Header, body: &[&[u8]], out: &mut Vec<u8>) {
        self.sent += 1;
        header.epoch = (self.sending_epoch & 3) as u8;
        header.length = (sealed_len(body) - HEADER_LEN) as u16;
        let place = (header.path, header.number);
        self.sending.seal(header.sec, place, (&header.emit(), body), out);
    }

    /// The body of a packet, if its tag is valid under the keys of its epoch.
    pub(super) fn open<'a>(
        &mut self,
        now: Time,
        keep: core::time::Duration,
        header: &Header,
        packet: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        if header.sec == Sec::Handshake {
            return None;
        }
        let at = self.receiving.iter().position(|one| (one.epoch & 3) as u8 == header.epoch)?;
        let packet = packet.get_mut(..HEADER_LEN + usize::from(header.length))?;
        let place = (header.path, header.number);
        let keys = &self.receiving[at].keys;
        let body = keys.open(header.sec, place, HEADER_LEN, packet).ok()?;
        if self.receiving[at].epoch == self.newest {
            self.opened += 1;
            if let Some(next) = self.next.take() {
                self.send_with(next);
            }
            self.receiving[..at].iter_mut().for_each(|old| {
                old.until.get_or_insert(now + keep);
            });
        }
        Some(body)
    }

    /// Erases what is too old.
    pub(super) fn expire(&mut self, now: Time) {
        self.receiving.retain(|keys| keys.until.is_none_or(|until| now < until));
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.receiving.iter().filter_map(|keys| keys.until).min()
    }
}
