//! The fixed newstyle handshake: options, until the client enters the transmission phase.

use crate::reader::{Reader, Truncated};
use bytes::{BufMut, BytesMut};

use super::export::Export;
use super::output::Output;
use super::violation::Violation;
use super::wire::{
    self, OptionHead, PAYLOAD_MAX, info, option, put_option_reply, rep, transmission,
};

pub(super) const CLIENT_FLAGS_LEN: usize = 4;

/// The data of the longest option a client may send. Names have at most 4096 bytes; the rest is for
/// queries of metadata contexts, of which only a handful make sense.
const OPTION_DATA_MAX: u32 = 64 << 10;

/// The only metadata context, and the number its states are reported under.
const ALLOCATION: &[u8] = b"base:allocation";
pub(super) const ALLOCATION_ID: u32 = 1;

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Agreed {
    fixed: bool,
    no_zeroes: bool,
    /// Replies to reads and block status are structured.
    pub(super) structured: bool,
    /// "base:allocation" was selected.
    pub(super) allocation: bool,
}

/// Where an option leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Option,
    Transmission,
    Close,
}

pub(super) fn put_greeting(out: &mut BytesMut) {
    out.put_u64(wire::NBDMAGIC);
    out.put_u64(wire::IHAVEOPT);
    out.put_u16(wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
}

pub(super) fn client_flags(bytes: &[u8]) -> Result<Agreed, Violation> {
    let flags = Reader::new(bytes).u32()?;
    let has = |flag: u16| flags & u32::from(flag) != 0;
    // "The server MUST close the connection on flags it does not know."
    if flags & !u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES) != 0 {
        return Err(Violation::ClientFlags(flags));
    }
    let (fixed, no_zeroes) = (has(wire::FIXED_NEWSTYLE), has(wire::NO_ZEROES));
    Ok(Agreed { fixed, no_zeroes, ..Agreed::default() })
}

/// How many bytes of data follow the head.
pub(super) fn option_len(head: OptionHead) -> Result<usize, Violation> {
    let OptionHead { option, len } = head;
    if len > OPTION_DATA_MAX {
        return Err(Violation::OptionTooLong { option, len });
    }
    Ok(len as usize)
}

/// Answers one option.
pub(super) fn option(
    out: &mut Output,
    export: &Export,
    agreed: &mut Agreed,
    option: u32,
    data: &[u8],
) -> Result<Next, Violation> {
    if !agreed.fixed && option != option::EXPORT_NAME {
        return Err(Violation::NotFixed(option));
    }
    let mut replies = Replies { out, option };
    match option {
        option::EXPORT_NAME => {
            if !is_served(data) {
                return Err(Violation::UnknownExport);
            }
            replies.out.put(|out| put_export(out, export, *agreed));
            return Ok(Next::Transmission);
        }
        option::ABORT => {
            replies.put(rep::ACK, &[]);
            return Ok(Next::Close);
        }
        option::LIST if data.is_empty() => {
            // One export, with the empty name.
            replies.put(rep::SERVER, &0_u32.to_be_bytes());
            replies.put(rep::ACK, &[]);
        }
        option::STRUCTURED_REPLY if data.is_empty() => {
            agreed.structured = true;
            replies.put(rep::ACK, &[]);
        }
        option::LIST | option::STRUCTURED_REPLY => {
            replies.refuse(rep::ERR_INVALID, "this option has no data");
        }
        option::INFO | option::GO => {
            if information(&mut replies, export, *agreed, data) && option == option::GO {
                return Ok(Next::Transmission);
            }
        }
        option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
            meta_context(&mut replies, export, agreed, data);
        }
        // STARTTLS and EXTENDED_HEADERS end here, as does what nobody has invented yet.
        _ => replies.refuse(rep::ERR_UNSUP, "this server does not know the option"),
    }
    Ok(Next::Option)
}

/// The replies to one option.
struct Replies<'a> {
    out: &'a mut Output,
    option: u32,
}

impl Replies<'_> {
    fn put(&mut self, reply: u32, data: &[u8]) {
        self.out.put(|out| put_option_reply(out, self.option, reply, data));
    }

    fn refuse(&mut self, reply: u32, why: &str) {
        self.put(reply, why.as_bytes());
    }
}

/// The default export is the only one.
fn is_served(name: &[u8]) -> bool {
    name.is_empty()
}

