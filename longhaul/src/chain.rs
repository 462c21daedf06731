//! The chains that URIs stand for: a store, and a list of layers over it.

mod administered;
mod checkpoint;
mod created_file;
mod crypt;
mod enrolment;
mod identity;
mod journal;
mod layer;
mod layers;
mod limited_reads;
mod logs;
mod memory;
mod opening;
mod server_state;
mod status;
mod store;
mod writer;

use std::fs::Metadata;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use proto::identity::PublicKey;
use proto::iscsi::chap::{Account, Algorithm};
use proto::iscsi::name::IscsiName;
use proto::scsi::elements::Layout;
use volume::layer::pipeline::Settings;
use volume::{CryptoErase, Shape, Volume};

use crate::config::BlankDisc;
use crate::credentials;
use crate::explain::{explain, explain_connect};
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::file_space::FileSpace;
use crate::luks;
use crate::net::tcp_tuning;
use crate::printable::{Quoted as _, Shown as _};
use crate::reconnect_limit::ReconnectLimit;
use crate::recorded_disc::RecordedDisc;
use crate::replay_log::Saved;
use crate::scsi_device::ScsiDevice;
use crate::sealing::Seal;
use crate::size::Size;
use crate::stop::Stop;
use crate::store::abilities::{self, Abilities, Opened, TargetInfo, Token, Worker};
use crate::store::iscsi::{Connections, Predecessor, ReplayedLog, Writers};
use crate::store::library::Library;
use crate::store::{hyperscsi, iscsi};
use crate::trace::Trace;
use crate::uri::{Host, HyperScsiServer, Uri};
pub use administered::{Administered, administer};
use created_file::CreatedFile;
use crypt::CRYPT;
pub use enrolment::{Enrolment, enrol};
pub use journal::{JournalOptions, JournalSource};
pub use layer::LayerInfo;
use layer::OpenContext;
use layers::LAYERS;
pub(crate) use memory::{memory_needed, memory_of_machine};
pub use opening::open;
pub(crate) use server_state::{ServerState, server_state};
pub use status::{ChainStatus, Observer};
use store::Store;
pub(crate) use store::changer;
pub use store::compound::mirror;
pub(crate) use store::tape::{check as check_tape, make_file_write_once as make_tape_write_once};
pub use store::unit::{UnitOptions, open_unit};

/// The block size of what has none of its own.
pub(crate) const BLOCK_SIZE: u32 = 512;

/// How long a program that has been told to end waits for a connection, to flush what it holds.
const GRACE: Duration = Duration::from_secs(10);

/// How long the header of a volume may take to come, over any link that is of use.
pub(crate) const SEEN_WITHIN: Duration = Duration::from_secs(120);

/// How a chain is opened.
#[derive(Debug, Default)]
pub struct OpenOptions {
    /// The size of a file that does not exist yet; one that exists must have it.
    pub size: Option<Size>,
    /// A file that does not exist is not made.
    pub existing_only: bool,
    /// It is only looked at, as it would be used: nothing is written to it, though it may be open to be written.
    pub inspect_only: bool,
    /// An optical drive may have no disc.
    pub may_be_empty: bool,
    /// A tape is written record by record. Without this it is only read, as the file that it is.
    pub by_records: bool,
    /// It is a tape that is written once; a blank one is made such a tape.
    pub write_once: bool,
    /// A disc that is missing is made, a blank one of this type.
    pub blank: Option<BlankDisc>,
    /// Refuse writes.
    pub read_only: bool,
    /// A file or device of this machine is used past the page cache.
    pub direct: bool,
    /// The unit of requests, in bytes; the store's own if `None`.
    pub block_size: Option<u32>,
    /// A file whose end is no whole block is read as if it went on with zeroes; only for reading.
    pub pad: bool,
    /// How to log in, where that is needed.
    pub login: Login,
    /// The path at which its file is made, instead of that in its URI. What is there already is not touched.
    pub make_at: Option<PathBuf>,
    /// What of it is wanted, should it be encrypted.
    pub contents: Contents,
    /// Keep the link to it full, if it is behind a network.
    pub pipeline: Option<Settings>,
    /// How long a lost connection is waited for.
    pub reconnect_limit: ReconnectLimit,
    /// The directory for what was acknowledged and a volume behind a network could not be given any more; it is
    /// dropped if `None`.
    pub replay_log: Option<PathBuf>,
    /// Where attachments are noted, and replay logs looked for, if the user has no state directory.
    pub state: Option<PathBuf>,
    /// Who else may write to a unit of a target.
    pub writers: Writers,
    /// The replay log that is to be written to it.
    pub replays: Option<ReplayedLog>,
    /// What keeps its changes until the volume has them.
    pub journal: Option<JournalOptions>,
    /// Where its requests are recorded, layer by layer.
    pub trace: Option<Arc<Trace>>,
    /// The elements of a media changer.
    pub elements: Option<Layout>,
    /// A device may be passed through.
    pub passes_through: bool,
    /// Another gateway has it: only what it is like is looked at.
    pub standby: bool,
    /// What it is like then, if that is known: then its file is not looked at.
    pub known_shape: Option<Shape>,
    /// The connection by which images of a Ceph cluster are opened; each has its own if `None`.
    pub ceph: Option<Arc<host::rbd::Client>>,
    /// What an earlier chain of the same URI has found.
    pub same_as: Option<iscsi::Seen>,
    /// When it is called before the chain is open, that fails, and lets go of what there is.
    pub stop: Stop,
}

