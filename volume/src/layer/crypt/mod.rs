//! Encryption at rest: the payload of a LUKS2 volume, sector by sector. `docs/spec/seal.md` says what
//! lies where and what this does not protect from.

mod cipher;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use std::convert::Infallible;

use super::owned;
use crate::{
    Durability, Error, Extent, ExtentMap, Kind, Result, Shape, Space, Span, Verb, Volume, Work,
    complete_all,
};

pub use cipher::{Ciphering, SectorCipher, TWEAK_UNIT};

/// Zeroes are encrypted and sent in pieces of this size, so that a whole volume can be zeroed in little
/// memory ...
const ZERO_PIECE: u64 = 1 << 20;

/// ... this many at a time, which keeps a gigabit link of 100 ms full (12.5 MB in flight).
const ZERO_PIECES_IN_FLIGHT: usize = 16;

/// Where the encrypted bytes lie in the volume beneath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The payload, without the header.
    pub span: Span,
    /// The tweak of its first sector; zero unless a header says otherwise.
    pub first_tweak: u64,
}

/// Whether the volume beneath may learn which blocks are unused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discards {
    /// Discard is not offered.
    #[default]
    Refuse,
    /// Discards and zeroes are passed on, and a block of 512 bytes whose ciphertext is all zeroes reads
    /// as zeroes. The store then sees which blocks are in use, and may zero any block unnoticed.
    Pass,
}

/// A volume whose bytes leave it enciphered.
pub struct Crypt<V, C> {
    inner: V,
    cipher: C,
    segment: Segment,
    discards: Discards,
    shape: Shape,
}

impl<V: Volume, C: SectorCipher> Crypt<V, C> {
    /// Encrypts `segment` of `inner`, down to the last whole sector, with `cipher`.
    ///
    /// Writes smaller than a sector need no read: blocks of 512 bytes are enciphered independently
    /// (see [`SectorCipher`]), so only the blocks beneath limit what can be written.
    ///
    /// # Panics
    ///
    /// If the segment is outside `inner`, holds no sector, or is not aligned to the blocks beneath.
    pub fn new(inner: V, cipher: C, segment: Segment, discards: Discards) -> Self {
        let beneath = inner.shape();
        let sector = cipher.sector_size();
        let unit = u64::from(sector.max(beneath.block_size));
        let size = segment.span.len - segment.span.len % unit;
        assert!(segment.span.end() <= beneath.size && size > 0);
        assert!(segment.span.at.is_multiple_of(u64::from(beneath.block_size)));
        let shape = Shape {
            size,
            physical_block_size: beneath.physical_block_size.max(sector),
            discard: beneath.discard.filter(|_| discards == Discards::Pass),
            // Zeroes are encrypted like anything else, so that dm-crypt reads them as zeroes too, unless
            // zeroes beneath read as zeroes here.
            fast_zeroes: beneath.fast_zeroes && discards == Discards::Pass,
            ..beneath.clone()
        };
        Self { inner, cipher, segment, discards, shape }
    }

    /// A span of the payload as the volume beneath counts.
    const fn beneath(&self, span: Span) -> Span {
        Span::new(self.segment.span.at + span.at, span.len)
    }

    const fn tweak(&self, at: u64) -> u64 {
        // plain64 is a 64-bit counter that wraps.
        self.segment.first_tweak.wrapping_add(at / TWEAK_UNIT)
    }

    /// The sectors that `span` touches.
    fn sectors(&self, span: Span) -> Span {
        let sector = u64::from(self.cipher.sector_size());
        let at = span.at - span.at % sector;
        Span::new(at, span.end().next_multiple_of(sector) - at)
    }

    async fn encrypted(&self, at: u64, plain: Bytes) -> Bytes {
        let span = Span::new(at, plain.len() as u64);
        let sectors = self.sectors(span);
        let whole = filled(sectors, span, plain);
        let encrypted = self.cipher.encrypt(self.tweak(sectors.at), whole).await;
        cut(sectors, span, encrypted)
    }

