//! Sends groups to the store, and remembers what may have to be sent again.
//!
//! Several are under way at a time where no flush of a user lies between them; who calls [`Drain::begin`] sees to that.

use std::collections::{BTreeMap, VecDeque};

use super::interface::{Action, DrainWindow};
use crate::layer::journal::checkpoint::{CHECKPOINT_LEN, Checkpoint};
use crate::layer::journal::intervals::Intervals;
use crate::layer::journal::overlay::{Sending, bytes_of};
use crate::{Durability, Span};

/// Ranges remembered of groups that were sent since the last superblock.
const SENT_MAX: usize = 4096;

/// Groups under way.
const GROUPS_MAX: usize = 64;

/// The same where the store keeps their order: more than fit the commands that a target takes at a time.
const ORDERED_MAX: usize = 256;

/// The most changes of a group that is handed over whole, and the most bytes: it is repeated as a whole, and nothing behind
/// it ends before it. Larger ones lose little by a round trip.
const WHOLE_CHANGES_MAX: usize = 64;
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// So many bytes of such groups may be under way whatever the link was found to take: small ones, each of which is made
/// durable, say little of that.
const WHOLE_IN_FLIGHT: u64 = 256 << 10;

type Requests = VecDeque<(Span, Sending)>;

impl Sending {
    /// The request that sends it.
    pub(super) fn action(self, id: u64, span: Span, durability: Durability) -> Action {
        match self {
            Self::Write(parts) => Action::DrainWrite { id, span, parts, durability },
            Self::Zero(space) => Action::DrainZero { id, span, space, durability },
            Self::Discard => Action::DrainDiscard { id, span },
        }
    }
}

/// A group under way.
#[derive(Debug)]
struct Sent {
    number: u64,
    /// Requests that were not begun.
    left: Requests,
    /// Requests that were not answered.
    running: usize,
    /// It is one request, which makes itself durable.
    is_single: bool,
    /// It is handed over whole, and bytes of its writes.
    whole: Option<u64>,
    /// It has a checkpoint, which says that the store has all groups before it.
    has_checkpoint: bool,
    /// A flush that covers it is under way.
    is_flushing: bool,
    is_durable: bool,
}

impl Sent {
    fn new(Blocked { number, requests: left, whole }: Blocked, has_checkpoint: bool) -> Self {
        // Nothing makes a discard durable but a flush.
        let is_single = left.len() == 1 && left[0].1 != Sending::Discard;
        let (is_flushing, is_durable) = (false, false);
        Self { number, left, running: 0, is_single, whole, has_checkpoint, is_flushing, is_durable }
    }

    /// All of it was carried out, and no flush was sent since.
    fn wants_flush(&self) -> bool {
        let is_plain = self.whole.is_none();
        is_plain
            && self.left.is_empty()
            && self.running == 0
            && !self.is_flushing
            && !self.is_durable
    }
}

/// A group that is not sent yet.
#[derive(Debug)]
struct Blocked {
    number: u64,
    requests: Requests,
    whole: Option<u64>,
}

/// The checkpoint that is written by itself, and not as a part of a group.
#[derive(Debug)]
struct CheckpointState {
    /// The group that it named last.
    named: u64,
    /// It is being written: that of a group could be written over by it.
    is_under_way: bool,
}

/// Where sending is.
#[derive(Debug)]
pub(super) struct Drain {
    /// None where the store has no room for a checkpoint.
    checkpoint: Option<CheckpointState>,
    /// A group that shares bytes with what would be sent again after a crash.
    blocked: Option<Blocked>,
    /// In order.
    groups: VecDeque<Sent>,
    /// Requests under way, with their groups and how many bytes of writes they have.
    running: BTreeMap<u64, (u64, u64)>,
    /// Bytes of writes under way.
    bytes: u64,
    /// The flush that is under way.
    flush: Option<u64>,
    next_id: u64,
    /// The last group that is durable at the store.
    group: u64,
    /// What was sent of groups behind the one that the stable superblock names, or the last checkpoint of a group, with the
    /// group.
    sent: Intervals<u64>,
}

