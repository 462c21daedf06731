//! SCSI: command blocks, sense, and the device servers of disks, optical drives, tape drives and media changers, to SPC-4, SBC-3, MMC-6,
//! SSC-4 and SMC-3.

pub mod administration;
pub mod attention;
pub mod capacity;
pub mod cdb;
pub mod command;
pub mod copy;
mod copy_limits;
pub mod device_type;
pub mod elements;
pub mod inquiry;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
pub mod log;
pub mod lun;
pub mod mode;
pub mod pass_through;
pub mod ports;
pub mod provisioning;
pub mod readiness;
pub mod reservation;
mod residual;
pub mod rights;
pub mod sanitize;
pub mod sense;
mod sequence;
pub mod stall;
pub mod status;
pub mod supported;
pub mod tape_stream;
pub(crate) mod text_id;
pub mod transport;
pub mod unit;
pub mod writer;

pub use capacity::Capacity;
pub use cdb::{Cdb, Parsed};
pub use device_type::DeviceType;
pub use residual::Residual;
pub use sense::Sense;
pub use sequence::Sequence;
pub use status::Status;

use crate::reader::Truncated;

/// A run of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// The first.
    pub lba: u64,
    /// How many.
    pub count: u32,
}

impl Blocks {
    /// How many bytes they hold, if 32 bits can say so.
    #[must_use]
    pub const fn bytes(self, block_size: u32) -> Option<u32> {
        self.count.checked_mul(block_size)
    }
}

/// What a device sent cannot be what it claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends too early.
    #[error("the answer ends {} bytes short", .0.missing)]
    Truncated(Truncated),
    /// This field, as the standard names it, has a value that makes no sense.
    #[error("the {0} field of the answer makes no sense")]
    Field(&'static str),
}

impl From<Truncated> for Malformed {
    fn from(truncated: Truncated) -> Self {
        Self::Truncated(truncated)
    }
}
