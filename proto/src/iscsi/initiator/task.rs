//! One command in flight: the data it sends and the data it receives.

use bytes::{Bytes, BytesMut};

use super::connection::{Connection, push_next};
use super::{Command, Completion, Misbehaviour, TaskError, Transfer};
use crate::iscsi::header::{
    DataIn, DataOut, NO_TAG, R2t, ResponseCode, ScsiCommand, ScsiResponse, TaskAttribute,
};
use crate::iscsi::keys::Parameters;
use crate::iscsi::pdu::Pieces;
use crate::reader::Reader;
use crate::scsi::cdb::{self, DataKind, Pace};
use crate::scsi::{DeviceType, Residual, Sense, Status, lun};

/// A command in flight.
#[derive(Debug)]
pub(super) struct Task<T> {
    pub(super) token: T,
    pub(super) cmd_sn: u32,
    pub(super) lun: u64,
    /// The connection it was sent by: all that belongs to it goes by that (RFC 7143, 4.2.5.1).
    pub(super) on: usize,
    /// What it adds to what is outstanding there.
    pub(super) weight: u64,
    /// The span in which it was sent.
    pub(super) span: u64,
    /// The operation code.
    pub(super) operation: u8,
    /// How long it may take.
    pub(super) pace: Pace,
    itt: u32,
    /// All its data belong on the medium.
    writes_its_data: bool,
    /// The number the next Data-In or R2T must have (RFC 7143, 4.2.2.4).
    next_sn: u32,
    data: Data,
}

#[derive(Debug)]
enum Data {
    None,
    In {
        expected: u32,
        received: Received,
        /// What comes is as long as it says itself, whatever the residual says.
        tells_its_length: bool,
    },
    /// What has not been sent, and where it begins.
    Out {
        offset: u32,
        left: Pieces,
    },
}

/// Data that came in. Where one PDU brings everything it stays the slice it is; otherwise the pieces
/// are joined in a buffer of the expected size, so that many small ones cost no more than few large.
#[derive(Debug)]
enum Received {
    Slice(Bytes),
    Joined(BytesMut),
}

impl Received {
    fn len(&self) -> usize {
        match self {
            Self::Slice(bytes) => bytes.len(),
            Self::Joined(bytes) => bytes.len(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Slice(bytes) => bytes,
            Self::Joined(bytes) => bytes.freeze(),
        }
    }
}

/// How a command has ended.
pub(super) struct Ended<T> {
    pub(super) token: T,
    pub(super) result: Result<Completion, TaskError>,
    /// The residual does not fit what came, which is used all the same.
    pub(super) wrong_residual: bool,
}

/// What identifies a command and its place.
pub(super) struct CommandPlace {
    pub(super) itt: u32,
    pub(super) cmd_sn: u32,
    /// The connection.
    pub(super) on: usize,
}

/// What a command without data adds to what is outstanding on its connection: its PDU and the answer.
const BARE: u64 = 128;

/// What a command adds to what is outstanding on its connection.
fn weight(transfer: &Transfer) -> u64 {
    BARE + match transfer {
        Transfer::None => 0,
        Transfer::In(expected) => u64::from(*expected),
        Transfer::Out(data) => data.len() as u64,
    }
}

/// The length of a transfer, as the header has it.
fn length(pieces: &Pieces) -> u32 {
    u32::try_from(pieces.len()).expect("a transfer is bounded far below 4 GiB")
}

impl<T> Task<T> {
    /// Sends the command, with as much of its data as may travel unasked (RFC 7143, 4.2.5.2).
    pub(super) fn send(
        command: Command,
        token: T,
        place: &CommandPlace,
        parameters: &Parameters,
        connection: &mut Connection,
    ) -> Self {
        let CommandPlace { itt, cmd_sn, on } = *place;
        let Command { lun, cdb, transfer, is_ordered } = command;
        let attribute = if is_ordered { TaskAttribute::ORDERED } else { TaskAttribute::SIMPLE };
        let (weight, exp_stat_sn) = (weight(&transfer), connection.exp_stat_sn);
        let (traits, operation) = (cdb::traits_of(&cdb, DeviceType::Disk), cdb[0]);
        let (pace, span) = (traits.pace, connection.progress.sent(traits.pace));
        connection.outstanding += weight;
        let header = ScsiCommand {
            is_final: true,
            attribute,
            lun,
            itt,
            cmd_sn,
            exp_stat_sn,
            cdb,
            ..ScsiCommand::default()
        };
        let data = match transfer {
            Transfer::None => {
                connection.outbox.push(header);
                Data::None
            }
            Transfer::In(expected) => {
                connection.outbox.push(ScsiCommand {
                    read: true,
                    expected_len: expected,
                    ..header
                });
                Data::In {
                    expected,
                    received: Received::Slice(Bytes::new()),
                    tells_its_length: traits.data == DataKind::Parameters,
                }
            }
            Transfer::Out(left) => {
                let header = ScsiCommand { write: true, expected_len: length(&left), ..header };
                send_unsolicited(header, left, parameters, connection)
            }
        };
        Self {
            token,
            cmd_sn,
            lun,
            on,
            weight,
            span,
            operation,
            pace,
            itt,
            writes_its_data: traits.data == DataKind::Stored,
            next_sn: 0,
            data,
        }
    }

