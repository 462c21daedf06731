//! Those who have asked that another process takes an attachment over.

use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};

use super::front::Front;
use super::kept::HANDED_OVER;
use crate::control::Request;
use crate::failure::{Failure, Outcome};

/// How many may wait.
const WAITING_MAX: usize = 16;

/// Both ends of what they ask.
#[derive(Clone)]
pub(super) struct Succession {
    asked: mpsc::Sender<Request>,
    requests: Arc<Mutex<mpsc::Receiver<Request>>>,
}

impl Default for Succession {
    fn default() -> Self {
        let (asked, requests) = mpsc::channel(WAITING_MAX);
        Self { asked, requests: Arc::new(Mutex::new(requests)) }
    }
}

impl Succession {
    /// Somebody asks.
    pub(super) fn ask(&self, request: Request) {
        if let Err(why) = self.asked.try_send(request) {
            let (mpsc::error::TrySendError::Full(request)
            | mpsc::error::TrySendError::Closed(request)) = why;
            request.answer(Err(Failure::new("others ask for the same")));
        }
    }

    /// Hands the mount over to whoever asks, by ending the process as if it were killed: nothing is closed, so that the
    /// reservation stands until the next process has it. `before_end` runs at the last moment. A mount that cannot be handed
    /// over is served as before.
    pub(super) async fn serve(
        &self,
        front: &Front,
        refusal: impl Fn() -> Option<&'static str>,
        before_end: impl Fn(),
    ) {
        let mut requests = self.requests.lock().await;
        while let Some(request) = requests.recv().await {
            if let Some(why) = refusal() {
                request.answer(Err(
                    Failure::new("no other process can take this attachment over").because(why)
                ));
                continue;
            }
            match hand_over(front).await {
                Err(why) => request.answer(Err(why)),
                Ok(()) => {
                    before_end();
                    request.answer(Ok("handed over".to_owned()));
                    std::process::exit(HANDED_OVER.into());
                }
            }
        }
    }
}

async fn hand_over(front: &Front) -> Outcome {
    front.hand_over().await.map_err(|why| {
        Failure::new("what was acknowledged could not be flushed: the process goes on as it is")
            .because(why)
    })
}
