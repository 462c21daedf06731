//! Sealed frames in a buffer: opened where they lie, large ones as they come.

use bytes::{Buf as _, BytesMut};

use crate::iscsi::header::{BHS_LEN, Lengths};
use crate::iscsi::sealed::{Head, OpenError, Opener, SEALED_BHS_LEN, TAG_LEN};

/// Pieces of a body that are deciphered while the rest of it is on its way, which the processor then still has in
/// its cache; smaller ones would cost more by their number.
const PIECE_MIN: usize = 16 << 10;

/// Opens the frame at the front of a buffer, header first: only then its length is known.
#[derive(Debug)]
pub(super) struct Opening {
    opener: Opener,
    /// The header opened last, whose body has not come yet. It has left the buffer.
    header: Option<[u8; BHS_LEN]>,
    /// How much of the body at the front of the buffer has been deciphered, and not been checked yet.
    deciphered: usize,
}

impl Opening {
    pub(super) const fn new(opener: Opener) -> Self {
        Self { opener, header: None, deciphered: 0 }
    }

    /// The header of the frame whose body is at the front of the buffer, if that header is there.
    pub(super) fn header(
        &mut self,
        buffer: &mut BytesMut,
    ) -> Result<Option<[u8; BHS_LEN]>, OpenError> {
        while self.header.is_none() {
            let Some(sealed) = buffer.first_chunk_mut::<SEALED_BHS_LEN>() else { return Ok(None) };
            let head = self.opener.open_header(sealed)?;
            buffer.advance(SEALED_BHS_LEN);
            if let Head::Pdu(bhs) = head {
                self.header = Some(bhs);
            }
        }
        Ok(self.header)
    }

    /// How many bytes a header still needs where `there` are there.
    pub(super) const fn wanted_for_header(&self, there: usize) -> usize {
        SEALED_BHS_LEN.saturating_sub(there)
    }

    /// How long the body of a frame is, sealed; an empty one is not there at all.
    pub(super) const fn body_len(lengths: Lengths) -> usize {
        match lengths.ahs + lengths.data {
            0 => 0,
            len => len + TAG_LEN,
        }
    }

    /// Opens the body at the front of the buffer, as far as it has come; whether all of it is open.
    pub(super) fn body(
        &mut self,
        lengths: Lengths,
        buffer: &mut BytesMut,
    ) -> Result<bool, OpenError> {
        let (body, sealed) = (lengths.ahs + lengths.data, Self::body_len(lengths));
        let Some(whole) = buffer.get_mut(..sealed) else {
            self.decipher(body, buffer, PIECE_MIN)?;
            return Ok(false);
        };
        self.header = None;
        if self.deciphered > 0 {
            self.decipher(body, whole, 1)?;
            self.deciphered = 0;
            let tag = whole.last_chunk().ok_or(OpenError::Broken)?;
            self.opener.end_body(tag)?;
        } else if body > 0 {
            self.opener.open_body(whole)?;
        }
        Ok(true)
    }

    /// Deciphers what has come of a body of `body` bytes, if there are `least` of them.
    fn decipher(&mut self, body: usize, there: &mut [u8], least: usize) -> Result<(), OpenError> {
        let come = there.len().min(body);
        let Some(piece) = there.get_mut(self.deciphered..come) else { return Ok(()) };
        if piece.len() < least || !self.opener.deciphers() {
            return Ok(());
        }
        self.deciphered = come;
        self.opener.open_piece(body, piece)
    }
}
