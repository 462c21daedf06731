//! What a command has to do with the medium that its initiator believes to be in the drive.
//!
//! Commands may be under way when the medium is exchanged, or the head of a tape moved. A unit attention answers the first of
//! them; those behind it were sent before their initiator could know of it.

use super::DeviceClass;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumUse {
    /// It changes the medium, or begins where the head of a tape is.
    Relies,
    /// It puts the head somewhere, or is sent by an initiator that finds out how the drive is.
    Finds,
    /// Nothing.
    None,
}

impl MediumUse {
    /// That of a command of this code.
    #[must_use]
    pub const fn of(class: DeviceClass, opcode: u8) -> Self {
        match class {
            DeviceClass::Tape => Self::of_tape(opcode),
            DeviceClass::Optical => Self::of_disc(opcode),
            DeviceClass::Disk | DeviceClass::Changer | DeviceClass::Other => Self::None,
        }
    }

    /// SSC-4, table 13.
    const fn of_tape(opcode: u8) -> Self {
        match opcode {
            // READ, WRITE, READ REVERSE, WRITE FILEMARKS, SPACE, VERIFY and ERASE.
            0x08 | 0x0A | 0x0F | 0x10 | 0x11 | 0x13 | 0x19 | 0x80 | 0x91 => Self::Relies,
            // TEST UNIT READY, REWIND, LOAD UNLOAD and LOCATE.
            0x00 | 0x01 | 0x1B | 0x2B | 0x92 => Self::Finds,
            _ => Self::None,
        }
    }

    /// MMC-6, table 244.
    const fn of_disc(opcode: u8) -> Self {
        match opcode {
            // FORMAT UNIT, WRITE, WRITE AND VERIFY, BLANK, RESERVE TRACK, CLOSE TRACK SESSION and SEND CUE SHEET.
            0x04 | 0x2A | 0x2E | 0xAA | 0xA1 | 0x53 | 0x5B | 0x5D => Self::Relies,
            // TEST UNIT READY, READ CAPACITY, READ TOC, READ DISC INFORMATION and READ TRACK INFORMATION.
            0x00 | 0x25 | 0x43 | 0x51 | 0x52 => Self::Finds,
            _ => Self::None,
        }
    }
}
