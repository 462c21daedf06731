//! The worker: carries out what the machine wants done, many things at a time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use tokio::sync::oneshot;

use super::checkpoint::Checkpoint;
use super::file::{FileError, JournalFile};
use super::format::Extent;
use super::machine::{Action, Retirement};
use super::overlay::{Part, Sending, Source};
use super::shared::{Shared, WorkerState};
use super::status::{Failure, IsFence, LayerStatus, Outcome};
use crate::layer::reconnect::Task;
use crate::{Error, FutureSet, GroupChange, Kind, Span, Volume, complete_all};

/// How many times it looks for more before it lets others run.
const ROUNDS_MAX: usize = 16;

/// How long after a request the journal is told that nothing is asked: what was not flushed is sent then.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// How far apart the checkpoint is written that is no part of a group: of a copy of the journal that is younger than this it
/// may not be known that it is one.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(10);

/// How many requests to the store are in flight while it is given what a journal held whose file failed.
const SENDING_MAX: usize = 256;

type Carried = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Runs until the layer was dropped and nothing more can be done for what it accepted.
pub(super) struct Worker {
    destinations: Destinations,
    shared: Arc<Shared>,
    carried: FutureSet<Carried>,
    outcomes: Vec<Outcome>,
    /// Told when the last group was handed over to the store.
    handed_over: Option<oneshot::Receiver<()>>,
    idle: Option<Task>,
    /// No checkpoint is due before.
    checkpointed: Option<Task>,
    is_over: bool,
}

/// The place of a group among others.
struct Turn {
    /// Told when the one before was handed over; dropped if it could not be.
    before: Option<oneshot::Receiver<()>>,
    done: oneshot::Sender<()>,
}

/// Where orders are carried out.
#[derive(Clone)]
struct Destinations {
    inner: Arc<dyn Volume>,
    file: Arc<dyn JournalFile>,
    is_fence: IsFence,
    /// Where checkpoints are written.
    checkpoint: Option<Span>,
    /// The store may keep discarded bytes.
    discards_are_hints: bool,
}

impl Worker {
    pub(super) fn new(
        (inner, discard_zeroes): (Arc<dyn Volume>, bool),
        file: Arc<dyn JournalFile>,
        shared: Arc<Shared>,
        is_fence: IsFence,
        checkpoint: Option<Span>,
    ) -> Self {
        let discards_are_hints = !discard_zeroes;
        Self {
            destinations: Destinations { inner, file, is_fence, checkpoint, discards_are_hints },
            shared,
            carried: FutureSet::new(),
            outcomes: Vec::new(),
            handed_over: None,
            idle: None,
            checkpointed: None,
            is_over: false,
        }
    }

    /// Takes what has been carried out.
    fn gather(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(outcome)) = Pin::new(&mut self.carried).poll_next(context) {
            self.outcomes.push(outcome);
        }
    }

    /// Begins these orders; whether there were any.
    fn begin(&mut self, orders: VecDeque<Action>, retirement: Option<Retirement>) -> bool {
        let is_any = !orders.is_empty() || retirement.is_some();
        for order in orders {
            let destinations = self.destinations.clone();
            if let Action::Checkpoint(_) = order {
                let runtime = self.shared.runtime();
                let again = runtime.now() + CHECKPOINT_EVERY;
                self.checkpointed = Some(runtime.sleep_until(again));
            }
            if let Action::DrainGroup { id, changes, checkpoint } = order {
                let (done, next) = oneshot::channel();
                let turn = Turn { before: self.handed_over.replace(next), done };
                self.carried.push(Box::pin(async move {
                    let sent = destinations.send_group(changes, checkpoint, turn).await;
                    Outcome::Drained(id, sent)
                }));
                continue;
            }
            self.carried.push(Box::pin(async move { destinations.carry_out(order).await }));
        }
        if let Some(retirement) = retirement {
            let destinations = self.destinations.clone();
            let work = async move { Outcome::FellBack(destinations.retire(retirement).await) };
            self.carried.push(Box::pin(work));
        }
        is_any
    }

    /// Whether the last checkpoint that was no part of a group is some time ago.
    fn is_checkpoint_due(&mut self, context: &mut Context<'_>) -> bool {
        self.checkpointed.take_if(|wait| wait.as_mut().poll(context).is_ready());
        self.checkpointed.is_none()
    }

    /// Tells the journal that nothing was asked, some time after something was.
    fn wait_idle(&mut self, context: &mut Context<'_>, is_wanted: bool) -> bool {
        if is_wanted && self.idle.is_none() {
            let runtime = self.shared.runtime();
            self.idle = Some(runtime.sleep_until(runtime.now() + IDLE_AFTER));
        }
        let is_time = self.idle.as_mut().is_some_and(|idle| idle.as_mut().poll(context).is_ready());
        if is_time {
            self.idle = None;
            self.shared.idle();
        }
        is_time
    }
}

