//! How many bytes travel with a command, and in which direction.
//!
//! Nothing is guessed: data-out are exactly as many as the command block asks for, since a device that is sent less than it
//! waits for may hang its bus; of data-in the device tells how many it has sent.

use super::DeviceClass;
use crate::scsi::Sense;
use crate::scsi::cdb::Block;
use crate::scsi::sense::{Additional, Key};

/// What travels with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Nothing.
    None,
    /// At most so many bytes to the client.
    In(u32),
    /// Exactly so many bytes from the client.
    Out(u32),
    /// What the client announces, at most so many bytes: from it, if it announces any; else to it.
    Announced(u32),
    /// Sectors from the client, of one of the lengths that optical discs have.
    Sectors {
        /// How many.
        count: u32,
    },
}

/// What the lengths of commands follow from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// The bytes of a logical block, or of a tape block in fixed mode; zero if it is not known, or if the tape has no such.
    pub block_length: u32,
    /// The most bytes that one command carries.
    pub transfer_max: u32,
}

/// Where a number stands in a command block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At(pub(super) u8, pub(super) u8);

impl At {
    fn read(self, block: &Block) -> u64 {
        let bytes = block.iter().skip(self.0.into()).take(self.1.into());
        bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    const fn invalid(self) -> Sense {
        Sense::invalid_cdb(self.0 as u16, None)
    }
}

/// How many bytes travel with a command, by its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// None.
    None,
    /// As many to the client as an ALLOCATION LENGTH has room for.
    In(At),
    /// As many to the client as the standard says.
    FixedIn(u32),
    /// As many from the client as a PARAMETER LIST LENGTH says.
    Out(At),
    /// Blocks to the client.
    BlocksIn(At),
    /// Blocks from the client.
    BlocksOut(At),
    /// The same, each of them twice: COMPARE AND WRITE.
    PairsOut(At),
    /// One block from the client, unless NDOB says that there is none: WRITE SAME.
    OneBlockOut,
    /// What BYTCHK asks for: VERIFY.
    Compared(At),
    /// Blocks of a tape to the client: so many of the length that is set, or so many bytes.
    TapeIn,
    /// The same from the client.
    TapeOut,
    /// A tape is compared with nothing: VERIFY without BYTCMP.
    TapeCompared,
    /// READ POSITION, by its service action.
    Position,
    /// READ CD and READ CD MSF: sectors with all that may be read of each.
    CdSectors(At),
    /// The same between two addresses.
    CdMsf,
    /// Sectors of an optical disc from the client, whose length is in a mode page.
    Sectors(At),
    /// GET PERFORMANCE: so many descriptors.
    Descriptors(At),
    /// SECURITY PROTOCOL IN and OUT: so many bytes, or units of 512.
    SecurityIn,
    /// The same.
    SecurityOut,
    /// Only the client knows.
    Announced,
}

/// The most bytes of parameters that a device is asked for or sent.
pub(super) const PARAMETERS_MAX: u32 = 1 << 20;

/// The most bytes of a command of which only the client knows how many they are.
const ANNOUNCED_MAX: u32 = 256 << 10;

/// A sector of a CD with all that may be read of it (MMC-6, 6.19): the sector, C2 errors with block error, and subchannels.
const CD_SECTOR_MAX: u32 = 2352 + 296 + 96;

/// The longest of [`SECTOR_LENGTHS`].
const SECTOR_MAX: u32 = 2768;

/// The lengths that sectors of optical discs have when they are written (MMC-6: Data Block Type).
pub(super) const SECTOR_LENGTHS: [u32; 9] = [2048, 2056, 2324, 2332, 2336, 2352, 2368, 2448, 2768];

impl Length {
    /// Whether blocks travel, with which protection information would.
    pub(super) const fn is_blocks(self) -> bool {
        matches!(
            self,
            Self::BlocksIn(_)
                | Self::BlocksOut(_)
                | Self::PairsOut(_)
                | Self::OneBlockOut
                | Self::Compared(_)
        )
    }

