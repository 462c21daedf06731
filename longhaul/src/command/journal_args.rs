//! The option that gives a volume a journal.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;
use volume::layer::journal::{FlushPolicy, SuperblockState};

use crate::chain::JournalOptions;
use crate::failure::{Failure, OrFail, Outcome, print_error};
use crate::printable::Shown as _;
use crate::reconnect_limit::ReconnectLimit;
use crate::size::Size;
use crate::store::journal_file::{JournalError, LEAST, OpenFile};

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
    /// room. The file is made, 1G or `size`, if it is missing. `flush=remote` has flushes wait for the volume too;
    /// `max-age` has writers wait while the volume lacks something older
    #[arg(
        long,
        value_name = "PATH[,size=SIZE][,flush=local|remote][,max-age=TIME]",
        conflicts_with_all = ["read_only", "shared", "replay_log"]
    )]
    journal: Option<JournalSpec>,
    /// The file was made by this process.
    #[arg(skip)]
    made: OnceLock<()>,
}

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

impl JournalArgs {
    /// Whether there is to be one.
    pub(super) const fn is_given(&self) -> bool {
        self.journal.is_some()
    }

    /// Opens the file, or makes it.
    pub(super) async fn open(&self) -> Outcome<Option<JournalOptions>> {
        let Some(spec) = self.journal.clone() else { return Ok(None) };
        let what = || format!("cannot use the journal {}", spec.path.shown());
        let made = spec.clone();
        let file = tokio::task::spawn_blocking(move || made.open_or_make());
        let (file, is_made) = file.await.or_fail(what)?.or_fail(what)?;
        if is_made {
            let _ = self.made.set(());
        }
        if let Some(size) = spec.size.filter(|size| size.0 != file.len()) {
            let why = format!("it has {} bytes, not {size}", Size(file.len()));
            return Err(Failure::usage(what())
                .because(why)
                .hint("leave size= out, or name another file"));
        }
        let found = match file.read_all().await {
            Err(JournalError::Blank) => None,
            found => Some(found.map_err(|why| damaged(what(), why))?),
        };
        if found
            .as_ref()
            .is_some_and(|(_, found)| found.superblock.state == SuperblockState::Frozen)
        {
            return Err(frozen(what()));
        }
        let JournalSpec { flush, max_age, .. } = spec;
        Ok(Some(JournalOptions { file, found, flush, max_age, outlasts_outages: true }))
    }

    /// The volume was not opened after all: a file that was made for it, and holds nothing, is removed.
    pub(super) async fn discard_made(&self) {
        let (Some(spec), Some(())) = (&self.journal, self.made.get()) else { return };
        if let Err(why) = remove_unused(spec.path.clone()).await {
            let path = spec.path.shown();
            tracing::debug!(%path, %why, "a journal that was made for nothing stays");
        }
    }
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
