//! The sessions of a server, each looked at only when it may have something to do: what a packet costs does not grow with the
//! number of clients that are quiet.

use std::collections::{BTreeMap, BTreeSet};

use super::session::Session;
#[cfg(any(test, feature = "invariants"))]
use crate::hyperscsi::address::OnePacket;
use crate::hyperscsi::address::Outbox;
use crate::time::Time;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    all: BTreeMap<u32, Entry>,
    /// When each has something to do, if nothing arrives before.
    deadlines: BTreeSet<(Time, u32)>,
    /// Those that may have packets to send.
    active: BTreeSet<u32>,
    /// The one whose packets are sent next.
    turn: u32,
}

#[derive(Debug)]
struct Entry {
    session: Session,
    /// As it is in `deadlines`.
    deadline: Option<Time>,
}

impl Sessions {
    pub(super) fn has(&self, cid: u32) -> bool {
        self.all.contains_key(&cid)
    }

    pub(super) fn get(&self, cid: u32) -> Option<&Session> {
        self.all.get(&cid).map(|entry| &entry.session)
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Session)> {
        self.all.iter().map(|(cid, entry)| (*cid, &entry.session))
    }

    pub(super) fn insert(&mut self, cid: u32, session: Session) {
        self.remove(cid);
        self.all.insert(cid, Entry { session, deadline: None });
        self.change(cid, |_new| {});
    }

    pub(super) fn remove(&mut self, cid: u32) {
        let removed = self.all.remove(&cid);
        if let Some(at) = removed.and_then(|entry| entry.deadline) {
            self.deadlines.remove(&(at, cid));
        }
        self.active.remove(&cid);
    }

    /// Changes a session, which may have packets to send afterwards, and another deadline.
    pub(super) fn change<T>(
        &mut self,
        cid: u32,
        change: impl FnOnce(&mut Session) -> T,
    ) -> Option<T> {
        let Entry { session, deadline } = self.all.get_mut(&cid)?;
        let done = change(session);
        let next = session.next_deadline();
        if next != *deadline {
            if let Some(before) = deadline.take() {
                self.deadlines.remove(&(before, cid));
            }
            self.deadlines.extend(next.map(|at| (at, cid)));
            *deadline = next;
        }
        self.active.insert(cid);
        Some(done)
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Those that have something to do by now.
    pub(super) fn due(&self, now: Time) -> Vec<u32> {
        let due = self.deadlines.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, cid)| *cid).collect()
    }

    /// When the pace lets the next packet of any leave.
    pub(super) fn pace(&self) -> Option<Time> {
        self.active.iter().filter_map(|cid| self.get(*cid)?.pace()).min()
    }

    /// How many may have packets to send: beside those that were changed, those that have something due by now, as an
    /// acknowledgement.
    pub(super) fn wake(&mut self, now: Time) -> usize {
        let due = self.due(now);
        self.active.extend(due);
        self.active.len()
    }

    /// The one that may send next, by turns.
    pub(super) fn next_turn(&mut self) -> Option<u32> {
        let next = self.active.range(self.turn..).next().or_else(|| self.active.first());
        let cid = *next?;
        self.turn = cid.wrapping_add(1);
        Some(cid)
    }

    /// Sends packets of one, at most so many; whether there were any. One that has none left is not asked again before it changes.
    pub(super) fn transmit(
        &mut self,
        cid: u32,
        (now, most): (Time, usize),
        outbox: &mut dyn Outbox,
    ) -> bool {
        let any = self.change(cid, |session| session.transmit(now, most, outbox)).unwrap_or(false);
        let waits = |session: &Session| {
            session.has_unsent() || session.next_deadline().is_some_and(|at| at <= now)
        };
        if !any && !self.get(cid).is_some_and(waits) {
            self.active.remove(&cid);
        }
        any
    }

    /// Those that nobody asks have nothing to send.
    #[cfg(any(test, feature = "invariants"))]
    pub(super) fn assert_quiet(&mut self, now: Time) {
        for (cid, entry) in &mut self.all {
            let mut outbox = OnePacket::default();
            let is_asked = self.active.contains(cid);
            assert!(
                is_asked || !entry.session.transmit(now, 1, &mut outbox),
                "{cid} waits for ever"
            );
        }
    }
}
