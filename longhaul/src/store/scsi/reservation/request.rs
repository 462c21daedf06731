//! How a unit is to be reserved: what this machine knows of its attachments, which of them make way, and what is noted.

use std::io;
use std::path::{Path, PathBuf};

use proto::scsi::writer::{self, NotHeld, OwnReservation, Removals};

use super::Retention;
use crate::attachments::{self, AliveReason, Attachment, Entry, Known, UnitAddress};
use crate::printable::Shown as _;
use crate::replay_log;
use crate::store::scsi::options::ReplayedLog;
use crate::store::scsi::session::Session;
use crate::store::scsi::unit::{Unit, UnitError};
use crate::store::scsi::unwritten::unwritten;
use crate::store::scsi::writers::Writers;

/// How a unit is reserved.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::scsi) struct Request<'a> {
    pub(in crate::store::scsi) writers: Writers,
    /// The replay log that is to be written.
    pub(in crate::store::scsi) replays: Option<&'a ReplayedLog>,
    /// The state directory, where attachments are noted.
    pub(in crate::store::scsi) state: Option<&'a Path>,
    /// Where that replay log is, or the one of this attachment would be.
    pub(in crate::store::scsi) replay_logs: Option<&'a Path>,
}

impl Request<'_> {
    /// What this machine knows of the unit at `place`. An attachment with an unwritten replay log is not one that can be
    /// replaced, unless that log is the one that is to be written.
    pub(super) fn known(&self, place: &UnitAddress) -> Known {
        let Some(state) = self.state else { return Known::default() };
        let mut known = Known::of(&attachments::folder(state), place);
        if matches!(self.writers, Writers::One | Writers::Shared) {
            known.spare(|entry| self.waits(entry));
        }
        known
    }

    /// What an attachment that is gone has left to be written, but for what is to be written now.
    fn waits(&self, entry: &Entry) -> Option<AliveReason> {
        let keys = [Some(entry.key), entry.replays];
        let mut others = keys.into_iter().flatten().filter(|key| Some(*key) != self.replayed());
        let found = others.find_map(|key| self.unwritten(key, entry.replay_logs.as_deref()));
        if let Some(log) = found {
            return Some(AliveReason::Unwritten(log));
        }
        if self.replayed().is_some_and(|key| keys.contains(&Some(key))) {
            return None;
        }
        unwritten(entry)
    }

    /// The last attachment that this one takes the volume from, and that has left something to be written. It was found
    /// at this place, or its key is among those that were `seen` there.
    pub(super) fn predecessor<'k>(
        &self,
        place: &UnitAddress,
        known: &'k Known,
        seen: &[u64],
    ) -> Option<&'k Entry> {
        if self.writers != Writers::TakeOver {
            return None;
        }
        let is_here = |entry: &&Entry| entry.is_of(place) || seen.contains(&entry.key);
        let here = known.gone.iter().map(|(entry, _)| entry).filter(is_here);
        here.filter(|entry| self.waits(entry).is_some()).max_by_key(|entry| entry.since)
    }

    /// What keeps the reservation from being given back.
    pub(super) fn retention(&self, entry: &Entry) -> Retention {
        match (self.replayed(), entry.replays) {
            (Some(_), _) => Retention::UntilWritten,
            (None, Some(_)) if !matches!(self.writers, Writers::Succeed(_)) => {
                Retention::UntilChanged
            }
            (None, _) => Retention::No,
        }
    }

    /// The key of the attachment whose replay log is to be written.
    fn replayed(&self) -> Option<u64> {
        self.replays?.key
    }

    /// The unwritten replay log of the attachment with this key, if there is one where logs are or in `noted`.
    pub(super) fn unwritten(&self, key: u64, noted: Option<&Path>) -> Option<PathBuf> {
        let places = [noted, self.replay_logs, self.state];
        places.into_iter().flatten().find_map(|dir| replay_log::of_key(dir, key))
    }

    /// Whose registrations are removed on the way.
    fn removals(&self, known: &Known) -> Removals {
        match self.writers {
            Writers::One => {
                Removals::Stale(known.gone.iter().map(|(entry, _)| entry.key).collect())
            }
            _ => Removals::Everyone,
        }
    }

    /// What is noted of an attachment with this key, before it is registered.
    pub(super) fn entry(&self, place: &UnitAddress, key: u64, before: Option<&Entry>) -> Entry {
        // A path that is no text cannot be noted.
        let is_text = |path: &&Path| path.to_str().is_some();
        let replay_logs = self.replay_logs.filter(is_text).map(PathBuf::from);
        let replayed = self.replays.filter(|log| log.key.is_some()).map(|log| &*log.file);
        let unwritten_logs = replayed.filter(is_text).map(PathBuf::from).into_iter().collect();
        // So that the one after this one knows the key, should this one end before it has that of its predecessor.
        let continued = match self.writers {
            Writers::Succeed(before) => Some(before.key),
            _ => None,
        };
        let replays = self.replayed().or(continued);
        let entry = Entry { replays, unwritten_logs, ..Entry::new(place, key) };
        // As long as it has changed nothing, what its predecessor has left can still be written.
        let entry = match before {
            Some(before) => entry.in_place_of(before),
            None => entry,
        };
        Entry { replay_logs, ..entry }
    }

    pub(super) async fn reserve<S: Session>(
        &self,
        unit: &Unit<S>,
        key: u64,
        known: &Known,
    ) -> Result<OwnReservation, NotHeld<UnitError>> {
        let stale = |of: u64| -> Vec<u64> {
            let began_the_same = known.gone.iter().filter(|(entry, _)| entry.replays == Some(of));
            began_the_same.map(|(entry, _)| entry.key).collect()
        };
        match self.writers {
            Writers::Resume(of) => writer::resume(unit, key, of, &stale(of)).await,
            Writers::Succeed(before) => {
                writer::succeed(unit, key, &before, &stale(before.key)).await
            }
            _ => writer::acquire(unit, key, &self.removals(known)).await,
        }
    }

    /// Notes the attachment under the key that it has in the end. The earlier note stays until that is done. Where that
    /// cannot be, the note of the predecessor under this key is that of this attachment: unlocked it would tell that the
    /// attachment is gone.
    pub(super) fn renamed(&self, noted: Option<Attachment>, entry: Entry) -> Option<Attachment> {
        if noted.as_ref().is_some_and(|noted| noted.is_of(entry.key)) {
            return noted;
        }
        // What could not be noted before cannot be now.
        let renamed = noted.as_ref().and_then(|_| self.note(&entry, true));
        let adopt = || Attachment::adopt(&attachments::folder(self.state?), &entry).ok();
        let renamed = renamed.or_else(adopt);
        if renamed.is_some() {
            noted.into_iter().for_each(Attachment::forget);
        }
        renamed
    }

    pub(super) fn note(&self, entry: &Entry, again: bool) -> Option<Attachment> {
        let folder = attachments::folder(self.state?);
        let noted = match again {
            true => Attachment::note_again(&folder, entry),
            false => Attachment::note(&folder, entry),
        };
        let failed = |why: &io::Error| {
            let folder = folder.shown();
            tracing::warn!(%folder, %why, "cannot note the attachment: after a crash only --take-over of `attach`, `mount`, `copy`, `tune` and `key` gets the volume");
        };
        noted.inspect_err(failed).ok()
    }
}
