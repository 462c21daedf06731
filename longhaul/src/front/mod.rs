//! Who asks.

pub mod copy;
pub mod iscsi;
pub mod nbd;
