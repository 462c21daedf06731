//! The commands that only tapes have.

use super::super::tape::{Destination, PositionForm, SpaceCode, TapeCdb};
use super::super::{Cdb, Fields, Sense};
use super::{Entry, Types, row};
use crate::scsi::cdb::traits::{self, Traits};

/// How the fields of a block are read.
type Parse = fn(Fields<'_>) -> Result<Cdb, Sense>;

/// A row of a tape's own.
const fn tape(opcode: u8, usage: &'static [u8], traits: Traits, parse: Parse) -> Entry {
    row(opcode, usage, Types::TAPE, traits, parse)
}

/// IMMED, in the second byte. What takes long elsewhere is done at once here, and before the answer.
const IMMEDIATE: u8 = 0x01;
/// FIXED.
const FIXED: u8 = 0x01;
const COUNT_16: [u8; 16] =
    [0x91, 0x0F, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0];
const LOCATE_16: [u8; 16] =
    [0x92, 0x3B, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0];

/// Each of them, by operation code.
pub(in crate::scsi::cdb) static COMMANDS: &[Entry] = &[
    tape(0x01, &[0x01, IMMEDIATE, 0, 0, 0, 0], traits::MOVE, |_| Ok(TapeCdb::Rewind.into())),
    tape(0x05, &[0x05, 0, 0, 0, 0, 0], traits::SETTINGS, |_| Ok(TapeCdb::ReadBlockLimits.into())),
    tape(0x08, &[0x08, 0x03, 0xFF, 0xFF, 0xFF, 0], traits::READ_NEXT, |cdb| {
        let (fixed, suppress) = (cdb.flag::<1>(FIXED), cdb.flag::<1>(0x02));
        // SSC-4, 7.4: a block whose length is said cannot be of another one.
        if fixed && suppress {
            return Err(Sense::invalid_cdb(1, Some(1)));
        }
        Ok(TapeCdb::Read { fixed, suppress, count: count_24(cdb) }.into())
    }),
    tape(0x0A, &[0x0A, FIXED, 0xFF, 0xFF, 0xFF, 0], traits::WRITE, |cdb| {
        Ok(TapeCdb::Write { fixed: cdb.flag::<1>(FIXED), count: count_24(cdb) }.into())
    }),
    // WSMK is refused: set marks are obsolete.
    tape(0x10, &[0x10, IMMEDIATE, 0xFF, 0xFF, 0xFF, 0], traits::WRITE_MARKS, |cdb| {
        let immediate = cdb.flag::<1>(IMMEDIATE);
        Ok(TapeCdb::WriteFilemarks { immediate, count: count_24(cdb) }.into())
    }),
    tape(0x11, &[0x11, 0x0F, 0xFF, 0xFF, 0xFF, 0], traits::MOVE, |cdb| {
        // The count has 24 bits and a sign.
        let count = i64::from((count_24(cdb) << 8).cast_signed() >> 8);
        Ok(TapeCdb::Space { code: space_code(cdb)?, count }.into())
    }),
    tape(0x19, &[0x19, 0x03, 0, 0, 0, 0], traits::ERASE, |cdb| {
        // LONG is where others have IMMED.
        Ok(TapeCdb::Erase { long: cdb.flag::<1>(0x01) }.into())
    }),
    // HOLD, EOT and RETEN are about a tape that is wound.
    tape(0x1B, &[0x1B, IMMEDIATE, 0, 0, 0x07, 0], traits::POWER, |cdb| {
        let load = cdb.flag::<4>(0x01);
        if load && cdb.flag::<4>(0x04) {
            return Err(Sense::invalid_cdb(4, Some(2)));
        }
        Ok(TapeCdb::LoadUnload { load }.into())
    }),
    tape(0x2B, &[0x2B, 0x07, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0], traits::MOVE, |cdb| {
        only_partition(cdb, cdb.u8::<8>(), 8)?;
        Ok(TapeCdb::Locate(Destination::Object(cdb.u32::<3>().into())).into())
    }),
    tape(0x34, &[0x34, 0x1F, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], traits::DISC, |cdb| {
        let form = match cdb.u8::<1>() & 0x1F {
            0x00 | 0x01 => PositionForm::Short,
            0x06 => PositionForm::Long,
            0x08 => PositionForm::Extended,
            _ => return Err(Sense::invalid_cdb(1, Some(4))),
        };
        Ok(TapeCdb::ReadPosition { form, allocation: cdb.u16::<7>().into() }.into())
    }),
    tape(0x44, &[0x44, 0x03, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], traits::SETTINGS, |cdb| {
        let (types, media) = (cdb.flag::<1>(0x02), cdb.flag::<1>(0x01));
        let allocation = cdb.u16::<7>().into();
        Ok(TapeCdb::ReportDensity { types, media, allocation }.into())
    }),
    tape(0x91, &COUNT_16, traits::MOVE, |cdb| {
        let count = cdb.be::<4, 8>().cast_signed();
        Ok(TapeCdb::Space { code: space_code(cdb)?, count }.into())
    }),
    tape(0x92, &LOCATE_16, traits::MOVE, |cdb| {
        only_partition(cdb, cdb.u8::<3>(), 3)?;
        let number = cdb.be::<4, 8>();
        let destination = match cdb.u8::<1>() >> 3 & 0x07 {
            0b000 => Destination::Object(number),
            0b001 => Destination::File(number),
            0b011 => Destination::EndOfData,
            _ => return Err(Sense::invalid_cdb(1, Some(5))),
        };
        Ok(TapeCdb::Locate(destination).into())
    }),
];

impl From<TapeCdb> for Cdb {
    fn from(cdb: TapeCdb) -> Self {
        Self::Tape(cdb)
    }
}

fn count_24(cdb: Fields<'_>) -> u32 {
    cdb.be::<2, 3>() as u32
}

fn space_code(cdb: Fields<'_>) -> Result<SpaceCode, Sense> {
    match cdb.u8::<1>() & 0x0F {
        0b0000 => Ok(SpaceCode::Blocks),
        0b0001 => Ok(SpaceCode::Filemarks),
        0b0011 => Ok(SpaceCode::EndOfData),
        // Sequential file marks, and set marks.
        _ => Err(Sense::invalid_cdb(1, Some(3))),
    }
}

/// A tape has one partition: CP may ask for no other.
fn only_partition(cdb: Fields<'_>, partition: u8, at: u16) -> Result<(), Sense> {
    const CHANGE_PARTITION: u8 = 0x02;
    match cdb.flag::<1>(CHANGE_PARTITION) && partition != 0 {
        true => Err(Sense::invalid_cdb(at, None)),
        false => Ok(()),
    }
}
