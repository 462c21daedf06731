use proptest::prelude::*;

use super::identity;
use super::length::SECTOR_LENGTHS;
use super::*;
use crate::scsi::inquiry::page;

const GEOMETRY: Geometry = Geometry { block_length: 512, transfer_max: 1 << 20 };
const OWNER: Rights = Rights { read_only: false, maintenance: false, administrator: false };
const READER: Rights = Rights { read_only: true, ..OWNER };
const MAINTAINER: Rights = Rights { maintenance: true, ..OWNER };

fn block(bytes: &[u8]) -> Block {
    let mut block = [0; 16];
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

fn transfer(class: DeviceClass, bytes: &[u8]) -> Result<Transfer, Sense> {
    plan(&block(bytes), class, MAINTAINER, GEOMETRY).map(|plan| plan.transfer)
}

/// A block with the codes of a row, and nothing else in it.
fn bare(row: &Row) -> Block {
    block(&[row.opcode, row.action.map_or(0, |(_, value)| value)])
}

#[test]
fn every_row_is_found_by_its_codes_and_names_its_clause() {
    for class in DeviceClass::ALL {
        for row in commands().filter(|row| row.is_of(class)) {
            let found = Row::find(&bare(row), class).unwrap();
            assert!(std::ptr::eq(found, row), "{} is hidden by {}", row.clause, found.clause);
            assert!(
                row.clause.contains(": S")
                    || row.clause.contains(": MMC")
                    || row.clause.contains(": ZBC")
            );
        }
    }
}

#[test]
fn code_without_a_row_is_refused_on_every_device_for_everybody() {
    let mut refused = 0;
    for class in DeviceClass::ALL {
        for opcode in 0..0xC0 {
            if commands().any(|row| row.opcode == opcode && row.is_of(class)) {
                continue;
            }
            for rights in [OWNER, READER, MAINTAINER] {
                let refusal = plan(&block(&[opcode]), class, rights, GEOMETRY);
                assert_eq!(refusal, Err(UNKNOWN), "{opcode:#04x} on {class:?}");
            }
            refused += 1;
        }
    }
    assert!(refused > 500, "{refused}");
    // EXTENDED COPY, RECEIVE COPY RESULTS, ACCESS CONTROL, and blocks of more than 16 bytes.
    for opcode in [0x83, 0x84, 0x86, 0x87, 0x7F, 0x7E] {
        assert_eq!(transfer(DeviceClass::Disk, &[opcode]), Err(UNKNOWN));
    }
    let unknown_action = Err(Sense::invalid_cdb(1, Some(4)));
    assert_eq!(transfer(DeviceClass::Disk, &[0x9E, 0x1F]), unknown_action);
    assert_eq!(
        transfer(DeviceClass::Disk, &[0xA4, 0x0A]),
        unknown_action,
        "SET TARGET PORT GROUPS"
    );
}

#[test]
fn maintenance_is_refused_as_unknown_unless_it_is_allowed() {
    let mut rows = 0;
    for class in DeviceClass::ALL {
        for row in commands().filter(|row| row.is_of(class) && row.right == Right::Maintain) {
            assert_eq!(plan(&bare(row), class, OWNER, GEOMETRY), Err(UNKNOWN), "{}", row.clause);
            assert!(!permits(row.opcode, bare(row)[1], class, OWNER));
            assert!(permits(row.opcode, bare(row)[1], class, MAINTAINER));
            rows += 1;
        }
        for vendor in [0xC0, 0xE7, 0xFF] {
            assert_eq!(plan(&block(&[vendor]), class, OWNER, GEOMETRY), Err(UNKNOWN));
            let planned = plan(&block(&[vendor]), class, MAINTAINER, GEOMETRY).unwrap();
            assert!(matches!(planned.transfer, Transfer::Announced(_)));
        }
    }
    assert!(rows > 20, "{rows}");
    // FORMAT UNIT, SANITIZE, firmware, SECURITY PROTOCOL: each by its own code.
    for bytes in [[0x04, 0], [0x48, 1], [0x3B, 5], [0x3B, 0x0E], [0xA2, 0], [0xB5, 0]] {
        assert_eq!(plan(&block(&bytes), DeviceClass::Disk, OWNER, GEOMETRY), Err(UNKNOWN));
    }
    let maintenance = Rights { read_only: true, ..MAINTAINER };
    let refused = plan(&block(&[0x04]), DeviceClass::Disk, maintenance, GEOMETRY);
    assert_eq!(refused, Err(Sense::illegal(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS)));
}

#[test]
fn reader_sends_only_what_changes_nothing() {
    for class in DeviceClass::ALL {
        for row in commands().filter(|row| row.is_of(class)) {
            let planned = plan(&bare(row), class, READER, GEOMETRY);
            match row.right {
                Right::Read => assert!(row.length.is_read_only(), "{}", row.clause),
                Right::Write => {
                    let refused = Sense::new(Key::DataProtect, Additional::WRITE_PROTECTED);
                    assert_eq!(planned, Err(refused), "{}", row.clause);
                }
                Right::Manage => {
                    let refused = Sense::illegal(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS);
                    assert_eq!(planned, Err(refused), "{}", row.clause);
                }
                Right::Maintain => assert_eq!(planned, Err(UNKNOWN), "{}", row.clause),
            }
        }
    }
}

#[test]
fn lengths_follow_from_the_block() {
    use DeviceClass::{Changer, Disk, Optical, Tape};
    let illegal = |at| Err(Sense::invalid_cdb(at, None));
    for (class, bytes, expected) in [
        (Disk, &[0x00][..], Ok(Transfer::None)),
        (Disk, &[0x12, 0, 0, 1, 0], Ok(Transfer::In(256))),
        (Disk, &[0x28, 0, 0, 0, 0, 0, 0, 0, 3], Ok(Transfer::In(1536))),
        (Disk, &[0x28], Ok(Transfer::None)),
        (Disk, &[0x08], Ok(Transfer::In(256 * 512))),
        (Disk, &[0x28, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF], illegal(7)),
        (Disk, &[0x2A, 0, 0, 0, 0, 0, 0, 0, 2], Ok(Transfer::Out(1024))),
        (Disk, &[0x2A, 0x20], Err(Sense::invalid_cdb(1, Some(7)))),
        (Disk, &[0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF], illegal(10)),
        (Disk, &[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], Ok(Transfer::Out(1024))),
        (Disk, &[0x2F, 0x02, 0, 0, 0, 0, 0, 0, 2], Ok(Transfer::Out(1024))),
        (Disk, &[0x2F, 0x06, 0, 0, 0, 0, 0, 0, 2], Ok(Transfer::Out(512))),
        (Disk, &[0x2F, 0x04, 0, 0, 0, 0, 0, 0, 2], Err(Sense::invalid_cdb(1, Some(2)))),
        (Disk, &[0x93, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], Ok(Transfer::None)),
        (Disk, &[0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], Ok(Transfer::Out(512))),
        (Disk, &[0xB5, 0, 0, 0, 0x80, 0, 0, 0, 0, 2], Ok(Transfer::Out(1024))),
        (Disk, &[0x00, 0, 0, 0, 0, 0x04], Err(Sense::invalid_cdb(5, Some(2)))),
        (Tape, &[0x08, 0, 0, 0x10, 0], Ok(Transfer::In(4096))),
        (Tape, &[0x08, 1, 0, 0, 8], Ok(Transfer::In(4096))),
        (Tape, &[0x0A, 0, 0x20, 0, 0], illegal(2)),
        (Tape, &[0x0A, 1, 0, 0, 2], Ok(Transfer::Out(1024))),
        (Tape, &[0x13, 2], Err(Sense::invalid_cdb(1, Some(1)))),
        (Tape, &[0x34], Ok(Transfer::In(20))),
        (Tape, &[0x34, 6], Ok(Transfer::In(32))),
        (Tape, &[0x34, 8, 0, 0, 0, 0, 0, 0, 40], Ok(Transfer::In(40))),
        (Tape, &[0x34, 9], Err(Sense::invalid_cdb(1, Some(4)))),
        (Optical, &[0x2A, 0, 0, 0, 0, 0, 0, 0, 4], Ok(Transfer::Sectors { count: 4 })),
        (Optical, &[0xBE, 0, 0, 0, 0, 0, 0, 0, 2], Ok(Transfer::In(2 * 2744))),
        (Optical, &[0xB9, 0, 0, 0, 2, 0, 0, 2, 3], Ok(Transfer::In(3 * 2744))),
        (Optical, &[0xB9, 0, 0, 0, 2, 4, 0, 2, 3], illegal(6)),
        (Optical, &[0xA4, 0, 0, 0, 0, 0, 0, 0, 0, 8], Ok(Transfer::In(8))),
        (Changer, &[0xB8, 0, 0, 0, 0, 0, 0, 1, 0, 0], Ok(Transfer::In(65536))),
    ] {
        assert_eq!(transfer(class, bytes), expected, "{class:?} {bytes:02x?}");
    }
}

#[test]
fn tape_without_a_block_length_moves_no_blocks_of_one() {
    let variable = Geometry { block_length: 0, ..GEOMETRY };
    let fixed = plan(&block(&[0x08, 1, 0, 0, 1]), DeviceClass::Tape, OWNER, variable);
    assert_eq!(fixed, Err(Sense::invalid_cdb(1, Some(0))));
    let read = plan(&block(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1]), DeviceClass::Disk, OWNER, variable);
    assert_eq!(read, Err(Sense::new(Key::NotReady, Additional::NOT_READY_UNKNOWN_CAUSE)));
}

