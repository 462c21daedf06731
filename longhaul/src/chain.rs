//! The chains that URIs stand for: the only place that names both fronts and stores.

mod created_file;
mod identity;
mod logs;
mod memory;
mod opening;
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
use tokio::time::timeout;
use volume::layer::pipeline::Settings;
use volume::layer::read_only::ReadOnly;
use volume::{CryptoErase, Gate, Volume};

use crate::credentials;
use crate::explain::{explain, explain_connect};
use crate::failure::{Failure, OrFail, Outcome};
use crate::luks;
use crate::pipelined::Pipelined;
use crate::printable::Shown as _;
use crate::reconnect_limit::ReconnectLimit;
use crate::replay_log::Saved;
use crate::sealing::Seal;
use crate::size::Size;
use crate::stop::Stop;
use crate::store::Local;
use crate::store::iscsi;
use crate::store::iscsi::{Connections, ReplayedLog, Writers};
use crate::uri::{Host, Uri};
use created_file::CreatedFile;
pub(crate) use memory::{memory_needed, memory_of_machine};
pub use opening::open;
pub use status::{ChainStatus, Observer};
use store::Store;

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
    /// Refuse writes.
    pub read_only: bool,
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
    /// Who else may write to a unit of a target.
    pub writers: Writers,
    /// The replay log that is to be written to it.
    pub replays: Option<ReplayedLog>,
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
#[derive(Debug, Default)]
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
#[derive(Debug)]
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

/// An open chain.
pub struct Chain {
    uri: Uri,
    volume: Arc<dyn Volume>,
    pipelined: Option<Pipelined>,
    disk: Option<Arc<iscsi::Disk>>,
    /// Its store, if that is a file or a device.
    local: Option<Arc<Local>>,
    /// What destroys its key, if that was asked for.
    key: Option<Arc<dyn CryptoErase>>,
    /// What tells others that it has a writer, where its target does not.
    token: Option<Arc<luks::WriterToken>>,
    /// The file that was made for it.
    made: Option<PathBuf>,
    /// Its top is the plain text of what the store holds.
    decrypted: bool,
    /// How many bytes of zeroes its last block was filled up with.
    padding: u64,
}

/// A chain's store as it is when it has grown; nobody has been told yet.
pub struct Growth {
    local: Arc<Local>,
    /// How long its file was before.
    stored: u64,
}

impl Growth {
    /// The file is as long again as it was.
    pub fn undo(self) {
        if let Err(why) = self.local.cut(self.stored) {
            tracing::error!(%why, bytes = self.stored, "a file that was made longer cannot be cut off again");
        }
    }
}

impl Chain {
    /// Makes its store as large as that is now, or as `asked`; `None` if it is as it was. The chain itself changes
    /// in [`Chain::grow`].
    pub fn prepare_growth(&self, asked: Option<Size>) -> Outcome<Option<Growth>> {
        // The size of an encrypted volume is in its header.
        let local = self.local.as_ref().filter(|_| !self.decrypted);
        let Some(local) = local else { return Ok(None) };
        let what = || format!("cannot grow {}", self.uri);
        let stored = local.stored().or_fail(what)?;
        let grown = local.grown(asked.map(|size| size.0)).map_err(|why| explain(what(), why))?;
        Ok(grown.map(|local| Growth { local: Arc::new(local), stored }))
    }

    /// Why its flushes fail, if it has lost what was written: no flush succeeds until it is opened again.
    #[must_use]
    pub fn loss(&self) -> Option<String> {
        let local = self.local.as_ref()?;
        // It is a loss if its file was removed.
        let _ = local.misplaced();
        local.loss()
    }

    /// Why what is written to it is not where it is looked for, if its file was moved.
    #[must_use]
    pub fn moved(&self) -> Option<String> {
        self.local.as_ref()?.misplaced()
    }

    /// How its file is now that nothing writes to it any more; `None` if it has none, or has lost something.
    pub async fn settled(&self) -> Option<Metadata> {
        let local = self.local.as_ref()?;
        self.volume.flush().await.ok()?;
        local.settled().await.ok()
    }

