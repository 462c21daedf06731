//! READ TOC/PMA/ATIP (MMC-6, 6.25): the table of contents of a disc, as far as its sessions are closed.

use super::super::super::Sense;
use super::super::super::sense::Additional;
use super::{Disc, DiscType, Track};

/// ADR 1, and a track of data that was recorded uninterrupted.
const DATA_TRACK: u8 = 0x14;
/// Track number of the lead-out.
const LEAD_OUT: u8 = 0xAA;

/// The table in this format, from `track` on.
pub(super) fn read(disc: &Disc, minutes: bool, format: u8, track: u8) -> Result<Vec<u8>, Sense> {
    if format == 0b0100 && disc.disc_type() == DiscType::CdR {
        return Ok(atip(disc));
    }
    let table = Table::of(disc)?;
    match format {
        0b0000 => table.tracks(minutes, track),
        0b0001 => Ok(table.sessions(minutes)),
        0b0010 => table.full(track),
        _ => Err(Sense::invalid_cdb(2, Some(3))),
    }
}

/// The tracks of closed sessions, with their numbers; there is one at least.
struct Table<'a> {
    tracks: Vec<(u8, &'a Track)>,
    last: &'a Track,
}

impl<'a> Table<'a> {
    fn of(disc: &'a Disc) -> Result<Self, Sense> {
        let closed = |track: &&Track| track.session <= disc.closed_sessions();
        let tracks: Vec<_> = (1..).zip(disc.tracks().iter().filter(closed)).collect();
        match tracks.last() {
            Some((_, last)) => Ok(Self { last, tracks }),
            None => Err(Sense::illegal(Additional::INCOMPATIBLE_FORMAT)),
        }
    }

    /// Table of contents: the tracks and the lead-out, from the one that is asked for on.
    fn tracks(&self, minutes: bool, from: u8) -> Result<Vec<u8>, Sense> {
        let last = self.tracks.len() as u8;
        if from > last && from != LEAD_OUT {
            return Err(Sense::invalid_cdb(6, None));
        }
        let tracks = self.tracks.iter().map(|(number, track)| (*number, track.first));
        let mut list = Vec::new();
        for (number, first) in tracks.chain([(LEAD_OUT, self.last.end)]) {
            if number >= from {
                list.extend([0, DATA_TRACK, number, 0]);
                list.extend(address(first, minutes));
            }
        }
        Ok(with_header(&list, 1, last))
    }

    /// Session information: the first track of the last complete session.
    fn sessions(&self, minutes: bool) -> Vec<u8> {
        let (number, first) =
            self.of_session(self.last.session).next().map_or((1, 0), |found| found);
        let mut list = vec![0, DATA_TRACK, number, 0];
        list.extend(address(first, minutes));
        with_header(&list, 1, self.last.session as u8)
    }

    /// The numbers and the first blocks of the tracks of a session.
    fn of_session(&self, session: u16) -> impl Iterator<Item = (u8, u32)> {
        let its = self.tracks.iter().filter(move |(_, track)| track.session == session);
        its.map(|(number, track)| (*number, track.first))
    }

    /// Full TOC: the sub-channel of the lead-in of each session from `from` on, whose addresses are always minutes, seconds
    /// and frames.
    fn full(&self, from: u8) -> Result<Vec<u8>, Sense> {
        let sessions = self.last.session;
        if u16::from(from) > sessions {
            return Err(Sense::invalid_cdb(6, None));
        }
        let mut list = Vec::new();
        for session in u16::from(from.max(1))..=sessions {
            let mut point = |point: u8, [minute, second, frame]: [u8; 3]| {
                let session = session as u8;
                list.extend([session, DATA_TRACK, 0, point, 0, 0, 0, 0, minute, second, frame]);
            };
            let (first, last) = (self.of_session(session).next(), self.of_session(session).last());
            let mut its = self.tracks.iter().filter(|(_, track)| track.session == session);
            let end = its.next_back().map_or(0, |(_, track)| track.end);
            // The first and the last track, and where the lead-out begins.
            point(0xA0, [first.map_or(1, |(number, _)| number), 0, 0]);
            point(0xA1, [last.map_or(1, |(number, _)| number), 0, 0]);
            point(0xA2, minute_second_frame(end));
            for (number, first) in self.of_session(session) {
                point(number, minute_second_frame(first));
            }
        }
        Ok(with_header(&list, 1, sessions as u8))
    }
}

/// What the groove of a blank CD-R tells (MMC-6, 6.25.3.6): of general purpose, and how long it is.
fn atip(disc: &Disc) -> Vec<u8> {
    const REFERENCE: u8 = 0x80 | 4 << 4;
    const UNRESTRICTED: u8 = 0x40;
    const NOT_REWRITABLE: u8 = 0x80;
    let mut bytes = vec![0, 26, 0, 0, REFERENCE, UNRESTRICTED, NOT_REWRITABLE, 0];
    // The lead-in begins before the first block, at 97 minutes and 26 seconds.
    bytes.extend([97, 26, 60, 0]);
    bytes.extend(minute_second_frame(disc.blocks()));
    bytes.resize(28, 0);
    bytes
}

/// The length of what follows, and the first and the last of what is listed.
fn with_header(list: &[u8], first: u8, last: u8) -> Vec<u8> {
    let mut bytes = ((list.len() + 2) as u16).to_be_bytes().to_vec();
    bytes.extend([first, last]);
    bytes.extend(list);
    bytes
}

fn address(lba: u32, minutes: bool) -> [u8; 4] {
    if !minutes {
        return lba.to_be_bytes();
    }
    let [minute, second, frame] = minute_second_frame(lba);
    [0, minute, second, frame]
}

/// How many blocks lie before the first one: two seconds.
pub(super) const PREGAP: u32 = 150;

/// The block of an address.
pub(super) fn block_of([minute, second, frame]: [u8; 3]) -> Option<u32> {
    let frames = (u32::from(minute) * 60 + u32::from(second)) * 75 + u32::from(frame);
    frames.checked_sub(PREGAP)
}

/// MMC-6, 4.2.2.5: 75 frames a second, and two seconds before the first block. What lies beyond 255 minutes, on a DVD,
/// is as far as they count (MMC-6, 6.25.3.2.1).
pub(super) fn minute_second_frame(lba: u32) -> [u8; 3] {
    let frames = u64::from(lba) + u64::from(PREGAP);
    match u8::try_from(frames / 75 / 60) {
        Ok(minute) => [minute, (frames / 75 % 60) as u8, (frames % 75) as u8],
        Err(_) => [u8::MAX, 59, 74],
    }
}
