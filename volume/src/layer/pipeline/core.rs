//! The state machine of the pipeline: changes are accepted and reads are asked for; orders to the
//! volume beneath come out, and their results go in. It does nothing itself, and knows no clock.
//!
//! ```text
//! accept -> write queue: waiting -> next -> in flight -> finish
//! barrier -> flush tracker -> next -> finish
//! read -> read-ahead, holes -> next -> finish
//! ```
//!
//! The newest bytes are those of the write queue, then what was read ahead or is known to be zero, then the
//! volume's.

mod change;
mod failure;
mod flush_pattern;
mod flush_tracker;
mod order;
mod rate_control;
mod waiters;
mod write_queue;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub(super) use self::change::{Change, ChangeBody, Entry};
use self::failure::Failure;
pub(super) use self::failure::report;
use self::flush_tracker::{Due, FlushTracker};
pub(super) use self::order::{Order, Outcome};
pub(in crate::layer) use self::rate_control::RateControl;
pub(super) use self::waiters::Answer;
use self::waiters::Waiters;
use self::write_queue::WriteQueue;
use super::WaiterId;
use super::holes::{Holes, covering_span};
use super::piece::{Body, Patch, Piece};
use super::read_ahead::ReadAhead;
use super::settings::{Chosen, Direction, Settings};
use super::spans::uncovered;
use crate::{Durability, Error, Kind, Result, Shape, Span, Verb};

/// Where the bytes of a read are.
#[derive(Debug)]
pub(super) enum Found {
    /// All here.
    Here(Vec<Patch>),
    /// Read ahead: ask again when the waiter is called.
    Coming(WaiterId),
    /// To be read beneath, and the patches laid over.
    Beneath(Span, Vec<Patch>),
}

/// See the module.
pub(super) struct Core {
    block: u64,
    /// A discard may keep the bytes. Otherwise they are zeroes, and it is like any change.
    discard_keeps: bool,
    writes: RateControl,
    reads: RateControl,
    queue: WriteQueue,
    flushes: FlushTracker,
    waiters: Waiters,
    read_ahead: ReadAhead,
    holes: Holes,
    /// When something may be issued that was held back.
    held_until: Option<Duration>,
    failure: Failure,
    closed: bool,
}

impl Core {
    pub(super) fn new(settings: Settings, shape: Shape) -> Self {
        let discard_keeps = shape.discard.is_some_and(|discard| !discard.reads_zeroes);
        Self {
            block: u64::from(shape.block_size),
            discard_keeps,
            read_ahead: ReadAhead::new(shape.size),
            holes: Holes::new(shape.size, settings.knows_holes()),
            writes: RateControl::new(Direction::Write, settings, shape.clone()),
            reads: RateControl::new(Direction::Read, settings, shape),
            queue: WriteQueue::new(discard_keeps),
            flushes: FlushTracker::default(),
            waiters: Waiters::default(),
            held_until: None,
            failure: Failure::default(),
            closed: false,
        }
    }

    /// What was chosen for writes and for reads.
    pub(super) const fn chosen(&self) -> (Chosen, Chosen) {
        (*self.writes.chosen(), *self.reads.chosen())
    }

    /// Bytes accepted and not landed.
    pub(super) const fn pending_bytes(&self) -> u64 {
        self.queue.held()
    }

    // Callers that wait.

