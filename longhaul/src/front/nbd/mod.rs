//! The NBD server: a volume for the programs of this machine, over a Unix socket.
//!
//! [`machine`] is the protocol, pure; [`connection`] drives one client, one task each; [`server`]
//! listens. All connections share the volume, which is coherent by its contract.

mod connection;
mod connection_order;
mod errno;
mod export;
mod handshake;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod machine;
mod mapping;
mod output;
mod server;
mod transmission;
mod violation;
mod wire;

#[cfg(test)]
mod tests;

pub use errno::Errno;
pub use export::{ByteRange, Export, Extent};
pub use machine::{Event, Machine};
pub use output::Output;
pub use server::{BindError, Clients, Server};
pub use transmission::{Command, ErrorReply, PAYLOAD_MAX, Reply, Request};
pub use violation::Violation;
