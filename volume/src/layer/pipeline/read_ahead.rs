//! Read-ahead: finds sequential streams, asks for what they will want, and keeps it until they do.
//!
//! What is kept is never older than the volume: a read-ahead holds bytes only of blocks to which no
//! change was pending when it was issued, and none was accepted since.

use std::time::Duration;

use bytes::Bytes;

use super::WaiterId;
use super::rate_meter::Stamp;
use super::settings::Chosen;
use super::spans::{Placed, SpanMap, shared, uncovered};
use crate::Span;

/// How many streams are followed: more than programs read one disk at a time, few enough to look
/// through on every read. What is not a stream yet counts, so that random reads find them out.
const STREAMS: usize = 16;

/// How many reads must have followed one another, beyond the first, before anything is read ahead.
const FOLLOWERS: u32 = 1;

/// A stream whose reader neither read nor waited for so long has ended, or pauses: it has no share of
/// the depth, and what is kept for it makes room for others.
const PAUSE: Duration = Duration::from_secs(1);

/// A read-ahead with more holes than this is given up: whoever writes there does not read on.
const HOLES_MAX: usize = 64;

/// A reader that goes forward.
struct Stream {
    /// Where what it may still come back to begins: its requests may arrive out of order.
    tail: u64,
    /// Where its next read should begin.
    next: u64,
    /// How far has been asked for.
    ahead: u64,
    /// The longest read so far.
    read: u64,
    /// How many reads went on where one ended.
    followers: u32,
    /// When it was last seen.
    seen: Duration,
}

/// The streams whose readers are there, and go on.
#[derive(Default)]
struct Readers {
    /// Which streams they are.
    streams: [bool; STREAMS],
    count: u64,
    /// The longest read of any of them.
    longest: u64,
    /// The longest read of those that have gone on for more than a read.
    longest_followed: u64,
}

/// What was read ahead and came back.
struct Chunk {
    at: u64,
    bytes: Bytes,
    /// How long the buffer is that they are in.
    whole: usize,
}

impl Chunk {
    /// `bytes` of a buffer with `whole`. They leave it if they are less than half of it, so that what is counted is what
    /// is held, or half of it.
    fn new(at: u64, bytes: Bytes, whole: usize) -> Self {
        match bytes.len() < whole.div_ceil(2) {
            true => Self { at, whole: bytes.len(), bytes: Bytes::copy_from_slice(&bytes) },
            false => Self { at, bytes, whole },
        }
    }
}

impl Placed for Chunk {
    fn span(&self) -> Span {
        Span::new(self.at, self.bytes.len() as u64)
    }
}

/// What is being read ahead.
pub(super) struct Fetch {
    pub(super) span: Span,
    /// Where a change was pending or came since: what returns is not to be kept.
    holes: Vec<Span>,
    /// Nobody will want it.
    forsaken: bool,
    /// Readers who wait for it.
    pub(super) waiters: Vec<WaiterId>,
    pub(super) stamp: Stamp,
}

impl Placed for Fetch {
    fn span(&self) -> Span {
        self.span
    }
}

/// The streams, and what was read for them.
#[derive(Default)]
pub(super) struct ReadAhead {
    size: u64,
    streams: Vec<Stream>,
    chunks: SpanMap<Chunk>,
    fetches: SpanMap<Fetch>,
    chunk_bytes: u64,
    fetch_bytes: u64,
}