    /// Whether nothing but parameters of reservations and what is compared comes from the client.
    #[cfg(test)]
    pub(super) const fn is_read_only(self) -> bool {
        let is_list_of_target = matches!(self, Self::Out(At(5 | 6, 4)));
        is_list_of_target
            || !matches!(
                self,
                Self::Out(_)
                    | Self::BlocksOut(_)
                    | Self::PairsOut(_)
                    | Self::OneBlockOut
                    | Self::TapeOut
                    | Self::Sectors(_)
                    | Self::SecurityOut
                    | Self::Announced
            )
    }

    /// What travels with `block`.
    pub(super) fn transfer(
        self,
        block: &Block,
        class: DeviceClass,
        geometry: Geometry,
    ) -> Result<Transfer, Sense> {
        let parameters = |at: At| (at.read(block)).min(PARAMETERS_MAX.into()) as u32;
        Ok(match self {
            Self::None => Transfer::None,
            Self::In(at) => into(parameters(at)),
            Self::FixedIn(length) => into(length),
            Self::Out(at) => out(at.read(block), PARAMETERS_MAX).ok_or_else(|| at.invalid())?,
            Self::BlocksIn(at) => into(blocks(block, at, 1, class, geometry)?),
            Self::BlocksOut(at) => exactly(blocks(block, at, 1, class, geometry)?),
            Self::PairsOut(at) => exactly(blocks(block, at, 2, class, geometry)?),
            Self::OneBlockOut if block[0] == 0x93 && block[1] & 0x01 != 0 => Transfer::None,
            Self::OneBlockOut => exactly(block_length(class, geometry)?),
            Self::Compared(at) => compared(block, at, class, geometry)?,
            Self::TapeIn => into(tape_blocks(block, geometry)?),
            Self::TapeOut => exactly(tape_blocks(block, geometry)?),
            // BYTCMP: what is compared would have to come from the client (SSC-4).
            Self::TapeCompared if block[1] & 0x02 != 0 => {
                return Err(Sense::invalid_cdb(1, Some(1)));
            }
            Self::TapeCompared => Transfer::None,
            Self::Position => into(position(block)?),
            Self::CdSectors(at) => into(cd_sectors(at.read(block), at.invalid(), geometry)?),
            Self::CdMsf => into(cd_sectors(msf(block)?, Sense::invalid_cdb(6, None), geometry)?),
            Self::Sectors(at) => match u32::try_from(at.read(block)) {
                Ok(0) => Transfer::None,
                Ok(count) => Transfer::Sectors { count },
                Err(_) => return Err(at.invalid()),
            },
            Self::Descriptors(at) => {
                into((8 + at.read(block) * 2048).min(PARAMETERS_MAX.into()) as u32)
            }
            Self::SecurityIn => into(security(block).min(PARAMETERS_MAX.into()) as u32),
            Self::SecurityOut => {
                out(security(block), PARAMETERS_MAX).ok_or(Sense::invalid_cdb(6, None))?
            }
            Self::Announced => Transfer::Announced(ANNOUNCED_MAX),
        })
    }
}

impl Transfer {
    /// The most bytes of data-out.
    #[must_use]
    pub fn out_max(self) -> u32 {
        match self {
            Self::None | Self::In(_) => 0,
            Self::Out(length) | Self::Announced(length) => length,
            Self::Sectors { count } => count.saturating_mul(SECTOR_MAX),
        }
    }

    /// The most bytes of data-in.
    #[must_use]
    pub const fn in_max(self) -> u32 {
        match self {
            Self::In(length) | Self::Announced(length) => length,
            _ => 0,
        }
    }

    /// Whether a client that has announced so many bytes of data-out has sent what the device waits for.
    #[must_use]
    pub fn is_complete(self, announced: u32) -> bool {
        match self {
            Self::None | Self::In(_) => true,
            // More than is asked for stays where it is, and is told as a residual.
            Self::Out(length) => announced >= length,
            Self::Announced(length) => announced <= length,
            Self::Sectors { count } => {
                announced.is_multiple_of(count) && SECTOR_LENGTHS.contains(&(announced / count))
            }
        }
    }
}

const fn into(length: u32) -> Transfer {
    if length == 0 { Transfer::None } else { Transfer::In(length) }
}

const fn exactly(length: u32) -> Transfer {
    if length == 0 { Transfer::None } else { Transfer::Out(length) }
}

