//! The record, as bytes (`docs/spec/cluster.md`).

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crc_fast::crc32_iscsi as crc32c;

use crate::reader::{Reader, Truncated};

const MAGIC: [u8; 4] = *b"LHGW";
const VERSION: u16 = 1;
/// One with the address of a holder.
const VERSION_WITH_ADDRESS: u16 = 2;
const CHECKSUM: usize = 4;

/// Where in its bytes the version of a record stands, in every form.
const VERSION_AT: usize = 6;

/// The longest address.
const ADDRESS_MAX: usize = 255;

/// No number gets as far by counting. The next one is one that can be counted on from.
const NUMBER_MAX: u64 = 1 << 62;

/// The longest name of a gateway.
pub const GATEWAY_MAX: usize = 64;

/// The most units that a record has something of.
pub const UNITS_MAX: usize = 4096;

/// The longest name of a unit: an iSCSI name has 223 bytes, and its number follows.
const UNIT_NAME_MAX: usize = 255;

/// The longest record that is read.
pub const RECORD_MAX: usize = 16 << 20;

/// The name of a gateway, which no other one of the cluster has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GatewayName(String);

/// A text that names no gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a gateway has a name of 1 to {GATEWAY_MAX} letters, digits, dots and hyphens, which begins with a letter or a digit"
)]
pub struct NotGateway;

impl FromStr for GatewayName {
    type Err = NotGateway;

    fn from_str(text: &str) -> Result<Self, NotGateway> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
        // The program that fences gets it as an argument, and must not take it for an option.
        let begins = text.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_name = text.len() <= GATEWAY_MAX && begins && text.bytes().all(fits);
        if is_name { Ok(Self(text.to_owned())) } else { Err(NotGateway) }
    }
}

impl fmt::Display for GatewayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl GatewayName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One life of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub gateway: GatewayName,
    /// A random number that it has chosen when it started.
    pub incarnation: u64,
}

