//! The streams against a drive and a link of values: whatever happens at whichever step, nothing is lost and nothing is
//! there twice.

mod proof;

use std::collections::VecDeque;

use bytes::Bytes;
use proptest::prelude::*;

use super::Stream as _;
use super::*;
use crate::scsi::sense::{Additional, Key, Stream};
use crate::scsi::{Sense, Status};

/// A block, or a file mark.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Object {
    Block(Bytes),
    Mark,
}

impl Object {
    fn len(&self) -> usize {
        match self {
            Self::Block(block) => block.len(),
            Self::Mark => 0,
        }
    }
}

/// A tape in a drive with a buffer.
#[derive(Default)]
struct Drive {
    tape: Vec<Object>,
    /// So many of them are on the medium.
    durable: Vec<Object>,
    head: usize,
    attentions: VecDeque<Additional>,
    /// How many objects the tape has room for, and where it warns of its end.
    room: usize,
    warns_at: usize,
    /// It is the store of the tape that has no more room.
    has_full_store: bool,
    is_write_once: bool,
    /// The next commands are refused so.
    busy: u32,
    is_protected: bool,
    lacks_locate: bool,
    /// So many objects of the first command that reaches the place of the warning are not written; nothing but the residual of the
    /// transport says so if it is silent.
    lacks_objects: usize,
    is_silent: bool,
    /// The tape that another is exchanged for.
    other: Vec<Object>,
    /// The most commands that were under way at once.
    deepest: usize,
}

fn answer(status: Status, sense: Option<Sense>, data: Bytes) -> Answer {
    Answer { status, sense, data, residual: 0 }
}

fn good() -> Answer {
    answer(Status::Good, None, Bytes::new())
}

fn check(sense: Sense) -> Answer {
    answer(Status::CheckCondition, Some(sense), Bytes::new())
}

impl Drive {
    fn new() -> Self {
        Self { room: usize::MAX, warns_at: usize::MAX, ..Self::default() }
    }

    fn execute(&mut self, request: &Request) -> Answer {
        if let Some(told) = self.attentions.pop_front() {
            return check(Sense::new(Key::UnitAttention, told));
        }
        if self.busy > 0 {
            self.busy -= 1;
            return answer(Status::Busy, None, Bytes::new());
        }
        let cdb = request.command.cdb;
        let field = |at: usize| u32::from_be_bytes([0, cdb[at], cdb[at + 1], cdb[at + 2]]);
        match cdb[0] {
            0x00 | 0x15 => good(),
            0x08 => self.read(cdb[1] & 1 != 0, field(2)),
            0x0A if self.is_protected => {
                check(Sense::new(Key::DataProtect, Additional::WRITE_PROTECTED))
            }
            0x0A if cdb[1] & 1 != 0 => {
                let block = request.data.len() / field(2) as usize;
                let blocks = request.data.chunks(block).map(Bytes::copy_from_slice);
                self.write(blocks.map(Object::Block).collect())
            }
            0x0A => self.write(vec![Object::Block(request.data.clone())]),
            0x10 => {
                let written = self.write(vec![Object::Mark; field(2) as usize]);
                if !matches!(written.sense, Some(Sense { key: Key::VolumeOverflow, .. })) {
                    self.durable.clone_from(&self.tape);
                }
                written
            }
            0x2B if self.lacks_locate => {
                check(Sense::illegal(Additional::INVALID_COMMAND_OPERATION_CODE))
            }
            0x2B => self.locate(u32::from_be_bytes([cdb[3], cdb[4], cdb[5], cdb[6]]) as usize),
            0x34 => {
                let head = (self.head as u64).to_be_bytes();
                let data = [&[0; 8][..], &head, &[0; 16]].concat();
                answer(Status::Good, None, data.into())
            }
            other => panic!("{other:#x}"),
        }
    }

