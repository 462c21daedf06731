//! How changes get in: in line, within the window, over what waits.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::piece::{Body, Piece, Rope, Seq};
use super::super::{WaiterId, rate_meter::Stamp};
use super::{Core, report};
use crate::{Durability, Result, Space, Span, Verb};

/// The most pieces that are held, whatever their size: commands without data are bounded by it.
const PIECES_MAX: usize = 8192;

/// A change on its way in.
pub(in super::super) struct Change {
    pub(in super::super) verb: Verb,
    /// What of it is still to be accepted.
    pub(in super::super) span: Span,
    pub(in super::super) body: ChangeBody,
    pub(in super::super) durability: Durability,
    /// Under which its sender waits, once he has to: for room, or for the bytes to be durable.
    pub(in super::super) waiter: Option<WaiterId>,
    /// It stands in the line.
    in_line: bool,
}

/// What a change is to do.
pub(in super::super) enum ChangeBody {
    Data(Bytes),
    Zeroes(Space),
    Discard,
}

/// Whether a change was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Entry {
    Accepted,
    /// Its place in the line is kept; its waiter is called when it may be its turn.
    Wait(WaiterId),
}

impl Core {
    /// Accepts what there is room for. Whoever came first goes first, even if what comes later would
    /// fit.
    pub(in super::super) fn accept(&mut self, change: &mut Change) -> Result<Entry> {
        if let Some(failure) = &self.failure {
            return Err(report(failure, change.verb, change.span));
        }
        if self.line.is_empty() || self.line.front() == change.waiter.as_ref() {
            self.accept_parts(change);
        }
        if !change.span.is_empty() {
            let waiter = *change.waiter.get_or_insert_with(|| self.waiter());
            if !change.in_line {
                change.in_line = true;
                self.line.push_back(waiter);
            }
            return Ok(Entry::Wait(waiter));
        }
        if change.in_line {
            change.in_line = false;
            self.line.pop_front();
            self.call_next();
        }
        Ok(Entry::Accepted)
    }

    fn accept_parts(&mut self, change: &mut Change) {
        while !change.span.is_empty() {
            let part = change.next_part(self.writing.segment);
            if !self.has_room(part, change) {
                return;
            }
            let body = change.take(part);
            let durable = (change.durability == Durability::Durable)
                .then(|| *change.waiter.get_or_insert_with(|| self.waiter()));
            self.put(part, body, durable);
        }
    }

    /// Someone no longer waits for `waiter`.
    pub(in super::super) fn leave(&mut self, waiter: WaiterId) {
        self.slots.remove(&waiter);
        if let Some(place) = self.line.iter().position(|queued| *queued == waiter) {
            self.line.remove(place);
            self.call_next();
        }
    }

    pub(super) fn call_next(&mut self) {
        self.called.extend(self.line.front());
    }

    fn has_room(&self, part: Span, change: &Change) -> bool {
        // A change cuts what it lands in into two, at most.
        let pieces = self.waiting.map.len() + self.issued.map.len() + 2 <= PIECES_MAX;
        let bytes = match change.body {
            ChangeBody::Data(_) => self.held + part.len <= self.writing.window,
            ChangeBody::Zeroes(_) | ChangeBody::Discard => true,
        };
        pieces && bytes && !self.stands_in_the_way(part, change)
    }

    /// What may not be replaced while it waits has to leave first: a durable write, because someone
    /// waits for just that; and anything at all under a discard that may keep the bytes it finds,
    /// because these would be older ones.
    fn stands_in_the_way(&self, part: Span, change: &Change) -> bool {
        let keeps = matches!(change.body, ChangeBody::Discard) && self.discard_keeps();
        let mut beneath = self.waiting.map.overlapping(part);
        beneath.any(|piece| keeps || piece.durable.is_some())
    }

