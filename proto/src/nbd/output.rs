//! What waits to be sent: small heads gathered together, data as the slices they came in.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

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
