//! Finishes a change of the header that a crash has cut short, before anything else is done with it.
//!
//! While the copies of a header differ, the older one lists the slots that the change took away: their
//! material may still be there, or half of it. It is overwritten here, and then the older copy goes too.

use std::sync::Arc;

use bytes::Bytes;
use volume::{Durability, Span, Volume};

use super::blocking;
use super::header::Header;
use super::image::Image;
use super::library;
use super::writeback::{self, Before};
use crate::failure::{Failure, OrFail, Outcome};

/// The header of `volume`, both copies of it the same; as it is where the volume takes no writes. Only for a volume
/// that a secret has opened already.
pub(super) async fn fetch(volume: &Arc<dyn Volume>) -> Outcome<Arc<Image>> {
    let image = Image::fetch(volume).await.map_err(super::image::ImageError::into_failure)?;
    finish(volume, Arc::new(image), false).await
}

/// Makes both copies of `image` the same, on the volume too, and notes in them that discards are passed on if that
/// is wanted. Where the volume takes no writes the answer is `image` as it was.
///
/// A slot must have opened before where the copies differ: what a store has put there is not worked on without one. A copy
/// that is damaged is replaced by the other one, which is whole, whoever asks for it.
pub(super) async fn finish(
    volume: &Arc<dyn Volume>,
    image: Arc<Image>,
    pass_discards: bool,
) -> Outcome<Arc<Image>> {
    let old = Header::superseded(&image.bytes);
    let notes = pass_discards && !image.header.passes_discards();
    if volume.shape().read_only {
        report(&image);
    }
    if volume.shape().read_only || (old.is_none() && image.damaged.is_none() && !notes) {
        return Ok(image);
    }
    let size = volume.shape().size;
    if let Some(old) = old {
        let uuid = &image.header.uuid;
        tracing::info!(uuid, "a change of the LUKS2 header was cut short: finishing it");
        wipe(volume, &gone(&old, &image.header)).await?;
    }
    let damaged = image.damaged;
    let (image, settled) = blocking(move || {
        let settled = Image::changed(library::settled(&image, size, pass_discards)?, size)?;
        Ok((image, settled))
    })
    .await?;
    writeback::write(volume, Before::Changed(&image), &settled).await?;
    if let Some(place) = damaged {
        let uuid = &settled.header.uuid;
        tracing::warn!(
            uuid,
            "{place} of the LUKS2 header was damaged: repaired from the other one"
        );
    }
    Ok(Arc::new(settled))
}

/// Tells a person of a damaged copy that stays so.
pub(super) fn report(image: &Image) {
    let Some(place) = image.damaged else { return };
    let uuid = &image.header.uuid;
    tracing::warn!(
        uuid,
        "{place} of the LUKS2 header is damaged, the other one is used: opening the volume to write, or `longhaul key list`, \
         repairs it"
    );
}

/// Where slots lay that the older copy lists and the newer one does not. The store may have made it up, so that only
/// what lies among the slots is believed.
fn gone(old: &Header, new: &Header) -> Vec<Span> {
    let slots = Span::new(2 * new.size, new.area() - 2 * new.size);
    let inside = |area: &Span| area.at >= slots.at && area.end() <= slots.end();
    let in_use = |area: &Span| new.slot_areas().any(|used| used.overlaps(*area));
    old.slot_areas().filter(|area| inside(area) && !in_use(area)).collect()
}

async fn wipe(volume: &Arc<dyn Volume>, areas: &[Span]) -> Outcome {
    const PIECE: u64 = 1 << 20;
    let failed = |why| Failure::of_volume("cannot wipe the key slots that were removed", why);
    let pieces = areas.iter().flat_map(|area| area.pieces(PIECE));
    for piece in pieces {
        let mut noise = vec![0; piece.len as usize];
        getrandom::fill(&mut noise).or_fail(|| "the system gives no random numbers".to_owned())?;
        volume.write(piece.at, Bytes::from(noise), Durability::Volatile).await.map_err(failed)?;
    }
    volume.flush().await.map_err(failed)
}
