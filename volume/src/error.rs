//! What can go wrong, who is to blame, and whether trying again may help.

use crate::{Durability, Span};

/// The result of a verb.
pub type Result<T> = std::result::Result<T, Error>;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// A failed verb: what was asked, of which bytes, why it failed.
#[derive(Debug, thiserror::Error)]
#[error("{verb}{} failed: {kind}", OfSpan(*.span))]
pub struct Error {
    /// What kind of failure it was; stable, small, made to be matched on.
    pub kind: Kind,
    /// What was asked.
    pub verb: Verb,
    /// Of which bytes; `None` for flush and crypto erase, which are of all.
    pub span: Option<Span>,
    /// The failure beneath, if any.
    pub source: Option<Source>,
}

impl Error {
    /// A failure of `verb` on `span`.
    pub fn new(kind: Kind, verb: Verb, span: impl Into<Option<Span>>) -> Self {
        Self { kind, verb, span: span.into(), source: None }
    }

    /// The same, caused by `source`.
    #[must_use]
    pub fn because(mut self, source: impl Into<Source>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// The kinds of failure. Fronts map each to a sense code or an errno, in one table each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Kind {
    /// The span is misaligned, too long or outside the volume.
    #[error("outside the volume or not aligned to its blocks")]
    Range,
    /// The volume does not do this.
    #[error("not supported by this volume")]
    Unsupported,
    /// The volume takes no writes.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The medium could not read or write these bytes.
    #[error("medium error")]
    Medium,
    /// The bytes are not what was written.
    #[error("integrity check failed")]
    Integrity,
    /// The store is full.
    #[error("no space left")]
    NoSpace,
    /// The store, the connection to it, or the medium is no longer there.
    #[error("the volume is gone")]
    Gone,
    /// The store cannot take the request now.
    #[error("busy")]
    Busy,
    /// The peer broke its protocol.
    #[error("the peer misbehaved")]
    Peer,
}

impl Kind {
    /// Who has to act on it.
    #[must_use]
    pub const fn blame(self) -> Blame {
        match self {
            Self::Range | Self::Unsupported | Self::ReadOnly => Blame::Caller,
            Self::Medium | Self::NoSpace | Self::Integrity => Blame::Store,
            Self::Gone | Self::Busy => Blame::Circumstance,
            Self::Peer => Blame::Peer,
        }
    }
}

impl Kind {
    /// Whether a change of `durability` that failed so may have cost what was written before it.
    ///
    /// Not if it was refused: nothing was tried. A full store refuses a volatile change; at a durable one
    /// it may have found no room for an earlier change that it had taken.
    #[must_use]
    pub const fn loses(self, durability: Durability) -> bool {
        match self {
            Self::Range | Self::Unsupported | Self::ReadOnly | Self::Busy => false,
            Self::NoSpace => matches!(durability, Durability::Durable),
            Self::Medium | Self::Integrity | Self::Gone | Self::Peer => true,
        }
    }
}

/// Who has to act on a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// Whoever asked for what cannot be done.
    Caller,
    /// Whoever looks after the store.
    Store,
    /// Whoever wrote the other end.
    Peer,
    /// Nobody: a link is down, a server restarts, a queue is full.
    Circumstance,
}

/// The five verbs, the map, and what a volume with a key of its own can do besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[expect(missing_docs, reason = "they are the verbs of the trait")]
pub enum Verb {
    #[error("read")]
    Read,
    #[error("write")]
    Write,
    #[error("write zeroes")]
    WriteZeroes,
    #[error("discard")]
    Discard,
    #[error("flush")]
    Flush,
    #[error("extents")]
    Extents,
    #[error("crypto erase")]
    CryptoErase,
}

struct OfSpan(Option<Span>);

impl std::fmt::Display for OfSpan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(span) => write!(f, " of {} bytes at {}", span.len, span.at),
            None => Ok(()),
        }
    }
}
