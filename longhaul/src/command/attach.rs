//! `longhaul attach`: a volume for the programs of this machine.

mod detach;
mod ending;
mod front;
pub(super) mod kept;
mod process_file;
pub mod status;
mod succession;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use volume::Volume;

use self::detach::Detach;
pub(super) use self::ending::Background;
use self::ending::until_end;
use self::front::{Front, FrontArgs};
pub(super) use self::front::{FrontAt, cannot_make_device, cannot_make_ublk_device};
use self::kept::KeeperLink;
use self::status::StatusReporter;
use self::succession::Succession;
use super::enrol::GivenInvitation;
use super::journal::not_resumed;
use super::journal_args::JournalArgs;
use super::named;
use super::options::{EncryptionArgs, LoginArgs, OutageArgs, ReplayLogArgs, WriterArgs};
use super::trace_file::TraceFile;
use super::unsent::{Unsent, tell_of_unsent};
use crate::block_devices::devices_over;
use crate::chain::{self, Chain, Contents, JournalOptions, OpenOptions};
use crate::failure::{Failure, Outcome, print_error};
use crate::front::kernel_device;
use crate::metered::Metered;
use crate::pipelined::PipelineArgs;
use crate::printable::Shown as _;
use crate::reconnect_limit::ReconnectLimit;
use crate::replay_log::Pending;
use crate::size::Size;
use crate::stop::{Stop, Stopper};
use crate::store::iscsi::{ReplayedLog, Writers};
use crate::target::meter::Meter;
use crate::trace::Trace;
use crate::uri::Uri;

/// Offer a volume to the programs of this machine, until interrupted
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume, by its URI or by the name that `mount` remembers, or an invitation; `-` reads one from standard input
    #[arg(value_name = "URI|INVITATION", value_parser = named::volume)]
    uri: Uri,
    #[command(flatten)]
    front: FrontArgs,
    /// Replace a socket or a mount left by a process that was killed: nothing that is running relies on what that had
    /// acknowledged
    #[arg(long)]
    replace: bool,
    /// Record every request to every layer in this new file, for Perfetto or Chrome (JSON), or as a picture (.svg): for short
    /// runs, as the first 500000 are kept
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    volume: VolumeArgs,
}

/// How a volume is opened that programs of this machine use.
#[derive(Debug, clap::Args)]
pub(super) struct VolumeArgs {
    /// The size of a file that does not exist yet, such as 80G
    #[arg(long)]
    pub(super) size: Option<Size>,
    /// Refuse writes
    #[arg(long, conflicts_with = "take_over")]
    pub(super) read_only: bool,
    #[command(flatten)]
    pub(super) encryption: EncryptionArgs,
    #[command(flatten)]
    pub(super) login: LoginArgs,
    #[command(flatten)]
    pub(super) outage: OutageArgs,
    #[command(flatten)]
    pub(super) replay_log: ReplayLogArgs,
    #[command(flatten)]
    pub(super) journal: JournalArgs,
    #[command(flatten)]
    pub(super) writers: WriterArgs,
    #[command(flatten)]
    pub(super) pipeline: PipelineArgs,
    #[arg(skip)]
    trace: Option<Arc<Trace>>,
}

const EXAMPLES: &str = "\
Examples:
  longhaul attach iscsi://server/iqn.2026-11.dev.longhaul:backup/0 --nbd disk.sock
  nbdinfo nbd+unix:///?socket=disk.sock
  qemu-img convert -n -f raw image.raw nbd+unix:///?socket=disk.sock
  longhaul attach iscsi://server/iqn.2026-11.dev.longhaul:backup/0 --fuse disk.img

An encrypted volume is recognised: its pass-phrase is asked for, and its contents are offered. Prints `ready URI`, or \
`ready FILE`, once the volume can be used. SIGTERM or SIGINT ends it: requests that run are finished, later ones are \
refused, everything acknowledged is flushed, and then clients are disconnected, or the file is unmounted.";

