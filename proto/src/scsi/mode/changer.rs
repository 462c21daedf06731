//! The mode pages that only a media changer has (SMC-3, 7.3).

use crate::scsi::elements::{ElementKind, Layout};

/// Element address assignment, transport geometry and device capabilities.
pub(super) const ADDRESSES: u8 = 0x1D;
pub(super) const GEOMETRY: u8 = 0x1E;
pub(super) const CAPABILITIES: u8 = 0x1F;

/// The body of such a page; `None` of another one.
pub(super) fn body(code: u8, layout: Layout) -> Option<Vec<u8>> {
    match code {
        ADDRESSES => Some(addresses(layout)),
        // One transport element, which does not rotate, and is the first of its set.
        GEOMETRY => Some(vec![0, 0]),
        CAPABILITIES => Some(capabilities()),
        _ => None,
    }
}

/// First address and number of each kind, and two reserved bytes.
fn addresses(layout: Layout) -> Vec<u8> {
    let order =
        [ElementKind::Transport, ElementKind::Slot, ElementKind::ImportExport, ElementKind::Drive];
    let pair = |kind: ElementKind| [kind.first().to_be_bytes(), layout.count(kind).to_be_bytes()];
    let mut page: Vec<u8> = order.into_iter().flat_map(|kind| pair(kind).concat()).collect();
    page.extend([0, 0]);
    page
}

/// All elements but the transport keep media, and each gives them to each: by MOVE MEDIUM and by EXCHANGE MEDIUM.
fn capabilities() -> Vec<u8> {
    const PLACES: u8 = 0x0E; // DT, I/E and ST, without MT.
    let mut page = vec![0; 18];
    page[0] = PLACES;
    for from in [3, 4, 5] {
        page[from] = PLACES;
        page[from + 8] = PLACES;
    }
    page
}
