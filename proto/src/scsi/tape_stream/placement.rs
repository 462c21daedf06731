//! How the head is put where a stream goes on: one command at a time.

use core::time::Duration;

use bytes::Bytes;

use super::answer::{Answer, Remark, StreamError, Trouble, judge};
use super::item::Item;
use super::{Fixed, Settings};
use crate::scsi::command::Command;
use crate::scsi::command::tape::{Length, Position};
use crate::scsi::sense::Stream;

/// The first wait before a drive is asked again that is busy, or becomes ready; each is twice the one before.
const BACK_OFF: Duration = Duration::from_millis(5);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);

const OTHER_CONTENT: StreamError =
    StreamError::OtherTape("what was written or read before is not on the one that is there");

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
    /// Of a stream that writes: how the data end if it is the same tape.
    pub(super) end: Option<End>,
}

/// How the data of a tape end that is written to.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// Behind all that was sent: there at the latest.
    pub(super) most: u64,
    /// What may lie between the stable place and there; nothing if that is not known. Each may be nearer than where it was meant to
    /// be, as those before it may not have been carried out.
    pub(super) sent: Vec<Item>,
}

impl End {
    /// How long the longest block of them is.
    fn longest(&self, settings: &Settings) -> u32 {
        self.sent.iter().map(|item| item.block_len(settings)).max().unwrap_or(0).max(1) as u32
    }

    /// Whether what a READ of so many bytes has met is one of them.
    fn has(&self, settings: &Settings, remark: Remark, answer: &Answer) -> bool {
        let Stream { filemark, incorrect_length, .. } = remark.stream;
        let len = match (incorrect_length, remark.left) {
            (false, _) => Some(answer.data.len()),
            (true, left) => left.and_then(|left| {
                (self.longest(settings) as usize).checked_sub(usize::try_from(left).ok()?)
            }),
        };
        let block = len.and_then(|len| answer.data.get(..len));
        match (filemark, block) {
            (true, _) => self.sent.iter().any(Item::is_mark),
            (false, Some(block)) => self.sent.iter().any(|item| item.has_block(settings, block)),
            (false, None) => false,
        }
    }
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
    /// The head is sent beyond all that was written: it must meet the end of the data before. It is asked where that is.
    Beyond,
    End,
    /// The object before that end is looked for, and read.
    FindLast(u64),
    LookLast,
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
            (Step::LookLast, _) => {
                let longest = self.goal.end.as_ref().map_or(1, |end| end.longest(settings));
                Command::read_tape(Length::Variable(longest))
            }
            (Step::Beyond, _) => {
                Command::locate(self.goal.end.as_ref().map_or(self.goal.stable, |end| end.most) + 1)
            }
            (Step::FindLast(end), _) => Command::locate(end.saturating_sub(1)),
            (Step::Locate, _) => Command::locate(self.target()),
            (Step::Confirm | Step::End, _) if settings.has_long_position => {
                Command::read_position()
            }
            (Step::Confirm | Step::End, _) => Command::read_position_short(),
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
            Err(trouble) if self.step == Step::Beyond && is_end(&trouble) => {
                let is_marked = matches!(trouble, Trouble::EndOfData(_));
                self.step = if is_marked { Step::End } else { Step::Locate };
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
            Step::Select if self.is_reset => self.first_proof()?,
            Step::Find => Step::Look,
            Step::Look => {
                self.compare(judged, answer)?;
                if self.goal.end.is_some() { Step::Beyond } else { Step::Locate }
            }
            Step::Beyond if !judged.stream.end_of_medium => {
                return Err(StreamError::OtherTape("it holds more than was written"));
            }
            Step::End => self.after_end(position(settings, answer)),
            Step::FindLast(_) => Step::LookLast,
            Step::LookLast => match &self.goal.end {
                Some(end) if !end.has(settings, judged, answer) => return Err(OTHER_CONTENT),
                _ => Step::Locate,
            },
            Step::Select | Step::Beyond => Step::Locate,
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

    /// How it is found out whether it is the same tape. What is written to another one would destroy it.
    const fn first_proof(&self) -> Result<Step, StreamError> {
        match (&self.goal.landmark, &self.goal.end) {
            (Some(_), _) => Ok(Step::Find),
            (None, Some(_)) => Err(StreamError::Unproven),
            (None, None) => Ok(Step::Locate),
        }
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

    /// The data end there: that is no proof yet if something lies behind what is stable.
    fn after_end(&self, found: Option<u64>) -> Step {
        let is_known = self.goal.end.as_ref().is_some_and(|end| !end.sent.is_empty());
        match found {
            Some(found) if is_known && found > self.goal.stable => Step::FindLast(found),
            _ => Step::Locate,
        }
    }

    fn compare(&self, remark: Remark, answer: &Answer) -> Result<(), StreamError> {
        let is_there = match &self.goal.landmark {
            Some(Landmark::Block(block)) => remark.stream == Stream::NONE && answer.data == *block,
            Some(Landmark::Mark) => remark.stream.filemark,
            None => true,
        };
        if is_there { Ok(()) } else { Err(OTHER_CONTENT) }
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

/// Whether nothing more is recorded. A drive that has lost its power while it wrote has not marked the end of the data, and does
/// not find it (14h).
fn is_end(trouble: &Trouble) -> bool {
    match trouble {
        Trouble::EndOfData(_) | Trouble::Full => true,
        Trouble::Failed(StreamError::Medium { sense, .. }) => {
            sense.additional.code == 0x14 && sense.additional.qualifier <= 3
        }
        Trouble::Again { .. } | Trouble::Failed(_) => false,
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
