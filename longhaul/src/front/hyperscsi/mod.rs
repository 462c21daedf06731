//! The HyperSCSI 2 target (docs/spec/hyperscsi.md): one server for each link, on one task that owns the protocol machine
//! and the sessions of all its connections.

mod connection;
mod node;
mod server;
mod tasks;
mod wakers;

pub use node::{Node, Offering};
pub use server::Server;
