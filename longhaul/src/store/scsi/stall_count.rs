//! How patient the next session is, after those that were given up because commands stalled.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often the time is doubled after which a command stalls, while commands do: a unit may be so slow.
const DOUBLED_MAX: u32 = 4;

/// Sessions given up in a row because commands stalled.
#[derive(Debug, Default)]
pub(in crate::store) struct StallCount(AtomicU32);

impl StallCount {
    /// One more was, or the outage that began so is over.
    pub(in crate::store) fn note(&self, stalled: bool) {
        match stalled {
            true => drop(self.0.fetch_add(1, Ordering::Relaxed)),
            false => self.0.store(0, Ordering::Relaxed),
        }
    }

    /// How many times as long commands may take in the next one.
    pub(in crate::store) fn times(&self) -> u32 {
        1 << self.0.load(Ordering::Relaxed).min(DOUBLED_MAX)
    }
}