/// Says that what is read changes meanwhile.
fn warn_of_writer(uri: &Uri, writer: Option<String>) {
    let Some(writer) = writer else { return };
    print_error(&format_args!(
        "longhaul: another writer has {uri}: {writer}; what it writes is read from now on, so that a file system here may find \
         parts of different moments; nothing is read ahead"
    ));
}

/// Runs until a signal.
pub async fn run(args: Args) -> Outcome {
    let Args { uri, front, replace, trace, mut volume } = args;
    let stop = super::stop_on_signals()?;
    let front = front.place();
    let trace = trace.map(TraceFile::create).transpose()?;
    volume.trace = trace.as_ref().map(|trace| Arc::clone(&trace.trace));
    let title = uri.to_string();
    let offered = Offer { uri, front, replace, contents: None, background: None, kept: None };
    let done = offer(offered, volume, stop).await;
    let Some(trace) = trace else { return done };
    let end = trace.trace.now();
    super::first_failure(done, trace.write(&title, &[("attached", end)]))
}

/// What is offered, and how.
pub(super) struct Offer {
    pub(super) uri: Uri,
    pub(super) front: FrontAt,
    pub(super) replace: bool,
    /// What of it is wanted, if not what the options say.
    pub(super) contents: Option<Contents>,
    /// How it goes on without a terminal, if it does.
    pub(super) background: Option<Background>,
    /// What it takes over, or leaves to another process.
    pub(super) kept: Option<KeeperLink>,
}

impl Args {
    /// Uses an invitation that stood in the place of the volume; the command line without it.
    pub(crate) async fn enrol(
        &self,
        given: &GivenInvitation,
        arguments: &[OsString],
    ) -> Outcome<Vec<OsString>> {
        given.enrol(arguments, &self.volume.login, None).await
    }
}

impl VolumeArgs {
    /// Refuses what has no use for this volume.
    pub(super) fn check(&self, uri: &Uri) -> Outcome {
        self.encryption.refuse_idle_force()?;
        if self.pipeline.is_given() && !uri.is_partly_remote() {
            let what = "--window, --in-flight, --segment, --read-ahead and --no-pipeline are for volumes behind a network";
            return Err(Failure::usage(format!(
                "{what}, and {uri} is on this machine: leave them out"
            )));
        }
        if self.replay_log.is_given() && !uri.is_remote() {
            let what = format!(
                "--replay-log is for volumes behind a network, and {uri} is on this machine: leave it out"
            );
            return Err(Failure::usage(what));
        }
        if self.journal.is_given() && !uri.is_remote() {
            let what = format!(
                "--journal is for volumes behind a network, and {uri} is on this machine: leave it out"
            );
            return Err(Failure::usage(what));
        }
        Ok(())
    }

    /// Opens the volume. A journal that was made and is not used then is removed.
    pub(super) async fn open(
        &self,
        uri: &Uri,
        contents: Option<Contents>,
        stop: &Stop,
    ) -> Outcome<Chain> {
        self.open_kept(uri, contents, None, stop).await
    }

    /// The same, as the volume of a mount that is taken over, or may be.
    async fn open_kept(
        &self,
        uri: &Uri,
        contents: Option<Contents>,
        kept: Option<&KeeperLink>,
        stop: &Stop,
    ) -> Outcome<Chain> {
        let mut opened = self.open_chain(uri, contents.clone(), kept, stop).await;
        let had_journal = kept.is_some_and(KeeperLink::had_journal);
        if opened.is_err() && self.journal.is_declined() && !had_journal {
            opened = self.open_chain(uri, contents, kept, stop).await;
        }
        if opened.is_err() {
            self.journal.discard_made().await;
        }
        opened
    }

    /// Unless something was said of a journal, there is one at `path` where the volume can have one.
    pub(super) fn default_journal(&self, uri: &Uri, path: PathBuf) {
        let is_alone = self.writers.writers() != Writers::Shared;
        if uri.is_remote() && !self.read_only && is_alone && !self.replay_log.is_given() {
            self.journal.set_default(path);
        }
    }

