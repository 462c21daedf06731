//! The stores at the bottom of chains.

pub(crate) mod changer;
pub(super) mod compound;
mod disc;
mod passed;
pub(crate) mod tape;
pub(super) mod unit;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use host::rbd::{ImageSpec, Lock};
use proto::hyperscsi::Level;
use proto::identity::PublicKey;
use tokio::time::{Instant, sleep, timeout};
use volume::layer::padded::Padded;
use volume::store::memory::Memory;
use volume::{Durability, Gate, Volume};

use super::created_file::{CreatedFile, refuse_options};
use super::memory::{memory_needed, memory_of_machine};
use super::{BLOCK_SIZE, OpenOptions, SEEN_WITHIN};
use crate::config::{idle_direct, idle_size};
use crate::explain::{explain, explain_connect, explain_image, explain_open, explain_read_only};
use crate::failure::{Failure, OrFail, Outcome};
use crate::luks;
use crate::sealing::{self, Seal};
use crate::site_key;
use crate::size::Size;
use crate::state_dir::state_dir;
use crate::store::abilities::Opened;
use crate::store::file::OpenError;
use crate::store::hyperscsi::Credentials;
use crate::store::iscsi::Writers;
use crate::store::scsi::Options as ScsiOptions;
use crate::store::{device, file, hyperscsi, in_use, iscsi, null, rbd, standby};
use crate::uri::{HyperScsiUri, IscsiUri, Uri};

/// How much of a write is sent without being asked for where groups are in order. A Longhaul server takes as many commands at
/// a time as it has room for if each brings that much: 128, where it would be 33 of the 512 KiB that it has otherwise.
const ORDERED_BURST: u32 = 128 << 10;

/// How long an outage may last while a volume is being opened, however patient its user is later: nobody has it yet. That is
/// fleeting: who takes a mount over is tried again for as long as it takes.
const OUTAGE_MAX: Duration = Duration::from_secs(60);

/// A store, and what there is to know of its file.
pub(super) struct Store {
    /// What the chain calls it.
    pub(super) name: &'static str,
    pub(super) opened: Opened,
    pub(super) made: CreatedFile,
    /// How many bytes of zeroes its last block was filled up with.
    pub(super) padding: u64,
}

impl Store {
    /// One for which no file was made.
    pub(super) const fn new(name: &'static str, opened: Opened) -> Self {
        Self { name, opened, made: CreatedFile::none(), padding: 0 }
    }
}

/// How long a file or a device is waited for that somebody has.
///
/// The requests of a process that was killed end in their own time, after the process, and the lock with them:
/// no write of it can land behind one of its successor, which has to wait for that.
const LINGERING: Duration = Duration::from_secs(2);

/// How often it is tried.
const TRY_AGAIN: Duration = Duration::from_millis(20);

/// What `open` gives for `path`, once nobody else has it.
async fn retry_while_locked<T>(
    path: &Path,
    open: impl Fn() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    let last = Instant::now() + LINGERING;
    loop {
        match open() {
            Err(OpenError::InUse) if Instant::now() < last => sleep(TRY_AGAIN).await,
            Err(OpenError::InUse) => {
                return Err(match in_use::lock_holder(path) {
                    Some(holder) if holder.is_this_process() => OpenError::UsedHere,
                    Some(holder) => OpenError::LockedBy(holder.to_string()),
                    None => OpenError::InUse,
                });
            }
            outcome => return outcome,
        }
    }
}

