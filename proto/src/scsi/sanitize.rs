//! SANITIZE (SBC-3, 5.24): what is to be done with the whole medium.

use super::Sense;
use super::sense::Additional;
use crate::reader::Reader;

/// SERVICE ACTION: how the medium is sanitized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Write a pattern over all blocks.
    Overwrite,
    /// Give all blocks back.
    BlockErase,
    /// Destroy the key that all blocks are enciphered with.
    CryptoErase,
}

/// How often which bytes are written over all blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overwrite {
    /// How many times: 1 to 31.
    pub passes: u8,
    /// INVERT: each pass writes the complement of what the one before wrote.
    pub invert: bool,
    /// INITIALIZATION PATTERN: repeated through each block.
    pub pattern: Vec<u8>,
}

/// The bytes before the pattern in the parameter list.
const HEADER: u32 = 4;

/// Whether an overwrite parameter list can have this length for blocks of `block_size`.
#[must_use]
pub const fn is_list_length(length: u32, block_size: u32) -> bool {
    HEADER < length && length <= HEADER + block_size
}

impl Overwrite {
    /// Reads the parameter list.
    pub fn parse(list: &[u8], block_size: u32) -> Result<Self, Sense> {
        const INVERT: u8 = 0x80;
        const TEST: u8 = 0x60;
        const COUNT: u8 = 0x1F;
        let short = |_| Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR);
        let mut reader = Reader::new(list);
        let [flags, reserved] = reader.array().map_err(short)?;
        let length = reader.u16().map_err(short)?;
        if flags & TEST != 0 {
            return Err(Sense::invalid_parameter(0, Some(6)));
        }
        if flags & COUNT == 0 {
            return Err(Sense::invalid_parameter(0, Some(4)));
        }
        if reserved != 0 {
            return Err(Sense::invalid_parameter(1, None));
        }
        if length == 0 || u32::from(length) > block_size {
            return Err(Sense::invalid_parameter(2, None));
        }
        let pattern = reader.take(length.into()).map_err(short)?.to_vec();
        Ok(Self { passes: flags & COUNT, invert: flags & INVERT != 0, pattern })
    }

    /// A block as the `pass`th pass writes it, counted from zero.
    #[must_use]
    pub fn block(&self, pass: u8, block_size: u32) -> Vec<u8> {
        let mask = if self.invert && pass % 2 == 1 { 0xFF } else { 0 };
        let bytes = self.pattern.iter().cycle().map(|byte| byte ^ mask);
        bytes.take(block_size as usize).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fill_blocks_and_turn_over() {
        let list = [0x83, 0, 0, 3, 1, 2, 3];
        let overwrite = Overwrite::parse(&list, 512).unwrap();
        assert_eq!((overwrite.passes, overwrite.invert), (3, true));
        assert_eq!(overwrite.block(0, 8), [1, 2, 3, 1, 2, 3, 1, 2]);
        assert_eq!(overwrite.block(1, 4), [0xFE, 0xFD, 0xFC, 0xFE]);
        assert_eq!(overwrite.block(2, 2), [1, 2]);
    }

    #[test]
    fn senseless_field_is_pointed_at() {
        let pointed = |list: &[u8]| Overwrite::parse(list, 4).unwrap_err();
        assert_eq!(pointed(&[0x00, 0, 0, 1, 7]), Sense::invalid_parameter(0, Some(4)));
        assert_eq!(pointed(&[0x21, 0, 0, 1, 7]), Sense::invalid_parameter(0, Some(6)));
        assert_eq!(pointed(&[0x01, 1, 0, 1, 7]), Sense::invalid_parameter(1, None));
        assert_eq!(pointed(&[0x01, 0, 0, 0, 7]), Sense::invalid_parameter(2, None));
        assert_eq!(pointed(&[0x01, 0, 0, 5, 7, 7, 7, 7, 7]), Sense::invalid_parameter(2, None));
        let short = Sense::illegal(Additional::PARAMETER_LIST_LENGTH_ERROR);
        assert_eq!(pointed(&[0x01, 0, 0, 2, 7]), short);
        assert_eq!(pointed(&[]), short);
    }
}
