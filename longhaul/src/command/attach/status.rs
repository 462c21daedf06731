//! What an attachment says of itself: on its control socket, and while it ends.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::chain::{ChainStatus, Observer};
use crate::control::{self, Control};
use crate::failure::{Failure, OrFail, Outcome, complain};
use crate::front::nbd::Clients;
use crate::printable::Shown as _;
use crate::size::Size;

/// How often it is said what the end waits for.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// How an attachment is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachStatus {
    /// The URI of the volume.
    pub attachment: String,
    /// Where its NBD clients connect.
    pub socket: String,
    /// The process.
    pub pid: u32,
    /// NBD clients that are connected.
    pub clients: usize,
    /// The volume, and the connection to it.
    pub volume: ChainStatus,
}

impl AttachStatus {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { attachment, socket, pid, clients, volume } = self;
        let ChainStatus { state, unflushed, failure, replay_log, lost } = volume;
        let mut text = format!(
            "{attachment}\n  attached at {socket} by process {pid}, {clients} clients\n  \
             {state}"
        );
        // What could not be written is told below.
        if replay_log.is_none() && *lost == 0 {
            text += &format!(", {} bytes not flushed", Size(*unflushed));
        }
        if let Some(failure) = failure {
            text += &format!("\n  FAILED: {failure}");
        }
        if let Some(path) = replay_log {
            let path = path.shown();
            text +=
                &format!("\n  what could not be written is in {path}: `longhaul replay {path}`");
        }
        if *lost > 0 {
            text += &format!(
                "\n  {lost} writes that were acknowledged or under way are LOST: the replay log could not hold them"
            );
        }
        text
    }
}

/// What the status of an attachment is made of.
#[derive(Clone)]
pub(super) struct StatusReporter {
    pub(super) uri: String,
    pub(super) socket: String,
    pub(super) clients: Clients,
    pub(super) volume: Observer,
}

impl StatusReporter {
    fn status(&self) -> AttachStatus {
        AttachStatus {
            attachment: self.uri.clone(),
            socket: self.socket.clone(),
            pid: std::process::id(),
            clients: self.clients.count(),
            volume: self.volume.status(),
        }
    }

    /// Answers `longhaul status`. An attachment that cannot be asked is one all the same.
    pub(super) fn listen(&self) -> Option<JoinHandle<()>> {
        let mut control = match control_socket().and_then(|path| Control::bind(&path)) {
            Ok(control) => control,
            Err(why) => {
                tracing::warn!(%why, "attachment: `longhaul status` will not find it");
                return None;
            }
        };
        let reporter = self.clone();
        Some(tokio::spawn(async move {
            loop {
                let request = control.request().await;
                let answer = match request.verb.as_str() {
                    "status" => serde_json::to_string(&reporter.status())
                        .or_fail(|| "cannot tell the status".to_owned()),
                    other => Err(Failure::new(format!("an attachment does not know `{other}`"))),
                };
                request.answer(answer);
            }
        }))
    }

    /// Says what the end waits for, as long as it does.
    pub(super) fn report_progress(&self) -> JoinHandle<()> {
        let reporter = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PROGRESS_EVERY).await;
                let AttachStatus { attachment, clients, volume, .. } = reporter.status();
                let bytes = Size(volume.unflushed);
                complain(&format_args!(
                    "longhaul: ending: {attachment}: {bytes} bytes are not flushed yet, {clients} clients; {}",
                    volume.state
                ));
            }
        })
    }
}

fn control_socket() -> Outcome<PathBuf> {
    let dir = control::runtime_dir().ok_or_else(|| {
        Failure::new("there is no directory for control sockets: set XDG_RUNTIME_DIR")
    })?;
    Ok(control::of_attachment(&dir))
}
