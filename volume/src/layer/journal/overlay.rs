//! Changes that are not yet durable at the store: where the newest bytes of each place are.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

use super::format::Extent;
use super::intervals::Intervals;
use super::scan::{RecoveredChange, RecoveredContent};
use crate::{Space, Span};

/// Where the bytes of a part of the volume are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Here.
    Memory(Bytes),
    /// In the journal file: `len` bytes after the first `skip` of an extent, all of which is to be read and verified.
    Journal {
        /// All bytes of one write.
        extent: Extent,
        /// How many of them come before the part, in bytes.
        skip: u64,
    },
    /// They are zeroes.
    Zero,
    /// The store has them.
    Store,
}

/// A part of a span that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which bytes of the volume.
    pub span: Span,
    /// Where they are.
    pub source: Source,
}

impl Part {
    /// Bytes that the store has.
    pub(super) const fn of_store(span: Span) -> Self {
        Self { span, source: Source::Store }
    }
}

/// A change that the store does not have for certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// Its group.
    pub group: u64,
    /// Which bytes of the volume.
    pub span: Span,
    /// What it makes of them.
    pub content: Content,
}

/// What a change makes of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These. At least one place is known.
    Write {
        /// In memory.
        bytes: Option<Bytes>,
        /// In the journal, once its frame has a place.
        extent: Option<Extent>,
    },
    /// Zeroes.
    Zero(Space),
    /// They no longer matter.
    Discard,
}

impl From<&RecoveredChange> for Unsent {
    fn from(found: &RecoveredChange) -> Self {
        let content = match found.content {
            RecoveredContent::Write(extent) => Content::Write { bytes: None, extent: Some(extent) },
            RecoveredContent::Zero(space) => Content::Zero(space),
            RecoveredContent::Discard => Content::Discard,
        };
        Self { group: found.group, span: found.span, content }
    }
}

impl Unsent {
    /// Where the bytes of `part` of a write are, in memory if possible.
    fn source(&self, part: Span) -> Source {
        let skip = part.at - self.span.at;
        match &self.content {
            Content::Write { bytes: Some(bytes), .. } => {
                let start = usize::try_from(skip).expect("a write fits memory");
                let len = usize::try_from(part.len).expect("a write fits memory");
                Source::Memory(bytes.slice(start..start + len))
            }
            Content::Write { extent: Some(extent), .. } => {
                Source::Journal { extent: *extent, skip }
            }
            Content::Write { .. } => unreachable!("memory is given up for a place in the journal"),
            Content::Zero(_) | Content::Discard => Source::Zero,
        }
    }
}

/// Writes side by side are sent together up to so many bytes: a target takes only so many commands at a time, and on a long
/// link small ones do not fill it.
const JOINED_MAX: u64 = 1 << 20;

/// One request that sends a part of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sending {
    /// All of its bytes, in order.
    Write(Vec<Part>),
    /// Zeroes.
    Zero(Space),
    /// A discard.
    Discard,
}

/// Bytes of the writes among these requests.
pub(super) fn bytes_of(requests: &[(Span, Sending)]) -> u64 {
    let is_write = |(_, sending): &&(Span, Sending)| matches!(sending, Sending::Write(_));
    requests.iter().filter(is_write).map(|(span, _)| span.len).sum()
}

/// The changes and the map.
#[derive(Debug)]
pub(super) struct Overlay {
    /// In the order of acceptance; the first has the number `first`.
    changes: VecDeque<Unsent>,
    first: u64,
    /// The number of the newest change to each byte.
    newest: Intervals<u64>,
    /// Bytes of writes in memory.
    held: u64,
    /// Discarded blocks read as zeroes.
    discard_zeroes: bool,
    /// How often a group was merged.
    #[cfg(test)]
    pub(super) merges: std::cell::Cell<usize>,
}

impl Overlay {
    pub(super) const fn new(discard_zeroes: bool) -> Self {
        let changes = VecDeque::new();
        Self {
            changes,
            first: 0,
            newest: Intervals::new(),
            held: 0,
            discard_zeroes,
            #[cfg(test)]
            merges: std::cell::Cell::new(0),
        }
    }

    /// Adds a change, and gives it the next number.
    pub(super) fn push(&mut self, change: Unsent) -> u64 {
        let number = self.first + self.changes.len() as u64;
        self.newest.insert(change.span, number);
        if let Content::Write { bytes: Some(bytes), .. } = &change.content {
            self.held += bytes.len() as u64;
        }
        self.changes.push_back(change);
        number
    }

