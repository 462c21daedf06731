//! The copy engine: one volume onto another, many requests in flight, holes left holes.
//!
//! [`plan`] cuts the source into pieces by what the maps of both sides know; the engine moves the
//! pieces, finds the zeroes no map told of, and flushes before it reports anything.

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt};
use volume::{Durability, Space, Span, Volume, complete_all};

mod plan;
#[cfg(test)]
mod tests;

use plan::{Piece, Plan};

/// Bytes of one read and one write: large enough that a request's overhead vanishes.
const CHUNK: u64 = 1 << 20;

/// Pieces in flight: with [`CHUNK`] 16 MiB, which fills 1 Gbit/s at a round trip of 128 ms.
const DEPTH: usize = 16;

/// The unit in which zeroes are looked for, unless the destination's own is larger.
const GRANULE: u64 = 4096;

/// Shorter runs of zeroes travel as data: a request of their own would cost more.
const ZERO_RUN_MIN: usize = 32 << 10;

/// What zeroes look like.
static ZEROES: [u8; CHUNK as usize] = [0; CHUNK as usize];

/// What a copy did, in bytes. The three together are the size of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Written as data.
    pub written: u64,
    /// Zeroed by a command.
    pub zeroed: u64,
    /// Zero on both sides already.
    pub skipped: u64,
}

/// Why a copy ended early. What was copied until then is in no particular order.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The source failed.
    #[error("reading the source")]
    Source(#[source] volume::Error),
    /// The destination failed.
    #[error("writing the destination")]
    Destination(#[source] volume::Error),
    /// The destination failed while it was read back.
    #[error("reading the destination back")]
    ReadBack(#[source] volume::Error),
    /// It ends before the source does.
    #[error("the destination has {has} bytes, {needs} are needed")]
    TooSmall {
        /// Bytes it has.
        has: u64,
        /// Bytes of the source.
        needs: u64,
    },
    /// The source ends inside a block of the destination.
    #[error(
        "{size} bytes are not a whole number of the destination's blocks of {block_size} bytes"
    )]
    PartialBlock {
        /// Bytes of the source.
        size: u64,
        /// Bytes in a block of the destination.
        block_size: u32,
    },
    /// What was read back is not what was written.
    #[error("the destination differs from the source at byte {0}")]
    Differs(u64),
}

/// Copies all of `source` to the front of `destination` and flushes it. `advance` hears of every
/// byte dealt with.
pub async fn copy(
    source: &dyn Volume,
    destination: &dyn Volume,
    advance: impl Fn(u64),
) -> Result<Report, CopyError> {
    check_sizes(source, destination)?;
    let mut report = Report::default();
    let moves = pieces(Plan::new(source, destination))
        .map(|piece| async move { move_piece(source, destination, piece?).await });
    let moved = complete_all(DEPTH, moves, |done: Report| {
        report.written += done.written;
        report.zeroed += done.zeroed;
        report.skipped += done.skipped;
        advance(done.written + done.zeroed + done.skipped);
    });
    moved.await?;
    destination.flush().await.map_err(CopyError::Destination)?;
    Ok(report)
}

/// Reads both sides and compares them, over the length of the source.
pub async fn verify(
    source: &dyn Volume,
    destination: &dyn Volume,
    advance: impl Fn(u64),
) -> Result<(), CopyError> {
    let span = Span::new(0, source.shape().size);
    let compared = span.pieces(CHUNK).map(|span| compare(source, destination, span));
    complete_all(DEPTH, stream::iter(compared), advance).await
}

fn check_sizes(source: &dyn Volume, destination: &dyn Volume) -> Result<(), CopyError> {
    let (needs, to) = (source.shape().size, destination.shape());
    if to.size < needs {
        return Err(CopyError::TooSmall { has: to.size, needs });
    }
    if !needs.is_multiple_of(u64::from(to.block_size)) {
        return Err(CopyError::PartialBlock { size: needs, block_size: to.block_size });
    }
    Ok(())
}

fn pieces<'a>(plan: Plan<'a>) -> impl Stream<Item = Result<Piece, CopyError>> + 'a {
    stream::try_unfold(plan, |mut plan| async { Ok(plan.next().await?.map(|piece| (piece, plan))) })
}

async fn move_piece(
    source: &dyn Volume,
    destination: &dyn Volume,
    piece: Piece,
) -> Result<Report, CopyError> {
    match piece {
        Piece::Skip(span) => Ok(Report { skipped: span.len, ..Report::default() }),
        Piece::Zero(span) => {
            write_zeroes(destination, span).await?;
            Ok(Report { zeroed: span.len, ..Report::default() })
        }
        Piece::Data { span, blank } => {
            let data = source.read(span).await.map_err(CopyError::Source)?;
            write(destination, span.at, data, blank).await
        }
    }
}

/// Writes what is not zero. Zeroes are left out where the destination is `blank`, and become a
/// command where that is cheaper.
async fn write(
    destination: &dyn Volume,
    at: u64,
    mut data: Bytes,
    blank: bool,
) -> Result<Report, CopyError> {
    let shape = destination.shape();
    let granule = u64::from(shape.physical_block_size).clamp(GRANULE, CHUNK) as usize;
    let mut report = Report::default();
    let mut at = at;
    while !data.is_empty() {
        let (zero, len) = first_run(&data, granule, blank || shape.fast_zeroes);
        let run = data.split_to(len);
        let span = Span::new(at, len as u64);
        at = span.end();
        if zero && blank {
            report.skipped += span.len;
        } else if zero {
            write_zeroes(destination, span).await?;
            report.zeroed += span.len;
        } else {
            let written = destination.write(span.at, run, Durability::Volatile).await;
            written.map_err(CopyError::Destination)?;
            report.written += span.len;
        }
    }
    Ok(report)
}

async fn write_zeroes(destination: &dyn Volume, span: Span) -> Result<(), CopyError> {
    let zeroed = destination.write_zeroes(span, Durability::Volatile, Space::Release).await;
    zeroed.map_err(CopyError::Destination)
}

/// The run at the front of `data`: whether it is zeroes worth telling apart, and how long it is.
fn first_run(data: &[u8], granule: usize, tell_apart: bool) -> (bool, usize) {
    if !tell_apart {
        return (false, data.len());
    }
    let leading = zeroes_at_front(data, granule);
    if leading >= ZERO_RUN_MIN || leading == data.len() {
        return (true, leading);
    }
    let mut len = leading;
    while len < data.len() {
        let zeroes = zeroes_at_front(&data[len..], granule);
        if zeroes >= ZERO_RUN_MIN {
            break;
        }
        // Whatever ended the run of zeroes is not zero: take it along.
        len = (len + zeroes + granule).min(data.len());
    }
    (false, len)
}

/// How many bytes at the front are zero, in whole granules (the last may be short).
fn zeroes_at_front(data: &[u8], granule: usize) -> usize {
    data.chunks(granule).take_while(|granule| is_zero(granule)).map(<[u8]>::len).sum()
}

fn is_zero(data: &[u8]) -> bool {
    ZEROES.get(..data.len()).is_some_and(|zeroes| data == zeroes)
}

async fn compare(
    source: &dyn Volume,
    destination: &dyn Volume,
    span: Span,
) -> Result<u64, CopyError> {
    let (was, is) = futures_util::future::join(source.read(span), destination.read(span)).await;
    let (was, is) = (was.map_err(CopyError::Source)?, is.map_err(CopyError::ReadBack)?);
    if was != is {
        let same = was.iter().zip(&is).take_while(|(was, is)| was == is).count();
        return Err(CopyError::Differs(span.at + same as u64));
    }
    Ok(span.len)
}
