//! What SCSI knows of a transport protocol: how it names initiator ports (SAM-5, 4.8; SPC-4, 7.6.4).

use core::fmt;

use crate::reader::{Reader, Truncated};

/// PROTOCOL IDENTIFIER (SPC-4, 7.6.1): four bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(u8);

impl Protocol {
    const MASK: u8 = 0x0F;

    /// The protocol with this identifier, which is cut to four bits.
    #[must_use]
    pub const fn new(code: u8) -> Self {
        Self(code & Self::MASK)
    }

    /// Its identifier.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// An initiator port, under the identifier that its protocol gives it (SAM-5, 4.8.2). Equal ports have equal
/// identifiers, so that a protocol which can write one identifier in several ways must choose one of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InitiatorPort {
    /// The protocol of the service delivery subsystem.
    pub protocol: Protocol,
    /// The initiator port identifier.
    pub id: Box<str>,
}

/// The longest identifier of an initiator port, in bytes.
pub const PORT_ID_MAX: usize = 1024;

impl fmt::Display for InitiatorPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

/// What a TransportID names (SPC-4, 7.6.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportId {
    /// Every port of an initiator device that has this name.
    Device {
        /// The protocol of its ports.
        protocol: Protocol,
        /// The initiator device name.
        name: Box<str>,
    },
    /// One port.
    Port(InitiatorPort),
}

/// Bytes that are no TransportID of a known protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotATransportId;

impl From<Truncated> for NotATransportId {
    fn from(_: Truncated) -> Self {
        Self
    }
}

/// A transport protocol.
pub trait Transport: fmt::Debug + Sync {
    /// Its identifier.
    fn protocol(&self) -> Protocol;

    /// Reads one TransportID, all of it, which begins with the identifier of this protocol.
    fn read(&self, reader: &mut Reader<'_>) -> Result<TransportId, NotATransportId>;

    /// The TransportID of a port as it stands in parameter data.
    fn write(&self, id: &TransportId) -> Vec<u8>;

    /// The name of the initiator device that a port belongs to.
    fn device_of<'a>(&self, port: &'a InitiatorPort) -> &'a str;
}

/// The protocols by which a device can be reached.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transports(pub &'static [&'static dyn Transport]);

/// The length of a TransportID of the protocols that do not choose their own (SPC-4, 7.6.4.1).
const LENGTH: usize = 24;

impl Transports {
    fn of(self, protocol: Protocol) -> Option<&'static dyn Transport> {
        self.0.iter().copied().find(|transport| transport.protocol() == protocol)
    }

    /// Reads the next TransportID of a list.
    pub(crate) fn read(self, reader: &mut Reader<'_>) -> Result<TransportId, NotATransportId> {
        let first = reader.rest().first().ok_or(NotATransportId)?;
        let transport = self.of(Protocol::new(*first)).ok_or(NotATransportId)?;
        transport.read(reader)
    }

    /// The TransportID of a port. Of a protocol that is not known here it names the protocol alone.
    pub(super) fn write(self, port: &InitiatorPort) -> Vec<u8> {
        match self.of(port.protocol) {
            Some(transport) => transport.write(&TransportId::Port(port.clone())),
            None => {
                let mut bytes = vec![0; LENGTH];
                bytes[0] = port.protocol.code();
                bytes
            }
        }
    }

    /// Whether a port belongs to the initiator device of this name.
    pub(super) fn is_port_of(self, port: &InitiatorPort, protocol: Protocol, name: &str) -> bool {
        let transport = self.of(protocol).filter(|_| port.protocol == protocol);
        transport.is_some_and(|transport| transport.device_of(port) == name)
    }

    /// The name of the initiator device that a TransportID names, or whose port it does.
    pub(super) fn device_of(self, id: &TransportId) -> Option<String> {
        match id {
            TransportId::Device { name, .. } => Some(name.to_string()),
            TransportId::Port(port) => {
                self.of(port.protocol).map(|transport| transport.device_of(port).to_owned())
            }
        }
    }
}

/// A protocol for tests: a port is called `device.port`.
#[cfg(any(test, feature = "invariants"))]
pub mod plain {
    use core::fmt::Display;

    use super::{
        InitiatorPort, LENGTH, NotATransportId, Protocol, Reader, Transport, TransportId,
        Transports,
    };

    /// The protocol.
    pub const PLAIN: Transports = Transports(&[&Plain]);
    const PROTOCOL: Protocol = Protocol::new(0x0F);
    const IS_PORT: u8 = 0x40;
    const TEXT: usize = 4;

    #[derive(Debug)]
    struct Plain;

    /// A port of an initiator device.
    #[must_use]
    pub fn port(device: impl Display, port: u16) -> InitiatorPort {
        InitiatorPort { protocol: PROTOCOL, id: format!("{device}.{port}").into() }
    }

    /// Its TransportID.
    #[must_use]
    pub fn id(port: &InitiatorPort) -> TransportId {
        TransportId::Port(port.clone())
    }

    /// The TransportID of a device.
    #[must_use]
    pub fn device(name: u8) -> TransportId {
        TransportId::Device { protocol: PROTOCOL, name: name.to_string().into() }
    }

    impl Transport for Plain {
        fn protocol(&self) -> Protocol {
            PROTOCOL
        }

        fn read(&self, reader: &mut Reader<'_>) -> Result<TransportId, NotATransportId> {
            let bytes: [u8; LENGTH] = reader.array()?;
            let text = str::from_utf8(&bytes[TEXT..]).map_err(|_| NotATransportId)?;
            let text = text.trim_end_matches('\0');
            Ok(match bytes[0] & IS_PORT {
                0 => TransportId::Device { protocol: PROTOCOL, name: text.into() },
                _ => TransportId::Port(InitiatorPort { protocol: PROTOCOL, id: text.into() }),
            })
        }

        fn write(&self, id: &TransportId) -> Vec<u8> {
            let (format, text) = match id {
                TransportId::Device { name, .. } => (0, name),
                TransportId::Port(port) => (IS_PORT, &port.id),
            };
            let mut bytes = [&[format | PROTOCOL.code(), 0, 0, 0], text.as_bytes()].concat();
            bytes.resize(LENGTH, 0);
            bytes
        }

        fn device_of<'a>(&self, port: &'a InitiatorPort) -> &'a str {
            port.id.split_once('.').map_or(&*port.id, |(device, _)| device)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_id_of_unknown_protocol_is_refused_and_written_without_a_name() {
        let mut reader = Reader::new(&[0x46; 24]);
        assert_eq!(plain::PLAIN.read(&mut reader), Err(NotATransportId));
        let port = InitiatorPort { protocol: Protocol::new(6), id: "x".into() };
        let bytes = plain::PLAIN.write(&port);
        assert_eq!((bytes.len(), bytes[0]), (LENGTH, 6));
        assert!(bytes[1..].iter().all(|byte| *byte == 0));
        assert!(!plain::PLAIN.is_port_of(&port, port.protocol, "x"));
    }
}
