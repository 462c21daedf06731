//! Large bodies on their way out that are not sealed yet.
//!
//! A body has its number and its place in the output from the moment it is queued, so that it does not
//! matter who seals it, nor when, nor in which order (docs/spec/sealed-iscsi.md, 5).

use super::Pieces;
use crate::iscsi::sealed::{TAG_LEN, Ticket};

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
