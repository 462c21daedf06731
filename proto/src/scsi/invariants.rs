//! What holds for any bytes: for property tests and fuzz targets. Each panics where that is broken.

use super::cdb::{Block, Parsed};
use super::command::{self, Mode};
use super::copy::{self, List};
use super::elements::Layout;
use super::inquiry::{BlockLimits, Identity, Provisioning, Standard};
use super::mode::Switches;
use super::provisioning;
use super::sanitize::Overwrite;
use super::sense::{Format, LENGTH_MAX};
use super::unit::{self, Medium, MediumOp, Step, Unit};
use super::{Blocks, Capacity, DeviceType, Sense};

const BLOCKS: u64 = 1 << 20;
const TRANSFER_MAX: u32 = 1 << 12;

fn device() -> Unit {
    let capacity = Capacity {
        blocks: BLOCKS,
        block_size: 512,
        physical_exponent: 3,
        provisioning_managed: true,
        reads_zeroes: true,
        protected: false,
    };
    let medium = Medium {
        device: DeviceType::Disk,
        capacity,
        removable: true,
        read_only: false,
        write_once: false,
        recordable: None,
        write_cache: true,
        unmap_granularity: Some(8),
        transfer_max: TRANSFER_MAX,
        atomic_max: 64,
        crypto_erase: true,
    };
    Unit::new(Identity::new("iqn.2026-11.dev.longhaul:law", 0), medium)
}

fn drive() -> Unit {
    let disk = device();
    let capacity = Capacity { block_size: unit::optical::BLOCK_SIZE, ..disk.medium().capacity };
    disk.on(Medium { device: DeviceType::Optical, read_only: true, capacity, ..*disk.medium() })
}

fn tape() -> Unit {
    let disk = device();
    disk.on(Medium { device: DeviceType::Tape, ..*disk.medium() })
}

fn changer() -> Unit {
    let disk = device();
    let elements = Layout { drives: 2, slots: 4, mail: 1 };
    disk.on(Medium { device: DeviceType::Changer, ..*disk.medium() }).with_elements(elements)
}

/// A command block of any bytes, met by a unit whose switches stand at `bits`, asks for bounded data and
/// touches only blocks that exist; where it is refused, the sense data can be read back.
pub fn any_block(block: &Block, bits: u8) {
    [device(), drive(), tape(), changer()].iter().for_each(|unit| any_block_of(unit, block, bits));
}

fn any_block_of(unit: &Unit, block: &Block, bits: u8) {
    let switches = Switches::from_bits(bits.into());
    let command = Parsed::of(block, unit.medium().device);
    let needed = unit.data_out(&command, switches);
    assert!(
        needed <= (2 * TRANSFER_MAX * unit.block_size()).max(unit::tape::BLOCK_MAX),
        "{command:?} asks for {needed} bytes"
    );
    if let Ok(cdb) = &command.cdb {
        let _ = unit::absent(cdb, "iqn.2026-11.dev.longhaul:law");
    }
    match unit.plan(&command, switches) {
        Ok(step) => assert!(touched(&step).is_none_or(inside), "{step:?} leaves the medium"),
        Err(sense) => assert_eq!(Sense::parse(&sense.emit(Format::Descriptor)), Some(sense)),
    }
}

const fn touched(step: &Step) -> Option<Blocks> {
    let Step::Medium(op) = step else { return None };
    match op {
        MediumOp::Read(blocks)
        | MediumOp::Write { blocks, .. }
        | MediumOp::WriteAtomic { blocks, .. }
        | MediumOp::WriteVerify(blocks, _)
        | MediumOp::Verify(blocks, _)
        | MediumOp::WriteSame { blocks, .. }
        | MediumOp::CompareAndWrite { blocks, .. }
        | MediumOp::OrWrite { blocks, .. } => Some(*blocks),
        MediumOp::Flush | MediumOp::Unmap | MediumOp::LbaStatus { .. } => None,
    }
}

fn inside(blocks: Blocks) -> bool {
    blocks.lba.checked_add(blocks.count.into()).is_some_and(|end| end <= BLOCKS)
}

/// A parameter list of any bytes is taken or refused, never partly, and leads to no block that does not
/// exist.
pub fn any_parameters(list: &[u8]) {
    use super::cdb::Form;
    let unit = device();
    for form in [Form::Six, Form::Ten] {
        let _ = unit.select(form, list, unit.defaults());
    }
    if let Ok(ranges) = unit.unmap(list) {
        assert!(ranges.len() <= provisioning::UNMAP_DESCRIPTORS_MAX as usize);
        assert!(ranges.into_iter().all(inside));
    }
}

/// What a parameter list of any bytes asks to copy or to overwrite with is bounded, or it is refused.
pub fn any_work(list: &[u8]) {
    if let Ok(List { targets, segments, .. }) = List::parse(list) {
        assert!(targets.len() <= usize::from(copy::TARGETS_MAX));
        assert!(segments.len() <= usize::from(copy::SEGMENTS_MAX));
    }
    if let Ok(overwrite) = Overwrite::parse(list, 512) {
        assert!((1..=31).contains(&overwrite.passes));
        assert_eq!(overwrite.block(0, 512).len(), 512);
    }
}

/// An answer of any bytes, from a device that may be hostile, is read or refused; a capacity that is read
/// can be counted in bytes.
pub fn any_answer(bytes: &[u8]) {
    let _ = Standard::parse(bytes);
    let _ = BlockLimits::parse(bytes);
    let _ = Provisioning::parse(bytes);
    let _ = command::vital_pages(bytes);
    let _ = command::luns(bytes);
    let _ = (Mode::parse_6(bytes), Mode::parse_10(bytes));
    if let Ok(runs) = command::statuses(bytes) {
        assert!(runs.iter().all(|run| run.blocks.count > 0));
    }
    let capacities = [Capacity::parse_16(bytes).ok(), Capacity::parse_10(bytes).ok().flatten()];
    for capacity in capacities.into_iter().flatten() {
        assert!(capacity.blocks.checked_mul(capacity.block_size.into()).is_some());
    }
    if let Some(sense) = Sense::parse(bytes) {
        let again = sense.emit(Format::Descriptor);
        assert!(again.len() <= LENGTH_MAX);
        assert_eq!(Sense::parse(&again), Some(sense));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_parameters(list in proptest::collection::vec(any::<u8>(), 0..128)) {
            super::any_parameters(&list);
        }

        #[test]
        fn any_work(list in proptest::collection::vec(any::<u8>(), 0..128)) {
            super::any_work(&list);
        }

        #[test]
        fn any_answer(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            super::any_answer(&bytes);
        }
    }
}
