//! How a unit is used, whatever the transport.

use std::path::PathBuf;
use std::time::Duration;

use super::device::Device;
use super::identity::Identity;
use super::writers::Writers;
use crate::stop::Stop;

/// How a unit is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Refuse writes.
    pub read_only: bool,
    /// Who else may write.
    pub writers: Writers,
    /// The state directory: attachments are noted there, to know those of processes that were killed, and their replay
    /// logs are looked for.
    pub state: Option<PathBuf>,
    /// The replay log that is to be written.
    pub replays: Option<ReplayedLog>,
    /// What was found there before: another volume is neither opened nor reserved.
    pub same_as: Option<Seen>,
    /// How long a login may take.
    pub login_within: Duration,
    /// How long an outage may last before requests fail; `None` for as long as it takes, zero for not
    /// at all.
    pub reconnect_for: Option<Duration>,
    /// The longest wait between two attempts to connect again.
    pub reconnect_every: Duration,
    /// What becomes of acknowledged writes when the disk is given up; they are dropped if `None`.
    pub replay_log: Option<ReplayLogOptions>,
    /// When it is called, what is being opened is let go.
    pub stop: Stop,
    /// Bytes of acknowledged writes that are kept until a flush, to be written again if the target loses
    /// them. At half of it a flush is made unasked.
    pub unflushed_max: usize,
    /// How long nothing may be heard of a unit before it is asked how it is.
    pub idle: Duration,
    /// For how long a command may not move, though the connection lives, before the session is given up.
    pub stall: Duration,
}

impl Default for Options {
    /// What suits a long link.
    fn default() -> Self {
        Self {
            read_only: false,
            writers: Writers::default(),
            state: None,
            replays: None,
            same_as: None,
            login_within: Duration::from_secs(30),
            reconnect_for: Some(Duration::from_secs(60)),
            // A server that is back is found within it, and one that is not is asked seldom.
            reconnect_every: Duration::from_secs(5),
            replay_log: None,
            stop: Stop::default(),
            // Half of it is more than any link in use holds in flight, so the flushes it brings stop nothing.
            unflushed_max: 64 << 20,
            idle: Duration::from_secs(10),
            stall: Duration::from_secs(60),
        }
    }
}

/// By what a volume is known when it is opened once more.
#[derive(Clone, Debug)]
pub struct Seen {
    pub(super) device: Device,
    pub(super) identity: Option<Identity>,
}

/// Where acknowledged writes go that a disk could not be given.
#[derive(Clone, Debug)]
pub struct ReplayLogOptions {
    /// The directory of the file.
    pub dir: PathBuf,
    /// What the user calls the volume.
    pub volume: String,
    /// Writes may have been acknowledged before the disk gets them: all of them are saved then, not only those that
    /// the target has answered.
    pub write_behind: bool,
}

/// A replay log that is to be written to its volume.
#[derive(Clone, Debug)]
pub struct ReplayedLog {
    /// The key of the attachment that it is from, if it had one.
    pub key: Option<u64>,
    /// Its absolute path.
    pub file: PathBuf,
}
