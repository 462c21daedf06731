//! A session that is written at once (MMC-6, 4.4.5.4): what SEND CUE SHEET says of it, and the pre-gap that is written before
//! its first block.

use super::super::super::cdb::Access;
use super::super::super::{Blocks, Sense};
use super::toc::{PREGAP, block_of};
use super::{Disc, DiscType};

/// The bytes of an entry.
const ENTRY: usize = 8;

/// TNO of the lead-in and the lead-out.
const LEAD_IN: u8 = 0x00;
const LEAD_OUT: u8 = 0xAA;

/// Where the lead-out of the session begins that a cue sheet describes (MMC-6, 6.33.3): of one track of data with blocks of
/// 2048 bytes, which begins at block 0.
pub fn lead_out(list: &[u8]) -> Result<u32, Sense> {
    const DATA: u8 = 0x40;
    const MODE_1: u8 = 0x10;
    let wrong =
        |entry: usize, byte: usize| Sense::invalid_parameter((entry * ENTRY + byte) as u16, None);
    let (entries, rest) = list.as_chunks::<ENTRY>();
    let [[_, first, ..], .., [_, last, _, _, _, minute, second, frame]] = entries else {
        return Err(wrong(entries.len(), 0));
    };
    if !rest.is_empty() || (*first, *last) != (LEAD_IN, LEAD_OUT) {
        return Err(wrong(0, 1));
    }
    let mut begins = None;
    for (at, [control, track, index, form, _, minute, second, frame]) in entries.iter().enumerate()
    {
        match (*track, *index) {
            _ if control & DATA == 0 => return Err(wrong(at, 0)),
            (LEAD_IN | LEAD_OUT, _) | (1, 0) => {}
            (1, 1) if *form == MODE_1 => begins = block_of([*minute, *second, *frame]),
            (1, 1) => return Err(wrong(at, 3)),
            // Another track, or one that is divided.
            _ => return Err(wrong(at, 1)),
        }
    }
    match (begins, block_of([*minute, *second, *frame])) {
        (Some(0), Some(end)) if end > 0 => Ok(end),
        _ => Err(wrong(entries.len() - 1, 5)),
    }
}

/// How many of these blocks lie in the pre-gap of the first track of a CD-R, before block 0: nothing of them is kept.
#[must_use]
pub fn in_pregap(disc: Option<DiscType>, Blocks { lba, count }: Blocks) -> u32 {
    let first = u64::from(u32::MAX) + 1 - u64::from(PREGAP);
    match disc {
        Some(DiscType::CdR) if (first..=u32::MAX.into()).contains(&lba) => {
            count.min((u64::from(u32::MAX) + 1 - lba) as u32)
        }
        _ => 0,
    }
}

/// What of a write is behind the pre-gap.
#[must_use]
pub fn behind_pregap(disc: Option<DiscType>, blocks: Blocks) -> Blocks {
    match in_pregap(disc, blocks) {
        0 => blocks,
        before => Blocks { lba: 0, count: blocks.count - before },
    }
}

/// Whether a write may be made now that begins in the pre-gap: behind a cue sheet, and before the first block.
pub(super) fn check_write(disc: &Disc, access: Access) -> Result<(), Sense> {
    let behind = behind_pregap(Some(disc.disc_type()), access.blocks);
    if behind.count < access.blocks.count && !disc.is_at_once_and_blank() {
        return disc.check_write(access.blocks);
    }
    if behind.count == 0 { Ok(()) } else { disc.check_write(behind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What libburn sends for one track of 1000 blocks.
    fn sheet() -> Vec<[u8; ENTRY]> {
        vec![
            [0x41, 0, 0, 0x14, 0, 0, 0, 0],
            [0x41, 1, 0, 0x10, 0, 0, 0, 0],
            [0x41, 1, 1, 0x10, 0, 0, 2, 0],
            [0x41, 0xAA, 1, 0x14, 0, 0, 15, 25],
        ]
    }

    #[test]
    fn session_of_one_track_of_data_is_taken() {
        assert_eq!(lead_out(sheet().as_flattened()), Ok(1000));
    }

    #[test]
    fn other_sessions_are_refused_where_they_differ() {
        let refused = |entry: usize, byte: usize, value| {
            let mut sheet = sheet();
            sheet[entry][byte] = value;
            lead_out(sheet.as_flattened()).unwrap_err().field.map(|field| field.byte)
        };
        // Audio, a second track, raw blocks, a track that begins later, and an end before it.
        assert_eq!(refused(2, 0, 0x01), Some(16));
        assert_eq!(refused(2, 1, 2), Some(17));
        assert_eq!(refused(2, 3, 0x11), Some(19));
        assert_eq!(refused(2, 7, 1), Some(29));
        assert_eq!(refused(3, 6, 1), Some(29));
        for cut in 0..sheet().as_flattened().len() {
            assert!(lead_out(&sheet().as_flattened()[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn pregap_ends_at_block_0() {
        let blocks = |lba: i32, count| Blocks { lba: lba.cast_unsigned().into(), count };
        let cd = Some(DiscType::CdR);
        assert_eq!(in_pregap(cd, blocks(-150, 16)), 16);
        assert_eq!(behind_pregap(cd, blocks(-6, 16)), blocks(0, 10));
        assert_eq!(in_pregap(cd, blocks(-151, 16)), 0);
        assert_eq!(in_pregap(Some(DiscType::BdR), blocks(-150, 16)), 0);
        assert_eq!(behind_pregap(cd, blocks(7, 16)), blocks(7, 16));
    }
}
