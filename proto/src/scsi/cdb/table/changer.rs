//! The commands that only media changers have.

use super::super::changer::{ChangerCdb, StatusQuery};
use super::super::{Cdb, Fields, Sense};
use super::{Entry, Types, row};
use crate::scsi::cdb::traits::{self, Traits};

/// How the fields of a block are read.
type Parse = fn(Fields<'_>) -> Result<Cdb, Sense>;

/// A row of a changer's own.
const fn changer(opcode: u8, usage: &'static [u8], traits: Traits, parse: Parse) -> Entry {
    row(opcode, usage, Types::CHANGER, traits, parse)
}

const FF: u8 = 0xFF;

/// Each of them, by operation code. INVERT is refused: media have one side.
pub(in crate::scsi::cdb) static COMMANDS: &[Entry] = &[
    changer(0x07, &[0x07, 0, 0, 0, 0, 0], traits::MOVE_MEDIUM, |_| {
        Ok(ChangerCdb::Initialize.into())
    }),
    changer(0x2B, &[0x2B, 0, FF, FF, FF, FF, 0, 0, 0, 0], traits::MOVE_MEDIUM, |cdb| {
        let (transport, destination) = (cdb.u16::<2>(), cdb.u16::<4>());
        Ok(ChangerCdb::Position { transport, destination }.into())
    }),
    // FAST changes nothing here: the status of elements is known at any time.
    changer(0x37, &[0x37, 0x03, FF, FF, 0, 0, FF, FF, 0, 0], traits::MOVE_MEDIUM, |cdb| {
        let is_range = cdb.flag::<1>(0x01);
        let range = ChangerCdb::InitializeRange { start: cdb.u16::<2>() };
        Ok(if is_range { range } else { ChangerCdb::Initialize }.into())
    }),
    changer(0xA5, &[0xA5, 0, FF, FF, FF, FF, FF, FF, 0, 0, 0, 0], traits::MOVE_MEDIUM, |cdb| {
        let (transport, source) = (cdb.u16::<2>(), cdb.u16::<4>());
        Ok(ChangerCdb::Move { transport, source, destination: cdb.u16::<6>() }.into())
    }),
    changer(0xA6, &[0xA6, 0, FF, FF, FF, FF, FF, FF, FF, FF, 0, 0], traits::MOVE_MEDIUM, |cdb| {
        let (transport, source) = (cdb.u16::<2>(), cdb.u16::<4>());
        let (first, second) = (cdb.u16::<6>(), cdb.u16::<8>());
        Ok(ChangerCdb::Exchange { transport, source, first, second }.into())
    }),
    changer(
        0xB8,
        &[0xB8, 0x1F, FF, FF, FF, FF, 0x03, FF, FF, FF, 0, 0],
        traits::ELEMENT_STATUS,
        |cdb| Ok(ChangerCdb::ReadStatus(status_query(cdb)?).into()),
    )
    .refined(|cdb, traits| match cdb {
        Cdb::Changer(ChangerCdb::ReadStatus(StatusQuery { current: true, .. })) => traits.current(),
        _ => traits,
    }),
];

impl From<ChangerCdb> for Cdb {
    fn from(cdb: ChangerCdb) -> Self {
        Self::Changer(cdb)
    }
}

fn status_query(cdb: Fields<'_>) -> Result<StatusQuery, Sense> {
    const KIND_MAX: u8 = 4;
    let kind = cdb.u8::<1>() & 0x0F;
    if kind > KIND_MAX {
        return Err(Sense::invalid_cdb(1, Some(3)));
    }
    Ok(StatusQuery {
        kind,
        start: cdb.u16::<2>(),
        count: cdb.u16::<4>(),
        tags: cdb.flag::<1>(0x10),
        current: cdb.flag::<6>(0x02),
        identifiers: cdb.flag::<6>(0x01),
        allocation: cdb.be::<7, 3>() as u32,
    })
}
