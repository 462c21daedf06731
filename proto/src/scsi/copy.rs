//! EXTENDED COPY with short list identifiers (SPC-4, 6.5): the parameter list, and what RECEIVE COPY RESULTS
//! returns. Only copies from block device to block device, and only devices named by an identification
//! descriptor.
//!
//! What is named here need not exist, and the initiator need not be let near it: whoever carries a copy out
//! must ask of each unit what that initiator could do there itself.

use super::cdb;
pub use super::copy_limits::{
    DESCRIPTORS_MAX, LIST_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX, TARGETS_MAX,
};
use super::copy_limits::{SEGMENT, TARGET};
use super::sense::{Additional, Key};
use super::{Blocks, Sense};
use crate::reader::{Reader, Truncated};

const IDENTIFICATION: u8 = 0xE4;
const BLOCK_TO_BLOCK: u8 = 0x02;
/// All the descriptors that are understood.
const DESCRIPTORS: [u8; 2] = [BLOCK_TO_BLOCK, IDENTIFICATION];
/// A copy waits until the one before it has ended.
const CONCURRENT_MAX: u8 = 1;

/// A parameter list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// LIST IDENTIFIER, where the outcome is to be kept under it.
    pub keep: Option<u8>,
    /// The devices, in the order segments count them.
    pub targets: Vec<Target>,
    /// What to copy, in order.
    pub segments: Vec<Segment>,
}

/// A device, by one of the designators of its identification page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Code set, and association with designator type, as the page has them.
    pub header: [u8; 2],
    /// The designator.
    pub designator: Vec<u8>,
    /// DISK BLOCK LENGTH; zero if it is not said.
    pub block_size: u32,
}

/// A run of blocks to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The index of the device to read.
    pub source: u16,
    /// What to read there.
    pub from: Blocks,
    /// The index of the device to write.
    pub destination: u16,
    /// The first block to write there.
    pub to: u64,
}

impl List {
    /// Reads a parameter list. One of no bytes copies nothing (SPC-4, 6.4.1).
    pub fn parse(bytes: &[u8]) -> Result<Self, Sense> {
        if bytes.is_empty() {
            return Ok(Self { keep: None, targets: Vec::new(), segments: Vec::new() });
        }
        Self::read(&mut Reader::new(bytes)).map_err(too_short)?
    }

    fn read(reader: &mut Reader<'_>) -> Result<Result<Self, Sense>, Truncated> {
        const USAGE: u8 = 0x18;
        const KEEP: u8 = 0x00;
        const NONE: u8 = 0x18;
        let [id, flags] = reader.array()?;
        let targets_length = usize::from(reader.u16()?);
        reader.u32()?;
        let (segments_length, inline) = (reader.u32()?, reader.u32()?);
        if u64::from(segments_length) + targets_length as u64 > u64::from(DESCRIPTORS_MAX) {
            return Ok(Err(too_short(())));
        }
        if inline != 0 {
            return Ok(Err(Sense::illegal(Additional::INLINE_DATA_LENGTH_EXCEEDED)));
        }
        if flags & USAGE == NONE && id != 0 {
            return Ok(Err(Sense::invalid_parameter(0, None)));
        }
        let mut targets = Reader::new(reader.take(targets_length)?);
        let mut segments = Reader::new(reader.take(segments_length as usize)?);
        if targets_length > usize::from(TARGETS_MAX) * TARGET {
            return Ok(Err(Sense::illegal(Additional::TOO_MANY_TARGET_DESCRIPTORS)));
        }
        if segments_length as usize > usize::from(SEGMENTS_MAX) * SEGMENT {
            return Ok(Err(Sense::illegal(Additional::TOO_MANY_SEGMENT_DESCRIPTORS)));
        }
        let keep = (flags & USAGE == KEEP).then_some(id);
        let mut list = Self { keep, targets: Vec::new(), segments: Vec::new() };
        while !targets.rest().is_empty() {
            match Target::read(&mut targets)? {
                Ok(target) => list.targets.push(target),
                Err(sense) => return Ok(Err(sense)),
            }
        }
        while !segments.rest().is_empty() {
            match Segment::read(&mut segments)? {
                Ok(segment) => list.segments.push(segment),
                Err(sense) => return Ok(Err(sense)),
            }
        }
        Ok(Ok(list))
    }
}

