//! `longhaul cd`: the disc in the optical drive of a server.

mod burn;
mod close;
mod image;
mod read;
mod recorder;
mod toc;

use clap::Subcommand;
use proto::scsi::DeviceType;

use super::named;
use super::options::{LoginArgs, OutageArgs};
use super::unit_type::type_name;
use crate::chain::UnitOptions;
use crate::failure::{Failure, Outcome};
use crate::uri::Uri;

pub(super) use toc::{Contents, Disc};

/// Look at the disc in the optical drive of a server, read it, and burn one
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  longhaul cd toc iscsi://server/iqn.2026-11.dev.longhaul:movies
  longhaul cd read iscsi://server/iqn.2026-11.dev.longhaul:movies movie.iso
  longhaul cd read iscsi://server/iqn.2026-11.dev.longhaul:movies second.iso --session 2
  longhaul cd burn iscsi://server/iqn.2026-11.dev.longhaul:blank backup.iso --verify
  longhaul cd burn iscsi://server/iqn.2026-11.dev.longhaul:blank backup.iso --continue";

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the tracks of the disc
    Toc {
        #[command(flatten)]
        drive: DriveArgs,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Read the disc, from its first block to its last; what lies between its tracks is zeroes
    Read(read::ReadArgs),
    /// Burn an image onto the disc: a blank CD-R or BD-R (a DVD-R or DVD+R too, where a drive has them), or one that can be
    /// written over, as a DVD+RW
    Burn(burn::BurnArgs),
    /// Close a disc that is written once, as a CD-R or BD-R, and was not burnt to its end: all drives read it then
    Close(close::CloseArgs),
}

/// A drive.
#[derive(Debug, clap::Args)]
struct DriveArgs {
    /// The drive: its URI
    #[arg(value_parser = named::optical_drive)]
    uri: Uri,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
}

/// Does it.
pub async fn run(args: Args) -> Outcome {
    match args.action {
        Action::Toc { drive, json } => toc::toc(&drive, json).await,
        Action::Read(args) => read::run(args).await,
        Action::Burn(args) => burn::run(args).await,
        Action::Close(args) => close::run(args).await,
    }
}

fn refuse_other(uri: &Uri, found: u8) -> Outcome {
    match found == DeviceType::Optical.code() {
        true => Ok(()),
        false => {
            Err(Failure::new(format!("{uri} is no optical drive: it is {}", type_name(found))))
        }
    }
}

impl DriveArgs {
    async fn options(&self) -> Outcome<UnitOptions> {
        Ok(UnitOptions {
            login: self.login.login_to(&[&self.uri]).await?,
            reconnect_limit: self.outage.reconnect_limit().unwrap_or_default(),
            ..UnitOptions::default()
        })
    }
}
