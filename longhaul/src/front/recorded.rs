//! A volume of which a record notes what is acknowledged and not stable, for the process that goes on after this one.

use std::sync::Arc;

use bytes::Bytes;
use volume::{Durability, Error, ExtentMap, Kind, Result, Shape, Space, Span, Verb, Volume, Work};

use super::Record;

/// A volume and its record.
pub(super) struct Recorded {
    inner: Arc<dyn Volume>,
    record: Record,
}

/// A change that has not ended.
struct Running<'a>(&'a Record);

impl Recorded {
    pub(super) fn new(inner: Arc<dyn Volume>, record: Record) -> Self {
        Self { inner, record }
    }

    /// The first change that failed, if one did.
    pub(super) fn failure(&self) -> Option<String> {
        self.record.failure()
    }

    /// A change, of which the record knows before anybody can rely on it.
    fn change<'a>(&'a self, verb: Verb, span: Span, work: Work<'a, ()>) -> Work<'a, ()> {
        Box::pin(async move {
            if let Err(why) = self.record.change_begins() {
                tracing::error!(%why, "cannot note that a change begins");
                return Err(Error::new(Kind::Medium, verb, span));
            }
            let running = Running(&self.record);
            let changed = work.await;
            drop(running);
            self.noted(changed)
        })
    }

    /// The kernel is told that something failed, and not what.
    fn noted(&self, done: Result<()>) -> Result<()> {
        let is_news = |kind| !matches!(kind, Kind::ReadOnly | Kind::Range | Kind::Unsupported);
        if let Err(why) = &done
            && is_news(why.kind)
        {
            self.record.failed(why);
        }
        done
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.change_ends();
    }
}

impl Volume for Recorded {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.inner.read(span)
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        let durability = self.record.durability(durability);
        self.change(Verb::Write, span, self.inner.write(at, data, durability))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        let durability = self.record.durability(durability);
        let work = self.inner.write_zeroes(span, durability, space);
        self.change(Verb::WriteZeroes, span, work)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.change(Verb::Discard, span, self.inner.discard(span))
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async {
            let covered = self.record.flush_begins();
            let flushed = self.inner.flush().await;
            if flushed.is_ok() {
                self.record.flushed(covered);
            }
            self.noted(flushed)
        })
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
    use volume::store::hooked::{Hooked, go_on};
    use volume::store::memory::Memory;

    use super::*;

    #[tokio::test]
    async fn recorded_volume_keeps_the_contract_and_tells_the_truth() {
        let recorded = |disk| Arc::new(Recorded::new(disk, Record::default())) as Arc<dyn Volume>;
        check::volume(37, recorded(Arc::new(Memory::new(5 << 20, 512)))).await;
        check::truth(512, async |disk| recorded(disk)).await;
    }

    #[tokio::test]
    async fn record_says_what_is_not_flushed() {
        let file = tempfile::tempfile().unwrap();
        let record = Record::create(file.try_clone().unwrap()).unwrap();
        let volume = Recorded::new(Arc::new(Memory::new(1 << 20, 512)), record);
        let noted = || Record::read(file.try_clone().unwrap()).unwrap().is_unflushed();
        volume.write(0, vec![7; 512].into(), Durability::Volatile).await.unwrap();
        assert!(noted());
        volume.flush().await.unwrap();
        assert!(!noted());
    }

    #[tokio::test]
    async fn first_change_that_fails_is_kept() {
        let hooked = Hooked::new(Memory::new(1 << 20, 512), |verb, span| {
            if verb == Verb::Write {
                return Box::pin(async move { Err(Error::new(Kind::NoSpace, verb, span)) });
            }
            go_on()
        });
        let volume = Recorded::new(Arc::new(hooked), Record::default());
        volume.flush().await.unwrap();
        assert_eq!(volume.failure(), None);
        volume.write(0, vec![7; 512].into(), Durability::Volatile).await.unwrap_err();
        assert!(volume.failure().unwrap().contains("no space left"));
    }
}
