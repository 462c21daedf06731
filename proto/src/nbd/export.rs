//! What a server exports.

/// An export, in terms of the protocol. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its size, a multiple of `minimum_block_size`.
    pub size: u64,
    /// The unit of every request: a power of two, at most 65,536.
    pub minimum_block_size: u32,
    /// The unit in which requests cost least: a power of two, at least the minimum.
    pub preferred_block_size: u32,
    /// Requests that change it are refused.
    pub read_only: bool,
    /// It takes TRIM.
    pub trim: bool,
    /// WRITE_ZEROES costs less than a WRITE of zeroes: a request with the flag FAST_ZERO is let in.
    pub fast_zero: bool,
    /// It has the metadata context "base:allocation": a client may ask what is allocated.
    pub base_allocation: bool,
    /// For people.
    pub description: String,
}

/// A range of bytes of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub length: u64,
}

impl ByteRange {
    /// `length` bytes from `offset` on.
    #[must_use]
    pub const fn new(offset: u64, length: u64) -> Self {
        Self { offset, length }
    }

    /// The byte after the last; `None` if it is beyond 2^64.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }

    /// How many bytes it shares with `other`.
    pub(super) fn overlap(self, other: Self) -> u64 {
        let end = |range: Self| range.end().unwrap_or(u64::MAX);
        end(self).min(end(other)).saturating_sub(self.offset.max(other.offset))
    }
}

/// A run of bytes of one allocation state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Where.
    pub range: ByteRange,
    /// No space is allocated for it (NBD_STATE_HOLE).
    pub hole: bool,
    /// It reads as zeroes (NBD_STATE_ZERO).
    pub zero: bool,
}
