//! The slots of a connection at the server: each request is executed once (spec, 7.2).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::codec::{
    CHECKSUM_LEN, Fragment, Header, MANAGE_MAX, Opcode, REQUEST_LEN, Sec, devices_request, precedes,
};
use super::super::command::{CDB_MAX, Handle, Request};
use super::super::ended::Ended;
use super::super::incoming::{Incoming, Placed};
use super::super::outgoing::Outgoing;
use super::super::path::Unacknowledged;
use super::super::transport::Transport;
use crate::time::Time;

/// The first slot of management.
const CONTROL_FIRST: u16 = 508;

/// What happens to the request in a slot.
#[derive(Debug)]
enum Phase {
    Receiving(Incoming),
    Executing,
    Replied,
}

#[derive(Debug)]
struct Slot {
    seq: u32,
    opcode: Opcode,
    sec: Sec,
    device: Handle,
    priority: u8,
    len: u32,
    /// Data of the request and of its reply have checksums.
    has_checksum: bool,
    phase: Phase,
    packets: Unacknowledged,
}

/// A request, whole.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) request: Request,
    pub(super) opcode: Opcode,
    pub(super) device: Handle,
    pub(super) priority: u8,
    pub(super) message: Bytes,
}

/// All slots of a connection.
#[derive(Debug)]
pub(super) struct Slots {
    slots: BTreeMap<u16, Slot>,
    commands: u16,
    /// The most of them, and the longest requests, that were ever agreed on: some may be under way.
    commands_max: u16,
    message_max: u32,
    /// Bytes of commands that may lie here.
    credit: u64,
    /// The lengths of all commands begun, and of those whose data are gone.
    begun: u64,
    released: u64,
    paused: bool,
    /// What was granted last.
    granted: (u64, u16),
    /// The client was accepted.
    is_open: bool,
}

impl Slots {
    pub(super) const fn new(commands: u16, data_max: u32, credit: u64) -> Self {
        Self {
            slots: BTreeMap::new(),
            commands,
            commands_max: commands,
            message_max: message_max(data_max),
            credit,
            begun: 0,
            released: 0,
            paused: false,
            granted: (credit, commands),
            is_open: false,
        }
    }

    /// As many commands at a time, with as many data, were agreed on.
    pub(super) fn change(&mut self, commands: u16, data_max: u32) {
        self.commands = commands;
        self.commands_max = self.commands_max.max(commands);
        self.message_max = self.message_max.max(message_max(data_max));
        // One command has room in any case, or it would never begin.
        self.credit = self.credit.max(self.message_max.into());
    }

    /// What acknowledgements grant. They overtake one another: of two grants the later one has more bytes, if it has other slots.
    pub(super) fn grant(&mut self) -> (u64, u16) {
        let (bytes, slots) = self.granted;
        let now = if self.paused { 0 } else { self.commands };
        let later = bytes + u64::from(now != slots);
        self.granted = (later.max(self.released + self.credit), now);
        self.granted
    }

    /// The client was accepted: it may have more than the device request lie here.
    pub(super) const fn open(&mut self) {
        self.is_open = true;
    }

