//! The device server of an optical drive (MMC-6), as far as it is not that of a disk: what it tells of the drive and of
//! the disc in it, and what may be written to that.

mod configuration;
pub mod cue_sheet;
mod disc;
pub mod events;
mod information;
mod toc;

pub use disc::{Disc, DiscStatus, DiscType, Track};

use super::super::cdb::{Access, Cdb, CloseFunction, OpticalCdb, Parsed};
use super::super::mode::Switches;
use super::super::readiness::Readiness;
use super::super::sense::Additional;
use super::super::{Blocks, Capacity, Sense};
use super::step::DONE;
use super::{MediumOp, Step, Unit, UnitOp, truncate};

/// The bytes of a block.
pub const BLOCK_SIZE: u32 = 2048;

/// What a command asks for, or why it is refused. The drive is in this state; it has a disc if that says so.
pub(super) fn plan(cdb: OpticalCdb, drive: &Drive) -> Result<Step, Sense> {
    let (data, allocation) = match cdb {
        OpticalCdb::GetConfiguration { requested, from, allocation } => {
            (configuration::features(drive.disc_type(), requested, from)?, allocation)
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
        OpticalCdb::ReadFormatCapacities { allocation } => {
            (information::format_capacities(drive.disc()?), allocation)
        }
        OpticalCdb::ReadBufferCapacity { blocks, allocation } => {
            (information::buffer_capacity(blocks), allocation)
        }
        // There is no laser to calibrate, and no motor.
        OpticalCdb::SendOpc { .. } | OpticalCdb::SetCdSpeed | OpticalCdb::SetStreaming { .. } => {
            return Ok(DONE);
        }
        // Whatever is written formats it.
        OpticalCdb::FormatUnit => {
            let disc = drive.disc()?;
            return match (disc.disc_type(), disc.status()) {
                (DiscType::DvdPlusRw, _) | (DiscType::BdR, DiscStatus::Blank) => Ok(DONE),
                _ => Err(Sense::illegal(Additional::CANNOT_FORMAT_MEDIUM)),
            };
        }
        OpticalCdb::SendCueSheet { .. } => return Ok(Step::CueSheet),
        OpticalCdb::ReserveTrack { blocks } => {
            drive.disc()?.check_reserve(blocks)?;
            return Ok(Step::ReserveTrack(blocks));
        }
        OpticalCdb::Close(CloseFunction::StopFormatting) => return Ok(DONE),
        OpticalCdb::Close(function) => return Ok(Step::Close(function)),
        OpticalCdb::ReadCd { access, sector, parts, subchannel } => {
            return read_cd(drive, access, sector, parts, subchannel);
        }
    };
    Ok(Step::Reply(truncate(data, allocation)))
}

impl Unit {
    /// What a command asks for with a disc that can be written, on which that has been recorded, or why it is refused.
    /// [`plan`](Self::plan) says how many data it needs before, and no more than that.
    pub fn plan_on_disc(
        &self,
        command: &Parsed,
        switches: Switches,
        disc: &Disc,
    ) -> Result<Step, Sense> {
        match self.admit(command, switches)? {
            Cdb::ReadCapacity10 => {
                let capacity = Capacity { blocks: disc.end().into(), ..self.medium.capacity };
                Ok(Step::Reply(capacity.emit_10()))
            }
            Cdb::Read(Access { blocks, .. }) | Cdb::Verify(Access { blocks, .. }, _) => {
                disc.check_read(blocks)?;
                self.plan(command, switches)
            }
            Cdb::Write(access) => {
                cue_sheet::check_write(disc, access)?;
                self.plan(command, switches)
            }
            Cdb::Optical(cdb) => plan(cdb, &self.drive(switches.readiness, Some(disc))),
            _ => self.plan(command, switches),
        }
    }

    /// The optical drive that it is, in this state, with that recorded on its disc.
    pub(super) fn drive(&self, readiness: Readiness, recorded: Option<&Disc>) -> Drive {
        let blocks = u32::try_from(self.blocks()).unwrap_or(u32::MAX);
        let is_there = blocks > 0 && !readiness.lacks_medium();
        let disc = is_there.then(|| match (recorded, self.medium.recordable) {
            (Some(recorded), _) => recorded.clone(),
            (None, Some(recordable)) => Disc::blank(recordable, blocks),
            (None, None) => Disc::pressed(blocks),
        });
        Drive { readiness, disc, transfer_max: self.limits.transfer_max }
    }
}

/// A drive, and the disc in it.
#[derive(Clone, Debug)]
pub(super) struct Drive {
    /// Its state.
    pub(super) readiness: Readiness,
    /// What is in it.
    pub(super) disc: Option<Disc>,
    /// The most blocks that a command may carry.
    pub(super) transfer_max: u32,
}

impl Drive {
    fn disc(&self) -> Result<&Disc, Sense> {
        let none = || self.readiness.sense().unwrap_or(Sense::illegal(Additional::NONE));
        self.disc.as_ref().ok_or_else(none)
    }

    fn disc_type(&self) -> Option<DiscType> {
        self.disc.as_ref().map(Disc::disc_type)
    }
}

/// READ CD of user data, as READ reads them: there is no more of a sector in an image.
fn read_cd(
    drive: &Drive,
    access: Access,
    sector: u8,
    parts: u8,
    subchannel: u8,
) -> Result<Step, Sense> {
    const ANY: u8 = 0b000;
    const MODE_1: u8 = 0b010;
    const USER_DATA: u8 = 0x10;
    let disc = drive.disc()?;
    if !disc.disc_type().is_cd() || !matches!(sector, ANY | MODE_1) {
        return Err(Sense::illegal(Additional::ILLEGAL_MODE_FOR_TRACK));
    }
    if subchannel != 0 {
        return Err(Sense::invalid_cdb(10, Some(2)));
    }
    let Blocks { count, .. } = access.blocks;
    disc.check_read(access.blocks)?;
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
mod burning_tests;
#[cfg(test)]
mod tests;
