//! SCSI: command blocks, sense, and the disk device server, to SPC-4 and SBC-3.

pub mod status;

pub use status::Status;
