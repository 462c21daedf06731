use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join3;
use proto::scsi::sense::{Key, Stream};
use proto::scsi::{DeviceType, Parsed};
use testing::Random;
use volume::store::blocked_writes::BlockedWrites;
use volume::store::faulty::Faulty;
use volume::store::memory::Memory;
use volume::{Kind, Verb, Volume};

use super::super::super::test_initiator::TestInitiator;
use super::super::super::{Command, LogicalUnit as _};
use super::super::tests::{ME, OTHER, block};
use super::super::{Disk, ExchangeError, Options};
use super::*;

const SIZE: u64 = 1 << 20;
const REWIND: [u8; 1] = [0x01];
const READ_1000: [u8; 5] = [0x08, 0, 0, 0x03, 0xE8];
const MARK: [u8; 5] = [0x10, 0, 0, 0, 1];

/// A drive with `tape` in it, and two initiators that have been told of the power on.
fn drive_of(tape: Arc<dyn Volume>) -> Disk {
    let options = Options { device: DeviceType::Tape, ..Options::default() };
    let drive = Disk::new(tape, "iqn.2026-11.dev.longhaul:t", 0, options);
    for (n, nexus) in [(1, ME), (2, OTHER)] {
        drive.attach(nexus, TestInitiator::new(n));
        assert_eq!(sense_of(&run_by(&drive, nexus, &[0x00], vec![])).key, Key::UnitAttention);
    }
    drive
}

fn drive() -> Disk {
    drive_of(Arc::new(Memory::new(SIZE, 512)))
}

fn run_by(drive: &Disk, nexus: Nexus, cdb: &[u8], data: Vec<u8>) -> Response {
    let parsed = Parsed::of(&block(cdb), DeviceType::Tape);
    let announced = data.len() as u32;
    assert!(drive.data_out_len(&parsed) <= announced);
    let data = if data.is_empty() { Vec::new() } else { vec![data.into()] };
    drive.execute(nexus, Command { parsed, data, announced }).now_or_never().unwrap()
}

fn run(drive: &Disk, cdb: &[u8]) -> Response {
    run_by(drive, ME, cdb, vec![])
}

fn sense_of(response: &Response) -> Sense {
    let none = Sense::new(Key::NoSense, Additional::NONE);
    Sense::parse(&response.sense).unwrap_or(none)
}

fn good(response: &Response) -> Vec<u8> {
    assert_eq!(response.status, Status::Good, "{}", sense_of(response));
    response.data.concat()
}

/// WRITE of one block of `len` bytes.
fn write(drive: &Disk, fill: u8, len: u32) -> Response {
    let [_, a, b, c] = len.to_be_bytes();
    run_by(drive, ME, &[0x0A, 0, a, b, c], vec![fill; len as usize])
}

/// Blocks of 300 and 500 bytes, a file mark, a block of 1000, and the head at the beginning.
fn recorded() -> Disk {
    let drive = drive();
    good(&write(&drive, 1, 300));
    good(&write(&drive, 2, 500));
    good(&run(&drive, &MARK));
    good(&write(&drive, 3, 1000));
    good(&run(&drive, &REWIND));
    drive
}

fn position(drive: &Disk) -> (u64, u64) {
    let long = good(&run(drive, &[0x34, 6]));
    let number = |at: usize| u64::from_be_bytes(long[at..at + 8].try_into().unwrap());
    (number(8), number(16))
}

fn ili(information: i64) -> Sense {
    let stream = Stream { incorrect_length: true, ..Stream::NONE };
    let sense = Sense::new(Key::NoSense, Additional::NONE).with_stream(stream);
    sense.with_information(information.cast_unsigned())
}

