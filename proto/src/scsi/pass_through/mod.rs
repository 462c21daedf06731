//! Pass-through: which command blocks go on to a real device, for which clients, and how many bytes travel with them.
//!
//! [`commands`] is the allow-list. What is not in it is refused, since neither its direction nor its length
//! nor its harm is known. Many clients share the one initiator port by which the device is reached: what the device keeps
//! for each initiator port (reservations, unit attentions, the prevention of removal) is kept for each client here.

mod direction;
pub mod identity;
mod length;
mod medium_use;
pub mod opcodes;
mod table;

pub use direction::Direction;
pub use length::{Geometry, Transfer};
pub use medium_use::MediumUse;
pub use table::{Row, commands};

use std::time::Duration;

use super::Sense;
use super::attention::AttentionHandling;
use super::cdb::Block;
use super::reservation::Class;
use super::sense::{Additional, Key};

/// What a device is, as far as commands differ by that (SPC-4, 6.6.2: PERIPHERAL DEVICE TYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceClass {
    /// A direct access block device, zoned or not.
    Disk,
    /// A tape drive.
    Tape,
    /// A CD, DVD or BD drive.
    Optical,
    /// A media changer.
    Changer,
    /// Anything else: it has the commands of SPC.
    Other,
}

impl DeviceClass {
    /// Every one.
    pub const ALL: [Self; 5] = [Self::Disk, Self::Tape, Self::Optical, Self::Changer, Self::Other];

    /// That of a PERIPHERAL DEVICE TYPE.
    #[must_use]
    pub const fn of(peripheral: u8) -> Self {
        match peripheral & 0x1F {
            0x00 | 0x14 => Self::Disk,
            0x01 => Self::Tape,
            0x05 => Self::Optical,
            0x08 => Self::Changer,
            _ => Self::Other,
        }
    }
}

/// What a client must be allowed to do to send a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To read: the command changes neither the medium nor the device. It may move a tape.
    Read,
    /// To write to the medium.
    Write,
    /// To write, since the settings and the state of the device are those of all clients.
    Manage,
    /// To write, where the owner of the device allows its maintenance: what can ruin it or its medium as a whole, or what
    /// cannot be judged.
    Maintain,
}

/// What a client may do with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// It may only read.
    pub read_only: bool,
    /// It may send what needs [`Right::Maintain`].
    pub maintenance: bool,
    /// It administers the server.
    pub administrator: bool,
}

impl Rights {
    /// Refuses a command that needs another right. What needs the maintenance of the device to be allowed is unknown without.
    fn check(self, right: Right) -> Result<(), Sense> {
        match right {
            Right::Maintain if !self.maintenance => Err(UNKNOWN),
            Right::Read => Ok(()),
            _ if !self.read_only => Ok(()),
            Right::Write => Err(Sense::new(Key::DataProtect, Additional::WRITE_PROTECTED)),
            Right::Manage | Right::Maintain => {
                Err(Sense::illegal(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS))
            }
        }
    }
}

/// How a command of no row is refused.
pub const UNKNOWN: Sense = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);

/// Who carries a command out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// The device.
    Device,
    /// The device; the settings or log parameters of all clients have changed then.
    Settings(Additional),
    /// This target: it is about what the target keeps for each client, or about the target itself.
    Target,
    /// INQUIRY: the device, but who it is tells this target.
    Inquiry,
    /// REQUEST SENSE: this target, if it has something to tell; else the device.
    RequestSense,
    /// PREVENT ALLOW MEDIUM REMOVAL: the device prevents it as long as any client does.
    Prevent,
    /// REPORT SUPPORTED OPERATION CODES: the device, but what is refused here is not supported.
    Opcodes,
    /// MANAGEMENT PROTOCOL IN and OUT: this target, for its administrators.
    Administration,
}

/// How long the device may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It only tells something.
    Query,
    /// It moves data.
    Transfer,
    /// Something is moved: a tape, a cartridge, a tray; or a cache is emptied.
    Motion,
    /// The whole medium is worked on.
    Whole,
}

