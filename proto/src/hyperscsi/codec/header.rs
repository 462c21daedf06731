//! The header of every packet (spec, 2).

use crate::hyperscsi::command::{Handle, Level};
use crate::reader::Reader;

/// Bytes of the header.
pub(in crate::hyperscsi) const HEADER_LEN: usize = 24;

const VERSION: u8 = 2;
const FROM_SERVER: u8 = 0x80;
const SLOT_MAX: u16 = 0x1ff;
const FRAG_MASK: u32 = 0x3ff;

/// How a packet is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::hyperscsi) enum Sec {
    None,
    Integrity,
    Encrypt,
    Handshake,
}

impl Sec {
    /// That of a device's packets (spec, 5.3).
    pub(in crate::hyperscsi) const fn of(level: Level) -> Self {
        match level {
            Level::None => Self::None,
            Level::Integrity => Self::Integrity,
            Level::Encrypt => Self::Encrypt,
        }
    }
}

macro_rules! opcodes {
    ($($name:ident = $code:literal),* $(,)?) => {
        /// What a packet is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(in crate::hyperscsi) enum Opcode { $($name),* }

        impl Opcode {
            #[cfg(test)]
            pub(in crate::hyperscsi) const ALL: &[Self] = &[$(Self::$name),*];

            const fn code(self) -> u8 {
                match self { $(Self::$name => $code),* }
            }

            const fn of(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}
opcodes! {
    Request = 0x00,
    Reply = 0x01,
    Abort = 0x04,
    Discovery = 0x10,
    AdnRequest = 0x11,
    AdnReply = 0x12,
    Disconnect = 0x13,
    Offer = 0x14,
    Cookie = 0x15,
    Reset = 0x16,
    AckQuery = 0x20,
    AckReply = 0x21,
    AddrReport = 0x30,
    AddrReply = 0x31,
    LocalRequest = 0x32,
    LocalReply = 0x33,
}

/// The fields of a header; reserved bits of the flags are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hyperscsi) struct Header {
    pub(in crate::hyperscsi) sec: Sec,
    /// Two bits.
    pub(in crate::hyperscsi) epoch: u8,
    /// Nine bits.
    pub(in crate::hyperscsi) slot: u16,
    pub(in crate::hyperscsi) last: bool,
    /// Ten bits.
    pub(in crate::hyperscsi) frag: u16,
    pub(in crate::hyperscsi) from_server: bool,
    pub(in crate::hyperscsi) opcode: Opcode,
    pub(in crate::hyperscsi) ack_now: bool,
    pub(in crate::hyperscsi) again: bool,
    pub(in crate::hyperscsi) length: u16,
    pub(in crate::hyperscsi) cid: u32,
    pub(in crate::hyperscsi) path: u8,
    pub(in crate::hyperscsi) priority: u8,
    pub(in crate::hyperscsi) device: Handle,
    pub(in crate::hyperscsi) number: u64,
}

impl Header {
    /// A header of the connection itself, without flags.
    pub(in crate::hyperscsi) const fn new(opcode: Opcode, sec: Sec, from_server: bool) -> Self {
        Self {
            sec,
            epoch: 0,
            slot: 0,
            last: false,
            frag: 0,
            from_server,
            opcode,
            ack_now: false,
            again: false,
            length: 0,
            cid: 0,
            path: 0,
            priority: 0,
            device: Handle::CONNECTION,
            number: 0,
        }
    }

    /// The header in front of `packet`, if it is one of this version and all of its body is there.
    pub(in crate::hyperscsi) fn parse(packet: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(packet);
        let first = reader.u24().ok()?;
        if reader.u8().ok()? != VERSION {
            return None;
        }
        let code = reader.u8().ok()?;
        let flags = reader.u8().ok()?;
        let header = Self {
            sec: match first >> 22 {
                0 => Sec::None,
                1 => Sec::Integrity,
                2 => Sec::Encrypt,
                _ => Sec::Handshake,
            },
            epoch: (first >> 20 & 3) as u8,
            slot: (first >> 11) as u16 & SLOT_MAX,
            last: first & 1 << 10 != 0,
            frag: (first & FRAG_MASK) as u16,
            from_server: code & FROM_SERVER != 0,
            opcode: Opcode::of(code & !FROM_SERVER)?,
            ack_now: flags & 0x80 != 0,
            again: flags & 0x40 != 0,
            length: reader.u16().ok()?,
            cid: reader.u32().ok()?,
            path: reader.u8().ok()?,
            priority: reader.u8().ok()?,
            device: Handle(reader.u16().ok()?),
            number: reader.u64().ok()?,
        };
        (usize::from(header.length) <= reader.rest().len()).then_some(header)
    }

    /// Its bytes.
    pub(in crate::hyperscsi) fn emit(&self) -> [u8; HEADER_LEN] {
        let sec = match self.sec {
            Sec::None => 0,
            Sec::Integrity => 1,
            Sec::Encrypt => 2,
            Sec::Handshake => 3,
        };
        let first = sec << 22
            | u32::from(self.epoch & 3) << 20
            | u32::from(self.slot & SLOT_MAX) << 11
            | u32::from(self.last) << 10
            | u32::from(self.frag) & FRAG_MASK;
        let mut bytes = [0; HEADER_LEN];
        bytes[..3].copy_from_slice(&first.to_be_bytes()[1..]);
        bytes[3] = VERSION;
        bytes[4] = self.opcode.code() | if self.from_server { FROM_SERVER } else { 0 };
        bytes[5] = u8::from(self.ack_now) << 7 | u8::from(self.again) << 6;
        bytes[6..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.cid.to_be_bytes());
        bytes[12] = self.path;
        bytes[13] = self.priority;
        bytes[14..16].copy_from_slice(&self.device.0.to_be_bytes());
        bytes[16..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    /// A packet of section 3 with this body, unprotected.
    pub(in crate::hyperscsi) fn with_body(mut self, body: &[u8]) -> Vec<u8> {
        self.length = u16::try_from(body.len()).expect("set-up packets are short");
        let mut packet = self.emit().to_vec();
        packet.extend_from_slice(body);
        packet
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn header_of_the_specification_has_its_bytes() {
        let header = Header {
            epoch: 1,
            slot: 5,
            last: true,
            frag: 3,
            ack_now: true,
            length: 100,
            cid: 0x0102_0304,
            priority: 7,
            device: Handle(2),
            number: 9,
            ..Header::new(Opcode::Request, Sec::Encrypt, false)
        };
        let bytes =
            [0x90, 0x2c, 0x03, 2, 0, 0x80, 0, 100, 1, 2, 3, 4, 0, 7, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(header.emit(), bytes);
        assert_eq!(Header::parse(&bytes), None, "the body is missing");
        let mut whole = bytes.to_vec();
        whole.resize(124, 0);
        assert_eq!(Header::parse(&whole), Some(header));
    }

    proptest! {
        #[test]
        fn header_emitted_after_parsing_is_the_same(mut bytes in proptest::array::uniform24(any::<u8>()), at in 0..Opcode::ALL.len()) {
            bytes[3] = VERSION;
            bytes[4] = bytes[4] & FROM_SERVER | Opcode::ALL[at].code();
            bytes[5] &= 0xc0;
            bytes[6..8].fill(0);
            let header = Header::parse(&bytes).expect("valid");
            prop_assert_eq!(header.emit(), bytes);
        }

        #[test]
        fn header_parser_takes_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Header::parse(&bytes);
        }
    }
}