    /// What of a discard is to be kept: where the store may keep the bytes, it would show something older than
    /// what was discarded and is not there yet.
    pub(super) fn discardable(&self, span: Span) -> Vec<Span> {
        let parts = self.newest.parts(span).into_iter();
        match self.discard_zeroes {
            true => vec![span],
            false => parts.filter(|(_, there)| there.is_none()).map(|(part, _)| part).collect(),
        }
    }

    /// The bytes of that change have a place in the journal.
    pub(super) fn place(&mut self, number: u64, place: Extent) {
        if let Some(Content::Write { extent, .. }) = self.content_mut(number) {
            *extent = Some(place);
        }
    }

    /// That change is stable in the journal: its bytes leave memory if that holds more than `held_max`.
    pub(super) fn stable(&mut self, number: u64, held_max: u64) {
        if self.held <= held_max {
            return;
        }
        if let Some(Content::Write { bytes, extent: Some(_) }) = self.content_mut(number) {
            let released = bytes.take().map_or(0, |bytes| bytes.len() as u64);
            self.held -= released;
        }
    }

    fn content_mut(&mut self, number: u64) -> Option<&mut Content> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.changes.get_mut(index).map(|change| &mut change.content)
    }

    fn get(&self, number: u64) -> &Unsent {
        &self.changes[(number - self.first) as usize]
    }

    /// All changes up to that group are durable at the store.
    pub(super) fn forget(&mut self, group: u64) {
        while self.changes.front().is_some_and(|change| change.group <= group)
            && let Some(change) = self.changes.pop_front()
        {
            let number = self.first;
            self.first += 1;
            self.newest.remove(change.span, |newest| newest == number);
            if let Content::Write { bytes: Some(bytes), .. } = &change.content {
                self.held -= bytes.len() as u64;
            }
        }
    }

    /// Where the bytes of `span` are, in order, without gaps.
    pub(super) fn read(&self, span: Span) -> Vec<Part> {
        let parts = self.newest.parts(span).into_iter();
        let source = |part, number: Option<u64>| match number.map(|number| self.get(number)) {
            None => Source::Store,
            Some(Unsent { content: Content::Discard, .. }) if !self.discard_zeroes => Source::Store,
            Some(change) => change.source(part),
        };
        parts.map(|(span, number)| Part { span, source: source(span, number) }).collect()
    }

    /// What is to be sent of a group: each byte once, with its last contents; if that is more than one request, in writes of
    /// `segment` bytes, or what one change has.
    pub(super) fn merged(&self, group: u64, segment: u64) -> Vec<(Span, Sending)> {
        #[cfg(test)]
        self.merges.set(self.merges.get() + 1);
        let first = self.changes.partition_point(|change| change.group < group);
        let end = self.changes.partition_point(|change| change.group <= group);
        let most = self.merged_of(first..end, JOINED_MAX);
        match most.len() {
            0 | 1 => most,
            _ if segment >= JOINED_MAX => most,
            _ => self.merged_of(first..end, segment),
        }
    }

    /// The same of each group.
    pub(super) fn groups(&self) -> Vec<Vec<(Span, Sending)>> {
        let changes: Vec<u64> = self.changes.iter().map(|change| change.group).collect();
        let mut start = 0;
        let range = |group: &[u64]| {
            let range = start..start + group.len();
            start = range.end;
            self.merged_of(range, JOINED_MAX)
        };
        changes.chunk_by(u64::eq).map(range).collect()
    }

    fn merged_of(&self, range: Range<usize>, joined_max: u64) -> Vec<(Span, Sending)> {
        let mut last = Intervals::new();
        let first = self.first + range.start as u64;
        for (number, change) in (first..).zip(self.changes.range(range)) {
            last.insert(change.span, number);
        }
        let mut requests: Vec<(Span, Sending)> = Vec::new();
        for (span, number) in last.iter() {
            let change = self.get(number);
            let sending = match change.content {
                Content::Write { .. } => {
                    let part = Part { span, source: change.source(span) };
                    match requests.last_mut() {
                        Some((before, Sending::Write(parts)))
                            if before.end() == span.at && before.len + span.len <= joined_max =>
                        {
                            before.len += span.len;
                            parts.push(part);
                            continue;
                        }
                        _ => Sending::Write(vec![part]),
                    }
                }
                Content::Zero(space) => Sending::Zero(space),
                Content::Discard => Sending::Discard,
            };
            requests.push((span, sending));
        }
        requests
    }

    /// The changes in order.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Unsent> {
        self.changes.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(group: u64, at: u64, bytes: &'static [u8]) -> Unsent {
        let content = Content::Write { bytes: Some(Bytes::from_static(bytes)), extent: None };
        Unsent { group, span: Span::new(at, bytes.len() as u64), content }
    }

    fn other(group: u64, at: u64, len: u64, content: Content) -> Unsent {
        Unsent { group, span: Span::new(at, len), content }
    }

    fn part(at: u64, len: u64, source: Source) -> Part {
        Part { span: Span::new(at, len), source }
    }

    fn memory(bytes: &'static [u8]) -> Source {
        Source::Memory(Bytes::from_static(bytes))
    }

    const EXTENT: Extent = Extent { offset: 4096, len: 4, crc: 0 };

    #[test]
    fn a_read_finds_the_newest_bytes_wherever_they_are() {
        let mut overlay = Overlay::new(true);
        overlay.push(write(1, 0, b"abcd"));
        let second = overlay.push(write(1, 2, b"efgh"));
        overlay.push(other(2, 5, 2, Content::Zero(Space::Keep)));
        overlay.push(other(2, 9, 1, Content::Discard));
        let zero = part(5, 2, Source::Zero);
        let found = |efg| {
            let (store, discarded) = (part(7, 2, Source::Store), part(9, 1, Source::Zero));
            vec![part(1, 1, memory(b"b")), part(2, 3, efg), zero.clone(), store, discarded]
        };
        assert_eq!(overlay.read(Span::new(1, 9)), found(memory(b"efg")));
        overlay.place(second, EXTENT);
        overlay.stable(second, 8);
        assert_eq!(overlay.read(Span::new(1, 9)), found(memory(b"efg")), "there is room for it");
        overlay.stable(second, 7);
        let in_journal = Source::Journal { extent: EXTENT, skip: 0 };
        assert_eq!(overlay.read(Span::new(1, 9)), found(in_journal));
        let skipped = Source::Journal { extent: EXTENT, skip: 1 };
        assert_eq!(overlay.read(Span::new(3, 2)), [part(3, 2, skipped)]);
        overlay.forget(1);
        assert_eq!(overlay.read(Span::new(0, 7)), [part(0, 5, Source::Store), zero]);
        assert_eq!((overlay.held, overlay.iter().len()), (0, 2));
    }

    #[test]
    fn a_group_is_sent_with_its_last_contents_and_without_those_of_the_next() {
        let mut overlay = Overlay::new(true);
        overlay.push(write(1, 0, b"abcd"));
        overlay.push(other(1, 1, 1, Content::Discard));
        overlay.push(write(1, 2, b"e"));
        overlay.push(write(2, 0, b"wxyz"));
        let write = |parts: &[(u64, u64, &'static [u8])]| {
            let parts = parts.iter().map(|(at, len, bytes)| part(*at, *len, memory(bytes)));
            Sending::Write(parts.collect())
        };
        let expected = [
            (Span::new(0, 1), write(&[(0, 1, b"a")])),
            (Span::new(1, 1), Sending::Discard),
            (Span::new(2, 2), write(&[(2, 1, b"e"), (3, 1, b"d")])),
        ];
        assert_eq!(overlay.merged(1, JOINED_MAX), expected);
        overlay.forget(1);
        assert_eq!(overlay.merged(2, JOINED_MAX), [(Span::new(0, 4), write(&[(0, 4, b"wxyz")]))]);
    }

    #[test]
    fn neighbours_are_sent_together_up_to_a_limit() {
        const EACH: usize = 384 << 10;
        let mut overlay = Overlay::new(true);
        for at in [2, 0, 1, 4] {
            let span = Span::new(at * EACH as u64, EACH as u64);
            let content = Content::Write { bytes: Some(vec![7; EACH].into()), extent: None };
            overlay.push(Unsent { group: 1, span, content });
        }
        let lengths =
            overlay.merged(1, JOINED_MAX).into_iter().map(|(span, _)| span.len / EACH as u64);
        assert_eq!(lengths.collect::<Vec<_>>(), [2, 1, 1]);
    }

    #[test]
    fn a_store_that_keeps_discarded_bytes_is_not_told_to_discard_what_it_lacks() {
        let mut overlay = Overlay::new(false);
        overlay.push(write(1, 2, b"ab"));
        assert_eq!(overlay.discardable(Span::new(0, 6)), [Span::new(0, 2), Span::new(4, 2)]);
        overlay.push(other(1, 4, 2, Content::Discard));
        assert_eq!(overlay.read(Span::new(4, 2)), [part(4, 2, Source::Store)]);
        overlay.forget(1);
        assert_eq!(overlay.discardable(Span::new(0, 6)), [Span::new(0, 6)]);
        assert_eq!(Overlay::new(true).discardable(Span::new(0, 6)), [Span::new(0, 6)]);
    }
}
