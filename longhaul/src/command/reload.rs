//! `longhaul reload`: a running server reads its file again.

use std::time::Duration;

use super::server_socket::ServerSocket;
use crate::failure::Outcome;

/// Let a running server read its configuration again and apply the difference
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub(super) server: ServerSocket,
}

/// How long the answer is waited for. A server that runs says within 20 s what there is to say by then.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns when it is applied; fails if nothing was.
pub async fn run(args: Args) -> Outcome {
    super::say(&args.server.ask("reload", PATIENCE).await?)
}
