//! The replay logs of a volume that wait to be written: what it lacks, as far as this machine knows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proto::scsi::writer::Registrants;

use super::Chain;
use crate::attachments::{self, Entry};
use crate::journals;
use crate::luks;
use crate::printable::Shown as _;
use crate::replay_log::{self, Pending};
use crate::store::abilities::Probe;
use crate::store::scsi::Watched;

impl Chain {
    /// The replay logs of it that have not been written: those in the state directory, in `dir`, and where the notes of
    /// its attachments say that they are, found there or not.
    pub async fn pending_logs(&self, dir: Option<PathBuf>) -> Vec<Pending> {
        let writer = match &self.abilities.probe {
            // Whoever writes has the reservation himself.
            Some(store) if self.volume.shape().read_only => store.writer().await,
            _ => None,
        };
        self.logs(dir, keys(writer.as_ref())).await
    }

    /// What it lacks, and who writes to it meanwhile, if its store is behind a target that tells. A reservation that is
    /// kept for a log is nobody's.
    pub async fn gaps(&self) -> (Vec<Pending>, Option<String>) {
        let writer = match &self.abilities.probe {
            Some(store) => store.writer().await,
            None => None,
        };
        let keys = keys(writer.as_ref());
        let mut logs = self.logs(None, keys.clone()).await;
        let guards = self.guards(&logs);
        let is_of_log =
            |key: &u64| logs.iter().any(|log| log.key == Some(*key)) || guards.contains(key);
        let is_nobody = !keys.is_empty() && keys.iter().all(is_of_log);
        // Nothing is lacking that was written over.
        logs.retain(|log| log.superseded.is_none());
        (logs, writer.filter(|_| !is_nobody).map(|writer| writer.to_string()))
    }

    /// The journals of this machine that hold what it lacks, as the notes of its attachments say.
    pub async fn unsent_journals(&self) -> Vec<PathBuf> {
        let Some(store) = self.abilities.probe.clone() else { return Vec::new() };
        let look = move || {
            let place = store.place();
            let noted = notes(&*store).into_iter().filter(|note| note.is_of(&place));
            let noted = noted.flat_map(|note| note.unwritten_logs);
            let mut unsent: Vec<_> = noted
                .filter(|path| journals::is_journal(path) && !journals::is_sent(path))
                .collect();
            unsent.sort();
            unsent.dedup();
            unsent
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    /// Whether its unit is reserved, so that its reader would be told by whom.
    pub async fn is_reserved(&self) -> bool {
        match &self.abilities.probe {
            Some(store) => store.writer().await.is_some(),
            None => false,
        }
    }

    /// The keys of those who took the volume over from the attachments of these logs, and have ended without a change.
    fn guards(&self, logs: &[Pending]) -> Vec<u64> {
        let Some(store) = &self.abilities.probe else { return Vec::new() };
        let guards =
            |note: &Entry| logs.iter().any(|log| log.key.is_some() && log.key == note.replays);
        let notes = notes(&**store).into_iter();
        let over = notes.filter(|note| guards(note) && note.is_over());
        over.map(|note| note.key).collect()
    }

    async fn logs(&self, dir: Option<PathBuf>, registered: Vec<u64>) -> Vec<Pending> {
        let Some(store) = self.abilities.probe.clone() else { return Vec::new() };
        let size = self.layers.first().map_or(0, |store| store.size);
        let (looked, keys) = (Arc::clone(&store), registered.clone());
        let look = move || find(&*looked, dir, &keys);
        let mut logs = tokio::task::spawn_blocking(look).await.unwrap_or_default();
        if logs.iter().any(|log| log.header.is_some()) {
            let uuid = self.luks_uuid(&*store).await;
            logs.retain(|log| log.may_be_of(uuid.as_deref(), size, &registered));
        }
        logs
    }

    /// The LUKS UUID of what the store holds, if that is encrypted.
    async fn luks_uuid(&self, store: &dyn Probe) -> Option<String> {
        if self.is_decrypted() {
            return store.probe().await.ok()?.luks_uuid;
        }
        luks::identity(&self.volume).await.ok()?.uuid
    }

    /// Says in the log which of them should be written before it is written to.
    pub(super) fn warn_of_logs(&self, logs: &[Pending]) {
        for log in logs {
            tracing::warn!("{}", log.advice(&self.uri.to_string()));
        }
    }

    /// Notes of each of them, once it is written to at their places, that they are older. Whoever writes a log leaves
    /// that and newer ones as they are.
    pub(super) fn watch_logs(&self, logs: Vec<Pending>, written: Option<&Path>) {
        let (Some(store), Some(writer)) = (&self.abilities.probe, &self.abilities.writer) else {
            return;
        };
        let Some(state) = store.state_dir() else { return };
        // A journal holds what was accepted after all that its volume lacks.
        let newest = written.and_then(replay_log::created).unwrap_or(u64::MAX);
        for log in logs {
            let Pending { path, places, superseded: None, header: Some(header), .. } = log else {
                continue;
            };
            if header.created >= newest {
                continue;
            }
            let state = state.clone();
            let on_change = Box::new(move || {
                if let Err(why) = replay_log::note_superseded(&state, &header) {
                    let path = path.shown();
                    tracing::warn!(%why, "cannot note that the replay log {path} is older than what is written now");
                }
            });
            writer.watch(Watched { places, on_change });
        }
    }
}

fn keys(writer: Option<&Registrants>) -> Vec<u64> {
    writer.iter().flat_map(|writer| writer.0.iter().map(|registrant| registrant.key)).collect()
}

/// The notes of attachments that may be of the unit.
fn notes(store: &dyn Probe) -> Vec<Entry> {
    let folder = store.state_dir().map(|state| attachments::folder(&state));
    folder.map(|folder| attachments::noted(&folder, &store.place())).unwrap_or_default()
}

/// A note that only may be of the unit counts where its key is `registered` there.
fn find(store: &dyn Probe, dir: Option<PathBuf>, registered: &[u64]) -> Vec<Pending> {
    let (state, place) = (store.state_dir(), store.place());
    let notes = notes(store);
    let noted = notes.iter().filter_map(|note| note.replay_logs.clone());
    let mut dirs: Vec<_> = dir.into_iter().chain(state).chain(noted).collect();
    dirs.sort();
    dirs.dedup();
    let state = store.state_dir();
    let in_dir =
        |dir: &PathBuf| replay_log::pending(dir, state.as_deref(), |header| store.is_of(header));
    let mut logs: Vec<_> = dirs.iter().flat_map(in_dir).collect();
    let is_here = |note: &&Entry| note.is_of(&place) || registered.contains(&note.key);
    for note in notes.iter().filter(is_here) {
        let missing = missing(note, &logs);
        logs.extend(missing);
    }
    logs
}

/// Those of an attachment that are not among the ones that were `found`.
fn missing(note: &Entry, found: &[Pending]) -> Vec<Pending> {
    let is_found = found.iter().any(|log| log.key.is_some_and(|key| note.is_for(key)));
    let logs = note
        .unwritten_logs
        .iter()
        .filter(|log| !is_found && !replay_log::is_written(log) && !journals::is_journal(log));
    logs.map(|log| Pending::missing(log.clone(), note.key)).collect()
}
