//! A disc that can be written, in an optical drive: what commands do with it, one write after the other.
//!
//! What has been recorded is written down when the cache is synchronized, when a track or a session is closed, and before
//! the disc leaves the drive. A crash in between leaves the disc as it was written down last: what came after that is
//! written again, from where the drive then says that it is written next.

use std::sync::Arc;

use bytes::Bytes;
use proto::scsi::cdb::{CloseFunction, RequiredState};
use proto::scsi::mode::Switches;
use proto::scsi::sense::Additional;
use proto::scsi::unit::optical::cue_sheet::{self, behind_pregap};
use proto::scsi::unit::optical::events::MediaEvent;
use proto::scsi::unit::optical::{Disc, DiscType};
use proto::scsi::unit::{MediumOp, Step, UnitOp};
use proto::scsi::{Blocks, Cdb, Parsed, Residual, Sense, Status};
use tokio::sync::Mutex;
use volume::{Durability, Space, Span, Volume};

use super::super::answer::Abort;
use super::super::fault::{Fault, INTERNAL};
use super::super::{Command, Nexus, Response, data};
use super::execute::check_data_out;
use super::{Core, Disk};
use crate::recorded_disc::RecordedDisc;

/// The disc in a drive. All views of it share what has been recorded.
pub(super) struct LoadedDisc(Mutex<Recorded>);

struct Recorded {
    of: RecordedDisc,
    /// What is written down is what has been recorded.
    is_written_down: bool,
}

impl Recorded {
    /// Makes stable what was written, and then writes down that it was.
    async fn settle(&mut self, volume: &dyn Volume) -> volume::Result<()> {
        if self.is_written_down {
            return volume.flush().await;
        }
        self.of.save(volume).await?;
        self.is_written_down = true;
        Ok(())
    }
}

impl LoadedDisc {
    pub(super) fn new(of: RecordedDisc) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Recorded { of, is_written_down: true })))
    }

    pub(super) async fn settle(&self, volume: &dyn Volume) -> volume::Result<()> {
        self.0.lock().await.settle(volume).await
    }
}

impl Disk {
    /// The disc in the drive, if that can be written, and what has been recorded on it, unless a command is just at it.
    #[must_use]
    pub fn recordable_disc(&self) -> Option<(DiscType, Option<Disc>)> {
        let disc = self.core.unit.medium().recordable?;
        let recorded = self.core.disc.as_ref()?.0.try_lock().ok();
        Some((disc, recorded.map(|recorded| recorded.of.disc.clone())))
    }
}

/// Whether what has been recorded matters to a command.
fn is_about_disc(parsed: &Parsed) -> bool {
    let needs_medium =
        matches!(parsed.traits.required_state, RequiredState::Medium | RequiredState::Capacity);
    let is_one = matches!(
        parsed.cdb,
        Ok(Cdb::Optical(_)
            | Cdb::Read(_)
            | Cdb::Write(_)
            | Cdb::Verify(..)
            | Cdb::Synchronize { .. }
            | Cdb::ReadCapacity10)
    );
    needs_medium && is_one
}

impl Core {
    /// Whether a command is about a disc that can be written.
    pub(super) fn is_about_disc(&self, parsed: Parsed) -> bool {
        self.disc.is_some() && is_about_disc(&parsed)
    }

    /// Runs such a command.
    pub(super) async fn run_on_disc(
        self: Arc<Self>,
        nexus: Nexus,
        command: Command,
        abort: Abort,
    ) -> Response {
        let outcome = match &self.disc {
            Some(disc) => self.disc_outcome(disc, nexus, command, &abort).await,
            None => Err(INTERNAL.into()),
        };
        match outcome {
            Ok(data) => Response {
                status: Status::Good,
                data,
                sense: Bytes::new(),
                residual: Residual::None,
            },
            Err(fault) => fault.response(self.sense_format()),
        }
    }

