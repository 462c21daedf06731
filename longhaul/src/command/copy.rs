//! `longhaul copy`: one volume onto another.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use proto::scsi::DeviceType;
use serde::Serialize;
use volume::layer::padded::Padded;
use volume::layer::read_only::ReadOnly;
use volume::{Gate, Shape, Volume};

use super::named;
use super::new_file::NewFile;
use super::options::{DiscardArgs, LoginArgs, OutageArgs, WriterArgs, contents};
use super::unsent::{Unsent, refuse_unsent, tell_of_unsent};
use super::{closing, first_failure};
use crate::chain::{self, Chain, Contents, Login, OpenOptions};
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::front::copy::{self, CopyError, Report};
use crate::printable::Shown as _;
use crate::progress::{Progress, rate};
use crate::replay_log::Pending;
use crate::secret::{DestinationSecretArgs, SecretArgs, SourceSecretArgs};
use crate::signatures;
use crate::size::Size;
use crate::stop::Stop;
use crate::uri::{Uri, UriError};

/// Copy a volume or a file onto another
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to copy: the URI of a volume, the name that `mount` remembers it by, or the path of a file or device
    #[arg(value_parser = Endpoint::source)]
    source: Endpoint,
    /// Where to: a file that does not exist is made, sparse, of the size of the source
    #[arg(value_parser = Endpoint::destination)]
    destination: Endpoint,
    /// Copy only so many bytes, the first; a file that is made gets just this length
    #[arg(long)]
    size: Option<Size>,
    /// Read everything back afterwards and compare
    #[arg(long)]
    verify: bool,
    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    json: bool,
    /// Write over a destination that holds a file system or a partition table; with --raw or --raw-destination, over an
    /// encrypted one too
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    encryption: EncryptionArgs,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
    #[command(flatten)]
    writers: WriterArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul copy disk.img iscsi://server/iqn.2026-11.dev.longhaul:backup/0 --verify
  longhaul copy iscsi://server/iqn.2026-11.dev.longhaul:backup/0 disk.img

An encrypted volume is recognised, its pass-phrase asked for, and its contents copied, unless --raw is given. Holes and \
zeroes are not sent. A destination that is larger keeps what lies beyond the source. What is reported as copied has been \
flushed.";

/// How either side is opened, should it be encrypted.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Encrypted volumes")]
struct EncryptionArgs {
    /// Opens whichever side is encrypted, unless that side has options of its own
    #[command(flatten)]
    secret: SecretArgs,
    #[command(flatten)]
    source: SourceSecretArgs,
    #[command(flatten)]
    destination: DestinationSecretArgs,
    /// Refuse a source that is not encrypted
    #[arg(long)]
    encrypted_source: bool,
    /// Refuse a destination that is not encrypted
    #[arg(long)]
    encrypted_destination: bool,
    /// Copy both sides as they are stored: header and ciphertext of what is encrypted
    #[arg(long, conflicts_with_all = ["encrypted_source", "encrypted_destination", "allow_discards"])]
    raw: bool,
    /// Read the source as it is stored
    #[arg(long, conflicts_with = "encrypted_source")]
    raw_source: bool,
    /// Write the destination as it is stored; if it is encrypted, --force must be given too
    #[arg(long, conflicts_with_all = ["encrypted_destination", "allow_discards"])]
    raw_destination: bool,
    #[command(flatten)]
    discards: DiscardArgs,
}

impl EncryptionArgs {
    fn check(&self) -> Outcome {
        let (from, to) = (self.raw || self.raw_source, self.raw || self.raw_destination);
        let wrong = |what: &str| Err(Failure::usage(what));
        if (from && self.source.is_given()) || (to && self.destination.is_given()) {
            return wrong("a pass-phrase is given for a side that is taken as it is stored");
        }
        if from && to && self.secret.is_given() {
            return wrong("a pass-phrase is given, but both sides are taken as they are stored");
        }
        Ok(())
    }

