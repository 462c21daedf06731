//! The attachments of this machine, and what each says of itself.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use crate::chain::ChainStatus;
use crate::control::{self, AskError};
use crate::failure::Failure;
use crate::net::tcp_tuning;
use crate::printable::{Counted, Quoted as _, Shown as _};
use crate::progress::rate;
use crate::target::meter::Activity;

/// How long an attachment may take to say how it is.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How an attachment is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AttachStatus {
    /// The URI of the volume.
    pub(super) attachment: String,
    /// By which `mount` knows it.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// Where its NBD clients connect, or the file that it is.
    pub(super) socket: String,
    /// That file.
    #[serde(default)]
    pub(super) file: Option<PathBuf>,
    /// The block device made of that.
    #[serde(default)]
    pub(super) device: Option<PathBuf>,
    /// Where that is mounted.
    #[serde(default)]
    pub(super) mounted: Option<PathBuf>,
    /// The process.
    pub(super) pid: u32,
    /// NBD clients that are connected.
    pub(super) clients: usize,
    /// Nothing can be written to it.
    #[serde(default)]
    pub(super) read_only: bool,
    /// Why the installed program has not taken the mount over, if the one of before goes on for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<String>,
    /// The volume, and the connection to it.
    pub(super) volume: ChainStatus,
    /// What the kernel knows of the path to the server.
    #[serde(default)]
    pub(super) path: Option<PathStatus>,
    /// What programs have done with the volume since the process began.
    #[serde(default)]
    pub(super) activity: Activity,
}

/// How the path to a server is, by the first connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PathStatus {
    /// The smoothed round trip, in microseconds.
    pub(super) round_trip_us: u64,
    /// The least one of the last minutes.
    pub(super) round_trip_least_us: u64,
    /// The best rate of the last round trips, in bytes per second.
    pub(super) delivery_rate: u64,
    /// Segments that were sent.
    pub(super) segments: u64,
    /// Those that had to be sent again.
    pub(super) sent_again: u64,
    /// For how many seconds the server's machine has acknowledged nothing, although something was sent.
    #[serde(default)]
    pub(super) unheard: u64,
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
            unheard: info.unheard.as_secs(),
        }
    }
}

impl PathStatus {
    fn text(&self) -> String {
        let Self { segments, sent_again, unheard, .. } = self;
        let unheard = match unheard {
            0 | 1 => String::new(),
            seconds => format!("; NOTHING has come back for {seconds} s"),
        };
        let millis = |micros: u64| micros as f64 / 1e3;
        let (now, least) = (millis(self.round_trip_us), millis(self.round_trip_least_us));
        let rate = rate(self.delivery_rate, Duration::from_secs(1));
        format!(
            "link: round trip {now:.1} ms, at least {least:.1} ms; {rate} at best of late; {sent_again} of {segments} segments sent again{unheard}"
        )
    }
}

impl AttachStatus {
    /// Where it can be used.
    pub(super) fn place(&self) -> String {
        match (&self.mounted, &self.device) {
            (Some(place), Some(device)) => {
                format!("mounted at {} ({})", place.shown(), device.shown())
            }
            (_, Some(device)) => format!("the block device {}", device.shown()),
            _ => format!("attached at {}", self.socket),
        }
    }

    /// What `umount` knows it by.
    pub(super) fn short(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.attachment.clone())
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { attachment, pid, clients, volume, .. } = self;
        let (place, clients) = (self.place(), Counted(*clients, "client"));
        let ChainStatus { state, failure, replay_log, lost, journal, .. } = volume;
        let mut text = format!(
            "{attachment}\n  {place} by process {pid}, {clients}\n  \
             {state}"
        );
        // What could not be written is told below.
        if replay_log.is_none() && *lost == 0 {
            text += &format!("; {}", volume.pending());
        }
        if let Some(refused) = &self.refused {
            text += &format!("\n  by the program of before: {refused}");
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

/// Every attachment of this user that answers, and where.
pub(super) async fn attachments() -> Vec<(PathBuf, AttachStatus)> {
    look().await.answered
}

/// The attachments of this user.
pub(super) struct Found {
    /// Where each answers, and what.
    pub(super) answered: Vec<(PathBuf, AttachStatus)>,
    /// The sockets of those that do not answer: their processes may be stopped.
    pub(super) silent: Vec<PathBuf>,
}

impl Found {
    /// A failure to find one, which may be among those that do not answer.
    pub(super) fn lacks(&self, failure: Failure) -> Failure {
        let [first, others @ ..] = &*self.silent else { return failure };
        let others = if others.is_empty() { "" } else { " and others" };
        failure.because(format!("but {}{others} did not answer", first.shown())).hint(
            "its process may be stopped: the number in the name is its PID, and `kill -CONT PID` lets it go on",
        )
    }
}

/// Asks all of them at once, and no server: one that is stopped would be waited for.
pub(super) async fn look() -> Found {
    let sockets = control::attachments();
    let answers = join_all(sockets.iter().map(|path| control::ask(path, "status", PATIENCE))).await;
    let mut found = Found { answered: Vec::new(), silent: Vec::new() };
    for (path, answer) in sockets.into_iter().zip(answers) {
        match answer {
            Ok(answer) => {
                let status = serde_json::from_str(&answer).ok();
                found.answered.extend(status.map(|status| (path, status)));
            }
            Err(AskError::Silent) => found.silent.push(path),
            Err(_) => {}
        }
    }
    found
}
