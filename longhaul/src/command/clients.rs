//! `longhaul clients`: who may use a running server, and who is invited.

use serde::{Deserialize, Serialize};

use super::invite::PATIENCE;
use super::server_socket::ServerSocket;
use super::{say, say_json};
use crate::failure::{OrFail as _, Outcome};
use crate::printable::OneLine;
use crate::size::Size;
use crate::utc::utc;

/// List the clients of a running server, and the invitations that nobody has used yet
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) server: ServerSocket,
}

/// What a server answers.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Clients {
    pub(super) clients: Vec<ListedClient>,
    pub(super) invitations: Vec<OpenInvitation>,
}

/// A client.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct ListedClient {
    pub(super) name: String,
    /// By which it proves who it is: a public key, or `chap:NAME`.
    pub(super) proves: Vec<String>,
    /// `None` for all.
    pub(super) volumes: Option<Vec<String>>,
    pub(super) read_only: Vec<String>,
    #[serde(default)]
    pub(super) administrator: bool,
    #[serde(default)]
    pub(super) paused: bool,
    /// Its part beside those of others; `None` if nothing is said of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) weight: Option<u32>,
    /// Bytes a second, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rate: Option<u64>,
    /// Reads and writes a second, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) iops: Option<u64>,
    /// How many sessions it has now.
    pub(super) sessions: usize,
}

/// An invitation, without its secret.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct OpenInvitation {
    pub(super) name: String,
    pub(super) volumes: Vec<String>,
    pub(super) read_only: Vec<String>,
    /// Seconds since 1970.
    pub(super) until: u64,
}

/// Prints them.
pub async fn run(args: Args) -> Outcome {
    let answer = args.server.ask("clients", PATIENCE).await?;
    let known: Clients = serde_json::from_str(&answer)
        .or_fail(|| "cannot read the answer: is the server of another release?".to_owned())?;
    if args.json {
        return say_json(&known);
    }
    for client in &known.clients {
        say(&client.line())?;
    }
    for OpenInvitation { name, volumes, read_only, until } in &known.invitations {
        let rights = rights(Some(volumes), read_only);
        say(&format!("{}: invited until {}; {rights}", OneLine(name), utc(*until)))?;
    }
    Ok(())
}

impl ListedClient {
    fn line(&self) -> String {
        let proves = if self.proves.is_empty() { "nothing" } else { &*self.proves.join(" or ") };
        let rights = rights(self.volumes.as_deref(), &self.read_only);
        let (name, proves, sessions) = (OneLine(&self.name), OneLine(proves), self.sessions);
        let administrator = if self.administrator { "; administrator" } else { "" };
        let paused = if self.paused { "; paused" } else { "" };
        let share = share(self.weight, self.rate, self.iops);
        let share = if share.is_empty() { share } else { format!("; {share}") };
        format!(
            "{name}: proves {proves}; {rights}{administrator}{paused}{share}; sessions: {sessions}"
        )
    }
}

/// What a client is given, as the configuration has it.
pub(super) fn share(weight: Option<u32>, rate: Option<u64>, iops: Option<u64>) -> String {
    let weight = weight.map(|weight| format!("weight={weight}"));
    let rate = rate.map(|rate| format!("rate={}", Size(rate)));
    let iops = iops.map(|iops| format!("iops={iops}"));
    [weight, rate, iops].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn rights(volumes: Option<&[String]>, read_only: &[String]) -> String {
    let list = |what: &str, volumes: &[String]| {
        (!volumes.is_empty()).then(|| format!("{what} {}", OneLine(volumes.join(", "))))
    };
    let writes = match volumes {
        Some(volumes) => list("writes", volumes),
        None => Some("writes all".to_owned()),
    };
    let both: Vec<_> = [writes, list("reads", read_only)].into_iter().flatten().collect();
    if both.is_empty() { "no volume".to_owned() } else { both.join(", ") }
}
