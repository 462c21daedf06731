//! What is to be done beneath, and when: flushes that are due, then durable writes, then the oldest of
//! what waits, then where there is nothing to read, then what will be read.

use std::time::Duration;

use bytes::Bytes;

use super::super::piece::{Body, Piece, Rope};
use super::super::settings::Chosen;
use super::{Barrier, Core, Flush};
use crate::{Durability, Extent, Result, Space, Span};

/// While this many requests are in flight, a short piece that continues another is kept for what
/// follows it. One of them returns soon, and then it goes, so nothing waits for a clock.
const SHORT_IN_FLIGHT: usize = 8;

/// A short piece that has not grown while so many changes were accepted is not the end of a stream. Without
/// this bound such pieces gather at the head of the queue under random writes, and each search passes them.
const CHANGES_KEPT: u64 = 128;

/// A flush that comes while one is under way need not wait for its return; more than a few at a time
/// would only be work for the medium.
const FLUSHES_IN_FLIGHT: usize = 4;

/// Something for the worker to do.
#[derive(Debug)]
pub(in super::super) enum Order {
    Write { at: u64, data: Rope, durability: Durability },
    WriteZeroes { span: Span, space: Space, durability: Durability },
    Discard { span: Span },
    Flush { barrier: u64 },
    Read { span: Span },
    Extents { span: Span },
}

/// What came of an order.
pub(in super::super) enum Outcome {
    /// Of the change at this place.
    Changed(u64, Result<()>),
    Flushed(u64, Result<()>),
    /// Of the read-ahead at this place.
    Read(u64, Result<Bytes>),
    Extents(Result<Vec<Extent>>),
}

/// A sum of requests of one kind that are in flight.
#[derive(Default)]
pub(super) struct Load {
    pub(super) requests: usize,
    pub(super) bytes: u64,
}

impl Load {
    pub(super) const fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    pub(super) const fn remove(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes -= bytes;
    }

    /// Whether one more fits. One always does, or nothing would ever move.
    pub(super) const fn has_room(&self, bytes: u64, chosen: &Chosen) -> bool {
        self.requests == 0
            || (self.requests < chosen.requests && self.bytes + bytes <= chosen.in_flight)
    }
}

impl Core {
    /// The next thing to do beneath, if anything may be done.
    pub(in super::super) fn next(&mut self, now: Duration) -> Option<Order> {
        self.next_flush()
            .or_else(|| self.next_durable(now))
            .or_else(|| self.next_volatile(now))
            .or_else(|| self.next_question())
            .or_else(|| self.next_read(now))
    }

    fn next_durable(&mut self, now: Duration) -> Option<Order> {
        let &(_, at) = self.urgent.first()?;
        let bytes = self.waiting.map.get(at)?.bytes();
        self.durable.has_room(bytes, &self.writing).then(|| self.issue(at, now)).flatten()
    }

    fn next_volatile(&mut self, now: Duration) -> Option<Order> {
        let keep_short =
            self.volatile.requests >= SHORT_IN_FLIGHT && self.barriers.is_empty() && !self.closed;
        let kept = |piece: &Piece| keep_short && self.may_grow(piece);
        let mut queued = self.ready.iter().filter_map(|(_, at)| self.waiting.map.get(*at));
        let piece = queued.find(|piece| !kept(piece))?;
        let (at, bytes) = (piece.span.at, piece.bytes());
        self.volatile.has_room(bytes, &self.writing).then(|| self.issue(at, now)).flatten()
    }

    /// Whether a piece is the short end of something that is likely to go on.
    fn may_grow(&self, piece: &Piece) -> bool {
        piece.continues
            && self.seq - piece.seq < CHANGES_KEPT
            && (1..self.writing.segment).contains(&piece.bytes())
            && self.waiting.map.get(piece.span.end()).is_none()
    }

