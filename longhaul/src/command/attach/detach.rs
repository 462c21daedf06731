//! Those who have asked an attachment to end.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::control::Request;
use crate::failure::{Failure, Outcome};

/// How long somebody who has unmounted may take to ask for the end.
const EXPECTED_WITHIN: Duration = Duration::from_secs(30);

/// Those who have asked for the end, and wait for what comes of it.
#[derive(Clone, Default)]
pub(super) struct Detach {
    state: Arc<Mutex<State>>,
    asked: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// When somebody has said that he is about to ask, and unmounts before.
    expected: Option<Instant>,
    waiting: Vec<Request>,
    /// Another process is to be asked.
    is_handed_over: bool,
}

impl State {
    fn is_asked(&self) -> bool {
        let is_expected = self.expected.is_some_and(|since| since.elapsed() < EXPECTED_WITHIN);
        is_expected || self.waiting.iter().any(|request| !request.is_left())
    }
}

impl Detach {
    /// Somebody unmounts what was made of the attachment, and asks then: it does not end before. False if another process is
    /// to be told.
    pub(super) fn expect(&self) -> bool {
        let mut state = self.state();
        state.expected = Some(Instant::now());
        !state.is_handed_over
    }

    /// Waits for those who have announced themselves, unless they do not come.
    pub(super) async fn await_expected(&self) {
        let is_expected = self.state().expected.is_some();
        if is_expected {
            let _ = timeout(EXPECTED_WITHIN, self.asked()).await;
        }
    }

    /// Returns when somebody has asked, to everyone who waits for it.
    pub(super) async fn asked(&self) {
        let mut asked = pin!(self.asked.notified());
        // From here on it is heard.
        asked.as_mut().enable();
        let is_asked = !self.state().waiting.is_empty();
        if !is_asked {
            asked.await;
        }
    }

    /// One that comes after the attachment was handed over gets no answer, and asks the next process.
    pub(super) fn ask(&self, request: Request) {
        let mut state = self.state();
        if !state.is_handed_over {
            state.waiting.push(request);
            self.asked.notify_waiters();
        }
    }

    /// From now on another process is to be asked; false if somebody has asked this one, or is about to.
    pub(super) fn hand_over(&self) -> bool {
        let mut state = self.state();
        state.is_handed_over = !state.is_asked();
        state.is_handed_over
    }

    /// Tells them.
    pub(super) fn answer(&self, outcome: &Outcome) {
        for request in self.state().waiting.drain(..) {
            request.answer(match outcome {
                Ok(()) => Ok("done".to_owned()),
                Err(why) => Err(Failure::new(why.on_one_line())),
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// The one that unmounts may ask before the last user of the file is seen to be gone.
    #[tokio::test]
    async fn question_that_one_has_heard_is_heard_by_others() {
        let detach = Detach::default();
        detach.expect();
        detach.ask(Request::detached("detach"));
        assert!(detach.asked().now_or_never().is_some());
        assert!(detach.await_expected().now_or_never().is_some());
    }

    /// Whoever unmounts gets the verdict of the process that he has told so.
    #[test]
    fn attachment_that_somebody_unmounts_is_not_handed_over() {
        let detach = Detach::default();
        assert!(detach.expect());
        assert!(!detach.hand_over());
        // He could not unmount it, or has been ended.
        detach.state().expected = Instant::now().checked_sub(EXPECTED_WITHIN);
        assert!(detach.hand_over());
        assert!(!detach.expect(), "its successor is to be asked");
    }
}
