//! What a drive tells of its mechanism and of the disc in it: MECHANISM STATUS, READ DISC INFORMATION, READ TRACK
//! INFORMATION and READ DISC STRUCTURE.

use super::super::super::Sense;
use super::super::super::cdb::TrackAddress;
use super::super::super::readiness::Readiness;
use super::super::super::sense::Additional;
use super::{BLOCK_SIZE, Disc, DiscStatus, DiscType, toc};

/// MECHANISM STATUS of a drive that is no changer (MMC-6, 6.12): idle, and the door is open or not.
pub(super) fn mechanism(readiness: Readiness) -> Vec<u8> {
    const DOOR_OPEN: u8 = 0x10;
    let door = if readiness == Readiness::TrayOpen { DOOR_OPEN } else { 0 };
    vec![0, door, 0, 0, 0, 0, 0, 0]
}

/// Standard Disc Information (MMC-6, 6.21.3.1).
pub(super) fn disc(disc: &Disc, kind: u8) -> Result<Vec<u8>, Sense> {
    const STANDARD: u8 = 0;
    const UNRESTRICTED: u8 = 0x20;
    const DID_V: u8 = 0x80;
    if kind != STANDARD {
        return Err(Sense::invalid_cdb(1, Some(2)));
    }
    let disc_type = if disc.disc_type().is_cd() { 0x00 } else { 0xFF };
    let formatted = if disc.disc_type() == DiscType::DvdPlusRw { FORMATTED } else { 0 };
    let sessions = if disc.next_writable().is_some() {
        // The one that is to come is one of them, empty as it may be.
        disc.closed_sessions() + 1
    } else {
        disc.closed_sessions().max(1)
    };
    let tracks = disc.tracks();
    let of_last = tracks.iter().filter(|track| track.session == sessions).count();
    let last = (tracks.len() + usize::from(begins_track(disc))).max(1) as u8;
    let first_of_last = (tracks.len() - of_last + 1) as u8;
    let mut bytes = vec![0, 32, states(disc), 1, sessions as u8, first_of_last, last];
    let known = if disc.id().is_some() { DID_V } else { 0 };
    bytes.extend([known | UNRESTRICTED | formatted, disc_type, 0, 0, 0]);
    bytes.extend(disc.id().unwrap_or(0).to_be_bytes());
    bytes.extend(room(disc));
    bytes.extend([0; 10]); // Bar code, application code, OPC tables
    Ok(bytes)
}

/// BG Format Status: there is nothing left to format.
const FORMATTED: u8 = 0x03;

/// Whether what is written next begins a track.
fn begins_track(disc: &Disc) -> bool {
    disc.open_track().is_none() && disc.next_writable().is_some()
}

/// Erasable, State of Last Session and Disc Status.
fn states(disc: &Disc) -> u8 {
    const ERASABLE: u8 = 0x10;
    let is_open = disc.tracks().last().is_some_and(|track| track.session > disc.closed_sessions());
    let last_session = match disc.status() {
        DiscStatus::Complete => 0b11,
        _ if is_open => 0b01,
        _ => 0b00,
    };
    let status = match disc.status() {
        DiscStatus::Blank => 0b00,
        DiscStatus::Appendable => 0b01,
        DiscStatus::Complete => 0b10,
    };
    let erasable = if disc.disc_type() == DiscType::DvdPlusRw { ERASABLE } else { 0 };
    erasable | last_session << 2 | status
}

/// Where the lead-in of the next session of a CD begins, and where the last lead-out can; all ones where nothing can be
/// added.
fn room(disc: &Disc) -> [u8; 8] {
    match disc.next_writable() {
        Some(next) if disc.disc_type().is_cd() => {
            let [minute, second, frame] = toc::minute_second_frame(next);
            let [last_minute, last_second, last_frame] = toc::minute_second_frame(disc.blocks());
            [0, minute, second, frame, 0, last_minute, last_second, last_frame]
        }
        _ => [0xFF; 8],
    }
}

