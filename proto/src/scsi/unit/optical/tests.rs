use proptest::prelude::*;

use super::super::super::cdb::{Parsed, commands};
use super::super::super::command::Command;
use super::super::super::inquiry::{Identity, Standard};
use super::super::super::mode::Switches;
use super::super::super::sense::Key;
use super::super::super::{Capacity, DeviceType};
use super::super::{Medium, Unit};
use super::events::{MediaEvent, MediaEvents};
use super::*;

const CD: u64 = 1000;
const DVD: u64 = 2_000_000;

pub(super) fn unit(blocks: u64) -> Unit {
    let capacity = Capacity {
        blocks,
        block_size: BLOCK_SIZE,
        physical_exponent: 0,
        provisioning_managed: false,
        reads_zeroes: false,
        protected: false,
    };
    let medium = Medium {
        device: DeviceType::Optical,
        capacity,
        removable: true,
        read_only: true,
        write_once: false,
        recordable: None,
        write_cache: false,
        unmap_granularity: None,
        transfer_max: 4096,
        atomic_max: 1,
        crypto_erase: false,
    };
    Unit::new(Identity::new("iqn.2026-11.dev.longhaul:t", 0), medium)
}

fn plan(unit: &Unit, bytes: &[u8]) -> Result<Step, Sense> {
    plan_in(unit, bytes, unit.defaults())
}

fn plan_in(unit: &Unit, bytes: &[u8], switches: Switches) -> Result<Step, Sense> {
    let mut block = [0; 16];
    block[..bytes.len()].copy_from_slice(bytes);
    unit.plan(&Parsed::of(&block, DeviceType::Optical), switches)
}

fn reply(unit: &Unit, bytes: &[u8]) -> Vec<u8> {
    match plan(unit, bytes) {
        Ok(Step::Reply(data)) => data,
        other => panic!("{other:?}"),
    }
}

fn open_tray(unit: &Unit) -> Switches {
    Switches { readiness: Readiness::TrayOpen, ..unit.defaults() }
}

#[test]
fn drive_is_told_from_a_disk_by_inquiry() {
    let data = reply(&unit(CD), &Command::inquiry().cdb);
    let standard = Standard::parse(&data).unwrap();
    assert_eq!((standard.device_type(), standard.qualifier()), (5, 0));
    assert!(standard.removable && !standard.third_party_copy);
    // MMC-6, no version claimed.
    assert_eq!(standard.command_set, 0x04E0);
    // Block limits, third-party copies, and the like are pages of disks.
    assert_eq!(
        reply(&unit(CD), &[0x12, 1, 0, 0, 255])[4..],
        [0, 0x80, 0x83, 0x86, 0x87, 0x88, 0xC0]
    );
    assert_eq!(plan(&unit(CD), &[0x12, 1, 0xB0, 0, 255]), Err(Sense::invalid_cdb(2, None)));
    assert_eq!(reply(&unit(CD), &[0x25]), [0, 0, 3, 0xE7, 0, 0, 8, 0]);
}

