//! `longhaul reload`: a running server reads its file again.

use std::path::PathBuf;
use std::time::Duration;

use crate::control;
use crate::failure::Outcome;

/// Let a running server read its configuration again and apply the difference
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The control socket of the server
    #[arg(long, value_name = "PATH", default_value = control::DEFAULT)]
    control: PathBuf,
}

/// How long the answer is waited for. A server that runs says within 20 s what there is to say by then.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns when it is applied; fails if nothing was.
pub async fn run(args: Args) -> Outcome {
    let answer = control::ask(&args.control, "reload", PATIENCE).await;
    super::say(&answer.map_err(|why| why.into_failure(&args.control))?)
}
