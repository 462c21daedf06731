//! INQUIRY of a device that is passed through: it is what it says it is, but the unit is this target's.
//!
//! Two targets that pass one device through keep reservations apart, each for its own clients. A client that took them for two
//! paths to one unit would be wrong, so the serial number and the designators are the target's.

use super::super::inquiry::{page, vital};

/// Whether this target answers for a page of vital product data, whatever the device says.
#[must_use]
pub const fn is_ours(code: u8) -> bool {
    matches!(code, page::SERIAL | page::IDENTIFICATION | page::PORTS)
}

// Bits of standard INQUIRY data (SPC-4, 6.6.2).
const TARGET_PORT_GROUPS: u8 = 0x30;
const THIRD_PARTY_COPY: u8 = 0x08;
const PROTECT: u8 = 0x01;
const MULTI_PORT: u8 = 0x10;
const COMMAND_QUEUE: u8 = 0x02;

/// The standard INQUIRY data of the device, as its clients see them here: `ours` are those that this target would have.
#[must_use]
pub fn standard(mut device: Vec<u8>, ours: &[u8]) -> Vec<u8> {
    let field = |at: usize, mask: u8| ours.get(at).map_or(0, |byte| byte & mask);
    if let Some(byte) = device.get_mut(0) {
        // PERIPHERAL QUALIFIER: whether this port reaches it.
        *byte = *byte & 0x1F | field(0, 0xE0);
    }
    if let Some(byte) = device.get_mut(5) {
        // EXTENDED COPY is refused, and protection information does not travel.
        *byte = *byte & !(TARGET_PORT_GROUPS | THIRD_PARTY_COPY | PROTECT)
            | field(5, TARGET_PORT_GROUPS);
    }
    if let Some(byte) = device.get_mut(6) {
        *byte = *byte & !MULTI_PORT | field(6, MULTI_PORT);
    }
    if let Some(byte) = device.get_mut(7) {
        *byte |= COMMAND_QUEUE;
    }
    device
}

/// The list of the pages of vital product data: those of the device, or none if it has no such list, and ours.
#[must_use]
pub fn supported(peripheral: u8, device: &[u8]) -> Vec<u8> {
    let body = device.get(4..).unwrap_or_default();
    let length = device.get(3).copied().unwrap_or_default();
    let theirs = body.iter().take(length.into()).copied();
    // What tells of copies would be about EXTENDED COPY.
    let theirs = theirs.filter(|code| *code != page::THIRD_PARTY_COPY);
    let mut pages: Vec<u8> = theirs.collect();
    pages.extend([page::SUPPORTED, page::SERIAL, page::IDENTIFICATION, page::PORTS]);
    pages.sort_unstable();
    pages.dedup();
    vital(peripheral, page::SUPPORTED, &pages)
}

/// The block limits page of a disk (SBC-3, 6.6.4), whose MAXIMUM and OPTIMAL TRANSFER LENGTH are no more than go through here.
#[must_use]
pub fn block_limits(mut device: Vec<u8>, blocks_max: u32) -> Vec<u8> {
    // Zero is no limit of the maximum, and nothing said of the optimum.
    limit(&mut device, 8, blocks_max, true);
    limit(&mut device, 12, blocks_max, false);
    device
}

fn limit(bytes: &mut [u8], at: usize, most: u32, zero_is_all: bool) {
    let Some(field) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) else {
        return;
    };
    let value = u32::from_be_bytes(*field);
    if value > most || (value == 0 && zero_is_all) {
        *field = most.to_be_bytes();
    }
}
