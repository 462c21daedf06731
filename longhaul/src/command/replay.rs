//! `longhaul replay`: what an attachment had acknowledged, or under way, and could not give to its volume any more.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use volume::layer::pipeline::Settings;
use volume::{Durability, Volume};

use super::named;
use super::options::{LoginArgs, OutageArgs, WriterArgs};
use crate::attachments;
use crate::chain::{self, Chain, Contents, Login, OpenOptions};
use crate::durable::sync_directory_of;
use crate::failure::{Failure, OrFail, Outcome};
use crate::journals::is_journal;
use crate::luks;
use crate::printable::{Counted, Quoted as _, Shown as _};
use crate::replay_log::{
    Change, Header, ReadError, Reader, Record, applied_name, forget_superseded, superseded_at,
};
use crate::size::Size;
use crate::state_dir::state_dir;
use crate::stop::Stop;
use crate::store::abilities::TargetInfo;
use crate::store::iscsi::{ReplayedLog, Seen, Writers};
use crate::uri::{Location, Uri};
use crate::utc::utc;

/// Write what an attachment had acknowledged, or under way, and could not give to its volume
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The replay log
    file: PathBuf,
    /// The volume; the one that the log names if it is left out
    #[arg(value_parser = named::volume)]
    uri: Option<Uri>,
    /// Show what the log holds, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Write it although others may have written to the volume since: it is not reserved any more for the attachment that
    /// the log is from
    #[arg(long)]
    force: bool,
    /// Write it where nothing tells that this is the volume of the log: to a file or device of this machine, or to a unit
    /// that has no serial number and is not at its place
    #[arg(long)]
    unverified: bool,
    /// Write what is there of a log that is damaged, has no end, or could not hold all that was to be saved
    #[arg(long)]
    partial: bool,
    /// Print one JSON object, with sizes in bytes and times in seconds since 1970
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    outage: OutageArgs,
    #[command(flatten)]
    writers: WriterArgs,
}

/// What is added to the name of a log that has been written.
const APPLIED: &str = "applied";

const EXAMPLES: &str = "\
Examples:
  longhaul replay --dry-run /var/lib/longhaul/backup-0-1795392000-1.replay
  longhaul replay /var/lib/longhaul/backup-0-1795392000-1.replay

The log of an encrypted volume holds ciphertext; no pass-phrase is asked for. It replaces what stands at its place. As \
long as the volume is reserved for the attachment that was given up, nobody has written there since; else it takes \
--force: use that only if nobody has. A log that has been written is renamed: `.applied` is added to its name.";

/// Writes it, or shows it.
pub async fn run(args: Args) -> Outcome {
    let mut log = super::options::blocking({
        let file = args.file.clone();
        move || Reader::open(&file).map_err(|why| unreadable(&file, why))
    })
    .await?;
    if args.dry_run {
        return args.say(&log, None);
    }
    args.check(&log)?;
    let uri =
        match &args.uri {
            Some(uri) => uri.clone(),
            None => log.header().volume.parse().or_fail(|| {
                format!("cannot tell the volume from {}: name it", log.header().volume)
            })?,
        };
    let stop = super::stop_on_signals()?;
    let login = args.login.login_to(&[&uri]).await?;
    let same_as = args.compare(&log, &uri, login.clone(), &stop).await?;
    args.refuse_doubt(&log, &uri)?;
    let options = OpenOptions {
        login,
        reconnect_limit: args.outage.reconnect_limit().unwrap_or_default(),
        writers: args.resumes(&log).map_or_else(|| args.writers.writers(), Writers::Resume),
        same_as,
        replays: Some(ReplayedLog { key: log.header().key, file: args.absolute() }),
        // What it holds is what was sent, so of an encrypted volume ciphertext.
        contents: Contents::Raw { overwrite: true },
        // It keeps the order of what overlaps, and many writes in flight.
        pipeline: Some(Settings::default()),
        stop: stop.clone(),
        ..OpenOptions::default()
    };
    let chain = chain::open(&uri, options).await?;
    chain.leave_on(stop.clone());
    let written = async {
        // It may be another by now.
        args.is_of(&chain, &log).await?;
        // Of a block that could not be read the log holds the part that was written.
        write(&*luks::narrowed(chain.volume()), &mut log).await.map_err(unchanged)
    };
    let written = super::unless_stopped(&stop, written).await;
    // As long as the volume is reserved for it: a log that is still to be written must not wait beside what others write.
    let applied = written.and_then(|()| rename(&args.file));
    if applied.is_ok() {
        chain.log_written();
    }
    let closed = chain.close().await;
    let applied = applied?;
    forget(&log, &args.file);
    closed.map_err(|why| {
        why.within(&format!("the log was written, and is now {}", applied.shown()))
    })?;
    args.say(&log, Some((&uri, &applied)))
}

