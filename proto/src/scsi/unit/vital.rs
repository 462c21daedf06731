//! Which pages of vital product data the types of devices have.

use super::super::DeviceType;
use super::super::inquiry::page;

/// Those of this type, in ascending order (SPC-4, 7.8.13).
pub(super) const fn pages(device: DeviceType) -> &'static [u8] {
    match device {
        DeviceType::Disk => &OF_DISK,
        DeviceType::Optical | DeviceType::Changer => &COMMON,
        DeviceType::Tape => &OF_TAPE,
    }
}

const OF_DISK: [u8; 11] = [
    page::SUPPORTED,
    page::SERIAL,
    page::IDENTIFICATION,
    page::EXTENDED,
    page::MODE_POLICY,
    page::PORTS,
    page::THIRD_PARTY_COPY,
    page::BLOCK_LIMITS,
    page::CHARACTERISTICS,
    page::PROVISIONING,
    page::VOLUME,
];

const COMMON: [u8; 7] = [
    page::SUPPORTED,
    page::SERIAL,
    page::IDENTIFICATION,
    page::EXTENDED,
    page::MODE_POLICY,
    page::PORTS,
    page::VOLUME,
];

const OF_TAPE: [u8; 8] = [
    page::SUPPORTED,
    page::SERIAL,
    page::IDENTIFICATION,
    page::EXTENDED,
    page::MODE_POLICY,
    page::PORTS,
    page::BLOCK_LIMITS,
    page::VOLUME,
];