/// The Track Information Block of a track (MMC-6, 6.26.3): data.
pub(super) fn track(disc: &Disc, address: TrackAddress) -> Result<Vec<u8>, Sense> {
    const LENGTH: usize = 48;
    const DATA: u8 = 0x04;
    const MODE_1: u8 = 0x01;
    const BLANK: u8 = 0x40;
    const NWA_V: u8 = 0x01;
    let TrackInfo { number, session, first, end, next } = find(disc, address)?;
    let is_blank = next == Some(first);
    let free = if next.is_some() { disc.free() } else { 0 };
    let mut bytes = vec![0, (LENGTH - 2) as u8, number, session, 0, DATA];
    bytes.extend([
        MODE_1 | if is_blank { BLANK } else { 0 },
        if next.is_some() { NWA_V } else { 0 },
    ]);
    bytes.extend(first.to_be_bytes());
    // MMC-6, 6.26.3.14: a session that is written at once begins with its pre-gap.
    let next = match disc.is_at_once_and_blank() {
        true => next.map(|next| next.wrapping_sub(toc::PREGAP)),
        false => next,
    };
    bytes.extend(next.unwrap_or(0).to_be_bytes());
    bytes.extend(free.to_be_bytes());
    // Packets of no fixed size.
    bytes.extend([0; 4]);
    bytes.extend((end - first + free).to_be_bytes());
    bytes.resize(LENGTH, 0);
    Ok(bytes)
}

/// A track as READ TRACK INFORMATION tells of it.
struct TrackInfo {
    number: u8,
    session: u8,
    first: u32,
    end: u32,
    /// Where it can be written next.
    next: Option<u32>,
}

/// The track that is named. That which nothing is recorded on yet is one, too: the invisible track (MMC-6, 4.2.3.4), which
/// is also known by the number FFh, as the one that is open is.
fn find(disc: &Disc, address: TrackAddress) -> Result<TrackInfo, Sense> {
    const OPEN: u32 = 0xFF;
    let all = every_track(disc);
    let found = match address {
        TrackAddress::Track(OPEN) => all.into_iter().find(|track| track.next.is_some()),
        TrackAddress::Track(number) => {
            all.into_iter().find(|track| u32::from(track.number) == number)
        }
        TrackAddress::Session(session) => {
            all.into_iter().find(|track| u32::from(track.session) == session)
        }
        TrackAddress::Block(lba) => {
            let holds = |track: &TrackInfo| {
                let end = if track.next.is_some() { disc.blocks() } else { track.end };
                (track.first..end).contains(&lba)
            };
            return all.into_iter().find(holds).ok_or(Sense::illegal(Additional::LBA_OUT_OF_RANGE));
        }
    };
    found.ok_or(Sense::invalid_cdb(2, None))
}

fn every_track(disc: &Disc) -> Vec<TrackInfo> {
    let next = disc.next_writable();
    let mut all: Vec<_> = (1..)
        .zip(disc.tracks())
        .map(|(number, track)| TrackInfo {
            number,
            session: track.session as u8,
            first: track.first,
            end: track.end,
            next: next.filter(|_| !track.is_closed),
        })
        .collect();
    if let Some(first) = next.filter(|_| begins_track(disc)) {
        let (number, session) = (all.len() as u8 + 1, disc.closed_sessions() as u8 + 1);
        all.push(TrackInfo { number, session, first, end: first, next });
    }
    all
}

/// READ FORMAT CAPACITIES (MMC-6, 6.23): how large the medium is, and how it can be formatted.
pub(super) fn format_capacities(disc: &Disc) -> Vec<u8> {
    const UNFORMATTED: u8 = 0x01;
    const FORMATTED: u8 = 0x02;
    /// DVD+RW Basic Format.
    const BASIC: u8 = 0x26 << 2;
    /// Of a BD-R, without and with spare areas, of which there are none all the same: no block is ever replaced.
    const FULL: u8 = 0x00 << 2;
    const WITH_SPARES: u8 = 0x32 << 2;
    let is_blank = disc.status() == DiscStatus::Blank;
    let [_, size @ ..] = BLOCK_SIZE.to_be_bytes();
    let mut list = disc.blocks().to_be_bytes().to_vec();
    list.push(if is_blank { UNFORMATTED } else { FORMATTED });
    list.extend(size);
    let formats: &[u8] = match disc.disc_type() {
        DiscType::DvdPlusRw => &[BASIC],
        DiscType::BdR if is_blank => &[FULL, WITH_SPARES],
        _ => &[],
    };
    for format in formats {
        list.extend(disc.blocks().to_be_bytes());
        list.extend([*format, 0, 0, 0]);
    }
    [&[0, 0, 0, list.len() as u8][..], &list].concat()
}

