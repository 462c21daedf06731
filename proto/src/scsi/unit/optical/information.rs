//! What a drive tells of its mechanism and of the disc in it: MECHANISM STATUS, READ DISC INFORMATION, READ TRACK
//! INFORMATION and READ DISC STRUCTURE.

use super::super::super::Sense;
use super::super::super::cdb::TrackAddress;
use super::super::super::readiness::Readiness;
use super::super::super::sense::Additional;
use super::{Disc, DiscType};

/// MECHANISM STATUS of a drive that is no changer (MMC-6, 6.12): idle, and the door is open or not.
pub(super) fn mechanism(readiness: Readiness) -> Vec<u8> {
    const DOOR_OPEN: u8 = 0x10;
    let door = if readiness == Readiness::TrayOpen { DOOR_OPEN } else { 0 };
    vec![0, door, 0, 0, 0, 0, 0, 0]
}

/// Standard Disc Information (MMC-6, 6.21.3.1): complete, with one session of one track.
pub(super) fn disc(disc: Disc, kind: u8) -> Result<Vec<u8>, Sense> {
    const STANDARD: u8 = 0;
    const COMPLETE: u8 = 0x0E;
    const UNRESTRICTED: u8 = 0x20;
    if kind != STANDARD {
        return Err(Sense::invalid_cdb(1, Some(2)));
    }
    let disc_type = match disc.kind() {
        DiscType::Cd => 0x00,
        DiscType::Dvd => 0xFF,
    };
    // The number of the first track; how many sessions; the first and the last track of the last one.
    let mut bytes = vec![0, 32, COMPLETE, 1, 1, 1, 1, UNRESTRICTED, disc_type, 0, 0, 0];
    bytes.extend([0; 4]); // Disc Identification
    bytes.extend([0xFF; 8]); // Nothing more can be recorded: there is no place for a lead-in and a lead-out.
    bytes.extend([0; 10]); // Bar code, application code, OPC tables
    Ok(bytes)
}

/// The Track Information Block of the track (MMC-6, 6.26.3): data, complete.
pub(super) fn track(disc: Disc, track: TrackAddress) -> Result<Vec<u8>, Sense> {
    const LENGTH: usize = 48;
    const DATA: u8 = 0x04;
    const MODE_1: u8 = 0x01;
    match track {
        TrackAddress::Block(lba) if lba < disc.blocks => {}
        TrackAddress::Block(_) => return Err(Sense::illegal(Additional::LBA_OUT_OF_RANGE)),
        TrackAddress::Track(1) | TrackAddress::Session(1) => {}
        _ => return Err(Sense::invalid_cdb(2, None)),
    }
    let mut bytes = vec![0, (LENGTH - 2) as u8, 1, 1, 0, DATA, MODE_1, 0];
    // It begins at block 0, has no next writable address, nothing free, and packets of no fixed size.
    bytes.extend([0; 16]);
    bytes.extend(disc.blocks.to_be_bytes());
    bytes.resize(LENGTH, 0);
    Ok(bytes)
}

/// READ DISC STRUCTURE of a DVD (MMC-6, 6.22): its physical format, and that nothing protects it.
pub(super) fn structure(disc: Disc, media: u8, layer: u8, format: u8) -> Result<Vec<u8>, Sense> {
    const DVD: u8 = 0;
    if disc.kind() != DiscType::Dvd || media != DVD {
        return Err(Sense::illegal(Additional::INCOMPATIBLE_FORMAT));
    }
    let layers = if disc.blocks > LAYER_BLOCKS_MAX { 2 } else { 1 };
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
fn physical_format(disc: Disc, layers: u8) -> Vec<u8> {
    const LENGTH: usize = 2048;
    const DVD_ROM_VERSION_1: u8 = 0x01;
    const RATE_NOT_SPECIFIED: u8 = 0x0F;
    const EMBOSSED: u8 = 0x01;
    /// Where the data begin: PSN of LBA 0.
    const DATA_START: u32 = 0x03_0000;
    let end = |blocks: u32| DATA_START.saturating_add(blocks - 1).min(0xFF_FFFF);
    let per_layer = disc.blocks.div_ceil(layers.into());
    let mut bytes = vec![DVD_ROM_VERSION_1, RATE_NOT_SPECIFIED, (layers - 1) << 5 | EMBOSSED, 0];
    bytes.extend(DATA_START.to_be_bytes());
    bytes.extend(end(per_layer).to_be_bytes());
    bytes.extend([0; 4]);
    bytes.resize(LENGTH, 0);
    bytes
}
