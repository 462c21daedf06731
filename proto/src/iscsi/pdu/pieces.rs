//! Data in pieces: slices of buffers, in order, never joined.

use std::collections::VecDeque;

use bytes::Bytes;

/// A queue of bytes in pieces. Taking from the front slices, never copies.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Pieces {
    /// No bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { pieces: VecDeque::new(), len: 0 }
    }

    /// How many bytes there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds bytes at the end.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.pieces.push_back(bytes);
        }
    }

    /// Drops what lies beyond the first `len` bytes. The last piece leaves its buffer if it was more than twice as long:
    /// whoever counts bytes counts what is held.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            let Some(last) = self.pieces.back_mut() else { break };
            let excess = self.len - len;
            if last.len() > excess {
                let left = last.len() - excess;
                match left < last.len() / 2 {
                    true => *last = Bytes::copy_from_slice(&last[..left]),
                    false => last.truncate(left),
                }
                self.len = len;
            } else {
                self.len -= last.len();
                self.pieces.pop_back();
            }
        }
    }

    /// Takes the first piece, or its first `most` bytes.
    pub fn take_front(&mut self, most: usize) -> Option<Bytes> {
        let front = self.pieces.front_mut()?;
        let taken =
            if front.len() > most { front.split_to(most) } else { self.pieces.pop_front()? };
        self.len -= taken.len();
        Some(taken)
    }

    /// Takes the first `len` bytes, or all there are.
    #[must_use]
    pub fn split_front(&mut self, len: usize) -> Self {
        let mut front = Self::new();
        while front.len < len
            && let Some(piece) = self.take_front(len - front.len)
        {
            front.push(piece);
        }
        front
    }

    /// The first `most` bytes, piece by piece, left where they are.
    pub fn front(&self, most: usize) -> impl Iterator<Item = &[u8]> {
        let mut left = most;
        self.pieces.iter().map_while(move |piece| {
            let taken = piece.get(..left.min(piece.len()))?;
            left -= taken.len();
            (!taken.is_empty()).then_some(taken)
        })
    }

    /// All pieces.
    #[must_use]
    pub fn into_vec(self) -> Vec<Bytes> {
        self.pieces.into()
    }
}

impl From<Bytes> for Pieces {
    fn from(bytes: Bytes) -> Self {
        let mut pieces = Self::new();
        pieces.push(bytes);
        pieces
    }
}

impl From<Vec<Bytes>> for Pieces {
    fn from(pieces: Vec<Bytes>) -> Self {
        let len = pieces.iter().map(Bytes::len).sum();
        Self { pieces: pieces.into(), len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> Pieces {
        Pieces::from(vec![Bytes::from_static(b"abc"), Bytes::from_static(b"defgh")])
    }

    #[test]
    fn taking_follows_the_borders_of_pieces() {
        let mut pieces = pieces();
        assert_eq!(pieces.front(5).collect::<Vec<_>>(), [&b"abc"[..], b"de"]);
        assert_eq!(pieces.take_front(2).unwrap(), "ab");
        assert_eq!(pieces.take_front(9).unwrap(), "c");
        assert_eq!(pieces.take_front(9).unwrap(), "defgh");
        assert_eq!((pieces.len(), pieces.take_front(1)), (0, None));
    }

    #[test]
    fn truncating_keeps_the_front() {
        for len in 0..10 {
            let mut pieces = pieces();
            pieces.truncate(len);
            assert_eq!(pieces.len(), len.min(8));
            assert_eq!(pieces.into_vec().concat(), b"abcdefgh"[..len.min(8)]);
        }
    }
}