    fn write(&mut self, objects: Vec<Object>) -> Answer {
        // A mark has room where a block has none.
        let room = self.room.saturating_add(usize::from(objects.first() == Some(&Object::Mark)));
        if !objects.is_empty() && self.head + objects.len() > room {
            let why = match self.has_full_store {
                true => Additional::SPACE_ALLOCATION_FAILED,
                false => Additional::END_OF_PARTITION,
            };
            let sense = Sense::new(Key::VolumeOverflow, why);
            return check(sense.with_stream(Stream::END));
        }
        if self.is_write_once && !objects.is_empty() && self.head < self.tape.len() {
            let sense = Sense::new(Key::DataProtect, Additional::WORM_OVERWRITE_ATTEMPTED);
            return check(sense);
        }
        self.tape.truncate(self.head);
        self.durable.truncate(self.head);
        self.head += objects.len();
        if self.head > self.warns_at && self.lacks_objects > 0 {
            return self.write_in_part(objects);
        }
        let is_written = !objects.is_empty();
        self.tape.extend(objects);
        if is_written && self.head > self.warns_at {
            let sense = Sense::new(Key::NoSense, Additional::END_OF_PARTITION);
            return check(sense.with_stream(Stream::END).with_information(0));
        }
        good()
    }

    /// Once. The head was moved already.
    fn write_in_part(&mut self, mut objects: Vec<Object>) -> Answer {
        let left = core::mem::take(&mut self.lacks_objects).min(objects.len());
        self.head -= left;
        let lacks = objects.split_off(objects.len() - left);
        let bytes: usize = lacks.iter().map(|object| object.len()).sum();
        // All of a block of any length is left.
        let left = if objects.is_empty() { bytes.max(1) } else { left };
        self.tape.extend(objects);
        if self.is_silent {
            return Answer { residual: bytes as u32, ..good() };
        }
        let sense = Sense::new(Key::NoSense, Additional::END_OF_PARTITION);
        check(sense.with_stream(Stream::END).with_information(left as u64))
    }

    fn read(&mut self, fixed: bool, count: u32) -> Answer {
        let mut data = Vec::new();
        for done in 0..if fixed { count } else { 1 } {
            let left = u64::from(count - done);
            let sense = match self.tape.get(self.head) {
                None => Some(Sense::new(Key::BlankCheck, Additional::END_OF_DATA)),
                Some(Object::Mark) => {
                    self.head += 1;
                    let sense = Sense::new(Key::NoSense, Additional::FILEMARK_DETECTED);
                    Some(sense.with_stream(Stream { filemark: true, ..Stream::NONE }))
                }
                Some(Object::Block(block)) => {
                    self.head += 1;
                    let len = if fixed { block.len() } else { count as usize };
                    data.extend(&block[..block.len().min(len)]);
                    let difference = len as i64 - block.len() as i64;
                    let stream = Stream { incorrect_length: true, ..Stream::NONE };
                    let sense = Sense::new(Key::NoSense, Additional::NONE).with_stream(stream);
                    let sense = sense.with_information(difference.cast_unsigned());
                    let answered = answer(Status::CheckCondition, Some(sense), data.clone().into());
                    if difference != 0 {
                        return answered;
                    }
                    None
                }
            };
            if let Some(sense) = sense {
                let sense = Some(sense.with_information(left));
                return answer(Status::CheckCondition, sense, data.into());
            }
        }
        answer(Status::Good, None, data.into())
    }

    fn locate(&mut self, object: usize) -> Answer {
        if object > self.tape.len() {
            self.head = self.tape.len();
            return check(Sense::new(Key::BlankCheck, Additional::END_OF_DATA));
        }
        self.head = object;
        good()
    }

    /// It is reset, and loses what is in its buffer.
    fn reset(&mut self) {
        self.tape.clone_from(&self.durable);
        self.head = self.head.min(self.tape.len());
        self.attentions.push_back(Additional::POWER_ON_OR_RESET);
    }

    /// It loses its power.
    fn restart(&mut self) {
        self.reset();
        self.head = 0;
    }
}

/// What goes wrong at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The session is lost; so many of the commands under way are carried out all the same.
    Cut(usize),
    /// The same, and the drive loses its power.
    Crash(usize),
    /// The unit is reset by another, and loses its buffer; the session lives, and the tape is not rewound.
    Reset,
    /// Another initiator changes something.
    Attention,
    /// Commands are refused, and those behind them are not.
    Busy(u32),
    /// Another moves the head.
    Moved,
    /// The session is lost, and another tape is put in, which the drive tells nobody.
    Exchange,
}

/// Either stream, with what it is given or gives.
trait Machine {
    fn stream(&mut self) -> &mut dyn super::Stream;
    fn feed(&mut self);
    fn is_over(&self) -> bool;
}

/// A stream of these blocks, each with a mark where it is empty.
struct Writer(Write, VecDeque<Bytes>);

impl Machine for Writer {
    fn stream(&mut self) -> &mut dyn super::Stream {
        &mut self.0
    }

