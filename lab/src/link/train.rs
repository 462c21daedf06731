//! A packet as the kernel hands it over: one IP packet, or a train of TCP segments that were never cut.
//!
//! The kernel gives TCP data in pieces of up to 64 KiB and leaves the cutting to the network card. The
//! emulated link is that card: it counts, delays and loses the packets of 1500 bytes that would be on
//! the wire, and gives what arrived together back in one piece, as a card with receive offload does.

use std::io::IoSlice;
use std::ops::Range;

use host::tun::{HEADER_LEN, Tun};

/// `virtio_net_hdr.gso_type` of a single packet and of a train of TCP segments over IPv4.
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
/// Where `virtio_net_hdr` holds them.
const GSO_TYPE: usize = 1;
const GSO_SIZE: Range<usize> = 4..6;
/// IPv4 (RFC 791, 3.1), from the start of the packet.
const IP_TOTAL_LENGTH: Range<usize> = 2..4;
const IP_ID: Range<usize> = 4..6;
const IP_PROTOCOL: usize = 9;
const IP_CHECKSUM: Range<usize> = 10..12;
const IP_ADDRESSES: Range<usize> = 12..20;
const IP_MIN: usize = 20;
const PROTOCOL_TCP: u8 = 6;
/// TCP (RFC 9293, 3.1), from the start of its header.
const TCP_SEQUENCE: Range<usize> = 4..8;
const TCP_OFFSET: usize = 12;
const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: Range<usize> = 16..18;
const TCP_MIN: usize = 20;
const SYN: u8 = 0x02;
/// Only the first segment of a train says that the window was reduced,
const CWR: u8 = 0x80;
/// and only the last that data should be pushed, or that there is no more.
const FIN_PSH: u8 = 0x01 | 0x08;

/// A part of one direction of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// The port it comes from and the one it goes to.
    pub(super) ports: [u16; 2],
    /// The number of its first byte.
    pub(super) sequence: u32,
    /// It begins the connection.
    pub(super) syn: bool,
    pub(super) payload: &'a [u8],
}

/// One packet from a TUN device, with its `virtio_net_hdr`.
#[derive(Debug)]
pub(crate) struct Train {
    bytes: Box<[u8]>,
    cut: Option<Cut>,
}

/// How a train comes apart.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The length of the IP header.
    ip: usize,
    /// The length of both headers.
    headers: usize,
    /// How much payload a segment carries.
    segment: usize,
}

