//! The level of a HyperSCSI device while its connection is there: a re-authentication may change it.

use std::sync::atomic::{AtomicU8, Ordering};

use proto::hyperscsi::Level;

/// Written by the task of the connection, read by anyone.
#[derive(Debug)]
pub(crate) struct SharedLevel(AtomicU8);

impl SharedLevel {
    pub(crate) const fn new(level: Level) -> Self {
        Self(AtomicU8::new(level.number()))
    }

    pub(crate) fn get(&self) -> Level {
        // Nothing else is ever stored.
        Level::of(self.0.load(Ordering::Acquire)).unwrap_or_default()
    }

    pub(crate) fn set(&self, level: Level) {
        self.0.store(level.number(), Ordering::Release);
    }
}

impl Default for SharedLevel {
    fn default() -> Self {
        Self::new(Level::default())
    }
}
