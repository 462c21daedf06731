//! How the layer is, and what became of what it wanted done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::machine::Status;
use crate::{Error, Kind};

/// Tells whether a failure of the volume beneath means that another writer has it.
pub type IsFence = Arc<dyn Fn(&Error) -> bool + Send + Sync>;

/// Where changes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// To the journal.
    Journal,
    /// They wait: its file failed, and the store is being given what it lacks.
    FallingBack,
    /// To the store, which has everything; the file says that it holds nothing.
    Direct,
    /// Nowhere.
    Failed,
}

/// Why the file or the volume beneath failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    /// What kind of failure it is to a caller.
    pub kind: Kind,
    pub(super) text: Arc<str>,
    /// Another writer has the volume.
    pub is_fence: bool,
}

impl Failure {
    pub(super) fn new(kind: Kind, why: impl fmt::Display) -> Self {
        Self { kind, text: why.to_string().into(), is_fence: false }
    }

    /// With all that is beneath it.
    pub(super) fn of(kind: Kind, why: &(dyn std::error::Error + 'static)) -> Self {
        let mut text = why.to_string();
        let mut beneath = why.source();
        while let Some(cause) = beneath {
            text += &format!(": {cause}");
            beneath = cause.source();
        }
        Self::new(kind, text)
    }
}

/// How the layer is.
#[derive(Clone, Debug)]
pub struct LayerStatus {
    /// The machine.
    pub journal: Status,
    /// Where changes go.
    pub mode: Mode,
    /// How long the volume beneath has lacked something.
    pub oldest: Option<Duration>,
    /// What failed first.
    pub failure: Option<Failure>,
}

/// What became of an order.
#[derive(Debug)]
pub(super) enum Outcome {
    Synced(Result<(), Failure>),
    Appended(u64, Result<(), Failure>),
    Superblock(u64, Result<(), Failure>),
    Drained(u64, Result<(), Failure>),
    FellBack(Result<(), Failure>),
    Checkpointed(Result<(), Failure>),
}
