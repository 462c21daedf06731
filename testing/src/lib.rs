//! What tests and benchmarks share; never shipped.

#![forbid(unsafe_code)]

pub mod fleet;
pub mod link;
#[cfg(feature = "loopback")]
pub mod loopback;
mod wake_counter;

pub use volume::check::Random;
/// For tests that join its machine to those of `proto`, which does not know `volume`.
pub use volume::layer::reconnect;
pub use wake_counter::WakeCounter;
