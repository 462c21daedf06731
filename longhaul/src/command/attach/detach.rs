//! Those who have asked an attachment to end.

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

    /// Returns when somebody asks.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    pub(super) fn ask(&self, request: Request) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        self.asked.notify_one();
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
