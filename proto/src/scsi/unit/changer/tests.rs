use super::super::super::cdb::{Cdb, Parsed, Requires, StatusQuery, commands};
use super::super::super::command::Command;
use super::super::super::elements::{Barcode, Cartridge, Element, Inventory};
use super::super::super::inquiry::{Identity, Standard};
use super::super::super::reservation::Class;
use super::super::super::{Capacity, DeviceType};
use super::super::{Medium, Unit, UnitOp};
use super::*;

const LAYOUT: Layout = Layout { drives: 2, slots: 3, mail: 1 };

fn unit() -> Unit {
    let capacity = Capacity {
        blocks: 0,
        block_size: 512,
        physical_exponent: 0,
        provisioning_managed: false,
        reads_zeroes: false,
        protected: false,
    };
    let medium = Medium {
        device: DeviceType::Changer,
        capacity,
        removable: true,
        read_only: false,
        write_once: false,
        recordable: None,
        write_cache: false,
        unmap_granularity: None,
        transfer_max: 1 << 12,
        atomic_max: 1,
        crypto_erase: false,
    };
    Unit::new(Identity::new("iqn.2026-11.dev.longhaul:t", 0), medium).with_elements(LAYOUT)
}

fn parsed(bytes: &[u8]) -> Parsed {
    let mut block = [0; 16];
    block[..bytes.len()].copy_from_slice(bytes);
    Parsed::of(&block, DeviceType::Changer)
}

fn plan(bytes: &[u8]) -> Result<Step, Sense> {
    unit().plan(&parsed(bytes), unit().defaults())
}

fn reply(bytes: &[u8]) -> Vec<u8> {
    match plan(bytes) {
        Ok(Step::Reply(data)) => data,
        other => panic!("{other:?}"),
    }
}

const fn slot(index: u16) -> Element {
    Element { kind: ElementKind::Slot, index }
}

const MAIL: Element = Element { kind: ElementKind::ImportExport, index: 0 };

fn cartridge(barcode: &str) -> Cartridge {
    Cartridge { barcode: barcode.parse().unwrap(), source: None, imported: false }
}

/// `A1` in the first slot, `B2` in the second.
fn two() -> Inventory {
    let mut inventory = Inventory::empty(LAYOUT);
    inventory.put(slot(0), cartridge("A1")).unwrap();
    inventory.put(slot(1), cartridge("B2")).unwrap();
    inventory
}

fn place(inventory: &Inventory, barcode: &str) -> Option<String> {
    inventory.find(&barcode.parse().unwrap()).map(|element| element.to_string())
}

#[test]
fn changer_is_told_from_a_disk_by_inquiry() {
    let standard = Standard::parse(&reply(&Command::inquiry().cdb)).unwrap();
    assert_eq!((standard.device_type(), standard.qualifier()), (8, 0));
    assert!(standard.removable && !standard.third_party_copy);
    // SMC-3, no version claimed.
    assert_eq!(standard.command_set, 0x0480);
    assert_eq!(reply(&[0x12, 1, 0, 0, 255])[4..], [0, 0x80, 0x83, 0x86, 0x87, 0x88, 0xC0]);
    assert_eq!(reply(&[0x12, 1, 0x83, 0, 255])[..2], [8, 0x83]);
    // It is ready whatever is in it.
    assert_eq!(plan(&[0; 6]), Ok(DONE));
    assert_eq!(plan(&[0x1E, 0, 0, 0, 1, 0]), Ok(UnitOp::Prevent(true).into()));
}

#[test]
fn blocks_are_not_read_or_written() {
    let unknown = Err(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE));
    for opcode in [0x08, 0x0A, 0x1B, 0x25, 0x28, 0x2A, 0x34, 0x35, 0x88, 0x8A, 0x83, 0x9E] {
        assert_eq!(plan(&[opcode]), unknown, "{opcode:02x}");
    }
    let other = |device| Parsed::of(&[0xA5; 16], device).cdb;
    for device in [DeviceType::Disk, DeviceType::Optical, DeviceType::Tape] {
        let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!(other(device), Err(unknown));
    }
}