    async fn disc_outcome(
        self: &Arc<Self>,
        disc: &LoadedDisc,
        nexus: Nexus,
        command: Command,
        abort: &Abort,
    ) -> Result<Vec<Bytes>, Fault> {
        let parsed = &command.parsed;
        self.admit(nexus, parsed)?;
        let (switches, cdb) = (self.switches(), parsed.cdb?);
        let needed = cdb.data_out(self.unit.block_size()).unwrap_or(0);
        check_data_out(&cdb, &command, needed, self.unit.block_size())?;
        // How large it is can be told of a disc that is stopped.
        let inside = match parsed.traits.required_state {
            RequiredState::Capacity => None,
            _ => Some(self.enter(abort).await?),
        };
        let mut recorded = abort.unless(disc.0.lock()).await?;
        // A cue sheet counts as long as sessions are to be written at once: not behind a reset.
        if !switches.session_at_once && recorded.of.disc.is_at_once_and_blank() {
            recorded.of.disc.forget_at_once();
            recorded.is_written_down = false;
        }
        match self.unit.plan_on_disc(parsed, switches, &recorded.of.disc)? {
            Step::Reply(data) => return Ok(vec![data.into()]),
            Step::Medium(MediumOp::Read(blocks)) => {
                drop(recorded);
                return self.read(blocks).await.map(|data| vec![data]);
            }
            Step::Medium(MediumOp::Write { blocks, durable }) => {
                self.record(&mut recorded, blocks, command.data, durable).await?;
            }
            // With IMMED too: it takes no longer than other commands.
            Step::Medium(MediumOp::Flush) | Step::Unit(UnitOp::FlushLater) => {
                match recorded.of.disc.is_at_its_end() {
                    true => self.close_on_disc(&mut recorded, CloseFunction::Session).await?,
                    false => self.settle_disc(&mut recorded).await?,
                }
            }
            Step::Medium(op) => {
                drop((recorded, inside));
                return self.access_medium(op, command.data, abort).await;
            }
            Step::Close(function) => self.close_on_disc(&mut recorded, function).await?,
            Step::CueSheet => {
                let list = data::joined(command.data, needed as usize);
                self.begin_at_once(&mut recorded, &list, switches)?;
            }
            Step::ReserveTrack(blocks) => {
                recorded.of.disc.reserve(blocks);
                recorded.is_written_down = false;
            }
            Step::Unit(_) | Step::Tape(_) | Step::Changer(_) | Step::Copy => {
                return Err(INTERNAL.into());
            }
        }
        drop(recorded);
        self.flush_if_uncached(switches).await?;
        // What was done too late is not answered: another gateway may have changed the medium since.
        self.refuse_without_permit().map(|()| Vec::new())
    }

    /// Writes blocks, and counts those that were.
    async fn record(
        &self,
        recorded: &mut Recorded,
        blocks: Blocks,
        data: Vec<Bytes>,
        durable: bool,
    ) -> Result<(), Fault> {
        let came = self.came(blocks, &data);
        let blocks = behind_pregap(Some(recorded.of.disc.disc_type()), came);
        if blocks.count == 0 {
            return Ok(());
        }
        let before = (came.count - blocks.count) as usize * self.unit.block_size() as usize;
        self.write(blocks, data::without_front(data, before), durable).await?;
        recorded.is_written_down &= !recorded.of.disc.disc_type().is_sequential();
        recorded.of.disc.written(blocks);
        if durable { self.settle_disc(recorded).await } else { Ok(()) }
    }

    /// The session that a cue sheet describes is written next.
    fn begin_at_once(
        &self,
        recorded: &mut Recorded,
        list: &[u8],
        switches: Switches,
    ) -> Result<(), Fault> {
        let disc = &mut recorded.of.disc;
        if !switches.session_at_once {
            return Err(Sense::illegal(Additional::ILLEGAL_MODE_FOR_TRACK).into());
        }
        let lead_out = cue_sheet::lead_out(list)?;
        disc.check_at_once(lead_out)?;
        disc.begin_at_once(lead_out);
        recorded.is_written_down = false;
        Ok(())
    }

