//! Commands, replies and devices, as they pass between a machine and its driver.

use bytes::Bytes;

use crate::scsi::sense::{Additional, Format, Key, Sense};
use crate::scsi::status::Status;

/// The longest command block (SPC-4, 4.2.5: a variable-length CDB).
pub const CDB_MAX: usize = 260;

/// The shortest command block.
pub const CDB_MIN: usize = 6;

/// The most sense data of a reply (SPC-4, 4.5.1).
pub const SENSE_MAX: usize = 252;

/// A device of a connection, by the handle that stands in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u16);

impl Handle {
    /// The connection itself (spec, 2).
    pub const CONNECTION: Self = Self(0xffff);
}

/// How the payload of a device's packets is protected (spec, 5.3). The order is that of strength.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Readable, and changed by whoever is on the path; but nobody else can send packets.
    None,
    /// Authenticated, readable.
    Integrity,
    /// Authenticated and encrypted.
    #[default]
    Encrypt,
}

impl Level {
    /// As it stands in the option, in the device table and in packets.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The level of a number.
    #[must_use]
    pub const fn of(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::None),
            1 => Some(Self::Integrity),
            2 => Some(Self::Encrypt),
            _ => None,
        }
    }

    /// What users call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Encrypt => "encrypt",
        }
    }
}

/// A device that a client may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its handle, not [`Handle::CONNECTION`].
    pub handle: Handle,
    /// Its name, as URIs have it; at most 255 bytes.
    pub name: Box<str>,
    /// How its packets are protected.
    pub level: Level,
    /// Whether the server refuses to write on it.
    pub read_only: bool,
}

/// The order in which a device executes commands (SAM-5, 8.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TaskAttribute {
    /// In any order.
    #[default]
    Simple,
    /// After all before it, before all behind it.
    Ordered,
    /// Before all that waits.
    HeadOfQueue,
    /// Within an ACA condition.
    Aca,
}

/// A command block with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The device.
    pub device: Handle,
    /// The command block: 6 to 260 bytes.
    pub cdb: Bytes,
    /// What is written.
    pub data_out: Bytes,
    /// The most that may be read.
    pub data_in_len: u32,
    /// The order of execution.
    pub attribute: TaskAttribute,
    /// A hint: where several commands wait, those of a higher priority go first.
    pub priority: u8,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: Status,
    /// Sense data; empty if there are none.
    pub sense: Bytes,
    /// Of the expected data, the bytes that were not transferred; negative where there would have been more.
    pub residual: i32,
    /// What was read.
    pub data_in: Bytes,
}

impl Reply {
    /// A reply with a status alone.
    #[must_use]
    pub const fn status(status: Status) -> Self {
        Self { status, sense: Bytes::new(), residual: 0, data_in: Bytes::new() }
    }

    /// The reply where data came with another checksum: PROTOCOL SERVICE CRC ERROR (spec, 7.7). ABORTED COMMAND says that the
    /// command was not executed, so that it may be sent again; HARDWARE ERROR that it was.
    pub(super) fn wrong_checksum(key: Key) -> Self {
        let sense = Sense::new(key, Additional::PROTOCOL_SERVICE_CRC_ERROR);
        let sense = sense.emit(Format::Fixed).into();
        Self { sense, ..Self::status(Status::CheckCondition) }
    }
}

/// A command, management message or task management function that a client has submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A request that a server has received: the slot and its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// The slot.
    pub slot: u16,
    /// The sequence number of the slot.
    pub seq: u32,
}

/// A task management function (SAM-5, 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskFunction {
    /// ABORT TASK, of the request with this identity at the server.
    AbortTask(Request),
    /// ABORT TASK SET.
    AbortTaskSet,
    /// CLEAR TASK SET.
    ClearTaskSet,
    /// CLEAR ACA.
    ClearAca,
    /// LOGICAL UNIT RESET.
    LogicalUnitReset,
}

/// What became of a task management function (SAM-5, 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskResponse {
    /// FUNCTION COMPLETE.
    Complete = 0,
    /// The task is not there: it has ended.
    NoSuchTask = 1,
    /// The device is not there.
    NoSuchDevice = 2,
    /// FUNCTION REJECTED.
    Rejected = 3,
    /// The function is not known.
    Unsupported = 4,
}

impl TaskResponse {
    /// The response a byte stands for; unknown ones are rejections.
    pub(super) const fn of(code: u8) -> Self {
        match code {
            0 => Self::Complete,
            1 => Self::NoSuchTask,
            2 => Self::NoSuchDevice,
            4 => Self::Unsupported,
            _ => Self::Rejected,
        }
    }
}
