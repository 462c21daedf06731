//! Reads that do not wait for ever, of a volume that does: its changes are safe elsewhere meanwhile. And a volume that has
//! grown, at the size that it had.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use volume::{Durability, Error, ExtentMap, Kind, Ordered, Shape, Space, Span, Verb, Volume, Work};

use crate::store::abilities::Probe;
use crate::store::scsi::State;

/// A volume whose reads fail once an outage has lasted too long, at the size that it had.
pub(super) struct LimitedReads {
    inner: Arc<dyn Volume>,
    /// How the connection is.
    state: Box<dyn Fn() -> State + Send + Sync>,
    limit: Option<Duration>,
    shape: Shape,
}

impl LimitedReads {
    /// Over the first `size` bytes of `inner`; all of it without a limit is that itself.
    pub(super) fn over(
        inner: Arc<dyn Volume>,
        probe: Arc<dyn Probe>,
        limit: Option<Duration>,
        size: u64,
    ) -> Arc<dyn Volume> {
        if limit.is_none() && size == inner.shape().size {
            return inner;
        }
        let shape = Shape { size, ..inner.shape().clone() };
        Arc::new(Self { inner, state: Box::new(move || probe.state()), limit, shape })
    }

    /// Ends once the connection has been out for too long.
    async fn too_late(&self) {
        let Some(limit) = self.limit else { return std::future::pending().await };
        loop {
            let left = match (self.state)() {
                State::Reconnecting { lasted, .. } => limit.saturating_sub(lasted),
                // A connection that stands may carry this read, though others have no answer.
                State::Connected | State::Unanswered { .. } | State::Over(_) => {
                    limit.max(Duration::from_millis(100))
                }
            };
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }
}

impl Volume for LimitedReads {
    fn shape(&self) -> &Shape {
        &self.shape
    }
    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(async move {
            tokio::select! {
                biased;
                bytes = self.inner.read(span) => bytes,
                () = self.too_late() => {
                    let why = format!("there is no connection for {:?}", self.limit.unwrap_or_default());
                    Err(Error::new(Kind::Gone, Verb::Read, span).because(why))
                }
            }
        })
    }
    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        self.inner.write(at, data, durability)
    }
    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.inner.write_zeroes(span, durability, space)
    }
    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.inner.discard(span)
    }
    fn flush(&self) -> Work<'_, ()> {
        self.inner.flush()
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
    fn ordered(&self) -> Option<&dyn Ordered> {
        self.inner.ordered()
    }
}

#[cfg(test)]
mod tests {
    use volume::check;
    use volume::store::memory::Memory;

    use super::*;

    fn over(inner: Arc<dyn Volume>) -> Arc<dyn Volume> {
        let (state, limit) = (Box::new(|| State::Connected), Some(Duration::from_secs(3600)));
        let shape = inner.shape().clone();
        Arc::new(LimitedReads { inner, state, limit, shape })
    }

    #[tokio::test]
    async fn limited_reads_keep_the_contract_and_tell_the_truth() {
        check::volume(22, over(Arc::new(Memory::new(5 << 20, 512)))).await;
        check::truth(512, async |disk| over(disk)).await;
    }
}
