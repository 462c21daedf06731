//! What a running server is told of the discs and tapes in its drives: which are there, and to exchange one.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::scsi::unit::optical::{Disc, DiscType};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::devices::passed_device;
use super::live::{Live, OpenVolume};
use super::{open_one, served_before};
use crate::chain::Chain;
use crate::command::media::{
    Drive, Listed, NewMedium, PassedDevice, Recordable, RecordedState, Request,
};
use crate::config::Served;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::printable::Shown as _;
use crate::served_volumes::OnExchange;
use crate::size::Size;
use crate::stop::Stopper;
use crate::target::lun::ExchangeError;
use crate::uri::Location;

/// How long sessions may take to see another disc, before who has loaded it is answered all the same. Until then they are
/// told that the drive is busy.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// How long the file of a medium may take to answer. Nothing else that the server is told is done until then either: a file
/// system that hangs must not keep the server from ending, or from taking the rights of a client.
const OPENED_WITHIN: Duration = Duration::from_secs(5);

/// How long commands may be at a medium before it stays. Nothing else that the server is told is done until then, such as
/// to take the rights of a client.
const FREE_WITHIN: Duration = Duration::from_secs(10);

impl Live {
    /// The answer to a request about the discs.
    pub(super) async fn answer_media(&mut self, request: &str) -> Outcome<String> {
        let cannot = || "cannot read the request: is the server of another release?".to_owned();
        match serde_json::from_str(request).or_fail(cannot)? {
            Request::List => {
                let (drives, changers) = (self.drives(), self.changers());
                let listed = Listed { drives, changers, passed: self.passed_devices() };
                serde_json::to_string(&listed).or_fail(|| "cannot list the drives".to_owned())
            }
            Request::Load { drive, disc, made, force } => {
                self.load(&drive, disc, made, force).await
            }
            Request::Eject { drive, force } => self.eject(&drive, force).await,
            Request::Changer { changer, action, force } => {
                self.operate(&changer, action, force).await
            }
        }
    }

    /// The drives, in the order of the configuration.
    fn drives(&self) -> Vec<Drive> {
        let drive = |volume: &Served| {
            let OpenVolume { chain, disk, .. } = self.open_volumes.get(&volume.name)?;
            let (Location::Drive(disc) | Location::Tape(disc)) = chain.uri().location() else {
                return None;
            };
            Some(Drive {
                name: volume.name.clone(),
                disc: disc.map(PathBuf::from),
                bytes: disk.size(),
                ready: disk.has_medium(),
                locked: disk.is_locked(),
                write_once: disk.is_write_once(),
                recordable: disk.recordable_disc().map(recordable),
                store_full: disk.is_store_full(),
                misplaced: chain.moved(),
            })
        };
        self.volumes().iter().filter_map(drive).collect()
    }

    /// The drives and media changers that are passed through.
    fn passed_devices(&self) -> Vec<PassedDevice> {
        let open = |volume: &Served| self.open_volumes.get_key_value(&volume.name);
        let open = self.volumes().iter().filter_map(open);
        open.filter_map(|(name, open)| passed_device(name, &open.chain)).collect()
    }

    async fn load(
        &mut self,
        name: &str,
        disc: PathBuf,
        made: NewMedium,
        force: bool,
    ) -> Outcome<String> {
        let shown = disc.shown().to_string();
        self.refuse_drive_of_changer(name, true)?;
        match self.drive_that_writes(&disc).await {
            Some(other) if other != name => {
                return Err(Failure::new(format!("cannot put {shown} into {name}"))
                    .because(format!("it is in the drive {other} of this server"))
                    .hint(self.how_to_empty(&other)));
            }
            Some(_) => self.reload(name, (disc, made), force).await?,
            None => {
                if let Some(changer) = self.holding_changer(&disc).await {
                    return Err(Failure::new(format!("cannot put {shown} into {name}"))
                        .because(format!("it is a cartridge of the media changer {changer}"))
                        .hint(format!(
                            "`longhaul media export {changer} BARCODE` takes it out of that"
                        )));
                }
                let volume = self.drive_with(name, disc, made)?;
                let exchanged = self.exchange_for(name, &volume, force).await;
                exchanged.map_err(|why| why.explain(name))?;
            }
        }
        Ok(format!("{shown} is in {name}"))
    }

    /// Takes out what is in a drive and puts the same file in again: an initiator may have unloaded it, or the file may have
    /// grown. It cannot be opened a second time while the drive has it.
    async fn reload(
        &mut self,
        name: &str,
        (disc, made): (PathBuf, NewMedium),
        force: bool,
    ) -> Outcome {
        let volume = self.drive_with(name, disc, made)?;
        let emptied = self.take_out(name, force).await;
        let old = emptied.map_err(|why| why.explain(name))?;
        // What does not end here goes on, and the file is waited for below.
        let _ = timeout(FREE_WITHIN, tokio::spawn(close(old))).await;
        let loaded = self.exchange_for(name, &volume, force).await;
        loaded.map_err(|why| why.explain(name).hint_first(&format!("{name} is empty now")))
    }