/// Who this machine is to a target.
#[derive(Clone, Debug)]
pub struct Login {
    /// Its name; one made from the host name if `None`.
    pub initiator: Option<IscsiName>,
    /// How it proves it.
    pub account: Option<Account>,
    /// The CHAP algorithms that may be used, best first.
    pub algorithms: Vec<Algorithm>,
    /// How sessions are sealed, where they are.
    pub seal: Seal,
    /// How many connections they have.
    pub connections: Connections,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            initiator: None,
            account: None,
            algorithms: credentials::algorithms(false),
            seal: Seal::default(),
            connections: Connections::default(),
        }
    }
}

/// What of a volume is wanted.
#[derive(Clone, Debug, Default)]
pub enum Contents {
    /// What its store holds, whatever that is: for those who look after it themselves.
    #[default]
    Unseen,
    /// What its store holds. The header of an encrypted volume is not written over, unless that is allowed.
    Raw {
        /// It is.
        overwrite: bool,
    },
    /// Of an encrypted volume the plain text; of another one what it holds.
    Plain(Unlock),
}

/// How an encrypted volume is opened.
#[derive(Clone, Debug)]
pub struct Unlock {
    /// What opens it.
    pub key: luks::Key,
    /// What else may be chosen.
    pub with: luks::Options,
    /// Keep what it takes to destroy its key.
    pub erasable: bool,
    /// Refuse a volume that is not encrypted.
    pub demanded: bool,
}

/// An open chain: a store, and layers over it.
pub struct Chain {
    uri: Uri,
    volume: Arc<dyn Volume>,
    /// What its top can do.
    abilities: Abilities,
    /// What works for its layers, the lowest first.
    workers: Vec<Box<dyn Worker>>,
    /// What it is made of, the lowest first.
    layers: Vec<LayerInfo>,
    /// The file that was made for it.
    made: Option<PathBuf>,
    /// How many bytes of zeroes its last block was filled up with.
    padding: u64,
    /// It goes on for a writer that is gone.
    continues: bool,
}

/// A chain's store as it is when it has grown; nobody has been told yet.
pub struct Growth(abilities::Growth);

impl Growth {
    /// The file is as long again as it was.
    pub fn undo(self) {
        if let Err(why) = (self.0.undo)() {
            tracing::error!(%why, "a file that was made longer cannot be cut off again");
        }
    }
}

impl Chain {
    /// Makes its store as large as that is now, or as `asked`; `None` if it is as it was. The chain itself changes
    /// in [`Chain::grow`].
    pub async fn prepare_growth(&self, asked: Option<Size>) -> Outcome<Option<Growth>> {
        let Some(grow) = &self.abilities.grow else { return Ok(None) };
        let grown = grow.prepare(asked.map(|size| size.0)).await;
        let grown = grown.map_err(|why| explain(format!("cannot grow {}", self.uri), why))?;
        Ok(grown.map(Growth))
    }

    /// By what its store is known when it is opened once more, if it is behind a target.
    #[must_use]
    pub fn seen(&self) -> Option<iscsi::Seen> {
        self.abilities.probe.as_ref().map(|store| store.seen())
    }

    /// Why its flushes fail, if it has lost what was written: no flush succeeds until it is opened again.
    #[must_use]
    pub fn loss(&self) -> Option<String> {
        let close = self.abilities.close.as_ref()?;
        // It is a loss if its file was removed.
        let _ = close.misplaced();
        close.loss()
    }

    /// Why what is written to it is not where it is looked for, if its file was moved.
    #[must_use]
    pub fn moved(&self) -> Option<String> {
        self.abilities.close.as_ref()?.misplaced()
    }

