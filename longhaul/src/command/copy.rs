//! `longhaul copy`: one volume onto another.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use serde::Serialize;
use volume::Volume;

use crate::chain::{self, OpenOptions, Uri, UriError};
use crate::failure::{Failure, OrFail, Outcome};
use crate::front::copy::{self, CopyError, Report};
use crate::progress::{Progress, rate};
use crate::size::Size;

/// Copy a volume or a file onto another
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to copy: the URI of a volume, or the path of a file or device
    source: Place,
    /// Where to: a file that does not exist is made, sparse, of the size of the source
    destination: Place,
    /// Read everything back afterwards and compare
    #[arg(long)]
    verify: bool,
    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  longhaul copy disk.img iscsi://server/iqn.2026-11.dev.longhaul:backup/0 --seal --verify
  longhaul copy iscsi://server/iqn.2026-11.dev.longhaul:backup/0 disk.img --seal

Holes and zeroes are not sent. A destination that is larger keeps what lies beyond the source. What is
reported copied has been flushed.";

/// The URI of a volume, or a path for short.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place(Uri);

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        if text.is_empty() {
            return Err(PlaceError::Empty);
        }
        match text.parse() {
            Ok(uri) => Ok(Self(uri)),
            Err(UriError::NoScheme(_)) => Ok(Self(of_path(Path::new(text)))),
            // A colon after a slash belongs to a path.
            Err(UriError::UnknownScheme(scheme)) if scheme.contains('/') => {
                Ok(Self(of_path(Path::new(text))))
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
    #[error("{0}; for a file of that name write ./{1}")]
    UnknownScheme(UriError, String),
    #[error(transparent)]
    Uri(UriError),
}

fn of_path(path: &Path) -> Uri {
    let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    if is_device { Uri::Device(path.to_owned()) } else { Uri::File(path.to_owned()) }
}

/// Copies, flushes, and verifies if asked to.
pub async fn run(args: Args) -> Outcome {
    let (from, to) = (args.source.0, args.destination.0);
    if is_same(&from, &to) {
        return Err(Failure::usage(format!("{from} and {to} are the same")));
    }
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let source = chain::open(&from, &read_only).await?;
    let destination = open_destination(&to, source.shape().size).await?;
    let job = Job { from: &from, to: &to, source, destination, quiet: args.json };
    let summary = job.run(args.verify).await?;
    if args.json {
        let json = serde_json::to_string(&summary).or_fail(|| "cannot print JSON".to_owned())?;
        return super::say(&json);
    }
    super::say(&summary.to_string())
}

async fn open_destination(to: &Uri, size: u64) -> Outcome<Arc<dyn Volume>> {
    let missing = matches!(to, Uri::File(path) if !path.exists());
    let size = missing.then_some(Size(size));
    chain::open(to, &OpenOptions { size, ..OpenOptions::default() }).await
}

/// Whether both name the same bytes, as far as this machine can tell.
fn is_same(from: &Uri, to: &Uri) -> bool {
    match (path(from), path(to)) {
        (Some(from), Some(to)) => match (std::fs::metadata(from), std::fs::metadata(to)) {
            (Ok(from), Ok(to)) if from.file_type().is_block_device() => from.rdev() == to.rdev(),
            (Ok(from), Ok(to)) => (from.dev(), from.ino()) == (to.dev(), to.ino()),
            _ => from == to,
        },
        // Each mention of memory is memory of its own.
        _ => from == to && !matches!(from, Uri::Memory(_)),
    }
}

fn path(uri: &Uri) -> Option<&PathBuf> {
    match uri {
        Uri::File(path) | Uri::Device(path) => Some(path),
        _ => None,
    }
}

struct Job<'a> {
    from: &'a Uri,
    to: &'a Uri,
    source: Arc<dyn Volume>,
    destination: Arc<dyn Volume>,
    quiet: bool,
}

impl Job<'_> {
    async fn run(&self, verify: bool) -> Outcome<Summary> {
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
        Ok(Summary::new(size, remainder, report, verify, elapsed))
    }

    fn failure(&self, what: &str, why: CopyError) -> Failure {
        let hint = match &why {
            CopyError::TooSmall { .. } => "nothing was written; a larger destination is needed",
            CopyError::PartialBlock { .. } => "nothing was written; pad the source to whole blocks",
            CopyError::Differs(_) => "one of them was changed meanwhile, or the medium is bad",
            _ => "the destination is incomplete",
        };
        Failure::new(format!("cannot {what} {} to {}", self.from, self.to)).because(why).hint(hint)
    }
}

/// What was done, for people and for scripts.
#[derive(Debug, Serialize)]
struct Summary {
    size: u64,
    written: u64,
    zeroed: u64,
    skipped: u64,
    remainder: u64,
    flushed: bool,
    verified: bool,
    seconds: f64,
}

impl Summary {
    fn new(size: u64, remainder: u64, report: Report, verified: bool, elapsed: Duration) -> Self {
        let Report { written, zeroed, skipped } = report;
        let seconds = elapsed.as_secs_f64();
        Self { size, written, zeroed, skipped, remainder, flushed: true, verified, seconds }
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
        if self.remainder > 0 {
            write!(f, "\nthe last {} of the destination are as they were", Size(self.remainder))?;
        }
        Ok(())
    }
}
