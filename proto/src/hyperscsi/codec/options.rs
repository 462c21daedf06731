//! The options of set-up and of re-authentication (spec, 6.4 and 10).

use core::num::NonZeroU16;
use core::time::Duration;

use super::setup::TOKEN_LEN;
use crate::hyperscsi::aead::{Aead, UNANNOUNCED, choose};
use crate::hyperscsi::command::{Handle, Level};
use crate::hyperscsi::compression;
use crate::hyperscsi::config::{Config, PACKET_MIN, PATHS_MAX};
use crate::reader::Reader;

const MUST_UNDERSTAND: u16 = 0x8000;
const CRC32C: u8 = 1;
const ANNOUNCE: u8 = 1;
const LEVEL: u16 = 1;
const DATA_MAX: u16 = 6;
const SLOTS: u16 = 7;
const CREDIT: u16 = 8;
const COMPRESSION: u16 = 9;
const CIPHERS: u16 = 10;
const PACKET_MAX: u16 = 12;
const KEEP_ALIVE: u16 = 13;
const PATHS: u16 = 16;
const CHECKSUM: u16 = 17;
const TOKEN: u16 = 19;
const ACK_DELAY: u16 = 20;
const PORT: u16 = 21;
const DEVICES: u16 = 22;
const WINDOW: u16 = 23;
const ECN: u16 = 24;
const ECN_COUNTS: u8 = 1;
const DEVICE_LEN: usize = 4;
const READ_ONLY: u8 = 1;

/// What one side announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::hyperscsi) struct Options {
    pub(in crate::hyperscsi) data_max: u32,
    pub(in crate::hyperscsi) slots: u16,
    pub(in crate::hyperscsi) packet_max: u16,
    pub(in crate::hyperscsi) keep_alive: Duration,
    pub(in crate::hyperscsi) ack_delay: Duration,
    /// By the server.
    pub(in crate::hyperscsi) credit: Option<u64>,
    /// By the server.
    pub(in crate::hyperscsi) token: Option<[u8; TOKEN_LEN]>,
    /// The initiator port, by the client.
    pub(in crate::hyperscsi) port: Option<u64>,
    /// 1 if it is not announced.
    pub(in crate::hyperscsi) paths: u8,
    /// A bit for each way of compressing data; none if it is not announced.
    pub(in crate::hyperscsi) compression: u16,
    /// The ciphers of packets, the preferred one first; of two ends the one that they choose.
    pub(in crate::hyperscsi) ciphers: Vec<Aead>,
    /// The lowest level that the client takes; encrypt if it is not announced.
    pub(in crate::hyperscsi) least: Level,
    /// Data have checksums.
    pub(in crate::hyperscsi) checksum: bool,
    /// Packets of a window that is acknowledged as a whole; none if it is not announced.
    pub(in crate::hyperscsi) window: Option<NonZeroU16>,
    /// Acknowledgements count what packets came with.
    pub(in crate::hyperscsi) ecn: bool,
    /// Devices that change, by the server at re-authentication.
    pub(in crate::hyperscsi) devices: Vec<DeviceChange>,
}

/// How a device is from the next epoch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hyperscsi) struct DeviceChange {
    pub(in crate::hyperscsi) handle: Handle,
    pub(in crate::hyperscsi) level: Level,
    pub(in crate::hyperscsi) read_only: bool,
}

impl DeviceChange {
    fn emit(self) -> [u8; 4] {
        let [high, low] = self.handle.0.to_be_bytes();
        [high, low, self.level.number(), u8::from(self.read_only) * READ_ONLY]
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        Some(Self {
            handle: Handle(reader.u16().ok()?),
            level: Level::of(reader.u8().ok()?)?,
            read_only: reader.u8().ok()? & READ_ONLY != 0,
        })
    }
}

impl Options {
    /// Those of a configuration, as the client announces them.
    pub(in crate::hyperscsi) fn of(config: &Config) -> Self {
        Self {
            data_max: config.data_max,
            slots: config.slots.clamp(1, 256),
            packet_max: config.packet_max.max(PACKET_MIN),
            keep_alive: config.keep_alive,
            ack_delay: config.timing.ack_delay,
            credit: None,
            token: None,
            port: None,
            paths: config.paths.clamp(1, PATHS_MAX),
            compression: compression::bits(config.codecs),
            ciphers: config.ciphers.iter().map(|(aead, _)| *aead).collect(),
            least: config.least,
            checksum: config.checksum,
            window: config.window,
            ecn: config.ecn,
            devices: Vec::new(),
        }
    }

