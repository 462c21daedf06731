use super::super::super::cdb::{Destination, Parsed, PositionForm, Requires, SpaceCode, commands};
use super::super::super::command::Command;
use super::super::super::command::tape::is_write_once;
use super::super::super::inquiry::{Identity, Standard};
use super::super::super::readiness::Readiness;
use super::super::super::sense::Format;
use super::super::super::{Capacity, DeviceType, cdb::Form};
use super::super::{Medium, Unit};
use super::*;

const CAPACITY: u64 = 100_000_000_000;
const TRANSFER_MAX: u32 = 32 << 20;

fn unit() -> Unit {
    let capacity = Capacity {
        blocks: CAPACITY / u64::from(UNIT),
        block_size: UNIT,
        physical_exponent: 0,
        provisioning_managed: false,
        reads_zeroes: false,
        protected: false,
    };
    let medium = Medium {
        device: DeviceType::Tape,
        capacity,
        removable: true,
        read_only: false,
        write_once: false,
        recordable: None,
        write_cache: false,
        unmap_granularity: None,
        transfer_max: TRANSFER_MAX / UNIT,
        atomic_max: 1,
        crypto_erase: false,
    };
    Unit::new(Identity::new("iqn.2026-11.dev.longhaul:t", 0), medium)
}

fn plan(bytes: &[u8], switches: Switches) -> Result<Step, Sense> {
    let mut block = [0; 16];
    block[..bytes.len()].copy_from_slice(bytes);
    unit().plan(&Parsed::of(&block, DeviceType::Tape), switches)
}

fn op(bytes: &[u8]) -> TapeOp {
    match plan(bytes, unit().defaults()) {
        Ok(Step::Tape(op)) => op,
        other => panic!("{other:?}"),
    }
}

fn reply(bytes: &[u8]) -> Vec<u8> {
    match plan(bytes, unit().defaults()) {
        Ok(Step::Reply(data)) => data,
        other => panic!("{other:?}"),
    }
}

fn fixed(block_length: u32) -> Switches {
    Switches { block_length, ..unit().defaults() }
}

#[test]
fn tape_is_told_from_a_disk_by_inquiry() {
    let standard = Standard::parse(&reply(&Command::inquiry().cdb)).unwrap();
    assert_eq!((standard.device_type(), standard.qualifier()), (1, 0));
    assert!(standard.removable && !standard.third_party_copy);
    // SSC-4, no version claimed.
    assert_eq!(standard.command_set, 0x0520);
    assert_eq!(reply(&[0x12, 1, 0, 0, 255])[4..], [0, 0x80, 0x83, 0x86, 0x87, 0x88, 0xB0, 0xC0]);
    assert_eq!(reply(&[0x12, 1, 0xB0, 0, 255]), [1, 0xB0, 0, 2, 0x01, 0]);
    assert_eq!(reply(&[0x05]), [0, 0x80, 0, 0, 0, 1]);
}

/// SSC-4, 8.3.7.
#[test]
fn medium_configuration_page_tells_of_a_tape_that_is_written_once() {
    let page = |write_once| {
        let unit = unit();
        let unit = unit.on(Medium { write_once, ..*unit.medium() });
        let parsed = Parsed::of(&Command::medium_configuration().cdb, DeviceType::Tape);
        match unit.plan(&parsed, unit.defaults()) {
            Ok(Step::Reply(data)) => data,
            other => panic!("{other:?}"),
        }
    };
    let (once, over) = (page(true), page(false));
    assert_eq!(once[..10], [35, 0, 0x10, 0, 0x1D, 0x1E, 0x01, 0, 0, 0x02]);
    assert_eq!(over[..10], [35, 0, 0x10, 0, 0x1D, 0x1E, 0, 0, 0, 0x02]);
    assert_eq!((is_write_once(&once), is_write_once(&over)), (Ok(true), Ok(false)));
    assert!(is_write_once(&once[..5]).is_err());
    // Nobody changes it.
    let changeable = reply(&[0x1A, 0x08, 0x5D, 0, 64]);
    assert!(changeable[6..].iter().all(|byte| *byte == 0), "{changeable:?}");
}

