//! The FUSE server: a volume as one file of this machine, for programs and for loop devices.
//!
//! The crate `fuser` speaks the protocol with the kernel. [`filesystem`] answers it: the root of the file system is one
//! regular file, mounted over a file. [`requests`] says what a request means to a volume, [`mapping`] what its failures
//! mean to the kernel; [`server`] mounts, and ends; [`mount_point`] is the file it is mounted over.

mod filesystem;
mod mapping;
mod mount_point;
mod requests;
mod server;

pub use mount_point::MountError;
pub use server::Server;