#[test]
fn blocks_of_any_length_come_back_with_what_is_missing() {
    let drive = recorded();
    let short = run(&drive, &READ_1000);
    assert_eq!((short.data.concat(), sense_of(&short)), (vec![1; 300], ili(700)));
    // SILI: it is no error then.
    let long = run(&drive, &[0x08, 0, 0, 0, 100]);
    assert_eq!((long.data.concat(), sense_of(&long)), (vec![2; 100], ili(-400)));
    let mark = run(&drive, &READ_1000);
    assert_eq!((mark.data.len(), sense_of(&mark)), (0, tape::filemark(1000)));
    assert_eq!(good(&run(&drive, &READ_1000)), vec![3; 1000]);
    let end = run(&drive, &READ_1000);
    assert_eq!(sense_of(&end), tape::end_of_data(1000));
    assert_eq!(position(&drive), (4, 1));
    good(&run(&drive, &REWIND));
    assert_eq!(good(&run(&drive, &[0x08, 2, 0, 0x03, 0xE8])), vec![1; 300]);
}

#[test]
fn blocks_of_one_length_are_counted() {
    let drive = drive();
    let select = [0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0, 1, 0];
    good(&run_by(&drive, ME, &[0x15, 0x10, 0, 0, 12], select.to_vec()));
    let changed = Sense::new(Key::UnitAttention, Additional::MODE_PARAMETERS_CHANGED);
    assert_eq!(sense_of(&run_by(&drive, OTHER, &[0x00], vec![])), changed);
    let data: Vec<u8> = (0..5 * 256).map(|at| (at / 256) as u8).collect();
    good(&run_by(&drive, ME, &[0x0A, 1, 0, 0, 5], data.clone()));
    good(&run(&drive, &MARK));
    assert_eq!(position(&drive), (6, 1));
    good(&run(&drive, &REWIND));
    assert_eq!(good(&run(&drive, &[0x08, 1, 0, 0, 2])), data[..512]);
    let rest = run(&drive, &[0x08, 1, 0, 0, 9]);
    assert_eq!((rest.data.concat(), sense_of(&rest)), (data[512..].to_vec(), tape::filemark(6)));
    // A block of another length ends a READ that counts.
    good(&write(&drive, 7, 100));
    good(&run(&drive, &[0x11, 0, 0xFF, 0xFF, 0xFF]));
    assert_eq!(sense_of(&run(&drive, &[0x08, 1, 0, 0, 3])), ili(3));
}

