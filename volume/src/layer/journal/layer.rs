//! The layer: a volume whose flushes are local writes.
//!
//! ```text
//! caller -> machine -> worker -> the journal file, and the volume beneath
//! caller <- memory, the journal file, and the volume beneath
//! ```

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;

use super::file::JournalFile;
use super::machine::{Journal, Settings};
use super::overlay::{Part, Source};
use super::scan::Recovered;
use super::shared::{Refusal, Shared};
use super::status::{IsFence, LayerStatus};
use super::worker::{Worker, extent_bytes};
use crate::layer::pipeline::{self, Direction, RateControl};
use crate::layer::reconnect::Runtime;
use crate::{
    Durability, Error, Extent, ExtentMap, Kind, Result, Shape, Space, Span, Verb, Volume, Work,
    complete_all,
};

/// How many parts of one read are fetched at a time.
const PARTS_MAX: usize = 32;

/// When a flush is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushPolicy {
    /// When the journal has on stable storage what it covers.
    #[default]
    Local,
    /// When the volume beneath has it too.
    Remote,
}

/// How a journal is used.
#[derive(Clone)]
pub struct LayerOptions {
    /// Limits of the machine; what is known of discards is taken from the volume beneath.
    pub settings: Settings,
    /// When a flush is answered.
    pub flush: FlushPolicy,
    /// Changes wait while the volume beneath lacks one that is older.
    pub max_age: Option<Duration>,
    /// The longest write that takes one round trip.
    pub unsolicited: u64,
    /// Whether a failure means that another writer has the volume.
    pub is_fence: IsFence,
    /// Where the volume beneath has room for a [`Checkpoint`](super::Checkpoint): whole blocks, and 512 bytes at least.
    pub checkpoint: Option<Span>,
}

impl fmt::Debug for LayerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, flush, max_age, unsolicited, is_fence: _, checkpoint } = self;
        let mut shown = f.debug_struct("LayerOptions");
        shown.field("settings", settings).field("flush", flush).field("max_age", max_age);
        shown.field("unsolicited", unsolicited).field("checkpoint", checkpoint);
        shown.finish_non_exhaustive()
    }
}

/// A volume with a journal.
pub struct Journaled {
    inner: Arc<dyn Volume>,
    file: Arc<dyn JournalFile>,
    shape: Shape,
    flush: FlushPolicy,
    shared: Arc<Shared>,
}

