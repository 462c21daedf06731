//! The layer that keeps changes on a local disk until the store has them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use volume::layer::journal::{
    FlushPolicy, Identity, JournalFile, Journaled, LayerOptions, LayerStatus, Mode, Recovered,
    Settings, State, Superblock, SuperblockState,
};
use volume::layer::reconnect::Over;
use volume::{Gate, Shape, Span, Volume};

use super::checkpoint;
use super::layer::{Layer, OpenContext};
use super::limited_reads::LimitedReads;
use super::{Contents, SEEN_WITHIN};
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::luks;
use crate::printable::{Quoted as _, Shown as _};
use crate::size::Size;
use crate::store::abilities::{
    Abilities, BoxFuture, JournalStatus, OneWriter, Opened, Probe, Worker, WorkerStatus,
};
use crate::store::iscsi::Writers;
use crate::store::journal_file::{self, Label, OpenFile};
use crate::store::{runtime, scsi};
use crate::uri::Uri;
use crate::utc::now;

/// What a chain calls it.
pub(super) const JOURNAL: &str = "journal";

/// The file of a journal.
#[derive(Debug)]
pub enum JournalSource {
    /// It is there.
    Found {
        /// Locked by this process.
        file: OpenFile,
        /// What was found in it; `None` of one that was just made.
        found: Option<Box<(Label, Recovered)>>,
    },
    /// It is made once the size of the volume is known, and that the volume can have one.
    Missing {
        /// Where.
        path: PathBuf,
        /// The most bytes.
        size: u64,
        /// Told when it was made.
        made: Arc<OnceLock<()>>,
    },
}

/// A journal that a chain is to have.
#[derive(Debug)]
pub struct JournalOptions {
    /// Its file.
    pub source: JournalSource,
    /// Told if the volume cannot have one, where nobody asked for one.
    pub declined: Option<Arc<OnceLock<()>>>,
    /// When a flush is answered.
    pub flush: FlushPolicy,
    /// How far the volume may lag behind.
    pub max_age: Option<Duration>,
    /// An outage is waited for however long it lasts; only reads fail when that is too long.
    pub outlasts_outages: bool,
}

impl JournalOptions {
    /// The key of the reservation that shows that nobody has written since, if the volume lacks something.
    #[must_use]
    pub fn resumes(&self) -> Option<u64> {
        let JournalSource::Found { found: Some(found), .. } = &self.source else { return None };
        let (_, found) = &**found;
        (!found.changes.is_empty()).then_some(found.superblock.token)
    }

    /// The key of the last writer, if that has not said that the volume has everything.
    #[must_use]
    pub fn writer(&self) -> Option<u64> {
        let JournalSource::Found { found: Some(found), .. } = &self.source else { return None };
        let (_, found) = &**found;
        (found.superblock.state == SuperblockState::Open).then_some(found.superblock.token)
    }

    /// Where its file is, or will be.
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.source {
            JournalSource::Found { file, .. } => file.path(),
            JournalSource::Missing { path, .. } => path,
        }
    }
}

impl JournalSource {
    /// The file, made if it is missing, for a volume of `volume` bytes: a quarter of that is plenty.
    async fn open(self, volume: u64) -> Outcome<(OpenFile, Option<(Label, Recovered)>)> {
        let (path, most, made) = match self {
            Self::Found { file, found } => return Ok((file, found.map(|found| *found))),
            Self::Missing { path, size, made } => (path, size, made),
        };
        let size = most.min(volume / 4).max(journal_file::LEAST);
        print_error(&format_args!(
            "longhaul: what is written is kept in the journal {} until the volume has it, through outages and crashes: {} are \
             written once to make it; `--journal none` leaves it out",
            path.shown(),
            Size(size)
        ));
        let what = || format!("cannot make {}", path.shown());
        let at = path.clone();
        let file = tokio::task::spawn_blocking(move || OpenFile::create(&at, size)).await;
        let file = file.or_fail(what)?.or_fail(what)?;
        let _ = made.set(());
        Ok((file, None))
    }
}

