//! `longhaul attach`: a volume for the programs of this machine.

use std::path::PathBuf;

use super::options::{EncryptionArgs, LoginArgs, OutageArgs, ReplayLogArgs};
use crate::chain::{self, OpenOptions};
use crate::failure::{Failure, OrFail, Outcome};
use crate::front::nbd;
use crate::patience::Patience;
use crate::pipelined::PipelineArgs;
use crate::size::Size;
use crate::uri::Uri;

/// Offer a volume to the programs of this machine, until interrupted
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume
    uri: Uri,
    /// Serve NBD on a new Unix socket at this path, which only its owner may open
    #[arg(long, value_name = "SOCKET")]
    nbd: PathBuf,
    /// The size of a file that does not exist yet, such as 80G
    #[arg(long)]
    size: Option<Size>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    encryption: EncryptionArgs,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
    #[command(flatten)]
    replay_log: ReplayLogArgs,
    #[command(flatten)]
    pipeline: PipelineArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul attach iscsi://server/iqn.2026-11.dev.longhaul:backup/0 --nbd disk.sock
  nbdinfo nbd+unix:///?socket=disk.sock
  qemu-img convert -n -f raw image.raw nbd+unix:///?socket=disk.sock

A volume that is encrypted is recognised: its pass-phrase is asked for, and its contents are offered.
Prints `ready URI` once the volume can be used. SIGTERM or SIGINT ends it: requests that run are
finished and everything acknowledged is flushed.";

/// Runs until a signal.
pub async fn run(args: Args) -> Outcome {
    let uri = args.uri;
    host::allocator::return_large();
    if args.pipeline.is_given() && !uri.is_remote() {
        return Err(Failure::usage(format!("{uri} has no pipeline: no network lies before it")));
    }
    let changes = uri.is_remote() && !args.read_only;
    let options = OpenOptions {
        size: args.size,
        read_only: args.read_only,
        login: args.login.login().await?,
        contents: args.encryption.contents(&uri.to_string()),
        block_size: None,
        pad: false,
        pipeline: args.pipeline.settings()?,
        patience: args.outage.patience().unwrap_or(Patience::FOREVER),
        replay_log: changes.then(|| args.replay_log.dir()).flatten(),
    };
    let stop = super::stop_on_signals()?;
    let chain = chain::open(&uri, options).await?;
    chain.leave_on(stop.clone());
    let server = nbd::Server::bind(&args.nbd)
        .or_fail(|| format!("cannot listen on the socket {}", args.nbd.display()))?;
    super::announce(&format!("ready {}", server.uri()))?;
    server.run(chain.volume(), &uri.to_string(), stop).await;
    chain.close().await
}
