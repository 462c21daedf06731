//! Sealed frames in a buffer: opened where they lie.

use bytes::{Buf as _, BytesMut};

use crate::iscsi::header::{BHS_LEN, Lengths};
use crate::iscsi::sealed::{Head, OpenError, Opener, SEALED_BHS_LEN, TAG_LEN};

/// Opens the frame at the front of a buffer, header first: only then its length is known.
#[derive(Debug)]
pub(super) struct Opening {
    opener: Opener,
    /// The header opened last, whose body has not come yet. It has left the buffer.
    header: Option<[u8; BHS_LEN]>,
}

impl Opening {
    pub(super) const fn new(opener: Opener) -> Self {
        Self { opener, header: None }
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

    /// Opens the body at the front of the buffer, which holds all of it.
    pub(super) fn body(
        &mut self,
        lengths: Lengths,
        buffer: &mut BytesMut,
    ) -> Result<(), OpenError> {
        self.header = None;
        match buffer.get_mut(..Self::body_len(lengths)) {
            Some(body) if !body.is_empty() => self.opener.open_body(body),
            _ => Ok(()),
        }
    }
}
