//! The transmission phase: which requests are let in, and how their outcomes look.

use bytes::{BufMut, Bytes};

use super::errno::Errno;
use super::export::{ByteRange, Export, Extent};
use super::handshake::{ALLOCATION_ID, Agreed};
use super::output::Output;
use super::violation::Violation;
use super::wire::{
    self, PAYLOAD_MAX, RequestHead, chunk, cmd, flag, put_chunk_head, put_simple_reply,
};

/// "The maximum length of any string is 4096 bytes" (NBD, "Values"): so of the message of an error.
const STRING_MAX: usize = 4096;

/// Descriptors in one block status reply: 32 KiB; the client asks again for the rest.
const DESCRIPTORS_MAX: usize = 4096;

/// A request that passed every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names the request in its reply; the client's business.
    pub cookie: u64,
    /// What to do.
    pub command: Command,
}

/// What a client may ask of an export. `fua`, `no_hole` and `req_one` are the flags of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the commands of the protocol")]
pub enum Command {
    Read(ByteRange),
    Write { offset: u64, data: Bytes, fua: bool },
    WriteZeroes { range: ByteRange, fua: bool, no_hole: bool },
    Trim { range: ByteRange, fua: bool },
    Flush,
    BlockStatus { range: ByteRange, req_one: bool },
}

impl Command {
    /// How many bytes of memory it holds until its reply is sent.
    #[must_use]
    pub fn weight(&self) -> usize {
        match self {
            Self::Read(range) => usize::try_from(range.length).unwrap_or(usize::MAX),
            Self::Write { data, .. } => data.len(),
            _ => 0,
        }
    }
}

/// The reply to a request that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing more.
    Done,
    /// The bytes read from this offset on.
    Data(u64, Bytes),
    /// What is allocated in `range`.
    BlockStatus {
        /// What was asked about.
        range: ByteRange,
        /// One extent, cut to what was asked about.
        req_one: bool,
        /// In order, without gaps, from the start of `range` on.
        extents: Vec<Extent>,
    },
}

/// The reply to a request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// For programs.
    pub errno: Errno,
    /// For people, where replies are structured; what exceeds 4096 bytes is not sent.
    pub message: String,
}

impl ErrorReply {
    /// An error for programs and for people.
    #[must_use]
    pub fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }
}

/// How many bytes follow the head: only a write has any.
pub(super) fn payload_len(head: RequestHead) -> Result<usize, Violation> {
    match head.kind {
        cmd::WRITE if head.len > PAYLOAD_MAX => Err(Violation::WriteTooLong(head.len)),
        cmd::WRITE => Ok(head.len as usize),
        _ => Ok(0),
    }
}

/// Checks a request; `None` for one that is done without the driver.
pub(super) fn admit(
    export: &Export,
    agreed: Agreed,
    head: RequestHead,
    payload: Bytes,
) -> Result<Option<Command>, ErrorReply> {
    check_flags(agreed, head)?;
    if head.kind == cmd::FLUSH {
        return Ok(Some(Command::Flush));
    }
    let range = ByteRange::new(head.offset, u64::from(head.len));
    check_range(export, head.kind, range)?;
    let has = |flag| head.flags & flag != 0;
    let fua = has(flag::FUA);
    Ok(Some(match head.kind {
        cmd::READ if head.len > PAYLOAD_MAX => {
            return Err(ErrorReply::new(Errno::EINVAL, "more than the announced maximum"));
        }
        cmd::READ => Command::Read(range),
        cmd::WRITE => Command::Write { offset: head.offset, data: payload, fua },
        cmd::WRITE_ZEROES => {
            // A client that asks for a fast way would rather write the zeroes itself than wait.
            if has(flag::FAST_ZERO) && !export.fast_zero {
                return Err(ErrorReply::new(Errno::ENOTSUP, "zeroes are not fast here"));
            }
            Command::WriteZeroes { range, fua, no_hole: has(flag::NO_HOLE) }
        }
        cmd::TRIM => Command::Trim { range, fua },
        // A hint to read ahead, which need not have an effect.
        cmd::CACHE => return Ok(None),
        cmd::BLOCK_STATUS if !agreed.allocation => {
            return Err(ErrorReply::new(Errno::EINVAL, "no metadata context was selected"));
        }
        cmd::BLOCK_STATUS if head.len == 0 => {
            return Err(ErrorReply::new(Errno::EINVAL, "block status of no bytes"));
        }
        cmd::BLOCK_STATUS => Command::BlockStatus { range, req_one: has(flag::REQ_ONE) },
        _ => return Err(ErrorReply::new(Errno::EINVAL, "unknown command")),
    }))
}

