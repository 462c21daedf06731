use std::collections::VecDeque;
use std::sync::Mutex as Locked;
use std::time::Duration;

use futures_util::FutureExt as _;
use proto::scsi::DeviceType;
use proto::scsi::inquiry::page;
use proto::scsi::sense::Key;
use tokio::sync::Notify;
use volume::store::memory::Memory;

use super::super::super::LogicalUnit as _;
use super::super::super::test_initiator::TestInitiator;
use super::super::tests::{ME, OTHER, block, good, sense};
use super::super::{Disk, Options};
use super::*;
use crate::scsi_device::{Connection, DeviceAnswer, DeviceFailure, Ended, Pending, Turn, Turns};

/// A device that does what it is told, and notes what it was asked for.
struct Fake {
    peripheral: u8,
    block_length: u32,
    order: Order,
    turns: Turns,
    asked: Locked<Vec<DeviceRequest>>,
    answers: Locked<VecDeque<Result<DeviceAnswer, DeviceFailure>>>,
    unheard: Locked<Vec<Bytes>>,
    /// Commands wait for this, if it is there.
    held: Option<Arc<Notify>>,
    resets: AtomicU32,
    tells_of_losses: bool,
}

impl Fake {
    fn of(peripheral: u8, block_length: u32) -> Self {
        let (asked, answers, held) = (Locked::default(), Locked::default(), None);
        Self {
            peripheral,
            block_length,
            order: Order::Single,
            turns: Turns::default(),
            asked,
            answers,
            unheard: Locked::default(),
            held,
            resets: AtomicU32::new(0),
            tells_of_losses: false,
        }
    }

    fn will(&self, answer: Result<DeviceAnswer, DeviceFailure>) {
        self.answers.lock().unwrap().push_back(answer);
    }

    /// What it was asked for since it was looked at last: operation codes and what travelled.
    fn taken(&self) -> Vec<(u8, DeviceData)> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.into_iter().map(|request| (request.block[0], request.data)).collect()
    }
}

impl ScsiDevice for Fake {
    fn peripheral(&self) -> u8 {
        self.peripheral
    }

    fn transfer_max(&self) -> u32 {
        1 << 16
    }

    fn block_length(&self) -> u32 {
        self.block_length
    }

    fn serial(&self) -> Option<&str> {
        None
    }

    fn order(&self) -> Order {
        self.order
    }

    fn turns(&self) -> &Turns {
        &self.turns
    }

    fn execute(&self, turn: Turn, request: DeviceRequest) -> Pending<Ended> {
        self.asked.lock().unwrap().push(request);
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or_else(|| Ok(done(&[])));
        let held = self.held.clone();
        Box::pin(async move {
            if let Some(held) = held {
                held.notified().await;
            }
            if !matches!(&answer, Ok(answer) if answer.status == Status::Good) {
                turn.halt();
            }
            answer
        })
    }

    fn take_unheard(&self) -> Vec<Bytes> {
        std::mem::take(&mut *self.unheard.lock().unwrap())
    }

    fn reset(&self) -> Pending<()> {
        self.resets.fetch_add(1, Ordering::AcqRel);
        Box::pin(async {})
    }

    fn tells_of_losses(&self) -> bool {
        self.tells_of_losses
    }

    fn connection(&self) -> Option<Connection> {
        None
    }
}

fn done(data: &[u8]) -> DeviceAnswer {
    DeviceAnswer {
        status: Status::Good,
        data: Bytes::copy_from_slice(data),
        sense: Bytes::new(),
        residual: Residual::None,
    }
}

fn failed(sense: Sense) -> DeviceAnswer {
    let sense = sense.emit(Format::Fixed).into();
    DeviceAnswer {
        status: Status::CheckCondition,
        data: Bytes::new(),
        sense,
        residual: Residual::None,
    }
}

const TAPE: u8 = 0x01;
const READY: [u8; 6] = [0; 6];
const PREVENT: [u8; 6] = [0x1E, 0, 0, 0, 1, 0];
const ALLOW: [u8; 6] = [0x1E, 0, 0, 0, 0, 0];

/// A unit that passes `fake` through, and two clients that have been told of the power on.
async fn unit(fake: Fake, maintenance: bool) -> (Arc<Fake>, Disk) {
    let fake = Arc::new(fake);
    let device = Arc::clone(&fake) as Arc<dyn ScsiDevice>;
    let passed = PassedThrough { device, maintenance };
    let options =
        Options { device: passed.device_type(), passed: Some(passed), ..Options::default() };
    let disk = Disk::new(Arc::new(Memory::new(0, 512)), "iqn.2026-11.dev.longhaul:t", 0, options);
    for (n, nexus) in [(1, ME), (2, OTHER)] {
        disk.attach(nexus, TestInitiator::new(n));
        let told = run(&disk, nexus, &READY, &[]).await;
        assert_eq!(sense(&told).additional, Additional::POWER_ON_OR_RESET);
    }
    assert_eq!(fake.taken(), [], "the device has not been asked");
    (fake, disk)
}

