//! The commands that only optical drives have.

use super::super::optical::{CloseFunction, OpticalCdb, TrackAddress};
use super::super::{Access, Blocks, Sense};
use super::{Entry, Types, row};
use crate::scsi::cdb::traits;

/// IMMED, in the second byte. All is done at once here, and before the answer.
const IMMEDIATE: u8 = 0x01;

/// Each of them, by operation code.
pub(in crate::scsi::cdb) static COMMANDS: &[Entry] = &[
    // FMTDATA and format code 1 (MMC-6, 6.4.2): there is a list, and it is of a fixed length.
    row(0x04, &[0x04, 0x17, 0, 0, 0, 0], Types::OPTICAL, traits::RECORD, |cdb| {
        match cdb.u8::<1>() & 0x17 {
            0x11 => Ok(OpticalCdb::FormatUnit.into()),
            _ => Err(Sense::invalid_cdb(1, Some(4))),
        }
    }),
    row(0x23, &[0x23, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Types::OPTICAL, traits::DISC, |cdb| {
        Ok(OpticalCdb::ReadFormatCapacities { allocation: cdb.u16::<7>().into() }.into())
    }),
    // Bits 7 and 6 of CONTROL are the format, where byte 2 has none: drives of SFF-8020 had it there, and Linux puts it there.
    row(
        0x43,
        &[0x43, 0x02, 0x0F, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xC0],
        Types::OPTICAL,
        traits::DISC,
        |cdb| {
            let format = match cdb.u8::<2>() & 0x0F {
                0 => cdb.u8::<9>() >> 6,
                format => format,
            };
            Ok(OpticalCdb::ReadToc {
                minutes: cdb.flag::<1>(0x02),
                format,
                track: cdb.u8::<6>(),
                allocation: cdb.u16::<7>().into(),
            }
            .into())
        },
    ),
    row(
        0x46,
        &[0x46, 0x03, 0xFF, 0xFF, 0, 0, 0, 0xFF, 0xFF, 0],
        Types::OPTICAL,
        traits::DRIVE,
        |cdb| {
            Ok(OpticalCdb::GetConfiguration {
                requested: cdb.u8::<1>() & 0x03,
                from: cdb.u16::<2>(),
                allocation: cdb.u16::<7>().into(),
            }
            .into())
        },
    ),
    row(
        0x4A,
        &[0x4A, 0x01, 0, 0, 0xFF, 0, 0, 0xFF, 0xFF, 0],
        Types::OPTICAL,
        traits::DRIVE,
        |cdb| {
            Ok(OpticalCdb::GetEventStatus {
                polled: cdb.flag::<1>(0x01),
                classes: cdb.u8::<4>(),
                allocation: cdb.u16::<7>().into(),
            }
            .into())
        },
    ),
    row(0x51, &[0x51, 0x07, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Types::OPTICAL, traits::DISC, |cdb| {
        Ok(OpticalCdb::ReadDiscInformation {
            kind: cdb.u8::<1>() & 0x07,
            allocation: cdb.u16::<7>().into(),
        }
        .into())
    }),
    row(
        0x52,
        &[0x52, 0x03, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0xFF, 0xFF, 0],
        Types::OPTICAL,
        traits::DISC,
        |cdb| {
            let number = cdb.u32::<2>();
            let track = match cdb.u8::<1>() & 0x03 {
                0b00 => TrackAddress::Block(number),
                0b01 => TrackAddress::Track(number),
                0b10 => TrackAddress::Session(number),
                _ => return Err(Sense::invalid_cdb(1, Some(1))),
            };
            let allocation = cdb.u16::<7>().into();
            Ok(OpticalCdb::ReadTrackInformation { track, allocation }.into())
        },
    ),
    row(
        0x53,
        &[0x53, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0],
        Types::OPTICAL,
        traits::RECORD,
        |cdb| Ok(OpticalCdb::ReserveTrack { blocks: cdb.u32::<5>() }.into()),
    ),
    row(0x54, &[0x54, 0x01, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Types::OPTICAL, traits::RECORD, |cdb| {
        Ok(OpticalCdb::SendOpc { length: cdb.u16::<7>().into() }.into())
    }),
    row(
        0x5B,
        &[0x5B, IMMEDIATE, 0x07, 0, 0xFF, 0xFF, 0, 0, 0, 0],
        Types::OPTICAL,
        traits::RECORD,
        |cdb| {
            // Of tracks at most one is open: which one is meant need not be said.
            Ok(OpticalCdb::Close(match cdb.u8::<2>() & 0x07 {
                0b000 => CloseFunction::StopFormatting,
                0b001 => CloseFunction::Track,
                0b010 => CloseFunction::Session,
                0b110 => CloseFunction::Finalize,
                _ => return Err(Sense::invalid_cdb(2, Some(2))),
            })
            .into())
        },
    ),
    row(0x5C, &[0x5C, 0x01, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0], Types::OPTICAL, traits::DISC, |cdb| {
        let (blocks, allocation) = (cdb.flag::<1>(0x01), cdb.u16::<7>().into());
        Ok(OpticalCdb::ReadBufferCapacity { blocks, allocation }.into())
    }),
    row(
        0x5D,
        &[0x5D, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0],
        Types::OPTICAL,
        traits::RECORD,
        // The highest of three bytes of the size is zero: 99 tracks have fewer entries.
        |cdb| Ok(OpticalCdb::SendCueSheet { length: cdb.u16::<7>().into() }.into()),
    ),
    row(
        0xAD,
        &[0xAD, 0x0F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xC0, 0],
        Types::OPTICAL,
        traits::DISC,
        |cdb| {
            Ok(OpticalCdb::ReadDiscStructure {
                media: cdb.u8::<1>() & 0x0F,
                layer: cdb.u8::<6>(),
                format: cdb.u8::<7>(),
                allocation: cdb.u16::<8>().into(),
            }
            .into())
        },
    ),
    row(
        0xB6,
        &[0xB6, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0],
        Types::OPTICAL,
        traits::SETTINGS,
        |cdb| Ok(OpticalCdb::SetStreaming { length: cdb.u16::<9>().into() }.into()),
    ),
    row(
        0xBB,
        &[0xBB, 0x03, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0],
        Types::OPTICAL,
        traits::SETTINGS,
        |_| Ok(OpticalCdb::SetCdSpeed.into()),
    ),
    row(
        0xBD,
        &[0xBD, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0],
        Types::OPTICAL,
        traits::SETTINGS,
        |cdb| Ok(OpticalCdb::MechanismStatus { allocation: cdb.u16::<8>().into() }.into()),
    ),
    row(
        0xBE,
        &[0xBE, 0x1E, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFE, 0x07, 0],
        Types::OPTICAL,
        traits::READ,
        |cdb| {
            let blocks = Blocks { lba: cdb.u32::<2>().into(), count: cdb.be::<6, 3>() as u32 };
            Ok(OpticalCdb::ReadCd {
                access: Access { blocks, durable: false, count_at: 6 },
                sector: cdb.u8::<1>() >> 2 & 0x07,
                parts: cdb.u8::<9>(),
                subchannel: cdb.u8::<10>(),
            }
            .into())
        },
    ),
];
