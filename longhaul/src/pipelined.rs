//! The pipeline over a volume behind a network: what the user fixes of it, and the task it runs on.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use clap::Args;
use tokio::task::JoinHandle;
use volume::layer::pipeline::{Chosen, Pipeline, Settings};
use volume::{Durability, ExtentMap, Gate, Shape, Space, Span, TRANSFER_MAX, Verb, Volume, Work};

use crate::failure::{Failure, Outcome};
use crate::size::{NotASize, Size};
use crate::store::abilities::{BoxFuture, Worker, WorkerStatus};
use crate::store::runtime;

/// The least a segment may be: a block of any disk that is in use.
const SEGMENT_MIN: u32 = 4096;

/// How a volume behind a network is kept busy.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Pipeline (volumes behind a network)")]
pub struct PipelineArgs {
    /// Send every request when it comes, and wait for its answer
    #[arg(long, conflicts_with_all = ["window", "in_flight", "segment", "read_ahead"])]
    no_pipeline: bool,
    /// Most bytes written and not yet at the other end
    #[arg(long, value_name = "SIZE", default_value = "auto", hide_default_value = true)]
    window: Auto,
    /// Most segments of it on their way at a time
    #[arg(long, value_name = "SEGMENTS", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: Option<u32>,
    /// Size to which writes are merged and cut
    #[arg(long, value_name = "SIZE", default_value = "auto", hide_default_value = true)]
    segment: Auto,
    /// Bytes to read ahead; 0 where others write to the volume too
    #[arg(long, value_name = "SIZE", default_value = "auto", hide_default_value = true)]
    read_ahead: Auto,
}

impl PipelineArgs {
    /// What they say, on a machine with so much memory; none if there is to be no pipeline.
    pub fn settings(&self, memory: u64) -> Outcome<Option<Settings>> {
        if self.no_pipeline {
            return Ok(None);
        }
        Ok(Some(Settings {
            window: self.window.affordable("--window", memory)?.positive("--window")?,
            segments: self.in_flight,
            segment: self.segment()?,
            read_ahead: self.read_ahead.affordable("--read-ahead", memory)?.0.map(|size| size.0),
            ..Settings::default()
        }))
    }

    fn segment(&self) -> Outcome<Option<u32>> {
        let most = Size(u64::from(TRANSFER_MAX));
        let Some(bytes) = self.segment.positive("--segment")? else { return Ok(None) };
        match u32::try_from(bytes) {
            Ok(..SEGMENT_MIN) => {
                let least = Size(SEGMENT_MIN.into());
                Err(Failure::usage(format!("--segment {}: {least} is the least", Size(bytes))))
            }
            Ok(bytes) if bytes <= TRANSFER_MAX => Ok(Some(bytes)),
            _ => Err(Failure::usage(format!("--segment {}: {most} is the most", Size(bytes)))),
        }
    }

    /// Whether any of it was said.
    #[must_use]
    pub fn is_given(&self) -> bool {
        let sizes = [self.window, self.segment, self.read_ahead];
        self.no_pipeline || self.in_flight.is_some() || sizes.iter().any(|size| size.0.is_some())
    }
}

/// A size, or `auto` for what suits the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Auto(Option<Size>);

impl Auto {
    /// Refuses what this machine cannot hold: it would be killed for it when it is used.
    fn affordable(self, option: &str, memory: u64) -> Outcome<Self> {
        let most = memory / 2;
        match self.0 {
            Some(size) if size.0 > most => {
                let what = format!("{option} {size}: {} is the most", Size(most >> 20 << 20));
                Err(Failure::usage(what)
                    .because("it is held in memory, of which this machine has twice that"))
            }
            _ => Ok(self),
        }
    }

    fn positive(self, option: &str) -> Outcome<Option<u64>> {
        match self.0 {
            Some(Size(0)) => Err(Failure::usage(format!("{option} 0 would let nothing through"))),
            size => Ok(size.map(|size| size.0)),
        }
    }
}

impl FromStr for Auto {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        match text {
            "auto" => Ok(Self(None)),
            size => Ok(Self(Some(size.parse()?))),
        }
    }
}

impl fmt::Display for Auto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(size) => size.fmt(f),
            None => f.write_str("auto"),
        }
    }
}

/// A pipeline and the task that works for it.
pub struct Pipelined {
    pipeline: Arc<Pipeline>,
    worker: JoinHandle<()>,
    failure: Failed,
}

/// The first failure that nobody waited for, once there is one.
#[derive(Clone, Debug, Default)]
struct Failed(Arc<OnceLock<String>>);

/// Tells how a pipeline is.
struct Observer {
    pipeline: Weak<Pipeline>,
    failure: Failed,
}

impl WorkerStatus for Observer {
    fn pending(&self) -> u64 {
        self.pipeline.upgrade().map_or(0, |pipeline| pipeline.pending())
    }

    fn failure(&self) -> Option<String> {
        self.failure.0.get().cloned()
    }
}

