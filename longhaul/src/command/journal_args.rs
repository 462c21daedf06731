//! The option that gives a volume a journal.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use volume::layer::journal::{FlushPolicy, Recovered, SuperblockState};

use crate::chain::{JournalOptions, JournalSource};
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::printable::Shown as _;
use crate::reconnect_limit::ReconnectLimit;
use crate::size::Size;
use crate::store::journal_file::{JournalError, LEAST, OpenFile};

/// In the place of a file: no journal.
const NONE: &str = "none";

/// How large a journal is made, if nothing else is said.
const SIZE: Size = Size(1 << 30);

/// A journal of this size takes a while to prepare.
const LARGE: u64 = 256 << 20;

/// Whether a volume has a journal.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Journal (volumes behind a network)")]
pub(super) struct JournalArgs {
    /// Keep changes in this file of a local disk until the volume has them: a flush waits for this disk and not for the
    /// network, what was flushed survives a crash of this machine, and writers do not notice an outage as long as there is
    /// room. The file is made, 1G or `size`, if it is missing; `none` stands for no journal. `flush=remote` has flushes wait for the volume too;
    /// `max-age` has writers wait while the volume lacks something older
    #[arg(
        long,
        value_name = "PATH[,size=SIZE][,flush=local|remote][,max-age=TIME]",
        conflicts_with_all = ["read_only", "shared", "replay_log"]
    )]
    journal: Option<JournalSpec>,
    /// What is made without being asked for.
    #[arg(skip)]
    default: OnceLock<PathBuf>,
    /// The file was made by this process.
    #[arg(skip)]
    made: Arc<OnceLock<()>>,
    /// The volume can have none.
    #[arg(skip)]
    declined: Arc<OnceLock<()>>,
    /// When flushes are answered by the one that was opened.
    #[arg(skip)]
    opened: OnceLock<FlushPolicy>,
}

/// How large a journal is made without being asked for: an eighth of the room on its disk, and not more than this.
const DEFAULT_MOST: u64 = 8 << 30;

/// Where there is room for less, none is made without being asked for.
const DEFAULT_LEAST: u64 = 64 << 20;

/// What it means that there is none.
const WITHOUT: &str = "a flush waits for the network, and what was not flushed is lost if this machine crashes; \
                       --journal PATH names a file on another disk";

/// What was said of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JournalSpec {
    path: PathBuf,
    size: Option<Size>,
    flush: FlushPolicy,
    max_age: Option<Duration>,
}

impl FromStr for JournalSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let path = parts.next().filter(|path| !path.is_empty()).ok_or("it names no file")?;
        let path = PathBuf::from(path);
        let mut spec = Self { path, size: None, flush: FlushPolicy::Local, max_age: None };
        for part in parts {
            match part.split_once('=') {
                Some(("size", size)) => {
                    spec.size = Some(size.parse().map_err(|why| format!("{why}"))?);
                }
                Some(("flush", "local")) => spec.flush = FlushPolicy::Local,
                Some(("flush", "remote")) => spec.flush = FlushPolicy::Remote,
                Some(("max-age", age)) => {
                    let age: ReconnectLimit = age.parse().map_err(|why| format!("{why}"))?;
                    spec.max_age = age.0;
                }
                _ => {
                    let known = "size=SIZE, flush=local, flush=remote and max-age=TIME";
                    return Err(format!("`{part}` is not known: there are {known}"));
                }
            }
        }
        match spec.size {
            Some(size) if size.0 < LEAST => {
                Err(format!("size={size}: {} is the least", Size(LEAST)))
            }
            _ => Ok(spec),
        }
    }
}

/// Whether a file at `path` would lie in memory: nothing of it is left after a crash.
fn goes_with_a_crash(path: &Path) -> bool {
    // tmpfs and ramfs, include/uapi/linux/magic.h.
    const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58F6];
    let nearest = path.ancestors().skip(1).find(|directory| directory.exists());
    let found = nearest.and_then(|directory| rustix::fs::statfs(directory).ok());
    found.is_some_and(|found| IN_MEMORY.contains(&found.f_type))
}

impl JournalArgs {
    /// Whether there is to be one.
    pub(super) fn is_given(&self) -> bool {
        self.spec().is_some()
    }

