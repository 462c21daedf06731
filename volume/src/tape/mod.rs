//! A tape on a [`Volume`]: blocks of any size and file marks, one after the other.
//!
//! What is written is appended to the records before; writing in the middle of a tape ends it there. `docs/spec/tape.md`
//! describes the bytes, and what is found after a crash.
//!
//! [`format`](self) has the bytes, [`open`](Tape::open) finds the end of what was written, the other modules move,
//! read and write.

mod format;
mod moving;
mod opening;
mod reading;
#[cfg(test)]
mod tests;
mod writing;

use std::sync::Arc;

use bytes::Bytes;

pub use self::format::{BLOCK_MAX, Place};
pub use self::moving::Moved;
pub use self::opening::{LabelInfo, OpenError};
pub use self::reading::Read;

use self::format::{FIRST, Header, Label, UNIT};
use self::writing::SkipLinks;
use crate::{Error, Kind, Span, Volume};

/// The smallest volume that can be a tape.
pub const SIZE_MIN: u64 = 1 << 20;

/// What is kept free of blocks behind the early warning, so that file marks find room at the end.
const MARKS_RESERVE: u64 = 64 << 10;

/// A tape, and where its head is.
pub struct Tape {
    volume: Arc<dyn Volume>,
    /// As it was written last.
    label: Label,
    at: Place,
    /// The end of the recorded data.
    end: Place,
    /// What was written since the label was.
    unstable: u64,
    /// This run of writing has its own number, and may go on at `end`.
    is_writing: bool,
    /// Links to earlier records, and to file marks, from the last one that was written.
    links: SkipLinks,
    mark_links: SkipLinks,
    /// The longest block of this run of writing.
    longest: u32,
    /// Something that was written could not be made stable.
    has_failed: bool,
}

/// Why something could not be done with a tape.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    /// The volume failed.
    #[error(transparent)]
    Volume(#[from] Error),
    /// A record is not what was written, or cannot be read.
    #[error("the record at byte {at} of the tape is damaged")]
    Damaged {
        /// Where it begins.
        at: u64,
        /// Why it cannot be read.
        source: Option<Error>,
    },
    /// A block of more than [`BLOCK_MAX`] bytes.
    #[error("a block has at most {BLOCK_MAX} bytes")]
    Long,
    /// There is no room for it.
    #[error("the tape is full")]
    Full,
    /// Something written before could not be made stable, so that nothing can be appended to it.
    #[error("what was written before could not be made stable")]
    Failed,
    /// It is written once, and this would change what is on it.
    #[error("the tape can be written once: what is on it is neither written over nor erased")]
    WriteOnce,
}

/// The result of working with a tape.
pub type TapeResult<T> = Result<T, TapeError>;

impl TapeError {
    /// The record at byte `at` is not what was written.
    const fn damaged(at: u64) -> Self {
        Self::Damaged { at, source: None }
    }
}

impl Tape {
    /// Where the head is.
    #[must_use]
    pub const fn place(&self) -> Place {
        self.at
    }

    /// The end of the recorded data.
    #[must_use]
    pub const fn end(&self) -> Place {
        self.end
    }

    /// What tells it from other tapes; zero if nothing was ever written.
    #[must_use]
    pub const fn id(&self) -> u64 {
        if self.label.sequence == 0 { 0 } else { self.label.tape }
    }

    /// Whether nothing that is on it is written over.
    #[must_use]
    pub const fn is_write_once(&self) -> bool {
        self.label.is_write_once
    }

    /// Its size in bytes, with all that is needed beside the data.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.volume.shape().size
    }

    /// Whether the head is in the zone before the end of the medium in which initiators are warned.
    #[must_use]
    pub fn is_in_early_warning(&self) -> bool {
        self.at.at >= self.warning_at()
    }

    fn warning_at(&self) -> u64 {
        let size = self.capacity();
        // A client has a few blocks on their way.
        let zone = (size / 64).clamp(2 * MARKS_RESERVE, 256 << 20);
        // Who is warned by a long block has room for another one: that one may have been on its way.
        size.saturating_sub(zone.max(MARKS_RESERVE + 2 * Header::size(self.longest)))
    }

    /// How many bytes of records there is room for before the early warning, from the head on.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.warning_at().saturating_sub(self.at.at)
    }

    /// Whether something that was written could not be made stable. Then nothing is appended to it.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether it takes no writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.volume.shape().read_only
    }

    /// The header of the record at byte `at` before the end, which is the one that is wanted, and its checksum.
    async fn header(
        &self,
        at: u64,
        is_wanted: impl Fn(&Header) -> bool,
    ) -> TapeResult<(Header, u32)> {
        if at < FIRST || !at.is_multiple_of(UNIT) || at >= self.end.at {
            return Err(TapeError::damaged(at));
        }
        let unit = self.read_of(at, UNIT).await?;
        let found = Header::decode(&unit).filter(|(header, sum)| {
            self.is_own(header, at) && self.holds(&header.after(*sum)) && is_wanted(header)
        });
        found.ok_or_else(|| TapeError::damaged(at))
    }

    /// The first `len` bytes of the record at byte `at`. What the medium cannot read is damaged, as what it reads
    /// otherwise than it was written: those behind it are read all the same.
    async fn read_of(&self, at: u64, len: u64) -> TapeResult<Bytes> {
        self.volume.read(Span::new(at, len)).await.map_err(|error| match error.kind {
            Kind::Medium | Kind::Integrity => TapeError::Damaged { at, source: Some(error) },
            _ => TapeError::Volume(error),
        })
    }

    /// Whether a place that a record tells of is on the tape, as far as its end says. Checksums do not keep anybody from
    /// writing another one.
    const fn holds(&self, place: &Place) -> bool {
        let end = &self.end;
        place.at <= end.at && place.object <= end.object && place.marks <= end.marks
    }

    /// Whether a header that was found at byte `at` was written there, to this tape.
    const fn is_own(&self, header: &Header, at: u64) -> bool {
        header.place.at == at && header.tape == self.label.tape && header.epoch <= self.label.epoch
    }

    /// The data of the record with `header`, of which `read` bytes from the beginning of the record have been read.
    async fn data(&self, header: &Header, read: Bytes) -> TapeResult<Bytes> {
        let at = header.place.at;
        let size = Header::size(header.len);
        if at + size > self.capacity() {
            return Err(TapeError::damaged(at));
        }
        let whole = match read.len() as u64 >= size {
            true => read,
            false => self.read_of(at, size).await?,
        };
        let data = whole.slice(format::HEADER..format::HEADER + header.len as usize);
        match format::crc32c(&data) == header.data_sum {
            true => Ok(data),
            false => Err(TapeError::damaged(at)),
        }
    }
}