#[test]
fn head_moves_over_blocks_and_marks() {
    let drive = recorded();
    let space = |code: u8, count: i32| {
        let [_, a, b, c] = count.to_be_bytes();
        sense_of(&run(&drive, &[0x11, code, a, b, c]))
    };
    let there = Sense::new(Key::NoSense, Additional::NONE);
    assert_eq!((space(0, 1), position(&drive)), (there, (1, 0)));
    assert_eq!((space(0, 5), position(&drive)), (tape::filemark(4), (3, 1)));
    assert_eq!((space(0, 5), position(&drive)), (tape::end_of_data(4), (4, 1)));
    assert_eq!((space(0, -9), position(&drive)), (tape::filemark(8), (2, 0)));
    assert_eq!((space(0, -9), position(&drive)), (tape::beginning(7), (0, 0)));
    assert_eq!((space(1, 1), position(&drive)), (there, (3, 1)));
    assert_eq!((space(1, 2), position(&drive)), (tape::end_of_data(2), (4, 1)));
    assert_eq!((space(1, -1), position(&drive)), (there, (2, 0)));
    assert_eq!((space(3, 0), position(&drive)), (there, (4, 1)));
    let locate = |cdb: &[u8]| sense_of(&run(&drive, cdb));
    assert_eq!((locate(&[0x2B, 0, 0, 0, 0, 0, 1]), position(&drive)), (there, (1, 0)));
    let file = [0x92, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!((locate(&file), position(&drive)), (there, (3, 1)));
    let beyond = [0x2B, 0, 0, 0, 0, 0, 9];
    assert_eq!((locate(&beyond), position(&drive)), (tape::end_of_data(5), (4, 1)));
}

#[test]
fn writing_in_the_middle_and_erasing_end_the_tape() {
    let drive = recorded();
    good(&write(&drive, 9, 10));
    assert_eq!(sense_of(&run(&drive, &READ_1000)), tape::end_of_data(1000));
    good(&run(&drive, &REWIND));
    good(&run(&drive, &[0x19, 1]));
    assert_eq!(sense_of(&run(&drive, &READ_1000)), tape::end_of_data(1000));
}

/// SSC-4, 4.2.5: what is written in the zone before the end is there; what does not fit is not, and file marks fit still.
#[test]
fn end_of_medium_is_announced_and_then_met() {
    let drive = drive();
    let mut warnings = 0;
    let full = loop {
        let written = sense_of(&write(&drive, 5, 20_000));
        match written.key {
            Key::NoSense if written == tape::early_warning() => warnings += 1,
            Key::NoSense => assert_eq!(warnings, 0),
            _ => break written,
        }
    };
    assert_eq!(full, tape::overflow(20_000));
    assert!(warnings > 1);
    assert_eq!(sense_of(&run(&drive, &MARK)), tape::early_warning());
    assert_eq!(good(&run(&drive, &[0x34]))[0], 0x40);
}

#[test]
fn unloaded_tape_is_not_ready_until_it_is_loaded() {
    let drive = recorded();
    good(&run_by(&drive, OTHER, &[0x1E, 0, 0, 0, 1], vec![]));
    let prevented = Sense::illegal(Additional::MEDIUM_REMOVAL_PREVENTED);
    good(&run(&drive, &[0x11, 1, 0, 0, 1]));
    assert_eq!(sense_of(&run(&drive, &[0x1B, 0, 0, 0, 0])), prevented);
    assert_eq!(position(&drive), (3, 1), "it has not moved");
    good(&run_by(&drive, OTHER, &[0x1E, 0, 0, 0, 0], vec![]));
    good(&run(&drive, &[0x1B, 0, 0, 0, 0]));
    assert_eq!(sense_of(&run(&drive, &REWIND)), NO_TAPE);
    good(&run(&drive, &[0x1B, 0, 0, 0, 1]));
    let changed = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
    assert_eq!(sense_of(&run_by(&drive, OTHER, &[0x00], vec![])), changed);
    assert_eq!(position(&drive), (0, 0));
    assert_eq!(run(&drive, &READ_1000).data.concat(), vec![1; 300]);
}

#[tokio::test]
async fn exchanged_tape_is_another_one() {
    let old = recorded();
    let new = old.exchange(Arc::new(Memory::new(SIZE, 512)), "b".into(), false).await.unwrap();
    assert_eq!(run(&old, &READ_1000).status, Status::Busy);
    let changed = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
    assert_eq!(sense_of(&run(&new, &READ_1000)), changed);
    // What is behind it was sent for the old one.
    let elsewhere = Sense::new(Key::AbortedCommand, Additional::SEQUENTIAL_POSITIONING_ERROR);
    assert_eq!(sense_of(&run(&new, &READ_1000)), elsewhere);
    assert_eq!(sense_of(&write(&new, 1, 300)), elsewhere);
    good(&run(&new, &[0x00]));
    assert_eq!(sense_of(&run(&new, &READ_1000)), tape::end_of_data(1000));
    let empty = new.exchange(Arc::new(Memory::new(0, 512)), String::new(), false).await.unwrap();
    assert_eq!(sense_of(&run(&empty, &REWIND)), NO_TAPE);
    assert!(!empty.has_medium());
    assert_eq!(sense_of(&run(&empty, &[0x1B, 0, 0, 0, 1])), NO_TAPE, "nothing can be loaded");
}

#[test]
fn reader_reads_and_writes_nothing() {
    let drive = recorded();
    let reader = drive.for_readers();
    assert_eq!(run(&reader, &READ_1000).data.concat(), vec![1; 300]);
    assert_eq!(run(&reader, &READ_1000).data.concat(), vec![2; 500]);
    assert_eq!((position(&drive), position(&reader)), ((0, 0), (2, 0)));
    let protected = Sense::new(Key::DataProtect, Additional::WRITE_PROTECTED);
    for cdb in [&MARK[..], &[0x19, 0]] {
        assert_eq!(sense_of(&run(&reader, cdb)), protected);
    }
    let refused = Sense::illegal(Additional::ACCESS_DENIED_NO_ACCESS_RIGHTS);
    assert_eq!(sense_of(&run(&reader, &[0x1B])), refused);
}

/// A client that may not write must not have a writer write over the tape, by moving the head.
#[test]
fn reader_leaves_the_head_of_the_writer_where_it_is() {
    let drive = recorded();
    let reader = drive.for_readers();
    let by_reader = |cdb: &[u8]| run_by(&reader, OTHER, cdb, vec![]);
    good(&run(&drive, &[0x11, 3]));
    good(&by_reader(&REWIND));
    assert_eq!(by_reader(&READ_1000).data.concat(), vec![1; 300]);
    good(&write(&drive, 4, 200));
    assert_eq!((position(&drive), by_reader(&READ_1000).data.concat()), ((5, 1), vec![2; 500]));
    // Once the tape is written over before the place of a reader, that one begins anew, and is told.
    good(&by_reader(&[0x11, 3]));
    good(&run(&drive, &[0x2B, 0, 0, 0, 0, 0, 1]));
    good(&write(&drive, 9, 100));
    let changed = Sense::new(Key::UnitAttention, Additional::MEDIUM_MAY_HAVE_CHANGED);
    assert_eq!(sense_of(&by_reader(&READ_1000)), changed);
    good(&by_reader(&[0x00]));
    assert_eq!(by_reader(&READ_1000).data.concat(), vec![1; 300]);
    assert_eq!(by_reader(&READ_1000).data.concat(), vec![9; 100]);
    // One that is before it is not.
    good(&by_reader(&REWIND));
    good(&run(&drive, &[0x2B, 0, 0, 0, 0, 0, 1]));
    good(&write(&drive, 8, 100));
    assert_eq!(by_reader(&READ_1000).data.concat(), vec![1; 300]);
}

#[test]
fn many_short_blocks_are_returned_in_few_pieces() {
    let drive = drive();
    let select = [0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0, 0, 1];
    good(&run_by(&drive, ME, &[0x15, 0x10, 0, 0, 12], select.to_vec()));
    let data: Vec<u8> = (0..1000_u32).map(|at| at as u8).collect();
    good(&run_by(&drive, ME, &[0x0A, 1, 0, 0x03, 0xE8], data.clone()));
    assert_eq!(position(&drive), (1000, 0));
    good(&run(&drive, &REWIND));
    let read = run(&drive, &[0x08, 1, 0, 0x03, 0xE8]);
    assert_eq!((read.data.len(), good(&read)), (1, data));
}

/// A command of many blocks lets others run, and ends between two of them when it is aborted.
#[tokio::test]
async fn command_of_many_blocks_is_not_done_at_once() {
    let drive = drive_of(Arc::new(Memory::new(4 << 20, 512)));
    let select = [0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0, 0, 1];
    good(&run_by(&drive, ME, &[0x15, 0x10, 0, 0, 12], select.to_vec()));
    let begin = |cdb: &[u8], data: Vec<u8>| {
        let parsed = Parsed::of(&block(cdb), DeviceType::Tape);
        let announced = data.len() as u32;
        drive.execute(ME, Command { parsed, data: vec![data.into()], announced })
    };
    let data: Vec<u8> = (0..5000_u32).map(|at| at as u8).collect();
    for is_aborted in [true, false] {
        let mut write = begin(&[0x0A, 1, 0, 0x13, 0x88], data.clone());
        assert!((&mut write).now_or_never().is_none(), "it lets nobody else run");
        if is_aborted {
            write.abort();
        }
        let status = write.await.status;
        assert_eq!(status, if is_aborted { Status::TaskAborted } else { Status::Good });
        let written = if is_aborted { 2048 } else { 5000 };
        assert_eq!(position(&drive), (written, 0));
        good(&run(&drive, &REWIND));
    }
    let mut read = begin(&[0x08, 1, 0, 0x13, 0x88], vec![]);
    assert!((&mut read).now_or_never().is_none(), "it lets nobody else run");
    assert_eq!(good(&read.await), data);
}

#[test]
fn reserved_tape_is_moved_by_its_holder_only() {
    let drive = recorded();
    good(&run(&drive, &[0x16]));
    for cdb in [&REWIND[..], &READ_1000, &MARK] {
        let status = run_by(&drive, OTHER, cdb, vec![]).status;
        assert_eq!(status, Status::ReservationConflict, "{cdb:02x?}");
    }
    good(&run(&drive, &[0x17]));
    good(&run_by(&drive, OTHER, &REWIND, vec![]));
}

/// What had GOOD already and is lost is told as a deferred error, by the command that would move away from it.
#[test]
fn lost_write_is_told_before_the_head_moves() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let drive = drive_of(Arc::<Faulty>::clone(&disk));
    good(&write(&drive, 1, 300));
    disk.fail(Verb::Flush, Kind::Medium);
    let lost = sense_of(&run(&drive, &REWIND));
    assert!(lost.deferred, "{lost}");
    assert_eq!((lost.key, lost.additional), (Key::MediumError, Additional::WRITE_ERROR));
    assert_eq!(position(&drive), (1, 0), "it has not moved");
    // A file mark that all must be stable for fails by itself, and so does what would follow.
    for cdb in [&MARK[..], &[0x10, 0, 0, 0, 0]] {
        let refused = sense_of(&run(&drive, cdb));
        assert_eq!((refused.deferred, refused.key), (false, Key::MediumError));
    }
    good(&run(&drive, &REWIND));
    assert_eq!(run(&drive, &READ_1000).data.concat(), vec![1; 300]);
}

