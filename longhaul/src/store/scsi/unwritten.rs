//! What an attachment has left that its volume lacks.

use std::path::Path;

use super::key::made_at;
use crate::attachments::{AliveReason, Entry};
use crate::utc::now;
use crate::{journals, replay_log};

/// The first replay log or journal that its note names and that was not written to the volume.
pub(super) fn unwritten(entry: &Entry) -> Option<AliveReason> {
    let is_done = |log: &Path| {
        let sent_under = journals::sent_under(log);
        replay_log::is_written(log) || sent_under.is_some_and(|key| !is_before(key, entry.key))
    };
    let log = entry.unwritten_logs.iter().find(|log| !is_done(log))?.clone();
    // A journal that was sent before this attachment began is an older copy of the one that it has left.
    let is_there = replay_log::is_readable(&log)
        || (journals::is_journal(&log) && journals::sent_under(&log).is_none());
    Some(match is_there {
        true => AliveReason::Unwritten(log),
        false => AliveReason::LogMissing(log),
    })
}

/// Whether a key was made before another, as far as both tell when they were.
fn is_before(key: u64, other: u64) -> bool {
    let made = |key| made_at(key, now());
    made(key).zip(made(other)).is_some_and(|(key, other)| key < other)
}
