//! A SCSI target device and its logical units, whatever transport protocol initiators use to reach them.

pub mod lun;
