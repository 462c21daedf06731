//! Where packets come from and go to.

use core::net::SocketAddr;

use bytes::Bytes;

use super::ecn::Ecn;

/// A link of this machine, by the number its driver gave it: a socket, or a network interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u16);

/// The address of a peer on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// HS/eth: a MAC address.
    Ethernet([u8; 6]),
    /// HS/IP: an address and a UDP port.
    Ip(SocketAddr),
}

impl Address {
    /// Every station of an Ethernet link.
    pub const BROADCAST: Self = Self::Ethernet([0xff; 6]);

    /// Its bytes for a cookie (spec, 6.2): the kind, then the address.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Ethernet(mac) => {
                bytes.push(1);
                bytes.extend_from_slice(&mac);
            }
            Self::Ip(SocketAddr::V4(at)) => {
                bytes.push(4);
                bytes.extend_from_slice(&at.ip().octets());
                bytes.extend_from_slice(&at.port().to_be_bytes());
            }
            Self::Ip(SocketAddr::V6(at)) => {
                bytes.push(6);
                bytes.extend_from_slice(&at.ip().octets());
                bytes.extend_from_slice(&at.port().to_be_bytes());
            }
        }
        bytes
    }
}

/// An address on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The link.
    pub link: LinkId,
    /// The address of the peer there.
    pub address: Address,
}

/// Where a machine puts the packets that are to be sent.
pub trait Outbox {
    /// Whether any packet is taken now.
    fn has_room(&self) -> bool;

    /// Whether data are taken that go by this link.
    fn takes(&self, link: LinkId) -> bool;

    /// Takes the packet that `write` appends to a buffer, to be sent with this codepoint if its link has any. If there is no room
    /// by its link it is lost, as on the way.
    fn push(&mut self, to: Endpoint, ecn: Ecn, write: &mut dyn FnMut(&mut Vec<u8>));
}

/// Takes one packet.
#[derive(Debug, Default)]
pub(super) struct OnePacket(pub(super) Option<Transmit>);

impl Outbox for OnePacket {
    fn has_room(&self) -> bool {
        self.0.is_none()
    }

    fn takes(&self, _link: LinkId) -> bool {
        true
    }

    fn push(&mut self, to: Endpoint, ecn: Ecn, write: &mut dyn FnMut(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.0 = Some(Transmit { to, ecn, bytes: bytes.into() });
    }
}

/// A packet to be sent: the payload of a frame of EtherType 0x889A, or of a UDP datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where it goes.
    pub to: Endpoint,
    /// What its IP header says about ECN, if it has one.
    pub ecn: Ecn,
    /// Its bytes.
    pub bytes: Bytes,
}

impl Transmit {
    /// One without ECN.
    pub(super) const fn new(to: Endpoint, bytes: Bytes) -> Self {
        Self { to, ecn: Ecn::NotEct, bytes }
    }

    /// Puts it into an outbox.
    pub(super) fn push(&self, outbox: &mut dyn Outbox) {
        outbox.push(self.to, self.ecn, &mut |buffer| buffer.extend_from_slice(&self.bytes));
    }
}
