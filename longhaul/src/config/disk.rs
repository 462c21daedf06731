//! How a volume looks to initiators, as the user writes it.

use std::fmt;
use std::str::FromStr;

use proto::iscsi::name::IscsiName;
use proto::scsi::elements::Layout;
use proto::scsi::inquiry::SERIAL_MAX;
use proto::scsi::unit::optical::DiscType;

use serde::{Deserialize, Serialize};

use super::target_of;
use crate::size::Size;

/// How a volume looks to initiators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appearance {
    /// The unit of reading and writing, if not the volume's own.
    pub block_size: Option<BlockSize>,
    /// The unit in which initiators should write, if not the volume's own.
    pub physical_block_size: Option<PhysicalBlockSize>,
    /// The medium can be taken out.
    pub removable: bool,
    /// Space may be given back.
    pub thin: bool,
    /// Who made it.
    pub vendor: Option<Label<8>>,
    /// What it is.
    pub product: Option<Label<16>>,
    /// Its serial number.
    pub serial: Option<Label<SERIAL_MAX>>,
}

impl Default for Appearance {
    fn default() -> Self {
        Self {
            block_size: None,
            physical_block_size: None,
            removable: false,
            thin: true,
            vendor: None,
            product: None,
            serial: None,
        }
    }
}

/// A block size that initiators know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize(pub u32);

impl TryFrom<u32> for BlockSize {
    type Error = String;

    fn try_from(bytes: u32) -> Result<Self, String> {
        match bytes {
            512 | 4096 => Ok(Self(bytes)),
            _ => Err(format!("blocks are of 512 or 4096 bytes, not {bytes}")),
        }
    }
}

/// A physical block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysicalBlockSize(pub u32);

impl TryFrom<u32> for PhysicalBlockSize {
    type Error = String;

    fn try_from(bytes: u32) -> Result<Self, String> {
        let fits = bytes.is_power_of_two() && (512..=1 << 20).contains(&bytes);
        let why = || format!("physical blocks are a power of two from 512 to 1048576, not {bytes}");
        fits.then_some(Self(bytes)).ok_or_else(why)
    }
}

/// A target as the user writes it: a whole iSCSI name, or what follows the product's own prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetName(pub(super) IscsiName);

impl FromStr for TargetName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match ["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind)) {
            true => IscsiName::new(text).map(Self).map_err(|why| why.to_string()),
            false => target_of(text).map(Self),
        }
    }
}

/// The number of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lun(pub(super) u16);

impl Lun {
    /// SAM-5, 4.7.7.3: what flat space addressing can say is less.
    pub(super) const END: u16 = 1 << 14;
}

impl TryFrom<u32> for Lun {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        match u16::try_from(number).ok().filter(|lun| *lun < Self::END) {
            Some(lun) => Ok(Self(lun)),
            None => Err(format!("units have numbers from 0 to 16383, not {number}")),
        }
    }
}

/// How many drives there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Drives(pub(super) u16);

/// How many slots there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots(pub(super) u16);

/// How many import and export elements there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mail(pub(super) u16);

impl TryFrom<u32> for Drives {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        counted(number, 1, Layout::DRIVES_MAX, "drives").map(Self)
    }
}

impl TryFrom<u32> for Slots {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        counted(number, 1, Layout::SLOTS_MAX, "slots").map(Self)
    }
}

impl TryFrom<u32> for Mail {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        counted(number, 0, Layout::MAIL_MAX, "import and export elements").map(Self)
    }
}

fn counted(number: u32, least: u16, most: u16, what: &str) -> Result<u16, String> {
    match u16::try_from(number) {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("a media changer has from {least} to {most} {what}, not {number}")),
    }
}

/// A blank disc that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlankDisc(pub DiscType);

impl BlankDisc {
    const NAMES: [(&str, DiscType); 3] =
        [("cd-r", DiscType::CdR), ("dvd+rw", DiscType::DvdPlusRw), ("bd-r", DiscType::BdR)];
}

impl FromStr for BlankDisc {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        let unknown =
            || format!("`{text}` is no disc that can be made: write cd-r, dvd+rw or bd-r");
        found.map(|(_, disc)| Self(disc)).ok_or_else(unknown)
    }
}

impl TryFrom<String> for BlankDisc {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<BlankDisc> for String {
    fn from(disc: BlankDisc) -> Self {
        disc.to_string()
    }
}

impl fmt::Display for BlankDisc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, disc)| *disc == self.0);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// So many bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub Size);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<Size>() {
            Ok(Size(0)) => Err("a rate of nothing would never come to an end".to_owned()),
            Ok(size) => Ok(Self(size)),
            Err(why) => Err(why.to_string()),
        }
    }
}

/// A text that SCSI takes, of at most `MAX` characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label<const MAX: usize>(pub String);

impl<const MAX: usize> TryFrom<String> for Label<MAX> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // SPC-4, 4.4.1. Spaces at the ends would be padding.
        let graphic = text.bytes().all(|byte| (0x20..0x7F).contains(&byte));
        if !graphic || text.is_empty() || text.trim() != text || text.len() > MAX {
            return Err(format!("`{text}` is not a text of 1 to {MAX} ASCII characters"));
        }
        Ok(Self(text))
    }
}

impl<const MAX: usize> FromStr for Label<MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.to_owned().try_into()
    }
}
