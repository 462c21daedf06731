//! Who asks.

pub mod block_size;
mod clients;
pub mod copy;
pub(crate) mod ext4;
pub mod fuse;
mod hand_over;
pub mod hyperscsi;
pub mod iscsi;
pub mod kernel_device;
pub mod nbd;
mod record;
mod recorded;
pub mod ublk;

pub use clients::Clients;
pub use hand_over::HandOverError;
pub use record::Record;
