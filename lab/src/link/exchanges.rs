//! How often an iSCSI write has to wait for its target, counted on the wire.
//!
//! Time says too much: a fresh TCP connection needs several round trips to carry a large write, whatever the
//! protocol above it does. So the PDUs are looked at, in the order in which they pass the near end, where the
//! initiator is. There are two things to wait for. Data that the target has to ask for go out after its R2T; and a
//! command goes out after the answer that opened the command window for it (RFC 7143, 4.2.2.1). A write for which
//! neither is needed is one exchange, however many commands it takes; each wait in a row is one more. The writes
//! that are under way at the same time count as one.
//!
//! What is sealed cannot be looked at, and digests are not expected.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use proto::iscsi::header::{BHS_LEN, Header, Lengths, NO_TAG};

use super::train::{Piece, Train, be32};

/// WRITE(6), (10), (12) and (16) (SBC-2, 5.24; SBC-3, 5.33 to 5.35).
const WRITES: [u8; 4] = [0x0a, 0x2a, 0xaa, 0x8a];

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heading {
    /// From the near end, from the initiator.
    Out,
    /// To it.
    Back,
}

/// The writes of all connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchanges {
    /// By the ports of the near end and the far end.
    connections: BTreeMap<[u16; 2], Connection>,
    /// How often there was which.
    writes: BTreeMap<Whole, u32>,
}

impl Exchanges {
    /// Packets pass the near end.
    pub(super) fn pass(&mut self, heading: Heading, train: &Train, part: Range<usize>) {
        if let Some(piece) = train.stream(part) {
            self.follow(heading, piece);
        }
    }

    fn follow(&mut self, heading: Heading, piece: Piece<'_>) {
        let [from, to] = piece.ports;
        let ports = match heading {
            Heading::Out => [from, to],
            Heading::Back => [to, from],
        };
        let Connection { out, back, burst } = self.connections.entry(ports).or_default();
        let way = match heading {
            Heading::Out => out,
            Heading::Back => back,
        };
        way.follow(piece, |bhs, header| {
            let whole = match heading {
                Heading::Out => burst.leaves(header),
                Heading::Back => burst.comes(bhs, header),
            };
            if let Some(whole) = whole {
                *self.writes.entry(whole).or_default() += 1;
            }
        });
    }
}

impl std::fmt::Display for Exchanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("writes seen:")?;
        for (Whole { len, commands, exchanges }, count) in &self.writes {
            write!(f, " {count} of {len} bytes (commands: {commands}, exchanges: {exchanges});")?;
        }
        let lost = self.connections.values().filter(|it| it.out.lost || it.back.lost).count();
        write!(f, " connections that could not be followed: {lost}")
    }
}

#[derive(Clone, Debug, Default)]
struct Connection {
    out: Way,
    back: Way,
    burst: Burst,
}

/// What was written from when nothing was under way until nothing was again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Whole {
    len: u64,
    commands: u32,
    exchanges: u32,
}

/// The writes under way.
#[derive(Clone, Debug, Default)]
struct Burst {
    whole: Whole,
    /// By their initiator task tag.
    tasks: HashMap<u32, Write>,
    /// How far the command window was open when nothing was under way.
    open: u32,
    /// How far the answers since have opened it, each with the exchanges that it came after.
    opened: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    exchanges: u32,
    /// The target has asked for data since any were sent.
    asked: bool,
}

impl Burst {
    /// Takes what the initiator sends.
    fn leaves(&mut self, header: Header) -> Option<Whole> {
        match header {
            Header::ScsiCommand(command) if WRITES.contains(&command.cdb[0]) => {
                self.whole.len += u64::from(command.expected_len);
                self.whole.commands += 1;
                let exchanges = 1 + self.waited(command.cmd_sn);
                self.tasks.insert(command.itt, Write { exchanges, asked: false });
            }
            Header::DataOut(data) if data.ttt != NO_TAG => {
                if let Some(write) = self.tasks.get_mut(&data.itt).filter(|write| write.asked) {
                    write.exchanges += 1;
                    write.asked = false;
                }
            }
            _ => {}
        }
        None
    }

    /// How many exchanges there were before a command could be sent.
    fn waited(&self, cmd_sn: u32) -> u32 {
        let reaches = |end: u32| end.wrapping_sub(cmd_sn) as i32 >= 0;
        let answer = self.opened.iter().find(|(end, _)| reaches(*end));
        if reaches(self.open) { 0 } else { answer.map_or(0, |(_, exchanges)| *exchanges) }
    }

