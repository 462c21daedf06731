//! Asks the unit now and then how it is.

use std::sync::{Arc, Weak};
use std::time::Duration;

use proto::scsi::command::Command;
use volume::layer::reconnect::End;

use super::Supervisor;

impl Supervisor {
    /// Gives the unit an occasion to tell what has happened to it, within that time; whether that is of any use yet.
    async fn ask(self: Arc<Self>, within: Duration) -> bool {
        let (number, link) = {
            let state = self.lock();
            if state.ended.is_some() {
                return false;
            }
            state.link.clone()
        };
        let asked = link.unit().ask(Command::test_unit_ready());
        // What has no answer in time is asked again, for it may have been aborted too.
        if let Ok(answer) = tokio::time::timeout(within, asked).await {
            let mut state = self.lock();
            if self.judge(&mut state, (number, &link), answer.as_ref().err()) == End::Done {
                state.machine.answered(number);
            }
            self.act(&mut state);
        }
        true
    }
}

/// Asks the unit now and then whether something has happened to it.
///
/// Commands that are aborted because another takes the volume over, or resets the unit, are as a rule never answered
/// (SAM-5, 5.3.1: TAS is zero). A unit attention tells of it, with the next command; but where everybody waits for
/// those answers there is none.
pub(super) async fn attend(supervisor: Weak<Supervisor>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        // Who is forgotten meanwhile is not kept alive.
        let Some(supervisor) = supervisor.upgrade() else { return };
        if !supervisor.ask(every).await {
            return;
        }
    }
}
