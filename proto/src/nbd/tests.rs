//! The machine against hand-written clients. Numbers are spelt out: they come from the protocol, not
//! from the code.

use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::*;

const GREETING_LEN: usize = 18;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;

fn export() -> Export {
    Export {
        size: 1 << 20,
        minimum_block_size: 512,
        preferred_block_size: 4096,
        read_only: false,
        trim: true,
        fast_zero: false,
        base_allocation: true,
        description: "a test".to_owned(),
    }
}

/// A client that has sent its flags.
struct Client {
    machine: Machine,
    input: BytesMut,
}

impl Client {
    fn new(export: Export) -> Self {
        let mut client = Self { machine: Machine::new(export), input: BytesMut::new() };
        assert_eq!(client.take().len(), GREETING_LEN);
        client.input.put_u32(3);
        client
    }

    /// One that is in the transmission phase.
    fn ready(export: Export, structured: bool) -> Self {
        let mut client = Self::new(export);
        if structured {
            client.option(8, &[]);
            client.option(10, &meta_query(&["base:allocation"]));
        }
        assert!(matches!(client.option(7, &go(&[])), Event::NeedMore(28)));
        client.take();
        client
    }

    fn option(&mut self, option: u32, data: &[u8]) -> Event {
        self.input.put_u64(IHAVEOPT);
        self.input.put_u32(option);
        self.input.put_u32(data.len() as u32);
        self.input.put_slice(data);
        self.machine.next(&mut self.input).unwrap()
    }

    fn send(&mut self, flags: u16, kind: u16, at: u64, len: u32, data: &[u8]) -> Option<Command> {
        self.input.put_u32(0x2560_9513);
        self.input.put_u16(flags);
        self.input.put_u16(kind);
        self.input.put_u64(77);
        self.input.put_u64(at);
        self.input.put_u32(len);
        self.input.put_slice(data);
        match self.machine.next(&mut self.input).unwrap() {
            Event::Request(Request { cookie: 77, command }) => Some(command),
            Event::NeedMore(28) => None,
            event => panic!("{event:?}"),
        }
    }

    /// Everything the server has sent.
    fn take(&mut self) -> Bytes {
        let out = &mut self.machine.out;
        let mut bytes = Vec::new();
        while !out.is_empty() {
            let mut slices = [IoSlice::new(&[]); 3];
            let filled = out.slices(&mut slices);
            let sent: usize = slices[..filled].iter().map(|slice| slice.len()).sum();
            slices[..filled].iter().for_each(|slice| bytes.extend_from_slice(slice));
            out.advance(sent);
        }
        assert_eq!(out.len(), 0);
        bytes.into()
    }

    /// The replies to options: their types and data.
    fn replies(&mut self) -> Vec<(u32, Bytes)> {
        let (mut bytes, mut replies) = (self.take(), Vec::new());
        while bytes.has_remaining() {
            assert_eq!(bytes.get_u64(), 0x0003_e889_0455_65a9);
            bytes.get_u32();
            let (reply, len) = (bytes.get_u32(), bytes.get_u32());
            replies.push((reply, bytes.split_to(len as usize)));
        }
        replies
    }

    /// The error of a simple reply.
    fn error(&mut self) -> u32 {
        let mut bytes = self.take();
        assert_eq!(bytes.get_u32(), 0x6744_6698);
        let error = bytes.get_u32();
        assert_eq!((bytes.get_u64(), bytes.remaining()), (77, 0));
        error
    }
}

fn go(wanted: &[u16]) -> Vec<u8> {
    let mut data = vec![0; 4];
    data.put_u16(wanted.len() as u16);
    wanted.iter().for_each(|&info| data.put_u16(info));
    data
}

fn meta_query(queries: &[&str]) -> Vec<u8> {
    let mut data = vec![0; 4];
    data.put_u32(queries.len() as u32);
    for query in queries {
        data.put_u32(query.len() as u32);
        data.put_slice(query.as_bytes());
    }
    data
}

#[test]
fn the_greeting_is_fixed_newstyle() {
    let mut client = Client { machine: Machine::new(export()), input: BytesMut::new() };
    assert_eq!(client.take(), b"NBDMAGICIHAVEOPT\0\x03"[..]);
}

#[test]
fn export_name_enters_without_a_reply_head() {
    for (client_flags, padding) in [(1, 124), (3, 0)] {
        let mut client = Client { machine: Machine::new(export()), input: BytesMut::new() };
        client.take();
        client.input.put_u32(client_flags);
        assert!(matches!(client.option(1, b""), Event::NeedMore(28)));
        let mut bytes = client.take();
        assert_eq!(bytes.get_u64(), 1 << 20);
        // Flags, flush, FUA, trim, zeroes, several connections, cache, fast zeroes; no DF.
        assert_eq!(bytes.get_u16(), 0b1101_0110_1101);
        assert_eq!(bytes, vec![0; padding]);
    }
}

