//! A volume in memory: sparse, thread-safe, gone with the process.

use std::future::ready;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::{Bytes, BytesMut};

use crate::{Discard, Durability, Extent, ExtentMap, Result, Shape, Space, Span, Volume, Work};

/// Memory is taken in chunks of this many bytes, when first written: small enough that a sparse
/// volume stays sparse, large enough that a request seldom touches two.
const CHUNK: usize = 256 << 10;

/// A chunk's bytes; an absent one reads as zeroes.
type Chunk = RwLock<Option<Box<[u8]>>>;

/// A volume of zeroes that remembers what is written to it.
pub struct Memory {
    shape: Shape,
    chunks: Vec<Chunk>,
}

impl Memory {
    /// `size` bytes of zeroes, in blocks of `block_size`.
    ///
    /// # Panics
    ///
    /// If `size` is not a multiple of `block_size`.
    #[must_use]
    pub fn new(size: u64, block_size: u32) -> Self {
        assert!(size.is_multiple_of(u64::from(block_size)));
        let chunks = usize::try_from(size.div_ceil(CHUNK as u64)).expect("fits the address space");
        Self {
            shape: Shape {
                size,
                block_size,
                physical_block_size: block_size,
                read_only: false,
                write_cache: false,
                discard: Some(Discard { granularity: block_size, reads_zeroes: true }),
                fast_zeroes: true,
            },
            chunks: (0..chunks).map(|_| RwLock::new(None)).collect(),
        }
    }

    fn copy_out(&self, span: Span) -> Bytes {
        let mut data = BytesMut::with_capacity(span.len as usize);
        for part in parts(span) {
            match read(&self.chunks[part.chunk]).as_deref() {
                Some(chunk) => data.extend_from_slice(&chunk[part.from..part.from + part.len]),
                None => data.resize(data.len() + part.len, 0),
            }
        }
        data.freeze()
    }

    fn copy_in(&self, at: u64, mut data: &[u8]) {
        for part in parts(Span::new(at, data.len() as u64)) {
            let (now, later) = data.split_at(part.len);
            let mut chunk = write(&self.chunks[part.chunk]);
            let chunk = chunk.get_or_insert_with(|| vec![0; CHUNK].into());
            chunk[part.from..part.from + part.len].copy_from_slice(now);
            data = later;
        }
    }

    fn zero(&self, span: Span) {
        for part in parts(span) {
            let mut chunk = write(&self.chunks[part.chunk]);
            if part.len == CHUNK {
                *chunk = None;
            } else if let Some(chunk) = chunk.as_deref_mut() {
                chunk[part.from..part.from + part.len].fill(0);
            }
        }
    }

    fn map(&self, span: Span) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = span.at;
        for part in parts(span) {
            let hole = read(&self.chunks[part.chunk]).is_none();
            let len = part.len as u64;
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.span.len += len,
                _ => extents.push(Extent { span: Span::new(at, len), hole, zero: hole }),
            }
            at += len;
        }
        extents
    }
}

/// The part of a span that lies in one chunk.
struct Part {
    chunk: usize,
    from: usize,
    len: usize,
}

fn parts(span: Span) -> impl Iterator<Item = Part> {
    let chunk = CHUNK as u64;
    (span.at / chunk..span.end().div_ceil(chunk)).map(move |index| {
        let start = span.at.max(index * chunk);
        let end = span.end().min((index + 1) * chunk);
        Part {
            chunk: index as usize,
            from: (start - index * chunk) as usize,
            len: (end - start) as usize,
        }
    })
}

// A panic while a chunk is locked leaves at worst a block half copied, which a write in flight may.
fn read(chunk: &Chunk) -> RwLockReadGuard<'_, Option<Box<[u8]>>> {
    chunk.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(chunk: &Chunk) -> RwLockWriteGuard<'_, Option<Box<[u8]>>> {
    chunk.write().unwrap_or_else(PoisonError::into_inner)
}

fn done<'a, T: Send + 'a>(value: T) -> Work<'a, T> {
    Box::pin(ready(Result::Ok(value)))
}

impl Volume for Memory {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        done(self.copy_out(span))
    }

    fn write(&self, at: u64, data: Bytes, _: Durability) -> Work<'_, ()> {
        self.copy_in(at, &data);
        done(())
    }

    fn write_zeroes(&self, span: Span, _: Durability, _: Space) -> Work<'_, ()> {
        self.zero(span);
        done(())
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.zero(span);
        done(())
    }

    fn flush(&self) -> Work<'_, ()> {
        done(())
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        Some(self)
    }
}

impl ExtentMap for Memory {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        done(self.map(span))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::check;

    #[tokio::test]
    async fn keeps_the_contract() {
        for block_size in [512, 4096] {
            check::volume(1, Arc::new(Memory::new(4 << 20, block_size))).await;
        }
    }

    #[test]
    fn takes_memory_only_for_what_is_written() {
        let memory = Memory::new(1 << 34, 512);
        memory.copy_in(1 << 33, &[7; 512]);
        assert_eq!(memory.chunks.iter().filter(|chunk| read(chunk).is_some()).count(), 1);
    }
}
