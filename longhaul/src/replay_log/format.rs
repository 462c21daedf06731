//! The bytes of a replay log.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use volume::{Space, Span};

use super::{Change, Header};

/// How every replay log begins.
pub(super) const MAGIC: [u8; 8] = *b"LHREPLAY";

/// The version that is written, and the only one that is read.
pub(super) const VERSION: u32 = 1;

/// The longest header: names, and a URI.
pub(super) const HEADER_MAX: u32 = 64 << 10;

/// The bytes of a record before its data.
pub(super) const HEAD_LEN: usize = 24;

/// Of each checksum.
pub(super) const SUM_LEN: usize = 32;

/// A record without data.
pub(super) const RECORD_MIN: usize = HEAD_LEN + SUM_LEN;

const WRITE: [u8; 4] = *b"WRIT";
const ZERO: [u8; 4] = *b"ZERO";
const DISCARD: [u8; 4] = *b"DISC";
const END: [u8; 4] = *b"END ";
const OPEN: [u8; 4] = *b"OPEN";

/// The flag of zeroes whose space may be given back.
const RELEASE: u32 = 1;

/// The checksum of all before a place: each record's covers that of the record before it, so that no record can be
/// missing, in another place, or of another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain(pub(super) [u8; SUM_LEN]);

impl Chain {
    pub(super) fn begin(preamble: &[u8]) -> Self {
        Self(Sha256::digest(preamble).into())
    }

    /// What follows, given a record without its checksum.
    pub(super) fn next(&self, head: &[u8], data: &[u8]) -> Self {
        let sum = Sha256::new().chain_update(self.0).chain_update(head).chain_update(data);
        Self(sum.finalize().into())
    }
}

/// What a log begins with, but for its checksum.
pub(super) fn preamble(header: &Header) -> Vec<u8> {
    let json = serde_json::to_vec(header).expect("strings and numbers");
    let len = u32::try_from(json.len()).expect("names are bounded");
    [&MAGIC[..], &VERSION.to_be_bytes(), &len.to_be_bytes(), &json].concat()
}

/// What a log says of itself where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Everything that was to be saved is in it, or counted as lost.
    End,
    /// More may have to follow: who writes it has not said that this is all.
    Unfinished,
}

/// What stands before the data of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Write(Span),
    Zero(Span, Space),
    Discard(Span),
    /// The last record, with the number of records before it and the bytes of their data.
    Last {
        mark: Mark,
        changes: u64,
        bytes: u64,
        /// How many changes should have followed and are lost; the largest number stands for more.
        lost: u32,
    },
}

impl Head {
    pub(super) fn of(change: &Change) -> Self {
        match change {
            Change::Write { .. } => Self::Write(change.span()),
            Change::Zero { span, space } => Self::Zero(*span, *space),
            Change::Discard(span) => Self::Discard(*span),
        }
    }

    /// How many bytes of data follow.
    pub(super) const fn data_len(&self) -> u64 {
        match self {
            Self::Write(span) => span.len,
            Self::Zero(..) | Self::Discard(_) | Self::Last { .. } => 0,
        }
    }

    pub(super) fn encode(&self) -> [u8; HEAD_LEN] {
        let (kind, flags, first, second) = match *self {
            Self::Write(span) => (WRITE, 0, span.at, span.len),
            Self::Zero(span, Space::Keep) => (ZERO, 0, span.at, span.len),
            Self::Zero(span, Space::Release) => (ZERO, RELEASE, span.at, span.len),
            Self::Discard(span) => (DISCARD, 0, span.at, span.len),
            Self::Last { mark: Mark::End, changes, bytes, lost } => (END, lost, changes, bytes),
            Self::Last { mark: Mark::Unfinished, changes, bytes, lost } => {
                (OPEN, lost, changes, bytes)
            }
        };
        let mut head = [0; HEAD_LEN];
        head[..4].copy_from_slice(&kind);
        head[4..8].copy_from_slice(&u32::to_be_bytes(flags));
        head[8..16].copy_from_slice(&first.to_be_bytes());
        head[16..].copy_from_slice(&second.to_be_bytes());
        head
    }

    /// `None` if it is no such head.
    pub(super) fn decode(head: &[u8; HEAD_LEN]) -> Option<Self> {
        let (kind, rest) = head.split_first_chunk::<4>()?;
        let (flags, rest) = rest.split_first_chunk::<4>()?;
        let (first, second) = rest.split_first_chunk::<8>()?;
        let flags = u32::from_be_bytes(*flags);
        let (first, second) =
            (u64::from_be_bytes(*first), u64::from_be_bytes(*second.first_chunk()?));
        // A span that overflows is one of no volume.
        let span = first.checked_add(second).map(|_| Span::new(first, second));
        match (*kind, flags) {
            (WRITE, 0) => span.map(Self::Write),
            (ZERO, 0) => span.map(|span| Self::Zero(span, Space::Keep)),
            (ZERO, RELEASE) => span.map(|span| Self::Zero(span, Space::Release)),
            (DISCARD, 0) => span.map(Self::Discard),
            (END | OPEN, lost) => {
                let mark = if *kind == END { Mark::End } else { Mark::Unfinished };
                Some(Self::Last { mark, changes: first, bytes: second, lost })
            }
            _ => None,
        }
    }

    /// The change, with the data that follow; `None` at the end.
    pub(super) fn change(self, data: Bytes) -> Option<Change> {
        match self {
            Self::Write(span) => Some(Change::Write { at: span.at, data }),
            Self::Zero(span, space) => Some(Change::Zero { span, space }),
            Self::Discard(span) => Some(Change::Discard(span)),
            Self::Last { .. } => None,
        }
    }
}