#[test]
fn go_tells_block_sizes_and_what_else_was_asked() {
    let mut client = Client::new(export());
    client.option(7, &go(&[1, 2, 99]));
    let replies = client.replies();
    let infos: Vec<&[u8]> = replies.iter().filter(|reply| reply.0 == 3).map(|r| &*r.1).collect();
    assert_eq!(
        infos[0],
        [&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &[0b1101, 0b0110_1101]].concat()
    );
    assert_eq!(infos[1], [0, 3, 0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]);
    assert_eq!(infos[2], [0, 1]);
    assert_eq!(infos[3], b"\0\x02a test");
    assert_eq!(replies.last().unwrap(), &(1, Bytes::new()), "ACK ends it");
}

#[test]
fn info_stays_in_the_handshake() {
    let mut client = Client::new(export());
    assert!(matches!(client.option(6, &go(&[])), Event::NeedMore(16)));
    assert!(!client.machine.is_ready());
}

#[test]
fn unknown_or_malformed_option_is_refused_and_the_handshake_goes_on() {
    const UNSUP: u32 = 0x8000_0001;
    const INVALID: u32 = 0x8000_0003;
    const UNKNOWN: u32 = 0x8000_0006;
    let named = [&5_u32.to_be_bytes()[..], b"other", &[0, 0]].concat();
    let rows: [(u32, &[u8], u32); 10] = [
        (5, b"", UNSUP),                   // STARTTLS
        (11, b"", UNSUP),                  // EXTENDED_HEADERS
        (0x7777, b"anything", UNSUP),      // not invented yet
        (3, b"x", INVALID),                // LIST has no data
        (8, b"x", INVALID),                // nor has STRUCTURED_REPLY
        (7, b"\0", INVALID),               // GO cut short
        (7, b"\xff\xff\xff\xff", INVALID), // a name beyond the data
        (7, b"\0\0\0\0\0\x09", INVALID),   // informations beyond the data
        (7, &named, UNKNOWN),
        (10, b"\0\0\0\0\xff\xff\xff\xff", INVALID),
    ];
    let mut client = Client::new(export());
    for (option, data, expected) in rows {
        if option == 10 {
            client.option(8, &[]);
            client.take();
        }
        assert!(matches!(client.option(option, data), Event::NeedMore(16)), "{option}");
        let replies = client.replies();
        assert_eq!((replies.len(), replies[0].0), (1, expected), "{option} {data:?}");
    }
}

#[test]
fn list_and_abort() {
    let mut client = Client::new(export());
    client.option(3, &[]);
    assert_eq!(client.replies(), [(2, Bytes::from_static(&[0; 4])), (1, Bytes::new())]);
    assert!(matches!(client.option(2, &[]), Event::Closed));
    assert_eq!(client.replies(), [(1, Bytes::new())]);
}

#[test]
fn meta_contexts_need_structured_replies_and_a_map() {
    let context = (4, Bytes::from_static(b"\0\0\0\x01base:allocation"));
    let mut client = Client::new(export());
    client.option(10, &meta_query(&["base:allocation"]));
    assert_eq!(client.replies()[0].0, 0x8000_0003);
    client.option(8, &[]);
    client.take();
    for (option, query, found) in [
        (9, &[][..], true),
        (9, &["base:"], true),
        (9, &["qemu:"], false),
        (10, &["qemu:dirty-bitmap:x", "base:allocation"], true),
        (10, &["base:"], false),
    ] {
        client.option(option, &meta_query(query));
        let replies = client.replies();
        assert_eq!(replies.first() == Some(&context), found, "{option} {query:?}");
        assert_eq!(replies.last(), Some(&(1, Bytes::new())));
    }
    let mut client = Client::new(Export { base_allocation: false, ..export() });
    client.option(8, &[]);
    client.take();
    client.option(9, &meta_query(&[]));
    assert_eq!(client.replies(), [(1, Bytes::new())]);
}