/// INFO and GO; whether the export may be entered.
fn information(replies: &mut Replies<'_>, export: &Export, agreed: Agreed, data: &[u8]) -> bool {
    let Ok((name, wanted)) = parse_information(data) else {
        replies.refuse(rep::ERR_INVALID, "the option is malformed");
        return false;
    };
    if !is_served(name) {
        replies.refuse(rep::ERR_UNKNOWN, "only the default export, with the empty name, is here");
        return false;
    }
    let mut item = BytesMut::new();
    item.put_u16(info::EXPORT);
    item.put_u64(export.size);
    item.put_u16(transmission_flags(export, agreed));
    replies.put(rep::INFO, &item);
    // Sent whether asked for or not: a client that does not know it ignores it.
    replies.put(rep::INFO, &block_size(export));
    if wanted.contains(&info::NAME) {
        replies.put(rep::INFO, &info::NAME.to_be_bytes());
    }
    if wanted.contains(&info::DESCRIPTION) {
        let item = [&info::DESCRIPTION.to_be_bytes(), export.description.as_bytes()].concat();
        replies.put(rep::INFO, &item);
    }
    replies.put(rep::ACK, &[]);
    true
}

fn parse_information(data: &[u8]) -> Result<(&[u8], Vec<u16>), Truncated> {
    let mut reader = Reader::new(data);
    let name = wire::string(&mut reader)?;
    let count = reader.u16()?;
    let wanted = (0..count).map(|_| reader.u16()).collect::<Result<_, _>>()?;
    Ok((name, wanted))
}

fn block_size(export: &Export) -> BytesMut {
    let mut item = BytesMut::new();
    item.put_u16(info::BLOCK_SIZE);
    item.put_u32(export.minimum_block_size);
    item.put_u32(export.preferred_block_size);
    item.put_u32(PAYLOAD_MAX);
    item
}

fn transmission_flags(export: &Export, agreed: Agreed) -> u16 {
    use transmission::*;
    // CAN_MULTI_CONN: a completed write is seen through every connection, and a flush covers what
    // completed on any of them. The driver owes that.
    let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_CACHE | CAN_MULTI_CONN;
    if agreed.structured {
        // Every read is answered in one chunk, so "do not fragment" is always honoured.
        flags |= SEND_DF;
    }
    if export.read_only {
        return flags | READ_ONLY;
    }
    if export.trim {
        flags |= SEND_TRIM;
    }
    flags | SEND_WRITE_ZEROES | SEND_FAST_ZERO
}

/// The answer to EXPORT_NAME, which has no head.
fn put_export(out: &mut BytesMut, export: &Export, agreed: Agreed) {
    out.put_u64(export.size);
    out.put_u16(transmission_flags(export, agreed));
    if !agreed.no_zeroes {
        out.put_bytes(0, 124);
    }
}

/// LIST_META_CONTEXT and SET_META_CONTEXT.
fn meta_context(replies: &mut Replies<'_>, export: &Export, agreed: &mut Agreed, data: &[u8]) {
    let set = replies.option == option::SET_META_CONTEXT;
    if set {
        // What was selected before is void, even if this option fails.
        agreed.allocation = false;
    }
    if !agreed.structured {
        return replies.refuse(rep::ERR_INVALID, "structured replies come first");
    }
    let Ok((name, queries)) = parse_meta_context(data) else {
        return replies.refuse(rep::ERR_INVALID, "the option is malformed");
    };
    if !is_served(name) {
        return replies.refuse(rep::ERR_UNKNOWN, "only the default export is here");
    }
    let listed = !set && (queries.is_empty() || queries.contains(&b"base:".as_slice()));
    if export.base_allocation && (listed || queries.contains(&ALLOCATION)) {
        agreed.allocation |= set;
        replies.put(rep::META_CONTEXT, &[&ALLOCATION_ID.to_be_bytes(), ALLOCATION].concat());
    }
    replies.put(rep::ACK, &[]);
}

fn parse_meta_context(data: &[u8]) -> Result<(&[u8], Vec<&[u8]>), Truncated> {
    let mut reader = Reader::new(data);
    let name = wire::string(&mut reader)?;
    let count = reader.u32()?;
    // Each query has at least its length, so the data bound the count whatever it claims.
    let queries = (0..count).map(|_| wire::string(&mut reader)).collect::<Result<_, _>>()?;
    Ok((name, queries))
}