    /// The drive that has this tape, or this disc that can be written, which may be named by another path. A disc that was
    /// pressed can be in several.
    async fn drive_that_writes(&self, disc: &Path) -> Option<String> {
        let file = timeout(OPENED_WITHIN, tokio::fs::metadata(disc)).await.ok()?.ok()?;
        let mut open = self.open_volumes.iter();
        let its = open.find(|(_, OpenVolume { chain, .. })| {
            let is_tape = matches!(chain.uri().location(), Location::Tape(_));
            let has = chain.found_file().filter(|_| is_tape || chain.recorded().is_some());
            has.is_some_and(|has| (has.dev(), has.ino()) == (file.dev(), file.ino()))
        });
        its.map(|(name, _)| name.clone())
    }

    async fn holding_changer(&self, disc: &Path) -> Option<String> {
        timeout(OPENED_WITHIN, self.changer_with(disc)).await.ok()?
    }

    async fn eject(&mut self, name: &str, force: bool) -> Outcome<String> {
        self.refuse_drive_of_changer(name, false)?;
        let is_burnt = self.is_being_burnt(name);
        self.exchange(name, None, force).await.map_err(|why| match why {
            NotExchanged::Stays(why @ ExchangeError::Locked) if is_burnt => {
                Failure::new(format!("cannot take out what is in {name}"))
                    .because(why)
                    .hint("a disc is being burnt in it: wait for its end; --force takes it out, and the burn fails")
            }
            why => why.explain(name),
        })?;
        Ok(format!("{name} is empty"))
    }

    /// Whether a disc is locked in a drive while its last track is not closed.
    fn is_being_burnt(&self, name: &str) -> bool {
        let disk = self.open_volumes.get(name).map(|volume| &volume.disk);
        let recordable = disk.and_then(|disk| disk.recordable_disc()).map(recordable);
        let is_open = |state: Option<RecordedState>| match state {
            None => true,
            Some(state) => state == RecordedState::Open,
        };
        recordable.is_some_and(|disc| is_open(disc.state))
    }

    /// Puts another disc into a drive, or opens its tray. Where that fails the disc that is in it stays there.
    pub(super) async fn exchange(
        &mut self,
        name: &str,
        disc: Option<PathBuf>,
        force: bool,
    ) -> Result<(), NotExchanged> {
        let volume = self.drive(name, disc)?;
        self.exchange_for(name, &volume, force).await
    }

    async fn exchange_for(
        &mut self,
        name: &str,
        volume: &Served,
        force: bool,
    ) -> Result<(), NotExchanged> {
        let old = self.exchange_medium(name, volume, force).await?;
        tokio::spawn(close(old));
        Ok(())
    }

    /// Opens the tray, and gives what was in it.
    async fn take_out(&mut self, name: &str, force: bool) -> Result<Chain, NotExchanged> {
        let volume = self.drive(name, None)?;
        self.exchange_medium(name, &volume, force).await
    }

    /// Puts what `volume` names into the drive, and gives what was in it.
    async fn exchange_medium(
        &mut self,
        name: &str,
        volume: &Served,
        force: bool,
    ) -> Result<Chain, NotExchanged> {
        let chain = self.open_medium(volume).await?;
        let Some(open_volume) = self.open_volumes.get_mut(name) else {
            return Err(Failure::new(format!("there is no drive {name} any more")).into());
        };
        let known_as = disc_identity(&open_volume.identity, &chain);
        let exchanged =
            open_volume.disk.exchange_within(FREE_WITHIN, chain.volume(), known_as, force);
        let old = match exchanged.await {
            Ok(disk) => {
                open_volume.disk = disk;
                std::mem::replace(&mut open_volume.chain, chain)
            }
            Err(why) => {
                chain.discard().await;
                return Err(NotExchanged::Stays(why));
            }
        };
        let clients = self.admitted().to_vec();
        let applied = self.replace((self.config().clone(), clients), &[], &[]);
        if timeout(SEEN_WITHIN, applied.closed).await.is_err() {
            tracing::warn!(volume = name, "a session does not take notice of the other medium");
        }
        tracing::info!(volume = name, uri = %volume.uri, "medium exchanged");
        Ok(old)
    }

    async fn open_medium(&self, volume: &Served) -> Outcome<Chain> {
        let state = self.config().state.as_deref();
        let opened = timeout(OPENED_WITHIN, async {
            let served = served_before(state).await?;
            // Of nothing but a file that is there: nobody waits for it.
            let (_stopper, stop) = Stopper::new();
            open_one(volume, (state, &served), OnExchange::Warn, &stop).await
        });
        opened.await.unwrap_or_else(|_| {
            let seconds = OPENED_WITHIN.as_secs();
            let why = format!("{} did not answer within {seconds} s", volume.uri);
            Err(Failure::new(why).hint("does its file system hang? the drive is as it was"))
        })
    }

