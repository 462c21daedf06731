//! The allow-list: a row for each command that goes on to a device, or that this target answers in its place.
//!
//! A row names the standard from which its fields are, and its clause where that is known. What SPC-4 has for all types is beside what SBC-3, SSC-4,
//! MMC-6, SMC-3 and ZBC have for one. Of two rows for a block the first counts.
//!
//! Not here, and so refused: EXTENDED COPY and RECEIVE COPY RESULTS (the device would reach units that no client of this
//! target may), ACCESS CONTROL, SET TARGET PORT GROUPS and REMOVE I_T NEXUS (they would concern the one initiator port that all
//! clients share), command blocks of more than 16 bytes, and bidirectional commands.

use Class::{Free, Persistent, Reads, Ready, Reserve, Writes};
use Handling::{Administration, Device, Inquiry, Opcodes, Prevent, RequestSense, Settings, Target};
use Pace::{Motion, Query, Transfer, Whole};
use Right::{Maintain, Manage, Read, Write};

use super::length::{At, Length};
use super::{DeviceClass, Handling, Pace, Right, UNKNOWN};
use crate::scsi::Sense;
use crate::scsi::attention::AttentionHandling;
use crate::scsi::cdb::Block;
use crate::scsi::reservation::Class;
use crate::scsi::sense::Additional;

/// The device classes that a row is for, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classes(u8);

const DISK: Classes = Classes(1);
const TAPE: Classes = Classes(2);
const OPTICAL: Classes = Classes(4);
const CHANGER: Classes = Classes(8);
/// SPC.
const ALL: Classes = Classes(31);
/// SPC, but for what MMC uses otherwise.
const NOT_OPTICAL: Classes = Classes(31 & !4);
/// Disks and optical drives.
const BLOCKS: Classes = Classes(1 | 4);
/// What has a medium that can be taken out.
const MEDIA: Classes = Classes(1 | 2 | 4 | 8);
/// What has a medium auxiliary memory or a volume identification.
const CARTRIDGES: Classes = Classes(2 | 8);

impl Classes {
    const fn include(self, class: DeviceClass) -> bool {
        let bit = match class {
            DeviceClass::Disk => 1,
            DeviceClass::Tape => 2,
            DeviceClass::Optical => 4,
            DeviceClass::Changer => 8,
            DeviceClass::Other => 16,
        };
        self.0 & bit != 0
    }
}

/// One command.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// OPERATION CODE.
    pub opcode: u8,
    /// The bits of the second byte that tell it from others of this code, and their value: a service action or a mode.
    pub action: Option<(u8, u8)>,
    /// Which devices have it.
    pub(super) classes: Classes,
    /// What a client needs for it.
    pub right: Right,
    /// What travels.
    pub(super) length: Length,
    /// How long it takes.
    pub pace: Pace,
    /// What a reservation means for it.
    pub class: Class,
    /// Who carries it out.
    pub handling: Handling,
    /// Its name, and where the standard says what it does.
    pub clause: &'static str,
}

/// SERVICE ACTION or MODE, in the second byte.
const ACTION: u8 = 0x1F;

const fn row(
    opcode: u8,
    classes: Classes,
    right: Right,
    length: Length,
    pace: Pace,
    class: Class,
    clause: &'static str,
) -> Row {
    let (action, handling) = (None, Device);
    Row { opcode, action, classes, right, length, pace, class, handling, clause }
}

impl Row {
    const fn action(mut self, action: u8) -> Self {
        self.action = Some((ACTION, action));
        self
    }

    const fn when(mut self, mask: u8, value: u8) -> Self {
        self.action = Some((mask, value));
        self
    }

    const fn by(mut self, handling: Handling) -> Self {
        self.handling = handling;
        self
    }