async fn tape() -> (Arc<Fake>, Disk) {
    unit(Fake::of(TAPE, 512), false).await
}

async fn run(disk: &Disk, nexus: Nexus, cdb: &[u8], data: &[u8]) -> Response {
    start(disk, nexus, cdb, data).await
}

fn start(disk: &Disk, nexus: Nexus, cdb: &[u8], data: &[u8]) -> super::super::super::Answer {
    let parsed = Parsed::of(&block(cdb), disk.device_type());
    let pieces = if data.is_empty() { vec![] } else { vec![Bytes::copy_from_slice(data)] };
    disk.execute(nexus, Command { parsed, data: pieces, announced: data.len() as u32 })
}

/// Lets what was spawned run.
async fn settle() {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn command_goes_on_with_its_data_and_comes_back_as_the_device_ended_it() {
    let (fake, tape) = tape().await;
    let write = [0x0A, 1, 0, 0, 2, 0];
    assert_eq!(tape.data_out_len(&Parsed::of(&block(&write), DeviceType::Tape)), 1024);
    good(run(&tape, ME, &write, &[7; 1024]).await);
    assert_eq!(fake.taken(), [(0x0A, DeviceData::Out(vec![7; 1024].into()))]);
    // A block that is shorter than what was asked for: data and sense, and a residual by the length of the data.
    let short = Sense::new(Key::NoSense, Additional::NONE).with_information(3096);
    let mut answer = failed(short);
    answer.data = vec![1; 1000].into();
    fake.will(Ok(answer.clone()));
    let read = [0x08, 0, 0, 0x10, 0, 0];
    assert_eq!(tape.working_memory(&Parsed::of(&block(&read), DeviceType::Tape)), 4096);
    let came = run(&tape, ME, &read, &[]).await;
    assert_eq!((came.status, came.data.concat()), (Status::CheckCondition, vec![1; 1000]));
    assert_eq!(came.sense, answer.sense, "unchanged");
    assert_eq!(fake.taken(), [(0x08, DeviceData::In(4096))]);
    for status in [Status::Busy, Status::TaskSetFull, Status::ReservationConflict] {
        fake.will(Ok(DeviceAnswer { status, ..done(&[]) }));
        assert_eq!(run(&tape, ME, &READY, &[]).await.status, status);
    }
}

#[tokio::test]
async fn too_little_data_never_reaches_the_device() {
    let (fake, tape) = tape().await;
    let refused = run(&tape, ME, &[0x0A, 1, 0, 0, 2, 0], &[7; 512]).await;
    assert_eq!(sense(&refused).additional, Additional::INVALID_FIELD_IN_INFORMATION_UNIT);
    let unknown = run(&tape, ME, &[0x02, 0, 0, 0, 0, 0], &[]).await;
    assert_eq!(sense(&unknown), pass_through::UNKNOWN);
    let firmware = run(&tape, ME, &[0x3B, 5, 0, 0, 0, 0, 0, 0, 4, 0], &[1; 4]).await;
    assert_eq!(sense(&firmware), pass_through::UNKNOWN);
    assert_eq!(fake.taken(), []);
}

#[tokio::test]
async fn maintenance_goes_on_where_it_is_allowed() {
    let (fake, tape) = unit(Fake::of(TAPE, 512), true).await;
    good(run(&tape, ME, &[0x3B, 5, 0, 0, 0, 0, 0, 0, 4, 0], &[1; 4]).await);
    good(run(&tape, ME, &[0xC1], &[1; 3]).await);
    good(run(&tape, ME, &[0xC2], &[]).await);
    let out = |data: &[u8]| DeviceData::Out(Bytes::copy_from_slice(data));
    let asked = fake.taken();
    assert_eq!(asked[..2], [(0x3B, out(&[1; 4])), (0xC1, out(&[1; 3]))]);
    assert!(matches!(asked[2], (0xC2, DeviceData::In(_))));
}

#[tokio::test]
async fn reader_changes_nothing() {
    let (fake, tape) = tape().await;
    let reader = tape.for_readers();
    for (cdb, additional) in [
        (&[0x0A, 1, 0, 0, 1, 0][..], Additional::WRITE_PROTECTED),
        (&[0x19, 1, 0, 0, 0, 0], Additional::WRITE_PROTECTED),
        (&PREVENT, Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS),
        (&[0x1B, 0, 0, 0, 0, 0], Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS),
        (&[0x3B, 5], Additional::INVALID_COMMAND_OPERATION_CODE),
    ] {
        let refused = run(&reader, OTHER, cdb, &[0; 512]).await;
        assert_eq!(sense(&refused).additional, additional, "{cdb:02x?}");
    }
    assert_eq!(fake.taken(), []);
}

#[tokio::test]
async fn reader_moves_no_tape_under_one_who_may_write() {
    let (fake, tape) = tape().await;
    let reader = tape.for_readers();
    tape.detach(OTHER);
    reader.attach(OTHER, TestInitiator::new(2));
    sense(&run(&reader, OTHER, &READY, &[]).await);
    let moves: [&[u8]; 5] =
        [&[0x08, 0, 0, 2, 0, 0], &[0x01], &[0x11, 0, 0, 0, 1, 0], &[0x2B], &[0x92]];
    for cdb in moves {
        let refused = run(&reader, OTHER, cdb, &[]).await;
        assert_eq!(sense(&refused).additional, Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS);
    }
    assert_eq!(fake.taken(), []);
    good(run(&reader, OTHER, &[0x1A, 0, 0x3F, 0, 16, 0], &[]).await);
    assert_eq!(fake.taken().len(), 1, "the settings are read");
    tape.detach(ME);
    for cdb in moves {
        good(run(&reader, OTHER, cdb, &[]).await);
    }
    assert_eq!(fake.taken().len(), moves.len());
}

#[tokio::test]
async fn tape_that_another_has_reserved_is_not_loaded() {
    let (fake, tape) = tape().await;
    good(run(&tape, ME, &[0x16, 0, 0, 0, 0, 0], &[]).await);
    let load = [0x1B, 0, 0, 0, 1, 0];
    assert_eq!(run(&tape, OTHER, &load, &[]).await.status, Status::ReservationConflict);
    assert_eq!(fake.taken(), []);
    good(run(&tape, ME, &load, &[]).await);
}

#[tokio::test]
async fn error_of_an_earlier_command_is_told_to_all_who_may_have_sent_that() {
    let (fake, tape) = tape().await;
    let late = Sense { deferred: true, ..Sense::new(Key::MediumError, Additional::WRITE_ERROR) };
    fake.will(Ok(failed(late)));
    assert_eq!(sense(&run(&tape, OTHER, &READY, &[]).await).key, Key::MediumError);
    assert_eq!(fake.taken().len(), 1);
    good(run(&tape, OTHER, &READY, &[]).await);
    fake.taken();
    let marks = [0x10, 0, 0, 0, 1, 0];
    let told = sense(&run(&tape, ME, &marks, &[]).await);
    assert!(told.deferred && told.key == Key::MediumError, "{told:?}");
    assert_eq!(fake.taken(), [], "it was told in place of the command");
    good(run(&tape, ME, &marks, &[]).await);
}

#[tokio::test]
async fn others_are_told_of_a_command_that_the_device_did_not_end() {
    for failure in [DeviceFailure::TimedOut, DeviceFailure::Lost] {
        let (fake, tape) = tape().await;
        fake.will(Err(failure));
        assert_eq!(sense(&run(&tape, ME, &READY, &[]).await).key, Key::AbortedCommand);
        let told = sense(&run(&tape, OTHER, &[0x0A, 1, 0, 0, 1, 0], &[0; 512]).await);
        assert_eq!(
            told.additional,
            Additional::POWER_ON_OR_RESET,
            "where the head is nobody knows"
        );
    }
}

#[tokio::test]
async fn device_that_tells_of_losses_itself_is_believed() {
    for failure in [DeviceFailure::TimedOut, DeviceFailure::Lost] {
        let fake = Fake { tells_of_losses: true, ..Fake::of(TAPE, 512) };
        let (fake, tape) = unit(fake, false).await;
        fake.will(Err(failure));
        assert_eq!(sense(&run(&tape, ME, &READY, &[]).await).key, Key::AbortedCommand);
        let lost = Sense::new(Key::UnitAttention, Additional::NEXUS_LOSS);
        fake.will(Ok(failed(lost)));
        for nexus in [OTHER, ME] {
            assert_eq!(sense(&run(&tape, nexus, &READY, &[]).await), lost, "once");
            good(run(&tape, nexus, &READY, &[]).await);
        }
    }
}

/// Each of these the device tells once, and to this target.
#[tokio::test]
async fn sense_that_comes_in_another_way_is_heard_by_all_clients() {
    let news = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
    let as_data: Bytes = news.emit(Format::Fixed).into();
    let mark = [0x10, 0, 0, 0, 1, 0];
    // As the data of REQUEST SENSE.
    let (fake, drive) = tape().await;
    fake.will(Ok(done(&as_data)));
    let told = good(run(&drive, ME, &[0x03, 0, 0, 0, 252, 0], &[]).await);
    assert_eq!(told, as_data);
    assert_eq!(sense(&run(&drive, OTHER, &mark, &[]).await), news);
    // To a command that was aborted.
    let (fake, drive) = tape().await;
    fake.unheard.lock().unwrap().push(as_data);
    fake.will(Err(DeviceFailure::NotBegun));
    for nexus in [ME, OTHER] {
        assert_eq!(sense(&run(&drive, nexus, &mark, &[]).await), news);
    }
    assert!(fake.taken().iter().filter(|(code, _)| *code == 0x10).count() == 1, "it was not begun");
    // To a question of ours.
    let lost = Sense::new(Key::MediumError, Additional::WRITE_ERROR);
    let lost = Sense { deferred: true, ..lost };
    let (fake, disk) = unit(Fake::of(0x00, 0), false).await;
    fake.will(Ok(failed(lost)));
    for nexus in [ME, OTHER] {
        assert_eq!(sense(&run(&disk, nexus, &READY, &[]).await), lost);
    }
}

/// They would be carried out on another disc.
#[tokio::test]
async fn writes_that_were_sent_before_a_disc_was_exchanged_are_not_handed_on() {
    const OPTICAL: u8 = 0x05;
    let (fake, drive) = unit(Fake::of(OPTICAL, 2048), false).await;
    let write = [0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let data = [7; 2048];
    let held = [(); 3].map(|()| start(&drive, ME, &write, &data));
    let news = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
    fake.will(Ok(failed(news)));
    let [first, rest @ ..] = held;
    assert_eq!(sense(&first.await), news);
    for behind in rest {
        let refused = Sense::new(Key::AbortedCommand, Additional::MEDIUM_MAY_HAVE_CHANGED);
        assert_eq!(sense(&behind.await), refused);
    }
    assert_eq!(fake.taken().iter().filter(|(code, _)| *code == 0x2A).count(), 1);
    good(run(&drive, ME, &READY, &[]).await);
    good(run(&drive, ME, &write, &data).await);
}

/// What a client had sent before it was told of a loss would be carried out at another place.
#[tokio::test]
async fn commands_that_were_sent_before_the_loss_do_not_move_the_tape() {
    let lost_head = Sense::new(Key::AbortedCommand, Additional::SEQUENTIAL_POSITIONING_ERROR);
    let mark = [0x10, 0, 0, 0, 1, 0];
    let reset = || Ok(failed(Sense::new(Key::UnitAttention, Additional::POWER_ON_OR_RESET)));
    let exchanged = failed(Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED));
    for event in [reset(), Ok(exchanged), Err(DeviceFailure::Lost), Err(DeviceFailure::TimedOut)] {
        let (fake, tape) = tape().await;
        let held = [(); 4].map(|()| start(&tape, ME, &mark, &[]));
        fake.will(event);
        let [first, rest @ ..] = held;
        assert_ne!(first.await.status, Status::Good);
        for behind in rest {
            assert_eq!(sense(&behind.await), lost_head);
        }
        assert_eq!(fake.taken().iter().filter(|(code, _)| *code == 0x10).count(), 1);
        // The other is told first, and does not know either.
        assert_eq!(sense(&run(&tape, OTHER, &mark, &[]).await).key, Key::UnitAttention);
        assert_eq!(sense(&run(&tape, OTHER, &mark, &[]).await), lost_head);
        for (nexus, finds) in [(ME, &[0x2B, 0, 0, 0, 0, 0, 7, 0, 0, 0][..]), (OTHER, &[0x01])] {
            good(run(&tape, nexus, finds, &[]).await);
            good(run(&tape, nexus, &mark, &[]).await);
        }
    }
    // A disk has no head of which a client would know.
    let (fake, disk) = unit(Fake::of(0x00, 512), false).await;
    fake.will(reset());
    let mut capacity = [0; 32];
    capacity[10] = 2;
    fake.will(Ok(done(&capacity)));
    sense(&run(&disk, ME, &READY, &[]).await);
    good(run(&disk, ME, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]).await);
}