/// SMC-3, 7.3: the pages of element addresses, transport geometry and capabilities, without a block descriptor.
#[test]
fn mode_pages_tell_of_the_elements() {
    let addresses = [
        0x1D, 18, 0, 0, 0, 1, // the transport element
        4, 0, 0, 3, // slots
        3, 0, 0, 1, // import and export
        1, 0, 0, 2, // drives
        0, 0,
    ];
    let sense = reply(&[0x1A, 0, 0x1D, 0, 255, 0]);
    assert_eq!(sense[..4], [23, 0, 0, 0]);
    assert_eq!(sense[4..], addresses);
    assert_eq!(reply(&[0x1A, 8, 0x1E, 0, 255, 0])[4..], [0x1E, 2, 0, 0]);
    let places = 0x0E;
    let capabilities = [
        0x1F, 18, places, 0, 0, places, places, places, 0, 0, 0, 0, 0, places, places, places, 0,
        0, 0, 0,
    ];
    assert_eq!(reply(&[0x5A, 0, 0x1F, 0, 0, 0, 0, 0, 255, 0])[8..], capabilities);
    let all = reply(&[0x1A, 0, 0x3F, 0, 255, 0]);
    assert_eq!(all.len(), 4 + 12 + 12 + 20 + 4 + 20);
    // None of it can be changed.
    let changeable = reply(&[0x1A, 0, 0x5D, 0, 255, 0]);
    assert_eq!(changeable[6..], [0; 18]);
}

#[test]
fn addresses_are_those_of_elements_that_are_there() {
    let invalid = Err(Sense::illegal(Additional::INVALID_ELEMENT_ADDRESS));
    let from = |address: u16| {
        let [high, low] = address.to_be_bytes();
        plan(&[0xA5, 0, 0, 0, high, low, 1, 0, 0, 0, 0, 0])
    };
    for (address, source) in
        [(0x400, slot(0)), (0x402, slot(2)), (0x300, MAIL), (0x101, Element::drive(1))]
    {
        let destination = Element::drive(0);
        let op = ChangerOp::Move(Movement::Move { source, destination });
        assert_eq!(from(address), Ok(Step::Changer(op)));
        assert_eq!(source.address(), address);
    }
    // The transport element keeps nothing.
    for address in [0, 1, 0xFF, 0x102, 0x2FF, 0x301, 0x3FF, 0x403, 0xFFFF] {
        assert_eq!(from(address), invalid, "{address:04x}");
    }
    // Another transport element, and INVERT.
    assert_eq!(plan(&[0xA5, 0, 0, 1, 4, 0, 1, 0, 0, 0, 0, 0]), invalid);
    let inverted = plan(&[0xA5, 0, 0, 0, 4, 0, 1, 0, 0, 0, 1, 0]);
    assert_eq!(inverted, Err(Sense::invalid_cdb(10, Some(0))));
    let (source, first, second) = (slot(0), Element::drive(0), slot(2));
    let op = ChangerOp::Move(Movement::Exchange { source, first, second });
    assert_eq!(plan(&[0xA6, 0, 0, 0, 4, 0, 1, 0, 4, 2, 0, 0]), Ok(Step::Changer(op)));
    assert_eq!(plan(&[0x2B, 0, 0, 0, 4, 2, 0, 0, 0, 0]), Ok(DONE));
    assert_eq!(plan(&[0x2B, 0, 0, 0, 4, 3, 0, 0, 0, 0]), invalid);
    assert_eq!(plan(&[0x07]), Ok(DONE));
    assert_eq!(plan(&[0x37, 0, 9, 9]), Ok(DONE), "all elements");
    assert_eq!(plan(&[0x37, 1, 4, 2]), Ok(DONE));
    assert_eq!(plan(&[0x37, 1, 4, 3]), invalid);
}

