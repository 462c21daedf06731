//! `longhaul tape status|read|write`: the tape in the drive of a server.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use bytes::Bytes;
use proto::scsi::command::tape::Position;
use proto::scsi::tape_stream::{End, Fixed, Read, Stream as _, StreamError, Write};
use tokio::sync::mpsc;

use super::blocks::{Blocks, Encrypted, Grouped, Plain};
use super::drive::{Drive, Start};
use super::encryption::{DecryptArgs, Decryption, EncryptArgs, FileContents, NewFile, Unusable};
use super::stream::Link;
use crate::chain::UnitOptions;
use crate::command::options::{LoginArgs, OutageArgs, WriterArgs};
use crate::command::output::{Output, is_stream};
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
    #[arg(value_parser = named::tape_drive)]
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
    async fn options(&self, uri: &Uri, stop: &Stop) -> Outcome<UnitOptions> {
        Ok(UnitOptions {
            login: self.login.login_to(&[uri]).await?,
            reconnect_limit: self.outage.reconnect_limit().unwrap_or_default(),
            writers: self.writers.writers(),
            stop: stop.clone(),
            ..UnitOptions::default()
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
        let options = self.with.options(&self.uri, stop).await?;
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
    #[command(flatten)]
    decrypt: DecryptArgs,
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
    #[command(flatten)]
    encrypt: EncryptArgs,
}

/// Writes the file under the head to a file or to standard output.
pub(super) async fn read(args: ReadArgs) -> Outcome {
    let stop = stop_on_signals()?;
    let mut out = Output::to(&args.to, &stop).await?;
    let (uri, start) = (&args.drive.uri, args.drive.start());
    let mut decryption = Decryption::new(args.decrypt.clone(), format!("the tape in {uri}"));
    let read = args.drive.with_drive(&stop, true, async |drive: &mut Drive, limit| {
        let fixed = match args.fixed {
            Some(block) => Some(drive.check_block(block).await?),
            None => None,
        };
        drive.prepare(fixed).await?;
        let at = drive.go_to(start).await?;
        let read = Read::new(drive.settings.clone(), at.object);
        copy_out(&mut Link::new(drive, limit), read, decryption.file(), &mut out).await
    });
    let (bytes, end) = match read.await {
        Ok(read) => read,
        Err(why) => {
            return Err(out.fail(&stop, of_drive(uri, "cannot read", why)).await);
        }
    };
    if bytes == 0 && end == End::Data {
        return Err(Failure::new(format!("cannot read {uri}")).because("nothing is recorded there"));
    }
    out.finish(&stop).await?;
    if end == End::Data {
        print_error(
            &"longhaul: no file mark is behind that: who wrote it may have been interrupted",
        );
    }
    match is_stream(&args.to) {
        true => Ok(()),
        false => say_done(&format!("{}: {} bytes", args.to.shown(), Size(bytes))),
    }
}

/// The failure of what was done with a drive, which is named once.
fn of_drive(uri: &Uri, what: &str, why: Failure) -> Failure {
    if why.names(&uri.to_string()) { why } else { why.within(&format!("{what} {uri}")) }
}

async fn copy_out(
    link: &mut Link<'_>,
    mut read: Read,
    mut file: FileContents<'_>,
    out: &mut Output,
) -> Outcome<(u64, End)> {
    let count = Count::new("reading");
    let mut bytes = 0;
    loop {
        link.send(&mut read).await?;
        while let Some(data) = read.take() {
            let mut plain = Vec::new();
            let taken = file.take(data, &mut plain).await;
            bytes += write_out(plain, out).await?;
            taken.map_err(|why| unusable(why, bytes))?;
            link.send(&mut read).await?;
        }
        count.set_bytes(bytes);
        if let Some(why) = read.failure() {
            return Err(Failure::new(read_before(bytes)).because(why.clone()));
        }
        if let Some(end) = read.end() {
            let mut plain = Vec::new();
            let finished = file.finish(&mut plain);
            bytes += write_out(plain, out).await?;
            finished.map_err(|why| unusable(why, bytes))?;
            return Ok((bytes, end));
        }
        if let Some(answer) = link.answer().await {
            link.take(&mut read, answer).await?;
        }
    }
}

/// Writes these pieces; how many bytes they are.
async fn write_out(pieces: Vec<Bytes>, out: &mut Output) -> Outcome<u64> {
    let mut bytes = 0;
    for piece in pieces {
        bytes += piece.len() as u64;
        out.write(piece).await?;
    }
    Ok(bytes)
}

fn read_before(bytes: u64) -> String {
    format!("{} bytes were read before", Size(bytes))
}

fn unusable(why: Unusable, bytes: u64) -> Failure {
    match why {
        Unusable::Changed(why) => Failure::new(read_before(bytes)).because(why),
        Unusable::Not(failure) => failure,
    }
}

/// Writes a file or standard input to the tape.
pub(super) async fn write(args: WriteArgs) -> Outcome {
    let stop = stop_on_signals()?;
    let uri = &args.drive.uri;
    let start = if args.append { Start::End } else { args.drive.start() };
    let input = input(&args.from)?;
    if args.encrypt.is_wanted() && args.no_mark {
        return Err(Failure::usage(
            "an encrypted file ends with a file mark: --no-mark is for others",
        ));
    }
    let new_file = unless_stopped(&stop, async {
        match args.encrypt.encryption().await? {
            Some(encryption) => encryption.new_file().await.map(Some),
            None => Ok(None),
        }
    });
    let new_file = new_file.await?;
    let is_encrypted = new_file.is_some();
    let mut reached = None;
    let written = args.drive.with_drive(&stop, false, async |drive: &mut Drive, limit| {
        let block = drive.check_block(args.fixed.unwrap_or(args.block)).await?;
        drive.prepare(args.fixed.map(|_| block)).await?;
        drive.check_writable()?;
        drive.settings.stable_every = args.sync.0.clamp(1, SYNC_MAX) as usize;
        let mut at = drive.go_to(start).await?;
        let mut blocks = read_ahead(blocks(input, new_file, block, drive.settings.fixed)?);
        // A program that was to write it may have failed: what the tape holds must not go with it.
        let Some(first) = blocks.recv().await else {
            return Err(Failure::new("there is nothing to write").hint("the tape was not changed"));
        };
        if args.append {
            at = drive.end_last_file(at).await?;
        }
        let mut write = Write::new(drive.settings.clone(), at.object);
        push(&mut write, Some(first), !args.no_mark)?;
        let written =
            copy_in(&mut Link::new(drive, limit), write, (blocks, !args.no_mark), &mut reached)
                .await?;
        written.told(at, is_encrypted)
    });
    let written = written.await.map_err(|why| {
        let why = of_drive(uri, "cannot write", why);
        match reached {
            Some(reached) => why.hint_if_none(&on_medium(reached)),
            None => why,
        }
    })?;
    say_done(&written)
}

fn input(from: &Path) -> Outcome<Box<dyn io::Read + Send>> {
    if is_stream(from) {
        return Ok(Box::new(io::stdin()));
    }
    let opened = open_regular(from).map_err(|why| {
        let failure = Failure::new(format!("cannot open {}", from.shown()));
        match why.kind() {
            io::ErrorKind::InvalidInput => failure
                .because(why)
                .hint("`-` reads standard input: `longhaul tape write URI - < PIPE`"),
            _ => failure.because(why),
        }
    })?;
    Ok(Box::new(opened))
}

/// What is written of it, in blocks of this length.
fn blocks(
    input: Box<dyn io::Read + Send>,
    new_file: Option<NewFile>,
    block: u32,
    fixed: Option<Fixed>,
) -> Outcome<Box<dyn Blocks>> {
    let count = fixed.map_or(1, |fixed| fixed.count as usize);
    Ok(match new_file {
        Some(file) => {
            let encrypted = Encrypted::new(input, file.begin(block, fixed.is_some())?);
            Box::new(Grouped::new(encrypted, count))
        }
        None => {
            let block = block as usize;
            Box::new(Plain::new(input, block * count, fixed.map(|_| block)))
        }
    })
}

/// Reads blocks on a thread of its own: a pipe may have nothing for long.
fn read_ahead(mut blocks: Box<dyn Blocks>) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(READ_BEFORE);
    thread::spawn(move || {
        while let Some(block) = blocks.next().transpose() {
            let is_failed = block.is_err();
            if sender.blocking_send(block).is_err() || is_failed {
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
    /// It is the store of the tape that is.
    is_store_full: bool,
}

impl Written {
    /// It in words; a tape that was too short is a failure.
    fn told(self, at: Position, is_encrypted: bool) -> Outcome<String> {
        let Self { bytes, end, is_full, .. } = self;
        let blocks = format!("blocks {} to {end}", at.object);
        let place = at.file.map_or(blocks, |file| format!("file {file} of the tape"));
        let encrypted = if is_encrypted { ", encrypted" } else { "" };
        match is_full {
            true => Err(self.cut_off(&place, is_encrypted)),
            false => Ok(format!("{place}: {} bytes{encrypted}", Size(bytes))),
        }
    }

    /// Why not all is on the tape.
    fn cut_off(self, place: &str, is_encrypted: bool) -> Failure {
        let bytes = self.bytes;
        let what = match self.is_store_full {
            true => "the file system of the server is full, and the tape is not",
            false => "the tape is full",
        };
        let why = match (bytes, is_encrypted) {
            (0, _) => "no block of it has room".to_owned(),
            (_, true) => {
                format!("it holds {bytes} encrypted bytes as {place}, without a last block")
            }
            (_, false) => format!("it holds the first {bytes} bytes as {place}"),
        };
        let hint = match (self.is_store_full, bytes, is_encrypted) {
            (true, 0, _) => "nothing was written: make room there, and write it again",
            (true, ..) => {
                "the rest was not written: make room there, and write it again in the same place"
            }
            (false, 0, _) => "nothing was written: take a longer tape",
            (false, _, true) => {
                "the rest was not written, and who reads the file is told that its end is missing: take a longer tape"
            }
            (false, _, false) => {
                "the rest was not written: take a longer tape, or go on with another one"
            }
        };
        Failure::new(what).because(why).hint(hint)
    }
}

/// How much is on the medium for good: bytes, and up to which block.
type Stable = (u64, u64);

async fn copy_in(
    link: &mut Link<'_>,
    mut write: Write,
    (mut blocks, mark): (mpsc::Receiver<io::Result<Bytes>>, bool),
    reached: &mut Option<Stable>,
) -> Outcome<Written> {
    let count = Count::new("writing");
    let (mut is_ended, mut is_warned) = (false, false);
    loop {
        let sent = link.send(&mut write).await;
        *reached = Some(stable(&write));
        sent.map_err(|why| why.hint(on_medium(stable(&write))))?;
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
                is_store_full: write.is_store_full(),
            });
        }
        let takes = !is_ended && write.has_room();
        tokio::select! {
            biased;
            Some(answer) = link.answer(), if !link.is_idle() => {
                let taken = link.take(&mut write, answer).await;
                taken.map_err(|why| why.hint(on_medium(stable(&write))))?;
            }
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
    if write.stable_bytes() == 0 && *why == StreamError::WriteOnce {
        return Failure::new("nothing is written")
            .because(why.clone())
            .hint("--append writes behind it");
    }
    let (bytes, end) = (write.stable_bytes(), write.stable_object());
    let hint = match why {
        StreamError::Unproven => format!(
            "the tape that was in the drive may have lost what it held from block {end} on: see that it is there, and write it again"
        ),
        StreamError::OtherTape(_) => format!(
            "the first {bytes} bytes are on the tape that was in the drive, up to block {end}, and none on this one: put that back, and write it again"
        ),
        _ => on_medium(stable(write)),
    };
    Failure::new("the tape is not written to its end").because(why.clone()).hint(hint)
}

const fn stable(write: &Write) -> Stable {
    (write.stable_bytes(), write.stable_object())
}

fn on_medium((bytes, end): Stable) -> String {
    format!(
        "the first {bytes} bytes are on the medium, up to block {end}, and no file mark ends them; what was written behind them may be there or not"
    )
}