    /// Takes what the target sends; gives the whole of what was written if this ends it.
    fn comes(&mut self, bhs: &[u8; BHS_LEN], header: Header) -> Option<Whole> {
        let mut exchanges = 1;
        match header {
            Header::R2t(r2t) => {
                if let Some(write) = self.tasks.get_mut(&r2t.itt) {
                    write.asked = true;
                }
            }
            Header::ScsiResponse(response) => {
                if let Some(write) = self.tasks.remove(&response.itt) {
                    exchanges = write.exchanges;
                }
            }
            _ => {}
        }
        // MaxCmdSN stands at the same place in all that a target sends (RFC 7143, 11).
        let end = be32(&bhs[32..36]);
        self.opened.push((end, exchanges));
        if !self.tasks.is_empty() {
            self.whole.exchanges = self.whole.exchanges.max(exchanges);
            return None;
        }
        let whole = Whole { exchanges: self.whole.exchanges.max(exchanges), ..self.whole };
        *self = Self { open: end, ..Self::default() };
        (whole.commands > 0).then_some(whole)
    }
}

/// One direction of a connection, from its first byte on.
#[derive(Clone, Debug, Default)]
struct Way {
    /// The sequence number that comes next, once the connection was seen to begin.
    next: Option<u32>,
    /// What there is of the header of a PDU.
    header: Vec<u8>,
    /// Bytes of its segments that are still to come.
    skip: usize,
    /// Something is missing, or is no iSCSI: nothing behind it is understood.
    lost: bool,
}

impl Way {
    fn follow(&mut self, piece: Piece<'_>, each: impl FnMut(&[u8; BHS_LEN], Header)) {
        if piece.syn {
            // The SYN has a number of its own (RFC 9293, 3.4).
            *self = Self { next: Some(piece.sequence.wrapping_add(1)), ..Self::default() };
            return;
        }
        // Acknowledgements may be ahead of data that were lost.
        let follows = !self.lost && !piece.payload.is_empty();
        let Some(next) = self.next.filter(|_| follows) else { return };
        let known = next.wrapping_sub(piece.sequence) as usize;
        match piece.payload.get(known..) {
            Some(new) => {
                self.next = Some(next.wrapping_add(new.len() as u32));
                self.read(new, each);
            }
            // It was sent before and is sent again, or something before it is missing.
            None => self.lost = (known as u32 as i32) < 0,
        }
    }

