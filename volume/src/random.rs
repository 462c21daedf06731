//! Repeatable randomness for tests: the same seed, the same run, on every machine.

use std::time::Duration;

/// SplitMix64: small, fast, good enough to choose test cases, and nothing else.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence that `seed` stands for.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    ///
    /// # Panics
    ///
    /// If `limit` is zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit
    }

    /// A place in something of that length, which is not empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A time below so many milliseconds.
    pub fn within(&mut self, milliseconds: u64) -> Duration {
        Duration::from_micros(self.below(1000 * milliseconds))
    }

    /// `len` bytes that do not repeat.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.word().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
