//! What stores and layers can do beyond the verbs of [`Volume`].
//!
//! A store gives what it can; each layer hands on what still holds above it. So whoever has the top of a chain knows
//! what it can do, and neither names a store nor asks for one.

mod scsi_disk;

use std::error::Error;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use proto::scsi::writer::Registrants;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use volume::{CryptoErase, Span, Volume};

pub use self::scsi_disk::Described;
use super::library::Library;
use super::open_error::OpenError;
use super::scsi::{Identity, MarkCheck, Predecessor, Seen, State, Unguarded, Watched};
use crate::attachments::UnitAddress;
use crate::failure::Failure;
use crate::file_space::FileSpace;
use crate::net::tcp_tuning;
use crate::recorded_disc::RecordedDisc;
use crate::replay_log::{Header, Saved};
use crate::scsi_device::ScsiDevice;

/// Work of an ability.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A store, or a layer over one, that is open.
pub struct Opened {
    /// The volume.
    pub volume: Arc<dyn Volume>,
    /// What works for it beside its callers, and ends before what is beneath is closed.
    pub worker: Option<Box<dyn Worker>>,
    /// What it can do beyond the verbs.
    pub abilities: Abilities,
}

impl Opened {
    /// A volume that can do nothing else.
    #[must_use]
    pub fn plain(volume: Arc<dyn Volume>) -> Self {
        Self { volume, worker: None, abilities: Abilities::default() }
    }

    /// `volume`, which is a layer over this one: it hands on what this one can do. Layers have the size that they were
    /// opened with.
    #[must_use]
    pub fn layer(&self, volume: Arc<dyn Volume>) -> Self {
        let abilities = Abilities { grow: None, ..self.abilities.clone() };
        Self { volume, worker: None, abilities }
    }
}

/// What works for a layer beside its callers.
pub trait Worker: Send + Sync {
    /// What tells how it is, without keeping it.
    fn status(&self) -> Arc<dyn WorkerStatus>;

    /// Waits until everything that was accepted has been sent, has failed, or is kept elsewhere. Nobody else may hold the volume
    /// any more. What is kept, and the volume lacks, is told.
    fn close(self: Box<Self>) -> BoxFuture<'static, Option<Failure>>;
}

/// How a worker is.
pub trait WorkerStatus: Send + Sync {
    /// Bytes that were accepted and are not on the volume beneath.
    fn pending(&self) -> u64;

    /// The first failure that nobody waited for: what failed, where and why.
    fn failure(&self) -> Option<String>;

    /// What people should know of what it works for, if all is not as it should be.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Has what it keeps sent and noted as sent without delay, while nothing is asked of it; whether it is, so that another
    /// process could open the volume as if nothing had been kept.
    fn settle(&self) -> bool {
        self.pending() == 0
    }

    /// How the journal is that it works for, if it does.
    fn journal(&self) -> Option<JournalStatus> {
        None
    }
}

/// How a journal is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStatus {
    /// Its file.
    pub path: PathBuf,
    /// For people.
    pub state: String,
    /// Bytes of it that are in use.
    pub used: u64,
    /// Bytes that it has room for.
    pub size: u64,
    /// Changes that the volume may lack.
    pub unsent: u64,
    /// How long it has lacked the oldest of them, in seconds.
    pub oldest: Option<u64>,
    /// What failed first.
    pub failure: Option<String>,
}

/// What is possible beyond the verbs, each if it is there.
#[derive(Clone, Default)]
pub struct Abilities {
    /// It can become larger.
    pub grow: Option<Arc<dyn Grow>>,
    /// A network lies between, and this knows of the other end and of the way there.
    pub probe: Option<Arc<dyn Probe>>,
    /// It has an end that is more than to be dropped.
    pub close: Option<Arc<dyn Close>>,
    /// It is a file, and takes space of a file system.
    pub space: Option<Arc<dyn FileSpace>>,
    /// It says who else may write.
    pub writer: Option<Arc<dyn OneWriter>>,
    /// It holds a token that names its writer.
    pub token: Option<Arc<dyn Token>>,
    /// Its key can be destroyed.
    pub erase: Option<Arc<dyn CryptoErase>>,
    /// It is a media changer, with these cartridges.
    pub library: Option<Arc<Library>>,
    /// It is a device that is passed through.
    pub device: Option<Arc<dyn ScsiDevice>>,
    /// It is made of several, and a network lies between here and some of them.
    pub is_partly_remote: bool,
    /// It is a tape that is written once.
    pub is_write_once: bool,
    /// It is a disc that can be written, on which this has been recorded.
    pub recorded: Option<RecordedDisc>,
}

