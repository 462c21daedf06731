//! `longhaul attach`: a volume for the programs of this machine.

pub mod status;

use std::path::{Path, PathBuf};

use self::status::StatusReporter;
use super::options::{EncryptionArgs, LoginArgs, OutageArgs, ReplayLogArgs, WriterArgs};
use crate::chain::{self, Chain, OpenOptions};
use crate::control;
use crate::failure::{Failure, Outcome, complain};
use crate::front::nbd;
use crate::pipelined::PipelineArgs;
use crate::printable::Shown as _;
use crate::reconnect_limit::ReconnectLimit;
use crate::replay_log::Pending;
use crate::size::Size;
use crate::stop::Stop;
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
    /// Replace a socket left by a process that was killed: nothing that is running relies on what that had
    /// acknowledged
    #[arg(long)]
    replace: bool,
    /// The size of a file that does not exist yet, such as 80G
    #[arg(long)]
    size: Option<Size>,
    /// Refuse writes
    #[arg(long, conflicts_with = "take_over")]
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
    writers: WriterArgs,
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
finished, later ones are refused, everything acknowledged is flushed, and then clients are hung up on.";

/// Says that what is read changes meanwhile.
fn warn_of_writer(uri: &Uri, writer: Option<String>) {
    let Some(writer) = writer else { return };
    complain(&format_args!(
        "longhaul: another writer has {uri}: {writer}; what it writes is read from now on, so that a file system here may find \
         parts of different moments; nothing is read ahead"
    ));
}

/// Runs until a signal.
pub async fn run(args: Args) -> Outcome {
    args.encryption.refuse_idle_force()?;
    let uri = args.uri;
    host::allocator::return_large();
    if args.pipeline.is_given() && !uri.is_remote() {
        let what = "--window, --in-flight, --segment, --read-ahead and --no-pipeline are for volumes behind a network";
        return Err(Failure::usage(format!(
            "{what}, and {uri} is on this machine: leave them out"
        )));
    }
    if args.replay_log.is_given() && !uri.is_remote() {
        let what = format!(
            "--replay-log is for volumes behind a network, and {uri} is on this machine: leave it out"
        );
        return Err(Failure::usage(what));
    }
    if let Some(why) = control::too_long(&args.nbd) {
        return Err(Failure::usage("cannot listen on the socket").because(why));
    }
    let stop = super::stop_on_signals()?;
    let replay_log = match uri.is_remote() && !args.read_only {
        true => args.replay_log.dir()?,
        false => None,
    };
    let options = OpenOptions {
        existing_only: false,
        make_at: None,
        size: args.size,
        read_only: args.read_only,
        login: args.login.login().await?,
        contents: args.encryption.contents(&uri.to_string()),
        block_size: None,
        pad: false,
        pipeline: args.writers.pipeline(args.pipeline.settings(chain::memory_of_machine())?),
        writers: args.writers.writers(),
        state: None,
        replays: None,
        same_as: None,
        reconnect_limit: args.outage.reconnect_limit().unwrap_or(ReconnectLimit::FOREVER),
        replay_log,
        stop: stop.clone(),
    };
    let chain = chain::open(&uri, options).await?;
    chain.leave_on(stop.clone());
    let logs = async { Ok(chain.pending_logs(args.replay_log.place()).await) };
    let logs = match super::unless_stopped(&stop, logs).await {
        Ok(logs) => logs,
        Err(why) => {
            chain.discard().await;
            return Err(why);
        }
    };
    warn_of(&logs, &uri);
    if args.read_only {
        let (_, writer) = stop.unless_called(chain.gaps()).await.unwrap_or_default();
        warn_of_writer(&uri, writer);
    }
    if !args.read_only && chain.volume().shape().read_only {
        complain(&format_args!(
            "longhaul: {uri} is read-only, and so is what is attached: the medium is write-protected, or the server lets this \
             client only read it; --read-only says that this is meant"
        ));
    }
    let bound = nbd::Server::bind(&args.nbd, args.replace);
    let served = match bound.map_err(|why| cannot_listen(&args.nbd, why, &logs)) {
        Ok(server) => serve(&chain, server, stop).await,
        Err(why) => Err(why),
    };
    let server = match served {
        Ok(server) => server,
        Err(why) => {
            // No client was served.
            chain.discard().await;
            return Err(why);
        }
    };
    let closed = chain.close().await;
    if closed.is_err() {
        // Who connects again must not take what comes next for what was there before.
        server.leave();
    }
    closed
}

/// Says which logs should be written before the volume is used.
fn warn_of(logs: &[Pending], uri: &Uri) {
    for log in logs {
        let path = log.path.shown();
        complain(&format_args!(
            "longhaul: {uri} lacks what is in the replay log {log}: `longhaul replay {path}` should come first, since it \
             replaces what is written from now on"
        ));
    }
}

/// Serves the volume until it is to end.
async fn serve(chain: &Chain, server: nbd::Server, stop: Stop) -> Outcome<nbd::Server> {
    let uri = chain.uri().to_string();
    let socket = server.uri();
    let reporter = StatusReporter {
        uri: uri.clone(),
        socket,
        clients: server.clients(),
        volume: chain.observer(),
    };
    super::announce(&format!("ready {}", server.uri()))?;
    let listening = reporter.listen();
    let mut ending = stop.clone();
    let mut progress = None;
    let telling = async {
        ending.called().await;
        progress = Some(reporter.report_progress());
    };
    let serving = server.run(chain.volume(), &uri, stop);
    tokio::join!(serving, telling);
    // They look at the volume, which nobody else may hold when it is closed.
    for task in [progress, listening].into_iter().flatten() {
        task.abort();
        let _ = task.await;
    }
    Ok(server)
}

fn cannot_listen(path: &Path, why: nbd::BindError, logs: &[Pending]) -> Failure {
    let hint = match &why {
        nbd::BindError::Left => {
            let gone = "what it had acknowledged and not sent is gone, unless a replay log has it; programs that connect again would not be told. End \
                        them, look after what they had written, then say --replace";
            let logs = logs.iter().map(|log| {
                let path = log.path.shown();
                format!("\n  `longhaul replay {path}` should come first: what it holds is not on the volume")
            });
            Some(logs.fold(gone.to_owned(), |hint, log| hint + &log))
        }
        nbd::BindError::TooLong(_) => Some(
            "name a shorter one, such as one in /run, or one relative to the working directory"
                .to_owned(),
        ),
        _ => None,
    };
    let failure = Failure::new(format!("cannot listen on the socket {}", path.shown()));
    let failure = failure.because(why);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
