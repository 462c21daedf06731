//! The device server of an optical drive (MMC-6), as far as it is not that of a disk: what it tells of the drive and of
//! the disc in it. A disc has one session with one track of data, which is complete.

mod configuration;
pub mod events;
mod information;
mod toc;

use super::super::cdb::{Access, OpticalCdb};
use super::super::readiness::Readiness;
use super::super::sense::Additional;
use super::super::{Blocks, Sense};
use super::{MediumOp, Step, UnitOp, truncate};

/// The bytes of a block.
pub const BLOCK_SIZE: u32 = 2048;

/// What a disc is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscType {
    /// CD-ROM.
    Cd,
    /// DVD-ROM.
    Dvd,
}

/// How many blocks a CD has at most: 900 MB, which are a little less than the 100 minutes that its addresses have.
const CD_BLOCKS_MAX: u64 = 900_000_000 / BLOCK_SIZE as u64;

/// A disc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disc {
    /// How many blocks it has.
    pub blocks: u32,
}

impl Disc {
    /// The most blocks of a disc: its addresses have 32 bits, and that of the lead-out is one of them.
    pub const BLOCKS_MAX: u64 = u32::MAX as u64;

    /// What it is, by its size.
    #[must_use]
    pub const fn kind(self) -> DiscType {
        if self.blocks as u64 <= CD_BLOCKS_MAX { DiscType::Cd } else { DiscType::Dvd }
    }
}

/// What a command asks for, or why it is refused. The drive is in this state; it has a disc if that says so.
pub(super) fn plan(cdb: OpticalCdb, drive: Drive) -> Result<Step, Sense> {
    let (data, allocation) = match cdb {
        OpticalCdb::GetConfiguration { requested, from, allocation } => {
            (configuration::features(drive.disc, requested, from)?, allocation)
        }
        OpticalCdb::GetEventStatus { polled: false, .. } => {
            // MMC-6, 6.6.2: events are not told later, by a command that waits.
            return Err(Sense::invalid_cdb(1, Some(0)));
        }
        OpticalCdb::GetEventStatus { polled: true, classes, allocation } => {
            return Ok(UnitOp::EventStatus { classes, allocation }.into());
        }
        OpticalCdb::MechanismStatus { allocation } => {
            (information::mechanism(drive.readiness), allocation)
        }
        OpticalCdb::ReadToc { minutes, format, track, allocation } => {
            (toc::read(drive.disc()?, minutes, format, track)?, allocation)
        }
        OpticalCdb::ReadDiscInformation { kind, allocation } => {
            (information::disc(drive.disc()?, kind)?, allocation)
        }
        OpticalCdb::ReadTrackInformation { track, allocation } => {
            (information::track(drive.disc()?, track)?, allocation)
        }
        OpticalCdb::ReadDiscStructure { media, layer, format, allocation } => {
            (information::structure(drive.disc()?, media, layer, format)?, allocation)
        }
        OpticalCdb::ReadCd { access, sector, parts, subchannel } => {
            return read_cd(drive, access, sector, parts, subchannel);
        }
    };
    Ok(Step::Reply(truncate(data, allocation)))
}

/// A drive, and the disc in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drive {
    /// Its state.
    pub(super) readiness: Readiness,
    /// What is in it.
    pub(super) disc: Option<Disc>,
    /// The most blocks that a command may carry.
    pub(super) transfer_max: u32,
}

impl Drive {
    fn disc(self) -> Result<Disc, Sense> {
        self.disc.ok_or_else(|| self.readiness.sense().unwrap_or(Sense::illegal(Additional::NONE)))
    }
}

/// READ CD of user data, as READ reads them: there is no more of a sector in an image.
fn read_cd(
    drive: Drive,
    access: Access,
    sector: u8,
    parts: u8,
    subchannel: u8,
) -> Result<Step, Sense> {
    const ANY: u8 = 0b000;
    const MODE_1: u8 = 0b010;
    const USER_DATA: u8 = 0x10;
    let disc = drive.disc()?;
    if disc.kind() != DiscType::Cd || !matches!(sector, ANY | MODE_1) {
        return Err(Sense::illegal(Additional::ILLEGAL_MODE_FOR_TRACK));
    }
    if subchannel != 0 {
        return Err(Sense::invalid_cdb(10, Some(2)));
    }
    let Blocks { lba, count } = access.blocks;
    if lba >= disc.blocks.into() || u64::from(count) > u64::from(disc.blocks) - lba {
        return Err(Sense::illegal(Additional::LBA_OUT_OF_RANGE));
    }
    match parts {
        // MMC-6, 6.19.3.4: nothing of the sectors is transferred.
        0 => Ok(Step::Reply(Vec::new())),
        USER_DATA if count > drive.transfer_max => {
            Err(Sense::invalid_cdb(access.count_at.into(), None))
        }
        USER_DATA => Ok(MediumOp::Read(access.blocks).into()),
        _ => Err(Sense::invalid_cdb(9, None)),
    }
}

#[cfg(test)]
mod tests;
