//! What can be added to a volume on its way down.

pub mod crypt;
pub mod joined;
pub mod journal;
pub mod limit;
pub mod member;
pub mod mirror;
pub mod narrow;
pub mod overlay;
pub mod padded;
pub mod pipeline;
mod range_index;
pub mod range_lock;
pub mod read_only;
pub mod reconnect;

use bytes::{Bytes, BytesMut};

/// The bytes to change: in place if nobody else holds them, else a copy.
fn owned(bytes: Bytes) -> BytesMut {
    bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}