#[test]
fn data_out_are_what_the_device_waits_for() {
    assert!(Transfer::Out(512).is_complete(512) && Transfer::Out(512).is_complete(1024));
    assert!(!Transfer::Out(512).is_complete(511));
    let sectors = Transfer::Sectors { count: 3 };
    assert!(SECTOR_LENGTHS.iter().all(|length| sectors.is_complete(3 * length)));
    assert!(
        !sectors.is_complete(3 * 512) && !sectors.is_complete(2 * 2048) && !sectors.is_complete(0)
    );
    assert!(Transfer::Announced(8).is_complete(8) && !Transfer::Announced(8).is_complete(9));
}

#[test]
fn administration_is_for_administrators() {
    let management = block(&[0xA4, 0x10]);
    assert_eq!(plan(&management, DeviceClass::Tape, OWNER, GEOMETRY), Err(UNKNOWN));
    let administrator = Rights { administrator: true, ..READER };
    let planned = plan(&management, DeviceClass::Tape, administrator, GEOMETRY).unwrap();
    assert_eq!(planned.handling, Handling::Administration);
}

#[test]
fn state_of_each_initiator_port_does_not_go_on() {
    for opcode in [0x16, 0x17, 0x56, 0x57, 0x5E, 0x5F, 0xA0] {
        let planned = plan(&block(&[opcode]), DeviceClass::Tape, OWNER, GEOMETRY).unwrap();
        assert_eq!(planned.handling, Handling::Target, "{opcode:#04x}");
    }
    let allow = plan(&block(&[0x1E]), DeviceClass::Optical, OWNER, GEOMETRY).unwrap();
    let prevent = plan(&block(&[0x1E, 0, 0, 0, 1]), DeviceClass::Optical, OWNER, GEOMETRY).unwrap();
    assert_eq!((allow.class, prevent.class), (Class::Free, Class::Writes));
}