    async fn open_chain(
        &self,
        uri: &Uri,
        contents: Option<Contents>,
        kept: Option<&KeeperLink>,
        stop: &Stop,
    ) -> Outcome<Chain> {
        kept.map_or(Ok(()), KeeperLink::check_journal)?;
        let journal = self.journal.open().await?;
        if kept.is_some_and(KeeperLink::has_lost) {
            return Err(kept::lost(format!("cannot go on with the mount of {uri}")));
        }
        let writers = match kept.filter(|kept| kept.is_resumed()) {
            Some(kept) => kept.writers(self.writers.writers(), journal.as_ref()),
            None => writers_of(self.writers.writers(), journal.as_ref())?,
        };
        let contents = contents.unwrap_or_else(|| self.encryption.contents(&uri.to_string()));
        let contents = match kept {
            Some(kept) => kept.contents(contents),
            None => contents,
        };
        let is_resumed = writers.continues();
        // A journal keeps what a replay log would.
        let saves = uri.is_remote() && !self.read_only && journal.is_none();
        let replay_log: Option<PathBuf> = match saves {
            true => self.replay_log.dir()?,
            false => None,
        };
        let options = OpenOptions {
            existing_only: false,
            inspect_only: false,
            may_be_empty: false,
            by_records: false,
            write_once: false,
            blank: None,
            make_at: None,
            direct: false,
            trace: self.trace.clone(),
            size: self.size,
            read_only: self.read_only,
            login: self.login.login_to(&[uri]).await?,
            contents,
            block_size: None,
            pad: false,
            pipeline: self.writers.pipeline(self.pipeline.settings(chain::memory_of_machine())?),
            replays: journal.as_ref().and_then(|journal| {
                let file = journal.path().to_owned();
                Some(ReplayedLog { key: Some(journal.writer()?), file })
            }),
            journal,
            writers,
            state: None,
            elements: None,
            passes_through: false,
            standby: false,
            known_shape: None,
            ceph: None,
            same_as: None,
            reconnect_limit: self.outage.reconnect_limit().unwrap_or(ReconnectLimit::FOREVER),
            replay_log,
            stop: stop.clone(),
        };
        let opened = chain::open(uri, options).await;
        opened.map_err(|why| if is_resumed { not_resumed(why) } else { why })
    }
}

