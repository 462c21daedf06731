//! A volume whose end is no whole block beneath: the last block is filled up with zeroes. It takes no writes.

use std::future::ready;

use bytes::{Bytes, BytesMut};

use super::read_only::{refuse, without_writes};
use crate::{Durability, Extent, ExtentMap, Shape, Space, Span, Verb, Volume, Work};

/// The whole blocks of `inner`, and one more.
pub struct Padded<V> {
    inner: V,
    tail: Bytes,
    shape: Shape,
}

impl<V: Volume> Padded<V> {
    /// Puts `tail`, at most a block, behind `inner`.
    ///
    /// # Panics
    ///
    /// If `tail` is longer than a block.
    pub fn new(inner: V, tail: &[u8]) -> Self {
        let beneath = inner.shape();
        let block = beneath.block_size as usize;
        assert!(tail.len() <= block);
        let mut padded = BytesMut::zeroed(block);
        padded[..tail.len()].copy_from_slice(tail);
        let shape = Shape { size: beneath.size + block as u64, ..without_writes(beneath) };
        Self { inner, tail: padded.freeze(), shape }
    }

    /// Puts zeroes behind `inner`, up to a multiple of `unit`, itself a multiple of its blocks.
    pub fn to_multiple_of(inner: V, unit: u32) -> Self {
        let beneath = inner.shape();
        let size = beneath.size.next_multiple_of(unit.into());
        let tail = BytesMut::zeroed((size - beneath.size) as usize).freeze();
        let shape = Shape { size, ..without_writes(beneath) };
        Self { inner, tail, shape }
    }

    /// The part of `span` that lies beneath, and that behind it.
    fn split(&self, span: Span) -> (Span, Span) {
        let end = self.inner.shape().size;
        let beneath = Span::new(span.at, end.saturating_sub(span.at).min(span.len));
        let behind = span.at.max(end);
        (beneath, Span::new(behind, span.end().saturating_sub(behind)))
    }

    fn tail(&self, behind: Span) -> Bytes {
        let at = (behind.at - self.inner.shape().size) as usize;
        self.tail.slice(at..at + behind.len as usize)
    }
}

impl<V: Volume> Volume for Padded<V> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        match self.split(span) {
            (beneath, Span { len: 0, .. }) => self.inner.read(beneath),
            (Span { len: 0, .. }, behind) => Box::pin(ready(Ok(self.tail(behind)))),
            (beneath, behind) => Box::pin(async move {
                let front = self.inner.read(beneath).await?;
                Ok([&front[..], &self.tail(behind)].concat().into())
            }),
        }
    }

    fn write(&self, at: u64, data: Bytes, _: Durability) -> Work<'_, ()> {
        refuse(Verb::Write, Span::new(at, data.len() as u64))
    }

    fn write_zeroes(&self, span: Span, _: Durability, _: Space) -> Work<'_, ()> {
        refuse(Verb::WriteZeroes, span)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        refuse(Verb::Discard, span)
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents().is_some().then_some(self)
    }
}

impl<V: Volume> ExtentMap for Padded<V> {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let (beneath, behind) = self.split(span);
            let mut extents = match self.inner.extents() {
                Some(map) if beneath.len > 0 => map.extents(beneath).await?,
                _ => Vec::new(),
            };
            let told = extents.last().map_or(span.at, |extent| extent.span.end());
            if behind.len > 0 && told >= self.inner.shape().size {
                let zero = self.tail(behind).iter().all(|&byte| byte == 0);
                extents.push(Extent { span: behind, hole: false, zero });
            }
            Ok(extents)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::store::memory::Memory;

    #[tokio::test]
    async fn last_block_is_filled_up_with_zeroes() {
        let inner = Memory::new(1024, 512);
        inner.write(0, Bytes::from(vec![1; 1024]), Durability::Volatile).await.unwrap();
        let volume = Padded::new(inner, &[2; 100]);
        let expected = [vec![1; 1024], vec![2; 100], vec![0; 412]].concat();
        assert_eq!(volume.shape().size, 1536);
        for (at, len) in [(0, 1536), (0, 512), (512, 1024), (1024, 512)] {
            let read = volume.read(Span::new(at, len)).await.unwrap();
            assert_eq!(read, expected[at as usize..(at + len) as usize], "{at}+{len}");
        }
        let map = Volume::extents(&volume).unwrap();
        for (at, len) in [(0, 1536), (1024, 512)] {
            let extents = map.extents(Span::new(at, len)).await.unwrap();
            assert_eq!(extents.last().unwrap().span, Span::new(1024, 512));
        }
        let write = volume.write(0, Bytes::from(vec![0; 512]), Durability::Volatile);
        assert_eq!(write.await.unwrap_err().kind, Kind::ReadOnly);
    }

    #[tokio::test]
    async fn larger_block_is_filled_up_with_zeroes() {
        let inner = Memory::new(5 * 512, 512);
        inner.write(0, Bytes::from(vec![1; 5 * 512]), Durability::Volatile).await.unwrap();
        let volume = Padded::to_multiple_of(inner, 4096);
        let expected = [vec![1; 5 * 512], vec![0; 3 * 512]].concat();
        assert_eq!(volume.shape().size, 4096);
        let map = Volume::extents(&volume).unwrap();
        for (at, len) in [(0, 4096), (4 * 512, 1024), (5 * 512, 512), (6 * 512, 1024)] {
            let span = Span::new(at, len);
            let read = volume.read(span).await.unwrap();
            assert_eq!(read, expected[at as usize..(at + len) as usize], "{at}+{len}");
            let extents = map.extents(span).await.unwrap();
            assert_eq!(extents.first().unwrap().span.at, at);
            assert_eq!(extents.last().unwrap().span.end(), at + len);
            assert_eq!(extents.last().unwrap().zero, at + len > 5 * 512);
        }
    }
}