fn out(length: u64, most: u32) -> Option<Transfer> {
    u32::try_from(length).ok().filter(|length| *length <= most).map(exactly)
}

/// How long a block is. Without a medium, or before it is ready, nobody knows: then the device is not ready.
fn block_length(class: DeviceClass, Geometry { block_length, .. }: Geometry) -> Result<u32, Sense> {
    match (block_length, class) {
        (0, DeviceClass::Optical) => Ok(2048),
        (0, _) => Err(Sense::new(Key::NotReady, Additional::NOT_READY_UNKNOWN_CAUSE)),
        (length, _) => Ok(length),
    }
}

/// The bytes of as many blocks as a field counts, each `times` times.
fn blocks(
    block: &Block,
    at: At,
    times: u64,
    class: DeviceClass,
    geometry: Geometry,
) -> Result<u32, Sense> {
    let count = match at.read(block) {
        // SBC-2, 5.5: READ (6) and WRITE (6) of no blocks are of 256.
        0 if block[0] < 0x20 => 256,
        0 => return Ok(0),
        count => count,
    };
    let bytes = u64::from(block_length(class, geometry)?) * count * times;
    within(bytes, geometry).ok_or_else(|| at.invalid())
}

fn within(bytes: u64, geometry: Geometry) -> Option<u32> {
    u32::try_from(bytes).ok().filter(|bytes| *bytes <= geometry.transfer_max)
}

/// SBC-3, 5.29: BYTCHK.
fn compared(
    block: &Block,
    at: At,
    class: DeviceClass,
    geometry: Geometry,
) -> Result<Transfer, Sense> {
    match block[1] >> 1 & 0b11 {
        0b00 => Ok(Transfer::None),
        0b01 => blocks(block, at, 1, class, geometry).map(exactly),
        0b11 if at.read(block) == 0 => Ok(Transfer::None),
        0b11 => block_length(class, geometry).map(exactly),
        _ => Err(Sense::invalid_cdb(1, Some(2))),
    }
}

/// TRANSFER LENGTH of READ and WRITE (6) of a tape (SSC-4, 7.4): blocks with FIXED, else bytes.
fn tape_blocks(block: &Block, geometry: Geometry) -> Result<u32, Sense> {
    let count = At(2, 3).read(block);
    let length = match block[1] & 0x01 {
        0 => 1,
        // No length is set.
        _ if geometry.block_length == 0 => return Err(Sense::invalid_cdb(1, Some(0))),
        _ => u64::from(geometry.block_length),
    };
    within(count * length, geometry).ok_or(Sense::invalid_cdb(2, None))
}

/// READ POSITION (SSC-4, 7.7): short and vendor-specific, long, extended.
fn position(block: &Block) -> Result<u32, Sense> {
    match block[1] & 0x1F {
        0x00 | 0x01 => Ok(20),
        0x06 => Ok(32),
        0x08 => Ok(At(7, 2).read(block) as u32),
        _ => Err(Sense::invalid_cdb(1, Some(4))),
    }
}

/// What so many sectors come to at most; a drive that sends less tells so.
fn cd_sectors(count: u64, wrong: Sense, geometry: Geometry) -> Result<u32, Sense> {
    let bytes = count.saturating_mul(CD_SECTOR_MAX.into());
    within(bytes, geometry).ok_or(wrong)
}

/// How many sectors lie between the two addresses of READ CD MSF (MMC-6, 6.20): minutes, seconds and frames.
fn msf(block: &Block) -> Result<u64, Sense> {
    let frames = |at: usize| {
        let [minutes, seconds, frames] = [0, 1, 2].map(|part| u64::from(block[at + part]));
        (minutes * 60 + seconds) * 75 + frames
    };
    frames(6).checked_sub(frames(3)).ok_or(Sense::invalid_cdb(6, None))
}

/// ALLOCATION or TRANSFER LENGTH of SECURITY PROTOCOL IN and OUT (SPC-4, 6.40): with INC_512 in units of 512 bytes.
fn security(block: &Block) -> u64 {
    let unit = if block[4] & 0x80 == 0 { 1 } else { 512 };
    At(6, 4).read(block) * unit
}