impl JournalStatus {
    fn new(path: &Path, status: &LayerStatus) -> Self {
        let journal = status.journal;
        let state = match (status.mode, journal.state) {
            (Mode::FallingBack, _) => "its file failed: the volume is given what it holds",
            (Mode::Direct, _) => "not used: its file failed, and the volume has what it held",
            (Mode::Failed, _) | (_, State::Broken(_)) => "failed",
            (_, State::Open) => "open",
            (_, State::Full) => "full: writers wait",
            (_, State::Draining) => "draining",
            (_, State::Clean) => "clean",
            (_, State::Frozen) => "frozen: another writer has the volume",
        };
        Self {
            path: path.to_owned(),
            state: state.to_owned(),
            used: journal.used,
            size: journal.ring_len,
            unsent: journal.unsent as u64,
            oldest: status.oldest.map(|age| age.as_secs()),
            failure: status.failure.as_ref().map(ToString::to_string),
        }
    }

    /// For people, on one line.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { path, state, used, size, unsent, oldest, failure } = self;
        let oldest = oldest.map_or_else(String::new, |age| format!(", the oldest for {age} s"));
        let failure = failure.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let (path, used, size) = (path.shown(), Size(*used), Size(*size));
        format!(
            "journal {path}: {state}, {used} of {size} used, {unsent} changes not sent{oldest}{failure}"
        )
    }
}

/// Keeps changes in a file: it is there if that is asked for.
pub(super) struct Journal;

impl Layer for Journal {
    fn name(&self) -> &'static str {
        JOURNAL
    }

    fn open<'a>(
        &'a self,
        beneath: &'a Opened,
        with: &'a mut OpenContext<'_>,
    ) -> BoxFuture<'a, Outcome<Option<Opened>>> {
        Box::pin(async move {
            let Some(options) = with.options.journal.take() else {
                if with.options.writers == Writers::TakeOver && !with.options.read_only {
                    forget_other(beneath).await;
                }
                return Ok(None);
            };
            let path = options.path().to_owned();
            let limit = with.options.reconnect_limit.0;
            let is_decrypted = matches!(with.options.contents, Contents::Plain(_));
            let how = (with.options.writers, is_decrypted);
            let opened = open(with.uri, beneath, options, limit, how).await;
            opened
                .map(Some)
                .map_err(|why| why.within(&format!("cannot use the journal {}", path.shown())))
        })
    }
}