    fn feed(&mut self) {
        if !self.0.has_room() {
            return;
        }
        match self.1.pop_front() {
            Some(block) if block.is_empty() => self.0.push_mark(),
            Some(block) => self.0.push(block),
            None => self.0.finish(),
        }
    }

    fn is_over(&self) -> bool {
        self.0.is_done() || self.0.failure().is_some()
    }
}

struct Reader(Read, Vec<Bytes>);

impl Machine for Reader {
    fn stream(&mut self) -> &mut dyn super::Stream {
        &mut self.0
    }

    fn feed(&mut self) {
        self.1.extend(self.0.take());
    }

    fn is_over(&self) -> bool {
        self.0.end().is_some() || self.0.failure().is_some()
    }
}

/// Runs a stream to its end with these faults, each at its step; how many steps it took. Virtual time passes step by step:
/// commands are carried out one step after they were sent at the earliest, and answered one step later.
fn run(drive: &mut Drive, machine: &mut impl Machine, faults: &[(usize, Fault)]) -> usize {
    let (mut sent, mut answers) = (VecDeque::<Request>::new(), VecDeque::new());
    for step in 0..20_000 {
        for (_, fault) in faults.iter().filter(|(at, _)| *at == step) {
            match fault {
                Fault::Cut(done) | Fault::Crash(done) => {
                    for request in sent.drain(..).take(*done) {
                        drive.execute(&request);
                    }
                    answers.clear();
                    drive.attentions.clear();
                    if matches!(fault, Fault::Crash(_)) {
                        drive.restart();
                    }
                    machine.stream().lost();
                }
                Fault::Reset => drive.reset(),
                Fault::Attention => drive.attentions.push_back(Additional::MODE_PARAMETERS_CHANGED),
                Fault::Busy(times) => drive.busy += times,
                Fault::Moved => drive.head = 0,
                Fault::Exchange => {
                    sent.drain(..).for_each(|request| drop(drive.execute(&request)));
                    answers.clear();
                    drive.tape.clone_from(&drive.other);
                    drive.durable.clone_from(&drive.other);
                    drive.head = 0;
                    machine.stream().lost();
                }
            }
        }
        match step % 6 {
            0 | 2 => machine.feed(),
            1 | 3 if machine.stream().is_lost() => machine.stream().connected(),
            1 | 3 => sent.extend(machine.stream().poll()),
            4 => {
                drive.deepest = drive.deepest.max(sent.len() + answers.len());
                for request in sent.drain(..sent.len().min(2)) {
                    answers.push_back((request.ticket, drive.execute(&request)));
                }
            }
            // Answers are slower than commands, so that several are under way.
            _ => {
                if let Some((ticket, answer)) = answers.pop_front() {
                    machine.stream().answered(ticket, answer);
                }
            }
        }
        if machine.is_over() {
            return step;
        }
    }
    panic!("it does not come to an end: {faults:?}");
}

fn settings() -> Settings {
    Settings {
        fixed: None,
        ahead_bytes: 1 << 20,
        ahead_commands: 5,
        stable_every: 25,
        can_locate: true,
        has_long_position: true,
    }
}

/// Blocks of different lengths with a mark between them and at the end.
fn contents() -> Vec<Bytes> {
    let mut blocks: Vec<Bytes> =
        (1..=20_u8).map(|n| vec![n; 5 + usize::from(n % 3)].into()).collect();
    blocks.insert(9, Bytes::new());
    blocks.push(Bytes::new());
    blocks
}

fn objects(blocks: &[Bytes]) -> Vec<Object> {
    let object = |block: &Bytes| match block.is_empty() {
        true => Object::Mark,
        false => Object::Block(block.clone()),
    };
    blocks.iter().map(object).collect()
}

/// A tape on which something lies before, and behind, what is to be written.
fn used(before: usize) -> Drive {
    let mut drive = Drive::new();
    drive.tape = vec![Object::Block(Bytes::from_static(b"old")); before + 40];
    drive.durable.clone_from(&drive.tape);
    drive.head = before;
    drive
}

fn write(drive: &mut Drive, faults: &[(usize, Fault)]) -> (Write, usize) {
    let at = drive.head as u64;
    let mut writer = Writer(Write::new(settings(), at), contents().into());
    let steps = run(drive, &mut writer, faults);
    (writer.0, steps)
}

