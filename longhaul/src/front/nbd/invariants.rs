//! What holds of the machine whatever a client sends; for fuzzing and for tests.

use bytes::BytesMut;
use volume::{Discard, Shape, Span, TRANSFER_MAX};

use super::export::Export;
use super::machine::{Event, Machine};
use super::transmission::{Answer, Command, Request};
use super::violation::Violation;

/// Replies the machine queues by itself for one message: refusals and option replies are short.
const REPLY_MAX: usize = 1024;

/// Runs `input` through two machines, once whole and once in pieces, and panics unless
///
/// - both see the same requests and end the same way,
/// - every request is inside the export, aligned, and allowed,
/// - what is queued is bounded by what was asked.
pub fn machine(input: &[u8]) {
    let Some((&choice, stream)) = input.split_first() else { return };
    let export = export(choice & 1 != 0);
    let whole = converse(&export, stream.chunks(stream.len().max(1)));
    let pieces = converse(&export, stream.chunks(1 + usize::from(choice >> 1)));
    assert_eq!(whole, pieces);
}

fn export(read_only: bool) -> Export {
    let shape = Shape {
        size: 1 << 20,
        block_size: 512,
        physical_block_size: 4096,
        read_only,
        write_cache: true,
        discard: Some(Discard { granularity: 4096, reads_zeroes: true }),
        fast_zeroes: true,
    };
    Export { shape, mapped: true, description: "fuzzed".to_owned() }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    requests: Vec<Request>,
    closed: bool,
    violation: Option<Violation>,
}

fn converse<'a>(export: &Export, pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let mut machine = Machine::new(export.clone());
    let (mut seen, mut input) = (Seen::default(), BytesMut::new());
    for piece in pieces {
        input.extend_from_slice(piece);
        let (messages, waiting) = (1 + input.len() / 8, machine.out.len());
        if converse_once(&mut machine, &mut input, &mut seen) {
            return seen;
        }
        assert!(machine.out.len() - waiting <= messages * REPLY_MAX);
        for request in &seen.requests {
            check(export, &request.command);
        }
    }
    seen
}

/// Lets the machine take what it can; whether the conversation is over.
fn converse_once(machine: &mut Machine, input: &mut BytesMut, seen: &mut Seen) -> bool {
    loop {
        match machine.next(input) {
            Ok(Event::NeedMore(need)) => {
                assert!(need > input.len(), "it would wait for what it has");
                assert!(need <= 28 + TRANSFER_MAX as usize);
                return false;
            }
            Ok(Event::Request(request)) => {
                machine.answer(request.cookie, Ok(Answer::Done));
                seen.requests.push(request);
            }
            Ok(Event::Closed) => seen.closed = true,
            Err(violation) => seen.violation = Some(violation),
        }
        if seen.closed || seen.violation.is_some() {
            return true;
        }
    }
}

fn check(export: &Export, command: &Command) {
    let (span, changes) = match command {
        Command::Read(span) | Command::BlockStatus { span, .. } => (*span, false),
        Command::Write(at, data, _) => (Span::new(*at, data.len() as u64), true),
        Command::WriteZeroes(span, ..) | Command::Trim(span, _) => (*span, true),
        Command::Flush => return,
    };
    let block = u64::from(export.shape.block_size);
    assert!(span.at.checked_add(span.len).is_some_and(|end| end <= export.shape.size));
    assert!(span.at.is_multiple_of(block) && span.len.is_multiple_of(block));
    assert!(!(changes && export.shape.read_only));
}
