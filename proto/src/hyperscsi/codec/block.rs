//! Messages: fragments, command blocks and task management (spec, 7).

use bytes::{Buf as _, Bytes};

use crate::hyperscsi::command::{
    CDB_MAX, CDB_MIN, Command, Handle, Reply, Request, SENSE_MAX, TaskAttribute, TaskFunction,
};
use crate::hyperscsi::compression::Compression;
use crate::reader::Reader;
use crate::scsi::status::Status;

/// Bytes of a fragment's own header.
pub(in crate::hyperscsi) const FRAGMENT_LEN: usize = 12;

/// Bytes of a request before the CDB.
pub(in crate::hyperscsi) const REQUEST_LEN: usize = 16;

/// Bytes of a reply before the sense data.
pub(in crate::hyperscsi) const REPLY_LEN: usize = 12;

/// Bytes of the checksum of data, where one was agreed on.
pub(in crate::hyperscsi) const CHECKSUM_LEN: usize = 4;

/// The checksum of data, as it stands before them (spec, 7.7).
fn checksum(data: &[u8]) -> [u8; CHECKSUM_LEN] {
    crc_fast::crc32_iscsi(data).to_be_bytes()
}

/// Whether data have checksums, now and as set-up has agreed on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::hyperscsi) struct Checksum {
    at_setup: bool,
    pub(in crate::hyperscsi) now: bool,
}

impl Checksum {
    pub(in crate::hyperscsi) const fn at_setup(at_setup: bool) -> Self {
        Self { at_setup, now: at_setup }
    }

    /// In the second byte of a request.
    const fn flag(self) -> u8 {
        if self.now == self.at_setup { 0 } else { OTHER_CHECKSUM }
    }

    /// Whether the data of this request, and those of its reply, have one.
    pub(in crate::hyperscsi) fn of_request(self, message: &[u8]) -> bool {
        let is_other = message.get(1).is_some_and(|form| form & OTHER_CHECKSUM != 0);
        self.at_setup != is_other
    }
}

/// Data that are not those of their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hyperscsi) struct WrongChecksum;

/// Takes a checksum from the front of a message, if there is one.
fn take_checksum(message: &mut Bytes, has_checksum: bool) -> Option<Option<Bytes>> {
    if !has_checksum {
        return Some(None);
    }
    (message.len() >= CHECKSUM_LEN).then(|| Some(message.split_to(CHECKSUM_LEN)))
}

/// The longest message of management.
pub(in crate::hyperscsi) const MANAGE_MAX: u32 = 65536;

const BLOCK_VERSION: u8 = 1;

/// The header of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hyperscsi) struct Fragment {
    pub(in crate::hyperscsi) seq: u32,
    pub(in crate::hyperscsi) offset: u32,
    pub(in crate::hyperscsi) message_len: u32,
}

impl Fragment {
    pub(in crate::hyperscsi) fn emit(&self) -> [u8; FRAGMENT_LEN] {
        let mut bytes = [0; FRAGMENT_LEN];
        bytes[..4].copy_from_slice(&self.seq.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.offset.to_be_bytes());
        bytes[8..].copy_from_slice(&self.message_len.to_be_bytes());
        bytes
    }

    /// The header, and its bytes of the message; they lie within it and are at least one.
    pub(in crate::hyperscsi) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let mut reader = Reader::new(bytes);
        let fragment = Self {
            seq: reader.u32().ok()?,
            offset: reader.u32().ok()?,
            message_len: reader.u32().ok()?,
        };
        let payload = reader.rest();
        let end = u32::try_from(payload.len()).ok()?.checked_add(fragment.offset)?;
        (!payload.is_empty() && end <= fragment.message_len).then_some((fragment, payload))
    }
}

/// Whether a sequence number is an older one than `other` (RFC 1982, 3.2). One that is half the numbers older cannot come: the
/// replay window is far shorter.
pub(in crate::hyperscsi) const fn precedes(seq: u32, other: u32) -> bool {
    seq.wrapping_sub(other) > u32::MAX / 2
}

/// Where the second byte of a request tells how its data are compressed; below it stands the attribute.
const COMPRESSION_SHIFT: u8 = 4;

/// In the same byte: that there is a checksum although set-up has agreed on none, or the other way round (spec, 7.3).
const OTHER_CHECKSUM: u8 = 8;

