//! What happened, and what may therefore be found: per block, the writes with their beginnings and
//! ends, so that a reader, or whoever comes after a crash, can be told to be right or wrong.

use std::sync::Mutex;

use volume::Span;

pub(crate) const BLOCK: u64 = 512;

/// A moment in the order of events.
type Moment = u64;

/// Bytes of a block: a number that repeats; zero for a block of zeroes.
pub(crate) type Tag = u64;

#[derive(Default)]
pub(crate) struct History(Mutex<Events>);

#[derive(Default)]
struct Events {
    moment: Moment,
    writes: Vec<Write>,
    /// When the last flush that succeeded began.
    flushed: Moment,
}

struct Write {
    span: Span,
    tag: Tag,
    began: Moment,
    /// When it had succeeded; one that was given up or failed may or may not have happened.
    ended: Option<Moment>,
    durable: bool,
}

impl History {
    /// Of a volume of `size` zeroes.
    pub(crate) fn new(size: u64) -> Self {
        let history = Self::default();
        let blank = history.begin(Span::new(0, size), 0, true);
        history.end(blank);
        history
    }

    /// A write begins; to be named when it ends.
    pub(crate) fn begin(&self, span: Span, tag: Tag, durable: bool) -> usize {
        let mut events = self.0.lock().unwrap();
        events.moment += 1;
        let began = events.moment;
        events.writes.push(Write { span, tag, began, ended: None, durable });
        events.writes.len() - 1
    }

    pub(crate) fn end(&self, write: usize) {
        let mut events = self.0.lock().unwrap();
        events.moment += 1;
        events.writes[write].ended = Some(events.moment);
    }

    /// Something that is no write begins.
    pub(crate) fn now(&self) -> Moment {
        let mut events = self.0.lock().unwrap();
        events.moment += 1;
        events.moment
    }

    pub(crate) fn flushed(&self, began: Moment) {
        let mut events = self.0.lock().unwrap();
        events.flushed = events.flushed.max(began);
    }

    /// A read of `span` that began then and ends now was right.
    pub(crate) fn check_read(&self, span: Span, began: Moment, bytes: &[u8]) {
        let events = self.0.lock().unwrap();
        let must_show = |write: &Write| write.ended.is_some_and(|ended| ended < began);
        events.check(span, bytes, must_show, "a read returned");
    }

    /// What was found after a crash now is what may be.
    pub(crate) fn check_crash(&self, bytes: &[u8]) {
        let events = self.0.lock().unwrap();
        let must_show = |write: &Write| {
            write.ended.is_some_and(|ended| write.durable || ended < events.flushed)
        };
        events.check(Span::new(0, bytes.len() as u64), bytes, must_show, "a crash left");
    }
}

impl Events {
    /// Each block of `bytes` is that of a write that began, and that none which must show followed.
    fn check(&self, span: Span, bytes: &[u8], must_show: impl Fn(&Write) -> bool, what: &str) {
        for (block, bytes) in span.pieces(BLOCK).zip(bytes.chunks(BLOCK as usize)) {
            let tag = Tag::from_le_bytes(bytes[..8].try_into().unwrap());
            assert!(
                bytes.chunks(8).all(|word| word == tag.to_le_bytes()),
                "a torn block at {block}"
            );
            let here = || self.writes.iter().filter(|write| write.span.overlaps(block));
            let allowed = here().filter(|write| write.tag == tag).any(|write| {
                let follows = |later: &Write| write.ended.is_some_and(|ended| later.began > ended);
                !here().any(|later| follows(later) && must_show(later))
            });
            assert!(allowed, "{what} {tag} at {block}, which is older than what must be there");
        }
    }
}

/// The bytes of a write.
pub(crate) fn tagged(tag: Tag, len: u64) -> Vec<u8> {
    tag.to_le_bytes().repeat(len as usize / 8)
}
