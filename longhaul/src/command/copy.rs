//! `longhaul copy`: one volume onto another.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use serde::Serialize;
use volume::Volume;

use super::options::{LoginArgs, OutageArgs, SealArgs};
use crate::chain::{self, OpenOptions};
use crate::failure::{Failure, OrFail, Outcome};
use crate::front::copy::{self, CopyError, Report};
use crate::progress::{Progress, rate};
use crate::size::Size;
use crate::uri::{Uri, UriError};

/// Copy a volume or a file onto another
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// What to copy: the URI of a volume, or the path of a file or device
    source: Place,
    /// Where to: a file that does not exist is made, sparse, of the size of the source
    destination: Place,
    /// The side that is a URI is sealed: what is copied is its contents
    #[arg(long)]
    seal: bool,
    /// The source is sealed
    #[arg(long)]
    seal_source: bool,
    /// The destination is sealed
    #[arg(long)]
    seal_destination: bool,
    /// Read everything back afterwards and compare
    #[arg(long)]
    verify: bool,
    /// Print one JSON object at the end, and no progress
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    secret: SealArgs,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul copy disk.img iscsi://server/iqn.2026-11.dev.longhaul:backup/0 --seal --verify
  longhaul copy iscsi://server/iqn.2026-11.dev.longhaul:backup/0 disk.img --seal

Holes and zeroes are not sent. A destination that is larger keeps what lies beyond the source. What is
reported copied has been flushed.";

/// The URI of a volume, or a path for short.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    uri: Uri,
    /// It was given as a path.
    is_path: bool,
}

impl Place {
    fn path(path: &str) -> Self {
        let path = PathBuf::from(path);
        let found = std::fs::metadata(&path);
        let is_device = found.is_ok_and(|found| found.file_type().is_block_device());
        Self { uri: if is_device { Uri::Device(path) } else { Uri::File(path) }, is_path: true }
    }
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        if text.is_empty() {
            return Err(PlaceError::Empty);
        }
        match text.parse() {
            Ok(uri) => Ok(Self { uri, is_path: false }),
            Err(UriError::NoScheme(_)) => Ok(Self::path(text)),
            // A colon after a slash belongs to a path.
            Err(UriError::UnknownScheme(scheme)) if scheme.contains('/') => Ok(Self::path(text)),
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

/// Copies, flushes, and verifies if asked to.
pub async fn run(args: Args) -> Outcome {
    let (from, to) = (&args.source.uri, &args.destination.uri);
    if is_same(from, to) {
        return Err(Failure::usage(format!("{from} and {to} are the same")));
    }
    let (seal_from, seal_to) = args.sealed()?;
    let login = args.login.login().await?;
    let patience = args.outage.patience().unwrap_or_default();
    let source = OpenOptions {
        read_only: true,
        login: login.clone(),
        seal: args.secret.open(seal_from, &from.to_string()).await?,
        patience,
        ..OpenOptions::default()
    };
    let seal = args.secret.open(seal_to, &to.to_string()).await?;
    let source = chain::open(from, source).await?;
    let missing = matches!(to, Uri::File(path) if !path.exists());
    let size = missing.then(|| Size(source.volume().shape().size));
    let destination =
        chain::open(to, OpenOptions { size, login, seal, patience, ..OpenOptions::default() })
            .await?;
    let job = Job {
        from,
        to,
        source: source.volume(),
        destination: destination.volume(),
        quiet: args.json,
    };
    let summary = job.run(args.verify).await?;
    drop(job);
    source.close().await?;
    destination.close().await?;
    if args.json {
        let json = serde_json::to_string(&summary).or_fail(|| "cannot print JSON".to_owned())?;
        return super::say(&json);
    }
    super::say(&summary.to_string())
}

impl Args {
    /// Which sides are sealed.
    fn sealed(&self) -> Outcome<(bool, bool)> {
        let (mut source, mut destination) = (self.seal_source, self.seal_destination);
        if self.seal {
            match (self.source.is_path, self.destination.is_path) {
                (false, true) => source = true,
                (true, false) => destination = true,
                _ => {
                    let what =
                        "--seal means the side that is a URI, and here it is not one of the two";
                    return Err(
                        Failure::usage(what).hint("say --seal-source or --seal-destination")
                    );
                }
            }
        }
        self.secret.needs_seal(source || destination)?;
        Ok((source, destination))
    }
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