    /// The row for a block that is sent to a device of this class.
    pub(super) fn find(block: &Block, class: DeviceClass) -> Result<&'static Self, Sense> {
        let mut known = COMMANDS
            .iter()
            .filter(|row| row.opcode == block[0] && row.classes.include(class))
            .peekable();
        if known.peek().is_none() {
            // The codes of vendors (SPC-4, 4.2.5.1).
            return if block[0] >= 0xC0 { Ok(&VENDOR) } else { Err(UNKNOWN) };
        }
        let is_meant =
            |row: &&Self| row.action.is_none_or(|(mask, value)| block[1] & mask == value);
        // An unknown service action is an invalid field.
        known.find(is_meant).ok_or(Sense::invalid_cdb(1, Some(4)))
    }

    /// Whether devices of this class have it.
    #[must_use]
    pub const fn is_of(&self, class: DeviceClass) -> bool {
        self.classes.include(class)
    }

    /// What a reservation means for `block`.
    pub(super) const fn class_of(&self, block: &Block) -> Class {
        match (block[0], block[4] & 0x03) {
            // SBC-3, table 13: nobody is kept from starting a unit, or from taking back that he prevents removal. To load a tape
            // moves it (SSC-4, table 13).
            (0x1B, 0x01) if self.classes.include(DeviceClass::Disk) => Free,
            (0x1E, 0x00) => Free,
            _ => self.class,
        }
    }

    /// How it meets a pending unit attention.
    pub(super) const fn attention(&self) -> AttentionHandling {
        match (self.opcode, self.handling) {
            (_, RequestSense) => AttentionHandling::Returns,
            // SPC-4, 6.6.1 and 6.33; MMC-6, 4.1.6.1.
            (0xA0, _) | (_, Inquiry | Administration) => AttentionHandling::Passes,
            (0x46 | 0x4A, _) => AttentionHandling::Passes,
            _ => AttentionHandling::Reports,
        }
    }
}

/// A command of a vendor: only he knows what it does, and only the client what travels.
static VENDOR: Row =
    row(0xC0, ALL, Maintain, Length::Announced, Whole, Writes, "vendor-specific: SPC-4, 4.2.5.1");

const fn input(at: u8, bytes: u8) -> Length {
    Length::In(At(at, bytes))
}

const fn output(at: u8, bytes: u8) -> Length {
    Length::Out(At(at, bytes))
}

const NONE: Length = Length::None;
const MODES: Handling = Settings(Additional::MODE_PARAMETERS_CHANGED);
const LOGS: Handling = Settings(Additional::LOG_PARAMETERS_CHANGED);
/// Where READ and WRITE (6), (10), (12) and (16) count their blocks.
const SIX: At = At(4, 1);
const TEN: At = At(7, 2);
const TWELVE: At = At(6, 4);
const SIXTEEN: At = At(10, 4);

/// Every command but those of vendors, by operation code.
pub fn commands() -> impl Iterator<Item = &'static Row> + Clone {
    COMMANDS.iter()
}

