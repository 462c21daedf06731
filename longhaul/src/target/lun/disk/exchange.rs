//! The exchange of the disc in an optical drive, by whoever runs the server.
//!
//! Each view of the drive is one of one disc. The exchange makes a view of the new one, which takes the place of the others
//! in every session, and meanwhile these answer BUSY: nobody reads the blocks of one disc for those of another.

use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use proto::scsi::sense::Additional;
use proto::scsi::unit::Medium;
use proto::scsi::unit::optical::events::{MediaEvent, MediaEvents};
use proto::scsi::{Capacity, DeviceType, Status};
use tokio::time::timeout;
use volume::tape::{Tape, TapeError};
use volume::{Shape, Volume};

use super::super::Nexus;
use super::super::fault::Fault;
use super::disc::LoadedDisc;
use super::{Core, Disk, LoadedMedium};
use crate::recorded_disc::RecordedDisc;

/// Why a medium stays in its drive.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// An initiator forbids its removal.
    #[error("an initiator has locked the tray")]
    Locked,
    /// What was written to it cannot be made stable. Its initiator has not been told.
    #[error("what was written to it last could not be made stable")]
    Unstable(#[source] Unstable),
    /// The new one cannot be read.
    #[error("the new one cannot be read")]
    Unreadable(#[source] volume::Error),
    /// Commands do not end.
    #[error("commands have been at the medium for {0:?}")]
    Busy(Duration),
}

/// Why what was written to a medium is not stable.
#[derive(Debug, thiserror::Error)]
pub enum Unstable {
    /// It is a tape.
    #[error(transparent)]
    Tape(#[from] TapeError),
    /// It is a disc.
    #[error(transparent)]
    Disc(#[from] volume::Error),
}

impl Disk {
    /// The same drive with the disc `volume` in it, which is told from others by `known_as`; or with an open tray if it has no
    /// blocks. No command reads the disc
    /// before when this returns. An initiator may forbid it, unless it is done by `force`; then they are told that it is
    /// wanted. Who stops waiting for it has exchanged nothing.
    pub async fn exchange(
        &self,
        volume: Arc<dyn Volume>,
        known_as: String,
        force: bool,
    ) -> Result<Self, ExchangeError> {
        let core = &self.core;
        let _alone = core.state.lock.exclusive().await;
        let settling = Arc::clone(core);
        // A label that is being written is brought to its end whoever waits for it.
        let settled = tokio::spawn(async move { settling.settle_before_removal().await });
        let settled = settled.await.unwrap_or_else(|broken| resume_unwind(broken.into_panic()));
        if !force {
            settled.map_err(ExchangeError::Unstable)?;
        }
        let write_once = core.unit.medium().device == DeviceType::Tape
            && Tape::check(&*volume).await.is_ok_and(|label| label.is_write_once);
        let recorded = match core.unit.medium().device {
            DeviceType::Optical => {
                RecordedDisc::load(&*volume).await.map_err(ExchangeError::Unreadable)?
            }
            _ => None,
        };
        let mut preventing = core.state.preventing.all();
        if !preventing.is_empty() && !force {
            core.media_events().establish(MediaEvent::EjectRequest);
            return Err(ExchangeError::Locked);
        }
        preventing.clear();
        let medium = Self::exchanged(core.unit.medium(), volume.shape(), recorded.as_ref());
        let medium = Medium { write_once, ..medium };
        let generation = core.state.generation.fetch_add(1, Ordering::AcqRel) + 1;
        let is_empty = medium.readiness().lacks_medium();
        let readiness = if is_empty { medium.readiness_ejected() } else { medium.readiness() };
        core.change(|attentions, switches| {
            (switches.readiness, switches.locked) = (readiness, false);
            if !is_empty {
                attentions.establish(Additional::MEDIUM_MAY_HAVE_CHANGED, None);
            }
        });
        let tape = super::tape::LoadedTape::of(medium.device);
        let disc = recorded.map(LoadedDisc::new);
        let event = if is_empty { MediaEvent::MediaRemoval } else { MediaEvent::NewMedia };
        core.media_events().establish(event);
        let unit = core.unit.on(medium).known_as(known_as);
        Ok(self.view_of(volume, unit, LoadedMedium { generation, tape, disc }))
    }

    /// What takes the place of `old` in the drive.
    fn exchanged(old: &Medium, shape: &Shape, recorded: Option<&RecordedDisc>) -> Medium {
        let blocks = blocks_of(shape, recorded);
        let recordable = recorded.map(|recorded| recorded.disc.disc_type());
        let read_only = match old.device {
            DeviceType::Optical => shape.read_only || recordable.is_none(),
            _ => old.read_only,
        };
        Medium { capacity: Capacity { blocks, ..old.capacity }, recordable, read_only, ..*old }
    }

    /// The same, unless commands are at the medium for that long, or what was written to a tape is not stable then: so
    /// long a command may take as its initiator wants.
    pub async fn exchange_within(
        &self,
        within: Duration,
        volume: Arc<dyn Volume>,
        known_as: String,
        force: bool,
    ) -> Result<Self, ExchangeError> {
        let exchanged = timeout(within, self.exchange(volume, known_as, force)).await;
        exchanged.unwrap_or(Err(ExchangeError::Busy(within)))
    }

    /// Whether an initiator forbids the removal of the medium.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.core.switches().locked
    }

    /// Whether what is on the medium is not written over.
    #[must_use]
    pub fn is_write_once(&self) -> bool {
        self.core.unit.medium().write_once
    }

    /// Whether a medium can be used, or could be if the unit were started.
    #[must_use]
    pub fn has_medium(&self) -> bool {
        !self.core.switches().readiness.lacks_medium()
    }
}

/// How many blocks a medium has that initiators may use.
pub(super) fn blocks_of(shape: &Shape, recorded: Option<&RecordedDisc>) -> u64 {
    match recorded {
        Some(recorded) => recorded.disc.blocks().into(),
        None => shape.size / u64::from(shape.block_size),
    }
}

impl Core {
    /// Makes stable what was written to the medium before it leaves the drive.
    pub(super) async fn settle_before_removal(&self) -> Result<(), Unstable> {
        if let Some(tape) = &self.tape {
            tape.settle().await?;
        }
        if let Some(disc) = &self.disc {
            disc.settle(&*self.volume).await?;
        }
        Ok(())
    }

    /// Refuses what comes by a view of a disc that is in the drive no more: the session is about to get another one.
    pub(super) fn refuse_outdated(&self) -> Result<(), Fault> {
        match self.generation == self.state.generation.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(Fault::Status(Status::Busy)),
        }
    }

    pub(super) fn media_events(&self) -> MutexGuard<'_, MediaEvents<Nexus>> {
        self.state.media_events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use proto::scsi::device_type::DeviceType;
    use proto::scsi::sense::Key;
    use proto::scsi::unit::optical::BLOCK_SIZE;
    use proto::scsi::{Parsed, Sense};
    use volume::Durability;
    use volume::store::memory::Memory;

    use super::super::super::test_initiator::TestInitiator;
    use super::super::super::{Command, LogicalUnit as _, Response};
    use super::super::Options;
    use super::super::tests::*;
    use super::*;

    const EVENTS: [u8; 10] = [0x4A, 1, 0, 0, 0x10, 0, 0, 0, 8, 0];
    const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    const TOC: [u8; 10] = [0x43, 0, 0, 0, 0, 0, 0xAA, 0, 12, 0];

    /// A disc of so many blocks of `fill`.
    fn disc(blocks: u64, fill: u8) -> Arc<dyn Volume> {
        let memory = Memory::new(blocks * u64::from(BLOCK_SIZE), BLOCK_SIZE);
        let data = Bytes::from(vec![fill; BLOCK_SIZE as usize]);
        memory.write(0, data, Durability::Volatile).now_or_never().unwrap().unwrap();
        Arc::new(memory)
    }

    /// A drive with a disc of 16 blocks, and two initiators that have been told of the power on.
    fn drive() -> Disk {
        let options = Options { device: DeviceType::Optical, ..Options::default() };
        let drive = Disk::new(disc(16, 1), "iqn.2026-11.dev.longhaul:t", 0, options);
        for (n, nexus) in [(1, ME), (2, OTHER)] {
            drive.attach(nexus, TestInitiator::new(n));
            let told = run_by(&drive, nexus, &TEST_UNIT_READY).now_or_never().unwrap();
            assert_eq!(sense(&told).key, Key::UnitAttention);
        }
        drive
    }

    async fn run(drive: &Disk, cdb: &[u8]) -> Response {
        run_by(drive, ME, cdb).await
    }

    async fn run_by(drive: &Disk, nexus: Nexus, cdb: &[u8]) -> Response {
        let parsed = Parsed::of(&block(cdb), DeviceType::Optical);
        drive.execute(nexus, Command { parsed, data: vec![], announced: 0 }).await
    }

    #[tokio::test]
    async fn every_initiator_is_told_of_another_disc_before_it_reads_it() {
        let old = drive();
        assert_eq!(run(&old, &READ).await.data.concat(), vec![1; 2048]);
        let new = old.exchange(disc(20, 2), "two".into(), false).await.unwrap();
        let changed = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
        for nexus in [ME, OTHER] {
            assert_eq!(
                run_by(&new, nexus, &EVENTS).await.data.concat(),
                [0, 6, 4, 0x12, 2, 2, 0, 0]
            );
            assert_eq!(sense(&run_by(&new, nexus, &READ).await), changed);
            assert_eq!(run_by(&new, nexus, &READ).await.data.concat(), vec![2; 2048]);
            assert_eq!(run_by(&new, nexus, &TOC).await.data.concat()[8..], [0, 0, 0, 20]);
        }
    }

    #[tokio::test]
    async fn view_of_a_disc_that_is_gone_is_busy() {
        let old = drive();
        let late = old.execute(
            ME,
            Command {
                parsed: Parsed::of(&block(&READ), DeviceType::Optical),
                data: vec![],
                announced: 0,
            },
        );
        let new = old.exchange(disc(16, 2), "two".into(), false).await.unwrap();
        for cdb in [&READ, &TOC] {
            assert_eq!(run(&old, cdb).await.status, Status::Busy);
        }
        assert_eq!(late.await.status, Status::Busy, "it was not at the medium yet");
        assert!(!old.is_same_medium(&new) && old.is_same(&new));
    }

    /// The server has other things to do than to wait for a command that does not end.
    #[tokio::test]
    async fn medium_that_is_in_use_is_waited_for_as_long_as_is_said() {
        let drive = drive();
        let in_use = drive.core.state.lock.shared().await;
        for force in [false, true] {
            let disc = disc(16, 2);
            let refused = drive.exchange_within(Duration::ZERO, disc, "two".into(), force).await;
            assert!(matches!(refused.err(), Some(ExchangeError::Busy(_))));
        }
        drop(in_use);
        assert_eq!(run(&drive, &READ).await.data.concat(), vec![1; 2048]);
        let within = Duration::from_secs(150);
        assert!(drive.exchange_within(within, disc(16, 2), "two".into(), false).await.is_ok());
    }

    #[tokio::test]
    async fn locked_tray_stays_closed_unless_by_force() {
        let drive = drive();
        assert_eq!(run(&drive, &[0x1E, 0, 0, 0, 1, 0]).await.status, Status::Good);
        assert!(drive.is_locked());
        let empty = || Arc::new(Memory::new(0, BLOCK_SIZE)) as Arc<dyn Volume>;
        let refused = drive.exchange(empty(), String::new(), false).await.err();
        assert!(matches!(refused, Some(ExchangeError::Locked)));
        assert_eq!(run(&drive, &READ).await.data.concat(), vec![1; 2048]);
        // It is asked for the disc.
        assert_eq!(run(&drive, &EVENTS).await.data.concat(), [0, 6, 4, 0x12, 1, 2, 0, 0]);
        let open = drive.exchange(empty(), String::new(), true).await.unwrap();
        let absent = |additional| Sense::new(Key::NotReady, additional);
        let is_open = absent(Additional::MEDIUM_NOT_PRESENT_TRAY_OPEN);
        assert_eq!(sense(&run(&open, &READ).await), is_open);
        assert!(!open.is_locked() && !open.has_medium());
        assert_eq!(run(&open, &EVENTS).await.data.concat(), [0, 6, 4, 0x12, 3, 1, 0, 0]);
        // An initiator closes the tray, and there is nothing in it.
        assert_eq!(run(&open, &[0x1B, 0, 0, 0, 3, 0]).await.status, Status::Good);
        let is_closed = absent(Additional::MEDIUM_NOT_PRESENT_TRAY_CLOSED);
        assert_eq!(sense(&run(&open, &READ).await), is_closed);
    }

    #[tokio::test]
    async fn initiator_takes_the_disc_out_and_puts_it_in() {
        let drive = drive();
        assert_eq!(run(&drive, &[0x1B, 0, 0, 0, 2, 0]).await.status, Status::Good);
        assert!(!drive.has_medium());
        assert_eq!(run_by(&drive, OTHER, &EVENTS).await.data.concat(), [0, 6, 4, 0x12, 3, 1, 0, 0]);
        assert_eq!(run(&drive, &[0x1B, 0, 0, 0, 3, 0]).await.status, Status::Good);
        assert_eq!(run_by(&drive, OTHER, &EVENTS).await.data.concat(), [0, 6, 4, 0x12, 2, 2, 0, 0]);
        assert_eq!(run(&drive, &READ).await.data.concat(), vec![1; 2048]);
    }

    #[tokio::test]
    async fn reader_reads_and_does_not_eject() {
        let drive = drive();
        let reader = drive.for_readers();
        assert_eq!(run(&reader, &READ).await.data.concat(), vec![1; 2048]);
        let refused = Sense::illegal(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS);
        assert_eq!(sense(&run(&reader, &[0x1B, 0, 0, 0, 2, 0]).await), refused);
        assert_eq!(sense(&run(&reader, &[0x1E, 0, 0, 0, 1, 0]).await), refused);
        let write = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let protected = Sense::new(Key::DataProtect, Additional::WRITE_PROTECTED);
        assert_eq!(sense(&run(&drive, &write).await), protected);
    }
}
