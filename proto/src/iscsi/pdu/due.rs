//! Large bodies on their way out that are not sealed yet.
//!
//! A body has its number and its place in the output from the moment it is queued, so that it does not
//! matter who seals it, nor when, nor in which order (docs/spec/sealed-iscsi.md, 5).

use super::Pieces;
use crate::iscsi::sealed::{SealStream, TAG_LEN, Ticket};

/// A body that waits to be sealed.
#[derive(Debug)]
pub(super) struct Due {
    ticket: Ticket,
    body: Pieces,
}

impl Due {
    pub(super) const fn new(ticket: Ticket, body: Pieces) -> Self {
        Self { ticket, body }
    }

    /// How many bytes there are to work on.
    pub(super) const fn work(&self) -> usize {
        self.body.len()
    }

    /// How many bytes come of it: all of it with its tag, or only the tag where the body itself is sent as
    /// it stands.
    pub(super) fn len(&self) -> usize {
        if self.ticket.enciphers() { self.body.len() + TAG_LEN } else { TAG_LEN }
    }

    /// Appends what comes of it to `out`.
    pub(super) fn seal(self, out: &mut Vec<u8>) {
        let mut pieces = self.body.into_vec();
        // Ciphers take a body in one piece; only several pieces are copied for it.
        let body = match pieces.len() {
            1 => pieces.swap_remove(0),
            _ => pieces.concat().into(),
        };
        if self.ticket.enciphers() {
            self.ticket.seal_body(&body, out);
        } else {
            self.ticket.seal_tag(&body, out);
        }
    }

    /// Whether it can be sealed piece by piece.
    pub(super) fn streams(&self) -> bool {
        self.ticket.enciphers()
    }

    /// Begins to seal it piece by piece, into an empty buffer.
    pub(super) fn begin(self, sealed: Vec<u8>) -> Begun {
        Begun { stream: self.ticket.stream_body(), left: self.body, sealed, sent: 0 }
    }
}

/// A body of which the first pieces are sealed.
#[derive(Debug)]
pub(super) struct Begun {
    stream: Box<dyn SealStream>,
    left: Pieces,
    /// What came of the pieces so far, as far as it is needed, and how much of it has been sent.
    sealed: Vec<u8>,
    sent: usize,
}

impl Begun {
    /// How many bytes there are to work on.
    pub(super) const fn work(&self) -> usize {
        self.left.len()
    }

    /// How many bytes are still to be sent, the tag among them.
    pub(super) const fn len(&self) -> usize {
        self.sealed.len() - self.sent + self.left.len() + TAG_LEN
    }

    /// What can be sent now.
    pub(super) fn ready(&self) -> &[u8] {
        self.sealed.get(self.sent..).unwrap_or_default()
    }

    pub(super) const fn advance(&mut self, sent: usize) {
        self.sent += sent;
    }

    /// Seals the next `most` bytes. What has been sent makes room for them, so that they come to where the
    /// processor's cache is still warm.
    pub(super) fn go_on(&mut self, most: usize) {
        self.sealed.drain(..self.sent);
        self.sent = 0;
        let mut pieces = self.left.split_front(most);
        while let Some(piece) = pieces.take_front(most) {
            self.stream.seal(&piece, &mut self.sealed);
        }
    }

    /// All of it is sealed: the rest of what comes of it.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.sealed.drain(..self.sent);
        self.sealed.extend_from_slice(&self.stream.finish());
        self.sealed
    }
}

/// Bodies to be sealed by someone else: anywhere, at any time, in any order.
#[derive(Debug)]
#[must_use = "output behind it waits until it is done"]
pub struct Job(pub(super) Vec<(u64, Due)>);

/// What came of a [`Job`].
#[derive(Debug)]
#[must_use = "it belongs back into the outbox its job is from"]
pub struct Done(pub(super) Vec<(u64, Vec<u8>)>);

impl Job {
    /// Does it, which takes as long as the cipher takes.
    pub fn run(self) -> Done {
        let sealed = self.0.into_iter().map(|(place, due)| {
            let mut sealed = Vec::with_capacity(due.len());
            due.seal(&mut sealed);
            (place, sealed)
        });
        Done(sealed.collect())
    }
}