/// Nobody takes a tape out, and knows nothing of what was lost.
#[tokio::test]
async fn tape_that_cannot_be_made_stable_stays_until_somebody_knows() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let drive = drive_of(Arc::<Faulty>::clone(&disk));
    good(&write(&drive, 1, 300));
    good(&write(&drive, 2, 300));
    disk.fail(Verb::Flush, Kind::Medium);
    let other = || Arc::new(Memory::new(SIZE, 512)) as Arc<dyn Volume>;
    for _ in 0..2 {
        let refused = drive.exchange(other(), "b".into(), false).await.err();
        assert!(matches!(refused, Some(ExchangeError::Unstable(_))), "{refused:?}");
    }
    // What fails for a reader tells nothing to a writer.
    disk.fail(Verb::Read, Kind::Gone);
    let reader = drive.for_readers();
    let failed = sense_of(&run_by(&reader, OTHER, &[0x2B, 0, 0, 0, 0, 0, 1], vec![]));
    assert_eq!((failed.deferred, failed.key), (false, Key::NotReady));
    let lost = sense_of(&run(&drive, &REWIND));
    assert!(lost.deferred && lost.key == Key::MediumError, "{lost}");
    good(&run(&drive, &REWIND));
    assert!(drive.exchange(other(), "b".into(), false).await.is_ok());
}