/// Opens the store that `uri` names.
pub(super) async fn store(uri: &Uri, options: &OpenOptions) -> Outcome<Store> {
    let what = || format!("cannot open {uri}");
    let idle = idle_size(uri, options.size).or_else(|| idle_direct(uri, options.direct));
    if let Some(why) = idle {
        return Err(Failure::usage(what()).because(why));
    }
    Ok(match uri {
        Uri::Memory(size) => open_memory(uri, *size, options)?,
        Uri::Null(size) => Store::new("null", null::open(size.0, block_size(uri, *size, options)?)),
        Uri::File(path) if options.standby => open_standby(uri, path, options)?,
        Uri::File(path) => open_file(uri, path, options).await?,
        Uri::Device(path) => open_device(uri, path, options).await?,
        Uri::Cdrom(disc) => disc::open(uri, disc.as_deref(), options).await?,
        Uri::Tape(tape) => tape::open(uri, tape.as_deref(), options).await?,
        Uri::Changer(directory) => changer::open(uri, directory, options).await?,
        Uri::Scsi(device) => passed::open(uri, device, options).await?,
        Uri::Iscsi(unit) => open_unit(uri, unit, options).await?,
        Uri::Compound(compound) => compound::open(uri, compound, options).await?,
        Uri::HyperScsi(volume) => open_volume(uri, volume, options).await?,
        Uri::Rbd(image) if options.standby => open_standby_image(uri, image, options).await?,
        Uri::Rbd(image) => open_image(uri, image, options).await?,
    })
}

fn open_memory(uri: &Uri, size: Size, options: &OpenOptions) -> Outcome<Store> {
    let what = || format!("cannot open {uri}");
    let block_size = block_size(uri, size, options)?;
    let most = memory_of_machine();
    if memory_needed(size) > most {
        let why = format!("this machine has {} bytes of memory", Size(most));
        return Err(Failure::usage(what()).because(why).hint("a file can be larger: file:PATH"));
    }
    let memory = Memory::try_new(size.0, block_size).or_fail(what)?;
    Ok(Store::new("memory", Opened::plain(Arc::new(Gate::new("memory", memory)))))
}

async fn open_file(uri: &Uri, path: &Path, options: &OpenOptions) -> Outcome<Store> {
    let what = || format!("cannot open {uri}");
    refuse_options(uri, path)?;
    let path = options.make_at.as_deref().unwrap_or(path);
    let with = file_options(options);
    if options.pad && path.is_file() {
        let part = file::part_of_block(path, with.block_size).or_fail(what)?;
        if !part.is_empty() {
            return padded(path, &with, &part).await.map_err(|why| explain(what(), why));
        }
    }
    let opened = retry_while_locked(path, || file::open_or_make(path, &with)).await;
    let (opened, made) = opened.map_err(|why| match options.read_only {
        true => explain_read_only(what(), why),
        false => explain(what(), why),
    })?;
    let mut store = Store::new("file", opened.opened("file"));
    if let (true, Some(close)) = (made, &store.opened.abilities.close) {
        store.made = CreatedFile::new(path, close);
    }
    Ok(store)
}

fn file_options(options: &OpenOptions) -> file::FileOptions {
    file::FileOptions {
        size: options.size.map(|size| size.0),
        existing_only: options.existing_only,
        new_only: options.make_at.is_some(),
        read_only: options.read_only,
        block_size: options.block_size.unwrap_or(BLOCK_SIZE),
        whole_blocks_only: options.pad,
        direct: options.direct,
    }
}

fn open_standby(uri: &Uri, path: &Path, options: &OpenOptions) -> Outcome<Store> {
    if let Some(shape) = &options.known_shape {
        return Ok(Store::new("standby", standby::like(shape.clone())));
    }
    let opened = standby::open(path, &file_options(options));
    let opened = opened.map_err(|why| explain(format!("cannot open {uri}"), why))?;
    Ok(Store::new("standby", opened))
}

async fn open_device(uri: &Uri, path: &Path, options: &OpenOptions) -> Outcome<Store> {
    let with = device::DeviceOptions { read_only: options.read_only, direct: options.direct };
    let opened = retry_while_locked(path, || device::open(path, with)).await;
    let opened = opened.map_err(|why| explain(format!("cannot open {uri}"), why))?;
    Ok(Store::new("device", opened.opened("device")))
}