/// MMC-6, 6.25.3.2: the layouts of the three formats that data discs have.
#[test]
fn toc_has_one_track_of_data_and_the_lead_out() {
    let toc = |bytes: &[u8]| plan(&unit(CD), bytes);
    let read = |bytes: &[u8]| reply(&unit(CD), bytes);
    let blocks =
        [&[0, 18, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0][..], &[0, 0x14, 0xAA, 0, 0, 0, 3, 0xE8]]
            .concat();
    assert_eq!(read(&[0x43, 0, 0, 0, 0, 0, 0, 0, 255]), blocks);
    assert_eq!(read(&[0x43, 0, 0, 0, 0, 0, 1, 0, 255]), blocks);
    assert_eq!(read(&[0x43, 0, 0, 0, 0, 0, 0, 0, 4]), [0, 18, 1, 1]);
    let lead_out = read(&[0x43, 0, 0, 0, 0, 0, 0xAA, 0, 255]);
    assert_eq!(lead_out, [0, 10, 1, 1, 0, 0x14, 0xAA, 0, 0, 0, 3, 0xE8]);
    // 1000 blocks and 150 are 15 seconds and 25 frames.
    let minutes = read(&[0x43, 2, 0, 0, 0, 0, 0xAA, 0, 255]);
    assert_eq!(minutes[8..], [0, 0, 15, 25]);
    let session = [0, 10, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0];
    assert_eq!(read(&[0x43, 0, 1, 0, 0, 0, 0, 0, 255]), session);
    // As Linux asks for it: the format in the last byte.
    assert_eq!(read(&[0x43, 0, 0, 0, 0, 0, 0, 0, 12, 0x40]), session);
    let full = read(&[0x43, 2, 2, 0, 0, 0, 1, 0, 255]);
    assert_eq!(full.len(), 4 + 4 * 11);
    assert_eq!(full[..4], [0, 46, 1, 1]);
    assert_eq!(full[4..15], [1, 0x14, 0, 0xA0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(full[26..37], [1, 0x14, 0, 0xA2, 0, 0, 0, 0, 0, 15, 25]);
    assert_eq!(full[37..], [1, 0x14, 0, 1, 0, 0, 0, 0, 0, 2, 0]);
    assert_eq!(toc(&[0x43, 0, 0, 0, 0, 0, 2, 0, 255]), Err(Sense::invalid_cdb(6, None)));
    assert_eq!(toc(&[0x43, 0, 5, 0, 0, 0, 0, 0, 255]), Err(Sense::invalid_cdb(2, Some(3))));
}

/// MMC-6, 5.2 and 5.3.
#[test]
fn features_are_current_as_the_disc_is() {
    let all = |unit: &Unit, switches| match plan_in(unit, &[0x46, 0, 0, 0, 0, 0, 0, 1, 0], switches)
    {
        Ok(Step::Reply(data)) => data,
        other => panic!("{other:?}"),
    };
    let current = |data: &[u8]| {
        let mut codes = Vec::new();
        let mut rest = &data[8..];
        while let [high, low, flags, length, more @ ..] = rest {
            if flags & 1 != 0 {
                codes.push(u16::from_be_bytes([*high, *low]));
            }
            assert_eq!(length % 4, 0, "additional lengths are multiples of four");
            rest = &more[usize::from(*length)..];
        }
        assert_eq!(data[..4], (data.len() as u32 - 4).to_be_bytes());
        (u16::from_be_bytes([data[6], data[7]]), codes)
    };
    let (cd, dvd, empty) = (unit(CD), unit(DVD), unit(0));
    let always = [0, 1, 2, 3, 0x100, 0x105];
    assert_eq!(current(&all(&cd, cd.defaults())), (8, vec![0, 1, 2, 3, 0x10, 0x1E, 0x100, 0x105]));
    assert_eq!(
        current(&all(&dvd, dvd.defaults())),
        (16, vec![0, 1, 2, 3, 0x10, 0x1F, 0x100, 0x105])
    );
    assert_eq!(current(&all(&empty, empty.defaults())), (0, always.to_vec()));
    assert_eq!(current(&all(&cd, open_tray(&cd))), (0, always.to_vec()));
    // RT: those that are current; one; and from a number on.
    assert_eq!(reply(&empty, &[0x46, 1, 0, 0x10, 0, 0, 0, 0, 255])[8..10], [1, 0]);
    let removable = [0, 0, 0, 12, 0, 0, 0, 8, 0, 3, 0x0B, 4, 0x39, 0, 0, 0];
    assert_eq!(reply(&cd, &[0x46, 2, 0, 3, 0, 0, 0, 0, 255]), removable);
    assert_eq!(reply(&cd, &[0x46, 2, 0, 4, 0, 0, 0, 0, 255]), [0, 0, 0, 4, 0, 0, 0, 8]);
    assert_eq!(plan(&cd, &[0x46, 3, 0, 0, 0, 0, 0, 0, 255]), Err(Sense::invalid_cdb(1, Some(1))));
}

#[test]
fn disc_and_its_track_are_described() {
    let cd = unit(CD);
    let disc = reply(&cd, &[0x51, 0, 0, 0, 0, 0, 0, 0, 255]);
    assert_eq!(disc.len(), 34);
    assert_eq!(disc[..9], [0, 32, 0x0E, 1, 1, 1, 1, 0x20, 0]);
    assert_eq!(reply(&unit(DVD), &[0x51, 0, 0, 0, 0, 0, 0, 0, 255])[8], 0xFF);
    for by in [[0u8, 0, 0, 3, 0xE7], [1, 0, 0, 0, 1], [2, 0, 0, 0, 1]] {
        let [kind, address @ ..] = by;
        let track = reply(&cd, &[&[0x52, kind][..], &address, &[0, 0, 255]].concat());
        assert_eq!((track.len(), &track[..8]), (48, &[0, 46, 1, 1, 0, 4, 1, 0][..]));
        assert_eq!(track[24..28], [0, 0, 3, 0xE8]);
    }
    let refused = |bytes: &[u8]| plan(&cd, bytes).unwrap_err().additional;
    let beyond = refused(&[0x52, 0, 0, 0, 3, 0xE8, 0, 0, 255]);
    assert_eq!(beyond, Additional::LBA_OUT_OF_RANGE);
    assert_eq!(refused(&[0x52, 1, 0, 0, 0, 2, 0, 0, 255]), Additional::INVALID_FIELD_IN_CDB);
    assert_eq!(refused(&[0xAD, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Additional::INCOMPATIBLE_FORMAT);
    let physical = reply(&unit(DVD), &[0xAD, 0, 0, 0, 0, 0, 0, 0, 16, 0]);
    assert_eq!((physical.len(), &physical[..4]), (2052, &[8, 2, 0, 0][..]));
    // PSN 30000h is block 0.
    assert_eq!(physical[4..16], [1, 0x0F, 1, 0, 0, 3, 0, 0, 0, 0x21, 0x84, 0x7F]);
    for (format, length) in [(0u8, 2052usize), (1, 8), (0xFF, 16)] {
        let data = reply(&unit(DVD), &[0xAD, 0, 0, 0, 0, 0, 0, format, 16, 0]);
        assert_eq!(data.len(), length, "as the list says");
    }
}

#[test]
fn sectors_are_read_as_user_data_only() {
    let cd = unit(CD);
    let read = |sector: u8, lba: u8, parts: u8| {
        plan(&cd, &[0xBE, sector << 2, 0, 0, 0, lba, 0, 0, 1, parts, 0, 0])
    };
    let blocks = Blocks { lba: 5, count: 1 };
    for sector in [0, 2] {
        assert_eq!(read(sector, 5, 0x10), Ok(MediumOp::Read(blocks).into()));
    }
    assert_eq!(read(0, 5, 0), Ok(Step::Reply(Vec::new())));
    assert_eq!(read(0, 5, 0xF8), Err(Sense::invalid_cdb(9, None)));
    assert_eq!(read(1, 5, 0x10), Err(Sense::illegal(Additional::ILLEGAL_MODE_FOR_TRACK)));
    let of_dvd = plan(&unit(DVD), &[0xBE, 0, 0, 0, 0, 5, 0, 0, 1, 0x10, 0, 0]);
    assert_eq!(of_dvd, Err(Sense::illegal(Additional::ILLEGAL_MODE_FOR_TRACK)));
}

#[test]
fn drive_without_a_disc_says_whether_its_tray_is_open() {
    let cd = unit(CD);
    let closed = Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT_TRAY_CLOSED);
    let open = Sense::new(Key::NotReady, Additional::MEDIUM_NOT_PRESENT_TRAY_OPEN);
    for needs in [&[0x00][..], &[0x25], &[0x28], &[0x43], &[0x51], &[0x52, 1], &[0xAD], &[0xBE]] {
        assert_eq!(plan(&unit(0), needs), Err(closed), "{needs:02X?}");
        assert_eq!(plan_in(&cd, needs, open_tray(&cd)), Err(open), "{needs:02X?}");
    }
    let mechanism = |switches| plan_in(&cd, &[0xBD, 0, 0, 0, 0, 0, 0, 0, 0, 8], switches);
    assert_eq!(mechanism(cd.defaults()), Ok(Step::Reply(vec![0; 8])));
    assert_eq!(mechanism(open_tray(&cd)), Ok(Step::Reply(vec![0, 0x10, 0, 0, 0, 0, 0, 0])));
    assert_eq!(plan(&unit(0), &[0x1B, 0, 0, 0, 3, 0]), Ok(Step::Unit(UnitOp::Load)));
}

#[test]
fn mode_pages_are_those_of_a_drive() {
    let cd = unit(CD);
    let capabilities = reply(&cd, &[0x5A, 0, 0x2A, 0, 0, 0, 0, 0, 255]);
    assert_eq!(capabilities[..14], [0, 28, 0, 0, 0, 0, 0, 0, 0x2A, 20, 0x09, 1, 0xC0, 0]);
    assert_eq!(capabilities[14], 0x29);
    let locked = Switches { locked: true, ..cd.defaults() };
    match plan_in(&cd, &[0x1A, 0, 0x2A, 0, 255, 0], locked) {
        Ok(Step::Reply(data)) => assert_eq!((data[0], data[10]), (25, 0x2B)),
        other => panic!("{other:?}"),
    }
    for page in [0x01, 0x05, 0x0A, 0x0E, 0x1C] {
        assert_eq!(reply(&cd, &[0x1A, 0, page, 0, 255, 0])[4], page);
    }
    // The caching page is of disks.
    assert!(plan(&cd, &[0x1A, 0, 0x08, 0, 255, 0]).is_err());
}

#[test]
fn no_type_takes_a_command_of_the_other() {
    let disk = Unit::new(
        Identity::new("iqn.x", 0),
        Medium { device: DeviceType::Disk, ..*unit(CD).medium() },
    );
    let unknown = Err(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE));
    for entry in commands().filter(|entry| entry.types.disk || entry.types.optical) {
        let mut block = [0; 16];
        (block[0], block[1]) = (entry.opcode, entry.action.unwrap_or(0));
        for (unit, has) in [(&disk, entry.types.disk), (&unit(CD), entry.types.optical)] {
            let planned = unit.plan(&Parsed::of(&block, unit.medium().device), unit.defaults());
            assert!(has || planned == unknown, "{entry:?}: {planned:?}");
            let asked = [0xA3, 0x0C, 3, entry.opcode, 0, entry.action.unwrap_or(0), 0, 0, 0, 64];
            let listed = reply(unit, &asked)[1] & 7 == 3;
            assert!(listed == has || entry.requires != crate::scsi::cdb::Requires::Nothing);
        }
    }
}

/// SPC-4, 6.15: of a command that the device has, an unknown service action is an invalid field.
#[test]
fn unknown_service_action_is_refused_as_what_it_is() {
    let invalid = Err(Sense::invalid_cdb(1, Some(4)));
    assert_eq!(plan(&unit(CD), &[0x5E, 0x04, 0, 0, 0, 0, 0, 0, 8]), invalid);
    let unknown = Err(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE));
    assert_eq!(plan(&unit(CD), &[0x9E, 0x1F]), unknown);
}

#[test]
fn each_nexus_is_told_of_an_event_once() {
    let mut events = MediaEvents::default();
    events.attach(1);
    events.attach(2);
    events.establish(MediaEvent::NewMedia);
    let mut told =
        |nexus, classes, allocation, state| events.report(nexus, classes, allocation, state);
    let ready = Readiness::Ready;
    // Not if it would be cut off.
    assert_eq!(told(1, 0x10, 4, ready), [0, 6, 4, 0x12]);
    assert_eq!(told(1, 0x10, 8, ready), [0, 6, 4, 0x12, 2, 2, 0, 0]);
    assert_eq!(told(1, 0x10, 8, ready), [0, 6, 4, 0x12, 0, 2, 0, 0]);
    // The class with the lowest number comes first.
    assert_eq!(told(2, 0x12, 8, ready), [0, 6, 1, 0x12, 2, 0, 0, 1]);
    assert_eq!(told(2, 0x12, 8, ready), [0, 6, 1, 0x12, 0, 0, 0, 0]);
    assert_eq!(told(2, 0x10, 8, Readiness::TrayOpen), [0, 6, 4, 0x12, 2, 1, 0, 0]);
    assert_eq!(told(2, 0x10, 8, Readiness::TrayClosed), [0, 6, 4, 0x12, 0, 0, 0, 0]);
    // No class of those that are asked for.
    assert_eq!(told(1, 0x04, 8, ready), [0, 2, 0x80, 0x12]);
    assert_eq!(told(9, 0x10, 8, ready), [0, 6, 4, 0x12, 0, 2, 0, 0]);
}

proptest! {
    #[test]
    fn planned_reads_are_inside_the_disc(mut bytes: [u8; 16], index in 0..commands().count(), bits in 0u8..128) {
        bytes[0] = commands().nth(index).unwrap().opcode;
        let unit = unit(CD);
        if let Ok(Step::Medium(MediumOp::Read(Blocks { lba, count }))) =
            unit.plan(&Parsed::of(&bytes, DeviceType::Optical), Switches::from_bits(bits.into()))
        {
            prop_assert!(lba + u64::from(count) <= CD);
        }
    }
}
