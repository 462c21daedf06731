//! Where the bytes are.

pub mod device;
pub mod file;
pub mod iscsi;
mod local;

pub use local::Local;
