//! How an open chain is, for `status` and for whoever waits for its end.

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};

use crate::net::tcp_tuning;
use crate::printable::Counted;
use crate::scsi_device::{Connection, ScsiDevice};
use crate::size::Size;
use crate::store::abilities::{Close, JournalStatus, Probe, WorkerStatus};
use crate::store::scsi;

/// Tells how an open chain is.
#[derive(Clone)]
pub struct Observer {
    /// The store, if it is behind a network.
    pub(super) probe: Option<Weak<dyn Probe>>,
    pub(super) close: Option<Weak<dyn Close>>,
    /// The device, if one is passed through.
    pub(super) device: Option<Weak<dyn ScsiDevice>>,
    pub(super) workers: Vec<Arc<dyn WorkerStatus>>,
}

/// How an open chain is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainStatus {
    /// `connected`, `reconnecting` or `given up`, and more for people.
    pub state: String,
    /// It can be reached, as far as is known.
    #[serde(default)]
    pub is_connected: bool,
    /// What people should know of it, if all is not as it should be: which member a mirror lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Bytes that were acknowledged and are not durable.
    pub unflushed: u64,
    /// The first write that failed after it was acknowledged.
    pub failure: Option<String>,
    /// Where what could not be written is.
    pub replay_log: Option<PathBuf>,
    /// Acknowledged writes that are nowhere any more.
    pub lost: u64,
    /// Its journal, if it has one.
    #[serde(default)]
    pub journal: Option<JournalStatus>,
}

impl ChainStatus {
    /// What was written and is not on the volume yet, for people. With a journal nothing may be unflushed, and the volume
    /// lacks it all the same.
    #[must_use]
    pub fn pending(&self) -> String {
        let unsent = self.journal.as_ref().map_or(0, |journal| journal.unsent);
        let unflushed = format!("{} bytes are not flushed yet", Size(self.unflushed));
        let lacks = format!("the volume lacks {} in the journal", Counted(unsent, "change"));
        match (unsent, self.unflushed) {
            (0, _) => unflushed,
            (_, 0) => lacks,
            _ => format!("{lacks}; {unflushed}"),
        }
    }
}

impl Observer {
    /// How the connection to another target is, if it is not as it should be.
    #[must_use]
    pub fn outage(&self) -> Option<String> {
        let store = self.probe.as_ref().and_then(Weak::upgrade);
        let is_well = |store: &Arc<dyn Probe>| {
            store.state() == scsi::State::Connected && store.silence().is_none()
        };
        let store = store.filter(|store| !is_well(store));
        let connection = self.connection().filter(|found| *found != Connection::Connected);
        let passed = || connection.map(|connection| connection.to_string());
        store.map(|store| describe(&*store)).or_else(passed).or_else(|| self.trouble())
    }

    /// What the kernel knows of the way to the target, if there is a connection.
    pub async fn path(&self) -> Option<tcp_tuning::Info> {
        let store = self.probe.as_ref().and_then(Weak::upgrade)?;
        match store.state() {
            scsi::State::Connected => store.path().await,
            _ => None,
        }
    }

    /// How the connection to a unit that is passed on is.
    #[must_use]
    pub fn connection(&self) -> Option<Connection> {
        self.device.as_ref().and_then(Weak::upgrade)?.connection()
    }

    fn trouble(&self) -> Option<String> {
        self.workers.iter().find_map(|worker| worker.trouble())
    }

    /// Has everything that is kept on the way sent and noted as sent; whether it is.
    #[must_use]
    pub fn settle(&self) -> bool {
        // All are asked, so that none waits for another.
        self.workers.iter().filter(|worker| !worker.settle()).count() == 0
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> ChainStatus {
        let close = self.close.as_ref().and_then(Weak::upgrade);
        let saved = close.as_deref().and_then(Close::saved).unwrap_or_default();
        let answered = close.as_deref().map_or(0, Close::unflushed);
        let pending: u64 = self.workers.iter().map(|worker| worker.pending()).sum();
        let failure = self.workers.iter().find_map(|worker| worker.failure());
        let state = match self.probe.as_ref().map(Weak::upgrade) {
            None => self.trouble().unwrap_or_else(|| "open".to_owned()),
            Some(None) => "closed".to_owned(),
            Some(Some(probe)) => describe(&*probe),
        };
        ChainStatus {
            is_connected: self.outage().is_none(),
            trouble: self.trouble(),
            state,
            unflushed: answered + pending,
            failure,
            replay_log: saved.path,
            lost: saved.lost,
            journal: self.workers.iter().find_map(|worker| worker.journal()),
        }
    }
}

fn describe(store: &dyn Probe) -> String {
    if let (scsi::State::Connected, Some(lasted)) = (store.state(), store.silence()) {
        return format!("connected, but no answer for {} s", lasted.as_secs());
    }
    match store.state() {
        scsi::State::Connected => match store.not_offered() {
            0 => "connected".to_owned(),
            grown => format!(
                "connected; the volume has grown by {}, which is used when it is opened again",
                Size(grown)
            ),
        },
        scsi::State::Reconnecting { lasted, attempts } => {
            let reason = store.reason().map_or_else(String::new, |why| format!(": {why}"));
            format!("reconnecting for {} s, {attempts} attempts{reason}", lasted.as_secs())
        }
        scsi::State::Unanswered { lasted, requests } => {
            let reason = store.reason().map_or_else(String::new, |why| format!(": {why}"));
            let lasted = lasted.as_secs();
            format!("connected, but {requests} requests have had no answer for {lasted} s{reason}")
        }
        scsi::State::Over(over) => format!("given up: {over}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_only_the_journal_has_are_told_as_not_on_the_volume() {
        let journal = |unsent| JournalStatus {
            path: "j".into(),
            state: "draining".to_owned(),
            used: 512,
            size: 4096,
            unsent,
            oldest: None,
            failure: None,
        };
        for (unflushed, unsent, told) in [
            (0, None, "0 bytes are not flushed yet"),
            (512, Some(0), "512 bytes are not flushed yet"),
            (0, Some(3), "the volume lacks 3 changes in the journal"),
            (
                512,
                Some(3),
                "the volume lacks 3 changes in the journal; 512 bytes are not flushed yet",
            ),
        ] {
            let status = ChainStatus {
                state: "reconnecting".to_owned(),
                is_connected: false,
                trouble: None,
                unflushed,
                failure: None,
                replay_log: None,
                lost: 0,
                journal: unsent.map(journal),
            };
            assert_eq!(status.pending(), told);
        }
    }
}
