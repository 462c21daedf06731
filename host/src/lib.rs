//! The operating system, wrapped: files, sockets, ciphers. The only crate that may hold unsafe code;
//! it knows no protocol and no `Volume`.

pub mod aead;
mod aligned;
pub mod allocator;
pub mod cipher;
mod context;
pub mod file;
mod ioctl;
pub mod link;
pub mod loop_device;
pub mod memory;
mod ranges;
pub mod rbd;
pub mod request;
pub mod ring;
pub mod scsi_generic;
pub mod socket_activation;
pub mod standard_output;
mod syncs;
pub mod tcp;
pub mod thread_pool;
#[cfg(feature = "lab")]
pub mod tun;
pub mod ublk;
