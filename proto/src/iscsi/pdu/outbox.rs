//! From PDUs to a chain of slices for one vectored write.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use super::{Pdu, Pieces, padding};
use crate::iscsi::digest::{Crc32c, crc32c};
use crate::iscsi::header::{Header, Lengths};
use crate::iscsi::sealed::{Sealer, TAG_LEN, Ticket};
use crate::time::Time;

/// Data up to this length are copied among the headers: a slice of their own costs a reference, a drop
/// and an entry of the vectored write, which is more than copying so little.
const COPY_MAX: usize = 1024;

/// Sent bytes the arena may carry before they are moved away, where output never runs dry.
const STALE_MAX: usize = 64 << 10;

/// Room for sealed bodies that is kept for the next ones. Fresh memory costs a page fault every 4 KiB,
/// together as much as sealing it.
const SPARE_MAX: usize = 4 << 20;

/// A stretch of output.
#[derive(Debug)]
enum Stretch {
    /// The next bytes of the arena.
    Arena(usize),
    /// Data, by reference.
    Data(Bytes),
    /// Data enciphered here, of which so much has been sent.
    Sealed(Vec<u8>, usize),
}

/// PDUs on their way out. Headers, digests, padding and small data lie one behind the other in an
/// arena; larger data are slices of the buffers they came in.
#[derive(Debug, Default)]
pub struct Outbox {
    header_digest: bool,
    data_digest: bool,
    sealer: Option<Box<Sealer>>,
    /// Buffers of sealed bodies that have been sent.
    spare: Vec<Vec<u8>>,
    arena: Vec<u8>,
    /// Where in the arena the first unsent byte lies.
    arena_start: usize,
    stretches: VecDeque<Stretch>,
    len: usize,
}

impl Outbox {
    /// Nothing to send, no digests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Which digests to send from the next PDU on.
    pub const fn set_digests(&mut self, header: bool, data: bool) {
        self.header_digest = header;
        self.data_digest = data;
    }

    /// From the next PDU on all is sealed, in place of digests.
    pub fn set_sealer(&mut self, sealer: Sealer) {
        self.set_digests(false, false);
        self.sealer = Some(Box::new(sealer));
    }

    /// It is that late: the keys of a seal grow old.
    pub fn tick(&mut self, now: Time) {
        if let Some(sealer) = &mut self.sealer {
            sealer.tick(now);
        }
    }

    /// How many bytes wait to be sent.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a PDU that is all header.
    pub fn push(&mut self, header: impl Into<Header>) {
        self.push_pdu(Pdu::bare(header));
    }

    /// Adds a PDU with a data segment.
    pub fn push_data(&mut self, header: impl Into<Header>, data: Bytes) {
        self.push_pdu(Pdu::with_data(header, data));
    }

    /// Adds a PDU.
    pub fn push_pdu(&mut self, pdu: Pdu) {
        let len = pdu.data.len();
        if self.sealer.is_some() {
            return self.push_sealed(&pdu.header, &pdu.ahs, pdu.data.into(), len);
        }
        self.push_head(&pdu.header, &pdu.ahs, len);
        let digest = self.data_digest.then(|| digest_of([&pdu.data[..]], len));
        self.push_bytes(pdu.data);
        self.push_tail(len, digest);
    }

    /// Adds a PDU whose data segment is the first `len` bytes of `data`, which leave it.
    pub fn push_from(&mut self, header: impl Into<Header>, data: &mut Pieces, len: usize) {
        let len = len.min(data.len());
        if self.sealer.is_some() {
            let data = data.split_front(len);
            return self.push_sealed(&header.into(), &[], data, len);
        }
        self.push_head(&header.into(), &[], len);
        let digest = self.data_digest.then(|| digest_of(data.front(len), len));
        let mut left = len;
        while left > 0 {
            let Some(piece) = data.take_front(left) else { break };
            left -= piece.len();
            self.push_bytes(piece);
        }
        self.push_tail(len, digest);
    }

    /// Adds a PDU, sealed.
    fn push_sealed(&mut self, header: &Header, ahs: &[u8], data: Pieces, len: usize) {
        let Some(sealer) = &mut self.sealer else { return };
        let from = self.arena.len();
        let ticket = sealer.next(ahs.len() + len, &mut self.arena);
        ticket.seal_header(&header.emit(Lengths { ahs: ahs.len(), data: len }), &mut self.arena);
        self.grow_arena(self.arena.len() - from);
        match joined(ahs, data) {
            body if body.is_empty() => {}
            body if body.len() <= COPY_MAX => {
                let from = self.arena.len();
                ticket.seal_body(&body, &mut self.arena);
                self.grow_arena(self.arena.len() - from);
            }
            body => self.push_sealed_body(&ticket, body),
        }
    }

