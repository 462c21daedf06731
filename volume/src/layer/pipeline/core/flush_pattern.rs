//! Whether the program above flushes after every few writes, as data bases and journals do. Such writes are
//! sent durable at once: the flush that is sure to follow then finds nothing to do beneath, and both together
//! take one round trip instead of two. A wrong guess makes a few writes durable that need not have been.

/// So many changes between two flushes are few. Each of them is made durable by itself, which a disk at the other
/// end has to be able to afford.
const FEW: u32 = 4;

/// Few once may be chance; twice in a row is a pattern.
const TWICE: u32 = 2;

/// What the last flushes had before them.
#[derive(Default)]
pub(super) struct FlushPattern {
    /// Changes accepted since the last flush began.
    since: u32,
    /// How many flushes in a row had few before them.
    brief: u32,
}

impl FlushPattern {
    pub(super) const fn accepted(&mut self) {
        self.since = self.since.saturating_add(1);
    }

    pub(super) const fn flushed(&mut self) {
        // A flush of nothing says nothing.
        if self.since > 0 {
            self.brief = if self.since <= FEW { self.brief.saturating_add(1) } else { 0 };
            self.since = 0;
        }
    }

    /// Whether a flush is likely to follow what was accepted last.
    pub(super) const fn expects_flush(&self) -> bool {
        self.brief >= TWICE && self.since <= FEW
    }
}