    /// Tells the log, once, should its file be removed or moved.
    pub fn watch_placement(&self) {
        if let Some(local) = &self.local {
            local.watch_placement();
        }
    }

    /// Is as large as its store from now on.
    pub fn grow(&mut self, Growth { local, .. }: Growth) {
        self.volume = Arc::new(Gate::new("local", Arc::clone(&local)));
        self.local = Some(local);
    }

    /// Closes it as if it had not been opened: a file that was made for it goes.
    pub async fn discard(mut self) {
        if let (Some(path), Some(local)) = (self.made.take(), &self.local) {
            drop(CreatedFile::new(&path, local));
            self.release().await;
        } else if self.disk.is_some() {
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

    /// What tells how it is, from elsewhere. It does not keep it open.
    #[must_use]
    pub fn observer(&self) -> Observer {
        Observer {
            disk: self.disk.as_ref().map(Arc::downgrade),
            pipelined: self.pipelined.as_ref().map(Pipelined::observer),
        }
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
    pub const fn is_decrypted(&self) -> bool {
        self.decrypted
    }

    /// What destroys the key of a sealed volume, if it was opened with that in mind.
    #[must_use]
    pub fn key(&self) -> Option<Arc<dyn CryptoErase>> {
        self.key.clone()
    }

    /// Whether nothing of it outlives the process.
    #[must_use]
    pub fn vanishes(&self) -> bool {
        matches!(self.uri, Uri::Memory(_))
    }

    /// What is known of the target and the connection to it, if the store is behind one.
    pub async fn probe(&self) -> Outcome<Option<iscsi::Probe>> {
        match &self.disk {
            Some(disk) => {
                disk.probe().await.or_fail(|| format!("cannot probe {}", self.uri)).map(Some)
            }
            None => Ok(None),
        }
    }

    /// The longest write that takes one round trip.
    #[must_use]
    pub fn unsolicited(&self) -> u64 {
        unsolicited(self.disk.as_deref())
    }

    /// What the kernel knows of the way to the target, if the store is behind one.
    pub async fn path(&self) -> Option<crate::net::tcp_tuning::Info> {
        self.disk.as_ref()?.path().await
    }

    /// Once `stop` is called an outage is waited for only a short time, so that requests that wait for
    /// its end do not keep the program from its own.
    pub fn leave_on(&self, mut stop: Stop) {
        if let Some(disk) = self.disk.as_ref().map(Arc::downgrade) {
            tokio::spawn(async move {
                stop.called().await;
                if let Some(disk) = disk.upgrade() {
                    disk.leave(GRACE);
                }
            });
        }
    }

    /// From now on an outage is waited for only a short time.
    pub fn leave(&self) {
        if let Some(disk) = &self.disk {
            disk.leave(GRACE);
        }
    }

    /// Its reservation is not given back when it is closed.
    pub fn stay_reserved(&self) {
        if let Some(disk) = &self.disk {
            disk.stay_reserved();
        }
    }

    /// Lets go of a store to which nothing was written, and which another may have reserved.
    pub async fn release(self) {
        let Self { volume, disk, pipelined, local, key, token, .. } = self;
        drop((volume, local, key));
        let Some(disk) = disk else { return };
        disk.leave(GRACE);
        if let Some(pipelined) = pipelined {
            pipelined.close().await;
        }
        opening::let_go(&disk, token.as_deref()).await;
    }

    /// Makes everything that was acknowledged durable, and lets go of the store. Nobody else may hold
    /// the volume any more. A write that failed after it was acknowledged is told here at the latest.
    pub async fn close(self) -> Outcome {
        let Self { uri, volume, pipelined, disk, local, key, token, .. } = self;
        let flushed = volume.flush().await.map_err(|why| {
            Failure::new(format!("cannot flush {uri}"))
                .because(why)
                .hint("what was written since the last flush that succeeded may be lost")
        });
        let misplaced = local.as_ref().and_then(|local| local.misplaced());
        let flushed = flushed.and_then(|()| misplaced.map_or(Ok(()), |why| Err(Failure::new(why))));
        drop((volume, local, key));
        let mut is_gone = disk.as_ref().is_some_and(|disk| disk.is_over());
        if let Some(pipelined) = pipelined {
            // Even after a failure: every write that still lands is worth having.
            pipelined.close().await;
        }
        let mut saved = None;
        if let Some(disk) = disk {
            // What was written as durable is counted as unflushed all the same.
            if flushed.is_ok() && disk.unflushed().0 > 0 {
                let _ = disk.flush().await;
            }
            if let Some(token) = &token {
                writer::give_back(token, &disk).await;
            }
            disk.close().await;
            saved = disk.settled().await;
            is_gone &= disk.has_flushed_all();
        }
        match (saved, flushed) {
            (Some(saved), flushed) => Err(unwritten(&uri, flushed, &saved)),
            (None, Err(_)) if is_gone => {
                tracing::warn!(
                    "{uri} is gone; nothing is lost: everything that was acknowledged had been flushed before"
                );
                Ok(())
            }
            (None, flushed) => flushed,
        }
    }
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
        let path = path.shown();
        hint.push(format!(
            "{changes} writes ({bytes} bytes) that were acknowledged or under way, and not flushed, are in {path}; \
             `longhaul replay {path}` writes them"
        ));
    }
    if let Some(why) = why {
        hint.push(format!(
            "{lost} writes that were acknowledged or under way are LOST: the replay log cannot hold them: {why}"
        ));
    }
    failure.hint(hint.join("\n  "))
}

fn unsolicited(disk: Option<&iscsi::Disk>) -> u64 {
    disk.map_or(u64::MAX, iscsi::Disk::unsolicited)
}

/// Puts layers over a store.
async fn assemble(
    uri: &Uri,
    store: Store,
    options: OpenOptions,
    claimed: &OnceLock<Arc<luks::WriterToken>>,
) -> Outcome<Chain> {
    let Store { mut volume, disk, local, made, padding } = store;
    let block_size = volume.shape().block_size;
    if let Some(asked) = options.block_size.filter(|asked| *asked != block_size) {
        let why = format!("{uri} has blocks of {block_size} bytes, not {asked}");
        return Err(Failure::new(why).hint("leave block_size out"));
    }
    let (mut decrypted, mut key, mut token) = (false, None, None);
    let claim = writer::claim(disk.as_deref());
    let is_alone = matches!(&claim, Some((writers, _)) if *writers != Writers::Shared);
    let place = (&volume, disk.as_deref());
    if let Some(opened) = contents(uri, place, options.contents, (claim, claimed)).await? {
        Decrypted { plain: volume, key, token } = opened;
        decrypted = true;
    }
    if is_alone {
        writer::warn(uri, token.is_some());
    }
    if let (Some(token), Some(disk)) = (&token, &disk) {
        writer::rely_on(token, disk);
    }
    let unsolicited = unsolicited(disk.as_deref());
    let pipelined = options.pipeline.filter(|_| uri.is_remote()).map(|settings| {
        let settings = Settings { unsolicited, ..settings };
        Pipelined::new(uri.to_string(), Arc::clone(&volume), settings)
    });
    if let Some(pipelined) = &pipelined {
        volume = pipelined.volume();
    }
    // Files, devices and targets are opened read-only; what cannot be is made so here.
    if options.read_only && !volume.shape().read_only {
        volume = Arc::new(Gate::new("read-only", ReadOnly::new(volume)));
    }
    let made = made.keep();
    let uri = uri.clone();
    Ok(Chain { uri, volume, pipelined, disk, local, key, token, made, decrypted, padding })
}

/// The plain text of a volume.
struct Decrypted {
    plain: Arc<dyn Volume>,
    /// What destroys its key.
    key: Option<Arc<dyn CryptoErase>>,
    /// What tells others that it has a writer.
    token: Option<Arc<luks::WriterToken>>,
}

/// What is wanted of `volume`; `None` if that is what its store holds.
async fn contents(
    uri: &Uri,
    (volume, disk): (&Arc<dyn Volume>, Option<&iscsi::Disk>),
    wanted: Contents,
    (claim, claimed): (Option<(Writers, luks::Claim)>, &OnceLock<Arc<luks::WriterToken>>),
) -> Outcome<Option<Decrypted>> {
    if matches!(wanted, Contents::Unseen) && claim.is_none() {
        if let Some(disk) = disk {
            identity::tie_unseen(uri, volume, disk).await?;
        }
        return Ok(None);
    }
    let found = timeout(SEEN_WITHIN, luks::recognise(Arc::clone(volume))).await;
    let late = || Err(Failure::new(format!("its header is not read within {SEEN_WITHIN:?}")));
    let found = found.unwrap_or_else(|_| late());
    let found =
        found.map_err(|why| why.within(&format!("cannot tell whether {uri} is encrypted")))?;
    if let (Some(encrypted), Some((_, claim))) = (&found, &claim) {
        encrypted.check(claim).map_err(|why| why.within(&format!("cannot open {uri}")))?;
    }
    // Before a pass-phrase is asked for, which takes as long as it takes.
    if let (Some(disk), Some(luks)) = (disk, found.as_ref().and_then(luks::Encrypted::identity)) {
        let header = luks.area;
        identity::tie(uri, disk, luks).await?;
        if matches!(wanted, Contents::Plain(_)) {
            disk.keep_out_of_log(header);
        }
    }
    match (found, wanted) {
        (Some(encrypted), Contents::Raw { overwrite: false }) if !volume.shape().read_only => {
            let what = format!("{uri} is encrypted: it is {}", encrypted.summary().name());
            Err(Failure::usage(what)
                .because("what is written to it as it is stored destroys it")
                .hint("leave --raw out to use its contents; --force writes over it all the same"))
        }
        (Some(encrypted), Contents::Plain(unlock)) => {
            let alone = claim.filter(|(writers, _)| *writers != Writers::Shared);
            let claim = alone.map(|(_, claim)| claim);
            let opened = unseal(encrypted, unlock, claim, claimed).await;
            opened.map(Some).map_err(|why| why.within_unless_named(&uri.to_string()))
        }
        (None, Contents::Plain(Unlock { demanded: true, .. })) => {
            Err(Failure::new(format!("{uri} is not encrypted: it has no LUKS header"))
                .because("a pass-phrase or --encrypted says that it is")
                .hint(
                    "if it was encrypted before, its header is lost: `longhaul key restore` brings one back from a backup; \
                     `longhaul key init` encrypts an empty volume",
                ))
        }
        _ => Ok(None),
    }
}

/// The plain text of an encrypted volume, and what destroys its key if that is wanted.
async fn unseal(
    mut encrypted: luks::Encrypted,
    unlock: Unlock,
    claim: Option<luks::Claim>,
    claimed: &OnceLock<Arc<luks::WriterToken>>,
) -> Outcome<Decrypted> {
    let Unlock { key, with, erasable, demanded: _ } = unlock;
    let token = claim.and_then(|claim| encrypted.claim(claim));
    if let Some(token) = &token {
        let _ = claimed.set(Arc::clone(token));
    }
    if !erasable {
        return Ok(Decrypted { plain: encrypted.open(&key, with).await?, key: None, token });
    }
    let opened = Arc::new(luks::Erasable::open(encrypted, &key, with).await?);
    let plain = Arc::new(Gate::new("erasable", Arc::clone(&opened)));
    Ok(Decrypted { plain, key: Some(opened), token })
}

/// Asks a server which targets this machine may use.
pub async fn discover(host: &Host, login: &Login) -> Outcome<Vec<iscsi::DiscoveredTarget>> {
    let what = || format!("cannot discover the targets of {host}");
    let options = login.connect_options(None).map_err(|why| why.within(&what()))?;
    iscsi::discover(host, &options).await.map_err(|why| explain_connect(what(), why))
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