impl Abilities {
    /// What they are called, for people. Who only reads keeps no other writer away.
    #[must_use]
    pub fn names(&self, read_only: bool) -> Vec<&'static str> {
        let named = [
            ("grow", self.grow.is_some()),
            ("probe", self.probe.is_some()),
            ("close", self.close.is_some()),
            ("reserve", self.writer.is_some() && !read_only),
            ("name its writer", self.token.is_some()),
            ("erase", self.erase.is_some()),
        ];
        named.into_iter().filter_map(|(name, is_there)| is_there.then_some(name)).collect()
    }
}

/// A store that can become larger.
pub trait Grow: Send + Sync {
    /// Makes the store as large as it is now, or as `asked`; `None` if it is as it was. Nobody has been told yet.
    fn prepare(&self, asked: Option<u64>) -> BoxFuture<'_, Result<Option<Growth>, OpenError>>;
}

/// A store as it is when it has grown.
pub struct Growth {
    /// What takes its place.
    pub grown: Opened,
    /// Makes the store as long again as it was.
    pub undo: Box<dyn FnOnce() -> io::Result<()> + Send>,
}

/// A store behind a network.
pub trait Probe: Send + Sync {
    /// What is known of the target and the connection to it.
    fn probe(&self) -> BoxFuture<'_, Result<TargetInfo, Box<dyn Error + Send + Sync>>>;

    /// What the unit said of itself when it was connected: nothing is asked of it.
    fn inquiry(&self) -> UnitInquiry;

    /// What the kernel knows of the way there.
    fn path(&self) -> BoxFuture<'_, Option<tcp_tuning::Info>>;

    /// The other who has reserved it to write to it, if the target tells.
    fn writer(&self) -> BoxFuture<'_, Option<Registrants>>;

    /// The longest write that takes one round trip.
    fn unsolicited(&self) -> u64;

    /// How the connection is.
    fn state(&self) -> State;

    /// For how long nothing has come by the connection that there is, though something should have.
    fn silence(&self) -> Option<Duration> {
        None
    }

    /// Why there is no connection, or why the last one was lost.
    fn reason(&self) -> Option<String>;

    /// The bytes by which it is larger than is offered: it has grown.
    fn not_offered(&self) -> u64;

    /// By what it is known when it is opened once more.
    fn seen(&self) -> Seen;

    /// How this machine notes it.
    fn place(&self) -> UnitAddress;

    /// The directory of such notes.
    fn state_dir(&self) -> Option<PathBuf>;

    /// Whether a replay log belongs to it.
    fn is_of(&self, header: &Header) -> bool;

    /// From now on each write comes in a buffer that holds little else: what is kept of it needs no copy.
    fn expect_own_buffers(&self);
}

/// What a logical unit has said of itself (SPC-4, 6.6 and 7.8.15).
#[derive(Clone, Debug, Default)]
pub struct UnitInquiry {
    /// VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION.
    pub product: String,
    /// The serial number, if it has one.
    pub serial: Option<String>,
}

/// What is known of a target and its logical unit.
#[derive(Clone, Debug)]
pub struct TargetInfo {
    /// What the transport says of itself.
    pub transport: TransportInfo,
    /// Bytes of a write that are sent before the target asks for them.
    pub unsolicited: u64,
    /// The way there and back.
    pub round_trip: Duration,
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: u8,
    /// VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION.
    pub product: String,
    /// PRODUCT REVISION LEVEL.
    pub revision: String,
    /// The serial number, if it has one.
    pub serial: Option<String>,
    /// What tells it from a volume that was given its serial number, where it shows that.
    pub volume: Option<String>,
    /// The LUKS UUID that it must have, where that is known.
    pub luks_uuid: Option<String>,
}

