//! The state machine of the pipeline: changes are accepted and reads are asked for; orders to the
//! volume beneath come out, and their results go in. It does nothing itself, and knows no clock.
//!
//! ```text
//! accept -> waiting -> next -> issued -> finish
//! ```
//!
//! Neither what waits nor what flies overlaps anything of its kind: a change replaces what waits
//! beneath it, and stays behind what flies beneath it until that has landed. So the newest bytes are
//! the waiting ones, then the issued ones, then what was read ahead or is known to be zero, then the
//! volume's.

mod accept;
mod flush_pattern;
mod issue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub(super) use self::accept::{Change, ChangeBody, Entry};
use self::flush_pattern::FlushPattern;
use self::issue::Load;
pub(super) use self::issue::{Order, Outcome};
use super::WaiterId;
use super::holes::{Holes, hull};
use super::piece::{Body, Patch, Piece, Seq};
use super::rate_meter::RateMeter;
use super::read_ahead::ReadAhead;
use super::settings::{Chosen, Direction, Settings};
use super::spans::{SpanMap, uncovered};
use crate::{Durability, Error, Kind, Result, Shape, Span, Verb};

/// What someone waited for; the error may be the answer to several.
pub(super) type Answer = std::result::Result<(), Arc<Error>>;

/// Someone who waits for an answer.
#[derive(Default)]
struct Slot {
    /// How many parts of it are still to come.
    left: usize,
    error: Option<Arc<Error>>,
}

/// Everything accepted before it is to have landed.
struct Barrier {
    before: Seq,
    waiter: WaiterId,
    /// And to be made durable.
    flush: bool,
}

/// A flush of the volume beneath.
struct Flush {
    /// Those who share it.
    waiters: Vec<WaiterId>,
    /// How many unstable changes it makes stable.
    unstable: u64,
}

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
    settings: Settings,
    shape: Shape,
    writing: Chosen,
    reading: Chosen,
    write_meter: RateMeter,
    read_meter: RateMeter,
    seq: Seq,
    waiters: WaiterId,
    waiting: Pieces,
    issued: Pieces,
    /// What waits and is not blocked, the oldest first: volatile, and durable. Durable writes have
    /// a budget of their own, so that they need not queue behind what nobody waits for, and cannot
    /// keep it from ever being written.
    ready: BTreeSet<(Seq, u64)>,
    urgent: BTreeSet<(Seq, u64)>,
    volatile: Load,
    durable: Load,
    /// Bytes accepted and not landed; never above the window.
    held: u64,
    /// Writers that wait for room, the longest waiting first.
    line: VecDeque<WaiterId>,
    slots: BTreeMap<WaiterId, Slot>,
    barriers: Vec<Barrier>,
    /// Flushes under way.
    flushes: BTreeMap<u64, Flush>,
    pattern: FlushPattern,
    /// How many changes have landed that are not stable, and of how many it is known that they are by now;
    /// of none before the first flush, since there may have been others before us.
    unstable: u64,
    stable: Option<u64>,
    ahead: ReadAhead,
    holes: Holes,
    /// The first failure nobody was told of. It stays.
    failure: Option<Arc<Error>>,
    /// What was accepted and did not land.
    lost: Vec<Span>,
    called: Vec<WaiterId>,
    closed: bool,
}

impl Core {
    pub(super) fn new(settings: Settings, shape: Shape) -> Self {
        let (write_meter, read_meter) =
            (RateMeter::new(settings.unsolicited), RateMeter::default());
        Self {
            writing: settings.choose(Direction::Write, &write_meter, &shape),
            reading: settings.choose(Direction::Read, &read_meter, &shape),
            ahead: ReadAhead::new(shape.size),
            holes: Holes::new(shape.size, settings.knows_holes()),
            settings,
            shape,
            write_meter,
            read_meter,
            seq: 0,
            waiters: 0,
            waiting: Pieces::default(),
            issued: Pieces::default(),
            ready: BTreeSet::new(),
            urgent: BTreeSet::new(),
            volatile: Load::default(),
            durable: Load::default(),
            held: 0,
            line: VecDeque::new(),
            slots: BTreeMap::new(),
            barriers: Vec::new(),
            flushes: BTreeMap::new(),
            pattern: FlushPattern::default(),
            unstable: 0,
            stable: None,
            failure: None,
            lost: Vec::new(),
            called: Vec::new(),
            closed: false,
        }
    }

    /// A name for someone who has to wait.
    const fn waiter(&mut self) -> WaiterId {
        self.waiters += 1;
        self.waiters
    }