    /// Takes data. Since DataPDUInOrder and DataSequenceInOrder are Yes, each piece begins where the
    /// one before ended.
    pub(super) fn data_in(&mut self, header: &DataIn, piece: Bytes) -> Result<(), Misbehaviour> {
        let Data::In { expected, received, .. } = &mut self.data else {
            return Err(Misbehaviour::DataInBeyondExpected);
        };
        let end = received.len() + piece.len();
        if end > *expected as usize {
            return Err(Misbehaviour::DataInBeyondExpected);
        }
        if header.data_sn != self.next_sn || header.buffer_offset as usize != received.len() {
            return Err(Misbehaviour::DataInOutOfOrder);
        }
        self.next_sn = self.next_sn.wrapping_add(1);
        match received {
            Received::Joined(bytes) => bytes.extend_from_slice(&piece),
            Received::Slice(first) if first.is_empty() => *first = piece,
            Received::Slice(first) => {
                let mut bytes = BytesMut::with_capacity(*expected as usize);
                bytes.extend_from_slice(first);
                bytes.extend_from_slice(&piece);
                *received = Received::Joined(bytes);
            }
        }
        Ok(())
    }

    /// Sends what an R2T asks for, as the connection takes it. R2Ts come in the order of the data, so that a
    /// target cannot have the same bytes sent again and again.
    pub(super) fn ready(
        &mut self,
        r2t: &R2t,
        parameters: &Parameters,
        connection: &mut Connection,
    ) -> Result<(), Misbehaviour> {
        if !lun::is_same(r2t.lun, self.lun) {
            return Err(Misbehaviour::R2tOfOtherUnit);
        }
        let Data::Out { offset, left } = &mut self.data else {
            return Err(Misbehaviour::R2tBeyondBuffer);
        };
        if r2t.desired_len == 0 || r2t.desired_len > parameters.max_burst {
            return Err(Misbehaviour::R2tLength(r2t.desired_len));
        }
        if r2t.r2t_sn != self.next_sn || r2t.buffer_offset != *offset {
            return Err(Misbehaviour::R2tOutOfOrder);
        }
        if r2t.desired_len > length(left) {
            return Err(Misbehaviour::R2tBeyondBuffer);
        }
        self.next_sn = self.next_sn.wrapping_add(1);
        let header = DataOut {
            lun: r2t.lun,
            itt: self.itt,
            ttt: r2t.ttt,
            buffer_offset: *offset,
            ..DataOut::default()
        };
        *offset += r2t.desired_len;
        connection.progress.moved(self.span);
        connection.solicit(header, left.split_front(r2t.desired_len as usize), self.span);
        Ok(())
    }

    /// The command has ended with a Data-In that carries the status; it has no sense data.
    pub(super) fn end_with_data(self, header: &DataIn) -> Ended<T> {
        let residual = residual(header.overflow, header.underflow, header.residual);
        self.complete(header.status, residual, Bytes::new())
    }

    /// The command has ended with a response of its own; `data` are sense data behind their length.
    pub(super) fn end(self, header: &ScsiResponse, data: &Bytes) -> Ended<T> {
        if header.response != ResponseCode::COMPLETED {
            return self.fail(TaskError::Target(header.response));
        }
        let residual = residual(header.overflow, header.underflow, header.residual);
        self.complete(header.status, residual, sense(data))
    }

