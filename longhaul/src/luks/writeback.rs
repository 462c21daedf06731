//! Brings a changed header back to its volume, in an order that leaves a valid one at every moment.
//!
//! 1. Material of new slots, to places that the header on the volume does not use; flush.
//! 2. The copy that is not the newest valid one; flush. If this one is torn, the other is still what it
//!    was; once it is whole, it is the newer one, and all that it refers to is there.
//! 3. What is left: material of slots that are gone, wiped now that nothing refers to it; flush.
//! 4. The other copy; flush. Until then it says which slots were to go, so that what a crash has left to do in
//!    stage 3 is known: see [`settle`](super::settle).

use std::sync::Arc;

use bytes::Bytes;
use volume::{Durability, Span, Volume};

use super::header::Place;
use super::image::Image;
use crate::failure::{Failure, OrFail, Outcome};

/// Changes are found and written in this unit, to which LUKS2 aligns everything.
const UNIT: u64 = 4096;

/// The most that one write carries.
const WRITE_MAX: u64 = 1 << 20;

/// Whether material that a slot of the old header lives on may be replaced by that of a slot of the new
/// one, which leaves a moment at which neither opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InPlace {
    /// Never: for every change of a header that is in use.
    Refused,
    /// For a header that replaces another one, of which a copy is elsewhere. It is in place before what the
    /// other one referred to is touched.
    Allowed,
}

/// Writes what makes `new` out of `old`. Without an `old`, the area of the header must be zeroes.
pub(super) async fn write(
    volume: &Arc<dyn Volume>,
    old: Option<&Image>,
    new: &Image,
    in_place: InPlace,
) -> Outcome {
    for stage in stages(old, new, in_place)? {
        let what = || "cannot write the header; the one before is still valid".to_owned();
        for span in joined(&stage) {
            let data = Bytes::copy_from_slice(&new.bytes[span.at as usize..span.end() as usize]);
            volume.write(span.at, data, Durability::Volatile).await.or_fail(what)?;
        }
        volume.flush().await.or_fail(what)?;
    }
    Ok(())
}

fn stages(old: Option<&Image>, new: &Image, in_place: InPlace) -> Outcome<Vec<Vec<Span>>> {
    let size = new.header.size;
    let (first, second) = (Span::new(0, size), Span::new(size, size));
    let copies = match old.map(|old| old.place) {
        Some(Place::Second) => [first, second],
        Some(Place::First) | None => [second, first],
    };
    let used_before: Vec<Span> = old.iter().flat_map(|old| old.header.slot_areas()).collect();
    let used_after: Vec<Span> = new.header.slot_areas().collect();
    let touches = |areas: &[Span], span: &Span| areas.iter().any(|area| area.overlaps(*span));
    let slots = Span::new(2 * size, new.header.area() - 2 * size);
    let (late, early): (Vec<Span>, Vec<Span>) =
        changes(old, new, slots).partition(|span| touches(&used_before, span));
    if in_place == InPlace::Refused && late.iter().any(|span| touches(&used_after, span)) {
        return Err(Failure::new(
            "the change would overwrite a key slot in use; nothing was written",
        ));
    }
    let copies = copies.map(|copy| changes(old, new, copy).collect());
    let [one, other]: [Vec<Span>; 2] = copies;
    let stages = match in_place {
        InPlace::Refused => [early, one, late, other],
        InPlace::Allowed => [early, one, other, late],
    };
    Ok(stages.into_iter().filter(|stage| !stage.is_empty()).collect())
}

/// Neighbouring units as one, as far as one write carries them.
fn joined(units: &[Span]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for unit in units {
        match spans.last_mut() {
            Some(last) if last.end() == unit.at && last.len + unit.len <= WRITE_MAX => {
                last.len += unit.len;
            }
            _ => spans.push(*unit),
        }
    }
    spans
}

/// The units of `within` that differ.
fn changes(old: Option<&Image>, new: &Image, within: Span) -> impl Iterator<Item = Span> {
    let old = old.map_or(&[][..], |old| &old.bytes);
    within.pieces(UNIT).filter(move |span| {
        let range = span.at as usize..span.end() as usize;
        let after = &new.bytes[range.clone()];
        match old.get(range) {
            Some(before) => before != after,
            None => after.iter().any(|&byte| byte != 0),
        }
    })
}
