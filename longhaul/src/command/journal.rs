//! `longhaul journal`: what a journal holds, and what becomes of it.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::Subcommand;
use serde::Serialize;
use volume::layer::journal::{
    Corruption, FlushPolicy, JournalFile as _, Recovered, RecoveredChange, RecoveredContent,
    SuperblockState, salvage,
};

use super::journal_args::{damaged, frozen};
use super::named;
use super::options::{LoginArgs, OutageArgs};
use super::unsent::sender_of;
use crate::attachments;
use crate::chain::{self, Contents, JournalOptions, JournalSource, OpenOptions};
use crate::durable::sync_directory_of;
use crate::explain::{NOT_RESUMED, NOT_RESUMED_BUT_HELD};
use crate::failure::{Failure, OrFail, Outcome};
use crate::journals;
use crate::printable::{OneLine, Quoted as _, Shown as _};
use crate::replay_log::{Change, Header, Saved, Writer};
use crate::size::Size;
use crate::state_dir::state_dir;
use crate::store::iscsi::{ReplayedLog, Writers};
use crate::store::journal_file::{JournalError, Label, OpenFile};
use crate::uri::Uri;
use crate::utc::utc;

/// Look at the journal of a volume, send what it holds, or save it elsewhere
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  longhaul journal status /var/lib/longhaul/backup.journal
  longhaul journal drain /var/lib/longhaul/backup.journal
  longhaul journal export /var/lib/longhaul/backup.journal /tmp

A journal is used by `longhaul attach --journal`, which sends by itself what an earlier attachment has left. It holds the
bytes as they are sent: of an encrypted volume ciphertext, so that no pass-phrase is asked for here.";

#[derive(Debug, Subcommand)]
enum Action {
    /// Show for which volume it is and what it holds
    Status {
        /// The journal, or the name that `mount` remembers its volume by
        #[arg(value_parser = named::journal)]
        file: PathBuf,
        /// Print one JSON object, with sizes in bytes and times in seconds since 1970
        #[arg(long)]
        json: bool,
    },
    /// Send what it holds to its volume
    Drain(Box<Drain>),
    /// Save what it holds in a replay log, for `longhaul replay`; the journal stays as it is
    Export {
        /// The journal, or the name that `mount` remembers its volume by
        #[arg(value_parser = named::journal)]
        file: PathBuf,
        /// The directory of the replay log
        dir: PathBuf,
    },
    /// The same of a journal that is damaged: what stands before the damage
    Salvage {
        /// The journal, or the name that `mount` remembers its volume by
        #[arg(value_parser = named::journal)]
        file: PathBuf,
        /// The directory of the replay log
        dir: PathBuf,
    },
    /// Remove it
    Discard {
        /// The journal, or the name that `mount` remembers its volume by
        #[arg(value_parser = named::journal)]
        file: PathBuf,
        /// Even if it holds what its volume lacks, which is LOST then
        #[arg(long)]
        lose: bool,
    },
}

#[derive(Debug, clap::Args)]
struct Drain {
    /// The journal, or the name that `mount` remembers its volume by
    #[arg(value_parser = named::journal)]
    file: PathBuf,
    /// The volume; the one that the journal names if it is left out
    #[arg(value_parser = named::volume)]
    uri: Option<Uri>,
    /// Send it although others may have written to the volume since: it is not reserved any more for the attachment that
    /// the journal is from
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
}

/// Does it.
pub async fn run(args: Args) -> Outcome {
    match args.action {
        Action::Status { file, json } => status(&file, json).await,
        Action::Drain(drain) => drain.run().await,
        Action::Export { file, dir } => export(&file, dir).await,
        Action::Salvage { file, dir } => salvaged(&file, dir).await,
        Action::Discard { file, lose } => discard(&file, lose).await,
    }
}

/// What is printed.
#[derive(Serialize)]
struct JournalReport {
    #[serde(flatten)]
    label: Label,
    /// Bytes of the file.
    size: u64,
    /// `clean`, `open`, `frozen`, `in use` or `damaged`.
    state: &'static str,
    /// Changes that the volume may lack; unknown of one whose user does not answer.
    unsent: Option<usize>,
    /// Bytes of their data.
    bytes: Option<u64>,
    /// What is wrong with it.
    damage: Option<String>,
}

