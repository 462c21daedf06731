//! The numbers and layouts of the NBD protocol (doc/proto.md of the NBD project, "fixed newstyle").

use crate::reader::{Reader, Truncated};
use bytes::{BufMut, BytesMut};

/// The most bytes of data in one request. A client that does not ask for the block sizes of an export
/// assumes as much (NBD, "Block size constraints").
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// First thing a server says.
pub(super) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": the newstyle handshake, and the head of every option.
pub(super) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags of both sides.
pub(super) const FIXED_NEWSTYLE: u16 = 1;
pub(super) const NO_ZEROES: u16 = 2;

/// What a client may ask for during the handshake.
pub(super) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// What the server answers to an option.
pub(super) mod rep {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub(crate) const ERR_INVALID: u32 = 1 << 31 | 3;
    pub(crate) const ERR_UNKNOWN: u32 = 1 << 31 | 6;
}

/// The pieces of information about an export.
pub(super) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub(super) mod transmission {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// The types of request.
pub(super) mod cmd {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// The flags of a request.
pub(super) mod flag {
    pub(crate) const FUA: u16 = 1;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// The types of a structured reply chunk.
pub(super) mod chunk {
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = 1 << 15 | 1;
}

/// The states of "base:allocation".
pub(super) const STATE_HOLE: u32 = 1;
pub(super) const STATE_ZERO: u32 = 2;

/// The head of an option: "IHAVEOPT", the option, the length of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OptionHead {
    pub(super) option: u32,
    pub(super) len: u32,
}

impl OptionHead {
    pub(super) const LEN: usize = 16;

    /// `None` if the magic is wrong.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Self>, Truncated> {
        let mut reader = Reader::new(bytes);
        let magic = reader.u64()?;
        let head = Self { option: reader.u32()?, len: reader.u32()? };
        Ok((magic == IHAVEOPT).then_some(head))
    }
}

/// The head of a request in the transmission phase (compact form).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) flags: u16,
    pub(super) kind: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) len: u32,
}

impl RequestHead {
    pub(super) const LEN: usize = 28;

    /// `None` if the magic is wrong.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Self>, Truncated> {
        let mut reader = Reader::new(bytes);
        let magic = reader.u32()?;
        let head = Self {
            flags: reader.u16()?,
            kind: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            len: reader.u32()?,
        };
        Ok((magic == REQUEST_MAGIC).then_some(head))
    }
}

/// A string after its length.
pub(super) fn string<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Truncated> {
    let len = reader.u32()?;
    reader.take(usize::try_from(len).unwrap_or(usize::MAX))
}

/// One reply to an option.
pub(super) fn put_option_reply(out: &mut BytesMut, option: u32, reply: u32, data: &[u8]) {
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option);
    out.put_u32(reply);
    out.put_u32(u32::try_from(data.len()).expect("option replies are short"));
    out.put_slice(data);
}

/// A simple reply; the data of a read follow it.
pub(super) fn put_simple_reply(out: &mut BytesMut, error: u32, cookie: u64) {
    out.put_u32(SIMPLE_REPLY_MAGIC);
    out.put_u32(error);
    out.put_u64(cookie);
}

/// The head of the only chunk of a structured reply; `len` bytes of it follow.
pub(super) fn put_chunk_head(out: &mut BytesMut, kind: u16, cookie: u64, len: usize) {
    const DONE: u16 = 1;
    out.put_u32(STRUCTURED_REPLY_MAGIC);
    out.put_u16(DONE);
    out.put_u16(kind);
    out.put_u64(cookie);
    out.put_u32(u32::try_from(len).expect("chunks are bounded by PAYLOAD_MAX"));
}
