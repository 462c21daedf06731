//! A stream of blocks from a tape: one file of it, from the head on.

use std::collections::VecDeque;

use core::time::Duration;

use bytes::Bytes;

use super::answer::{Answer, Remark, StreamError, Trouble, judge, tells_of_reset};
use super::placement::{Goal, Landmark, Placed, Placement};
use super::write::last_block;
use super::{Fixed, Request, Settings, Stream};
use crate::scsi::command::Command;
use crate::scsi::command::tape::{BLOCK_MAX, Length};

/// How long the first block may be without that it has to be read twice.
const FIRST_BLOCK: u32 = 256 << 10;

/// How often in a row it may begin anew without that anything more was read.
const STALLS_MAX: u32 = 16;

/// What ended a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A file mark, behind which the head is.
    Mark,
    /// The end of what is recorded.
    Data,
}

/// A READ under way, in the order of the blocks.
#[derive(Debug)]
struct Slot {
    ticket: u64,
    length: Length,
    answer: Option<Answer>,
}

#[derive(Debug)]
enum State {
    Running,
    /// What is under way reads what is not wanted, or in another place.
    Draining(Next),
    Lost,
    Placing(Placement, Option<u64>),
    Done,
    Failed(StreamError),
}

/// What follows when nothing is under way any more.
#[derive(Clone, Debug)]
enum Next {
    Place { is_reset: bool, why: String },
    End,
    Fail(StreamError),
}

/// Blocks on their way from a tape.
#[derive(Debug)]
pub struct Read {
    settings: Settings,
    state: State,
    /// How long the blocks are, as far as is known.
    block: u32,
    is_known: bool,
    /// The object that is read next of those that were not given out.
    at: u64,
    landmark: Option<Landmark>,
    under_way: VecDeque<Slot>,
    ready: VecDeque<Bytes>,
    ready_bytes: usize,
    tickets: u64,
    end: Option<End>,
    /// More was read than the file has.
    is_beyond: bool,
    is_reset: bool,
    /// Commands before one that told of a reset have no answer.
    has_orphans: bool,
    /// The last object that was longer than asked for, and is read once more.
    read_again: Option<u64>,
    stalls: u32,
    progress: u64,
}

impl Read {
    /// Reads from behind so many objects on, where the head is.
    #[must_use]
    pub fn new(settings: Settings, at: u64) -> Self {
        let block = settings.fixed.map_or(FIRST_BLOCK, |fixed| fixed.block * fixed.count);
        Self {
            is_known: settings.fixed.is_some(),
            settings,
            state: State::Running,
            block,
            at,
            landmark: None,
            under_way: VecDeque::new(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            tickets: 0,
            end: None,
            is_beyond: false,
            is_reset: false,
            has_orphans: false,
            read_again: None,
            stalls: 0,
            progress: at,
        }
    }

    /// The next block, or several of one length.
    pub fn take(&mut self) -> Option<Bytes> {
        let block = self.ready.pop_front()?;
        self.ready_bytes -= block.len();
        Some(block)
    }

    /// What has ended the file, once it has and the head is there.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end.filter(|_| matches!(self.state, State::Done))
    }