impl JournalReport {
    fn text(&self) -> String {
        let Self { label, size, state, unsent, bytes, damage } = self;
        let Label { volume, serial, vendor, product, host, created, .. } = label;
        let serial = serial.as_deref().unwrap_or("none");
        // A file from elsewhere must not add lines of its own.
        let [volume, vendor, product, serial, host] =
            [volume, vendor, product, serial, host].map(OneLine);
        let mut text = format!(
            "{volume}\n  device    {vendor} {product}, serial {serial}\n  made      {} on {host}\n  size      {}\n  \
             state     {state}",
            utc(*created),
            Size(*size)
        );
        if let Some(unsent) = unsent {
            let bytes = bytes.map_or_else(String::new, |bytes| format!(" ({} bytes)", Size(bytes)));
            text += &format!("\n  holds     {unsent} changes{bytes} that the volume may lack");
        }
        if let Some(damage) = damage {
            text += &format!("\n  DAMAGED   {damage}");
        }
        text
    }
}

async fn status(file: &Path, json: bool) -> Outcome {
    let what = || format!("cannot read the journal {}", file.shown());
    let (open, is_used) = match open_to_read(file).await {
        Err(JournalError::InUse) => (OpenFile::open_unlocked(file).or_fail(what)?, true),
        opened => (opened.or_fail(what)?, false),
    };
    let label = open.label().await.or_fail(what)?;
    let mut report = JournalReport {
        label,
        size: open.len(),
        state: "in use",
        unsent: None,
        bytes: None,
        damage: None,
    };
    if is_used {
        report.unsent = sender_of(file).await.and_then(|sender| sender.changes.try_into().ok());
    } else {
        match open.read_all().await {
            Ok((_, found)) => {
                report.state = match found.superblock.state {
                    SuperblockState::Clean => "clean",
                    SuperblockState::Open => "open",
                    SuperblockState::Frozen => "frozen: another writer took the volume over",
                };
                report.unsent = Some(found.changes.len());
                report.bytes = Some(bytes_of(&found));
            }
            Err(JournalError::Corrupt(why)) => {
                report.state = "damaged";
                report.damage = Some(why.to_string());
            }
            Err(why) => return Err(damaged(what(), why)),
        }
    }
    if json { super::say_json(&report) } else { super::say(&report.text()) }?;
    match report.damage {
        None => Ok(()),
        Some(damage) => Err(Failure::new(format!("{} is damaged", file.shown()))
            .because(damage)
            .hint("`longhaul journal salvage` saves what can be read")),
    }
}

async fn open_to_read(file: &Path) -> Result<OpenFile, JournalError> {
    let file = file.to_owned();
    let opened = tokio::task::spawn_blocking(move || OpenFile::open_to_read(&file)).await;
    opened.map_err(|why| JournalError::Io(std::io::Error::other(why)))?
}

async fn open_alone(file: &Path) -> Result<OpenFile, JournalError> {
    let file = file.to_owned();
    let opened = tokio::task::spawn_blocking(move || OpenFile::open(&file)).await;
    opened.map_err(|why| JournalError::Io(std::io::Error::other(why)))?
}

fn bytes_of(found: &Recovered) -> u64 {
    let bytes = |change: &RecoveredChange| match change.content {
        RecoveredContent::Write(extent) => extent.len,
        RecoveredContent::Zero(_) | RecoveredContent::Discard => 0,
    };
    found.changes.iter().map(bytes).sum()
}

