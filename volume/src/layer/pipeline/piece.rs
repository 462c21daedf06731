//! What was accepted and is not yet on the volume beneath: a span, and what is to become of it.

use bytes::{Bytes, BytesMut};

use super::WaiterId;
use super::rate_meter::Stamp;
use super::spans::{Placed, shared};
use crate::{Durability, Space, Span};

/// The order in which changes were accepted.
pub(super) type Seq = u64;

/// One change that was accepted, or what later ones left of it.
pub(super) struct Piece {
    pub(super) span: Span,
    pub(super) body: Body,
    /// The buffers that it keeps although it is little of them, in bytes.
    pub(super) foreign: usize,
    /// The oldest change that this one stands for: its own number, or that of one it replaced or was
    /// merged with. A barrier counts by it, and the queue goes by it, so that a block that is written
    /// again and again keeps its place.
    pub(super) since: Seq,
    /// The number of the change itself.
    pub(super) seq: Seq,
    /// Who waits for it to be durable. Such a piece is neither merged nor replaced.
    pub(super) durable: Option<WaiterId>,
    /// Once it was issued: it is durable when it has landed.
    pub(super) stable: bool,
    /// An earlier change to these bytes is in flight, and must land first.
    pub(super) blocked: bool,
    /// It goes on where an earlier one ends, so that more is likely to follow.
    pub(super) continues: bool,
    /// When it was issued.
    pub(super) stamp: Stamp,
}

/// What a change does.
#[derive(Clone)]
pub(super) enum Body {
    Data(Rope),
    Zeroes(Space),
    Discard,
}

impl Body {
    /// Copies what would keep much more than itself.
    pub(super) fn own(&mut self) {
        if let Self::Data(rope) = self {
            rope.own();
        }
    }

    /// The buffers that it keeps although it is little of them, in bytes.
    pub(super) fn foreign(&self) -> usize {
        match self {
            Self::Data(rope) => rope.foreign(),
            Self::Zeroes(_) | Self::Discard => 0,
        }
    }

    /// Whether it brings something else than zeroes, as far as is known.
    pub(super) const fn fills(&self) -> bool {
        matches!(self, Self::Data(_))
    }
}

impl Placed for Piece {
    fn span(&self) -> Span {
        self.span
    }
}

impl Piece {
    /// The bytes it holds in memory.
    pub(super) fn bytes(&self) -> u64 {
        match self.body {
            Body::Data(_) => self.span.len,
            Body::Zeroes(_) | Body::Discard => 0,
        }
    }

    pub(super) const fn durability(&self) -> Durability {
        if self.durable.is_some() { Durability::Durable } else { Durability::Volatile }
    }

    /// The part of it that lies on `span`, which is within.
    pub(super) fn part(&self, span: Span) -> Self {
        let body = match &self.body {
            Body::Data(rope) => Body::Data(rope.kept(span.at - self.span.at, span.len)),
            other => other.clone(),
        };
        Self { span, foreign: body.foreign(), body, ..*self }
    }

    /// What is left of it beside `span`.
    pub(super) fn beside(&self, span: Span) -> impl Iterator<Item = Self> {
        let before = Span::new(self.span.at, span.at.saturating_sub(self.span.at));
        let after = Span::new(span.end(), self.span.end().saturating_sub(span.end()));
        [before, after].into_iter().filter(|rest| !rest.is_empty()).map(|rest| self.part(rest))
    }

    /// Whether `next`, which begins where this ends, may become part of it.
    pub(super) fn takes(&self, next: &Self, segment: u64) -> bool {
        if self.durable.is_some() || next.durable.is_some() || self.blocked != next.blocked {
            return false;
        }
        match (&self.body, &next.body) {
            (Body::Data(_), Body::Data(_)) => self.span.len + next.span.len <= segment,
            (Body::Zeroes(space), Body::Zeroes(other)) => space == other,
            (Body::Discard, Body::Discard) => true,
            _ => false,
        }
    }

    /// Takes `next`, which begins where this ends.
    pub(super) fn merge(&mut self, next: Self) {
        self.span.len += next.span.len;
        self.since = self.since.min(next.since);
        self.seq = self.seq.max(next.seq);
        if let (Body::Data(rope), Body::Data(more)) = (&mut self.body, next.body) {
            self.foreign += next.foreign - rope.shared_with(&more);
            rope.append(more);
        }
    }

    /// What a reader of `span` sees of it, piece by piece.
    pub(super) fn patch(&self, span: Span, patches: &mut Vec<Patch>) {
        let seen = shared(self.span, span);
        match &self.body {
            Body::Data(rope) => rope.patch(self.span.at, seen, patches),
            Body::Zeroes(_) | Body::Discard => patches.push(Patch { span: seen, data: None }),
        }
    }
}

/// Bytes to be laid over what was read; `None` are zeroes.
#[derive(Debug)]
pub(super) struct Patch {
    pub(super) span: Span,
    pub(super) data: Option<Bytes>,
}

/// Bytes that follow one another, in as many buffers as they came in. One is by far the commonest.
#[derive(Clone, Debug)]
pub(super) enum Rope {
    One(Section),
    Many(Vec<Section>),
}

