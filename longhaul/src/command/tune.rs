//! `longhaul tune`: how fast the way to a volume is, and what limits it.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use volume::layer::pipeline::Settings;
use volume::{Shape, Span};

use super::named;
use super::options::{EncryptionArgs, LoginArgs, OutageArgs, WriterArgs};
use super::trace_file::TraceFile;
use crate::chain::{self, Chain, OpenOptions};
use crate::failure::{Failure, OrFail, Outcome};
use crate::pipelined::PipelineArgs;
use crate::printable::Shown as _;
use crate::signatures;
use crate::size::{NotASize, Size};
use crate::trace::Trace;
use crate::tune::{self, Findings, Plan};
use crate::uri::Uri;

/// Measure the way to a volume, and show what the pipeline makes of it and what limits it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The volume: its URI, or the name that `mount` remembers it by
    #[arg(value_parser = named::volume)]
    uri: Uri,
    /// Measure writes too, on this part of the volume; WHAT IS THERE IS LOST. Half of it is the most
    /// that is in flight
    #[arg(long = "overwrite", value_name = "AT+SIZE")]
    scratch: Option<Scratch>,
    /// How long each rate is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a picture to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Instead of rates record a few requests, one at a time and through the pipeline, in this new file: a picture over time
    /// (.svg), or what Perfetto opens (JSON)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["svg", "json"])]
    trace: Option<PathBuf>,
    #[command(flatten)]
    encryption: EncryptionArgs,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    pipeline: PipelineArgs,
    #[command(flatten)]
    outage: OutageArgs,
    #[command(flatten)]
    writers: WriterArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul tune iscsi://server/iqn.2026-11.dev.longhaul:backup/0
  longhaul tune iscsi://server/iqn.2026-11.dev.longhaul:scratch/0 --overwrite 0+1G --svg rates.svg

Each block size is measured one request at a time, and through the pipeline, beside a model of round trip, cipher and \
link. If the link was never full, the best rate stands in for it; the true link may be faster.";

/// `AT+SIZE`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scratch {
    at: Size,
    size: Size,
}

impl FromStr for Scratch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (at, size) = text.split_once('+').ok_or_else(|| {
            format!("`{text}` does not say where: write AT+SIZE, such as 0+1G for the first GiB")
        })?;
        let size_of = |text: &str| text.parse().map_err(|why: NotASize| why.to_string());
        Ok(Self { at: size_of(at)?, size: size_of(size)? })
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds @ 0.01..=60.0) => Ok(seconds),
        _ => Err("a number from 0.01 to 60 is needed".to_owned()),
    }
}

impl Scratch {
    fn span(self, shape: &Shape) -> Outcome<Span> {
        let Self { at, size } = self;
        let block = u64::from(shape.block_size);
        let wrong = |why: String| Err(Failure::usage(format!("--overwrite {at}+{size}: {why}")));
        if at.0.checked_add(size.0).is_none_or(|end| end > shape.size) {
            return wrong(format!("the volume ends at {}", Size(shape.size)));
        }
        if !at.0.is_multiple_of(block) || !size.0.is_multiple_of(block) {
            return wrong(format!(
                "both must be multiples of the volume's blocks of {block} bytes"
            ));
        }
        if size < SCRATCH_MIN {
            return wrong(format!("the part must have {SCRATCH_MIN} at least"));
        }
        Ok(Span::new(at.0, size.0))
    }
}

/// Less would hold no four requests of the smaller sizes and measure nothing but memory.
const SCRATCH_MIN: Size = Size(1 << 20);

