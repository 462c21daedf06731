//! Nothing is taken for done, for whole or for the same tape without a proof.

use super::*;

/// The drives tell a new session nothing of an exchange. The other tape may begin like this one: yesterday's backup, for example.
#[test]
fn other_tape_that_was_put_in_during_an_outage_is_not_written_to() {
    let old = |count| vec![Object::Block(Bytes::from_static(b"old")); count];
    let alike = objects(&contents()[..20]);
    let others = [
        vec![],
        vec![Object::Mark],
        old(60),
        [&old(3)[..], &alike, &old(40)].concat(),
        [&old(3)[..], &alike[..1], &old(1)].concat(),
    ];
    let (_, steps) = write(&mut used(3), &[]);
    for (step, other) in (0..steps).flat_map(|step| others.iter().map(move |other| (step, other))) {
        let mut drive = used(3);
        drive.other.clone_from(other);
        let (writer, _) = write(&mut drive, &[(step, Fault::Exchange)]);
        let failure = writer.failure();
        assert!(
            matches!(failure, Some(StreamError::Unproven | StreamError::OtherTape(_))),
            "{step} {other:?}: {failure:?}"
        );
        assert_eq!(drive.tape, *other, "{step}");
    }
}

/// What a command has told in vain, since others had failed before it or are answered after it, is told by no other.
#[test]
fn reset_told_behind_commands_that_were_aborted_counts() {
    let aborted = || answer(Status::TaskAborted, None, Bytes::new());
    let told = |what| check(Sense::new(Key::UnitAttention, what));
    for last_first in [false, true] {
        for exchanged in [false, true] {
            let what = match exchanged {
                true => Additional::MEDIUM_MAY_HAVE_CHANGED,
                false => Additional::POWER_ON_OR_RESET,
            };
            let mut drive = used(0);
            let mut writer = Writer(Write::new(settings(), 0), contents().into());
            run(
                &mut drive,
                &mut Until(&mut writer, |writer: &Write| writer.stable_object() > 0),
                &[],
            );
            let mut writer = writer.0;
            (0..5).for_each(|n| writer.push(Bytes::from(vec![n; 9])));
            let mut answers: Vec<_> = core::iter::from_fn(|| writer.poll())
                .map(|request| (request.ticket, aborted()))
                .collect();
            answers.last_mut().unwrap().1 = told(what);
            if last_first {
                answers.reverse();
            }
            answers.into_iter().for_each(|(ticket, answer)| writer.answered(ticket, answer));
            // Those before it would have no answer.
            assert_eq!(writer.has_orphans(), last_first && !exchanged);
            assert_tape_is_asked(&mut writer, exchanged);
            let mut read = Read::new(settings(), 0);
            let first = read.poll().unwrap();
            let crate::scsi::command::Transfer::In(len) = first.command.transfer else { panic!() };
            read.answered(first.ticket, answer(Status::Good, None, vec![1; len as usize].into()));
            let sent: Vec<_> =
                core::iter::from_fn(|| read.poll()).map(|sent| sent.ticket).collect();
            let (last, others) = sent.split_last().unwrap();
            others.iter().for_each(|ticket| read.answered(*ticket, aborted()));
            read.answered(*last, told(what));
            assert_tape_is_asked(&mut read, exchanged);
        }
    }
}

/// The stream ends if the tape was exchanged; else the object before is read, to see whether it is the same.
fn assert_tape_is_asked(stream: &mut dyn super::super::Stream, is_exchanged: bool) {
    let mut opcodes = Vec::new();
    while let Some(request) = stream.poll().filter(|_| opcodes.len() < 4) {
        opcodes.push(request.command.cdb[0]);
        stream.answered(request.ticket, good());
    }
    match is_exchanged {
        true => assert!(matches!(stream.failure(), Some(StreamError::OtherTape(_)))),
        false => assert_eq!(opcodes, [0x00, 0x00, 0x2B, 0x08]),
    }
}

