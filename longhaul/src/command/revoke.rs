//! `longhaul revoke`: a client may not log in any more.

use super::invite::PATIENCE;
use super::server_socket::ServerSocket;
use crate::failure::Outcome;

/// Take a client, or an invitation, from a running server; its sessions are ended
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Its name, as `longhaul clients` lists it
    name: String,
    #[command(flatten)]
    pub(super) server: ServerSocket,
}

/// Returns when it is done, and cannot come back with a restart.
pub async fn run(args: Args) -> Outcome {
    super::say_done(&args.server.ask(&format!("revoke {}", args.name), PATIENCE).await?)
}
