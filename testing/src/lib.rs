//! What tests and benchmarks share; never shipped.

#![forbid(unsafe_code)]

pub mod link;

pub use volume::check::Random;
