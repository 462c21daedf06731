//! Bytes on their way out, in order, as slices for vectored writes.
//!
//! ```text
//! arena     | header | header, small data, padding | header ...
//! segments    Copied   Copied                 Shared   Copied   Body ...
//! bodies                                                        body ...
//! ```

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf as _, Bytes};

use super::body::WaitingBody;
use super::encrypt_queue::EncryptQueue;

/// Data up to this length are copied among the headers: a slice of their own costs a reference, a drop
/// and an entry of the vectored write, which is more than copying so little.
pub(super) const COPY_MAX: usize = 1024;

/// How much is encrypted before it is handed to the system. More would leave the processor's cache before the
/// system copies it, and would keep the other end waiting for the first of it. It fits one segment of the largest
/// size there is, 64 KiB with all headers: what is left over would be sent, received and acknowledged by itself.
const AHEAD: usize = 60 << 10;

/// Bytes that follow one another in the output.
#[derive(Debug)]
enum Segment {
    /// The next bytes of the arena.
    Copied(usize),
    /// Data, by reference.
    Shared(Bytes),
    /// The next of the bodies.
    Body,
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct OutputQueue {
    buffer: CopyBuffer,
    segments: VecDeque<Segment>,
    pub(super) bodies: EncryptQueue,
    len: usize,
}

impl OutputQueue {
    /// How many bytes wait to be sent.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    // What comes in.

    /// Adds what `write` appends.
    pub(super) fn append<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let before = self.buffer.bytes.len();
        let written = write(&mut self.buffer.bytes);
        let len = self.buffer.bytes.len() - before;
        self.len += len;
        match self.segments.back_mut() {
            _ if len == 0 => {}
            Some(Segment::Copied(last)) => *last += len,
            _ => self.segments.push_back(Segment::Copied(len)),
        }
        written
    }

    /// Adds data, by reference unless they are small.
    pub(super) fn push(&mut self, data: Bytes) {
        if data.len() <= COPY_MAX {
            return self.append(|out| out.extend_from_slice(&data));
        }
        self.len += data.len();
        self.segments.push_back(Segment::Shared(data));
    }

    /// Adds a body that is to be encrypted.
    pub(super) fn push_body(&mut self, body: WaitingBody) {
        self.len += body.output_len();
        self.bodies.push(body);
        self.segments.push_back(Segment::Body);
    }

    // What goes out.

    /// Fills `slices` from the front; returns how many it filled. It is none where what comes next is encrypted
    /// elsewhere.
    pub(super) fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        if self.bodies.has_work() {
            self.encrypt_ahead();
        }
        let (mut copied, mut bodies) = (self.buffer.unsent(), self.bodies.iter());
        let (mut filled, mut ends) = (0, false);
        for (slot, segment) in slices.iter_mut().zip(&self.segments) {
            let slice = match segment {
                _ if ends => break,
                Segment::Copied(len) => {
                    let (front, rest) = copied.split_at(*len);
                    copied = rest;
                    front
                }
                Segment::Shared(data) => data,
                Segment::Body => {
                    let Some(body) = bodies.next() else { break };
                    ends = !body.is_encrypted();
                    body.ready()
                }
            };
            if slice.is_empty() {
                break;
            }
            *slot = IoSlice::new(slice);
            filled += 1;
        }
        filled
    }

    /// Encrypts what is to be sent next, up to what is encrypted elsewhere.
    fn encrypt_ahead(&mut self) {
        let (mut ready, mut body) = (0, 0);
        for segment in &self.segments {
            if !self.bodies.has_work() || ready >= AHEAD {
                return;
            }
            ready += match segment {
                Segment::Copied(len) => *len,
                Segment::Shared(data) => data.len(),
                Segment::Body => {
                    let Some(encrypted) = self.bodies.encrypt(body, AHEAD - ready) else { return };
                    body += 1;
                    encrypted
                }
            };
        }
    }

    /// The first `sent` bytes are gone.
    pub(super) fn advance(&mut self, sent: usize) {
        debug_assert!(sent <= self.len);
        self.len = self.len.saturating_sub(sent);
        let mut left = sent;
        while left > 0
            && let Some(front) = self.segments.front_mut()
        {
            let (gone, whole) = match front {
                Segment::Copied(len) => {
                    let gone = left.min(*len);
                    self.buffer.sent += gone;
                    *len -= gone;
                    (gone, *len == 0)
                }
                Segment::Shared(data) => {
                    let gone = left.min(data.len());
                    data.advance(gone);
                    (gone, data.is_empty())
                }
                Segment::Body => self.bodies.advance(left),
            };
            left -= gone;
            if whole {
                self.segments.pop_front();
            }
        }
        self.buffer.reclaim();
    }

    /// Forgets what has not been sent.
    pub(super) fn clear(&mut self) {
        self.segments.clear();
        self.bodies.clear();
        self.buffer.sent = self.buffer.bytes.len();
        self.buffer.reclaim();
        self.len = 0;
    }
}

