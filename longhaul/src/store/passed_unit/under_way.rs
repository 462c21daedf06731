//! Commands that were sent to a unit and have no answer yet.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::unconstrained;
use tokio::time::Instant;

use super::super::scsi::{Answer, Executed, Lost};
use crate::scsi_device::Job;

/// What happens to commands under way.
pub(super) enum Event {
    /// One has ended, or its session has.
    Ended(Job, Result<Executed, Lost>),
    /// Nobody waits for any of them any more.
    Aborted,
}

struct Sent {
    job: Job,
    answer: Answer,
}

/// See the module. They are in the order in which they were sent.
#[derive(Default)]
pub(super) struct UnderWay {
    sent: VecDeque<Sent>,
    /// It was told that all were aborted.
    is_aborted: bool,
    /// When the first has to have ended: the unit may have begun with it when the one before had ended.
    last: Option<Instant>,
    /// They have to have ended by then, as the unit was reset.
    drained: Option<Instant>,
}

impl UnderWay {
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    pub(super) fn push(&mut self, job: Job, answer: Answer) {
        let timeout = job.request.timeout;
        self.sent.push_back(Sent { job, answer });
        self.is_aborted = false;
        if self.sent.len() == 1 {
            self.drained = None;
            self.last = Some(Instant::now() + timeout);
        }
    }

    /// The unit was reset: they end by that, or have no answer.
    pub(super) fn drain_within(&mut self, time: Duration) {
        self.drained = Some(Instant::now() + time);
    }

    pub(super) const fn is_drained(&self) -> bool {
        self.drained.is_some()
    }

    /// When it is too late for an answer.
    pub(super) fn deadline(&self) -> Instant {
        let deadlines = self.last.into_iter().chain(self.drained);
        deadlines.min().unwrap_or_else(Instant::now)
    }

    /// What happens next. Nothing does if there are none.
    pub(super) async fn event(&mut self) -> Event {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        for at in 0..self.sent.len() {
            if let Poll::Ready(ended) = self.sent[at].answer.as_mut().poll(cx)
                && let Some(Sent { job, .. }) = self.sent.remove(at)
            {
                self.last = self.sent.front().map(|next| Instant::now() + next.job.request.timeout);
                return Poll::Ready(Event::Ended(job, ended));
            }
        }
        let mut jobs = self.sent.iter_mut().map(|sent| &mut sent.job);
        let is_aborted = !self.is_aborted && jobs.len() > 0;
        if is_aborted && jobs.all(|job| job.poll_aborted(cx).is_ready()) {
            self.is_aborted = true;
            return Poll::Ready(Event::Aborted);
        }
        Poll::Pending
    }

    /// All that are left, as the session ends; and the answers that have come.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (Job, Option<Result<Executed, Lost>>)> {
        // One that is ready is taken, however many there are.
        let all = std::mem::take(&mut self.sent).into_iter();
        all.map(|Sent { job, answer }| (job, unconstrained(answer).now_or_never()))
    }
}
