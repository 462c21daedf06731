//! Where the bytes are.

pub mod abilities;
pub mod device;
mod engine;
pub mod file;
pub mod hyperscsi;
pub mod in_use;
pub mod iscsi;
pub mod journal_file;
pub mod library;
mod local;
pub mod null;
mod open_error;
mod pace;
pub mod passed_unit;
mod placement;
pub mod rbd;
mod runtime;
pub mod scsi;
pub mod scsi_generic;
mod slow_login;
pub mod standby;
mod write_back;

pub use local::Local;
pub use runtime::runtime;