/// Opens the volume, and offers it until `stop` is called or somebody asks it to end.
pub(super) async fn offer(offer: Offer, args: VolumeArgs, stop: Stop) -> Outcome {
    let Offer { uri, front, replace, contents, background, mut kept } = offer;
    args.check(&uri)?;
    front.check()?;
    host::allocator::return_large();
    let opened = args.open_kept(&uri, contents, kept.as_ref(), &stop).await;
    // Its mount is there all the same, and left to the next process.
    let chain = opened.map_err(|why| why.fleeting_if(stop.is_called()))?;
    let (ender, end) = Stopper::new();
    // What is mounted is unmounted before: that may have much to write.
    chain.leave_on(if background.is_some() { end.clone() } else { stop.clone() });
    let logs = async { Ok(chain.pending_logs(args.replay_log.place()).await) };
    let logs = match super::unless_stopped(&stop, logs).await {
        Ok(logs) => logs,
        Err(why) => {
            chain.discard().await;
            args.journal.discard_made().await;
            return Err(why.fleeting());
        }
    };
    warn_of(&logs, &uri);
    if args.read_only {
        let (_, writer) = stop.unless_called(chain.gaps()).await.unwrap_or_default();
        warn_of_writer(&uri, writer);
        let journals = stop.unless_called(Unsent::of(&chain)).await.unwrap_or_default();
        tell_of_unsent(&uri, &journals, "what is read");
    }
    if !args.read_only && chain.volume().shape().read_only {
        print_error(&format_args!(
            "longhaul: {uri} is read-only, and so is what is attached: the medium is write-protected, or the server lets this \
             client only read it; --read-only says that this is meant"
        ));
    }
    let detach = Detach::default();
    let counted = Counted::new(&chain);
    let opened = match &mut kept {
        None => Front::open(&front, replace, Arc::clone(&counted.volume), &logs).await,
        Some(kept) => {
            kept.answer_when(args.journal.is_stable());
            open_kept_front(&front, replace, kept, &chain, &counted, (&logs, &stop)).await
        }
    };
    let served = match opened {
        Ok(front) => {
            let background = background.as_ref();
            let kept = kept.as_ref();
            serve(&chain, counted, front, (background, kept, &args), &detach, stop, (ender, end))
                .await
        }
        Err(why) => {
            // The chain ends once nobody has its volume any more.
            drop(counted);
            Err(why)
        }
    };
    let front = match served {
        Ok(front) => front,
        Err(why) => {
            // No client was served.
            chain.discard().await;
            args.journal.discard_made().await;
            return Err(why);
        }
    };
    let (closed, lacking) = chain.close_and_tell().await;
    let failure = front.failure().filter(|_| background.is_some());
    // Where nobody has it open any more, nobody can take what comes next for what was there.
    let is_used = background.is_none() || front.clients().count() > 0;
    front.end(closed.is_err() && is_used).await;
    let closed =
        closed.and_then(|()| failure.map_or(Ok(()), |why| Err(failed_meanwhile(&uri, &why))));
    // Whoever detaches it takes the volume for whole; for whoever ends the program the journal has what it lacks.
    if let Some(lacking) = &lacking {
        print_error(&format_args!("longhaul: {lacking}"));
    }
    match (lacking, &closed) {
        (Some(lacking), Ok(())) => detach.answer(&Err(lacking)),
        (Some(lacking), Err(why)) => detach.answer(&Err(lacking.because(why.to_string()))),
        (None, _) => detach.answer(&closed),
    }
    closed
}

/// The file system was told, and may have gone on: whoever ends it has to know.
fn failed_meanwhile(uri: &Uri, why: &str) -> Failure {
    let what = format!("a write to {uri} failed while it was attached: {why}");
    Failure::new(what)
        .hint("the kernel's log says what it was of; check the file system before it is used again")
}

/// Who else may write: nobody since the writer whose journal is to be sent.
fn writers_of(asked: Writers, journal: Option<&JournalOptions>) -> Outcome<Writers> {
    let Some(key) = journal.and_then(JournalOptions::resumes) else { return Ok(asked) };
    match asked {
        Writers::TakeOver => Err(Failure::usage("the journal holds what the volume lacks, and is not sent after a take-over")
            .hint("leave --take-over out, or save it with `longhaul journal export` and name another journal")),
        _ => Ok(Writers::Resume(key)),
    }
}

/// Says which logs should be written before the volume is used.
fn warn_of(logs: &[Pending], uri: &Uri) {
    for log in logs {
        print_error(&format_args!("longhaul: {}", log.advice(&uri.to_string())));
    }
}

/// Says that the volume can be used, from then on without the terminal where it is to go on without it.
fn announce(front: &Front, background: Option<&Background>) -> Outcome {
    let left = background.map(Background::leave_session).transpose()?;
    super::announce(&format!("ready {}", front.address()))?;
    left.map_or(Ok(()), |left| left.close_terminal())
}

/// Makes the block devices over the file as large as the volume has become. The kernel asks this process for the size of the
/// file meanwhile.
fn grow_devices(front: &Front, size: u64) {
    let Some(file) = front.file() else { return };
    tokio::task::spawn_blocking(move || {
        // So that older kernels look at it too.
        let _ = std::fs::metadata(&file);
        for device in devices_over(&file) {
            match kernel_device::resize(&device, size) {
                Ok(()) => print_error(&format_args!(
                    "longhaul: {} has {} now, as its volume; a file system on it grows when it is told to: `resize2fs {}`, \
                     `xfs_growfs DIR`, `btrfs filesystem resize max DIR`",
                    device.shown(),
                    Size(size),
                    device.shown()
                )),
                Err(why) => {
                    tracing::warn!(device = %device.shown(), %why, "the block device has not grown with its volume");
                }
            }
        }
    });
}