    pub(super) const fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Takes a fragment of a request. `Ok(None)`: nothing is complete; `Err(None)`: it is to be dropped.
    pub(super) fn handle_fragment(
        &mut self,
        now: Time,
        transport: &mut Transport,
        header: &Header,
        body: &[u8],
    ) -> Result<Option<Whole>, Option<Ended>> {
        let broken = |what| Err(Some(Ended::Violation(what)));
        let Some((fragment, payload)) = Fragment::parse(body) else {
            return broken("a malformed fragment");
        };
        let is_command = header.opcode == Opcode::Request;
        let (is_slot, longest) = if is_command {
            (header.slot < self.commands_max, self.message_max)
        } else {
            (header.slot >= CONTROL_FIRST, MANAGE_MAX)
        };
        let may_lie_here = self.is_open
            || header.slot == CONTROL_FIRST
                && fragment.message_len <= devices_request().len() as u32;
        if !may_lie_here {
            return broken("a request before the devices were listed");
        }
        if !is_slot || fragment.message_len > longest {
            return broken("a request in a slot or of a length that was not agreed on");
        }
        let next = match self.slots.get(&header.slot) {
            None => 0,
            Some(slot) if fragment.seq == slot.seq || precedes(fragment.seq, slot.seq) => {
                fragment.seq
            }
            Some(slot) if matches!(slot.phase, Phase::Replied) => slot.seq.wrapping_add(1),
            Some(_) => return broken("a request in a slot that is in use"),
        };
        if fragment.seq != next {
            return broken("a request out of order");
        }
        if self.slots.get(&header.slot).is_none_or(|slot| precedes(slot.seq, next)) {
            self.begin(now, transport, header, &fragment)?;
        }
        let slot = self.slots.get_mut(&header.slot).expect("it was just made");
        if precedes(fragment.seq, slot.seq) {
            return Ok(None);
        }
        let Phase::Receiving(incoming) = &mut slot.phase else { return Ok(None) };
        let is_same = (slot.opcode, slot.device) == (header.opcode, header.device);
        if !is_same {
            return broken("fragments of one request that differ");
        }
        match incoming.place(&fragment, payload) {
            Placed::Dropped => return Err(None),
            Placed::Violation => return broken("a fragment of another message"),
            Placed::Partly => {
                transport.count(header.path, &mut slot.packets);
                return Ok(None);
            }
            Placed::Whole => transport.count(header.path, &mut slot.packets),
        }
        let Phase::Receiving(incoming) = core::mem::replace(&mut slot.phase, Phase::Executing)
        else {
            return Ok(None);
        };
        Ok(Some(Whole {
            request: Request { slot: header.slot, seq: slot.seq },
            opcode: slot.opcode,
            device: slot.device,
            priority: slot.priority,
            message: incoming.finish(),
        }))
    }

    fn begin(
        &mut self,
        now: Time,
        transport: &mut Transport,
        header: &Header,
        fragment: &Fragment,
    ) -> Result<(), Option<Ended>> {
        if header.opcode == Opcode::Request {
            self.begun += u64::from(fragment.message_len);
            if self.begun > self.grant().0 {
                return Err(Some(Ended::Violation("more bytes than were granted")));
            }
        }
        // A new request says that the last reply has come.
        transport.imply(now, header.slot);
        let slot = Slot {
            seq: fragment.seq,
            opcode: header.opcode,
            sec: header.sec,
            device: header.device,
            priority: header.priority,
            len: fragment.message_len,
            has_checksum: false,
            phase: Phase::Receiving(Incoming::new(fragment.message_len)),
            packets: Unacknowledged::default(),
        };
        self.slots.insert(header.slot, slot);
        Ok(())
    }

    /// Whether this request is being executed, and as what.
    pub(super) fn executing(&self, request: Request) -> Option<Opcode> {
        let slot = self.slots.get(&request.slot)?;
        let is_it = slot.seq == request.seq && matches!(slot.phase, Phase::Executing);
        is_it.then_some(slot.opcode)
    }

    /// Notes whether the data of a request, and those of its reply, have checksums.
    pub(super) fn set_checksum(&mut self, request: Request, has_checksum: bool) {
        if let Some(slot) = self.slots.get_mut(&request.slot).filter(|it| it.seq == request.seq) {
            slot.has_checksum = has_checksum;
        }
    }

    /// Whether they have.
    pub(super) fn has_checksum(&self, request: Request) -> bool {
        let slot = self.slots.get(&request.slot).filter(|slot| slot.seq == request.seq);
        slot.is_some_and(|slot| slot.has_checksum)
    }

