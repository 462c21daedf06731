//! A volume that keeps nothing: it reads as zeroes, and what is written to it is gone. Benchmarks measure by it what
//! everything but the medium costs.

use std::future::ready;
use std::sync::Arc;

use bytes::Bytes;
use volume::{Durability, Extent, ExtentMap, Gate, Shape, Space, Span, TRANSFER_MAX, Volume, Work};

use super::abilities::Opened;

/// Zeroes.
struct Null {
    shape: Shape,
    zeroes: Bytes,
}

/// One of `size` bytes, in blocks of `block_size`.
#[must_use]
pub fn open(size: u64, block_size: u32) -> Opened {
    let shape = Shape::in_memory(size, block_size);
    // The system lends one page of zeroes for all of it as long as nobody writes there.
    let zeroes = vec![0; TRANSFER_MAX as usize].into();
    Opened::plain(Arc::new(Gate::new("null", Null { shape, zeroes })))
}

impl Volume for Null {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(ready(Ok(self.zeroes.slice(..span.len as usize))))
    }

    fn write(&self, _at: u64, _data: Bytes, _durability: Durability) -> Work<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn write_zeroes(&self, _span: Span, _durability: Durability, _space: Space) -> Work<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn discard(&self, _span: Span) -> Work<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        Some(self)
    }
}

impl ExtentMap for Null {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(ready(Ok(vec![Extent { span, hole: true, zero: true }])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The conformance suite asks that data come back, which is all that this store does not do.
    #[tokio::test]
    async fn null_reads_zeroes_wherever_it_was_written_to() {
        let volume = open(1 << 40, 4096).volume;
        let data = Bytes::from(vec![7; 4096]);
        volume.write(8192, data.clone(), Durability::Durable).await.unwrap();
        assert_eq!(volume.read(Span::new(8192, 4096)).await.unwrap(), vec![0; 4096]);
        let whole = volume.read(Span::new(0, u64::from(TRANSFER_MAX))).await.unwrap();
        assert!(whole.len() == TRANSFER_MAX as usize && whole.iter().all(|byte| *byte == 0));
        volume.flush().await.unwrap();
        assert!(volume.write(1 << 40, data, Durability::Volatile).await.is_err(), "beyond its end");
        assert!(volume.read(Span::new(512, 512)).await.is_err(), "no whole block");
    }
}