impl Pace {
    /// After how long the kernel gives up. A tape drive may write a block again and again, and calibrate before that.
    #[must_use]
    pub const fn timeout(self, class: DeviceClass) -> Duration {
        let seconds = match (self, class) {
            (Self::Query | Self::Transfer, DeviceClass::Disk | DeviceClass::Other) => 60,
            (Self::Query, _) => 120,
            (Self::Transfer, DeviceClass::Optical) => 300,
            (Self::Transfer, _) => 1800,
            (Self::Motion, DeviceClass::Disk | DeviceClass::Other) => 300,
            (Self::Motion, _) => 3600,
            (Self::Whole, _) => 24 * 3600,
        };
        Duration::from_secs(seconds)
    }
}

/// What is done with a command block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Who carries it out.
    pub handling: Handling,
    /// What travels.
    pub transfer: Transfer,
    /// What a reservation of another client means for it.
    pub class: Class,
    /// How it meets a pending unit attention.
    pub attention: AttentionHandling,
    /// How long it may take.
    pub timeout: Duration,
}

/// The bits in which a command block would ask for what is not there.
mod field {
    /// NACA, in the CONTROL byte: no ACA conditions exist (SAM-5, 5.9.2).
    pub(super) const NACA: u8 = 0x04;
    /// RDPROTECT, WRPROTECT and VRPROTECT: protection information would travel with the blocks (SBC-3, 4.22).
    pub(super) const PROTECT: u8 = 0xE0;
}

/// What is done with a command block of a client with these rights, on a device of this class; or why it is refused.
pub fn plan(
    block: &Block,
    class: DeviceClass,
    rights: Rights,
    geometry: Geometry,
) -> Result<Plan, Sense> {
    let row = Row::find(block, class)?;
    rights.check(row.right)?;
    if row.handling == Handling::Administration && !rights.administrator {
        return Err(UNKNOWN);
    }
    refuse_fields(block, row)?;
    let transfer = row.length.transfer(block, class, geometry)?;
    let timeout = row.pace.timeout(class);
    Ok(Plan {
        handling: row.handling,
        transfer,
        class: row.class_of(block),
        attention: row.attention(),
        timeout,
    })
}

/// Whether a device of this class ends a command with a pending unit attention in place of carrying it out.
#[must_use]
pub fn reports_attention(block: &Block, class: DeviceClass) -> bool {
    Row::find(block, class).is_ok_and(|row| row.attention() == AttentionHandling::Reports)
}

/// Whether the device carries such a command out when its turn comes. What becomes of PREVENT ALLOW MEDIUM REMOVAL the wishes
/// of all clients tell, and what is no command of the device needs no turn.
#[must_use]
pub fn has_turn(block: &Block, class: DeviceClass) -> bool {
    Row::find(block, class).is_ok_and(|row| match row.handling {
        Handling::Device
        | Handling::Settings(_)
        | Handling::Inquiry
        | Handling::RequestSense
        | Handling::Opcodes => true,
        Handling::Target | Handling::Prevent | Handling::Administration => false,
    })
}

/// Whether a client with these rights may send a command with these codes to a device of this class.
#[must_use]
pub fn permits(opcode: u8, action: u8, class: DeviceClass, rights: Rights) -> bool {
    let mut block = [0; 16];
    [block[0], block[1]] = [opcode, action];
    let row = Row::find(&block, class);
    row.is_ok_and(|row| {
        rights.check(row.right).is_ok()
            && (row.handling != Handling::Administration || rights.administrator)
    })
}

fn refuse_fields(block: &Block, row: &Row) -> Result<(), Sense> {
    let [_, flags, ..] = *block;
    if let Some(at) = control_byte(block[0]).filter(|at| block[*at] & field::NACA != 0) {
        return Err(Sense::invalid_cdb(at as u16, Some(2)));
    }
    if row.length.is_blocks() && block[0] >= 0x20 && flags & field::PROTECT != 0 {
        return Err(Sense::invalid_cdb(1, Some(7)));
    }
    Ok(())
}

/// Where the CONTROL byte of a command block is (SPC-4, 4.2.5.1), if its length is known.
const fn control_byte(opcode: u8) -> Option<usize> {
    match opcode >> 5 {
        0 => Some(5),
        1 | 2 => Some(9),
        4 => Some(15),
        5 => Some(11),
        _ => None,
    }
}

/// The length of a command block (SPC-4, 4.2.5.1). That of a vendor's own is not known: it goes on with all bytes that came.
#[must_use]
pub const fn block_length(opcode: u8) -> usize {
    match control_byte(opcode) {
        Some(at) => at + 1,
        None => 16,
    }
}

#[cfg(test)]
mod tests;