    /// What was said of one, if one is wanted.
    fn spec(&self) -> Option<&JournalSpec> {
        self.journal.as_ref().filter(|spec| spec.path != Path::new(NONE))
    }

    /// Unless something was said of one, there is one at `path`, made if there is room.
    pub(super) fn set_default(&self, path: PathBuf) {
        if self.journal.is_none() {
            let _ = self.default.set(path);
        }
    }

    /// The one that nobody asked for, if it is there or there is room to make it.
    async fn open_default(&self, path: PathBuf) -> Outcome<Option<JournalOptions>> {
        if self.declined.get().is_some() {
            return Ok(None);
        }
        let found = path.exists();
        let made = Arc::clone(&self.made);
        let source = match found {
            true => open_found(&path).await.map_err(|why| {
                why.hint_if_any("`longhaul journal status` shows what it holds, `--journal none` goes on without it")
            })?,
            false if goes_with_a_crash(&path) => {
                let path = path.shown();
                tracing::warn!(%path, "no journal is made, since its directory lies in memory: {WITHOUT}");
                return Ok(None);
            }
            false => {
                let size = (room_beside(&path) / 8).min(DEFAULT_MOST);
                if size < DEFAULT_LEAST {
                    let (path, least) = (path.shown(), Size(8 * DEFAULT_LEAST));
                    tracing::warn!(%path, "no journal is made, since less than {least} are free there: {WITHOUT}");
                    return Ok(None);
                }
                JournalSource::Missing { path, size, made }
            }
        };
        let declined = Some(Arc::clone(&self.declined));
        let (flush, max_age) = (FlushPolicy::Local, None);
        Ok(Some(JournalOptions { source, declined, flush, max_age, outlasts_outages: true }))
    }

    /// Whether the volume turned out to be one that can have none, and nobody asked for one.
    pub(super) fn is_declined(&self) -> bool {
        self.declined.get().is_some()
    }

    /// Whether there is one, in use, that makes a write stable on this machine.
    pub(super) fn is_stable(&self) -> bool {
        !self.is_declined() && self.opened.get() == Some(&FlushPolicy::Local)
    }

    /// Opens the file, or makes it.
    pub(super) async fn open(&self) -> Outcome<Option<JournalOptions>> {
        let options = self.open_wanted().await?;
        if let Some(options) = &options {
            let _ = self.opened.set(options.flush);
        }
        Ok(options)
    }

    async fn open_wanted(&self) -> Outcome<Option<JournalOptions>> {
        let Some(spec) = self.spec().cloned() else {
            return match self.default.get() {
                Some(path) => self.open_default(path.clone()).await,
                None => Ok(None),
            };
        };
        let what = || cannot_use(&spec.path);
        let made = spec.clone();
        let file = tokio::task::spawn_blocking(move || made.open_or_make());
        let (file, is_made) = file.await.or_fail(what)?.map_err(|why| unusable(&spec.path, why))?;
        if is_made {
            let _ = self.made.set(());
        }
        if let Some(size) = spec.size.filter(|size| size.0 != file.len()) {
            let why = format!("it has {} bytes, not {size}", Size(file.len()));
            return Err(Failure::usage(what())
                .because(why)
                .hint("leave size= out, or name another file"));
        }
        let source = read_found(file).await?;
        let JournalSpec { flush, max_age, .. } = spec;
        let outlasts_outages = true;
        Ok(Some(JournalOptions { source, declined: None, flush, max_age, outlasts_outages }))
    }

    /// The volume was not opened after all: a file that was made for it, and holds nothing, is removed.
    pub(super) async fn discard_made(&self) {
        let path = self.spec().map(|spec| &spec.path).or_else(|| self.default.get());
        let (Some(path), Some(())) = (path, self.made.get()) else { return };
        if let Err(why) = remove_unused(path.clone()).await {
            let path = path.shown();
            tracing::debug!(%path, %why, "a journal that was made for nothing stays");
        }
    }
}

fn cannot_use(path: &Path) -> String {
    format!("cannot use the journal {}", path.shown())
}

