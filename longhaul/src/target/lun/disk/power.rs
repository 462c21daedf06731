//! Stopping and starting a unit. Nothing is switched off: a stopped unit is one whose medium nobody is let near,
//! in any session, until somebody starts it, it is reset, or `serve` starts anew.

use bytes::Bytes;
use proto::scsi::Sense;
use proto::scsi::readiness::Readiness;
use proto::scsi::sense::{Additional, Key};

use super::super::answer::Abort;
use super::super::fault::Fault;
use super::Core;

impl Core {
    /// Stops the unit, as soon as no command is at the medium any more. Aborted, it does not wait for that; what
    /// it has begun it ends.
    pub(super) async fn stop(&self, flush: bool, abort: &Abort) -> Result<(), Fault> {
        let _stopping = abort.unless(self.state.stopping.lock()).await?;
        self.stop_alone(flush, abort).await
    }

    pub(super) async fn stop_alone(&self, flush: bool, abort: &Abort) -> Result<(), Fault> {
        let lock = &self.state.lock;
        let guard = lock.while_allowed(lock.exclusive(), || self.may_stop());
        let _exclusive = abort.unless(guard).await??;
        if flush {
            self.flush().await?;
        }
        self.change(|_, switches| {
            match switches.readiness {
                Readiness::Ready => {
                    switches.readiness = Readiness::Stopped;
                    Ok(())
                }
                Readiness::Stopped => Ok(()),
                // A SANITIZE came first.
                other => other.sense().map_or(Ok(()), |sense| Err(sense.into())),
            }
        })
    }

    /// A SANITIZE that came first may take hours.
    fn may_stop(&self) -> Result<(), Fault> {
        if self.switches().readiness == Readiness::Stopped { Ok(()) } else { self.still_ready() }
    }

    /// Starts the unit. Nobody is told: SPC-4, 5.12.3 forbids it.
    pub(super) fn start(&self) -> Result<Vec<Bytes>, Fault> {
        // SBC-4, 4.20.2: it is not decided yet what the unit becomes.
        let Ok(_starting) = self.state.stopping.try_lock() else {
            return Err(Sense::new(Key::NotReady, Additional::START_STOP_IN_PROGRESS).into());
        };
        self.change(|_, switches| {
            if switches.readiness == Readiness::Stopped {
                switches.readiness = Readiness::Ready;
            }
        });
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use proto::scsi::Status;
    use proto::scsi::{DeviceType, Parsed};
    use volume::store::blocked_writes::BlockedWrites;
    use volume::store::faulty::Faulty;
    use volume::store::memory::Memory;
    use volume::{Kind, Verb};

    use super::super::super::test_initiator::TestInitiator;
    use super::super::super::{Command, LogicalUnit as _, Nexus};
    use super::super::tests::*;
    use super::super::{Disk, Options};
    use super::*;

    const STOP: [u8; 6] = [0x1B, 0, 0, 0, 0, 0];
    const STOP_IMMED: [u8; 6] = [0x1B, 1, 0, 0, 0, 0];
    const START: [u8; 6] = [0x1B, 0, 0, 0, 1, 0];
    const REQUEST_SENSE: [u8; 6] = [3, 0, 0, 0, 252, 0];
    const STOPPED: Sense = Sense::new(Key::NotReady, Additional::INITIALIZING_COMMAND_REQUIRED);

    fn outcome(disk: &Disk, nexus: Nexus, cdb: &[u8]) -> Result<(), Sense> {
        let response = run_as(disk, nexus, block(cdb), vec![]);
        if response.sense.is_empty() { Ok(()) } else { Err(sense(&response)) }
    }

    #[test]
    fn a_stopped_unit_is_stopped_for_everybody_until_anybody_starts_it() {
        let disk = disk(Memory::new(SIZE, BLOCK), Options::default());
        good(write(&disk, 0, pattern(1, 7)));
        assert_eq!(outcome(&disk, ME, &STOP), Ok(()));
        assert_eq!(outcome(&disk, ME, &STOP), Ok(()), "it is stopped already");
        for view in [disk.again(), disk.for_readers()] {
            for nexus in [ME, OTHER] {
                assert_eq!(outcome(&view, nexus, &TEST_UNIT_READY), Err(STOPPED));
                assert_eq!(outcome(&view, nexus, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]), Err(STOPPED));
            }
        }
        // SBC-4, 4.20.5.10.1, with SPC-4, 5.11.2.2: it can be polled.
        let polled = good(run_block(&disk, block(&REQUEST_SENSE), vec![]));
        assert_eq!(Sense::parse(&polled), Some(STOPPED));
        assert_eq!(outcome(&disk, OTHER, &START), Ok(()));
        assert_eq!(outcome(&disk, OTHER, &START), Ok(()), "it runs already");
        assert_eq!(outcome(&disk, ME, &TEST_UNIT_READY), Ok(()), "and nobody is told");
        assert_eq!(read(&disk, 0, 1), pattern(1, 7));
    }

