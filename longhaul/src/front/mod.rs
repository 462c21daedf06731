//! Who asks.

mod clients;
pub mod copy;
pub(crate) mod ext4;
pub mod fuse;
pub mod hyperscsi;
pub mod iscsi;
pub mod nbd;

pub use clients::Clients;
