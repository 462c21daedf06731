//! What tests and benchmarks share; never shipped.

#![forbid(unsafe_code)]

pub mod fleet;
pub mod link;
#[cfg(feature = "loopback")]
pub mod loopback;

pub use volume::check::{Random, WakeCounter};
/// For tests that join its machine to those of `proto`, which does not know `volume`.
pub use volume::layer::reconnect;