/// The same operation codes are PRE-FETCH, SYNCHRONIZE CACHE and others of a disk.
#[test]
fn operation_code_means_what_the_type_of_the_device_says() {
    let disk = |bytes: &[u8]| {
        let mut block = [0; 16];
        block[..bytes.len()].copy_from_slice(bytes);
        Parsed::of(&block, DeviceType::Disk).cdb
    };
    for opcode in [0x34, 0x91] {
        let is_tape = |cdb| matches!(cdb, Ok(super::super::super::Cdb::Tape(_)));
        let mut block = [0; 16];
        block[0] = opcode;
        assert!(is_tape(Parsed::of(&block, DeviceType::Tape).cdb), "{opcode:02x}");
        assert!(!is_tape(disk(&[opcode])) && disk(&[opcode]).is_ok(), "{opcode:02x}");
    }
    let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
    for opcode in [0x01, 0x05, 0x10, 0x11, 0x19, 0x2B, 0x44, 0x92] {
        assert_eq!(disk(&[opcode]), Err(unknown), "{opcode:02x}");
    }
    for opcode in [0x25, 0x28, 0x2A, 0x35, 0x42, 0x88, 0x8A, 0x9E] {
        assert_eq!(plan(&[opcode], unit().defaults()), Err(unknown), "{opcode:02x}");
    }
}

#[test]
fn commands_are_listed_as_they_are_had() {
    for entry in commands() {
        let action = entry.action.unwrap_or(0);
        let asked = [0xA3, 0x0C, 3, entry.opcode, 0, action, 0, 0, 0, 64];
        let listed = reply(&asked);
        let of_opcode = |device| {
            let mut block = [0; 16];
            (block[0], block[1]) = (entry.opcode, action);
            let cdb = Parsed::of(&block, device).cdb;
            cdb != Err(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE))
        };
        let is_allowed = entry.requires != Requires::Administrator;
        let is_had = of_opcode(DeviceType::Tape) && is_allowed;
        assert_eq!(listed[1] & 7 == 3, is_had, "{:02x}", entry.opcode);
        if entry.types.tape && is_allowed {
            assert_eq!(listed[4..], *entry.usage(), "{:02x}", entry.opcode);
        }
    }
}

#[test]
fn transfer_counts_blocks_or_the_bytes_of_one() {
    let transfer = |fixed: Option<u32>, count, suppress| {
        let suppress_long = fixed.is_none();
        Transfer { fixed, count, suppress, suppress_long, durable: false }
    };
    assert_eq!(op(&[0x08, 0, 0, 0x28, 0]), TapeOp::Read(transfer(None, 10240, false)));
    assert_eq!(op(&[0x08, 2, 0, 0x28, 0]), TapeOp::Read(transfer(None, 10240, true)));
    assert_eq!(op(&[0x0A, 0, 0, 0x28, 0]), TapeOp::Write(transfer(None, 10240, false)));
    let counted = Ok(Step::Tape(TapeOp::Read(transfer(Some(512), 20, false))));
    assert_eq!(plan(&[0x08, 1, 0, 0, 20], fixed(512)), counted);
    let write = [0x0A, 1, 0, 0, 20];
    let mut block = [0; 16];
    block[..5].copy_from_slice(&write);
    let parsed = Parsed::of(&block, DeviceType::Tape);
    assert_eq!(unit().data_out(&parsed, fixed(512)), 10240);
    assert_eq!(unit().data_out(&parsed, fixed(0)), 0, "it is refused");
    // SSC-4, 7.4: without a length in the block descriptor nothing is counted.
    assert_eq!(plan(&write, fixed(0)), Err(Sense::invalid_cdb(1, Some(0))));
    assert_eq!(plan(&[0x08, 3, 0, 0, 1], fixed(512)), Err(Sense::invalid_cdb(1, Some(1))));
    // More than a command carries, and a block that is too long.
    let too_much = Err(Sense::invalid_cdb(2, None));
    assert_eq!(plan(&[0x08, 1, 0, 0xFF, 0xFF], fixed(4096)), too_much);
    assert_eq!(plan(&[0x0A, 0, 0x80, 0, 1], fixed(0)), too_much);
    let unbuffered = Switches { unbuffered: true, ..fixed(0) };
    let durable = TapeOp::Write(Transfer { durable: true, ..transfer(None, 1, false) });
    assert_eq!(plan(&[0x0A, 0, 0, 0, 1], unbuffered), Ok(Step::Tape(durable)));
}