async fn open_found(path: &Path) -> Outcome<JournalSource> {
    let (what, at) = (|| cannot_use(path), path.to_owned());
    let file = tokio::task::spawn_blocking(move || OpenFile::open(&at)).await;
    read_found(file.or_fail(what)?.map_err(|why| unusable(path, why))?).await
}

/// Why a journal cannot be used: for now, if somebody looks at it.
fn unusable(path: &Path, why: JournalError) -> Failure {
    let is_in_use = matches!(why, JournalError::InUse);
    Failure::new(cannot_use(path)).because(why).fleeting_if(is_in_use)
}

/// Reads a journal that is to be used.
async fn read_found(file: OpenFile) -> Outcome<JournalSource> {
    let what = || cannot_use(file.path());
    let found = match file.read_all().await {
        Err(JournalError::Blank) => None,
        found => Some(found.map_err(|why| damaged(what(), why))?),
    };
    let is_frozen = |(_, found): &(_, Recovered)| found.superblock.state == SuperblockState::Frozen;
    if found.as_ref().is_some_and(is_frozen) {
        return Err(frozen(what()));
    }
    Ok(JournalSource::Found { file, found: found.map(Box::new) })
}

/// Bytes that are left on the disk where `path` will be.
fn room_beside(path: &Path) -> u64 {
    let there = path.ancestors().skip(1).find_map(|dir| rustix::fs::statvfs(dir).ok());
    there.map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize))
}

/// Removes a journal that is for no volume yet, or says that its volume has everything: then no note names it.
async fn remove_unused(path: PathBuf) -> Result<(), JournalError> {
    let opened = path.clone();
    let file = tokio::task::spawn_blocking(move || OpenFile::open(&opened)).await;
    let file = file.map_err(std::io::Error::other)??;
    let is_unused = match file.read_all().await {
        Err(JournalError::Blank) => true,
        Err(why) => return Err(why),
        Ok((_, found)) => found.superblock.state == SuperblockState::Clean,
    };
    if is_unused {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// A journal that cannot be read as it should be.
pub(super) fn damaged(what: String, why: JournalError) -> Failure {
    let is_corrupt = matches!(why, JournalError::Corrupt(_));
    let failure = Failure::new(what).because(why);
    match is_corrupt {
        true => failure.hint(
            "nothing was changed and nothing is sent; `longhaul journal salvage` saves what stands before the damage",
        ),
        false => failure.hint("name another file, or remove this one if it is not needed"),
    }
}

/// A journal whose volume another writer took.
pub(super) fn frozen(what: String) -> Failure {
    Failure::new(what).because("it is frozen: another writer took the volume over").hint(
        "`longhaul journal export` saves what it holds, `longhaul journal discard` removes it",
    )
}

impl JournalSpec {
    /// The file, and whether it was made.
    fn open_or_make(&self) -> Result<(OpenFile, bool), JournalError> {
        match OpenFile::open(&self.path) {
            Err(JournalError::Io(why)) if why.kind() == std::io::ErrorKind::NotFound => {
                let size = self.size.unwrap_or(SIZE);
                if size.0 >= LARGE {
                    let path = self.path.shown();
                    print_error(&format_args!(
                        "longhaul: the journal {path} is made: {size} are written once"
                    ));
                }
                OpenFile::create(&self.path, size.0).map(|made| (made, true))
            }
            opened => opened.map(|found| (found, false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journal_is_read_as_it_is_written() {
        let all: JournalSpec = "a/b,size=8G,flush=remote,max-age=2h".parse().unwrap();
        let expected = JournalSpec {
            path: "a/b".into(),
            size: Some(Size(8 << 30)),
            flush: FlushPolicy::Remote,
            max_age: Some(Duration::from_secs(7200)),
        };
        assert_eq!(all, expected);
        let plain: JournalSpec = "j".parse().unwrap();
        assert_eq!((plain.size, plain.flush, plain.max_age), (None, FlushPolicy::Local, None));
    }

    #[test]
    fn unknown_part_of_a_journal_option_is_refused() {
        for text in
            ["", ",size=8G", "j,size=1M", "j,size=x", "j,flush=never", "j,max-age=soon", "j,fast"]
        {
            assert!(text.parse::<JournalSpec>().is_err(), "{text}");
        }
    }
}
