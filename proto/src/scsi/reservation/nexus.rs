//! Who holds a registration: an I_T nexus under a name that outlives its sessions.

use crate::iscsi::login::policy::Proven;
use crate::iscsi::name::{IscsiName, Isid};
use crate::reader::{Reader, Truncated};

/// An I_T nexus: an initiator port and a target port (SAM-5). Two sessions of the same client with the same name, one
/// after the other, are the same nexus. Initiator ports of different clients are different ones whatever they are
/// called, as a name and an ISID are only claimed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId {
    /// The initiator port.
    pub initiator: InitiatorPort,
    /// The relative target port identifier of the target port.
    pub target_port: u16,
    /// The client whose initiator port it is.
    pub client: Proven,
}

impl NexusId {
    /// The same under its name alone, as a client has it that has proven nothing.
    pub(super) fn bare(&self) -> Self {
        Self { client: Proven::Nothing, ..self.clone() }
    }
}

/// An iSCSI initiator port (RFC 7143, 4.4.2): the name of the node and the ISID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InitiatorPort {
    /// The node.
    pub name: IscsiName,
    /// The session identifier it chose.
    pub isid: Isid,
}

/// What a TransportID names (SPC-4, 7.6.4.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportId {
    /// Every port of a node (TPID FORMAT 00b).
    Node(IscsiName),
    /// One port (TPID FORMAT 01b).
    Port(InitiatorPort),
}

/// A TransportID that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotATransportId;

impl From<Truncated> for NotATransportId {
    fn from(_: Truncated) -> Self {
        Self
    }
}

const FORMAT: u8 = 0xC0;
const FORMAT_NODE: u8 = 0x00;
const FORMAT_PORT: u8 = 0x40;
const PROTOCOL: u8 = 0x0F;
const PROTOCOL_ISCSI: u8 = 0x05;
const SEPARATOR: &str = ",i,0x";
/// ADDITIONAL LENGTH is at least this, and a multiple of four.
const ADDITIONAL_MIN: usize = 20;

impl TransportId {
    /// Reads the next TransportID of a list.
    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, NotATransportId> {
        let [first, _] = reader.array()?;
        let length = usize::from(reader.u16()?);
        let text = reader.take(length)?;
        if first & PROTOCOL != PROTOCOL_ISCSI
            || length < ADDITIONAL_MIN
            || !length.is_multiple_of(4)
        {
            return Err(NotATransportId);
        }
        // The first NUL ends the text, whatever follows it.
        let end = text.iter().position(|byte| *byte == 0).ok_or(NotATransportId)?;
        let text = text.get(..end).and_then(|text| str::from_utf8(text).ok());
        let text = text.ok_or(NotATransportId)?;
        match first & FORMAT {
            FORMAT_NODE => name(text).map(Self::Node),
            FORMAT_PORT => {
                let (node, isid) = text.rsplit_once(SEPARATOR).ok_or(NotATransportId)?;
                let isid = Isid(hexadecimal(isid)?);
                Ok(Self::Port(InitiatorPort { name: name(node)?, isid }))
            }
            _ => Err(NotATransportId),
        }
    }

    /// As it stands in parameter data.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let (format, text) = match self {
            Self::Node(name) => (FORMAT_NODE, name.to_string()),
            Self::Port(port) => (FORMAT_PORT, port.to_string()),
        };
        let length = (text.len() + 1).next_multiple_of(4).max(ADDITIONAL_MIN);
        let mut bytes = vec![format | PROTOCOL_ISCSI, 0];
        bytes.extend((length as u16).to_be_bytes());
        bytes.extend(text.into_bytes());
        bytes.resize(4 + length, 0);
        bytes
    }
}

impl core::fmt::Display for InitiatorPort {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}{SEPARATOR}", self.name)?;
        self.isid.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn name(text: &str) -> Result<IscsiName, NotATransportId> {
    IscsiName::tolerant(text).map_err(|_| NotATransportId)
}

/// Twelve digits, of either case.
fn hexadecimal(text: &str) -> Result<[u8; 6], NotATransportId> {
    const DIGITS: usize = 12;
    if text.len() != DIGITS || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(NotATransportId);
    }
    let value = u64::from_str_radix(text, 16).map_err(|_| NotATransportId)?;
    let [_, _, isid @ ..] = value.to_be_bytes();
    Ok(isid)
}
