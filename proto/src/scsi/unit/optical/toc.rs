//! READ TOC/PMA/ATIP (MMC-6, 6.25): the table of contents of a disc with one track.

use super::super::super::Sense;
use super::Disc;

/// ADR 1, and a track of data that was recorded uninterrupted.
const DATA_TRACK: u8 = 0x14;
/// The number of the track, and of its session.
const ONLY: u8 = 1;
/// Track number of the lead-out.
const LEAD_OUT: u8 = 0xAA;

/// The table in this format, from `track` on.
pub(super) fn read(disc: Disc, minutes: bool, format: u8, track: u8) -> Result<Vec<u8>, Sense> {
    match format {
        0b0000 => tracks(disc, minutes, track),
        0b0001 => Ok(sessions(minutes)),
        0b0010 => full(disc, track),
        _ => Err(Sense::invalid_cdb(2, Some(3))),
    }
}

/// Table of contents: the track and the lead-out, from the one that is asked for on.
fn tracks(disc: Disc, minutes: bool, from: u8) -> Result<Vec<u8>, Sense> {
    let mut list = Vec::new();
    if from <= ONLY {
        list.extend([0, DATA_TRACK, ONLY, 0]);
        list.extend(address(0, minutes));
    } else if from != LEAD_OUT {
        return Err(Sense::invalid_cdb(6, None));
    }
    list.extend([0, DATA_TRACK, LEAD_OUT, 0]);
    list.extend(address(disc.blocks, minutes));
    Ok(with_header(&list))
}

/// Session information: the first track of the last complete session.
fn sessions(minutes: bool) -> Vec<u8> {
    let mut list = vec![0, DATA_TRACK, ONLY, 0];
    list.extend(address(0, minutes));
    with_header(&list)
}

/// Full TOC: the sub-channel of the lead-in, whose addresses are always minutes, seconds and frames.
fn full(disc: Disc, session: u8) -> Result<Vec<u8>, Sense> {
    if session > ONLY {
        return Err(Sense::invalid_cdb(6, None));
    }
    let mut list = Vec::new();
    let mut point = |point: u8, [minute, second, frame]: [u8; 3]| {
        list.extend([ONLY, DATA_TRACK, 0, point, 0, 0, 0, 0, minute, second, frame]);
    };
    // The first and the last track, and where the lead-out begins.
    point(0xA0, [ONLY, 0, 0]);
    point(0xA1, [ONLY, 0, 0]);
    point(0xA2, minute_second_frame(disc.blocks));
    point(ONLY, minute_second_frame(0));
    Ok(with_header(&list))
}

/// The length of what follows, and the first and the last of what is listed.
fn with_header(list: &[u8]) -> Vec<u8> {
    let mut bytes = ((list.len() + 2) as u16).to_be_bytes().to_vec();
    bytes.extend([ONLY, ONLY]);
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

/// MMC-6, 4.2.2.5: 75 frames a second, and two seconds before the first block. What lies beyond 255 minutes, on a DVD,
/// is as far as they count (MMC-6, 6.25.3.2.1).
fn minute_second_frame(lba: u32) -> [u8; 3] {
    let frames = u64::from(lba) + 150;
    match u8::try_from(frames / 75 / 60) {
        Ok(minute) => [minute, (frames / 75 % 60) as u8, (frames % 75) as u8],
        Err(_) => [u8::MAX, 59, 74],
    }
}
