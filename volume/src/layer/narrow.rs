//! Small blocks over a volume with larger ones: what does not fill a block beneath is read, merged
//! and written back under a lock on that block.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join;

use super::owned;
use super::range_lock::RangeLock;
use crate::{
    Discard, Durability, Extent, ExtentMap, Kind, Result, Shape, Space, Span, TRANSFER_MAX, Verb,
    Volume, Work,
};

/// Runs work to its end even if its answer is no longer wanted: a task of its own, on a runtime this
/// crate does not know.
pub type Detach = fn(Work<'static, ()>) -> Work<'static, ()>;

/// A volume with blocks of `block_size` over one with larger blocks.
pub struct Narrow {
    inner: Arc<dyn Volume>,
    shape: Shape,
    locks: Arc<RangeLock>,
    detach: Detach,
}

impl Narrow {
    /// Offers blocks of `block_size` over `inner`.
    ///
    /// A merge that is given up half way would leave a write in flight that carries old neighbours
    /// and could land after their next write; `detach` must therefore finish what it is given.
    ///
    /// # Panics
    ///
    /// If the blocks of `inner` are not whole multiples of `block_size`.
    pub fn new(inner: Arc<dyn Volume>, block_size: u32, detach: Detach) -> Self {
        let mut shape = inner.shape().clone();
        assert!(shape.block_size.is_multiple_of(block_size));
        let granularity = shape.block_size;
        shape.discard = shape.discard.map(|discard| Discard {
            granularity: discard.granularity.max(granularity),
            ..discard
        });
        shape.block_size = block_size;
        Self { inner, shape, locks: Arc::default(), detach }
    }

    fn block(&self) -> u64 {
        u64::from(self.inner.shape().block_size)
    }

    /// The blocks beneath that `span` touches.
    fn widened(&self, span: Span) -> Span {
        let at = span.at - span.at % self.block();
        Span::new(at, span.end().next_multiple_of(self.block()) - at)
    }

    /// The blocks beneath that `span` fills, cut out of it.
    fn split(&self, span: Span) -> Split {
        let start = span.at.next_multiple_of(self.block()).min(span.end());
        let end = (span.end() - span.end() % self.block()).max(start);
        Split {
            head: Span::new(span.at, start - span.at),
            whole: Span::new(start, end - start),
            tail: Span::new(end, span.end() - end),
        }
    }

    /// Writes part of one block beneath.
    async fn merge(&self, at: u64, data: Bytes, durability: Durability) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let block = self.widened(Span::new(at, data.len() as u64));
        let (inner, locks) = (Arc::clone(&self.inner), Arc::clone(&self.locks));
        let merge = async move {
            let _guard = locks.exclusive(block).await;
            if inner.is_saving() {
                return inner.save_part(at, data).await;
            }
            let old = match inner.read(block).await {
                Ok(old) => old,
                Err(why) => {
                    // It may have been acknowledged long ago: whoever can save it must hear of it.
                    let _ = inner.save_part(at, data).await;
                    return Err(why);
                }
            };
            let mut merged = owned(old);
            let offset = (at - block.at) as usize;
            merged[offset..offset + data.len()].copy_from_slice(&data);
            inner.write(block.at, merged.freeze(), durability).await
        };
        (self.detach)(Box::pin(merge)).await
    }

    async fn zero_ends(&self, head: Span, tail: Span, durability: Durability) -> Result<()> {
        let zeroes = |part: Span| Bytes::from(vec![0; part.len as usize]);
        let head = self.merge(head.at, zeroes(head), durability);
        let tail = self.merge(tail.at, zeroes(tail), durability);
        both(join(head, tail).await)
    }
}

/// The first error of two parts that have both ended.
fn both((head, tail): (Result<()>, Result<()>)) -> Result<()> {
    head.and(tail)
}

/// A span by how it lies on the blocks beneath: at most one block's part, whole blocks, and again at
/// most one block's part.
struct Split {
    head: Span,
    whole: Span,
    tail: Span,
}

