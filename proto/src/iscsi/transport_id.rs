//! How iSCSI names initiator ports to SCSI (RFC 7143, 4.4.2; SPC-4, 7.6.4.6).

use super::name::{IscsiName, Isid};
use crate::reader::Reader;
use crate::scsi::text_id::{self, TextId};
use crate::scsi::transport::{
    InitiatorPort, NotATransportId, Protocol, Transport, TransportId, Transports,
};

/// PROTOCOL IDENTIFIER of iSCSI.
pub const PROTOCOL: Protocol = Protocol::new(0x05);

/// iSCSI, as the SCSI layer sees it.
#[derive(Clone, Copy, Debug)]
pub struct Iscsi;

/// iSCSI and no other protocol.
pub const ISCSI: Transports = Transports(&[&Iscsi]);

const SEPARATOR: &str = ",i,0x";

/// The initiator port of sessions with this ISID: the name of the node, `,i,0x` and the ISID.
#[must_use]
pub fn initiator_port(node: &IscsiName, isid: Isid) -> InitiatorPort {
    let isid = u64::from_be_bytes({
        let [a, b, c, d, e, f] = isid.0;
        [0, 0, a, b, c, d, e, f]
    });
    InitiatorPort { protocol: PROTOCOL, id: format!("{node}{SEPARATOR}{isid:012x}").into() }
}

impl Transport for Iscsi {
    fn protocol(&self) -> Protocol {
        PROTOCOL
    }

    fn read(&self, reader: &mut Reader<'_>) -> Result<TransportId, NotATransportId> {
        match text_id::read(reader, SEPARATOR)? {
            TextId::Device(name) => {
                Ok(TransportId::Device { protocol: PROTOCOL, name: node(name)?.as_str().into() })
            }
            TextId::Port(name, isid) => {
                Ok(TransportId::Port(initiator_port(&node(name)?, hexadecimal(isid)?)))
            }
        }
    }

    fn write(&self, id: &TransportId) -> Vec<u8> {
        text_id::write(id)
    }

    fn device_of<'a>(&self, port: &'a InitiatorPort) -> &'a str {
        port.id.rsplit_once(SEPARATOR).map_or(&*port.id, |(node, _)| node)
    }
}

fn node(text: &str) -> Result<IscsiName, NotATransportId> {
    IscsiName::tolerant(text).map_err(|_| NotATransportId)
}

/// Twelve digits, of either case.
fn hexadecimal(text: &str) -> Result<Isid, NotATransportId> {
    const DIGITS: usize = 12;
    if text.len() != DIGITS || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(NotATransportId);
    }
    let value = u64::from_str_radix(text, 16).map_err(|_| NotATransportId)?;
    let [_, _, isid @ ..] = value.to_be_bytes();
    Ok(Isid(isid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_ids_are_read_or_refused() {
        let parse = |bytes: &[u8]| ISCSI.read(&mut Reader::new(bytes)).ok();
        let name = IscsiName::new("iqn.2001-04.com.example:1").unwrap();
        let isid = Isid([0x80, 0, 0, 0, 0, 0x0A]);
        let own = initiator_port(&name, isid);
        assert_eq!(own.to_string(), "iqn.2001-04.com.example:1,i,0x80000000000a");
        assert_eq!(Iscsi.device_of(&own), name.as_str());
        let node = TransportId::Device { protocol: PROTOCOL, name: name.as_str().into() };
        let port = TransportId::Port(own.clone());
        for id in [&port, &node] {
            let bytes = Iscsi.write(id);
            assert!(bytes.len().is_multiple_of(4) && bytes.len() >= 24);
            assert_eq!(parse(&bytes).as_ref(), Some(id));
            let cut = bytes.len() - 1;
            assert_eq!(parse(&bytes[..cut]), None);
        }
        let text = |format: u8, text: &str| {
            let mut bytes = vec![format, 0, 0, 0];
            bytes.extend(text.bytes());
            bytes.resize((bytes.len() + 1).next_multiple_of(4).max(24), 0);
            bytes[3] = bytes.len() as u8 - 4;
            bytes
        };
        let upper = text(0x45, "IQN.2001-04.com.example:1,i,0x80000000000A");
        assert_eq!(parse(&upper), Some(port));
        // As at the login, a name need not be well formed.
        let Some(TransportId::Port(odd)) = parse(&text(0x45, "me,i,0x80000000000a")) else {
            panic!("refused")
        };
        assert_eq!(odd, initiator_port(&IscsiName::tolerant("me").unwrap(), isid));
        let odd = TransportId::Port(odd);
        assert_eq!(parse(&Iscsi.write(&odd)), Some(odd));
        for wrong in [
            text(0x45, "iqn.2001-04.com.example:1"),
            text(0x45, "iqn.2001-04.com.example:1,i,0x"),
            text(0x45, "iqn.2001-04.com.example:1,i,0x8000000000"),
            text(0x45, "iqn.2001-04.com.example:1,i,0x+0000000000a"),
            text(0x45, "a b,i,0x80000000000a"),
            text(0x45, "a,i,0x1,i,0x80000000000a"),
            text(0x05, "a\u{7f}"),
            text(0x05, ""),
            text(0x85, "iqn.2001-04.com.example:1,i,0x80000000000a"),
            text(0x40, "iqn.2001-04.com.example:1,i,0x80000000000a"),
            [&[0x05, 0, 0, 20][..], &[b'x'; 20]].concat(),
            vec![0x05, 0, 0, 4, 0, 0, 0, 0],
        ] {
            assert_eq!(parse(&wrong), None, "{wrong:02x?}");
        }
    }
}
