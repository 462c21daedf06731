//! What of a header is known to be damaged without a pass-phrase.

use super::header::Header;
use super::image::Image;
use crate::failure::{Failure, Outcome, print_error};

/// What is damaged in `image`, of which each item is a sentence.
pub(super) fn damage(image: &Image) -> Vec<String> {
    let copy = image.damaged.map(|place| format!("{place} of the header is damaged"));
    let differs = Header::superseded(&image.bytes).is_some();
    let copies = differs.then(|| "the two copies of the header differ".to_owned());
    let slots = damaged_slots(image);
    let slots = slots.iter().map(|slot| format!("key slot {slot} is damaged"));
    copy.into_iter().chain(copies).chain(slots).collect()
}

/// The slots whose material was overwritten, as far as that is seen.
pub(super) fn damaged_slots(image: &Image) -> Vec<u32> {
    let slots = image.header.metadata.keyslots.keys().copied();
    slots.filter(|&slot| image.header.is_damaged(slot, &image.bytes)).collect()
}

/// Refuses to put a damaged backup over a header that is better, unless that is forced, and tells of the damage then.
/// `proven` is the slot of the backup that a pass-phrase has opened; there is no `current` header if it cannot be read
/// or is given up.
pub(super) fn refuse_damaged(
    current: Option<&Image>,
    backup: &Image,
    proven: Option<u32>,
    force: bool,
) -> Outcome {
    let worse = match current {
        Some(current) => worse(current, backup, proven),
        None => damage(backup),
    };
    if worse.is_empty() {
        return Ok(());
    }
    let worse = worse.join("; ");
    if force {
        print_error(&format_args!("longhaul: restored all the same: {worse}"));
        return Ok(());
    }
    Err(Failure::new("the backup is damaged, and nothing was written").because(worse).hint(
        "use another backup; a pass-phrase given with the command shows whether the backup opens with it; --force \
         restores it all the same, and what it lacks is lost",
    ))
}

/// What is damaged in `backup` and not known to be so in `current`.
fn worse(current: &Image, backup: &Image, proven: Option<u32>) -> Vec<String> {
    let copy = backup.damaged.filter(|_| current.damaged.is_none());
    let copy = copy.map(|place| format!("{place} of the header in the backup is damaged"));
    let differs = |image: &Image| Header::superseded(&image.bytes).is_some();
    let differs = differs(backup) && !differs(current);
    let differs = differs.then(|| "the two copies of the header in the backup differ".to_owned());
    let usable = current.header.metadata.keyslots.keys().copied();
    let usable = usable.filter(|&slot| !current.header.is_damaged(slot, &current.bytes));
    let slots = usable.filter_map(|slot| lost_slot(current, backup, slot, proven));
    copy.into_iter().chain(differs).chain(slots).collect()
}

/// Why `slot` of `current` is lost with `backup`, if the backup has it: a slot never changes its material.
fn lost_slot(current: &Image, backup: &Image, slot: u32, proven: Option<u32>) -> Option<String> {
    let twin = current.header.twin(slot, &backup.header).filter(|&twin| Some(twin) != proven)?;
    if backup.header.is_damaged(twin, &backup.bytes) {
        return Some(format!("key slot {twin} of the backup is damaged"));
    }
    let here = current.header.material(slot, &current.bytes);
    let differs = here != backup.header.material(twin, &backup.bytes);
    differs.then(|| {
        format!("key slot {twin} is not the same in the backup and on the volume: one of the two is damaged")
    })
}
