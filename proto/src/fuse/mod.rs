//! The kernel's side of FUSE (include/uapi/linux/fuse.h, protocol 7.23 to 7.45), as far as a file system needs it that is one
//! regular file.
//!
//! [`Request`] is what the kernel asks, [`Reply`] what it is answered, [`Notice`] what it is told without having asked.
//! Fields are in the order of bytes of the machine: both ends are on it.

mod header;
mod opcode;
mod reply;
mod request;

#[cfg(test)]
mod tests;

pub use header::Header;
pub use reply::{
    Attributes, FOPEN_DIRECT_IO, FOPEN_PARALLEL_DIRECT_WRITES, Notice, Reply, Statistics,
};
pub use request::{BadRequest, Capabilities, Init, InitReply, Operation, Request, SetAttributes};

/// The number of the root, which here is the file.
pub const ROOT: u64 = 1;

/// The first protocol with FUSE_NOTIFY_RESEND (Linux 6.9): what a server had taken and not answered can be asked again.
pub const RESEND_SINCE: (u32, u32) = (7, 40);

/// The most bytes of a request beside the data of a write (FUSE_MIN_READ_BUFFER is less).
pub const HEADERS_MAX: usize = 16 << 10;