/// Whether it is all written; else what the first block is was not known when the session was lost, and no more was written.
fn is_written(drive: &Drive, writer: &Write, before: usize, faults: &[(usize, Fault)]) -> bool {
    match writer.failure() {
        None => {
            assert_written(drive, before, faults);
            true
        }
        Some(why) => {
            assert_eq!(*why, StreamError::Unproven, "{faults:?}");
            assert!(writer.stable_object() == before as u64, "{faults:?}");
            let first = &objects(&contents())[..1];
            let tape = &drive.tape[before..];
            let is_untouched = tape.len() == 40 && *tape != objects(&contents())[..];
            assert!(is_untouched || tape.is_empty() || tape == first, "{faults:?}");
            false
        }
    }
}

/// So many steps pass before the first block is known to be there.
const FIRST_STEPS: usize = 24;

fn assert_written(drive: &Drive, before: usize, faults: &[(usize, Fault)]) {
    assert_eq!(drive.tape[before..], objects(&contents())[..], "{faults:?}");
    assert_eq!(drive.durable, drive.tape, "{faults:?}");
}

const FAULTS: [Fault; 11] = [
    Fault::Cut(0),
    Fault::Cut(1),
    Fault::Cut(2),
    Fault::Cut(9),
    Fault::Crash(0),
    Fault::Crash(1),
    Fault::Crash(9),
    Fault::Reset,
    Fault::Attention,
    Fault::Busy(1),
    Fault::Busy(2),
];

#[test]
fn written_blocks_are_on_the_tape_once_whatever_happens_at_which_step() {
    let mut clean = used(3);
    let (writer, steps) = write(&mut clean, &[]);
    assert_written(&clean, 3, &[]);
    assert!(clean.deepest > 3, "nothing was under way ahead: {}", clean.deepest);
    assert_eq!(
        writer.stable_bytes(),
        contents().iter().map(|block| block.len() as u64).sum::<u64>()
    );
    for step in 0..steps {
        for fault in FAULTS {
            let mut drive = used(3);
            let (writer, _) = write(&mut drive, &[(step, fault)]);
            let is_written = is_written(&drive, &writer, 3, &[(step, fault)]);
            assert!(is_written || step < FIRST_STEPS, "{step} {fault:?}");
        }
    }
}

/// The answer that told of the reset was lost with the session.
#[test]
fn reset_of_which_nobody_was_told_loses_nothing() {
    for step in 0..150 {
        for later in step..step + 40 {
            let faults = [(step, Fault::Reset), (later, Fault::Cut(0))];
            let mut drive = used(3);
            let (writer, _) = write(&mut drive, &faults);
            let is_written = is_written(&drive, &writer, 3, &faults);
            assert!(is_written || step < FIRST_STEPS, "{faults:?}");
        }
    }
}

/// What was there is gone then; but it is not taken for done.
#[test]
fn head_that_another_has_moved_is_noticed() {
    let (_, steps) = write(&mut used(3), &[]);
    let mut noticed = 0;
    for step in 0..steps {
        let mut drive = used(3);
        let (writer, _) = write(&mut drive, &[(step, Fault::Moved)]);
        match writer.failure() {
            Some(_) => noticed += 1,
            None => assert_written(&drive, 3, &[(step, Fault::Moved)]),
        }
    }
    assert!(noticed > 0);
}

#[test]
fn blocks_come_once_and_in_order_whatever_happens_at_which_step() {
    let blocks: Vec<_> =
        (1..=20_u8).map(|n| Bytes::from(vec![n; 4 + usize::from(n % 7)])).collect();
    let read = |drive: &mut Drive, faults: &[(usize, Fault)]| {
        drive.tape = objects(&blocks);
        drive.tape.push(Object::Mark);
        drive.tape.extend(objects(&contents()));
        drive.durable.clone_from(&drive.tape);
        let mut reader = Reader(Read::new(settings(), 0), Vec::new());
        let steps = run(drive, &mut reader, faults);
        while let Some(block) = reader.0.take() {
            reader.1.push(block);
        }
        (reader, steps)
    };
    let mut drive = Drive::new();
    let (_, steps) = read(&mut drive, &[]);
    assert!(drive.deepest > 3, "nothing was read ahead");
    for fault in FAULTS {
        for step in 0..steps {
            let mut drive = Drive::new();
            let (reader, _) = read(&mut drive, &[(step, fault)]);
            assert_eq!(reader.0.failure(), None, "{step} {fault:?}");
            assert_eq!(reader.1, blocks, "{step} {fault:?}");
            assert_eq!(reader.0.end(), Some(End::Mark));
            assert_eq!(
                drive.head,
                blocks.len() + 1,
                "the head is behind the mark: {step} {fault:?}"
            );
        }
    }
}

