//! `longhaul cluster`: which gateway of a cluster is active, and to have another one be it.

use std::time::Duration;

use clap::Subcommand;

use super::invite::PATIENCE;
use super::server_socket::ServerSocket;
use super::{say, say_done, say_json};
use crate::failure::{OrFail as _, Outcome};
use crate::target::status::ClusterStatus;

/// Show which gateway of a cluster is active, and have another one be it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    pub(super) server: ServerSocket,
}

const EXAMPLES: &str = "\
Examples:
  longhaul cluster show
  longhaul cluster move

An active gateway that is asked to move gives its volumes to another one; one in standby asks for them.";

/// Longer than a gateway looks for another one.
const MOVED_WITHIN: Duration = Duration::from_secs(120);

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what this gateway is, and who is active
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Have another gateway be active, or this one: whichever is not
    Move,
}

/// Asks the server.
pub async fn run(args: Args) -> Outcome {
    let Args { action, server } = args;
    match action {
        Action::Show { json } => {
            let answer = server.ask("cluster show", PATIENCE).await?;
            let status: ClusterStatus = serde_json::from_str(&answer).or_fail(|| {
                "cannot read the answer: is the server of another release?".to_owned()
            })?;
            if json {
                return say_json(&status);
            }
            say(&status.text())
        }
        Action::Move => say_done(&server.ask("cluster move", MOVED_WITHIN).await?),
    }
}