    fn source(&self, uri: &Uri) -> Contents {
        if self.raw || self.raw_source {
            return Contents::Raw { overwrite: false };
        }
        let own = self.source.secret();
        let demanded = self.encrypted_source || own.is_given();
        let secret = if own.is_given() { &own } else { &self.secret };
        // It is only read: what its header says of discards is what counts.
        contents(secret, self.discards, demanded, &uri.to_string())
    }

    fn destination(&self, uri: &Uri, overwrite: bool) -> Contents {
        if self.raw || self.raw_destination {
            return Contents::Raw { overwrite };
        }
        let own = self.destination.secret();
        let demanded = self.encrypted_destination || own.is_given();
        let secret = if own.is_given() { &own } else { &self.secret };
        contents(secret, self.discards, demanded, &uri.to_string())
    }

    /// A pass-phrase for what is not encrypted shows that one of the two is not what it should be.
    fn check_use(&self, source: &Chain, destination: &Chain) -> Outcome {
        let none = !source.is_decrypted() && !destination.is_decrypted();
        if none && (self.secret.is_given() || self.discards.is_given()) {
            let what = "neither the source nor the destination is encrypted";
            return Err(Failure::new(what)
                .because("a pass-phrase or --allow-discards was given")
                .hint(
                    "nothing was written; if one was encrypted before, its header is lost: `longhaul key restore` brings one back \
                     from a backup; `longhaul key init` encrypts an empty volume",
                ));
        }
        Ok(())
    }
}

/// The URI of a volume, or a path for short.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint {
    uri: Uri,
}

impl Endpoint {
    fn path(path: &str) -> Self {
        let path = PathBuf::from(path);
        let found = fs::metadata(&path);
        let is_device = found.is_ok_and(|found| found.file_type().is_block_device());
        Self { uri: Uri::of_path(path, is_device) }
    }

    /// A bare word may be the name of a volume.
    fn source(text: &str) -> Result<Self, PlaceError> {
        match named::named(text).map_err(PlaceError::Named)? {
            Some(uri) => Ok(Self { uri }),
            None => text.parse(),
        }
    }

    /// What is written to is a volume only if its URI says so, and a file only if no volume has that name.
    fn destination(text: &str) -> Result<Self, PlaceError> {
        named::refuse_as_file(text).map_err(PlaceError::Named)?;
        text.parse()
    }
}

