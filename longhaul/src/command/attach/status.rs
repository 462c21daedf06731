//! What an attachment says of itself: on its control socket, and while it ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::detach::Detach;
use super::succession::Succession;
use crate::block_devices::{devices_over, mounts_of};
use crate::chain::{ChainStatus, Observer};
use crate::control::{self, Control};
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::front::Clients;
use crate::net::tcp_tuning;
use crate::printable::{Quoted as _, Shown as _};
use crate::progress::rate;
use crate::size::Size;
use crate::target::meter::{Activity, Meter};

/// How long the connection may take to say how the path is. One that is busy is not waited for.
const PATH_WITHIN: Duration = Duration::from_millis(500);

/// How often it is said what the end waits for.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// How an attachment is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachStatus {
    /// The URI of the volume.
    pub attachment: String,
    /// By which `mount` knows it.
    #[serde(default)]
    pub name: Option<String>,
    /// Where its NBD clients connect, or the file that it is.
    pub socket: String,
    /// That file.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// The block device made of that.
    #[serde(default)]
    pub device: Option<PathBuf>,
    /// Where that is mounted.
    #[serde(default)]
    pub mounted: Option<PathBuf>,
    /// The process.
    pub pid: u32,
    /// NBD clients that are connected.
    pub clients: usize,
    /// The volume, and the connection to it.
    pub volume: ChainStatus,
    /// What the kernel knows of the path to the server.
    #[serde(default)]
    pub path: Option<PathStatus>,
    /// What programs have done with the volume since the process began.
    #[serde(default)]
    pub activity: Activity,
}

/// How the path to a server is, by the first connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// The smoothed round trip, in microseconds.
    pub round_trip_us: u64,
    /// The least one of the last minutes.
    pub round_trip_least_us: u64,
    /// The best rate of the last round trips, in bytes per second.
    pub delivery_rate: u64,
    /// Segments that were sent.
    pub segments: u64,
    /// Those that had to be sent again.
    pub sent_again: u64,
}

impl From<tcp_tuning::Info> for PathStatus {
    fn from(info: tcp_tuning::Info) -> Self {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self {
            round_trip_us: micros(info.round_trip),
            round_trip_least_us: micros(info.round_trip_least),
            delivery_rate: info.delivery_rate,
            segments: info.segments,
            sent_again: info.lost,
        }
    }
}

impl PathStatus {
    fn text(&self) -> String {
        let Self { segments, sent_again, .. } = self;
        let millis = |micros: u64| micros as f64 / 1e3;
        let (now, least) = (millis(self.round_trip_us), millis(self.round_trip_least_us));
        let rate = rate(self.delivery_rate, Duration::from_secs(1));
        format!(
            "link: round trip {now:.1} ms, at least {least:.1} ms; {rate} at best of late; {sent_again} of {segments} segments sent again"
        )
    }
}

impl AttachStatus {
    /// Where it can be used.
    #[must_use]
    pub fn place(&self) -> String {
        match (&self.mounted, &self.device) {
            (Some(place), Some(device)) => {
                format!("mounted at {} ({})", place.shown(), device.shown())
            }
            (_, Some(device)) => format!("the block device {}", device.shown()),
            _ => format!("attached at {}", self.socket),
        }
    }

    /// What `umount` knows it by.
    #[must_use]
    pub fn short(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.attachment.clone())
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { attachment, pid, clients, volume, .. } = self;
        let place = self.place();
        let ChainStatus { state, unflushed, failure, replay_log, lost, journal, .. } = volume;
        let mut text = format!(
            "{attachment}\n  {place} by process {pid}, {clients} clients\n  \
             {state}"
        );
        // What could not be written is told below.
        if replay_log.is_none() && *lost == 0 {
            text += &format!(", {} bytes not flushed", Size(*unflushed));
        }
        if let Some(path) = &self.path {
            text += &format!("\n  {}", path.text());
        }
        if let Some(journal) = journal {
            text += &format!("\n  {}", journal.text());
        }
        if let Some(failure) = failure {
            text += &format!("\n  FAILED: {failure}");
        }
        if let Some(path) = replay_log {
            let (path, quoted) = (path.shown(), path.quoted());
            text +=
                &format!("\n  what could not be written is in {path}: `longhaul replay {quoted}`");
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
    pub(super) name: Option<String>,
    pub(super) socket: String,
    pub(super) file: Option<PathBuf>,
    pub(super) clients: Clients,
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
                    "expect-detach" => {
                        detach.expect();
                        Ok("expected".to_owned())
                    }
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
                let bytes = Size(volume.unflushed);
                print_error(&format_args!(
                    "longhaul: ending: {attachment}: {bytes} bytes are not flushed yet, {clients} clients; {}",
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
    Ok(control::of_attachment(&dir))
}