/// Why it cannot be read, and what takes it, if it is a journal.
fn unreadable(file: &Path, why: ReadError) -> Failure {
    let failure = Failure::new(format!("cannot read the replay log {}", file.shown()));
    match why {
        ReadError::Foreign if is_journal(file) => failure
            .because("it is a journal")
            .hint(format!("`longhaul journal drain {}` sends what it holds", file.quoted())),
        why => failure.because(why),
    }
}

impl Args {
    /// Whether it may be written at all, as far as the log tells.
    fn check(&self, log: &Reader) -> Outcome {
        let file = self.file.shown();
        if is_applied(&self.file) {
            // Others have written to the volume since, as far as anybody knows.
            let failure = Failure::new(format!("cannot write the replay log {file}"));
            return Err(failure.because("this log was written already").hint(
                "if it has to be written again, over what has been written since, rename it to a name without .applied",
            ));
        }
        let applied = applied_name(&self.file);
        if applied.symlink_metadata().is_ok() {
            return Err(Failure::new(format!("cannot write the replay log {file}"))
                .because(format!("there is a file {}, the name of a log that was written", applied.shown()))
                .hint("if it is a copy of this log, this one was written already; else rename either of them"));
        }
        if let Some(torn) = log.torn().filter(|_| !self.partial) {
            let what = format!("cannot write the replay log {file}");
            let hint = "--partial writes what is whole of it; what follows is lost";
            return Err(Failure::new(what).because(torn).hint(hint));
        }
        if log.lost() > 0 && !self.partial {
            let failure = Failure::new(format!("cannot write the replay log {file}"));
            let hint = "--partial writes what it holds; check what used the volume afterwards";
            return Err(failure.because(incomplete(log.lost())).hint(hint));
        }
        Ok(())
    }

    /// Makes sure that this is the volume of the log, before anything is done to it; by what it is known after that.
    async fn compare(
        &self,
        log: &Reader,
        uri: &Uri,
        login: Login,
        stop: &Stop,
    ) -> Outcome<Option<Seen>> {
        let options = OpenOptions {
            read_only: true,
            login,
            reconnect_limit: self.outage.reconnect_limit().unwrap_or_default(),
            stop: stop.clone(),
            ..OpenOptions::default()
        };
        let chain = chain::open(uri, options).await?;
        chain.leave_on(stop.clone());
        let same = async {
            self.is_of(&chain, log).await?;
            // What another writer has, or a log that is written, comes before that.
            match chain.is_reserved().await {
                true => Ok(()),
                false => self.refuse_superseded(log, uri),
            }
        };
        let same = super::unless_stopped(stop, same).await;
        let seen = chain.seen();
        chain.release().await;
        let what = || format!("cannot write the replay log {} to {uri}", self.file.shown());
        same.map(|()| seen).map_err(|why| why.within(&what()))
    }

    /// Whether a volume is the one that the log was begun for, as it was then.
    async fn is_of(&self, chain: &Chain, log: &Reader) -> Outcome {
        is_of(chain, log.header(), self.unverified).await?;
        // Whose attachment it is from may have encrypted it. Nobody else has while it is reserved for that.
        if self.resumes(log).is_some()
            && (!chain.volume().shape().read_only || chain.is_reserved().await)
        {
            return Ok(());
        }
        refuse_encrypted_since(chain, log.header()).await
    }

    /// Refuses a log of which nothing shows that it is the newest there is, unless the user says so.
    fn refuse_doubt(&self, log: &Reader, uri: &Uri) -> Outcome {
        if self.force || self.resumes(log).is_some() {
            return Ok(());
        }
        let (file, since) = (self.file.quoted(), utc(log.header().created));
        let what = format!("cannot know whether anybody has written to {uri} since {since}");
        let hint = format!(
            "`longhaul replay --dry-run {file}` shows which places would be replaced; if nobody has written there, add --force"
        );
        Err(Failure::new(what).hint(hint))
    }

