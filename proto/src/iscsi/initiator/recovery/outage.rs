//! How long an outage has lasted, and when to try again.

use core::time::Duration;

use super::Settings;
use crate::time::Time;

/// A time without a link that proved to work.
#[derive(Debug)]
pub(super) struct Outage {
    pub(super) since: Time,
    pub(super) attempts: u32,
}

impl Outage {
    pub(super) const fn new(since: Time) -> Self {
        Self { since, attempts: 0 }
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
