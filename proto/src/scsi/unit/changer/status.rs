//! READ ELEMENT STATUS data (SMC-3, 6.11).

use super::super::super::cdb::StatusQuery;
use super::super::super::elements::{BARCODE_MAX, Element, ElementKind, Inventory};

/// What is told of a drive beside what is in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriveState {
    /// An initiator forbids that its medium is taken out, or another is put in.
    pub is_locked: bool,
    /// A designator of its logical unit, with its code set, type and length (SPC-4, 7.8.6), if it may be known.
    pub designator: Vec<u8>,
}

const FULL: u8 = 0x01;
/// IMPEXP: an operator has put it there.
const IMPORTED: u8 = 0x02;
const ACCESS: u8 = 0x08;
/// EXENAB and INENAB: cartridges can go out and come in.
const MAIL: u8 = 0x30;
const SVALID: u8 = 0x80;
const PVOLTAG: u8 = 0x80;
/// VOLUME IDENTIFICATION, two reserved bytes, and VOLUME SEQUENCE NUMBER.
const TAG_LEN: usize = BARCODE_MAX + 4;

/// The elements that are asked for, in the order of their addresses, before they are cut to the allocation length.
#[must_use]
pub fn report(inventory: &Inventory, query: StatusQuery, drives: &[DriveState]) -> Vec<u8> {
    let layout = inventory.layout();
    let mut left = usize::from(query.count);
    let (mut pages, mut count, mut first) = (Vec::new(), 0_u16, None);
    for kind in ElementKind::ALL {
        if query.kind != 0 && query.kind != kind.code() {
            continue;
        }
        let elements = layout.all(kind).filter(|element| element.address() >= query.start);
        let elements: Vec<_> = elements.take(left).collect();
        let Some(lowest) = elements.first() else { continue };
        first.get_or_insert_with(|| lowest.address());
        left -= elements.len();
        count += elements.len() as u16;
        let describe = |element: &Element| descriptor(inventory, *element, query, drives);
        page(&mut pages, (kind, query.tags), elements.iter().map(describe).collect());
    }
    let mut data = first.unwrap_or_default().to_be_bytes().to_vec();
    data.extend(count.to_be_bytes());
    data.push(0);
    data.extend(length_24(pages.len()));
    data.extend(pages);
    data
}

/// An element status page: all descriptors are as long as the longest.
fn page(pages: &mut Vec<u8>, (kind, tags): (ElementKind, bool), mut elements: Vec<Vec<u8>>) {
    let length = elements.iter().map(Vec::len).max().unwrap_or_default();
    elements.iter_mut().for_each(|element| element.resize(length, 0));
    pages.extend([kind.code(), if tags { PVOLTAG } else { 0 }]);
    pages.extend((length as u16).to_be_bytes());
    pages.push(0);
    pages.extend(length_24(length * elements.len()));
    pages.extend(elements.concat());
}

fn descriptor(
    inventory: &Inventory,
    element: Element,
    query: StatusQuery,
    drives: &[DriveState],
) -> Vec<u8> {
    let cartridge = inventory.get(element);
    let drive =
        drives.get(usize::from(element.index)).filter(|_| element.kind == ElementKind::Drive);
    let mut flags = if cartridge.is_some() { FULL } else { 0 };
    flags |= match element.kind {
        ElementKind::Transport => 0,
        ElementKind::Slot => ACCESS,
        ElementKind::ImportExport => ACCESS | MAIL,
        ElementKind::Drive if drive.is_some_and(|drive| drive.is_locked) => 0,
        ElementKind::Drive => ACCESS,
    };
    if cartridge.is_some_and(|cartridge| cartridge.imported) {
        flags |= IMPORTED;
    }
    let mut bytes = element.address().to_be_bytes().to_vec();
    bytes.extend([flags, 0, 0, 0, 0, 0, 0]);
    let source = cartridge.and_then(|cartridge| cartridge.source);
    bytes.push(source.map_or(0, |_| SVALID));
    let address = source.map(|index| Element { kind: ElementKind::Slot, index }.address());
    bytes.extend(address.unwrap_or_default().to_be_bytes());
    if query.tags {
        bytes.extend(tag(cartridge.map(|cartridge| cartridge.barcode.as_str())));
    }
    // CODE SET, IDENTIFIER TYPE, a reserved byte, and IDENTIFIER LENGTH; zeroes where there is none.
    let designator = drive.map(|drive| &drive.designator[..]);
    match designator.filter(|designator| query.identifiers && !designator.is_empty()) {
        Some(designator) => bytes.extend(designator),
        None => bytes.extend([0; 4]),
    }
    bytes
}

/// Primary volume tag information: zeroes where there is no volume (SMC-3, 6.11.6).
fn tag(barcode: Option<&str>) -> [u8; TAG_LEN] {
    let mut tag = [0; TAG_LEN];
    if let Some(barcode) = barcode {
        let (text, _) = tag.split_at_mut(BARCODE_MAX);
        text.fill(b' ');
        text.iter_mut().zip(barcode.bytes()).for_each(|(to, from)| *to = from);
    }
    tag
}

fn length_24(length: usize) -> [u8; 3] {
    let [_, bytes @ ..] = (length as u32).to_be_bytes();
    bytes
}
