//! Changes that were accepted and have not landed: those that wait, and those in flight.
//!
//! Neither overlaps another of its kind: a change replaces what waits beneath it, and stays behind what is in
//! flight beneath it until that has landed. So the newest bytes are the waiting ones, then those in flight.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::WaiterId;
use super::super::piece::{Body, Piece, Seq};
use super::super::rate_meter::Stamp;
use super::super::settings::Chosen;
use super::super::spans::SpanMap;
use super::change::ChangeBody;
use crate::Span;

/// The most pieces that are held, whatever their size: commands without data are bounded by it.
const PIECES_MAX: usize = 8192;

/// While this many requests are in flight, a short piece that continues another is kept for what
/// follows it. One of them returns soon, and then it goes, so nothing waits for a clock.
const SHORT_IN_FLIGHT: usize = 8;

/// A short piece that has not grown while so many changes were accepted is not the end of a stream. Without
/// this bound such pieces gather at the head of the queue under random writes, and each search passes them.
const CHANGES_KEPT: u64 = 128;

/// While what waits keeps fewer bytes of buffers that it is little of, a write stays in the one that it came in: if it is
/// merged it is copied once then, when it is sent. What waits for long is mostly beyond this.
const FOREIGN_MAX: usize = 16 << 20;

/// Pieces by place and by age.
#[derive(Default)]
struct Pieces {
    map: SpanMap<Piece>,
    ages: BTreeSet<(Seq, u64)>,
}

impl Pieces {
    fn insert(&mut self, piece: Piece) {
        self.ages.insert((piece.since, piece.span.at));
        self.map.insert(piece);
    }

    fn remove(&mut self, at: u64) -> Option<Piece> {
        let piece = self.map.remove(at)?;
        self.ages.remove(&(piece.since, at));
        Some(piece)
    }

    fn oldest(&self) -> Seq {
        self.ages.first().map_or(Seq::MAX, |(since, _)| *since)
    }
}

/// A sum of requests of one kind that are in flight.
#[derive(Default)]
struct Load {
    requests: usize,
    bytes: u64,
}

impl Load {
    const fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    const fn remove(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes -= bytes;
    }

    /// Whether one more fits. One always does, or nothing would ever move.
    const fn has_room(&self, bytes: u64, chosen: &Chosen) -> bool {
        self.requests == 0
            || (self.requests < chosen.requests && self.bytes + bytes <= chosen.in_flight)
    }
}

/// See the module.
pub(super) struct WriteQueue {
    /// A discard may keep the bytes it finds.
    discard_keeps: bool,
    seq: Seq,
    waiting: Pieces,
    issued: Pieces,
    /// What waits and is not blocked, the oldest first: volatile, and durable. Durable writes have
    /// a budget of their own, so that they need not queue behind what nobody waits for, and cannot
    /// keep it from ever being written.
    ready: BTreeSet<(Seq, u64)>,
    urgent: BTreeSet<(Seq, u64)>,
    volatile: Load,
    durable: Load,
    /// The last one that was sent was durable.
    was_durable: bool,
    /// The buffers that what waits keeps although it is little of them, in bytes.
    foreign: usize,
    /// Bytes accepted and not landed; never above the window.
    held: u64,
}

impl WriteQueue {
    pub(super) fn new(discard_keeps: bool) -> Self {
        Self {
            discard_keeps,
            seq: 0,
            waiting: Pieces::default(),
            issued: Pieces::default(),
            ready: BTreeSet::new(),
            urgent: BTreeSet::new(),
            volatile: Load::default(),
            durable: Load::default(),
            was_durable: false,
            foreign: 0,
            held: 0,
        }
    }

    // In.

    /// Whether a change to `part` may be added, with `window` bytes in all.
    pub(super) fn has_room(&self, part: Span, body: &ChangeBody, window: u64) -> bool {
        // A change cuts what it lands in into two, at most.
        let pieces = self.waiting.map.len() + self.issued.map.len() + 2 <= PIECES_MAX;
        let bytes = match body {
            ChangeBody::Data(_) => self.held + part.len <= window,
            ChangeBody::Zeroes(_) | ChangeBody::Discard => true,
        };
        pieces && bytes && !self.is_in_the_way(part, body)
    }

