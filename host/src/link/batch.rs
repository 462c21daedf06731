//! Packets that wait to be sent, one behind the other in one buffer: as UDP segmentation offload wants them.

use std::ops::Range;

use super::{Address, Ecn};

/// Every interface with IPv6 carries packets of 1280 bytes (RFC 8200, 5), less the headers of IPv6 and UDP.
const FITS_ANYWHERE: usize = 1232;

/// Packets to be sent, in their order.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    packets: Vec<Packet>,
    /// How many of them have left.
    sent: usize,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Where it goes.
    pub to: Address,
    /// What its IP header says about ECN, if it has one.
    pub ecn: Ecn,
    start: usize,
    end: usize,
}

impl Packet {
    /// How long it is.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether it holds nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) const fn range(&self) -> Range<usize> {
        self.start..self.end
    }
}

impl Batch {
    /// Adds the packet that `write` appends to the buffer; none if it appends nothing.
    pub fn push(&mut self, to: Address, ecn: Ecn, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.close(to, ecn, start);
    }

    /// The buffer, for packets that somebody appends who learns only then where they go; [`close`](Self::close) makes a
    /// packet of what was appended.
    pub const fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What the buffer holds from `start` on is a packet.
    pub fn close(&mut self, to: Address, ecn: Ecn, start: usize) {
        let end = self.bytes.len();
        if start < end {
            self.packets.push(Packet { to, ecn, start, end });
        }
    }

    /// Whether all have left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.sent == self.packets.len()
    }

    /// How many have not left.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.packets.len() - self.sent
    }

    /// Drops them all.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
        self.sent = 0;
    }

    /// Those that have not left.
    pub(super) fn waiting(&self) -> &[Packet] {
        &self.packets[self.sent..]
    }

    /// The bytes of all of them; [`Packet::range`] tells which are whose.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// So many have left.
    pub(super) fn advance(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.packets.len());
        if self.is_empty() {
            self.clear();
        }
    }

    /// How many of those that wait can leave as the segments of one piece: they go to one address with one
    /// codepoint, and are equally long, but for the last, which may be shorter. A piece whose segments are too long for the interface is refused as a whole; so a
    /// single long packet, which may be a probe of that, takes no shorter one with it.
    pub(super) fn segments(&self, most: usize, bytes_most: usize) -> usize {
        let mut waiting = self.waiting().iter();
        let Some(first) = waiting.next() else { return 0 };
        let (mut count, mut bytes, mut is_open) = (1, first.len(), true);
        for packet in waiting {
            bytes += packet.len();
            let goes_with = (packet.to, packet.ecn) == (first.to, first.ecn);
            let fits = goes_with && packet.len() <= first.len() && bytes <= bytes_most;
            let is_equal = packet.len() == first.len();
            let is_behind_probe = count == 1 && !is_equal && first.len() > FITS_ANYWHERE;
            if !is_open || !fits || is_behind_probe || count >= most {
                break;
            }
            is_open = is_equal;
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn batch(packets: &[(u16, usize)]) -> Batch {
        let mut batch = Batch::default();
        for (port, len) in packets {
            let to = SocketAddr::from(([127, 0, 0, 1], *port));
            batch.push(to.into(), Ecn::NotEct, |buffer| buffer.resize(buffer.len() + len, 7));
        }
        batch
    }

    #[test]
    fn segments_are_equally_long_and_go_to_one_address() {
        let rows: [(&[(u16, usize)], usize); 9] = [
            (&[], 0),
            (&[(1, 100)], 1),
            (&[(1, 100), (1, 100), (1, 40), (1, 100)], 3),
            (&[(1, 100), (2, 100)], 1),
            (&[(1, 100), (1, 101)], 1),
            (&[(1, 100), (1, 100), (1, 100), (1, 100), (1, 100)], 4),
            (&[(1, 2500), (1, 2500), (1, 2500)], 2),
            (&[(1, 5000), (1, 100)], 1),
            (&[(1, 1400), (1, 1400), (1, 100)], 3),
        ];
        for (packets, expected) in rows {
            assert_eq!(batch(packets).segments(4, 6000), expected, "{packets:?}");
        }
    }

    #[test]
    fn segments_have_one_codepoint() {
        let mut batch = Batch::default();
        let to = SocketAddr::from(([127, 0, 0, 1], 1));
        for ecn in [Ecn::Ect0, Ecn::Ect0, Ecn::NotEct, Ecn::Ect0] {
            batch.push(to.into(), ecn, |buffer| buffer.resize(buffer.len() + 100, 7));
        }
        assert_eq!(batch.segments(4, 6000), 2);
    }

    #[test]
    fn batch_is_empty_again_once_all_have_left() {
        let mut batch = batch(&[(1, 100), (1, 0), (2, 50)]);
        assert_eq!(batch.len(), 2, "an empty packet is none");
        batch.advance(1);
        assert_eq!(batch.waiting()[0].range(), 100..150);
        batch.advance(1);
        assert!(batch.is_empty() && batch.bytes().is_empty());
    }
}
