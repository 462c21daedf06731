//! The large bodies of a secure session that are on their way out, in order, and who encrypts them.
//!
//! They are encrypted just before they are sent, piece by piece, while the processor still has in its cache what the
//! system then takes ([`EncryptQueue::encrypt`]); or, where many wait, by others in advance ([`EncryptQueue::job`]).

use std::collections::VecDeque;

use super::body::{Body, WaitingBody};

/// Less than this is not encrypted by itself: every piece costs a little.
const PIECE_MIN: usize = 4 << 10;

/// Bodies to be encrypted by someone else: anywhere, at any time, in any order.
#[derive(Debug)]
#[must_use = "output behind it waits until it is done"]
pub struct Job(Vec<(u64, WaitingBody)>);

/// What came of a [`Job`].
#[derive(Debug)]
#[must_use = "it belongs back into the outbox its job is from"]
pub struct Done(Vec<(u64, Vec<u8>)>);

impl Job {
    /// Does it, which takes as long as the cipher takes.
    pub fn run(self) -> Done {
        let encrypted = self.0.into_iter().map(|(place, body)| {
            let mut output = Vec::with_capacity(body.output_len());
            body.encrypt(&mut output);
            (place, output)
        });
        Done(encrypted.collect())
    }
}

/// The bodies, the next to be sent first.
#[derive(Debug, Default)]
pub(super) struct EncryptQueue {
    bodies: VecDeque<Body>,
    /// How many bodies there were before the first of these: its place. Places are never used twice.
    gone: u64,
    /// Bytes that are to be encrypted here.
    unencrypted: usize,
    spare: SpareBuffers,
}

impl EncryptQueue {
    /// Whether there is something to encrypt here.
    pub(super) const fn has_work(&self) -> bool {
        self.unencrypted > 0
    }

