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
use super::writeback::{self, InPlace};
use crate::failure::{OrFail, Outcome};

/// The header of `volume`, both copies of it the same; as it is where the volume takes no writes.
pub(super) async fn fetch(volume: &Arc<dyn Volume>) -> Outcome<Image> {
    let image = Image::fetch(volume).await.map_err(super::image::ImageError::into_failure)?;
    let Some(old) = Header::superseded(&image.bytes) else { return Ok(image) };
    let size = volume.shape().size;
    if volume.shape().read_only {
        return Ok(image);
    }
    tracing::info!(
        uuid = image.header.uuid,
        "a change of the LUKS2 header was cut short: finishing it"
    );
    wipe(volume, &gone(&old, &image.header)).await?;
    let (image, settled) = blocking(move || {
        let settled = Image::changed(library::repaired(&image, size)?, size)?;
        Ok((image, settled))
    })
    .await?;
    writeback::write(volume, Some(&image), &settled, InPlace::Refused).await?;
    Ok(settled)
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
    let what = || "cannot wipe the key slots that were removed".to_owned();
    let pieces = areas.iter().flat_map(|area| area.pieces(PIECE));
    for piece in pieces {
        let mut noise = vec![0; piece.len as usize];
        getrandom::fill(&mut noise).or_fail(|| "the system gives no random numbers".to_owned())?;
        volume.write(piece.at, Bytes::from(noise), Durability::Volatile).await.or_fail(what)?;
    }
    volume.flush().await.or_fail(what)
}