impl Target {
    /// An identification descriptor (SPC-4, 6.4.5.6). LU ID TYPE and NUL mean nothing any more, and a disk is
    /// a disk.
    fn read(reader: &mut Reader<'_>) -> Result<Result<Self, Sense>, Truncated> {
        const ROOM: usize = 20;
        let [kind, device_type] = reader.array()?;
        if kind != IDENTIFICATION || device_type & 0x1F != 0 {
            return Ok(Err(Sense::illegal(Additional::UNSUPPORTED_TARGET_DESCRIPTOR)));
        }
        reader.u16()?;
        let [code_set, designation, _, length] = reader.array()?;
        let designator = reader.take(ROOM)?;
        let [_, high, middle, low] = reader.array()?;
        let Some(designator) = designator.get(..usize::from(length)) else {
            return Ok(Err(Sense::illegal(Additional::INVALID_FIELD_IN_PARAMETER_LIST)));
        };
        Ok(Ok(Self {
            header: [code_set & 0x0F, designation & 0x3F],
            designator: designator.to_vec(),
            block_size: u32::from_be_bytes([0, high, middle, low]),
        }))
    }
}

impl Segment {
    /// A block device to block device descriptor (SPC-4, 6.4.6.4). CAT and DC change nothing here: all is
    /// whole blocks, and the count is in those of the source.
    fn read(reader: &mut Reader<'_>) -> Result<Result<Self, Sense>, Truncated> {
        let [kind, _] = reader.array()?;
        if kind != BLOCK_TO_BLOCK {
            return Ok(Err(Sense::illegal(Additional::UNSUPPORTED_SEGMENT_DESCRIPTOR)));
        }
        reader.u16()?;
        let (source, destination) = (reader.u16()?, reader.u16()?);
        reader.u16()?;
        let count = u32::from(reader.u16()?);
        let (lba, to) = (reader.u64()?, reader.u64()?);
        Ok(Ok(Self { source, from: Blocks { lba, count }, destination, to }))
    }
}

fn too_short<T>(_: T) -> Sense {
    Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR)
}

/// A device that is named cannot be reached by this initiator, if it exists.
#[must_use]
pub const fn unreachable() -> Sense {
    Sense::new(Key::CopyAborted, Additional::UNREACHABLE_COPY_TARGET)
}

/// How far a copy came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Segments done.
    pub segments: u16,
    /// Bytes written.
    pub bytes: u32,
    /// It ended before all was done.
    pub failed: bool,
}

/// The answer to COPY STATUS (SPC-4, 6.25) for a copy that has ended.
#[must_use]
pub fn status(progress: Progress) -> Vec<u8> {
    const DONE: u8 = 0x01;
    const FAILED: u8 = 0x02;
    const BYTES: u8 = 0x00;
    let mut data = vec![0, 0, 0, 8, if progress.failed { FAILED } else { DONE }];
    data.extend(progress.segments.to_be_bytes());
    data.push(BYTES);
    data.extend(progress.bytes.to_be_bytes());
    data
}