impl Volume for Narrow {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        let wide = self.widened(span);
        if wide == span {
            return self.inner.read(span);
        }
        Box::pin(async move {
            let start = (span.at - wide.at) as usize;
            let most = u64::from(TRANSFER_MAX);
            let bytes = if wide.len <= most {
                self.inner.read(wide).await?
            } else {
                // Widened by less than two blocks, it needs one more read.
                let mut bytes = owned(self.inner.read(Span::new(wide.at, most)).await?);
                let rest = Span::new(wide.at + most, wide.len - most);
                bytes.extend_from_slice(&self.inner.read(rest).await?);
                bytes.freeze()
            };
            Ok(bytes.slice(start..start + span.len as usize))
        })
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let Split { head, whole, tail } = self.split(Span::new(at, data.len() as u64));
        Box::pin(async move {
            let part = |span: Span| data.slice((span.at - at) as usize..(span.end() - at) as usize);
            let written = if whole.is_empty() {
                Ok(())
            } else {
                let _guard = self.locks.shared(whole).await;
                self.inner.write(whole.at, part(whole), durability).await
            };
            // Whatever failed, all of it is handed on: what is beneath may save it.
            let head = self.merge(head.at, part(head), durability);
            let tail = self.merge(tail.at, part(tail), durability);
            written.and(both(join(head, tail).await))
        })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        let Split { head, whole, tail } = self.split(span);
        Box::pin(async move {
            let zeroed = if whole.is_empty() {
                Ok(())
            } else {
                let _guard = self.locks.shared(whole).await;
                self.inner.write_zeroes(whole, durability, space).await
            };
            zeroed.and(self.zero_ends(head, tail, durability).await)
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        let Split { head, whole, tail } = self.split(span);
        let zeroed = self.shape.discard.is_some_and(|discard| discard.reads_zeroes);
        Box::pin(async move {
            if !whole.is_empty() {
                let _guard = self.locks.shared(whole).await;
                self.inner.discard(whole).await?;
            }
            if !zeroed {
                // Parts of a block are below the granularity, so they may be kept as they are.
                return Ok(());
            }
            self.zero_ends(head, tail, Durability::Volatile).await
        })
    }

    fn flush(&self) -> Work<'_, ()> {
        self.inner.flush()
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents().is_some().then_some(self)
    }
}

impl ExtentMap for Narrow {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        let Some(map) = self.inner.extents() else {
            let unsupported = crate::Error::new(Kind::Unsupported, Verb::Extents, span);
            return Box::pin(std::future::ready(Err(unsupported)));
        };
        Box::pin(async move {
            let mut extents = map.extents(self.widened(span)).await?;
            for extent in &mut extents {
                let at = extent.span.at.max(span.at);
                extent.span = Span::new(at, extent.span.end().min(span.end()) - at);
            }
            Ok(extents)
        })
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::check;
    use crate::store::faulty::Faulty;
    use crate::store::memory::Memory;

    fn detach(work: Work<'static, ()>) -> Work<'static, ()> {
        let task = tokio::spawn(work);
        Box::pin(async { task.await.expect("the task runs to its end") })
    }

    fn narrow(inner: impl Volume + 'static) -> Narrow {
        Narrow::new(Arc::new(inner), 512, detach)
    }

    #[tokio::test]
    async fn keeps_the_contract() {
        check::volume(11, Arc::new(narrow(Memory::new(40 << 20, 4096)))).await;
        check::volume(12, Arc::new(narrow(Faulty::new(5 << 20, 4096)))).await;
        check::truth(4096, async |disk| Arc::new(narrow(disk)) as Arc<dyn Volume>).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn writers_in_one_block_do_not_undo_one_another() {
        check::neighbours(Arc::new(narrow(Memory::new(8192, 4096)))).await;
    }

    #[tokio::test]
    async fn a_failed_read_fails_the_write_and_changes_nothing() {
        let disk = Arc::new(Faulty::new(8192, 4096));
        disk.fail(Verb::Read, Kind::Medium);
        let volume = Narrow::new(Arc::clone(&disk) as Arc<dyn Volume>, 512, detach);
        let data = Bytes::from(vec![1; 512]);
        let failed = volume.write(512, data.clone(), Durability::Volatile).await.unwrap_err();
        assert_eq!(failed.kind, Kind::Medium);
        assert_eq!(disk.contents(), vec![0; 8192]);
        volume.write(512, data, Durability::Volatile).await.unwrap();
        assert_eq!(disk.contents()[512..1024], [1; 512]);
    }
}