/// What a transport says of a session, in its own terms.
#[derive(Clone, Debug, Default)]
pub struct TransportInfo {
    /// For scripts.
    pub values: Map<String, Value>,
    /// For people: what it is, and the lines that say so.
    pub text: Vec<(&'static str, Vec<String>)>,
}

/// A store whose end, or loss, has to be told.
pub trait Close: Send + Sync {
    /// Why its flushes fail until it is opened again, if it has lost what was written.
    fn loss(&self) -> Option<String> {
        None
    }

    /// Why what is written is not where it is looked for, if it is not.
    fn misplaced(&self) -> Option<String> {
        None
    }

    /// Tells the log, once, should its file be removed or moved.
    fn watch_placement(&self) {}

    /// What no other image has, if it is one of a cluster.
    fn image(&self) -> Option<String> {
        None
    }

    /// What the system knew of its file when nobody else could write to it any more, and nothing was done to it yet.
    fn found_file(&self) -> Option<Metadata> {
        None
    }

    /// What the system knows of its file, once everything is stable.
    fn stable_file(&self) -> BoxFuture<'_, Option<Metadata>> {
        Box::pin(async { None })
    }

    /// An outage is waited for as long as this from now on, or for ever.
    fn set_outage_limit(&self, _limit: Option<Duration>) {}

    /// An outage is waited for only so long from now on, because the program is to end.
    fn leave(&self, _grace: Duration) {}

    /// The replay log that was to be written to it is there: its reservation need not outlast it.
    fn log_written(&self) {}

    /// Whether it is given up, so that nothing is carried out any more.
    fn is_over(&self) -> bool {
        false
    }

    /// Whether nothing that was acknowledged is missing on it, as far as that was watched.
    fn has_flushed_all(&self) -> bool {
        true
    }

    /// Bytes that were acknowledged and are not durable.
    fn unflushed(&self) -> u64 {
        0
    }

    /// What has become of acknowledged writes that it could not be given; `None` if there are none.
    fn saved(&self) -> Option<Saved> {
        None
    }

    /// Lets go of it without a flush.
    fn let_go(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Makes durable what is counted as unflushed although a flush has succeeded: what was written as durable.
    fn flush_rest(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Ends it after the last flush. Tells what is in a replay log.
    fn close(&self) -> BoxFuture<'_, Option<Saved>> {
        Box::pin(async { None })
    }
}

/// A store that others may write to.
pub trait OneWriter: Send + Sync {
    /// What a writer has to claim, if nothing else keeps others away.
    fn unguarded(&self) -> Option<Unguarded>;

    /// It holds the encrypted volume with this LUKS UUID: another that answers in its place is not written to. Says
    /// whether it still is that one.
    fn identify(&self, identity: Identity) -> BoxFuture<'_, volume::Result<bool>>;

    /// What is written to this span is the header of an encrypted volume that is open: it goes to no replay log.
    fn keep_out_of_log(&self, span: Span);

    /// Somebody wants to know once some places have been written to.
    fn watch(&self, watched: Watched);

    /// It is written to only as long as the bytes of `span` are ours.
    fn mark(&self, span: Span, is_ours: MarkCheck);

    /// That holds no longer.
    fn unmark(&self);

    /// The key by which it is reserved, if the target keeps others away.
    fn reserved(&self) -> Option<u64>;

    /// It stays reserved when it is let go of.
    fn keep_reserved(&self);

    /// What the next process of the same attachment has to know of that.
    fn for_successor(&self) -> Option<Predecessor>;

    /// From now on it may lack what is in the journal at `path`: it stays reserved until that is sent, and no other attachment of this machine
    /// goes on without it.
    fn guard_journal(&self, path: &Path) -> io::Result<()>;

    /// It has all of that journal.
    fn journal_sent(&self, path: &Path) -> io::Result<()>;

    /// Whether no write is under way, once those that are have ended.
    fn is_quiet(&self) -> BoxFuture<'_, bool>;
}

/// A volume with a token in it that names its writer, where the store keeps no others away.
pub trait Token: Send + Sync {
    /// Takes the token out of the volume, unless writes may still be under way, or notes in it that some are in a replay
    /// log.
    fn give_back(&self) -> BoxFuture<'_, ()>;
}