impl ReadAhead {
    /// Of a volume of `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        Self { size, ..Self::default() }
    }

    /// Takes note of a read that begins.
    pub(super) fn observe(&mut self, span: Span, now: Duration) {
        let Some(stream) = self.stream(span) else {
            return self.begin(span, now);
        };
        stream.seen = now;
        if span.end() <= stream.next {
            return;
        }
        stream.read = stream.read.max(span.len);
        stream.followers = stream.followers.saturating_add(1);
        stream.next = span.end();
        stream.ahead = stream.ahead.max(stream.next);
    }

    /// A read has its bytes: lets go of what its stream has passed, but for `slack`, since requests
    /// are not always answered in order.
    pub(super) fn passed(&mut self, span: Span, slack: u64) {
        let Some(stream) = self.stream(span) else { return };
        let tail = span.end().min(stream.next).saturating_sub(slack).max(stream.tail);
        let passed = Span::new(stream.tail, tail - stream.tail);
        stream.tail = tail;
        self.forget(passed, |chunk| chunk.end() <= tail);
    }

    /// The stream that a read belongs to. It may have overtaken others of its stream on the way
    /// here, by as much as a few reads.
    fn stream(&mut self, span: Span) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| {
            let slack = || 4 * stream.read.max(span.len);
            let reaches = || span.at <= stream.ahead || span.at <= stream.next + slack();
            span.at >= stream.tail && reaches()
        })
    }

    fn begin(&mut self, span: Span, now: Duration) {
        if self.streams.len() == STREAMS {
            self.drop_stream();
        }
        self.streams.push(Stream {
            tail: span.at,
            next: span.end(),
            ahead: span.end(),
            read: span.len,
            // Whoever begins at the beginning means to go on, more often than not.
            followers: if span.at == 0 { FOLLOWERS } else { 0 },
            seen: now,
        });
    }

    /// Makes room for a new stream: what never became one goes first, then the longest unseen.
    fn drop_stream(&mut self) {
        let rank = |stream: &Stream| (stream.reads_on(), stream.seen);
        let ranks = self.streams.iter().map(rank).enumerate();
        if let Some((index, _)) = ranks.min_by_key(|(_, rank)| *rank) {
            self.forget_stream(index);
        }
    }

    fn forget_stream(&mut self, index: usize) {
        let stream = self.streams.swap_remove(index);
        let span = Span::new(stream.tail, stream.ahead - stream.tail);
        self.forget(span, |_| true);
        for fetch in self.fetches.overlapping_mut(span) {
            fetch.forsaken = true;
        }
    }

    /// Lets go of the chunks on `span` that `which` picks.
    fn forget(&mut self, span: Span, which: impl Fn(Span) -> bool) {
        for at in self.chunks.places(span) {
            if self.chunks.get(at).is_some_and(|chunk| which(chunk.span()))
                && let Some(chunk) = self.chunks.remove(at)
            {
                self.chunk_bytes -= chunk.span().len;
            }
        }
    }

    /// Whether a stream's reader is still there: it read a while ago, or waits.
    fn is_live(&self, stream: &Stream, now: Duration) -> bool {
        let ahead = Span::new(stream.tail, stream.ahead - stream.tail);
        now.saturating_sub(stream.seen) < PAUSE
            || self.fetches.overlapping(ahead).any(|fetch| !fetch.waiters.is_empty())
    }

    /// The readers that are there.
    fn readers(&self, now: Duration) -> Readers {
        let mut readers = Readers::default();
        for (stream, reads) in self.streams.iter().zip(&mut readers.streams) {
            if stream.reads_on() && self.is_live(stream, now) {
                *reads = true;
                readers.count += 1;
                readers.longest = readers.longest.max(stream.read);
                if stream.followers > FOLLOWERS {
                    readers.longest_followed = readers.longest_followed.max(stream.read);
                }
            }
        }
        readers
    }

    /// What to read ahead now, if anything. This is asked after each read, so it looks at each stream as seldom as it can.
    pub(super) fn wanted(&mut self, chosen: &Chosen, block: u64, now: Duration) -> Option<Span> {
        loop {
            let readers = self.readers(now);
            if readers.count == 0 {
                return None;
            }
            // While a program takes an answer, all of the next one is on its way; but not while the first is itself
            // still to come, as both together would queue.
            let window = chosen.window.max(readers.longest_followed.min(chosen.most));
            let share = window / readers.count;
            let (index, span) = self.next_piece(&readers, share, chosen.segment, block)?;
            // Whoever reads so much at a time has as much in flight, whatever the link takes.
            let fits = self.fetch_bytes + span.len <= chosen.in_flight.max(readers.longest)
                && self.fetches.len() < chosen.requests;
            if !fits && !self.fetches.is_empty() {
                return None;
            }
            // A read that is being put together takes its room beside what is in flight for the next.
            if self.chunk_bytes + self.fetch_bytes + span.len <= window + readers.longest {
                self.streams[index].ahead = span.end();
                return Some(span);
            }
            // What is kept for a reader who went away makes room, or what others have beyond their
            // share: it was theirs while they were fewer.
            if let Some(gone) = self.streams.iter().position(|stream| !self.is_live(stream, now)) {
                self.forget_stream(gone);
            } else if !self.trim(share, block) {
                return None;
            }
        }
    }

    /// The next piece to read ahead, and the number of its stream. The stream that has least ahead of it goes first.
    fn next_piece(
        &self,
        readers: &Readers,
        share: u64,
        segment: u64,
        block: u64,
    ) -> Option<(usize, Span)> {
        let streams = self.streams.iter().zip(readers.streams).enumerate();
        let wanting =
            streams.filter(|(_, (_, reads))| *reads).filter_map(|(index, (stream, _))| {
                let span = stream.wants(share, segment, block, self.size)?;
                Some((stream.ahead - stream.next, index, span))
            });
        let (_, index, span) = wanting.min_by_key(|(ahead, ..)| *ahead)?;
        Some((index, span))
    }

    /// Lets go of what a stream has beyond `share`; whether there was one that had more.
    fn trim(&mut self, share: u64, block: u64) -> bool {
        let Self { streams, chunks, fetches, .. } = self;
        let cut = streams.iter_mut().find_map(|stream| {
            let last = Span::new((stream.next + share).saturating_sub(1), 1);
            let chunk = chunks.overlapping(last).map(Chunk::span).next();
            let fetch = fetches.overlapping(last).map(Fetch::span).next();
            let keep = chunk.or(fetch).unwrap_or(last).end().next_multiple_of(block);
            (keep < stream.ahead).then(|| {
                let cut = Span::new(keep, stream.ahead - keep);
                stream.ahead = keep;
                cut
            })
        });
        let Some(cut) = cut else { return false };
        self.forget(cut, |_| true);
        for fetch in self.fetches.overlapping_mut(cut) {
            fetch.forsaken = true;
        }
        true
    }

    /// Whether `span` holds, or will hold, something already: another stream asked for it.
    pub(super) fn has(&self, span: Span) -> bool {
        self.chunks.overlaps(span) || self.fetches.overlaps(span)
    }

    /// A read-ahead was issued while changes to `holes` were pending.
    pub(super) fn issued(&mut self, span: Span, holes: Vec<Span>, stamp: Stamp) {
        self.fetch_bytes += span.len;
        let forsaken = holes.len() > HOLES_MAX;
        self.fetches.insert(Fetch { span, holes, forsaken, waiters: Vec::new(), stamp });
    }

    /// How many bytes are being read.
    pub(super) const fn in_flight(&self) -> u64 {
        self.fetch_bytes
    }

    /// A read-ahead came back; gives what was known of it.
    pub(super) fn returned(&mut self, at: u64, bytes: Option<&Bytes>) -> Option<Fetch> {
        let mut fetch = self.fetches.remove(at)?;
        self.fetch_bytes -= fetch.span.len;
        if let Some(bytes) = bytes.filter(|_| !fetch.forsaken) {
            for part in uncovered(fetch.span, std::mem::take(&mut fetch.holes)) {
                let from = (part.at - at) as usize;
                self.chunk_bytes += part.len;
                let kept = bytes.slice(from..from + part.len as usize);
                self.chunks.insert(Chunk::new(part.at, kept, bytes.len()));
            }
        }
        Some(fetch)
    }

    /// The bytes of `span` change: what was read of them is no longer true.
    pub(super) fn invalidate(&mut self, span: Span) {
        for at in self.chunks.places(span) {
            let Some(chunk) = self.chunks.remove(at) else { continue };
            let cut = shared(chunk.span(), span);
            self.chunk_bytes -= cut.len;
            for rest in uncovered(chunk.span(), vec![cut]) {
                let from = (rest.at - at) as usize;
                let bytes = chunk.bytes.slice(from..from + rest.len as usize);
                self.chunks.insert(Chunk::new(rest.at, bytes, chunk.whole));
            }
        }
        for fetch in self.fetches.overlapping_mut(span) {
            fetch.holes.push(shared(fetch.span, span));
            fetch.forsaken |= fetch.holes.len() > HOLES_MAX;
        }
    }

    /// What is here of `span`.
    pub(super) fn parts(&self, span: Span) -> impl Iterator<Item = (Span, Bytes)> {
        self.chunks.overlapping(span).map(move |chunk| {
            let part = shared(chunk.span(), span);
            let from = (part.at - chunk.at) as usize;
            (part, chunk.bytes.slice(from..from + part.len as usize))
        })
    }

    /// Queues `waiter` behind a read-ahead that will bring part of `gap`; false if none will.
    pub(super) fn wait(&mut self, gap: Span, waiter: WaiterId) -> bool {
        let brings = |fetch: &&mut Fetch| {
            let part = shared(fetch.span, gap);
            !fetch.forsaken && !uncovered(part, fetch.holes.clone()).is_empty()
        };
        let found = self.fetches.overlapping_mut(gap).find(brings);
        found.map(|fetch| fetch.waiters.push(waiter)).is_some()
    }

    /// The bytes kept and being read.
    #[cfg(test)]
    pub(super) const fn held(&self) -> u64 {
        self.chunk_bytes + self.fetch_bytes
    }

    /// Whether nothing is being read.
    pub(super) fn is_idle(&self) -> bool {
        self.fetches.is_empty()
    }
}

impl Stream {
    /// Whether something is read ahead for it.
    const fn reads_on(&self) -> bool {
        self.followers >= FOLLOWERS
    }

    /// The next piece to read ahead, if it is time. The depth doubles with every read that follows,
    /// so that a stream that ends soon costs little, and one that does not soon has its share.
    fn wants(&self, share: u64, segment: u64, block: u64, size: u64) -> Option<Span> {
        let growth = self.read.saturating_mul(2) << self.followers.min(16);
        let piece = (growth / 4).min(segment).min(share).max(block);
        let piece = (piece - piece % block).min(size - self.ahead.min(size));
        let room = (self.next + growth.min(share)).saturating_sub(self.ahead);
        (piece > 0 && room >= piece).then(|| Span::new(self.ahead, piece))
    }
}
