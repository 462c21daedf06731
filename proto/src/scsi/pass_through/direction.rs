//! Commands that move blocks, of which a device may have several at a time.

use super::DeviceClass;

/// Where the blocks of a READ or WRITE go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the medium.
    Read,
    /// To the medium.
    Write,
}

impl Direction {
    /// That of a command of this code, if it is one that moves blocks and does nothing else. One that reads a tape backwards
    /// turns it around, and is none.
    #[must_use]
    pub const fn of(class: DeviceClass, opcode: u8) -> Option<Self> {
        match (class, opcode) {
            // SSC-4, 7.4 and 7.19.
            (DeviceClass::Tape, 0x08) => Some(Self::Read),
            (DeviceClass::Tape, 0x0A) => Some(Self::Write),
            // MMC-6, 6.15 and 6.16.
            (DeviceClass::Optical, 0x28 | 0xA8) => Some(Self::Read),
            (DeviceClass::Optical, 0x2A | 0xAA) => Some(Self::Write),
            // SBC-3, 5.10 to 5.13 and 5.32 to 5.35.
            (DeviceClass::Disk, 0x08 | 0x28 | 0xA8 | 0x88) => Some(Self::Read),
            (DeviceClass::Disk, 0x0A | 0x2A | 0xAA | 0x8A) => Some(Self::Write),
            _ => None,
        }
    }
}