#[test]
fn requests_become_commands() {
    let mut client = Client::ready(export(), false);
    let range = ByteRange::new(512, 1024);
    let data = Bytes::from(vec![7; 1024]);
    for (flags, kind, command) in [
        (0, 0, Command::Read(range)),
        (0, 1, Command::Write { offset: 512, data: data.clone(), fua: false }),
        (1, 1, Command::Write { offset: 512, data: data.clone(), fua: true }),
        (1, 4, Command::Trim { range, fua: true }),
        (0, 6, Command::WriteZeroes { range, fua: false, no_hole: false }),
        (1 | 2, 6, Command::WriteZeroes { range, fua: true, no_hole: true }),
    ] {
        let payload = if kind == 1 { &data[..] } else { &[] };
        assert_eq!(client.send(flags, kind, 512, 1024, payload), Some(command));
    }
    assert_eq!(client.send(0, 3, 0, 0, &[]), Some(Command::Flush));
    assert_eq!(client.send(0, 5, 512, 1024, &[]), None);
    assert_eq!(client.error(), 0, "CACHE is done at once");
}

#[test]
fn impossible_request_is_refused_with_the_right_number() {
    let (perm, inval, nospc, notsup) = (1, 22, 28, 95);
    let read_only = {
        let mut export = export();
        export.read_only = true;
        export
    };
    let plain = {
        let mut export = export();
        export.trim = false;
        export
    };
    let rows = [
        (export(), 0, 0, 1, 512, inval, "an unaligned read"),
        (export(), 0, 1, 512, 1, inval, "an unaligned write"),
        (export(), 0, 0, 1 << 20, 512, inval, "a read beyond the end"),
        (export(), 0, 1, 1 << 20, 512, nospc, "a write beyond the end"),
        (export(), 0, 6, u64::MAX - 511, 1024, nospc, "an end beyond 2^64"),
        (export(), 0, 0, 0, u32::MAX - 511, inval, "a read of 4 GiB"),
        (export(), 1 << 4, 6, 0, 512, notsup, "zeroes that are not fast"),
        (export(), 1 << 3, 0, 0, 512, inval, "a flag of another command"),
        (export(), 1 << 2, 0, 0, 512, inval, "DF without structured replies"),
        (export(), 0, 7, 0, 512, inval, "block status without a context"),
        (export(), 0, 99, 0, 512, inval, "an unknown command"),
        (read_only.clone(), 0, 1, 0, 512, perm, "a write"),
        (read_only.clone(), 0, 4, 0, 512, perm, "a trim"),
        (read_only, 0, 6, 0, 512, perm, "zeroes"),
        (plain, 0, 4, 0, 512, notsup, "a trim where nothing discards"),
    ];
    for (export, flags, kind, at, len, errno, what) in rows {
        let mut client = Client::ready(export, false);
        let payload = if kind == 1 { vec![0; len as usize] } else { Vec::new() };
        assert_eq!(client.send(flags, kind, at, len, &payload), None, "{what}");
        assert_eq!(client.error(), errno, "{what}");
    }
}

#[test]
fn replies_are_structured_once_agreed() {
    let mut client = Client::ready(export(), true);
    client.send(0, 0, 512, 512, &[]);
    let data = Bytes::from(vec![9; 512]);
    client.machine.reply(77, Ok(Reply::Data(512, data.clone())));
    let mut bytes = client.take();
    assert_eq!((bytes.get_u32(), bytes.get_u16(), bytes.get_u16()), (0x668e_33ef, 1, 1));
    assert_eq!((bytes.get_u64(), bytes.get_u32(), bytes.get_u64()), (77, 8 + 512, 512));
    assert_eq!(bytes, data);

    client.send(0, 0, 0, 512, &[]);
    let failed = ErrorReply::new(Errno::EIO, "read of 512 bytes at 0 failed: medium error");
    client.machine.reply(77, Err(failed));
    let mut bytes = client.take();
    assert_eq!((bytes.get_u32(), bytes.get_u16(), bytes.get_u16()), (0x668e_33ef, 1, 0x8001));
    let message = b"read of 512 bytes at 0 failed: medium error";
    assert_eq!((bytes.get_u64(), bytes.get_u32()), (77, 6 + message.len() as u32));
    assert_eq!((bytes.get_u32(), bytes.get_u16()), (5, message.len() as u16));
    assert_eq!(bytes, message[..]);
}

/// NBD, "Values": a string has at most 4096 bytes.
#[test]
fn long_error_message_is_cut_between_characters() {
    let mut client = Client::ready(export(), true);
    client.send(0, 0, 0, 512, &[]);
    let message = format!("x{}", "\u{e9}".repeat(100_000));
    client.machine.reply(77, Err(ErrorReply::new(Errno::EIO, message.as_str())));
    let mut bytes = client.take();
    bytes.advance(16);
    assert_eq!((bytes.get_u32(), bytes.get_u32(), bytes.get_u16()), (6 + 4095, 5, 4095));
    assert_eq!(bytes, message.as_bytes()[..4095]);
}

