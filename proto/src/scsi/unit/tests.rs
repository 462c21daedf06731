use std::sync::Arc;

use proptest::prelude::*;

use super::super::command::{self, Command};
use super::super::ports::Port;
use super::super::readiness::Readiness;
use super::*;

const BLOCKS: u64 = 1000;
const TRANSFER_MAX: u32 = 64;

fn medium() -> Medium {
    Medium {
        device: DeviceType::Disk,
        capacity: Capacity {
            blocks: BLOCKS,
            block_size: 512,
            physical_exponent: 3,
            provisioning_managed: true,
            reads_zeroes: true,
            protected: false,
        },
        removable: true,
        read_only: false,
        write_once: false,
        recordable: None,
        write_cache: true,
        unmap_granularity: Some(8),
        transfer_max: TRANSFER_MAX,
        atomic_max: 4,
        crypto_erase: false,
    }
}

fn unit(medium: Medium) -> Unit {
    Unit::new(Identity::new("iqn.2026-11.dev.longhaul:t", 0), medium)
}

fn run(unit: &Unit, block: [u8; 16]) -> Result<Step, Sense> {
    unit.plan(&Parsed::of(&block, DeviceType::Disk), unit.defaults())
}

fn reply(unit: &Unit, command: Command) -> Vec<u8> {
    match run(unit, command.cdb) {
        Ok(Step::Reply(data)) => data,
        other => panic!("{other:?}"),
    }
}

fn block(bytes: &[u8]) -> [u8; 16] {
    let mut block = [0; 16];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

#[test]
fn the_initiator_learns_what_the_device_is() {
    let unit = unit(medium());
    let standard = Standard::parse(&reply(&unit, Command::inquiry())).unwrap();
    assert_eq!((standard.device_type(), standard.qualifier()), (0, 0));
    let capacity = Capacity::parse_16(&reply(&unit, Command::read_capacity_16()));
    assert_eq!(capacity, Ok(medium().capacity));
    let limits = BlockLimits::parse(&reply(&unit, Command::vital(page::BLOCK_LIMITS))).unwrap();
    assert_eq!(limits.transfer_max, TRANSFER_MAX);
    assert_eq!(limits.unmap_granularity, 8);
    let thin = Provisioning::parse(&reply(&unit, Command::vital(page::PROVISIONING))).unwrap();
    assert!(thin.unmap && thin.thin && thin.reads_zeroes && !thin.anchors);
    let mode = command::Mode::parse_10(&reply(&unit, Command::mode_sense_10())).unwrap();
    assert_eq!(mode.write_cache, Some(true));
}

/// What ESXi and Windows ask for before they use COMPARE AND WRITE, EXTENDED COPY, WRITE SAME, UNMAP and several paths
/// (`docs/hypervisors.md`).
#[test]
fn hypervisors_find_what_they_ask_for_in_the_pages() {
    let unit = unit(medium());
    let standard = reply(&unit, Command::inquiry());
    // SPC-3 or later; implicit ALUA and third-party copy (SPC-4, 6.6.2).
    assert!(standard[2] >= 5, "version {}", standard[2]);
    assert_eq!((standard[5] >> 4 & 3, standard[5] & 0x08, standard[7] & 0x02), (1, 0x08, 0x02));
    let page = reply(&unit, Command::vital(page::IDENTIFICATION));
    let mut kinds = Vec::new();
    let mut rest = &page[4..];
    while let [codes, kind, _, length, after @ ..] = rest {
        kinds.push((codes & 0x0F, kind & 0x3F));
        rest = &after[usize::from(*length)..];
    }
    // NAA of the unit; relative port and port group of the port, in binary (SPC-4, 7.8.6).
    for wanted in [(1, 0x03), (1, 0x14), (1, 0x15)] {
        assert!(kinds.contains(&wanted), "{wanted:?} is not in {kinds:?}");
    }
    let limits = BlockLimits::parse(&reply(&unit, Command::vital(page::BLOCK_LIMITS))).unwrap();
    assert!(limits.compare_and_write_max >= 1 && limits.write_same_max >= BLOCKS);
    assert!(limits.unmap_blocks_max > 0 && limits.unmap_descriptors_max > 0);
    assert_eq!((limits.unmap_granularity, limits.unmap_alignment), (8, Some(0)));
    let thin = Provisioning::parse(&reply(&unit, Command::vital(page::PROVISIONING))).unwrap();
    assert!(thin.unmap && thin.write_same_16 && thin.write_same_10 && thin.thin);
}

#[test]
fn every_page_listed_is_there_and_no_other() {
    let unit = unit(medium());
    let listed = command::vital_pages(&reply(&unit, Command::vital(page::SUPPORTED))).unwrap();
    assert!(listed.is_sorted());
    for code in 0..=u8::MAX {
        let found = run(&unit, Command::vital(code).cdb);
        assert_eq!(found.is_ok(), listed.contains(&code), "page {code:02X}");
        if let Ok(Step::Reply(data)) = found {
            assert_eq!(data[1], code);
            assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4);
        }
    }
    // EVPD zero with a page code (SPC-4, 6.6.1).
    assert_eq!(run(&unit, block(&[0x12, 0, 1, 0, 96, 0])), Err(Sense::invalid_cdb(2, None)));
}

