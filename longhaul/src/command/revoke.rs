//! `longhaul revoke`: a client may not log in any more.

use std::path::PathBuf;

use super::invite::PATIENCE;
use crate::control;
use crate::failure::Outcome;

/// Take a client, or an invitation, from a running server; its sessions are ended
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Its name, as `longhaul clients` lists it
    name: String,
    /// The control socket of the server
    #[arg(long, value_name = "PATH", default_value = control::DEFAULT)]
    control: PathBuf,
}

/// Returns when it is done, and cannot come back with a restart.
pub async fn run(args: Args) -> Outcome {
    let answer = control::ask(&args.control, &format!("revoke {}", args.name), PATIENCE).await;
    super::say_done(&answer.map_err(|why| why.into_failure(&args.control))?)
}
