//! Holes: what of the volume beneath is known to read as zeroes, so that nobody need ask for it.
//!
//! It is known of what was zeroed here, and of what the volume's map told. The map is asked for once a
//! read has brought zeroes, beside whatever else goes on and never before a read: a volume that is full
//! of data is not asked at all, and one question may answer for gigabytes. Where the map told of data,
//! zeroes were written as such, and it is not asked again before something is given back: it may cost
//! the server a walk through all of it.
//!
//! What is known is as true as what was read ahead: a change that may bring other bytes takes its span
//! out when it is accepted, and out of the answer that is still on its way.

use std::cmp::Reverse;

use super::spans::{SpanMap, shared, uncovered};
use crate::{Extent, Span};

/// How many spans are known, some hundred kilobytes of them. Those that follow are learned when others
/// are gone.
const SPANS_MAX: usize = 4096;

/// An answer that more changes than this have overtaken is not believed at all: it would be work to see
/// what is left of it.
const CHANGES_MAX: usize = 1024;

/// A read that begins with so many zeroes has probably found a hole.
const LOOK: usize = 4096;

/// Each question in a row that was of no use waits for twice as many reads of zeroes as the one before,
/// up to this many: zeroes may have been written as such, and some maps know of none.
const PATIENCE_MAX: u32 = 1024;

/// The map is being asked for.
struct Question {
    span: Span,
    /// The read that gave rise to it was so long.
    read: u64,
    /// Where changes were pending or came since: there the answer may be of the past.
    changes: Vec<Span>,
    /// Something was given back since: what the answer calls data may be none any more.
    released: bool,
}

/// See the module.
pub(super) struct Holes {
    size: u64,
    /// Whether anything is to be known.
    kept: bool,
    known: SpanMap<Span>,
    /// The longest part that the map called data, and that nothing was given back of since.
    full: Span,
    /// A read that brought zeroes.
    found: Option<Span>,
    question: Option<Question>,
    /// How many more such reads are let pass ...
    passes: u32,
    /// ... and how many are after the next question of no use.
    patience: u32,
}

impl Holes {
    /// Of a volume of `size` bytes; nothing is ever known unless they are to be `kept`.
    pub(super) fn new(size: u64, kept: bool) -> Self {
        Self {
            size,
            kept,
            known: SpanMap::default(),
            full: Span::new(0, 0),
            found: None,
            question: None,
            passes: 0,
            patience: 1,
        }
    }

    /// What of `span` is known to be zero.
    pub(super) fn parts(&self, span: Span) -> impl Iterator<Item = Span> {
        self.known.overlapping(span).map(move |hole| shared(*hole, span))
    }

    /// What of `span` has to be asked for: from the first byte that is not known to the last.
    pub(super) fn unknown(&self, span: Span) -> Option<Span> {
        covering_span(&uncovered(span, self.parts(span).collect()))
    }

    /// A change was accepted that may bring something else than zeroes.
    pub(super) fn filled(&mut self, span: Span) {
        self.forget(span);
        if let Some(question) = &mut self.question
            && question.changes.len() <= CHANGES_MAX
        {
            question.changes.push(span);
        }
    }

    /// Zeroes have landed on `span`; what waits there brings something else on `changes`.
    pub(super) fn zeroed(&mut self, span: Span, changes: impl Iterator<Item = Span>) {
        if self.kept {
            self.learn(span);
            changes.for_each(|change| self.forget(change));
        }
    }

    /// Something was given back: the map has more to tell.
    pub(super) const fn released(&mut self) {
        self.full = Span::new(0, 0);
        if let Some(question) = &mut self.question {
            question.released = true;
        }
        (self.passes, self.patience) = (0, 1);
    }

    /// A read of `span` brought `bytes` from the volume beneath.
    pub(super) fn looked(&mut self, span: Span, bytes: &[u8]) {
        let head = &bytes[..bytes.len().min(LOOK)];
        let blank = head == &[0; LOOK][..head.len()];
        let futile = shared(span, self.full) == span;
        if !blank || !self.kept || self.question.is_some() || futile || self.unknown(span).is_none()
        {
            return;
        }
        match self.passes.checked_sub(1) {
            Some(passes) => self.passes = passes,
            None => self.found = Some(span),
        }
    }

    /// What the map is to be asked for, if it is time: all from where zeroes were read.
    pub(super) fn wanted(&mut self) -> Option<Span> {
        let found = self.found.filter(|_| self.question.is_none())?;
        Some(Span::new(found.at, self.size - found.at))
    }

    /// The map is asked for `span` while `changes` are pending that may bring something else than zeroes.
    pub(super) fn asked(&mut self, span: Span, changes: Vec<Span>) {
        let read = self.found.take().map_or(0, |found| found.len);
        self.question = Some(Question { span, read, changes, released: false });
    }

    /// Whether nothing is being asked.
    pub(super) const fn is_idle(&self) -> bool {
        self.question.is_none()
    }

    /// The map was told; nothing, if it was not to be had.
    pub(super) fn told(&mut self, extents: &[Extent]) {
        let Some(Question { span, read, changes, released }) = self.question.take() else { return };
        let mut learned = 0;
        if changes.len() <= CHANGES_MAX {
            for extent in extents {
                let part = shared(extent.span, span);
                if extent.zero {
                    learned += self.learn(part);
                } else if !released && part.len > self.full.len {
                    self.full = part;
                }
            }
            changes.into_iter().for_each(|change| self.forget(change));
        }
        // What the read itself had found is nothing new.
        let useful = learned > read;
        self.passes = if useful { 0 } else { self.patience };
        self.patience = if useful { 1 } else { (2 * self.patience).min(PATIENCE_MAX) };
    }

    /// `span` is zero; says how much of it was not known before, and is now.
    fn learn(&mut self, span: Span) -> u64 {
        if span.is_empty() {
            return 0;
        }
        let known: u64 = self.parts(span).map(|part| part.len).sum();
        // What adjoins becomes one with it.
        let from = span.at.saturating_sub(1);
        let (mut at, mut end) = (span.at, span.end());
        for place in self.known.places(Span::new(from, span.end().saturating_add(1) - from)) {
            if let Some(near) = self.known.remove(place) {
                (at, end) = (at.min(near.at), end.max(near.end()));
            }
        }
        if self.keep(Span::new(at, end - at)) { span.len - known } else { 0 }
    }

    fn forget(&mut self, span: Span) {
        for at in self.known.places(span) {
            let Some(hole) = self.known.remove(at) else { continue };
            let mut rests = uncovered(hole, vec![span]);
            // If there is no room for both, the larger is worth more.
            rests.sort_unstable_by_key(|rest| Reverse(rest.len));
            for rest in rests {
                self.keep(rest);
            }
        }
    }

    /// Whether there was room for it.
    fn keep(&mut self, hole: Span) -> bool {
        let room = self.known.len() < SPANS_MAX;
        if room {
            self.known.insert(hole);
        }
        room
    }
}

/// From the first byte of some spans in their order to the last.
pub(super) fn covering_span(spans: &[Span]) -> Option<Span> {
    let (first, last) = (spans.first()?, spans.last()?);
    Some(Span::new(first.at, last.end() - first.at))
}

#[cfg(test)]
mod tests;
