//! A change on its way into the pipeline.

use bytes::Bytes;

use super::super::WaiterId;
use super::super::piece::{Body, Rope};
use crate::{Durability, Space, Span, Verb};

/// A write, write of zeroes or discard, as far as it is not accepted yet.
pub(in super::super) struct Change {
    pub(in super::super) verb: Verb,
    /// What of it is still to be accepted.
    pub(in super::super) span: Span,
    pub(in super::super) body: ChangeBody,
    /// How long it was.
    whole: u64,
    pub(in super::super) durability: Durability,
    /// Under which its sender waits, once it has to: for room, or for the bytes to be durable.
    pub(in super::super) waiter: Option<WaiterId>,
    /// It stands in the line.
    pub(super) in_line: bool,
}

/// What a change is to do.
pub(in super::super) enum ChangeBody {
    Data(Bytes),
    Zeroes(Space),
    Discard,
}

/// Whether a change was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Entry {
    Accepted,
    /// Its place in the line is kept; its waiter is called when it may be its turn.
    Wait(WaiterId),
}

impl Change {
    pub(in super::super) const fn new(
        verb: Verb,
        span: Span,
        body: ChangeBody,
        durability: Durability,
    ) -> Self {
        Self { verb, span, body, whole: span.len, durability, waiter: None, in_line: false }
    }

    /// Data are accepted segment by segment, so that a write larger than the window passes, and its parts are
    /// encrypted and sent at the same time.
    pub(super) fn next_part(&self, segment: u64) -> Span {
        match self.body {
            ChangeBody::Data(_) => Span::new(self.span.at, self.span.len.min(segment)),
            ChangeBody::Zeroes(_) | ChangeBody::Discard => self.span,
        }
    }

    /// Removes its first part and returns what that is to do.
    pub(super) fn take(&mut self, part: Span) -> Body {
        self.span = Span::new(part.end(), self.span.len - part.len);
        match &mut self.body {
            ChangeBody::Data(data) => {
                let data = data.split_to(part.len as usize);
                Body::Data(Rope::written(data, self.whole as usize))
            }
            ChangeBody::Zeroes(space) => Body::Zeroes(*space),
            ChangeBody::Discard => Body::Discard,
        }
    }
}
