//! Rides out lost connections: what waits, what is sent again, and in which order. A pure machine.
//!
//! ```text
//! submit, ended, restored ->             -> actions (run this, restore that, connect)
//! lost, connected, failed ->  Recovery   -> when to look again
//!                the time ->
//! ```
//!
//! Requests are reads, changes and flushes of byte ranges; `R` is what a change consists of, so that it
//! can be carried out again. A request may run only while the link is up. One whose link is lost runs
//! again on the next, which is right because each of them is idempotent; nothing else may be given to
//! this machine (COMPARE AND WRITE, for one, would fail the second time because of the first).
//!
//! The time is a duration since an origin that the caller chose, and only moves forward.
//!
//! `docs/spec/recovery.md` says what is promised and why it holds.

mod failure;
mod interface;
mod outage;
mod requests;
mod unflushed;

use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

pub use self::failure::Failure;
use crate::layer::range_index::overlap;
pub use interface::{Action, End, Kind, Over, Replay, Salvage, Settings, Status, Turn};
use outage::Outage;
use requests::{Request, Requests};
use unflushed::UnflushedChanges;

/// Changes restored at once: enough to fill a long link with small ones, and far below any window.
const RESTORES_MAX: usize = 64;

#[derive(Debug)]
enum Link {
    Up,
    /// What may be lost is written again: the next place among the unflushed changes, and those under way.
    Restoring {
        next: u64,
        /// With their numbers.
        running: Vec<(u64, Range<u64>)>,
        /// The next number.
        seq: u64,
        /// For each place, what of it no later change has replaced.
        parts: VecDeque<Vec<Range<u64>>>,
        /// How many have been answered.
        done: usize,
    },
    /// No attempt is made before this time.
    Down {
        until: Duration,
    },
    Connecting,
    Over(Over),
}

/// The machine.
#[derive(Debug)]
pub struct Recovery<R> {
    settings: Settings,
    link: Link,
    /// The number of the link that is up, or was last.
    number: u64,
    /// Something was answered on this link, so the outage before it is over. A target that lets us
    /// in only to throw us out again must not be asked in a tight loop, nor for ever.
    proven: bool,
    outage: Option<Outage>,
    requests: Requests<R>,
    /// Requests for the sake of which a link was given up: they had no answer, or one that they cannot be carried out
    /// now. Until each has ended the outage goes on, though links stand and carry other requests.
    overdue: BTreeSet<u64>,
    unflushed: UnflushedChanges<R>,
    /// The flush this machine asked for.
    flush: Option<u64>,
    /// A change was under way when a link was lost: it may still be under way at the target.
    in_doubt: bool,
    /// Changes are saved from now on, for good. What was handed out to be saved is not forgotten by a later flush,
    /// which says nothing of what had failed before.
    saving: bool,
    actions: VecDeque<Action<R>>,
}