async fn open(
    uri: &Uri,
    beneath: &Opened,
    options: JournalOptions,
    limit: Option<Duration>,
    (writers, is_decrypted): (Writers, bool),
) -> Outcome<Opened> {
    let Abilities { probe: Some(probe), writer: Some(writer), .. } = &beneath.abilities else {
        return Err(Failure::usage(format!("{uri} is on this machine, and needs no journal")));
    };
    let Some(token) = writer.reserved() else {
        if let Some(declined) = &options.declined {
            let _ = declined.set(());
        }
        return Err(Failure::new("nothing would show that nobody else has written since a crash")
            .because("the target has no persistent reservations")
            .hint("leave --journal out"));
    };
    let JournalOptions { source, flush, max_age, declined, .. } = options;
    let (label, place) = label(uri, &**probe, &beneath.volume).await?;
    let shape = beneath.volume.shape();
    let (file, found) = source.open(shape.size).await?;
    let former = found.as_ref().map(|(_, found)| found.superblock.id);
    let is_other = |found: &Recovered| found.superblock.volume.name != label.name();
    if writers == Writers::One && found.as_ref().is_some_and(|(_, found)| is_other(found)) {
        // Whatever comes of it, this one is not to stay reserved for what is to be sent to another. A take-over has what was left
        // by the writer before to guard.
        let _ = writer.journal_sent(file.path());
    }
    let how = (writers.continues(), declined.is_some());
    // What was there before the volume had its header, or is to be written there, is no checkpoint.
    let place = place.filter(|place| {
        found.as_ref().is_none_or(|(there, found)| {
            let is_new = found.changes.is_empty();
            is_new || (there.luks_uuid == label.luks_uuid && !checkpoint::is_changed(*place, found))
        })
    });
    let recovered = taken(&file, found, &beneath.volume, (&label, place), how).await?;
    // Of a volume that is used as it is stored its user may have written all that was sent. But where it is sent by force, what
    // is there may say of another life of the journal what the volume has.
    let is_forced = !writers.continues();
    let may_begin = is_decrypted || is_forced || recovered.changes.is_empty();
    let has_checkpoint =
        may_begin && checkpoint::begin(&beneath.volume, place, (&file, &recovered)).await?;
    note(beneath, (&recovered, former), token).await;
    // Before anything is accepted: an attachment without the journal must be told. From here on nothing fails.
    writer.guard_journal(file.path()).or_fail(|| "cannot note it".to_owned())?;
    let replayed = recovered.changes.len();
    // What it holds is for a volume of that size: one that has grown since is as large as it is once it holds nothing.
    let size = recovered.superblock.volume.size;
    if replayed > 0 {
        let path = file.path().shown();
        print_error(&format_args!(
            "longhaul: {uri}: {replayed} changes in the journal {path} are to be sent"
        ));
    }
    let state = Arc::clone(probe);
    let options = LayerOptions {
        settings: Settings::DEFAULT,
        flush,
        max_age,
        unsolicited: probe.unsolicited(),
        is_fence: Arc::new(move |_| state.state() == scsi::State::Over(Over::Fenced)),
        checkpoint: place.filter(|_| is_decrypted && has_checkpoint),
    };
    let inner = LimitedReads::over(Arc::clone(&beneath.volume), Arc::clone(probe), limit, size);
    let path = file.path().to_owned();
    let file: Arc<dyn JournalFile> = Arc::new(file);
    let runtime = runtime();
    let (layer, worker) = Journaled::new(inner, file, &recovered, token, options, runtime);
    let layer = Arc::new(layer);
    let volume = Arc::new(Gate::new(JOURNAL, Arc::clone(&layer)));
    let running = Running {
        layer,
        worker: tokio::spawn(worker),
        store: Arc::clone(&beneath.volume),
        writer: Arc::clone(writer),
        path,
        uri: uri.clone(),
    };
    Ok(Opened { worker: Some(Box::new(running)), ..beneath.layer(volume) })
}

/// What is used of the journal that was found. One that holds nothing, and does not fit, is begun anew.
async fn taken(
    file: &OpenFile,
    found: Option<(Label, Recovered)>,
    volume: &Arc<dyn Volume>,
    (label, place): (&Label, Option<Span>),
    (is_resumed, is_default): (bool, bool),
) -> Outcome<Recovered> {
    let shape = volume.shape();
    let Some((there, mut found)) = found else { return begin(file, label, shape).await };
    if !fits(&there, &found, label, shape, is_default)? {
        return begin(file, label, shape).await;
    }
    if found.changes.is_empty() {
        if !checkpoint::is_older(volume, place, &found, file.path()).await? {
            return Ok(found);
        }
        // Under its id the newest one, should it come back, would pass for a later state of this one.
        return begin(file, label, shape).await;
    }
    if !is_resumed {
        // Whose attachment it is from may have encrypted it. Nobody else has while it is reserved for that.
        refuse_other_header(&there, label)?;
        checkpoint::warn(volume, place, &found, file.path()).await?;
    } else {
        checkpoint::check(volume, place, &mut found).await?;
    }
    Ok(found)
}

/// Says in the header of an encrypted volume that it may lack what is in the journal. What the journal holds may be of the
/// header: that is there already then, and what says so too. One that was begun anew, since it held nothing, had another id,
/// which the header may name still.
async fn note(beneath: &Opened, (recovered, former): (&Recovered, Option<[u8; 16]>), key: u64) {
    if !recovered.changes.is_empty() {
        return;
    }
    let Superblock { id, ring_len, .. } = &recovered.superblock;
    if let Ok(Some(found)) = luks::journal_token(&beneath.volume).await
        && !found.is_of(id)
        && !former.is_some_and(|former| found.is_of(&former))
    {
        print_error(&format_args!("longhaul: {}; {LEFT_THERE}", found.describe()));
    }
    let token = luks::JournalToken::new(id, key, *ring_len);
    if let Err(why) = luks::put_journal_token(&beneath.volume, Some(token)).await {
        tracing::warn!(%why, "the header does not say that the volume has a journal");
    }
}

