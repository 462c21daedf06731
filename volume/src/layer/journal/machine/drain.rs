//! Sends groups to the store, one after another, and remembers what may have to be sent again.

use std::collections::{BTreeSet, VecDeque};

use super::interface::Action;
use crate::layer::journal::intervals::Intervals;
use crate::layer::journal::overlay::Sending;
use crate::{Durability, Span};

/// Ranges remembered of groups that were sent since the last superblock.
const SENT_MAX: usize = 4096;

type Requests = VecDeque<(Span, Sending)>;

#[derive(Debug)]
enum Phase {
    Idle,
    /// The group shares bytes with what would be sent again after a crash.
    Blocked(u64, Requests),
    /// The group is this request.
    Single(u64, Span, Sending),
    /// What is left of the group.
    Sending(u64, Requests),
    /// What is under way makes all of it durable: a flush, or its only request.
    Finishing(u64),
}

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

/// Where sending is.
#[derive(Debug)]
pub(super) struct Drain {
    phase: Phase,
    running: BTreeSet<u64>,
    next_id: u64,
    /// The last group that is durable at the store.
    group: u64,
    /// What was sent of groups behind the one that the stable superblock names, with the group.
    sent: Intervals<u64>,
}

impl Drain {
    pub(super) const fn new(group: u64) -> Self {
        let running = BTreeSet::new();
        Self { phase: Phase::Idle, running, next_id: 0, group, sent: Intervals::new() }
    }

    /// The last group that is durable at the store.
    pub(super) const fn group(&self) -> u64 {
        self.group
    }

    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// Nothing is sent before a superblock says what is durable at the store.
    pub(super) const fn is_blocked(&self) -> bool {
        matches!(self.phase, Phase::Blocked(..))
    }

    /// Sends the next group, once nothing of it can be set back by sending the ones before it again.
    pub(super) fn begin(&mut self, group: u64, requests: Vec<(Span, Sending)>) {
        self.phase = Phase::Blocked(group, requests.into());
        self.unblock();
    }

    /// The superblock that names this group is stable.
    pub(super) fn recorded(&mut self, group: u64) {
        self.sent.retain(|sent| sent > group);
        self.unblock();
    }

    fn unblock(&mut self) {
        let Phase::Blocked(group, requests) = &mut self.phase else { return };
        let is_shared = requests.iter().any(|(span, _)| self.sent.overlaps(*span));
        let is_many = self.sent.len() + requests.len() > SENT_MAX && self.sent.len() > 0;
        if is_shared || is_many {
            return;
        }
        let (group, mut requests) = (*group, core::mem::take(requests));
        requests.iter().for_each(|(span, _)| self.sent.insert(*span, group));
        // Nothing makes a discard durable but a flush.
        self.phase = match (requests.pop_front(), requests.is_empty()) {
            (Some((span, sending)), true) if sending != Sending::Discard => {
                Phase::Single(group, span, sending)
            }
            (first, _) => {
                first.into_iter().for_each(|first| requests.push_front(first));
                Phase::Sending(group, requests)
            }
        };
    }

    fn begin_request(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.running.insert(id);
        id
    }

    /// What is sent now, with at most so many requests in flight, and at least one. A group of one request takes no flush
    /// behind it, and so one round trip.
    pub(super) fn send(&mut self, running_max: usize, actions: &mut VecDeque<Action>) {
        self.phase = match core::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Single(group, span, sending) => {
                actions.push_back(sending.action(self.begin_request(), span, Durability::Durable));
                Phase::Finishing(group)
            }
            Phase::Sending(group, mut requests) => {
                while self.running.len() < running_max.max(1)
                    && let Some((span, sending)) = requests.pop_front()
                {
                    let id = self.begin_request();
                    actions.push_back(sending.action(id, span, Durability::Volatile));
                }
                match requests.is_empty() && self.running.is_empty() {
                    true => {
                        actions.push_back(Action::DrainFlush { id: self.begin_request() });
                        Phase::Finishing(group)
                    }
                    false => Phase::Sending(group, requests),
                }
            }
            other => other,
        };
    }

    /// A request was carried out. Says which group is durable at the store now, if one is.
    pub(super) fn ended(&mut self, id: u64) -> Option<u64> {
        self.running.remove(&id);
        let Phase::Finishing(group) = self.phase else { return None };
        if !self.running.is_empty() {
            return None;
        }
        self.phase = Phase::Idle;
        self.group = group;
        Some(group)
    }
}
