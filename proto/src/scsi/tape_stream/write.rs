//! A stream of blocks to a tape.

use std::collections::VecDeque;

use core::time::Duration;

use bytes::Bytes;

use super::answer::{Answer, Remark, StreamError, Trouble, judge, tells_of_reset};
use super::item::{Content, Item};
use super::placement::{End, Goal, Landmark, Placed, Placement, position};
use super::{Request, Settings, Stream};
use crate::scsi::command::Command;
use crate::scsi::sense::Additional;

/// How often in a row it may begin anew without that anything more was acknowledged.
const STALLS_MAX: u32 = 16;

/// What a command under way is for. Items are counted from the first one of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Writes this item.
    Item(u64),
    /// Makes stable all items before this one.
    Sync(u64),
    /// Asks whether the head is where it is behind them.
    Check(u64),
    /// Part of a placement.
    Place,
}

impl Purpose {
    /// Which comes first.
    const fn order(self) -> (u64, u8) {
        match self {
            Self::Item(number) => (number, 2),
            Self::Sync(number) => (number, 0),
            Self::Check(number) => (number, 1),
            Self::Place => (0, 0),
        }
    }
}

#[derive(Debug)]
enum State {
    Running,
    /// A command has failed, and others are under way still.
    Draining(Trouble, Purpose),
    /// The session is gone.
    Lost,
    Placing(Placement),
    Done,
    Failed(StreamError),
}

/// Blocks on their way to a tape. They are kept until they are stable.
#[derive(Debug)]
pub struct Write {
    settings: Settings,
    state: State,
    /// The items that are not known to be stable, and the number of the first of them.
    items: VecDeque<Item>,
    first: u64,
    /// The object before that item, and what lies before it if it was written here.
    stable: u64,
    landmark: Option<Landmark>,
    /// Items before this one were acknowledged, all in order.
    acknowledged: u64,
    /// The next to be sent.
    next: u64,
    /// The object behind the one that was sent last, and the highest that this was.
    sent_to: u64,
    end_max: u64,
    /// Bytes of items that are kept.
    kept: usize,
    /// Bytes that were sent since the last sync, and whether anything was.
    unsynced: usize,
    is_dirty: bool,
    /// A question for the head is to follow the sync that was sent.
    check_next: Option<u64>,
    under_way: VecDeque<(u64, Purpose, usize)>,
    tickets: u64,
    is_finished: bool,
    is_near_end: bool,
    is_full: bool,
    is_store_full: bool,
    /// Behind what did not fit a file mark, or a block, was written that was on its way.
    is_marked: bool,
    has_stray: bool,
    /// What lay in the buffer of the drive may be lost, and the head was not put back since.
    is_reset: bool,
    /// Commands before one that told of a reset have no answer.
    has_orphans: bool,
    stalls: u32,
    /// What was stable and what was acknowledged when it began anew last.
    progress: (u64, u64),
    stable_bytes: u64,
}

impl Write {
    /// Writes behind so many objects, where the head is.
    #[must_use]
    pub fn new(settings: Settings, at: u64) -> Self {
        Self {
            settings,
            state: State::Running,
            items: VecDeque::new(),
            first: 0,
            stable: at,
            landmark: None,
            acknowledged: 0,
            next: 0,
            sent_to: at,
            end_max: at,
            kept: 0,
            unsynced: 0,
            is_dirty: false,
            check_next: None,
            under_way: VecDeque::new(),
            tickets: 0,
            is_finished: false,
            is_near_end: false,
            is_full: false,
            is_store_full: false,
            is_marked: false,
            has_stray: false,
            is_reset: false,
            has_orphans: false,
            stalls: 0,
            progress: (0, 0),
            stable_bytes: 0,
        }
    }

