//! A message that is being received: each fragment is placed once, in any order (spec, 7.1).

use bytes::Bytes;

use super::codec::Fragment;
use super::range_set::RangeSet;

/// Gaps that a message may have.
const GAPS_MAX: usize = 256;

/// The bytes of a message that have come.
#[derive(Debug)]
pub(super) struct Incoming {
    len: usize,
    /// Up to the end of the last fragment.
    buffer: Vec<u8>,
    have: RangeSet,
}

/// What became of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// More is missing, or it was all there.
    Partly,
    /// The message is whole.
    Whole,
    /// It would leave too many gaps: as if it had not come.
    Dropped,
    /// It belongs to a message of another length.
    Violation,
}

impl Incoming {
    /// A message of this length.
    pub(super) fn new(len: u32) -> Self {
        let len = len as usize;
        Self { len, buffer: Vec::with_capacity(len), have: RangeSet::default() }
    }

    /// Places a fragment; bytes that are there are never replaced.
    pub(super) fn place(&mut self, fragment: &Fragment, payload: &[u8]) -> Placed {
        let start = fragment.offset as usize;
        let fits = start.checked_add(payload.len()).is_some_and(|end| end <= self.len);
        if fragment.message_len as usize != self.len || !fits {
            return Placed::Violation;
        }
        let range = fragment.offset..fragment.offset + payload.len() as u32;
        // Nearly always it follows what is there.
        if start == self.buffer.len() {
            self.buffer.extend_from_slice(payload);
            self.have.insert(range);
            return self.placed();
        }
        let missing = self.have.missing_in(range);
        if self.have.len() + missing.len() > GAPS_MAX && !self.closes_gaps(&missing) {
            return Placed::Dropped;
        }
        for part in missing {
            let (from, to) = (part.start as usize, part.end as usize);
            self.buffer.resize(self.buffer.len().max(to), 0);
            self.buffer[from..to].copy_from_slice(&payload[from - start..to - start]);
            self.have.insert(part);
        }
        self.placed()
    }

    fn placed(&self) -> Placed {
        if self.have.is_whole(self.len as u32) { Placed::Whole } else { Placed::Partly }
    }

    /// Whether placing these parts leaves no more ranges than there are.
    fn closes_gaps(&self, parts: &[core::ops::Range<u32>]) -> bool {
        let mut after = self.have.clone();
        parts.iter().for_each(|part| after.insert(part.clone()));
        after.len() <= self.have.len()
    }

    /// The whole message.
    pub(super) fn finish(self) -> Bytes {
        self.buffer.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against an array in which the first byte that comes for a place stays.
        #[test]
        fn reassembly_agrees_with_an_array(parts in proptest::collection::vec((0..500_u32, 1..80_usize, any::<u8>()), 1..80)) {
            const LEN: u32 = 600;
            let mut message = Incoming::new(LEN);
            let mut array: Vec<Option<u8>> = vec![None; LEN as usize];
            for (offset, len, byte) in parts {
                let fragment = Fragment { seq: 0, offset, message_len: LEN };
                let placed = message.place(&fragment, &vec![byte; len]);
                array[offset as usize..offset as usize + len].iter_mut().for_each(|place| {
                    place.get_or_insert(byte);
                });
                prop_assert_eq!(placed == Placed::Whole, array.iter().all(Option::is_some));
            }
            let bytes = message.finish();
            prop_assert!(array[bytes.len()..].iter().all(Option::is_none));
            let expected: Vec<u8> = array.into_iter().map(Option::unwrap_or_default).collect();
            prop_assert_eq!(&bytes[..], &expected[..bytes.len()]);
        }
    }

    #[test]
    fn fragments_with_too_many_gaps_are_dropped() {
        let mut message = Incoming::new(10_000);
        let mut place =
            |offset| message.place(&Fragment { seq: 0, offset, message_len: 10_000 }, &[1]);
        for at in 0..GAPS_MAX as u32 {
            assert_eq!(place(at * 2), Placed::Partly);
        }
        assert_eq!(place(9_000), Placed::Dropped);
        assert_eq!(place(1), Placed::Partly, "it closes a gap");
        assert_eq!(place(9_000), Placed::Partly);
    }
}