impl Train {
    /// What a TUN device has read. What is no train that can be cut is a single packet.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let cut = cut(bytes).filter(|cut| bytes.len() > HEADER_LEN + cut.headers);
        Self { bytes: bytes.into(), cut }
    }

    /// How many packets it is on the wire.
    pub(crate) fn segments(&self) -> usize {
        self.cut.map_or(1, |cut| self.payload(cut).div_ceil(cut.segment))
    }

    /// How long a packet of it is on the wire, from its IP header on.
    pub(crate) fn wire_len(&self, index: usize) -> usize {
        let Some(cut) = self.cut else { return self.bytes.len().saturating_sub(HEADER_LEN) };
        let before = index * cut.segment;
        cut.headers + self.payload(cut).saturating_sub(before).min(cut.segment)
    }

    /// What packets of a part of it carry, if they are TCP over IPv4.
    pub(super) fn stream(&self, part: Range<usize>) -> Option<Piece<'_>> {
        let packet = self.bytes.get(HEADER_LEN..)?;
        let ip = usize::from(packet.first()? & 0xf) * 4;
        if packet[0] >> 4 != 4 || *packet.get(IP_PROTOCOL)? != PROTOCOL_TCP {
            return None;
        }
        let total = usize::from(be16(packet.get(IP_TOTAL_LENGTH)?));
        let tcp = packet.get(ip..total.min(packet.len()))?;
        let payload = tcp.get(usize::from(tcp.get(TCP_OFFSET)? >> 4) * 4..)?;
        let cut = |index: usize| self.cut.map_or(index * payload.len(), |cut| index * cut.segment);
        let (begin, end) = (cut(part.start), cut(part.end).min(payload.len()));
        Some(Piece {
            ports: [be16(&tcp[..2]), be16(&tcp[2..4])],
            sequence: be32(&tcp[TCP_SEQUENCE]).wrapping_add(begin as u32),
            syn: tcp[TCP_FLAGS] & SYN != 0,
            payload: payload.get(begin..end)?,
        })
    }

    /// Gives the packets of a part of it to a device, in one piece.
    pub(crate) fn send(&self, part: Range<usize>, to: &Tun) -> std::io::Result<()> {
        match self.cut {
            Some(cut) if part != (0..self.segments()) => {
                let (head, payload) = self.piece(cut, part);
                to.send(&[IoSlice::new(&head), IoSlice::new(payload)])
            }
            _ => to.send(&[IoSlice::new(&self.bytes)]),
        }
    }

    fn payload(&self, cut: Cut) -> usize {
        self.bytes.len() - HEADER_LEN - cut.headers
    }

    /// New headers for some of the segments, and their payload.
    fn piece(&self, cut: Cut, part: Range<usize>) -> (Vec<u8>, &[u8]) {
        let (head, payload) = self.bytes.split_at(HEADER_LEN + cut.headers);
        let (begin, end) = (part.start * cut.segment, (part.end * cut.segment).min(payload.len()));
        let payload = &payload[begin..end];
        let mut head = head.to_vec();
        if payload.len() <= cut.segment {
            head[GSO_TYPE] = GSO_NONE;
            head[GSO_SIZE].fill(0);
        }
        let (ip, tcp) = head[HEADER_LEN..].split_at_mut(cut.ip);
        if part.start > 0 {
            tcp[TCP_FLAGS] &= !CWR;
        }
        if part.end < self.segments() {
            tcp[TCP_FLAGS] &= !FIN_PSH;
        }
        let sequence = be32(&tcp[TCP_SEQUENCE]).wrapping_add(begin as u32);
        tcp[TCP_SEQUENCE].copy_from_slice(&sequence.to_be_bytes());
        let tcp_len = (tcp.len() + payload.len()) as u16;
        // The device was told that checksums are filled in later: what stands here is the sum of the
        // pseudo-header (RFC 9293, 3.1), which holds the length.
        let pseudo = sum(&ip[IP_ADDRESSES]) + u32::from(PROTOCOL_TCP) + u32::from(tcp_len);
        tcp[TCP_CHECKSUM].copy_from_slice(&fold(pseudo).to_be_bytes());

        let total = cut.ip as u16 + tcp_len;
        ip[IP_TOTAL_LENGTH].copy_from_slice(&total.to_be_bytes());
        let id = be16(&ip[IP_ID]).wrapping_add(part.start as u16);
        ip[IP_ID].copy_from_slice(&id.to_be_bytes());
        ip[IP_CHECKSUM].fill(0);
        let checksum = !fold(sum(ip));
        ip[IP_CHECKSUM].copy_from_slice(&checksum.to_be_bytes());
        (head, payload)
    }
}

/// How a packet with its `virtio_net_hdr` comes apart, if it is a train.
fn cut(bytes: &[u8]) -> Option<Cut> {
    let packet = bytes.get(HEADER_LEN..)?;
    if bytes[GSO_TYPE] != GSO_TCPV4 {
        return None;
    }
    let ip = usize::from(packet.first()? & 0xf) * 4;
    let tcp = usize::from(packet.get(ip + TCP_OFFSET)? >> 4) * 4;
    let segment = usize::from(u16::from_ne_bytes(bytes[GSO_SIZE].try_into().ok()?));
    (ip >= IP_MIN && tcp >= TCP_MIN && segment > 0).then_some(Cut {
        ip,
        headers: ip + tcp,
        segment,
    })
}

/// The sum of 16-bit words that Internet checksums are made of (RFC 1071).
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|word| u32::from(be16(word))).sum()
}

const fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn be16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |value, byte| value << 8 | u16::from(*byte))
}