/// A volume that was taken over by somebody without a journal: says what the writer before had in one.
async fn forget_other(beneath: &Opened) {
    let Ok(Some(found)) = luks::journal_token(&beneath.volume).await else { return };
    print_error(&format_args!("longhaul: {}; {LEFT_THERE}", found.describe()));
    if let Err(why) = luks::put_journal_token(&beneath.volume, None).await {
        tracing::warn!(%why, "the header still says that the volume has a journal");
    }
}

/// What a volume lacked that was taken over.
const LEFT_THERE: &str =
    "what the volume lacks of them stays there, and `longhaul journal export` there saves it";

/// What tells this volume from others, and where it has room for the checkpoint of its journal.
async fn label(
    uri: &Uri,
    probe: &dyn Probe,
    volume: &Arc<dyn Volume>,
) -> Outcome<(Label, Option<Span>)> {
    let found = timeout(SEEN_WITHIN, luks::identity(volume)).await;
    let late = || format!("the header is not read within {SEEN_WITHIN:?}");
    let found = found.or_fail(late).map_err(Failure::fleeting)?;
    let what = || format!("cannot tell whether {uri} is encrypted");
    let luks = found.map_err(|why| Failure::of_volume(what(), why))?;
    let room = luks.checkpoint.and_then(|at| checkpoint::span(at, &**volume));
    let (unit, place) = (probe.inquiry(), probe.place());
    let label = Label {
        volume: uri.to_string(),
        target: place.target,
        lun: place.lun,
        serial: unit.serial,
        vendor: unit.vendor,
        product: unit.product,
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        created: now(),
        luks_uuid: luks.uuid,
    };
    Ok((label, room))
}

/// Refuses a volume that was encrypted, or given another header, after the journal was made: what that holds would
/// destroy the header, or is nothing under the key of the new one.
fn refuse_other_header(there: &Label, here: &Label) -> Outcome {
    let why = match (&there.luks_uuid, &here.luks_uuid) {
        (there, here) if there == here => return Ok(()),
        (None, here) => {
            let here = here.as_deref().unwrap_or_default();
            format!("it was encrypted since (LUKS UUID {here}): what it holds now would be lost")
        }
        (Some(there), Some(here)) => {
            format!("its LUKS UUID is {here}, that of the journal's volume is {there}")
        }
        (Some(there), None) => {
            let why = format!(
                "it has no LUKS header that can be read; that of the journal's volume has the LUKS UUID {there}"
            );
            return Err(Failure::new("cannot tell whether this is the volume of the journal")
                .because(why)
                .hint("`longhaul key restore` brings the header back from a backup"));
        }
    };
    Err(Failure::new("this is not the volume of the journal any more").because(why).hint(
        "the journal belongs to what the volume held before: `longhaul journal discard --lose` removes it if that is \
         not needed",
    ))
}

/// Whether a journal can be used for a volume as it is. One that holds nothing is begun anew for one that has grown, or
/// has another header; one that holds something is emptied before, at the size that the volume had. It is begun anew for
/// another volume too where nobody has named the file (`is_default`): it lies where the journal of what has this name lies, and
/// the server has another volume under that now.
fn fits(
    there: &Label,
    found: &Recovered,
    label: &Label,
    shape: &Shape,
    is_default: bool,
) -> Outcome<bool> {
    let Identity { name, size, block_size } = found.superblock.volume;
    if name != label.name() {
        if is_default && found.changes.is_empty() {
            return Ok(false);
        }
        let serial = |label: &Label| label.serial.clone().unwrap_or_else(|| "none".to_owned());
        let (its, this) = (serial(there), serial(label));
        let why =
            format!("it is for {} (serial number {its}; that of this one is {this})", there.volume);
        return Err(Failure::new("it is for another volume")
            .because(why)
            .hint("name another file; `longhaul journal status FILE` shows what it holds"));
    }
    let is_same = (size, block_size) == (shape.size, shape.block_size);
    let has_grown = block_size == shape.block_size && size < shape.size;
    if has_grown && !found.changes.is_empty() {
        return Ok(true);
    }
    if !is_same && !found.changes.is_empty() {
        let why = format!("it is for {size} bytes, and the volume has {}", shape.size);
        return Err(Failure::new("the volume has another size")
            .because(why)
            .hint("`longhaul journal export` saves what it holds for `longhaul replay`"));
    }
    Ok(is_same && (!found.changes.is_empty() || there.luks_uuid == label.luks_uuid))
}