/// The message of a command: its header, and its data as they are sent.
pub(in crate::hyperscsi) fn write_request(
    command: Command,
    compression: &mut Compression,
    kind: Checksum,
) -> (Bytes, Bytes) {
    let data_out_len = command.data_out.len() as u32;
    let checksum = kind.now.then(|| checksum(&command.data_out));
    let (algorithm, data) = compression.compress(command.data_out);
    let attribute = match command.attribute {
        TaskAttribute::Simple => 0,
        TaskAttribute::Ordered => 1,
        TaskAttribute::HeadOfQueue => 2,
        TaskAttribute::Aca => 3,
    };
    let mut bytes = Vec::with_capacity(REQUEST_LEN + command.cdb.len());
    let form = algorithm << COMPRESSION_SHIFT | kind.flag() | attribute;
    bytes.extend_from_slice(&[BLOCK_VERSION, form]);
    bytes.extend_from_slice(&(command.cdb.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&command.data_in_len.to_be_bytes());
    bytes.extend_from_slice(&data_out_len.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&command.cdb);
    bytes.extend(checksum.into_iter().flatten());
    (bytes.into(), data)
}

/// The command in a message for this device, with at most `data_max` bytes of data.
pub(in crate::hyperscsi) fn read_request(
    mut message: Bytes,
    (device, priority): (Handle, u8),
    data_max: u32,
    compression: &Compression,
    has_checksum: bool,
) -> Option<Result<Command, WrongChecksum>> {
    let mut reader = Reader::new(&message);
    if reader.u8().ok()? != BLOCK_VERSION {
        return None;
    }
    let form = reader.u8().ok()?;
    let attribute = match form & 7 {
        0 => TaskAttribute::Simple,
        1 => TaskAttribute::Ordered,
        2 => TaskAttribute::HeadOfQueue,
        3 => TaskAttribute::Aca,
        _ => return None,
    };
    let cdb_len = usize::from(reader.u16().ok()?);
    let data_in_len = reader.u32().ok()?;
    let data_out_len = reader.u32().ok()?;
    reader.take(REQUEST_LEN - 12).ok()?;
    let fits = (CDB_MIN..=CDB_MAX).contains(&cdb_len) && cdb_len <= reader.rest().len();
    if !fits || data_out_len > data_max {
        return None;
    }
    message.advance(REQUEST_LEN);
    let cdb = message.split_to(cdb_len);
    let expected = take_checksum(&mut message, has_checksum)?;
    let data_out = compression.restore(form >> COMPRESSION_SHIFT, message, data_out_len)?;
    if expected.is_some_and(|expected| expected != checksum(&data_out)[..]) {
        return Some(Err(WrongChecksum));
    }
    Some(Ok(Command { device, cdb, data_out, data_in_len, attribute, priority }))
}

/// The message of a reply: its header, in which sense data beyond the limit are cut, and its data as they are sent.
pub(in crate::hyperscsi) fn write_reply(
    reply: Reply,
    compression: &mut Compression,
    has_checksum: bool,
) -> (Bytes, Bytes) {
    let data_in_len = reply.data_in.len() as u32;
    let checksum = has_checksum.then(|| checksum(&reply.data_in));
    let (algorithm, data) = compression.compress(reply.data_in);
    let sense = reply.sense.get(..SENSE_MAX).unwrap_or(&reply.sense);
    let mut bytes = Vec::with_capacity(REPLY_LEN + sense.len());
    bytes.extend_from_slice(&[reply.status as u8, algorithm]);
    bytes.extend_from_slice(&(sense.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&reply.residual.to_be_bytes());
    bytes.extend_from_slice(&data_in_len.to_be_bytes());
    bytes.extend_from_slice(sense);
    bytes.extend(checksum.into_iter().flatten());
    (bytes.into(), data)
}

/// The reply in a message, with at most `data_max` bytes of data.
pub(in crate::hyperscsi) fn read_reply(
    mut message: Bytes,
    data_max: u32,
    compression: &Compression,
    has_checksum: bool,
) -> Option<Result<Reply, WrongChecksum>> {
    let mut reader = Reader::new(&message);
    let status = Status::from_byte(reader.u8().ok()?)?;
    let algorithm = reader.u8().ok()?;
    let sense_len = usize::from(reader.u16().ok()?);
    let residual = i32::from_be_bytes(reader.array().ok()?);
    let data_in_len = reader.u32().ok()?;
    let fits = sense_len <= SENSE_MAX && sense_len <= reader.rest().len();
    if !fits || data_in_len > data_max {
        return None;
    }
    message.advance(REPLY_LEN);
    let sense = message.split_to(sense_len);
    let expected = take_checksum(&mut message, has_checksum)?;
    let data_in = compression.restore(algorithm, message, data_in_len)?;
    if expected.is_some_and(|expected| expected != checksum(&data_in)[..]) {
        return Some(Err(WrongChecksum));
    }
    Some(Ok(Reply { status, sense, residual, data_in }))
}

/// The request of a task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hyperscsi) struct TaskRequest(pub(in crate::hyperscsi) TaskFunction);

impl TaskRequest {
    pub(in crate::hyperscsi) fn emit(self) -> Bytes {
        let none = Request { slot: 0, seq: 0 };
        let (code, of) = match self.0 {
            TaskFunction::AbortTask(of) => (1, of),
            TaskFunction::AbortTaskSet => (2, none),
            TaskFunction::ClearAca => (3, none),
            TaskFunction::ClearTaskSet => (4, none),
            TaskFunction::LogicalUnitReset => (5, none),
        };
        let mut bytes = vec![code, 0];
        bytes.extend_from_slice(&of.slot.to_be_bytes());
        bytes.extend_from_slice(&of.seq.to_be_bytes());
        bytes.into()
    }

    /// The function; `Err` if it is not known, `None` if this is no request.
    pub(in crate::hyperscsi) fn parse(bytes: &[u8]) -> Option<Result<Self, u8>> {
        let mut reader = Reader::new(bytes);
        let code = reader.u8().ok()?;
        reader.u8().ok()?;
        let of = Request { slot: reader.u16().ok()?, seq: reader.u32().ok()? };
        if !reader.rest().is_empty() {
            return None;
        }
        Some(Ok(Self(match code {
            1 => TaskFunction::AbortTask(of),
            2 => TaskFunction::AbortTaskSet,
            3 => TaskFunction::ClearAca,
            4 => TaskFunction::ClearTaskSet,
            5 => TaskFunction::LogicalUnitReset,
            code => return Some(Err(code)),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hyperscsi::compression::run_length;

    #[test]
    fn command_read_after_writing_is_the_same() {
        let command = Command {
            device: Handle(3),
            cdb: Bytes::from_static(&[0x8a; 16]),
            data_out: Bytes::from_static(b"data"),
            data_in_len: 77,
            attribute: TaskAttribute::Ordered,
            priority: 9,
        };
        let read =
            |message, data_max| read_request(message, (Handle(3), 9), data_max, &none(), false);
        let (header, data) = write_request(command.clone(), &mut none(), Checksum::default());
        let message = Bytes::from([header, data].concat());
        assert_eq!(read(message.clone(), 4), Some(Ok(command)));
        assert_eq!(read(message.clone(), 3), None);
        assert_eq!(read(message.slice(..message.len() - 1), 4), None);
    }

    fn none() -> Compression {
        Compression::default()
    }

    /// What is compressed to few bytes is still not longer than was agreed on.
    #[test]
    fn compressed_data_are_restored_up_to_the_agreed_length() {
        let mut agreed = Compression::agreed(run_length::CODECS, 1);
        let data = Bytes::from(vec![7; 5000]);
        let command = Command {
            device: Handle(3),
            cdb: Bytes::from_static(&[0x8a; 16]),
            data_out: data.clone(),
            data_in_len: 0,
            attribute: TaskAttribute::Simple,
            priority: 0,
        };
        let (header, sent) = write_request(command.clone(), &mut agreed, Checksum::at_setup(true));
        assert!(sent.len() < 100);
        let message = Bytes::from([header, sent].concat());
        let read = |data_max, agreed: &Compression| {
            read_request(message.clone(), (Handle(3), 0), data_max, agreed, true)
        };
        assert_eq!(read(5000, &agreed), Some(Ok(command)));
        assert_eq!(read(4999, &agreed), None);
        assert_eq!(read(5000, &none()), None, "it was not agreed on");
        let reply = Reply { data_in: data, ..Reply::status(Status::Good) };
        let (header, sent) = write_reply(reply.clone(), &mut agreed, true);
        let message = Bytes::from([header, sent].concat());
        assert_eq!(read_reply(message.clone(), 5000, &agreed, true), Some(Ok(reply)));
        assert_eq!(read_reply(message, 4999, &agreed, true), None);
    }

    #[test]
    fn reply_read_after_writing_is_the_same() {
        let reply = Reply {
            status: Status::CheckCondition,
            sense: Bytes::from_static(&[0x70, 0, 5]),
            residual: -4,
            data_in: Bytes::from_static(b"abc"),
        };
        let (header, data) = write_reply(reply.clone(), &mut none(), false);
        let message = Bytes::from([header, data].concat());
        assert_eq!(read_reply(message, 3, &none(), false), Some(Ok(reply)));
    }

    #[test]
    fn fragment_beyond_its_message_is_refused() {
        let mut bytes = Fragment { seq: 1, offset: 8, message_len: 10 }.emit().to_vec();
        bytes.extend_from_slice(b"abc");
        assert_eq!(Fragment::parse(&bytes), None);
        bytes.pop();
        assert!(Fragment::parse(&bytes).is_some());
    }

    #[test]
    fn task_function_parsed_after_emitting_is_the_same() {
        let function = TaskRequest(TaskFunction::AbortTask(Request { slot: 7, seq: 9 }));
        assert_eq!(TaskRequest::parse(&function.emit()), Some(Ok(function)));
    }
}
