//! A SCSI target device and its logical units, whatever transport protocol initiators use to reach them.

pub mod executor;
pub mod fair_queue;
mod large_pool;
pub mod lun;
pub(crate) mod memory_quota;
pub mod meter;
pub mod node;
pub mod sessions;
pub mod shares;
pub mod status;
pub mod task_management;
