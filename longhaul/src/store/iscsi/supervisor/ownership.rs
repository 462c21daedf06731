//! Whether the volume is still ours, and giving it back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use proto::scsi::Status;
use volume::layer::reconnect::Over;

use super::{CHANGED_WITHIN, Supervisor};
use crate::store::iscsi::identity::Identity;
use crate::store::iscsi::link::Link;
use crate::store::iscsi::mark::{LOOKED_AT_EVERY, MarkError};
use crate::store::iscsi::reservation::Reservation;
use crate::store::iscsi::unit::UnitError;

/// A unit that may be another's is treated like one whose connection was lost.
#[derive(Debug, thiserror::Error)]
#[error("the reservation of the volume is in question")]
pub(super) struct ReservationInQuestion;

/// Whether the unit said so, or refused what only the holder may do.
pub(super) fn in_question(link: &Link, failure: Option<&UnitError>) -> bool {
    link.session().announced().was_preempted()
        || matches!(failure, Some(UnitError::Status(Status::ReservationConflict)))
}

impl Supervisor {
    pub(in super::super) const fn reservation(&self) -> &Reservation {
        &self.connector.reservation
    }

    /// What the volume is known by, if its bytes tell.
    pub(in super::super) fn identity(&self) -> Option<Identity> {
        self.connector.identity()
    }

    /// From now on the volume is known by this.
    pub(in super::super) fn identify(&self, identity: Identity) {
        if let Some(log) = &mut self.lock().replay_log {
            log.set_luks_uuid(&identity.uuid);
        }
        self.connector.identify(identity);
    }

    /// From now on an outage is waited for as long as this, or for ever.
    pub(in super::super) fn be_patient(&self, patience: Option<Duration>) {
        self.lock().machine.be_patient(patience);
        self.changed.notify_one();
    }

    /// Gives the reservation back, if it is still ours to give.
    pub(in super::super) async fn release(&self) {
        let over = self.lock().ended.as_ref().map(|ended| ended.over);
        if self.reservation().is_held() && self.is_quiet().await {
            if over == Some(Over::Closed) && self.has_replay_log().await {
                // It shows that nobody has written since.
                let target = self.connector.to_string();
                tracing::warn!(target, "the volume stays reserved until its replay log is written");
                self.reservation().stay();
            }
            if over == Some(Over::Closed) {
                self.reservation().release(self.link().unit()).await;
            }
            self.reservation().leave();
        }
        self.reservation().forget_unmarked();
    }

    async fn has_replay_log(&self) -> bool {
        self.settled().await.is_some_and(|saved| saved.path.is_some())
    }

    /// Waits until the last change has ended, also of those that nobody waits for any more: it could land after the
    /// first write of whoever comes next. Whether all have.
    pub(in super::super) async fn is_quiet(&self) -> bool {
        let is_quiet = tokio::time::timeout(CHANGED_WITHIN, self.changes.closed()).await.is_ok();
        if !is_quiet {
            let target = self.connector.to_string();
            tracing::warn!(target, "writes are still under way: the volume is not given back");
        }
        is_quiet
    }

    /// Looks at the mark from now on, for as long as there is one.
    pub(in super::super) fn watch_mark(self: &Arc<Self>) {
        tokio::spawn(look_again(Arc::downgrade(self)));
    }

    /// Whether it is of any use to look again.
    async fn look_at_mark(self: Arc<Self>) -> bool {
        let (number, link) = {
            let state = self.lock();
            if state.ended.is_some() {
                return false;
            }
            state.link.clone()
        };
        let Some(mark) = self.reservation().mark() else { return false };
        // What is slow is read again, and what cannot be read is no other's.
        let looked = tokio::time::timeout(LOOKED_AT_EVERY, mark.look(&link)).await;
        if let Ok(Err(MarkError::Replaced(_))) = looked {
            let mut state = self.lock();
            // Whose it is is asked on the next link, before anything is written there.
            link.session().abandon();
            self.note_loss(&mut state, number, Duration::ZERO, Arc::new(ReservationInQuestion));
            self.act(&mut state);
        }
        true
    }
}

async fn look_again(supervisor: Weak<Supervisor>) {
    loop {
        tokio::time::sleep(LOOKED_AT_EVERY).await;
        // Who is forgotten meanwhile is not kept alive.
        let Some(supervisor) = supervisor.upgrade() else { return };
        if !supervisor.look_at_mark().await {
            return;
        }
    }
}