#[test]
fn a_thick_unit_offers_no_unmap() {
    let mut thick = medium();
    thick.unmap_granularity = None;
    let unit = unit(thick);
    let range = [Blocks { lba: 0, count: 1 }];
    let refused = Err(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE));
    assert_eq!(run(&unit, Command::unmap(&range).0.cdb), refused);
    let same = Command::write_same(range[0], 512, true);
    assert_eq!(run(&unit, same.cdb), Err(Sense::invalid_cdb(1, Some(3))));
    let limits = BlockLimits::parse(&reply(&unit, Command::vital(page::BLOCK_LIMITS))).unwrap();
    assert_eq!((limits.unmap_blocks_max, limits.unmap_descriptors_max), (0, 0));
}

#[test]
fn blocks_beyond_the_last_are_out_of_range() {
    let unit = unit(medium());
    for (lba, count, first) in [
        (BLOCKS - 1, 2, Some(BLOCKS)),
        (BLOCKS, 0, Some(BLOCKS)),
        (u64::MAX, u32::MAX, Some(u64::MAX)),
        (BLOCKS - 1, 1, None),
        (BLOCKS - 1, 0, None),
    ] {
        let read = run(&unit, Command::read(Blocks { lba, count }, 1).cdb);
        let expected =
            first.map(|first| Sense::illegal(Additional::LBA_OUT_OF_RANGE).with_information(first));
        assert_eq!(read.err(), expected, "{count} at {lba}");
    }
}

#[test]
fn more_than_the_limit_is_refused_where_the_count_stands() {
    let unit = unit(medium());
    let at = |bytes: &[u8]| run(&unit, block(bytes)).unwrap_err().field.unwrap().byte;
    assert_eq!(at(&[0x28, 0, 0, 0, 0, 0, 0, 0, 65, 0]), 7);
    assert_eq!(at(&[0xA8, 0, 0, 0, 0, 0, 0, 0, 0, 65, 0, 0]), 6);
    assert_eq!(at(&Command::read(Blocks { lba: 0, count: 65 }, 1).cdb), 10);
    assert_eq!(at(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 65, 0, 0]), 13);
}

#[test]
fn a_unit_offers_crypto_erase_if_it_has_a_key() {
    let asked = block(&[0xA3, 0x0C, 0x02, 0x48, 0, 3, 0, 0, 0, 255, 0, 0]);
    for (crypto_erase, support, readable) in [(false, 1, 0x40), (true, 3, 0x50)] {
        let unit = unit(Medium { crypto_erase, ..medium() });
        let Ok(Step::Reply(supported)) = run(&unit, asked) else { panic!("no answer") };
        assert_eq!(supported[1], support);
        // WABEREQ and WACEREQ.
        assert_eq!(reply(&unit, Command::vital(page::CHARACTERISTICS))[7], readable);
        let erase = run(&unit, block(&[0x48, 0x83, 0, 0, 0, 0, 0, 0, 0, 0]));
        let method = Method::CryptoErase;
        let planned = Step::Unit(UnitOp::Sanitize { method, immediate: true, unrestricted: false });
        let unknown = Sense::invalid_cdb(1, Some(4));
        assert_eq!(erase, if crypto_erase { Ok(planned) } else { Err(unknown) });
        // It takes no parameter list.
        let listed = run(&unit, block(&[0x48, 0x03, 0, 0, 0, 0, 0, 0, 8, 0]));
        assert_eq!(listed, Err(Sense::invalid_cdb(8, Some(3))));
    }
}

/// WRITE ATOMIC (16).
fn atomic(lba: u8, count: u8) -> [u8; 16] {
    block(&[0x9C, 0, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, count, 0, 0])
}

