//! Units whose connection was lost, or that were reset, for commands that go on by themselves where the medium is.

use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::scsi::command::Command;
use proto::scsi::sense::Key;
use proto::scsi::{Sense, Status};
use tokio::time::sleep;

use crate::failure::{Failure, Outcome};
use crate::reconnect_limit::ReconnectLimit;
use crate::store::scsi::{Lost, RawUnit};

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
        let left = limit.0.map(|limit| limit.saturating_sub(began.elapsed()));
        if left.is_some_and(|left| left.is_zero()) || !not.is_fleeting {
            return Err(Failure::new("the connection was lost").because(not.why));
        }
        tracing::info!(why = %not.why, "not connected yet");
        sleep(left.map_or(wait, |left| wait.min(left))).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}

/// How long no command is answered before the unit is asked whether it was reset.
const ASKED_AFTER: Duration = Duration::from_secs(10);

/// Why no answer comes any more.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The session has ended.
    Lost(Lost),
    /// Another initiator has reset the unit: what was under way is aborted, and never answered (SAM-5, 5.3.1).
    Aborted,
}

/// Waits for the answer to one of the commands that are under way.
pub(super) async fn answer<T>(
    unit: &dyn RawUnit,
    next: impl Future<Output = T>,
) -> Result<T, NoAnswer> {
    let mut next = std::pin::pin!(next);
    loop {
        tokio::select! {
            biased;
            answered = &mut next => return Ok(answered),
            was_reset = was_reset(unit) => {
                if was_reset.map_err(NoAnswer::Lost)? {
                    return Err(NoAnswer::Aborted);
                }
            }
        }
    }
}

/// Whether the unit was reset, asked when it has been silent for long: it tells that once, to the next command.
async fn was_reset(unit: &dyn RawUnit) -> Result<bool, Lost> {
    sleep(ASKED_AFTER).await;
    let answer = unit.send(Command::test_unit_ready(), Bytes::new()).await?;
    let told = match answer.await? {
        Ok(done) if done.status == Status::CheckCondition => Sense::parse(&done.sense),
        _ => None,
    };
    Ok(told.is_some_and(|sense| sense.key == Key::UnitAttention))
}
