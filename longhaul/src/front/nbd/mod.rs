//! The NBD server: a volume for the programs of this machine, over a Unix socket.
//!
//! The protocol is [`proto::nbd`]; [`mapping`] says what a volume is in its terms; [`connection`] drives one
//! client, one task each; [`server`] listens. All connections share the volume, which is coherent by its
//! contract. [`kernel_server`] serves the kernel's own client, of which [`kernel_client`] makes block devices.

mod connection;
mod connection_order;
mod connection_pause;
mod kernel_client;
mod kernel_server;
mod mapping;
mod server;

pub use kernel_client::{KernelClient, KernelError};
pub use kernel_server::KernelServer;
pub use server::{BindError, Server, uri};