    /// A large body: what is enciphered goes to a buffer of its own, what is not stays where it is.
    fn push_sealed_body(&mut self, ticket: &Ticket, body: Bytes) {
        if ticket.enciphers() {
            let mut sealed = self.spare.pop().unwrap_or_default();
            ticket.seal_body(&body, &mut sealed);
            self.len += sealed.len();
            return self.stretches.push_back(Stretch::Sealed(sealed, 0));
        }
        let mut tag = Vec::with_capacity(TAG_LEN);
        ticket.seal_tag(&body, &mut tag);
        self.push_bytes(body);
        self.push_bytes(tag.into());
    }

    fn push_head(&mut self, header: &Header, ahs: &[u8], data: usize) {
        let bhs = header.emit(Lengths { ahs: ahs.len(), data });
        let from = self.arena.len();
        self.arena.extend_from_slice(&bhs);
        self.arena.extend_from_slice(ahs);
        if self.header_digest {
            let digest = crc32c(&self.arena[from..]);
            self.arena.extend_from_slice(&digest);
        }
        self.grow_arena(self.arena.len() - from);
    }

    fn push_bytes(&mut self, data: Bytes) {
        if data.len() <= COPY_MAX {
            self.arena.extend_from_slice(&data);
            self.grow_arena(data.len());
        } else {
            self.len += data.len();
            self.stretches.push_back(Stretch::Data(data));
        }
    }

    /// Padding and digest of a data segment of `len` bytes; an empty one has neither.
    fn push_tail(&mut self, len: usize, digest: Option<[u8; 4]>) {
        let from = self.arena.len();
        self.arena.resize(from + padding(len), 0);
        if let Some(digest) = digest.filter(|_| len > 0) {
            self.arena.extend_from_slice(&digest);
        }
        self.grow_arena(self.arena.len() - from);
    }

    /// The arena grew by `len` bytes: they follow what is queued.
    fn grow_arena(&mut self, len: usize) {
        self.len += len;
        match self.stretches.back_mut() {
            _ if len == 0 => {}
            Some(Stretch::Arena(last)) => *last += len,
            _ => self.stretches.push_back(Stretch::Arena(len)),
        }
    }

    /// Fills `slices` from the front of the queue; returns how many it filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut arena = &self.arena[self.arena_start..];
        let mut filled = 0;
        for (slot, stretch) in slices.iter_mut().zip(&self.stretches) {
            *slot = IoSlice::new(match stretch {
                Stretch::Data(data) => data,
                Stretch::Sealed(data, sent) => &data[*sent..],
                Stretch::Arena(len) => {
                    let (front, rest) = arena.split_at(*len);
                    arena = rest;
                    front
                }
            });
            filled += 1;
        }
        filled
    }

    /// The first `sent` bytes are gone.
    pub fn advance(&mut self, sent: usize) {
        debug_assert!(sent <= self.len);
        self.len = self.len.saturating_sub(sent);
        let mut left = sent;
        while left > 0 {
            let Some(front) = self.stretches.front_mut() else { break };
            let whole = match front {
                Stretch::Arena(len) => {
                    let gone = left.min(*len);
                    self.arena_start += gone;
                    *len -= gone;
                    left -= gone;
                    *len == 0
                }
                Stretch::Data(data) => {
                    let gone = left.min(data.len());
                    data.advance(gone);
                    left -= gone;
                    data.is_empty()
                }
                Stretch::Sealed(data, sent) => {
                    let gone = left.min(data.len() - *sent);
                    *sent += gone;
                    left -= gone;
                    *sent == data.len()
                }
            };
            if whole && let Some(Stretch::Sealed(data, _)) = self.stretches.pop_front() {
                self.keep(data);
            }
        }
        self.reclaim();
    }

    /// Keeps a buffer for the next body, within bounds.
    fn keep(&mut self, mut buffer: Vec<u8>) {
        let kept: usize = self.spare.iter().map(Vec::capacity).sum();
        if kept + buffer.capacity() <= SPARE_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Forgets what has not been sent: the connection ends in the middle of it.
    pub fn clear(&mut self) {
        self.advance(self.len);
    }

    fn reclaim(&mut self) {
        if self.arena_start == self.arena.len() {
            self.arena.clear();
            self.arena_start = 0;
        } else if self.arena_start > STALE_MAX {
            self.arena.drain(..self.arena_start);
            self.arena_start = 0;
        }
    }
}

/// A body in one piece, which is how ciphers take it; only several pieces are copied for it.
fn joined(ahs: &[u8], data: Pieces) -> Bytes {
    let mut pieces = data.into_vec();
    match pieces.len() {
        0 if ahs.is_empty() => Bytes::new(),
        1 if ahs.is_empty() => pieces.swap_remove(0),
        _ => {
            pieces.insert(0, Bytes::copy_from_slice(ahs));
            pieces.concat().into()
        }
    }
}

/// The digest of a data segment in pieces; it covers the padding (RFC 7143, 11.2.3).
fn digest_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, len: usize) -> [u8; 4] {
    let mut digest = Crc32c::new();
    pieces.into_iter().for_each(|piece| digest.update(piece));
    digest.update(&[0; 3][..padding(len)]);
    digest.finish()
}
