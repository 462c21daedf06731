//! A message that is being sent (spec, 7.1).

use core::ops::Range;

use bytes::Bytes;

use super::codec::{Opcode, Sec};
use super::command::Handle;
use super::range_set::RangeSet;

/// A message, and which of its bytes are still to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) opcode: Opcode,
    pub(super) sec: Sec,
    pub(super) device: Handle,
    pub(super) priority: u8,
    pub(super) seq: u32,
    head: Bytes,
    data: Bytes,
    /// Bytes before it were sent at least once.
    next: u32,
    /// Of these the ones to be sent again.
    again: RangeSet,
    acked: RangeSet,
    /// The packets that carried it, but for old ones: path and number of each.
    packets: Vec<(u8, u64)>,
}

/// The next part to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) range: Range<u32>,
    pub(super) again: bool,
    pub(super) last: bool,
}

impl Outgoing {
    /// A message of these two pieces, to the connection itself.
    pub(super) fn new(opcode: Opcode, seq: u32, head: Bytes, data: Bytes) -> Self {
        Self {
            opcode,
            sec: Sec::Encrypt,
            device: Handle::CONNECTION,
            priority: 0,
            seq,
            head,
            data,
            next: 0,
            again: RangeSet::default(),
            acked: RangeSet::default(),
            packets: Vec::new(),
        }
    }

    /// A packet of a path carries a part of it.
    pub(super) fn carried_by(&mut self, path: u8, number: u64) {
        // Some times as many as it has fragments: the oldest are not in flight any more.
        let most = 64 + self.len() as usize / 256;
        if self.packets.len() >= most {
            self.packets.drain(..most / 2);
        }
        self.packets.push((path, number));
    }

    /// The packets of a path that carried it.
    pub(super) fn packets_of(&self, path: u8) -> impl Iterator<Item = u64> {
        self.packets.iter().filter(move |(number, _)| *number == path).map(|(_, packet)| *packet)
    }

    /// Its length.
    pub(super) fn len(&self) -> u32 {
        (self.head.len() + self.data.len()) as u32
    }

    /// How many of its bytes are to be sent.
    pub(super) fn waiting(&self) -> u64 {
        self.again.bytes() + u64::from(self.len() - self.next)
    }

    /// Whether something is to be sent.
    pub(super) fn is_ready(&self) -> bool {
        !self.again.is_empty() || self.next < self.len()
    }

    /// Whether the peer has said that it has all of it.
    pub(super) fn is_acked(&self) -> bool {
        self.acked.is_whole(self.len())
    }

    /// Takes the next part of at most `most` bytes.
    pub(super) fn take(&mut self, most: u32) -> Option<Part> {
        let len = self.len();
        if let Some(range) = self.again.take_front(most) {
            let last = range.end == len;
            return Some(Part { range, again: true, last });
        }
        let range = self.next..len.min(self.next.saturating_add(most));
        self.next = range.end;
        let last = range.end == len;
        (!range.is_empty()).then_some(Part { range, again: false, last })
    }

    /// These bytes of it, in two pieces.
    pub(super) fn slices(&self, range: &Range<u32>) -> [&[u8]; 2] {
        let (start, end) = (range.start as usize, range.end as usize);
        let head = self.head.len();
        [
            &self.head[start.min(head)..end.min(head)],
            &self.data[start.max(head) - head..end.max(head) - head],
        ]
    }

    /// The peer has these bytes.
    pub(super) fn on_acked(&mut self, range: Range<u32>) {
        self.acked.insert(range);
    }

    /// These bytes are sent again, whether the peer has them or not.
    pub(super) fn send_whole(&mut self, range: Range<u32>) {
        self.again.insert(range);
    }

    /// A packet with these bytes was lost.
    pub(super) fn on_lost(&mut self, range: Range<u32>) {
        for missing in self.acked.missing_in(range) {
            self.again.insert(missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_bytes_are_sent_again_unless_they_were_acknowledged() {
        let (head, data) = (Bytes::from_static(b"head"), Bytes::from_static(b"0123456789"));
        let mut message = Outgoing::new(Opcode::Request, 0, head, data);
        let parts: Vec<_> = core::iter::from_fn(|| message.take(6)).collect();
        let ranges: Vec<_> = parts.iter().map(|part| part.range.clone()).collect();
        assert_eq!(ranges, [0..6, 6..12, 12..14]);
        assert_eq!(message.waiting(), 0);
        assert!(parts[2].last && !message.is_ready());
        message.on_acked(0..6);
        message.on_lost(3..12);
        assert_eq!(message.waiting(), 6);
        assert_eq!(message.take(100), Some(Part { range: 6..12, again: true, last: false }));
        assert_eq!(message.slices(&(2..7)).concat(), b"ad012");
        message.on_acked(6..14);
        assert!(message.is_acked());
    }

    #[test]
    fn packets_of_a_message_that_is_sent_over_and_over_are_bounded() {
        let mut message =
            Outgoing::new(Opcode::Reply, 0, Bytes::new(), Bytes::from_static(&[0; 100]));
        (0..10_000).for_each(|number| message.carried_by(0, number));
        let kept: Vec<_> = message.packets_of(0).collect();
        assert!(kept.len() <= 64 && kept.last() == Some(&9999), "{}", kept.len());
    }
}