    /// What no other image has, if it is one of a cluster.
    pub fn image(&self) -> Option<String> {
        self.abilities.close.as_ref()?.image()
    }

    /// How its file was when it was opened; `None` if it has none.
    pub fn found_file(&self) -> Option<Metadata> {
        self.abilities.close.as_ref()?.found_file()
    }

    /// How its file is now that nothing writes to it any more; `None` if it has none, or has lost something.
    pub async fn settled(&self) -> Option<Metadata> {
        let close = self.abilities.close.as_ref()?;
        self.volume.flush().await.ok()?;
        close.stable_file().await
    }

    /// Tells the log, once, should its file be removed or moved.
    pub fn watch_placement(&self) {
        if let Some(close) = &self.abilities.close {
            close.watch_placement();
        }
    }

    /// Is as large as its store from now on. No layer hands on that it can grow, so the store is its top.
    pub fn grow(&mut self, Growth(growth): Growth) {
        if let Some(store) = self.layers.first_mut() {
            *store = LayerInfo::new(store.name, &growth.grown);
        }
        let Opened { volume, abilities, .. } = growth.grown;
        (self.volume, self.abilities) = (volume, abilities);
    }

    /// Closes it as if it had not been opened: a file that was made for it goes.
    pub async fn discard(mut self) {
        if let (Some(path), Some(close)) = (self.made.take(), &self.abilities.close) {
            drop(CreatedFile::new(&path, close));
            self.release().await;
        } else if self.is_remote() {
            // Nobody relies on what was written, if anything was, and a target may be out of reach.
            self.release().await;
        } else if let Err(why) = self.close().await {
            tracing::warn!("{}", why.on_one_line());
        }
    }

    /// What the user calls it.
    #[must_use]
    pub const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// What it is made of, the store first.
    #[must_use]
    pub fn layers(&self) -> &[LayerInfo] {
        &self.layers
    }

    /// Whether a network lies between here and its store.
    fn is_remote(&self) -> bool {
        self.abilities.probe.is_some() || self.abilities.is_partly_remote
    }

