//! A volume whose requests are recorded.

use std::sync::Arc;

use bytes::Bytes;
use volume::{Durability, Extent, ExtentMap, Shape, Space, Span, Verb, Volume, Work};

use super::{Trace, TracedRequest};

pub(super) struct TracedVolume {
    trace: Arc<Trace>,
    layer: u8,
    inner: Arc<dyn Volume>,
}

impl TracedVolume {
    pub(super) fn new(trace: Arc<Trace>, layer: u8, inner: Arc<dyn Volume>) -> Self {
        Self { trace, layer, inner }
    }

    /// The same work, recorded when it has ended. One that is dropped is not: nobody knows what became of it.
    fn timed<'a, T: Send + 'a>(
        &'a self,
        verb: Verb,
        span: Span,
        begin: impl FnOnce(&'a dyn Volume) -> Work<'a, T>,
    ) -> Work<'a, T> {
        // Some of it may be done at once, by the call itself.
        let from = self.trace.now();
        let work = begin(&*self.inner);
        Box::pin(async move {
            let done = work.await;
            let (layer, to, failed) = (self.layer, self.trace.now(), done.is_err());
            self.trace.note(TracedRequest { layer, verb, span, from, to, failed });
            done
        })
    }
}

impl Volume for TracedVolume {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.timed(Verb::Read, span, |inner| inner.read(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        self.timed(Verb::Write, span, |inner| inner.write(at, data, durability))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.timed(Verb::WriteZeroes, span, |inner| inner.write_zeroes(span, durability, space))
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.timed(Verb::Discard, span, |inner| inner.discard(span))
    }

    fn flush(&self) -> Work<'_, ()> {
        self.timed(Verb::Flush, Span::new(0, 0), |inner| inner.flush())
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

impl ExtentMap for TracedVolume {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        self.timed(Verb::Extents, span, |inner| match inner.extents() {
            Some(map) => map.extents(span),
            None => Box::pin(std::future::ready(Ok(Vec::new()))),
        })
    }
}
