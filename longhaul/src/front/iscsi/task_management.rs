//! Task management requests of iSCSI as functions of SCSI (RFC 7143, 11.5 and 11.6), and what a session waits for
//! meanwhile.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::StreamExt as _;
use proto::iscsi::header::{TaskFunction, TaskResponse};
use tokio::sync::oneshot;
use volume::FutureSet;

use super::joining::{Entry, Join, SessionInfo};
use crate::target;
use crate::target::lun::TargetDevice;
use crate::target::sessions::Sessions;
use crate::target::task_management::{Function, Outcome};

type Running<R> = Pin<Box<dyn Future<Output = (R, TaskResponse)> + Send>>;

/// What happens when the tasks that had to end have ended.
pub(super) enum AfterClear {
    /// Another session is told.
    Notify(oneshot::Sender<()>),
    /// A connection takes the place of the one whose tasks they were (RFC 7143, 6.3.4).
    Join(Box<Join>),
}

/// The task management under way; `R` names a request.
pub(super) struct TaskManagement<R> {
    /// Functions that concern other sessions.
    running: FutureSet<Running<R>>,
    /// What waits for tasks of this session to end, by the number that the protocol machine knows it by.
    clears: BTreeMap<u64, AfterClear>,
    next_clear: u64,
}

impl<R> Default for TaskManagement<R> {
    fn default() -> Self {
        Self { running: FutureSet::new(), clears: BTreeMap::new(), next_clear: 0 }
    }
}

impl<R: Send + 'static> TaskManagement<R> {
    /// Starts a function that may end at once: then its response is returned.
    pub(super) fn start(
        &mut self,
        cx: &mut Context<'_>,
        request: R,
        response: impl Future<Output = TaskResponse> + Send + 'static,
    ) -> Option<TaskResponse> {
        let mut running: Running<R> = Box::pin(async move { (request, response.await) });
        match running.as_mut().poll(cx) {
            Poll::Ready((_, response)) => Some(response),
            Poll::Pending => {
                self.running.push(running);
                None
            }
        }
    }

    /// Hands out the responses that are there; whether there were any.
    pub(super) fn drain(
        &mut self,
        cx: &mut Context<'_>,
        mut each: impl FnMut(R, TaskResponse),
    ) -> bool {
        let mut any = false;
        while let Poll::Ready((request, response)) = self.poll(cx) {
            each(request, response);
            any = true;
        }
        any
    }

    /// The next response.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(R, TaskResponse)> {
        if self.running.is_empty() {
            return Poll::Pending;
        }
        match self.running.poll_next_unpin(cx) {
            Poll::Ready(Some(ended)) => Poll::Ready(ended),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Tasks have to end: returns the number by which the machine tells that they have.
    pub(super) fn begin_clear(&mut self, after: AfterClear) -> u64 {
        let number = self.next_clear;
        self.next_clear += 1;
        self.clears.insert(number, after);
        number
    }

    /// Tasks have ended.
    pub(super) fn end_clear(&mut self, number: u64) -> Option<AfterClear> {
        self.clears.remove(&number)
    }

    /// The numbers of the connections that wait for tasks to end.
    pub(super) fn joining(&self) -> impl Iterator<Item = u16> {
        self.clears.values().filter_map(|after| match after {
            AfterClear::Join(join) => Some(join.admission.established().cid),
            AfterClear::Notify(_) => None,
        })
    }
}

/// Does the part of a function that concerns units and other sessions (RFC 7143, 11.5.1); `lun` is the field of the
/// request.
pub(super) async fn manage(
    sessions: &Sessions<SessionInfo>,
    by: &Entry,
    device: &TargetDevice,
    (function, lun): (TaskFunction, [u8; 8]),
) -> TaskResponse {
    let function = match function {
        TaskFunction::ABORT_TASK_SET => Function::AbortTaskSet(lun),
        TaskFunction::CLEAR_TASK_SET => Function::ClearTaskSet(lun),
        TaskFunction::LOGICAL_UNIT_RESET => Function::LogicalUnitReset(lun),
        TaskFunction::TARGET_WARM_RESET => Function::TargetReset,
        TaskFunction::TARGET_COLD_RESET => Function::TargetColdReset,
        // Nothing is left to do: the protocol machine has done the rest.
        _ => return TaskResponse::COMPLETE,
    };
    match target::task_management::manage(sessions, by, device, function).await {
        Outcome::Complete => TaskResponse::COMPLETE,
        Outcome::IncorrectLun => TaskResponse::LUN_DOES_NOT_EXIST,
        Outcome::NotAuthorized => TaskResponse::AUTHORIZATION_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use std::future::{poll_fn, ready};

    use futures_util::task::noop_waker_ref;

    use super::*;

    #[tokio::test]
    async fn function_that_ends_at_once_is_answered_at_once_and_others_wake_the_session() {
        let mut management = TaskManagement::default();
        let (done, ended) = oneshot::channel::<()>();
        let cx = &mut Context::from_waker(noop_waker_ref());
        let response = management.start(cx, 1, ready(TaskResponse::COMPLETE));
        assert_eq!(response, Some(TaskResponse::COMPLETE));
        assert!(management.poll(cx).is_pending(), "it is answered once");
        let later = async {
            ended.await.unwrap();
            TaskResponse::LUN_DOES_NOT_EXIST
        };
        assert_eq!(management.start(cx, 2, later), None);
        // Nothing has polled it since it was started.
        let answered = tokio::spawn(async move { poll_fn(|cx| management.poll(cx)).await });
        tokio::task::yield_now().await;
        done.send(()).unwrap();
        assert_eq!(answered.await.unwrap(), (2, TaskResponse::LUN_DOES_NOT_EXIST));
    }

    #[test]
    fn each_clear_is_told_once() {
        let mut management = TaskManagement::<u32>::default();
        let [(first, mut first_told), (second, mut second_told)] =
            [(); 2].map(|()| oneshot::channel());
        let numbers = [first, second].map(|done| management.begin_clear(AfterClear::Notify(done)));
        assert_ne!(numbers[0], numbers[1]);
        let Some(AfterClear::Notify(done)) = management.end_clear(numbers[1]) else {
            panic!("it was begun");
        };
        done.send(()).unwrap();
        assert!(second_told.try_recv().is_ok() && first_told.try_recv().is_err());
        assert!(management.end_clear(numbers[1]).is_none());
        assert_eq!(management.joining().count(), 0);
    }
}