#[test]
fn cartridge_is_moved_from_a_full_element_to_an_empty_one() {
    let loaded = two().moved(slot(0), Element::drive(1)).unwrap();
    assert_eq!(place(&loaded, "A1").as_deref(), Some("drive:1"));
    assert_eq!(loaded.get(Element::drive(1)).unwrap().source, Some(0));
    let full = Err(Sense::illegal(Additional::DESTINATION_ELEMENT_FULL));
    let empty = Err(Sense::illegal(Additional::SOURCE_ELEMENT_EMPTY));
    assert_eq!(loaded.moved(slot(1), Element::drive(1)), full);
    assert_eq!(loaded.moved(slot(1), slot(1)), full);
    assert_eq!(loaded.moved(slot(0), slot(2)), empty);
    // It is known which slot a cartridge was in last, wherever it goes.
    let other = loaded.moved(Element::drive(1), MAIL).unwrap();
    assert_eq!(other.get(MAIL).unwrap().source, Some(0));
}

#[test]
fn two_cartridges_are_exchanged() {
    let loaded = two().moved(slot(0), Element::drive(0)).unwrap();
    // What is in the drive goes where the other one was, or to a third element.
    for second in [slot(1), slot(2)] {
        let after = loaded.exchanged(slot(1), Element::drive(0), second).unwrap();
        assert_eq!(place(&after, "B2").as_deref(), Some("drive:0"));
        assert_eq!(place(&after, "A1"), Some(second.to_string()));
    }
    let full = Err(Sense::illegal(Additional::DESTINATION_ELEMENT_FULL));
    let empty = Err(Sense::illegal(Additional::SOURCE_ELEMENT_EMPTY));
    assert_eq!(loaded.exchanged(slot(0), Element::drive(0), slot(2)), empty);
    assert_eq!(loaded.exchanged(slot(1), Element::drive(1), slot(2)), empty);
    assert_eq!(two().exchanged(slot(0), slot(1), slot(1)), full);
    assert_eq!(two().exchanged(slot(0), slot(0), slot(2)), full);
}

fn query(bytes: &[u8]) -> StatusQuery {
    match plan(bytes) {
        Ok(Step::Changer(ChangerOp::Status(query))) => query,
        other => panic!("{other:?}"),
    }
}

/// What READ ELEMENT STATUS returns of these elements, with barcodes and identifiers unless `is_short`.
fn status(inventory: &Inventory, [kind, high, low]: [u8; 3], count: u8, is_short: bool) -> Vec<u8> {
    let (tags, identifiers) = if is_short { (0, 0) } else { (0x10, 1) };
    let block = [0xB8, tags | kind, high, low, 0, count, identifiers, 0, 255, 255, 0, 0];
    let designator = vec![2, 1, 0, 4, b'A', b'B', b'C', b'D'];
    let drives = [DriveState { is_locked: true, designator }, DriveState::default()];
    report(inventory, query(&block), &drives)
}

