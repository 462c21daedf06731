//! What MODE SENSE and MODE SELECT have of a tape that no other device has (SSC-4, 8.3).

use super::super::Sense;
use super::super::cdb::Form;
use super::Switches;
use crate::reader::{Reader, Truncated};

/// The longest block, which is that of `volume::tape` too.
pub const BLOCK_MAX: u32 = 8 << 20;

/// DENSITY CODE: one that no standard gave away. It stands for the format of the file.
pub const DENSITY: u8 = 0x80;

/// The density codes that MODE SELECT takes: the default, the one that there is, and "as it is".
const DENSITIES: [u8; 3] = [0x00, DENSITY, 0x7F];

const WRITE_PROTECTED: u8 = 0x80;
/// BUFFERED MODE: what is written may be volatile until it is asked for.
const BUFFERED: u8 = 0x10;
const BUFFERED_MODE: u8 = 0x70;
const DESCRIPTOR: usize = 8;

/// The device-specific parameter.
pub(super) const fn specific(protected: bool, switches: Switches) -> u8 {
    let protected = if protected { WRITE_PROTECTED } else { 0 };
    let buffered = if switches.unbuffered { 0 } else { BUFFERED };
    protected | buffered
}

/// The block descriptor: it is for all of the tape.
pub(super) fn descriptor(switches: Switches) -> [u8; DESCRIPTOR] {
    let [_, a, b, c] = switches.block_length.to_be_bytes();
    [DENSITY, 0, 0, 0, 0, a, b, c]
}

/// The body of the device configuration page: objects have numbers, and the end of what is written is the end of the data.
pub(super) fn configuration() -> Vec<u8> {
    const LOIS: u8 = 0x40;
    const EEG: u8 = 0x10;
    let mut page = vec![0; 14];
    page[6] = LOIS;
    page[8] = EEG;
    page
}

/// The body of the medium configuration page (SSC-4, 8.3.7): no block of a medium that is written once is written over, and of the
/// file marks before the end of the data the first is not.
pub(super) fn medium_configuration(write_once: bool) -> Vec<u8> {
    const WORMM: u8 = 0x01;
    const NO_BLOCKS: u8 = 0x00;
    const MARKS_BUT_THE_FIRST: u8 = 0x02;
    let mut page = vec![0; 30];
    page[0] = if write_once { WORMM } else { 0 };
    page[2..4].copy_from_slice(&[NO_BLOCKS, MARKS_BUT_THE_FIRST]);
    page
}

/// The switches after the header and the block descriptor of a parameter list.
pub(super) fn select_header(
    form: Form,
    reader: &mut Reader<'_>,
    current: Switches,
) -> Result<Result<Switches, Sense>, Truncated> {
    let (medium, specific, length, medium_at) = match form {
        Form::Six => {
            let [_, medium, specific, length] = reader.array()?;
            (medium, specific, usize::from(length), 1)
        }
        _ => {
            let [_, _, medium, specific, _, _] = reader.array()?;
            (medium, specific, usize::from(reader.u16()?), 2)
        }
    };
    if medium != 0 {
        return Ok(Err(Sense::invalid_parameter(medium_at, None)));
    }
    // SPEED has one value; WP is reserved here.
    let unbuffered = match specific & !WRITE_PROTECTED {
        0 => true,
        BUFFERED => false,
        wrong if wrong & BUFFERED_MODE == wrong => {
            return Ok(Err(Sense::invalid_parameter(medium_at + 1, Some(6))));
        }
        _ => return Ok(Err(Sense::invalid_parameter(medium_at + 1, Some(3)))),
    };
    let switches = Switches { unbuffered, ..current };
    let length_at = if form == Form::Six { 3 } else { 6 };
    match length {
        0 => Ok(Ok(switches)),
        DESCRIPTOR => {
            select_descriptor(length_at + if form == Form::Six { 1 } else { 2 }, reader, switches)
        }
        _ => Ok(Err(Sense::invalid_parameter(length_at, None))),
    }
}

fn select_descriptor(
    at: u16,
    reader: &mut Reader<'_>,
    current: Switches,
) -> Result<Result<Switches, Sense>, Truncated> {
    let [density, _, _, _, _, a, b, c] = reader.array()?;
    let block_length = u32::from_be_bytes([0, a, b, c]);
    if !DENSITIES.contains(&density) {
        return Ok(Err(Sense::invalid_parameter(at, None)));
    }
    if block_length > BLOCK_MAX {
        return Ok(Err(Sense::invalid_parameter(at + 5, None)));
    }
    Ok(Ok(Switches { block_length, ..current }))
}