    /// Whether it takes another block.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.is_finished && self.kept < self.settings.stable_every.saturating_mul(2)
    }

    /// The next block, or as many whole ones as a command has.
    pub fn push(&mut self, data: Bytes) {
        if self.is_finished {
            return;
        }
        let objects = self.settings.length(data.len()).blocks().into();
        self.kept += data.len();
        self.items.push_back(Item { content: Content::Blocks(data), objects });
    }

    /// A file mark.
    pub fn push_mark(&mut self) {
        if !self.is_finished {
            self.items.push_back(Item { content: Content::Mark, objects: 1 });
        }
    }

    /// Nothing comes any more. It is done when all is stable.
    pub fn finish(&mut self) {
        self.is_finished = true;
    }

    /// Whether all is stable.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Whether the drive has warned that the end of the tape is near.
    #[must_use]
    pub const fn is_near_end(&self) -> bool {
        self.is_near_end
    }

    /// Whether the tape was too short: what did not fit was dropped.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether it is the store of the tape that is full, where the drive tells that.
    #[must_use]
    pub const fn is_store_full(&self) -> bool {
        self.is_store_full
    }

    /// How many bytes of blocks are on the medium for good.
    #[must_use]
    pub const fn stable_bytes(&self) -> u64 {
        self.stable_bytes
    }

    /// How many objects lie before what is not stable yet.
    #[must_use]
    pub const fn stable_object(&self) -> u64 {
        self.stable
    }

    /// From one state to the next, where nothing has to be waited for.
    fn take_turn(&mut self) {
        if matches!(self.state, State::Running)
            && self.is_finished
            && self.items.is_empty()
            && self.under_way.is_empty()
        {
            self.state = State::Done;
        }
        // Nothing follows on it: commands that another has aborted may have no answer.
        if let State::Draining(Trouble::Failed(why), _) = &self.state {
            self.state = State::Failed(why.clone());
        }
        if !self.under_way.is_empty() {
            return;
        }
        if let State::Draining(trouble, _) = &self.state {
            self.state = match trouble.clone() {
                Trouble::Again { is_reset, why } => self.place_again(is_reset, why),
                Trouble::Full => {
                    self.drop_rest();
                    self.place_again(false, "a full tape".to_owned())
                }
                Trouble::EndOfData(sense) => State::Failed(StreamError::Sense(sense)),
                Trouble::Failed(why) => State::Failed(why),
            };
        }
    }

    fn place_again(&mut self, is_reset: bool, why: String) -> State {
        let (stable, acknowledged) = self.progress;
        let has_gone_on = self.first > stable || self.acknowledged > acknowledged;
        self.stalls = if has_gone_on { 0 } else { self.stalls + 1 };
        self.progress = (self.first, self.acknowledged);
        if self.stalls > STALLS_MAX {
            return State::Failed(StreamError::Again(why));
        }
        self.is_reset |= is_reset;
        State::Placing(Placement::new(self.goal(), self.is_reset))
    }

    fn behind_acknowledged(&self) -> u64 {
        let before = (self.acknowledged - self.first) as usize;
        self.stable + self.items.iter().take(before).map(|item| item.objects).sum::<u64>()
    }

    fn goal(&self) -> Goal {
        Goal {
            acknowledged: self.behind_acknowledged(),
            stable: self.stable,
            landmark: self.landmark.clone(),
            end: Some(self.end()),
        }
    }

    /// What of a full tape was dropped may be there in part.
    fn end(&self) -> End {
        let sent = if self.is_full { Vec::new() } else { self.items.iter().cloned().collect() };
        End { most: self.end_max, sent }
    }

    /// The tape is full: what was not acknowledged is not written. A file mark has room still; one that was on its way may be
    /// there, and is not written over, which a tape that is written once does not allow.
    fn drop_rest(&mut self) {
        // Of what was not begun nothing is to be ended.
        let has_begun = self.stable_bytes > 0 || self.acknowledged > 0;
        let has_room_for_mark = !self.is_full && has_begun;
        (self.is_full, self.is_finished) = (true, true);
        let kept = (self.acknowledged - self.first) as usize;
        let dropped: usize = self.items.drain(kept..).map(|item| item.len()).sum();
        self.kept -= dropped;
        if has_room_for_mark {
            self.items.push_back(Item { content: Content::Mark, objects: 1 });
            self.acknowledged += u64::from(self.is_marked && !self.has_stray);
        }
    }

    /// What follows on what was sent.
    fn following(&mut self) -> Option<(Purpose, (Command, Bytes, usize))> {
        if let Some(number) = self.check_next.take() {
            let command = match self.settings.has_long_position {
                true => Command::read_position(),
                false => Command::read_position_short(),
            };
            return Some((Purpose::Check(number), (command, Bytes::new(), 0)));
        }
        let item = self.items.get((self.next - self.first) as usize);
        // By the first one this tape is told from others: nothing follows before it is known to be there.
        let is_first =
            self.settings.can_locate && self.landmark.is_none() && self.next > self.first;
        let is_due = is_first
            || self.unsynced >= self.settings.stable_every
            || item.is_none() && self.is_finished;
        if is_due && self.is_dirty {
            (self.unsynced, self.is_dirty) = (0, false);
            self.check_next = self.settings.can_locate.then_some(self.next);
            let sync = (Command::write_filemarks(0), Bytes::new(), 0);
            return Some((Purpose::Sync(self.next), sync));
        }
        if is_first {
            return None;
        }
        let item = item?;
        let under_way: usize = self.under_way.iter().map(|(_, _, bytes)| bytes).sum();
        let len = item.len();
        if under_way > 0 && under_way + len > self.settings.ahead_bytes {
            return None;
        }
        let (command, data) = match &item.content {
            Content::Blocks(data) => (Command::write_tape(self.settings.length(len)), data.clone()),
            Content::Mark => (Command::write_filemarks(1), Bytes::new()),
        };
        let purpose = Purpose::Item(self.next);
        (self.unsynced, self.is_dirty) = (self.unsynced + len, true);
        self.next += 1;
        self.sent_to += item.objects;
        self.end_max = self.end_max.max(self.sent_to);
        Some((purpose, (command, data, len)))
    }

    fn send(
        &mut self,
        purpose: Purpose,
        (command, data, bytes): (Command, Bytes, usize),
        after: Duration,
    ) -> Request {
        let ticket = self.tickets;
        self.tickets += 1;
        self.under_way.push_back((ticket, purpose, bytes));
        Request { ticket, command, data, after }
    }

    /// Items count as acknowledged as far as none before them is under way, or has failed.
    fn acknowledge(&mut self) {
        let under_way = self.under_way.iter().filter_map(|(_, purpose, _)| match purpose {
            Purpose::Item(number) => Some(*number),
            _ => None,
        });
        let least = under_way.min().unwrap_or(self.next);
        let failed = match &self.state {
            State::Draining(_, first) => first.order().0,
            _ => u64::MAX,
        };
        self.acknowledged = least.min(failed).max(self.first);
    }

    fn note_later(&mut self, later: Trouble) {
        let State::Draining(first, _) = &mut self.state else { return };
        match (first, later) {
            (Trouble::Again { is_reset, .. }, Trouble::Again { is_reset: later, .. }) => {
                *is_reset |= later;
            }
            (first @ Trouble::Again { .. }, later @ Trouble::Failed(_))
            | (
                first @ Trouble::Full,
                later @ Trouble::Failed(StreamError::OtherTape(_) | StreamError::Reserved),
            ) => *first = later,
            _ => {}
        }
    }

    /// What was written behind something that did not fit.
    fn note_behind_full(&mut self, purpose: Purpose) {
        let Purpose::Item(number) = purpose else { return };
        match self.items.get((number - self.first) as usize) {
            Some(item) if item.is_mark() && !self.is_marked => self.is_marked = true,
            _ => self.has_stray = true,
        }
    }

    fn object_of(&self, purpose: Purpose) -> u64 {
        let (number, _) = purpose.order();
        let before = number.saturating_sub(self.first) as usize;
        self.stable + self.items.iter().take(before).map(|item| item.objects).sum::<u64>()
    }

    /// A command that is no part of a placement has ended.
    fn ended(&mut self, purpose: Purpose, answer: &Answer) {
        let judged = judge(answer, self.object_of(purpose));
        // It is told once, and counts whichever command it came with.
        self.is_reset |= matches!(judged, Err(Trouble::Again { is_reset: true, .. }));
        match (judged, &self.state) {
            (_, State::Failed(_) | State::Draining(Trouble::Failed(_), _)) => {}
            (Err(trouble), State::Draining(_, first)) if purpose.order() >= first.order() => {
                self.note_later(trouble);
            }
            (Err(Trouble::Full), _) => {
                self.is_store_full |= answer
                    .sense
                    .is_some_and(|sense| sense.additional == Additional::SPACE_ALLOCATION_FAILED);
                let left = answer.sense.and_then(|sense| sense.information);
                let rest = self.keep_part(purpose, left.unwrap_or(u64::MAX));
                self.state = State::Draining(Trouble::Full, rest);
            }
            (Err(trouble), _) => self.state = State::Draining(trouble, purpose),
            (Ok(_), State::Draining(Trouble::Full, first)) if purpose.order() > first.order() => {
                self.note_behind_full(purpose);
            }
            (Ok(_), State::Draining(_, first)) if purpose.order() > first.order() => {}
            (Ok(remark), _) => {
                self.is_near_end |= remark.stream.end_of_medium;
                match self.left_of(purpose, remark, answer) {
                    0 => self.done(purpose, answer),
                    left => self.done_in_part(purpose, left),
                }
            }
        }
    }

    /// How much of a command was not carried out, as the drive or the transport says: blocks, marks, or bytes of the only block.
    fn left_of(&self, purpose: Purpose, remark: Remark, answer: &Answer) -> u64 {
        let residual = match (purpose, self.settings.fixed) {
            (Purpose::Item(_), Some(fixed)) => answer.residual.div_ceil(fixed.block.max(1)),
            (Purpose::Item(_), None) => answer.residual,
            _ => 0,
        };
        match purpose {
            Purpose::Item(_) | Purpose::Sync(_) => remark.left.unwrap_or(0).max(residual.into()),
            Purpose::Check(_) | Purpose::Place => 0,
        }
    }

    /// What was not written is written again from where the item begins; where the head cannot be put there, from where it is.
    fn done_in_part(&mut self, purpose: Purpose, left: u64) {
        let item = (purpose.order().0 - self.first) as usize;
        let len = self.items.get(item).map_or(0, Item::len) as u64;
        let is_of_one = self.settings.fixed.is_none() && left < len;
        let trouble = match purpose {
            // Part of one block is a block of its own on the tape.
            Purpose::Item(_) if is_of_one && !self.settings.can_locate => {
                StreamError::Partial(self.object_of(purpose)).into()
            }
            // What was in the buffer of the drive is not on the medium.
            Purpose::Sync(_) => {
                self.is_reset = true;
                Trouble::Again { is_reset: true, why: format!("{left} blocks not made stable") }
            }
            _ => Trouble::Again { is_reset: false, why: format!("a write that lacks {left}") },
        };
        let rest = self.keep_part(purpose, left);
        self.state = State::Draining(trouble, rest);
    }

    /// Of blocks that are counted all but so many were written, and the head is behind them. Where it cannot be put elsewhere only
    /// the rest is still to be written. There nothing else is under way.
    fn keep_part(&mut self, purpose: Purpose, left: u64) -> Purpose {
        let (Purpose::Item(number), Some(fixed)) = (purpose, self.settings.fixed) else {
            return purpose;
        };
        let at = (number - self.first) as usize;
        let Some(Item { content: Content::Blocks(data), objects }) = self.items.get_mut(at) else {
            return purpose;
        };
        if self.settings.can_locate || left == 0 || left >= *objects {
            return purpose;
        }
        let written = *objects - left;
        let rest = data.split_off(written as usize * fixed.block as usize);
        *objects = written;
        self.items.insert(at + 1, Item { content: Content::Blocks(rest), objects: left });
        self.next += 1;
        Purpose::Item(number + 1)
    }

    /// A command was carried out, and all before it.
    fn done(&mut self, purpose: Purpose, answer: &Answer) {
        match purpose {
            // One that cannot be placed is not asked where it is: tgt's answers nothing of use.
            Purpose::Sync(number) if !self.settings.can_locate => {
                self.settle(number, self.object_of(purpose));
            }
            Purpose::Item(_) | Purpose::Sync(_) | Purpose::Place => {}
            Purpose::Check(number) => {
                let expected = self.object_of(purpose);
                let found = position(&self.settings, answer);
                if found == Some(expected) {
                    self.settle(number, expected);
                    return;
                }
                // The head was moved by another, or commands have overtaken one another: nothing since the last check is
                // known to be where it belongs.
                let why = format!("a head before block {found:?} instead of {expected}");
                self.state = State::Draining(Trouble::Again { is_reset: true, why }, purpose);
            }
        }
    }

    /// All items before this one are stable.
    fn settle(&mut self, number: u64, object: u64) {
        while self.first < number {
            let Some(item) = self.items.pop_front() else { return };
            self.first += 1;
            self.kept -= item.len();
            self.stable_bytes += item.len() as u64;
            self.landmark = Some(match item.content {
                Content::Mark => Landmark::Mark,
                Content::Blocks(data) => Landmark::Block(last_block(&self.settings, &data)),
            });
        }
        self.stable = object;
    }

    /// The head is where it belongs.
    fn go_on(&mut self, is_reset: bool) {
        if is_reset {
            self.acknowledged = self.first;
        }
        self.is_reset = false;
        self.next = self.acknowledged;
        self.sent_to = self.behind_acknowledged();
        self.check_next = None;
        let before = (self.acknowledged - self.first) as usize;
        self.unsynced = self.items.iter().take(before).map(Item::len).sum();
        self.is_dirty = before > 0;
        self.state = State::Running;
    }
}