/// A store that is busy has lost nothing, and is asked again.
#[test]
fn busy_store_is_no_lost_write() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let drive = drive_of(Arc::<Faulty>::clone(&disk));
    good(&write(&drive, 1, 300));
    disk.fail(Verb::Flush, Kind::Busy);
    assert_eq!(run(&drive, &REWIND).status, Status::Busy);
    assert_eq!(position(&drive), (1, 0));
    good(&run(&drive, &MARK));
    good(&write(&drive, 2, 300));
}

/// The tape that LOAD finds is the one that it loads.
#[tokio::test]
async fn load_that_waited_does_not_load_a_tape_that_is_gone() {
    let disk = Arc::new(BlockedWrites::new(Memory::new(SIZE, 512)));
    let drive = drive_of(Arc::<BlockedWrites<Memory>>::clone(&disk));
    let begin = |cdb: &[u8], data: Vec<u8>| {
        let parsed = Parsed::of(&block(cdb), DeviceType::Tape);
        let announced = data.len() as u32;
        drive.execute(ME, Command { parsed, data: vec![data.into()], announced })
    };
    // Two labels and the block. What LOAD makes stable first waits.
    disk.let_through(3);
    good(&begin(&[0x0A, 0, 0, 0, 1], vec![1]).await);
    let mut first = begin(&[0x1B, 0, 0, 0, 1], vec![]);
    assert!((&mut first).now_or_never().is_none());
    let empty = Arc::new(Memory::new(0, 512));
    let mut exchange = Box::pin(drive.exchange(empty, String::new(), false));
    assert!((&mut exchange).now_or_never().is_none());
    let mut second = begin(&[0x1B, 0, 0, 0, 1], vec![]);
    assert!((&mut second).now_or_never().is_none());
    disk.let_through(100);
    let (_, exchanged, _) = join3(first, exchange, second).await;
    let empty = exchanged.unwrap();
    assert!(!empty.has_medium());
    assert_eq!(sense_of(&run(&empty, &REWIND)), NO_TAPE);
}

