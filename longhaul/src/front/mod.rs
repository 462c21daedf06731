//! Who asks.

mod clients;
pub mod copy;
pub mod fuse;
pub mod iscsi;
pub mod nbd;

pub use clients::Clients;