#[test]
fn blocks_of_one_length_are_counted_both_ways() {
    let fixed = Fixed { block: 4, count: 3, mode: TapeMode::default() };
    let with = Settings { fixed: Some(fixed), ..settings() };
    let data: Vec<u8> = (0..40).collect();
    let pieces: VecDeque<Bytes> = data.chunks(12).map(Bytes::copy_from_slice).collect();
    for fault in FAULTS {
        for step in 0..120 {
            let mut drive = used(2);
            let mut writer = Writer(Write::new(with.clone(), 2), pieces.clone());
            writer.1.push_back(Bytes::new());
            run(&mut drive, &mut writer, &[(step, fault)]);
            if step < FIRST_STEPS && writer.0.failure() == Some(&StreamError::Unproven) {
                continue;
            }
            assert_eq!(writer.0.failure(), None, "{step} {fault:?}");
            let mut expected: Vec<_> = data.chunks(4).map(Bytes::copy_from_slice).collect();
            expected.push(Bytes::new());
            assert_eq!(drive.tape[2..], objects(&expected), "{step} {fault:?}");
            drive.head = 2;
            drive.attentions.clear();
            drive.busy = 0;
            let mut reader = Reader(Read::new(with.clone(), 2), Vec::new());
            run(&mut drive, &mut reader, &[(step, fault)]);
            while let Some(blocks) = reader.0.take() {
                reader.1.push(blocks);
            }
            assert_eq!(reader.1.concat(), data, "{step} {fault:?}");
        }
    }
}

#[test]
fn full_tape_ends_behind_a_mark_with_what_was_acknowledged() {
    for step in 0..200 {
        for fault in FAULTS {
            let mut drive = Drive::new();
            (drive.room, drive.warns_at) = (8, 5);
            let (writer, _) = write(&mut drive, &[(step, fault)]);
            if step < FIRST_STEPS && writer.failure() == Some(&StreamError::Unproven) {
                continue;
            }
            assert_eq!(writer.failure(), None, "{step} {fault:?}");
            assert!(writer.is_full() && writer.is_near_end() && !writer.is_store_full());
            let mut expected = objects(&contents()[..8]);
            expected.push(Object::Mark);
            assert_eq!(drive.durable, expected, "{step} {fault:?}");
            assert_eq!(writer.stable_object(), 9);
        }
    }
}

/// A file mark that was on its way is accepted behind the block that is not, and cannot be written over.
#[test]
fn full_tape_that_is_written_once_ends_so_too() {
    for room in 1..20 {
        let mut drive = Drive::new();
        (drive.room, drive.is_write_once) = (room, true);
        let (writer, _) = write(&mut drive, &[]);
        assert_eq!(writer.failure(), None, "{room}");
        assert!(writer.is_full());
        let mut expected = objects(&contents()[..room]);
        expected.push(Object::Mark);
        assert_eq!(drive.durable, expected, "{room}");
    }
}

/// It is the same to the tape, and not to who has to do something about it.
#[test]
fn full_store_of_a_tape_is_told_from_a_full_tape() {
    for step in 0..20 {
        let mut drive = Drive::new();
        (drive.room, drive.has_full_store) = (step, true);
        let (writer, _) = write(&mut drive, &[]);
        assert_eq!(writer.failure(), None, "{step}");
        assert!(writer.is_full() && writer.is_store_full() && !writer.is_near_end());
        let mut expected = objects(&contents()[..step]);
        expected.extend((step > 0).then_some(Object::Mark));
        assert_eq!(drive.durable, expected, "{step}");
    }
}

#[test]
fn other_tape_is_not_written_to() {
    let mut drive = used(0);
    let mut writer = Writer(Write::new(settings(), 0), contents().into());
    // When something is stable another one is put in, and the drive tells of a reset alone.
    run(&mut drive, &mut Until(&mut writer, |writer: &Write| writer.stable_object() > 4), &[]);
    let other = vec![Object::Block(Bytes::from_static(b"other")); 60];
    drive.durable.clone_from(&other);
    drive.restart();
    writer.0.lost();
    run(&mut drive, &mut writer, &[]);
    assert!(matches!(writer.0.failure(), Some(StreamError::OtherTape(_))));
    assert_eq!(drive.tape, other);
    // One that says that its medium was exchanged is not asked.
    let mut drive = used(0);
    drive.attentions.push_back(Additional::MEDIUM_MAY_HAVE_CHANGED);
    let (writer, _) = write(&mut drive, &[]);
    assert!(matches!(writer.failure(), Some(StreamError::OtherTape(_))));
}