impl Future for Worker {
    type Output = LayerStatus;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LayerStatus> {
        let worker = &mut *self;
        for _ in 0..ROUNDS_MAX {
            worker.gather(context);
            let is_quiet = worker.carried.is_empty();
            let is_checkpoint_due = worker.is_checkpoint_due(context);
            let state = WorkerState { is_quiet, is_checkpoint_due };
            let work = worker.shared.work(context, &mut worker.outcomes, state);
            worker.is_over = work.is_over;
            if worker.is_over {
                return Poll::Ready(worker.shared.status());
            }
            let is_busy = worker.begin(work.orders, work.retirement);
            if !worker.wait_idle(context, work.wants_idle) && !is_busy {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Whoever waits would wait for ever.
        if !self.is_over {
            self.shared.abandon();
        }
    }
}

impl Destinations {
    async fn carry_out(&self, order: Action) -> Outcome {
        match order {
            Action::Sync => Outcome::Synced(self.file.sync().await.map_err(of_file)),
            Action::Append { seq, offset, bytes } => {
                Outcome::Appended(seq, self.file.write(offset, bytes).await.map_err(of_file))
            }
            Action::Superblock { number, offset, bytes } => {
                Outcome::Superblock(number, self.file.write(offset, bytes).await.map_err(of_file))
            }
            Action::DrainWrite { id, .. }
            | Action::DrainZero { id, .. }
            | Action::DrainDiscard { id, .. }
            | Action::DrainFlush { id } => Outcome::Drained(id, self.send(order).await),
            Action::Checkpoint(checkpoint) => {
                let written = checkpoint.write(&*self.inner, self.checkpoint_place()).await;
                Outcome::Checkpointed(written.map_err(|why| self.of_store(&why)))
            }
            Action::DrainGroup { .. } | Action::Answer { .. } => {
                unreachable!("groups have turns, and answers are no orders")
            }
        }
    }

    /// Has the store carry out a group behind those before it. If one of them could not be handed over, this is not
    /// either.
    async fn send_group(
        &self,
        changes: Vec<(Span, Sending)>,
        checkpoint: Option<Checkpoint>,
        Turn { before, done }: Turn,
    ) -> Result<(), Failure> {
        let mut group = Vec::with_capacity(changes.len() + 1);
        for (span, sending) in changes {
            group.push(match sending {
                Sending::Write(parts) => {
                    GroupChange::Write(span.at, self.bytes(span, parts).await?)
                }
                Sending::Zero(space) => GroupChange::Zero(span, space),
                Sending::Discard => GroupChange::Discard(span),
            });
        }
        if let Some(checkpoint) = checkpoint {
            let place = self.checkpoint_place();
            group.push(GroupChange::Checkpoint(place.at, checkpoint.encode_for(place)));
        }
        let is_before_over = match before {
            Some(before) => before.await.is_err(),
            None => false,
        };
        let ordered = self.inner.ordered().filter(|_| !is_before_over);
        let Some(ordered) = ordered else {
            return Err(Failure::new(Kind::Gone, "what is to be sent before cannot be sent"));
        };
        let carried = ordered.write_group(group);
        // Nobody waits for it if this is the last.
        let _ = done.send(());
        carried.await.map_err(|why| self.of_store(&why))
    }

    /// Carries out a request to the store.
    async fn send(&self, request: Action) -> Result<(), Failure> {
        let sent = match request {
            Action::DrainWrite { span, parts, durability, .. } => {
                let bytes = self.bytes(span, parts).await?;
                self.inner.write(span.at, bytes, durability).await
            }
            Action::DrainZero { span, space, durability, .. } => {
                self.inner.write_zeroes(span, durability, space).await
            }
            Action::DrainDiscard { span, .. } => self.discard(span).await,
            _ => self.inner.flush().await,
        };
        sent.map_err(|why| self.of_store(&why))
    }

    /// One that the store does not take is left undone where it is a hint. Of a store that takes nothing any more the flush
    /// behind it tells.
    async fn discard(&self, span: Span) -> crate::Result<()> {
        match self.inner.discard(span).await {
            Err(why) if self.discards_are_hints => {
                tracing::debug!(%why, "a discard is left undone");
                Ok(())
            }
            discarded => discarded,
        }
    }

    /// The bytes of a write that is sent.
    async fn bytes(&self, span: Span, parts: Vec<Part>) -> Result<Bytes, Failure> {
        let is_alone = parts.len() == 1;
        let mut whole = BytesMut::new();
        for part in parts {
            let bytes = match part.source {
                Source::Memory(bytes) => bytes,
                Source::Journal { extent, skip } => {
                    extent_bytes(&*self.file, extent, skip, part.span.len).await?
                }
                Source::Zero | Source::Store => unreachable!("a write has bytes"),
            };
            if is_alone {
                return Ok(bytes);
            }
            whole.reserve(usize::try_from(span.len).expect("a request fits memory") - whole.len());
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }

    fn checkpoint_place(&self) -> Span {
        self.checkpoint.expect("there is none without a place for it")
    }

    fn of_store(&self, why: &Error) -> Failure {
        Failure { is_fence: (self.is_fence)(why), ..Failure::of(why.kind, why) }
    }

    /// Gives the store what it lacks, and has the file say that it holds nothing: what it holds must not replace what the
    /// store is given from then on.
    async fn retire(&self, retirement: Retirement) -> Result<(), Failure> {
        let Retirement { groups, offset, bytes } = retirement;
        for group in groups {
            let requests = stream::iter(group.into_iter().map(|request| self.send(request)));
            complete_all(SENDING_MAX, requests, drop).await?;
            self.inner.flush().await.map_err(|why| self.of_store(&why))?;
        }
        self.file.write(offset, bytes).await.map_err(of_file)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
fn of_file(why: FileError) -> Failure {
    Failure::new(Kind::Medium, format!("the journal file failed: {why}"))
}

/// `len` bytes behind the first `skip` of an extent, all of which is read and verified.
pub(super) async fn extent_bytes(
    file: &dyn JournalFile,
    extent: Extent,
    skip: u64,
    len: u64,
) -> Result<Bytes, Failure> {
    let bytes = file.read(extent.offset, extent.len).await.map_err(of_file)?;
    if !extent.verify(&bytes) {
        let Extent { offset, len, .. } = extent;
        let what = format!("{len} bytes at byte {offset} of the journal are not those written");
        return Err(Failure::new(Kind::Integrity, what));
    }
    let start = usize::try_from(skip).expect("an extent fits memory");
    let len = usize::try_from(len).expect("an extent fits memory");
    Ok(bytes.slice(start..start + len))
}
