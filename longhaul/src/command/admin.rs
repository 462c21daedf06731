//! `longhaul admin`: a server elsewhere is administered, over the network.

use std::sync::Arc;

use clap::{Arg, Subcommand};

use super::options::LoginArgs;
use super::server_socket::ServerSocket;
use super::{clients, cluster, config, invite, media, named, reload, revoke, status};
use crate::chain::{self, Administered};
use crate::failure::Outcome;
use crate::uri::{Location, Uri};

/// Administer a server elsewhere, as a client that it lists as administrator
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE, mut_args(at_the_end_too), mut_subcommands(without_control))]
pub struct Args {
    /// A volume of the server: its URI, or the name that `mount` remembers it by
    #[arg(value_parser = named::volume)]
    uri: Uri,
    #[command(flatten)]
    login: LoginArgs,
    #[command(subcommand)]
    action: Action,
}

/// How to log in may stand anywhere.
const USAGE: &str = "longhaul admin [OPTIONS] <URI> <COMMAND> [OPTIONS]";

const EXAMPLES: &str = "\
Examples:
  longhaul admin backup status
  longhaul admin iscsi://nas/iqn.2026-11.dev.longhaul:backup/0?pin=lhpub1-... clients
  longhaul admin backup invite phone --volume media --read-only
  longhaul admin backup config set clients.phone.paused=true
  longhaul admin backup media load movies /srv/debian.iso

The commands are those for a server of this machine, and paths are those of its machine. The server wants \
`administrator = true` in the table of the client, and an encrypted session.";

/// How to log in may also be said behind the action.
fn at_the_end_too(arg: Arg) -> Arg {
    if arg.is_positional() { arg } else { arg.global(true) }
}

/// The server is named by the URI, which stands before the commands also in how those within them are used.
fn without_control(command: clap::Command) -> clap::Command {
    let name = command.get_name().to_owned();
    let command = command.mut_arg("control", |control| control.hide(true));
    command.mut_subcommands(|within| {
        let own = within.get_name().to_owned();
        let usage = within.clone().render_usage().to_string();
        let usage = usage.trim_start_matches(&format!("Usage: {own}"));
        let usage = usage.trim_start_matches(" [OPTIONS]");
        within.override_usage(format!("longhaul admin <URI> {name} {own} [OPTIONS]{usage}"))
    })
}

/// Each is the command of this name.
#[derive(Debug, Subcommand)]
enum Action {
    /// Show the sessions and volumes of the server
    Status(Status),
    Clients(clients::Args),
    Invite(invite::Args),
    Revoke(revoke::Args),
    Reload(reload::Args),
    Config(config::Args),
    Media(media::Args),
    Cluster(cluster::Args),
}

#[derive(Debug, clap::Args)]
struct Status {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerSocket,
}

/// Logs in, and has the server asked.
pub async fn run(args: Args) -> Outcome {
    let Args { uri, login, mut action } = args;
    let login = login.login().await?;
    if let (Action::Cluster(args), Location::Unit(unit)) = (&mut action, uri.location()) {
        args.set_unit(&unit.target, unit.lun);
    }
    let session = Arc::new(chain::administer(&uri, login).await?);
    let done = match action.server().set_elsewhere(Arc::clone(&session)) {
        Ok(()) => carry_out(action).await,
        Err(why) => Err(why),
    };
    if let Some(session) = Arc::into_inner(session) {
        Administered::close(session).await;
    }
    done
}

async fn carry_out(action: Action) -> Outcome {
    match action {
        Action::Status(Status { json, server }) => status::of_server(json, &server).await,
        Action::Clients(args) => clients::run(args).await,
        Action::Invite(args) => invite::run(args).await,
        Action::Revoke(args) => revoke::run(args).await,
        Action::Reload(args) => reload::run(args).await,
        Action::Config(args) => config::run(args).await,
        Action::Media(args) => media::run(args).await,
        Action::Cluster(args) => cluster::run(args).await,
    }
}

impl Action {
    const fn server(&mut self) -> &mut ServerSocket {
        match self {
            Self::Status(args) => &mut args.server,
            Self::Clients(args) => &mut args.server,
            Self::Invite(args) => &mut args.server,
            Self::Revoke(args) => &mut args.server,
            Self::Reload(args) => &mut args.server,
            Self::Config(args) => &mut args.server,
            Self::Media(args) => &mut args.server,
            Self::Cluster(args) => &mut args.server,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_commands_within_others_has_the_uri() {
        let mut command = <Args as clap::Args>::augment_args(clap::Command::new("admin"));
        command.build();
        for (names, usage) in [
            (["media", "load"], "media load [OPTIONS] <DRIVE> <ISO>"),
            (["media", "list"], "media list [OPTIONS]"),
            (["config", "set"], "config set [OPTIONS] <KEY=VALUE>..."),
        ] {
            let within =
                names.iter().try_fold(&mut command, |found, name| found.find_subcommand_mut(name));
            let said = within.unwrap().render_usage().to_string();
            assert_eq!(said, format!("Usage: longhaul admin <URI> {usage}"));
        }
    }
}