/// Measures and tells.
pub async fn run(args: Args) -> Outcome {
    if args.scratch.is_none() {
        args.encryption.refuse_idle_force()?;
    }
    let Some(settings) = args.pipeline.settings(chain::memory_of_machine())? else {
        return Err(Failure::usage("it is the pipeline that is measured: leave out --no-pipeline"));
    };
    if let Some(path) = &args.svg {
        refuse_existing(path)?;
    }
    let trace = args.trace.clone().map(TraceFile::create).transpose()?;
    let stop = super::stop_on_signals()?;
    let uri = &args.uri;
    let options = OpenOptions {
        read_only: args.scratch.is_none(),
        login: args.login.login_to(&[uri]).await?,
        contents: args.encryption.contents(&uri.to_string()),
        reconnect_limit: args.outage.reconnect_limit().unwrap_or_default(),
        writers: args.writers.writers(),
        stop: stop.clone(),
        trace: trace.as_ref().map(|trace| Arc::clone(&trace.trace)),
        ..OpenOptions::default()
    };
    let chain = chain::open(uri, options).await?;
    chain.leave_on(stop.clone());
    if let Some(trace) = trace {
        let recording = args.record(&chain, settings, &trace.trace);
        let recorded = super::unless_stopped(&stop, recording).await;
        let closed = chain.close().await;
        let parts = super::first_failure(recorded, closed)?;
        return trace.write(&uri.to_string(), &parts);
    }
    let measure =
        async |chain: &Chain| super::unless_stopped(&stop, args.measure(chain, settings)).await;
    let found = super::closing(chain, measure).await?;
    if let Some(path) = &args.svg {
        let picture = tune::picture(&uri.to_string(), &found);
        let mut file = File::create_new(path).or_fail(|| no_picture(path))?;
        file.write_all(picture.as_bytes()).or_fail(|| no_picture(path))?;
    }
    args.say(&found)
}

/// Whatever is at `path` already may be somebody's only pass-phrase, or a device.
fn refuse_existing(path: &Path) -> Outcome {
    match path.symlink_metadata() {
        Ok(_) => Err(Failure::new(no_picture(path))
            .because("it exists")
            .hint("nothing was measured; give another name, or remove it first")),
        Err(_) => Ok(()),
    }
}

fn no_picture(path: &Path) -> String {
    format!("cannot write the picture {}", path.shown())
}

#[derive(Serialize)]
struct Report<'a> {
    uri: String,
    #[serde(flatten)]
    found: &'a Findings,
}

impl Args {
    /// Records requests one at a time, and through the pipeline; answers the parts of the trace.
    async fn record(
        &self,
        chain: &Chain,
        settings: Settings,
        trace: &Arc<Trace>,
    ) -> Outcome<[(&'static str, u64); 3]> {
        let scratch =
            self.scratch.map(|scratch| scratch.span(chain.volume().shape())).transpose()?;
        if scratch.is_some() {
            self.refuse_contents(chain).await?;
        }
        let settings = Settings { unsolicited: chain.unsolicited(), ..settings };
        let opening = trace.now();
        let recorded = tune::record(chain.volume(), trace, settings, scratch).await;
        let [alone, pipelined] = recorded.or_fail(|| format!("cannot record {}", self.uri))?;
        Ok([
            ("opening", opening),
            ("one request at a time", alone),
            ("through the pipeline", pipelined),
        ])
    }

    async fn measure(&self, chain: &Chain, settings: Settings) -> Outcome<Findings> {
        let scratch =
            self.scratch.map(|scratch| scratch.span(chain.volume().shape())).transpose()?;
        if scratch.is_some() {
            self.refuse_contents(chain).await?;
        }
        let probe = chain.probe().await?;
        let plan = Plan {
            settings: Settings { unsolicited: chain.unsolicited(), ..settings },
            time: Duration::from_secs_f64(self.seconds),
            scratch,
            round_trip: probe.as_ref().map(|probe| probe.round_trip),
            unsolicited: probe.as_ref().map(|probe| probe.unsolicited),
            encrypted: chain.is_decrypted(),
        };
        let found = tune::measure(chain.volume(), &plan, async || chain.path().await).await;
        found.or_fail(|| format!("cannot measure {}", self.uri))
    }

    /// Refuses to write over what somebody may still need.
    async fn refuse_contents(&self, chain: &Chain) -> Outcome {
        let what = || format!("cannot measure writes to {}", self.uri);
        let found = signatures::recognise(&*chain.volume()).await.or_fail(what)?;
        match found.filter(|_| !self.encryption.is_forced()) {
            None => Ok(()),
            Some(found) => Err(Failure::new(what()).because(format!("it holds {found}")).hint(
                "nothing was written; --force measures there all the same: what it holds is damaged or lost",
            )),
        }
    }

    fn say(&self, found: &Findings) -> Outcome {
        let uri = self.uri.to_string();
        if self.json {
            return super::say_json(&Report { uri, found });
        }
        super::say(&format!("{uri}\n{}", found.to_string().trim_end()))
    }
}
