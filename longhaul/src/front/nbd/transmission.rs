//! The transmission phase: which requests are let in, and how their outcomes look.

use bytes::{BufMut, Bytes};
use volume::{Durability, Extent, Space, Span, TRANSFER_MAX};

use super::errno::Errno;
use super::export::Export;
use super::handshake::{ALLOCATION_ID, Agreed};
use super::output::Output;
use super::violation::Violation;
use super::wire::{self, RequestHead, chunk, cmd, flag, put_chunk_head, put_simple_reply};

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

/// What a client may ask of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the verbs of a volume")]
pub enum Command {
    Read(Span),
    Write(u64, Bytes, Durability),
    WriteZeroes(Span, Durability, Space),
    Trim(Span, Durability),
    Flush,
    /// Answer with one extent only, if `one`.
    BlockStatus {
        span: Span,
        one: bool,
    },
}

impl Command {
    /// How many bytes of memory it holds until its reply is sent.
    #[must_use]
    pub fn weight(&self) -> usize {
        match self {
            Self::Read(span) => usize::try_from(span.len).unwrap_or(usize::MAX),
            Self::Write(_, data, _) => data.len(),
            _ => 0,
        }
    }
}

/// What a request that succeeded answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing more.
    Done,
    /// The bytes read from this offset on.
    Data(u64, Bytes),
    /// What is allocated in `span`.
    Extents {
        /// What was asked about.
        span: Span,
        /// One extent, cut to what was asked about.
        one: bool,
        /// In order, without gaps, from the start of `span` on.
        extents: Vec<Extent>,
    },
}

/// What a request that failed answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub errno: Errno,
    /// For people, where replies are structured.
    pub why: String,
}

impl Refusal {
    pub(super) fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }
}

impl From<volume::Error> for Refusal {
    fn from(error: volume::Error) -> Self {
        Self::new(error.kind.into(), error.to_string())
    }
}

/// How many bytes follow the head: only a write has any.
pub(super) fn payload_len(head: RequestHead) -> Result<usize, Violation> {
    match head.kind {
        cmd::WRITE if head.len > TRANSFER_MAX => Err(Violation::WriteTooLong(head.len)),
        cmd::WRITE => Ok(head.len as usize),
        _ => Ok(0),
    }
}

/// Checks a request; `None` for one that is done without the volume.
pub(super) fn admit(
    export: &Export,
    agreed: Agreed,
    head: RequestHead,
    payload: Bytes,
) -> Result<Option<Command>, Refusal> {
    check_flags(agreed, head)?;
    if head.kind == cmd::FLUSH {
        return Ok(Some(Command::Flush));
    }
    let span = Span::new(head.at, u64::from(head.len));
    check_span(export, head.kind, span)?;
    let has = |flag| head.flags & flag != 0;
    let durability = if has(flag::FUA) { Durability::Durable } else { Durability::Volatile };
    Ok(Some(match head.kind {
        cmd::READ if head.len > TRANSFER_MAX => {
            return Err(Refusal::new(Errno::EINVAL, "more than the announced maximum"));
        }
        cmd::READ => Command::Read(span),
        cmd::WRITE => Command::Write(head.at, payload, durability),
        cmd::WRITE_ZEROES => {
            // A client that asks for a fast way would rather write the zeroes itself than wait.
            if has(flag::FAST_ZERO) && !export.shape.fast_zeroes {
                return Err(Refusal::new(Errno::ENOTSUP, "zeroes are not fast here"));
            }
            let space = if has(flag::NO_HOLE) { Space::Keep } else { Space::Release };
            Command::WriteZeroes(span, durability, space)
        }
        cmd::TRIM => Command::Trim(span, durability),
        // A hint to read ahead, which need not have an effect.
        cmd::CACHE => return Ok(None),
        cmd::BLOCK_STATUS if !agreed.allocation => {
            return Err(Refusal::new(Errno::EINVAL, "no metadata context was selected"));
        }
        cmd::BLOCK_STATUS if span.is_empty() => {
            return Err(Refusal::new(Errno::EINVAL, "block status of no bytes"));
        }
        cmd::BLOCK_STATUS => Command::BlockStatus { span, one: has(flag::REQ_ONE) },
        _ => return Err(Refusal::new(Errno::EINVAL, "unknown command")),
    }))
}