    /// The drive of this name with a medium that may have to be made.
    fn drive_with(&self, name: &str, medium: PathBuf, made: NewMedium) -> Outcome<Served> {
        let mut volume = self.drive(name, Some(medium))?;
        (volume.blank, volume.size, volume.worm) = (made.blank, made.size.map(Size), made.worm);
        refuse_idle(&volume)?;
        Ok(volume)
    }

    /// The drive of this name as it is with that disc.
    fn drive(&self, name: &str, disc: Option<PathBuf>) -> Outcome<Served> {
        let volume = self.volumes().iter().find(|volume| volume.name == name);
        match volume.and_then(|volume| volume.with_disc(disc)) {
            // The size in the configuration is what the tape there was made with, and so are others: this one has its own.
            Some(mut volume) => {
                (volume.size, volume.worm, volume.blank) = (None, false, None);
                Ok(volume)
            }
            None if volume.is_some_and(|volume| volume.uri.is_passed_through()) => {
                Err(Failure::new(format!("what is in {name} is not exchanged here"))
                    .because(
                        "it is a device, or the unit of another server, that is passed through",
                    )
                    .hint("exchange it there"))
            }
            None => {
                let drives = self.volumes().iter().filter(|volume| volume.uri.has_medium());
                let drives: Vec<_> = drives.map(|volume| &*volume.name).collect();
                let known = match &drives[..] {
                    [] => "it has none; a volume cdrom:[ISO] or tape:[PATH] is one".to_owned(),
                    drives => format!("it has {}", drives.join(", ")),
                };
                Err(Failure::new(format!("the server has no drive `{name}`: {known}")))
            }
        }
    }
}

/// Refuses to make what does not go into a drive.
fn refuse_idle(Served { name, uri, blank, size, worm, .. }: &Served) -> Outcome {
    let why = match (uri.is_tape(), blank, size) {
        (true, Some(_), _) => "--blank is for discs",
        (false, _, Some(_)) => "--size is for tapes",
        (false, _, None) if *worm => "--worm is for tapes",
        _ => return Ok(()),
    };
    Err(Failure::usage(why).because(format!("{name} is another drive")))
}

/// Why what is in a drive was not exchanged.
#[derive(Debug)]
pub(super) enum NotExchanged {
    /// The new medium cannot be used.
    Unusable(Failure),
    /// The old one stays in the drive.
    Stays(ExchangeError),
}

impl From<Failure> for NotExchanged {
    fn from(why: Failure) -> Self {
        Self::Unusable(why)
    }
}

impl NotExchanged {
    /// What whoever runs the server is told.
    pub(super) fn explain(self, name: &str) -> Failure {
        match self {
            Self::Unusable(why) => why,
            Self::Stays(why) => stays(name, why),
        }
    }
}

/// What is in the drive stays there.
fn stays(name: &str, why: ExchangeError) -> Failure {
    let hint = match why {
        ExchangeError::Locked => "it is asked to let it go: unmount it there; or use --force",
        ExchangeError::Busy(_) => "try again when they have ended",
        ExchangeError::Unstable(_) => {
            "who has written it is told with the next command; --force takes it out all the same"
        }
        ExchangeError::Unreadable(_) => "look at the file of the new one",
    };
    Failure::new(format!("cannot take out what is in {name}")).because(why).hint(hint)
}

/// By what the disc in a drive of this identity is told from others: which file it is, and when that was written last.
pub(super) fn disc_identity(drive: &str, chain: &Chain) -> String {
    let file = chain.found_file().filter(|_| chain.uri().has_medium());
    let Some(file) = file else { return drive.to_owned() };
    let mut hash = Sha256::new();
    hash.update(drive);
    for part in [file.dev(), file.ino(), file.len()] {
        hash.update(part.to_be_bytes());
    }
    for part in [file.mtime(), file.mtime_nsec()] {
        hash.update(part.to_be_bytes());
    }
    let digest = hash.finalize();
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A disc that can be written, and what has been recorded on it.
fn recordable((kind, disc): (DiscType, Option<Disc>)) -> Recordable {
    let state = disc.map(|disc| match kind.is_sequential() {
        true => {
            let is_open = disc.tracks().last().is_some_and(|track| !track.is_closed);
            RecordedState::of(disc.status(), is_open)
        }
        false => RecordedState::Rewritable,
    });
    Recordable { disc: kind.name().to_owned(), state }
}

/// Lets go of the image that was in a drive.
async fn close(chain: Chain) {
    if let Err(why) = chain.close().await {
        tracing::warn!("{}", why.on_one_line());
    }
}
