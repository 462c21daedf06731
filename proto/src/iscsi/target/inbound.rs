//! The data-out of one task: what has come, what is asked for, and what is wrong with it (RFC 7143, 4.2.5.2 and 11.7).

use std::collections::VecDeque;

use bytes::Bytes;

use super::budget::Account;
use crate::iscsi::header::{DataOut, NO_TAG, ScsiCommand};
use crate::iscsi::keys::Parameters;
use crate::scsi::sense::{Additional, Format, Key};
use crate::scsi::{Sense, Status};

/// Below this, data that wait are copied. Larger ones are a good part of the buffer they came in.
const COMPACT_BELOW: usize = 16 << 10;

/// How the initiator broke a data transfer; each ends the task, not the session, with the sense data of
/// RFC 7143, 11.4.7.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Data nobody allowed to be sent.
    UnexpectedUnsolicitedData,
    /// More or less than announced, or at another place.
    IncorrectAmountOfData,
    /// Damaged on the way, or lost: a gap in DataSN means that, and level 0 cannot ask again.
    ProtocolServiceCrc,
    /// There is no room for it; it may be sent again.
    Full,
    /// Data that answer an R2T and name another unit than it did.
    OtherUnit,
    /// Both directions at once, which no unit here has a command for.
    Bidirectional,
}

impl Fault {
    /// The status it is answered with, and the sense data (RFC 7143, 11.4.7.2).
    pub(super) fn outcome(self) -> (Status, Bytes) {
        let (key, code, qualifier) = match self {
            Self::Full => return (Status::TaskSetFull, Bytes::new()),
            Self::UnexpectedUnsolicitedData => (Key::AbortedCommand, 0x0c, 0x0c),
            Self::IncorrectAmountOfData => (Key::AbortedCommand, 0x0c, 0x0d),
            Self::ProtocolServiceCrc => (Key::AbortedCommand, 0x47, 0x05),
            // INVALID INFORMATION UNIT.
            Self::OtherUnit => (Key::AbortedCommand, 0x0e, 0x00),
            // INVALID FIELD IN COMMAND INFORMATION UNIT.
            Self::Bidirectional => (Key::IllegalRequest, 0x0e, 0x03),
        };
        let sense = Sense::new(key, Additional { code, qualifier });
        (Status::CheckCondition, sense.emit(Format::Fixed).into())
    }
}

/// A run of Data-Out PDUs: unsolicited, or what answers one R2T.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    ttt: u32,
    /// Where its data begin in the transfer.
    offset: u32,
    /// How many bytes it is to carry.
    len: u32,
    data_sn: u32,
    received: u32,
    data: Vec<Bytes>,
    /// The PDU with the F bit is still to come.
    pub(super) open: bool,
}

impl Sequence {
    /// Takes one PDU. Its F bit counts even when the rest of it is wrong, since what matters then is
    /// when the initiator has ended.
    pub(super) fn take(&mut self, header: &DataOut, data: Bytes) -> Result<(), Fault> {
        self.open = !header.is_final;
        // RFC 7143, 11.7.5: DataSN counts from zero within each sequence.
        if header.data_sn != self.data_sn {
            return Err(Fault::ProtocolServiceCrc);
        }
        self.data_sn = self.data_sn.wrapping_add(1);
        let len = data.len() as u32;
        let follows = header.buffer_offset == self.offset.wrapping_add(self.received);
        if !follows || len > self.len - self.received {
            return Err(Fault::IncorrectAmountOfData);
        }
        self.received += len;
        if len > 0 {
            self.data.push(data);
        }
        // RFC 7143, 11.7.1: F ends a sequence, by when all that was announced has come. It may come alone,
        // in a PDU without data (11.7.7).
        let short = header.is_final && self.received < self.len;
        if short { Err(Fault::IncorrectAmountOfData) } else { Ok(()) }
    }
}

/// What an R2T asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct R2tRange {
    pub(super) r2t_sn: u32,
    pub(super) ttt: u32,
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// The data-out of one task.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    unsolicited: Sequence,
    /// In order of R2TSN, which is the order of offsets as well (RFC 7143, 13.19).
    solicited: VecDeque<Sequence>,
    /// How much the command block asks for, whatever was announced.
    asked: u32,
    /// How much is fetched: no more than announced.
    wanted: u32,
    /// How much was sent without asking or has been asked for.
    requested: u32,
    r2t_sn: u32,
    /// Bytes of the session's allowance of solicited data this task holds: no more is asked for.
    reserved: u32,
    /// How many of them have come.
    arrived: u32,
    /// Bytes of unsolicited data it holds, or has let the initiator send.
    unsolicited_held: u32,
}

impl Inbound {
    /// What a command brings and announces, and what is wrong with that.
    pub(super) fn begin(
        parameters: &Parameters,
        command: &ScsiCommand,
        data: Bytes,
    ) -> (Self, Option<Fault>) {
        let len = data.len() as u32;
        let expected = if command.write { command.expected_len } else { 0 };
        // RFC 7143, 13.14: immediate and unsolicited data together.
        let most = parameters.first_burst.min(expected);
        let more = command.write && !command.is_final;
        let fault = if command.read && command.write && expected > 0 {
            Some(Fault::Bidirectional)
        } else if (len > 0 && !(command.write && parameters.immediate_data))
            || (more && parameters.initial_r2t)
        {
            // RFC 7143, 13.10 and 13.11.
            Some(Fault::UnexpectedUnsolicitedData)
        } else if len > most || (more && len == most) {
            Some(Fault::IncorrectAmountOfData)
        } else {
            None
        };
        // With F clear, the unsolicited burst has its full length (RFC 7143, 4.2.5.2), so that the
        // rest can be asked for before it has come.
        let announced = if more { most } else { len };
        let unsolicited = Sequence {
            ttt: NO_TAG,
            len: announced.max(len),
            received: len,
            data: if len > 0 && fault.is_none() { vec![data] } else { Vec::new() },
            open: more,
            ..Sequence::default()
        };
        (Self { unsolicited, requested: announced, ..Self::default() }, fault)
    }

