//! From PDUs to a chain of slices for one vectored write.
//!
//! A sealed session's large bodies are sealed just before they are sent, piece by piece, while the processor still
//! has in its cache what the system then takes; or, where many wait, by others in advance ([`Outbox::job`]).

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use super::due::{Begun, Done, Due, Job};
use super::{Pdu, Pieces, padding};
use crate::iscsi::digest::{Crc32c, crc32c};
use crate::iscsi::header::{Header, Lengths};
use crate::iscsi::sealed::{Sealer, Ticket};
use crate::time::Time;

/// Data up to this length are copied among the headers: a slice of their own costs a reference, a drop
/// and an entry of the vectored write, which is more than copying so little.
const COPY_MAX: usize = 1024;

/// Sent bytes the arena may carry before they are moved away, where output never runs dry.
const STALE_MAX: usize = 64 << 10;

/// How much is sealed before it is handed to the system. More would leave the processor's cache before the
/// system copies it, and would keep the other end waiting for the first of it. It fits one segment of the largest
/// size there is, 64 KiB with all headers: what is left over would be sent, received and acknowledged by itself.
const AHEAD: usize = 60 << 10;

/// Less than this is not sealed by itself: every piece costs a little.
const PIECE_MIN: usize = 4 << 10;

/// Room for sealed bodies that is kept for the next ones. Fresh memory costs a page fault every 4 KiB,
/// together as much as sealing it.
const SPARE_MAX: usize = 2 << 20;

/// A stretch of output.
#[derive(Debug)]
enum Stretch {
    /// The next bytes of the arena.
    Arena(usize),
    /// Data, by reference.
    Data(Bytes),
    /// Data to be sealed.
    Due(Due),
    /// Data of which the first pieces are sealed.
    Begun(Box<Begun>),
    /// Data being sealed elsewhere; so many bytes will come of them.
    Away(usize),
    /// Sealed data, of which so much has been sent.
    Sealed(Vec<u8>, usize),
}

impl Stretch {
    fn len(&self) -> usize {
        match self {
            Self::Arena(len) | Self::Away(len) => *len,
            Self::Data(data) => data.len(),
            Self::Due(due) => due.len(),
            Self::Begun(begun) => begun.len(),
            Self::Sealed(data, sent) => data.len() - sent,
        }
    }

    /// How many of its bytes can be sent as they are.
    fn ready(&self) -> usize {
        match self {
            Self::Due(_) | Self::Away(_) => 0,
            Self::Begun(begun) => begun.ready().len(),
            _ => self.len(),
        }
    }

    /// How many bytes of it are to be sealed.
    fn work(&self) -> usize {
        match self {
            Self::Due(due) => due.work(),
            Self::Begun(begun) => begun.work(),
            _ => 0,
        }
    }

