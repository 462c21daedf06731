//! `longhaul tape status|read|write`: the tape in the drive of a server.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::thread;

use bytes::Bytes;
use proto::scsi::command::tape::Position;
use proto::scsi::tape_stream::{End, Read, Stream as _, StreamError, Write};
use tokio::sync::mpsc;
use tokio::task::block_in_place;

use super::drive::{Drive, Start};
use super::stream::Link;
use crate::chain::UnitOptions;
use crate::command::options::{LoginArgs, OutageArgs, WriterArgs};
use crate::command::{named, say_done, stop_on_signals, unless_stopped};
use crate::failure::{Failure, OrFail as _, Outcome, print_error};
use crate::printable::Shown as _;
use crate::progress::Count;
use crate::reconnect_limit::ReconnectLimit;
use crate::regular_file::open_regular;
use crate::size::Size;
use crate::stop::Stop;
use crate::store::iscsi::Writers;
use crate::uri::Uri;

/// How many blocks are read from a file before they are wanted.
const READ_BEFORE: usize = 64;

/// The most that is written before it is made stable: twice as much is kept in memory.
const SYNC_MAX: u64 = 4 << 30;

/// A drive, and what happens to its tape before and after.
#[derive(Debug, clap::Args)]
pub(super) struct DriveArgs {
    /// The drive: its URI
    #[arg(value_parser = named::volume)]
    pub(super) uri: Uri,
    /// Begin at this file of the tape, counted from 0
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "here")]
    #[arg(value_parser = clap::value_parser!(u32).range(..1 << 23))]
    file: u32,
    /// Begin where the head is
    #[arg(long)]
    here: bool,
    /// Rewind the tape at the end
    #[arg(long)]
    rewind: bool,
    /// Eject the tape at the end
    #[arg(long)]
    eject: bool,
    #[command(flatten)]
    with: ConnectionArgs,
}

/// How a drive is reached, and who else may use it.
#[derive(Debug, clap::Args)]
pub(super) struct ConnectionArgs {
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
    #[command(flatten)]
    writers: WriterArgs,
}

impl ConnectionArgs {
    async fn options(&self, stop: &Stop) -> Outcome<UnitOptions> {
        Ok(UnitOptions {
            login: self.login.login().await?,
            reconnect_limit: self.outage.reconnect_limit().unwrap_or_default(),
            writers: self.writers.writers(),
            stop: stop.clone(),
        })
    }
}

impl DriveArgs {
    const fn start(&self) -> Start {
        if self.here { Start::Here } else { Start::File(self.file) }
    }

    /// Works with the drive, reserved and with a tape in it, and puts it back whatever comes of that.
    async fn with_drive<T>(
        &self,
        stop: &Stop,
        reads: bool,
        work: impl AsyncFnOnce(&mut Drive, ReconnectLimit) -> Outcome<T>,
    ) -> Outcome<T> {
        let options = self.with.options(stop).await?;
        let mut drive = Drive::open(&self.uri, &options).await?;
        let worked = unless_stopped(stop, async {
            if options.writers != Writers::Shared {
                drive.reserve(reads).await?;
            }
            work(&mut drive, options.reconnect_limit).await
        });
        let worked = worked.await;
        let put_back = async {
            if worked.is_ok() && self.rewind {
                drive.rewind().await?;
            }
            drive.put_back(worked.is_ok() && self.eject).await
        };
        let put_back = unless_stopped(stop, put_back).await;
        drive.unit.close().await;
        let done = worked?;
        put_back.map(|()| done)
    }
}

/// `longhaul tape read`.
#[derive(Debug, clap::Args)]
pub(super) struct ReadArgs {
    #[command(flatten)]
    drive: DriveArgs,
    /// The file to write; standard output if it is `-`
    #[arg(default_value = "-")]
    to: PathBuf,
    /// Have the drive count blocks of this length, instead of blocks of any; quicker for short ones
    #[arg(long, value_name = "SIZE")]
    fixed: Option<Size>,
}