impl FromStr for Endpoint {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        if text.is_empty() {
            return Err(PlaceError::Empty);
        }
        if text == "-" {
            return Err(PlaceError::Stream);
        }
        match text.parse() {
            Ok(uri) => Ok(Self { uri }),
            // And not a member of a volume that is made of several.
            Err(UriError::NoScheme(what)) if what == text => Ok(Self::path(text)),
            // A colon after a slash belongs to a path.
            Err(UriError::UnknownScheme(scheme))
                if scheme.contains('/') && text.starts_with(&scheme) =>
            {
                Ok(Self::path(text))
            }
            Err(UriError::UnknownScheme(scheme)) => {
                Err(PlaceError::UnknownScheme(UriError::UnknownScheme(scheme), text.to_owned()))
            }
            Err(why) => Err(PlaceError::Uri(why)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PlaceError {
    #[error("a path or a URI is needed")]
    Empty,
    #[error("standard input and output cannot be copied; for a file of that name write ./-")]
    Stream,
    #[error("{0}; for a file of that name write ./{1}")]
    UnknownScheme(UriError, String),
    #[error(transparent)]
    Uri(UriError),
    #[error("{0}")]
    Named(String),
}

/// Copies, flushes, and verifies if asked to.
pub async fn run(args: Args) -> Outcome {
    let (from, to) = (&args.source.uri, &args.destination.uri);
    if is_same(from, to) {
        return Err(Failure::usage(format!("cannot copy {from} to {to}: they are the same")));
    }
    args.encryption.check()?;
    let stop = super::stop_on_signals()?;
    let login = args.login.login_to(&[from, to]).await?;
    let source = OpenOptions {
        read_only: true,
        login: login.clone(),
        contents: args.encryption.source(from),
        pad: true,
        reconnect_limit: args.outage.reconnect_limit().unwrap_or_default(),
        stop: stop.clone(),
        ..OpenOptions::default()
    };
    let source = chain::open(from, source).await?;
    source.leave_on(stop.clone());
    let (logs, writer) = stop.unless_called(source.gaps()).await.unwrap_or_default();
    let journals = stop.unless_called(Unsent::of(&source)).await.unwrap_or_default();
    tell_of_source(from, &logs, &journals, writer);
    let mut summary = closing(source, async |source| args.copy(source, login, stop).await).await?;
    super::tell_of_memory(to);
    let lacks = logs.iter().map(|log| &log.path).chain(journals.iter().map(|unsent| &unsent.path));
    summary.lacks = lacks.map(|path| path.shown().to_string()).collect();
    match args.json {
        true => super::say_json(&summary)?,
        false => super::say_done(&summary.to_string())?,
    }
    refuse_gaps(from, &logs)?;
    refuse_unsent(from, &journals, "the copy")
}

/// Says what the copy will not be, before it is made.
fn tell_of_source(from: &Uri, logs: &[Pending], journals: &[Unsent], writer: Option<String>) {
    for log in logs {
        let (kind, replay) = (log.kind(), log.command());
        print_error(&format_args!(
            "longhaul: {from} lacks what is in the {kind} {log}, and so will the copy: `{replay}` should come first"
        ));
    }
    tell_of_unsent(from, journals, "the copy");
    if let Some(writer) = writer {
        print_error(&format_args!(
            "longhaul: another writer has {from}, which may change while it is copied: {writer}; the copy may be of no single \
             moment"
        ));
    }
}

/// A copy of a volume that lacks what was acknowledged is one of its store, and not of what programs have written: who
/// keeps it as a backup has to know.
fn refuse_gaps(from: &Uri, logs: &[Pending]) -> Outcome {
    let Some(log) = logs.first() else { return Ok(()) };
    let (kind, replay) = (log.kind(), log.command());
    let what = format!("the copy lacks what is in the {kind} {log}");
    let why = format!("it was acknowledged to programs, and {from} was not given it");
    let hint = match log.is_journal() {
        true => format!("bring it back, and `{replay}` sends it, then copy again"),
        false => format!(
            "`{replay}` writes the log, then copy again; a log of no use any more can be removed"
        ),
    };
    Err(Failure::new(what).because(why).hint(format!("all else was copied; {hint}")))
}

impl Args {
    /// Copies `source` onto the destination, which is flushed and given back before the source is closed: nothing that
    /// becomes of that may keep the destination from it.
    async fn copy(&self, source: &Chain, login: Login, stop: Stop) -> Outcome<Summary> {
        let (from, to) = (&self.source.uri, &self.destination.uri);
        super::unless_stopped(&stop, self.tell_of_disk_image(source)).await?;
        let reconnect_limit = self.outage.reconnect_limit().unwrap_or_default();
        let new = NewFile::of(to, from)?;
        let part = front(source.volume(), self.size, new.is_some(), from)?;
        let size = new.is_some().then(|| Size(part.shape().size));
        let make_at = new.as_ref().map(|new| new.part().to_owned());
        let contents = self.encryption.destination(to, self.force);
        let writers = self.writers.writers();
        let options = OpenOptions {
            size,
            make_at,
            login,
            contents,
            reconnect_limit,
            writers,
            stop: stop.clone(),
            ..OpenOptions::default()
        };
        let destination = chain::open(to, options).await?;
        destination.leave_on(stop.clone());
        let checked = async {
            self.encryption.check_use(source, &destination)?;
            self.check_destination(&destination).await
        };
        if let Err(why) = super::unless_stopped(&stop, checked).await {
            destination.discard().await;
            return Err(why);
        }
        let (part, padding) = self.filled_up(source, part, destination.volume().shape());
        let job = Job {
            from,
            to,
            source: part,
            destination: destination.volume(),
            quiet: self.json,
            padding,
            new: new.as_ref(),
        };
        let copied = job.run_until(stop, self.verify).await;
        drop(job);
        if let Err(Broken { failure, untouched: true }) = copied {
            destination.discard().await;
            return Err(failure);
        }
        // Half of a copy may be all there is to be had of a bad disk.
        let closed = destination.close().await.map_err(|why| match &new {
            Some(new) => why.hint(new.left("what was copied, as far as it could be stored,")),
            None => why,
        });
        let summary = first_failure(copied.map_err(|broken| broken.failure), closed)?;
        let Some(new) = &new else { return Ok(summary) };
        self.finish(new)?;
        // It is cut to this length.
        let size = self.size.map_or(summary.size, |size| size.0);
        Ok(Summary { size, ..summary })
    }

    /// Tells of a disk image that is to be written as it is to a volume, where nobody reads it as one.
    async fn tell_of_disk_image(&self, source: &Chain) -> Outcome {
        let from = &self.source.uri;
        if self.destination.uri.file().is_some() {
            return Ok(());
        }
        let found = signatures::recognise(&*source.volume()).await;
        let found = found.or_fail(|| format!("cannot look at what {from} holds"))?;
        if let Some(image) = found.filter(|name| signatures::is_disk_image(name)) {
            print_error(&format_args!(
                "longhaul: {from} holds {image}, which is copied as it is; `qemu-img convert -O raw` makes what it holds of it"
            ));
        }
        Ok(())
    }

    /// A source that is a file goes on with zeroes to the end of a block of the destination. Also answers how many
    /// there are, with those of its own last block.
    fn filled_up(
        &self,
        source: &Chain,
        part: Arc<dyn Volume>,
        destination: &Shape,
    ) -> (Arc<dyn Volume>, u64) {
        if source.is_decrypted() || self.size.is_some() {
            return (part, 0);
        }
        let (size, block) = (part.shape().size, destination.block_size);
        if size.is_multiple_of(block.into()) || self.source.uri.file().is_none() {
            return (part, source.padding());
        }
        let padded = Padded::to_multiple_of(part, block);
        let padding = source.padding() + padded.shape().size - size;
        (Arc::new(Gate::new("padded", padded)), padding)
    }

    /// Gives a file that was made its length and its name.
    fn finish(&self, new: &NewFile) -> Outcome {
        let (to, part) = (&self.destination.uri, new.part());
        if let Some(size) = self.size {
            cut(part, size).or_fail(|| format!("cannot cut {to} to {} bytes", size.0))?;
        }
        new.finish()
            .or_fail(|| format!("cannot give {to} its name"))
            .map_err(|why| why.hint(format!("the whole copy is in {}: rename it", part.shown())))
    }
}

impl Args {
    /// Refuses what can or should not be written over, before anything is.
    async fn check_destination(&self, destination: &Chain) -> Outcome {
        let to = &self.destination.uri;
        let what = || format!("cannot copy to {to}");
        let volume = destination.volume();
        if volume.shape().read_only && is_optical(destination).await {
            return Err(Failure::new(what())
                .because("it is an optical drive, whose discs are read-only to a copy")
                .hint(format!("nothing was written; `longhaul cd burn {to} IMAGE` writes a disc that can be written")));
        }
        if volume.shape().read_only {
            return Err(Failure::new(what()).because("it is read-only").hint(super::READ_ONLY));
        }
        if self.force {
            return Ok(());
        }
        match signatures::recognise(&*volume).await.or_fail(what)? {
            None => Ok(()),
            Some(found) => Err(Failure::new(what()).because(format!("it holds {found}")).hint(
                "nothing was written; --force writes over it: what it holds is lost, or replaced by a newer copy",
            )),
        }
    }
}

/// Whether a volume is the disc in a drive.
async fn is_optical(chain: &Chain) -> bool {
    let probed = chain.probe().await.ok().flatten();
    probed.is_some_and(|target| target.device_type == DeviceType::Optical.code())
}

/// What is to be copied of `source`: whole blocks, of which a file that is made keeps no more than `size`.
fn front(
    source: Arc<dyn Volume>,
    size: Option<Size>,
    made: bool,
    from: &Uri,
) -> Outcome<Arc<dyn Volume>> {
    let Some(Size(size)) = size else { return Ok(source) };
    let (has, block) = (source.shape().size, u64::from(source.shape().block_size));
    let whole = size.next_multiple_of(block);
    let why = if size == 0 {
        "nothing would be copied".to_owned()
    } else if whole > has {
        format!("{from} has {has} bytes")
    } else if whole != size && !made {
        format!("it ends within a block of {block} bytes, which only a file that is made can")
    } else {
        if size < block {
            print_error(&format_args!(
                "longhaul: --size {size} copies {size} bytes of {from}, which has {}: a number without a unit counts bytes",
                Size(has)
            ));
        }
        return Ok(Arc::new(Gate::new("front", ReadOnly::front(source, whole))));
    };
    Err(Failure::usage(format!("cannot copy {size} bytes (--size)"))
        .because(why)
        .hint("a number without a unit counts bytes: 4G is 4 GiB; without --size all is copied"))
}

/// Cuts off what fills up the last block of a file.
fn cut(path: &Path, Size(size): Size) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path)?;
    file.set_len(size)?;
    file.sync_all()
}

/// Whether both name the same bytes, as far as this machine can tell.
fn is_same(from: &Uri, to: &Uri) -> bool {
    match (from.path(), to.path()) {
        (Some(from), Some(to)) => match (fs::metadata(from), fs::metadata(to)) {
            (Ok(from), Ok(to)) if from.file_type().is_block_device() => from.rdev() == to.rdev(),
            (Ok(from), Ok(to)) => (from.dev(), from.ino()) == (to.dev(), to.ino()),
            _ => from == to,
        },
        // Each mention of memory is memory of its own.
        _ => from == to && !from.vanishes(),
    }
}

struct Job<'a> {
    from: &'a Uri,
    to: &'a Uri,
    source: Arc<dyn Volume>,
    destination: Arc<dyn Volume>,
    quiet: bool,
    padding: u64,
    /// The destination, if it is a file that is made.
    new: Option<&'a NewFile>,
}