#[rustfmt::skip] // A row is a line.
static COMMANDS: &[Row] = &[
    row(0x00, ALL, Read, NONE, Query, Ready, "TEST UNIT READY: SPC-4, 6.47"),
    row(0x01, TAPE, Read, NONE, Motion, Writes, "REWIND: SSC-4, 7.11"),
    row(0x03, ALL, Read, input(4, 1), Query, Free, "REQUEST SENSE: SPC-4, 6.39").by(RequestSense),
    row(0x04, BLOCKS, Maintain, Length::Announced, Whole, Writes, "FORMAT UNIT: SBC-3, 5.3; MMC-6, 6.4"),
    row(0x04, TAPE, Maintain, output(3, 2), Whole, Writes, "FORMAT MEDIUM: SSC-4"),
    row(0x05, TAPE, Read, Length::FixedIn(6), Query, Reads, "READ BLOCK LIMITS: SSC-4, 7.5"),
    row(0x07, DISK, Maintain, Length::Announced, Motion, Writes, "REASSIGN BLOCKS: SBC-3, 5.21"),
    row(0x07, CHANGER, Manage, NONE, Motion, Writes, "INITIALIZE ELEMENT STATUS: SMC-3, 6.4"),
    row(0x08, DISK, Read, Length::BlocksIn(SIX), Transfer, Reads, "READ (6): SBC-2, 5.5"),
    row(0x08, TAPE, Read, Length::TapeIn, Transfer, Writes, "READ (6): SSC-4, 7.4"),
    row(0x0A, DISK, Write, Length::BlocksOut(SIX), Transfer, Writes, "WRITE (6): SBC-2, 5.24"),
    row(0x0A, TAPE, Write, Length::TapeOut, Transfer, Writes, "WRITE (6): SSC-4, 7.19"),
    row(0x0B, TAPE, Maintain, NONE, Whole, Writes, "SET CAPACITY: SSC-4"),
    row(0x0F, TAPE, Read, Length::TapeIn, Transfer, Writes, "READ REVERSE (6): SSC-4"),
    row(0x10, TAPE, Write, NONE, Motion, Writes, "WRITE FILEMARKS (6): SSC-4, 7.20"),
    row(0x11, TAPE, Read, NONE, Motion, Writes, "SPACE (6): SSC-4, 7.17"),
    row(0x12, ALL, Read, input(3, 2), Query, Free, "INQUIRY: SPC-4, 6.6").by(Inquiry),
    row(0x13, TAPE, Read, Length::TapeCompared, Motion, Writes, "VERIFY (6): SSC-4"),
    row(0x15, ALL, Manage, output(4, 1), Query, Writes, "MODE SELECT (6): SPC-4, 6.11").by(MODES),
    row(0x16, ALL, Manage, NONE, Query, Reserve, "RESERVE (6): SPC-2, 7.21").by(Target),
    row(0x17, ALL, Manage, NONE, Query, Reserve, "RELEASE (6): SPC-2, 7.16").by(Target),
    row(0x19, TAPE, Write, NONE, Whole, Writes, "ERASE (6): SSC-4"),
    row(0x1A, ALL, Read, input(4, 1), Query, Reads, "MODE SENSE (6): SPC-4, 6.13"),
    row(0x1B, BLOCKS, Manage, NONE, Motion, Writes, "START STOP UNIT: SBC-3, 5.25; MMC-6"),
    row(0x1B, TAPE, Manage, NONE, Motion, Writes, "LOAD UNLOAD: SSC-4"),
    row(0x1B, CHANGER, Manage, NONE, Motion, Writes, "OPEN/CLOSE IMPORT/EXPORT ELEMENT: SMC-3, 6.7"),
    row(0x1C, ALL, Manage, input(3, 2), Query, Writes, "RECEIVE DIAGNOSTIC RESULTS: SPC-4, 6.27"),
    // With parameters it is for whoever knows the device.
    row(0x1D, ALL, Manage, NONE, Motion, Writes, "SEND DIAGNOSTIC with SELFTEST: SPC-4, 6.42").when(0xE4, 0x04),
    row(0x1D, ALL, Maintain, output(3, 2), Whole, Writes, "SEND DIAGNOSTIC: SPC-4, 6.42"),
    row(0x1E, MEDIA, Manage, NONE, Query, Writes, "PREVENT ALLOW MEDIUM REMOVAL: SBC-3, 5.10; MMC-6, 6.14").by(Prevent),
    row(0x23, OPTICAL, Read, input(7, 2), Query, Reads, "READ FORMAT CAPACITIES: MMC-6, 6.23"),
    row(0x25, BLOCKS, Read, Length::FixedIn(8), Query, Free, "READ CAPACITY (10): SBC-3, 5.15; MMC-6, 6.18"),
    row(0x28, BLOCKS, Read, Length::BlocksIn(TEN), Transfer, Reads, "READ (10): SBC-3, 5.11; MMC-6, 6.15"),
    row(0x2A, DISK, Write, Length::BlocksOut(TEN), Transfer, Writes, "WRITE (10): SBC-3, 5.33"),
    row(0x2A, OPTICAL, Write, Length::Sectors(TEN), Transfer, Writes, "WRITE (10): MMC-6"),
    row(0x2B, OPTICAL, Read, NONE, Motion, Reads, "SEEK (10): MMC-6"),
    row(0x2B, TAPE, Read, NONE, Motion, Writes, "LOCATE (10): SSC-4, 7.2"),
    row(0x2B, CHANGER, Manage, NONE, Motion, Writes, "POSITION TO ELEMENT: SMC-3, 6.8"),
    row(0x2E, DISK, Write, Length::BlocksOut(TEN), Transfer, Writes, "WRITE AND VERIFY (10): SBC-3, 5.37"),
    row(0x2E, OPTICAL, Write, Length::Sectors(TEN), Transfer, Writes, "WRITE AND VERIFY (10): MMC-6"),
    // It may take a day, in which the device does nothing else.
    row(0x2F, BLOCKS, Write, Length::Compared(TEN), Whole, Reads, "VERIFY (10): SBC-3, 5.29; MMC-6"),
    row(0x34, DISK, Read, NONE, Transfer, Reads, "PRE-FETCH (10): SBC-3, 5.8"),
    row(0x34, TAPE, Read, Length::Position, Query, Reads, "READ POSITION: SSC-4, 7.7"),
    row(0x35, BLOCKS, Read, NONE, Motion, Writes, "SYNCHRONIZE CACHE (10): SBC-3, 5.26; MMC-6"),
    row(0x37, DISK, Read, input(7, 2), Query, Reads, "READ DEFECT DATA (10): SBC-3, 5.17"),
    row(0x37, CHANGER, Manage, NONE, Motion, Writes, "INITIALIZE ELEMENT STATUS WITH RANGE: SMC-3, 6.5"),
    row(0x3B, ALL, Manage, output(6, 3), Query, Writes, "WRITE BUFFER, data: SPC-4, 6.49").action(0x02),
    row(0x3B, ALL, Manage, output(6, 3), Query, Writes, "WRITE BUFFER, echo buffer: SPC-4, 6.49").action(0x0A),
    // Among them the download of firmware.
    row(0x3B, ALL, Maintain, output(6, 3), Whole, Writes, "WRITE BUFFER, other modes: SPC-4, 6.49"),
    row(0x3C, ALL, Manage, input(6, 3), Query, Writes, "READ BUFFER: SPC-4, 6.18"),
    row(0x41, DISK, Write, Length::OneBlockOut, Whole, Writes, "WRITE SAME (10): SBC-3, 5.43"),
    row(0x42, DISK, Write, output(7, 2), Whole, Writes, "UNMAP: SBC-3, 5.28"),
    row(0x42, OPTICAL, Read, input(7, 2), Query, Reads, "READ SUB-CHANNEL: MMC-3"),
    row(0x43, OPTICAL, Read, input(7, 2), Query, Reads, "READ TOC/PMA/ATIP: MMC-6, 6.25"),
    row(0x44, TAPE, Read, input(7, 2), Query, Reads, "REPORT DENSITY SUPPORT: SSC-4, 7.8"),
    row(0x45, OPTICAL, Manage, NONE, Motion, Writes, "PLAY AUDIO (10): MMC-3"),
    row(0x46, OPTICAL, Read, input(7, 2), Query, Free, "GET CONFIGURATION: MMC-6, 6.5"),
    row(0x47, OPTICAL, Manage, NONE, Motion, Writes, "PLAY AUDIO MSF: MMC-3"),
    row(0x48, DISK, Maintain, output(7, 2), Whole, Writes, "SANITIZE: SBC-3, 5.24"),
    row(0x4A, OPTICAL, Read, input(7, 2), Query, Free, "GET EVENT STATUS NOTIFICATION: MMC-6, 6.6"),
    row(0x4B, OPTICAL, Manage, NONE, Motion, Writes, "PAUSE/RESUME: MMC-3"),
    row(0x4C, ALL, Manage, output(7, 2), Query, Writes, "LOG SELECT: SPC-4, 6.7").by(LOGS),
    // The device keeps the parameters, for all clients.
    row(0x4D, ALL, Manage, input(7, 2), Query, Writes, "LOG SENSE with SP: SPC-4, 6.8").when(0x01, 0x01),
    row(0x4D, ALL, Read, input(7, 2), Query, Reads, "LOG SENSE: SPC-4, 6.8"),
    row(0x4E, OPTICAL, Manage, NONE, Motion, Writes, "STOP PLAY/SCAN: MMC-3"),
    row(0x51, OPTICAL, Read, input(7, 2), Query, Reads, "READ DISC INFORMATION: MMC-6, 6.21"),
    row(0x52, OPTICAL, Read, input(7, 2), Query, Reads, "READ TRACK INFORMATION: MMC-6, 6.26"),
    row(0x53, OPTICAL, Write, NONE, Motion, Writes, "RESERVE TRACK: MMC-6"),
    row(0x54, OPTICAL, Write, output(7, 2), Motion, Writes, "SEND OPC INFORMATION: MMC-6"),
    row(0x55, ALL, Manage, output(7, 2), Query, Writes, "MODE SELECT (10): SPC-4, 6.12").by(MODES),
    row(0x56, ALL, Manage, NONE, Query, Reserve, "RESERVE (10): SPC-2, 7.22").by(Target),
    row(0x57, ALL, Manage, NONE, Query, Reserve, "RELEASE (10): SPC-2, 7.17").by(Target),
    row(0x5A, ALL, Read, input(7, 2), Query, Reads, "MODE SENSE (10): SPC-4, 6.14"),
    row(0x5B, OPTICAL, Write, NONE, Whole, Writes, "CLOSE TRACK SESSION: MMC-6, 6.3"),
    row(0x5C, OPTICAL, Read, input(7, 2), Query, Reads, "READ BUFFER CAPACITY: MMC-6, 6.17"),
    row(0x5D, OPTICAL, Write, output(6, 3), Query, Writes, "SEND CUE SHEET: MMC-6"),
    // What a client may register that may only read is for the reservations.
    row(0x5E, ALL, Read, input(7, 2), Query, Persistent, "PERSISTENT RESERVE IN: SPC-4, 6.15").by(Target),
    row(0x5F, ALL, Read, output(5, 4), Query, Persistent, "PERSISTENT RESERVE OUT: SPC-4, 6.16").by(Target),
    row(0x80, TAPE, Write, NONE, Motion, Writes, "WRITE FILEMARKS (16): SSC-4"),
    row(0x82, TAPE, Write, NONE, Motion, Writes, "ALLOW OVERWRITE: SSC-4"),
    row(0x88, DISK, Read, Length::BlocksIn(SIXTEEN), Transfer, Reads, "READ (16): SBC-3, 5.13"),
    row(0x89, DISK, Write, Length::PairsOut(At(13, 1)), Transfer, Writes, "COMPARE AND WRITE: SBC-3, 5.2"),
    row(0x8A, DISK, Write, Length::BlocksOut(SIXTEEN), Transfer, Writes, "WRITE (16): SBC-3, 5.35"),
    row(0x8B, DISK, Write, Length::BlocksOut(SIXTEEN), Transfer, Writes, "ORWRITE (16): SBC-3, 5.5"),
    row(0x8C, CARTRIDGES, Read, input(10, 4), Query, Reads, "READ ATTRIBUTE: SPC-4, 6.17"),
    row(0x8D, CARTRIDGES, Write, output(10, 4), Query, Writes, "WRITE ATTRIBUTE: SPC-4, 6.48"),
    row(0x8E, DISK, Write, Length::BlocksOut(SIXTEEN), Transfer, Writes, "WRITE AND VERIFY (16): SBC-3, 5.39"),
    row(0x8F, DISK, Write, Length::Compared(SIXTEEN), Whole, Reads, "VERIFY (16): SBC-3, 5.31"),
    row(0x90, DISK, Read, NONE, Transfer, Reads, "PRE-FETCH (16): SBC-3, 5.9"),
    row(0x91, DISK, Read, NONE, Motion, Writes, "SYNCHRONIZE CACHE (16): SBC-3, 5.27"),
    row(0x91, TAPE, Read, NONE, Motion, Writes, "SPACE (16): SSC-4, 7.18"),
    row(0x92, TAPE, Read, NONE, Motion, Writes, "LOCATE (16): SSC-4, 7.3"),
    row(0x93, DISK, Write, Length::OneBlockOut, Whole, Writes, "WRITE SAME (16): SBC-3, 5.44"),
    row(0x94, DISK, Write, NONE, Motion, Writes, "CLOSE, FINISH, OPEN ZONE, RESET WRITE POINTER: ZBC"),
    row(0x95, DISK, Read, input(10, 4), Query, Reads, "REPORT ZONES: ZBC").action(0x00),
    row(0x9C, DISK, Write, Length::BlocksOut(At(12, 2)), Transfer, Writes, "WRITE ATOMIC (16): SBC-4, 5.48"),
    row(0x9E, DISK, Read, input(10, 4), Query, Free, "READ CAPACITY (16): SBC-3, 5.16").action(0x10),
    row(0x9E, DISK, Read, input(10, 4), Query, Reads, "GET LBA STATUS: SBC-3, 5.4").action(0x12),
    row(0xA0, ALL, Read, input(6, 4), Query, Free, "REPORT LUNS: SPC-4, 6.33").by(Target),
    // Of rewritable discs: their programs blank them before they write.
    row(0xA1, OPTICAL, Write, NONE, Whole, Writes, "BLANK: MMC-6, 6.2"),
    row(0xA2, NOT_OPTICAL, Maintain, Length::SecurityIn, Query, Writes, "SECURITY PROTOCOL IN: SPC-4, 6.40"),
    row(0xA3, NOT_OPTICAL, Read, input(6, 4), Query, Reads, "REPORT IDENTIFYING INFORMATION: SPC-4, 6.32").action(0x05),
    row(0xA3, ALL, Read, input(6, 4), Query, Free, "REPORT TARGET PORT GROUPS: SPC-4, 6.37").action(0x0A).by(Target),
    row(0xA3, NOT_OPTICAL, Read, input(6, 4), Query, Reads, "REPORT SUPPORTED OPERATION CODES: SPC-4, 6.35").action(0x0C).by(Opcodes),
    row(0xA3, ALL, Read, input(6, 4), Query, Reads, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: SPC-4, 6.36").action(0x0D).by(Target),
    row(0xA3, NOT_OPTICAL, Read, input(6, 4), Query, Reads, "REPORT TIMESTAMP: SPC-4, 6.38").action(0x0F),
    row(0xA3, ALL, Read, input(6, 4), Query, Free, "MANAGEMENT PROTOCOL IN: SPC-4, 6.9").action(0x10).by(Administration),
    row(0xA4, NOT_OPTICAL, Manage, output(6, 4), Query, Writes, "SET IDENTIFYING INFORMATION: SPC-4, 6.43").action(0x06),
    row(0xA4, NOT_OPTICAL, Manage, output(6, 4), Query, Writes, "SET TIMESTAMP: SPC-4, 6.46").action(0x0F),
    row(0xA4, ALL, Read, output(6, 4), Whole, Free, "MANAGEMENT PROTOCOL OUT: SPC-4, 6.10").action(0x10).by(Administration),
    // Its grants are counted for an initiator port, which all clients share.
    row(0xA4, OPTICAL, Manage, input(8, 2), Query, Writes, "REPORT KEY: MMC-6"),
    row(0xA5, CHANGER, Manage, NONE, Motion, Writes, "MOVE MEDIUM: SMC-3, 6.6"),
    row(0xA6, CHANGER, Manage, NONE, Motion, Writes, "EXCHANGE MEDIUM: SMC-3, 6.3"),
    row(0xA6, OPTICAL, Manage, NONE, Motion, Writes, "LOAD/UNLOAD MEDIUM: MMC-6"),
    row(0xA7, OPTICAL, Manage, NONE, Query, Writes, "SET READ AHEAD: MMC-6"),
    row(0xA8, BLOCKS, Read, Length::BlocksIn(TWELVE), Transfer, Reads, "READ (12): SBC-3, 5.12; MMC-6, 6.16"),
    row(0xAA, DISK, Write, Length::BlocksOut(TWELVE), Transfer, Writes, "WRITE (12): SBC-3, 5.34"),
    row(0xAA, OPTICAL, Write, Length::Sectors(TWELVE), Transfer, Writes, "WRITE (12): MMC-6"),
    row(0xAB, CARTRIDGES, Read, input(6, 4), Query, Reads, "READ MEDIA SERIAL NUMBER: SPC-4, 6.19").action(0x01),
    row(0xAC, OPTICAL, Read, Length::Descriptors(At(8, 2)), Query, Reads, "GET PERFORMANCE: MMC-6, 6.7"),
    row(0xAD, OPTICAL, Read, input(8, 2), Query, Reads, "READ DISC STRUCTURE: MMC-6, 6.22"),
    row(0xAE, DISK, Write, Length::BlocksOut(TWELVE), Transfer, Writes, "WRITE AND VERIFY (12): SBC-3, 5.38"),
    row(0xAF, DISK, Write, Length::Compared(TWELVE), Whole, Reads, "VERIFY (12): SBC-3, 5.30"),
    row(0xB5, NOT_OPTICAL, Maintain, Length::SecurityOut, Whole, Writes, "SECURITY PROTOCOL OUT: SPC-4, 6.41"),
    row(0xB6, OPTICAL, Manage, output(9, 2), Query, Writes, "SET STREAMING: MMC-6"),
    row(0xB6, CHANGER, Manage, output(8, 2), Query, Writes, "SEND VOLUME TAG: SMC-3"),
    row(0xB7, DISK, Read, input(6, 4), Query, Reads, "READ DEFECT DATA (12): SBC-3, 5.18"),
    row(0xB8, CHANGER, Read, input(7, 3), Motion, Reads, "READ ELEMENT STATUS: SMC-3, 6.11"),
    row(0xB9, OPTICAL, Read, Length::CdMsf, Transfer, Reads, "READ CD MSF: MMC-6, 6.20"),
    row(0xBB, OPTICAL, Manage, NONE, Motion, Writes, "SET CD SPEED: MMC-6"),
    row(0xBD, OPTICAL, Read, input(8, 2), Query, Reads, "MECHANISM STATUS: MMC-6, 6.12"),
    row(0xBE, OPTICAL, Read, Length::CdSectors(At(6, 3)), Transfer, Reads, "READ CD: MMC-6, 6.19"),
    row(0xBF, OPTICAL, Write, output(8, 2), Query, Writes, "SEND DISC STRUCTURE: MMC-6"),
];