impl Drain {
    /// Nothing is under way, and the store has all up to `group`.
    pub(super) fn new(group: u64, has_checkpoint: bool) -> Self {
        Self {
            checkpoint: has_checkpoint
                .then_some(CheckpointState { named: group, is_under_way: false }),
            blocked: None,
            groups: VecDeque::new(),
            running: BTreeMap::new(),
            bytes: 0,
            flush: None,
            next_id: 0,
            group,
            sent: Intervals::new(),
        }
    }

    /// The last group that is durable at the store.
    pub(super) const fn group(&self) -> u64 {
        self.group
    }

    /// The last group that was begun.
    pub(super) fn begun(&self) -> u64 {
        let blocked = self.blocked.as_ref().map(|blocked| blocked.number);
        blocked.or_else(|| self.groups.back().map(|sent| sent.number)).unwrap_or(self.group)
    }

    /// All of the groups before is on its way, so that the next one may be begun.
    pub(super) fn wants_next(&self) -> bool {
        let last = self.groups.back();
        let most =
            if last.is_some_and(|sent| sent.whole.is_some()) { ORDERED_MAX } else { GROUPS_MAX };
        self.blocked.is_none()
            && self.groups.len() < most
            && last.is_none_or(|sent| sent.left.is_empty())
    }

    /// Whether a group may be begun now: those handed over whole keep their order by themselves, others where no flush came
    /// between, and neither keeps that of the other.
    pub(super) fn may_begin(&self, is_whole: bool, is_behind_flush: bool) -> bool {
        match self.groups.back() {
            None => true,
            Some(last) if last.whole.is_some() => is_whole,
            Some(_) => !is_whole && !is_behind_flush,
        }
    }

    /// Nothing more is sent before a superblock says what is durable at the store.
    pub(super) const fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Sends a group, once nothing of it can be set back by sending the ones before it again.
    pub(super) fn begin(&mut self, number: u64, requests: Vec<(Span, Sending)>, is_whole: bool) {
        let whole = is_whole.then(|| bytes_of(&requests));
        self.blocked = Some(Blocked { number, requests: requests.into(), whole });
        self.unblock();
    }

    /// The superblock that names this group is stable.
    pub(super) fn recorded(&mut self, group: u64) {
        self.sent.retain(|sent| sent > group);
        self.unblock();
    }

    fn unblock(&mut self) {
        let Some(Blocked { requests, whole, .. }) = &self.blocked else { return };
        let is_shared = requests.iter().any(|(span, _)| self.sent.overlaps(*span));
        let is_many = self.sent.len() + requests.len() > SENT_MAX && self.sent.len() > 0;
        let is_apart = !is_shared && !is_many;
        // It says of those before that they are not sent again.
        let is_free = self.checkpoint.as_ref().is_some_and(|state| !state.is_under_way);
        let has_checkpoint = !is_apart && whole.is_some() && is_free;
        let Some(blocked) = self.blocked.take_if(|_| is_apart || has_checkpoint) else { return };
        if has_checkpoint {
            self.sent = Intervals::new();
        }
        let spans = blocked.requests.iter().map(|(span, _)| *span);
        spans.for_each(|span| self.sent.insert(span, blocked.number));
        self.groups.push_back(Sent::new(blocked, has_checkpoint));
    }

    /// Whether a checkpoint is to be written that is no part of a group, and tells of [`Self::group`]: if it says anything
    /// new, and none is under way.
    pub(super) fn begin_checkpoint(&mut self) -> bool {
        let is_under_way = self.groups.iter().any(|group| group.has_checkpoint);
        let Some(state) = &mut self.checkpoint else { return false };
        if is_under_way || state.is_under_way || state.named >= self.group {
            return false;
        }
        *state = CheckpointState { named: self.group, is_under_way: true };
        true
    }

