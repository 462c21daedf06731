//! What a volume and the way to it are capable of, what the throughput model makes of it, and what was
//! measured, block size by block size.

mod picture;
mod record;
mod text;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use host::cipher::{KEY_SIZE, Xts};
use serde::Serialize;
use volume::layer::pipeline::model::{self, Bottleneck, Stages};
use volume::layer::pipeline::{Chosen, Limit, Settings};
use volume::{Durability, Result, Span, Volume};

use crate::cipher_pool::CIPHER_POOL;
use crate::net::tcp_tuning::Info;
use crate::net::tcp_tuning::path::{Constraint, Flow, Sample, constraint};
use crate::pipelined::Pipelined;

pub use picture::picture;
pub use record::record;

/// The block sizes that programs use, from a page of a database to a copy.
const BLOCKS: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// The pipeline finds an unknown link within some ten round trips, which are not counted.
const ROUND_TRIPS_LEAD: u32 = 12;

/// The fewest requests a rate is made of, however long they take.
const REQUESTS_MIN: u64 = 4;

/// How often the smallest request is tried: the quickest shows the way without a queue.
const SMALLEST_TRIES: u64 = 5;

/// How often the kernel is asked about the way while a rate is measured, ...
const PATH_LOOKS: u32 = 10;

/// ... and no more often than this.
const PATH_EVERY: Duration = Duration::from_millis(5);

/// Rates that differ by less are the same. What was read ahead before a rate was measured, or is read ahead after it, makes
/// that of a program differ by a tenth and more from what the link carried.
const SAME: f64 = 0.85;

/// A cipher that is at work so much of its time is what limits: it shares the processors with all else.
const CIPHER_BUSY: f64 = 0.8;

/// How long the cipher is tried, in pieces that fit the processor's cache as those of requests do.
const CIPHER_TIME: Duration = Duration::from_millis(100);
const CIPHER_PIECE: usize = 128 << 10;

/// What is measured, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What is fixed by hand.
    pub settings: Settings,
    /// The time that counts, for each rate.
    pub time: Duration,
    /// Where writes may go; none are measured otherwise.
    pub scratch: Option<Span>,
    /// The way there and back, if it is known better than by the smallest read.
    pub round_trip: Option<Duration>,
    /// How much of a write travels with its command.
    pub unsolicited: Option<u64>,
    /// The volume is encrypted.
    pub encrypted: bool,
}

/// Everything that was found out. Rates are in bytes per second.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// The way there and back.
    pub round_trip_us: u64,
    /// The least time that the smallest read took.
    pub smallest_read_us: u64,
    /// How fast the seal's cipher is, if there is one.
    pub cipher: Option<Cipher>,
    /// How much of a write travels with its command.
    pub unsolicited: Option<u64>,
    /// Reads.
    pub reads: Direction,
    /// Writes, where they were allowed.
    pub writes: Option<Direction>,
}

/// A cipher on those processors of this machine that work for it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cipher {
    /// What one of them does.
    pub rate: f64,
    /// How many there are.
    pub processors: u32,
}

/// One direction.
#[derive(Debug, Serialize)]
pub struct Direction {
    /// The most that came through.
    pub best: f64,
    /// What the link carried, if it was seen full. The models take the best rate for it otherwise; it may be more.
    pub link: Option<f64>,
    /// Block size by block size.
    pub rows: Vec<Row>,
    /// What was chosen: merged requests of this size, ...
    pub segment: u64,
    /// ... so many bytes of them on their way, ...
    pub in_flight: u64,
    /// ... and so many accepted, or read ahead.
    pub window: u64,
    /// How many processors at the cipher keep up with the link, if there is a cipher.
    pub ciphering: Option<u32>,
    /// What keeps it from being faster.
    pub limited_by: LimitedBy,
}

/// What keeps a transfer from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitedBy {
    /// The link: it was full.
    Link,
    /// The link, or the store at its other end. Nothing tells which.
    LinkOrStore,
    /// The TCP window of the target.
    Window,
    /// The cipher of the seal.
    Cipher,
    /// What is in flight is bounded by hand or by memory.
    RoundTrips,
    /// Requests wait until the target asks for their data.
    Target,
    /// The program that asks, which was this one.
    Demand,
    /// The rate still grew.
    Unknown,
}

