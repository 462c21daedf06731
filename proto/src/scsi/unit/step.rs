//! What is left to do for a command that is in order.

use super::super::Blocks;
use super::super::cdb::{CloseFunction, Compare, Form};
use super::super::reservation::{Out, ReserveInAction};
use super::super::sanitize::Method;
use super::super::sense::Format;
use super::changer_op::ChangerOp;
use super::tape_op::TapeOp;

/// What is left to do for a command that is in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: GOOD, with these data.
    Reply(Vec<u8>),
    /// Something with the state of the unit.
    Unit(UnitOp),
    /// Something with the medium.
    Medium(MediumOp),
    /// Something with the tape.
    Tape(TapeOp),
    /// Something with the elements of a media changer.
    Changer(ChangerOp),
    /// Close a track or a session of the disc.
    Close(CloseFunction),
    /// Take the data-out to [`lead_out`](super::optical::cue_sheet::lead_out): the session that they describe is written
    /// at once.
    CueSheet,
    /// Reserve so many blocks of the disc for the next track.
    ReserveTrack(u32),
    /// Take the parameter list to [`copy::List::parse`](crate::scsi::copy::List::parse), and copy between media.
    Copy,
}

/// What is to be done with the state of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitOp {
    /// Return a pending unit attention, or else the state of the unit, as sense data.
    RequestSense {
        /// How they are laid out.
        format: Format,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// List the units of the target with [`luns`](super::luns).
    ReportLuns {
        /// SELECT REPORT.
        select: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Return a page of [`log::sense`](crate::scsi::log::sense).
    LogSense {
        /// PAGE CODE.
        page: u8,
        /// SUBPAGE CODE.
        subpage: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Return the time of day, as [`log::emit_timestamp`](crate::scsi::log::emit_timestamp) tells it.
    ReportTimestamp {
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Take the parameter list to [`Unit::select`](super::Unit::select).
    Select(Form),
    /// Forbid or allow the initiator that asks to have the medium taken out.
    Prevent(bool),
    /// Take the medium out, unless an initiator forbids it.
    Eject {
        /// What is cached is made stable before.
        flush: bool,
    },
    /// Put it in again, likewise.
    Load,
    /// Stop the unit: from there on it is [`Stopped`](crate::scsi::readiness::Readiness::Stopped), if it was ready.
    Stop {
        /// What is cached is made stable before.
        flush: bool,
        /// The command ends at once; if the flush fails, that is told by a deferred error.
        immediate: bool,
    },
    /// Start the unit, if it is stopped.
    Start,
    /// Return what [`Reservations::report`](crate::scsi::reservation::Reservations::report) says.
    PersistentIn {
        /// SERVICE ACTION.
        action: ReserveInAction,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Take the parameter list to
    /// [`Reservations::prepare`](crate::scsi::reservation::Reservations::prepare).
    PersistentOut(Out),
    /// Reserve the unit for the session.
    Reserve,
    /// Undo that.
    Release,
    /// Make what is cached stable, after the command has ended; if that fails, it is told by a deferred error.
    FlushLater,
    /// Sanitize the medium; for an overwrite the data-out are those of [`Overwrite::parse`](crate::scsi::sanitize::Overwrite::parse).
    Sanitize {
        /// How.
        method: Method,
        /// The command ends when it has begun.
        immediate: bool,
        /// If it fails the medium may be used again without it.
        unrestricted: bool,
    },
    /// Use a medium again that could not be sanitized.
    SanitizeExit,
    /// Have the server carry out the request that is the data-out.
    CarryOut,
    /// Return its answer to the last one.
    ReturnAnswer {
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Return what [`MediaEvents::report`](crate::scsi::unit::optical::events::MediaEvents::report) says.
    EventStatus {
        /// Notification Class Request.
        classes: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Return what [`copy::status`](crate::scsi::copy::status) says of the copy `id` of this initiator, if one is known.
    CopyStatus {
        /// LIST IDENTIFIER.
        id: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
}

/// What is to be done with the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumOp {
    /// Read and return.
    Read(Blocks),
    /// Write the data-out.
    Write {
        /// Where.
        blocks: Blocks,
        /// They must be stable when the command ends.
        durable: bool,
    },
    /// Write the data-out, stable, then verify.
    WriteVerify(Blocks, Compare),
    /// Verify the medium.
    Verify(Blocks, Compare),
    /// Write one block many times over.
    WriteSame {
        /// Where.
        blocks: Blocks,
        /// Zeroes need not keep their space.
        release: bool,
        /// There are no data-out: zeroes are meant.
        no_data: bool,
        /// They must be stable when the command ends.
        durable: bool,
    },
    /// Write the second half of the data-out if the first equals what is there; nothing may come between.
    CompareAndWrite {
        /// Where.
        blocks: Blocks,
        /// They must be stable when the command ends.
        durable: bool,
    },
    /// Set the bits of the data-out; nothing may come between.
    OrWrite {
        /// Where.
        blocks: Blocks,
        /// They must be stable when the command ends.
        durable: bool,
    },
    /// Make what is cached stable.
    Flush,
    /// Write the data-out whole or not at all: no other command sees or changes part of them.
    WriteAtomic {
        /// Where.
        blocks: Blocks,
        /// They must be stable when the command ends.
        durable: bool,
    },
    /// Take the parameter list to [`Unit::unmap`](super::Unit::unmap), and discard.
    Unmap,
    /// Tell what is mapped from `lba` on.
    LbaStatus {
        /// The first block.
        lba: u64,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
}

/// GOOD, and nothing to return.
pub(super) const DONE: Step = Step::Reply(Vec::new());

impl From<UnitOp> for Step {
    fn from(op: UnitOp) -> Self {
        Self::Unit(op)
    }
}

impl From<MediumOp> for Step {
    fn from(op: MediumOp) -> Self {
        Self::Medium(op)
    }
}
