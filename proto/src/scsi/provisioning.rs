//! Which blocks hold space: the parameter list of UNMAP (SBC-3, 5.28) and the answer of GET LBA STATUS
//! (SBC-3, 5.4), both ways.

use super::{Blocks, Malformed, Sense, sense::Additional};
use crate::reader::Reader;

/// The most block descriptors one UNMAP may carry here: it bounds what one command can make a device
/// do, and initiators rarely send more than one.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Bytes before the first descriptor of either list.
pub const HEADER: usize = 8;
/// Bytes of a descriptor of either list.
pub const DESCRIPTOR: usize = 16;

/// The parameter list of an UNMAP of `ranges`, of which there are at most 4,095.
#[must_use]
pub fn emit_unmap(ranges: &[Blocks]) -> Vec<u8> {
    let length = (ranges.len() * DESCRIPTOR) as u16;
    let mut bytes = (length + 6).to_be_bytes().to_vec();
    bytes.extend(length.to_be_bytes());
    bytes.extend([0; 4]);
    for range in ranges {
        bytes.extend(range.lba.to_be_bytes());
        bytes.extend(range.count.to_be_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

/// Reads the parameter list of an UNMAP as the device must (SBC-3, 5.28.2): a truncated list is an
/// error, an incomplete last descriptor is ignored, and so is what follows the stated length.
pub fn parse_unmap(bytes: &[u8]) -> Result<Vec<Blocks>, Sense> {
    const COUNT_FIELD: u16 = 2;
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let short = |_| Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR);
    let mut reader = Reader::new(bytes);
    reader.u16().map_err(short)?; // UNMAP DATA LENGTH follows from the other length.
    let length = usize::from(reader.u16().map_err(short)?);
    reader.u32().map_err(short)?;
    let mut list = reader.up_to(length);
    if list.rest().len() / DESCRIPTOR > UNMAP_DESCRIPTORS_MAX as usize {
        return Err(Sense::invalid_parameter(COUNT_FIELD, None));
    }
    let mut ranges = Vec::with_capacity(list.rest().len() / DESCRIPTOR);
    while let (Ok(lba), Ok(count), Ok(_)) = (list.u64(), list.u32(), list.u32()) {
        ranges.push(Blocks { lba, count });
    }
    Ok(ranges)
}

/// The provisioning status of a run of blocks (SBC-3, 5.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Mapped, or unknown.
    Mapped = 0,
    /// Nothing is stored for it.
    Deallocated = 1,
    /// Nothing is stored for it, but its space is reserved.
    Anchored = 2,
}

/// A run of blocks of one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaStatus {
    /// Which blocks.
    pub blocks: Blocks,
    /// What they are.
    pub status: Status,
}

/// GET LBA STATUS data, before they are cut to the allocation length.
#[must_use]
pub fn emit_status(runs: &[LbaStatus]) -> Vec<u8> {
    // SBC-3, 5.4.2: PARAMETER DATA LENGTH counts from the byte after itself.
    let mut bytes = ((4 + runs.len() * DESCRIPTOR) as u32).to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    for run in runs {
        bytes.extend(run.blocks.lba.to_be_bytes());
        bytes.extend(run.blocks.count.to_be_bytes());
        bytes.extend([run.status as u8, 0, 0, 0]);
    }
    bytes
}

/// Reads GET LBA STATUS data: the runs that came whole. Runs of no blocks end the list, for they would
/// lead an initiator nowhere.
pub fn parse_status(bytes: &[u8]) -> Result<Vec<LbaStatus>, Malformed> {
    let mut reader = Reader::new(bytes);
    let length = reader.u32()? as usize;
    reader.u32()?;
    let mut list = reader.up_to(length.saturating_sub(4));
    let mut runs = Vec::new();
    while let (Ok(lba), Ok(count), Ok([status, ..])) = (list.u64(), list.u32(), list.array::<4>()) {
        if count == 0 {
            break;
        }
        let status = match status & 0x0F {
            1 => Status::Deallocated,
            2 => Status::Anchored,
            _ => Status::Mapped,
        };
        runs.push(LbaStatus { blocks: Blocks { lba, count }, status });
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_blocks() -> impl Strategy<Value = Blocks> {
        (any::<u64>(), 1..=u32::MAX).prop_map(|(lba, count)| Blocks { lba, count })
    }

    proptest! {
        #[test]
        fn unmap_lists_round_trip(ranges in proptest::collection::vec(any_blocks(), 0..40)) {
            prop_assert_eq!(parse_unmap(&emit_unmap(&ranges)), Ok(ranges));
        }

        #[test]
        fn statuses_round_trip(
            runs in proptest::collection::vec((any_blocks(), 0..3u8), 0..40),
        ) {
            let runs: Vec<_> = runs
                .into_iter()
                .map(|(blocks, status)| {
                    let status = [Status::Mapped, Status::Deallocated, Status::Anchored]
                        [usize::from(status)];
                    LbaStatus { blocks, status }
                })
                .collect();
            prop_assert_eq!(parse_status(&emit_status(&runs)), Ok(runs));
        }

        #[test]
        fn hostile_lists_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse_unmap(&bytes);
            let _ = parse_status(&bytes);
        }
    }

    #[test]
    fn a_list_without_its_header_is_too_short() {
        let error = parse_unmap(&[0; 7]).unwrap_err();
        assert_eq!(error.additional, Additional::PARAMETER_LIST_LENGTH_ERROR);
        assert_eq!(parse_unmap(&[]), Ok(vec![]));
    }

    #[test]
    fn half_a_descriptor_is_ignored() {
        let range = Blocks { lba: 7, count: 1 };
        let mut bytes = emit_unmap(&[range, range]);
        bytes.truncate(bytes.len() - 1);
        assert_eq!(parse_unmap(&bytes), Ok(vec![range]));
    }

    #[test]
    fn too_many_descriptors_are_refused() {
        let ranges = vec![Blocks { lba: 0, count: 1 }; UNMAP_DESCRIPTORS_MAX as usize + 1];
        assert!(parse_unmap(&emit_unmap(&ranges)).is_err());
    }
}
