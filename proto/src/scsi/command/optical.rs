//! Command blocks for an optical drive (MMC-6), and readers for what it answers.

use super::{Command, Transfer, block};
use crate::reader::Reader;
use crate::scsi::Malformed;
use crate::scsi::cdb::CloseFunction;
use crate::scsi::unit::optical::DiscStatus;

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

    /// GET CONFIGURATION: the current profile; read the answer with [`current_profile`].
    #[must_use]
    pub fn get_profile() -> Self {
        Self::asking(block([0x46, 0, 0, 0, 0, 0, 0, 0, 8]), 8)
    }

    /// READ DISC INFORMATION: read the answer with [`DiscInfo::parse`].
    #[must_use]
    pub fn read_disc_information() -> Self {
        const STANDARD: u8 = 34;
        Self::asking(block([0x51, 0, 0, 0, 0, 0, 0, 0, STANDARD]), STANDARD.into())
    }

    /// READ TRACK INFORMATION of the track of this number, or of the one that is open or can be begun: FFh on a CD. Read the
    /// answer with [`TrackInfo::parse`].
    #[must_use]
    pub fn read_track_information(number: u8) -> Self {
        const WHOLE: u8 = 48;
        Self::asking(block([0x52, 1, 0, 0, 0, number, 0, 0, WHOLE]), WHOLE.into())
    }

    /// MODE SENSE (10) of the write parameters; change them with [`WriteParameters::select`].
    #[must_use]
    pub fn write_parameters() -> Self {
        const ROOM: u8 = 252;
        Self::asking(block([0x5A, 0x08, WRITE_PARAMETERS, 0, 0, 0, 0, 0, ROOM]), ROOM.into())
    }

    /// CLOSE TRACK SESSION; the command ends when it is done.
    #[must_use]
    pub fn close(function: CloseFunction, track: u8) -> Self {
        let function = match function {
            CloseFunction::StopFormatting => 0b000,
            CloseFunction::Track => 0b001,
            CloseFunction::Session => 0b010,
            CloseFunction::Finalize => 0b110,
        };
        Self { cdb: block([0x5B, 0, function, 0, 0, track]), transfer: Transfer::None }
    }
}

/// The mode page of the write parameters.
const WRITE_PARAMETERS: u8 = 0x05;

/// The current profile of GET CONFIGURATION data; zero without a disc.
pub fn current_profile(bytes: &[u8]) -> Result<u16, Malformed> {
    let mut reader = Reader::new(bytes);
    let [_length_and_reserved @ .., high, low] = reader.array::<8>()?;
    Ok(u16::from_be_bytes([high, low]))
}

/// What READ DISC INFORMATION tells (MMC-6, 6.21.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscInfo {
    /// How much of it has been recorded.
    pub status: DiscStatus,
    /// What is on it can be written over.
    pub is_erasable: bool,
    /// How many sessions are closed.
    pub closed_sessions: u8,
    /// Something is in the last session, and it is not closed.
    pub is_session_open: bool,
    /// The last track, the one that can be begun among them.
    pub last_track: u8,
    /// What tells the disc from others, if anything does.
    pub id: Option<u32>,
}

impl DiscInfo {
    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        const ERASABLE: u8 = 0x10;
        const INCOMPLETE_SESSION: u8 = 0b01 << 2;
        const DID_V: u8 = 0x80;
        let mut reader = Reader::new(bytes);
        let [_, _, states, _first, sessions, _first_of_last, last_track] = reader.array()?;
        let [valid, _disc_type, _, _, _] = reader.array()?;
        let id = Some(reader.u32()?).filter(|_| valid & DID_V != 0);
        let status = match states & 0x03 {
            0b00 => DiscStatus::Blank,
            0b01 => DiscStatus::Appendable,
            _ => DiscStatus::Complete,
        };
        // The last one is told whether or not anything is in it.
        let closed_sessions =
            if status == DiscStatus::Complete { sessions } else { sessions.saturating_sub(1) };
        let is_erasable = states & ERASABLE != 0;
        let is_session_open = states & 0x0C == INCOMPLETE_SESSION;
        Ok(Self { status, is_erasable, closed_sessions, is_session_open, last_track, id })
    }
}

/// What READ TRACK INFORMATION tells of a track (MMC-6, 6.26.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackInfo {
    /// Its number.
    pub number: u8,
    /// The session that it is in.
    pub session: u8,
    /// It holds data, and no sound.
    pub is_data: bool,
    /// Its first block.
    pub first: u32,
    /// The block that is written next, if one can be.
    pub next: Option<u32>,
    /// How many can be written.
    pub free: u32,
    /// How many it has, with those that can be written.
    pub size: u32,
}

impl TrackInfo {
    /// Reads it.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        const DATA: u8 = 0x04;
        const NWA_V: u8 = 0x01;
        let mut reader = Reader::new(bytes);
        let [_, _, number, session, _, mode, _, valid] = reader.array()?;
        let (first, next, free) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (_packet_size, size) = (reader.u32()?, reader.u32()?);
        let next = (valid & NWA_V != 0).then_some(next);
        Ok(Self { number, session, is_data: mode & DATA != 0, first, next, free, size })
    }

    /// How many blocks are recorded on it.
    #[must_use]
    pub const fn recorded(&self) -> u32 {
        match self.next {
            None => self.size,
            // A session at once begins with a pre-gap, in front of its first block (MMC-6, 6.26.3.14).
            Some(next) => match next.checked_sub(self.first) {
                Some(recorded) if recorded <= self.size => recorded,
                _ => 0,
            },
        }
    }
}

/// The write parameters of a drive, as MODE SENSE (10) tells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteParameters(Vec<u8>);

impl WriteParameters {
    /// Reads them.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let [_, _, _, _, _, _, high, low] = reader.array()?;
        reader.take(u16::from_be_bytes([high, low]).into())?;
        let [code, length] = reader.array()?;
        if code & 0x3F != WRITE_PARAMETERS {
            return Err(Malformed::Field("PAGE CODE"));
        }
        Ok(Self(reader.take(length.into())?.to_vec()))
    }

    /// MODE SELECT (10) of them, so that a CD is written track at once with blocks of 2048 bytes, and another session may
    /// follow or not; and its data.
    pub fn select(&self, multi_session: bool) -> Result<(Command, Vec<u8>), Malformed> {
        const TRACK_AT_ONCE: u8 = 0x01;
        const BUFFER_PROTECTED: u8 = 0x40;
        const DATA_TRACK: u8 = 0x04;
        const MODE_1: u8 = 0x08;
        let [kind, _, data_block, rest @ ..] = &*self.0 else {
            return Err(Malformed::Field("PAGE LENGTH"));
        };
        let sessions = if multi_session { 0b11 << 6 } else { 0 };
        let mut list = vec![0; 8];
        list.extend([WRITE_PARAMETERS, self.0.len() as u8]);
        list.extend([kind & BUFFER_PROTECTED | TRACK_AT_ONCE, sessions | DATA_TRACK]);
        list.push(data_block & 0xF0 | MODE_1);
        list.extend(rest);
        let [high, low] = (list.len() as u16).to_be_bytes();
        let transfer = Transfer::Out(list.len() as u32);
        let cdb = block([0x55, 0x10, 0, 0, 0, 0, 0, high, low]);
        Ok((Command { cdb, transfer }, list))
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
            let _ = (current_profile(&bytes), DiscInfo::parse(&bytes), TrackInfo::parse(&bytes));
            let _ = WriteParameters::parse(&bytes).and_then(|page| page.select(true).map(drop));
        }
    }
}
