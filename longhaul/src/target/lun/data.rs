//! Data-out as it came from the socket: a list of slices, which is cut at block boundaries without copying
//! more than the blocks that a boundary between slices falls into.

use bytes::{Bytes, BytesMut};

/// The first `len` bytes of `pieces`, in pieces that each hold whole blocks.
pub(super) fn whole_blocks(mut pieces: Vec<Bytes>, len: usize, block: usize) -> Vec<Bytes> {
    if let [only] = &mut pieces[..] {
        only.truncate(len);
        only.truncate(only.len() - only.len() % block);
        pieces.retain(|piece| !piece.is_empty());
        return pieces;
    }
    let mut whole = Vec::with_capacity(pieces.len());
    let mut torn = BytesMut::new();
    let mut left = len;
    for mut piece in pieces {
        piece.truncate(left);
        left -= piece.len();
        if !torn.is_empty() {
            torn.extend_from_slice(&piece.split_to(piece.len().min(block - torn.len())));
            if torn.len() == block {
                whole.push(torn.split().freeze());
            }
        }
        let tail = piece.split_off(piece.len() - piece.len() % block);
        if !piece.is_empty() {
            whole.push(piece);
        }
        torn.extend_from_slice(&tail);
    }
    whole
}

/// The first `len` bytes of `pieces` in one slice: copied only if they came in several.
pub(super) fn joined(pieces: Vec<Bytes>, len: usize) -> Bytes {
    match <[Bytes; 1]>::try_from(pieces) {
        Ok([mut only]) => {
            only.truncate(len);
            only
        }
        Err(pieces) => {
            let mut all = BytesMut::with_capacity(len);
            for piece in pieces {
                all.extend_from_slice(&piece[..piece.len().min(len - all.len())]);
            }
            all.freeze()
        }
    }
}

/// All but the first `len` bytes.
pub(super) fn without_front(mut pieces: Vec<Bytes>, len: usize) -> Vec<Bytes> {
    let mut left = len;
    for piece in &mut pieces {
        let gone = piece.split_to(piece.len().min(left));
        left -= gone.len();
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// How many bytes there are.
pub(super) fn length(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// Where two slices of one length first differ.
pub(super) fn difference(one: &[u8], other: &[u8]) -> Option<usize> {
    if one == other {
        return None; // The common case, at the speed of memory.
    }
    one.iter().zip(other).position(|(one, other)| one != other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_are_whole_and_in_order(
            lengths in proptest::collection::vec(0usize..40, 0..12), block in 1usize..16,
        ) {
            let total: usize = lengths.iter().sum();
            let data: Bytes = (0..total).map(|at| at as u8).collect();
            let mut rest = data.clone();
            let pieces: Vec<_> = lengths.iter().map(|len| rest.split_to(*len)).collect();
            let len = total - total % block;
            let whole = whole_blocks(pieces.clone(), len, block);
            prop_assert!(whole.iter().all(|piece| !piece.is_empty() && piece.len() % block == 0));
            prop_assert_eq!(whole.concat(), data.slice(..len));
            prop_assert_eq!(joined(pieces.clone(), len), data.slice(..len));
            prop_assert_eq!(length(&pieces), total);
        }
    }

    #[test]
    fn aligned_pieces_are_not_copied() {
        let data = Bytes::from(vec![7; 64]);
        let whole = whole_blocks(vec![data.slice(..32), data.slice(32..)], 64, 16);
        assert_eq!(whole.len(), 2);
        assert_eq!(whole[0].as_ptr(), data.as_ptr());
        assert_eq!(whole[1].as_ptr(), data[32..].as_ptr());
        assert_eq!(joined(vec![data.clone()], 64).as_ptr(), data.as_ptr());
    }

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(difference(b"abc", b"abc"), None);
        assert_eq!(difference(b"abc", b"axc"), Some(1));
    }
}