/// What the gateways of a cluster share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Counts all changes of the record.
    pub version: u64,
    /// Counts those who have held the lease. It never goes back.
    pub epoch: u64,
    /// Counts what holders have written: the sign of life of the present one.
    pub renewals: u64,
    /// How long the lease lasts after a sign of life.
    pub lease: Duration,
    /// Who may use the media; nobody if `None`.
    pub holder: Option<Holder>,
    /// By which address the holder comes to the media, where the storage can shut that out.
    pub address: Option<String>,
    /// Who has given the lease back: another one comes first.
    pub left_by: Option<GatewayName>,
    /// Who is to have it next.
    pub wanted_by: Option<GatewayName>,
    /// What is kept of each unit: its persistent reservations.
    pub units: BTreeMap<String, Vec<u8>>,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// They do not begin as one.
    #[error("this is no record of a cluster")]
    Magic,
    /// A later release wrote them.
    #[error("records of version {0} are not known to this release")]
    Version(u16),
    /// They are damaged.
    #[error("the record of the cluster is damaged: its checksum is wrong")]
    Checksum,
    /// They end too early.
    #[error("the record of the cluster ends {} bytes short", .0.missing)]
    Truncated(#[from] Truncated),
    /// This part makes no sense.
    #[error("the {0} in the record of the cluster makes no sense")]
    Content(&'static str),
}

impl Record {
    /// Its bytes: a record has exactly one image.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let form = if self.address.is_some() { VERSION_WITH_ADDRESS } else { VERSION };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(form.to_be_bytes());
        for number in [self.version, self.epoch, self.renewals] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend((self.lease.as_millis() as u32).to_be_bytes());
        let incarnation = self.holder.as_ref().map_or(0, |holder| holder.incarnation);
        bytes.extend(incarnation.to_be_bytes());
        let holder = self.holder.as_ref().map(|holder| &holder.gateway);
        for name in [holder, self.left_by.as_ref(), self.wanted_by.as_ref()] {
            let name = name.map_or("", GatewayName::as_str);
            bytes.push(name.len() as u8);
            bytes.extend(name.as_bytes());
        }
        if let Some(address) = &self.address {
            bytes.push(address.len() as u8);
            bytes.extend(address.as_bytes());
        }
        bytes.extend((self.units.len() as u32).to_be_bytes());
        for (name, image) in &self.units {
            bytes.push(name.len() as u8);
            bytes.extend(name.as_bytes());
            bytes.extend((image.len() as u32).to_be_bytes());
            bytes.extend(image);
        }
        bytes.extend(crc32c(&bytes).to_be_bytes());
        bytes
    }

    /// What stands where in the bytes of a record of this version, and of no other: by that it is known where it is to be
    /// replaced.
    #[must_use]
    pub fn marks(version: u64) -> [(usize, Vec<u8>); 2] {
        [(0, MAGIC.to_vec()), (VERSION_AT, version.to_be_bytes().to_vec())]
    }

    /// Reads one whole, or refuses it: a damaged one must not pass for one that nobody holds.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != MAGIC {
            return Err(RecordError::Magic);
        }
        // Before the checksum: another version may have another one.
        let form = reader.u16()?;
        if ![VERSION, VERSION_WITH_ADDRESS].contains(&form) {
            return Err(RecordError::Version(form));
        }
        let (body, checksum) =
            bytes.split_last_chunk::<CHECKSUM>().ok_or(Truncated { missing: CHECKSUM })?;
        if crc32c(body).to_be_bytes() != *checksum {
            return Err(RecordError::Checksum);
        }
        let [version, epoch, renewals] = [reader.u64()?, reader.u64()?, reader.u64()?];
        if version.max(epoch).max(renewals) > NUMBER_MAX {
            return Err(RecordError::Content("number"));
        }
        let lease = Duration::from_millis(reader.u32()?.into());
        let incarnation = reader.u64()?;
        let [holder, left_by, wanted_by] =
            [gateway(&mut reader)?, gateway(&mut reader)?, gateway(&mut reader)?];
        let holder = holder.map(|gateway| Holder { gateway, incarnation });
        let address = match form {
            VERSION_WITH_ADDRESS => Some(address(&mut reader)?),
            _ => None,
        };
        let units = units(&mut reader)?;
        let of_nobody = incarnation != 0 || address.is_some();
        if reader.rest().len() != CHECKSUM || (holder.is_none() && of_nobody) {
            return Err(RecordError::Content("length"));
        }
        Ok(Self { version, epoch, renewals, lease, holder, address, left_by, wanted_by, units })
    }
}

fn gateway(reader: &mut Reader<'_>) -> Result<Option<GatewayName>, RecordError> {
    let length = usize::from(reader.u8()?);
    let name = str::from_utf8(reader.take(length)?).map_err(|_| RecordError::Content("name"))?;
    match name {
        "" => Ok(None),
        name => name.parse().map(Some).map_err(|_| RecordError::Content("name")),
    }
}

/// One that a log can show, and that is no word of its own in a command.
fn address(reader: &mut Reader<'_>) -> Result<String, RecordError> {
    let length = usize::from(reader.u8()?);
    let address = str::from_utf8(reader.take(length)?).ok();
    let address = address.filter(|text| is_address(text));
    address.map(str::to_owned).ok_or(RecordError::Content("address"))
}

