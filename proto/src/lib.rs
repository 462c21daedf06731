//! SCSI, iSCSI, HyperSCSI, NBD and FUSE as pure state machines: bytes and the time go in; bytes,
//! commands and the next deadline come out.
//!
//! Nothing here does I/O, reads a clock or makes randomness of its own: time is an argument
//! ([`time::Time`]) and so is every random value (nonces, challenges). That is what lets two machines
//! be tested against each other on virtual time, over an emulated link.
#![forbid(unsafe_code)]

pub mod cipher;
pub mod client;
pub mod cluster;
pub mod fuse;
pub mod hyperscsi;
pub mod identity;
pub mod iscsi;
pub mod nbd;
mod noise_resolver;
pub mod reader;
pub mod scsi;
pub mod tape_encryption;
pub mod time;