    /// Refuses a log at whose places this machine has written since, unless the user says so.
    fn refuse_superseded(&self, log: &Reader, uri: &Uri) -> Outcome {
        let Some(at) = superseded(log).filter(|_| !self.force) else { return Ok(()) };
        let (file, at) = (self.file.quoted(), utc(at));
        let what = format!(
            "it is older than what {uri} holds: something was written from this machine at its places at {at}"
        );
        Err(Failure::new(what).hint(format!(
            "delete it if it is of no use; `longhaul replay --dry-run {file}` shows which places it replaces; --force replaces \
             what is newer there"
        )))
    }

    /// The log, wherever this process is.
    fn absolute(&self) -> PathBuf {
        std::path::absolute(&self.file).unwrap_or_else(|_| self.file.clone())
    }

    /// The key of a reservation that shows that nobody has written since, if it stands.
    fn resumes(&self, log: &Reader) -> Option<u64> {
        let asks = !self.force && self.writers.writers() == Writers::One;
        let is_there = self.uri.as_ref().is_none_or(Uri::is_remote);
        log.header().key.filter(|_| asks && is_there)
    }

    /// Prints what the log holds, or to which volume it was written and what it is called now.
    fn say(&self, log: &Reader, written: Option<(&Uri, &Path)>) -> Outcome {
        let applied = written.map(|(_, applied)| applied);
        let (changes, bytes) = log.holds();
        let report = ReplayReport {
            header: log.header(),
            changes,
            bytes,
            places: log
                .places()
                .iter()
                .map(|place| Place { at: place.at, len: place.len })
                .collect(),
            superseded: superseded(log),
            torn: log.torn().map(|torn| torn.to_string()),
            lost: log.lost(),
            written_to: written.map(|(uri, _)| uri.to_string()),
            applied: applied.or_else(|| Some(&*self.file).filter(|file| is_applied(file))),
        };
        if self.json {
            return super::say_json(&report);
        }
        super::say(&report.text())
    }
}

/// What is printed.
#[derive(Serialize)]
struct ReplayReport<'a> {
    #[serde(flatten)]
    header: &'a Header,
    changes: u64,
    bytes: u64,
    /// What it replaces.
    places: Vec<Place>,
    /// When this machine has written at these places since.
    superseded: Option<u64>,
    /// What is wrong with the log, if it is not whole.
    torn: Option<String>,
    /// How many changes should have followed and could not be saved.
    lost: u32,
    /// The volume to which it has just been written.
    written_to: Option<String>,
    /// The name of the log after it was written.
    applied: Option<&'a Path>,
}

/// Bytes of a volume.
#[derive(Serialize)]
struct Place {
    at: u64,
    len: u64,
}

/// How many places are shown to people.
const PLACES_SHOWN: usize = 8;

impl ReplayReport<'_> {
    fn text(&self) -> String {
        let Self { header, changes, bytes, places, superseded, torn, lost, written_to, applied } =
            self;
        let (changes, lost) = (Counted(*changes, "change"), (*lost > 0).then(|| incomplete(*lost)));
        if let (Some(applied), Some(volume)) = (applied, written_to) {
            let applied = applied.shown();
            let lost = lost.map_or_else(String::new, |lost| format!("\n{lost}"));
            return format!(
                "wrote {changes} ({} bytes) to {volume}; flushed{lost}\nthe log is now {applied}",
                Size(*bytes)
            );
        }
        let Header { volume, serial, vendor, product, size, opened, created, host, .. } = header;
        let serial = serial.as_deref().unwrap_or("none");
        let state = torn.clone().or(lost).unwrap_or_else(|| "whole".to_owned());
        let written = applied.map_or("", |_| ", and this log was written already");
        let places = shown(places);
        let superseded = superseded.map_or_else(String::new, |at| {
            format!(
                "\n  older     than what was written from this machine at these places at {}",
                utc(at)
            )
        });
        format!(
            "{volume}\n  device    {vendor} {product}, serial {serial}, {size} bytes\n  \
             attached  {} on {host}\n  given up  {}\n  holds     {changes}, {bytes} bytes\n  \
             places    {places}\n  state     {state}{written}{superseded}",
            utc(*opened),
            utc(*created),
        )
    }
}

/// Places for people: the first byte of each, and how many.
fn shown(places: &[Place]) -> String {
    let part = |place: &Place| format!("{}+{}", Size(place.at), Size(place.len));
    let shown: Vec<_> = places.iter().take(PLACES_SHOWN).map(part).collect();
    match places.len().checked_sub(PLACES_SHOWN).filter(|more| *more > 0) {
        Some(more) => format!("{}, and {more} more (--json shows all)", shown.join(", ")),
        None if shown.is_empty() => "none".to_owned(),
        None => shown.join(", "),
    }
}

