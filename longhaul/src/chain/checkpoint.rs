//! The checkpoint of a journal on an encrypted volume: by it an older copy of the journal's file is known.

use std::path::Path;
use std::sync::Arc;

use volume::layer::journal::{CHECKPOINT_LEN, Checkpoint, JournalFile as _, Recovered, Stale};
use volume::{Span, Volume};

use crate::failure::{Failure, Outcome, print_error};
use crate::luks;
use crate::printable::{Quoted as _, Shown as _};
use crate::store::journal_file::OpenFile;

/// Where checkpoints are written, in whole blocks; `None` if the place that begins at `at` has no such.
pub(super) fn span(at: u64, volume: &dyn Volume) -> Option<Span> {
    let block = u64::from(volume.shape().block_size);
    at.is_multiple_of(block).then_some(Span::new(at, block.max(CHECKPOINT_LEN)))
}

/// Whether what a journal holds is written there: whoever uses an encrypted volume as it is stored may write a new one.
pub(super) fn is_changed(place: Span, found: &Recovered) -> bool {
    found.changes.iter().any(|change| change.span.overlaps(place))
}

/// The one that is there. A volume where it cannot be read as one has none: it is of before there were any, or its header was
/// brought back from a backup.
async fn read(volume: &Arc<dyn Volume>, place: Option<Span>) -> Outcome<Option<Checkpoint>> {
    let Some(place) = place else { return Ok(None) };
    let bytes = volume.read(place).await;
    let bytes = bytes.map_err(|why| Failure::of_volume("cannot read its checkpoint", why))?;
    Ok(Checkpoint::decode(&bytes).ok())
}

/// Whether the volume was given something since that the journal does not have.
pub(super) async fn stale(
    volume: &Arc<dyn Volume>,
    place: Option<Span>,
    found: &Recovered,
) -> Outcome<Option<Stale>> {
    let checkpoint = read(volume, place).await?;
    Ok(checkpoint.and_then(|checkpoint| checkpoint.admit(found).err()))
}

/// Refuses what a journal holds if it is stale; otherwise takes away what the volume has of it.
pub(super) async fn check(
    volume: &Arc<dyn Volume>,
    place: Option<Span>,
    found: &mut Recovered,
) -> Outcome {
    let Some(checkpoint) = read(volume, place).await? else { return Ok(()) };
    let Err(stale) = checkpoint.admit(found) else {
        checkpoint.apply(found);
        return Ok(());
    };
    // An earlier release, which writes no checkpoints, has used it after the other one.
    if stale == Stale::Replaced && is_named(volume, found).await {
        return Ok(());
    }
    Err(Failure::new("what it holds would replace what is newer").because(stale).hint(
        "it is an older copy, from a backup for example: `longhaul journal export` saves what it holds",
    ))
}

/// Whether a journal that holds nothing is an older copy of itself. It is refused if the newest one did not come to a clean end:
/// that may hold what was acknowledged.
pub(super) async fn is_older(
    volume: &Arc<dyn Volume>,
    place: Option<Span>,
    found: &Recovered,
    path: &Path,
) -> Outcome<bool> {
    let Some(stale @ Stale::Copy { .. }) = stale(volume, place, found).await? else {
        return Ok(false);
    };
    if !is_named(volume, found).await {
        return Ok(true);
    }
    Err(Failure::new("it is an older copy of itself").because(stale).hint(format!(
        "the newest one may hold what was acknowledged, and the volume lacks: bring it back. If it is lost, \
         `longhaul journal discard {}`, and then --take-over, go on without it",
        path.quoted()
    )))
}

/// Somebody wants all that it holds sent, whatever came later: says so if anything did.
pub(super) async fn warn(
    volume: &Arc<dyn Volume>,
    place: Option<Span>,
    found: &Recovered,
    path: &Path,
) -> Outcome {
    if let Some(stale) = stale(volume, place, found).await? {
        print_error(&format_args!(
            "longhaul: what the journal {} holds replaces what is newer: {stale}",
            path.shown()
        ));
    }
    Ok(())
}

/// Whether the header says that this journal is used, and has not come to a clean end.
async fn is_named(volume: &Arc<dyn Volume>, found: &Recovered) -> bool {
    let token = luks::journal_token(volume).await;
    token.is_ok_and(|token| token.is_some_and(|token| token.is_of(&found.superblock.id)))
}

/// Says on the volume that this journal is the one that is used from now on; whether that can be written. Were another named
/// there, what this one holds after a crash would be refused.
pub(super) async fn begin(
    volume: &Arc<dyn Volume>,
    place: Option<Span>,
    (file, found): (&OpenFile, &Recovered),
) -> Outcome<bool> {
    let Some(place) = place else { return Ok(false) };
    // The end of it may have been read from a cache, and must not be named if a power cut can take it away. Where that fails
    // the journal finds it out too, and goes on without its file.
    if let Err(why) = file.sync().await {
        tracing::debug!(%why, "no checkpoint was written");
        return Ok(false);
    }
    let written = Checkpoint::of(found).write(&**volume, place).await;
    let Err(why) = written else { return Ok(true) };
    if let Ok(None) = stale(volume, Some(place), found).await {
        tracing::warn!(%why, "no checkpoint was written: an older copy of the journal is not known by one");
        return Ok(false);
    }
    let failure = Failure::of_volume("cannot write its checkpoint", why);
    Err(failure.hint("--journal none does without a journal"))
}