    /// What tells how it is, from elsewhere. It does not keep it open.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer {
            probe: self.abilities.probe.as_ref().map(Arc::downgrade),
            close: self.abilities.close.as_ref().map(Arc::downgrade),
            device: self.abilities.device.as_ref().map(Arc::downgrade),
            workers: self.workers.iter().map(|worker| worker.status()).collect(),
        }
    }

    /// What the next process of the same attachment has to know of the reservation, if there is one.
    #[must_use]
    pub fn for_successor(&self) -> Option<Predecessor> {
        self.abilities.writer.as_ref()?.for_successor()
    }

    /// Its top.
    #[must_use]
    pub fn volume(&self) -> Arc<dyn Volume> {
        Arc::clone(&self.volume)
    }

    /// How many bytes of zeroes the last block of its file was filled up with.
    #[must_use]
    pub const fn padding(&self) -> u64 {
        self.padding
    }

    /// Whether its store holds the ciphertext of what is at its top.
    #[must_use]
    pub fn is_decrypted(&self) -> bool {
        self.layers.iter().any(|layer| layer.name == CRYPT)
    }

    /// What destroys the key of an encrypted volume, if it was opened with that in mind.
    #[must_use]
    pub fn key(&self) -> Option<Arc<dyn CryptoErase>> {
        self.abilities.erase.clone()
    }

    /// The cartridges, if it is a media changer.
    #[must_use]
    pub fn library(&self) -> Option<Arc<Library>> {
        self.abilities.library.clone()
    }

    /// The device, if one is passed through.
    #[must_use]
    pub fn device(&self) -> Option<Arc<dyn ScsiDevice>> {
        self.abilities.device.clone()
    }

    /// What tells how much its file system has free.
    #[must_use]
    pub(crate) fn space(&self) -> Option<Arc<dyn FileSpace>> {
        self.abilities.space.clone()
    }

    /// Whether it is a tape that is written once.
    #[must_use]
    pub const fn is_write_once(&self) -> bool {
        self.abilities.is_write_once
    }

    /// What has been recorded on it, if it is a disc that can be written.
    pub(crate) const fn recorded(&self) -> Option<&RecordedDisc> {
        self.abilities.recorded.as_ref()
    }

    /// Whether nothing of it outlives the process.
    #[must_use]
    pub fn vanishes(&self) -> bool {
        self.uri.vanishes()
    }

    /// What is known of the target and the connection to it, if the store is behind one.
    pub async fn probe(&self) -> Outcome<Option<TargetInfo>> {
        let Some(store) = &self.abilities.probe else { return Ok(None) };
        store.probe().await.or_fail(|| format!("cannot probe {}", self.uri)).map(Some)
    }

    /// The serial number of the unit that it is behind, if that has one. No round trip is made for it.
    #[must_use]
    pub fn unit_serial(&self) -> Option<String> {
        self.abilities.probe.as_ref()?.inquiry().serial
    }

    /// The longest write that takes one round trip.
    #[must_use]
    pub fn unsolicited(&self) -> u64 {
        unsolicited(&self.abilities)
    }

    /// What the kernel knows of the way to the target, if the store is behind one.
    pub async fn path(&self) -> Option<tcp_tuning::Info> {
        self.abilities.probe.as_ref()?.path().await
    }

    /// Once `stop` is called an outage is waited for only a short time, so that requests that wait for
    /// its end do not keep the program from its own.
    pub fn leave_on(&self, mut stop: Stop) {
        if let Some(close) = self.abilities.close.as_ref().map(Arc::downgrade) {
            tokio::spawn(async move {
                stop.called().await;
                if let Some(close) = close.upgrade() {
                    close.leave(GRACE);
                }
            });
        }
    }

    /// From now on an outage is waited for only a short time.
    pub fn leave(&self) {
        if let Some(close) = &self.abilities.close {
            close.leave(GRACE);
        }
    }

    /// All of the replay log that it was opened for is durable on it. Until that is said its reservation, which shows that
    /// nobody has written since, outlasts it.
    pub fn log_written(&self) {
        if let Some(close) = &self.abilities.close {
            close.log_written();
        }
    }

    /// Lets go of a store to which nothing was written, and which another may have reserved.
    pub async fn release(self) {
        let is_remote = self.is_remote();
        let Self { volume, mut abilities, workers, continues, .. } = self;
        abilities.erase = None;
        drop(volume);
        if let Some(close) = abilities.close.as_ref().filter(|_| is_remote) {
            close.leave(GRACE);
        }
        if let Some(lacking) = end(workers).await {
            print_error(&format_args!("longhaul: {lacking}"));
        }
        if !is_remote {
            return;
        }
        opening::let_go(&abilities, abilities.token.as_deref(), continues).await;
    }

    /// Makes everything that was acknowledged durable, and lets go of the store. Nobody else may hold
    /// the volume any more. A write that failed after it was acknowledged is told here at the latest.
    pub async fn close(self) -> Outcome {
        let (closed, lacking) = self.close_and_tell().await;
        if let Some(lacking) = lacking {
            print_error(&format_args!("longhaul: {lacking}"));
        }
        closed
    }

    /// The same; also what the volume lacks still, and a journal keeps for it.
    pub async fn close_and_tell(self) -> (Outcome, Option<Failure>) {
        let Self { uri, volume, mut abilities, workers, .. } = self;
        let flushed = volume.flush().await.map_err(|why| {
            Failure::new(format!("cannot flush {uri}"))
                .because(why)
                .hint("what was written since the last flush that succeeded may be lost")
        });
        let close = abilities.close.clone();
        // Who only reads loses nothing by that.
        let written = close.as_ref().filter(|_| !volume.shape().read_only);
        let misplaced = written.and_then(|close| close.misplaced());
        let flushed = flushed.and_then(|()| misplaced.map_or(Ok(()), |why| Err(Failure::new(why))));
        abilities.erase = None;
        drop(volume);
        let is_gone = close.as_ref().is_some_and(|close| close.is_over());
        // Even after a failure: every write that still lands is worth having.
        let lacking = end(workers).await;
        let Some(close) = close else { return (flushed, lacking) };
        if flushed.is_ok() {
            close.flush_rest().await;
        }
        if let Some(token) = &abilities.token {
            token.give_back().await;
        }
        let closed = match (close.close().await, flushed) {
            (Some(saved), flushed) => Err(unwritten(&uri, flushed, &saved)),
            (None, Err(_)) if is_gone && close.has_flushed_all() => {
                tracing::warn!(
                    "{uri} is gone; nothing is lost: everything that was acknowledged had been flushed before"
                );
                Ok(())
            }
            (None, flushed) => flushed,
        };
        (closed, lacking)
    }
}

/// Ends what works for layers, from the top. What the volume lacks then.
async fn end(workers: Vec<Box<dyn Worker>>) -> Option<Failure> {
    let mut lacking = None;
    for worker in workers.into_iter().rev() {
        lacking = worker.close().await.or(lacking);
    }
    lacking
}

