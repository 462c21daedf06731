//! What holds of the machine whatever a client sends; for fuzzing and for tests.

use bytes::BytesMut;

use super::export::{ByteRange, Export};
use super::machine::{Event, Machine};
use super::transmission::{Command, Reply, Request};
use super::violation::Violation;
use super::wire::PAYLOAD_MAX;

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
    Export {
        size: 1 << 20,
        minimum_block_size: 512,
        preferred_block_size: 4096,
        read_only,
        trim: true,
        fast_zero: true,
        base_allocation: true,
        description: "fuzzed".to_owned(),
    }
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
                assert!(need <= 28 + PAYLOAD_MAX as usize);
                return false;
            }
            Ok(Event::Request(request)) => {
                machine.reply(request.cookie, Ok(Reply::Done));
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
    let (range, changes) = match command {
        Command::Read(range) | Command::BlockStatus { range, .. } => (*range, false),
        Command::Write { offset, data, .. } => (ByteRange::new(*offset, data.len() as u64), true),
        Command::WriteZeroes { range, .. } | Command::Trim { range, .. } => (*range, true),
        Command::Flush => return,
    };
    let block = u64::from(export.minimum_block_size);
    assert!(range.end().is_some_and(|end| end <= export.size));
    assert!(range.offset.is_multiple_of(block) && range.length.is_multiple_of(block));
    assert!(!(changes && export.read_only));
}
