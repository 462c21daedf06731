//! What to do with each piece of the source, as far as the maps of both sides tell.

use std::collections::VecDeque;

use volume::{Extent, Span, Volume};

use super::{CHUNK, CopyError};

/// The most one command zeroes, so that progress is seen and a stop is heard.
const ZEROES_MAX: u64 = 256 * CHUNK;

/// The most one question to a map covers.
const QUESTION_MAX: u64 = 1024 * CHUNK;

/// A piece of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Zero on both sides.
    Skip(Span),
    /// Zero in the source.
    Zero(Span),
    /// To be read; `blank` if the destination is zero there.
    Data { span: Span, blank: bool },
}

/// Walks through the source from front to back.
pub(super) struct Plan<'a> {
    source: MapReader<'a>,
    destination: MapReader<'a>,
    at: u64,
    size: u64,
}

impl<'a> Plan<'a> {
    pub(super) fn new(source: &'a dyn Volume, destination: &'a dyn Volume) -> Self {
        let size = source.shape().size;
        Self {
            source: MapReader::new(source),
            destination: MapReader::new(destination),
            at: 0,
            size,
        }
    }

    /// The next piece; every piece but the last ends on a multiple of [`CHUNK`].
    ///
    /// What a map said of the destination still holds when the piece is written: the plan is always
    /// ahead of the writes, and nobody else writes there.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, CopyError> {
        let (at, size) = (self.at, self.size);
        if at == size {
            return Ok(None);
        }
        let from = self.source.run(at, size).await.map_err(CopyError::Source)?;
        let to = self.destination.run(at, size).await.map_err(CopyError::Destination)?;
        let both = from.end.min(to.end);
        let whole = if both == size { size } else { both - both % CHUNK };
        let piece = if from.zero && whole > at {
            if to.zero {
                Piece::Skip(Span::new(at, whole - at))
            } else {
                Piece::Zero(Span::new(at, (whole - at).min(ZEROES_MAX)))
            }
        } else {
            let span = Span::new(at, (CHUNK - at % CHUNK).min(size - at));
            Piece::Data { span, blank: to.zero && to.end >= span.end() }
        };
        let (Piece::Skip(span) | Piece::Zero(span) | Piece::Data { span, .. }) = piece;
        self.at = span.end();
        Ok(Some(piece))
    }
}

/// A stretch of one kind, from where it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    zero: bool,
    end: u64,
}

/// Reads a map from front to back.
struct MapReader<'a> {
    volume: &'a dyn Volume,
    /// What the map has said of bytes not passed yet.
    known: VecDeque<Extent>,
}

impl<'a> MapReader<'a> {
    fn new(volume: &'a dyn Volume) -> Self {
        Self { volume, known: VecDeque::new() }
    }

    /// The run at `at`, which ends by `size`. Without a map everything is data.
    async fn run(&mut self, at: u64, size: u64) -> volume::Result<Run> {
        let Some(map) = self.volume.extents() else { return Ok(Run { zero: false, end: size }) };
        while self.known.front().is_some_and(|extent| extent.span.end() <= at) {
            self.known.pop_front();
        }
        if self.known.is_empty() {
            let question = Span::new(at, (size - at).min(QUESTION_MAX));
            self.known = map.extents(question).await?.into();
        }
        let zero = self.known.front().is_some_and(|extent| extent.zero);
        let same = self.known.iter().take_while(|extent| extent.zero == zero);
        let end = same.last().map_or(size, |extent| extent.span.end().min(size));
        Ok(Run { zero, end })
    }
}
