//! What waits to be sent: small heads gathered together, data as the slices they came in.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Heads are put into buffers of this size, which are used again when all of their heads have been sent: a buffer for each
/// head would take five allocations.
const BUFFER: usize = 4 << 10;

/// No reply to a read or a write has a longer head. What is longer makes its own room.
const HEAD_MAX: usize = 64;

/// Bytes on their way out.
#[derive(Debug, Default)]
pub struct Output {
    ready: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl Output {
    /// How many bytes wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends what `write` writes.
    pub(super) fn put(&mut self, write: impl FnOnce(&mut BytesMut)) {
        let before = self.tail.len();
        if self.tail.capacity() - before < HEAD_MAX {
            self.tail.reserve(BUFFER);
        }
        write(&mut self.tail);
        self.len += self.tail.len() - before;
    }

    /// Appends `data` without copying it.
    pub(super) fn push(&mut self, data: Bytes) {
        self.seal_tail();
        self.len += data.len();
        self.ready.push_back(data);
    }

    /// Fills `slices` from the front of the queue; returns how many it filled.
    pub fn slices<'a>(&'a mut self, slices: &mut [IoSlice<'a>]) -> usize {
        self.seal_tail();
        let mut filled = 0;
        for (slot, bytes) in slices.iter_mut().zip(&self.ready) {
            *slot = IoSlice::new(bytes);
            filled += 1;
        }
        filled
    }

    /// `sent` bytes have left.
    pub fn advance(&mut self, mut sent: usize) {
        self.len -= sent;
        while let Some(front) = self.ready.front_mut() {
            let n = sent.min(front.len());
            front.advance(n);
            sent -= n;
            if !front.is_empty() {
                break;
            }
            self.ready.pop_front();
        }
    }

    fn seal_tail(&mut self) {
        if !self.tail.is_empty() {
            self.ready.push_back(self.tail.split().freeze());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(output: &mut Output) -> Vec<(usize, usize)> {
        let mut slices = [IoSlice::new(&[]); 8];
        let filled = output.slices(&mut slices);
        slices[..filled].iter().map(|slice| (slice.as_ptr() as usize, slice.len())).collect()
    }

    /// A read is answered with a head and its data.
    #[test]
    fn heads_lie_side_by_side_in_one_buffer() {
        let mut output = Output::default();
        let mut apart = 0;
        for round in 0..10_000_u32 {
            for _ in 0..2 {
                output.put(|out| out.extend_from_slice(&round.to_be_bytes().repeat(7)));
                output.push(Bytes::from_static(&[1; 512]));
            }
            let heads: Vec<_> = places(&mut output).into_iter().step_by(2).collect();
            assert!(heads.iter().all(|(_, len)| *len == 28));
            apart += u32::from(heads[1].0 != heads[0].0 + 28);
            output.advance(output.len());
        }
        assert!(apart < 200, "{apart} of 10,000");
    }

    #[test]
    fn heads_that_wait_are_not_overwritten() {
        let mut output = Output::default();
        let mut expected = Vec::new();
        for round in 0..2000_u32 {
            output.put(|out| out.extend_from_slice(&round.to_be_bytes()));
            expected.extend(round.to_be_bytes());
            if round % 3 == 0 {
                output.push(Bytes::from_static(b"data"));
                expected.extend(b"data");
            }
        }
        let mut sent = Vec::new();
        while !output.is_empty() {
            let mut slices = [IoSlice::new(&[]); 8];
            let filled = output.slices(&mut slices);
            let from = sent.len();
            slices[..filled].iter().for_each(|slice| sent.extend_from_slice(slice));
            let taken = (sent.len() - from).min(13);
            sent.truncate(from + taken);
            output.advance(taken);
        }
        assert!(sent == expected);
    }
}
