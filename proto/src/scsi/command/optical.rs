//! Command blocks for an optical drive (MMC-6), and readers for what it answers.

use super::{Command, block};
use crate::reader::Reader;
use crate::scsi::Malformed;

/// Room for 99 tracks and the lead-out.
const TOC: u16 = 4 + 100 * 8;

/// The track number of the lead-out.
const LEAD_OUT: u8 = 0xAA;

/// A track of a disc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Track {
    /// Its number, from 1 on.
    pub number: u8,
    /// It holds data, and no sound.
    pub is_data: bool,
    /// Its first block.
    pub lba: u32,
}

/// What is on a disc: READ TOC/PMA/ATIP data of format 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toc {
    /// The tracks.
    pub tracks: Vec<Track>,
    /// The block behind the last of them, if the drive tells it.
    pub end: Option<u32>,
}

impl Command {
    /// READ TOC/PMA/ATIP: all tracks, by their blocks; read the answer with [`Toc::parse`].
    #[must_use]
    pub fn read_toc() -> Self {
        let [high, low] = TOC.to_be_bytes();
        Self::asking(block([0x43, 0, 0, 0, 0, 0, 0, high, low]), TOC.into())
    }
}

impl Toc {
    /// Reads it, as far as it came: some drives cut the last track short, which is the lead-out.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        const DATA: u8 = 0x04;
        let mut reader = Reader::new(bytes);
        let length = usize::from(reader.u16()?);
        let mut reader = reader.up_to(length);
        let [_first, _last] = reader.array()?;
        let mut toc = Self::default();
        while let Ok([_, control, number, _]) = reader.array() {
            let Ok(lba) = reader.u32() else { break };
            match number {
                LEAD_OUT => toc.end = Some(lba),
                _ => toc.tracks.push(Track { number, is_data: control & DATA != 0, lba }),
            }
        }
        Ok(toc)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tracks_are_told_up_to_the_lead_out() {
        let bytes = [
            0, 26, 1, 2, 0, 0x14, 1, 0, 0, 0, 0, 0, 0, 0x10, 2, 0, 0, 0, 1, 0, 0, 0x10, 0xAA, 0, 0,
            0, 2, 0,
        ];
        let toc = Toc::parse(&bytes).unwrap();
        let data = Track { number: 1, is_data: true, lba: 0 };
        assert_eq!(toc.tracks, [data, Track { number: 2, is_data: false, lba: 256 }]);
        assert_eq!(toc.end, Some(512));
        // tgt says that two bytes fewer are there.
        let mut cut = bytes;
        cut[1] -= 2;
        for cut in [&cut[..], &cut[..bytes.len() - 2], &bytes[..bytes.len() - 2]] {
            let short = Toc::parse(cut).unwrap();
            assert_eq!((short.tracks, short.end), (toc.tracks.clone(), None));
        }
    }

    proptest! {
        #[test]
        fn hostile_answers_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Toc::parse(&bytes);
        }
    }
}