/// `longhaul tape write`.
#[derive(Debug, clap::Args)]
pub(super) struct WriteArgs {
    #[command(flatten)]
    drive: DriveArgs,
    /// The file to read; standard input if it is `-`
    #[arg(default_value = "-")]
    from: PathBuf,
    /// Write behind all that is on the tape
    #[arg(long, conflicts_with_all = ["file", "here"])]
    append: bool,
    /// The length of the blocks; the last one may be shorter
    #[arg(long, value_name = "SIZE", default_value = "10K", conflicts_with = "fixed")]
    block: Size,
    /// Have the drive count blocks of this length; the last one is filled up with zeroes
    #[arg(long, value_name = "SIZE")]
    fixed: Option<Size>,
    /// Have the drive make stable what was written after so many bytes. Twice as many are kept, to be written again after a
    /// loss of power there
    #[arg(long, value_name = "SIZE", default_value = "64M")]
    sync: Size,
    /// Write no file mark at the end: what is written next with --here belongs to the same file
    #[arg(long)]
    no_mark: bool,
}

/// Writes the file under the head to a file or to standard output.
pub(super) async fn read(args: ReadArgs) -> Outcome {
    let stop = stop_on_signals()?;
    let mut out = output(&args.to)?;
    let (uri, start) = (&args.drive.uri, args.drive.start());
    let read = args.drive.with_drive(&stop, true, async |drive: &mut Drive, limit| {
        let fixed = match args.fixed {
            Some(block) => Some(drive.check_block(block).await?),
            None => None,
        };
        drive.prepare(fixed).await?;
        let at = drive.go_to(start).await?;
        let read = Read::new(drive.settings.clone(), at.object);
        copy_out(&mut Link::new(drive, limit), read, &mut *out).await
    });
    let (bytes, end) = read.await.map_err(|why| why.within(&format!("cannot read {uri}")))?;
    if bytes == 0 && end == End::Data {
        return Err(Failure::new(format!("cannot read {uri}")).because("nothing is recorded there"));
    }
    match is_stream(&args.to) {
        true => Ok(()),
        false => say_done(&format!("{}: {}", args.to.shown(), Size(bytes))),
    }
}

fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Where to write. A file is new, or written over.
fn output(to: &Path) -> Outcome<Box<dyn io::Write + Send>> {
    if is_stream(to) {
        return Ok(Box::new(io::stdout()));
    }
    let made = File::create(to).or_fail(|| format!("cannot write {}", to.shown()))?;
    Ok(Box::new(made))
}

async fn copy_out(
    link: &mut Link<'_>,
    mut read: Read,
    out: &mut (dyn io::Write + Send),
) -> Outcome<(u64, End)> {
    let count = Count::new("reading");
    let mut bytes = 0;
    loop {
        link.send(&mut read).await?;
        while let Some(data) = read.take() {
            block_in_place(|| out.write_all(&data)).map_err(not_written)?;
            bytes += data.len() as u64;
            link.send(&mut read).await?;
        }
        count.set_bytes(bytes);
        if let Some(why) = read.failure() {
            let what = format!("{} were read before", Size(bytes));
            return Err(Failure::new(what).because(why.clone()));
        }
        if let Some(end) = read.end() {
            block_in_place(|| out.flush()).map_err(not_written)?;
            return Ok((bytes, end));
        }
        if let Some(answer) = link.answer().await {
            link.take(&mut read, answer).await?;
        }
    }
}

fn not_written(why: io::Error) -> Failure {
    match why.kind() {
        io::ErrorKind::BrokenPipe => Failure::output_closed(),
        _ => Failure::new("cannot write what was read").because(why),
    }
}

/// Writes a file or standard input to the tape.
pub(super) async fn write(args: WriteArgs) -> Outcome {
    let stop = stop_on_signals()?;
    let uri = &args.drive.uri;
    let start = if args.append { Start::End } else { args.drive.start() };
    let input = input(&args.from)?;
    let written = args.drive.with_drive(&stop, false, async |drive: &mut Drive, limit| {
        let block = drive.check_block(args.fixed.unwrap_or(args.block)).await?;
        drive.prepare(args.fixed.map(|_| block)).await?;
        drive.check_writable()?;
        drive.settings.stable_every = args.sync.0.clamp(1, SYNC_MAX) as usize;
        let at = drive.go_to(start).await?;
        let fill = drive.settings.fixed.map(|fixed| fixed.block);
        let piece = drive.settings.fixed.map_or(block, |fixed| fixed.block * fixed.count);
        let blocks = read_blocks(input, piece as usize, fill.map(|block| block as usize));
        let write = Write::new(drive.settings.clone(), at.object);
        copy_in(&mut Link::new(drive, limit), write, blocks, !args.no_mark).await?.told(at)
    });
    let written = written.await.map_err(|why| why.within(&format!("cannot write {uri}")))?;
    say_done(&written)
}