    /// What counts if the peer has announced these: of each the minimum, and the peer's own delay.
    pub(in crate::hyperscsi) fn agreed(&self, peer: &Self, is_server: bool) -> Self {
        let (server, client) = if is_server { (self, peer) } else { (peer, self) };
        Self {
            data_max: self.data_max.min(peer.data_max),
            slots: self.slots.min(peer.slots),
            packet_max: self.packet_max.min(peer.packet_max),
            keep_alive: self.keep_alive.min(peer.keep_alive),
            ack_delay: peer.ack_delay,
            credit: self.credit.or(peer.credit),
            token: self.token.or(peer.token),
            port: self.port.or(peer.port),
            paths: self.paths.min(peer.paths),
            compression: self.compression & peer.compression,
            ciphers: choose(&server.ciphers, &client.ciphers).into_iter().collect(),
            least: client.least,
            checksum: self.checksum && peer.checksum,
            window: self.window.zip(peer.window).map(|(own, theirs)| own.min(theirs)),
            ecn: self.ecn && peer.ecn,
            devices: server.devices.clone(),
        }
    }

    /// These, with what a re-authentication may change as it is in `next` (spec, 10).
    pub(in crate::hyperscsi) fn changed_to(&self, next: &Self) -> Self {
        Self {
            // What was begun by the larger number is still under way.
            data_max: self.data_max.max(next.data_max),
            slots: next.slots,
            keep_alive: next.keep_alive,
            compression: next.compression,
            ciphers: next.ciphers.clone(),
            checksum: next.checksum,
            ..self.clone()
        }
    }

    pub(in crate::hyperscsi) fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |number: u16, value: &[u8]| {
            out.extend_from_slice(&number.to_be_bytes());
            out.extend_from_slice(&[ANNOUNCE, 0]);
            out.extend_from_slice(&(value.len() as u16).to_be_bytes());
            out.extend_from_slice(value);
        };
        let ms = u32::try_from(self.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let us = u32::try_from(self.ack_delay.as_micros()).unwrap_or(u32::MAX);
        put(DATA_MAX, &self.data_max.to_be_bytes());
        put(SLOTS, &self.slots.to_be_bytes());
        put(PACKET_MAX, &self.packet_max.to_be_bytes());
        put(KEEP_ALIVE, &ms.to_be_bytes());
        put(ACK_DELAY, &us.to_be_bytes());
        if let Some(credit) = self.credit {
            put(CREDIT, &credit.to_be_bytes());
        }
        if let Some(token) = self.token {
            put(TOKEN, &token);
        }
        if let Some(port) = self.port {
            put(PORT, &port.to_be_bytes());
        }
        if self.paths > 1 {
            put(PATHS, &[self.paths]);
        }
        if self.compression != 0 {
            put(COMPRESSION, &self.compression.to_be_bytes());
        }
        if self.least != Level::default() {
            put(LEVEL, &[self.least.number()]);
        }
        if self.checksum {
            put(CHECKSUM, &[CRC32C]);
        }
        if let Some(window) = self.window {
            put(WINDOW, &window.get().to_be_bytes());
        }
        if self.ecn {
            put(ECN, &[ECN_COUNTS]);
        }
        if !self.devices.is_empty() {
            let devices: Vec<_> = self.devices.iter().flat_map(|one| one.emit()).collect();
            put(DEVICES, &devices);
        }
        if self.ciphers != UNANNOUNCED {
            let numbers: Vec<_> = self.ciphers.iter().map(|aead| aead.number()).collect();
            put(CIPHERS, &numbers);
        }
        out
    }