    /// What may not be replaced while it waits has to leave first: a durable write, because its caller
    /// waits for just that; and anything at all under a discard that may keep the bytes it finds,
    /// because these would be older ones.
    fn is_in_the_way(&self, part: Span, body: &ChangeBody) -> bool {
        let keeps = matches!(body, ChangeBody::Discard) && self.discard_keeps;
        let mut beneath = self.waiting.map.overlapping(part);
        beneath.any(|piece| keeps || piece.durable.is_some())
    }

    /// Adds a change, in place of what waits beneath it and as part of neighbours of its kind, up to `segment`.
    pub(super) fn add(
        &mut self,
        span: Span,
        mut body: Body,
        durable: Option<WaiterId>,
        segment: u64,
    ) {
        let mut foreign = body.foreign();
        if self.foreign + foreign > FOREIGN_MAX {
            body.own();
            foreign = 0;
        }
        self.seq += 1;
        let since = self.replace(span).min(self.seq);
        let piece = Piece {
            span,
            body,
            foreign,
            since,
            seq: self.seq,
            durable,
            stable: false,
            blocked: self.issued.map.overlaps(span),
            continues: self.waiting.map.ending_at(span.at).is_some()
                || self.issued.map.ending_at(span.at).is_some(),
            stamp: Stamp::default(),
        };
        self.held += piece.bytes();
        self.merge(piece, segment);
    }

    /// Cuts `span` out of what waits; gives the age of the oldest that lost something.
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
    fn merge(&mut self, mut piece: Piece, segment: u64) {
        let before = self.waiting.map.ending_at(piece.span.at);
        if let Some(at) = before.filter(|one| one.takes(&piece, segment)).map(|one| one.span.at)
            && let Some(mut before) = self.take_waiting(at)
        {
            before.merge(piece);
            piece = before;
        }
        self.merge_next(&mut piece, segment);
        self.wait(piece);
    }

    /// Merges the piece that follows, if it may become part of this one; whether it did.
    fn merge_next(&mut self, piece: &mut Piece, segment: u64) -> bool {
        let next = self.waiting.map.get(piece.span.end());
        let next = next.filter(|next| piece.takes(next, segment)).map(|next| next.span.at);
        let next = next.and_then(|at| self.take_waiting(at));
        let merged = next.is_some();
        next.into_iter().for_each(|next| piece.merge(next));
        merged
    }

    fn wait(&mut self, piece: Piece) {
        if !piece.blocked {
            self.queue(piece.durable.is_some()).insert((piece.since, piece.span.at));
        }
        self.foreign += piece.foreign;
        self.waiting.insert(piece);
    }

    fn take_waiting(&mut self, at: u64) -> Option<Piece> {
        let piece = self.waiting.remove(at)?;
        self.foreign -= piece.foreign;
        self.queue(piece.durable.is_some()).remove(&(piece.since, at));
        Some(piece)
    }

    const fn queue(&mut self, durable: bool) -> &mut BTreeSet<(Seq, u64)> {
        if durable { &mut self.urgent } else { &mut self.ready }
    }

    // Out.

    /// The place of the change to be sent next, if there is one and it has room in flight: a durable one, or the
    /// oldest; both `in_turn` where one makes the other wait. Short ends of streams stay while others are in flight, unless it is
    /// to `hurry`.
    pub(super) fn next(&self, chosen: &Chosen, hurry: bool, in_turn: bool) -> Option<u64> {
        let volatile = || self.next_volatile(chosen, hurry);
        match in_turn && self.was_durable {
            true => volatile().or_else(|| self.next_durable(chosen)),
            false => self.next_durable(chosen).or_else(volatile),
        }
    }

    fn next_durable(&self, chosen: &Chosen) -> Option<u64> {
        let &(_, at) = self.urgent.first()?;
        let bytes = self.waiting.map.get(at)?.bytes();
        self.durable.has_room(bytes, chosen).then_some(at)
    }

    fn next_volatile(&self, chosen: &Chosen, hurry: bool) -> Option<u64> {
        if !self.volatile.has_room(0, chosen) {
            return None;
        }
        let keep_short = self.volatile.requests >= SHORT_IN_FLIGHT && !hurry;
        let kept = |piece: &Piece| keep_short && self.may_grow(piece, chosen.segment);
        let mut queued = self.ready.iter().filter_map(|(_, at)| self.waiting.map.get(*at));
        let piece = queued.find(|piece| !kept(piece))?;
        self.volatile.has_room(piece.bytes(), chosen).then_some(piece.span.at)
    }