#[tokio::test]
async fn residual_of_what_was_sent_is_the_device_s() {
    let (fake, tape) = tape().await;
    let near_end = Sense::new(Key::NoSense, Additional::NONE);
    fake.will(Ok(DeviceAnswer { residual: Residual::Under(512), ..failed(near_end) }));
    let written = run(&tape, ME, &[0x0A, 1, 0, 0, 2, 0], &[7; 1024]).await;
    assert_eq!((written.status, written.residual), (Status::CheckCondition, Residual::Under(512)));
    assert_eq!(run(&tape, ME, &[0x0A, 1, 0, 0, 2, 0], &[7; 1024]).await.residual, Residual::None);
    // It had more than the command asked for.
    fake.will(Ok(DeviceAnswer { residual: Residual::Over(9), ..done(&[1; 4]) }));
    let read = run(&tape, ME, &[0x08, 0, 0, 0, 4, 0], &[]).await;
    assert_eq!(read.residual, Residual::Over(9));
}

#[tokio::test]
async fn medium_is_locked_again_after_a_reset_from_outside() {
    let (fake, tape) = tape().await;
    good(run(&tape, ME, &PREVENT, &[]).await);
    fake.taken();
    fake.will(Ok(failed(Sense::new(Key::UnitAttention, Additional::POWER_ON_OR_RESET))));
    sense(&run(&tape, ME, &READY, &[]).await);
    settle().await;
    assert!(fake.taken().iter().any(|(code, _)| *code == PREVENT[0]), "it is told again");
}

