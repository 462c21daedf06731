//! What the worker is told to do, and what came of it.

use bytes::Bytes;

use super::super::piece::{Body, Piece, Rope};
use crate::{Durability, Error, Extent, Result, Space, Span, Verb};

/// Something for the worker to do.
#[derive(Debug)]
pub(in super::super) enum Order {
    Write { at: u64, data: Rope, durability: Durability },
    WriteZeroes { span: Span, space: Space, durability: Durability },
    Discard { span: Span },
    Flush { flush: u64 },
    Read { span: Span },
    Extents { span: Span },
}

impl Order {
    /// The order that carries out a change.
    pub(super) fn change(piece: &Piece, durability: Durability) -> Self {
        let span = piece.span;
        match &piece.body {
            Body::Data(rope) => Self::Write { at: span.at, data: rope.clone(), durability },
            &Body::Zeroes(space) => Self::WriteZeroes { span, space, durability },
            Body::Discard => Self::Discard { span },
        }
    }
}

/// What came of an order.
pub(in super::super) enum Outcome {
    /// Of the change at this place.
    Changed(u64, Result<()>),
    Flushed(u64, Result<()>),
    /// Of the read-ahead at this place.
    Read(u64, Result<Bytes>),
    Extents(Result<Vec<Extent>>),
}

impl Outcome {
    /// How a write or a flush failed. A discard may be left undone, and who reads is told himself.
    pub(in super::super) fn failure(&self) -> Option<&Error> {
        match self {
            Self::Changed(_, result) | Self::Flushed(_, result) => {
                result.as_ref().err().filter(|error| error.verb != Verb::Discard)
            }
            Self::Read(..) | Self::Extents(_) => None,
        }
    }
}
