//! Command blocks as the device reads them: every command it knows, typed, with all its fields.
//!
//! [`commands`] is the one table: it says which types of devices have a command, which bits of a block the device
//! evaluates, for the parser (which refuses every other bit) and for REPORT SUPPORTED OPERATION CODES (which reports them), and what else is
//! known of each command ([`Traits`]).

mod changer;
mod management;
mod optical;
mod table;
mod tape;
mod traits;

pub use changer::{ChangerCdb, StatusQuery};
pub use management::ManagementCdb;
pub use optical::{CloseFunction, OpticalCdb, TrackAddress};
pub use table::{Entry, Requires, commands};
pub use tape::{Destination, PositionForm, SpaceCode, TapeCdb};
pub use traits::{DataKind, Kind, MinimumAccess, Pace, RequiredRight, RequiredState, Traits};

use super::device_type::DeviceType;
use super::reservation::{Out, ReserveInAction};
use super::sanitize::Method;
use super::sense::{Additional, Format};
use super::{Blocks, Sense};

/// A command block, zero-padded.
pub type Block = [u8; 16];

/// A command block that has been read, once for all that is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The block as it came.
    pub block: Block,
    /// OPERATION CODE.
    pub opcode: u8,
    /// The command and its fields. ILLEGAL REQUEST, with the field that is wrong, for what is not in the table or sets
    /// a bit that the table does not have.
    pub cdb: Result<Cdb, Sense>,
    /// What else is known of it.
    pub traits: Traits,
}

impl Parsed {
    /// Reads a command block as a device of that type does: an operation code may mean another command to another.
    #[must_use]
    pub fn of(block: &Block, device: DeviceType) -> Self {
        let entry = Entry::find(block, device);
        let cdb = entry.and_then(|entry| {
            entry.check_reserved(block)?;
            (entry.parse)(Fields(block))
        });
        let traits = entry.map_or(Traits::UNKNOWN, |entry| entry.traits(cdb.as_ref().ok()));
        Self { block: *block, opcode: Fields(block).u8::<0>(), cdb, traits }
    }
}

/// What is known of a command by its codes alone, to who sends it to a device of that type and knows its fields.
#[must_use]
pub fn traits_of(block: &Block, device: DeviceType) -> Traits {
    Entry::find(block, device).map_or(Traits::UNKNOWN, |entry| entry.traits(None))
}

