//! From a stream of bytes to frames.

use bytes::{Buf, Bytes, BytesMut};

use super::sealed::Opening;
use super::{AHS_MAX, DATA_MAX_DEFAULT, Flaw, Frame, Pdu, padding};
use crate::iscsi::digest::{DIGEST_LEN, crc32c};
use crate::iscsi::header::{BHS_LEN, Header, Lengths};
use crate::iscsi::sealed::{OpenError, Opener, Transcript};

/// The stream cannot be understood from here on: the connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The lengths in the header cannot be trusted, so the next border is lost (RFC 7143, 7.8).
    #[error("header digest does not match")]
    HeaderDigest,
    /// More data than were declared acceptable.
    #[error("a data segment of {len} bytes where {max} were declared acceptable")]
    DataTooLong {
        /// What the header announces.
        len: usize,
        /// What was declared.
        max: usize,
    },
    /// More additional header than any PDU in use here has.
    #[error("additional headers of {len} bytes where {max} are acceptable")]
    AhsTooLong {
        /// What the header announces.
        len: usize,
        /// What is accepted.
        max: usize,
    },
    /// It is not what the peer sealed.
    #[error(transparent)]
    Seal(#[from] OpenError),
}

/// Takes frames off the front of a buffer. It holds no bytes itself: what it returns are slices of
/// the buffer, so what a peer can make it keep is bounded by [`wanted`](Self::wanted).
#[derive(Debug)]
pub struct Decoder {
    header_digest: bool,
    data_digest: bool,
    data_max: usize,
    /// The header at the front of the buffer has passed its digest.
    header_checked: bool,
    wanted: usize,
    /// Of all frames of the login.
    transcript: Option<Transcript>,
    /// From the end of a login that agreed on a seal.
    opening: Option<Box<Opening>>,
}

impl Decoder {
    /// A decoder for a connection before login: no digests, default lengths.
    #[must_use]
    pub fn new() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            data_max: DATA_MAX_DEFAULT,
            header_checked: false,
            wanted: BHS_LEN,
            transcript: Some(Transcript::default()),
            opening: None,
        }
    }

    /// The login has ended: which digests the peer sends from the next PDU on.
    pub fn set_digests(&mut self, header: bool, data: bool) {
        self.header_digest = header;
        self.data_digest = data;
        self.transcript = None;
    }

    /// The login has ended: the peer seals from the next PDU on.
    pub fn set_opener(&mut self, opener: Opener) {
        self.set_digests(false, false);
        self.opening = Some(Box::new(Opening::new(opener)));
    }

    /// All bytes of the frames the login has brought so far.
    #[must_use]
    pub fn transcript(&self) -> Transcript {
        self.transcript.clone().unwrap_or_default()
    }

    /// The MaxRecvDataSegmentLength declared to the peer.
    pub const fn set_data_max(&mut self, len: usize) {
        self.data_max = len;
    }

    /// How many more bytes the frame at the front of the buffer needs, as far as it is known: what is
    /// worth reserving before the next read. Never above one PDU of the declared length.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// The next frame, if all of it is there.
    pub fn decode(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        match self.opening {
            Some(_) => self.decode_sealed(buffer),
            None => self.decode_plain(buffer),
        }
    }

    fn decode_sealed(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(opening) = &mut self.opening else { return Ok(None) };
        let Some(bhs) = opening.header(buffer)? else {
            self.wanted = opening.wanted_for_header(buffer.len());
            return Ok(None);
        };
        let lengths = check_lengths(&bhs, self.data_max)?;
        if !opening.body(lengths, buffer)? {
            self.wanted = Opening::body_len(lengths).saturating_sub(buffer.len());
            return Ok(None);
        }
        self.wanted = opening.wanted_for_header(0);
        let ahs = take_bytes(buffer, lengths.ahs);
        let data = take_bytes(buffer, lengths.data);
        buffer.advance(Opening::body_len(lengths) - lengths.ahs - lengths.data);
        Ok(Some(frame(&bhs, ahs, data, true)))
    }

    fn decode_plain(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(bhs) = buffer.first_chunk::<BHS_LEN>() else {
            self.wanted = BHS_LEN - buffer.len();
            return Ok(None);
        };
        let bhs = *bhs;
        let lengths = check_lengths(&bhs, self.data_max)?;
        if !self.check_header(lengths, buffer)? {
            return Ok(None);
        }
        let head = self.head_len(lengths);
        let total = head + self.body_len(lengths);
        if buffer.len() < total {
            self.wanted = total - buffer.len();
            return Ok(None);
        }
        self.header_checked = false;
        self.wanted = BHS_LEN;
        if let (Some(transcript), Some(frame)) = (&mut self.transcript, buffer.get(..total)) {
            transcript.add(frame);
        }
        Ok(Some(self.take(&bhs, lengths, buffer)))
    }

    /// Whether the whole header is there, and as it was sent. It is checked before its data length is
    /// believed, so that a damaged length cannot make the connection wait for data that never come.
    fn check_header(&mut self, lengths: Lengths, buffer: &BytesMut) -> Result<bool, FrameError> {
        if !self.header_digest || self.header_checked {
            return Ok(true);
        }
        let covered = BHS_LEN + lengths.ahs;
        let Some((header, rest)) = buffer.split_at_checked(covered) else {
            self.wanted = covered + DIGEST_LEN - buffer.len();
            return Ok(false);
        };
        let Some(digest) = rest.first_chunk::<DIGEST_LEN>() else {
            self.wanted = DIGEST_LEN - rest.len();
            return Ok(false);
        };
        if *digest != crc32c(header) {
            return Err(FrameError::HeaderDigest);
        }
        self.header_checked = true;
        Ok(true)
    }

    const fn head_len(&self, lengths: Lengths) -> usize {
        BHS_LEN + lengths.ahs + if self.header_digest { DIGEST_LEN } else { 0 }
    }

    /// An empty data segment has neither padding nor digest (RFC 7143, 11.2.3).
    const fn body_len(&self, lengths: Lengths) -> usize {
        if lengths.data == 0 {
            return 0;
        }
        let digest = if self.data_digest { DIGEST_LEN } else { 0 };
        lengths.data + padding(lengths.data) + digest
    }

    /// Takes one frame, known to be whole, off the buffer.
    fn take(&self, bhs: &[u8; BHS_LEN], lengths: Lengths, buffer: &mut BytesMut) -> Frame {
        buffer.advance(BHS_LEN);
        let ahs = take_bytes(buffer, lengths.ahs);
        buffer.advance(self.head_len(lengths) - BHS_LEN - lengths.ahs);
        let intact = !self.data_digest || lengths.data == 0 || data_intact(lengths.data, buffer);
        let data = take_bytes(buffer, lengths.data);
        buffer.advance(self.body_len(lengths) - lengths.data);
        frame(bhs, ahs, data, intact)
    }
}