#[test]
fn part_of_a_write_that_is_not_done_is_written_once() {
    let fixed = Fixed { block: 4, count: 3, mode: TapeMode::default() };
    let data: Vec<u8> = (0..80).collect();
    let run_all = |can_locate, is_fixed, lacks, is_silent, warns_at| {
        let with = Settings { fixed: Some(fixed).filter(|_| is_fixed), can_locate, ..settings() };
        let piece = if is_fixed { 12 } else { 4 };
        let mut drive = Drive::new();
        drive.lacks_locate = !can_locate;
        (drive.lacks_objects, drive.is_silent, drive.warns_at) = (lacks, is_silent, warns_at);
        let pieces = data.chunks(piece).map(Bytes::copy_from_slice);
        let mut writer = Writer(Write::new(with, 0), pieces.collect());
        writer.1.push_back(Bytes::new());
        run(&mut drive, &mut writer, &[]);
        let what = format!("{can_locate} {is_fixed} {lacks} {is_silent} {warns_at}");
        assert_eq!(writer.0.failure(), None, "{what}");
        let mut expected: Vec<_> = data.chunks(4).map(Bytes::copy_from_slice).collect();
        expected.push(Bytes::new());
        assert_eq!(drive.durable, objects(&expected), "{what}");
    };
    for can_locate in [true, false] {
        for is_fixed in [true, false] {
            for lacks in 1..=3 {
                for warns_at in 0..20 {
                    run_all(can_locate, is_fixed, lacks, false, warns_at);
                    run_all(can_locate, is_fixed, lacks, true, warns_at);
                }
            }
        }
    }
    // A part of a block is a block of its own where the head cannot be put back.
    let mut writer = Write::new(Settings { can_locate: false, ..settings() }, 0);
    writer.push(Bytes::from_static(b"block"));
    let sent = writer.poll().unwrap();
    writer.answered(sent.ticket, Answer { residual: 2, ..good() });
    writer.poll();
    assert_eq!(writer.failure(), Some(&StreamError::Partial(0)));
}

#[test]
fn block_that_comes_in_part_without_a_word_is_not_taken_for_whole() {
    let fixed = Fixed { block: 4, count: 3, mode: TapeMode::default() };
    for fixed in [None, Some(fixed)] {
        let mut read = Read::new(Settings { fixed, ..settings() }, 0);
        let first = read.poll().unwrap();
        let crate::scsi::command::Transfer::In(asked) = first.command.transfer else { panic!() };
        let came = vec![7; asked as usize - 4];
        read.answered(first.ticket, answer(Status::Good, None, came.into()));
        read.poll();
        assert_eq!(read.failure(), Some(&StreamError::Partial(0)), "{fixed:?}");
        assert_eq!(read.take(), None);
    }
    // Of 3 blocks 2 lie before a mark, and one has come.
    for left in [Some(1), None] {
        let mut read = Read::new(Settings { fixed: Some(fixed), ..settings() }, 0);
        let first = read.poll().unwrap();
        let stream = Stream { filemark: true, ..Stream::NONE };
        let sense = Sense::new(Key::NoSense, Additional::FILEMARK_DETECTED).with_stream(stream);
        let sense = Sense { information: left, ..sense };
        read.answered(first.ticket, answer(Status::CheckCondition, Some(sense), vec![7; 4].into()));
        read.poll();
        assert_eq!(read.failure(), Some(&StreamError::Partial(0)), "{left:?}");
    }
}

#[test]
fn block_that_grows_each_time_it_is_read_ends_a_stream() {
    let mut read = Read::new(settings(), 7);
    let mut reads = 0;
    while let Some(request) = read.poll() {
        assert!(reads < 10, "it is read for ever");
        let answered = match request.command.transfer {
            crate::scsi::command::Transfer::In(asked) if request.command.cdb[0] == 0x08 => {
                reads += 1;
                let stream = Stream { incorrect_length: true, ..Stream::NONE };
                let sense = Sense::new(Key::NoSense, Additional::NONE).with_stream(stream);
                let sense = sense.with_information((-1_i64).cast_unsigned());
                answer(Status::CheckCondition, Some(sense), vec![7; asked as usize].into())
            }
            crate::scsi::command::Transfer::In(_) => {
                let data = [&[0; 8][..], &7_u64.to_be_bytes(), &[0; 16]].concat();
                answer(Status::Good, None, data.into())
            }
            _ => good(),
        };
        read.answered(request.ticket, answered);
    }
    assert_eq!(read.failure(), Some(&StreamError::LengthChanges(7)));
    assert_eq!(reads, 2);
}
