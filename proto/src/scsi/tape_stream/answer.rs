//! How commands on a tape end, and what follows from it.

use bytes::Bytes;

use crate::scsi::sense::{Additional, Key, Stream};
use crate::scsi::{Sense, Status};

/// How a command ended at the drive.
#[derive(Clone, Debug)]
pub struct Answer {
    /// STATUS.
    pub status: Status,
    /// What the sense data say, if there are any.
    pub sense: Option<Sense>,
    /// The data-in.
    pub data: Bytes,
    /// Bytes that were not transferred, as the transport says.
    pub residual: u32,
}

/// Why a stream has ended before its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// 27h.
    #[error("the tape is write-protected, or the server lets this client only read it")]
    WriteProtected,
    /// 30h/0Ch.
    #[error("the tape is one that is written once, and something is recorded behind the head")]
    WriteOnce,
    /// 3Ah.
    #[error("there is no tape in the drive")]
    NoTape,
    /// 28h, or what was written before is not there.
    #[error("another tape may be in the drive: {0}")]
    OtherTape(&'static str),
    /// The session, or the drive, was reset before anything was known to be on the tape.
    #[error(
        "the connection was lost, or the drive reset, before the first block was known to be on the tape: nothing proves that the same tape is in the drive"
    )]
    Unproven,
    /// 30h.
    #[error("the drive cannot use this tape: {0}")]
    Incompatible(Sense),
    /// RESERVATION CONFLICT, or a reservation that was taken away.
    #[error("another initiator has reserved the drive")]
    Reserved,
    /// BLANK CHECK where something was expected.
    #[error("nothing is recorded there: the tape ends before block {0}")]
    Blank(u64),
    /// The medium or the drive failed.
    #[error("the drive fails at block {object} of the tape: {sense}")]
    Medium {
        /// Blocks and file marks before it.
        object: u64,
        /// What it says.
        sense: Sense,
    },
    /// A command that had ended with GOOD.
    #[error("the drive could not write what it had acknowledged: {0}")]
    Deferred(Sense),
    /// A block is not as long as asked for, where all have one length.
    #[error("block {0} of the tape has another length than the one asked for")]
    OtherLength(u64),
    /// A block is longer each time it is read.
    #[error("the drive gives block {0} of the tape another length each time it is read")]
    LengthChanges(u64),
    /// Fewer bytes than a block has were transferred, and nothing was said of it.
    #[error("only a part of block {0} of the tape was transferred, and the drive does not say why")]
    Partial(u64),
    /// The head cannot be put where it belongs.
    #[error("the head of the drive is not where it belongs, before block {expected}: {found}")]
    NotPlaced {
        /// Where it should be.
        expected: u64,
        /// Where it is.
        found: String,
    },
    /// What was lost cannot be written again.
    #[error(
        "the connection was lost, and the drive knows no LOCATE, so that the head cannot be put where it belongs"
    )]
    NoLocate,
    /// It is refused again and again.
    #[error("the drive ends one command after the other with {0}")]
    Again(String),
    /// Anything else.
    #[error("the drive reports {0}")]
    Sense(Sense),
    /// CHECK CONDITION without sense data, or a status that means nothing here.
    #[error("the drive answers {0:?}")]
    Status(Status),
}

/// What kept a command from being done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It was not carried out, for a reason that passes.
    Again {
        /// What lay in the buffer of the drive may be lost.
        is_reset: bool,
        /// That reason.
        why: String,
    },
    /// There is no room.
    Full,
    /// The end of the data.
    EndOfData(Sense),
    /// Anything else.
    Failed(StreamError),
}

impl From<StreamError> for Trouble {
    fn from(why: StreamError) -> Self {
        Self::Failed(why)
    }
}

/// What a command that was done has met: FILEMARK, EOM and ILI, and how much was left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Remark {
    pub(super) stream: Stream,
    pub(super) left: Option<u64>,
}

/// What an answer says of a command before which so many objects lie.
pub(super) fn judge(answer: &Answer, object: u64) -> Result<Remark, Trouble> {
    match (answer.status, answer.sense) {
        (Status::Good | Status::ConditionMet, _) => Ok(Remark::default()),
        (Status::ReservationConflict, _) => Err(StreamError::Reserved.into()),
        (status @ (Status::Busy | Status::TaskSetFull | Status::TaskAborted), _) => {
            Err(Trouble::Again { is_reset: false, why: format!("{status:?}") })
        }
        (Status::CheckCondition, Some(sense)) => judge_sense(sense, object),
        (status, _) => Err(StreamError::Status(status).into()),
    }
}

/// Whether it says that all that was under way at the drive has ended.
pub(super) fn tells_of_reset(answer: &Answer) -> bool {
    matches!(judge(answer, 0), Err(Trouble::Again { is_reset: true, .. }))
}

fn judge_sense(sense: Sense, object: u64) -> Result<Remark, Trouble> {
    let Additional { code, qualifier } = sense.additional;
    let again = |is_reset| Trouble::Again { is_reset, why: sense.to_string() };
    Err(match (sense.key, code, qualifier) {
        (key, ..) if sense.deferred => match key {
            Key::NoSense | Key::RecoveredError | Key::Completed => again(false),
            _ => StreamError::Deferred(sense).into(),
        },
        (Key::NoSense | Key::RecoveredError | Key::Completed, ..) => {
            return Ok(Remark { stream: sense.stream, left: sense.information });
        }
        (Key::UnitAttention, 0x28, 0) => {
            StreamError::OtherTape("the drive says that its medium was exchanged").into()
        }
        // SPC-4, table for 29h: all but the loss of the nexus and the changes of transceivers.
        (Key::UnitAttention, 0x29, 0..=4) => again(true),
        (Key::UnitAttention, 0x2A, 3..=5) => StreamError::Reserved.into(),
        (Key::UnitAttention | Key::AbortedCommand, ..) | (Key::NotReady, 0x04, 0x00 | 0x01) => {
            again(false)
        }
        (Key::NotReady, 0x3A, _) => StreamError::NoTape.into(),
        (Key::DataProtect, 0x30, 0x0C) => StreamError::WriteOnce.into(),
        (Key::DataProtect, ..) => StreamError::WriteProtected.into(),
        (Key::VolumeOverflow, ..) => Trouble::Full,
        (Key::BlankCheck, ..) => Trouble::EndOfData(sense),
        (_, 0x30, _) => StreamError::Incompatible(sense).into(),
        (Key::MediumError | Key::HardwareError, ..) => StreamError::Medium { object, sense }.into(),
        _ => StreamError::Sense(sense).into(),
    })
}
