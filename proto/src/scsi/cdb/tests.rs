use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::command::Command;
use super::super::device_type::DeviceTypes;
use super::*;

const DEVICES: [DeviceType; 4] =
    [DeviceType::Disk, DeviceType::Optical, DeviceType::Tape, DeviceType::Changer];

/// A block of `entry` with every bit set that it evaluates and `fill` chooses.
fn filled(entry: &Entry, fill: Block) -> Block {
    let mut block = [0; 16];
    for (at, (to, (mask, chosen))) in block.iter_mut().zip(entry.usage.iter().zip(fill)).enumerate()
    {
        let fixed = at == 0 || (at == 1 && entry.action.is_some());
        *to = if fixed { *mask } else { mask & chosen };
    }
    block
}

/// A type of device that has a command.
fn owner(entry: &Entry) -> DeviceType {
    let types = DEVICES;
    types.into_iter().find(|device| entry.types.include(*device)).expect("a device has it")
}

fn any_entry() -> impl Strategy<Value = &'static Entry> {
    proptest::sample::select(commands().collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn no_block_does_harm(block: Block, opcode in any_entry()) {
        let _ = Parsed::of(&block, DeviceType::Disk).cdb.map(|cdb| cdb.data_out(512));
        let mut known = block;
        known[0] = opcode.opcode;
        let _ = Parsed::of(&known, owner(opcode)).cdb.map(|cdb| cdb.data_out(u32::MAX));
    }

    #[test]
    fn a_bit_outside_the_map_is_refused(entry in any_entry(), fill: Block, at in 1usize..16, bit in 0..8u8) {
        prop_assume!(at < entry.usage.len() && entry.usage[at] & (1 << bit) == 0);
        prop_assume!(!(at == 1 && entry.action.is_some() && bit < 5));
        let mut block = filled(entry, fill);
        block[at] |= 1 << bit;
        let sense = Parsed::of(&block, owner(entry)).cdb.unwrap_err();
        prop_assert_eq!(sense, Sense::invalid_cdb(at as u16, Some(bit)));
    }

    #[test]
    fn a_block_within_the_map_is_read(entry in any_entry(), fill: Block) {
        // Those of tapes and media changers have more reserved values; their own tests name them.
        prop_assume!(entry.types != DeviceTypes::TAPE && entry.types != DeviceTypes::CHANGER);
        let mut fill = fill;
        fill[1] &= !0x04; // The one reserved value: BYTCHK of two.
        if entry.opcode == 0x5F {
            fill[5] = 0;
            fill[6] = 0; // A parameter list that is too long.
        }
        if entry.opcode == 0x52 {
            fill[1] &= !0x02; // The reserved way to name a track.
        }
        if entry.opcode == 0x5B {
            fill[2] &= 0x01; // Most ways to close something.
        }
        if entry.opcode == 0x04 {
            fill[1] = 0x11; // There is one way to format a disc.
        }
        if entry.opcode == 0x83 {
            fill[10..13].fill(0); // Likewise.
        }
        prop_assert!(Parsed::of(&filled(entry, fill), owner(entry)).cdb.is_ok());
    }

    #[test]
    fn command_blocks_are_read_as_the_initiator_builds_them(lba in prop_oneof![any::<u64>(), 0..=u64::from(u32::MAX)], count in 1u32..65_536, fua: bool) {
        let blocks = Blocks { lba, count };
        let access = |durable| Access { blocks, durable, count_at: 10 };
        let parse = |command: Command| Parsed::of(&command.cdb, DeviceType::Disk).cdb.unwrap();
        prop_assert_eq!(parse(Command::read(blocks, 512)), Cdb::Read(access(false)));
        prop_assert_eq!(parse(Command::write(blocks, 512, fua)), Cdb::Write(access(fua)));
        let access = |durable| Access { blocks, durable, count_at: 7 };
        let short = lba <= u64::from(u32::MAX);
        prop_assert_eq!(Command::read_10(blocks, 512).map(parse), short.then(|| Cdb::Read(access(false))));
        prop_assert_eq!(Command::write_10(blocks, 512, fua).map(parse), short.then(|| Cdb::Write(access(fua))));
        prop_assert_eq!(Command::read_10(Blocks { lba, count: count + 65_535 }, 512), None);
        let access = |durable| Access { blocks, durable, count_at: 10 };
        prop_assert_eq!(
            parse(Command::write_same(blocks, 512, fua)),
            Cdb::WriteSame { access: access(false), unmap: fua, no_data: false }
        );
        prop_assert_eq!(
            parse(Command::get_lba_status(lba, 3)),
            Cdb::GetLbaStatus { lba, allocation: 56 }
        );
    }
}