/// A volume could not be given all that was acknowledged: what has become of it.
fn unwritten(uri: &Uri, flushed: Outcome, saved: &Saved) -> Failure {
    let failure = match flushed {
        Ok(()) => Failure::new(format!("{uri} was not given all that was acknowledged")),
        Err(failure) => failure,
    };
    let Saved { path, changes, bytes, lost, why } = saved;
    let mut hint = Vec::new();
    if let Some(path) = path {
        let (path, quoted) = (path.shown(), path.quoted());
        hint.push(format!(
            "{changes} writes ({bytes} bytes) that were acknowledged or under way, and not flushed, are in {path}; \
             `longhaul replay {quoted}` writes them"
        ));
    }
    if let Some(why) = why {
        hint.push(format!(
            "{lost} writes that were acknowledged or under way are LOST: the replay log cannot hold them: {why}"
        ));
    }
    failure.hint(hint.join("\n  "))
}

fn unsolicited(store: &Abilities) -> u64 {
    store.probe.as_ref().map_or(u64::MAX, |store| store.unsolicited())
}

/// Puts layers over a store. If that fails, `workers` are those that are to be ended.
async fn assemble(
    uri: &Uri,
    store: Store,
    options: OpenOptions,
    token: &OnceLock<Arc<dyn Token>>,
    workers: &mut Vec<Box<dyn Worker>>,
) -> Outcome<Chain> {
    let Store { name, mut opened, made, padding } = store;
    let block_size = opened.volume.shape().block_size;
    if let Some(asked) = options.block_size.filter(|asked| *asked != block_size) {
        let why = format!("{uri} has blocks of {block_size} bytes, not {asked}");
        return Err(Failure::new(why).hint("leave block_size out"));
    }
    let mut layers = vec![LayerInfo::new(name, &opened)];
    workers.extend(opened.worker.take());
    let trace = options.trace.clone();
    let traced = |name, volume: Arc<dyn Volume>| match &trace {
        Some(trace) => trace.over(name, volume),
        None => volume,
    };
    opened.volume = traced(name, opened.volume);
    let continues = options.writers.continues();
    let mut with = OpenContext { uri, options, token };
    for layer in LAYERS {
        let Some(over) = layer.open(&opened, &mut with).await? else { continue };
        layers.push(LayerInfo::new(layer.name(), &over));
        opened = over;
        opened.volume = traced(layer.name(), opened.volume);
        workers.extend(opened.worker.take());
    }
    let Opened { volume, abilities, .. } = opened;
    let (uri, made, workers) = (uri.clone(), made.keep(), std::mem::take(workers));
    Ok(Chain { uri, volume, abilities, workers, layers, made, padding, continues })
}

/// Asks a server which targets this machine may use.
pub async fn discover(host: &Host, login: &Login) -> Outcome<Vec<iscsi::DiscoveredTarget>> {
    let what = || format!("cannot discover the targets of {host}");
    let options = login.connect_options(None).map_err(|why| why.within(&what()))?;
    iscsi::discover(host, &options).await.map_err(|why| explain_connect(what(), why))
}

/// Asks a HyperSCSI server which of its volumes this machine may use.
pub async fn volumes(server: &HyperScsiServer, login: &Login) -> Outcome<Vec<String>> {
    let what = || format!("cannot discover the volumes of {server}");
    let credentials = store::credentials(&login.seal, None).map_err(|why| why.within(&what()))?;
    hyperscsi::volumes(server, &credentials).await.or_fail(what)
}

impl Login {
    fn connect_options(&self, pin: Option<PublicKey>) -> Outcome<iscsi::ConnectOptions> {
        let initiator = match &self.initiator {
            Some(name) => name.clone(),
            None => this_machine()?,
        };
        Ok(iscsi::ConnectOptions {
            account: self.account.clone(),
            pinned: self.seal.pinned(pin)?,
            algorithms: self.algorithms.clone(),
            connections: self.connections,
            ..iscsi::ConnectOptions::new(initiator)
        })
    }
}

/// The initiator name of this machine: the same at every login, so that a target can list it.
fn this_machine() -> Outcome<IscsiName> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let kept = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.chars().filter(kept).collect();
    IscsiName::new(&format!("iqn.2026-11.dev.longhaul.client:{host}"))
        .or_fail(|| "cannot make an initiator name from the name of this machine".to_owned())
        .map_err(|failure| failure.hint("give one with --initiator"))
}
