//! Where frames go: a ring of fixed length, in which no frame reaches beyond the end.

use super::format::RING_START;

/// The byte of the file where `position` of a ring of `ring_len` bytes stands.
pub(super) const fn offset(ring_len: u64, position: u64) -> u64 {
    RING_START + position % ring_len
}

/// The bytes from `position` to the end of the ring.
pub(super) const fn until_end(ring_len: u64, position: u64) -> u64 {
    ring_len - position % ring_len
}

/// What of the ring is in use.
///
/// `tail <= head <= tail + len`; all three are multiples of a page.
#[derive(Debug)]
pub(super) struct Ring {
    len: u64,
    /// The position of the next frame.
    head: u64,
    /// What stands before it may be written over.
    tail: u64,
}

impl Ring {
    pub(super) const fn new(len: u64, tail: u64, head: u64) -> Self {
        Self { len, head, tail }
    }

    pub(super) const fn head(&self) -> u64 {
        self.head
    }

    /// Bytes in use.
    pub(super) const fn used(&self) -> u64 {
        self.head - self.tail
    }

    /// The bytes to skip before a frame of `length` bytes, because it would reach beyond the end.
    pub(super) const fn skip(&self, length: u64) -> u64 {
        let left = until_end(self.len, self.head);
        if length <= left { 0 } else { left }
    }

    /// Whether a frame of `length` bytes, and what is skipped before it, has room.
    pub(super) const fn has_room(&self, length: u64) -> bool {
        self.used() + self.skip(length) + length <= self.len
    }

    /// Takes the next `length` bytes; they must have room and end within the ring.
    pub(super) const fn take(&mut self, length: u64) -> u64 {
        debug_assert!(self.used() + length <= self.len && self.skip(length) == 0);
        let position = self.head;
        self.head += length;
        position
    }

    /// What stands before `tail` may be written over.
    pub(super) const fn free(&mut self, tail: u64) {
        debug_assert!(self.tail <= tail && tail <= self.head);
        self.tail = tail;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Random;

    #[test]
    fn a_frame_that_does_not_fit_before_the_end_skips_the_rest() {
        let mut ring = Ring::new(16, 0, 0);
        assert_eq!(ring.take(14), 0);
        assert_eq!((ring.skip(2), ring.skip(3)), (0, 2));
        assert!(ring.has_room(2) && !ring.has_room(3), "the tail is in the way");
        ring.free(3);
        assert!(ring.has_room(3) && !ring.has_room(4));
        assert_eq!(ring.take(2), 14);
        assert_eq!((ring.take(3), ring.used()), (16, 16));
        assert!(!ring.has_room(1));
        assert_eq!((offset(16, 15), offset(16, 16)), (RING_START + 15, RING_START));
    }

    #[test]
    fn an_empty_ring_has_room_for_half_of_it_anywhere() {
        for head in 0..32 {
            assert!(Ring::new(16, head, head).has_room(8), "at {head}");
        }
    }

    /// What is in use is never handed out again, whatever the lengths.
    #[test]
    fn frames_in_use_share_no_byte() {
        for seed in 0..100 {
            let mut random = Random::new(seed);
            let mut ring = Ring::new(32, 0, 0);
            let mut used: Vec<(u64, u64)> = Vec::new();
            for _ in 0..300 {
                let length = 1 + random.below(8);
                if !ring.has_room(length) {
                    let freed = 1 + random.index(used.len());
                    used.drain(..freed);
                    ring.free(used.first().map_or_else(|| ring.head(), |frame| frame.0));
                    continue;
                }
                let skipped = ring.skip(length);
                for length in [skipped, length].into_iter().filter(|length| *length > 0) {
                    let at = ring.take(length);
                    let bytes = |(at, length)| (at..at + length).map(|at| offset(32, at));
                    assert!(offset(32, at) + length <= RING_START + 32, "seed {seed}");
                    let new: Vec<u64> = bytes((at, length)).collect();
                    assert!(used.iter().all(|old| bytes(*old).all(|byte| !new.contains(&byte))));
                    used.push((at, length));
                }
            }
        }
    }
}