impl Drain {
    async fn run(self) -> Outcome {
        let what = || format!("cannot drain the journal {}", self.file.shown());
        let opened = open_alone(&self.file).await.or_fail(what)?;
        let (label, found) = opened.read_all().await.map_err(|why| damaged(what(), why))?;
        if found.superblock.state == SuperblockState::Frozen {
            return Err(frozen(what()));
        }
        let (changes, bytes, token) =
            (found.changes.len(), bytes_of(&found), found.superblock.token);
        let nothing = format!("{} holds nothing that {} lacks", self.file.shown(), label.volume);
        // One that does not say so itself is still noted, and its volume reserved for it.
        if changes == 0 && found.superblock.state == SuperblockState::Clean {
            return super::say(&nothing);
        }
        let uri = match &self.uri {
            Some(uri) => uri.clone(),
            None => label
                .volume
                .parse()
                .or_fail(|| format!("cannot tell the volume from {}: name it", label.volume))?,
        };
        let path = opened.path().to_owned();
        let journal = JournalOptions {
            source: JournalSource::Found { file: opened, found: Some(Box::new((label, found))) },
            declined: None,
            flush: FlushPolicy::Remote,
            max_age: None,
            outlasts_outages: false,
        };
        // Where there is nothing to send nobody can have written what it would replace.
        let resumed = (!self.force && changes > 0).then_some(token);
        let stop = super::stop_on_signals()?;
        let options = OpenOptions {
            login: self.login.login_to(&[&uri]).await?,
            reconnect_limit: self.outage.reconnect_limit().unwrap_or_default(),
            writers: resumed.map_or(Writers::One, Writers::Resume),
            replays: Some(ReplayedLog { key: Some(token), file: path.clone() }),
            // What it holds is what was sent, so of an encrypted volume ciphertext.
            contents: Contents::Raw { overwrite: true },
            journal: Some(journal),
            stop: stop.clone(),
            ..OpenOptions::default()
        };
        let opened = chain::open(&uri, options).await;
        let chain = opened.map_err(|why| if resumed.is_some() { not_resumed(why) } else { why })?;
        chain.leave_on(stop);
        chain.close().await?;
        match journals::is_sent(&path) {
            true if changes == 0 => super::say(&nothing),
            true => super::say(&format!(
                "sent {changes} changes ({} bytes) to {uri}; flushed",
                Size(bytes)
            )),
            false => Err(Failure::new(what())
                .because("not all of it could be sent")
                .hint("the journal keeps it: the same command goes on with it")),
        }
    }
}

/// What to do about a journal whose volume others may have written to. Nothing is to be forced where the server is only away.
pub(super) fn not_resumed(why: Failure) -> Failure {
    why.hint_instead_of(
        &[NOT_RESUMED, NOT_RESUMED_BUT_HELD],
        "what the journal holds is sent only where nothing newer can be on the volume: `longhaul journal export` saves it, \
         `longhaul journal drain --force` sends it all the same, and `longhaul journal discard --lose` removes it",
    )
}

async fn export(file: &Path, dir: PathBuf) -> Outcome {
    let what = || format!("cannot export the journal {}", file.shown());
    let open = open_to_read(file).await.or_fail(what)?;
    let (label, found) = open.read_all().await.map_err(|why| damaged(what(), why))?;
    let saved = save(&open, &label, &found, dir).await.map_err(|why| why.within(&what()))?;
    say_saved(&saved, found.changes.len())
}

async fn salvaged(file: &Path, dir: PathBuf) -> Outcome {
    let what = || format!("cannot salvage the journal {}", file.shown());
    let open = open_to_read(file).await.or_fail(what)?;
    let label = open.label().await.map_err(|why| damaged(what(), why))?;
    let (found, damage): (Option<Recovered>, Option<Corruption>) = salvage(&open, open.len()).await;
    let Some(found) = found else {
        let why =
            damage.map_or_else(|| "nothing of it can be read".to_owned(), |why| why.to_string());
        return Err(Failure::new(what()).because(why));
    };
    let saved = save(&open, &label, &found, dir).await.map_err(|why| why.within(&what()))?;
    match damage {
        None => say_saved(&saved, found.changes.len()),
        Some(why) if saved.path.is_none() => {
            Err(Failure::new("nothing could be salvaged, and how much it held is not known")
                .because(why))
        }
        Some(why) => {
            say_saved(&saved, found.changes.len())?;
            Err(Failure::new("not all could be salvaged").because(why))
        }
    }
}

fn say_saved(saved: &Saved, changes: usize) -> Outcome {
    let Some(path) = &saved.path else {
        return super::say("it holds nothing that its volume lacks");
    };
    let (quoted, path, bytes) = (path.quoted(), path.shown(), Size(saved.bytes));
    super::say(&format!(
        "saved {changes} changes ({bytes} bytes) in {path}: `longhaul replay --force {quoted}` writes them"
    ))
}