/// When this machine has written at the places of a log since, as far as that is noted.
fn superseded(log: &Reader) -> Option<u64> {
    superseded_at(&state_dir()?, log.header())
}

/// What is missing in a log that could not hold all that was to be saved.
fn incomplete(lost: u32) -> String {
    format!("it is incomplete: {lost} writes after those it holds did not fit, and are LOST")
}

/// Whether a log has the name that it gets when it has been written.
fn is_applied(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == APPLIED)
}

/// Whether a volume is the one that the log was begun for.
async fn is_of(chain: &Chain, header: &Header, unverified: bool) -> Outcome {
    let shape = chain.volume().shape().clone();
    // One that has grown is the same if its serial number says so. A file without one may be any other.
    let may_have_grown = header.serial.is_some() && chain.uri().is_remote();
    if shape.size < header.size || (shape.size > header.size && !may_have_grown) {
        return other("size", &shape.size.to_string(), &header.size.to_string());
    }
    // What was written in larger blocks can be written in smaller ones.
    if !header.block_size.is_multiple_of(shape.block_size) {
        return other("block size", &shape.block_size.to_string(), &header.block_size.to_string());
    }
    let same_header = is_header_of(chain, header).await?;
    let place = match chain.probe().await? {
        Some(probe) => {
            is_device_of(&probe, header)?;
            is_place_of(chain.uri(), header)
        }
        // A file on the server itself, for one.
        None => Err(format!("{} is of this machine, and has no serial number", chain.uri())),
    };
    match same_header.and(place) {
        Err(why) if !unverified => {
            Err(Failure::new("cannot tell whether this is the volume of the replay log")
                .because(why)
                .hint("if you know that it is, add --unverified"))
        }
        _ => Ok(()),
    }
}

/// Whether an encrypted volume has the LUKS UUID of the log. One whose header cannot be read may be any.
async fn is_header_of(chain: &Chain, header: &Header) -> Outcome<Result<(), String>> {
    let Some(there) = &header.luks_uuid else { return Ok(Ok(())) };
    let found = luks::recognise(chain.volume()).await?;
    match found.and_then(|found| found.summary().uuid) {
        Some(here) if here == *there => Ok(Ok(())),
        Some(here) => other("LUKS UUID", &here, there).map(Ok),
        None => Ok(Err(format!(
            "it has no LUKS header that can be read; that of the log's volume has the LUKS UUID {there}"
        ))),
    }
}

/// Refuses a volume that was encrypted after the log was begun: the log would replace its header.
async fn refuse_encrypted_since(chain: &Chain, header: &Header) -> Outcome {
    if header.luks_uuid.is_some() {
        return Ok(());
    }
    let found = luks::recognise(chain.volume()).await?;
    match found.and_then(|found| found.summary().uuid) {
        Some(here) => Err(Failure::new("this is not the volume of the replay log any more")
            .because(format!(
                "it was encrypted since (LUKS UUID {here}): what it holds now would be lost"
            ))
            .hint(
                "the log belongs to what the volume held before: delete it if that is not needed",
            )),
        None => Ok(()),
    }
}

fn other(what: &str, here: &str, there: &str) -> Outcome {
    let why = format!("its {what} is {here}, that of the log's volume is {there}");
    Err(Failure::new("this is not the volume of the replay log").because(why))
}

/// Whether a unit calls itself what that of the log did.
fn is_device_of(probe: &TargetInfo, header: &Header) -> Outcome {
    let serial = |serial: &Option<String>| serial.clone().unwrap_or_else(|| "none".to_owned());
    for (what, here, there) in [
        ("serial number", &serial(&probe.serial), &serial(&header.serial)),
        ("vendor", &probe.vendor, &header.vendor),
        ("product", &probe.product, &header.product),
    ] {
        if here != there {
            return other(what, here, there);
        }
    }
    Ok(())
}

/// Whether a unit is where that of the log was, which is all that there is to tell it by if it has no serial number.
fn is_place_of(uri: &Uri, header: &Header) -> Result<(), String> {
    let place = match uri.location() {
        Location::Unit(unit) => (unit.target.as_str(), unit.lun),
        Location::Served(volume) => (&*volume.volume, 0),
        _ => return Err(format!("{uri} is no unit of a target")),
    };
    let Header { target, lun, .. } = header;
    if header.serial.is_some() || place == (target.as_str(), *lun) {
        return Ok(());
    }
    Err(format!(
        "it has no serial number and is unit {} of {}, that of the log is unit {lun} of {target}",
        place.1, place.0
    ))
}