#[test]
fn identity_is_the_device_s_but_for_what_names_the_unit() {
    let device = [0x01, 0x80, 6, 0x12, 91, 0x39, 0x10, 0x00];
    let ours = [0x20, 0, 6, 2, 91, 0x10, 0x00, 0x02];
    assert_eq!(identity::standard(device.to_vec(), &ours), [0x21, 0x80, 6, 0x12, 91, 0x10, 0, 2]);
    assert_eq!(identity::standard(vec![5], &ours), [0x25], "a short one");
    let pages = identity::supported(1, &[1, 0, 0, 4, 0x00, 0x8F, 0xB0, 0x83]);
    assert_eq!(pages, [1, 0, 0, 5, 0x00, 0x80, 0x83, 0x88, 0xB0]);
    assert_eq!(identity::supported(1, &[])[4..], [0x00, 0x80, 0x83, 0x88]);
    assert!(identity::is_ours(page::SERIAL) && !identity::is_ours(page::BLOCK_LIMITS));
    let mut limits = vec![0; 64];
    limits[12..16].copy_from_slice(&9999_u32.to_be_bytes());
    let limits = identity::block_limits(limits, 128);
    assert_eq!(
        (limits[8..12].to_vec(), limits[12..16].to_vec()),
        (vec![0, 0, 0, 128], vec![0, 0, 0, 128])
    );
}

