//! The device server of a tape drive (SSC-4), as far as it is not that of a disk: what it tells of the drive, and what it
//! says of the way that a command on the tape ended. The tape itself is moved, read and written elsewhere.

mod density;
mod position;
#[cfg(test)]
mod tests;

pub use super::super::mode::tape::BLOCK_MAX;
pub use super::tape_op::{TapeOp, Transfer};
pub use position::Position;

use super::super::Sense;
use super::super::cdb::TapeCdb;
use super::super::mode::Switches;
use super::super::sense::{Additional, Key, Stream};
use super::{Step, truncate};

/// The unit of the volume that a tape is on.
pub const UNIT: u32 = 512;

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

/// The same of a medium that has room, in a store that has none. SSC-4 has no code for that: key, EOM and INFORMATION are
/// those of the end of the medium, which initiators act by, and the additional sense is that of a full store (SBC-3, 4.7.3.6).
#[must_use]
pub const fn store_full(left: u64) -> Sense {
    let sense = Sense::new(Key::VolumeOverflow, Additional::SPACE_ALLOCATION_FAILED);
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
            // Where nothing is buffered there is nothing that could be left for later.
            TapeOp::WriteFilemarks { count, durable: !immediate || switches.unbuffered }
        }
        TapeCdb::Space { code, count } => TapeOp::Space { code, count },
        TapeCdb::Locate(destination) => TapeOp::Locate(destination),
        TapeCdb::Rewind => TapeOp::Rewind,
        TapeCdb::LoadUnload { load: true } => TapeOp::Load,
        TapeCdb::LoadUnload { load: false } => TapeOp::Unload,
        TapeCdb::ReadPosition { form, allocation } => TapeOp::ReadPosition { form, allocation },
        TapeCdb::Erase { long } => TapeOp::Erase { all: long },
    }))
}

/// READ BLOCK LIMITS data (SSC-4, 7.5): any length from one byte up.
fn block_limits() -> Vec<u8> {
    let [_, most @ ..] = BLOCK_MAX.to_be_bytes();
    [&[0][..], &most, &[0, 1]].concat()
}
