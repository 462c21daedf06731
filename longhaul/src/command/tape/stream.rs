//! Blocks between a stream and the drive of a server, over lost connections.

use futures_util::stream::StreamExt as _;
use proto::scsi::Sense;
use proto::scsi::tape_stream::{Answer, Request, Stream};
use tokio::time::sleep;
use volume::FutureSet;

use super::drive::Drive;
use crate::command::lost_unit::{NoAnswer, WAIT_MAX, answer, connect_again};
use crate::failure::{Outcome, print_error};
use crate::reconnect_limit::ReconnectLimit;
use crate::store::scsi::{Completion, Executed, Lost, Pending};

/// Commands of a stream on their way to a drive.
pub(super) struct Link<'d> {
    pub(super) drive: &'d mut Drive,
    limit: ReconnectLimit,
    answers: FutureSet<Pending<'static, (u64, Result<Executed, Lost>)>>,
}

impl<'d> Link<'d> {
    pub(super) fn new(drive: &'d mut Drive, limit: ReconnectLimit) -> Self {
        Self { drive, limit, answers: FutureSet::new() }
    }

    /// Sends what a stream has to send by now.
    pub(super) async fn send(&mut self, stream: &mut impl Stream) -> Outcome {
        while let Some(Request { ticket, command, data, after }) = stream.poll() {
            if !after.is_zero() {
                sleep(after).await;
            }
            match self.drive.unit.send(command, data).await {
                Ok(answer) => self.answers.push(Box::pin(async move { (ticket, answer.await) })),
                Err(lost) => self.lost(stream, &lost).await?,
            }
        }
        Ok(())
    }

    /// Whether anything is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.answers.is_empty()
    }

    /// Waits for an answer; why there will be none, if nothing is under way or all of that is aborted.
    pub(super) async fn answer(&mut self) -> Option<Result<(u64, Executed), NoAnswer>> {
        match answer(&*self.drive.unit, self.answers.next()).await {
            Ok(Some((ticket, Ok(ended)))) => Some(Ok((ticket, ended))),
            Ok(Some((_, Err(lost)))) => Some(Err(NoAnswer::Lost(lost))),
            Ok(None) => None,
            Err(none) => Some(Err(none)),
        }
    }

    /// Hands an answer, and those that are there too, to the stream.
    pub(super) async fn take(
        &mut self,
        stream: &mut impl Stream,
        answer: Result<(u64, Executed), NoAnswer>,
    ) -> Outcome {
        match answer {
            Ok((ticket, Ok(Completion { status, data, sense, residual }))) => {
                let (sense, residual) = (Sense::parse(&sense), residual.under());
                stream.answered(ticket, Answer { status, sense, data, residual });
                if stream.has_orphans() {
                    tracing::warn!("the drive was reset: connecting again");
                    return self.connect_again(stream).await;
                }
                Ok(())
            }
            // Nobody knows what has become of it: it is treated like one of a session that is gone.
            Ok((_, Err(why))) => {
                tracing::warn!(%why, "a command has no status: connecting again");
                self.connect_again(stream).await
            }
            Err(NoAnswer::Lost(lost)) => self.lost(stream, &lost).await,
            Err(NoAnswer::Aborted) => {
                tracing::warn!("the drive was reset: connecting again");
                self.connect_again(stream).await
            }
        }
    }

    async fn lost(&mut self, stream: &mut impl Stream, lost: &Lost) -> Outcome {
        tracing::warn!(why = %lost, "the connection is lost: connecting again");
        sleep(lost.wait.min(WAIT_MAX)).await;
        self.connect_again(stream).await
    }

    /// Connects again, as long as an outage may last. What was under way has no answer any more.
    async fn connect_again(&mut self, stream: &mut impl Stream) -> Outcome {
        self.answers = FutureSet::new();
        stream.lost();
        if !stream.is_lost() {
            return Ok(());
        }
        connect_again(&mut *self.drive.unit, self.limit).await?;
        self.drive.opened_again().await;
        print_error(&"longhaul: connected again; going on where the tape is");
        stream.connected();
        Ok(())
    }
}