    /// How many objects lie before what is read next.
    #[must_use]
    pub const fn object(&self) -> u64 {
        self.at
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Whether another block may be read ahead. Of the first one the length is learned.
    fn has_room(&self) -> bool {
        let depth = if self.is_known { self.settings.depth() } else { 1 };
        let bytes = (self.under_way.len() + 1) * self.block as usize + self.ready_bytes;
        let is_first = self.under_way.is_empty() && self.ready.is_empty();
        self.under_way.len() < depth && (is_first || bytes <= self.settings.ahead_bytes)
    }

    fn take_turn(&mut self) {
        let State::Draining(next) = &self.state else { return };
        // Nothing follows on a failure: commands that another has aborted may have no answer.
        if !self.under_way.is_empty() && !matches!(next, Next::Fail(_)) {
            return;
        }
        self.state = match next.clone() {
            Next::Place { is_reset, why } => self.place_again(is_reset, why),
            // What a mark ends leaves the head behind it, as that of a drive of this machine.
            Next::End if self.is_beyond && self.settings.can_locate => {
                State::Placing(Placement::new(self.goal(), false), None)
            }
            Next::End => State::Done,
            Next::Fail(why) => State::Failed(why),
        };
    }

    fn place_again(&mut self, is_reset: bool, why: String) -> State {
        self.stalls = if self.at > self.progress { 0 } else { self.stalls + 1 };
        self.progress = self.at;
        if self.stalls > STALLS_MAX {
            return State::Failed(StreamError::Again(why));
        }
        self.is_reset |= is_reset;
        State::Placing(Placement::new(self.goal(), self.is_reset), None)
    }

    fn goal(&self) -> Goal {
        let landmark = self.landmark.clone();
        Goal { acknowledged: self.at, stable: self.at, landmark, end: None }
    }

    /// What the next READ has brought.
    fn came(&mut self, length: Length, answer: &Answer) {
        let next = match judge(answer, self.at) {
            Ok(remark) if remark.stream.incorrect_length => {
                self.came_with_other_length(length, remark, answer)
            }
            Ok(remark) if remark.stream.filemark => {
                match self.deliver_part(length, remark.left, &answer.data) {
                    Ok(()) => {
                        self.landmark = Some(Landmark::Mark);
                        self.at += 1;
                        self.ended(End::Mark)
                    }
                    Err(why) => Some(Next::Fail(why)),
                }
            }
            // There is no block without a byte: it is at the end of the medium.
            Ok(_) if answer.data.is_empty() => Some(Next::Fail(StreamError::Blank(self.at))),
            // Without ILI all that was asked for has come.
            Ok(_) if answer.data.len() != length.bytes() as usize => {
                Some(Next::Fail(StreamError::Partial(self.at)))
            }
            Ok(_) => {
                self.deliver(answer.data.clone(), length.blocks().into());
                self.is_known = true;
                None
            }
            Err(Trouble::EndOfData(sense)) => {
                match self.deliver_part(length, sense.information, &answer.data) {
                    Ok(()) => self.ended(End::Data),
                    Err(why) => Some(Next::Fail(why)),
                }
            }
            Err(Trouble::Again { is_reset, why }) => Some(Next::Place { is_reset, why }),
            Err(Trouble::Full) => Some(Next::Fail(StreamError::Blank(self.at))),
            Err(Trouble::Failed(why)) => Some(Next::Fail(why)),
        };
        if let Some(next) = next {
            self.state = State::Draining(next);
        }
    }

    /// What a READ has brought behind one that was not carried out. What it tells of the drive and its tape counts all the same:
    /// it is told once.
    fn came_later(&mut self, answer: &Answer) {
        self.is_beyond = true;
        let State::Draining(Next::Place { .. }) = self.state else { return };
        match judge(answer, self.at) {
            Err(Trouble::Again { is_reset, .. }) => self.is_reset |= is_reset,
            Err(Trouble::Failed(why @ (StreamError::OtherTape(_) | StreamError::Reserved))) => {
                self.state = State::Draining(Next::Fail(why));
            }
            _ => {}
        }
    }

    fn ended(&mut self, end: End) -> Option<Next> {
        self.end = Some(end);
        Some(Next::End)
    }

    /// A block is shorter than asked for, and whole; or longer, and must be read again.
    fn came_with_other_length(
        &mut self,
        length: Length,
        remark: Remark,
        answer: &Answer,
    ) -> Option<Next> {
        let other = || Some(Next::Fail(StreamError::OtherLength(self.at)));
        let (None, Some(left)) = (self.settings.fixed, remark.left) else { return other() };
        let actual = i64::from(length.bytes()).checked_sub(left.cast_signed());
        let Some(actual) = actual.and_then(|len| u32::try_from(len).ok()) else { return other() };
        if actual > BLOCK_MAX {
            return other();
        }
        // tgt sends so many bytes as were asked for in vain, which may be fewer than the block has.
        if actual > length.bytes() || answer.data.len() < actual as usize {
            if !self.settings.can_locate {
                return other();
            }
            if self.read_again.replace(self.at) == Some(self.at) {
                return Some(Next::Fail(StreamError::LengthChanges(self.at)));
            }
            self.block = actual;
            let why = format!("a block of {actual} bytes, of which only a part came");
            return Some(Next::Place { is_reset: false, why });
        }
        // Where it cannot be read once more it is asked for with room for a longer one.
        if !self.is_known && self.settings.can_locate {
            self.block = actual.max(1);
        }
        self.is_known = true;
        self.deliver(answer.data.slice(..answer.data.len().min(actual as usize)), 1);
        None
    }

    /// The blocks before a mark, or the end, of those that a READ has asked for.
    fn deliver_part(
        &mut self,
        length: Length,
        left: Option<u64>,
        data: &Bytes,
    ) -> Result<(), StreamError> {
        let Some(Fixed { block, .. }) = self.settings.fixed else { return Ok(()) };
        let Some(left) = left else {
            // How many of the bytes are blocks nobody says.
            return if data.is_empty() { Ok(()) } else { Err(StreamError::Partial(self.at)) };
        };
        let blocks = u64::from(length.blocks()).saturating_sub(left);
        let bytes = blocks as usize * block as usize;
        if bytes > data.len() {
            return Err(StreamError::Partial(self.at));
        }
        if bytes > 0 {
            self.deliver(data.slice(..bytes), blocks);
        }
        Ok(())
    }

    fn deliver(&mut self, data: Bytes, blocks: u64) {
        self.at += blocks;
        self.landmark = Some(Landmark::Block(last_block(&self.settings, &data)));
        self.ready_bytes += data.len();
        self.ready.push_back(data);
    }
}

impl Stream for Read {
    fn poll(&mut self) -> Option<Request> {
        self.take_turn();
        match &self.state {
            State::Placing(placement, None) => {
                let (command, data, after) = placement.request(&self.settings);
                let ticket = self.ticket();
                if let State::Placing(_, sent) = &mut self.state {
                    *sent = Some(ticket);
                }
                Some(Request { ticket, command, data, after })
            }
            State::Running if self.has_room() => {
                let length = self.settings.length(self.block as usize);
                let ticket = self.ticket();
                self.under_way.push_back(Slot { ticket, length, answer: None });
                let command = Command::read_tape(length);
                Some(Request { ticket, command, data: Bytes::new(), after: Duration::ZERO })
            }
            _ => None,
        }
    }