/// A writer that is watched until something is so.
struct Until<'w, F>(&'w mut Writer, F);

impl<F: Fn(&Write) -> bool> Machine for Until<'_, F> {
    fn stream(&mut self) -> &mut dyn super::Stream {
        self.0.stream()
    }

    fn feed(&mut self) {
        self.0.feed();
    }

    fn is_over(&self) -> bool {
        self.1(&self.0.0)
    }
}

#[test]
fn lasting_trouble_ends_a_stream_with_its_reason() {
    let mut drive = used(0);
    drive.is_protected = true;
    assert_eq!(write(&mut drive, &[]).0.failure(), Some(&StreamError::WriteProtected));
    let mut drive = used(0);
    drive.busy = 100_000;
    assert!(matches!(write(&mut drive, &[]).0.failure(), Some(StreamError::Again(_))));
    // Without LOCATE there is one command under way, and a lost connection ends what it has left open.
    let mut drive = used(0);
    drive.lacks_locate = true;
    let without = Settings { can_locate: false, ..settings() };
    let mut writer = Writer(Write::new(without.clone(), 0), contents().into());
    run(&mut drive, &mut writer, &[]);
    assert_written(&drive, 0, &[]);
    assert_eq!(drive.deepest, 1);
    let mut ended = 0;
    for step in 0..100 {
        let mut drive = used(0);
        drive.lacks_locate = true;
        let mut writer = Writer(Write::new(without.clone(), 0), contents().into());
        run(&mut drive, &mut writer, &[(step, Fault::Crash(0))]);
        match writer.0.failure() {
            Some(why) => ended += usize::from(*why == StreamError::NoLocate),
            None => assert_written(&drive, 0, &[]),
        }
    }
    assert!(ended > 0);
}

/// tgt sends so many bytes of a shorter block as were asked for in vain. It knows no LOCATE; of one that does the block is
/// read once more.
#[test]
fn block_of_which_a_part_came_is_not_taken_for_whole() {
    for can_locate in [true, false] {
        let mut read = Read::new(Settings { can_locate, ..settings() }, 0);
        let stream = Stream { incorrect_length: true, ..Stream::NONE };
        let short = |asked: u32, actual: u32, came: usize| {
            let left = u64::from(asked - actual);
            let sense = Sense::new(Key::NoSense, Additional::NONE).with_stream(stream);
            answer(Status::CheckCondition, Some(sense.with_information(left)), vec![7; came].into())
        };
        let first = read.poll().unwrap();
        let crate::scsi::command::Transfer::In(asked) = first.command.transfer else { panic!() };
        read.answered(first.ticket, short(asked, 100, 100));
        assert_eq!(read.take().unwrap().len(), 100);
        let second = read.poll().unwrap();
        let crate::scsi::command::Transfer::In(asked) = second.command.transfer else { panic!() };
        assert_eq!(asked == 100, can_locate, "room for a longer one");
        read.answered(second.ticket, short(asked, 60, 40));
        assert_eq!(read.take(), None);
        read.poll();
        assert_eq!(read.failure(), (!can_locate).then_some(&StreamError::OtherLength(1)));
    }
}

#[test]
fn no_more_is_kept_than_two_stretches_between_syncs() {
    let mut writer = Write::new(settings(), 0);
    let mut pushed = 0;
    while writer.has_room() {
        writer.push(Bytes::from_static(&[1; 10]));
        pushed += 10;
    }
    assert_eq!(pushed, 50);
}

fn fault() -> impl Strategy<Value = Fault> {
    proptest::sample::select(FAULTS.to_vec())
}

proptest! {
    #[test]
    fn several_faults_in_a_row_lose_nothing(
        faults in proptest::collection::vec((0_usize..600, fault()), 1..8),
    ) {
        let mut drive = used(3);
        let (writer, _) = write(&mut drive, &faults);
        is_written(&drive, &writer, 3, &faults);
    }
}
