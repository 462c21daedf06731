//! The replay logs of a volume that wait to be written: what it lacks, as far as this machine knows.

use std::path::PathBuf;

use super::Chain;
use crate::attachments::{self, Entry};
use crate::luks;
use crate::printable::Shown as _;
use crate::replay_log::{self, Pending};
use crate::store::abilities::Probe;

impl Chain {
    /// The replay logs of it that have not been written: those in the state directory, in `dir`, and where the notes of
    /// its attachments say that they are, found there or not.
    pub async fn pending_logs(&self, dir: Option<PathBuf>) -> Vec<Pending> {
        self.logs(dir, Vec::new()).await
    }

    /// What it lacks, and who writes to it meanwhile, if its store is behind a target that tells. A reservation that is
    /// kept for a log is nobody's.
    pub async fn gaps(&self) -> (Vec<Pending>, Option<String>) {
        let writer = match &self.abilities.probe {
            Some(store) => store.writer().await,
            None => None,
        };
        let keys =
            writer.iter().flat_map(|writer| writer.0.iter().map(|registrant| registrant.key));
        let keys: Vec<_> = keys.collect();
        let logs = self.logs(None, keys.clone()).await;
        let is_of_log = |key: &u64| logs.iter().any(|log| log.key == Some(*key));
        let is_nobody = !keys.is_empty() && keys.iter().all(is_of_log);
        (logs, writer.filter(|_| !is_nobody).map(|writer| writer.to_string()))
    }

    async fn logs(&self, dir: Option<PathBuf>, registered: Vec<u64>) -> Vec<Pending> {
        let Some(store) = self.abilities.probe.clone() else { return Vec::new() };
        let size = self.layers.first().map_or(0, |store| store.size);
        let look = move || find(&*store, dir, &registered);
        let mut logs = tokio::task::spawn_blocking(look).await.unwrap_or_default();
        // The UUID of one that is open is known to its store.
        let mut uuid = None;
        if !self.is_decrypted() && logs.iter().any(Pending::has_uuid) {
            let found = luks::recognise(self.volume()).await;
            uuid = found.ok().flatten().and_then(|found| found.summary().uuid);
        }
        logs.retain(|log| log.may_be_of(uuid.as_deref(), size));
        logs
    }

    /// Says in the log which of them should be written before it is written to.
    pub(super) async fn warn_of_logs(&self, dir: Option<PathBuf>) {
        for log in self.pending_logs(dir).await {
            let (uri, path) = (&self.uri, log.path.shown());
            tracing::warn!(
                "{uri} lacks what is in the replay log {log}: end this and run `longhaul replay {path}` first, since it \
                 replaces what is written from now on"
            );
        }
    }
}

/// A note that only may be of the unit counts where its key is `registered` there.
fn find(store: &dyn Probe, dir: Option<PathBuf>, registered: &[u64]) -> Vec<Pending> {
    let (state, place) = (store.state_dir(), store.place());
    let folder = state.as_deref().map(attachments::folder);
    let notes = folder.map(|folder| attachments::noted(&folder, &place)).unwrap_or_default();
    let noted = notes.iter().filter_map(|note| note.replay_logs.clone());
    let mut dirs: Vec<_> = dir.into_iter().chain(state).chain(noted).collect();
    dirs.sort();
    dirs.dedup();
    let in_dir = |dir: &PathBuf| replay_log::pending(dir, |header| store.is_of(header));
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
    let logs = note.unwritten_logs.iter().filter(|log| !is_found && !replay_log::is_written(log));
    logs.map(|log| Pending::missing(log.clone(), note.key)).collect()
}