#[test]
fn atomic_writes_are_of_whole_physical_blocks_where_those_fit() {
    // Physical blocks of eight.
    let unit = unit(Medium { atomic_max: 24, ..medium() });
    let limits = BlockLimits::parse(&reply(&unit, Command::vital(page::BLOCK_LIMITS))).unwrap();
    let units = (limits.atomic_max, limits.atomic_alignment, limits.atomic_granularity);
    assert_eq!(units, (24, 8, 8));
    for (lba, count) in [(0, 8), (8, 24), (16, 0)] {
        let blocks = Blocks { lba: lba.into(), count: count.into() };
        let planned = run(&unit, atomic(lba, count));
        assert_eq!(planned, Ok(Step::Medium(MediumOp::WriteAtomic { blocks, durable: false })));
    }
    assert_eq!(run(&unit, atomic(1, 8)), Err(Sense::invalid_cdb(2, None)));
    assert_eq!(run(&unit, atomic(0, 1)), Err(Sense::invalid_cdb(12, None)));
    assert_eq!(run(&unit, atomic(0, 32)), Err(Sense::invalid_cdb(12, None)));
}

#[test]
fn write_smaller_than_a_physical_block_is_atomic_anywhere() {
    let unit = unit(medium());
    let limits = BlockLimits::parse(&reply(&unit, Command::vital(page::BLOCK_LIMITS))).unwrap();
    let units = (limits.atomic_max, limits.atomic_alignment, limits.atomic_granularity);
    assert_eq!(units, (4, 0, 0));
    assert!(run(&unit, atomic(1, 3)).is_ok());
    assert_eq!(run(&unit, atomic(1, 5)), Err(Sense::invalid_cdb(12, None)));
}

#[test]
fn write_protection_is_felt_by_every_write() {
    let mut read_only = medium();
    read_only.read_only = true;
    let soft = Switches { write_protect: true, ..Switches::default() };
    for (unit, switches, code) in [
        (unit(read_only), Switches::default(), Additional::WRITE_PROTECTED),
        (unit(medium()), soft, Additional::SOFTWARE_WRITE_PROTECTED),
    ] {
        for opcode in [0x0A, 0x2A, 0xAA, 0x8A, 0x2E, 0xAE, 0x8E, 0x41, 0x93, 0x42, 0x89, 0x8B] {
            let cdb = Parsed::of(&block(&[opcode]), DeviceType::Disk);
            let expected = Err(Sense::new(Key::DataProtect, code));
            assert_eq!(unit.plan(&cdb, switches), expected, "{opcode:02X}");
            assert_eq!(unit.data_out(&cdb, switches), 0);
        }
        let read =
            Parsed::of(&Command::read(Blocks { lba: 0, count: 1 }, 512).cdb, DeviceType::Disk);
        assert!(unit.plan(&read, switches).is_ok());
    }
}

#[test]
fn a_switched_off_cache_makes_every_write_stable() {
    let unit = unit(medium());
    let blocks = Blocks { lba: 0, count: 1 };
    for (fua, write_cache, durable) in
        [(false, true, false), (true, true, true), (false, false, true), (true, false, true)]
    {
        let cdb = Parsed::of(&Command::write(blocks, 512, fua).cdb, DeviceType::Disk);
        let switches = Switches { write_cache, ..Switches::default() };
        assert_eq!(
            unit.plan(&cdb, switches),
            Ok(Step::Medium(MediumOp::Write { blocks, durable }))
        );
    }
}

#[test]
fn a_unit_without_a_medium_answers_questions_only() {
    let unit = unit(medium());
    let ejected = Switches { readiness: Readiness::NoMedium, ..unit.defaults() };
    let plan = |bytes: &[u8]| unit.plan(&Parsed::of(&block(bytes), DeviceType::Disk), ejected);
    let absent = Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT);
    for needs in [&[0x00][..], &[0x28], &[0x25], &[0x9E, 0x10], &[0x34], &[0x1B, 0, 0, 0, 1, 0]] {
        assert_eq!(plan(needs), Err(absent), "{needs:02X?}");
    }
    assert!(plan(&[0x12]).is_ok() && plan(&[0x1A, 0, 0x3F, 0, 255, 0]).is_ok());
    assert_eq!(plan(&[0x1B, 0, 0, 0, 3, 0]), Ok(Step::Unit(UnitOp::Load)));
    assert_eq!(plan(&[0x1B, 0, 0, 0, 2, 0]), Ok(Step::Unit(UnitOp::Eject { flush: true })));
}

