//! REPORT SUPPORTED OPERATION CODES (SPC-4, 6.35) of a device that is passed through: what is refused here is not supported.

use crate::scsi::cdb::Block;

/// Whether one command is asked for: its codes.
#[must_use]
pub fn asked(block: &Block) -> Option<(u8, u8)> {
    match block[2] & 0x07 {
        0 => None,
        _ => Some((block[3], block[5])),
    }
}

/// The answer for a command that is not supported, to who asks for one (SPC-4, 6.35.3).
pub const NOT_SUPPORTED: [u8; 4] = [0, 0x01, 0, 0];

/// A command descriptor, without the timeouts that may follow it.
const DESCRIPTOR: usize = 8;
/// CTDP: they do.
const HAS_TIMEOUTS: u8 = 0x02;
/// SERVACTV: the command has a service action.
const HAS_ACTION: u8 = 0x01;
const TIMEOUTS: usize = 12;

/// The list of all commands (SPC-4, 6.35.2) without those that are not permitted, by operation code and service action.
#[must_use]
pub fn permitted(list: &[u8], permits: impl Fn(u8, u8) -> bool) -> Vec<u8> {
    let length = list.first_chunk().map_or(0, |length| u32::from_be_bytes(*length) as usize);
    let mut rest = list.get(4..).unwrap_or_default();
    rest = rest.get(..length).unwrap_or(rest);
    let mut kept = vec![0; 4];
    while let Some(descriptor) = rest.first_chunk::<DESCRIPTOR>() {
        let flags = descriptor[5];
        let size = if flags & HAS_TIMEOUTS == 0 { DESCRIPTOR } else { DESCRIPTOR + TIMEOUTS };
        let Some((whole, behind)) = rest.split_at_checked(size) else { break };
        let action = if flags & HAS_ACTION == 0 { 0 } else { descriptor[3] };
        if permits(descriptor[0], action) {
            kept.extend_from_slice(whole);
        }
        rest = behind;
    }
    let length = (kept.len() - 4) as u32;
    kept[..4].copy_from_slice(&length.to_be_bytes());
    kept
}