fn input(from: &Path) -> Outcome<Box<dyn io::Read + Send>> {
    if is_stream(from) {
        return Ok(Box::new(io::stdin()));
    }
    let opened = open_regular(from).or_fail(|| format!("cannot open {}", from.shown()))?;
    Ok(Box::new(opened))
}

/// Reads blocks of this length on a thread of its own: a pipe may have nothing for long. The last one is filled up to a
/// multiple of `fill`.
fn read_blocks(
    mut input: Box<dyn io::Read + Send>,
    len: usize,
    fill: Option<usize>,
) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(READ_BEFORE);
    thread::spawn(move || {
        loop {
            let mut block = Vec::with_capacity(len);
            let read = (&mut input).take(len as u64).read_to_end(&mut block);
            let is_last = !matches!(read, Ok(read) if read == len);
            if let Some(fill) = fill {
                block.resize(block.len().next_multiple_of(fill), 0);
            }
            let came = read.map(|_| Bytes::from(block));
            let is_empty = matches!(&came, Ok(block) if block.is_empty());
            if is_empty || sender.blocking_send(came).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// What was written.
struct Written {
    bytes: u64,
    end: u64,
    is_full: bool,
}

impl Written {
    /// It in words; a tape that was too short is a failure.
    fn told(self, at: Position) -> Outcome<String> {
        let Self { bytes, end, is_full } = self;
        let blocks = format!("blocks {} to {end}", at.object);
        let place = at.file.map_or(blocks, |file| format!("file {file} of the tape"));
        match is_full {
            false => Ok(format!("{place}: {}", Size(bytes))),
            true => Err(Failure::new("the tape is full")
                .because(format!("it holds the first {bytes} bytes as {place}"))
                .hint("the rest was not written: take a longer tape, or go on with another one")),
        }
    }
}

async fn copy_in(
    link: &mut Link<'_>,
    mut write: Write,
    mut blocks: mpsc::Receiver<io::Result<Bytes>>,
    mark: bool,
) -> Outcome<Written> {
    let count = Count::new("writing");
    let (mut is_ended, mut is_warned) = (false, false);
    loop {
        link.send(&mut write).await?;
        count.set_bytes(write.stable_bytes());
        if write.is_near_end() && !is_warned {
            is_warned = true;
            print_error(&"longhaul: the end of the tape is near");
        }
        if let Some(why) = write.failure() {
            return Err(interrupted(&write, why));
        }
        if write.is_done() {
            return Ok(Written {
                bytes: write.stable_bytes(),
                end: write.stable_object(),
                is_full: write.is_full(),
            });
        }
        let takes = !is_ended && write.has_room();
        tokio::select! {
            biased;
            Some(answer) = link.answer(), if !link.is_idle() => link.take(&mut write, answer).await?,
            block = blocks.recv(), if takes => {
                is_ended = !push(&mut write, block, mark)?;
                while !is_ended && write.has_room() {
                    let Ok(block) = blocks.try_recv() else { break };
                    is_ended = !push(&mut write, Some(block), mark)?;
                }
            }
        }
    }
}

/// Whether there may be more behind it.
fn push(write: &mut Write, block: Option<io::Result<Bytes>>, mark: bool) -> Outcome<bool> {
    match block {
        Some(block) => {
            write.push(block.or_fail(|| "cannot read what is to be written".to_owned())?);
            Ok(true)
        }
        None => {
            if mark {
                write.push_mark();
            }
            write.finish();
            Ok(false)
        }
    }
}

fn interrupted(write: &Write, why: &StreamError) -> Failure {
    let (bytes, end) = (write.stable_bytes(), write.stable_object());
    let hint = match why {
        StreamError::Unproven => format!(
            "the tape that was in the drive may have lost what it held from block {end} on: see that it is there, and write it again"
        ),
        StreamError::OtherTape(_) => format!(
            "the first {bytes} bytes are on the tape that was in the drive, up to block {end}, and none on this one: put that back, and write it again"
        ),
        _ => format!(
            "the first {bytes} bytes are on the medium, up to block {end}; what was written behind them may be there or not"
        ),
    };
    Failure::new("the tape is not written to its end").because(why.clone()).hint(hint)
}