    fn read(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8; BHS_LEN], Header)) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let (head, rest) = bytes.split_at((BHS_LEN - self.header.len()).min(bytes.len()));
            self.header.extend_from_slice(head);
            bytes = rest;
            if let Some(bhs) = self.header.first_chunk().copied() {
                let Ok(header) = Header::parse(&bhs) else {
                    self.lost = true;
                    return;
                };
                let Lengths { ahs, data } = Lengths::parse(&bhs);
                // The data segment is padded to whole words (RFC 7143, 11.1).
                self.skip = ahs + data.next_multiple_of(4);
                self.header.clear();
                each(&bhs, header);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::iscsi::header::{DataOut, R2t, ScsiCommand, ScsiResponse};

    use super::*;

    const PORTS: [u16; 2] = [50_000, 3260];

    /// A connection whose segments are as long as they are told to be.
    struct Wire {
        seen: Exchanges,
        /// The next sequence numbers, out and back; they wrap on the way.
        next: [u32; 2],
        cmd_sn: u32,
        /// How many commands there may be under way.
        window: u32,
    }

    impl Wire {
        fn new(window: u32) -> Self {
            let next = [u32::MAX - 100; 2];
            let mut wire = Self { seen: Exchanges::default(), next, cmd_sn: u32::MAX - 2, window };
            for heading in [Heading::Out, Heading::Back] {
                wire.piece(heading, true, &[]);
                wire.next[heading as usize] = wire.next[heading as usize].wrapping_add(1);
            }
            // Something that was no write.
            wire.answer(0);
            wire
        }

        fn piece(&mut self, heading: Heading, syn: bool, payload: &[u8]) {
            let mut ports = PORTS;
            if heading == Heading::Back {
                ports.reverse();
            }
            let sequence = self.next[heading as usize];
            self.seen.follow(heading, Piece { ports, sequence, syn, payload });
        }

        /// A PDU in segments of 37 bytes, each sent twice.
        fn send(&mut self, heading: Heading, header: impl Into<Header>, data: usize) {
            let mut pdu = header.into().emit(Lengths { ahs: 0, data }).to_vec();
            pdu.resize(BHS_LEN + data.next_multiple_of(4), 0xff);
            for segment in pdu.chunks(37) {
                self.piece(heading, false, segment);
                self.piece(heading, false, segment);
                let next = &mut self.next[heading as usize];
                *next = next.wrapping_add(segment.len() as u32);
            }
        }

        fn command(&mut self, itt: u32, expected_len: u32, immediate: usize) {
            let mut cdb = [0; 16];
            cdb[0] = 0x8a;
            let cmd_sn = self.cmd_sn;
            self.cmd_sn = cmd_sn.wrapping_add(1);
            let command =
                ScsiCommand { write: true, itt, expected_len, cmd_sn, cdb, ..Default::default() };
            self.send(Heading::Out, command, immediate);
        }

        fn data(&mut self, itt: u32, ttt: u32) {
            self.send(Heading::Out, DataOut { itt, ttt, ..DataOut::default() }, 1001);
        }

        fn ask(&mut self, itt: u32, ttt: u32) {
            let max_cmd_sn = self.max_cmd_sn();
            self.send(Heading::Back, R2t { itt, ttt, max_cmd_sn, ..R2t::default() }, 0);
        }

        fn answer(&mut self, itt: u32) {
            let max_cmd_sn = self.max_cmd_sn();
            self.send(Heading::Back, ScsiResponse { itt, max_cmd_sn, ..Default::default() }, 0);
        }

        fn max_cmd_sn(&self) -> u32 {
            self.cmd_sn.wrapping_add(self.window).wrapping_sub(1)
        }

        /// What was seen: lengths, commands, exchanges, and how often.
        fn saw(&self) -> Vec<(u64, u32, u32, u32)> {
            let each = |(whole, count): (&Whole, &u32)| {
                (whole.len, whole.commands, whole.exchanges, *count)
            };
            self.seen.writes.iter().map(each).collect()
        }
    }

    #[test]
    fn a_write_that_nothing_had_to_be_asked_for_is_one_exchange() {
        let mut wire = Wire::new(2);
        wire.command(1, 4096, 4096);
        wire.answer(1);
        // The answer to a part of it, in the midst of the data of another, is not waited for.
        wire.command(1, 4096, 4096);
        wire.command(2, 3003, 0);
        wire.data(2, NO_TAG);
        wire.answer(1);
        wire.data(2, NO_TAG);
        wire.data(2, NO_TAG);
        wire.answer(2);
        assert_eq!(wire.saw(), [(4096, 1, 1, 1), (7099, 2, 1, 1)]);
    }

    #[test]
    fn a_command_that_waits_for_the_window_is_one_more() {
        let mut wire = Wire::new(3);
        for itt in 1..=3 {
            wire.command(itt, 512, 512);
        }
        wire.window = 1;
        wire.answer(1);
        wire.command(4, 512, 512);
        // This answer opens nothing, so the next command waits for one that waited itself.
        wire.window = 0;
        wire.answer(2);
        wire.window = 1;
        wire.answer(4);
        wire.command(5, 512, 512);
        wire.answer(3);
        wire.answer(5);
        assert_eq!(wire.saw(), [(2560, 5, 3, 1)]);
    }

    #[test]
    fn data_that_had_to_be_asked_for_are_one_more_each_time() {
        let mut wire = Wire::new(8);
        for (itt, rounds) in [(1, 1), (2, 3)] {
            wire.command(itt, 8192, 512);
            for ttt in 0..rounds {
                wire.ask(itt, ttt);
                wire.data(itt, ttt);
                wire.data(itt, ttt);
            }
            wire.answer(itt);
        }
        // Several requests at once are waited for once.
        wire.command(3, 8192, 512);
        wire.ask(3, 7);
        wire.ask(3, 8);
        wire.data(3, 7);
        wire.data(3, 8);
        wire.answer(3);
        assert_eq!(wire.saw(), [(8192, 1, 2, 2), (8192, 1, 4, 1)]);
    }

    #[test]
    fn connection_that_cannot_be_followed_is_reported() {
        let mut wire = Wire::new(8);
        wire.next[0] = wire.next[0].wrapping_add(1);
        wire.command(1, 4096, 4096);
        wire.answer(1);
        assert_eq!(wire.saw(), []);
        assert!(wire.seen.to_string().ends_with("followed: 1"), "{}", wire.seen);
        // The same ports, from the start.
        wire.piece(Heading::Out, true, &[]);
        wire.next[0] = wire.next[0].wrapping_add(1);
        wire.command(1, 4096, 4096);
        wire.answer(1);
        assert_eq!(wire.saw(), [(4096, 1, 1, 1)]);
    }
}