#[test]
fn unknown_service_action_is_an_invalid_field() {
    for block in [block(&[0x5E, 0x04]), block(&[0x9E, 0x1F]), block(&[0xA3, 0x1F])] {
        assert_eq!(run(&unit(medium()), block), Err(Sense::invalid_cdb(1, Some(4))));
    }
}

/// SPC-4, 5.16: each port has its own state, and the unit says so by each.
#[test]
fn a_unit_is_as_its_port_lets_it_be() {
    let all = Arc::from([
        Port::new(1, AccessState::NonOptimized),
        Port::new(2, AccessState::Standby),
        Port::new(3, AccessState::Unavailable),
    ]);
    let [active, standby, unavailable] =
        Vec::from_iter(Ports::views(&all).map(|ports| unit(medium()).by(ports)))
            .try_into()
            .unwrap();
    let write = Command::write(Blocks { lba: 0, count: 1 }, 512, false).cdb;
    for (unit, port, needed, refused, qualifier) in [
        (&active, 1, 512, None, 0),
        (&standby, 2, 0, Some(Additional::PORT_IN_STANDBY), 0),
        (&unavailable, 3, 0, Some(Additional::PORT_UNAVAILABLE), 1),
    ] {
        let told = run(unit, write).err().map(|sense| (sense.key, sense.additional));
        assert_eq!(told, refused.map(|code| (Key::NotReady, code)));
        assert_eq!(unit.data_out(&Parsed::of(&write, DeviceType::Disk), unit.defaults()), needed);
        let standard = Standard::parse(&reply(unit, Command::inquiry())).unwrap();
        assert_eq!((standard.qualifier(), standard.multi_port), (qualifier, true));
        let page = reply(unit, Command::vital(page::IDENTIFICATION));
        assert_eq!(page[0] >> 5, qualifier);
        let relative_port = [0x51, 0x94, 0, 4, 0, 0, 0, port];
        assert!(page.windows(8).any(|part| part == relative_port), "{page:02x?}");
        // On another medium its ports are the same.
        assert_eq!(unit.on(medium()).ports(), unit.ports());
    }
    let single = Standard::parse(&reply(&unit(medium()), Command::inquiry())).unwrap();
    assert!(!single.multi_port);
}

#[test]
fn a_fixed_unit_stops_and_starts() {
    let fixed = unit(Medium { removable: false, ..medium() });
    let stop = |bits: u8| run(&fixed, block(&[0x1B, bits & 1, 0, 0, bits & 4, 0]));
    assert_eq!(stop(0), Ok(Step::Unit(UnitOp::Stop { flush: true, immediate: false })));
    // IMMED, and NO_FLUSH.
    assert_eq!(stop(1), Ok(Step::Unit(UnitOp::Stop { flush: true, immediate: true })));
    assert_eq!(stop(4), Ok(Step::Unit(UnitOp::Stop { flush: false, immediate: false })));
    assert_eq!(run(&fixed, block(&[0x1B, 0, 0, 0, 1, 0])), Ok(Step::Unit(UnitOp::Start)));
    assert_eq!(run(&fixed, block(&[0x1B, 0, 0, 0, 2, 0])), Err(Sense::invalid_cdb(4, Some(1))));
    assert_eq!(run(&fixed, block(&[0x1E, 0, 0, 0, 1, 0])), Ok(DONE));
    let stopped = Switches { readiness: Readiness::Stopped, ..fixed.defaults() };
    let plan = |bytes: &[u8]| fixed.plan(&Parsed::of(&block(bytes), DeviceType::Disk), stopped);
    // SBC-4, 4.20.4: until it is started, neither TEST UNIT READY nor what touches blocks.
    let needed = Sense::new(Key::NotReady, Additional::INITIALIZING_COMMAND_REQUIRED);
    for touches in
        [&[0x00][..], &[0x28], &[0x2A], &[0x35], &[0x42], &[0x93], &[0x48, 0x01], &[0x34]]
    {
        assert_eq!(plan(touches), Err(needed), "{touches:02X?}");
    }
    for asks in [&[0x12][..], &[0x25], &[0x9E, 0x10], &[0x1A, 0, 0x3F, 0, 255, 0], &[0x5E], &[0x1E]]
    {
        assert!(plan(asks).is_ok(), "{asks:02X?}");
    }
    assert_eq!(
        plan(&[0x1B, 0, 0, 0, 0, 0]),
        Ok(Step::Unit(UnitOp::Stop { flush: true, immediate: false }))
    );
    assert_eq!(plan(&[0x1B, 0, 0, 0, 1, 0]), Ok(Step::Unit(UnitOp::Start)));
    // SBC-4, 4.20.5.10: so do ACTIVE, IDLE and STANDBY start it, and no other condition.
    for condition in 1..16 {
        let started = if condition < 4 { UnitOp::Start.into() } else { DONE };
        assert_eq!(plan(&[0x1B, 0, 0, 0, condition << 4, 0]), Ok(started), "{condition:X}");
    }
}