impl Pipelined {
    /// Puts a pipeline over `inner`, which the user calls `name`.
    pub fn new(name: String, inner: Arc<dyn Volume>, settings: Settings) -> Self {
        let failure = Failed::default();
        let inner = Arc::new(FailureLogging { inner, name, failure: failure.clone() });
        let (pipeline, worker) = Pipeline::new(inner, settings, runtime());
        Self { pipeline: Arc::new(pipeline), worker: tokio::spawn(worker), failure }
    }

    /// Its top.
    #[must_use]
    pub fn volume(&self) -> Arc<dyn Volume> {
        Arc::new(Gate::new("pipeline", Arc::clone(&self.pipeline)))
    }

    /// What is chosen at the moment, for writes and for reads.
    #[must_use]
    pub fn chosen(&self) -> (Chosen, Chosen) {
        self.pipeline.chosen()
    }

    /// Waits until everything that was accepted has been sent, or has failed. Nobody else may hold the
    /// volume any more.
    pub async fn close(self) {
        let Self { pipeline, worker, .. } = self;
        debug_assert_eq!(Arc::strong_count(&pipeline), 1, "the worker waits for the last holder");
        drop(pipeline);
        if let Err(why) = worker.await {
            tracing::error!(%why, "the pipeline ended early");
        }
    }
}

impl Worker for Pipelined {
    fn status(&self) -> Arc<dyn WorkerStatus> {
        let (pipeline, failure) = (Arc::downgrade(&self.pipeline), self.failure.clone());
        Arc::new(Observer { pipeline, failure })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Option<Failure>> {
        Box::pin(async {
            (*self).close().await;
            None
        })
    }
}

/// The volume beneath a pipeline. What fails there was acknowledged before, so that nobody hears of it before the
/// next flush: it is logged at once.
struct FailureLogging {
    inner: Arc<dyn Volume>,
    name: String,
    failure: Failed,
}

impl FailureLogging {
    fn watch<'a>(&'a self, work: Work<'a, ()>) -> Work<'a, ()> {
        Box::pin(async move {
            let done = work.await;
            if let Err(why) = &done {
                self.note(why);
            }
            done
        })
    }

    fn note(&self, why: &volume::Error) {
        let mut text = why.to_string();
        let mut beneath = std::error::Error::source(why);
        while let Some(cause) = beneath {
            text += &format!(": {cause}");
            beneath = cause.source();
        }
        let Self { name, failure, .. } = self;
        if failure.0.set(text).is_ok() {
            // A flush fails on a volume that is gone even if there was nothing to write.
            let what = if why.verb == Verb::Flush { "a flush" } else { "a write behind" };
            let (at, why) = (why.span.map(|span| span.at), failure.0.get());
            tracing::error!(volume = name, at, why, "{what} failed: what follows it is refused");
        }
    }
}

impl Volume for FailureLogging {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }
    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.inner.read(span)
    }
    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        self.watch(self.inner.write(at, data, durability))
    }
    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.watch(self.inner.write_zeroes(span, durability, space))
    }
    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.inner.discard(span)
    }
    fn flush(&self) -> Work<'_, ()> {
        self.watch(self.inner.flush())
    }
    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use volume::check;
    use volume::store::memory::Memory;

    use super::*;

    #[tokio::test]
    async fn failure_logging_keeps_the_contract_and_tells_the_truth() {
        let over = |inner: Arc<dyn Volume>| -> Arc<dyn Volume> {
            Arc::new(FailureLogging { inner, name: "test".to_owned(), failure: Failed::default() })
        };
        check::volume(23, over(Arc::new(Memory::new(5 << 20, 512)))).await;
        check::truth(512, async |disk| over(disk)).await;
    }

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        pipeline: PipelineArgs,
    }

    fn read(text: &str) -> PipelineArgs {
        Arguments::parse_from(text.split(' ')).pipeline
    }

    #[test]
    fn everything_is_chosen_unless_it_is_said() {
        for text in ["x", "x --window auto --segment auto --read-ahead auto"] {
            assert_eq!(read(text).settings(1 << 32).unwrap(), Some(Settings::default()), "{text}");
            assert!(!read(text).is_given());
        }
    }

    #[test]
    fn given_settings_are_kept() {
        let args = read("x --window 8M --in-flight 5 --segment 128K --read-ahead 0");
        let expected = Settings {
            window: Some(8 << 20),
            segments: Some(5),
            segment: Some(128 << 10),
            read_ahead: Some(0),
            ..Settings::default()
        };
        assert_eq!(args.settings(1 << 32).unwrap(), Some(expected));
        assert!(args.is_given());
        assert_eq!(read("x --no-pipeline").settings(1 << 32).unwrap(), None);
    }

    #[test]
    fn impossible_settings_are_refused() {
        for text in ["x --window 0", "x --segment 0", "x --segment 64M", "x --segment 8G"] {
            assert_eq!(read(text).settings(1 << 32).unwrap_err().exit_code(), 2, "{text}");
        }
        assert!(Arguments::try_parse_from(["x", "--no-pipeline", "--window", "8M"]).is_err());
        assert!(Arguments::try_parse_from(["x", "--in-flight", "0"]).is_err());
    }
}
