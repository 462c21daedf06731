//! Those who have asked an attachment to end.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::control::Request;
use crate::failure::{Failure, Outcome};

/// How long somebody who has unmounted may take to ask for the end.
const EXPECTED_WITHIN: Duration = Duration::from_secs(30);

/// Those who have asked for the end, and wait for what comes of it.
#[derive(Clone, Default)]
pub(super) struct Detach {
    /// Somebody is about to ask, and unmounts before.
    expected: Arc<AtomicBool>,
    asked: Arc<Notify>,
    waiting: Arc<Mutex<Vec<Request>>>,
}

impl Detach {
    /// Somebody unmounts what was made of the attachment, and asks then: it does not end before.
    pub(super) fn expect(&self) {
        self.expected.store(true, Ordering::Relaxed);
    }

    /// Waits for those who have announced themselves, unless they do not come.
    pub(super) async fn await_expected(&self) {
        if self.expected.load(Ordering::Relaxed) {
            let _ = timeout(EXPECTED_WITHIN, self.asked()).await;
        }
    }

    /// Returns when somebody has asked, to everyone who waits for it.
    pub(super) async fn asked(&self) {
        let mut asked = pin!(self.asked.notified());
        // From here on it is heard.
        asked.as_mut().enable();
        if self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            asked.await;
        }
    }

    pub(super) fn ask(&self, request: Request) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        self.asked.notify_waiters();
    }

    /// Tells them.
    pub(super) fn answer(&self, outcome: &Outcome) {
        for request in self.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            request.answer(match outcome {
                Ok(()) => Ok("done".to_owned()),
                Err(why) => Err(Failure::new(why.on_one_line())),
            });
        }
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
}