/// READ BUFFER CAPACITY (MMC-6, 6.16): what is written goes to the disc at once, so that the buffer is always blank.
pub(super) fn buffer_capacity(blocks: bool) -> Vec<u8> {
    const BUFFER: u32 = 1 << 20;
    let [length, unit, part] = match blocks {
        true => [0, 1, 0],
        false => [BUFFER, 0, BUFFER],
    };
    let mut bytes = vec![0, 10, 0, unit as u8];
    bytes.extend(length.to_be_bytes());
    bytes.extend(part.to_be_bytes());
    bytes
}

/// READ DISC STRUCTURE of a DVD (MMC-6, 6.22): its physical format, and that nothing protects it.
pub(super) fn structure(disc: &Disc, media: u8, layer: u8, format: u8) -> Result<Vec<u8>, Sense> {
    const DVD: u8 = 0;
    if !matches!(disc.disc_type(), DiscType::Dvd | DiscType::DvdPlusRw) || media != DVD {
        return Err(Sense::illegal(Additional::INCOMPATIBLE_FORMAT));
    }
    let layers = if disc.blocks() > LAYER_BLOCKS_MAX { 2 } else { 1 };
    let body = match format {
        0x00 | 0x01 if layer >= layers => return Err(Sense::invalid_cdb(6, None)),
        0x00 => physical_format(disc, layers),
        // CPST and region management: no protection, and all regions.
        0x01 => vec![0; 4],
        0xFF => FORMATS.iter().flat_map(|(code, length)| listed(*code, *length)).collect(),
        _ => return Err(Sense::invalid_cdb(7, None)),
    };
    let mut bytes = ((body.len() + 2) as u16).to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(body);
    Ok(bytes)
}

/// The formats there are, and how long their answers are.
const FORMATS: [(u8, u16); 3] = [(0x00, 2052), (0x01, 8), (0xFF, 16)];

/// An entry of the list of formats: one that can be read.
fn listed(code: u8, length: u16) -> [u8; 4] {
    const READABLE: u8 = 0x40;
    let [high, low] = length.to_be_bytes();
    [code, READABLE, high, low]
}

/// How many blocks one layer of a DVD holds.
const LAYER_BLOCKS_MAX: u32 = 2_298_496;

/// Physical format information of a DVD-ROM (MMC-6, 6.22.3.2.1), whose two layers begin on one side, if it has two.
fn physical_format(disc: &Disc, layers: u8) -> Vec<u8> {
    const LENGTH: usize = 2048;
    const DVD_ROM_VERSION_1: u8 = 0x01;
    const DVD_PLUS_RW_VERSION_2: u8 = 0x92;
    const RATE_NOT_SPECIFIED: u8 = 0x0F;
    const EMBOSSED: u8 = 0x01;
    /// Where the data begin: PSN of LBA 0.
    const DATA_START: u32 = 0x03_0000;
    let end = |blocks: u32| DATA_START.saturating_add(blocks - 1).min(0xFF_FFFF);
    let book = match disc.disc_type() {
        DiscType::DvdPlusRw => DVD_PLUS_RW_VERSION_2,
        _ => DVD_ROM_VERSION_1,
    };
    let per_layer = disc.blocks().div_ceil(layers.into());
    let mut bytes = vec![book, RATE_NOT_SPECIFIED, (layers - 1) << 5 | EMBOSSED, 0];
    bytes.extend(DATA_START.to_be_bytes());
    bytes.extend(end(per_layer).to_be_bytes());
    bytes.extend([0; 4]);
    bytes.resize(LENGTH, 0);
    bytes
}