/// The answer to OPERATING PARAMETERS (SPC-4, 6.22).
#[must_use]
pub fn operating_parameters(block_size: u32) -> Vec<u8> {
    const SNLID: u8 = 0x01;
    const LENGTH: usize = 44 + DESCRIPTORS.len();
    let mut data = ((LENGTH - 4) as u32).to_be_bytes().to_vec();
    data.extend([SNLID, 0, 0, 0]);
    data.extend(TARGETS_MAX.to_be_bytes());
    data.extend(SEGMENTS_MAX.to_be_bytes());
    data.extend(DESCRIPTORS_MAX.to_be_bytes());
    data.extend(SEGMENT_BYTES_MAX.to_be_bytes());
    data.resize(34, 0); // No inline data, no held data, no stream devices.
    data.extend(u16::from(CONCURRENT_MAX).to_be_bytes());
    data.extend([CONCURRENT_MAX, granularity(block_size)]);
    data.resize(43, 0);
    data.push(DESCRIPTORS.len() as u8);
    data.extend(DESCRIPTORS);
    data
}

/// The body of the third-party copy page: the same, and which commands there are (SPC-4, 7.8.17).
#[must_use]
pub fn page(block_size: u32) -> Vec<u8> {
    const INLINE_DATA_MAX: u32 = 0;
    let mut limits = vec![0; 4];
    limits.extend(TARGETS_MAX.to_be_bytes());
    limits.extend(SEGMENTS_MAX.to_be_bytes());
    limits.extend(DESCRIPTORS_MAX.to_be_bytes());
    limits.extend(INLINE_DATA_MAX.to_be_bytes());
    limits.resize(28, 0);
    let mut operations = u32::from(CONCURRENT_MAX).to_be_bytes().to_vec();
    operations.extend(u32::from(CONCURRENT_MAX).to_be_bytes());
    operations.extend(SEGMENT_BYTES_MAX.to_be_bytes());
    operations.push(granularity(block_size));
    operations.resize(32, 0);
    [
        descriptor(0x0001, &counted(&commands())),
        descriptor(0x0004, &limits),
        descriptor(0x0008, &counted(&DESCRIPTORS)),
        // CSCD IDs beyond those of descriptors: none.
        descriptor(0x000C, &[0, 0]),
        descriptor(0x8001, &operations),
    ]
    .concat()
}

/// The service actions of each operation code of third-party copies, in order.
fn commands() -> Vec<u8> {
    const COPY_OUT: u8 = 0x83;
    const COPY_IN: u8 = 0x84;
    let of_code = |code| {
        let entries = cdb::commands().filter(move |entry| entry.opcode == code);
        let mut actions: Vec<u8> = entries.filter_map(|entry| entry.action).collect();
        actions.sort_unstable();
        [&[code], &counted(&actions)[..]].concat()
    };
    [COPY_OUT, COPY_IN].map(of_code).concat()
}

/// A third-party copy descriptor (SPC-4, 7.8.17.2), padded to a multiple of four.
fn descriptor(kind: u16, parameters: &[u8]) -> Vec<u8> {
    let padded = parameters.len().next_multiple_of(4);
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend((padded as u16).to_be_bytes());
    bytes.extend(parameters);
    bytes.resize(4 + padded, 0);
    bytes
}

/// A list with its length before it, in a byte.
fn counted(list: &[u8]) -> Vec<u8> {
    [&[list.len() as u8], list].concat()
}

