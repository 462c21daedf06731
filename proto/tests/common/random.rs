//! Random numbers that follow from a seed.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::time::Duration;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub const fn within(&mut self, milliseconds: u64) -> Duration {
        Duration::from_micros(self.below(1000 * milliseconds))
    }
}
