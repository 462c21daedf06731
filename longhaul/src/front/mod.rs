//! Who asks.

pub mod copy;
pub mod iscsi;
pub mod lun;
pub mod nbd;
