//! `longhaul invite`: a client is let in without its key being known yet.

use std::io::{IsTerminal as _, stdout};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::server_socket::ServerSocket;
use super::{say, say_json, say_text};
use crate::config::ConfigDuration;
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::qr_code::QrCode;
use crate::uri::Host;
use crate::utc::utc;

/// Invite a client to a running server: prints one line with which it enrols itself, once
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The name that the client will have
    name: String,
    /// A volume that it may use; may be given several times, and the client mounts the first
    #[arg(long = "volume", value_name = "NAME", required = true)]
    volumes: Vec<String>,
    /// It may only read them
    #[arg(long)]
    read_only: bool,
    /// How long the invitation is good
    #[arg(long = "for", value_name = "TIME", default_value = "1h")]
    time: ConfigDuration,
    /// Where the client reaches the server, if not at the addresses that it listens on; may be given several times
    #[arg(long, value_name = "HOST[:PORT]")]
    address: Vec<Host>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerSocket,
}

const EXAMPLES: &str = "\
Examples:
  longhaul invite laptop --volume backup
  longhaul invite phone --volume media --read-only --for 10m --address nas.example.org

Whoever has the line is the client, if he comes first: hand it over where nobody reads it. It ends with its first use, \
after its time, and with `longhaul revoke NAME`.";

/// What is asked of a server.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct InviteRequest {
    pub(super) name: String,
    pub(super) volumes: Vec<String>,
    pub(super) read_only: bool,
    pub(super) seconds: u64,
    pub(super) addresses: Vec<String>,
}

/// What it answers.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Invited {
    pub(super) name: String,
    pub(super) invitation: String,
    /// Seconds since 1970.
    pub(super) until: u64,
    /// It listens on every address, and knows none by which others reach this machine.
    #[serde(default)]
    pub(super) is_only_here: bool,
}

/// How long the answer is waited for: the server may be reading its file.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Asks the server, and prints the invitation.
pub async fn run(args: Args) -> Outcome {
    let Args { name, volumes, read_only, time, address, json, server } = args;
    let seconds = time.into_inner().as_secs();
    if seconds == 0 {
        return Err(Failure::usage("an invitation is good for a second at least"));
    }
    let addresses = address.iter().map(ToString::to_string).collect();
    let request = InviteRequest { name, volumes, read_only, seconds, addresses };
    let request = serde_json::to_string(&request).or_fail(|| "cannot ask".to_owned())?;
    let answer = server.ask(&format!("invite {request}"), PATIENCE).await?;
    let invited: Invited = serde_json::from_str(&answer)
        .or_fail(|| "cannot read the answer: is the server of another release?".to_owned())?;
    let printed =
        if json { say_json(&invited) } else { invited.print(|said| server.naming_it(said)) };
    printed.map_err(|why| {
        why.hint(server.naming_it(&format!(
            "the invitation is open all the same: `longhaul revoke {}` ends it",
            invited.name
        )))
    })
}

impl Invited {
    /// Prints it; on a terminal as a picture, too, for a client with a camera.
    /// `naming` puts the server into what is advised.
    pub(super) fn print(&self, naming: impl Fn(&str) -> String) -> Outcome {
        let Self { name, invitation, until, is_only_here } = self;
        say(&format!("invitation for {name} (good once, until {}):  {invitation}", utc(*until)))?;
        if *is_only_here {
            print_error(&naming(
                "longhaul: only this machine reaches the addresses in it: `longhaul invite --address HOST` names another one",
            ));
        }
        match QrCode::of(invitation).filter(|_| stdout().is_terminal()) {
            Some(picture) => say_text(&picture),
            None => Ok(()),
        }
    }
}
