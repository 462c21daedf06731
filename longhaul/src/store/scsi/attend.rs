//! Asks the unit now and then how it is, and whether the mark on it is still ours.

use std::sync::Weak;
use std::time::Duration;

use proto::scsi::command::Command;
use tokio::time::{sleep, timeout};
use volume::layer::reconnect::{Loss, Supervisor};

use super::connect::{Connector, ReservationInQuestion};
use super::mark::{LOOKED_AT_EVERY, MarkError};
use super::session::{Session as _, Transport};

/// Asks the unit now and then whether something has happened to it.
///
/// Commands that are aborted because another takes the volume over, or resets the unit, are as a rule never answered
/// (SAM-5, 5.3.1: TAS is zero). A unit attention tells of it, with the next command; but where everybody waits for
/// those answers there is none.
pub(super) async fn attend<T: Transport>(
    supervisor: Weak<Supervisor<Connector<T>>>,
    every: Duration,
) {
    loop {
        sleep(every).await;
        // Who is forgotten meanwhile is not kept alive.
        let Some(supervisor) = supervisor.upgrade() else { return };
        let Some((number, link)) = supervisor.current() else { return };
        let asked = link.unit().ask(Command::test_unit_ready());
        // What has no answer in time is asked again, for it may have been aborted too.
        if let Ok(answer) = timeout(every, asked).await {
            supervisor.observe((number, &link), answer.as_ref().err());
        }
    }
}

/// Looks at the mark now and then, for as long as there is one.
pub(super) async fn watch_mark<T: Transport>(supervisor: Weak<Supervisor<Connector<T>>>) {
    loop {
        sleep(LOOKED_AT_EVERY).await;
        // Who is forgotten meanwhile is not kept alive.
        let Some(supervisor) = supervisor.upgrade() else { return };
        let Some((number, link)) = supervisor.current() else { return };
        let Some(mark) = supervisor.transport().reservation.mark() else { return };
        // What is slow is read again, and what cannot be read is no other's.
        let looked = timeout(LOOKED_AT_EVERY, mark.look(&link)).await;
        if let Ok(Err(MarkError::Replaced(_))) = looked {
            // Whose it is is asked on the next link, before anything is written there.
            link.session().abandon();
            supervisor.lose(number, Loss::new(ReservationInQuestion));
        }
    }
}
