//! How the head is put where a stream goes on: one command at a time.

use core::time::Duration;

use bytes::Bytes;

use super::answer::{Answer, Remark, StreamError, Trouble, judge};
use super::{Fixed, Settings};
use crate::scsi::command::Command;
use crate::scsi::command::tape::{Length, Position};
use crate::scsi::sense::Stream;

/// The first wait before a drive is asked again that is busy, or becomes ready; each is twice the one before.
const BACK_OFF: Duration = Duration::from_millis(5);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

/// How often a drive may say that it cannot do something now: it has two minutes, and a tape that is loaded takes one.
const TRIES_MAX: u32 = 128;

/// What lies before a place on the tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Landmark {
    /// This block.
    Block(Bytes),
    /// A file mark.
    Mark,
}

/// Where a stream may go on.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    /// Behind what was acknowledged in order.
    pub(super) acknowledged: u64,
    /// Behind what is on the medium for good.
    pub(super) stable: u64,
    /// What lies before that, if it is known.
    pub(super) landmark: Option<Landmark>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The drive is asked until it is ready: it tells meanwhile what has happened.
    Ready,
    /// Its blocks are given the length that they had.
    Select,
    /// The object before the stable place is looked for, and read.
    Find,
    Look,
    /// The head is sent where it belongs, and asked where it is.
    Locate,
    Confirm,
}

/// The head on its way.
#[derive(Debug)]
pub(super) struct Placement {
    goal: Goal,
    step: Step,
    /// What lay in the buffer of the drive may be lost.
    is_reset: bool,
    tries: u32,
    back_off: Duration,
}

/// The head is where the stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) is_reset: bool,
}

impl Placement {
    pub(super) const fn new(goal: Goal, is_reset: bool) -> Self {
        Self { goal, step: Step::Ready, is_reset, tries: 0, back_off: Duration::ZERO }
    }

    /// Whether what lay in the buffer may be lost, by what is known.
    pub(super) const fn is_reset(&self) -> bool {
        self.is_reset
    }

    const fn target(&self) -> u64 {
        if self.is_reset { self.goal.stable } else { self.goal.acknowledged }
    }

    /// What is to be sent, with its data, and after how long.
    pub(super) fn request(&self, settings: &Settings) -> (Command, Bytes, Duration) {
        let mut data = Bytes::new();
        let command = match (self.step, settings.fixed) {
            (Step::Select, Some(Fixed { block, mode, .. })) => {
                let (command, list) = Command::select_block_length(&mode, block);
                data = list.into();
                command
            }
            (Step::Ready | Step::Select, _) => Command::test_unit_ready(),
            (Step::Find, _) => Command::locate(self.goal.stable.saturating_sub(1)),
            (Step::Look, _) => {
                let len = match &self.goal.landmark {
                    Some(Landmark::Block(block)) => block.len() as u32,
                    _ => 1,
                };
                Command::read_tape(Length::Variable(len))
            }
            (Step::Locate, _) => Command::locate(self.target()),
            (Step::Confirm, _) if settings.has_long_position => Command::read_position(),
            (Step::Confirm, _) => Command::read_position_short(),
        };
        (command, data, self.back_off)
    }

    /// The answer to what was sent. When the head is where it belongs, how.
    pub(super) fn answered(
        &mut self,
        settings: &Settings,
        answer: &Answer,
    ) -> Result<Option<Placed>, StreamError> {
        self.back_off = Duration::ZERO;
        let judged = match judge(answer, self.goal.stable) {
            Ok(remark) => remark,
            Err(Trouble::Again { is_reset, why }) => {
                self.again(is_reset, why)?;
                return Ok(None);
            }
            Err(Trouble::EndOfData(_)) => {
                self.met_end_of_data()?;
                return Ok(None);
            }
            Err(Trouble::Full) => return Err(not_placed(self.target(), "at the end of the tape")),
            Err(Trouble::Failed(why)) => return Err(why),
        };
        self.step = match self.step {
            Step::Ready => Step::Select,
            // It stays where it is.
            Step::Select if !settings.can_locate => {
                return Ok(Some(Placed { is_reset: self.is_reset }));
            }
            Step::Select if self.is_reset && self.goal.landmark.is_some() => Step::Find,
            Step::Find => Step::Look,
            Step::Look => {
                self.compare(judged, answer)?;
                Step::Locate
            }
            Step::Select => Step::Locate,
            Step::Locate => Step::Confirm,
            Step::Confirm => return self.confirm(settings, answer).map(Some),
        };
        Ok(None)
    }

    /// It was not done, and may be later. What was found out before a reset holds no more.
    fn again(&mut self, is_reset: bool, why: String) -> Result<(), StreamError> {
        self.tries += 1;
        if self.tries > TRIES_MAX {
            return Err(StreamError::Again(why));
        }
        self.is_reset |= is_reset;
        self.step = Step::Ready;
        // A unit attention is told once.
        let doublings = self.tries.saturating_sub(2).min(16);
        self.back_off = (BACK_OFF * 2_u32.pow(doublings)).min(BACK_OFF_MAX);
        Ok(())
    }

    /// What was acknowledged is not there: it was in a buffer, if it is not stable.
    fn met_end_of_data(&mut self) -> Result<(), StreamError> {
        if self.is_reset || self.step != Step::Locate {
            return Err(StreamError::OtherTape("it ends before what was made stable on it"));
        }
        self.is_reset = true;
        self.step = Step::Ready;
        Ok(())
    }

    fn compare(&self, remark: Remark, answer: &Answer) -> Result<(), StreamError> {
        let is_there = match &self.goal.landmark {
            Some(Landmark::Block(block)) => remark.stream == Stream::NONE && answer.data == *block,
            Some(Landmark::Mark) => remark.stream.filemark,
            None => true,
        };
        match is_there {
            true => Ok(()),
            false => Err(StreamError::OtherTape(
                "what was made stable or read before is not on the one that is there",
            )),
        }
    }

    fn confirm(&self, settings: &Settings, answer: &Answer) -> Result<Placed, StreamError> {
        let found = position(settings, answer);
        let target = self.target();
        if found != Some(target) {
            let found = found.map_or_else(
                || "nobody knows where it is".to_owned(),
                |object| format!("it is before block {object}"),
            );
            return Err(StreamError::NotPlaced { expected: target, found });
        }
        Ok(Placed { is_reset: self.is_reset })
    }
}

/// How many objects lie before the head, by the data of a READ POSITION of a stream.
pub(super) fn position(settings: &Settings, answer: &Answer) -> Option<u64> {
    let position = match settings.has_long_position {
        true => Position::parse_long(&answer.data),
        false => Position::parse_short(&answer.data),
    };
    Some(position.ok().flatten()?.object)
}

fn not_placed(expected: u64, found: &str) -> StreamError {
    StreamError::NotPlaced { expected, found: format!("it is {found}") }
}
