//! Journals of this machine that hold what a volume lacks: whoever reads the volume elsewhere has to know.

use std::path::{Path, PathBuf};

use super::attached::{AttachStatus, attachments};
use crate::chain::Chain;
use crate::failure::{Failure, Outcome, print_error};
use crate::printable::{Counted, Quoted as _, Shown as _};
use crate::uri::Uri;

/// A journal that holds what its volume lacks.
pub(super) struct Unsent {
    pub(super) path: PathBuf,
    /// The attachment that sends it, if one runs.
    sender: Option<Sender>,
}

/// An attachment of this machine, and what its journal holds.
pub(super) struct Sender {
    pid: u32,
    /// Changes that the volume may lack.
    pub(super) changes: u64,
}

impl Unsent {
    /// Those of the volume of `chain`. One that is in use and has sent all is none of them.
    pub(super) async fn of(chain: &Chain) -> Vec<Self> {
        let mut found = Vec::new();
        for path in chain.unsent_journals().await {
            let sender = sender_of(&path).await;
            if sender.as_ref().is_none_or(|sender| sender.changes > 0) {
                found.push(Self { path, sender });
            }
        }
        found
    }

    /// Says that `what` will lack it.
    fn tell(&self, from: &Uri, what: &str) {
        let journal = self.path.shown();
        let advice = self.advice();
        print_error(&format_args!(
            "longhaul: {from} lacks what is in the journal {journal}, and so does {what}: {advice}"
        ));
    }

    /// The error that `what` lacks it.
    fn refuse(&self, from: &Uri, what: &str) -> Failure {
        Failure::new(format!("{what} lacks what is in the journal {}", self.path.shown()))
            .because(format!("it was acknowledged to programs, and {from} was not given it yet"))
            .hint(format!("all else is as it is there; {}, then do it again", self.advice()))
    }

    fn advice(&self) -> String {
        match &self.sender {
            Some(Sender { pid, changes }) => format!(
                "process {pid} is sending it ({}); wait until `longhaul status` shows 0 changes not sent",
                Counted(*changes, "change")
            ),
            None => format!("`longhaul journal drain {}` sends it", self.path.quoted()),
        }
    }
}

/// Says that `what` is read of a volume that lacks what journals of this machine hold.
pub(super) fn tell_of_unsent(from: &Uri, journals: &[Unsent], what: &str) {
    journals.iter().for_each(|unsent| unsent.tell(from, what));
}

/// An error if `what` was read of a volume that lacks what a journal of this machine holds.
pub(super) fn refuse_unsent(from: &Uri, journals: &[Unsent], what: &str) -> Outcome {
    journals.first().map_or(Ok(()), |unsent| Err(unsent.refuse(from, what)))
}

/// The attachment of this machine that has the journal at `path`, if one runs and answers.
pub(super) async fn sender_of(path: &Path) -> Option<Sender> {
    let path = std::fs::canonicalize(path).ok()?;
    attachments().await.into_iter().find_map(|(_, status)| Sender::of(status, &path))
}

impl Sender {
    fn of(status: AttachStatus, path: &Path) -> Option<Self> {
        let journal = status.volume.journal?;
        let is_it = std::fs::canonicalize(&journal.path).is_ok_and(|of_it| of_it == path);
        is_it.then_some(Self { pid: status.pid, changes: journal.unsent })
    }
}