async fn open_unit(uri: &Uri, unit: &IscsiUri, options: &OpenOptions) -> Outcome<Store> {
    let what = || format!("cannot open {uri}");
    let IscsiUri { host, target, lun, pin } = unit.clone();
    let target = iscsi::IscsiTarget { portal: host, name: target, lun };
    let with = options.login.connect_options(pin);
    let mut with = with.map_err(|why| why.within(&what()))?;
    // Groups of a journal follow one another. A stranger would not know the key.
    with.offer.stops_at_failure = options.journal.is_some() && with.pinned.is_some();
    if with.offer.stops_at_failure {
        // Groups are small, and it is their number that counts.
        with.offer.first_burst = ORDERED_BURST;
    }
    with.read_only = options.read_only;
    with.reconnect_for =
        options.reconnect_limit.0.or(Some(OUTAGE_MAX)).map(|set| set.min(OUTAGE_MAX));
    with.timeouts.login = options.reconnect_limit.login_within();
    with.stop = options.stop.clone();
    with.replay_log = options.replay_log.clone().map(|dir| iscsi::ReplayLogOptions {
        dir,
        volume: uri.to_string(),
        write_behind: options.pipeline.is_some(),
    });
    with.writers = options.writers;
    with.replays = options.replays.clone();
    with.same_as = options.same_as.clone();
    with.state = state_dir().or_else(|| options.state.clone());
    let disk = match iscsi::connect(&target, &with).await {
        Ok(disk) => disk,
        Err(why) => {
            let journal = journal_of_holder(&why, &target, with).await;
            let failure = explain_connect(what(), why);
            return Err(match journal {
                Some(journal) => failure.hint_first(&journal.describe()),
                None => failure,
            });
        }
    };
    Ok(Store::new("iscsi", disk.opened()))
}

/// What the writer who has the volume keeps in a journal, if its header says so: a reader may look.
async fn journal_of_holder(
    why: &iscsi::ConnectError,
    target: &iscsi::IscsiTarget,
    mut with: iscsi::ConnectOptions,
) -> Option<luks::JournalToken> {
    let key = why.holder()?;
    (with.read_only, with.writers, with.replay_log) = (true, Writers::Unasked, None);
    let looked = timeout(SEEN_WITHIN, async {
        let disk = iscsi::connect(target, &with).await.ok()?.opened();
        let token = luks::journal_token(&disk.volume).await.ok().flatten();
        if let Some(close) = &disk.abilities.close {
            close.close().await;
        }
        token
    });
    looked.await.ok().flatten().filter(|token| token.has_key(key))
}

async fn open_volume(uri: &Uri, volume: &HyperScsiUri, options: &OpenOptions) -> Outcome<Store> {
    let what = || format!("cannot open {uri}");
    let HyperScsiUri { server, volume: name, pin, paths, options: asked } = volume.clone();
    let credentials = credentials(&options.login.seal, pin).map_err(|why| why.within(&what()))?;
    let with = ScsiOptions {
        read_only: options.read_only,
        writers: options.writers,
        state: state_dir().or_else(|| options.state.clone()),
        replays: options.replays.clone(),
        same_as: options.same_as.clone(),
        reconnect_for: options
            .reconnect_limit
            .0
            .or(Some(OUTAGE_MAX))
            .map(|set| set.min(OUTAGE_MAX)),
        replay_log: options.replay_log.clone().map(|dir| iscsi::ReplayLogOptions {
            dir,
            volume: uri.to_string(),
            write_behind: options.pipeline.is_some(),
        }),
        login_within: options.reconnect_limit.login_within(),
        stop: options.stop.clone(),
        ..ScsiOptions::default()
    };
    let volume = hyperscsi::Volume { server, name, paths, options: asked };
    let disk = hyperscsi::connect(&volume, &credentials, with).await;
    let disk = disk.map_err(|why| explain_open(what(), why))?;
    Ok(Store::new("hyperscsi", disk.opened()))
}