/// "The server SHOULD respond EINVAL to flags it does not know."
fn check_flags(agreed: Agreed, head: RequestHead) -> Result<(), ErrorReply> {
    let known = flag::FUA
        | match head.kind {
            cmd::READ if agreed.structured => flag::DF,
            cmd::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
            cmd::BLOCK_STATUS => flag::REQ_ONE,
            _ => 0,
        };
    if head.flags & !known != 0 {
        return Err(ErrorReply::new(Errno::EINVAL, "unknown flags"));
    }
    Ok(())
}

/// Alignment and range, with the error numbers the protocol wants for each.
fn check_range(export: &Export, kind: u16, range: ByteRange) -> Result<(), ErrorReply> {
    let block = u64::from(export.minimum_block_size);
    let changes = matches!(kind, cmd::WRITE | cmd::WRITE_ZEROES | cmd::TRIM);
    if changes && export.read_only {
        return Err(ErrorReply::new(Errno::EPERM, "the export is read-only"));
    }
    if kind == cmd::TRIM && !export.trim {
        return Err(ErrorReply::new(Errno::ENOTSUP, "the export does not discard"));
    }
    if range.end().is_none_or(|end| end > export.size) {
        let errno = if changes { Errno::ENOSPC } else { Errno::EINVAL };
        return Err(ErrorReply::new(errno, "beyond the end of the export"));
    }
    if !range.offset.is_multiple_of(block) || !range.length.is_multiple_of(block) {
        return Err(ErrorReply::new(Errno::EINVAL, format!("not aligned to {block} bytes")));
    }
    Ok(())
}

/// Queues the reply to a request.
pub(super) fn put_reply(
    out: &mut Output,
    structured: bool,
    cookie: u64,
    outcome: Result<Reply, ErrorReply>,
) {
    match outcome {
        Ok(Reply::Done) => out.put(|out| put_simple_reply(out, 0, cookie)),
        Ok(Reply::Data(offset, data)) => put_data(out, structured, cookie, offset, data),
        Ok(Reply::BlockStatus { range, req_one, extents }) => {
            put_descriptors(out, cookie, &describe(range, req_one, &extents));
        }
        Err(error) if structured => put_error(out, cookie, &error),
        Err(ErrorReply { errno, .. }) => out.put(|out| put_simple_reply(out, errno as u32, cookie)),
    }
}

fn put_data(out: &mut Output, structured: bool, cookie: u64, offset: u64, data: Bytes) {
    out.put(|out| {
        if !structured {
            put_simple_reply(out, 0, cookie);
        } else if data.is_empty() {
            // A chunk of data must not be empty.
            put_chunk_head(out, chunk::NONE, cookie, 0);
        } else {
            put_chunk_head(out, chunk::OFFSET_DATA, cookie, 8 + data.len());
            out.put_u64(offset);
        }
    });
    out.push(data);
}

fn put_error(out: &mut Output, cookie: u64, error: &ErrorReply) {
    let message = shortened(&error.message).as_bytes();
    out.put(|out| {
        put_chunk_head(out, chunk::ERROR, cookie, 6 + message.len());
        out.put_u32(error.errno as u32);
        out.put_u16(u16::try_from(message.len()).expect("at most STRING_MAX"));
        out.put_slice(message);
    });
}

/// As much of `message` as a reply may have.
fn shortened(message: &str) -> &str {
    let mut end = message.len().min(STRING_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

fn put_descriptors(out: &mut Output, cookie: u64, descriptors: &[(u32, u32)]) {
    out.put(|out| {
        put_chunk_head(out, chunk::BLOCK_STATUS, cookie, 4 + 8 * descriptors.len());
        out.put_u32(ALLOCATION_ID);
        for &(len, state) in descriptors {
            out.put_u32(len);
            out.put_u32(state);
        }
    });
}

/// The extents as lengths and states: within `range`, neighbours of one state joined.
fn describe(range: ByteRange, req_one: bool, extents: &[Extent]) -> Vec<(u32, u32)> {
    let most = if req_one { 1 } else { DESCRIPTORS_MAX };
    let mut descriptors: Vec<(u32, u32)> = Vec::new();
    for extent in extents {
        // It fits: a request is about less than 4 GiB.
        let len =
            u32::try_from(extent.range.overlap(range)).expect("cut to the range of a request");
        // A hole that does not read as zeroes (under encryption, say) is told as data: clients such as
        // qemu take every hole for zeroes and would not read it.
        let state = match (extent.zero, extent.hole) {
            (true, true) => wire::STATE_ZERO | wire::STATE_HOLE,
            (true, false) => wire::STATE_ZERO,
            (false, _) => 0,
        };
        let full = descriptors.len() == most;
        match descriptors.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.1 == state => last.0 += len,
            _ if full => break,
            _ => descriptors.push((len, state)),
        }
    }
    descriptors
}