impl Job<'_> {
    /// Runs to its end, or until `stop` is called.
    async fn run_until(&self, mut stop: Stop, verify: bool) -> Result<Summary, Broken> {
        tokio::select! {
            copied = self.run(verify) => copied,
            () = stop.called() => {
                let failure = Failure::new(format!("cannot copy {} to {}", self.from, self.to));
                let failure = failure.because("it was ended by a signal").hint(self.incomplete());
                Err(Broken { failure, untouched: false })
            }
        }
    }

    fn incomplete(&self) -> String {
        let left = self.new.map(|new| new.left("what was copied, in no particular order,"));
        left.unwrap_or_else(|| "the destination is incomplete".to_owned())
    }

    async fn run(&self, verify: bool) -> Result<Summary, Broken> {
        let size = self.source.shape().size;
        let started = Instant::now();
        let progress = Progress::new("copying", size, self.quiet);
        let advance = |bytes| progress.advance(bytes);
        let copied = copy::copy(&*self.source, &*self.destination, advance).await;
        drop(progress);
        let report = copied.map_err(|why| self.failure("copy", why))?;
        let elapsed = started.elapsed();
        if verify {
            let progress = Progress::new("verifying", size, self.quiet);
            let advance = |bytes| progress.advance(bytes);
            let verified = copy::verify(&*self.source, &*self.destination, advance).await;
            drop(progress);
            verified.map_err(|why| self.failure("verify the copy of", why))?;
        }
        let remainder = self.destination.shape().size - size;
        Ok(Summary {
            padding: self.padding,
            ..Summary::new(size, remainder, report, verify, elapsed)
        })
    }

    fn failure(&self, what: &str, why: CopyError) -> Broken {
        let untouched = matches!(why, CopyError::TooSmall { .. } | CopyError::PartialBlock { .. });
        let hint = match &why {
            CopyError::TooSmall { .. } => {
                "nothing was written; a larger destination is needed".to_owned()
            }
            CopyError::PartialBlock { .. } => {
                "nothing was written; pad the source to whole blocks".to_owned()
            }
            CopyError::Differs(_) => {
                let left = self.new.map(|new| format!("; {}", new.left("what differs")));
                let left = left.unwrap_or_default();
                format!("one of them was changed meanwhile, or the medium is bad{left}")
            }
            _ => self.incomplete(),
        };
        let what = format!("cannot {what} {} to {}", self.from, self.to);
        Broken { failure: Failure::new(what).because(why).hint(hint), untouched }
    }
}