/// Who waits no longer for the tape to be made stable leaves it in the drive, and what was begun is brought to its end.
#[tokio::test]
async fn exchange_that_is_not_waited_for_changes_nothing() {
    let disk = Arc::new(BlockedWrites::new(Memory::new(SIZE, 512)));
    let drive = drive_of(Arc::<BlockedWrites<Memory>>::clone(&disk));
    // Two labels and the block. What makes it stable waits.
    disk.let_through(3);
    good(&write(&drive, 1, 300));
    let other = || Arc::new(Memory::new(SIZE, 512)) as Arc<dyn Volume>;
    let begun = async {
        while disk.waiting() == 0 {
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = begun => {}
        _ = drive.exchange(other(), "b".into(), false) => panic!("it waits"),
    }
    let refused = drive.exchange_within(Duration::ZERO, other(), "b".into(), false).await.err();
    assert!(matches!(refused, Some(ExchangeError::Busy(_))), "{refused:?}");
    disk.let_through(100);
    for _ in 0..100 {
        yield_now().await;
    }
    assert_eq!(disk.waiting(), 0, "the label was not written");
    let parsed = Parsed::of(&block(&REWIND), DeviceType::Tape);
    good(&drive.execute(ME, Command { parsed, data: vec![], announced: 0 }).await);
    assert_eq!(run(&drive, &READ_1000).data.concat(), vec![1; 300]);
    assert!(drive.exchange(other(), "b".into(), false).await.is_ok());
}

#[test]
fn full_store_is_told_as_such_where_the_medium_would_end() {
    let disk = Arc::new(Faulty::new(SIZE, 512));
    let drive = drive_of(Arc::<Faulty>::clone(&disk));
    good(&write(&drive, 1, 300));
    disk.fail(Verb::Write, Kind::NoSpace);
    assert!(!drive.is_store_full());
    let full = sense_of(&write(&drive, 2, 400));
    assert_eq!(full, tape::store_full(400));
    // What initiators act by is that of the end of the medium (SSC-4, table 4).
    let end = tape::overflow(400);
    assert_eq!((full.key, full.stream, full.information), (end.key, end.stream, end.information));
    // The log is told once, until something can be written again.
    assert!(drive.is_store_full());
    disk.fail(Verb::Write, Kind::NoSpace);
    assert_eq!(sense_of(&write(&drive, 2, 400)), tape::store_full(400));
    good(&run(&drive, &MARK));
    assert!(drive.is_store_full());
    good(&run(&drive, &REWIND));
    assert_eq!(run(&drive, &READ_1000).data.concat(), vec![1; 300]);
    assert_eq!(sense_of(&run(&drive, &READ_1000)), tape::filemark(1000));
}

#[test]
fn file_that_is_no_tape_is_told_as_such() {
    let drive = drive_of(Arc::new(Faulty::holding(vec![7; SIZE as usize], 512)));
    let foreign = Sense::new(Key::MediumError, Additional::INCOMPATIBLE_FORMAT);
    assert_eq!(sense_of(&run(&drive, &REWIND)), foreign);
}

/// A copy reads and writes the blocks of disks, of which a tape has none.
#[test]
fn tape_takes_no_command_of_disks() {
    let drive = drive();
    let unknown = Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE);
    for opcode in [0x28, 0x2A, 0x35, 0x83, 0x88] {
        assert_eq!(sense_of(&run(&drive, &[opcode])), unknown, "{opcode:02x}");
    }
    let read = Parsed::of(&block(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1]), DeviceType::Disk);
    let response = drive.execute(ME, Command { parsed: read, data: vec![], announced: 0 });
    assert_eq!(sense_of(&response.now_or_never().unwrap()), unknown);
}