/// DATA SEGMENT GRANULARITY: a block, as a power of two.
const fn granularity(block_size: u32) -> u8 {
    block_size.ilog2() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(targets: usize, segments: usize) -> Vec<u8> {
        let mut bytes = vec![7, 0];
        bytes.extend(((targets * TARGET) as u16).to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(((segments * SEGMENT) as u32).to_be_bytes());
        bytes.extend([0; 4]);
        for _ in 0..targets {
            bytes.extend([0xE4, 0xC0, 0, 0, 1, 3, 0, 8]);
            bytes.extend([0x33; 8]);
            bytes.extend([0; 12]);
            bytes.extend([0, 0, 2, 0]);
        }
        for _ in 0..segments {
            bytes.extend([2, 0, 0, 24, 0, 0, 0, 1, 0, 0, 8, 0]);
            bytes.extend(5u64.to_be_bytes());
            bytes.extend(9u64.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn a_list_is_read() {
        let read = List::parse(&list(2, 1)).unwrap();
        let target = Target { header: [1, 3], designator: vec![0x33; 8], block_size: 512 };
        let from = Blocks { lba: 5, count: 0x800 };
        let segment = Segment { source: 0, from, destination: 1, to: 9 };
        assert_eq!(read.keep, Some(7));
        assert_eq!(read.targets, [target.clone(), target]);
        assert_eq!(read.segments, [segment]);
        assert!(List::parse(&[]).unwrap().segments.is_empty());
    }

    #[test]
    fn limits_hold() {
        let refused = |bytes: Vec<u8>| List::parse(&bytes).unwrap_err().additional;
        let (targets, segments) = (usize::from(TARGETS_MAX), usize::from(SEGMENTS_MAX));
        assert!(List::parse(&list(targets, segments)).is_ok());
        assert_eq!(list(targets, segments).len(), LIST_MAX as usize);
        assert_eq!(refused(list(targets + 1, 1)), Additional::TOO_MANY_TARGET_DESCRIPTORS);
        assert_eq!(refused(list(1, segments + 1)), Additional::TOO_MANY_SEGMENT_DESCRIPTORS);
        let most = list(targets + 1, segments + 1);
        assert_eq!(refused(most), Additional::PARAMETER_LIST_LENGTH_ERROR);
        let mut other = list(1, 1);
        other[16] = 0xE0;
        assert_eq!(refused(other), Additional::UNSUPPORTED_TARGET_DESCRIPTOR);
        let mut other = list(1, 1);
        other[48] = 0x03;
        assert_eq!(refused(other), Additional::UNSUPPORTED_SEGMENT_DESCRIPTOR);
        let mut long = list(1, 1);
        long[16 + 7] = 21;
        assert_eq!(refused(long), Additional::INVALID_FIELD_IN_PARAMETER_LIST);
    }

    proptest! {
        #[test]
        fn a_list_cut_anywhere_is_too_short(at in 1usize..16 + 32 + 28) {
            let mut bytes = list(1, 1);
            bytes.truncate(at);
            let refused = List::parse(&bytes).unwrap_err();
            prop_assert_eq!(refused.additional, Additional::PARAMETER_LIST_LENGTH_ERROR);
        }
    }

    #[test]
    fn answers_say_how_long_they_are() {
        for answer in [status(Progress::default()), operating_parameters(512)] {
            assert_eq!(answer[..4], (answer.len() as u32 - 4).to_be_bytes());
        }
    }

    /// SPC-4, 7.8.17.2: in ascending order, each a multiple of four.
    #[test]
    fn the_page_says_what_the_operating_parameters_say() {
        let (page, parameters) = (page(4096), operating_parameters(4096));
        let mut reader = Reader::new(&page);
        let mut found = Vec::new();
        while !reader.rest().is_empty() {
            let (kind, length) = (reader.u16().unwrap(), reader.u16().unwrap());
            assert!(length.is_multiple_of(4), "{kind:04X}");
            found.push((kind, reader.take(length.into()).unwrap()));
        }
        let kinds: Vec<_> = found.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [0x0001, 0x0004, 0x0008, 0x000C, 0x8001]);
        // EXTENDED COPY (LID1); RECEIVE COPY STATUS (LID1) and OPERATING PARAMETERS.
        assert_eq!(found[0].1, [7, 0x83, 1, 0x00, 0x84, 2, 0x00, 0x03]);
        assert_eq!(found[1].1[4..12], parameters[8..16]);
        assert_eq!(found[2].1[..3], parameters[43..46]);
        assert_eq!(found[3].1, [0; 4]);
        let operations = found[4].1;
        assert_eq!(operations[..4], [0, 0, 0, parameters[35]]);
        assert_eq!(operations[4..8], [0, 0, 0, parameters[36]]);
        assert_eq!(operations[8..12], parameters[16..20]);
        assert_eq!(operations[12], parameters[37]);
    }
}
