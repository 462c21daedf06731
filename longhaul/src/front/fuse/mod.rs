//! The FUSE server: a volume as one file of this machine, for programs and for loop devices.
//!
//! `proto::fuse` has the protocol with the kernel, [`connection`] the descriptor that speaks it. [`filesystem`] answers: the
//! root of the file system is one regular file, mounted over a file. [`requests`] says what a request means to a volume,
//! [`mapping`] what its failures mean to the kernel; [`server`] mounts, and ends; [`mount_point`] is the file it is mounted
//! over, [`mount`] how.

mod connection;
mod filesystem;
mod mapping;
mod mount;
mod mount_point;
mod requests;
mod server;

pub use mount::{Device, open_device};
pub use mount_point::MountError;
pub use server::{Server, Takeover};