/// Whatever initiators send, and whatever fails meanwhile, each command has an answer.
#[test]
fn any_command_has_an_answer() {
    const OPCODES: [u8; 20] = [
        0x00, 0x01, 0x03, 0x05, 0x08, 0x0A, 0x10, 0x11, 0x12, 0x15, 0x19, 0x1A, 0x1B, 0x1E, 0x2B,
        0x34, 0x44, 0x91, 0x92, 0xA3,
    ];
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let disk = Arc::new(Faulty::new(SIZE, 512));
        let drive = drive_of(Arc::<Faulty>::clone(&disk));
        let reader = drive.for_readers();
        for _ in 0..400 {
            let mut cdb: [u8; 16] = random.bytes(16).try_into().unwrap();
            cdb[0] = OPCODES[random.index(OPCODES.len())];
            // Small numbers do more.
            let kept = random.below(4) == 0;
            (1..16).filter(|_| !kept).for_each(|at| cdb[at] &= [0, 1, 3, 7][at % 4]);
            if random.below(60) == 0 {
                let verb = [Verb::Read, Verb::Write, Verb::Flush][random.index(3)];
                let kind = [Kind::Medium, Kind::NoSpace, Kind::Busy][random.index(3)];
                disk.fail(verb, kind);
            }
            let unit = if random.below(4) == 0 { &reader } else { &drive };
            let parsed = Parsed::of(&cdb, DeviceType::Tape);
            let len = unit.data_out_len(&parsed);
            let mut data = random.bytes(len.min(64) as usize);
            data.resize(len as usize, 0);
            let nexus = [ME, OTHER][random.index(2)];
            let command = Command { parsed, data: vec![data.into()], announced: len };
            assert!(unit.execute(nexus, command).now_or_never().is_some(), "{seed}: {cdb:02x?}");
        }
    }
}

/// A tape of 1 MiB that is written once.
fn write_once() -> Arc<dyn Volume> {
    let volume: Arc<dyn Volume> = Arc::new(Memory::new(SIZE, 512));
    let made = Tape::make_write_once(Arc::clone(&volume), 7).now_or_never().unwrap();
    made.unwrap_or_else(|why| panic!("{why}"));
    volume
}

/// SSC-4, 4.2.20.
#[tokio::test]
async fn tape_that_is_written_once_refuses_what_would_change_it() {
    let is_told = |drive: &Disk| good(&run(drive, &[0x1A, 0x08, 0x1D, 0, 64]))[6] & 1 == 1;
    let old = drive();
    assert!(!is_told(&old) && !old.is_write_once());
    let drive = old.exchange(write_once(), "b".into(), false).await.unwrap();
    for nexus in [ME, OTHER] {
        assert_eq!(sense_of(&run_by(&drive, nexus, &[0x00], vec![])).key, Key::UnitAttention);
    }
    assert!(is_told(&drive) && drive.is_write_once());
    good(&write(&drive, 1, 300));
    good(&run(&drive, &MARK));
    good(&run(&drive, &MARK));
    good(&run(&drive, &REWIND));
    let attempted = Sense::new(Key::DataProtect, Additional::WORM_OVERWRITE_ATTEMPTED);
    assert_eq!((attempted.additional.code, attempted.additional.qualifier), (0x30, 0x0C));
    assert_eq!(sense_of(&write(&drive, 2, 300)), attempted.with_information(300));
    assert_eq!(sense_of(&run(&drive, &MARK)), attempted.with_information(1));
    for erase in [[0x19, 0], [0x19, 1]] {
        assert_eq!(sense_of(&run(&drive, &erase)), attempted.with_information(0));
    }
    // Behind the first file mark of those at the end it goes on.
    good(&run(&drive, &[0x11, 1, 0, 0, 1]));
    good(&write(&drive, 3, 500));
    good(&run(&drive, &REWIND));
    assert_eq!(good(&run(&drive, &[0x08, 2, 0, 0x03, 0xE8])), vec![1; 300]);
    let empty = drive.exchange(Arc::new(Memory::new(0, 512)), String::new(), false).await.unwrap();
    assert!(!empty.is_write_once());
}
