//! Write-behind and read-ahead: keeps a long link full for an application that asks for one thing at
//! a time. Its promise is that of a disk with a volatile write cache; `docs/spec/pipeline.md` says
//! what that means in each case, and how the windows are chosen.
//!
//! ```text
//! caller -> accept -> waiting, merged -> worker -> the volume beneath
//! caller <- patched with what was accepted <- read ahead, or read <- the volume beneath
//! ```

mod core;
mod holes;
pub mod model;
mod piece;
mod rate_meter;
mod read_ahead;
mod settings;
mod shared;
mod spans;
mod worker;

use std::future::{Future, poll_fn};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use self::core::{Answer, Change, ChangeBody, Core, Found, report};
use self::piece::Patch;
use self::shared::Shared;
use self::worker::Worker;
use super::reconnect::Runtime;
use crate::{
    Durability, Error, Extent, ExtentMap, Kind, Result, Shape, Space, Span, Verb, Volume, Work,
};

pub(in crate::layer) use self::core::RateControl;
pub(in crate::layer) use self::rate_meter::Stamp;
pub(in crate::layer) use self::settings::Direction;
pub use self::settings::{Chosen, Limit, Settings};

/// The name of one who waits.
type WaiterId = u64;

/// A volume with a volatile write cache and read-ahead.
pub struct Pipeline {
    inner: Arc<dyn Volume>,
    shape: Shape,
    shared: Arc<Shared>,
}

impl Pipeline {
    /// A pipeline over `inner`, and the worker that carries out what it accepts. The worker has to
    /// be run for as long as it takes: it ends when the pipeline was dropped and everything accepted
    /// is on `inner`. If the worker is dropped before, everything fails from then on.
    pub fn new(
        inner: Arc<dyn Volume>,
        settings: Settings,
        runtime: Arc<dyn Runtime>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let shape = Shape { write_cache: true, ..inner.shape().clone() };
        let shared = Arc::new(Shared::new(Core::new(settings, shape.clone()), runtime));
        let worker = Worker::new(Arc::clone(&inner), Arc::clone(&shared));
        (Self { inner, shape, shared }, worker)
    }

    /// What is chosen at the moment, for writes and for reads.
    #[must_use]
    pub fn chosen(&self) -> (Chosen, Chosen) {
        self.shared.core(|core| core.chosen())
    }

    /// Bytes that were accepted and are not on the volume beneath yet.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.shared.core(|core| core.pending_bytes())
    }

    async fn change(
        &self,
        verb: Verb,
        span: Span,
        body: ChangeBody,
        durability: Durability,
    ) -> Result<()> {
        if span.is_empty() {
            return Ok(());
        }
        let mut place = WaitPlace { shared: &self.shared, waiter: None };
        let mut change = Change::new(verb, span, body, durability);
        let accepted = poll_fn(|context| {
            let entry = self.shared.accept(&mut change, context);
            place.waiter = change.waiter;
            entry
        })
        .await;
        match durability {
            Durability::Volatile => {
                place.waiter = place.waiter.filter(|_| accepted.is_err());
                accepted
            }
            Durability::Durable => {
                let Err(refused) = accepted else {
                    return place.answer().await.map_err(|error| report(&error, verb, span));
                };
                // What was accepted of it before the rest was refused is under way all the same.
                if self.shared.core(|core| core.awaits(place.waiter)) {
                    let _ = place.wait().await;
                }
                Err(refused)
            }
        }
    }

    async fn read_span(&self, span: Span) -> Result<Bytes> {
        if span.is_empty() {
            return Ok(Bytes::new());
        }
        let mut found = self.shared.read(span)?;
        loop {
            match found {
                Found::Here(patches) => return Ok(laid_over(span, None, patches)),
                Found::Coming(waiter) => {
                    // Whatever came of it, what is here now is to be looked at again.
                    let _ = self.at(waiter).answer().await;
                    found = self.shared.core(|core| core.find(span))?;
                }
                Found::Beneath(part, patches) => {
                    let began = self.shared.now();
                    let bytes = self.inner.read(part).await?;
                    let now = self.shared.now();
                    self.shared.core(|core| core.read_returned(part, &bytes, began, now));
                    return Ok(laid_over(span, Some((part, bytes)), patches));
                }
            }
        }
    }

    /// Waits until everything accepted so far is on the volume beneath, and flushes it if asked to.
    async fn barrier(&self, flush: bool) -> Result<()> {
        let waiter = self.shared.core(|core| core.barrier(flush))?;
        self.at(waiter).answer().await.map_err(|error| report(&error, Verb::Flush, None))
    }

    fn at(&self, waiter: WaiterId) -> WaitPlace<'_> {
        WaitPlace { shared: &self.shared, waiter: Some(waiter) }
    }
}

