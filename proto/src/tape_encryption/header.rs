//! The first block of an encrypted file.

use core::ops::RangeInclusive;

use super::{CONFIRMATION_LEN, KEY_LEN, SALT_LEN};
use crate::cipher::TAG_LEN;
use crate::reader::{Reader, Truncated};

const MAGIC: [u8; 8] = *b"LHTCRY\r\n";

const VERSION: u32 = 1;

/// The shortest block: a header has room in it.
pub const BLOCK_MIN: u32 = 256;

/// The longest block, as that of a tape.
pub const BLOCK_MAX: u32 = 8 << 20;

/// What Argon2id may be told, which keeps absurd numbers from whoever adds them up. A program allows less.
const MEMORY_KIB: RangeInclusive<u32> = 32..=4 << 20;
const PASSES: RangeInclusive<u32> = 1..=1_000_000;
const LANES: RangeInclusive<u32> = 1..=16;

/// RFC 9106, 3.1: Argon2 has no less memory for a lane, in KiB.
const LANE_KIB: u32 = 8;

/// Bytes before the wrapped key, which it is bound to.
pub(super) const CLEAR_LEN: usize = 96;

/// Bytes of the wrapped key with its tag.
const WRAPPED_LEN: usize = KEY_LEN + TAG_LEN;

/// What deriving the key of a pass-phrase costs, by Argon2id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over it.
    pub passes: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Cost {
    fn check(self) -> Result<(), HeaderError> {
        let holds = MEMORY_KIB.contains(&self.memory_kib)
            && PASSES.contains(&self.passes)
            && LANES.contains(&self.lanes)
            && self.memory_kib >= self.lanes * LANE_KIB;
        if holds { Ok(()) } else { Err(HeaderError::Cost(self)) }
    }
}

/// The header of an encrypted file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// How long its blocks are.
    pub block: u32,
    /// What its pass-phrase costs.
    pub cost: Cost,
    /// Makes the key of its pass-phrase differ from that of other files.
    pub salt: [u8; SALT_LEN],
    pub(super) confirmation: [u8; CONFIRMATION_LEN],
    pub(super) wrapped: [u8; WRAPPED_LEN],
}

/// Why a block is no header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is too short.
    #[error("the header {0}")]
    Truncated(#[from] Truncated),
    /// It does not begin like one.
    #[error("the file is not encrypted")]
    Absent,
    /// It is of a later version.
    #[error("the header has version {0}, which this program does not know")]
    Version(u32),
    /// Blocks cannot be as long.
    #[error("the header tells of blocks of {0} bytes")]
    BlockLength(u32),
    /// It is not as long as it says.
    #[error("the header is a block of {found} bytes, and tells of blocks of {told} bytes")]
    OtherLength {
        /// As the block is.
        found: usize,
        /// As it says.
        told: u32,
    },
    /// The cost is beyond what any program writes.
    #[error("the header tells of {} KiB of memory, {} passes and {} lanes", .0.memory_kib, .0.passes, .0.lanes)]
    Cost(Cost),
    /// Something stands where zeroes belong.
    #[error("the header has bytes where zeroes belong")]
    NotZero,
}

/// Whether a file whose first block begins so is encrypted.
#[must_use]
pub fn is_encrypted(first: &[u8]) -> bool {
    first.starts_with(&MAGIC)
}

impl Header {
    /// The block length that stands in a header, which says where it ends. Nothing else is checked.
    pub fn block_length(first: &[u8]) -> Result<u32, HeaderError> {
        let mut reader = Reader::new(first);
        if reader.array()? != MAGIC {
            return Err(HeaderError::Absent);
        }
        let version = reader.u32()?;
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let block = reader.u32()?;
        match (BLOCK_MIN..=BLOCK_MAX).contains(&block) {
            true => Ok(block),
            false => Err(HeaderError::BlockLength(block)),
        }
    }

    /// Reads a header, which is all of its block.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let block = Self::block_length(bytes)?;
        if bytes.len() != block as usize {
            return Err(HeaderError::OtherLength { found: bytes.len(), told: block });
        }
        let mut reader = Reader::new(bytes);
        reader.take(16)?;
        let cost = Cost { memory_kib: reader.u32()?, passes: reader.u32()?, lanes: reader.u32()? };
        cost.check()?;
        let reserved = reader.u32()?;
        let (salt, confirmation, wrapped) = (reader.array()?, reader.array()?, reader.array()?);
        if reserved != 0 || reader.rest().iter().any(|byte| *byte != 0) {
            return Err(HeaderError::NotZero);
        }
        Ok(Self { block, cost, salt, confirmation, wrapped })
    }

    /// A header whose key is not wrapped yet.
    pub(super) fn unwrapped(
        block: u32,
        cost: Cost,
        salt: [u8; SALT_LEN],
        confirmation: [u8; CONFIRMATION_LEN],
    ) -> Result<Self, HeaderError> {
        cost.check()?;
        if !(BLOCK_MIN..=BLOCK_MAX).contains(&block) {
            return Err(HeaderError::BlockLength(block));
        }
        Ok(Self { block, cost, salt, confirmation, wrapped: [0; WRAPPED_LEN] })
    }

    /// What the wrapped key is bound to.
    pub(super) fn clear(&self) -> Vec<u8> {
        let Cost { memory_kib, passes, lanes } = self.cost;
        let mut clear = Vec::with_capacity(self.block as usize);
        clear.extend_from_slice(&MAGIC);
        for number in [VERSION, self.block, memory_kib, passes, lanes, 0] {
            clear.extend_from_slice(&number.to_be_bytes());
        }
        clear.extend_from_slice(&self.salt);
        clear.extend_from_slice(&self.confirmation);
        debug_assert_eq!(clear.len(), CLEAR_LEN);
        clear
    }

    /// All of its block.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = self.clear();
        bytes.extend_from_slice(&self.wrapped);
        bytes.resize(self.block as usize, 0);
        bytes
    }
}
