//! `longhaul cluster`: which gateway of a cluster is active, and to have another one be it.

use std::time::Duration;

use clap::Subcommand;
use proto::cluster::GroupName;
use proto::iscsi::name::IscsiName;

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
  longhaul cluster move web

An active gateway that is asked to move gives its volumes to another one; one in standby asks for them. Where they are in \
several groups, one group is moved: `admin URI cluster move` moves that of the volume.";

/// Longer than a gateway looks for another one.
const MOVED_WITHIN: Duration = Duration::from_secs(120);

/// The request; the name of a group may follow, or TARGET/LUN for that of a unit.
const MOVE: &str = "cluster move";

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what this gateway is, and who is active
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Have another gateway be active, or this one: whichever is not
    Move {
        /// The group of volumes that moves, if there are several
        group: Option<GroupName>,
        /// The unit whose group is meant where none is named.
        #[arg(skip)]
        of: Option<String>,
    },
}

impl Args {
    /// The group of this unit is meant, unless another is named.
    pub(super) fn set_unit(&mut self, target: &IscsiName, lun: u16) {
        if let Action::Move { of, .. } = &mut self.action {
            *of = Some(format!("{}/{lun}", target.as_str()));
        }
    }
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
            let lines: Vec<_> = status.lines().map(|(line, _)| line).collect();
            say(&lines.join("\n"))
        }
        Action::Move { group, of } => {
            let meant = group.map(|group| group.to_string()).or(of);
            let request = meant.map_or_else(|| MOVE.to_owned(), |it| format!("{MOVE} {it}"));
            say_done(&server.ask(&request, MOVED_WITHIN).await?)
        }
    }
}
