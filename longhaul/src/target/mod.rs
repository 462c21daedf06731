//! A SCSI target device and its logical units, whatever transport protocol initiators use to reach them.

pub(crate) mod executor;
pub mod lun;
pub(crate) mod memory_quota;
pub mod meter;
pub(crate) mod node;
pub(crate) mod sessions;
pub mod status;
pub(crate) mod task_management;