#[test]
fn block_status_joins_neighbours_and_stays_inside() {
    let extent = |at, len, hole, zero| Extent { range: ByteRange::new(at, len), hole, zero };
    // The map answers more than was asked, in pieces; a hole that is not zero is told as data.
    let extents = vec![
        extent(0, 1024, true, true),
        extent(1024, 512, true, true),
        extent(1536, 256, true, false),
        extent(1792, 9000, false, false),
    ];
    for (flags, expected) in [(0, &[(1024_u32, 3_u32), (512, 0)][..]), (1 << 3, &[(1024, 3)])] {
        let mut client = Client::ready(export(), true);
        let command = client.send(flags, 7, 512, 1536, &[]);
        let (range, req_one) = (ByteRange::new(512, 1536), flags != 0);
        assert_eq!(command, Some(Command::BlockStatus { range, req_one }));
        let reply = Reply::BlockStatus { range, req_one, extents: extents.clone() };
        client.machine.reply(77, Ok(reply));
        let mut bytes = client.take();
        assert_eq!((bytes.get_u32(), bytes.get_u16(), bytes.get_u16()), (0x668e_33ef, 1, 5));
        assert_eq!((bytes.get_u64(), bytes.get_u32()), (77, 4 + 8 * expected.len() as u32));
        assert_eq!(bytes.get_u32(), 1, "the context that was selected");
        let told: Vec<_> = expected.iter().map(|_| (bytes.get_u32(), bytes.get_u32())).collect();
        assert_eq!(told, expected);
    }
}

#[test]
fn unrecoverable_violation_ends_the_connection() {
    let rows: [(&[u8], Violation); 5] = [
        (b"\0\0\0\x07", Violation::ClientFlags(7)),
        (b"\0\0\0\x03NOTANOPTxxxxxxxx", Violation::OptionMagic),
        (
            b"\0\0\0\x03IHAVEOPT\0\0\0\x07\x7f\0\0\0",
            Violation::OptionTooLong { option: 7, len: 0x7f00_0000 },
        ),
        (b"\0\0\0\0IHAVEOPT\0\0\0\x07\0\0\0\0", Violation::NotFixed(7)),
        (b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x05other", Violation::UnknownExport),
    ];
    for (bytes, violation) in rows {
        let mut machine = Machine::new(export());
        assert_eq!(machine.next(&mut BytesMut::from(bytes)).unwrap_err(), violation);
    }
    let mut client = Client::ready(export(), false);
    client.input.put_bytes(0, 28);
    assert_eq!(client.machine.next(&mut client.input).unwrap_err(), Violation::RequestMagic);
}

#[test]
fn disconnect_ends_without_a_reply() {
    let mut client = Client::ready(export(), false);
    client.input.put_u32(0x2560_9513);
    client.input.put_u32(2);
    client.input.put_bytes(0, 20);
    assert!(matches!(client.machine.next(&mut client.input), Ok(Event::Closed)));
    assert_eq!(client.take().len(), 0);
}

/// A well-formed start, so that random bytes get past the handshake.
fn entered() -> Vec<u8> {
    let mut bytes = b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0".to_vec();
    let query = meta_query(&["base:allocation"]);
    bytes.extend_from_slice(b"IHAVEOPT\0\0\0\x0a");
    bytes.put_u32(query.len() as u32);
    bytes.extend_from_slice(&query);
    bytes.extend_from_slice(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    bytes
}

prop_compose! {
    /// A request whose fields are near what matters.
    fn request()(
        flags in prop_oneof![Just(0_u16), 0..32_u16],
        kind in 0..9_u16,
        at in prop_oneof![(0..2050_u64).prop_map(|n| n * 512), any::<u64>()],
        blocks in 0..4_u32,
        more in prop_oneof![4 => Just(0_u32), 1 => any::<u32>()],
    ) -> Vec<u8> {
        let len = (blocks * 512).wrapping_add(more);
        let mut bytes = Vec::new();
        bytes.put_u32(0x2560_9513);
        bytes.put_u16(flags);
        bytes.put_u16(kind);
        bytes.put_u64(1);
        bytes.put_u64(at);
        bytes.put_u32(len);
        if kind == 1 && len <= 2048 {
            bytes.put_bytes(5, len as usize);
        }
        bytes
    }
}

proptest! {
    #[test]
    fn invariants_hold_for_random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        invariants::machine(&bytes);
    }

    #[test]
    fn invariants_hold_for_valid_requests(
        choice: u8,
        requests in prop::collection::vec(request(), 0..12),
    ) {
        invariants::machine(&[vec![choice], entered(), requests.concat()].concat());
    }
}
