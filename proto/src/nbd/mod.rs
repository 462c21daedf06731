//! The server's side of NBD (doc/proto.md of the NBD project): the fixed newstyle handshake and the
//! transmission phase with simple and structured replies.
//!
//! [`Machine`] is one connection: bytes go in, requests and bytes come out. It serves one [`Export`], the
//! default one, with the empty name.

mod errno;
mod export;
mod handshake;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod machine;
pub mod netlink;
mod output;
mod transmission;
mod violation;
mod wire;

#[cfg(test)]
mod tests;

pub use errno::Errno;
pub use export::{ByteRange, Export, Extent};
pub use machine::{Event, Machine};
pub use output::Output;
pub use transmission::{Command, ErrorReply, Reply, Request};
pub use violation::Violation;
pub use wire::PAYLOAD_MAX;