    /// Whether a discard may keep the bytes. Otherwise they are zeroes, and it is like any change.
    pub(super) fn discard_keeps(&self) -> bool {
        self.shape.discard.is_some_and(|discard| !discard.reads_zeroes)
    }

    fn put(&mut self, span: Span, body: Body, durable: Option<WaiterId>) {
        self.seq += 1;
        let seq = self.seq;
        self.ahead.invalidate(span);
        if body.fills() {
            self.holes.filled(span);
        }
        let since = self.replace(span).min(seq);
        match durable {
            Some(waiter) => self.slots.entry(waiter).or_default().left += 1,
            None => self.pattern.accepted(),
        }
        let piece = Piece {
            span,
            body,
            since,
            seq,
            durable,
            stable: false,
            blocked: self.issued.map.overlaps(span),
            continues: self.waiting.map.ending_at(span.at).is_some()
                || self.issued.map.ending_at(span.at).is_some(),
            stamp: Stamp::default(),
        };
        self.held += piece.bytes();
        self.merge(piece);
    }

    /// Cuts `span` out of what waits, and says how old the oldest was that lost something.
    fn replace(&mut self, span: Span) -> Seq {
        let mut since = Seq::MAX;
        for at in self.waiting.map.places(span) {
            let Some(piece) = self.take_waiting(at) else { continue };
            since = since.min(piece.since);
            self.held -= piece.bytes();
            for mut rest in piece.beside(span) {
                rest.blocked = self.issued.map.overlaps(rest.span);
                self.held += rest.bytes();
                self.wait(rest);
            }
        }
        since
    }

    /// Lets a piece wait, as part of its neighbours if they are of its kind.
    fn merge(&mut self, mut piece: Piece) {
        let segment = self.writing.segment;
        let before = self.waiting.map.ending_at(piece.span.at);
        if let Some(at) = before.filter(|one| one.takes(&piece, segment)).map(|one| one.span.at)
            && let Some(mut before) = self.take_waiting(at)
        {
            before.merge(piece);
            piece = before;
        }
        let after = self.waiting.map.get(piece.span.end());
        if after.is_some_and(|after| piece.takes(after, segment))
            && let Some(after) = self.take_waiting(piece.span.end())
        {
            piece.merge(after);
        }
        self.wait(piece);
    }

    fn wait(&mut self, piece: Piece) {
        if !piece.blocked {
            self.queue(piece.durable.is_some()).insert((piece.since, piece.span.at));
        }
        self.waiting.insert(piece);
    }

    pub(super) fn take_waiting(&mut self, at: u64) -> Option<Piece> {
        let piece = self.waiting.remove(at)?;
        self.queue(piece.durable.is_some()).remove(&(piece.since, at));
        Some(piece)
    }

    pub(super) const fn queue(&mut self, durable: bool) -> &mut BTreeSet<(Seq, u64)> {
        if durable { &mut self.urgent } else { &mut self.ready }
    }
}

impl Change {
    pub(in super::super) const fn new(
        verb: Verb,
        span: Span,
        body: ChangeBody,
        durability: Durability,
    ) -> Self {
        Self { verb, span, body, durability, waiter: None, in_line: false }
    }

    /// Data are accepted segment by segment, so that a write larger than the window passes, and is
    /// ciphered and sent in pieces that overlap.
    fn next_part(&self, segment: u64) -> Span {
        match self.body {
            ChangeBody::Data(_) => Span::new(self.span.at, self.span.len.min(segment)),
            ChangeBody::Zeroes(_) | ChangeBody::Discard => self.span,
        }
    }

    fn take(&mut self, part: Span) -> Body {
        self.span = Span::new(part.end(), self.span.len - part.len);
        match &mut self.body {
            ChangeBody::Data(data) => Body::Data(Rope::taken(data.split_to(part.len as usize))),
            ChangeBody::Zeroes(space) => Body::Zeroes(*space),
            ChangeBody::Discard => Body::Discard,
        }
    }
}