/// The front of a mount that another process may go on with, or has begun.
async fn open_kept_front(
    at: &FrontAt,
    replace: bool,
    kept: &mut KeeperLink,
    chain: &Chain,
    counted: &Counted,
    (logs, stop): (&[Pending], &Stop),
) -> Outcome<Front> {
    kept.check(chain)?;
    // From here on the kernel asks this process, which then has to end the mount itself.
    if kept.is_resumed() && stop.is_called() {
        return Err(Failure::new("ended by a signal before it took the mount over").fleeting());
    }
    kept.begin_taking().await;
    Front::open_kept(at, replace, Arc::clone(&counted.volume), kept.take()?, logs).await
}

/// The volume as programs get it, and what they have done with it.
struct Counted {
    volume: Arc<dyn Volume>,
    meter: Arc<Meter>,
}

impl Counted {
    fn new(chain: &Chain) -> Self {
        let meter = Arc::new(Meter::default());
        Self { volume: Arc::new(Metered::new(chain.volume(), Arc::clone(&meter))), meter }
    }
}

/// Serves the volume until it is to end.
async fn serve(
    chain: &Chain,
    Counted { volume, meter }: Counted,
    front: Front,
    (background, kept, args): (Option<&Background>, Option<&KeeperLink>, &VolumeArgs),
    detach: &Detach,
    stop: Stop,
    (ender, end): (Stopper, Stop),
) -> Outcome<Front> {
    let uri = chain.uri().to_string();
    let reporter = StatusReporter {
        uri: uri.clone(),
        name: background.map(|background| background.name.clone()),
        socket: front.address(),
        file: front.file(),
        clients: front.clients(),
        read_only: args.read_only,
        refused: kept.and_then(KeeperLink::refused).map(str::to_owned),
        volume: chain.observer(),
        meter,
    };
    let succession = Succession::default();
    let announced = match kept {
        Some(kept) => kept.keep(chain, front.has_made_file()).await,
        None => Ok(()),
    };
    // Who finds it may rely on it: it is not one that was tried in vain.
    let listening =
        announced.is_ok().then(|| reporter.listen(detach.clone(), succession.clone())).flatten();
    let announced = announced.and_then(|()| announce(&front, background));
    if kept.is_some_and(|kept| kept.has_grown(chain)) {
        grow_devices(&front, chain.volume().shape().size);
    }
    let is_device = background.is_some_and(|background| background.is_device);
    let mut progress = None;
    if announced.is_ok() {
        let mut stopping = stop.clone();
        let telling = async {
            stopping.called().await;
            progress = Some(reporter.report_progress());
            std::future::pending::<()>().await;
        };
        let ending = async {
            until_end(is_device, &reporter, detach, stop).await;
            ender.call();
            std::future::pending::<()>().await;
        };
        let refusal = || match kept {
            Some(kept) => kept.refusal(),
            None => Some(
                "no process keeps it: that is for what `longhaul mount` makes a block device of",
            ),
        };
        let observer = chain.observer();
        let handing_over = async {
            let successor = async || {
                args.login.login().await.map(drop)?;
                succession::try_program().await
            };
            let ending = status::remove_control_socket;
            succession.serve(&front, &observer, detach, (refusal, successor), ending).await;
            std::future::pending::<()>().await;
        };
        // It may end before it is told to: a mounted file can be unmounted by others.
        tokio::select! {
            () = front.run(volume, &uri, end) => {}
            () = telling => {}
            () = ending => {}
            () = handing_over => {}
        }
    }
    // They look at the volume, which nobody else may hold when it is closed.
    for task in [progress, listening].into_iter().flatten() {
        task.abort();
        let _ = task.await;
    }
    match announced {
        Ok(()) => Ok(front),
        Err(why) => {
            front.abandon().await;
            Err(why)
        }
    }
}