/// A command and its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cdb {
    /// TEST UNIT READY (SPC-4, 6.47).
    TestUnitReady,
    /// REQUEST SENSE (SPC-4, 6.39).
    RequestSense {
        /// DESC.
        format: Format,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// INQUIRY (SPC-4, 6.6).
    Inquiry {
        /// EVPD.
        vital: bool,
        /// PAGE CODE.
        page: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// REPORT LUNS (SPC-4, 6.33).
    ReportLuns {
        /// SELECT REPORT.
        select: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// REPORT SUPPORTED OPERATION CODES (SPC-4, 6.35).
    ReportOpcodes {
        /// RCTD: command timeouts descriptors are wanted.
        timeouts: bool,
        /// REPORTING OPTIONS.
        options: u8,
        /// REQUESTED OPERATION CODE.
        opcode: u8,
        /// REQUESTED SERVICE ACTION.
        action: u16,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4, 6.36).
    ReportTaskManagement {
        /// REPD: the long form is wanted.
        extended: bool,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// REPORT TARGET PORT GROUPS (SPC-4, 6.37).
    ReportPortGroups {
        /// PARAMETER DATA FORMAT: the long form is wanted.
        extended: bool,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// REPORT TIMESTAMP (SPC-4, 6.38).
    ReportTimestamp {
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// LOG SENSE (SPC-4, 6.8).
    LogSense {
        /// PAGE CODE.
        page: u8,
        /// SUBPAGE CODE.
        subpage: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// SEND DIAGNOSTIC of the default self-test, or of nothing (SPC-4, 6.42).
    SendDiagnostic,
    /// MODE SENSE (6) and (10) (SPC-4, 6.13 and 6.14).
    ModeSense {
        /// Which of them.
        form: Form,
        /// LLBAA: a long block descriptor may be returned.
        long: bool,
        /// DBD: no block descriptor is wanted.
        bare: bool,
        /// PC: which values.
        control: PageControl,
        /// PAGE CODE.
        page: u8,
        /// SUBPAGE CODE.
        subpage: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// MODE SELECT (6) and (10) (SPC-4, 6.11 and 6.12).
    ModeSelect {
        /// Which of them.
        form: Form,
        /// PF: the pages are in the standard's format.
        page_format: bool,
        /// SP: they are to be saved.
        save: bool,
        /// PARAMETER LIST LENGTH.
        length: u32,
    },
    /// START STOP UNIT (SBC-3, 5.25).
    StartStop {
        /// IMMED.
        immediate: bool,
        /// POWER CONDITION.
        condition: u8,
        /// NO_FLUSH.
        no_flush: bool,
        /// LOEJ.
        load_eject: bool,
        /// START.
        start: bool,
    },
    /// PREVENT ALLOW MEDIUM REMOVAL (SBC-3, 5.10; MMC-6, 6.14).
    PreventAllow {
        /// The low bit of PREVENT.
        prevent: bool,
        /// The high one, which MMC calls Persistent.
        persistent: bool,
    },
    /// PERSISTENT RESERVE IN (SPC-4, 6.15).
    PersistentIn {
        /// SERVICE ACTION.
        action: ReserveInAction,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// PERSISTENT RESERVE OUT (SPC-4, 6.16).
    PersistentOut(Out),
    /// RESERVE (6) and (10) of the whole unit (SPC-2, 7.21 and 7.22).
    Reserve,
    /// RELEASE (6) and (10) (SPC-2, 7.16 and 7.17).
    Release,
    /// READ CAPACITY (10) (SBC-3, 5.15).
    ReadCapacity10,
    /// READ CAPACITY (16) (SBC-3, 5.16).
    ReadCapacity16 {
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// GET LBA STATUS (SBC-3, 5.4).
    GetLbaStatus {
        /// STARTING LOGICAL BLOCK ADDRESS.
        lba: u64,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// READ DEFECT DATA (10) and (12) (SBC-3, 5.17 and 5.18).
    ReadDefects {
        /// Which of them.
        form: Form,
        /// REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT, as they came.
        list: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// READ (6) (SBC-2, 5.5) and READ (10) to (16) (SBC-3, 5.11 to 5.13).
    Read(Access),
    /// WRITE (6) (SBC-2, 5.24) and WRITE (10) to (16) (SBC-3, 5.33 to 5.35).
    Write(Access),
    /// WRITE AND VERIFY (10) to (16) (SBC-3, 5.37 to 5.39).
    WriteVerify(Access, Compare),
    /// VERIFY (10) to (16) (SBC-3, 5.29 to 5.31).
    Verify(Access, Compare),
    /// PRE-FETCH (10) and (16) (SBC-3, 5.8 and 5.9).
    Prefetch(Access),
    /// SYNCHRONIZE CACHE (10) and (16) (SBC-3, 5.26 and 5.27); no blocks means all from the first on.
    Synchronize {
        /// Which.
        access: Access,
        /// IMMED.
        immediate: bool,
    },
    /// UNMAP (SBC-3, 5.28).
    Unmap {
        /// PARAMETER LIST LENGTH.
        length: u32,
    },
    /// WRITE SAME (10) and (16) (SBC-3, 5.43 and 5.44).
    WriteSame {
        /// Which blocks.
        access: Access,
        /// UNMAP.
        unmap: bool,
        /// NDOB: no data-out, zeroes are meant.
        no_data: bool,
    },
    /// WRITE ATOMIC (16) (SBC-4, 5.48).
    WriteAtomic(Access),
    /// SANITIZE (SBC-3, 5.24).
    Sanitize {
        /// SERVICE ACTION.
        method: Method,
        /// IMMED.
        immediate: bool,
        /// AUSE: after a failure the medium may be used again without being sanitized.
        unrestricted: bool,
        /// PARAMETER LIST LENGTH.
        length: u32,
    },
    /// SANITIZE with EXIT FAILURE MODE.
    SanitizeExit,
    /// EXTENDED COPY (LID1) (SPC-4, 6.5).
    ExtendedCopy {
        /// PARAMETER LIST LENGTH.
        length: u32,
    },
    /// RECEIVE COPY STATUS (LID1) (SPC-4, 6.25).
    CopyStatus {
        /// LIST IDENTIFIER.
        id: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// RECEIVE COPY OPERATING PARAMETERS (SPC-4, 6.22).
    CopyParameters {
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// COMPARE AND WRITE (SBC-3, 5.2).
    CompareAndWrite(Access),
    /// ORWRITE (16) (SBC-3, 5.5).
    OrWrite(Access),
    /// A request to the server, or for its answer.
    Management(ManagementCdb),
    /// A command of MMC.
    Optical(OpticalCdb),
    /// A command of SSC.
    Tape(TapeCdb),
    /// A command of SMC.
    Changer(ChangerCdb),
}

/// The length of a command block, where one command comes in several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are numbers")]
pub enum Form {
    Six,
    Ten,
    Twelve,
    Sixteen,
}

/// The blocks a command works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Which.
    pub blocks: Blocks,
    /// FUA.
    pub durable: bool,
    /// Where the block count stands in the command block.
    pub count_at: u8,
}

/// BYTCHK: what the data-out are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// There are none to compare: the medium is checked for itself.
    Nothing,
    /// They are compared block by block.
    All,
    /// One block of them is compared with each block.
    One,
}

/// PC: which values MODE SENSE returns (SPC-4, 6.13.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageControl {
    /// Those in force.
    Current,
    /// A mask of what can be changed.
    Changeable,
    /// Those after power on.
    Default,
    /// Those saved.
    Saved,
}

impl Access {
    /// Of a command whose bit in the place of FUA means something else.
    const fn without_fua(mut self) -> Self {
        self.durable = false;
        self
    }
}

impl Cdb {
    /// How many bytes of data-out the command needs on blocks of `block_size`; `None` if 32 bits cannot
    /// say so.
    #[must_use]
    pub fn data_out(&self, block_size: u32) -> Option<u32> {
        match self {
            Self::ModeSelect { length, .. }
            | Self::Unmap { length }
            | Self::Sanitize { length, .. }
            | Self::ExtendedCopy { length }
            | Self::Management(ManagementCdb::Out { length, .. }) => Some(*length),
            Self::PersistentOut(out) => Some(out.length),
            Self::Write(access)
            | Self::WriteAtomic(access)
            | Self::WriteVerify(access, _)
            | Self::OrWrite(access) => access.blocks.bytes(block_size),
            Self::Verify(access, compare) => match compare {
                Compare::Nothing => Some(0),
                Compare::All => access.blocks.bytes(block_size),
                // SBC-3, 5.29: nothing travels where nothing is verified.
                Compare::One => Some(if access.blocks.count == 0 { 0 } else { block_size }),
            },
            Self::CompareAndWrite(access) => access.blocks.bytes(block_size)?.checked_mul(2),
            Self::WriteSame { no_data, .. } => Some(if *no_data { 0 } else { block_size }),
            Self::Optical(cdb) => Some(cdb.data_out()),
            _ => Some(0),
        }
    }
}

/// Reads the fields of a block at places the compiler checks.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a Block);

impl Fields<'_> {
    fn be<const AT: usize, const BYTES: usize>(self) -> u64 {
        const { assert!(BYTES <= 8 && AT + BYTES <= 16) };
        self.0.iter().skip(AT).take(BYTES).fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn u8<const AT: usize>(self) -> u8 {
        self.be::<AT, 1>() as u8
    }

    fn u16<const AT: usize>(self) -> u16 {
        self.be::<AT, 2>() as u16
    }

    fn u32<const AT: usize>(self) -> u32 {
        self.be::<AT, 4>() as u32
    }

    fn flag<const AT: usize>(self, mask: u8) -> bool {
        self.u8::<AT>() & mask != 0
    }

    /// LOGICAL BLOCK ADDRESS and length as READ (6) has them: no blocks means 256 (SBC-2, 5.5).
    fn access_6(self) -> Access {
        let lba = self.be::<1, 3>() & 0x1F_FFFF;
        let count = match self.u8::<4>() {
            0 => 256,
            count => u32::from(count),
        };
        Access { blocks: Blocks { lba, count }, durable: false, count_at: 4 }
    }

    fn access_10(self) -> Access {
        let blocks = Blocks { lba: self.u32::<2>().into(), count: self.u16::<7>().into() };
        Access { blocks, durable: self.flag::<1>(FUA), count_at: 7 }
    }

    fn access_12(self) -> Access {
        let blocks = Blocks { lba: self.u32::<2>().into(), count: self.u32::<6>() };
        Access { blocks, durable: self.flag::<1>(FUA), count_at: 6 }
    }

    fn access_16(self) -> Access {
        let blocks = Blocks { lba: self.be::<2, 8>(), count: self.u32::<10>() };
        Access { blocks, durable: self.flag::<1>(FUA), count_at: 10 }
    }

    /// WRITE ATOMIC counts in two bytes.
    fn access_atomic(self) -> Access {
        let blocks = Blocks { lba: self.be::<2, 8>(), count: self.u16::<12>().into() };
        Access { blocks, durable: self.flag::<1>(FUA), count_at: 12 }
    }

    /// COMPARE AND WRITE counts in one byte.
    fn access_compare(self) -> Access {
        let blocks = Blocks { lba: self.be::<2, 8>(), count: self.u8::<13>().into() };
        Access { blocks, durable: self.flag::<1>(FUA), count_at: 13 }
    }

    fn compare(self) -> Result<Compare, Sense> {
        match self.u8::<1>() >> 1 & 0b11 {
            0b00 => Ok(Compare::Nothing),
            0b01 => Ok(Compare::All),
            0b11 => Ok(Compare::One),
            _ => Err(Sense::invalid_cdb(1, Some(2))),
        }
    }

    fn page_control(self) -> PageControl {
        match self.u8::<2>() >> 6 {
            0b00 => PageControl::Current,
            0b01 => PageControl::Changeable,
            0b10 => PageControl::Default,
            _ => PageControl::Saved,
        }
    }
}

const FUA: u8 = 0x08;

impl Entry {
    /// The entry for a command block that is sent to a device of that type, and for its service action where the
    /// operation code has some.
    fn find(block: &Block, device: DeviceType) -> Result<&'static Self, Sense> {
        let fields = Fields(block);
        let mut known = table::of_opcode(fields.u8::<0>(), device);
        let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
        let first = known.next().ok_or(unknown)?;
        let wanted = fields.u8::<1>() & ACTION;
        if first.action.is_none_or(|action| action == wanted) {
            return Ok(first);
        }
        // An unknown service action is an invalid field.
        known.find(|entry| entry.action == Some(wanted)).ok_or(Sense::invalid_cdb(1, Some(4)))
    }

    /// The bits the device evaluates, as REPORT SUPPORTED OPERATION CODES shows them (SPC-4, 6.35.3):
    /// the operation code and service action stand for themselves.
    #[must_use]
    pub fn usage(&self) -> &'static [u8] {
        self.usage
    }

    /// Refuses a bit that must be zero: what would be ignored might have been important. Among them are
    /// NACA, as NormACA is zero, and protection, as no block carries any.
    fn check_reserved(&self, block: &Block) -> Result<(), Sense> {
        let wrong = u128::from_be_bytes(*block) & self.reserved;
        if wrong == 0 {
            return Ok(());
        }
        let first = 127 - wrong.ilog2() as u16;
        Err(Sense::invalid_cdb(first / 8, Some(7 - (first % 8) as u8)))
    }
}

/// SERVICE ACTION, in the second byte.
const ACTION: u8 = 0x1F;

#[cfg(test)]
mod tests;