    fn answered(&mut self, ticket: u64, answer: Answer) {
        if let State::Placing(placement, Some(sent)) = &mut self.state
            && *sent == ticket
        {
            let answered = placement.answered(&self.settings, &answer);
            self.is_reset |= placement.is_reset();
            match answered {
                Ok(None) => {
                    if let State::Placing(_, sent) = &mut self.state {
                        *sent = None;
                    }
                }
                Ok(Some(Placed { is_reset: true })) if !self.settings.can_locate => {
                    self.state = State::Failed(StreamError::NoLocate);
                }
                Ok(Some(_)) => {
                    self.is_reset = false;
                    self.state = if self.end.is_some() { State::Done } else { State::Running };
                }
                Err(why) => self.state = State::Failed(why),
            }
            return;
        }
        if let Some(at) = self.under_way.iter().position(|slot| slot.ticket == ticket) {
            let is_behind = self.under_way.iter().take(at).any(|slot| slot.answer.is_none());
            self.has_orphans |= is_behind && tells_of_reset(&answer);
            if let Some(slot) = self.under_way.get_mut(at) {
                slot.answer = Some(answer);
            }
        }
        while self.under_way.front().is_some_and(|slot| slot.answer.is_some()) {
            let Some(Slot { length, answer: Some(answer), .. }) = self.under_way.pop_front() else {
                return;
            };
            match self.state {
                State::Running => self.came(length, &answer),
                _ => self.came_later(&answer),
            }
        }
    }

    fn lost(&mut self) {
        self.under_way.clear();
        self.has_orphans = false;
        match &self.state {
            State::Done | State::Failed(_) => {}
            State::Draining(Next::Fail(_)) => self.take_turn(),
            State::Draining(Next::Place { is_reset, .. }) => {
                self.is_reset |= *is_reset;
                self.state = State::Lost;
            }
            _ => {
                // Where the head is then nobody knows.
                self.is_beyond = true;
                self.state = State::Lost;
            }
        }
    }

    fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost)
    }

    fn connected(&mut self) {
        if self.is_lost() && !self.settings.can_locate {
            self.state = State::Failed(StreamError::NoLocate);
        } else if self.is_lost() {
            self.state = self.place_again(true, "a lost connection".to_owned());
        }
    }

    fn has_orphans(&self) -> bool {
        self.has_orphans
    }

    fn failure(&self) -> Option<&StreamError> {
        match &self.state {
            State::Failed(why) => Some(why),
            _ => None,
        }
    }
}
