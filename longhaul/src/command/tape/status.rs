//! `longhaul tape status`: a drive of a server, and what tape is in it.

use crate::chain::{UnitOptions, open_unit};
use crate::command::options::{LoginArgs, OutageArgs};
use crate::command::units::{UnitInfo, describe_unit};
use crate::command::{named, say, say_json};
use crate::failure::{Failure, Outcome};
use crate::uri::Uri;

/// What to show.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The drive: its URI
    #[arg(value_parser = named::tape_drive)]
    uri: Uri,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
}

/// Asks it. The tape is not moved, and the drive not reserved.
pub(super) async fn run(args: Args) -> Outcome {
    let options = UnitOptions {
        login: args.login.login_to(&[&args.uri]).await?,
        reconnect_limit: args.outage.reconnect_limit().unwrap_or_default(),
        ..UnitOptions::default()
    };
    let unit = open_unit(&args.uri, &options).await?;
    let info = describe_unit(&args.uri, &*unit).await;
    unit.close().await;
    tell(&args, &info)
}

fn tell(args: &Args, info: &UnitInfo) -> Outcome {
    if !info.is_tape() {
        return Err(Failure::new(format!("{} is no tape drive: it is {}", args.uri, info.kind())));
    }
    if args.json {
        return say_json(info);
    }
    say(info.to_string().trim_end())
}
