//! The device server of a tape drive (SSC-4), as far as it is not that of a disk: what it tells of the drive, and what it
//! says of the way that a command on the tape ended. The tape itself is moved, read and written elsewhere.

mod density;
mod position;
#[cfg(test)]
mod tests;

pub(in crate::scsi) use density::{DENSITIES, DENSITY};
pub use position::Position;

use super::super::Sense;
use super::super::cdb::{Destination, Over, PositionForm, TapeCdb};
use super::super::mode::Switches;
use super::super::sense::{Additional, Key, Stream};
use super::{Step, UnitOp, truncate};

/// The unit of the volume that a tape is on.
pub const UNIT: u32 = 512;

/// The longest block, which is that of `volume::tape` too.
pub const BLOCK_MAX: u32 = 8 << 20;

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
        /// Over what.
        over: Over,
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
    /// Return [`Position::emit`].
    ReadPosition {
        /// Which form of it.
        form: PositionForm,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// End the data here.
    Erase,
}

/// What READ and WRITE transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// How many blocks of that length; one block of `count` bytes if there is none.
    pub fixed: Option<u32>,
    /// TRANSFER LENGTH.
    pub count: u32,
    /// SILI: a block of another length is no reason for CHECK CONDITION.
    pub suppress: bool,
    /// What is written is stable when the command ends.
    pub durable: bool,
}

impl Transfer {
    fn new(fixed: bool, count: u32, switches: Switches) -> Result<Self, Sense> {
        let fixed = match (fixed, switches.block_length) {
            // SSC-4, 7.4: there is no length that is the same for all.
            (true, 0) => return Err(Sense::invalid_cdb(1, Some(0))),
            (fixed, length) => fixed.then_some(length),
        };
        Ok(Self { fixed, count, suppress: false, durable: switches.unbuffered })
    }

    /// How many bytes that is at most; `None` if 32 bits cannot say so.
    #[must_use]
    pub fn bytes(&self) -> Option<u32> {
        self.count.checked_mul(self.fixed.unwrap_or(1))
    }

    fn within(self, bytes_max: u32) -> Result<Self, Sense> {
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
            None if self.suppress => return None,
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

/// A file mark was met; so much is left.
#[must_use]
pub const fn filemark(left: u64) -> Sense {
    let stream = Stream { filemark: true, ..Stream::NONE };
    Sense::new(Key::NoSense, Additional::FILEMARK_DETECTED)
        .with_stream(stream)
        .with_information(left)
}

/// The end of the data was met, likewise.
#[must_use]
pub const fn end_of_data(left: u64) -> Sense {
    Sense::new(Key::BlankCheck, Additional::END_OF_DATA).with_information(left)
}

/// The beginning of the tape was met, likewise.
#[must_use]
pub const fn beginning(left: u64) -> Sense {
    let sense = Sense::new(Key::NoSense, Additional::BEGINNING_OF_PARTITION);
    sense.with_stream(Stream::END).with_information(left)
}

/// All was written, and the end of the medium is near.
#[must_use]
pub const fn early_warning() -> Sense {
    let sense = Sense::new(Key::NoSense, Additional::END_OF_PARTITION);
    sense.with_stream(Stream::END).with_information(0)
}

/// There is no room for what is left.
#[must_use]
pub const fn overflow(left: u64) -> Sense {
    let sense = Sense::new(Key::VolumeOverflow, Additional::END_OF_PARTITION);
    sense.with_stream(Stream::END).with_information(left)
}

/// What a command asks for, or why it is refused.
pub(super) fn plan(
    cdb: TapeCdb,
    switches: Switches,
    capacity: u64,
    transfer_max: u32,
) -> Result<Step, Sense> {
    Ok(Step::Tape(match cdb {
        TapeCdb::ReadBlockLimits => return Ok(Step::Reply(block_limits())),
        TapeCdb::ReportDensity { types, media, allocation } => {
            let sense = switches.readiness.sense().filter(|_| media);
            sense.map_or(Ok(()), Err)?;
            return Ok(Step::Reply(truncate(density::report(types, capacity), allocation)));
        }
        TapeCdb::Read { fixed, suppress, count } => {
            let transfer = Transfer::new(fixed, count, switches)?.within(transfer_max)?;
            TapeOp::Read(Transfer { suppress, ..transfer })
        }
        TapeCdb::Write { fixed, count } => {
            let most = if fixed { transfer_max } else { BLOCK_MAX };
            TapeOp::Write(Transfer::new(fixed, count, switches)?.within(most)?)
        }
        TapeCdb::WriteFilemarks { immediate, count } => {
            TapeOp::WriteFilemarks { count, durable: !immediate }
        }
        TapeCdb::Space { over, count } => TapeOp::Space { over, count },
        TapeCdb::Locate(destination) => TapeOp::Locate(destination),
        TapeCdb::Rewind => TapeOp::Rewind,
        TapeCdb::LoadUnload { load: true } => TapeOp::Load,
        TapeCdb::LoadUnload { load: false } => TapeOp::Unload,
        TapeCdb::ReadPosition { form, allocation } => TapeOp::ReadPosition { form, allocation },
        TapeCdb::Erase => TapeOp::Erase,
    }))
}

/// READ BLOCK LIMITS data (SSC-4, 7.5): any length from one byte up.
fn block_limits() -> Vec<u8> {
    let [_, most @ ..] = BLOCK_MAX.to_be_bytes();
    [&[0][..], &most, &[0, 1]].concat()
}

/// What loads and unloads the medium, beside what is done with the tape.
#[must_use]
pub const fn unit_op(load: bool) -> UnitOp {
    // What was written has been made stable before.
    if load { UnitOp::Load } else { UnitOp::Eject { flush: false } }
}
