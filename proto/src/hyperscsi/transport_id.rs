//! How HyperSCSI names initiator ports to SCSI (SPC-4, 7.6.4).
//!
//! SPC-4 gives HyperSCSI no identifier, so that its ports are of no specific protocol. A port is called after the client,
//! `,p,0x` and sixteen digits, which the client chooses: it has as many ports as it wants to be told apart.

use crate::reader::Reader;
use crate::scsi::text_id::{self, TextId};
use crate::scsi::transport::{InitiatorPort, NotATransportId, Protocol, Transport, TransportId};

/// PROTOCOL IDENTIFIER: no specific protocol.
pub const PROTOCOL: Protocol = Protocol::new(0x0F);

/// HyperSCSI, as the SCSI layer sees it.
#[derive(Clone, Copy, Debug)]
pub struct HyperScsi;

const SEPARATOR: &str = ",p,0x";
const DIGITS: usize = 16;

/// The initiator port of this number that belongs to the device `client`.
#[must_use]
pub fn initiator_port(client: &str, port: u64) -> InitiatorPort {
    InitiatorPort { protocol: PROTOCOL, id: format!("{client}{SEPARATOR}{port:016x}").into() }
}

impl Transport for HyperScsi {
    fn protocol(&self) -> Protocol {
        PROTOCOL
    }

    fn read(&self, reader: &mut Reader<'_>) -> Result<TransportId, NotATransportId> {
        match text_id::read(reader, SEPARATOR)? {
            TextId::Device(name) if is_name(name) => {
                Ok(TransportId::Device { protocol: PROTOCOL, name: name.into() })
            }
            TextId::Port(name, port) => {
                let is_number =
                    port.len() == DIGITS && port.bytes().all(|digit| digit.is_ascii_hexdigit());
                let port =
                    u64::from_str_radix(port, 16).ok().filter(|_| is_number && is_name(name));
                Ok(TransportId::Port(initiator_port(name, port.ok_or(NotATransportId)?)))
            }
            TextId::Device(_) => Err(NotATransportId),
        }
    }

    fn write(&self, id: &TransportId) -> Vec<u8> {
        text_id::write(id)
    }

    fn device_of<'a>(&self, port: &'a InitiatorPort) -> &'a str {
        port.id.rsplit_once(SEPARATOR).map_or(&*port.id, |(client, _)| client)
    }
}

/// Whether a client can be called so: by the text of its key, or what stands for that.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Option<TransportId> {
        HyperScsi.read(&mut Reader::new(bytes)).ok()
    }

    #[test]
    fn transport_ids_are_read_as_they_are_written() {
        let port = initiator_port("lhpub1-abc", 0x1234);
        assert_eq!(port.to_string(), "lhpub1-abc,p,0x0000000000001234");
        assert_eq!(HyperScsi.device_of(&port), "lhpub1-abc");
        let device = TransportId::Device { protocol: PROTOCOL, name: "lhpub1-abc".into() };
        for id in [TransportId::Port(port), device] {
            let bytes = HyperScsi.write(&id);
            assert!(bytes.len().is_multiple_of(4) && bytes.len() >= 24);
            assert_eq!(parse(&bytes), Some(id));
            assert_eq!(parse(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn transport_id_of_another_form_is_refused() {
        let with = |format: u8, text: &str| {
            let mut bytes = vec![format, 0, 0, 0];
            bytes.extend(text.bytes());
            bytes.resize((bytes.len() + 1).next_multiple_of(4).max(24), 0);
            bytes[3] = bytes.len() as u8 - 4;
            bytes
        };
        assert!(parse(&with(0x4F, "a,p,0x0000000000000001")).is_some());
        for wrong in [
            with(0x4F, "a"),
            with(0x4F, "a,p,0x01"),
            with(0x4F, "a,p,0x+000000000000001"),
            with(0x4F, ",p,0x0000000000000001"),
            with(0x4F, "a b,p,0x0000000000000001"),
            with(0x0F, ""),
            with(0x8F, "a,p,0x0000000000000001"),
            [&[0x4F, 0, 0, 20][..], &[b'x'; 20]].concat(),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong:02x?}");
        }
    }
}
