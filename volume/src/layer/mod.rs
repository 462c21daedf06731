//! What can be added to a volume on its way down.

pub mod narrow;
pub mod padded;
pub mod pipeline;
pub mod range_lock;
pub mod read_only;
pub mod reconnect;
pub mod seal;

use bytes::{Bytes, BytesMut};

/// The bytes to change: in place if nobody else holds them, else a copy.
fn owned(bytes: Bytes) -> BytesMut {
    bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]))
}