    /// Seals what is due, or `most` bytes of it where it can be sealed piece by piece. `room` is an empty buffer.
    fn seal(self, most: usize, room: impl FnOnce() -> Vec<u8>) -> Self {
        match self {
            Self::Due(due) if due.streams() && due.work() > most => {
                Self::Begun(Box::new(due.begin(room()))).seal(most, Vec::new)
            }
            Self::Due(due) => {
                let mut sealed = room();
                due.seal(&mut sealed);
                Self::Sealed(sealed, 0)
            }
            Self::Begun(mut begun) => {
                begun.go_on(most);
                match begun.work() {
                    0 => Self::Sealed(begun.finish(), 0),
                    _ => Self::Begun(begun),
                }
            }
            other => other,
        }
    }
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
    /// How many stretches there were before the first of these.
    gone: u64,
    /// Bytes of the bodies that are due.
    due: usize,
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
        let body = with_ahs(ahs, data);
        if body.len() <= COPY_MAX {
            self.seal_small(&ticket, body);
        } else {
            self.push_due(ticket, body);
        }
    }

    /// A small body is sealed at once, among the headers; an empty one is not there at all.
    fn seal_small(&mut self, ticket: &Ticket, body: Pieces) {
        if body.is_empty() {
            return;
        }
        let from = self.arena.len();
        ticket.seal_body(&body.into_vec().concat(), &mut self.arena);
        self.grow_arena(self.arena.len() - from);
    }

    /// A large body waits until it is about to be sent; one that is not enciphered is sent as it stands,
    /// and only its tag waits.
    fn push_due(&mut self, ticket: Ticket, body: Pieces) {
        if !ticket.enciphers() {
            body.clone().into_vec().into_iter().for_each(|piece| self.push_bytes(piece));
        }
        let due = Due::new(ticket, body);
        self.due += due.work();
        self.len += due.len();
        self.stretches.push_back(Stretch::Due(due));
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

    /// Some bodies for somebody else to seal, if `share` bytes of them are left for the caller to seal and
    /// send meanwhile: about as many again. What is behind them is not sent before they are
    /// [put back](Self::put_back).
    pub fn job(&mut self, share: usize) -> Option<Job> {
        if self.due < 2 * share {
            return None;
        }
        let (mut left, mut taken, mut bodies) = (0, 0, Vec::new());
        for (place, stretch) in (self.gone..).zip(&mut self.stretches) {
            let Stretch::Due(due) = stretch else { continue };
            if left < share {
                left += due.work();
                continue;
            }
            if taken >= share {
                break;
            }
            taken += due.work();
            let away = Stretch::Away(due.len());
            if let Stretch::Due(due) = std::mem::replace(stretch, away) {
                bodies.push((place, due));
            }
        }
        self.due -= taken;
        (!bodies.is_empty()).then_some(Job(bodies))
    }

    /// Takes what came of a [`job`](Self::job) of this outbox.
    pub fn put_back(&mut self, done: Done) {
        for (place, sealed) in done.0 {
            // What has been cleared meanwhile is not there any more.
            let index = place.checked_sub(self.gone).and_then(|index| usize::try_from(index).ok());
            let stretch = index.and_then(|index| self.stretches.get_mut(index));
            if let Some(stretch @ Stretch::Away(_)) = stretch {
                *stretch = Stretch::Sealed(sealed, 0);
            }
        }
    }

    /// Seals what is to be sent next, up to what is sealed elsewhere.
    fn seal_ahead(&mut self) {
        let mut ready = 0;
        for stretch in &mut self.stretches {
            let before = ready + stretch.ready();
            if self.due == 0 || before + PIECE_MIN > AHEAD || matches!(stretch, Stretch::Away(_)) {
                return;
            }
            let work = stretch.work();
            if work > 0 {
                let unsealed = std::mem::replace(stretch, Stretch::Away(0));
                *stretch = unsealed.seal(AHEAD - before, || self.spare.pop().unwrap_or_default());
                self.due -= work - stretch.work();
            }
            ready += stretch.ready();
        }
    }

    /// Fills `slices` from the front of the queue; returns how many it filled. It is none where what comes
    /// next is sealed elsewhere.
    pub fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        self.seal_ahead();
        let mut arena = &self.arena[self.arena_start..];
        let (mut filled, mut ends) = (0, false);
        for (slot, stretch) in slices.iter_mut().zip(&self.stretches) {
            *slot = IoSlice::new(match stretch {
                _ if ends => break,
                Stretch::Data(data) => data,
                Stretch::Sealed(data, sent) => &data[*sent..],
                Stretch::Begun(begun) => {
                    ends = true;
                    begun.ready()
                }
                Stretch::Arena(len) => {
                    let (front, rest) = arena.split_at(*len);
                    arena = rest;
                    front
                }
                Stretch::Due(_) | Stretch::Away(_) => break,
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
            let gone = left.min(front.len());
            left -= gone;
            let whole = gone == front.len();
            match front {
                Stretch::Arena(len) => {
                    self.arena_start += gone;
                    *len -= gone;
                }
                Stretch::Data(data) => data.advance(gone),
                Stretch::Sealed(_, sent) => *sent += gone,
                Stretch::Begun(begun) => begun.advance(gone),
                Stretch::Due(_) | Stretch::Away(_) => debug_assert!(false, "sent and not sealed"),
            }
            if whole {
                self.pop();
            }
        }
        self.reclaim();
    }

    fn pop(&mut self) {
        self.gone += 1;
        if let Some(Stretch::Sealed(buffer, _)) = self.stretches.pop_front() {
            self.keep(buffer);
        }
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
        self.gone += self.stretches.len() as u64;
        self.stretches.clear();
        self.arena_start = self.arena.len();
        (self.len, self.due) = (0, 0);
        self.reclaim();
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

/// A body: the additional headers and the data.
fn with_ahs(ahs: &[u8], data: Pieces) -> Pieces {
    if ahs.is_empty() {
        return data;
    }
    let mut body = Pieces::from(Bytes::copy_from_slice(ahs));
    data.into_vec().into_iter().for_each(|piece| body.push(piece));
    body
}

/// The digest of a data segment in pieces; it covers the padding (RFC 7143, 11.2.3).
fn digest_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, len: usize) -> [u8; 4] {
    let mut digest = Crc32c::new();
    pieces.into_iter().for_each(|piece| digest.update(piece));
    digest.update(&[0; 3][..padding(len)]);
    digest.finish()
}
