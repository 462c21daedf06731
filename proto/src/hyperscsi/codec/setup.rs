//! START, and the device table (spec, 6.3 and 11).

use bytes::Bytes;

use super::header::{HEADER_LEN, Header, Opcode, Sec};
use crate::hyperscsi::command::{Device, Handle, Level};
use crate::hyperscsi::config::PACKET_MIN;
use crate::reader::Reader;

/// Bytes of a cookie: a period and a hash.
pub(in crate::hyperscsi) const COOKIE_LEN: usize = 20;

/// Bytes of a MAC under the site key.
pub(in crate::hyperscsi) const MAC_LEN: usize = 16;

/// Bytes of a reset token.
pub(in crate::hyperscsi) const TOKEN_LEN: usize = 16;

/// Bytes of Noise message 1: the ephemeral key and a tag.
const FIRST_LEN: usize = 48;

const FORM: [u8; 4] = [2, 0, 0, 0];

/// The body of START.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hyperscsi) struct Start {
    pub(in crate::hyperscsi) cid: u32,
    pub(in crate::hyperscsi) cookie: [u8; COOKIE_LEN],
    pub(in crate::hyperscsi) noise: [u8; FIRST_LEN],
}

impl Start {
    /// The packet, as long as an answer may be.
    pub(in crate::hyperscsi) fn packet(&self) -> Vec<u8> {
        let mut body = FORM.to_vec();
        body.extend_from_slice(&self.cid.to_be_bytes());
        body.extend_from_slice(&self.cookie);
        body.extend_from_slice(&self.noise);
        body.resize(usize::from(PACKET_MIN) - HEADER_LEN, 0);
        Header::new(Opcode::Discovery, Sec::Handshake, false).with_body(&body)
    }

    /// The body with these bytes, if it is one.
    pub(in crate::hyperscsi) fn parse(body: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        if reader.array().ok()? != FORM || body.len() + HEADER_LEN < usize::from(PACKET_MIN) {
            return None;
        }
        let cid = reader.u32().ok().filter(|cid| *cid != 0)?;
        Some(Self { cid, cookie: reader.array().ok()?, noise: reader.array().ok()? })
    }

    /// The client's ephemeral key.
    pub(in crate::hyperscsi) fn ephemeral(&self) -> &[u8] {
        &self.noise[..32]
    }
}

const DEVICES: u16 = 1;
const DEVICE: u16 = 2;
const NOT_UNDERSTOOD: u16 = 3;
const READ_ONLY: u8 = 1;

/// The request for the device table.
pub(in crate::hyperscsi) fn devices_request() -> Bytes {
    Bytes::from_static(&[0, DEVICES as u8, 0, 0])
}

/// The reply to a management request that was not understood.
pub(in crate::hyperscsi) fn not_understood() -> Bytes {
    Bytes::from_static(&[0, NOT_UNDERSTOOD as u8, 0, 0])
}

/// The device table. Names beyond 255 bytes are left out with their devices.
pub(in crate::hyperscsi) fn devices_reply(devices: &[Device]) -> Bytes {
    let mut out = Vec::new();
    for device in devices.iter().filter(|device| device.name.len() <= 255) {
        out.extend_from_slice(&DEVICE.to_be_bytes());
        out.extend_from_slice(&(4 + device.name.len() as u16).to_be_bytes());
        out.extend_from_slice(&device.handle.0.to_be_bytes());
        out.push(device.level.number());
        out.push(if device.read_only { READ_ONLY } else { 0 });
        out.extend_from_slice(device.name.as_bytes());
    }
    if out.is_empty() {
        // A message has at least one byte: no device.
        out.extend_from_slice(&[0, DEVICES as u8, 0, 0]);
    }
    out.into()
}

/// The devices in a table; entries of other types are ignored.
pub(in crate::hyperscsi) fn read_devices(bytes: &[u8]) -> Option<Vec<Device>> {
    let mut reader = Reader::new(bytes);
    let mut devices = Vec::new();
    while !reader.rest().is_empty() {
        let kind = reader.u16().ok()?;
        let len = usize::from(reader.u16().ok()?);
        let mut value = Reader::new(reader.take(len).ok()?);
        if kind != DEVICE {
            continue;
        }
        let handle = Handle(value.u16().ok()?);
        let level = Level::of(value.u8().ok()?)?;
        let read_only = value.u8().ok()? & READ_ONLY != 0;
        let name = core::str::from_utf8(value.rest()).ok()?.into();
        devices.push(Device { handle, name, level, read_only });
    }
    Some(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_parsed_after_emitting_is_the_same() {
        let start = Start { cid: 5, cookie: [1; COOKIE_LEN], noise: [2; FIRST_LEN] };
        let packet = start.packet();
        assert_eq!(packet.len(), usize::from(PACKET_MIN));
        assert_eq!(Start::parse(&packet[HEADER_LEN..]), Some(start));
        assert_eq!(Start::parse(&packet[HEADER_LEN..packet.len() - 1]), None, "it is not padded");
    }

    #[test]
    fn device_table_read_after_writing_is_the_same() {
        let device = |handle, name: &str, level, read_only| Device {
            handle: Handle(handle),
            name: name.into(),
            level,
            read_only,
        };
        let devices =
            [device(0, "disk", Level::Encrypt, false), device(9, "cd", Level::Integrity, true)];
        assert_eq!(read_devices(&devices_reply(&devices)), Some(devices.to_vec()));
        assert_eq!(read_devices(&devices_reply(&[])), Some(Vec::new()));
    }
}