/// Bytes in one buffer. Once they are sent, they are half of it at least: what is counted is what is held, to that
/// factor.
#[derive(Clone, Debug)]
pub(super) struct Section {
    bytes: Bytes,
    /// How long their buffer is.
    whole: usize,
}

/// A request with fewer bytes may lie in a buffer with others: those who read from sockets take many small ones at
/// once.
const ALONE: usize = 64 << 10;

/// How long such a buffer is.
const SHARED: usize = 128 << 10;

/// The most that lies between the data of two such requests in a row.
const HEAD_MAX: usize = 64;

/// Whether bytes would keep more than as much again if they stayed in their buffer.
const fn is_little(len: usize, whole: usize) -> bool {
    len < whole.div_ceil(2)
}

impl Section {
    fn owned(bytes: Bytes) -> Self {
        Self { whole: bytes.len(), bytes }
    }

    /// Its buffer, if it is little of that.
    const fn foreign(&self) -> usize {
        if is_little(self.bytes.len(), self.whole) { self.whole } else { 0 }
    }

    /// Whether `next` lies behind it in memory, with no more between them than the head of a request.
    fn is_followed_by(&self, next: &Self) -> bool {
        let end = self.bytes.as_ptr().addr() + self.bytes.len();
        (end..=end + HEAD_MAX).contains(&next.bytes.as_ptr().addr())
    }

    /// Part of it, copied where it would keep much more than itself.
    fn kept(&self, bytes: Bytes) -> Self {
        match is_little(bytes.len(), self.whole) {
            true => Self::owned(Bytes::copy_from_slice(&bytes)),
            false => Self { bytes, whole: self.whole },
        }
    }
}

impl From<Bytes> for Rope {
    fn from(bytes: Bytes) -> Self {
        Self::One(Section::owned(bytes))
    }
}

impl Rope {
    /// Part of a request with `whole` bytes, in the buffer that it came in.
    pub(super) fn written(bytes: Bytes, whole: usize) -> Self {
        Self::One(Section { bytes, whole: if whole < ALONE { SHARED } else { whole } })
    }

    /// Copies what would keep much more than itself, where that is not done anyway when all of it is put together.
    pub(super) fn own(&mut self) {
        if let Self::One(section) = self
            && section.foreign() > 0
        {
            *section = Section::owned(Bytes::copy_from_slice(&section.bytes));
        }
    }

    fn sections(&self) -> &[Section] {
        match self {
            Self::One(section) => std::slice::from_ref(section),
            Self::Many(sections) => sections,
        }
    }

    /// The buffers that it keeps although it is little of them. Sections that follow one another in memory are most of what
    /// they lie in: one buffer is counted for all of them.
    fn foreign(&self) -> usize {
        let sections = self.sections();
        let all: usize = sections.iter().map(Section::foreign).sum();
        let runs = sections.windows(2).filter(|pair| pair[0].is_followed_by(&pair[1]));
        all - runs.map(|pair| pair[1].foreign()).sum::<usize>()
    }

    /// What `next` keeps of that and this one keeps already, if it follows.
    fn shared_with(&self, next: &Self) -> usize {
        match (self.sections().last(), next.sections().first()) {
            (Some(last), Some(first)) if last.is_followed_by(first) => first.foreign(),
            _ => 0,
        }
    }

    fn append(&mut self, more: Self) {
        let mut sections = match std::mem::replace(self, Self::Many(Vec::new())) {
            Self::One(section) => vec![section],
            Self::Many(sections) => sections,
        };
        sections.extend_from_slice(more.sections());
        *self = Self::Many(sections);
    }

    /// Each section's part of `from..from + len`, with where it begins in the rope.
    fn parts(&self, from: u64, len: u64) -> impl Iterator<Item = (u64, &Section, Bytes)> {
        let mut at = 0;
        self.sections().iter().filter_map(move |section| {
            let here = Span::new(at, section.bytes.len() as u64);
            at = here.end();
            let seen = shared(here, Span::new(from, len));
            let range = || (seen.at - here.at) as usize..(seen.end() - here.at) as usize;
            (!seen.is_empty()).then(|| (seen.at, section, section.bytes.slice(range())))
        })
    }

    /// The part of it that is still wanted when the rest is not.
    fn kept(&self, from: u64, len: u64) -> Self {
        let mut parts = self.parts(from, len).map(|(_, section, bytes)| section.kept(bytes));
        match (parts.next(), parts.next()) {
            (Some(only), None) => Self::One(only),
            (first, second) => Self::Many(first.into_iter().chain(second).chain(parts).collect()),
        }
    }

    fn patch(&self, at: u64, seen: Span, patches: &mut Vec<Patch>) {
        patches.extend(self.parts(seen.at - at, seen.len).map(|(offset, _, bytes)| Patch {
            span: Span::new(at + offset, bytes.len() as u64),
            data: Some(bytes),
        }));
    }

    /// All of it in one buffer: the one there is, or a copy.
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Self::One(section) => section.bytes,
            Self::Many(sections) => {
                let len = sections.iter().map(|section| section.bytes.len()).sum();
                let mut whole = BytesMut::with_capacity(len);
                sections.iter().for_each(|section| whole.extend_from_slice(&section.bytes));
                whole.freeze()
            }
        }
    }
}