#[test]
fn the_table_names_each_command_once() {
    let mut seen = std::collections::HashSet::new();
    for entry in commands() {
        let own = [DeviceTypes::TAPE, DeviceTypes::CHANGER].map(|own| entry.types == own);
        assert!(seen.insert((entry.opcode, entry.action, own)), "{:02X} twice", entry.opcode);
        let found = Entry::find(&filled(entry, [0; 16]), owner(entry)).unwrap();
        assert!(std::ptr::eq(found, entry), "{:02X} is hidden by another", entry.opcode);
    }
    for opcode in 0..=u8::MAX {
        let mut block = [0; 16];
        block[0] = opcode;
        let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
        for device in DEVICES {
            let has = |entry: &Entry| entry.opcode == opcode && entry.types.include(device);
            let known = commands().any(has);
            assert_eq!(Parsed::of(&block, device).cdb == Err(unknown), !known, "{opcode:02X}");
        }
    }
}

#[test]
fn commands_without_lba_agree_with_the_initiator() {
    let parse = |command: Command| Parsed::of(&command.cdb, DeviceType::Disk).cdb.unwrap();
    assert_eq!(parse(Command::test_unit_ready()), Cdb::TestUnitReady);
    let standard = Cdb::Inquiry { vital: false, page: 0, allocation: 252 };
    assert_eq!(parse(Command::inquiry()), standard);
    let vital = Cdb::Inquiry { vital: true, page: 0xB0, allocation: 252 };
    assert_eq!(parse(Command::vital(0xB0)), vital);
    assert_eq!(parse(Command::read_capacity_10()), Cdb::ReadCapacity10);
    let capacity = Cdb::ReadCapacity16 { allocation: 32 };
    assert_eq!(parse(Command::read_capacity_16()), capacity);
    let luns = Cdb::ReportLuns { select: 0, allocation: 2056 };
    assert_eq!(parse(Command::report_luns(256)), luns);
    let (unmap, list) = Command::unmap(&[Blocks { lba: 1, count: 2 }]);
    assert_eq!(parse(unmap), Cdb::Unmap { length: list.len() as u32 });
    for (command, form) in
        [(Command::mode_sense_6(), Form::Six), (Command::mode_sense_10(), Form::Ten)]
    {
        let expected = Cdb::ModeSense {
            form,
            long: false,
            bare: true,
            control: PageControl::Current,
            page: 0x08,
            subpage: 0,
            allocation: 252,
        };
        assert_eq!(parse(command), expected);
    }
}

#[test]
fn commands_whose_reach_exceeds_their_data_are_slow() {
    let slow = |device| -> BTreeSet<u8> {
        let slow = commands().filter(|entry| entry.traits(None).pace == Pace::Slow);
        slow.filter(|entry| entry.types.include(device)).map(|entry| entry.opcode).collect()
    };
    // MANAGEMENT PROTOCOL IN and OUT, of every type.
    let administer = [0xA3, 0xA4];
    // START STOP UNIT, VERIFY, SYNCHRONIZE CACHE, WRITE SAME, UNMAP, SANITIZE, EXTENDED COPY.
    let expected = [0x1B, 0x2F, 0x35, 0x41, 0x42, 0x48, 0x83, 0x8F, 0x91, 0x93, 0xAF];
    assert_eq!(slow(DeviceType::Disk), BTreeSet::from_iter([&expected[..], &administer].concat()));
    // REWIND, WRITE FILEMARKS, SPACE, ERASE, LOAD UNLOAD, LOCATE.
    let expected = [0x01, 0x10, 0x11, 0x19, 0x1B, 0x2B, 0x91, 0x92];
    assert_eq!(slow(DeviceType::Tape), BTreeSet::from_iter([&expected[..], &administer].concat()));
    // INITIALIZE ELEMENT STATUS, POSITION TO ELEMENT, MOVE MEDIUM, EXCHANGE MEDIUM.
    let expected = [0x07, 0x2B, 0x37, 0xA5, 0xA6];
    let expected = BTreeSet::from_iter([&expected[..], &administer].concat());
    assert_eq!(slow(DeviceType::Changer), expected);
}