    async fn opened(&self, at: u64, encrypted: Bytes) -> Bytes {
        let span = Span::new(at, encrypted.len() as u64);
        let sectors = self.sectors(span);
        let holes = match self.discards {
            Discards::Refuse => Vec::new(),
            Discards::Pass => holes(&encrypted),
        };
        let whole = filled(sectors, span, encrypted);
        let mut plain = self.cipher.decrypt(self.tweak(sectors.at), whole).await;
        let shift = (span.at - sectors.at) as usize;
        for hole in holes {
            plain[shift + hole..shift + hole + TWEAK_UNIT as usize].fill(0);
        }
        cut(sectors, span, plain)
    }
}

/// `sectors` with `data` at `span` in them: the data themselves if they fill them and are nobody
/// else's, which saves a copy. The rest is zero; it is ciphered in vain, and cut off again.
fn filled(sectors: Span, span: Span, data: Bytes) -> BytesMut {
    if sectors == span {
        return owned(data);
    }
    let mut whole = BytesMut::zeroed(sectors.len as usize);
    let start = (span.at - sectors.at) as usize;
    whole[start..start + data.len()].copy_from_slice(&data);
    whole
}

fn cut(sectors: Span, span: Span, whole: BytesMut) -> Bytes {
    let start = (span.at - sectors.at) as usize;
    whole.freeze().slice(start..start + span.len as usize)
}

/// Where blocks of 512 bytes are all zero. Ciphertext is so by chance once in 2^4096 blocks.
fn holes(encrypted: &[u8]) -> Vec<usize> {
    const ZEROES: [u8; TWEAK_UNIT as usize] = [0; TWEAK_UNIT as usize];
    // Compared as a whole, which takes a few instructions; byte by byte it takes longer than deciphering.
    let blocks = encrypted.chunks_exact(ZEROES.len()).enumerate();
    blocks.filter(|(_, block)| *block == ZEROES).map(|(index, _)| index * ZEROES.len()).collect()
}

impl<V: Volume, C: SectorCipher> Volume for Crypt<V, C> {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(async move {
            let encrypted = self.inner.read(self.beneath(span)).await?;
            Ok(self.opened(span.at, encrypted).await)
        })
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        Box::pin(async move {
            let encrypted = self.encrypted(at, data).await;
            self.inner.write(self.segment.span.at + at, encrypted, durability).await
        })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        if self.shape.fast_zeroes {
            return self.inner.write_zeroes(self.beneath(span), durability, space);
        }
        // Cut where sectors end, so that only the ends of the span are padded.
        let first = (ZERO_PIECE - span.at % ZERO_PIECE).min(span.len);
        let rest = Span::new(span.at + first, span.len - first);
        let pieces = std::iter::once(Span::new(span.at, first)).chain(rest.pieces(ZERO_PIECE));
        let writes = pieces.map(move |piece| {
            let zeroes = BytesMut::zeroed(piece.len as usize).freeze();
            let write = self.write(piece.at, zeroes, durability);
            async move { Ok::<_, Infallible>(write.await) }
        });
        Box::pin(async move {
            let mut zeroed = Ok(());
            // Whatever failed, all of it is handed on: what is beneath may save what was acknowledged.
            let each =
                |written: Result<()>| zeroed = std::mem::replace(&mut zeroed, Ok(())).and(written);
            let Ok(()) = complete_all(ZERO_PIECES_IN_FLIGHT, stream::iter(writes), each).await;
            zeroed
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.inner.discard(self.beneath(span))
    }

    fn flush(&self) -> Work<'_, ()> {
        self.inner.flush()
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.inner.extents().is_some().then_some(self)
    }
}

impl<V: Volume, C: SectorCipher> Crypt<V, C> {
    /// A hole beneath is a hole here, but it reads as zeroes only where discards are passed on:
    /// otherwise its zeroes are deciphered like anything else.
    fn lifted(&self, extent: Extent) -> Extent {
        let span = Span::new(extent.span.at - self.segment.span.at, extent.span.len);
        Extent { span, zero: extent.zero && self.discards == Discards::Pass, ..extent }
    }
}

impl<V: Volume, C: SectorCipher> ExtentMap for Crypt<V, C> {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let Some(map) = self.inner.extents() else {
                return Result::Err(Error::new(Kind::Unsupported, Verb::Extents, span));
            };
            let extents = map.extents(self.beneath(span)).await?;
            Ok(extents.into_iter().map(|extent| self.lifted(extent)).collect())
        })
    }
}

#[cfg(test)]
mod tests;
