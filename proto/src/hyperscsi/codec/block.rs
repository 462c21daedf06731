//! Messages: fragments, command blocks and task management (spec, 7).

use bytes::{Buf as _, Bytes};

use crate::hyperscsi::command::{
    CDB_MAX, CDB_MIN, Command, Handle, Reply, Request, SENSE_MAX, TaskAttribute, TaskFunction,
};
use crate::reader::Reader;
use crate::scsi::status::Status;

/// Bytes of a fragment's own header.
pub(in crate::hyperscsi) const FRAGMENT_LEN: usize = 12;

/// Bytes of a request before the CDB.
pub(in crate::hyperscsi) const REQUEST_LEN: usize = 16;

/// Bytes of a reply before the sense data.
pub(in crate::hyperscsi) const REPLY_LEN: usize = 12;

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

/// A command's message before its data.
pub(in crate::hyperscsi) fn request_header(command: &Command) -> Bytes {
    let attribute = match command.attribute {
        TaskAttribute::Simple => 0,
        TaskAttribute::Ordered => 1,
        TaskAttribute::HeadOfQueue => 2,
        TaskAttribute::Aca => 3,
    };
    let mut bytes = Vec::with_capacity(REQUEST_LEN + command.cdb.len());
    bytes.extend_from_slice(&[BLOCK_VERSION, attribute]);
    bytes.extend_from_slice(&(command.cdb.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&command.data_in_len.to_be_bytes());
    bytes.extend_from_slice(&(command.data_out.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&command.cdb);
    bytes.into()
}

/// The command in a message for this device.
pub(in crate::hyperscsi) fn read_request(
    mut message: Bytes,
    device: Handle,
    priority: u8,
) -> Option<Command> {
    let mut reader = Reader::new(&message);
    if reader.u8().ok()? != BLOCK_VERSION {
        return None;
    }
    let attribute = match reader.u8().ok()? & 7 {
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
    let fits = (CDB_MIN..=CDB_MAX).contains(&cdb_len)
        && reader.rest().len() as u64 == cdb_len as u64 + u64::from(data_out_len);
    if !fits {
        return None;
    }
    message.advance(REQUEST_LEN);
    let cdb = message.split_to(cdb_len);
    Some(Command { device, cdb, data_out: message, data_in_len, attribute, priority })
}

/// A reply's message before its data; sense data beyond the limit are cut.
pub(in crate::hyperscsi) fn reply_header(reply: &Reply) -> Bytes {
    let sense = reply.sense.get(..SENSE_MAX).unwrap_or(&reply.sense);
    let mut bytes = Vec::with_capacity(REPLY_LEN + sense.len());
    bytes.extend_from_slice(&[reply.status as u8, 0]);
    bytes.extend_from_slice(&(sense.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&reply.residual.to_be_bytes());
    bytes.extend_from_slice(&(reply.data_in.len() as u32).to_be_bytes());
    bytes.extend_from_slice(sense);
    bytes.into()
}

/// The reply in a message.
pub(in crate::hyperscsi) fn read_reply(mut message: Bytes) -> Option<Reply> {
    let mut reader = Reader::new(&message);
    let status = Status::from_byte(reader.u8().ok()?)?;
    reader.u8().ok()?;
    let sense_len = usize::from(reader.u16().ok()?);
    let residual = i32::from_be_bytes(reader.array().ok()?);
    let data_in_len = u64::from(reader.u32().ok()?);
    let fits =
        sense_len <= SENSE_MAX && reader.rest().len() as u64 == sense_len as u64 + data_in_len;
    if !fits {
        return None;
    }
    message.advance(REPLY_LEN);
    let sense = message.split_to(sense_len);
    Some(Reply { status, sense, residual, data_in: message })
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
        let message = [&request_header(&command)[..], &command.data_out].concat();
        assert_eq!(read_request(message.clone().into(), Handle(3), 9), Some(command));
        let cut = Bytes::copy_from_slice(&message[..message.len() - 1]);
        assert_eq!(read_request(cut, Handle(3), 9), None);
    }

    #[test]
    fn reply_read_after_writing_is_the_same() {
        let reply = Reply {
            status: Status::CheckCondition,
            sense: Bytes::from_static(&[0x70, 0, 5]),
            residual: -4,
            data_in: Bytes::from_static(b"abc"),
        };
        let message = [&reply_header(&reply)[..], &reply.data_in].concat();
        assert_eq!(read_reply(message.into()), Some(reply));
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
