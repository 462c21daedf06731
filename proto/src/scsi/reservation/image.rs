//! Registrations and reservation as bytes, for what keeps them through a loss of power.
//!
//! ```text
//! magic "LHRS"   version u16   APTPL u8   TYPE u8, 0 for none   holder u32
//! registrations that may write, then those that may only read, each as: count u32, and count times, in order of
//! I_T nexus:
//!     key u64   relative target port u16   PROTOCOL IDENTIFIER u8   length u16   initiator port identifier
//!     client u8, 0 for none, 1 for an account, 2 for a key   length u16   the account's name or the public key
//! CRC32C of all before, u32
//! ```
//!
//! This is version 3. Versions 1 and 2 are read: they name an initiator port by ISID (6 bytes), length (u8) and the
//! name of the iSCSI node in place of PROTOCOL IDENTIFIER, length and identifier. Version 1 has neither clients nor
//! registrations that may only read.
//!
//! Integers are big-endian; the holder is the number of a registration, or all ones where there is none or
//! where everyone is. A state has exactly one image, and an image is read whole or refused: a damaged one
//! must not pass for a unit that nobody has reserved.

use std::collections::BTreeMap;

use crc_fast::crc32_iscsi as crc32c;

use super::registry::{Holder, PersistentReservation, READERS_MAX, REGISTRANTS_MAX, Registry};
use super::{Key, Kind, NexusId};
use crate::client::ClientId;
use crate::identity::PublicKey;
use crate::reader::{Reader, Truncated};
use crate::scsi::transport::{InitiatorPort, PORT_ID_MAX, Protocol};

const MAGIC: [u8; 4] = *b"LHRS";
/// Version 1, without clients.
const NAMES: u16 = 1;
/// This version, with initiator ports of any protocol.
const PORTS: u16 = 3;

const UNAUTHENTICATED: u8 = 0;
const ACCOUNT: u8 = 1;
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
        Some(PersistentReservation { kind, holder: Holder::Everyone }) => (kind.code(), NOBODY),
        Some(PersistentReservation { kind, holder: Holder::One(nexus) }) => {
            (kind.code(), registry.registrants.range(..nexus).count() as u32)
        }
    };
    let mut bytes = MAGIC.to_vec();
    bytes.extend(PORTS.to_be_bytes());
    bytes.extend([u8::from(registry.through_power_loss), kind]);
    bytes.extend(holder.to_be_bytes());
    encode_all(&registry.registrants, &mut bytes);
    encode_all(&registry.readers, &mut bytes);
    bytes.extend(crc32c(&bytes).to_be_bytes());
    bytes
}

fn encode_all(registrations: &BTreeMap<NexusId, Key>, bytes: &mut Vec<u8>) {
    bytes.extend((registrations.len() as u32).to_be_bytes());
    for (NexusId { initiator, target_port, client }, key) in registrations {
        bytes.extend(key.to_be_bytes());
        bytes.extend(target_port.to_be_bytes());
        bytes.push(initiator.protocol.code());
        encode_bytes(initiator.id.as_bytes(), bytes);
        let (kind, proof) = match client {
            ClientId::Unauthenticated => (UNAUTHENTICATED, &[][..]),
            ClientId::Account(account) => (ACCOUNT, account.as_bytes()),
            ClientId::Key(key) => (KEY, &key.as_bytes()[..]),
        };
        bytes.push(kind);
        encode_bytes(proof, bytes);
    }
}

/// Identifiers and accounts come from logins, whose text is shorter than 64 KiB.
fn encode_bytes(field: &[u8], bytes: &mut Vec<u8>) {
    bytes.extend((field.len() as u16).to_be_bytes());
    bytes.extend(field);
}

pub(super) fn decode(bytes: &[u8]) -> Result<Registry, ImageError> {
    let mut reader = Reader::new(bytes);
    if reader.array()? != MAGIC {
        return Err(ImageError::Magic);
    }
    // Before the checksum: another version may have another one.
    let version = reader.u16()?;
    if !(NAMES..=PORTS).contains(&version) {
        return Err(ImageError::Version(version));
    }
    let (body, checksum) =
        bytes.split_last_chunk::<CHECKSUM>().ok_or(Truncated { missing: CHECKSUM })?;
    if crc32c(body).to_be_bytes() != *checksum {
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
        NAMES => Vec::new(),
        _ => registrations(&mut reader, version, READERS_MAX)?,
    };
    if reader.rest().len() != CHECKSUM {
        return Err(ImageError::Content("length"));
    }
    let held = held(&registrants, kind, holder)?;
    let mut registry = Registry { through_power_loss, held, ..Registry::default() };
    registry.registrants.extend(registrants);
    registry.readers.extend(readers);
    if registry.readers.keys().any(|nexus| registry.registrants.contains_key(nexus)) {
        return Err(ImageError::Content("list of registrations"));
    }
    Ok(registry)
}

