//! The drive that a disc is burnt in, and what it tells of that.

use bytes::Bytes;
use proto::scsi::cdb::CloseFunction;
use proto::scsi::command::Command;
use proto::scsi::command::optical::{DiscInfo, TrackInfo, WriteParameters, current_profile};
use proto::scsi::sense::{Additional, Key};
use proto::scsi::unit::optical::BLOCK_SIZE;
use proto::scsi::{Blocks, Malformed, Sense, Status};

use super::{DriveArgs, refuse_other};
use crate::chain::{UnitOptions, open_unit};
use crate::command::lost_unit::{NoAnswer, answer, connect_again};
use crate::command::unless_stopped;
use crate::failure::{Failure, Outcome, print_error};
use crate::reconnect_limit::ReconnectLimit;
use crate::stop::Stop;
use crate::store::iscsi::{UnitError, Writers};
use crate::store::scsi::{Executed, Lost, RawUnit};

/// The blocks that are looked at and written together: a cluster of a Blu-ray disc, and four ECC blocks of a DVD.
pub(super) const PIECE_BLOCKS: u32 = 32;

/// MEDIUM NOT PRESENT, whatever its qualifier.
const NO_MEDIUM_CODE: u8 = Additional::MEDIUM_NOT_PRESENT.code;

/// How often a drive is asked for what happened to it before.
const ATTENTIONS_MAX: u32 = 8;

/// How a disc is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// In order, track by track, on a CD.
    Cd,
    /// The same on any other disc.
    Sequential,
    /// Anywhere.
    Overwritable,
}

impl Kind {
    /// That of the disc of a profile (MMC-6, table 92), or what that is.
    pub(super) const fn of(profile: u16) -> Result<Self, &'static str> {
        match profile {
            0x0009 | 0x000A => Ok(Self::Cd),
            0x0011 | 0x0014 | 0x001B | 0x002B | 0x0041 => Ok(Self::Sequential),
            0x0012 | 0x0013 | 0x001A | 0x0043 => Ok(Self::Overwritable),
            0x0000 => Err("there is no disc in the drive"),
            0x0008 | 0x0010 | 0x0040 => Err("it was pressed, not recorded"),
            _ => Err("it is of a type that this program cannot write"),
        }
    }
}

/// What a disc of this profile is called (MMC-6, table 92).
pub(super) const fn disc_name(profile: u16) -> Option<&'static str> {
    Some(match profile {
        0x0008 => "CD-ROM",
        0x0009 => "CD-R",
        0x000A => "CD-RW",
        0x0010 => "DVD-ROM",
        0x0011 => "DVD-R",
        0x0012 => "DVD-RAM",
        0x0013 | 0x0014 => "DVD-RW",
        0x001A => "DVD+RW",
        0x001B | 0x002B => "DVD+R",
        0x0040 => "BD-ROM",
        0x0041 | 0x0042 => "BD-R",
        0x0043 => "BD-RE",
        _ => return None,
    })
}

/// Whether nothing is at the front of a disc that can be written over, where a file system would be.
pub(super) async fn is_blank(unit: &dyn RawUnit) -> Outcome<bool> {
    match unit.ask(read(0, PIECE_BLOCKS), Bytes::new()).await {
        Ok(bytes) => Ok(bytes.iter().all(|byte| *byte == 0)),
        // Nothing was ever recorded there.
        Err(UnitError::Sense(Sense { key: Key::BlankCheck, .. })) => Ok(true),
        Err(why) => Err(Failure::new("cannot look at what is on the disc").because(why)),
    }
}

/// READ of so many blocks from one on.
pub(super) fn read(first: u32, count: u32) -> Command {
    let blocks = Blocks { lba: first.into(), count };
    Command::read_10(blocks, BLOCK_SIZE).unwrap_or_else(|| Command::read(blocks, BLOCK_SIZE))
}

/// Why commands that change a disc have come to a halt.
pub(super) enum Halt {
    Lost(Lost),
    /// The drive was reset, and what was under way is not answered.
    Aborted,
    /// It may be otherwise when it is tried again.
    Refused(Failure),
    /// It will not.
    Failed(Failure),
}

impl From<NoAnswer> for Halt {
    fn from(none: NoAnswer) -> Self {
        match none {
            NoAnswer::Lost(lost) => Self::Lost(lost),
            NoAnswer::Aborted => Self::Aborted,
        }
    }
}

/// Where nothing is tried again.
impl From<Halt> for Failure {
    fn from(halt: Halt) -> Self {
        match halt {
            Halt::Lost(lost) => Self::new("the connection was lost").because(lost),
            Halt::Aborted => {
                Self::new("the drive was reset").because("another client has done that")
            }
            Halt::Refused(why) | Halt::Failed(why) => why,
        }
    }
}