/// The lengths of a frame, if they are within what was declared. Without a header digest they are all
/// the trust there is; with one, or a seal, a length beyond the limit is as fatal as a wrong digest.
fn check_lengths(bhs: &[u8; BHS_LEN], data_max: usize) -> Result<Lengths, FrameError> {
    let lengths = Lengths::parse(bhs);
    if lengths.data > data_max {
        return Err(FrameError::DataTooLong { len: lengths.data, max: data_max });
    }
    if lengths.ahs > AHS_MAX {
        return Err(FrameError::AhsTooLong { len: lengths.ahs, max: AHS_MAX });
    }
    Ok(lengths)
}

fn frame(bhs: &[u8; BHS_LEN], ahs: Bytes, data: Bytes, intact: bool) -> Frame {
    match Header::parse(bhs) {
        Err(unknown) => Frame::Flawed { bhs: *bhs, flaw: Flaw::Opcode(unknown.0) },
        Ok(_) if !intact => Frame::Flawed { bhs: *bhs, flaw: Flaw::DataDigest },
        Ok(header) => Frame::Pdu(Pdu { header, ahs, data }),
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether the data at the front of the buffer match the digest behind them, which covers the padding
/// as well (RFC 7143, 11.2.3).
fn data_intact(len: usize, buffer: &BytesMut) -> bool {
    let covered = len + padding(len);
    buffer
        .split_at_checked(covered)
        .and_then(|(data, rest)| Some((data, rest.first_chunk::<DIGEST_LEN>()?)))
        .is_some_and(|(data, digest)| crc32c(data) == *digest)
}

/// A slice off the front, without copying; nothing at all where there is nothing to take, since even
/// an empty split costs a reference.
fn take_bytes(buffer: &mut BytesMut, len: usize) -> Bytes {
    if len == 0 { Bytes::new() } else { buffer.split_to(len).freeze() }
}
