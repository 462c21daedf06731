//! A reader that only moves forward: what a peer sent is never indexed.

/// The bytes ended before the field did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ends {missing} bytes short")]
pub struct Truncated {
    /// How many more bytes the field needed.
    pub missing: usize,
}

/// Reads big-endian fields from the front of a slice, as SCSI and iSCSI lay them out.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the front of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Truncated> {
        let Some((taken, rest)) = self.rest.split_at_checked(n) else {
            return Err(Truncated { missing: n - self.rest.len() });
        };
        self.rest = rest;
        Ok(taken)
    }

    /// A reader of the next `n` bytes, or of all that is left where that is less: for lists that say how
    /// long they are and may have been cut.
    #[must_use]
    pub fn up_to(&mut self, n: usize) -> Self {
        let (taken, rest) = self.rest.split_at(n.min(self.rest.len()));
        self.rest = rest;
        Self::new(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(Truncated { missing: N - self.rest.len() });
        };
        self.rest = rest;
        Ok(*taken)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, Truncated> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next three bytes.
    pub fn u24(&mut self) -> Result<u32, Truncated> {
        self.array::<3>().map(|[a, b, c]| u32::from_be_bytes([0, a, b, c]))
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_one_another() {
        let mut reader = Reader::new(&[1, 0, 2, 0, 0, 3, 0, 0, 0, 4, 9]);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(2));
        assert_eq!(reader.u24(), Ok(3));
        assert_eq!(reader.u32(), Ok(4));
        assert_eq!(reader.rest(), [9]);
    }

    #[test]
    fn a_cut_list_gives_what_is_there() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!(reader.up_to(2).rest(), [1, 2]);
        assert_eq!(reader.up_to(2).rest(), [3]);
        assert!(reader.rest().is_empty());
    }

    #[test]
    fn a_short_field_leaves_the_reader_where_it_was() {
        let mut reader = Reader::new(&[1, 2]);
        assert_eq!(reader.u64(), Err(Truncated { missing: 6 }));
        assert_eq!(reader.take(3), Err(Truncated { missing: 1 }));
        assert_eq!(reader.rest(), [1, 2]);
    }
}