#[test]
fn operation_codes_that_are_refused_are_not_listed() {
    let read = [0x28, 0, 0, 0, 0, 0, 0, 10];
    let format = [0x04, 0, 0, 0, 0, 0x02, 0, 6];
    let capacity = [0x9E, 0, 0, 0x10, 0, 1, 0, 16];
    let mut list = vec![0, 0, 0, 36];
    list.extend(read);
    list.extend(format);
    list.extend([0, 10, 0, 0, 0, 0, 0, 9, 0, 0, 0, 9]);
    list.extend(capacity);
    let kept = opcodes::permitted(&list, |opcode, action| {
        permits(opcode, action, DeviceClass::Disk, OWNER)
    });
    assert_eq!(kept, [&[0, 0, 0, 16][..], &read, &capacity].concat());
    assert_eq!(opcodes::asked(&block(&[0xA3, 0x0C, 0x03, 0x9E, 0, 0x10])), Some((0x9E, 0x10)));
    assert_eq!(opcodes::asked(&block(&[0xA3, 0x0C, 0x80])), None);
}

proptest! {
    /// Whatever a client sends: nothing of no known length goes on, nor more than a command may carry.
    #[test]
    fn hostile_blocks_stay_within_limits(
        bytes in any::<[u8; 16]>(), class in 0..5_usize, length in 0..0x2_0000_u32, reads: bool,
    ) {
        let class = DeviceClass::ALL[class];
        let rights = Rights { read_only: reads, ..MAINTAINER };
        let geometry = Geometry { block_length: length, ..GEOMETRY };
        if let Ok(planned) = plan(&bytes, class, rights, geometry) {
            prop_assert!(planned.transfer.in_max() <= GEOMETRY.transfer_max);
            if !matches!(planned.transfer, Transfer::Sectors { .. }) {
                prop_assert!(planned.transfer.out_max() <= GEOMETRY.transfer_max);
            }
            let is_ours = matches!(planned.handling, Handling::Target | Handling::Administration);
            prop_assert!(!reads || is_ours || !matches!(planned.transfer, Transfer::Out(_))
                || bytes[0] == 0x2F || bytes[0] == 0x8F || bytes[0] == 0xAF);
            prop_assert!(block_length(bytes[0]) <= 16);
        }
    }

    #[test]
    fn hostile_lists_of_operation_codes_do_no_harm(list in proptest::collection::vec(any::<u8>(), 0..200)) {
        let kept = opcodes::permitted(&list, |_, _| true);
        prop_assert!(kept.len() <= list.len().max(4));
        let _ = identity::supported(0, &list);
        let _ = identity::standard(list.clone(), &list);
        let _ = identity::block_limits(list, 1);
    }
}

/// SP of LOG SENSE has the device save its parameters: that changes the device.
#[test]
fn a_reader_has_no_log_parameters_saved() {
    let planned = |flags, rights| {
        plan(&block(&[0x4D, flags, 0, 0, 0, 0, 0, 0, 0xFF]), DeviceClass::Tape, rights, GEOMETRY)
    };
    let refused = Sense::illegal(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS);
    assert_eq!(planned(0x01, READER).err(), Some(refused));
    assert!(planned(0x01, OWNER).is_ok());
    assert!(planned(0x00, READER).is_ok());
}