    /// Whether a piece is the short end of something that is likely to go on.
    fn may_grow(&self, piece: &Piece, segment: u64) -> bool {
        piece.continues
            && self.seq - piece.seq < CHANGES_KEPT
            && (1..segment).contains(&piece.bytes())
            && self.waiting.map.get(piece.span.end()).is_none()
    }

    /// Puts the change at this place in flight.
    pub(super) fn issue(&mut self, at: u64, segment: u64) -> Option<&mut Piece> {
        let mut piece = self.take_waiting(at)?;
        // The segment may have grown since it was last merged.
        while self.merge_next(&mut piece, segment) {}
        // What is in flight may be kept until the next flush, to be sent again.
        piece.body.own();
        self.load(&piece).add(piece.bytes());
        self.was_durable = piece.durable.is_some();
        self.issued.insert(piece);
        self.issued.map.get_mut(at)
    }

    const fn load(&mut self, piece: &Piece) -> &mut Load {
        if piece.durable.is_some() { &mut self.durable } else { &mut self.volatile }
    }

    /// A change in flight that was put together from several has one buffer now, which readers may use too.
    pub(super) fn gathered(&mut self, at: u64, data: Bytes) {
        if let Some(piece) = self.issued.map.get_mut(at) {
            piece.body = Body::Data(data.into());
        }
    }

    /// Takes the change at this place, which has landed or failed.
    pub(super) fn landed(&mut self, at: u64) -> Option<Piece> {
        let piece = self.issued.remove(at)?;
        self.held -= piece.bytes();
        self.load(&piece).remove(piece.bytes());
        self.unblock(piece.span);
        Some(piece)
    }

    /// What waited for `span` to land may go, unless something else is in its way.
    fn unblock(&mut self, span: Span) {
        for at in self.waiting.map.places(span) {
            let Some(piece) = self.waiting.map.get_mut(at) else { continue };
            piece.blocked = self.issued.map.overlaps(piece.span);
            if !piece.blocked {
                let (key, durable) = ((piece.since, at), piece.durable.is_some());
                self.queue(durable).insert(key);
            }
        }
    }

    // What is known.

    /// The number of the change that was accepted last.
    pub(super) const fn last(&self) -> Seq {
        self.seq
    }

    /// The number of the oldest change that has not landed.
    pub(super) fn oldest(&self) -> Seq {
        self.waiting.oldest().min(self.issued.oldest())
    }

    /// Bytes accepted and not landed.
    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    pub(super) const fn in_flight(&self) -> u64 {
        self.volatile.bytes + self.durable.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.map.is_empty() && self.issued.map.is_empty()
    }

    /// The changes on `span` that wait.
    pub(super) fn waiting(&self, span: Span) -> impl Iterator<Item = &Piece> {
        self.waiting.map.overlapping(span)
    }

    /// The changes on `span` that have not landed, those in flight first.
    pub(super) fn pending(&self, span: Span) -> impl Iterator<Item = &Piece> {
        let pending = [&self.issued, &self.waiting];
        pending.into_iter().flat_map(move |pieces| pieces.map.overlapping(span))
    }
}

#[cfg(test)]
impl WriteQueue {
    /// What holds whenever nothing is being changed.
    pub(super) fn assert_sound(&self, window: u64) {
        let everywhere = Span::new(0, u64::MAX);
        let pieces = || self.pending(everywhere);
        assert_eq!(self.held, pieces().map(Piece::bytes).sum::<u64>());
        assert!(self.held <= window);
        for piece in self.waiting(everywhere) {
            assert_eq!(piece.foreign, piece.body.foreign());
        }
        assert_eq!(self.foreign, self.waiting(everywhere).map(|piece| piece.foreign).sum());
        assert!(self.foreign <= FOREIGN_MAX);
        assert!(pieces().count() <= PIECES_MAX);
        for pieces in [&self.waiting, &self.issued] {
            let spans: Vec<Span> =
                pieces.map.overlapping(everywhere).map(|piece| piece.span).collect();
            assert!(spans.windows(2).all(|pair| pair[1].end() <= pair[0].at), "{spans:?}");
            assert_eq!(pieces.ages.len(), spans.len());
        }
        for piece in self.waiting(everywhere) {
            assert_eq!(piece.blocked, self.issued.map.overlaps(piece.span), "{}", piece.span);
            let key = (piece.since, piece.span.at);
            let queue = if piece.durable.is_some() { &self.urgent } else { &self.ready };
            assert_eq!(queue.contains(&key), !piece.blocked);
        }
        assert!(self.ready.len() + self.urgent.len() <= self.waiting.map.len());
    }
}
