//! How a PDU of a session without encryption is put into bytes: header, digests, padding (RFC 7143, 11.1).

use super::padding;
use crate::iscsi::digest::{Crc32c, crc32c};
use crate::iscsi::header::{Header, Lengths};

/// Which digests a PDU carries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Digests {
    pub(super) header: bool,
    pub(super) data: bool,
}

impl Digests {
    /// Appends all that comes before a data segment of `data_len` bytes.
    pub(super) fn put_head(self, header: &Header, ahs: &[u8], data_len: usize, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&header.emit(Lengths { ahs: ahs.len(), data: data_len }));
        out.extend_from_slice(ahs);
        if self.header {
            let digest = crc32c(out.get(from..).unwrap_or_default());
            out.extend_from_slice(&digest);
        }
    }

    /// The digest of a data segment of `len` bytes in pieces, which covers its padding (RFC 7143, 11.2.3); none if there
    /// is to be none, as of an empty one.
    pub(super) fn of_data<'a>(
        self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        len: usize,
    ) -> Option<[u8; 4]> {
        (self.data && len > 0).then(|| {
            let mut digest = Crc32c::new();
            pieces.into_iter().for_each(|piece| digest.update(piece));
            digest.update(&[0; 3][..padding(len)]);
            digest.finish()
        })
    }
}

/// Appends all that comes behind a data segment of `len` bytes: its padding and its digest.
pub(super) fn put_tail(len: usize, digest: Option<[u8; 4]>, out: &mut Vec<u8>) {
    out.resize(out.len() + padding(len), 0);
    if let Some(digest) = digest {
        out.extend_from_slice(&digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iscsi::header::{BHS_LEN, NopOut};

    fn framed(digests: Digests, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        digests.put_head(&NopOut::default().into(), ahs, data.len(), &mut out);
        let digest = digests.of_data([data], data.len());
        out.extend_from_slice(data);
        put_tail(data.len(), digest, &mut out);
        out
    }

    #[test]
    fn data_are_padded_to_four_bytes() {
        for (len, padded) in [(0, 0), (1, 4), (3, 4), (4, 4), (5, 8)] {
            let out = framed(Digests::default(), &[], &vec![1; len]);
            assert_eq!(out.len(), BHS_LEN + padded);
            assert!(out[BHS_LEN + len..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn digest_of_data_covers_their_padding() {
        let digests = Digests { data: true, ..Digests::default() };
        let out = framed(digests, &[], &[1; 5]);
        assert_eq!(out[BHS_LEN + 8..], crc32c(&[1, 1, 1, 1, 1, 0, 0, 0]));
        let pieces = digests.of_data([&[1; 2][..], &[1; 3]], 5).unwrap();
        assert_eq!(out[BHS_LEN + 8..], pieces);
    }

    #[test]
    fn digest_of_a_header_covers_its_additional_segments() {
        let digests = Digests { header: true, data: true };
        let out = framed(digests, &[9; 8], &[]);
        assert_eq!(out.len(), BHS_LEN + 8 + 4, "no data, no digest of them");
        assert_eq!(out[BHS_LEN + 8..], crc32c(&out[..BHS_LEN + 8]));
    }
}
