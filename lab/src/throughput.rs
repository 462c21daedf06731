//! A load through our own initiator: requests of one size, in order, a few at a time.
//!
//! It runs in a process of its own, so that what it costs can be told from what the target costs. It says
//! `begin` when the warm-up is over and, when it is done, how much it moved, how long that took and what
//! it has cost, so that whoever started it can look at the target's costs at the same moments.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::StreamExt as _;
use longhaul::chain::{self, Login, OpenOptions};
use longhaul::sealing::Seal;
use longhaul::uri::Uri;
use proto::iscsi::sealed::Protection;
use volume::{Durability, FutureSet, Span, Volume};

use crate::direction::Direction;
use crate::{Failure, cpu, units};

/// What writes send: more than a processor's own cache holds, as programs' data are.
const SOURCE: usize = 16 << 20;

/// How long connections and buffers take to their usual size.
const WARM_UP: Duration = Duration::from_millis(200);

/// The load, and where it goes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Throughput {
    /// The volume; what is on it is lost if this writes
    uri: Uri,
    /// Writing or reading
    #[arg(long, default_value = "read")]
    mode: Direction,
    /// How much a request moves
    #[arg(long, value_parser = units::size, default_value = "256K")]
    block: u64,
    /// Requests at a time
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// How long it is measured
    #[arg(long, value_parser = units::duration, default_value = "1s")]
    time: Duration,
    /// Who this is, for a volume whose URI ends in ?pin=KEY
    #[arg(long)]
    identity: Option<PathBuf>,
    /// What the session is given then: `encrypt`, unless this says `integrity`
    #[arg(long)]
    protection: Option<Protection>,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moved {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Processor time of the process that did it.
    pub(crate) cpu: f64,
}

/// The line before the part that counts.
pub(crate) const BEGIN: &str = "begin";

impl Moved {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut fields = line.strip_prefix("moved ")?.split_whitespace();
        let mut next = || fields.next();
        Some(Self {
            bytes: next()?.parse().ok()?,
            seconds: next()?.parse().ok()?,
            cpu: next()?.parse().ok()?,
        })
    }
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "moved {} {:.6} {:.6}", self.bytes, self.seconds, self.cpu)
    }
}

/// Runs the load and prints what it came to. The runtime is the one the program has.
pub(crate) fn run(options: Throughput) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let seal = Seal {
            identity: options.identity.clone(),
            protection: options.protection,
            pin: None,
            site_key: None,
            insecure: false,
        };
        let login = Login { seal, ..Login::default() };
        let opening = OpenOptions { login, ..OpenOptions::default() };
        let chain = chain::open(&options.uri, opening).await.map_err(|why| why.to_string())?;
        let load = Load::new(chain.volume(), &options);
        // In a task of its own: what the runtime blocks on has a thread that is woken for every answer.
        let moved = tokio::spawn(load.measure(options.time)).await??;
        println!("{moved}");
        chain.close().await.map_err(|why| why.to_string().into())
    })
}

struct Load {
    volume: Arc<dyn Volume>,
    mode: Direction,
    block: u64,
    depth: usize,
    /// Where the next request begins.
    next: u64,
    source: Bytes,
}

impl Load {
    fn new(volume: Arc<dyn Volume>, options: &Throughput) -> Self {
        let source: Vec<u8> = (0..SOURCE).map(|at| ((at * 31) ^ (at >> 9)) as u8).collect();
        let (mode, block, depth) = (options.mode, options.block, options.depth);
        Self { volume, mode, block, depth, next: 0, source: source.into() }
    }

    async fn measure(mut self, time: Duration) -> volume::Result<Moved> {
        self.go_on(WARM_UP).await?;
        println!("{BEGIN}");
        let (start, spent) = (Instant::now(), own_cost());
        let bytes = self.go_on(time).await?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Moved { bytes, seconds, cpu: (own_cost() - spent).as_secs_f64() })
    }

    /// Keeps so many requests under way for `time`; how many bytes they moved.
    async fn go_on(&mut self, time: Duration) -> volume::Result<u64> {
        let start = Instant::now();
        let mut running = FutureSet::new();
        let mut bytes = 0;
        loop {
            while running.len() < self.depth && start.elapsed() < time {
                running.push(request(
                    Arc::clone(&self.volume),
                    self.mode,
                    self.span(),
                    &self.source,
                ));
            }
            match running.next().await {
                Some(done) => done?,
                None => return Ok(bytes),
            }
            bytes += self.block;
        }
    }

    fn span(&mut self) -> Span {
        if self.next + self.block > self.volume.shape().size {
            self.next = 0;
        }
        let span = Span::new(self.next, self.block);
        self.next += self.block;
        span
    }
}

fn request(
    volume: Arc<dyn Volume>,
    mode: Direction,
    span: Span,
    source: &Bytes,
) -> impl Future<Output = volume::Result<()>> + Send + use<> {
    let from = (span.at as usize) % (source.len() - span.len as usize + 1);
    let data = source.slice(from..from + span.len as usize);
    async move {
        match mode {
            Direction::Write => volume.write(span.at, data, Durability::Volatile).await,
            Direction::Read => volume.read(span).await.map(drop),
        }
    }
}

fn own_cost() -> Duration {
    cpu::spent(std::process::id()).unwrap_or_default()
}
