//! Runs a journal: what is accepted, written, answered, sent and forgotten, and in which order. A pure machine.
//!
//! `docs/spec/journal.md` has the rules; the numbers in this file are theirs.

mod drain;
mod interface;
mod log;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use self::drain::{Drain, is_small};
use self::log::{Log, Waiter};
use super::checkpoint::Checkpoint;
use super::format::{LogPoint, PAYLOAD_MAX, Superblock, SuperblockState, superblock_offset};
use super::overlay::{Content, Overlay, Part, Sending, Source, Unsent};
use super::scan::Recovered;
use crate::{Durability, Space, Span};

pub use interface::{Action, Cause, DrainWindow, Refused, Retirement, Settings, State, Status};

/// What stands between opening and the first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// What was found may be in a cache.
    Syncing,
    /// The epoch is not stable.
    Epoch,
    Done,
}

/// Why nothing more is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Clean,
    Broken(Cause),
    Frozen,
}

/// A request without its place in the log.
#[derive(Debug)]
struct Waiting {
    id: u64,
    kind: WaitingKind,
}

#[derive(Debug)]
enum WaitingKind {
    /// What is left of it.
    Changes(VecDeque<(Span, Content)>, Durability),
    /// It came while the journal was being opened.
    Flush,
}

/// The machine.
///
/// A request is given an id by the caller, and ends with [`Action::Answer`]. Spans are of whole blocks within the
/// volume.
#[derive(Debug)]
pub struct Journal {
    settings: Settings,
    window: DrainWindow,
    /// The one that is stable.
    superblock: Superblock,
    /// The one that is being written.
    next_superblock: Option<Superblock>,
    token: u64,
    opening: Opening,
    over: Option<Over>,
    is_closing: bool,
    /// Nothing was asked for a while.
    is_idle: bool,
    /// The first request that waits has no room in the ring.
    is_full: bool,
    log: Log,
    overlay: Overlay,
    drain: Drain,
    /// The group that was merged last, and whether it is handed over whole: one that waits is not merged again before it
    /// may begin.
    merged: Option<(u64, bool)>,
    waiting: VecDeque<Waiting>,
    /// Reads of the journal: where the tail was.
    readers: BTreeMap<u64, LogPoint>,
    next_reader: u64,
    actions: VecDeque<Action>,
    /// What the store lacks was given to somebody who sees to it.
    is_retired: bool,
}

impl Journal {
    /// Opens the journal that was read for the writer with this attach token. A frozen one stays frozen.
    #[must_use]
    pub fn open(recovered: &Recovered, token: u64, settings: Settings) -> Self {
        let Recovered { superblock, changes, head, last_group, .. } = recovered;
        let mut overlay = Overlay::new(settings.discard_zeroes);
        let mut groups: Vec<(u64, LogPoint)> = Vec::new();
        for change in changes {
            if groups.last().is_none_or(|(group, _)| *group != change.group) {
                groups.push((change.group, change.point));
            }
            overlay.push(Unsent::from(change));
        }
        let is_frozen = superblock.state == SuperblockState::Frozen;
        let actions = if is_frozen { VecDeque::new() } else { [Action::Sync].into() };
        Self {
            settings,
            window: DrainWindow::of(&settings),
            superblock: *superblock,
            next_superblock: None,
            token,
            opening: Opening::Syncing,
            over: is_frozen.then_some(Over::Frozen),
            is_closing: false,
            is_idle: false,
            is_full: false,
            log: Log::new(superblock, *head, *last_group, groups, &settings),
            overlay,
            drain: Drain::new(superblock.drained_group, settings.has_checkpoint),
            merged: None,
            waiting: VecDeque::new(),
            readers: BTreeMap::new(),
            next_reader: 0,
            actions,
            is_retired: false,
        }
    }

    // Requests.

    /// Writes `data` from byte `at` on.
    pub fn write(&mut self, id: u64, at: u64, data: &Bytes, durability: Durability) {
        let most = PAYLOAD_MAX.min(self.log.payload_max(self.superblock.volume.block_size));
        let pieces = Span::new(at, data.len() as u64).pieces(most).map(|piece| {
            let start = usize::try_from(piece.at - at).expect("it is within data");
            let bytes = data.slice(start..start + piece.len as usize);
            (piece, Content::Write { bytes: Some(bytes), extent: None })
        });
        self.change(id, pieces.collect(), durability);
    }