/// A copy that failed.
struct Broken {
    failure: Failure,
    /// Nothing was written.
    untouched: bool,
}

/// What was done, for people and for scripts.
#[derive(Debug, Serialize)]
struct Summary {
    size: u64,
    written: u64,
    zeroed: u64,
    skipped: u64,
    remainder: u64,
    padding: u64,
    flushed: bool,
    verified: bool,
    seconds: f64,
    /// The replay logs whose contents it lacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lacks: Vec<String>,
}

impl Summary {
    fn new(size: u64, remainder: u64, report: Report, verified: bool, elapsed: Duration) -> Self {
        let Report { written, zeroed, skipped } = report;
        let seconds = elapsed.as_secs_f64();
        let (padding, flushed, lacks) = (0, true, Vec::new());
        Self {
            size,
            written,
            zeroed,
            skipped,
            remainder,
            padding,
            flushed,
            verified,
            seconds,
            lacks,
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let elapsed = Duration::from_secs_f64(self.seconds);
        write!(f, "copied {} in {:.1} s: ", Size(self.size), self.seconds)?;
        write!(f, "{} of data", HumanBytes(self.written))?;
        if self.written > 0 {
            write!(f, " at {}", rate(self.written, elapsed))?;
        }
        write!(f, ", {} zeroed", HumanBytes(self.zeroed))?;
        write!(f, ", {} already zero; flushed", HumanBytes(self.skipped))?;
        if self.verified {
            write!(f, ", verified")?;
        }
        if self.padding > 0 {
            let bytes = self.size - self.padding;
            write!(
                f,
                "\nthe source has {bytes} bytes: {} of zeroes fill up its last block",
                self.padding
            )?;
        }
        if self.remainder > 0 {
            write!(f, "\nthe last {} of the destination are as they were", Size(self.remainder))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use volume::store::memory::Memory;
    use volume::{Kind, Verb};

    use super::*;

    /// A file that is left behind is named, and not one that somebody has removed.
    #[test]
    fn failed_copy_says_where_what_was_copied_is() {
        let dir = tempfile::tempdir().unwrap();
        let to = Uri::File(dir.path().join("new"));
        let new = NewFile::of(&to, &"memory:1M".parse().unwrap()).unwrap();
        let job = Job {
            from: &Uri::Memory(Size(512)),
            to: &to,
            source: Arc::new(Memory::new(512, 512)),
            destination: Arc::new(Memory::new(512, 512)),
            quiet: true,
            padding: 0,
            new: new.as_ref(),
        };
        let said = |why| job.failure("verify the copy of", why).failure.to_string();
        let part = new.as_ref().unwrap().part();
        fs::write(part, []).unwrap();
        assert!(said(CopyError::Differs(0)).contains(&format!("is in {}", part.display())));
        fs::remove_file(part).unwrap();
        for why in [
            CopyError::Differs(0),
            CopyError::ReadBack(volume::Error::new(Kind::Medium, Verb::Read, None)),
        ] {
            assert!(said(why).contains(&format!("was in {}, which is gone", part.display())));
        }
    }
}