/// How many changes may wait for the file of a replay log.
const SAVED_BEHIND: u64 = 256;

/// Writes the changes to a replay log.
async fn save(file: &OpenFile, label: &Label, found: &Recovered, dir: PathBuf) -> Outcome<Saved> {
    let volume = found.superblock.volume;
    let Label { volume: uri, target, lun, serial, vendor, product, host, created, luks_uuid } =
        label.clone();
    let header = Header {
        volume: uri,
        target,
        lun,
        serial,
        vendor,
        product,
        size: volume.size,
        block_size: volume.block_size,
        opened: created,
        created: 0,
        host,
        luks_uuid,
        key: None,
    };
    let mut log = Writer::new(dir, header, None).asked_for();
    for (number, change) in (1..).zip(&found.changes) {
        log.save(read(file, change).await?);
        // What it has not written yet is in memory.
        while log.saved().is_some_and(|saved| saved.changes + saved.lost + SAVED_BEHIND < number) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    let saved = match log.settled() {
        Some(settled) => settled.await,
        None => return Ok(Saved::default()),
    };
    if let Some(why) = &saved.why {
        return Err(
            Failure::new(format!("{} changes could not be saved", saved.lost)).because(why.clone())
        );
    }
    if let Some(path) = &saved.path {
        sync_directory_of(path).or_fail(|| "cannot make its name stable".to_owned())?;
    }
    Ok(saved)
}

async fn read(file: &OpenFile, change: &RecoveredChange) -> Outcome<Change> {
    Ok(match change.content {
        RecoveredContent::Zero(space) => Change::Zero { span: change.span, space },
        RecoveredContent::Discard => Change::Discard(change.span),
        RecoveredContent::Write(extent) => {
            let read = file.read(extent.offset, extent.len).await;
            let data: Bytes = read.or_fail(|| "cannot read it".to_owned())?;
            if !extent.verify(&data) {
                let why =
                    format!("{} bytes at byte {} are not those written", extent.len, extent.offset);
                return Err(Failure::new("it is damaged").because(why));
            }
            Change::Write { at: change.span.at, data }
        }
    })
}

async fn discard(file: &Path, lose: bool) -> Outcome {
    let what = || format!("cannot discard the journal {}", file.shown());
    let open = open_alone(file).await.or_fail(what)?;
    let token = match open.read_all().await {
        Err(JournalError::Blank) => None,
        Ok((label, found)) => {
            let unsent = found.changes.len();
            if unsent > 0 && !lose {
                let why = format!("it holds {unsent} changes that {} lacks", label.volume);
                return Err(Failure::usage(what()).because(why).hint(
                    "`longhaul journal drain` sends them, `longhaul journal export` saves them; --lose loses them",
                ));
            }
            Some(found.superblock.token)
        }
        Err(JournalError::Corrupt(_)) if lose => None,
        Err(why @ JournalError::Corrupt(_)) => {
            return Err(damaged(what(), why).hint("--lose removes it all the same"));
        }
        Err(why) => return Err(damaged(what(), why)),
    };
    std::fs::remove_file(file).or_fail(what)?;
    sync_directory_of(file).or_fail(what)?;
    if let (Some(token), Some(state)) = (token, state_dir()) {
        let forgotten = attachments::forget_log(&attachments::folder(&state), token, file);
        forgotten.or_fail(|| "it is removed, but its attachment is still noted".to_owned())?;
    }
    super::say_done(&format!("removed {}", file.shown()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_adds_no_lines_to_what_is_printed() {
        let label = Label {
            volume: "iscsi://a/b/0\nc".to_owned(),
            target: "b".to_owned(),
            lun: 0,
            serial: Some("s\nholds nothing".to_owned()),
            vendor: "V\r\n".to_owned(),
            product: "P\n".to_owned(),
            host: "h\n".to_owned(),
            created: 0,
            luks_uuid: None,
        };
        let (unsent, bytes, damage) = (Some(1), Some(4096), None);
        let report = JournalReport { label, size: 1 << 20, state: "open", unsent, bytes, damage };
        assert_eq!(report.text().lines().count(), 6, "{}", report.text());
    }
}