async fn begin(file: &OpenFile, label: &Label, shape: &Shape) -> Outcome<Recovered> {
    let begun = file.begin(label, shape.size, shape.block_size).await;
    begun.or_fail(|| "cannot write it".to_owned())?;
    let (_, recovered) = file.read_all().await.or_fail(|| "cannot read it".to_owned())?;
    Ok(recovered)
}

/// A journal and the task that works for it.
struct Running {
    layer: Arc<Journaled>,
    worker: JoinHandle<LayerStatus>,
    store: Arc<dyn Volume>,
    writer: Arc<dyn OneWriter>,
    path: PathBuf,
    uri: Uri,
}

/// Tells how a journal is.
struct Observer {
    layer: Weak<Journaled>,
    path: PathBuf,
}

impl WorkerStatus for Observer {
    fn pending(&self) -> u64 {
        0
    }

    fn failure(&self) -> Option<String> {
        self.layer.upgrade()?.status().failure.map(|why| why.to_string())
    }

    fn settle(&self) -> bool {
        self.layer.upgrade().is_some_and(|layer| layer.record())
    }

    fn journal(&self) -> Option<JournalStatus> {
        Some(JournalStatus::new(&self.path, &self.layer.upgrade()?.status()))
    }
}

impl Worker for Running {
    fn status(&self) -> Arc<dyn WorkerStatus> {
        Arc::new(Observer { layer: Arc::downgrade(&self.layer), path: self.path.clone() })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Option<Failure>> {
        Box::pin(async move {
            let Self { layer, worker, store, writer, path, uri } = *self;
            debug_assert_eq!(Arc::strong_count(&layer), 1, "the worker waits for the last holder");
            drop(layer);
            match worker.await {
                Ok(status) => {
                    if is_sent(&status)
                        && let Err(why) = luks::put_journal_token(&store, None).await
                    {
                        tracing::warn!(%why, "the header still says that the volume has a journal");
                    }
                    ended(&status, &*writer, &path, &uri)
                }
                Err(why) => {
                    let what = format!("{uri} may lack what is in the journal {}", path.shown());
                    Some(Failure::new(what).because(why))
                }
            }
        })
    }
}

/// Whether the volume has everything.
fn is_sent(status: &LayerStatus) -> bool {
    status.mode == Mode::Direct || status.journal.state == State::Clean
}

/// Gives up the guard of a journal whose volume has everything; otherwise tells what it holds.
fn ended(status: &LayerStatus, writer: &dyn OneWriter, path: &Path, uri: &Uri) -> Option<Failure> {
    if is_sent(status) {
        if let Err(why) = writer.journal_sent(path) {
            tracing::warn!(%why, "the note of this attachment still names the journal");
        }
        return None;
    }
    let (unsent, quoted, path) = (status.journal.unsent, path.quoted(), path.shown());
    let failure = status.failure.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
    Some(Failure::new(match status.journal.state {
        State::Frozen => format!(
            "{uri} was taken over: {unsent} changes that it lacks stay in the journal {path}, which is frozen: \
             `longhaul journal export` saves them"
        ),
        _ => format!(
            "{uri} lacks {unsent} changes that are in the journal {path}{failure}: attach it with this journal again, or \
             `longhaul journal drain {quoted}` sends them"
        ),
    }))
}