#[tokio::test]
async fn reset_from_outside_that_the_question_for_blocks_hears_of_loses_the_lock_too() {
    let (fake, tape) = tape().await;
    good(run(&tape, ME, &PREVENT, &[]).await);
    fake.taken();
    // A mode that was set has the device asked for its blocks, which tells of a reset then.
    fake.will(Ok(done(&[])));
    fake.will(Ok(failed(Sense::new(Key::UnitAttention, Additional::POWER_ON_OR_RESET))));
    good(run(&tape, ME, &[0x15, 0x10, 0, 0, 4, 0], &[0; 4]).await);
    settle().await;
    assert!(fake.taken().iter().any(|(code, _)| *code == PREVENT[0]), "it is told again");
    let told = sense(&run(&tape, ME, &READY, &[]).await);
    assert_eq!(told.additional, Additional::POWER_ON_OR_RESET);
}

#[tokio::test]
async fn lock_that_waits_for_the_device_can_be_aborted() {
    let held = Some(Arc::default());
    let (_, tape) = unit(Fake { held, ..Fake::of(TAPE, 512) }, false).await;
    let answer = start(&tape, ME, &PREVENT, &[]);
    settle().await;
    answer.abort();
    assert!(answer.now_or_never().is_some(), "it waits for the device");
}

