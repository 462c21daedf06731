//! `longhaul reload`: a running server reads its file again.

use std::path::PathBuf;

use crate::control;
use crate::failure::Outcome;

/// Let a running server read its configuration again and apply the difference
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The control socket of the server
    #[arg(long, value_name = "PATH", default_value = control::DEFAULT)]
    control: PathBuf,
}

/// Returns when it is applied; fails if nothing was.
pub async fn run(args: Args) -> Outcome {
    // It may have to open a volume far away.
    let answer = control::ask(&args.control, "reload", None).await;
    super::say(&answer.map_err(|why| why.into_failure(&args.control))?)
}
