//! READ CAPACITY data (SBC-3, 5.15 and 5.16), as the device lays them out and as an initiator reads them.

use super::Malformed;
use crate::reader::Reader;

/// The largest logical block an initiator takes for sane, and a device offers.
pub const BLOCK_SIZE_MAX: u32 = 65_536;

/// How large a disk is, and in which units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes in each.
    pub block_size: u32,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
    pub physical_exponent: u8,
    /// LBPME: thin or resource provisioning is managed.
    pub provisioning_managed: bool,
    /// LBPRZ: unmapped blocks read as zeroes.
    pub reads_zeroes: bool,
    /// PROT_EN: blocks carry protection information.
    pub protected: bool,
}

impl Capacity {
    /// READ CAPACITY (10) data; all ones tell the initiator to ask with READ CAPACITY (16).
    #[must_use]
    pub fn emit_10(&self) -> Vec<u8> {
        let last = u32::try_from(self.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
        [last.to_be_bytes(), self.block_size.to_be_bytes()].concat()
    }

    /// READ CAPACITY (16) data, before they are cut to the allocation length.
    #[must_use]
    pub fn emit_16(&self) -> Vec<u8> {
        let mut bytes = self.blocks.saturating_sub(1).to_be_bytes().to_vec();
        bytes.extend(self.block_size.to_be_bytes());
        bytes.push(u8::from(self.protected));
        bytes.push(self.physical_exponent & 0x0F);
        bytes.push(
            (if self.provisioning_managed { 0x80 } else { 0 })
                | (if self.reads_zeroes { 0x40 } else { 0 }),
        );
        bytes.resize(32, 0);
        bytes
    }

    /// Reads READ CAPACITY (10) data; `None` if the disk is too large for them.
    pub fn parse_10(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let mut reader = Reader::new(bytes);
        let (last, block_size) = (reader.u32()?, reader.u32()?);
        if last == u32::MAX {
            return Ok(None);
        }
        Self {
            blocks: u64::from(last) + 1,
            block_size,
            physical_exponent: 0,
            provisioning_managed: false,
            reads_zeroes: false,
            protected: false,
        }
        .validate()
        .map(Some)
    }

    /// Reads READ CAPACITY (16) data.
    pub fn parse_16(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let (last, block_size) = (reader.u64()?, reader.u32()?);
        let [protection, exponents, provisioning] = reader.array()?;
        Self {
            blocks: last
                .checked_add(1)
                .ok_or(Malformed::Field("RETURNED LOGICAL BLOCK ADDRESS"))?,
            block_size,
            physical_exponent: exponents & 0x0F,
            provisioning_managed: provisioning & 0x80 != 0,
            reads_zeroes: provisioning & 0x40 != 0,
            protected: protection & 0x01 != 0,
        }
        .validate()
    }

    /// Refuses what no volume can stand on: a block size that is no power of two from 512 on, or a size
    /// in bytes beyond 64 bits.
    fn validate(self) -> Result<Self, Malformed> {
        if !self.block_size.is_power_of_two() || !(512..=BLOCK_SIZE_MAX).contains(&self.block_size)
        {
            return Err(Malformed::Field("LOGICAL BLOCK LENGTH IN BYTES"));
        }
        match self.blocks.checked_mul(u64::from(self.block_size)) {
            Some(_) => Ok(self),
            None => Err(Malformed::Field("RETURNED LOGICAL BLOCK ADDRESS")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_capacity() -> impl Strategy<Value = Capacity> {
        (1..u64::MAX >> 16, 9..=16u32, 0..16u8, any::<[bool; 3]>()).prop_map(
            |(blocks, shift, physical_exponent, flags)| Capacity {
                blocks,
                block_size: 1 << shift,
                physical_exponent,
                provisioning_managed: flags[0],
                reads_zeroes: flags[1],
                protected: flags[2],
            },
        )
    }

    proptest! {
        #[test]
        fn sixteen_carries_all_of_it(capacity in any_capacity()) {
            let bytes = capacity.emit_16();
            prop_assert_eq!(bytes.len(), 32);
            prop_assert_eq!(Capacity::parse_16(&bytes), Ok(capacity));
        }

        #[test]
        fn ten_says_when_it_is_too_small(capacity in any_capacity()) {
            let parsed = Capacity::parse_10(&capacity.emit_10()).unwrap();
            let fits = capacity.blocks <= u64::from(u32::MAX);
            prop_assert_eq!(parsed.map(|found| found.blocks), fits.then_some(capacity.blocks));
        }

        #[test]
        fn hostile_data_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(capacity) = Capacity::parse_16(&bytes) {
                prop_assert!(capacity.blocks.checked_mul(capacity.block_size.into()).is_some());
            }
            let _ = Capacity::parse_10(&bytes);
        }
    }

    #[test]
    fn insane_devices_are_refused() {
        for block_size in [0u32, 1, 520, 131_072] {
            let mut bytes = vec![0; 32];
            bytes[8..12].copy_from_slice(&block_size.to_be_bytes());
            assert!(Capacity::parse_16(&bytes).is_err(), "{block_size}");
        }
        assert!(Capacity::parse_16(&[0xFF; 32]).is_err());
    }
}