/// Bytes that were copied, one behind the other.
#[derive(Debug, Default)]
struct CopyBuffer {
    bytes: Vec<u8>,
    /// How many of them have been sent.
    sent: usize,
}

impl CopyBuffer {
    /// Sent bytes it may carry before the others are moved to their place, where output never runs dry.
    const STALE_MAX: usize = 64 << 10;

    fn unsent(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    fn reclaim(&mut self) {
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        } else if self.sent > Self::STALE_MAX {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iscsi::sealed::invariants::both_ends;
    use crate::iscsi::sealed::soft::new_aes_256_gcm;
    use crate::iscsi::sealed::{Limits, Protection};

    fn copied(queue: &mut OutputQueue, bytes: &[u8]) {
        queue.append(|out| out.extend_from_slice(bytes));
    }

    fn slices(queue: &mut OutputQueue) -> Vec<Vec<u8>> {
        let mut slices = [IoSlice::new(&[]); 8];
        let filled = queue.slices(&mut slices);
        slices[..filled].iter().map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn small_data_lie_among_the_headers_and_large_ones_by_reference() {
        let mut queue = OutputQueue::default();
        let large = Bytes::from(vec![7; COPY_MAX + 1]);
        copied(&mut queue, b"head");
        queue.push(Bytes::from_static(b"small"));
        queue.push(large.clone());
        copied(&mut queue, b"tail");
        copied(&mut queue, b"");
        assert_eq!(slices(&mut queue), [b"headsmall".to_vec(), large.to_vec(), b"tail".to_vec()]);
        let mut places = [IoSlice::new(&[]); 3];
        queue.slices(&mut places);
        assert_eq!(places[1].as_ptr(), large.as_ptr(), "not copied");
    }

    /// Whatever the system takes at a time.
    #[test]
    fn taken_output_does_not_come_again() {
        for most in [1, 3, 700, 5000] {
            let mut queue = OutputQueue::default();
            let mut expected = Vec::new();
            for round in 0..10 {
                let data = vec![round; 400 * usize::from(round)];
                copied(&mut queue, &[round; 48]);
                queue.push(data.clone().into());
                expected.extend([&[round; 48][..], &data].concat());
            }
            let mut sent = Vec::new();
            while queue.len() > 0 {
                let there = slices(&mut queue).concat();
                let taken = &there[..there.len().min(most)];
                sent.extend_from_slice(taken);
                queue.advance(taken.len());
                assert_eq!(queue.len(), expected.len() - sent.len());
            }
            assert!(sent == expected, "{most} at a time");
            assert!(slices(&mut queue).is_empty());
        }
    }

    /// Bodies are walked beside the segments that stand for them.
    #[test]
    fn bodies_keep_their_places() {
        let (mut sealer, _) = both_ends(Protection::Encrypt, Limits::SPEC, new_aes_256_gcm);
        let mut queue = OutputQueue::default();
        let mut body = |len: usize| {
            let ticket = sealer.next(len, &mut Vec::new());
            WaitingBody::new(ticket, Bytes::from(vec![1; len]).into())
        };
        copied(&mut queue, b"a");
        queue.push_body(body(2000));
        copied(&mut queue, b"b");
        queue.push_body(body(3000));
        queue.push_body(body(100_000));
        copied(&mut queue, b"c");
        let lengths =
            |queue: &mut OutputQueue| slices(queue).iter().map(Vec::len).collect::<Vec<_>>();
        let ahead = AHEAD - (1 + 2016 + 1 + 3016);
        assert_eq!(lengths(&mut queue), [1, 2016, 1, 3016, ahead], "nothing overtakes the last");
        queue.advance(1 + 2016 + 1 + 16);
        assert_eq!(lengths(&mut queue)[0], 3000);
        queue.clear();
        assert_eq!((queue.len(), lengths(&mut queue)), (0, vec![]));
        copied(&mut queue, b"d");
        queue.push_body(body(2000));
        assert_eq!(lengths(&mut queue), [1, 2016]);
    }

    #[test]
    fn buffer_does_not_grow_while_output_never_runs_dry() {
        let mut queue = OutputQueue::default();
        copied(&mut queue, &[1; 48]);
        for _ in 0..100_000 {
            copied(&mut queue, &[1; 48]);
            queue.advance(48);
        }
        assert_eq!(queue.len(), 48);
        assert!(queue.buffer.bytes.capacity() <= 4 * CopyBuffer::STALE_MAX);
    }
}
