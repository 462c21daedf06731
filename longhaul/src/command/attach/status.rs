//! What an attachment says of itself: on its control socket, and while it ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::attached::{AttachStatus, PathStatus};
use super::detach::Detach;
use super::succession::Succession;
use crate::block_devices::{devices_over, mounts_of};
use crate::chain::Observer;
use crate::control::{self, Control};
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::front::Clients;
use crate::printable::Counted;
use crate::target::meter::Meter;

/// How long the connection may take to say how the path is. One that is busy is not waited for.
const PATH_WITHIN: Duration = Duration::from_millis(500);

/// How often it is said what the end waits for.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// What the status of an attachment is made of.
#[derive(Clone)]
pub(super) struct StatusReporter {
    pub(super) uri: String,
    pub(super) name: Option<String>,
    pub(super) socket: String,
    pub(super) file: Option<PathBuf>,
    pub(super) clients: Clients,
    pub(super) read_only: bool,
    pub(super) refused: Option<String>,
    pub(super) volume: Observer,
    pub(super) meter: Arc<Meter>,
}

impl StatusReporter {
    /// The same with what has to be asked for.
    async fn full_status(&self) -> AttachStatus {
        let path = timeout(PATH_WITHIN, self.volume.path()).await.ok().flatten();
        AttachStatus { path: path.map(PathStatus::from), ..self.status() }
    }

    fn status(&self) -> AttachStatus {
        let device = self.file.as_deref().and_then(|file| devices_over(file).into_iter().next());
        let mounted = device.as_deref().and_then(|device| mounts_of(device).into_iter().next());
        AttachStatus {
            attachment: self.uri.clone(),
            name: self.name.clone(),
            file: self.file.clone(),
            device,
            mounted: mounted.map(|mount| mount.place),
            socket: self.socket.clone(),
            pid: std::process::id(),
            clients: self.clients.count(),
            read_only: self.read_only,
            refused: self.refused.clone(),
            volume: self.volume.status(),
            path: None,
            activity: self.meter.activity().summed_up(),
        }
    }

    /// Answers `longhaul status`. An attachment that cannot be asked is one all the same.
    pub(super) fn listen(&self, detach: Detach, succession: Succession) -> Option<JoinHandle<()>> {
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
                if request.verb == "detach" {
                    // Answered when it has ended.
                    detach.ask(request);
                    continue;
                }
                if request.verb == "hand-over" {
                    succession.ask(request);
                    continue;
                }
                let answer = match request.verb.as_str() {
                    "expect-detach" if detach.expect() => Ok("expected".to_owned()),
                    // Its successor is to be asked.
                    "expect-detach" => continue,
                    "status" => serde_json::to_string(&reporter.full_status().await)
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
                print_error(&format_args!(
                    "longhaul: ending: {attachment}: {}, {}; {}",
                    volume.pending(),
                    Counted(clients, "client"),
                    volume.state
                ));
            }
        })
    }
}

/// Takes the control socket away: nothing of this process does when it ends by handing its mount over.
pub(super) fn remove_control_socket() {
    if let Ok(path) = control_socket() {
        let _ = std::fs::remove_file(path);
    }
}

fn control_socket() -> Outcome<PathBuf> {
    let dir = control::runtime_dir().ok_or_else(|| {
        Failure::new("there is no directory for control sockets: set XDG_RUNTIME_DIR")
    })?;
    Ok(control::of_attachment(&dir, std::process::id()))
}
