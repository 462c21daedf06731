//! How long an outage has lasted, and when to try again. Points in time are counted from the origin that the caller of
//! the machine chose.

use core::time::Duration;

use super::Settings;

/// A time without a link that proved to work.
#[derive(Debug)]
pub(super) struct Outage {
    pub(super) since: Duration,
    pub(super) attempts: u32,
    /// The patience counts from here: neither the time in which links stood, nor that in which what is kept was written
    /// again, is one of waiting.
    counts_from: Duration,
    /// A link stands since then.
    stands_since: Option<Duration>,
    /// The most changes that were written again on one link.
    restored: usize,
}

impl Outage {
    pub(super) const fn new(since: Duration) -> Self {
        Self { since, attempts: 0, counts_from: since, stands_since: None, restored: 0 }
    }

    /// A link stands.
    pub(super) const fn pause(&mut self, now: Duration) {
        self.stands_since = Some(now);
    }

    /// It was lost before it proved to work, or does not carry what it should.
    pub(super) fn go_on(&mut self, now: Duration) {
        if let Some(stood) = self.stands_since.take() {
            self.counts_from = self.counts_from.saturating_add(now.saturating_sub(stood));
        }
    }

    /// So many changes have been written again on one link. Where each begins anew and gets no further, that is none.
    pub(super) fn restored(&mut self, now: Duration, done: usize) {
        if done > self.restored {
            self.restored = done;
            self.counts_from = now;
        }
    }

    /// How long it has been waited for.
    pub(super) fn lasted(&self, now: Duration) -> Duration {
        self.stands_since.unwrap_or(now).saturating_sub(self.counts_from)
    }

    /// When a patience is over, unless a link stands.
    pub(super) fn given_up_at(&self, patience: Duration) -> Option<Duration> {
        self.stands_since.is_none().then(|| self.counts_from.saturating_add(patience))
    }

    /// The wait before the next attempt: twice as long after each, less up to a half by chance, so that
    /// the clients of a server that restarts do not come all at once.
    pub(super) fn wait(&self, settings: &Settings, random: u64) -> Duration {
        let doublings = self.attempts.saturating_sub(1).min(31);
        let whole = settings.first_wait.saturating_mul(1 << doublings).min(settings.longest_wait);
        let parts = u32::try_from(random % 1024).unwrap_or_default();
        whole - whole * parts / 2048
    }
}