/// In the order in which they stand.
fn registrations(
    reader: &mut Reader<'_>,
    version: u16,
    most: usize,
) -> Result<Vec<(NexusId, Key)>, ImageError> {
    let count = reader.u32()?;
    if count as usize > most {
        return Err(ImageError::Content("number of registrations"));
    }
    let mut registrations: Vec<(NexusId, Key)> = Vec::new();
    for _ in 0..count {
        let (key, target_port) = (reader.u64()?, reader.u16()?);
        let initiator = match version {
            PORTS => port(reader)?,
            _ => port_by_name(reader)?,
        };
        if key == 0 {
            return Err(ImageError::Content("registration"));
        }
        let client = if version == NAMES { ClientId::Unauthenticated } else { client(reader)? };
        let nexus = NexusId { initiator, target_port, client };
        // Versions that name a port otherwise have another order.
        let ordered = registrations.last().is_none_or(|(last, _)| *last < nexus);
        let named_twice = || registrations.iter().any(|(other, _)| *other == nexus);
        if !ordered && (version == PORTS || named_twice()) {
            return Err(ImageError::Content("order of registrations"));
        }
        registrations.push((nexus, key));
    }
    Ok(registrations)
}

fn port(reader: &mut Reader<'_>) -> Result<InitiatorPort, ImageError> {
    let code = reader.u8()?;
    let length = usize::from(reader.u16()?);
    let protocol = Protocol::new(code);
    let id = str::from_utf8(reader.take(length)?).ok();
    match id.filter(|id| id.len() <= PORT_ID_MAX && protocol.code() == code) {
        Some(id) => Ok(InitiatorPort { protocol, id: id.into() }),
        None => Err(ImageError::Content("initiator port")),
    }
}

/// Of a version before [`PORTS`]: an iSCSI node and an ISID, whose port has the identifier `name,i,0xISID`.
fn port_by_name(reader: &mut Reader<'_>) -> Result<InitiatorPort, ImageError> {
    const ISCSI: Protocol = Protocol::new(0x05);
    let isid: [u8; 6] = reader.array()?;
    let length = usize::from(reader.u8()?);
    let name = str::from_utf8(reader.take(length)?).ok().filter(|name| !name.is_empty());
    let name = name.ok_or(ImageError::Content("initiator name"))?;
    let isid = isid.iter().fold(0_u64, |isid, byte| isid << 8 | u64::from(*byte));
    Ok(InitiatorPort { protocol: ISCSI, id: format!("{name},i,0x{isid:012x}").into() })
}

fn client(reader: &mut Reader<'_>) -> Result<ClientId, ImageError> {
    let (kind, length) = (reader.u8()?, usize::from(reader.u16()?));
    let proof = reader.take(length)?;
    match (kind, str::from_utf8(proof), proof.try_into()) {
        (UNAUTHENTICATED, Ok(""), _) => Ok(ClientId::Unauthenticated),
        (ACCOUNT, Ok(account), _) => Ok(ClientId::Account(account.to_owned())),
        (KEY, _, Ok(key)) => Ok(ClientId::Key(PublicKey::from_bytes(key))),
        _ => Err(ImageError::Content("client")),
    }
}

fn held(
    registrants: &[(NexusId, Key)],
    kind: u8,
    holder: u32,
) -> Result<Option<PersistentReservation>, ImageError> {
    if kind == 0 && holder == NOBODY {
        return Ok(None);
    }
    let kind = Kind::from_code(kind).ok_or(ImageError::Content("type"))?;
    let holder = match (kind.all_hold(), registrants.get(holder as usize)) {
        (true, None) if holder == NOBODY && !registrants.is_empty() => Holder::Everyone,
        (false, Some((nexus, _))) => Holder::One(nexus.clone()),
        _ => return Err(ImageError::Content("holder")),
    };
    Ok(Some(PersistentReservation { kind, holder }))
}