    /// Those who may go on since this was last asked.
    pub(super) fn called(&mut self) -> std::vec::Drain<'_, WaiterId> {
        self.waiters.called()
    }

    /// Whether there is an answer to come for `waiter`.
    pub(super) fn awaits(&self, waiter: Option<WaiterId>) -> bool {
        self.waiters.awaits(waiter)
    }

    /// The answer that `waiter` waits for, if it is there.
    pub(super) fn answer(&mut self, waiter: WaiterId) -> Option<Answer> {
        self.waiters.answer(waiter)
    }

    /// The caller behind `waiter` no longer waits.
    pub(super) fn leave(&mut self, waiter: WaiterId) {
        self.waiters.leave(waiter);
    }

    // Changes.

    /// Accepts what there is room for. The first in line goes first, even if what comes later would fit.
    pub(super) fn accept(&mut self, change: &mut Change) -> Result<Entry> {
        self.failure.check(change.verb, change.span)?;
        if self.waiters.is_first(change.waiter) {
            self.accept_parts(change);
        }
        if !change.span.is_empty() {
            let waiter = *change.waiter.get_or_insert_with(|| self.waiters.name());
            if !change.in_line {
                change.in_line = true;
                self.waiters.join_line(waiter);
            }
            return Ok(Entry::Wait(waiter));
        }
        if std::mem::take(&mut change.in_line) {
            self.waiters.leave_line();
        }
        Ok(Entry::Accepted)
    }

    fn accept_parts(&mut self, change: &mut Change) {
        while !change.span.is_empty() {
            let chosen = self.writes.chosen();
            let (segment, window) = (chosen.segment, chosen.window);
            let part = change.next_part(segment);
            if !self.queue.has_room(part, &change.body, window) {
                return;
            }
            let body = change.take(part);
            self.read_ahead.invalidate(part);
            if body.fills() {
                self.holes.filled(part);
            }
            let durable = (change.durability == Durability::Durable)
                .then(|| *change.waiter.get_or_insert_with(|| self.waiters.name()));
            match durable {
                Some(waiter) => self.waiters.expect(waiter),
                None => self.flushes.accepted(),
            }
            self.queue.add(part, body, durable, segment);
        }
    }

    /// Begins a flush, or without `flush` only waits until everything accepted so far has landed.
    pub(super) fn barrier(&mut self, flush: bool) -> Result<WaiterId> {
        self.failure.check(Verb::Flush, None)?;
        let waiter = self.waiters.name();
        self.waiters.expect(waiter);
        self.flushes.barrier(self.queue.last(), waiter, flush);
        Ok(waiter)
    }

    // Reads.

    /// A read begins: a stream may go on. Then as [`find`](Self::find).
    pub(super) fn read(&mut self, span: Span, now: Duration) -> Result<Found> {
        self.read_ahead.observe(span, now);
        self.find(span)
    }

    /// Where the bytes of `span` are now. What is found here is at least as new as anything that was
    /// accepted before; what comes from beneath must be read after this.
    pub(super) fn find(&mut self, span: Span) -> Result<Found> {
        self.failure.check_read(span)?;
        let patches = self.patches(span);
        let gaps = uncovered(span, patches.iter().map(|patch| patch.span).collect());
        let slack = self.reads.chosen().segment;
        let Some(missing) = covering_span(&gaps) else {
            self.read_ahead.passed(span, slack);
            return Ok(Found::Here(patches));
        };
        let waiter = self.waiters.name();
        if gaps.iter().any(|gap| self.read_ahead.wait(*gap, waiter)) {
            self.waiters.expect(waiter);
            return Ok(Found::Coming(waiter));
        }
        self.read_ahead.passed(span, slack);
        Ok(Found::Beneath(missing, patches))
    }

    /// What is here of `span`, the newer behind the older.
    fn patches(&self, span: Span) -> Vec<Patch> {
        let mut patches = Vec::new();
        patches.extend(self.holes.parts(span).map(|span| Patch { span, data: None }));
        let kept = self.read_ahead.parts(span);
        patches.extend(kept.map(|(span, data)| Patch { span, data: Some(data) }));
        // A discard that may keep the bytes is as if it had.
        let is_seen = |piece: &&Piece| !(self.discard_keeps && matches!(piece.body, Body::Discard));
        let pending = self.queue.pending(span).filter(is_seen);
        pending.for_each(|piece| piece.patch(span, &mut patches));
        patches
    }

    /// A caller's own read of `span`, issued at `issued`, brought `bytes`.
    pub(super) fn read_returned(
        &mut self,
        span: Span,
        bytes: &[u8],
        issued: Duration,
        now: Duration,
    ) {
        self.reads.latency_beside(issued, now);
        self.holes.looked(span, bytes);
    }

    // Orders.

    /// The next thing to do beneath, if anything may be done: flushes that are due, then changes, then a question
    /// for holes, then what will be read.
    pub(super) fn next(&mut self, now: Duration) -> Option<Order> {
        self.pace(now);
        self.held_until = None;
        self.next_flush()
            .or_else(|| self.next_change(now))
            .or_else(|| self.next_question())
            .or_else(|| self.next_read(now))
    }

    /// Both directions are paced while both are full.
    fn pace(&mut self, now: Duration) {
        let Self { writes, reads, .. } = self;
        let both = writes.is_busy() && reads.is_busy();
        writes.set_paced(both, now);
        reads.set_paced(both, now);
        writes.observe_opposite(reads);
        reads.observe_opposite(writes);
    }

    /// When there may be something to do, if nothing happens before.
    pub(super) const fn held_until(&self) -> Option<Duration> {
        self.held_until
    }

    /// Whether to wait, as so much was issued in one direction that it may not take more before `until`.
    fn holds(&mut self, until: Option<Duration>) -> bool {
        let Some(until) = until else { return false };
        self.held_until = Some(self.held_until.map_or(until, |other| other.min(until)));
        true
    }

    fn next_flush(&mut self) -> Option<Order> {
        if self.flushes.has_no_barrier() {
            return None;
        }
        let Due { settled, flush } = self.flushes.due(self.queue.oldest());
        settled.into_iter().for_each(|waiter| self.waiters.settle(waiter, None));
        flush.map(|flush| Order::Flush { flush })
    }

    fn next_change(&mut self, now: Duration) -> Option<Order> {
        let hurry = self.closed || !self.flushes.has_no_barrier();
        if self.holds(self.writes.held_until(now)) {
            return None;
        }
        let at = self.queue.next(self.writes.chosen(), hurry, self.writes.is_paced())?;
        let in_flight = self.queue.in_flight();
        let piece = self.queue.issue(at, self.writes.chosen().segment)?;
        let durability = match piece.durability() {
            Durability::Volatile if piece.body.fills() && self.flushes.expects_flush() => {
                Durability::Durable
            }
            durability => durability,
        };
        piece.stable = durability == Durability::Durable && !matches!(piece.body, Body::Discard);
        piece.stamp = self.writes.issued(piece.bytes(), in_flight + piece.bytes(), now);
        let order = Order::change(piece, durability);
        if piece.durable.is_some() || self.discard_keeps {
            // It no longer stands in the way of the first in line.
            self.waiters.call_next();
        }
        Some(order)
    }

    /// It goes before what is read ahead: that may turn out to be needless.
    fn next_question(&mut self) -> Option<Order> {
        if self.closed || self.failure.has_failed() {
            return None;
        }
        let span = self.holes.wanted()?;
        let filling = self.queue.pending(span).filter(|piece| piece.body.fills());
        let filling = filling.map(|piece| piece.span).collect();
        self.holes.asked(span, filling);
        Some(Order::Extents { span })
    }

    fn next_read(&mut self, now: Duration) -> Option<Order> {
        if self.closed || self.failure.has_failed() || self.holds(self.reads.held_until(now)) {
            return None;
        }
        let span = loop {
            let span = self.read_ahead.wanted(self.reads.chosen(), self.block, now)?;
            if !self.read_ahead.has(span)
                && let Some(unknown) = self.holes.unknown(span)
            {
                break unknown;
            }
        };
        let pending = self.queue.pending(span).map(|piece| piece.span).collect();
        let stamp = self.reads.issued(span.len, self.read_ahead.in_flight() + span.len, now);
        self.read_ahead.issued(span, pending, stamp);
        Some(Order::Read { span })
    }

    /// A write that was put together from several now has one buffer, which readers may use too.
    pub(super) fn gathered(&mut self, at: u64, data: Bytes) {
        self.queue.gathered(at, data);
    }

    // Results.

    /// Takes the result of an order.
    pub(super) fn finish(&mut self, outcome: Outcome, now: Duration) {
        match outcome {
            Outcome::Changed(at, result) => self.landed(at, result, now),
            Outcome::Flushed(flush, result) => self.flushed(flush, result),
            Outcome::Read(at, result) => self.read_ended(at, result.ok().as_ref(), now),
            Outcome::Extents(result) => self.holes.told(&result.unwrap_or_default()),
        }
    }

    fn landed(&mut self, at: u64, result: Result<()>, now: Duration) {
        let Some(piece) = self.queue.landed(at) else { return };
        self.writes.returned(piece.stamp, piece.bytes(), result.is_ok(), now);
        self.flushes.landed(piece.stable);
        let error = result.err().map(Arc::new);
        if let Some(waiter) = piece.durable {
            self.waiters.settle(waiter, error.as_ref());
        }
        match error {
            None => self.space_changed(&piece),
            Some(error) => self.failed(&piece, error),
        }
        self.waiters.call_next();
    }

    /// What was zeroed is known to be zero, but for what waits to be written there; of what was discarded
    /// the map may know.
    fn space_changed(&mut self, piece: &Piece) {
        let reads_zeroes = match piece.body {
            Body::Data(_) => return,
            Body::Zeroes(_) => true,
            Body::Discard => !self.discard_keeps,
        };
        self.holes.released();
        if reads_zeroes {
            let waiting = self.queue.waiting(piece.span).filter(|later| later.body.fills());
            self.holes.zeroed(piece.span, waiting.map(|later| later.span));
        }
    }

    /// Remembers a failure. That of a change of which nobody was promised anything (the caller of a durable
    /// write is told himself, and a discard that may keep the bytes has kept them) counts only if it may have
    /// cost others.
    fn failed(&mut self, piece: &Piece, error: Arc<Error>) {
        let stands_for_others = piece.since < piece.seq;
        let told = match piece.body {
            Body::Discard => self.discard_keeps,
            Body::Data(_) | Body::Zeroes(_) => piece.durable.is_some() && !stands_for_others,
        };
        if !told {
            self.failure.lose([piece.span]);
        }
        let durability = if piece.stable { Durability::Durable } else { Durability::Volatile };
        if !told || error.kind.loses(durability) {
            self.fail(error);
        }
    }

    /// From now on nothing is accepted and no flush succeeds.
    fn fail(&mut self, error: Arc<Error>) {
        let error = self.failure.keep(error);
        for waiter in self.flushes.take_barriers() {
            self.waiters.settle(waiter, Some(&error));
        }
        self.waiters.call_line();
    }

    fn flushed(&mut self, flush: u64, result: Result<()>) {
        let error = result.err().map(Arc::new);
        let Some(waiters) = self.flushes.ended(flush, error.is_none()) else { return };
        // What failed while it was under way was accepted before it ended: it may not say yes.
        let told = error.as_ref().or_else(|| self.failure.get());
        for waiter in waiters {
            self.waiters.settle(waiter, told);
        }
        if let Some(error) = error {
            // After a failed flush nobody knows what of all that was written is there.
            self.fail(error);
        }
    }

    fn read_ended(&mut self, at: u64, bytes: Option<&Bytes>, now: Duration) {
        let Some(fetch) = self.read_ahead.returned(at, bytes) else { return };
        if let Some(bytes) = bytes {
            self.holes.looked(fetch.span, bytes);
        }
        self.reads.returned(fetch.stamp, fetch.span.len, bytes.is_some(), now);
        for waiter in fetch.waiters {
            self.waiters.settle(waiter, None);
        }
    }

    // The end.

    /// Nobody will ask for anything more; what was accepted is still to be carried out.
    pub(super) const fn close(&mut self) {
        self.closed = true;
    }

    /// Whether everything is done that will ever be asked for.
    pub(super) fn is_over(&self) -> bool {
        self.closed
            && self.queue.is_empty()
            && self.flushes.is_idle()
            && self.read_ahead.is_idle()
            && self.holes.is_idle()
    }

    /// The worker is gone: nothing that waits for it will be answered.
    pub(super) fn abandon(&mut self) {
        let gone = Error::new(Kind::Gone, Verb::Write, None).because("the pipeline has ended");
        let error = Arc::new(gone);
        let pending = self.queue.pending(Span::new(0, u64::MAX)).map(|piece| piece.span);
        self.failure.lose(pending);
        self.read_ahead = ReadAhead::new(0);
        self.holes = Holes::new(0, false);
        self.fail(Arc::clone(&error));
        self.waiters.fail_all(&error);
    }
}

#[cfg(test)]
mod tests;