async fn open_image(uri: &Uri, image: &ImageSpec, options: &OpenOptions) -> Outcome<Store> {
    let opened = rbd::open(image, image_options(options)).await;
    let opened = opened.map_err(|why| explain_image(format!("cannot open {uri}"), why))?;
    Ok(Store::new("rbd", opened.opened()))
}

fn image_options(options: &OpenOptions) -> rbd::RbdOptions {
    let lock = match options.writers {
        _ if options.read_only => Lock::Leave,
        Writers::Unasked | Writers::Shared => Lock::Leave,
        Writers::One | Writers::Resume(_) | Writers::Succeed(_) => Lock::Take,
        Writers::TakeOver => Lock::Break,
    };
    rbd::RbdOptions {
        client: options.ceph.clone(),
        read_only: options.read_only,
        lock,
        block_size: options.block_size.unwrap_or(BLOCK_SIZE),
    }
}

async fn open_standby_image(uri: &Uri, image: &ImageSpec, options: &OpenOptions) -> Outcome<Store> {
    if let Some(shape) = &options.known_shape {
        return Ok(Store::new("standby", standby::like(shape.clone())));
    }
    let shape = rbd::shape_of(image, image_options(options)).await;
    let shape = shape.map_err(|why| explain_image(format!("cannot open {uri}"), why))?;
    Ok(Store::new("standby", standby::like(shape)))
}

/// Who we are to a HyperSCSI server, and which one is meant. Reads the identity and the site key.
pub(super) fn credentials(seal: &Seal, uri: Option<PublicKey>) -> Outcome<Credentials> {
    let pin = match (uri, seal.pin) {
        (Some(uri), Some(pin)) if uri != pin => {
            return Err(Failure::usage("--pin and the URI name different keys of the server"));
        }
        (uri, pin) => uri.or(pin),
    };
    let identity = seal.identity.clone().map_or_else(sealing::default_path, Ok)?;
    let site_key = seal.site_key.clone().map_or_else(site_key::default_path, Ok)?;
    let (identity, site_key) = (sealing::read(&identity)?, site_key::read(&site_key)?);
    let least = match seal.insecure {
        true => Level::None,
        false => seal.protection.map_or(Level::Encrypt, sealing::level),
    };
    Ok(Credentials { identity, site_key, pin, least })
}

/// The block size of a volume that has none of its own, if its size suits that.
fn block_size(uri: &Uri, Size(size): Size, options: &OpenOptions) -> Outcome<u32> {
    let block_size = options.block_size.unwrap_or(BLOCK_SIZE);
    match size.is_multiple_of(block_size.into()) {
        true => Ok(block_size),
        false => {
            let why = format!("{uri} is not a whole number of blocks of {block_size} bytes");
            Err(Failure::usage(why))
        }
    }
}

/// A file that ends with `part` of a block.
async fn padded(path: &Path, with: &file::FileOptions, part: &[u8]) -> Result<Store, OpenError> {
    let (volume, padding): (Arc<dyn Volume>, _) = match retry_while_locked(path, || {
        file::open(path, with)
    })
    .await
    {
        Ok(whole) => {
            let padded = Padded::new(Gate::new("file", whole), part);
            (Arc::new(Gate::new("padded", padded)), u64::from(with.block_size) - part.len() as u64)
        }
        // There is no whole block.
        Err(OpenError::Empty) => {
            let mut block = part.to_vec();
            block.resize(with.block_size as usize, 0);
            let memory = Memory::new(block.len() as u64, with.block_size);
            let padding = (block.len() - part.len()) as u64;
            let written = memory.write(0, block.into(), Durability::Volatile).await;
            written.map_err(std::io::Error::other)?;
            (Arc::new(Gate::new("memory", memory)), padding)
        }
        Err(why) => return Err(why),
    };
    Ok(Store { padding, ..Store::new("padded file", Opened::plain(volume)) })
}