    /// Makes `span` read as zeroes.
    pub fn write_zeroes(&mut self, id: u64, span: Span, durability: Durability, space: Space) {
        self.change(id, [(span, Content::Zero(space))].into(), durability);
    }

    /// Says that the contents of `span` no longer matter.
    pub fn discard(&mut self, id: u64, span: Span) {
        self.change(id, [(span, Content::Discard)].into(), Durability::Volatile);
    }

    /// Makes every change that was answered stable in the journal.
    pub fn flush(&mut self, id: u64) {
        if let Some(refused) = self.refused() {
            return self.answer(id, Err(refused));
        }
        self.is_idle = false;
        match self.opening {
            Opening::Done => self.flush_now(id),
            _ => self.waiting.push_back(Waiting { id, kind: WaitingKind::Flush }),
        }
        self.advance();
    }

    /// Where the bytes of `span` are, in order and without gaps. If any are in the journal they stay there until
    /// [`read_done`](Self::read_done) of the number that is given too.
    pub fn read(&mut self, span: Span) -> (Vec<Part>, Option<u64>) {
        let parts = self.overlay.read(span);
        let in_journal = |part: &Part| matches!(part.source, Source::Journal { .. });
        let reader = parts.iter().any(in_journal).then(|| {
            let reader = self.next_reader;
            self.next_reader += 1;
            self.readers.insert(reader, self.log.tail());
            reader
        });
        (parts, reader)
    }

    /// What was found in the journal was read.
    pub fn read_done(&mut self, reader: u64) {
        self.readers.remove(&reader);
        self.advance();
    }

    /// Nothing was asked for a while: what was not flushed is written and sent all the same, and the last frames
    /// get one that vouches for them. It holds until the next request.
    pub fn idle(&mut self) {
        self.is_idle = true;
        self.advance();
    }

