//! Comparing the members.

use std::sync::Arc;

use super::{Change, Mirror, on_member};
use crate::{Durability, Error, Kind, Result, Span, Verb};

/// How much is compared under one lock.
const PIECE: u64 = 1 << 20;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes that were compared.
    pub compared: u64,
    /// Blocks in which a member differs from the first that has all; where the first of them are.
    pub differing: u64,
    /// The first of these, as places in the mirror.
    pub places: Vec<u64>,
    /// Bytes that a member could not read.
    pub unreadable: u64,
    /// Blocks that were written anew.
    pub repaired: u64,
}

/// How many places are told.
const PLACES_MAX: usize = 8;

impl Mirror {
    /// Compares all members that have all of the mirror, beside its users. What differs, or cannot be read, is written anew
    /// from the first of them if that is to be `repaired`. `progress` is told how far it is.
    pub async fn scrub(&self, repair: bool, mut progress: impl FnMut(u64)) -> Result<Scrubbed> {
        let mut scrubbed = Scrubbed::default();
        if repair {
            if self.0.only_reads() {
                return Err(Error::new(Kind::ReadOnly, Verb::Write, None));
            }
            let first = self.0.core().first();
            self.0.record(first).await?;
        }
        for piece in Span::new(0, self.0.shape.size).pieces(PIECE) {
            self.compare(piece, repair, &mut scrubbed).await?;
            progress(piece.end());
        }
        Ok(scrubbed)
    }

    async fn compare(&self, piece: Span, repair: bool, scrubbed: &mut Scrubbed) -> Result<()> {
        let shared = &self.0;
        let _turn = shared.order.exclusive(piece).await;
        let members = shared.core().readers(piece);
        let source = shared.core().source();
        let Some(source) = source.filter(|source| members.contains(source)) else { return Ok(()) };
        let known = shared.read_from(source, piece).await;
        // A source that cannot read it is helped by the others.
        let known = match known {
            Ok(known) => known,
            Err(why) => {
                scrubbed.unreadable += piece.len;
                let others = members.iter().copied().filter(|at| *at != source);
                let Some(other) = others.min() else { return Err(why) };
                let bytes = shared.read_from(other, piece).await?;
                if repair {
                    scrubbed.repaired += self.put(source, piece, bytes.clone()).await?;
                }
                bytes
            }
        };
        scrubbed.compared += piece.len;
        let block = shared.shape.block_size as usize;
        for at in members.into_iter().filter(|at| *at != source) {
            let Ok(found) = shared.read_from(at, piece).await else {
                scrubbed.unreadable += piece.len;
                if repair {
                    scrubbed.repaired += self.put(at, piece, known.clone()).await?;
                }
                continue;
            };
            let pairs = known.chunks(block).zip(found.chunks(block)).enumerate();
            let differs: Vec<_> = pairs.filter(|(_, (one, other))| one != other).collect();
            let places = differs.iter().map(|(index, _)| piece.at + (index * block) as u64);
            let room = PLACES_MAX.saturating_sub(scrubbed.places.len());
            scrubbed.places.extend(places.take(room));
            scrubbed.differing += differs.len() as u64;
            if repair && !differs.is_empty() {
                self.put(at, piece, known.clone()).await?;
                scrubbed.repaired += differs.len() as u64;
            }
        }
        Ok(())
    }

    /// Writes a piece to one member; how many blocks it has.
    async fn put(&self, at: usize, piece: Span, bytes: bytes::Bytes) -> Result<u64> {
        let shared = &self.0;
        let Some(member) = shared.member(at) else { return Ok(0) };
        let change = Change::Write(bytes);
        let request = change.request(Arc::clone(&member.volume), piece, Durability::Durable);
        member.answer(change.verb(), on_member(piece), request.await)?;
        Ok(piece.len / u64::from(shared.shape.block_size))
    }
}