#[test]
fn commands_that_change_a_disk_are_those_that_write_or_flush() {
    let on_disks = commands().filter(|entry| entry.types.include(DeviceType::Disk));
    let changing = on_disks.filter(|entry| entry.traits(None).changes_medium());
    let changing: Vec<_> = changing.map(|entry| entry.opcode).collect();
    let (ten, twelve) = ([0x2A, 0x2E, 0x35, 0x41, 0x42], [0xAA, 0xAE]);
    let sixteen = [0x89, 0x8A, 0x8B, 0x8E, 0x91, 0x93, 0x9C];
    assert_eq!(changing, [&[0x0A][..], &ten, &sixteen, &twelve].concat());
}

#[test]
fn data_that_end_on_the_medium_are_those_of_write_and_write_same() {
    for entry in commands() {
        let data = entry.traits(None).data;
        let stores =
            matches!(entry.opcode, 0x0A | 0x2A | 0xAA | 0x8A | 0x2E | 0xAE | 0x8E | 0x41 | 0x93);
        assert_eq!(data == DataKind::Stored, stores, "{entry:?}");
        // What reads, or tells the status of, blocks does not say how long its answer is.
        let is_read = matches!(entry.opcode, 0x08 | 0x28 | 0xA8 | 0x88)
            || (entry.opcode, entry.action) == (0x9E, Some(0x12));
        assert!(!is_read || data == DataKind::Medium, "{entry:?}");
    }
    let mut block = [0; 16];
    for (code, action, data) in [
        (0x03, 0, DataKind::Parameters),
        (0x12, 0, DataKind::Parameters),
        (0x4D, 0, DataKind::Parameters),
        (0x5A, 0, DataKind::Parameters),
        (0x5E, 1, DataKind::Parameters),
        (0x9E, 0x10, DataKind::Parameters),
        (0x9E, 0x12, DataKind::Medium),
        (0xA0, 0, DataKind::Parameters),
        (0xA3, 0x0A, DataKind::Parameters),
        // No row is for it.
        (0xC0, 0, DataKind::Medium),
    ] {
        (block[0], block[1]) = (code, action);
        assert_eq!(traits_of(&block, DeviceType::Disk).data, data, "{code:#04x}");
    }
}

#[test]
fn six_bytes_count_from_one_to_256() {
    let read = |block| match Parsed::of(&block, DeviceType::Disk).cdb {
        Ok(Cdb::Read(access)) => access.blocks,
        other => panic!("{other:?}"),
    };
    let mut block = [0; 16];
    block[..6].copy_from_slice(&[0x08, 0x1F, 0xFF, 0xFE, 0, 0]);
    assert_eq!(read(block), Blocks { lba: 0x1F_FFFE, count: 256 });
    block[4] = 1;
    assert_eq!(read(block).count, 1);
}

#[test]
fn naca_and_protection_are_refused() {
    let mut block = [0; 16];
    block[0] = 0x88;
    block[15] = 0x04;
    assert_eq!(Parsed::of(&block, DeviceType::Disk).cdb, Err(Sense::invalid_cdb(15, Some(2))));
    block[15] = 0;
    block[1] = 0x20;
    assert_eq!(Parsed::of(&block, DeviceType::Disk).cdb, Err(Sense::invalid_cdb(1, Some(5))));
}

#[test]
fn padding_behind_a_short_block_is_not_looked_at() {
    let mut block = [0; 16];
    block[12] = 0xFF;
    assert_eq!(Parsed::of(&block, DeviceType::Disk).cdb, Ok(Cdb::TestUnitReady));
}