    async fn close_on_disc(
        &self,
        recorded: &mut Recorded,
        function: CloseFunction,
    ) -> Result<(), Fault> {
        let before = recorded.of.disc.clone();
        if function != CloseFunction::StopFormatting {
            self.zero_unwritten(&before).await?;
        }
        let disc = &mut recorded.of.disc;
        match function {
            CloseFunction::StopFormatting => {}
            CloseFunction::Track => disc.close_track(),
            // MMC-6, 7.5.4.10: of a CD the write parameters say whether another session may follow.
            CloseFunction::Session => {
                let is_last = disc.disc_type().is_cd() && !self.switches().multi_session;
                disc.close_session(is_last);
            }
            CloseFunction::Finalize => disc.close_session(true),
        }
        let closed = *disc != before;
        recorded.is_written_down &= !closed;
        if let Err(fault) = self.settle_disc(recorded).await {
            // It can be tried again.
            recorded.of.disc = before;
            return Err(fault);
        }
        if closed {
            // There is more to read than before: hosts ask for the table of contents again.
            self.media_events().establish(MediaEvent::NewMedia);
        }
        Ok(())
    }

    /// What is reserved and was not written may hold what a crash has left of writes that do not count.
    async fn zero_unwritten(&self, disc: &Disc) -> Result<(), Fault> {
        let Some(Blocks { lba, count }) = disc.unwritten() else { return Ok(()) };
        let size = u64::from(self.unit.block_size());
        let span = Span::new(lba * size, u64::from(count) * size);
        let zeroed = self.volume.write_zeroes(span, Durability::Volatile, Space::Release).await;
        zeroed.map_err(|error| self.fault(&error, None))
    }

    async fn settle_disc(&self, recorded: &mut Recorded) -> Result<(), Fault> {
        recorded.settle(&*self.volume).await.map_err(|error| self.fault(&error, None))
    }
}

#[cfg(test)]
mod tests {
    use proto::scsi::DeviceType;
    use proto::scsi::sense::Key;
    use proto::scsi::unit::optical::BLOCK_SIZE;
    use volume::store::faulty::Faulty;
    use volume::store::memory::Memory;
    use volume::{Kind, Verb};

    use super::super::super::LogicalUnit as _;
    use super::super::super::test_initiator::TestInitiator;
    use super::super::Options;
    use super::super::tests::*;
    use super::*;
    use crate::recorded_disc::RECORD_BLOCKS;

    const BLOCKS: u32 = 20_000;

    async fn blank(disc: DiscType) -> (Arc<Faulty>, RecordedDisc) {
        let size = u64::from(BLOCKS + RECORD_BLOCKS) * u64::from(BLOCK_SIZE);
        let volume = Arc::new(Faulty::new(size, BLOCK_SIZE));
        let mut recorded = RecordedDisc::new(Disc::blank(disc, BLOCKS));
        recorded.save(&*volume).await.unwrap();
        (volume, recorded)
    }

    /// A drive with this disc, and an initiator that has been told of the power on.
    fn drive(volume: &Arc<Faulty>, recorded: RecordedDisc) -> Disk {
        let options =
            Options { device: DeviceType::Optical, recorded: Some(recorded), ..Options::default() };
        let volume = Arc::clone(volume) as Arc<dyn Volume>;
        let drive = Disk::new(volume, "iqn.2026-11.dev.longhaul:t", 0, options);
        drive.attach(ME, TestInitiator::new(1));
        drive.core.attend(|attentions| attentions.take(ME));
        drive
    }

