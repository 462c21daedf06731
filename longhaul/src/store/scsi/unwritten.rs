//! What an attachment has left that its volume lacks.

use std::path::Path;

use crate::attachments::{AliveReason, Entry};
use crate::{journals, replay_log};

/// The first replay log or journal that its note names and that was not written to the volume.
pub(super) fn unwritten(entry: &Entry) -> Option<AliveReason> {
    let is_done = |log: &Path| replay_log::is_written(log) || journals::is_sent(log);
    let log = entry.unwritten_logs.iter().find(|log| !is_done(log))?.clone();
    Some(match replay_log::is_readable(&log) || journals::is_journal(&log) {
        true => AliveReason::Unwritten(log),
        false => AliveReason::LogMissing(log),
    })
}