async fn write(volume: &dyn Volume, log: &mut Reader) -> Outcome {
    let cannot = || "cannot write the replay log".to_owned();
    let mut records = log.records().or_fail(|| "cannot read the replay log".to_owned())?;
    // What follows a torn place was left out when it was opened.
    while let Record::Change(change) = records.next_record().or_fail(cannot)? {
        let written = match change {
            Change::Write { at, data } => volume.write(at, data, Durability::Volatile).await,
            Change::Zero { span, space } => {
                volume.write_zeroes(span, Durability::Volatile, space).await
            }
            // It is a hint, which a volume may not know.
            Change::Discard(_) if volume.shape().discard.is_none() => Ok(()),
            Change::Discard(span) => volume.discard(span).await,
        };
        written.or_fail(cannot)?;
    }
    volume.flush().await.or_fail(cannot)
}

/// Says what becomes of a log that could not be written.
fn unchanged(failure: Failure) -> Failure {
    failure.hint(
        "the log is as it was: it can be written again, from the beginning; where the server's disk was full, once the server has \
         opened the volume again",
    )
}

/// No attachment misses the log any more, which was in `file`.
fn forget(log: &Reader, file: &Path) {
    let Some(state) = state_dir() else { return };
    forget_superseded(&state, log.header());
    let Some(key) = log.header().key else { return };
    if let Err(why) = attachments::forget_log(&attachments::folder(&state), key, file) {
        tracing::warn!(%why, "the note of its attachment still names the replay log: the next writer may take --take-over");
    }
}

/// Keeps the log under a name that says that it is done.
fn rename(file: &Path) -> Outcome<PathBuf> {
    let applied = applied_name(file);
    let renamed = fs::rename(file, &applied).and_then(|()| sync_directory_of(&applied));
    let what = || format!("it was written, but {} cannot be renamed", file.shown());
    let hint = "let its directory be written to, and run this again before anything else writes to the volume";
    renamed.or_fail(what).map_err(|why| why.hint(hint))?;
    Ok(applied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(serial: Option<&str>) -> Header {
        Header {
            volume: "iscsi://a/iqn.2001-04.com.example:t/1".to_owned(),
            target: "iqn.2001-04.com.example:t".to_owned(),
            lun: 1,
            serial: serial.map(str::to_owned),
            vendor: "ACME".to_owned(),
            product: "Disk".to_owned(),
            size: 1 << 20,
            block_size: 512,
            opened: 0,
            created: 0,
            host: "here".to_owned(),
            luks_uuid: None,
            key: None,
        }
    }

    #[tokio::test]
    async fn log_of_a_plain_volume_is_of_no_volume_that_was_encrypted_since() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::File::create(&path).unwrap().set_len(24 << 20).unwrap();
        let chain = chain::open(&Uri::File(path), OpenOptions::default()).await.unwrap();
        let log = header(None);
        refuse_encrypted_since(&chain, &log).await.unwrap();
        let cost = luks::CostArgs {
            pbkdf_memory: Some(Size(32 << 10)),
            pbkdf_iterations: Some(4),
            ..luks::CostArgs::default()
        };
        let secret = crate::secret::Secret::new(b"one".to_vec());
        let how = luks::Init { cost, ..luks::Init::default() };
        let uuid = luks::init(chain.volume(), secret, how).await.unwrap();
        let why = refuse_encrypted_since(&chain, &log).await.unwrap_err().to_string();
        assert!(why.contains(&uuid) && why.contains("encrypted since"), "{why}");
        let log = Header { luks_uuid: Some(uuid), ..log };
        refuse_encrypted_since(&chain, &log).await.unwrap();
        chain.close().await.unwrap();
    }

    #[test]
    fn unit_without_serial_number_is_told_by_its_place() {
        let at = |uri: &str, serial| is_place_of(&uri.parse().unwrap(), &header(serial));
        assert_eq!(
            at("iscsi://b/iqn.2001-04.com.example:t/1", None),
            Ok(()),
            "a server that moved"
        );
        for uri in
            ["iscsi://a/iqn.2001-04.com.example:t/2", "iscsi://a/iqn.2001-04.com.example:u/1"]
        {
            assert!(at(uri, None).unwrap_err().contains("it has no serial number"), "{uri}");
            assert_eq!(at(uri, Some("0815")), Ok(()), "the serial number was compared");
        }
        at("file:disk.img", Some("0815")).unwrap_err();
    }
}
