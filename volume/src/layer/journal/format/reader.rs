//! A reader that only moves forward: what stands in a file is never indexed.

use super::{Invalid, LogPoint};

/// Reads little-endian fields from the front of a slice.
pub(in crate::layer::journal) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(in crate::layer::journal) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(in crate::layer::journal) fn take(&mut self, n: usize) -> Result<&'a [u8], Invalid> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(Invalid::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(in crate::layer::journal) fn array<const N: usize>(&mut self) -> Result<[u8; N], Invalid> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Invalid::Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(in crate::layer::journal) fn u32(&mut self) -> Result<u32, Invalid> {
        self.array().map(u32::from_le_bytes)
    }

    pub(in crate::layer::journal) fn u64(&mut self) -> Result<u64, Invalid> {
        self.array().map(u64::from_le_bytes)
    }

    pub(in crate::layer::journal) fn point(&mut self) -> Result<LogPoint, Invalid> {
        Ok(LogPoint { position: self.u64()?, seq: self.u64()?, chain: self.array()? })
    }
}
