//! Units whose connection was lost, for commands that go on by themselves where the medium is.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::failure::{Failure, Outcome};
use crate::reconnect_limit::ReconnectLimit;
use crate::store::scsi::RawUnit;

/// The first wait between two attempts to connect again.
const WAIT_MIN: Duration = Duration::from_millis(100);

/// The longest.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);

/// Opens a unit on a new session, as long as an outage may last. What was under way has no answer any more.
pub(super) async fn connect_again(unit: &mut dyn RawUnit, limit: ReconnectLimit) -> Outcome {
    let (began, mut wait) = (Instant::now(), WAIT_MIN);
    loop {
        let not = match unit.open_again().await {
            Ok(()) => return Ok(()),
            Err(not) => not,
        };
        let is_over = limit.0.is_some_and(|limit| began.elapsed() + wait > limit);
        if is_over || !not.is_fleeting {
            return Err(Failure::new("the connection was lost").because(not.why));
        }
        tracing::info!(why = %not.why, "not connected yet");
        sleep(wait).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}