#[test]
fn a_removable_unit_does_not_stop() {
    let removable = unit(medium());
    let flush =
        |immediate| Ok(if immediate { UnitOp::FlushLater.into() } else { MediumOp::Flush.into() });
    assert_eq!(run(&removable, block(&[0x1B, 0, 0, 0, 0, 0])), flush(false));
    assert_eq!(run(&removable, block(&[0x1B, 1, 0, 0, 0, 0])), flush(true));
    assert_eq!(run(&removable, block(&[0x1B, 0, 0, 0, 4, 0])), Ok(DONE));
    for condition in 1..16 {
        assert_eq!(run(&removable, block(&[0x1B, 0, 0, 0, condition << 4 | 2, 0])), Ok(DONE));
    }
    assert_eq!(
        run(&removable, block(&[0x1E, 0, 0, 0, 1, 0])),
        Ok(Step::Unit(UnitOp::Prevent(true)))
    );
}

#[test]
fn write_same_of_no_blocks_is_refused() {
    let unit = unit(medium());
    let at = |lba| Command::write_same(Blocks { lba, count: 0 }, 512, true).cdb;
    assert_eq!(run(&unit, at(0)), Err(Sense::invalid_cdb(10, None)));
    let beyond = run(&unit, at(BLOCKS)).unwrap_err();
    assert_eq!(beyond.additional, Additional::LBA_OUT_OF_RANGE);
}

#[test]
fn unmap_lists_are_checked_as_a_whole() {
    let unit = unit(medium());
    let inside = Blocks { lba: 0, count: 8 };
    let list = |ranges: &[Blocks]| Command::unmap(ranges).1;
    let empty = Blocks { lba: BLOCKS, count: 0 };
    assert_eq!(unit.unmap(&list(&[inside, empty])), Ok(vec![inside]));
    let outside = Blocks { lba: BLOCKS - 1, count: 2 };
    let refused = unit.unmap(&list(&[inside, outside])).unwrap_err();
    assert_eq!(refused.additional, Additional::LBA_OUT_OF_RANGE);
}

#[test]
fn nothing_there_says_so() {
    let answer =
        |bytes: &[u8]| absent(&Parsed::of(&block(bytes), DeviceType::Disk).cdb.unwrap(), "iqn.x");
    let Ok(AbsentAnswer::Reply(data)) = answer(&[0x12, 0, 0, 0, 96, 0]) else {
        panic!("no INQUIRY")
    };
    assert_eq!(data[0], 0x7F);
    assert!(matches!(answer(&[0xA0]), Ok(AbsentAnswer::ReportLuns { .. })));
    let Ok(AbsentAnswer::Reply(data)) = answer(&[0x03, 0, 0, 0, 18, 0]) else { panic!("no sense") };
    assert_eq!(Sense::parse(&data), Some(no_unit()));
    assert_eq!(answer(&[0x28]), Err(no_unit()));
}

#[test]
fn the_list_of_units_is_selected_and_cut() {
    let units = [0, 300];
    let whole = luns(0, 1024, &units).unwrap();
    assert_eq!(command::luns(&whole), Ok(units.to_vec()));
    assert_eq!(luns(2, 20, &units).unwrap(), whole[..20]);
    assert_eq!(command::luns(&luns(1, 1024, &units).unwrap()), Ok(vec![]));
    assert_eq!(luns(0x10, 1024, &units), Err(Sense::invalid_cdb(2, None)));
}

proptest! {
    #[test]
    fn any_block_is_harmless_and_its_data_bounded(bytes: [u8; 16], bits in 0..48u8) {
        crate::scsi::invariants::any_block(&bytes, bits);
    }

    #[test]
    fn planned_accesses_are_inside_the_medium(bytes: [u8; 16], index in 0..super::super::cdb::commands().count()) {
        let mut bytes = bytes;
        bytes[0] = super::super::cdb::commands().nth(index).unwrap().opcode;
        crate::scsi::invariants::any_block(&bytes, 4);
    }
}
