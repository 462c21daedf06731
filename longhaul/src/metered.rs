//! A volume whose requests are counted, for `longhaul status`.

use std::sync::Arc;

use bytes::Bytes;
use proto::scsi::cdb::Kind;
use tokio::time::Instant;
use volume::{Durability, ExtentMap, Result, Shape, Space, Span, Volume, Work};

use crate::target::meter::Meter;

/// A volume, and what was done with it.
pub(crate) struct Metered {
    inner: Arc<dyn Volume>,
    meter: Arc<Meter>,
}

impl Metered {
    /// `inner`, counted in `meter`.
    pub(crate) fn new(inner: Arc<dyn Volume>, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }

    fn count<'a, T: Send + 'a>(&'a self, kind: Kind, bytes: u64, work: Work<'a, T>) -> Work<'a, T> {
        let mut running =
            Running { meter: &self.meter, kind, began: Instant::now(), is_over: false };
        self.meter.began();
        Box::pin(async move {
            let done = work.await;
            running.end(bytes, &done);
            done
        })
    }
}

/// A request that has not ended.
struct Running<'a> {
    meter: &'a Meter,
    kind: Kind,
    began: Instant,
    is_over: bool,
}

impl Running<'_> {
    fn end<T>(&mut self, bytes: u64, done: &Result<T>) {
        self.is_over = true;
        let bytes = if done.is_ok() { bytes } else { 0 };
        self.meter.ended(self.kind, bytes, self.began.elapsed());
        if done.is_err() {
            self.meter.ended_badly(self.kind, &[]);
        }
    }
}

impl Drop for Running<'_> {
    /// Nobody waits for it any more.
    fn drop(&mut self) {
        if !self.is_over {
            self.meter.ended(self.kind, 0, self.began.elapsed());
            self.meter.aborted();
        }
    }
}

impl Volume for Metered {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.count(Kind::Read, span.len, self.inner.read(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        self.count(Kind::Write, data.len() as u64, self.inner.write(at, data, durability))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.count(Kind::Other, 0, self.inner.write_zeroes(span, durability, space))
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.count(Kind::Other, 0, self.inner.discard(span))
    }

    fn flush(&self) -> Work<'_, ()> {
        self.count(Kind::Other, 0, self.inner.flush())
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents()
    }

    fn is_saving(&self) -> bool {
        self.inner.is_saving()
    }

    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        self.inner.save_part(at, data)
    }
}

#[cfg(test)]
mod tests {
    use volume::check;
    use volume::store::memory::Memory;

    use super::*;

    fn metered(inner: Arc<dyn Volume>) -> Arc<dyn Volume> {
        Arc::new(Metered::new(inner, Arc::default()))
    }

    #[tokio::test]
    async fn metered_volume_keeps_the_contract_and_tells_the_truth() {
        check::volume(31, metered(Arc::new(Memory::new(5 << 20, 512)))).await;
        check::truth(512, async |disk| metered(disk)).await;
    }

    #[tokio::test]
    async fn requests_are_counted_by_kind_and_those_given_up_as_aborted() {
        let meter = Arc::new(Meter::default());
        let volume = Metered::new(Arc::new(Memory::new(1 << 20, 512)), Arc::clone(&meter));
        volume.write(0, vec![7; 4096].into(), Durability::Volatile).await.unwrap();
        volume.read(Span::new(0, 512)).await.unwrap();
        volume.flush().await.unwrap();
        drop(volume.read(Span::new(0, 512)));
        let done = meter.activity();
        assert_eq!((done.writes.commands, done.writes.bytes), (1, 4096));
        assert_eq!((done.reads.commands, done.reads.bytes), (2, 512));
        assert_eq!((done.others.commands, done.aborted, done.in_flight), (1, 1, 0));
    }
}
