//! A volume that nobody writes to, whatever lies beneath.

use std::future::ready;

use bytes::Bytes;

use crate::{Durability, Error, ExtentMap, Kind, Shape, Space, Span, Verb, Volume, Work};

/// Refuses every change.
pub struct ReadOnly<V> {
    inner: V,
    shape: Shape,
}

impl<V: Volume> ReadOnly<V> {
    /// Only reads reach `inner`.
    pub fn new(inner: V) -> Self {
        let shape = without_writes(inner.shape());
        Self { inner, shape }
    }

    /// The same of the first `size` bytes, whole blocks, alone.
    ///
    /// # Panics
    ///
    /// If `inner` is shorter.
    pub fn front(inner: V, size: u64) -> Self {
        let Self { inner, shape } = Self::new(inner);
        assert!(size <= shape.size && size.is_multiple_of(shape.block_size.into()));
        Self { inner, shape: Shape { size, ..shape } }
    }
}

/// The shape of a volume that takes no writes over one of `shape`.
pub(super) fn without_writes(shape: &Shape) -> Shape {
    Shape {
        read_only: true,
        write_cache: false,
        discard: None,
        fast_zeroes: false,
        ..shape.clone()
    }
}

/// The answer to whatever would change such a volume.
pub(super) fn refuse(verb: Verb, span: Span) -> Work<'static, ()> {
    Box::pin(ready(Err(Error::new(Kind::ReadOnly, verb, span))))
}

impl<V: Volume> Volume for ReadOnly<V> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        self.inner.read(span)
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
        self.inner.extents()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Memory;

    #[tokio::test]
    async fn only_reads_get_through() {
        let volume = ReadOnly::new(Memory::new(4096, 512));
        let span = Span::new(0, 512);
        let write = volume.write(0, Bytes::from_static(&[1; 512]), Durability::Durable);
        let zeroes = volume.write_zeroes(span, Durability::Volatile, Space::Keep);
        for refused in [write, zeroes, volume.discard(span)] {
            assert_eq!(refused.await.unwrap_err().kind, Kind::ReadOnly);
        }
        assert_eq!(volume.read(span).await.unwrap(), vec![0; 512]);
        volume.flush().await.unwrap();
        assert!(volume.shape().read_only && Volume::extents(&volume).is_some());
    }
}