    pub(super) fn push(&mut self, body: WaitingBody) {
        self.unencrypted += body.input_len();
        self.bodies.push_back(Body::Waiting(body));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Body> {
        self.bodies.iter()
    }

    /// At most `sent` bytes of the first body are gone. Gives how many, and whether that was the rest of it.
    pub(super) fn advance(&mut self, sent: usize) -> (usize, bool) {
        let Some(body) = self.bodies.front_mut() else { return (0, true) };
        let len = body.len();
        let gone = sent.min(len);
        body.advance(gone);
        if gone == len {
            self.pop_front();
        }
        (gone, gone == len)
    }

    fn pop_front(&mut self) {
        self.gone += 1;
        if let Some(Body::Encrypted(buffer, _)) = self.bodies.pop_front() {
            self.spare.keep(buffer);
        }
    }

    /// Forgets all that has not been sent.
    pub(super) fn clear(&mut self) {
        self.gone += self.bodies.len() as u64;
        self.bodies.clear();
        self.unencrypted = 0;
    }

    /// Encrypts the body at `index` until `most` bytes of it can be sent. Gives how many can; none if that is not for us
    /// to change.
    pub(super) fn encrypt(&mut self, index: usize, most: usize) -> Option<usize> {
        let body = self.bodies.get_mut(index)?;
        if matches!(body, Body::Elsewhere(_)) {
            return None;
        }
        let (work, room) = (body.unencrypted(), most.saturating_sub(body.ready().len()));
        if work > 0 && room >= PIECE_MIN {
            let before = std::mem::replace(body, Body::Elsewhere(0));
            *body = before.encrypt(room, || self.spare.take());
            self.unencrypted -= work - body.unencrypted();
        }
        Some(body.ready().len())
    }

    /// Some bodies for somebody else to encrypt, if `share` bytes of them are left for the caller to encrypt and send
    /// meanwhile: about as many again. What is behind them is not sent before they are [put back](Self::put_back).
    pub(super) fn job(&mut self, share: usize) -> Option<Job> {
        if self.unencrypted < 2 * share {
            return None;
        }
        let (mut left, mut taken, mut bodies) = (0, 0, Vec::new());
        for (place, body) in (self.gone..).zip(&mut self.bodies) {
            let Body::Waiting(waiting) = body else { continue };
            if left < share {
                left += waiting.input_len();
                continue;
            }
            if taken >= share {
                break;
            }
            taken += waiting.input_len();
            let elsewhere = Body::Elsewhere(waiting.output_len());
            if let Body::Waiting(waiting) = std::mem::replace(body, elsewhere) {
                bodies.push((place, waiting));
            }
        }
        self.unencrypted -= taken;
        (!bodies.is_empty()).then_some(Job(bodies))
    }

    /// Takes what came of a [`job`](Self::job) of this queue.
    pub(super) fn put_back(&mut self, done: Done) {
        for (place, output) in done.0 {
            // What has been cleared meanwhile is not there any more.
            let index = place.checked_sub(self.gone).and_then(|index| usize::try_from(index).ok());
            let body = index.and_then(|index| self.bodies.get_mut(index));
            if let Some(body @ Body::Elsewhere(_)) = body {
                *body = Body::Encrypted(output, 0);
            }
        }
    }
}

/// Buffers of bodies that have been sent, for the next ones. Fresh memory costs a page fault every 4 KiB, together as
/// much as encrypting it.
#[derive(Debug, Default)]
struct SpareBuffers(Vec<Vec<u8>>);

impl SpareBuffers {
    /// How much is kept.
    const MOST: usize = 2 << 20;

    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    fn keep(&mut self, mut buffer: Vec<u8>) {
        let kept: usize = self.0.iter().map(Vec::capacity).sum();
        if kept + buffer.capacity() <= Self::MOST {
            buffer.clear();
            self.0.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::iscsi::pdu::Pieces;
    use crate::iscsi::sealed::invariants::both_ends;
    use crate::iscsi::sealed::soft::new_aes_256_gcm;
    use crate::iscsi::sealed::{Limits, Protection, TAG_LEN};

    /// Each body is as long as that.
    fn queue(lengths: &[usize]) -> EncryptQueue {
        let (mut sealer, _) = both_ends(Protection::Encrypt, Limits::SPEC, new_aes_256_gcm);
        let mut queue = EncryptQueue::default();
        for &len in lengths {
            let ticket = sealer.next(len, &mut Vec::new());
            queue.push(WaitingBody::new(ticket, Bytes::from(vec![7; len]).into()));
        }
        queue
    }

    fn ready(queue: &EncryptQueue) -> Vec<usize> {
        queue.iter().map(|body| body.ready().len()).collect()
    }

    #[test]
    fn body_is_encrypted_as_far_as_it_may_be_sent() {
        let mut queue = queue(&[20_000, 20_000]);
        assert_eq!(queue.encrypt(0, 16_000), Some(16_000));
        assert_eq!(queue.encrypt(0, 16_000), Some(16_000), "nothing of it was sent");
        assert_eq!(queue.encrypt(0, 16_000 + PIECE_MIN - 1), Some(16_000), "too little");
        assert!(queue.has_work());
        assert_eq!(queue.encrypt(0, 30_000), Some(20_000 + TAG_LEN));
        assert_eq!(queue.encrypt(1, 30_000), Some(20_000 + TAG_LEN));
        assert!(!queue.has_work());
    }

    #[test]
    fn share_of_the_caller_stays() {
        let mut queue = queue(&[20_000; 5]);
        let job = queue.job(40_000).unwrap();
        assert!(queue.job(40_000).is_none(), "60,000 bytes are left");
        assert_eq!(
            (0..5).map(|at| queue.encrypt(at, 1 << 20).is_some()).collect::<Vec<_>>(),
            [true, true, false, false, true]
        );
        queue.put_back(job.run());
        assert_eq!(ready(&queue), [20_000 + TAG_LEN; 5]);
    }

    #[test]
    fn cleared_body_is_not_put_back() {
        let mut queue = queue(&[20_000; 4]);
        let job = queue.job(20_000).unwrap();
        queue.clear();
        assert!(!queue.has_work() && queue.iter().next().is_none());
        let (mut sealer, _) = both_ends(Protection::Encrypt, Limits::SPEC, new_aes_256_gcm);
        for _ in 0..4 {
            let ticket = sealer.next(20_000, &mut Vec::new());
            queue.push(WaitingBody::new(ticket, Pieces::from(Bytes::from(vec![8; 20_000]))));
        }
        let other = queue.job(20_000).unwrap();
        queue.put_back(job.run());
        assert_eq!(ready(&queue), [0; 4]);
        queue.put_back(other.run());
        assert_eq!(ready(&queue), [0, 20_000 + TAG_LEN, 0, 0]);
    }

    /// Bodies that were sent give their buffers to those behind them.
    #[test]
    fn buffers_are_used_again_within_bounds() {
        let mut queue = queue(&[20_000; 3]);
        queue.encrypt(0, 1 << 20);
        let place = |queue: &EncryptQueue| queue.iter().next().unwrap().ready().as_ptr();
        let first = place(&queue);
        assert_eq!(queue.advance(1 << 20), (20_000 + TAG_LEN, true));
        queue.encrypt(0, 1 << 20);
        assert_eq!(place(&queue), first);
        let mut spare = SpareBuffers::default();
        (0..5).for_each(|_| spare.keep(Vec::with_capacity(SpareBuffers::MOST / 2)));
        assert_eq!(spare.0.len(), 2);
        assert_eq!(spare.take().len(), 0);
    }
}