    /// Accepts nothing more, sends what is there and ends cleanly.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.advance();
    }

    /// Another writer has the volume: nothing more is sent. What was accepted is appended, so that it can be listed.
    pub fn fenced(&mut self) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(Over::Frozen);
        self.refuse_all(Refused::Frozen);
        self.actions.retain(|action| !action.is_sending());
        if self.opening == Opening::Done {
            self.place();
        }
        self.write_superblock();
    }

    // Answers of the driver.

    /// The journal file was synchronised, or not.
    pub fn synced(&mut self, result: Result<(), ()>) {
        match result {
            Ok(()) if self.opening == Opening::Syncing => self.opening = Opening::Epoch,
            Ok(()) => {}
            Err(()) => self.break_down(Cause::File),
        }
        self.advance();
    }

    /// A frame is stable, or not.
    pub fn appended(&mut self, seq: u64, result: Result<(), ()>) {
        match result {
            Err(()) => self.break_down(Cause::File),
            // What is in memory stays there: the file may not give it back.
            Ok(()) if matches!(self.over, Some(Over::Broken(_))) => {}
            Ok(()) => {
                let held_max = self.settings.held_max;
                let answered = self.log.appended(seq, &mut self.overlay, held_max);
                // Who is told that a change is durable relies on it in later ones, as behind a flush (rule 6).
                if answered.iter().any(|waiter| waiter.is_change) {
                    self.log.close_group_for_flush();
                }
                answered.into_iter().for_each(|waiter| self.answer(waiter.id, Ok(())));
            }
        }
        self.advance();
    }

    /// A superblock is stable, or not.
    pub fn superblock_written(&mut self, number: u64, result: Result<(), ()>) {
        let Some(written) = self.next_superblock.filter(|next| next.number == number) else {
            return;
        };
        if result.is_err() {
            return self.break_down(Cause::File);
        }
        self.next_superblock = None;
        self.superblock = written;
        self.log.freed(&written);
        self.drain.recorded(written.drained_group);
        match self.over {
            None if written.state == SuperblockState::Clean => self.over = Some(Over::Clean),
            _ => self.opening = Opening::Done,
        }
        self.advance();
    }

    /// A request to the store was carried out, or not.
    pub fn drained(&mut self, id: u64, result: Result<(), ()>) {
        match (self.over, result) {
            // It is not sent again when the journal retires: a checkpoint may say that the store has it, and what came after.
            (None | Some(Over::Broken(Cause::File)), Ok(())) => {}
            (None, Err(())) => return self.break_down(Cause::Store),
            _ => return,
        }
        if let Some(group) = self.drain.ended(id) {
            self.overlay.forget(group);
            self.log.sent(group);
        }
        self.advance();
    }

    /// Has the checkpoint say what the store has, if that is news.
    pub fn checkpoint(&mut self) {
        if self.over.is_some() || self.is_closing || !self.drain.begin_checkpoint() {
            return;
        }
        let checkpoint = self.checkpoint_of(self.drain.group());
        self.actions.push_back(Action::Checkpoint(checkpoint));
    }

    /// What is said now of a group that is durable at the store.
    const fn checkpoint_of(&self, group: u64) -> Checkpoint {
        let (journal, epoch) = (self.superblock.id, self.log.epoch());
        Checkpoint { journal, frame: self.log.durable_seq(), group, epoch }
    }

    /// The checkpoint was written, or not: whether the store still takes anything is seen by what is sent.
    pub fn checkpointed(&mut self, result: Result<(), ()>) {
        self.drain.checkpointed(result.is_ok());
        self.advance();
    }

    /// From now on so much is sent at a time.
    pub fn set_drain_window(&mut self, window: DrainWindow) {
        let most = DrainWindow::of(&self.settings);
        self.window = DrainWindow {
            requests: window.requests.min(most.requests),
            bytes: window.bytes.min(most.bytes),
            segment: window.segment.min(most.segment),
        };
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// How the journal is.
    #[must_use]
    pub fn status(&self) -> Status {
        let state = match self.over {
            Some(Over::Clean) => State::Clean,
            Some(Over::Broken(cause)) => State::Broken(cause),
            Some(Over::Frozen) => State::Frozen,
            None if self.is_closing => State::Draining,
            None if self.is_full => State::Full,
            None => State::Open,
        };
        let (used, ring_len) = (self.log.used(), self.superblock.ring_len);
        let is_change = |waiting: &&Waiting| matches!(waiting.kind, WaitingKind::Changes(..));
        let waiting = self.waiting.iter().filter(is_change).count();
        let unsent = self.overlay.iter().len();
        Status { state, used, ring_len, unsent, is_recorded: self.is_recorded(), waiting }
    }

    /// The changes that the store does not have for certain, in order: for another way to the store, or an export.
    pub fn unsent(&self) -> impl Iterator<Item = &Unsent> {
        self.overlay.iter()
    }

    // What follows.

    fn change(&mut self, id: u64, mut changes: VecDeque<(Span, Content)>, durability: Durability) {
        debug_assert!(
            changes.iter().all(|(span, _)| span.end() <= self.superblock.volume.size),
            "a journal with a change beyond its volume is refused when it is opened"
        );
        changes.retain(|(span, _)| !span.is_empty());
        if let Some(refused) = self.refused() {
            return self.answer(id, Err(refused));
        }
        self.is_idle = false;
        self.waiting.push_back(Waiting { id, kind: WaitingKind::Changes(changes, durability) });
        self.advance();
    }

    const fn refused(&self) -> Option<Refused> {
        match self.over {
            Some(Over::Broken(cause)) => Some(Refused::Broken(cause)),
            Some(Over::Frozen) => Some(Refused::Frozen),
            Some(Over::Clean) => Some(Refused::Closed),
            None if self.is_closing => Some(Refused::Closed),
            None => None,
        }
    }

    fn answer(&mut self, id: u64, result: Result<(), Refused>) {
        self.actions.push_back(Action::Answer { id, result });
    }

    /// Does all that can be done now.
    fn advance(&mut self) {
        match self.over {
            Some(Over::Frozen) => return self.write_superblock(),
            Some(_) => return,
            None => {}
        }
        if self.opening == Opening::Done {
            self.admit();
            self.write_frames();
            self.send();
        }
        self.write_superblock();
    }

    /// Accepts what waits, in order, as far as there is room (rule 5).
    fn admit(&mut self) {
        self.is_full = false;
        while let Some(Waiting { id, kind }) = self.waiting.pop_front() {
            match kind {
                WaitingKind::Flush => self.flush_now(id),
                WaitingKind::Changes(mut changes, durability) => {
                    if !self.accept(&mut changes) {
                        let kind = WaitingKind::Changes(changes, durability);
                        return self.waiting.push_front(Waiting { id, kind });
                    }
                    let is_answered = durability == Durability::Volatile
                        || self.log.wait(Waiter { id, is_change: true });
                    if is_answered {
                        self.answer(id, Ok(()));
                    }
                }
            }
        }
    }

    /// Adds these changes to the log; says whether all had room. Those that had are taken away.
    fn accept(&mut self, changes: &mut VecDeque<(Span, Content)>) -> bool {
        while let Some((span, content)) = changes.pop_front() {
            if content == Content::Discard {
                let parts = self.overlay.discardable(span);
                if parts != [span] {
                    parts.iter().rev().for_each(|p| changes.push_front((*p, Content::Discard)));
                    continue;
                }
            }
            let len = if matches!(content, Content::Write { .. }) { span.len } else { 0 };
            let unstable = self.log.unstable();
            let must_wait = unstable > 0 && unstable + len > self.settings.unstable_max;
            if must_wait || !self.make_room(len) {
                self.is_full = !must_wait;
                changes.push_front((span, content));
                return false;
            }
            self.log.add(span, content, &mut self.overlay);
        }
        true
    }

    fn make_room(&mut self, len: u64) -> bool {
        let number = self.superblock.number;
        self.log.make_room(len, number, &mut self.overlay, &mut self.actions)
    }

    fn flush_now(&mut self, id: u64) {
        self.log.close_group_for_flush();
        if self.log.wait(Waiter { id, is_change: false }) {
            self.answer(id, Ok(()));
        }
    }

    /// Writes the frame that is gathered if somebody or something waits for it.
    fn write_frames(&mut self) {
        let is_stuck = !self.waiting.is_empty();
        let is_large = self.log.is_group_large(self.settings.group_max);
        let must_send = self.is_full || self.is_idle || self.is_closing || is_large;
        if must_send {
            self.log.close_group();
        }
        if is_stuck || must_send || self.log.is_urgent(self.settings.appends_max.max(1)) {
            self.place();
        }
        if self.is_idle && !is_stuck && self.log.wants_mark() {
            let mark = self.log.mark(self.superblock.number);
            self.actions.push_back(mark);
        }
    }

    fn place(&mut self) {
        self.log.place(self.superblock.number, &mut self.overlay, &mut self.actions);
    }

    /// Sends the next groups, or more of those under way (rules 6 and 7).
    fn send(&mut self) {
        loop {
            let now = self.checkpoint_of(self.drain.group());
            self.drain.send(&self.window, now, &mut self.actions);
            let next = self.log.sendable(self.drain.begun());
            let Some((group, is_behind_flush)) = next.filter(|_| self.drain.wants_next()) else {
                return;
            };
            let may_begin = |is_whole| self.drain.may_begin(is_whole, is_behind_flush);
            let is_ordered = self.settings.is_ordered;
            let known = self.merged.filter(|(merged, _)| *merged == group);
            let may_begin_now = match known {
                Some((_, is_whole)) => may_begin(is_whole),
                None => may_begin(false) || (is_ordered && may_begin(true)),
            };
            if !may_begin_now {
                return;
            }
            let requests = self.overlay.merged(group, self.window.segment);
            let is_whole = known.map_or_else(|| is_ordered && is_small(&requests), |(_, it)| it);
            self.merged = Some((group, is_whole));
            if !may_begin(is_whole) {
                return;
            }
            self.drain.begin(group, requests, is_whole);
        }
    }

    /// Writes a superblock if one is due (rule 8).
    fn write_superblock(&mut self) {
        if self.next_superblock.is_some() {
            return;
        }
        let Some(state) = self.due() else { return };
        let superblock = Superblock {
            state,
            number: self.superblock.number + 1,
            epoch: self.log.epoch(),
            token: self.token,
            tail: self.tail(),
            drained_group: self.drain.group(),
            durable_seq: match self.opening {
                Opening::Syncing => self.superblock.durable_seq,
                _ => self.log.durable_seq(),
            },
            ..self.superblock
        };
        self.next_superblock = Some(superblock);
        let (number, bytes) = (superblock.number, superblock.encode());
        self.actions.push_back(Action::Superblock {
            number,
            offset: superblock_offset(number),
            bytes,
        });
    }

    /// Where the log may begin: nothing before it is unsent or being read.
    fn tail(&self) -> LogPoint {
        let tails = self.readers.values().copied().chain([self.log.tail()]);
        tails.min_by_key(|tail| tail.position).unwrap_or(self.superblock.tail)
    }

    /// The state that a superblock should tell of now.
    fn due(&self) -> Option<SuperblockState> {
        if self.over == Some(Over::Frozen) {
            let is_told = self.superblock.state == SuperblockState::Frozen;
            return (!is_told).then_some(SuperblockState::Frozen);
        }
        match self.opening {
            Opening::Syncing => return None,
            Opening::Epoch => return Some(SuperblockState::Open),
            Opening::Done => {}
        }
        let is_done = self.log.is_quiet() && !self.log.has_groups() && self.waiting.is_empty();
        if self.is_closing && is_done && self.readers.is_empty() {
            return Some(SuperblockState::Clean);
        }
        let moved = self.tail().position - self.superblock.tail.position;
        let is_due = moved >= self.settings.superblock_every
            || (self.is_full && moved > 0)
            || (self.is_idle && is_done && moved > 0)
            || (self.drain.is_blocked() && self.superblock.drained_group < self.drain.group());
        is_due.then_some(SuperblockState::Open)
    }

    /// Whether a superblock that is stable names the last group that has a change.
    fn is_recorded(&self) -> bool {
        let is_sent = !self.log.has_groups() && self.waiting.is_empty();
        is_sent && self.superblock.drained_group >= self.drain.group()
    }

    /// The last group that is durable at the store.
    #[must_use]
    pub const fn drained_group(&self) -> u64 {
        self.drain.group()
    }

    /// The last group in which a change was accepted.
    #[must_use]
    pub const fn last_group(&self) -> u64 {
        self.log.last_group()
    }

    /// What gives the store all that it lacks, after the file of the journal failed, and then has the file say that it
    /// holds nothing (rule 4). Nothing of it is given twice.
    pub fn retire(&mut self) -> Option<Retirement> {
        if self.over != Some(Over::Broken(Cause::File)) || self.is_retired {
            return None;
        }
        self.is_retired = true;
        let requests = |group: Vec<(Span, Sending)>| {
            let requests = group.into_iter().zip(0..);
            let action = |((span, sending), id): ((_, Sending), _)| {
                sending.action(id, span, Durability::Volatile)
            };
            requests.map(action).collect()
        };
        let groups = self.overlay.groups().into_iter().map(requests).collect();
        let head = self.log.head();
        // The one that was being written may be there or not.
        let number = self.next_superblock.unwrap_or(self.superblock).number + 1;
        let superblock = Superblock {
            state: SuperblockState::Clean,
            number,
            epoch: self.log.epoch(),
            token: self.token,
            tail: head,
            drained_group: self.log.last_group(),
            durable_seq: head.seq - 1,
            ..self.superblock
        };
        let (offset, bytes) = (superblock_offset(number), superblock.encode());
        Some(Retirement { groups, offset, bytes })
    }

    /// Nothing more is accepted, written or sent (rules 4 and 13).
    fn break_down(&mut self, cause: Cause) {
        if matches!(self.over, Some(Over::Broken(_) | Over::Frozen)) {
            return;
        }
        self.over = Some(Over::Broken(cause));
        self.refuse_all(Refused::Broken(cause));
        self.actions.retain(Action::is_answer);
    }

    fn refuse_all(&mut self, refused: Refused) {
        let waiting = self.waiting.drain(..).map(|waiting| waiting.id);
        let all: Vec<u64> = self.log.take_waiters().into_iter().chain(waiting).collect();
        all.into_iter().for_each(|id| self.answer(id, Err(refused)));
    }
}

#[cfg(test)]
mod tests;