    /// Sends the reply to a request that is being executed.
    pub(super) fn reply(
        &mut self,
        now: Time,
        transport: &mut Transport,
        request: Request,
        (head, data): (Bytes, Bytes),
    ) {
        let Some(opcode) = self.executing(request) else { return };
        let Some(slot) = self.slots.get_mut(&request.slot) else { return };
        slot.phase = Phase::Replied;
        if opcode == Opcode::Request {
            self.released += u64::from(slot.len);
        }
        let opcode = match opcode {
            Opcode::Request => Opcode::Reply,
            Opcode::LocalRequest => Opcode::LocalReply,
            other => other,
        };
        let mut message = Outgoing::new(opcode, request.seq, head, data);
        (message.sec, message.device) = (slot.sec, slot.device);
        message.priority = slot.priority;
        transport.acknowledged_by_message(&slot.packets);
        transport.send(request.slot, message);
        // A client that has used up half of its credit is told at once of the new one.
        let is_low = self.begun + self.credit / 2 > self.released + self.credit;
        let grant = self.grant();
        transport.set_grant(now, grant, is_low);
    }
}

/// The longest request with as many data.
const fn message_max(data_max: u32) -> u32 {
    data_max.saturating_add((REQUEST_LEN + CDB_MAX + CHECKSUM_LEN) as u32)
}

#[cfg(test)]
mod tests {
    use super::super::super::transport::tests::transport;
    use super::*;

    /// A request of one byte in slot 0.
    fn request(slots: &mut Slots, seq: u32) -> Result<Option<Request>, Option<Ended>> {
        let mut body = Fragment { seq, offset: 0, message_len: 1 }.emit().to_vec();
        body.push(0);
        let header = Header::new(Opcode::Request, Sec::Encrypt, false);
        let whole = slots.handle_fragment(Time::ZERO, &mut transport(true), &header, &body)?;
        Ok(whole.map(|whole| whole.request))
    }

    fn reply(slots: &mut Slots, seq: u32) {
        let (request, message) =
            (Request { slot: 0, seq }, (Bytes::from_static(&[0]), Bytes::new()));
        slots.reply(Time::ZERO, &mut transport(true), request, message);
    }

    /// Spec, 7.2: sequence numbers begin anew behind the last one.
    #[test]
    fn request_behind_the_last_sequence_number_is_executed_once() {
        let mut slots = Slots::new(1, 512, 1 << 20);
        slots.open();
        assert_eq!(request(&mut slots, 0), Ok(Some(Request { slot: 0, seq: 0 })));
        reply(&mut slots, 0);
        slots.slots.get_mut(&0).unwrap().seq = u32::MAX - 1;
        for seq in [u32::MAX, 0, 1] {
            assert_eq!(request(&mut slots, seq), Ok(Some(Request { slot: 0, seq })));
            for old in [seq, seq.wrapping_sub(1), seq.wrapping_sub(1 << 30)] {
                assert_eq!(request(&mut slots, old), Ok(None), "{old} at {seq}");
            }
            let early = request(&mut slots, seq.wrapping_add(1));
            assert!(matches!(early, Err(Some(Ended::Violation(_)))), "the last one has no reply");
            reply(&mut slots, seq);
        }
        let gap = request(&mut slots, 3);
        assert!(matches!(gap, Err(Some(Ended::Violation(_)))));
    }

    /// Whoever has the site key can prove some key.
    #[test]
    fn client_that_was_not_accepted_gets_no_memory() {
        let mut slots = Slots::new(1, 512, 1 << 20);
        let mut send = |opcode, slot, message_len| {
            let mut body = Fragment { seq: 0, offset: 0, message_len }.emit().to_vec();
            body.push(0);
            let header = Header { slot, ..Header::new(opcode, Sec::Encrypt, false) };
            slots.handle_fragment(Time::ZERO, &mut transport(true), &header, &body).is_ok()
        };
        assert!(send(Opcode::LocalRequest, 508, 4));
        assert!(!send(Opcode::LocalRequest, 509, MANAGE_MAX));
        assert!(!send(Opcode::Request, 0, 100));
    }
}
