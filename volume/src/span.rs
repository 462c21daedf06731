//! What a verb is asked for: which bytes, how durable, and whether their space may be given back.

use std::ops::Range;

/// When a write must be on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// With the next flush.
    Volatile,
    /// Before it completes (FUA).
    Durable,
}

/// What zeroing does to the space under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Stays allocated, so that a later write cannot run out of space.
    Keep,
    /// May be given back.
    Release,
}

/// A range of bytes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte.
    pub at: u64,
    /// How many bytes.
    pub len: u64,
}

impl Span {
    /// `len` bytes from `at` on.
    #[must_use]
    pub const fn new(at: u64, len: u64) -> Self {
        Self { at, len }
    }

    /// The byte after the last. A span that would end beyond 2^64 ends there; the gate refuses it.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.at.saturating_add(self.len)
    }

    /// Whether it covers nothing.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether the byte `at` is in it.
    #[must_use]
    pub const fn contains(self, at: u64) -> bool {
        self.at <= at && at < self.end()
    }

    /// Whether both share a byte.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.at < other.end() && other.at < self.end()
    }

    /// The pieces of at most `most` bytes that follow one another through the span.
    pub fn pieces(self, most: u64) -> impl Iterator<Item = Self> {
        let Range { start, end } = self.at..self.end();
        (start..end)
            .step_by(usize::try_from(most).unwrap_or(usize::MAX))
            .map(move |at| Self::new(at, most.min(end - at)))
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}", self.at, self.len)
    }
}