/// Somewhere to wait, if there is a reason to; given up when dropped.
struct WaitPlace<'a> {
    shared: &'a Shared,
    waiter: Option<WaiterId>,
}

impl WaitPlace<'_> {
    async fn answer(mut self) -> Answer {
        let answer = self.wait().await;
        self.waiter = None;
        answer
    }

    async fn wait(&self) -> Answer {
        let Some(waiter) = self.waiter else { return Ok(()) };
        poll_fn(|context| self.shared.answer(waiter, context)).await
    }
}

impl Drop for WaitPlace<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.shared.leave(waiter);
        }
    }
}

/// The bytes of `span`: what was read, with the patches over it in their order. Together they cover it.
/// A single buffer that is all of it is passed on as it is; otherwise each byte is copied once, unless
/// something lies over something else.
fn laid_over(span: Span, read: Option<(Span, Bytes)>, mut patches: Vec<Patch>) -> Bytes {
    if let Some((part, bytes)) = read {
        if patches.is_empty() {
            return bytes;
        }
        patches.insert(0, Patch { span: part, data: Some(bytes) });
    }
    if let Some(Patch { span: last, data: Some(bytes) }) = patches.last()
        && *last == span
    {
        return bytes.clone();
    }
    // They cover the span, so if their lengths add up to its own, none lies over another.
    if patches.iter().map(|patch| patch.span.len).sum::<u64>() == span.len {
        return joined(span, patches);
    }
    let mut whole = BytesMut::zeroed(span.len as usize);
    for patch in patches {
        let from = (patch.span.at - span.at) as usize;
        let place = &mut whole[from..from + patch.span.len as usize];
        match patch.data {
            Some(bytes) => place.copy_from_slice(&bytes),
            None => place.fill(0),
        }
    }
    whole.freeze()
}

/// Patches that do not overlap, one behind the other.
fn joined(span: Span, mut patches: Vec<Patch>) -> Bytes {
    patches.sort_unstable_by_key(|patch| patch.span.at);
    let mut whole = BytesMut::with_capacity(span.len as usize);
    for Patch { span, data } in patches {
        match data {
            Some(bytes) => whole.extend_from_slice(&bytes),
            None => whole.put_bytes(0, span.len as usize),
        }
    }
    whole.freeze()
}

impl Volume for Pipeline {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(self.read_span(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        Box::pin(self.change(Verb::Write, span, ChangeBody::Data(data), durability))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        Box::pin(self.change(Verb::WriteZeroes, span, ChangeBody::Zeroes(space), durability))
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        Box::pin(self.change(Verb::Discard, span, ChangeBody::Discard, Durability::Volatile))
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(self.barrier(true))
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents().is_some().then_some(self)
    }
}

impl ExtentMap for Pipeline {
    /// The map of the volume beneath, which is told everything accepted first.
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let Some(map) = self.inner.extents() else {
                return Err(Error::new(Kind::Unsupported, Verb::Extents, span));
            };
            self.barrier(false).await?;
            map.extents(span).await
        })
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.shared.core(Core::close);
    }
}

#[cfg(test)]
mod tests;
