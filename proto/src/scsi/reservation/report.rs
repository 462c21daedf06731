//! The parameter data of PERSISTENT RESERVE IN (SPC-4, 6.15), as one initiator port gets them.

use super::registry::{Holder, Registry};
use super::{Key, Kind, NexusId};
use crate::scsi::transport::Transports;

/// READ KEYS: one key for each registered I_T nexus, so that the same key may come more than once.
pub(super) fn keys(generation: u32, registry: &Registry, asking: &NexusId) -> Vec<u8> {
    let keys = registry.visible_to(asking).flat_map(|(_, key)| key.to_be_bytes()).collect();
    with_header(generation, keys)
}

/// READ RESERVATION.
pub(super) fn reservation(generation: u32, registry: &Registry) -> Vec<u8> {
    let Some(held) = &registry.held else { return with_header(generation, Vec::new()) };
    let key: Key = match &held.holder {
        Holder::Everyone => 0,
        Holder::One(nexus) => registry.key(nexus).unwrap_or(0),
    };
    let mut descriptor = key.to_be_bytes().to_vec();
    descriptor.extend([0; 5]);
    descriptor.push(held.kind.code()); // SCOPE zero: the logical unit.
    descriptor.extend([0; 2]);
    with_header(generation, descriptor)
}

/// REPORT CAPABILITIES.
pub(super) fn capabilities(durable: bool, active: bool) -> Vec<u8> {
    const LENGTH: u16 = 8;
    const CRH: u8 = 0x10;
    const SIP_C: u8 = 0x08;
    const ATP_C: u8 = 0x04;
    const TMV: u8 = 0x80;
    /// 100b: what [`super::Class`] lets pass of the commands the standard leaves open, which is all.
    const ALLOW_COMMANDS: u8 = 0x40;
    let mask = Kind::ALL.iter().fold(0, |mask, kind| mask | kind.mask());
    let mut data = LENGTH.to_be_bytes().to_vec();
    data.push(CRH | SIP_C | ATP_C | u8::from(durable)); // PTPL_C
    data.push(TMV | ALLOW_COMMANDS | u8::from(active)); // PTPL_A
    data.extend(mask.to_be_bytes());
    data.extend([0; 2]);
    data
}

/// READ FULL STATUS. Each registration is of one target port, so that ALL_TG_PT is always zero.
pub(super) fn full_status(
    generation: u32,
    registry: &Registry,
    (asking, transports): (&NexusId, Transports),
) -> Vec<u8> {
    let mut list = Vec::new();
    for (nexus, key) in registry.visible_to(asking) {
        let kind =
            registry.held.as_ref().filter(|_| registry.is_holder(nexus)).map(|held| held.kind);
        let transport_id = transports.write(&nexus.initiator);
        list.extend(key.to_be_bytes());
        list.extend([0; 4]);
        list.push(u8::from(kind.is_some())); // R_HOLDER
        list.push(kind.map_or(0, Kind::code));
        list.extend([0; 4]);
        list.extend(nexus.target_port.to_be_bytes());
        list.extend((transport_id.len() as u32).to_be_bytes());
        list.extend(transport_id);
    }
    with_header(generation, list)
}

fn with_header(generation: u32, list: Vec<u8>) -> Vec<u8> {
    let mut data = generation.to_be_bytes().to_vec();
    data.extend((list.len() as u32).to_be_bytes()); // ADDITIONAL LENGTH
    data.extend(list);
    data
}