    #[test]
    fn a_reset_starts_it_and_a_new_nexus_does_not() {
        let disk = disk(Memory::new(SIZE, BLOCK), Options::default());
        assert_eq!(outcome(&disk, ME, &STOP), Ok(()));
        disk.attach(ME, TestInitiator::new(1));
        let powered = Sense::new(Key::UnitAttention, Additional::POWER_ON_OR_RESET);
        assert_eq!(outcome(&disk, ME, &TEST_UNIT_READY), Err(powered));
        assert_eq!(outcome(&disk, ME, &TEST_UNIT_READY), Err(STOPPED));
        disk.reset();
        assert!(outcome(&disk, ME, &TEST_UNIT_READY).is_err(), "it is told of the reset");
        assert_eq!(outcome(&disk, ME, &TEST_UNIT_READY), Ok(()));
    }

    #[tokio::test]
    async fn admitted_requests_end_before_it_stops() {
        let volume = Arc::new(BlockedWrites::new(Memory::new(SIZE, BLOCK)));
        let disk = disk(Arc::clone(&volume), Options::default());
        let run = |cdb: &[u8], data: &[u8]| {
            let data: Vec<_> =
                (!data.is_empty()).then(|| Bytes::copy_from_slice(data)).into_iter().collect();
            let announced = data.iter().map(Bytes::len).sum::<usize>() as u32;
            disk.execute(
                ME,
                Command { parsed: Parsed::of(&block(cdb), DeviceType::Disk), data, announced },
            )
        };
        let mut early = run(&[0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]);
        assert!((&mut early).now_or_never().is_none(), "it is at the medium");
        let mut stop = run(&STOP, &[]);
        assert!((&mut stop).now_or_never().is_none(), "it waits for that");
        // SBC-4, 4.20.2.
        let refused = run(&START, &[]).await;
        assert_eq!(sense(&refused), Sense::new(Key::NotReady, Additional::START_STOP_IN_PROGRESS));
        let mut late = run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
        assert!((&mut late).now_or_never().is_none(), "nobody overtakes it");
        volume.let_through(1);
        good(early.await);
        good(stop.await);
        assert_eq!(sense(&late.await), STOPPED);
        good(run(&START, &[]).await);
        assert_eq!(good(run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]).await), [7; 512]);
    }

    #[tokio::test]
    async fn it_runs_on_where_the_cache_cannot_be_made_stable() {
        let volume = Arc::new(Faulty::new(SIZE, BLOCK));
        let disk = disk(Arc::clone(&volume), Options::default());
        disk.attach(ME, TestInitiator::new(1));
        let run = |cdb: &[u8]| {
            disk.execute(
                ME,
                Command {
                    parsed: Parsed::of(&block(cdb), DeviceType::Disk),
                    data: vec![],
                    announced: 0,
                },
            )
        };
        assert_eq!(run(&[0]).await.status, Status::CheckCondition, "it is told of the power on");
        volume.fail(Verb::Flush, Kind::Medium);
        assert_eq!(sense(&run(&STOP).await).additional, Additional::WRITE_ERROR);
        good(run(&[0]).await);
        volume.fail(Verb::Flush, Kind::Medium);
        good(run(&STOP_IMMED).await);
        let told = loop {
            let response = run(&[0]).await;
            if response.status != Status::Good {
                break sense(&response);
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((told.deferred, told.additional), (true, Additional::WRITE_ERROR));
        // NO_FLUSH.
        good(run(&[0x1B, 0, 0, 0, 4, 0]).await);
        assert_eq!(sense(&run(&[0]).await), STOPPED);
    }
}