    async fn run(drive: &Disk, cdb: &[u8], data: Vec<u8>) -> Response {
        let parsed = Parsed::of(&block(cdb), DeviceType::Optical);
        let announced = data.len() as u32;
        let data = if data.is_empty() { Vec::new() } else { vec![data.into()] };
        drive.execute(ME, Command { parsed, data, announced }).await
    }

    async fn write(drive: &Disk, lba: u32, fill: u8, count: u8) -> Response {
        let [a, b, c, d] = lba.to_be_bytes();
        let data = vec![fill; usize::from(count) * BLOCK_SIZE as usize];
        run(drive, &[0x2A, 0, a, b, c, d, 0, 0, count, 0], data).await
    }

    async fn read(drive: &Disk, lba: u8) -> Response {
        run(drive, &[0x28, 0, 0, 0, 0, lba, 0, 0, 1, 0], Vec::new()).await
    }

    fn done(response: &Response) {
        assert_eq!((response.status, response.data.len()), (Status::Good, 0));
    }

    const CLOSE_TRACK: [u8; 6] = [0x5B, 0, 1, 0, 0, 1];
    const CLOSE_SESSION: [u8; 6] = [0x5B, 0, 2, 0, 0, 0];

    async fn recorded(volume: &Faulty) -> RecordedDisc {
        RecordedDisc::load(volume).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn disc_is_burnt_and_read() {
        let (volume, disc) = blank(DiscType::CdR).await;
        let drive = drive(&volume, disc);
        assert_eq!(write(&drive, 0, 1, 16).await.status, Status::Good);
        assert_eq!(write(&drive, 16, 2, 16).await.status, Status::Good);
        let misplaced = sense(&write(&drive, 16, 3, 16).await);
        assert_eq!(misplaced, Sense::illegal(Additional::INVALID_ADDRESS_FOR_WRITE));
        assert_eq!(good(read(&drive, 31).await), vec![2; 2048]);
        assert_eq!(sense(&read(&drive, 32).await).additional, Additional::LBA_OUT_OF_RANGE);
        done(&run(&drive, &CLOSE_TRACK, Vec::new()).await);
        done(&run(&drive, &CLOSE_SESSION, Vec::new()).await);
        assert_eq!(recorded(&volume).await.disc.next_writable(), None, "nothing follows");
        assert_eq!(good(run(&drive, &[0x25], Vec::new()).await), [0, 0, 0, 31, 0, 0, 8, 0]);
        let full = sense(&write(&drive, 32, 1, 1).await);
        assert_eq!((full.key, full.additional), (Key::DataProtect, Additional::WRITE_PROTECTED));
        let toc = good(run(&drive, &[0x43, 0, 0, 0, 0, 0, 0, 0, 20], Vec::new()).await);
        assert_eq!(toc[..4], [0, 18, 1, 1]);
        // What hosts ask for the table of contents again by.
        let events = [0x4A, 1, 0, 0, 0x10, 0, 0, 0, 8, 0];
        assert_eq!(good(run(&drive, &events, Vec::new()).await)[4], 2);
    }

    #[tokio::test]
    async fn session_that_is_not_the_last_leaves_the_disc_appendable() {
        let (volume, disc) = blank(DiscType::CdR).await;
        let drive = drive(&volume, disc);
        let mut list = vec![0, 0, 0, 0, 0, 0, 0, 0, 0x05, 50, 0x01, 0xC4, 0x08];
        list.resize(60, 0);
        done(&run(&drive, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 60, 0], list).await);
        assert_eq!(write(&drive, 0, 1, 1).await.status, Status::Good);
        done(&run(&drive, &CLOSE_SESSION, Vec::new()).await);
        assert_eq!(recorded(&volume).await.disc.next_writable(), Some(11_401));
        assert_eq!(write(&drive, 11_401, 1, 1).await.status, Status::Good);
    }