    /// Who may go on since this was last asked.
    pub(super) fn called(&mut self) -> std::vec::Drain<'_, WaiterId> {
        self.called.drain(..)
    }

    /// What was chosen for writes and for reads.
    pub(super) const fn chosen(&self) -> (Chosen, Chosen) {
        (self.writing, self.reading)
    }

    /// Bytes accepted and not landed.
    pub(super) const fn pending_bytes(&self) -> u64 {
        self.held
    }

    // Barriers.

    /// Begins a flush, or without `flush` only waits until everything accepted so far has landed.
    pub(super) fn barrier(&mut self, flush: bool) -> Result<WaiterId> {
        if let Some(failure) = &self.failure {
            return Err(report(failure, Verb::Flush, None));
        }
        let waiter = self.waiter();
        self.slots.insert(waiter, Slot { left: 1, error: None });
        if flush {
            self.pattern.flushed();
        }
        self.barriers.push(Barrier { before: self.seq, waiter, flush });
        Ok(waiter)
    }

    /// Whether there is an answer to come for `waiter`.
    pub(super) fn awaits(&self, waiter: Option<WaiterId>) -> bool {
        waiter.is_some_and(|waiter| self.slots.contains_key(&waiter))
    }

    /// The answer that `waiter` waits for, if it is there.
    pub(super) fn answer(&mut self, waiter: WaiterId) -> Option<Answer> {
        let slot = self.slots.get(&waiter)?;
        if slot.left > 0 {
            return None;
        }
        Some(self.slots.remove(&waiter)?.error.map_or(Ok(()), Err))
    }

    fn settle(&mut self, waiter: WaiterId, error: Option<&Arc<Error>>) {
        if let Some(slot) = self.slots.get_mut(&waiter) {
            slot.left -= 1;
            if slot.error.is_none() {
                slot.error = error.cloned();
            }
            if slot.left == 0 {
                self.called.push(waiter);
            }
        }
    }

    /// A write that was put together from several now has one buffer, which readers may use too.
    pub(super) fn gathered(&mut self, at: u64, data: Bytes) {
        if let Some(piece) = self.issued.map.get_mut(at) {
            piece.body = Body::Data(data.into());
        }
    }

    // Results.

    /// Takes the result of an order.
    pub(super) fn finish(&mut self, outcome: Outcome, now: Duration) {
        match outcome {
            Outcome::Changed(at, result) => self.landed(at, result, now),
            Outcome::Flushed(barrier, result) => self.flushed(barrier, result),
            Outcome::Read(at, result) => self.read_ahead(at, result.ok().as_ref(), now),
            Outcome::Extents(result) => self.holes.told(&result.unwrap_or_default()),
        }
    }

    fn landed(&mut self, at: u64, result: Result<()>, now: Duration) {
        let Some(piece) = self.issued.remove(at) else { return };
        let bytes = piece.bytes();
        self.held -= bytes;
        let load = if piece.durable.is_some() { &mut self.durable } else { &mut self.volatile };
        load.remove(bytes);
        if self.write_meter.returned(piece.stamp, bytes, result.is_ok(), now) {
            self.writing = self.settings.choose(Direction::Write, &self.write_meter, &self.shape);
        }
        if !piece.stable {
            self.unstable += 1;
        }
        let error = result.err().map(Arc::new);
        if let Some(waiter) = piece.durable {
            self.settle(waiter, error.as_ref());
        }
        match error {
            None => self.space_changed(&piece),
            Some(error) => self.failed(&piece, error),
        }
        self.unblock(piece.span);
        self.call_next();
    }

    /// What was zeroed is known to be zero, but for what waits to be written there; of what was discarded
    /// the map may know.
    fn space_changed(&mut self, piece: &Piece) {
        let reads_zeroes = match piece.body {
            Body::Data(_) => return,
            Body::Zeroes(_) => true,
            Body::Discard => !self.discard_keeps(),
        };
        self.holes.released();
        if reads_zeroes {
            let waiting =
                self.waiting.map.overlapping(piece.span).filter(|later| later.body.fills());
            self.holes.zeroed(piece.span, waiting.map(|later| later.span));
        }
    }

    /// Remembers a failure. That of a change of which nobody was promised anything (the caller of a durable
    /// write is told himself, and a discard that may keep the bytes has kept them) counts only if it may have
    /// cost others.
    fn failed(&mut self, piece: &Piece, error: Arc<Error>) {
        let stands_for_others = piece.since < piece.seq;
        let told = match piece.body {
            Body::Discard => self.discard_keeps(),
            Body::Data(_) | Body::Zeroes(_) => piece.durable.is_some() && !stands_for_others,
        };
        if !told {
            self.lost.push(piece.span);
        }
        let durability = if piece.stable { Durability::Durable } else { Durability::Volatile };
        if !told || error.kind.loses(durability) {
            self.fail(error);
        }
    }

    /// From now on nothing is accepted and no flush succeeds.
    fn fail(&mut self, error: Arc<Error>) {
        let error = &*self.failure.get_or_insert(error);
        let error = Arc::clone(error);
        for barrier in std::mem::take(&mut self.barriers) {
            self.settle(barrier.waiter, Some(&error));
        }
        self.called.extend(&self.line);
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

    fn flushed(&mut self, barrier: u64, result: Result<()>) {
        let error = result.err().map(Arc::new);
        let Some(Flush { waiters, unstable }) = self.flushes.remove(&barrier) else { return };
        if error.is_none() {
            self.stable = self.stable.max(Some(unstable));
        }
        for waiter in waiters {
            // What failed while it was under way was accepted before it ended: it may not say yes.
            let error = error.as_ref().or(self.failure.as_ref()).cloned();
            self.settle(waiter, error.as_ref());
        }
        if let Some(error) = error {
            // After a failed flush nobody knows what of all that was written is there.
            self.fail(error);
        }
    }

    fn read_ahead(&mut self, at: u64, bytes: Option<&Bytes>, now: Duration) {
        let Some(fetch) = self.ahead.returned(at, bytes) else { return };
        if let Some(bytes) = bytes {
            self.holes.looked(fetch.span, bytes);
        }
        if self.read_meter.returned(fetch.stamp, fetch.span.len, bytes.is_some(), now) {
            self.reading = self.settings.choose(Direction::Read, &self.read_meter, &self.shape);
        }
        for waiter in fetch.waiters {
            self.settle(waiter, None);
        }
    }

    // Reads.

    /// A read begins: a stream may go on. Then as [`find`](Self::find).
    pub(super) fn read(&mut self, span: Span, now: Duration) -> Result<Found> {
        self.ahead.observe(span, now);
        self.find(span)
    }

    /// Where the bytes of `span` are now. What is found here is at least as new as anything that was
    /// accepted before; what comes from beneath must be read after this.
    pub(super) fn find(&mut self, span: Span) -> Result<Found> {
        if let Some(failure) = &self.failure
            && self.lost.iter().any(|lost| lost.overlaps(span))
        {
            return Err(report(failure, Verb::Read, span));
        }
        let mut patches = Vec::new();
        patches.extend(self.holes.parts(span).map(|span| Patch { span, data: None }));
        patches.extend(self.ahead.parts(span).map(|(span, data)| Patch { span, data: Some(data) }));
        for pieces in [&self.issued, &self.waiting] {
            let seen = pieces.map.overlapping(span);
            // A discard that may keep the bytes is as if it had.
            seen.filter(|piece| !(matches!(piece.body, Body::Discard) && self.discard_keeps()))
                .for_each(|piece| piece.patch(span, &mut patches));
        }
        let gaps = uncovered(span, patches.iter().map(|patch| patch.span).collect());
        let Some(missing) = hull(&gaps) else {
            self.ahead.passed(span, self.reading.segment);
            return Ok(Found::Here(patches));
        };
        let waiter = self.waiter();
        if gaps.iter().any(|gap| self.ahead.wait(*gap, waiter)) {
            self.slots.insert(waiter, Slot { left: 1, error: None });
            return Ok(Found::Coming(waiter));
        }
        self.ahead.passed(span, self.reading.segment);
        Ok(Found::Beneath(missing, patches))
    }

    /// A caller's own read of `span`, issued at `issued`, brought `bytes`.
    pub(super) fn read_returned(
        &mut self,
        span: Span,
        bytes: &[u8],
        issued: Duration,
        now: Duration,
    ) {
        self.read_meter.latency_beside(issued, now);
        self.holes.looked(span, bytes);
    }

    // The end.

    /// Nobody will ask for anything more; what was accepted is still to be carried out.
    pub(super) const fn close(&mut self) {
        self.closed = true;
    }

    /// Whether everything is done that will ever be asked for.
    pub(super) fn is_over(&self) -> bool {
        self.closed
            && self.waiting.map.is_empty()
            && self.issued.map.is_empty()
            && self.flushes.is_empty()
            && self.ahead.is_idle()
            && self.holes.is_idle()
    }

    /// The worker is gone: nothing that waits for it will be answered.
    pub(super) fn abandon(&mut self) {
        let gone = || Error::new(Kind::Gone, Verb::Write, None).because("the pipeline has ended");
        let error = Arc::new(gone());
        self.lost.extend([&self.waiting, &self.issued].into_iter().flat_map(|pieces| {
            pieces.map.overlapping(Span::new(0, u64::MAX)).map(|piece| piece.span)
        }));
        self.ahead = ReadAhead::new(0);
        self.holes = Holes::new(0, false);
        self.fail(Arc::clone(&error));
        for slot in self.slots.values_mut().filter(|slot| slot.left > 0) {
            *slot = Slot { left: 0, error: Some(Arc::clone(&error)) };
        }
        self.called.extend(self.slots.keys());
    }
}

/// The failure that stays, told to whoever asks next.
pub(super) fn report(failure: &Arc<Error>, verb: Verb, span: impl Into<Option<Span>>) -> Error {
    Error::new(failure.kind, verb, span).because(Arc::clone(failure))
}

#[cfg(test)]
mod tests;