    /// Has its unsolicited data accounted for, those still to come among them.
    pub(super) fn hold(&mut self, account: &mut Account) -> Option<Fault> {
        if !account.take(self.unsolicited.len.into()) {
            return Some(Fault::Full);
        }
        self.unsolicited_held = self.unsolicited.len;
        None
    }

    /// The command asks for `asked` bytes, of which `announced` at most are fetched.
    pub(super) fn want(&mut self, asked: u32, announced: u32) {
        self.asked = asked;
        // Bytes beyond the expected length are never asked for (RFC 7143, 4.2.5.2 and 11.3.4).
        self.wanted = asked.min(announced);
    }

    /// How much the command block asks for, whatever was announced.
    pub(super) const fn asked(&self) -> u32 {
        self.asked
    }

    /// Bytes of unsolicited data that are accounted for.
    pub(super) const fn unsolicited_held(&self) -> u32 {
        self.unsolicited_held
    }

    /// Bytes of the session's allowance that it holds, and how many of them have come.
    pub(super) const fn solicited_held(&self) -> (u32, u32) {
        (self.reserved, self.arrived)
    }

    /// So many more may be asked for.
    pub(super) const fn reserve(&mut self, bytes: u32) {
        self.reserved += bytes;
    }

    /// So many that were asked for have come.
    pub(super) const fn arrive(&mut self, bytes: u32) {
        self.arrived += bytes;
    }

    /// Asks for the next of what is reserved: at most `burst` bytes (RFC 7143, 13.13), with at most `open_max` R2Ts open
    /// (13.17), in order of offset (13.19).
    pub(super) fn ask(
        &mut self,
        (open_max, burst): (u16, u32),
        tag: impl FnOnce() -> u32,
    ) -> Option<R2tRange> {
        let open = self.solicited.iter().filter(|sequence| sequence.open).count();
        let left = self.unasked();
        if left == 0 || open >= usize::from(open_max) {
            return None;
        }
        let (r2t_sn, ttt, offset, len) = (self.r2t_sn, tag(), self.requested, left.min(burst));
        let sequence = Sequence { ttt, offset, len, open: true, ..Sequence::default() };
        self.solicited.push_back(sequence);
        self.requested += len;
        self.r2t_sn += 1;
        Some(R2tRange { r2t_sn, ttt, offset, len })
    }

    /// Whether the initiator still sends.
    pub(super) fn is_open(&self) -> bool {
        self.unsolicited.open || self.solicited.iter().any(|sequence| sequence.open)
    }

    pub(super) fn is_complete(&self) -> bool {
        !self.is_open() && self.requested >= self.wanted
    }

    /// How much is to be asked for that nothing is reserved for.
    pub(super) fn unreserved(&self) -> u32 {
        self.wanted.saturating_sub(self.unsolicited.len).saturating_sub(self.reserved)
    }

    /// How much is reserved and not asked for.
    fn unasked(&self) -> u32 {
        self.reserved.saturating_sub(self.requested - self.unsolicited.len)
    }

    /// Whether the initiator was asked for data that have not come.
    pub(super) fn is_solicited(&self) -> bool {
        self.solicited.iter().any(|sequence| sequence.open)
    }

    pub(super) fn sequence(&mut self, ttt: u32) -> Option<&mut Sequence> {
        let all = std::iter::once(&mut self.unsolicited).chain(&mut self.solicited);
        let mut open = all.filter(|sequence| sequence.open);
        open.find(|sequence| sequence.ttt == ttt)
    }

    /// All data, in order of offset, cut to what is wanted.
    pub(super) fn take_data(&mut self) -> Vec<Bytes> {
        let mut data = std::mem::take(&mut self.unsolicited.data);
        for sequence in &mut self.solicited {
            data.append(&mut sequence.data);
        }
        let mut left = self.wanted as usize;
        data.retain_mut(|piece| {
            let len = piece.len();
            piece.truncate(left);
            left -= piece.len();
            if piece.len() < len.div_ceil(2) {
                // Whoever keeps them would keep what was sent beyond them too, and count it for nothing.
                *piece = Bytes::copy_from_slice(piece);
            }
            !piece.is_empty()
        });
        data
    }

    /// Data that wait for the rest leave the buffer they came in, if they are small: it may be much larger
    /// than they are, and nothing else be left of it.
    pub(super) fn compact(&mut self) {
        for data in self.unsolicited.data.iter_mut().filter(|data| data.len() < COMPACT_BELOW) {
            *data = Bytes::copy_from_slice(data);
        }
    }

    /// Drops what has come: it will not be used.
    pub(super) fn discard(&mut self) {
        self.unsolicited.data.clear();
        self.solicited.iter_mut().for_each(|sequence| sequence.data.clear());
    }
}
