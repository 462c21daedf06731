//! The window of packet numbers that may still come (RFC 6479; spec, 5.4).

const WORDS: usize = 129;

/// Numbers that are remembered: one word less than the ring has, since the newest word is in use.
pub(super) const WINDOW: u64 = (WORDS as u64 - 1) * 64;

/// Which packet numbers of a path have come.
#[derive(Clone, Debug)]
pub(super) struct ReplayWindow {
    /// One above the highest number.
    next: u64,
    ring: [u64; WORDS],
}

impl ReplayWindow {
    pub(super) const fn new() -> Self {
        Self { next: 0, ring: [0; WORDS] }
    }

    /// Whether a packet with this number would be new.
    pub(super) const fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return number < u64::MAX;
        }
        if self.next - number > WINDOW {
            return false;
        }
        self.ring[word(number)] & bit(number) == 0
    }

    /// Whether it would be the highest.
    pub(super) const fn is_highest(&self, number: u64) -> bool {
        number >= self.next
    }

    /// Marks a number as come; only after its tag was found valid.
    pub(super) fn mark(&mut self, number: u64) {
        if number >= self.next {
            // The words that the window moves into hold old numbers.
            let from = if self.next == 0 { 0 } else { (self.next - 1) / 64 + 1 };
            let to = number / 64;
            if to >= from {
                let words = (to - from + 1).min(WORDS as u64);
                (to + 1 - words..=to).for_each(|at| self.ring[(at % WORDS as u64) as usize] = 0);
            }
            self.next = number + 1;
        }
        self.ring[word(number)] |= bit(number);
    }
}

const fn word(number: u64) -> usize {
    (number / 64 % WORDS as u64) as usize
}

const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a set of all numbers.
        #[test]
        fn replay_window_agrees_with_a_set(steps in proptest::collection::vec((0..3_u8, 0..20_000_u64), 1..300)) {
            let mut window = ReplayWindow::new();
            let mut seen = BTreeSet::new();
            let mut base = 0_u64;
            for (kind, step) in steps {
                let number = match kind {
                    0 => base + step % 70,
                    1 => base.saturating_sub(step),
                    _ => base + step,
                };
                let highest = seen.last().map_or(0, |last| last + 1);
                let expected = number >= highest || highest - number <= WINDOW && !seen.contains(&number);
                prop_assert_eq!(window.is_new(number), expected, "{} after {}", number, highest);
                if expected {
                    window.mark(number);
                    seen.insert(number);
                    prop_assert!(!window.is_new(number));
                }
                base = seen.last().copied().unwrap_or(0);
            }
        }
    }
}