    /// The options of a peer; `None` if they cannot be used.
    pub(in crate::hyperscsi) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (mut data_max, mut slots, mut packet_max) = (None, None, None);
        let (mut keep_alive, mut ack_delay) = (None, None);
        let (mut credit, mut token, mut port) = (None, None, None);
        let (mut paths, mut compression, mut ciphers) = (1, 0, UNANNOUNCED.to_vec());
        let (mut least, mut checksum, mut devices) = (Level::default(), false, Vec::new());
        let (mut window, mut ecn) = (None, false);
        while !reader.rest().is_empty() {
            let number = reader.u16().ok()?;
            reader.take(2).ok()?;
            let len = usize::from(reader.u16().ok()?);
            let mut value = Reader::new(reader.take(len).ok()?);
            match number & !MUST_UNDERSTAND {
                DATA_MAX => data_max = Some(value.u32().ok()?),
                SLOTS => slots = Some(value.u16().ok()?),
                PACKET_MAX => packet_max = Some(value.u16().ok()?),
                KEEP_ALIVE => keep_alive = Some(value.u32().ok()?),
                ACK_DELAY => ack_delay = Some(value.u32().ok()?),
                CREDIT => credit = Some(value.u64().ok()?),
                TOKEN => token = Some(value.array().ok()?),
                PORT => port = Some(value.u64().ok()?),
                PATHS => paths = value.u8().ok()?,
                COMPRESSION => compression = value.u16().ok()?,
                LEVEL => least = Level::of(value.u8().ok()?)?,
                CHECKSUM => checksum = value.u8().ok()? & CRC32C != 0,
                CIPHERS => {
                    let numbers = value.take(len).ok()?;
                    ciphers = numbers.iter().filter_map(|number| Aead::of(*number)).collect();
                }
                WINDOW => window = Some(NonZeroU16::new(value.u16().ok()?)?),
                ECN => ecn = value.u8().ok()? & ECN_COUNTS != 0,
                DEVICES => {
                    let all = value.take(len).ok()?.chunks(DEVICE_LEN);
                    devices = all.map(DeviceChange::parse).collect::<Option<_>>()?;
                }
                _ if number & MUST_UNDERSTAND != 0 => return None,
                _ => continue,
            }
            if !value.rest().is_empty() {
                return None;
            }
        }
        Some(Self {
            data_max: data_max?,
            slots: slots.filter(|slots| (1..=256).contains(slots))?,
            packet_max: packet_max.filter(|max| *max >= PACKET_MIN)?,
            keep_alive: Duration::from_millis(u64::from(keep_alive.filter(|ms| *ms >= 100)?)),
            ack_delay: Duration::from_micros(u64::from(ack_delay?)),
            credit,
            token,
            port,
            paths: Some(paths).filter(|paths| *paths > 0)?,
            compression,
            ciphers,
            least,
            checksum,
            window,
            ecn,
            devices,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            data_max: 1 << 19,
            slots: 64,
            packet_max: 1452,
            keep_alive: Duration::from_secs(10),
            ack_delay: Duration::from_millis(5),
            credit: Some(1 << 25),
            token: Some([7; TOKEN_LEN]),
            port: Some(1 << 40),
            paths: 4,
            compression: 2,
            ciphers: vec![Aead::ChaCha20Poly1305, Aead::Aes256Gcm],
            least: Level::Integrity,
            checksum: true,
            window: NonZeroU16::new(64),
            ecn: true,
            devices: vec![DeviceChange {
                handle: Handle(0x102),
                level: Level::Integrity,
                read_only: true,
            }],
        }
    }

    #[test]
    fn options_parsed_after_emitting_are_the_same() {
        assert_eq!(Options::parse(&options().emit()), Some(options()));
    }

    /// Spec, 5.6: an end that knows no other announces no cipher, and others may come.
    #[test]
    fn ciphers_are_those_that_are_known() {
        let mut bytes = options().emit();
        let value = [0, 10, 1, 0, 0, 2, 2, 1];
        assert!(bytes.ends_with(&value));
        bytes.truncate(bytes.len() - value.len());
        let parsed = Options::parse(&bytes).unwrap();
        assert_eq!(parsed.ciphers, UNANNOUNCED);
        assert_eq!(parsed.emit(), bytes);
        bytes.extend_from_slice(&[0, 10, 1, 0, 0, 2, 9, 2]);
        assert_eq!(Options::parse(&bytes).unwrap().ciphers, [Aead::ChaCha20Poly1305]);
    }

    /// Spec, 6.4.
    #[test]
    fn devices_that_are_cut_or_of_no_level_are_refused() {
        let bytes = options().emit();
        let at = bytes.windows(2).position(|two| two == [0, 22]).unwrap();
        assert_eq!(bytes[at..at + 10], [0, 22, 1, 0, 0, 4, 1, 2, 1, 1]);
        let mut unknown = bytes.clone();
        unknown[at + 8] = 3;
        assert_eq!(Options::parse(&unknown), None);
        let mut cut = bytes;
        cut[at + 5] = 3;
        cut.remove(at + 9);
        assert_eq!(Options::parse(&cut), None);
    }

    #[test]
    fn unknown_option_is_ignored_unless_it_must_be_understood() {
        let mut bytes = options().emit();
        bytes.extend_from_slice(&[0x10, 0x01, 1, 0, 0, 1, 9]);
        assert_eq!(Options::parse(&bytes), Some(options()));
        bytes.extend_from_slice(&[0x90, 0x01, 1, 0, 0, 1, 9]);
        assert_eq!(Options::parse(&bytes), None);
    }
}