    fn complete(self, status: u8, mut residual: Residual, sense: Bytes) -> Ended<T> {
        let Some(status) = Status::from_byte(status) else {
            return self.fail(TaskError::UnknownStatus(status));
        };
        let mut wrong_residual = false;
        if is_success(status, &sense)
            && let Some((moved, due, tells_its_length)) = self.moved(residual)
            && moved != due
        {
            if matches!(self.data, Data::Out { .. }) && is_end_of_medium(&sense) {
                // A tape drive may write a part there, and the one who writes goes on with the rest.
                residual = Residual::Under(due.saturating_sub(moved));
            } else if !tells_its_length {
                return self.fail(TaskError::DataMissing { received: moved, expected: due });
            } else {
                wrong_residual = true;
            }
        }
        let data = match self.data {
            Data::In { received, .. } => received.into_bytes(),
            Data::None | Data::Out { .. } => Bytes::new(),
        };
        let completion = Completion { status, data, sense, residual };
        Ended { token: self.token, result: Ok(completion), wrong_residual }
    }

    /// How many bytes were moved, how many had to be, and whether the first is to be believed if they differ.
    fn moved(&self, residual: Residual) -> Option<(u32, u32, bool)> {
        let under = match residual {
            Residual::Under(under) => under,
            Residual::None | Residual::Over(_) => 0,
        };
        match &self.data {
            Data::In { expected, received, tells_its_length } => {
                let received = u32::try_from(received.len()).unwrap_or(u32::MAX);
                Some((received, expected.saturating_sub(under), *tells_its_length))
            }
            // What was not asked for was not written, nor what the target says it has no use for.
            Data::Out { offset, left } if self.writes_its_data => {
                let all = offset.saturating_add(length(left));
                Some(((*offset).min(all.saturating_sub(under)), all, false))
            }
            Data::None | Data::Out { .. } => None,
        }
    }

    fn fail(self, error: TaskError) -> Ended<T> {
        Ended { token: self.token, result: Err(error), wrong_residual: false }
    }
}

/// Sends a write command: immediate data in its own PDU, then the rest of the first burst in
/// unsolicited Data-Out PDUs, if both were agreed on (RFC 7143, 11.3.4 and 11.7).
fn send_unsolicited(
    header: ScsiCommand,
    mut left: Pieces,
    parameters: &Parameters,
    connection: &mut Connection,
) -> Data {
    let first_burst = length(&left).min(parameters.first_burst);
    let immediate = match parameters.immediate_data {
        true => first_burst.min(connection.segment),
        false => 0,
    };
    let unsolicited = if parameters.initial_r2t { 0 } else { first_burst - immediate };
    // F says that no unsolicited data follow the command.
    let header = ScsiCommand { is_final: unsolicited == 0, ..header };
    connection.outbox.push_from(header, &mut left, immediate as usize);
    if unsolicited > 0 {
        let header = DataOut {
            lun: header.lun,
            itt: header.itt,
            ttt: NO_TAG,
            exp_stat_sn: header.exp_stat_sn,
            buffer_offset: immediate,
            ..DataOut::default()
        };
        send_sequence(header, &mut left, unsolicited, connection);
    }
    Data::Out { offset: immediate + unsolicited, left }
}

/// Sends one sequence of Data-Out PDUs.
fn send_sequence(mut header: DataOut, left: &mut Pieces, len: u32, connection: &mut Connection) {
    let mut rest = len as usize;
    while rest > 0 {
        rest = push_next(&mut connection.outbox, connection.segment, &mut header, left, rest);
    }
}

/// EOM: the place of a tape is at or near its end.
fn is_end_of_medium(sense: &[u8]) -> bool {
    Sense::parse(sense).is_some_and(|sense| sense.stream.end_of_medium)
}

/// Whether a command that ends so was carried out.
fn is_success(status: Status, sense: &[u8]) -> bool {
    match status {
        Status::Good | Status::ConditionMet => true,
        Status::CheckCondition => Sense::parse(sense).is_some_and(|sense| sense.is_success()),
        _ => false,
    }
}

const fn residual(overflow: bool, underflow: bool, count: u32) -> Residual {
    match (overflow, underflow) {
        (false, true) => Residual::Under(count),
        (true, false) => Residual::Over(count),
        // Both exclude each other (RFC 7143, 11.4.5): then neither says anything.
        _ => Residual::None,
    }
}

/// Sense data stand behind their length (RFC 7143, 11.4.7.2); what is cut off is left out.
pub(super) fn sense(data: &Bytes) -> Bytes {
    let mut reader = Reader::new(data);
    let Ok(len) = reader.u16() else { return Bytes::new() };
    let len = reader.rest().len().min(len.into());
    reader.take(len).map(|sense| data.slice_ref(sense)).unwrap_or_default()
}