/// Requests of one size, one at a time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Their size.
    pub block: u64,
    /// Each waits for the one before.
    pub alone: Rate,
    /// Through the pipeline.
    pub pipelined: Rate,
}

/// A rate, as it should be and as it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rate {
    /// By the model.
    pub predicted: f64,
    /// By the clock.
    pub measured: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Read,
    Write,
}

impl From<Verb> for Flow {
    fn from(verb: Verb) -> Self {
        match verb {
            Verb::Read => Self::Received,
            Verb::Write => Self::Sent,
        }
    }
}

/// Measures `volume`, which has no pipeline yet. `path` says what the kernel knows of the way to it.
pub async fn measure(
    volume: Arc<dyn Volume>,
    plan: &Plan,
    path: impl AsyncFn() -> Option<Info>,
) -> Result<Findings> {
    let smallest = smallest_read(&*volume).await?;
    let mut bench = Bench {
        round_trip: plan.round_trip.unwrap_or(smallest).max(Duration::from_micros(1)),
        cipher: plan.encrypted.then(cipher),
        plan,
        volume,
        path,
    };
    let whole = Span::new(0, bench.volume.shape().size);
    let reads = bench.direction(Verb::Read, whole).await?;
    let writes = match plan.scratch {
        Some(scratch) => Some(bench.direction(Verb::Write, scratch).await?),
        None => None,
    };
    Ok(Findings {
        round_trip_us: micros(bench.round_trip),
        smallest_read_us: micros(smallest),
        cipher: bench.cipher,
        unsolicited: plan.unsolicited,
        reads,
        writes,
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

async fn smallest_read(volume: &dyn Volume) -> Result<Duration> {
    let shape = volume.shape();
    let block = u64::from(shape.block_size);
    let mut least = Duration::MAX;
    for number in 0..SMALLEST_TRIES {
        let at = shape.size / SMALLEST_TRIES * number / block * block;
        let start = Instant::now();
        volume.read(Span::new(at, block)).await?;
        least = least.min(start.elapsed());
    }
    Ok(least)
}

/// How fast the cipher of encrypted volumes is here. Its speed does not depend on the key.
fn cipher() -> Cipher {
    let key: [u8; KEY_SIZE] = std::array::from_fn(|index| index as u8);
    let xts = Xts::new(&key).expect("the halves differ");
    let mut piece = vec![0; CIPHER_PIECE];
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < CIPHER_TIME {
        xts.encrypt(0, 4096, &mut piece);
        bytes += CIPHER_PIECE;
    }
    Cipher {
        rate: bytes as f64 / start.elapsed().as_secs_f64(),
        processors: CIPHER_POOL.threads() as u32 + 1,
    }
}

struct Bench<'a, P> {
    plan: &'a Plan,
    volume: Arc<dyn Volume>,
    path: P,
    round_trip: Duration,
    cipher: Option<Cipher>,
}

impl<P: AsyncFn() -> Option<Info>> Bench<'_, P> {
    async fn direction(&mut self, verb: Verb, span: Span) -> Result<Direction> {
        let block_size = u64::from(self.volume.shape().block_size);
        let fits =
            |block: &u64| block.is_multiple_of(block_size) && block * REQUESTS_MIN <= span.len;
        let blocks: Vec<u64> = BLOCKS.into_iter().filter(fits).collect();
        let mut alone = Vec::new();
        for &block in &blocks {
            alone.push(self.rate(&*self.volume, verb, block, span, Duration::ZERO).await?.0);
        }
        let (through, chosen) = self.pipelined_runs(verb, &blocks, span).await?;
        let rates = through.iter().map(|run| run.rate);
        let best = alone.iter().copied().chain(rates).fold(1.0, f64::max);
        let steady = blocks.iter().take_while(|block| **block * 2 <= chosen.in_flight).count();
        let held = held_at_best(&through[..steady]);
        let limit = limit_at_best(&through);
        let link = match held {
            // So little in flight comes in bursts, which have a queue each.
            Constraint::Link(rate) if limit != Limit::RoundTrips => Some(rate),
            _ => None,
        };
        let model = link.unwrap_or(best);
        let rows = blocks.iter().zip(alone).zip(through);
        let rows = rows.map(|((&block, alone), through)| {
            let stages = self.stages(verb, block, model);
            let segments = chosen.in_flight as f64 / chosen.segment as f64;
            let pipe = self.stages(verb, chosen.segment, model);
            Row {
                block,
                alone: Rate { predicted: stages.throughput(block, 1.0), measured: alone },
                pipelined: Rate {
                    predicted: pipe.throughput(chosen.segment, segments),
                    measured: through.rate,
                },
            }
        });
        Ok(Direction {
            best,
            link,
            rows: rows.collect(),
            segment: chosen.segment,
            in_flight: chosen.in_flight,
            window: chosen.window,
            ciphering: self.ciphering(verb, chosen.segment, model),
            limited_by: self.limited_by(verb, &Chosen { limit, ..chosen }, best, held),
        })
    }

    /// Measures each of these block sizes through a pipeline; what that chose last is the second answer.
    async fn pipelined_runs(
        &self,
        verb: Verb,
        blocks: &[u64],
        span: Span,
    ) -> Result<(Vec<PipelinedRun>, Chosen)> {
        // What is written again while it waits is sent once; so little may wait that this is rare.
        let memory = self.plan.settings.memory.min(span.len / 2);
        // What is measured is the link, which holes would not cross.
        let settings = Settings { memory, holes: false, ..self.plan.settings };
        let pipelined =
            Pipelined::new("the measured volume".to_owned(), Arc::clone(&self.volume), settings);
        let chosen = || {
            let (writing, reading) = pipelined.chosen();
            if verb == Verb::Read { reading } else { writing }
        };
        let top = pipelined.volume();
        let mut runs = Vec::new();
        for &block in blocks {
            let lead = self.round_trip * ROUND_TRIPS_LEAD;
            let (rate, held) = self.rate(&*top, verb, block, span, lead).await?;
            runs.push(PipelinedRun { rate, held, limit: chosen().limit });
        }
        let last = chosen();
        drop(top);
        pipelined.close().await;
        Ok((runs, last))
    }

    /// What a request passes, if the link moves `link` bytes a second.
    fn stages(&self, verb: Verb, block: u64, link: f64) -> Stages {
        let cipher = self
            .cipher
            .map(|Cipher { rate, processors }| model::Cipher { rate, workers: processors });
        let (encrypt, decrypt) = match verb {
            Verb::Read => (None, cipher),
            Verb::Write => (cipher, None),
        };
        let round_trips = if self.waits_to_be_asked(verb, block) { 2 } else { 1 };
        Stages { round_trip: self.round_trip, round_trips, link, encrypt, decrypt }
    }

    /// How many processors at the cipher keep up with a link of this rate.
    fn ciphering(&self, verb: Verb, segment: u64, link: f64) -> Option<u32> {
        self.stages(verb, segment, link).useful_workers(match verb {
            Verb::Read => Bottleneck::Decrypt,
            Verb::Write => Bottleneck::Encrypt,
        })
    }

    fn waits_to_be_asked(&self, verb: Verb, block: u64) -> bool {
        verb == Verb::Write && block > self.plan.settings.unsolicited
    }

    fn limited_by(&self, verb: Verb, chosen: &Chosen, best: f64, held: Constraint) -> LimitedBy {
        let asked = self.waits_to_be_asked(verb, chosen.segment);
        let cipher = self.cipher.map(|one| one.rate * f64::from(one.processors));
        match chosen.limit {
            _ if held == Constraint::Window => LimitedBy::Window,
            Limit::RoundTrips if asked => LimitedBy::Target,
            Limit::RoundTrips => LimitedBy::RoundTrips,
            _ if matches!(held, Constraint::Link(_)) => LimitedBy::Link,
            Limit::Unknown => LimitedBy::Unknown,
            Limit::Demand | Limit::Connection if asked => LimitedBy::Target,
            Limit::Demand => LimitedBy::Demand,
            Limit::Connection if cipher.is_some_and(|all| best > all * CIPHER_BUSY) => {
                LimitedBy::Cipher
            }
            Limit::Connection => LimitedBy::LinkOrStore,
        }
    }

    /// Bytes per second of requests one after the other, once `lead` has passed, and what held them back. Writes count
    /// when they have been flushed.
    async fn rate(
        &self,
        volume: &dyn Volume,
        verb: Verb,
        block: u64,
        span: Span,
        lead: Duration,
    ) -> Result<(f64, Constraint)> {
        let mut run = Run { volume, verb, block, span, next: 0 };
        if lead > Duration::ZERO {
            run.through(lead, 1).await?;
        }
        let start = Instant::now();
        let (bytes, seen) = self.watched(run.through(self.plan.time, REQUESTS_MIN)).await;
        let time = start.elapsed();
        Ok((bytes? as f64 / time.as_secs_f64(), constraint(verb.into(), &seen)))
    }

    /// What came of `work`, and what was seen of the way meanwhile.
    async fn watched<T>(&self, work: impl Future<Output = T>) -> (T, Vec<Sample>) {
        let (mut work, mut seen) = (pin!(work), Vec::new());
        let start = Instant::now();
        loop {
            let pause = tokio::time::sleep((self.plan.time / PATH_LOOKS).max(PATH_EVERY));
            tokio::select! {
                done = &mut work => return (done, seen),
                () = pause => {
                    let info = (self.path)().await;
                    seen.extend(info.map(|info| (start.elapsed(), info)));
                }
            }
        }
    }
}

/// Requests of one size through the pipeline.
#[derive(Clone, Copy)]
struct PipelinedRun {
    rate: f64,
    /// What held it back, as the kernel saw it.
    held: Constraint,
    /// What limited it when it ended, as the pipeline saw it.
    limit: Limit,
}

/// The fastest of the runs, in their order.
fn fastest(runs: &[PipelinedRun]) -> impl DoubleEndedIterator<Item = &PipelinedRun> {
    let best = runs.iter().map(|run| run.rate).fold(0.0, f64::max);
    runs.iter().filter(move |run| run.rate >= SAME * best)
}

/// What held back the fastest of runs through the pipeline. Those of requests as large as all that is in flight are not
/// among them: each fills the link for a moment, which says nothing.
fn held_at_best(runs: &[PipelinedRun]) -> Constraint {
    let held = fastest(runs).map(|run| run.held);
    held.reduce(|one, other| match (one, other) {
        (Constraint::Link(one), Constraint::Link(other)) => Constraint::Link(one.max(other)),
        (Constraint::Unknown, known) | (known, _) => known,
    })
    .unwrap_or(Constraint::Unknown)
}

/// What limited the last run, as the pipeline saw it. A single fast answer makes the pipeline try more for some round trips, in which it
/// knows no limit; then a connection that an earlier run of the same rate has found full is the limit.
fn limit_at_best(runs: &[PipelinedRun]) -> Limit {
    let last = runs.last().map_or(Limit::Unknown, |run| run.limit);
    let was_full = || fastest(runs).any(|run| run.limit == Limit::Connection);
    if last == Limit::Unknown && was_full() { Limit::Connection } else { last }
}

/// A program that goes through `span` and begins again at its end.
struct Run<'a> {
    volume: &'a dyn Volume,
    verb: Verb,
    block: u64,
    span: Span,
    next: u64,
}

impl Run<'_> {
    /// Goes on for `time` and at least so many requests; gives how many bytes it moved.
    async fn through(&mut self, time: Duration, least: u64) -> Result<u64> {
        let start = Instant::now();
        let data = Bytes::from(vec![0x5a; self.block as usize]);
        let mut requests = 0;
        while requests < least || start.elapsed() < time {
            let at = self.span.at + self.next;
            match self.verb {
                Verb::Read => drop(self.volume.read(Span::new(at, self.block)).await?),
                Verb::Write => {
                    self.volume.write(at, data.clone(), Durability::Volatile).await?;
                }
            }
            requests += 1;
            self.next += self.block;
            if self.next + self.block > self.span.len {
                self.next = 0;
            }
        }
        if matches!(self.verb, Verb::Write) {
            self.volume.flush().await?;
        }
        Ok(requests * self.block)
    }
}

#[cfg(test)]
mod tests;