impl Stream for Write {
    fn poll(&mut self) -> Option<Request> {
        self.take_turn();
        match &self.state {
            State::Placing(placement) if self.under_way.is_empty() => {
                let (command, data, after) = placement.request(&self.settings);
                Some(self.send(Purpose::Place, (command, data, 0), after))
            }
            State::Running if self.under_way.len() < self.settings.depth() => {
                let (purpose, what) = self.following()?;
                Some(self.send(purpose, what, Duration::ZERO))
            }
            _ => None,
        }
    }

    fn answered(&mut self, ticket: u64, answer: Answer) {
        // One of a session that is gone.
        let Some(at) = self.under_way.iter().position(|(known, ..)| *known == ticket) else {
            return;
        };
        let Some((_, purpose, _)) = self.under_way.remove(at) else { return };
        self.has_orphans |= at > 0 && tells_of_reset(&answer);
        if let (Purpose::Place, State::Placing(placement)) = (purpose, &mut self.state) {
            let answered = placement.answered(&self.settings, &answer);
            self.is_reset |= placement.is_reset();
            match answered {
                Ok(None) => {}
                Ok(Some(Placed { is_reset: true })) if !self.settings.can_locate => {
                    self.state = State::Failed(StreamError::NoLocate);
                }
                Ok(Some(placed)) => self.go_on(placed.is_reset),
                Err(why) => self.state = State::Failed(why),
            }
            return;
        }
        self.ended(purpose, &answer);
        self.acknowledge();
    }

    fn lost(&mut self) {
        self.under_way.clear();
        self.has_orphans = false;
        if let State::Draining(Trouble::Again { is_reset: true, .. }, _) = self.state {
            self.is_reset = true;
        }
        let is_over = matches!(self.state, State::Done | State::Failed(_));
        let is_fatal = matches!(&self.state, State::Draining(Trouble::Failed(_), _));
        if is_fatal {
            self.take_turn();
        } else if !is_over {
            // It is found to be full again.
            self.state = State::Lost;
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

/// The last block of those that one command wrote.
pub(super) fn last_block(settings: &Settings, data: &Bytes) -> Bytes {
    let len = settings.fixed.map_or(data.len(), |fixed| fixed.block as usize);
    data.slice(data.len().saturating_sub(len)..)
}
