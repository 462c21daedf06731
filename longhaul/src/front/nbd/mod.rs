//! The NBD server: a volume for the programs of this machine, over a Unix socket.
//!
//! The protocol is [`proto::nbd`]; [`mapping`] says what a volume is in its terms; [`connection`] drives one
//! client, one task each; [`server`] listens. All connections share the volume, which is coherent by its
//! contract.

mod connection;
mod connection_order;
mod mapping;
mod server;

pub use server::{BindError, Server, uri};