#[test]
fn block_of_another_length_is_told_by_the_difference() {
    let one =
        Transfer { fixed: None, count: 1000, suppress: false, suppress_long: true, durable: false };
    let ili = |information: i64| {
        let stream = Stream { incorrect_length: true, ..Stream::NONE };
        let sense = Sense::new(Key::NoSense, Additional::NONE).with_stream(stream);
        Some(sense.with_information(information.cast_unsigned()))
    };
    assert_eq!(one.other_length(0, 600), ili(400));
    assert_eq!(one.other_length(0, 1600), ili(-600));
    // SSC-4, 7.4: SILI is not about one that is longer than what MODE SELECT has set.
    let suppressed = Transfer { suppress: true, ..one };
    assert_eq!([600, 1600].map(|length| suppressed.other_length(0, length)), [None, None]);
    let selected = Transfer { suppress_long: false, ..suppressed };
    assert_eq!(selected.other_length(0, 600), None);
    assert_eq!(selected.other_length(0, 1600), ili(-600));
    let counted = Transfer { fixed: Some(512), count: 10, ..one };
    assert_eq!(counted.other_length(3, 600), ili(7));
    // Fixed sense data have it in 32 bits, below zero too.
    let bytes = one.other_length(0, 1600).unwrap().emit(Format::Fixed);
    assert_eq!(bytes[..7], [0xF0, 0, 0x20, 0xFF, 0xFF, 0xFD, 0xA8]);
    let descriptors = filemark(3).emit(Format::Descriptor);
    assert_eq!(descriptors[..8], [0x72, 0, 0, 1, 0, 0, 0, 16]);
    assert_eq!(descriptors[20..], [4, 2, 0, 0x80]);
}

#[test]
fn marks_and_movements_have_their_fields() {
    let marks = |count, durable| TapeOp::WriteFilemarks { count, durable };
    assert_eq!(op(&[0x10, 0, 0, 0, 2]), marks(2, true));
    assert_eq!(op(&[0x10, 1, 0, 0, 0]), marks(0, false));
    let unbuffered = Switches { unbuffered: true, ..unit().defaults() };
    assert_eq!(plan(&[0x10, 1, 0, 0, 1], unbuffered), Ok(Step::Tape(marks(1, true))));
    // WSMK: set marks are refused.
    let refused = |bytes: &[u8]| plan(bytes, unit().defaults()).unwrap_err();
    assert_eq!(refused(&[0x10, 2, 0, 0, 1]), Sense::invalid_cdb(1, Some(1)));
    let space = |code, count| TapeOp::Space { code, count };
    assert_eq!(op(&[0x11, 0, 0, 0, 3]), space(SpaceCode::Blocks, 3));
    assert_eq!(op(&[0x11, 1, 0xFF, 0xFF, 0xFE]), space(SpaceCode::Filemarks, -2));
    assert_eq!(op(&[0x11, 3]), space(SpaceCode::EndOfData, 0));
    assert_eq!(refused(&[0x11, 4, 0, 0, 1]), Sense::invalid_cdb(1, Some(3)));
    let back = [0x91, 1, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFD];
    assert_eq!(op(&back), space(SpaceCode::Filemarks, -3));
    assert_eq!(op(&[0x2B, 0, 0, 1, 0, 0, 2]), TapeOp::Locate(Destination::Object(0x0100_0002)));
    assert_eq!(refused(&[0x2B, 2, 0, 0, 0, 0, 0, 0, 1]), Sense::invalid_cdb(8, None));
    let long = |kind| [0x92, kind, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2];
    assert_eq!(op(&long(0)), TapeOp::Locate(Destination::Object(1 << 32 | 2)));
    assert_eq!(op(&long(8)), TapeOp::Locate(Destination::File(1 << 32 | 2)));
    assert_eq!(op(&long(0x18)), TapeOp::Locate(Destination::EndOfData));
    assert_eq!(op(&[0x1B, 0, 0, 0, 1]), TapeOp::Load);
    assert_eq!(op(&[0x1B, 0, 0, 0, 2]), TapeOp::Unload);
    assert_eq!(refused(&[0x1B, 0, 0, 0, 5]), Sense::invalid_cdb(4, Some(2)));
    assert_eq!(op(&[0x01]), TapeOp::Rewind);
    assert_eq!(op(&[0x19, 1]), TapeOp::Erase { all: true });
    assert_eq!(op(&[0x19, 2]), TapeOp::Erase { all: false });
}

