//! What commands on a tape ask for.

use super::super::Sense;
use super::super::cdb::{Destination, PositionForm, SpaceCode};
use super::super::mode::Switches;
use super::super::sense::{Additional, Key, Stream};

/// What is to be done with a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapeOp {
    /// Read and return so many blocks, or one.
    Read(Transfer),
    /// Write the data-out.
    Write(Transfer),
    /// Write so many file marks, and make stable what was written unless the command need not wait for it.
    WriteFilemarks {
        /// How many.
        count: u32,
        /// All is stable when the command ends.
        durable: bool,
    },
    /// Move over so many of them; backwards, if there are less than none.
    Space {
        /// What is counted.
        code: SpaceCode,
        /// COUNT.
        count: i64,
    },
    /// Go there.
    Locate(Destination),
    /// Go to the beginning.
    Rewind,
    /// Load the medium, at its beginning.
    Load,
    /// Unload it.
    Unload,
    /// Return [`Position::emit`](super::tape::Position::emit).
    ReadPosition {
        /// Which form of it.
        form: PositionForm,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// End the data here.
    Erase {
        /// Nothing that was recorded behind can be read any more.
        all: bool,
    },
}

/// What READ and WRITE transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// How many blocks of that length; one block of `count` bytes if there is none.
    pub fixed: Option<u32>,
    /// TRANSFER LENGTH.
    pub count: u32,
    /// SILI: a block that is shorter is no reason for CHECK CONDITION.
    pub suppress: bool,
    /// Nor is one that is longer then: no length is selected that it should have.
    pub suppress_long: bool,
    /// What is written is stable when the command ends.
    pub durable: bool,
}

impl Transfer {
    pub(super) fn new(fixed: bool, count: u32, switches: Switches) -> Result<Self, Sense> {
        let fixed = match (fixed, switches.block_length) {
            // SSC-4, 7.4: there is no length that is the same for all.
            (true, 0) => return Err(Sense::invalid_cdb(1, Some(0))),
            (fixed, length) => fixed.then_some(length),
        };
        let suppress_long = switches.block_length == 0;
        Ok(Self { fixed, count, suppress: false, suppress_long, durable: switches.unbuffered })
    }

    /// How many bytes that is at most; `None` if 32 bits cannot say so.
    #[must_use]
    pub fn bytes(&self) -> Option<u32> {
        self.count.checked_mul(self.fixed.unwrap_or(1))
    }

    pub(super) fn within(self, bytes_max: u32) -> Result<Self, Sense> {
        match self.bytes() {
            Some(bytes) if bytes <= bytes_max => Ok(self),
            _ => Err(Sense::invalid_cdb(2, None)),
        }
    }

    /// How many bytes of data-out a WRITE of these fields needs.
    pub(super) fn data_out(fixed: bool, count: u32, switches: Switches) -> Option<u32> {
        Self::new(fixed, count, switches).map_or(Some(0), |transfer| transfer.bytes())
    }

    /// A block of `actual` bytes came instead of one of this length, after `read` others. Of those asked for one by its own
    /// length the difference is told (SSC-4, 7.4), else how many blocks are missing.
    #[must_use]
    pub fn other_length(&self, read: u32, actual: u32) -> Option<Sense> {
        let difference = i64::from(self.count) - i64::from(actual);
        let information = match self.fixed {
            Some(_) => i64::from(self.count - read),
            // SSC-4, 7.4: with SILI, by the length that MODE SELECT has set.
            None if self.suppress && (difference >= 0 || self.suppress_long) => return None,
            None => difference,
        };
        let stream = Stream { incorrect_length: true, ..Stream::NONE };
        let sense = Sense::new(Key::NoSense, Additional::NONE).with_stream(stream);
        Some(sense.with_information(information.cast_unsigned()))
    }

    /// What is left after `done` blocks, as INFORMATION tells it.
    #[must_use]
    pub fn left(&self, done: u32) -> u64 {
        self.count.saturating_sub(done).into()
    }
}