impl Journaled {
    /// A journal over `inner`, which nobody else writes to, in the file that was read, for the writer with this attach
    /// token; and its worker. The worker has to be run for as long as it takes: it ends when the layer was dropped and
    /// everything accepted is on `inner`, or can no more be sent there, and says how it is then. If it is dropped before, everything fails.
    pub fn new(
        inner: Arc<dyn Volume>,
        file: Arc<dyn JournalFile>,
        recovered: &Recovered,
        token: u64,
        options: LayerOptions,
        runtime: Arc<dyn Runtime>,
    ) -> (Self, impl Future<Output = LayerStatus> + Send + 'static) {
        let shape = Shape { write_cache: true, ..inner.shape().clone() };
        let block = shape.block_size;
        let discard_zeroes =
            shape.discard.is_some_and(|how| how.reads_zeroes && how.granularity <= block);
        let is_ordered = inner.ordered().is_some();
        let has_checkpoint = options.checkpoint.is_some();
        let settings = Settings { discard_zeroes, is_ordered, has_checkpoint, ..options.settings };
        let machine = Journal::open(recovered, token, settings);
        let pace = pipeline::Settings {
            unsolicited: options.unsolicited,
            ..pipeline::Settings::default()
        };
        let rate = RateControl::new(Direction::Write, pace, shape.clone());
        let shared = Arc::new(Shared::new(machine, runtime, options.max_age, rate));
        let worker = Worker::new(
            (Arc::clone(&inner), discard_zeroes),
            Arc::clone(&file),
            Arc::clone(&shared),
            options.is_fence,
            options.checkpoint,
        );
        (Self { inner, file, shape, flush: options.flush, shared }, worker)
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> LayerStatus {
        self.shared.status()
    }

    /// Has the file say at once what the volume beneath has; whether it says so of everything. Nothing may be asked
    /// meanwhile, or there is more that it lacks.
    #[must_use]
    pub fn record(&self) -> bool {
        self.shared.record()
    }

    /// Asks the journal; where its file has failed, waits until the volume beneath has the rest. Says whether the
    /// journal did it.
    async fn ask(
        &self,
        (verb, span): (Verb, Option<Span>),
        submit: impl FnOnce(&mut Journal, u64),
    ) -> Result<bool> {
        let answer = match self.shared.submit(submit) {
            Ok(answer) => answer,
            Err(id) => {
                let place = Place { shared: &self.shared, id };
                poll_fn(|context| place.shared.answer(place.id, context)).await
            }
        };
        self.resolve((verb, span), answer).await
    }

    async fn resolve(
        &self,
        (verb, span): (Verb, Option<Span>),
        answer: std::result::Result<(), Refusal>,
    ) -> Result<bool> {
        let failed = match answer {
            Ok(()) => return Ok(true),
            Err(Refusal::FallBack) => {
                match poll_fn(|context| self.shared.poll_direct(context)).await {
                    Ok(()) => return Ok(false),
                    Err(why) => why,
                }
            }
            Err(Refusal::Failed(why)) => why,
        };
        poll_fn(|context| self.shared.poll_ended(context)).await;
        Err(Error::new(failed.kind, verb, span).because(failed))
    }

    /// Waits until the volume beneath has all of the journal up to a group. Says whether it was told so by the journal.
    async fn sent(&self, what: (Verb, Option<Span>), group: u64) -> Result<bool> {
        let answer = poll_fn(|context| self.shared.poll_group(group, context)).await;
        self.resolve(what, answer).await
    }

    async fn write_bytes(&self, at: u64, data: Bytes, durability: Durability) -> Result<()> {
        let what = (Verb::Write, Some(Span::new(at, data.len() as u64)));
        poll_fn(|context| self.shared.poll_age(context)).await;
        let local = self.local(durability);
        match self.ask(what, |journal, id| journal.write(id, at, &data, local)).await? {
            true => self.settle(what, durability).await,
            false => self.inner.write(at, data, durability).await,
        }
    }

    async fn zero(&self, span: Span, durability: Durability, space: Space) -> Result<()> {
        let what = (Verb::WriteZeroes, Some(span));
        poll_fn(|context| self.shared.poll_age(context)).await;
        let local = self.local(durability);
        match self.ask(what, |journal, id| journal.write_zeroes(id, span, local, space)).await? {
            true => self.settle(what, durability).await,
            false => self.inner.write_zeroes(span, durability, space).await,
        }
    }

    async fn forget(&self, span: Span) -> Result<()> {
        poll_fn(|context| self.shared.poll_age(context)).await;
        let what = (Verb::Discard, Some(span));
        match self.ask(what, |journal, id| journal.discard(id, span)).await? {
            true => Ok(()),
            false => self.inner.discard(span).await,
        }
    }

    /// How durable a change is to be in the journal: where the volume beneath has to have it, a flush follows.
    const fn local(&self, durability: Durability) -> Durability {
        match self.flush {
            FlushPolicy::Local => durability,
            FlushPolicy::Remote => Durability::Volatile,
        }
    }

    /// Makes a change durable beneath that is in the journal, if it is to be.
    async fn settle(&self, what: (Verb, Option<Span>), durability: Durability) -> Result<()> {
        match (durability, self.flush) {
            (Durability::Durable, FlushPolicy::Remote) => self.make_durable(what).await,
            _ => Ok(()),
        }
    }

    async fn make_durable(&self, what: (Verb, Option<Span>)) -> Result<()> {
        let group = self.shared.last_group();
        let is_done = self.ask(what, Journal::flush).await?
            && (self.flush == FlushPolicy::Local || self.sent(what, group).await?);
        if is_done { Ok(()) } else { self.inner.flush().await }
    }

    async fn read_bytes(&self, span: Span) -> Result<Bytes> {
        let found = self.shared.read(span);
        let (parts, reader) =
            found.map_err(|why| Error::new(why.kind, Verb::Read, span).because(why))?;
        let _reader = reader.map(|reader| Reader { shared: &self.shared, reader });
        if let [Part { source: Source::Store, .. }] = parts[..] {
            return self.inner.read(span).await;
        }
        if let [Part { source: Source::Memory(bytes), .. }] = &parts[..] {
            return Ok(bytes.clone());
        }
        let mut fetched = vec![Bytes::new(); parts.len()];
        let beneath = beneath(&parts);
        let mut store = Bytes::new();
        let fetches = parts.iter().enumerate().filter_map(|(index, part)| match &part.source {
            Source::Journal { extent, skip } => {
                Some(Fetch::Journal(index, *extent, *skip, part.span.len))
            }
            _ => None,
        });
        let fetches = fetches.chain(beneath.map(Fetch::Store)).map(|fetch| self.fetch(span, fetch));
        complete_all(PARTS_MAX, stream::iter(fetches), |(index, bytes)| match index {
            Some(index) => fetched[index] = bytes,
            None => store = bytes,
        })
        .await?;
        let mut whole = BytesMut::with_capacity(span.len as usize);
        for (part, fetched) in parts.into_iter().zip(fetched) {
            match part.source {
                Source::Memory(bytes) => whole.extend_from_slice(&bytes),
                Source::Journal { .. } => whole.extend_from_slice(&fetched),
                Source::Zero => whole.put_bytes(0, part.span.len as usize),
                Source::Store => {
                    let from = (part.span.at - beneath.map_or(0, |span| span.at)) as usize;
                    whole.extend_from_slice(&store[from..from + part.span.len as usize]);
                }
            }
        }
        Ok(whole.freeze())
    }

    /// The bytes of a part, and which it is.
    async fn fetch(&self, asked: Span, fetch: Fetch) -> Result<(Option<usize>, Bytes)> {
        match fetch {
            Fetch::Store(span) => Ok((None, self.inner.read(span).await?)),
            Fetch::Journal(index, extent, skip, len) => {
                let bytes = extent_bytes(&*self.file, extent, skip, len).await;
                let bytes =
                    bytes.map_err(|why| Error::new(why.kind, Verb::Read, asked).because(why))?;
                Ok((Some(index), bytes))
            }
        }
    }
}

/// What a read has to fetch.
enum Fetch {
    /// The part of that number: so many bytes behind the first of an extent.
    Journal(usize, super::format::Extent, u64, u64),
    /// All that the volume beneath has, and what is between.
    Store(Span),
}

/// From the first byte that is to be read beneath to the last: one request costs less than many.
fn beneath(parts: &[Part]) -> Option<Span> {
    let spans = || parts.iter().filter(|part| part.source == Source::Store).map(|part| part.span);
    let (first, last) = (spans().next()?, spans().next_back()?);
    Some(Span::new(first.at, last.end() - first.at))
}

/// A request that is waited for; given up when dropped.
struct Place<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.leave(self.id);
    }
}

