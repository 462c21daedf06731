//! The checkpoint of a journal on an encrypted volume: by it an older copy of the journal's file is known.

use std::sync::Arc;

use volume::layer::journal::{Checkpoint, Recovered};
use volume::{Durability, Span, Volume};

use crate::failure::{Failure, OrFail, Outcome};

/// The least that is written there.
const LEN_MIN: u64 = 4096;

/// Where checkpoints are written, in whole blocks; `None` if the place that begins at `at` has no such.
pub(super) fn span(at: u64, volume: &dyn Volume) -> Option<Span> {
    let block = u64::from(volume.shape().block_size);
    at.is_multiple_of(block).then_some(Span::new(at, block.max(LEN_MIN)))
}

/// Refuses what a journal holds if the volume was given something since that it does not have. A volume whose checkpoint
/// cannot be read has none: it is of before there were any, or its header was brought back from a backup.
pub(super) async fn check(
    volume: &Arc<dyn Volume>,
    place: Option<Span>,
    found: &Recovered,
) -> Outcome {
    let Some(place) = place else { return Ok(()) };
    let bytes = volume.read(place).await;
    let bytes = bytes.map_err(|why| Failure::of_volume("cannot read its checkpoint", why))?;
    let Ok(checkpoint) = Checkpoint::decode(&bytes) else { return Ok(()) };
    let admitted = checkpoint.admit(found);
    admitted.or_fail(|| "what it holds would replace what is newer".to_owned()).map_err(|why| {
        why.hint("it is an older copy, from a backup for example: `longhaul journal export` saves what it holds")
    })
}

/// Says on the volume that this journal, which holds nothing, is the one that is used from now on. Were another named there,
/// what this one holds after a crash would be refused.
pub(super) async fn begin(
    volume: &Arc<dyn Volume>,
    place: Option<Span>,
    found: &Recovered,
) -> Outcome {
    let Some(place) = place else { return Ok(()) };
    let len = usize::try_from(place.len).expect("a block fits memory");
    let bytes = Checkpoint::of(found).encode(len);
    let written = volume.write(place.at, bytes.into(), Durability::Durable).await;
    written.map_err(|why| Failure::of_volume("cannot write its checkpoint", why))
}
