//! A volume in memory: sparse, thread-safe, gone with the process.
//!
//! Large requests do not copy. A read of a quarter of a chunk or more lends it; a write to a chunk that is lent
//! copies it first, and a write of a whole chunk keeps the buffer that the data came in.

use std::collections::TryReserveError;
use std::future::ready;
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::{Bytes, BytesMut};

use crate::{Durability, Extent, ExtentMap, Result, Shape, Space, Span, Volume, Work};

/// Memory is taken in chunks of this many bytes, when first written: small enough that a sparse
/// volume stays sparse, large enough that a request seldom touches two.
const CHUNK: usize = 256 << 10;

/// The least that is lent. What is lent stays in memory, all of its chunk, as long as the answer does: four times
/// what was asked for, at worst.
const LENT_MIN: usize = CHUNK / 4;

/// The largest buffer that is kept in place of a chunk: data come with what surrounded them on their way.
const KEPT_MAX: usize = CHUNK + CHUNK / 4;

/// How many chunks one map tells of, 16 GiB: it is drawn while the caller waits.
const MAP_MAX: usize = 1 << 16;

/// A chunk's bytes; an absent one reads as zeroes.
type Chunk = RwLock<Option<Bytes>>;

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
        Self::try_new(size, block_size).expect("there is memory for the map")
    }

    /// The same; an error if there is no memory for the map of its chunks.
    ///
    /// # Panics
    ///
    /// If `size` is not a multiple of `block_size`.
    pub fn try_new(size: u64, block_size: u32) -> std::result::Result<Self, TryReserveError> {
        assert!(size.is_multiple_of(u64::from(block_size)));
        // More than the address space holds is more than can be reserved.
        let count = usize::try_from(size.div_ceil(CHUNK as u64)).unwrap_or(usize::MAX);
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(count)?;
        chunks.resize_with(count, || RwLock::new(None));
        Ok(Self { shape: Shape::in_memory(size, block_size), chunks })
    }

    /// Bytes that the map of a volume of `size` bytes takes.
    #[must_use]
    pub const fn map_size(size: u64) -> u64 {
        size.div_ceil(CHUNK as u64).saturating_mul(size_of::<Chunk>() as u64)
    }

    fn get(&self, span: Span) -> Bytes {
        match one_part(span) {
            Some(part) if part.len >= LENT_MIN => read(&self.chunks[part.chunk])
                .as_ref()
                .map_or_else(|| vec![0; part.len].into(), |chunk| chunk.slice(part.range())),
            _ => self.copy_out(span),
        }
    }

    fn copy_out(&self, span: Span) -> Bytes {
        let mut data = BytesMut::with_capacity(span.len as usize);
        for part in parts(span) {
            match read(&self.chunks[part.chunk]).as_deref() {
                Some(chunk) => data.extend_from_slice(&chunk[part.range()]),
                None => data.resize(data.len() + part.len, 0),
            }
        }
        data.freeze()
    }

    fn put(&self, at: u64, data: Bytes) {
        let data = match one_part(Span::new(at, data.len() as u64)) {
            Some(part) if part.len == CHUNK => match fit_to_keep(data) {
                Ok(whole) => return *write(&self.chunks[part.chunk]) = Some(whole),
                Err(data) => data,
            },
            _ => data,
        };
        self.copy_in(at, &data);
    }

    fn copy_in(&self, at: u64, mut data: &[u8]) {
        for part in parts(Span::new(at, data.len() as u64)) {
            let (now, later) = data.split_at(part.len);
            change(&mut write(&self.chunks[part.chunk]), |chunk| {
                chunk[part.range()].copy_from_slice(now);
            });
            data = later;
        }
    }

    fn zero(&self, span: Span) {
        for part in parts(span) {
            let mut chunk = write(&self.chunks[part.chunk]);
            if part.len == CHUNK {
                *chunk = None;
            } else if chunk.is_some() {
                change(&mut chunk, |chunk| chunk[part.range()].fill(0));
            }
        }
    }

    fn map(&self, span: Span) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = span.at;
        for part in parts(span).take(MAP_MAX) {
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

/// Changes a chunk where it lies, or a copy of it if it is lent.
fn change(chunk: &mut Option<Bytes>, change: impl FnOnce(&mut [u8])) {
    let mut bytes = match chunk.take().map(Bytes::try_into_mut) {
        Some(Ok(own)) => own,
        Some(Err(lent)) => BytesMut::from(&lent[..]),
        None => BytesMut::zeroed(CHUNK),
    };
    change(&mut bytes);
    *chunk = Some(bytes.freeze());
}

/// Data that can stay in the buffer they came in: nobody else has it, and there is little else in it.
fn fit_to_keep(data: Bytes) -> std::result::Result<Bytes, Bytes> {
    match data.try_into_mut()? {
        own if own.capacity() <= KEPT_MAX => Ok(own.freeze()),
        large => Err(large.freeze()),
    }
}

/// The part of a span that lies in one chunk.
struct Part {
    chunk: usize,
    from: usize,
    len: usize,
}

impl Part {
    const fn range(&self) -> Range<usize> {
        self.from..self.from + self.len
    }
}

/// All of a span, if it lies in one chunk.
fn one_part(span: Span) -> Option<Part> {
    let mut parts = parts(span);
    parts.next().filter(|part| part.len as u64 == span.len)
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
fn read(chunk: &Chunk) -> RwLockReadGuard<'_, Option<Bytes>> {
    chunk.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(chunk: &Chunk) -> RwLockWriteGuard<'_, Option<Bytes>> {
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
        done(self.get(span))
    }

    fn write(&self, at: u64, data: Bytes, _: Durability) -> Work<'_, ()> {
        self.put(at, data);
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

    const WHOLE: Span = Span { at: CHUNK as u64, len: CHUNK as u64 };

    #[test]
    fn lent_buffer_does_not_change() {
        let memory = Memory::new(1 << 20, 512);
        memory.copy_in(WHOLE.at, &[1; CHUNK]);
        let (whole, half) = (memory.get(WHOLE), memory.get(Span::new(WHOLE.at, LENT_MIN as u64)));
        assert_eq!(whole.as_ptr(), half.as_ptr(), "both are the chunk itself");
        memory.copy_in(WHOLE.at, &[2; 512]);
        memory.zero(Span::new(WHOLE.at + 512, 512));
        assert!(whole.iter().chain(&half).all(|byte| *byte == 1));
        let now = memory.get(WHOLE);
        assert!(now[..512] == [2; 512] && now[512..1024] == [0; 512] && now[1024] == 1);
    }

    #[test]
    fn a_chunk_that_nobody_has_is_changed_where_it_lies() {
        let memory = Memory::new(1 << 20, 512);
        memory.copy_in(WHOLE.at, &[1; CHUNK]);
        let place = memory.get(WHOLE).as_ptr();
        memory.copy_in(WHOLE.at, &[2; 512]);
        assert_eq!(memory.get(WHOLE).as_ptr(), place);
    }

    #[test]
    fn a_whole_chunk_stays_in_the_buffer_it_came_in() {
        let memory = Memory::new(1 << 20, 512);
        let came = |len: usize| {
            let mut buffer = BytesMut::zeroed(len);
            buffer.split_off(len - CHUNK).freeze()
        };
        let (alone, shared) = (came(CHUNK + 48), came(CHUNK + 48));
        let place = alone.as_ptr();
        memory.put(WHOLE.at, alone);
        assert_eq!(memory.get(WHOLE).as_ptr(), place);
        let another = shared.clone();
        memory.put(WHOLE.at, shared);
        assert_ne!(memory.get(WHOLE).as_ptr(), another.as_ptr(), "somebody else has it");
        let mut large = BytesMut::with_capacity(4 * CHUNK);
        large.resize(CHUNK, 3);
        let place = memory.get(WHOLE).as_ptr();
        memory.put(WHOLE.at, large.freeze());
        assert_eq!(memory.get(WHOLE)[0], 3);
        assert_eq!(memory.get(WHOLE).as_ptr(), place, "copied: its buffer is too large to keep");
    }

    #[test]
    fn map_that_does_not_fit_is_an_error() {
        assert!(Memory::try_new(u64::MAX - 511, 512).is_err());
        assert_eq!(Memory::map_size(4 << 20), 16 * size_of::<Chunk>() as u64);
    }

    #[test]
    fn takes_memory_only_for_what_is_written() {
        let memory = Memory::new(1 << 34, 512);
        memory.copy_in(1 << 33, &[7; 512]);
        assert_eq!(memory.chunks.iter().filter(|chunk| read(chunk).is_some()).count(), 1);
    }
}
