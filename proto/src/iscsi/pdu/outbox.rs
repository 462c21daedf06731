//! From PDUs to bytes on their way out.
//!
//! ```text
//! PDU -> framing: header, digests, padding     -> OutputQueue -> slices of one vectored write
//!    \-> Sealer: the parts of a secure session ------^
//! ```
//!
//! Headers, digests, padding and small data are copied, one behind the other; larger data go out of the buffers they came
//! in. Large bodies of a secure session are encrypted when they are sent, or by others meanwhile ([`Outbox::job`]).

use std::io::IoSlice;

use bytes::Bytes;

use super::body::WaitingBody;
use super::encrypt_queue::{Done, Job};
use super::framing::{self, Digests};
use super::output_queue::{COPY_MAX, OutputQueue};
use super::{Pdu, Pieces};
use crate::iscsi::header::{Header, Lengths};
use crate::iscsi::sealed::Sealer;
use crate::time::Time;

/// PDUs on their way out.
#[derive(Debug, Default)]
pub struct Outbox {
    digests: Digests,
    /// That of a secure session, which has no digests.
    sealer: Option<Box<Sealer>>,
    queue: OutputQueue,
}

impl Outbox {
    /// Nothing to send, no digests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Which digests to send from the next PDU on. In a secure session there are none.
    pub const fn set_digests(&mut self, header: bool, data: bool) {
        self.digests = Digests { header, data };
    }

    /// From the next PDU on the session is secure.
    pub fn set_sealer(&mut self, sealer: Sealer) {
        self.sealer = Some(Box::new(sealer));
    }

    /// Advances the clock used for key-age rekeying.
    pub fn tick(&mut self, now: Time) {
        if let Some(sealer) = &mut self.sealer {
            sealer.tick(now);
        }
    }

    /// How many bytes wait to be sent.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    // PDUs in.

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
        let Pdu { header, ahs, data } = pdu;
        if self.sealer.is_some() {
            return self.push_secure(&header, &ahs, data.into());
        }
        let (digests, len) = (self.digests, data.len());
        self.queue.append(|out| digests.put_head(&header, &ahs, len, out));
        if data.is_empty() {
            // It has neither padding nor digest.
            return;
        }
        let digest = digests.of_data([&data[..]], len);
        self.queue.push(data);
        self.queue.append(|out| framing::put_tail(len, digest, out));
    }

    /// Adds a PDU whose data segment is the first `len` bytes of `data`, which leave it.
    pub fn push_from(&mut self, header: impl Into<Header>, data: &mut Pieces, len: usize) {
        let (header, len) = (header.into(), len.min(data.len()));
        if self.sealer.is_some() {
            return self.push_secure(&header, &[], data.split_front(len));
        }
        let digests = self.digests;
        self.queue.append(|out| digests.put_head(&header, &[], len, out));
        let digest = digests.of_data(data.front(len), len);
        let mut left = len;
        while left > 0
            && let Some(piece) = data.take_front(left)
        {
            left -= piece.len();
            self.queue.push(piece);
        }
        self.queue.append(|out| framing::put_tail(len, digest, out));
    }

    /// Adds a PDU of a secure session: its header, and behind it its body, if that is not empty.
    fn push_secure(&mut self, header: &Header, ahs: &[u8], data: Pieces) {
        let Some(sealer) = &mut self.sealer else { return };
        let bhs = header.emit(Lengths { ahs: ahs.len(), data: data.len() });
        let body = with_ahs(ahs, data);
        let ticket = self.queue.append(|out| {
            let ticket = sealer.next(body.len(), out);
            ticket.seal_header(&bhs, out);
            ticket
        });
        if body.is_empty() {
            return;
        }
        if body.len() <= COPY_MAX {
            return self.queue.append(|out| ticket.seal_body(&body.into_vec().concat(), out));
        }
        if !ticket.enciphers() {
            // It is sent as it stands, and only its tag is to be made.
            body.clone().into_vec().into_iter().for_each(|piece| self.queue.push(piece));
        }
        self.queue.push_body(WaitingBody::new(ticket, body));
    }

    // Bytes out.

    /// Some bodies for somebody else to encrypt, if `share` bytes of them are left for the caller to encrypt and send
    /// meanwhile: about as many again. What is behind them is not sent before they are [put back](Self::put_back).
    pub fn job(&mut self, share: usize) -> Option<Job> {
        self.queue.bodies.job(share)
    }

    /// Takes what came of a [`job`](Self::job) of this outbox.
    pub fn put_back(&mut self, done: Done) {
        self.queue.bodies.put_back(done);
    }

    /// Fills `slices` from the front of the queue; returns how many it filled. It is none where what comes
    /// next is encrypted elsewhere.
    pub fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        self.queue.slices(slices)
    }

    /// The first `sent` bytes are gone.
    pub fn advance(&mut self, sent: usize) {
        self.queue.advance(sent);
    }

    /// Forgets what has not been sent: the connection ends in the middle of it.
    pub fn clear(&mut self) {
        self.queue.clear();
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