    /// As libburn does it: the pre-gap first, which does not end where a command does.
    #[tokio::test]
    async fn session_is_written_at_once_behind_its_cue_sheet() {
        let (volume, disc) = blank(DiscType::CdR).await;
        let drive = drive(&volume, disc);
        let mut page = vec![0, 0, 0, 0, 0, 0, 0, 0, 0x05, 50, 0x02, 0x04, 0x08];
        page.resize(60, 0);
        let sheet = [
            [0x41, 0, 0, 0x14, 0, 0, 0, 0],
            [0x41, 1, 0, 0x10, 0, 0, 0, 0],
            [0x41, 1, 1, 0x10, 0, 0, 2, 0],
            [0x41, 0xAA, 1, 0x14, 0, 0, 2, 20],
        ];
        let send = [0x5D, 0, 0, 0, 0, 0, 0, 0, 32, 0];
        let early = run(&drive, &send, sheet.concat()).await;
        assert_eq!(sense(&early).additional, Additional::ILLEGAL_MODE_FOR_TRACK);
        let before = -6_i32;
        let misplaced = write(&drive, before.cast_unsigned(), 7, 16).await;
        assert_eq!(sense(&misplaced).key, Key::IllegalRequest);
        done(&run(&drive, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 60, 0], page).await);
        done(&run(&drive, &send, sheet.concat()).await);
        done(&write(&drive, (-150_i32).cast_unsigned(), 9, 144).await);
        let data: Vec<_> = (0..16).flat_map(|block: u8| vec![block; 2048]).collect();
        let at_the_end = [0x2A, 0, 0xFF, 0xFF, 0xFF, 0xFA, 0, 0, 16, 0];
        done(&run(&drive, &at_the_end, data).await);
        assert_eq!(good(read(&drive, 0).await), vec![6; 2048]);
        assert_eq!(good(read(&drive, 9).await), vec![15; 2048]);
        done(&write(&drive, 10, 1, 10).await);
        done(&run(&drive, &[0x35], Vec::new()).await);
        let recorded = recorded(&volume).await.disc;
        assert_eq!((recorded.end(), recorded.next_writable()), (20, None));
        assert_eq!(recorded.closed_sessions(), 1);
    }

    /// What a crash leaves is the disc as it was written down last.
    #[tokio::test]
    async fn synchronized_blocks_outlive_the_drive() {
        let (volume, disc) = blank(DiscType::BdR).await;
        let first = drive(&volume, disc);
        assert_eq!(write(&first, 0, 1, 32).await.status, Status::Good);
        for immediate in [0, 2] {
            done(&run(&first, &[0x35, immediate], Vec::new()).await);
        }
        assert_eq!(write(&first, 32, 2, 32).await.status, Status::Good);
        let second = drive(&volume, recorded(&volume).await);
        assert_eq!(good(read(&second, 31).await), vec![1; 2048]);
        assert_eq!(sense(&read(&second, 32).await).additional, Additional::LBA_OUT_OF_RANGE);
        assert_eq!(write(&second, 32, 3, 32).await.status, Status::Good);
        assert!(second.core.settle_before_removal().await.is_ok());
        let third = drive(&volume, recorded(&volume).await);
        assert_eq!(good(read(&third, 63).await), vec![3; 2048]);
    }

    #[tokio::test]
    async fn write_that_fails_is_not_counted_and_can_be_repeated() {
        let (volume, disc) = blank(DiscType::CdR).await;
        let drive = drive(&volume, disc);
        volume.fail(Verb::Write, Kind::NoSpace);
        let refused = sense(&write(&drive, 0, 1, 8).await);
        assert_eq!(refused.additional, Additional::SPACE_ALLOCATION_FAILED);
        volume.stop_failing();
        assert_eq!(write(&drive, 0, 1, 8).await.status, Status::Good);
        volume.fail(Verb::Flush, Kind::NoSpace);
        assert_eq!(run(&drive, &CLOSE_TRACK, Vec::new()).await.status, Status::CheckCondition);
        assert!(drive.core.settle_before_removal().await.is_err(), "it is not stable");
        // Nobody knows what a flush that failed has lost: nothing of it was written down.
        assert_eq!(recorded(&volume).await.disc.next_writable(), Some(0));
    }

    #[tokio::test]
    async fn disc_that_is_exchanged_is_written_down_and_another_is_found() {
        let (volume, disc) = blank(DiscType::CdR).await;
        let first = drive(&volume, disc);
        assert_eq!(write(&first, 0, 1, 8).await.status, Status::Good);
        let (other, _) = blank(DiscType::DvdPlusRw).await;
        let other: Arc<dyn Volume> = other;
        let second = first.exchange(other, "two".into(), false).await.unwrap();
        assert_eq!(recorded(&volume).await.disc.next_writable(), Some(8));
        second.core.attend(|attentions| attentions.take(ME));
        let profile = [0x46, 0, 0, 0, 0, 0, 0, 0, 8];
        assert_eq!(good(run(&second, &profile, Vec::new()).await)[7], 0x1A);
        assert_eq!(write(&second, 100, 4, 1).await.status, Status::Good);
        // An image that was pressed is not written.
        let pressed = Arc::new(Memory::new(16 * 2048, BLOCK_SIZE));
        let third = second.exchange(pressed, "three".into(), false).await.unwrap();
        third.core.attend(|attentions| attentions.take(ME));
        assert_eq!(sense(&write(&third, 0, 4, 1).await).key, Key::DataProtect);
        assert_eq!(good(run(&third, &profile, Vec::new()).await)[7], 0x08);
    }

    /// Many writes may be under way when a disc is exchanged: one of them is told of it, and none is for the new one.
    #[tokio::test]
    async fn writes_that_were_sent_for_another_disc_do_not_reach_this_one() {
        let (volume, disc) = blank(DiscType::DvdPlusRw).await;
        let first = drive(&volume, disc);
        assert_eq!(write(&first, 0, 1, 8).await.status, Status::Good);
        let (other, _) = blank(DiscType::DvdPlusRw).await;
        let second = first.exchange(Arc::clone(&other) as _, "two".into(), false).await.unwrap();
        let told = sense(&write(&second, 8, 1, 8).await);
        assert_eq!((told.key, told.additional.code), (Key::UnitAttention, 0x28));
        for lba in [16, 24] {
            let refused = sense(&write(&second, lba, 1, 8).await);
            assert_eq!((refused.key, refused.additional.code), (Key::AbortedCommand, 0x28));
        }
        let front = other.read(Span::new(0, 32 * 2048)).await.unwrap();
        assert!(front.iter().all(|byte| *byte == 0));
        good(run(&second, &TEST_UNIT_READY, Vec::new()).await);
        assert_eq!(write(&second, 0, 1, 8).await.status, Status::Good);
    }

    /// What a crash has left there of writes that do not count is not part of the track.
    #[tokio::test]
    async fn reserved_blocks_that_were_not_written_are_zeroes() {
        let (volume, disc) = blank(DiscType::BdR).await;
        let old = Bytes::from(vec![7; 64 * 2048]);
        volume.write(0, old, Durability::Volatile).await.unwrap();
        let drive = drive(&volume, disc);
        let reserve = [0x53, 0, 0, 0, 0, 0, 0, 0, 64, 0];
        good(run(&drive, &reserve, Vec::new()).await);
        assert_eq!(write(&drive, 0, 1, 8).await.status, Status::Good);
        good(run(&drive, &[0x5B, 0, 1, 0, 0, 1, 0, 0, 0, 0], Vec::new()).await);
        let read = volume.read(Span::new(0, 64 * 2048)).await.unwrap();
        assert!(read[..8 * 2048].iter().all(|byte| *byte == 1));
        assert!(read[8 * 2048..].iter().all(|byte| *byte == 0));
        assert_eq!(recorded(&volume).await.disc.tracks()[0].end, 64);
    }
}