/// An optical drive, reserved and locked.
pub(super) struct Recorder {
    pub(super) unit: Box<dyn RawUnit>,
    limit: ReconnectLimit,
}

impl Recorder {
    /// Does something to the disc in a drive, which is given back whatever comes of that. If it fails, and what was written
    /// is stable all the same, `look` may ask the drive what has come of it.
    pub(super) async fn with<T>(
        drive: &DriveArgs,
        stop: &Stop,
        what: &str,
        work: impl AsyncFnOnce(&mut Self) -> Outcome<T>,
        look: impl AsyncFnOnce(&mut Self),
    ) -> Outcome<T> {
        let options =
            UnitOptions { writers: Writers::One, stop: stop.clone(), ..drive.options().await? };
        let unit = unless_stopped(stop, open_unit(&drive.uri, &options)).await?;
        let mut recorder = Self { unit, limit: options.reconnect_limit };
        let worked = unless_stopped(stop, async {
            refuse_other(&drive.uri, recorder.unit.standard().device_type())?;
            recorder.take().await?;
            work(&mut recorder).await
        });
        let worked = worked.await;
        if worked.is_err() {
            // So that what is there counts.
            let stable = recorder.unit.ask(Command::synchronize_cache(), Bytes::new()).await;
            if stable.is_ok() {
                look(&mut recorder).await;
            }
        }
        let _ = recorder.unit.ask(Command::prevent_removal(false), Bytes::new()).await;
        recorder.unit.close().await;
        worked.map_err(|why| why.within(&format!("cannot {what} the disc in {}", drive.uri)))
    }

    async fn take(&self) -> Outcome {
        self.unit.ask(Command::test_unit_ready(), Bytes::new()).await.map_err(|why| {
            match why.is_without_medium() {
                true => no_medium(),
                false => Failure::new("the drive is not ready").because(why),
            }
        })?;
        if let Err(not) = self.unit.reserve().await {
            let failure = Failure::new("it cannot be reserved").because(not.why);
            return Err(match not.is_refused {
                true => failure.hint("a client that may only read cannot change a disc"),
                false => failure.hint("end the other use of the drive first"),
            });
        }
        self.lock().await;
        Ok(())
    }

    /// Who has no button cannot press it: a drive that knows no such command is no worse for it.
    async fn lock(&self) {
        let _ = self.unit.ask(Command::prevent_removal(true), Bytes::new()).await;
    }

    /// Goes on after a lost connection.
    pub(super) async fn connect_again(&mut self) -> Outcome {
        connect_again(&mut *self.unit, self.limit).await?;
        print_error(&"longhaul: connected again; going on where the disc is");
        self.lock().await;
        Ok(())
    }

    /// Asks something that may be asked again.
    pub(super) async fn ask(&self, command: Command) -> Result<Bytes, Halt> {
        self.ask_with(command, Bytes::new()).await
    }

    async fn ask_with(&self, command: Command, data: Bytes) -> Result<Bytes, Halt> {
        self.unit.ask(command, data).await.map_err(|why| match why {
            UnitError::Lost(lost) => Halt::Lost(lost),
            why => Halt::Failed(Failure::new("the drive refuses it").because(why)),
        })
    }

    /// Has a command carried out that changes the disc, once: what says that another one is in the drive ends all.
    pub(super) async fn change(&self, command: Command) -> Result<(), Halt> {
        let pending = self.unit.send(command, Bytes::new()).await.map_err(Halt::Lost)?;
        check(answer(&*self.unit, pending).await?)
    }

    /// Fails if the disc was taken out since commands were sent to it, and takes note of all else that happened.
    pub(super) async fn check_exchange(&self) -> Result<(), Halt> {
        for _ in 0..ATTENTIONS_MAX {
            match self.change(Command::test_unit_ready()).await {
                Err(Halt::Aborted) => tracing::info!("the drive was reset"),
                answer => return answer,
            }
        }
        Err(Halt::Aborted)
    }

    pub(super) async fn kind(&self) -> Result<Kind, Halt> {
        let profile = self.ask(Command::get_profile()).await?;
        let kind = Kind::of(current_profile(&profile).map_err(garbled)?);
        kind.map_err(|why| Halt::Failed(Failure::new("the disc cannot be written").because(why)))
    }

    pub(super) async fn disc_info(&self) -> Result<DiscInfo, Halt> {
        let info = self.ask(Command::read_disc_information()).await?;
        DiscInfo::parse(&info).map_err(garbled)
    }

