//! `longhaul discover`: which volumes a server offers.

use serde::Serialize;

use super::options::LoginArgs;
use crate::chain;
use crate::failure::Outcome;
use crate::printable::OneLine;
use crate::uri::Host;

/// Ask a server which targets this machine may use
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The server, as HOST or HOST:PORT
    host: Host,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    login: LoginArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul discover server
  longhaul discover [2001:db8::1]:3261 --chap-user laptop --chap-secret-file laptop.secret";

/// Prints the URI of the first logical unit of each target, by its first portal.
pub async fn run(args: Args) -> Outcome {
    let login = args.login.login().await?;
    let targets: Vec<Target> = chain::discover(&args.host, &login)
        .await?
        .into_iter()
        .map(|target| Target {
            portals: target.portals.iter().map(ToString::to_string).collect(),
            name: target.name,
        })
        .collect();
    if args.json {
        return super::say_json(&targets);
    }
    // What is sealed here has to be sealed there.
    let pin = login.seal.pin.map_or_else(String::new, |key| format!("?pin={key}"));
    for target in targets {
        for portal in &target.portals {
            super::say(&format!("iscsi://{}/{}/0{pin}", OneLine(portal), OneLine(&target.name)))?;
        }
    }
    Ok(())
}

#[derive(Debug, Serialize)]
struct Target {
    name: String,
    portals: Vec<String>,
}
