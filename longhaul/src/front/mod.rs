//! Who asks.

pub mod iscsi;
pub mod lun;
pub mod nbd;
