//! Registrations and reservation as bytes, for what keeps them through a loss of power.
//!
//! ```text
//! magic "LHRS"   version u16   APTPL u8   TYPE u8, 0 for none   holder u32   count u32
//! then, count times, in order of I_T nexus:
//!     key u64   relative target port u16   ISID 6 bytes   length u8   name
//! CRC32C of all before, u32
//! ```
//!
//! Integers are big-endian; the holder is the number of a registration, or all ones where there is none or
//! where everyone is. A state has exactly one image, and an image is read whole or refused: a damaged one
//! must not pass for a unit that nobody has reserved.

use super::registry::{Held, Holder, REGISTRANTS_MAX, Registry};
use super::{InitiatorPort, Kind, NexusId};
use crate::iscsi::name::{IscsiName, Isid};
use crate::reader::{Reader, Truncated};

const MAGIC: [u8; 4] = *b"LHRS";
const VERSION: u16 = 1;
const NOBODY: u32 = u32::MAX;
const CHECKSUM: usize = 4;

/// Why bytes are no image of reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// It does not begin as one.
    #[error("these are not kept reservations")]
    Magic,
    /// A later release wrote it.
    #[error("kept reservations of version {0} are not known to this release")]
    Version(u16),
    /// It is damaged: the checksum does not fit.
    #[error("the kept reservations are damaged: their checksum is wrong")]
    Checksum,
    /// It ends too early.
    #[error("the kept reservations end {} bytes short", .0.missing)]
    Truncated(#[from] Truncated),
    /// This part makes no sense.
    #[error("the {0} of the kept reservations makes no sense")]
    Content(&'static str),
}

pub(super) fn encode(registry: &Registry) -> Vec<u8> {
    let (kind, holder) = match &registry.held {
        None => (0, NOBODY),
        Some(Held { kind, holder: Holder::Everyone }) => (kind.code(), NOBODY),
        Some(Held { kind, holder: Holder::One(nexus) }) => {
            (kind.code(), registry.registrants.range(..nexus).count() as u32)
        }
    };
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend([u8::from(registry.through_power_loss), kind]);
    bytes.extend(holder.to_be_bytes());
    bytes.extend((registry.registrants.len() as u32).to_be_bytes());
    for (NexusId { initiator, target_port }, key) in &registry.registrants {
        let name = initiator.name.as_str();
        bytes.extend(key.to_be_bytes());
        bytes.extend(target_port.to_be_bytes());
        bytes.extend(initiator.isid.0);
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
    }
    bytes.extend(crc_fast::crc32_iscsi(&bytes).to_be_bytes());
    bytes
}

pub(super) fn decode(bytes: &[u8]) -> Result<Registry, ImageError> {
    let mut reader = Reader::new(bytes);
    if reader.array()? != MAGIC {
        return Err(ImageError::Magic);
    }
    // Before the checksum: another version may have another one.
    let version = reader.u16()?;
    if version != VERSION {
        return Err(ImageError::Version(version));
    }
    let (body, checksum) =
        bytes.split_last_chunk::<CHECKSUM>().ok_or(Truncated { missing: CHECKSUM })?;
    if crc_fast::crc32_iscsi(body).to_be_bytes() != *checksum {
        return Err(ImageError::Checksum);
    }
    let through_power_loss = match reader.u8()? {
        0 => false,
        1 => true,
        _ => return Err(ImageError::Content("APTPL flag")),
    };
    let (kind, holder, count) = (reader.u8()?, reader.u32()?, reader.u32()?);
    let mut registry = Registry { through_power_loss, ..Registry::default() };
    registrants(&mut reader, count, &mut registry)?;
    if reader.rest().len() != CHECKSUM {
        return Err(ImageError::Content("length"));
    }
    registry.held = held(&registry, kind, holder)?;
    Ok(registry)
}

fn registrants(
    reader: &mut Reader<'_>,
    count: u32,
    registry: &mut Registry,
) -> Result<(), ImageError> {
    if count as usize > REGISTRANTS_MAX {
        return Err(ImageError::Content("number of registrations"));
    }
    for _ in 0..count {
        let (key, target_port) = (reader.u64()?, reader.u16()?);
        let isid = Isid(reader.array()?);
        let length = usize::from(reader.u8()?);
        let text = str::from_utf8(reader.take(length)?).unwrap_or_default();
        let name = IscsiName::tolerant(text).map_err(|_| ImageError::Content("initiator name"))?;
        if name.as_str() != text || key == 0 {
            return Err(ImageError::Content("registration"));
        }
        let nexus = NexusId { initiator: InitiatorPort { name, isid }, target_port };
        if registry.registrants.last_key_value().is_some_and(|(last, _)| *last >= nexus) {
            return Err(ImageError::Content("order of registrations"));
        }
        registry.registrants.insert(nexus, key);
    }
    Ok(())
}

fn held(registry: &Registry, kind: u8, holder: u32) -> Result<Option<Held>, ImageError> {
    if kind == 0 && holder == NOBODY {
        return Ok(None);
    }
    let kind = Kind::from_code(kind).ok_or(ImageError::Content("type"))?;
    let holder = match (kind.all_hold(), registry.registrants.keys().nth(holder as usize)) {
        (true, None) if holder == NOBODY && registry.is_registered_by_any() => Holder::Everyone,
        (false, Some(nexus)) => Holder::One(nexus.clone()),
        _ => return Err(ImageError::Content("holder")),
    };
    Ok(Some(Held { kind, holder }))
}