impl<R: Replay> Recovery<R> {
    /// A machine whose first link, number 0, is up.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self {
            link: Link::Up,
            number: 0,
            proven: true,
            outage: None,
            requests: Requests::new(),
            overdue: BTreeSet::new(),
            unflushed: UnflushedChanges::new(settings.unflushed_max),
            flush: None,
            in_doubt: false,
            saving: false,
            actions: VecDeque::new(),
            settings,
        }
    }

    // Requests.

    /// Takes a request. `weight` is how many bytes a change takes to be kept.
    pub fn submit(&mut self, kind: Kind<R>, range: Range<u64>, weight: usize) -> (u64, Turn) {
        let is_over = matches!(self.link, Link::Over(_));
        if let (Kind::Change(change), Salvage::Submitted) = (&kind, self.settings.salvage)
            && (self.saving || is_over)
        {
            self.saving = true;
            self.actions.push_back(Action::Save(change.clone()));
        }
        if is_over || (self.saving && matches!(kind, Kind::Flush)) {
            return (self.requests.next_id(), Turn::Over);
        }
        let id = self.requests.submit(kind, range, weight, self.unflushed.end());
        (id, self.start(id))
    }

    /// A request has ended on a link.
    pub fn ended(&mut self, now: Duration, id: u64, link: u64, end: End) -> Turn {
        if end == End::NotYet && self.requests.get(id).is_some() {
            self.overdue.insert(id);
        }
        if end.runs_again() {
            self.lost(now, link, Duration::ZERO);
        }
        if let Link::Over(_) = self.link {
            return self.ended_too_late(id, end);
        }
        let Some(request) = self.requests.get(id) else { return Turn::Over };
        // What an earlier link answered may have been lost since, and what was restored did not
        // include it.
        let stale = link != self.number && !matches!(request.kind, Kind::Read);
        if end.runs_again() || (stale && end == End::Done) {
            // Nobody waits for a flush that this machine asked for: it runs again only as an action.
            let turn = if self.flush == Some(id) { self.wait(id) } else { self.start(id) };
            self.release();
            return turn;
        }
        self.settle(id, link, end);
        self.release();
        Turn::Answer
    }

    /// A request has ended on a link that was given up meanwhile.
    fn ended_too_late(&mut self, id: u64, end: End) -> Turn {
        if let Some(Request { kind: Kind::Change(change), .. }) = self.requests.remove(id)
            && end == End::Done
            && self.settings.salvage == Salvage::Answered
            && self.settings.unflushed_max.is_some()
        {
            self.actions.push_back(Action::Save(change));
        }
        if end.runs_again() { Turn::Over } else { Turn::Answer }
    }

    /// Nobody waits for this request any more. A change must not be withdrawn while it runs: it could
    /// land after a later one.
    pub fn withdraw(&mut self, id: u64) {
        self.requests.remove(id);
        self.overdue.remove(&id);
        self.end_outage();
        self.release();
    }

    /// What a group consists of that has not ended.
    #[must_use]
    pub fn group(&self, id: u64) -> Option<&R> {
        let request = self.requests.get(id).filter(|request| request.is_group())?;
        match &request.kind {
            Kind::Change(change) => Some(change),
            _ => None,
        }
    }

    /// The groups that have not ended, in order.
    pub fn groups(&self) -> impl Iterator<Item = &R> {
        let changes = self.requests.iter().filter_map(|(_, request)| match &request.kind {
            Kind::Change(change) => Some(change),
            _ => None,
        });
        changes.filter(|change| change.is_group())
    }

    fn settle(&mut self, id: u64, link: u64, end: End) {
        let Some(request) = self.requests.remove(id) else { return };
        self.overdue.remove(&id);
        let own_flush = self.flush.take_if(|flush| *flush == id).is_some();
        match (request.kind, end) {
            (Kind::Change(change), End::Done) if change.is_group() => {}
            // Those behind it must not be carried out on another link.
            (Kind::Change(change), _) if change.is_group() => return self.end(Over::NotWritten),
            (Kind::Change(change), End::Done) => {
                self.unflushed.add(request.range, request.weight, change.kept());
            }
            (Kind::Change(_), End::NotTaken) => {}
            // A change that may have been acknowledged before it was submitted.
            (Kind::Change(change), _) if self.settings.salvage == Salvage::Submitted => {
                self.save(Some(change));
            }
            (Kind::Flush, End::Done) if !self.saving => self.unflushed.forget(request.covers),
            (Kind::Flush, End::Done) => {}
            (Kind::Flush, _) if own_flush => return self.end(Over::NotFlushed),
            (Kind::Flush, _) if self.settings.salvage == Salvage::Submitted => self.save(None),
            _ => {}
        }
        self.answered(link);
        // Nothing is flushed any more, so that what is kept would grow without end.
        if self.saving && self.unflushed.is_full() {
            return self.end(Over::NotWritten);
        }
        if self.unflushed.wants_flush() && self.flush.is_none() && !self.saving {
            self.add_flush();
        }
    }

    /// Hands out what was acknowledged and will not become durable; everything submitted later follows. What
    /// `failed` has no place among the others any more: it came after what was answered, and before what waited
    /// for it.
    fn save(&mut self, failed: Option<R>) {
        if self.saving || self.settings.salvage == Salvage::Nothing {
            return;
        }
        let answered = self.unflushed.iter().map(|entry| &entry.change);
        let submitted = self.requests.iter().filter_map(|(_, request)| match &request.kind {
            Kind::Change(change) if self.settings.salvage == Salvage::Submitted => Some(change),
            _ => None,
        });
        let before = self.actions.len();
        self.actions.extend(answered.chain(&failed).chain(submitted).cloned().map(Action::Save));
        self.saving = self.actions.len() > before;
    }

    fn add_flush(&mut self) {
        let (id, turn) = self.submit(Kind::Flush, 0..0, 0);
        self.flush = Some(id);
        if let Turn::Run(link) = turn {
            self.actions.push_back(Action::Flush { id, link });
        }
    }

    /// Runs a request if it may run now.
    fn start(&mut self, id: u64) -> Turn {
        let may_run = matches!(self.link, Link::Up)
            && self.requests.is_ready(id)
            && self.requests.may_follow(id, self.number);
        let is_change = self.requests.get(id).is_some_and(Request::is_change);
        if !may_run || (is_change && !self.has_room()) {
            return self.wait(id);
        }
        self.requests.run(id, self.number);
        Turn::Run(self.number)
    }

    fn wait(&mut self, id: u64) -> Turn {
        self.requests.wait(id);
        Turn::Wait
    }

    /// Whether more changes can be kept.
    fn has_room(&self) -> bool {
        !self.unflushed.is_full() || self.saving
    }

    /// Runs what waited and may run now.
    fn release(&mut self) {
        if !matches!(self.link, Link::Up) {
            return;
        }
        let link = self.number;
        for id in self.requests.take_ready(self.has_room()) {
            if !self.requests.may_follow(id, link) {
                self.requests.wait(id);
                continue;
            }
            self.requests.run(id, link);
            self.actions.push_back(match self.flush {
                Some(flush) if flush == id => Action::Flush { id, link },
                _ => Action::Run { id, link },
            });
        }
    }

    // The link.

    /// A link is lost; nothing is asked of the target before `wait` has passed. Says whether it was news.
    pub fn lost(&mut self, now: Duration, link: u64, wait: Duration) -> bool {
        if link != self.number || !matches!(self.link, Link::Up | Link::Restoring { .. }) {
            return false;
        }
        let restoring =
            matches!(&self.link, Link::Restoring { running, .. } if !running.is_empty());
        self.in_doubt |= restoring || self.requests.has_change_on(link);
        let waited = match &mut self.outage {
            Some(outage) if !self.proven || !self.overdue.is_empty() => {
                outage.go_on(now);
                outage.wait(&self.settings, 0)
            }
            _ => {
                self.outage = Some(Outage::new(now));
                Duration::ZERO
            }
        };
        self.link = Link::Down { until: now.saturating_add(wait.max(waited)) };
        self.wake(now);
        true
    }

    /// The link is given up because nothing that runs on it has been answered for too long; [`lost`](Self::lost)
    /// follows.
    pub fn unanswered(&mut self, link: u64) {
        if link != self.number {
            return;
        }
        let running = self.requests.iter().filter(|(_, request)| request.link == Some(link));
        self.overdue.extend(running.map(|(id, _)| id));
    }

    /// Something was answered on a link: it works.
    pub fn answered(&mut self, link: u64) {
        if link == self.number && matches!(self.link, Link::Up) {
            self.proven = true;
            self.end_outage();
        }
    }

    fn end_outage(&mut self) {
        if self.proven && self.overdue.is_empty() && matches!(self.link, Link::Up) {
            self.outage = None;
        }
    }

    /// An attempt to connect has failed. `random` spreads the attempts of many.
    pub fn failed(&mut self, now: Duration, failure: Failure, random: u64) {
        if !matches!(self.link, Link::Connecting) {
            return;
        }
        if failure.is_final() {
            return self.end(Over::Refused);
        }
        let wait = self.outage.as_ref().map(|outage| outage.wait(&self.settings, random));
        self.link = Link::Down { until: now.saturating_add(wait.unwrap_or_default()) };
        self.wake(now);
    }

    /// A new link is there. What the unit has not made durable it may have lost, whatever it says: that is
    /// written again before anything else runs.
    pub fn connected(&mut self, now: Duration) {
        if !matches!(self.link, Link::Connecting) {
            return;
        }
        self.number += 1;
        self.proven = false;
        self.in_doubt = false;
        let (next, parts) = (self.unflushed.begin(), self.unflushed.not_replaced());
        self.link = Link::Restoring { next, running: Vec::new(), seq: next, parts, done: 0 };
        self.restore(now);
    }

    /// A change has been carried out again, or not.
    pub fn restored(&mut self, now: Duration, seq: u64, link: u64, end: End) {
        if link != self.number {
            return;
        }
        match end {
            End::Done | End::NotTaken => {}
            End::Failed => return self.end(Over::NotRestored),
            End::Lost | End::NotYet => {
                self.lost(now, link, Duration::ZERO);
                return;
            }
        }
        if let Link::Restoring { running, done, .. } = &mut self.link {
            running.retain(|(running, _)| *running != seq);
            *done += 1;
            if let Some(outage) = &mut self.outage {
                outage.restored(now, *done);
            }
            self.restore(now);
        }
    }

    /// Restores in the order of the unflushed changes; what overlaps waits for its turn. What a later change has replaced is
    /// left out: that may be durable already, and a crash of this program, or another writer, could keep the older
    /// one in its place.
    fn restore(&mut self, now: Duration) {
        let Link::Restoring { next, running, seq, parts, done } = &mut self.link else { return };
        while running.len() < RESTORES_MAX
            && let Some(entry) = self.unflushed.get(*next)
            && let Some(left) = parts.front()
        {
            let waits = |part| running.iter().any(|(_, other)| overlap(other, part));
            if left.iter().any(waits) {
                return;
            }
            for part in left {
                let change = if *part == entry.range {
                    entry.change.clone()
                } else {
                    entry.change.part(part)
                };
                self.actions.push_back(Action::Restore { seq: *seq, link: self.number, change });
                running.push((*seq, part.clone()));
                *seq += 1;
            }
            parts.pop_front();
            *next += 1;
        }
        if running.is_empty() {
            let was_answered = *done > 0;
            self.link = Link::Up;
            if let Some(outage) = self.outage.as_mut().filter(|_| self.overdue.is_empty()) {
                outage.pause(now);
            }
            if was_answered {
                self.answered(self.number);
            }
            self.release();
        }
    }

    /// Whether what the unit shows there may be lost with its cache: a change was answered and is not durable.
    #[must_use]
    pub fn is_unflushed(&mut self, range: &Range<u64>) -> bool {
        self.unflushed.overlaps(range)
    }

    /// Whether a change may still be under way at the target for a session that is no more.
    #[must_use]
    pub const fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    // Time, and the end.

    /// From now on an outage may last as long as that, `None` for as long as it takes.
    pub fn set_outage_limit(&mut self, patience: Option<Duration>) {
        self.settings.patience = patience;
    }

    /// An outage that is there, or begins later, ends everything at that time.
    pub fn leave(&mut self, now: Duration, grace: Duration) {
        let lasted = self.outage.as_ref().map_or(Duration::ZERO, |outage| outage.lasted(now));
        let patience = lasted.saturating_add(grace);
        self.settings.patience =
            Some(self.settings.patience.map_or(patience, |set| set.min(patience)));
    }

    /// The reservation is another's, or was: what was not flushed must not be written over what came since.
    pub fn fenced(&mut self) {
        self.end(Over::Fenced);
    }

    /// A task that is needed has broken down: nobody is to wait for what it would have done.
    pub fn broken(&mut self) {
        self.end(Over::Broken);
    }

    /// Nothing more is carried out.
    pub fn close(&mut self) {
        self.end(Over::Closed);
    }

    /// When [`wake`](Self::wake) wants to be called, whatever else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let patience = self.settings.patience;
        let outage = self.outage.as_ref().zip(patience);
        let give_up = outage.and_then(|(outage, patience)| outage.given_up_at(patience));
        match self.link {
            Link::Over(_) => None,
            Link::Up if self.overdue.is_empty() => None,
            Link::Up | Link::Restoring { .. } | Link::Connecting => give_up,
            Link::Down { until } => Some(give_up.map_or(until, |give_up| give_up.min(until))),
        }
    }

    /// The deadline has come, or not yet.
    pub fn wake(&mut self, now: Duration) {
        match self.link {
            Link::Over(_) => return,
            Link::Up if self.overdue.is_empty() => return,
            _ => {}
        }
        let Some(outage) = &mut self.outage else { return };
        if let Some(patience) = self.settings.patience
            && outage.given_up_at(patience).is_some_and(|at| at <= now)
        {
            return self.end(match self.overdue.is_empty() {
                true => Over::GaveUp(patience),
                false => Over::NotCarriedOut(patience),
            });
        }
        if matches!(self.link, Link::Down { until } if until <= now) {
            outage.attempts = outage.attempts.saturating_add(1);
            self.link = Link::Connecting;
            self.actions.push_back(Action::Connect);
        }
    }

    fn end(&mut self, over: Over) {
        if matches!(self.link, Link::Over(_)) {
            return;
        }
        self.link = Link::Over(over);
        self.actions.retain(|action| matches!(action, Action::Save(_)));
        self.save(None);
        self.actions.push_back(Action::Over);
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Action<R>> {
        self.actions.pop_front()
    }

    /// How the link is.
    #[must_use]
    pub fn status(&self) -> Status {
        match (&self.link, &self.outage) {
            (Link::Over(over), _) => Status::Over(*over),
            (Link::Up, Some(outage)) if !self.overdue.is_empty() => {
                Status::Unanswered { since: outage.since, requests: self.overdue.len() }
            }
            (Link::Up, _) | (_, None) => Status::Connected,
            (_, Some(outage)) => {
                Status::Reconnecting { since: outage.since, attempts: outage.attempts }
            }
        }
    }

    /// Whether there is an outage that is not over: the last link that stands, if one does, has not proved to carry all
    /// that waits.
    #[must_use]
    pub const fn has_outage(&self) -> bool {
        self.outage.is_some()
    }

    /// Why nothing is carried out any more, if that is so.
    #[must_use]
    pub const fn over(&self) -> Option<Over> {
        match self.link {
            Link::Over(over) => Some(over),
            _ => None,
        }
    }

    /// Whether acknowledged changes will not become durable, and are saved instead.
    #[must_use]
    pub const fn is_saving(&self) -> bool {
        self.saving
    }

    /// Changes that were answered and are kept, and their bytes.
    #[must_use]
    pub fn unflushed(&self) -> (usize, usize) {
        (self.unflushed.len(), self.unflushed.weight())
    }
}

#[cfg(test)]
mod tests;