/// SMC-3, 6.11: header, pages and descriptors.
#[test]
fn element_status_is_laid_out_by_type() {
    let mut inventory = two().moved(slot(1), Element::drive(0)).unwrap();
    let imported = Cartridge { imported: true, ..cartridge("C3") };
    inventory.put(MAIL, imported).unwrap();
    let short = status(&inventory, [0, 0, 0], 255, true);
    let expected: &[&[u8]] = &[
        &[0, 0, 0, 7, 0, 0, 0, 4 * 8 + 7 * 16],
        &[1, 0, 0, 16, 0, 0, 0, 16],
        &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[4, 0, 0, 16, 0, 0, 0, 32],
        // Full, and locked in; it came from the second slot. The other is empty.
        &[1, 0, 0x01, 0, 0, 0, 0, 0, 0, 0x80, 4, 1, 0, 0, 0, 0],
        &[1, 1, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[3, 0, 0, 16, 0, 0, 0, 16],
        // INENAB, EXENAB, ACCESS, IMPEXP and FULL.
        &[3, 0, 0x3B, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[2, 0, 0, 16, 0, 0, 0, 48],
        &[4, 0, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[4, 1, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[4, 2, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ];
    assert_eq!(short, expected.concat());
}

#[test]
fn barcodes_and_identifiers_of_drives_are_told_if_asked_for() {
    let inventory = two().moved(slot(1), Element::drive(0)).unwrap();
    let drives = status(&inventory, [4, 0, 0], 255, false);
    let length = 12 + 36 + 8;
    assert_eq!(drives[..8], [1, 0, 0, 2, 0, 0, 0, 8 + 2 * length]);
    assert_eq!(drives[8..16], [4, 0x80, 0, length, 0, 0, 0, 2 * length]);
    let (first, second) = drives[16..].split_at(length.into());
    let mut tag = [b' '; 32];
    tag[..2].copy_from_slice(b"B2");
    assert_eq!(first[12..44], tag);
    assert_eq!(first[44..48], [0; 4]);
    assert_eq!(first[48..], [2, 1, 0, 4, b'A', b'B', b'C', b'D']);
    assert!(second[12..].iter().all(|byte| *byte == 0));
    // Without DVCID.
    let plain = report(&inventory, query(&[0xB8, 0x14, 0, 0, 0, 9, 0, 0, 255, 255, 0, 0]), &[]);
    assert_eq!(plain[10..12], [0, 12 + 36 + 4]);
}

#[test]
fn elements_are_counted_from_an_address_on() {
    let (two, short) = (two(), true);
    let counted = |data: &[u8]| (u16::from_be_bytes([data[0], data[1]]), data[3]);
    assert_eq!(counted(&status(&two, [0, 1, 1], 255, short)), (0x101, 5));
    assert_eq!(counted(&status(&two, [2, 0, 0], 2, short)), (0x400, 2));
    assert_eq!(counted(&status(&two, [2, 4, 1], 255, short)), (0x401, 2));
    assert_eq!(counted(&status(&two, [0, 0, 0], 4, short)), (0, 4));
    assert_eq!(status(&two, [2, 9, 0], 255, short), [0; 8], "there are none");
    assert_eq!(status(&two, [0, 0, 0], 0, short), [0; 8]);
    let unknown = plan(&[0xB8, 5, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0]);
    assert_eq!(unknown, Err(Sense::invalid_cdb(1, Some(3))));
}

#[test]
fn reader_looks_and_moves_nothing() {
    let reader = unit().for_reader();
    let plan = |bytes: &[u8]| reader.plan(&parsed(bytes), reader.defaults());
    let refused = Err(Sense::illegal(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS));
    for opcode in [0x07, 0x2B, 0x37, 0xA5, 0xA6] {
        assert_eq!(plan(&[opcode]), refused, "{opcode:02x}");
    }
    assert!(plan(&[0xB8, 0, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0]).is_ok());
    let Ok(Step::Reply(page)) = plan(&[0x1A, 0, 0x1D, 0, 255, 0]) else { panic!() };
    assert_eq!(page[8..16], [0, 1, 4, 0, 0, 3, 3, 0], "it sees the same elements");
}

/// SMC-3, table 8.
#[test]
fn element_status_is_free_of_reservations_if_nothing_may_move_for_it() {
    let class = |curdata| parsed(&[0xB8, 0, 0, 0, 0, 1, curdata, 0, 0, 8, 0, 0]).traits.class;
    assert_eq!((class(0), class(2)), (Class::Writes, Class::Free));
    for entry in commands().filter(|entry| entry.types.changer && !entry.types.disk) {
        assert_eq!(entry.requires, Requires::Nothing);
        let mut block = [0; 16];
        block[0] = entry.opcode;
        let parsed = Parsed::of(&block, DeviceType::Changer);
        assert!(matches!(parsed.cdb, Ok(Cdb::Changer(_))));
        assert_eq!(parsed.traits.class, Class::Writes, "{:02x}", entry.opcode);
    }
}

#[test]
fn names_of_elements_are_read_back() {
    for (text, element) in [("drive:0", Element::drive(0)), ("slot:1", slot(0)), ("mail:1", MAIL)] {
        assert_eq!(element.to_string(), text);
        assert_eq!(text.parse(), Ok(element));
    }
    for wrong in ["slot:0", "slot", "slot:x", "transport:0", "3", "mail:99999"] {
        assert!(wrong.parse::<Element>().is_err(), "{wrong}");
    }
    for wrong in ["", "a1", "A 1", ".A", "A/1", "Ä", &"A".repeat(33)] {
        assert!(wrong.parse::<Barcode>().is_err(), "{wrong}");
    }
    assert!("000042L6".parse::<Barcode>().is_ok());
}