/// Whether a record can have this as the address of a holder.
#[must_use]
pub fn is_address(text: &str) -> bool {
    (1..=ADDRESS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn units(reader: &mut Reader<'_>) -> Result<BTreeMap<String, Vec<u8>>, RecordError> {
    let count = reader.u32()? as usize;
    if count > UNITS_MAX {
        return Err(RecordError::Content("number of units"));
    }
    let mut units = BTreeMap::new();
    for _ in 0..count {
        let length = usize::from(reader.u8()?);
        let name = str::from_utf8(reader.take(length)?);
        let name = name.map_err(|_| RecordError::Content("name of a unit"))?.to_owned();
        let length = reader.u32()? as usize;
        let image = reader.take(length)?.to_vec();
        let is_next = units.last_key_value().is_none_or(|(last, _): (&String, _)| *last < name);
        if name.is_empty() || name.len() > UNIT_NAME_MAX || !is_next {
            return Err(RecordError::Content("order of units"));
        }
        units.insert(name, image);
    }
    Ok(units)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let gateway = |name: &str| name.parse().ok();
        Record {
            version: 7,
            epoch: 3,
            renewals: 0x0102_0304_0506,
            lease: Duration::from_millis(5000),
            holder: Some(Holder { gateway: "gw-a.example".parse().unwrap(), incarnation: 99 }),
            address: None,
            left_by: gateway("b"),
            wanted_by: None,
            units: BTreeMap::from([
                ("iqn.x:a/0".into(), vec![1; 70]),
                ("iqn.x:b/1".into(), vec![]),
            ]),
        }
    }

    fn with_address() -> Record {
        Record { address: Some("192.0.2.1:0/4026531839".to_owned()), ..record() }
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        for record in [record(), with_address(), Record::default()] {
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }

    /// Gateways of a release that knows no addresses share files, which have none, with those of this one.
    #[test]
    fn record_without_an_address_has_the_form_of_before() {
        assert_eq!((record().encode()[5], with_address().encode()[5]), (1, 2));
        for bytes in [record().encode(), with_address().encode()] {
            let is_there = |(at, mark): (usize, Vec<u8>)| bytes[at..].starts_with(&mark);
            assert!(Record::marks(7).into_iter().all(is_there));
            assert!(!Record::marks(8).into_iter().all(is_there));
        }
    }

    #[test]
    fn address_of_nobody_and_one_that_is_none_are_refused() {
        let of_nobody = Record { holder: None, ..with_address() };
        assert_eq!(Record::decode(&of_nobody.encode()), Err(RecordError::Content("length")));
        for wrong in ["", "a b", "a\n", "\u{e4}"] {
            let record = Record { address: Some(wrong.to_owned()), ..record() };
            let read = Record::decode(&record.encode());
            assert_eq!(read, Err(RecordError::Content("address")), "{wrong}");
        }
    }

    #[test]
    fn every_damaged_record_is_refused() {
        [record(), with_address()].iter().for_each(refuses_damage);
    }

    fn refuses_damage(record: &Record) {
        let whole = record.encode();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(Record::decode(&damaged).is_err(), "byte {at}");
            assert!(Record::decode(&whole[..at]).is_err(), "cut off at {at}");
        }
        let longer = [&whole[..], &[0]].concat();
        assert!(Record::decode(&longer).is_err());
    }

    /// Whoever may write to the directory must not have a gateway count over the end of its numbers.
    #[test]
    fn record_whose_numbers_cannot_be_counted_on_is_refused() {
        for largest in [
            Record { version: u64::MAX, ..record() },
            Record { epoch: u64::MAX, ..record() },
            Record { renewals: u64::MAX, ..record() },
        ] {
            assert_eq!(Record::decode(&largest.encode()), Err(RecordError::Content("number")));
        }
    }

    #[test]
    fn names_of_gateways_are_short_and_plain() {
        for name in ["a", "gw-1.example.org", &"x".repeat(GATEWAY_MAX)] {
            assert_eq!(name.parse::<GatewayName>().map(|it| it.to_string()), Ok(name.to_owned()));
        }
        for wrong in
            ["", "-rf", "--help", "..", "a b", "a/b", "ä", "a\n", &"x".repeat(GATEWAY_MAX + 1)]
        {
            assert_eq!(wrong.parse::<GatewayName>(), Err(NotGateway), "{wrong}");
        }
    }
}
