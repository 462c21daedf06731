//! `longhaul media`: the discs and tapes in the drives of a running server.

use std::path::PathBuf;

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use super::invite::PATIENCE;
use super::server_socket::ServerSocket;
use super::{say, say_done, say_json};
use crate::failure::{OrFail as _, Outcome};
use crate::printable::{OneLine, Shown as _};
use crate::size::Size;

/// List the discs and tapes in the drives of a running server, put one in, and take it out
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  longhaul media load movies /srv/debian.iso
  longhaul media eject movies
  longhaul media load backup /srv/tapes/B.tape
  longhaul media list

A drive is a volume cdrom:ISO or tape:PATH of `serve`, or cdrom: or tape: with nothing in it. A restart of the server puts in what its configuration
names.";

#[derive(Debug, Subcommand)]
enum Action {
    /// Show each drive and what is in it
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        server: ServerSocket,
    },
    /// Put a disc or a tape into a drive, in the place of the one that is in it
    Load {
        /// The drive
        drive: String,
        /// The image of the disc, or the file of the tape
        iso: PathBuf,
        #[command(flatten)]
        force: Force,
        #[command(flatten)]
        server: ServerSocket,
    },
    /// Take the disc or the tape out of a drive
    Eject {
        /// The drive
        drive: String,
        #[command(flatten)]
        force: Force,
        #[command(flatten)]
        server: ServerSocket,
    },
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Force {
    /// Also if an initiator has locked the drive, as it does while the disc is mounted or the tape used: it meets errors there then
    #[arg(long)]
    force: bool,
}

/// What is asked of a server.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    List,
    Load { drive: String, disc: PathBuf, force: bool },
    Eject { drive: String, force: bool },
}

/// A drive.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Drive {
    pub(super) name: String,
    /// The image that is in it.
    pub(super) disc: Option<PathBuf>,
    pub(super) bytes: u64,
    /// It is used, and has not been ejected by an initiator.
    pub(super) ready: bool,
    /// An initiator has locked the tray.
    pub(super) locked: bool,
}

/// Asks the server; returns when it is done.
pub async fn run(args: Args) -> Outcome {
    match args.action {
        Action::List { json, server } => list(json, &server).await,
        Action::Load { drive, iso, force: Force { force }, server } => {
            // The server may have another working directory.
            let disc = std::path::absolute(&iso);
            let disc = disc.or_fail(|| format!("cannot tell where {} is", iso.shown()))?;
            say_done(&ask(&server, &Request::Load { drive, disc, force }).await?)
        }
        Action::Eject { drive, force: Force { force }, server } => {
            say_done(&ask(&server, &Request::Eject { drive, force }).await?)
        }
    }
}

async fn ask(server: &ServerSocket, request: &Request) -> Outcome<String> {
    let request = serde_json::to_string(request);
    let request = request.or_fail(|| "cannot tell the server what is wanted".to_owned())?;
    server.ask(&format!("media {request}"), PATIENCE).await
}

async fn list(json: bool, server: &ServerSocket) -> Outcome {
    let answer = ask(server, &Request::List).await?;
    let drives: Vec<Drive> = serde_json::from_str(&answer)
        .or_fail(|| "cannot read the answer: is the server of another release?".to_owned())?;
    if json {
        return say_json(&serde_json::json!({ "drives": drives }));
    }
    drives.iter().try_for_each(|drive| say(&drive.line()))
}

impl Drive {
    fn line(&self) -> String {
        let name = OneLine(&self.name);
        let locked = if self.locked { ", locked" } else { "" };
        match &self.disc {
            None => format!("{name}: empty{locked}"),
            Some(disc) => {
                let ejected = if self.ready { "" } else { ", ejected by an initiator" };
                format!("{name}: {}, {}{ejected}{locked}", disc.shown(), Size(self.bytes))
            }
        }
    }
}