/// What is read of the journal stays there as long as this does.
struct Reader<'a> {
    shared: &'a Shared,
    reader: u64,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.shared.read_done(self.reader);
    }
}

impl Volume for Journaled {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(self.read_bytes(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        Box::pin(self.write_bytes(at, data, durability))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        Box::pin(self.zero(span, durability, space))
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        Box::pin(self.forget(span))
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(self.make_durable((Verb::Flush, None)))
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents().is_some().then_some(self)
    }

    fn is_saving(&self) -> bool {
        self.inner.is_saving()
    }

    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        self.inner.save_part(at, data)
    }
}

impl ExtentMap for Journaled {
    /// The map of the volume beneath, with what is in the journal over it.
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let Some(map) = self.inner.extents() else {
                return Err(Error::new(Kind::Unsupported, Verb::Extents, span));
            };
            let found = self.shared.read(span);
            let (parts, reader) =
                found.map_err(|why| Error::new(why.kind, Verb::Extents, span).because(why))?;
            drop(reader.map(|reader| Reader { shared: &self.shared, reader }));
            let beneath = map.extents(span).await?;
            Ok(combined(&parts, &beneath))
        })
    }
}

/// Up to where the map of the volume beneath ends.
fn combined(parts: &[Part], beneath: &[Extent]) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    for Part { span, source } in parts {
        let own = Extent { span: *span, hole: false, zero: *source == Source::Zero };
        match source {
            Source::Store => {
                let within = beneath.iter().filter_map(|extent| {
                    let at = extent.span.at.max(span.at);
                    let end = extent.span.end().min(span.end());
                    let span = Span::new(at, end.checked_sub(at).filter(|len| *len > 0)?);
                    Some(Extent { span, ..*extent })
                });
                all.extend(within);
            }
            _ => all.push(own),
        }
        if all.last().is_none_or(|last| last.span.end() < span.end()) {
            break;
        }
    }
    all
}

impl Drop for Journaled {
    fn drop(&mut self) {
        self.shared.close();
    }
}

#[cfg(test)]
mod tests;