    /// It was written; or not, and no group depends on one from then on.
    pub(super) fn checkpointed(&mut self, is_written: bool) {
        match &mut self.checkpoint {
            Some(state) if is_written => state.is_under_way = false,
            _ => self.checkpoint = None,
        }
        self.unblock();
    }

    /// What is sent now, with at most so much in flight, and at least one request. A group of one request takes no flush
    /// behind it, and so one round trip. A checkpoint says of a group what `now` says of the last one.
    pub(super) fn send(
        &mut self,
        window: &DrainWindow,
        now: Checkpoint,
        actions: &mut VecDeque<Action>,
    ) {
        for group in &mut self.groups {
            if let Some(bytes) = group.whole {
                if group.left.is_empty() {
                    continue;
                }
                let before = Checkpoint { group: group.number - 1, ..now };
                let checkpoint = group.has_checkpoint.then_some(before);
                let bytes = bytes + if checkpoint.is_some() { CHECKPOINT_LEN } else { 0 };
                let most = window.bytes.max(WHOLE_IN_FLIGHT);
                if self.bytes + bytes > most && !self.running.is_empty() {
                    return;
                }
                let (id, changes) = (self.next_id, std::mem::take(&mut group.left).into());
                self.next_id += 1;
                self.running.insert(id, (group.number, bytes));
                self.bytes += bytes;
                group.running = 1;
                actions.push_back(Action::DrainGroup { id, changes, checkpoint });
                continue;
            }
            let durability =
                if group.is_single { Durability::Durable } else { Durability::Volatile };
            while let Some((span, sending)) = group.left.front() {
                let bytes = if matches!(sending, Sending::Write(_)) { span.len } else { 0 };
                let is_full = self.running.len() >= window.requests.max(1)
                    || self.bytes + bytes > window.bytes;
                if is_full && !self.running.is_empty() {
                    return self.flush(actions);
                }
                let Some((span, sending)) = group.left.pop_front() else { break };
                let id = self.next_id;
                self.next_id += 1;
                self.running.insert(id, (group.number, bytes));
                self.bytes += bytes;
                group.running += 1;
                actions.push_back(sending.action(id, span, durability));
            }
        }
        self.flush(actions);
    }

    /// Makes durable what was carried out. One flush at a time: those that come meanwhile share the next.
    fn flush(&mut self, actions: &mut VecDeque<Action>) {
        if self.flush.is_some() || !self.groups.iter().any(Sent::wants_flush) {
            return;
        }
        self.groups.iter_mut().for_each(|group| group.is_flushing |= group.wants_flush());
        self.flush = Some(self.next_id);
        actions.push_back(Action::DrainFlush { id: self.next_id });
        self.next_id += 1;
    }

    /// A request was carried out. Says which group is durable at the store now, with all before it, if that is news.
    pub(super) fn ended(&mut self, id: u64) -> Option<u64> {
        if self.flush.take_if(|flush| *flush == id).is_some() {
            self.groups.iter_mut().for_each(|group| group.is_durable |= group.is_flushing);
        } else {
            let (number, bytes) = self.running.remove(&id)?;
            self.bytes -= bytes;
            let at = self.groups.binary_search_by_key(&number, |group| group.number).ok()?;
            let group = &mut self.groups[at];
            group.running -= 1;
            group.is_durable |= group.is_single || group.whole.is_some();
        }
        let before = self.group;
        while self.groups.front().is_some_and(|group| group.is_durable)
            && let Some(group) = self.groups.pop_front()
        {
            self.group = group.number;
        }
        (self.group > before).then_some(self.group)
    }
}

/// Whether a group is handed over whole to a store that keeps the order. A discard may be left undone, and must not be what
/// a group fails for.
pub(super) fn is_small(requests: &[(Span, Sending)]) -> bool {
    let is_hint = |(_, sending): &(Span, Sending)| *sending == Sending::Discard;
    requests.len() <= WHOLE_CHANGES_MAX
        && bytes_of(requests) <= WHOLE_BYTES_MAX
        && !requests.iter().any(is_hint)
}