pub(super) fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: usize = 1448;
    /// IPv4 and TCP with time stamps.
    const HEADERS: usize = 52;

    /// A train of TCP segments with FIN, PSH and CWR set.
    fn train(payload: usize) -> Train {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[GSO_TYPE] = GSO_TCPV4;
        bytes[GSO_SIZE].copy_from_slice(&(SEGMENT as u16).to_ne_bytes());
        let mut ip = [0; 20];
        ip[0] = 0x45;
        ip[9] = PROTOCOL_TCP;
        ip[IP_ADDRESSES].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let mut tcp = [0; 32];
        tcp[TCP_SEQUENCE].copy_from_slice(&0xffff_fff0_u32.to_be_bytes());
        tcp[TCP_OFFSET] = 8 << 4;
        tcp[TCP_FLAGS] = CWR | FIN_PSH | 0x10;
        bytes.extend(ip);
        bytes.extend(tcp);
        bytes.extend((0..payload).map(|i| (i / SEGMENT) as u8));
        Train::new(&bytes)
    }

    #[test]
    fn a_train_counts_as_the_packets_on_the_wire() {
        let train = train(3 * SEGMENT + 100);
        assert_eq!(train.segments(), 4);
        let lens: Vec<_> = (0..4).map(|index| train.wire_len(index)).collect();
        assert_eq!(lens, [1500, 1500, 1500, HEADERS + 100]);
    }

    #[test]
    fn a_piece_is_what_a_network_card_would_have_cut() {
        let train = train(3 * SEGMENT + 100);
        let cut = train.cut.expect("it is a train");
        let (head, payload) = train.piece(cut, 1..3);
        assert_eq!(payload.len(), 2 * SEGMENT);
        assert!(payload[..SEGMENT].iter().all(|byte| *byte == 1));
        assert_eq!(head[GSO_TYPE], GSO_TCPV4);
        let (ip, tcp) = head[HEADER_LEN..].split_at(20);
        assert_eq!(usize::from(be16(&ip[IP_TOTAL_LENGTH])), HEADERS + 2 * SEGMENT);
        assert_eq!(fold(sum(ip)), 0xffff, "the IP checksum does not hold");
        assert_eq!(be16(&ip[IP_ID]), 1);
        assert_eq!(be32(&tcp[TCP_SEQUENCE]), 0xffff_fff0_u32.wrapping_add(SEGMENT as u32));
        assert_eq!(tcp[TCP_FLAGS], 0x10);
    }

    #[test]
    fn a_stream_is_found_in_trains_and_in_single_packets() {
        let mut train = train(3 * SEGMENT + 100);
        let len = (train.bytes.len() - HEADER_LEN) as u16;
        train.bytes[HEADER_LEN + 2..HEADER_LEN + 4].copy_from_slice(&len.to_be_bytes());
        let whole = train.stream(0..4).expect("TCP");
        assert_eq!((whole.sequence, whole.payload.len()), (0xffff_fff0, 3 * SEGMENT + 100));
        let end = train.stream(3..4).expect("TCP");
        assert_eq!(end.sequence, 0xffff_fff0_u32.wrapping_add(3 * SEGMENT as u32));
        assert_eq!((end.payload, end.syn), (&[3; 100][..], false));
        let mut single = train.bytes.to_vec();
        single[GSO_TYPE] = GSO_NONE;
        let single = Train::new(&single);
        assert_eq!(single.stream(0..1), Some(whole));
    }

    #[test]
    fn flags_stay_with_the_ends_and_a_lone_segment_is_no_train() {
        let train = train(3 * SEGMENT + 100);
        let cut = train.cut.expect("it is a train");
        let (first, _) = train.piece(cut, 0..1);
        assert_eq!(first[HEADER_LEN + 20 + TCP_FLAGS], CWR | 0x10);
        assert_eq!((first[GSO_TYPE], &first[GSO_SIZE]), (GSO_NONE, &[0, 0][..]));
        let (last, payload) = train.piece(cut, 3..4);
        assert_eq!(last[HEADER_LEN + 20 + TCP_FLAGS], FIN_PSH | 0x10);
        assert_eq!(payload.len(), 100);
    }

    #[test]
    fn packet_that_is_no_train_stays_whole() {
        for bytes in [&[][..], &[0; HEADER_LEN], &[1; HEADER_LEN + 5], &[0; HEADER_LEN + 84]] {
            let single = Train::new(bytes);
            assert_eq!(single.segments(), 1);
            assert_eq!(single.wire_len(0), bytes.len().saturating_sub(HEADER_LEN));
            assert_eq!(single.stream(0..1), None);
        }
    }
}