#[test]
fn position_is_told_in_three_forms() {
    let position = Position { object: 0x0102, file: 3, near_end: true };
    let short = position.emit(PositionForm::Short);
    assert_eq!(short[..12], [0x40, 0, 0, 0, 0, 0, 1, 2, 0, 0, 1, 2]);
    assert_eq!((short.len(), &short[12..]), (20, &[0; 8][..]));
    let long = position.emit(PositionForm::Long);
    assert_eq!((long.len(), long[0], long[15], long[23]), (32, 0x40, 2, 3));
    let extended = position.emit(PositionForm::Extended);
    assert_eq!((extended.len(), extended[3], extended[15], extended[23]), (32, 28, 2, 2));
    let beginning = Position { object: 0, file: 0, near_end: false };
    assert_eq!(beginning.emit(PositionForm::Short)[0], 0x80);
    let large = Position { object: 1 << 32, ..beginning }.emit(PositionForm::Short);
    assert_eq!((large[0], &large[4..12]), (0x04, &[0; 8][..]));
}

#[test]
fn settings_are_shown_and_selected() {
    let unit = unit();
    let sense = reply(&[0x1A, 0, 0x3F, 0, 255]);
    assert_eq!(sense[..12], [111, 0, 0x10, 8, 0x80, 0, 0, 0, 0, 0, 0, 0]);
    let select = |list: &[u8]| unit.select(Form::Six, list, unit.defaults());
    // Commands are not reordered.
    assert_eq!(reply(&[0x1A, 8, 0x0A, 0, 255])[4..8], [0x0A, 10, 0x02, 0]);
    // As Linux' st driver sets the length of blocks, and how writes are buffered.
    let length = select(&[0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0, 0x28, 0]).unwrap();
    assert_eq!(length, fixed(0x2800));
    assert_eq!(Switches::from_bits(length.to_bits()), length);
    assert!(select(&[0, 0, 0, 0]).unwrap().unbuffered);
    assert_eq!(select(&[0, 0, 0x20, 0]), Err(Sense::invalid_parameter(2, Some(6))));
    assert_eq!(select(&[0, 0, 0x11, 0]), Err(Sense::invalid_parameter(2, Some(3))));
    let density = [0, 0, 0x10, 8, 0x58, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(select(&density), Err(Sense::invalid_parameter(4, None)));
    let long = [0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0xFF, 0, 0];
    assert_eq!(select(&long), Err(Sense::invalid_parameter(9, None)));
    // There is no compression to switch on.
    let page = |flags| [&[0, 0, 0x10, 0, 0x0F, 14, flags, 0][..], &[0; 12]].concat();
    assert_eq!(select(&page(0)), Ok(unit.defaults()));
    assert_eq!(select(&page(0x80)), Err(Sense::invalid_parameter(6, Some(7))));
    let protected = Switches { write_protect: true, ..unit.defaults() };
    let refused = Sense::new(Key::DataProtect, Additional::SOFTWARE_WRITE_PROTECTED);
    for bytes in [&[0x0A, 0, 0, 0, 1][..], &[0x10, 0, 0, 0, 1], &[0x19, 1]] {
        assert_eq!(plan(bytes, protected), Err(refused));
    }
}

#[test]
fn density_is_that_of_the_file() {
    let report = reply(&[0x44, 0, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!((report.len(), &report[..6]), (56, &[0, 54, 0, 0, 0x80, 0x80][..]));
    assert_eq!(report[16..20], 100_000u32.to_be_bytes());
    let empty = Switches { readiness: Readiness::NoMedium, ..unit().defaults() };
    let absent = Err(Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT));
    assert_eq!(plan(&[0x44, 1, 0, 0, 0, 0, 0, 2, 0], empty), absent);
    assert!(plan(&[0x44, 0, 0, 0, 0, 0, 0, 2, 0], empty).is_ok());
    assert_eq!(plan(&[0x01], empty), absent);
}
