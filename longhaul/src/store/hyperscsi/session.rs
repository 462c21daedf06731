//! A session, as those hold it who use it: requests go to the task that drives it by a channel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use proto::hyperscsi::{Aead, Level, SubmitError};
use proto::scsi::command::Command;
use proto::scsi::transport::Transports;
use proto::scsi::{Residual, Status};
use tokio::sync::{Notify, mpsc, oneshot};

use super::Server;
use super::error::Loss;
use super::silence::Silence;
use crate::ciphers::Ciphers;
use crate::net::shared_level::SharedLevel;
use crate::store::scsi::{
    self, Announced, Completion, Executed, Lost, NoStatus, ResetAnswer, TransferLimits,
};
use crate::transports;

/// Requests on their way to the task. Behind them the machine has a queue of its own, so a full channel means that all
/// slots have long been taken.
const REQUESTS_MAX: usize = 256;

/// How a command ended at its unit.
#[derive(Debug)]
pub(super) struct Ended {
    /// STATUS.
    pub(super) status: Status,
    /// The data-in.
    pub(super) data: Bytes,
    /// The sense data.
    pub(super) sense: Bytes,
    /// How the transfer missed what was expected.
    pub(super) residual: Residual,
}

/// What the task that drives a session is asked for.
pub(super) enum Request {
    Execute(Command, Bytes, oneshot::Sender<Result<Ended, SubmitError>>),
    ResetUnit(oneshot::Sender<ResetAnswer>),
    AbortAll,
    /// Answered once what is under way has ended.
    Settle(oneshot::Sender<()>),
    /// Dropped when the session has ended.
    Disconnect(oneshot::Sender<()>),
}

/// A handle on a session. When the last one is dropped the session disconnects.
#[derive(Clone, Debug)]
pub struct Session {
    requests: mpsc::Sender<Request>,
    shared: Arc<Shared>,
    limits: TransferLimits,
    cipher: Option<Aead>,
}

/// What a session and the task that drives it have in common.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) lost: OnceLock<Arc<Loss>>,
    pub(super) announced: Announced,
    /// Ends it at once.
    pub(super) abandoned: Notify,
    /// How long nothing has come from the server.
    pub(super) silence: Silence,
    /// Somebody waits for the end. That is looked at when commands are that may have stalled.
    pub(super) hurried: AtomicBool,
    /// How the packets of the volume are protected.
    pub(super) level: SharedLevel,
}

impl Session {
    /// For how long nothing has come from the server that it should have said.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.shared.silence.lasted()
    }

    /// How the packets of its volume are protected.
    pub(super) fn level(&self) -> Level {
        self.shared.level.get()
    }

    /// The cipher of its packets.
    pub(super) fn cipher(&self) -> Option<&'static str> {
        self.cipher.map(Ciphers::name_of)
    }

    /// A handle, and where its requests come out.
    pub(super) fn new(
        shared: &Arc<Shared>,
        limits: TransferLimits,
        cipher: Option<Aead>,
    ) -> (Self, mpsc::Receiver<Request>) {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        (Self { requests, shared: Arc::clone(shared), limits, cipher }, receiver)
    }

    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Lost> {
        let (done, answer) = oneshot::channel();
        if self.requests.send(request(done)).await.is_ok()
            && let Ok(answer) = answer.await
        {
            return Ok(answer);
        }
        Err(self.lost())
    }

    /// The driver says why before it lets go of anything.
    fn lost(&self) -> Lost {
        let why = self.shared.lost.get().map_or_else(|| Arc::new(Loss::Broken), Arc::clone);
        Lost {
            is_logged_out: matches!(*why, Loss::Disconnected),
            is_stalled: matches!(*why, Loss::Stalled { .. }),
            wait: Duration::ZERO,
            why,
        }
    }
}

/// Of what we abort nobody asks any more how it has ended. What else has ended with TASK ABORTED another one has ended at the
/// unit, and is sent again like what finds the unit busy.
fn executed(ended: Result<Ended, SubmitError>) -> Executed {
    match ended {
        Err(refused) => Err(NoStatus::Failed(Arc::new(refused))),
        Ok(Ended { status, data, sense, residual }) => {
            Ok(Completion { status, data, sense, residual })
        }
    }
}

impl scsi::Session for Session {
    const TRANSPORTS: Transports = transports::ALL;

    async fn execute(
        &self,
        scsi::Task { command, data, .. }: scsi::Task,
    ) -> Result<Executed, Lost> {
        Ok(executed(self.ask(|done| Request::Execute(command, data, done)).await?))
    }

    async fn queue(
        &self,
        scsi::Task { command, data, .. }: scsi::Task,
    ) -> Result<scsi::Answer, Lost> {
        let (done, answer) = oneshot::channel();
        let sent = self.requests.send(Request::Execute(command, data, done)).await;
        sent.map_err(|_| self.lost())?;
        let session = self.clone();
        Ok(Box::pin(async move { answer.await.map(executed).map_err(|_| session.lost()) }))
    }

    /// Messages may overtake one another.
    fn keeps_order(&self) -> bool {
        false
    }

    async fn reset_unit(&self, _lun: u64) -> Result<ResetAnswer, Lost> {
        self.ask(Request::ResetUnit).await
    }

    async fn abort_all(&self) -> Result<(), Lost> {
        self.requests.send(Request::AbortAll).await.map_err(|_| self.lost())
    }

    fn announced(&self) -> &Announced {
        &self.shared.announced
    }

    /// Every reply is a message of its own, and may overtake others.
    fn has_several_connections(&self) -> bool {
        true
    }

    async fn settle(&self) -> Result<(), Lost> {
        self.ask(Request::Settle).await
    }

    async fn ended(&self) -> Lost {
        self.requests.closed().await;
        self.lost()
    }

    async fn close(&self) {
        // The answer never comes: that the asker is dropped says that the session has ended.
        let _ = self.ask(Request::Disconnect).await;
    }

    fn abandon(&self) {
        self.shared.abandoned.notify_one();
    }

    fn hurry(&self) {
        self.shared.hurried.store(true, Ordering::Relaxed);
    }

    fn limits(&self) -> TransferLimits {
        self.limits
    }
}
/// Warns of a volume that is not protected, or is less than may be thought (`is_less`).
pub(super) fn warn_of_level(server: &Server, volume: &str, level: Level, is_less: bool) {
    match level {
        Level::None => {
            tracing::warn!(
                %server,
                volume,
                "not protected: whoever is on the path reads and changes its data"
            );
        }
        Level::Integrity if is_less => {
            tracing::warn!(
                %server,
                volume,
                "the server gives integrity: data can be read on the path, not changed"
            );
        }
        Level::Integrity | Level::Encrypt => {}
    }
}
