//! How an open chain is, for `status` and for whoever waits for its end.

use std::path::PathBuf;
use std::sync::Weak;

use serde::{Deserialize, Serialize};

use crate::pipelined;
use crate::store::iscsi;

/// Tells how an open chain is.
#[derive(Clone)]
pub struct Observer {
    pub(super) disk: Option<Weak<iscsi::Disk>>,
    pub(super) pipelined: Option<pipelined::Observer>,
}

/// How an open chain is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainStatus {
    /// `connected`, `reconnecting` or `given up`, and more for people.
    pub state: String,
    /// Bytes that were acknowledged and are not durable.
    pub unflushed: u64,
    /// The first write that failed after it was acknowledged.
    pub failure: Option<String>,
    /// Where what could not be written is.
    pub replay_log: Option<PathBuf>,
    /// Acknowledged writes that are nowhere any more.
    pub lost: u64,
}

impl Observer {
    /// How the connection to another target is, if it is not as it should be.
    #[must_use]
    pub fn outage(&self) -> Option<String> {
        let disk = self.disk.as_ref().and_then(Weak::upgrade)?;
        (disk.state() != iscsi::State::Connected).then(|| describe(&disk))
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> ChainStatus {
        let disk = self.disk.as_ref().and_then(Weak::upgrade);
        let saved = disk.as_ref().and_then(|disk| disk.saved()).unwrap_or_default();
        let answered = disk.as_ref().map_or(0, |disk| disk.unflushed().1 as u64);
        let pending = self.pipelined.as_ref().map_or(0, pipelined::Observer::pending);
        let failure = self.pipelined.as_ref().and_then(pipelined::Observer::failure);
        let state = match (&self.disk, &disk) {
            (None, _) => "open".to_owned(),
            (Some(_), None) => "closed".to_owned(),
            (_, Some(disk)) => describe(disk),
        };
        ChainStatus {
            state,
            unflushed: answered + pending,
            failure,
            replay_log: saved.path,
            lost: saved.lost,
        }
    }
}

fn describe(disk: &iscsi::Disk) -> String {
    match disk.state() {
        iscsi::State::Connected => "connected".to_owned(),
        iscsi::State::Reconnecting { lasted, attempts } => {
            let reason = disk.reason().map_or_else(String::new, |why| format!(": {why}"));
            format!("reconnecting for {} s, {attempts} attempts{reason}", lasted.as_secs())
        }
        iscsi::State::Over(over) => format!("given up: {over}"),
    }
}
