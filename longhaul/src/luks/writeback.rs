//! Brings a changed header back to its volume, in an order that leaves a valid one at every moment.
//!
//! Both copies are read again first: a person may have typed for minutes since they were read, and another may have
//! changed the header meanwhile, or another volume may have come in its place.
//!
//! 1. Material of new slots, to places that the header on the volume does not use; flush.
//! 2. The copy that is not the newest valid one; flush. If this one is torn, the other is still what it
//!    was; once it is whole, it is the newer one, and all that it refers to is there.
//! 3. What is left: material of slots that are gone, wiped now that nothing refers to it; flush.
//! 4. The other copy; flush. Until then it says which slots were to go, so that what a crash has left to do in
//!    stage 3 is known: see [`header_recovery`](super::header_recovery).

use std::sync::Arc;

use bytes::Bytes;
use volume::{Durability, Space, Span, Volume};

use super::header::Place;
use super::image::{Image, read};
use crate::failure::{Failure, OrFail, Outcome};

/// Changes are found and written in this unit, to which LUKS2 aligns everything.
const UNIT: u64 = 4096;

/// The most that one write carries.
const WRITE_MAX: u64 = 1 << 20;

/// What the header area holds before a header is written there.
#[derive(Clone, Copy)]
pub(super) enum Before<'a> {
    /// Zeroes.
    Zeroes,
    /// The header that the new one was made from. Only what differs is written, and material of a slot is
    /// never replaced by that of another one, which would leave a moment at which neither opens.
    Changed(&'a Image),
    /// Another header, or bytes of which nothing is known: all of the area is written. The backup that the
    /// new header came from is its valid copy meanwhile. Where there was a header, the new one is in place
    /// before what the other one referred to is touched.
    Replaced(Option<&'a Image>),
}

impl<'a> Before<'a> {
    const fn header(self) -> Option<&'a Image> {
        match self {
            Self::Zeroes | Self::Replaced(None) => None,
            Self::Changed(old) | Self::Replaced(Some(old)) => Some(old),
        }
    }

    /// Whether `span` of the area must be written to hold what it holds in `new`.
    fn lacks(self, span: Span, new: &Image) -> bool {
        let range = span.at as usize..span.end() as usize;
        let after = &new.bytes[range.clone()];
        let zero = after.iter().all(|&byte| byte == 0);
        match self {
            Self::Replaced(_) => true,
            Self::Zeroes => !zero,
            Self::Changed(old) => old.bytes.get(range).map_or(!zero, |before| before != after),
        }
    }
}

/// The stages of writing a header; those of a change are carried out in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteStage {
    /// Material of new slots.
    Material,
    /// The copy that is not the newest valid one.
    NewCopy,
    /// What is left of slots that are gone.
    Wipe,
    /// The copy that was the newest valid one.
    OldCopy,
}

impl WriteStage {
    /// What a change has done to the header if it fails in this stage.
    const fn outcome(self) -> &'static str {
        match self {
            Self::Material => {
                "the header is as it was: every key slot that was there still opens the volume"
            }
            // It was written, or part of it, and nobody knows what of that is stable.
            Self::NewCopy => {
                "it is not known whether the header has changed: the volume opens with the key slots of before or with the \
                 new ones, and `longhaul key list` tells which once it can be read"
            }
            Self::Wipe => {
                "the header has changed, but what was in the removed key slot may still be on the volume, so that its \
                 pass-phrase is not worthless yet: it is wiped when the volume is next opened for writing"
            }
            Self::OldCopy => {
                "the header has changed; one of its two copies may still be the old one or damaged, which is put right when \
                 the volume is next opened for writing"
            }
        }
    }
}

/// Writes `new` where `before` is, and makes sure of it where a whole header is new. If that fails, the hint of the
/// failure of a change says what has become of the header; of a whole new one only the caller knows.
pub(super) async fn write(volume: &Arc<dyn Volume>, before: Before<'_>, new: &Image) -> Outcome {
    let is_change = matches!(before, Before::Changed(_));
    if let Some(old) = before.header() {
        refuse_changed(volume, old).await?;
    }
    for (stage, units) in stages(before, new)? {
        let written = write_units(volume, &units, new).await;
        let written = written.map_err(|why| Failure::of_volume("cannot write the header", why));
        written.map_err(|why| if is_change { why.hint(stage.outcome()) } else { why })?;
    }
    if is_change { Ok(()) } else { verify(volume, new).await }
}