    fn issue(&mut self, at: u64, now: Duration) -> Option<Order> {
        let mut piece = self.take_waiting(at)?;
        // The segment may have grown since it was last merged.
        while let Some(next) = self.waiting.map.get(piece.span.end())
            && piece.takes(next, self.writing.segment)
            && let Some(next) = self.take_waiting(piece.span.end())
        {
            piece.merge(next);
        }
        let (span, bytes) = (piece.span, piece.bytes());
        let is_data = piece.body.fills();
        let durability = match piece.durability() {
            Durability::Volatile if is_data && self.pattern.expects_flush() => Durability::Durable,
            durability => durability,
        };
        piece.stable = durability == Durability::Durable && !matches!(piece.body, Body::Discard);
        let load = if piece.durable.is_some() { &mut self.durable } else { &mut self.volatile };
        load.add(bytes);
        // If more could be in flight, what returns is no measure of the link.
        let in_flight = self.volatile.bytes + self.durable.bytes;
        let limited = in_flight + self.writing.segment < self.writing.in_flight;
        piece.stamp = self.write_meter.issued(limited, now);
        let order = match &piece.body {
            Body::Data(rope) => Order::Write { at, data: rope.clone(), durability },
            &Body::Zeroes(space) => Order::WriteZeroes { span, space, durability },
            Body::Discard => Order::Discard { span },
        };
        let piece_is_awaited = piece.durable.is_some();
        self.issued.insert(piece);
        if piece_is_awaited || self.discard_keeps() {
            // It no longer stands in the way of the first in line.
            self.call_next();
        }
        Some(order)
    }

    fn next_read(&mut self, now: Duration) -> Option<Order> {
        if self.closed || self.failure.is_some() {
            return None;
        }
        let block = u64::from(self.shape.block_size);
        let span = loop {
            let span = self.ahead.wanted(&self.reading, block, now)?;
            if !self.ahead.has(span)
                && let Some(unknown) = self.holes.unknown(span)
            {
                break unknown;
            }
        };
        let holes = self.pending(span).map(|piece| piece.span).collect();
        let in_flight = self.ahead.in_flight() + span.len;
        let limited = in_flight + self.reading.segment < self.reading.in_flight;
        let stamp = self.read_meter.issued(limited, now);
        self.ahead.issued(span, holes, stamp);
        Some(Order::Read { span })
    }

    /// What was accepted on `span` and has not landed.
    fn pending(&self, span: Span) -> impl Iterator<Item = &Piece> {
        let pending = [&self.waiting, &self.issued];
        pending.into_iter().flat_map(move |pieces| pieces.map.overlapping(span))
    }

    /// It goes before what is read ahead: that may turn out to be needless.
    fn next_question(&mut self) -> Option<Order> {
        if self.closed || self.failure.is_some() {
            return None;
        }
        let span = self.holes.wanted()?;
        let filling = self.pending(span).filter(|piece| piece.body.fills());
        let filling = filling.map(|piece| piece.span).collect();
        self.holes.asked(span, filling);
        Some(Order::Extents { span })
    }

    /// A flush of the volume beneath, for everyone whose writes have landed.
    fn next_flush(&mut self) -> Option<Order> {
        if self.barriers.is_empty() {
            return None;
        }
        let oldest = self.waiting.oldest().min(self.issued.oldest());
        let room = self.flushes.len() < FLUSHES_IN_FLIGHT;
        let due = |barrier: &mut Barrier| barrier.before < oldest && (room || !barrier.flush);
        let due: Vec<Barrier> = self.barriers.extract_if(.., due).collect();
        let (flushing, settled): (Vec<_>, Vec<_>) = due.into_iter().partition(|one| one.flush);
        for barrier in settled {
            self.settle(barrier.waiter, None);
        }
        let unstable = self.unstable;
        if self.stable == Some(unstable) {
            // All that has landed is stable.
            for barrier in flushing {
                self.settle(barrier.waiter, None);
            }
            return None;
        }
        if flushing.is_empty() {
            return None;
        }
        let barrier = self.waiter();
        let waiters = flushing.iter().map(|one| one.waiter).collect();
        self.flushes.insert(barrier, Flush { waiters, unstable });
        Some(Order::Flush { barrier })
    }
}