/// "The server SHOULD respond EINVAL to flags it does not know."
fn check_flags(agreed: Agreed, head: RequestHead) -> Result<(), Refusal> {
    let known = flag::FUA
        | match head.kind {
            cmd::READ if agreed.structured => flag::DF,
            cmd::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
            cmd::BLOCK_STATUS => flag::REQ_ONE,
            _ => 0,
        };
    if head.flags & !known != 0 {
        return Err(Refusal::new(Errno::EINVAL, "unknown flags"));
    }
    Ok(())
}

/// Alignment and range, with the error numbers the protocol wants for each.
fn check_span(export: &Export, kind: u16, span: Span) -> Result<(), Refusal> {
    let shape = &export.shape;
    let block = u64::from(shape.block_size);
    let changes = matches!(kind, cmd::WRITE | cmd::WRITE_ZEROES | cmd::TRIM);
    if changes && shape.read_only {
        return Err(Refusal::new(Errno::EPERM, "the export is read-only"));
    }
    if kind == cmd::TRIM && shape.discard.is_none() {
        return Err(Refusal::new(Errno::ENOTSUP, "the export does not discard"));
    }
    if span.end() > shape.size || span.at.checked_add(span.len).is_none() {
        let errno = if changes { Errno::ENOSPC } else { Errno::EINVAL };
        return Err(Refusal::new(errno, "beyond the end of the export"));
    }
    if !span.at.is_multiple_of(block) || !span.len.is_multiple_of(block) {
        return Err(Refusal::new(Errno::EINVAL, format!("not aligned to {block} bytes")));
    }
    Ok(())
}

/// Queues the reply to a request.
pub(super) fn put_answer(
    out: &mut Output,
    structured: bool,
    cookie: u64,
    outcome: Result<Answer, Refusal>,
) {
    match outcome {
        Ok(Answer::Done) => out.put(|out| put_simple_reply(out, 0, cookie)),
        Ok(Answer::Data(at, data)) => put_data(out, structured, cookie, at, data),
        Ok(Answer::Extents { span, one, extents }) => {
            put_extents(out, cookie, &describe(span, one, &extents));
        }
        Err(Refusal { errno, why }) if structured => out.put(|out| {
            // A message has at most 4096 bytes; ours are much shorter.
            let why = why.as_bytes();
            put_chunk_head(out, chunk::ERROR, cookie, 6 + why.len());
            out.put_u32(errno as u32);
            out.put_u16(u16::try_from(why.len()).expect("messages are short"));
            out.put_slice(why);
        }),
        Err(Refusal { errno, .. }) => out.put(|out| put_simple_reply(out, errno as u32, cookie)),
    }
}

fn put_data(out: &mut Output, structured: bool, cookie: u64, at: u64, data: Bytes) {
    out.put(|out| {
        if !structured {
            put_simple_reply(out, 0, cookie);
        } else if data.is_empty() {
            // A chunk of data must not be empty.
            put_chunk_head(out, chunk::NONE, cookie, 0);
        } else {
            put_chunk_head(out, chunk::OFFSET_DATA, cookie, 8 + data.len());
            out.put_u64(at);
        }
    });
    out.push(data);
}

fn put_extents(out: &mut Output, cookie: u64, descriptors: &[(u32, u32)]) {
    out.put(|out| {
        put_chunk_head(out, chunk::BLOCK_STATUS, cookie, 4 + 8 * descriptors.len());
        out.put_u32(ALLOCATION_ID);
        for &(len, state) in descriptors {
            out.put_u32(len);
            out.put_u32(state);
        }
    });
}

/// The extents as lengths and states: within `span`, neighbours of one state joined.
fn describe(span: Span, one: bool, extents: &[Extent]) -> Vec<(u32, u32)> {
    let most = if one { 1 } else { DESCRIPTORS_MAX };
    let mut descriptors: Vec<(u32, u32)> = Vec::new();
    for extent in extents {
        let len = extent.span.end().min(span.end()).saturating_sub(extent.span.at.max(span.at));
        // It fits: a request is about less than 4 GiB.
        let len = u32::try_from(len).expect("cut to the span of a request");
        // A hole that does not read as zeroes (under a seal, say) is told as data: clients such as
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
