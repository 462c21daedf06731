//! `longhaul config`: the configuration of a running server is shown and changed.

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use super::invite::PATIENCE;
use super::server_socket::ServerSocket;
use super::{say, say_done};
use crate::config::edit::Change;
use crate::failure::{OrFail as _, Outcome};

/// Show and change the configuration file of a running server, which applies it at once
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
  longhaul config show
  longhaul config set volumes.media.uri=file:/srv/media.img volumes.media.size=80G
  longhaul config set clients.laptop.volumes='[\"backup\", \"media\"]' clients.laptop.paused=true
  longhaul config unset clients.phone

All changes of one command are made, or none: what the server refuses is not in its file afterwards. Remarks in the file stay.";

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the file
    Show,
    /// Set keys, named with the tables that they are in; a value is TOML, or else text
    Set {
        /// A key and its value
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = assignment)]
        changes: Vec<Change>,
    },
    /// Take keys or tables out
    Unset {
        /// A key or a table
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
    },
}

/// What is asked of a server.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ConfigRequest {
    Show,
    Change(Vec<Change>),
}

fn assignment(text: &str) -> Result<Change, String> {
    let (key, value) =
        text.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or("write KEY=VALUE")?;
    Ok(Change { key: key.to_owned(), value: Some(value.to_owned()) })
}

/// Asks the server; a change is in force when it returns.
pub async fn run(args: Args) -> Outcome {
    let Args { action, server } = args;
    let request = match action {
        Action::Show => ConfigRequest::Show,
        Action::Set { changes } => ConfigRequest::Change(changes),
        Action::Unset { keys } => {
            let change = |key| Change { key, value: None };
            ConfigRequest::Change(keys.into_iter().map(change).collect())
        }
    };
    let text = serde_json::to_string(&request).or_fail(|| "cannot ask".to_owned())?;
    let answer = server.ask(&format!("config {text}"), PATIENCE).await?;
    match request {
        // A line is the answer.
        ConfigRequest::Show => {
            let file: String = serde_json::from_str(&answer).or_fail(|| {
                "cannot read the answer: is the server of another release?".to_owned()
            })?;
            say(file.trim_end())
        }
        ConfigRequest::Change(_) => say_done(&format!("applied; {answer}")),
    }
}
