//! What administrators elsewhere ask for, on its way to the server, which carries out one request at a time.

use std::sync::Arc;

use proto::client::ClientId;
use tokio::sync::mpsc;

use crate::control::Request;
use crate::printable::OneLine;
use crate::target::lun::{Administrator, Waiting};

/// How many requests may wait: who asks for more waits itself.
const WAITING_MAX: usize = 16;

/// The requests of administrators.
pub(super) struct Administered(mpsc::Receiver<Request>);

impl Administered {
    /// The next that somebody still waits for. Whoever stops waiting for it loses none.
    pub(super) async fn next(&mut self) -> Option<Request> {
        loop {
            let request = self.0.recv().await?;
            if !request.is_left() {
                return Some(request);
            }
        }
    }
}

/// Both ends.
pub(super) fn channel() -> (Arc<dyn Administrator>, Administered) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Arc::new(Requests(sender)), Administered(receiver))
}

/// By which sessions hand over requests.
struct Requests(mpsc::Sender<Request>);

impl Administrator for Requests {
    fn carry_out(&self, client: &ClientId, request: String) -> Waiting<Result<String, String>> {
        let (requests, client) = (self.0.clone(), client.clone());
        Box::pin(async move {
            tracing::info!(%client, request = %OneLine(&request), "an administrator asks");
            let ended = || Err("the server ends".to_owned());
            let (request, answered) = Request::in_session(client, request);
            match requests.send(request).await {
                Ok(()) => answered.await.unwrap_or_else(|_| ended()),
                Err(_) => ended(),
            }
        })
    }
}