#[tokio::test]
async fn failures_of_the_way_have_a_sense_of_their_own() {
    let (fake, tape) = tape().await;
    for (failure, key, additional) in [
        (DeviceFailure::Gone, Key::NotReady, Additional::NO_RESPONSE_TO_SELECTION),
        (DeviceFailure::Replaced, Key::NotReady, Additional::MANUAL_INTERVENTION_REQUIRED),
        (DeviceFailure::TimedOut, Key::AbortedCommand, Additional::COMMAND_TIMEOUT),
        (DeviceFailure::Lost, Key::AbortedCommand, Additional::COMMUNICATION_FAILURE),
        (DeviceFailure::Broken, Key::HardwareError, Additional::INTERNAL_TARGET_FAILURE),
        (DeviceFailure::Refused, Key::IllegalRequest, Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS),
    ] {
        fake.will(Err(failure));
        let told = sense(&run(&tape, ME, &[0x0A, 0, 0, 0, 4, 0], &[7; 4]).await);
        assert_eq!((told.key, told.additional), (key, additional));
        let sent = fake.taken().into_iter().filter(|(code, _)| *code == 0x0A).count();
        assert_eq!(sent, 1, "it is not sent again");
        // It may have been reset, and is asked for the length of its blocks.
        good(run(&tape, ME, &READY, &[]).await);
    }
    fake.will(Err(DeviceFailure::Busy));
    assert_eq!(run(&tape, ME, &READY, &[]).await.status, Status::Busy);
}

#[tokio::test]
async fn time_to_end_follows_from_the_command() {
    let (fake, tape) = tape().await;
    for (cdb, minutes) in
        [(&[0x00][..], 2), (&[0x08, 0, 0, 0, 1], 30), (&[0x01], 60), (&[0x19], 1440)]
    {
        run(&tape, ME, cdb, &[]).await;
        let asked = fake.asked.lock().unwrap().pop().unwrap();
        assert_eq!(asked.timeout, Duration::from_secs(60 * minutes), "{cdb:02x?}");
    }
}

#[tokio::test]
async fn unit_attention_of_the_device_is_told_to_each_client_once() {
    let (fake, tape) = tape().await;
    let changed = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
    fake.will(Ok(failed(changed)));
    // The tape may have another length of blocks now: the device is asked.
    let mut parameters = vec![0; 12];
    (parameters[3], parameters[10]) = (8, 4);
    fake.will(Ok(done(&parameters)));
    assert_eq!(sense(&run(&tape, ME, &READY, &[]).await), changed);
    let asked: Vec<_> = fake.taken().into_iter().map(|(opcode, _)| opcode).collect();
    assert_eq!(asked, [0x00, 0x1A]);
    let write = Parsed::of(&block(&[0x0A, 1, 0, 0, 1, 0]), DeviceType::Tape);
    assert_eq!(tape.data_out_len(&write), 1024);
    assert_eq!(sense(&run(&tape, OTHER, &READY, &[]).await), changed);
    assert_eq!(fake.taken(), []);
    for nexus in [ME, OTHER] {
        good(run(&tape, nexus, &READY, &[]).await);
    }
}