/// Refuses a header that is not the one that the change was made from.
async fn refuse_changed(volume: &Arc<dyn Volume>, old: &Image) -> Outcome {
    let failed = |why| Failure::of_volume("cannot read the header again before it is changed", why);
    let copies = Span::new(0, 2 * old.header.size);
    let found = read(volume, copies).await.map_err(failed);
    let found = found.map_err(|why| why.hint(WriteStage::Material.outcome()))?;
    if found == old.bytes[..copies.len as usize] {
        return Ok(());
    }
    let why =
        "since it was read, somebody else has changed it, or another volume has come in its place";
    Err(Failure::new(
        "the header is not the one that the change was made from; nothing was written",
    )
    .because(why)
    .hint("`longhaul key list` shows what is there now; then try again"))
}

async fn write_units(volume: &Arc<dyn Volume>, units: &[Span], new: &Image) -> volume::Result<()> {
    for span in joined(units, new) {
        if is_zero(new, span) {
            volume.write_zeroes(span, Durability::Volatile, Space::Keep).await?;
            continue;
        }
        let data = Bytes::copy_from_slice(&new.bytes[span.at as usize..span.end() as usize]);
        volume.write(span.at, data, Durability::Volatile).await?;
    }
    volume.flush().await
}

/// Reads a header back, for what a person relies on is what the volume holds.
async fn verify(volume: &Arc<dyn Volume>, new: &Image) -> Outcome {
    let copies = Span::new(0, 2 * new.header.size);
    for span in std::iter::once(copies).chain(new.header.slot_areas()) {
        let found = read(volume, span)
            .await
            .or_fail(|| "cannot read back the header that was written".to_owned())?;
        if found != new.bytes[span.at as usize..span.end() as usize] {
            let what = "the volume does not hold the header that was written to it";
            return Err(Failure::new(what)
                .because(format!("bytes {} to {} read otherwise", span.at, span.end()))
                .hint("the medium is bad, or somebody else writes to it"));
        }
    }
    Ok(())
}

fn stages(before: Before<'_>, new: &Image) -> Outcome<Vec<(WriteStage, Vec<Span>)>> {
    let old = before.header();
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
    let changes = |within: Span| within.pieces(UNIT).filter(|unit| before.lacks(*unit, new));
    let (late, early): (Vec<Span>, Vec<Span>) =
        changes(slots).partition(|span| touches(&used_before, span));
    let is_change = matches!(before, Before::Changed(_));
    if is_change && late.iter().any(|span| touches(&used_after, span)) {
        return Err(Failure::new(
            "the change would overwrite a key slot in use; nothing was written",
        ));
    }
    // Of two machines that change a header at once each writes whole copies, not parts of one.
    let [one, other] = copies.map(|copy| without_gaps(&changes(copy).collect::<Vec<_>>()));
    let (early, one) = ((WriteStage::Material, early), (WriteStage::NewCopy, one));
    let (late, other) = ((WriteStage::Wipe, late), (WriteStage::OldCopy, other));
    let stages = if is_change { [early, one, late, other] } else { [early, one, other, late] };
    Ok(stages.into_iter().filter(|(_, units)| !units.is_empty()).collect())
}

/// All units from the first to the last.
fn without_gaps(units: &[Span]) -> Vec<Span> {
    let (Some(first), Some(last)) = (units.first(), units.last()) else { return Vec::new() };
    Span::new(first.at, last.end() - first.at).pieces(UNIT).collect()
}

fn is_zero(new: &Image, span: Span) -> bool {
    new.bytes[span.at as usize..span.end() as usize].iter().all(|&byte| byte == 0)
}

/// Neighbouring units as one, as far as one write carries them: zeroes apart from data.
fn joined(units: &[Span], new: &Image) -> Vec<Span> {
    let mut spans: Vec<(bool, Span)> = Vec::new();
    for unit in units {
        let zero = is_zero(new, *unit);
        match spans.last_mut() {
            Some((alike, last))
                if *alike == zero && last.end() == unit.at && last.len + unit.len <= WRITE_MAX =>
            {
                last.len += unit.len;
            }
            _ => spans.push((zero, *unit)),
        }
    }
    spans.into_iter().map(|(_, span)| span).collect()
}