    /// The track that is written next.
    pub(super) async fn open_track(&self, kind: Kind, last: u8) -> Result<TrackInfo, Halt> {
        /// The invisible track of a CD (MMC-6, 4.2.3.4).
        const INVISIBLE: u8 = 0xFF;
        self.track(if kind == Kind::Cd { INVISIBLE } else { last }).await
    }

    pub(super) async fn track(&self, number: u8) -> Result<TrackInfo, Halt> {
        let answer = self.ask(Command::read_track_information(number)).await?;
        TrackInfo::parse(&answer).map_err(garbled)
    }

    /// Has a CD written track at once. Whether another session may follow is settled by that when one is closed. A drive
    /// forgets it when its power is lost.
    pub(super) async fn set_parameters(&self, kind: Kind, multi: bool) -> Result<(), Halt> {
        if kind != Kind::Cd {
            return Ok(());
        }
        let parameters = self.ask(Command::write_parameters()).await?;
        let parameters = WriteParameters::parse(&parameters).map_err(garbled)?;
        let (select, list) = parameters.select(multi).map_err(garbled)?;
        self.ask_with(select, list.into()).await.map(drop)
    }

    /// Closes the track, if one is open, and the session; without `multi` nothing can be added afterwards.
    pub(super) async fn close(
        &self,
        kind: Kind,
        track: Option<u8>,
        multi: bool,
    ) -> Result<(), Halt> {
        self.set_parameters(kind, multi).await?;
        if let Some(track) = track {
            self.change(Command::close(CloseFunction::Track, track)).await?;
        }
        let session = match (kind, multi) {
            // Of a CD the write parameters say whether it is the last session.
            (Kind::Cd, _) | (_, true) => CloseFunction::Session,
            (_, false) => CloseFunction::Finalize,
        };
        self.change(Command::close(session, track.unwrap_or(0))).await
    }
}

pub(super) fn no_medium() -> Failure {
    Failure::new("there is no medium in the drive")
        .hint("on a Longhaul server `longhaul media load` puts one in, with `--blank` a new one")
}

fn garbled(why: Malformed) -> Halt {
    Halt::Failed(Failure::new("the drive gives an answer that cannot be read").because(why))
}

/// What has become of a command that changes the disc.
pub(super) fn check(answer: Result<Executed, Lost>) -> Result<(), Halt> {
    let refused = |why: &str| Failure::new("the drive refuses it").because(why.to_owned());
    let done = match answer {
        Err(lost) => return Err(Halt::Lost(lost)),
        Ok(Err(why)) => return Err(Halt::Refused(refused(&why.to_string()))),
        Ok(Ok(done)) if done.status == Status::Good => return Ok(()),
        Ok(Ok(done)) => done,
    };
    match Sense::parse(&done.sense) {
        // SPC-4, 4.5.7: what is lost was answered with GOOD before.
        Some(sense) if sense.deferred => Err(Halt::Failed(
            Failure::new("the drive has lost what was written before").because(sense.to_string()),
        )),
        Some(sense) if sense.additional == Additional::SPACE_ALLOCATION_FAILED => {
            Err(Halt::Failed(
                Failure::new("the file system of the server is full").because(sense.to_string()),
            ))
        }
        Some(sense) if is_exchange(&sense) => {
            Err(Halt::Failed(Failure::new("the disc was taken out while it was used")))
        }
        Some(sense) if is_reset(&sense) => Err(Halt::Aborted),
        Some(sense) if sense.key == Key::MediumError => Err(Halt::Refused(
            refused(&sense.to_string()).hint(
                "of a Longhaul drive `longhaul media list` on the server, and its log, say what is wrong with the file of the disc: it \
                 may have been removed",
            ),
        )),
        Some(sense) => Err(Halt::Refused(refused(&sense.to_string()))),
        None => Err(Halt::Refused(refused(&format!("{:?}", done.status)))),
    }
}

/// The disc in the drive may be another one (SPC-4, table 56), or there is none.
fn is_exchange(sense: &Sense) -> bool {
    match sense.key {
        Key::UnitAttention => sense.additional.code == Additional::MEDIUM_MAY_HAVE_CHANGED.code,
        Key::NotReady => sense.additional.code == NO_MEDIUM_CODE,
        _ => false,
    }
}

/// What was under way is aborted, and may never be answered.
fn is_reset(sense: &Sense) -> bool {
    let codes = [Additional::POWER_ON_OR_RESET.code, Additional::COMMANDS_CLEARED.code];
    sense.key == Key::UnitAttention && codes.contains(&sense.additional.code)
}