#[tokio::test]
async fn settings_that_one_client_changes_are_told_to_the_others() {
    let (fake, tape) = tape().await;
    good(run(&tape, ME, &[0x15, 0x10, 0, 0, 4, 0], &[0; 4]).await);
    let told = sense(&run(&tape, OTHER, &READY, &[]).await);
    assert_eq!(told.additional, Additional::MODE_PARAMETERS_CHANGED);
    good(run(&tape, ME, &READY, &[]).await);
    good(run(&tape, ME, &[0x4C, 0, 0x40, 0, 0, 0, 0, 0, 0, 0], &[]).await);
    let told = sense(&run(&tape, OTHER, &READY, &[]).await);
    assert_eq!(told.additional, Additional::LOG_PARAMETERS_CHANGED);
    // One that the device refuses changes nothing.
    fake.will(Ok(failed(Sense::invalid_cdb(1, None))));
    run(&tape, ME, &[0x15, 0x10, 0, 0, 4, 0], &[0; 4]).await;
    good(run(&tape, OTHER, &READY, &[]).await);
}

#[tokio::test]
async fn reservations_are_between_our_clients_and_not_the_device_s() {
    let (fake, tape) = tape().await;
    good(run(&tape, ME, &[0x16, 0, 0, 0, 0, 0], &[]).await);
    let conflict = run(&tape, OTHER, &[0x08, 0, 0, 2, 0, 0], &[]).await;
    assert_eq!(conflict.status, Status::ReservationConflict);
    good(run(&tape, ME, &[0x17, 0, 0, 0, 0, 0], &[]).await);
    // REGISTER, then RESERVE of exclusive access.
    let mut list = [0; 24];
    list[15] = 7;
    good(run(&tape, ME, &[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list).await);
    let mut list = [0; 24];
    list[7] = 7;
    good(run(&tape, ME, &[0x5F, 1, 3, 0, 0, 0, 0, 0, 24, 0], &list).await);
    let keys = good(run(&tape, OTHER, &[0x5E, 0, 0, 0, 0, 0, 0, 0, 64, 0], &[]).await);
    assert_eq!(keys[15], 7);
    assert_eq!(fake.taken(), [], "the device knows nothing of it");
    let conflict = run(&tape, OTHER, &[0x01, 0, 0, 0, 0, 0], &[]).await;
    assert_eq!(conflict.status, Status::ReservationConflict);
    good(run(&tape, ME, &[0x01, 0, 0, 0, 0, 0], &[]).await);
    assert_eq!(fake.taken().len(), 1);
}

#[tokio::test]
async fn client_does_not_unlock_what_another_has_locked() {
    let (fake, tape) = tape().await;
    good(run(&tape, ME, &PREVENT, &[]).await);
    good(run(&tape, OTHER, &PREVENT, &[]).await);
    assert_eq!(fake.asked.lock().unwrap().len(), 1, "it prevents it already");
    good(run(&tape, ME, &ALLOW, &[]).await);
    assert_eq!(fake.asked.lock().unwrap().len(), 1, "the other still wants it");
    // The other is gone without a word.
    tape.detach(OTHER);
    settle().await;
    let asked = std::mem::take(&mut *fake.asked.lock().unwrap());
    let fields: Vec<_> = asked.iter().map(|request| (request.block[0], request.block[4])).collect();
    assert_eq!(fields, [(0x1E, 1), (0x1E, 0)]);
}

#[tokio::test]
async fn lock_that_the_device_refuses_is_none() {
    let (fake, tape) = tape().await;
    let refusal = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
    fake.will(Ok(failed(refusal)));
    assert_eq!(sense(&run(&tape, ME, &PREVENT, &[]).await), refusal);
    good(run(&tape, OTHER, &ALLOW, &[]).await);
    assert_eq!(fake.taken().len(), 1);
}

#[tokio::test]
async fn reset_goes_on_and_is_told_once() {
    let (fake, tape) = tape().await;
    good(run(&tape, ME, &PREVENT, &[]).await);
    tape.reset();
    settle().await;
    assert_eq!(fake.resets.load(Ordering::Acquire), 1);
    let reset = Sense::new(Key::UnitAttention, Additional::BUS_DEVICE_RESET);
    for nexus in [ME, OTHER] {
        assert_eq!(sense(&run(&tape, nexus, &READY, &[]).await), reset);
    }
    // The device says it too, to its one initiator.
    fake.will(Ok(failed(Sense::new(Key::UnitAttention, Additional::POWER_ON_OR_RESET))));
    for nexus in [ME, OTHER] {
        good(run(&tape, nexus, &READY, &[]).await);
    }
    fake.taken();
    good(run(&tape, ME, &PREVENT, &[]).await);
    assert_eq!(fake.taken().len(), 1, "the reset has ended what was there before");
}

#[tokio::test]
async fn aborted_command_is_not_waited_for() {
    let held = Arc::new(Notify::new());
    let fake = Fake { held: Some(Arc::clone(&held)), ..Fake::of(TAPE, 512) };
    let (fake, tape) = unit(fake, false).await;
    let mut rewind = start(&tape, ME, &[0x01, 0, 0, 0, 0, 0], &[]);
    assert!((&mut rewind).now_or_never().is_none());
    assert_eq!(fake.taken().len(), 1);
    rewind.abort();
    assert_eq!(rewind.await.status, Status::TaskAborted);
}

#[tokio::test]
async fn device_that_says_what_it_is_does_not_say_which_unit() {
    let (fake, tape) = tape().await;
    let mut inquiry = [0; 36];
    (inquiry[0], inquiry[1], inquiry[4], inquiry[5]) = (TAPE, 0x80, 31, 0x19);
    inquiry[8..16].copy_from_slice(b"ACME    ");
    fake.will(Ok(done(&inquiry)));
    let told = good(run(&tape, ME, &[0x12, 0, 0, 0, 36, 0], &[]).await);
    assert_eq!(told[8..16], *b"ACME    ");
    assert_eq!(told[5] & 0x09, 0, "neither EXTENDED COPY nor protection");
    // Its own serial number and designators would be those of every target that passes it through.
    for code in [page::SERIAL, page::IDENTIFICATION, page::PORTS] {
        let told = good(run(&tape, ME, &[0x12, 1, code, 0, 255, 0], &[]).await);
        assert_eq!(told[..2], [TAPE, code]);
    }
    assert_eq!(fake.taken().len(), 1);
    fake.will(Ok(done(&[TAPE, 0, 0, 2, 0x00, 0xB0])));
    let pages = good(run(&tape, ME, &[0x12, 1, 0, 0, 255, 0], &[]).await);
    assert_eq!(pages[4..], [0x00, 0x80, 0x83, 0x88, 0xB0]);
    let luns = good(run(&tape, ME, &[0xA0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0], &[]).await);
    assert_eq!(luns[..4], [0, 0, 0, 0], "the device is in no target here");
    assert_eq!(fake.taken().len(), 1);
}

#[tokio::test]
async fn operation_codes_that_are_refused_are_not_supported() {
    let (fake, tape) = tape().await;
    let mut list = vec![0, 0, 0, 16];
    list.extend([0x01, 0, 0, 0, 0, 0, 0, 6, 0x04, 0, 0, 0, 0, 0, 0, 6]);
    fake.will(Ok(done(&list)));
    let all = [0xA3, 0x0C, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    let told = good(run(&tape, ME, &all, &[]).await);
    assert_eq!(told, [0, 0, 0, 8, 0x01, 0, 0, 0, 0, 0, 0, 6]);
    assert_eq!(fake.taken(), [(0xA3, DeviceData::In(OPCODES_ROOM))]);
    let format = [0xA3, 0x0C, 1, 0x04, 0, 0, 0, 0, 0, 64, 0, 0];
    assert_eq!(good(run(&tape, ME, &format, &[]).await), opcodes::NOT_SUPPORTED);
    assert_eq!(fake.taken(), []);
}

#[tokio::test]
async fn disk_that_was_not_ready_is_asked_how_long_its_blocks_are() {
    let (fake, disk) = unit(Fake::of(0x00, 0), false).await;
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let refused = sense(&run(&disk, ME, &read, &[]).await);
    assert_eq!(refused.additional, Additional::NOT_READY_UNKNOWN_CAUSE);
    fake.will(Ok(done(&[])));
    let mut capacity = [0; 32];
    capacity[10] = 0x10;
    fake.will(Ok(done(&capacity)));
    good(run(&disk, ME, &READY, &[]).await);
    fake.taken();
    good(run(&disk, ME, &read, &[]).await);
    assert_eq!(fake.taken(), [(0x28, DeviceData::In(4096))]);
}

/// A tape drive that has several commands at a time, and ends each when it is told to.
async fn tape_of_another_server() -> (Arc<Fake>, Disk) {
    let held = Some(Arc::default());
    let fake = Fake { order: Order::Kept, tells_of_losses: true, held, ..Fake::of(TAPE, 512) };
    let parts = unit(fake, false).await;
    assert_eq!(parts.1.sequence(), Some(Sequence::Started));
    parts
}

const WRITE: [u8; 6] = [0x0A, 1, 0, 0, 1, 0];

/// The operation codes that have come to the device since it was looked at last.
fn codes(fake: &Fake) -> Vec<u8> {
    fake.taken().into_iter().map(|(code, _)| code).collect()
}

/// Whether each of these has ended.
fn ended(answers: &mut [super::super::super::Answer]) -> Vec<bool> {
    answers.iter_mut().map(|answer| answer.now_or_never().is_some()).collect()
}

#[tokio::test]
async fn writes_of_one_client_are_under_way_together_and_nothing_passes_them() {
    let (fake, tape) = tape_of_another_server().await;
    let mut writes = [(); 3].map(|()| start(&tape, ME, &WRITE, &[7; 512]));
    let mut other = [start(&tape, OTHER, &WRITE, &[7; 512])];
    let mut behind = [start(&tape, ME, &WRITE, &[7; 512])];
    assert_eq!(ended(&mut writes), [false; 3]);
    assert_eq!((ended(&mut other), ended(&mut behind)), (vec![false], vec![false]));
    assert_eq!(codes(&fake), [0x0A; 3]);
    let held = fake.held.clone().unwrap();
    held.notify_waiters();
    assert_eq!(ended(&mut writes), [true; 3]);
    assert_eq!(ended(&mut behind), [false]);
    assert_eq!(codes(&fake), [0u8; 0], "it has passed that of the other");
    assert_eq!(ended(&mut other), [false]);
    assert_eq!(codes(&fake), [0x0A]);
    held.notify_waiters();
    let [other] = other;
    good(other.await);
    assert_eq!(ended(&mut behind), [false]);
    assert_eq!(codes(&fake), [0x0A]);
}

/// The unit of another server refuses what it had behind the first; a probe of ours must not take that back, and what we
/// have not sent we refuse.
#[tokio::test]
async fn medium_that_is_exchanged_under_several_writes_ends_them_all() {
    let (fake, tape) = tape_of_another_server().await;
    let held = fake.held.clone().unwrap();
    let news = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
    let lost_head = Sense::new(Key::AbortedCommand, Additional::SEQUENTIAL_POSITIONING_ERROR);
    fake.will(Ok(failed(news)));
    fake.will(Ok(failed(lost_head)));
    let mut first = start(&tape, ME, &WRITE, &[7; 512]);
    let mut second = start(&tape, ME, &WRITE, &[7; 512]);
    assert!((&mut first).now_or_never().is_none() && (&mut second).now_or_never().is_none());
    let mut look = start(&tape, OTHER, &READY, &[]);
    let mut behind = start(&tape, ME, &WRITE, &[7; 512]);
    assert!((&mut look).now_or_never().is_none() && (&mut behind).now_or_never().is_none());
    assert_eq!(codes(&fake), [0x0A; 2]);
    held.notify_waiters();
    assert!((&mut first).now_or_never().is_none(), "the device is asked for its blocks first");
    settle().await;
    assert_eq!(codes(&fake), [0u8; 0], "the second has not ended");
    assert_eq!(sense(&finished(&held, second).await), lost_head);
    settle().await;
    // MODE SENSE.
    assert_eq!(codes(&fake), [0x1A]);
    for (answer, told) in [(first, news), (look, news), (behind, lost_head)] {
        assert_eq!(sense(&finished(&held, answer).await), told);
    }
    assert!(codes(&fake).iter().all(|code| *code == 0x1A), "nothing else was sent");
}

/// Has all end that the device has, until this one does.
async fn finished(held: &Notify, mut answer: super::super::super::Answer) -> Response {
    loop {
        held.notify_waiters();
        if let Some(response) = (&mut answer).now_or_never() {
            return response;
        }
        settle().await;
    }
}

/// It goes on behind the first, which was not sent, and keeps its place.
#[tokio::test]
async fn writes_that_the_device_did_not_begin_are_sent_again_in_their_order() {
    let (fake, disk) = unit(Fake { order: Order::Kept, ..Fake::of(0x00, 512) }, false).await;
    let write = |block| [0x2A, 0, 0, 0, 0, block, 0, 0, 1, 0];
    for _ in 0..3 {
        fake.will(Err(DeviceFailure::NotBegun));
    }
    let writes = [1, 2, 3].map(|block| start(&disk, ME, &write(block), &[block; 512]));
    for answer in futures_util::future::join_all(writes).await {
        good(answer);
    }
    let sent: Vec<_> = fake.taken().into_iter().map(|(_, data)| data).collect();
    let data = |block| DeviceData::Out(vec![block; 512].into());
    assert_eq!(sent[sent.len() - 3..], [data(1), data(2), data(3)]);
}
