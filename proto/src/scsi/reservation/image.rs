//! Registrations and reservation as bytes, for what keeps them through a loss of power.
//!
//! ```text
//! magic "LHRS"   version u16   APTPL u8   TYPE u8, 0 for none   holder u32   count u32
//! then, count times, in order of I_T nexus:
//!     key u64   relative target port u16   ISID 6 bytes   length u8   name
//! CRC32C of all before, u32
//! ```
//!
//! Version 2 says after each name which client it is: 0 for none, 1 for a CHAP account or 2 for a key, then a length
//! as u16 and the account's name or the public key. After the registrations it has those of nexuses that may only
//! read: their count and themselves, likewise. It is written where there is anything of that; else it is version 1,
//! which earlier releases read and wrote.
//!
//! Integers are big-endian; the holder is the number of a registration, or all ones where there is none or
//! where everyone is. A state has exactly one image, and an image is read whole or refused: a damaged one
//! must not pass for a unit that nobody has reserved.

use std::collections::BTreeMap;

use super::registry::{Held, Holder, READERS_MAX, REGISTRANTS_MAX, Registry};
use super::{InitiatorPort, Key, Kind, NexusId, Proven};
use crate::iscsi::name::{IscsiName, Isid};
use crate::iscsi::sealed::PublicKey;
use crate::reader::{Reader, Truncated};

const MAGIC: [u8; 4] = *b"LHRS";
/// Names prove nothing: where there is no authentication, and of releases that did not tell clients apart.
const BARE: u16 = 1;
/// With the clients that nexuses belong to.
const WITH_CLIENTS: u16 = 2;

const NOTHING: u8 = 0;
const CHAP: u8 = 1;
const KEY: u8 = 2;

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
    let version = version_of(registry);
    let mut bytes = MAGIC.to_vec();
    bytes.extend(version.to_be_bytes());
    bytes.extend([u8::from(registry.through_power_loss), kind]);
    bytes.extend(holder.to_be_bytes());
    encode_all(&registry.registrants, version, &mut bytes);
    if version == WITH_CLIENTS {
        encode_all(&registry.readers, version, &mut bytes);
    }
    bytes.extend(crc_fast::crc32_iscsi(&bytes).to_be_bytes());
    bytes
}

fn version_of(registry: &Registry) -> u16 {
    let bare = registry.registrants.keys().all(|nexus| nexus.client == Proven::Nothing);
    if bare && registry.readers.is_empty() { BARE } else { WITH_CLIENTS }
}

fn encode_all(registrations: &BTreeMap<NexusId, Key>, version: u16, bytes: &mut Vec<u8>) {
    bytes.extend((registrations.len() as u32).to_be_bytes());
    for (NexusId { initiator, target_port, client }, key) in registrations {
        let name = initiator.name.as_str();
        bytes.extend(key.to_be_bytes());
        bytes.extend(target_port.to_be_bytes());
        bytes.extend(initiator.isid.0);
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
        if version == WITH_CLIENTS {
            let (kind, proof) = match client {
                Proven::Nothing => (NOTHING, &[][..]),
                Proven::Chap(account) => (CHAP, account.as_bytes()),
                Proven::Key(key) => (KEY, &key.as_bytes()[..]),
            };
            bytes.push(kind);
            // A login's text is shorter than that.
            bytes.extend((proof.len() as u16).to_be_bytes());
            bytes.extend(proof);
        }
    }
}

pub(super) fn decode(bytes: &[u8]) -> Result<Registry, ImageError> {
    let mut reader = Reader::new(bytes);
    if reader.array()? != MAGIC {
        return Err(ImageError::Magic);
    }
    // Before the checksum: another version may have another one.
    let version = reader.u16()?;
    if ![BARE, WITH_CLIENTS].contains(&version) {
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
    let (kind, holder) = (reader.u8()?, reader.u32()?);
    let registrants = registrations(&mut reader, version, REGISTRANTS_MAX)?;
    let readers = match version {
        WITH_CLIENTS => registrations(&mut reader, version, READERS_MAX)?,
        _ => BTreeMap::new(),
    };
    let mut registry = Registry { through_power_loss, registrants, readers, held: None };
    if reader.rest().len() != CHECKSUM {
        return Err(ImageError::Content("length"));
    }
    let twice = registry.readers.keys().any(|nexus| registry.registrants.contains_key(nexus));
    if version_of(&registry) != version || twice {
        return Err(ImageError::Content("list of registrations"));
    }
    registry.held = held(&registry, kind, holder)?;
    Ok(registry)
}

fn registrations(
    reader: &mut Reader<'_>,
    version: u16,
    most: usize,
) -> Result<BTreeMap<NexusId, Key>, ImageError> {
    let count = reader.u32()?;
    if count as usize > most {
        return Err(ImageError::Content("number of registrations"));
    }
    let mut registrations = BTreeMap::new();
    for _ in 0..count {
        let (key, target_port) = (reader.u64()?, reader.u16()?);
        let isid = Isid(reader.array()?);
        let length = usize::from(reader.u8()?);
        let text = str::from_utf8(reader.take(length)?).unwrap_or_default();
        let name = IscsiName::tolerant(text).map_err(|_| ImageError::Content("initiator name"))?;
        if name.as_str() != text || key == 0 {
            return Err(ImageError::Content("registration"));
        }
        let client = if version == WITH_CLIENTS { client(reader)? } else { Proven::Nothing };
        let nexus = NexusId { initiator: InitiatorPort { name, isid }, target_port, client };
        if registrations.last_key_value().is_some_and(|(last, _)| *last >= nexus) {
            return Err(ImageError::Content("order of registrations"));
        }
        registrations.insert(nexus, key);
    }
    Ok(registrations)
}

fn client(reader: &mut Reader<'_>) -> Result<Proven, ImageError> {
    let (kind, length) = (reader.u8()?, usize::from(reader.u16()?));
    let proof = reader.take(length)?;
    match (kind, str::from_utf8(proof), proof.try_into()) {
        (NOTHING, Ok(""), _) => Ok(Proven::Nothing),
        (CHAP, Ok(account), _) => Ok(Proven::Chap(account.to_owned())),
        (KEY, _, Ok(key)) => Ok(Proven::Key(PublicKey::from_bytes(key))),
        _ => Err(ImageError::Content("client")),
    }
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
