//! The end of the log: the frame that is being gathered, those in flight, and who waits for them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;

use super::interface::{Action, Settings};
use crate::Span;
use crate::layer::journal::format::{
    Change, DESCRIPTORS_MAX, Descriptor, Extent, Frame, LogPoint, PAGE, Superblock, crc32c,
};
use crate::layer::journal::overlay::{Content, Overlay, Unsent};
use crate::layer::journal::ring::{Ring, offset};

/// A group in the log.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) number: u64,
    /// Its first frame, once that has a place.
    start: Option<LogPoint>,
    /// The last frame with a change of it.
    last_seq: u64,
    /// Bytes of the ring that it takes.
    taken: u64,
    is_closed: bool,
    /// A flush or the answer to a durable change came behind it, or may have: nothing later is sent before the store has it.
    is_flushed: bool,
}

/// A request that waits for a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) id: u64,
    /// It is a durable change, and no flush.
    pub(super) is_change: bool,
}

/// Changes without a place in the ring.
#[derive(Debug, Default)]
struct OpenFrame {
    /// With their numbers in the overlay, and the bytes of writes.
    changes: Vec<(u64, Descriptor, Bytes)>,
    payload_len: u64,
    /// Requests that wait for it to be stable.
    waiters: Vec<Waiter>,
}

#[derive(Debug)]
struct InFlight {
    point: LogPoint,
    /// Numbers of its changes in the overlay.
    changes: Range<u64>,
    payload_len: u64,
    /// What it states.
    durable_seq: u64,
    is_stable: bool,
}

/// Where frames are made. Frames get their places at once and in order; several are in flight.
#[derive(Debug)]
pub(super) struct Log {
    salt: [u8; 32],
    ring_len: u64,
    epoch: u64,
    frame_max: u64,
    ring: Ring,
    next_seq: u64,
    /// The checksum of the last frame.
    chain: [u8; 32],
    /// Those not durable at the store, in order.
    groups: VecDeque<Group>,
    last_group: u64,
    open: OpenFrame,
    /// By sequence number.
    in_flight: BTreeMap<u64, InFlight>,
    /// All up to this frame are stable.
    durable_seq: u64,
    /// A stable frame or superblock says so of this one.
    vouched_seq: u64,
    /// The last frame with a change.
    changed_seq: u64,
    /// Requests that wait for the frame of that number.
    acks: VecDeque<(u64, Waiter)>,
    /// Bytes of writes that are not stable.
    unstable: u64,
}

impl Log {
    /// The log that was found, with the groups of its changes: their numbers and first frames.
    pub(super) fn new(
        superblock: &Superblock,
        head: LogPoint,
        last_group: u64,
        groups: Vec<(u64, LogPoint)>,
        settings: &Settings,
    ) -> Self {
        let group = |(number, start)| Group {
            number,
            start: Some(start),
            last_seq: head.seq - 1,
            taken: 0,
            is_closed: true,
            // The log does not say what closed it.
            is_flushed: true,
        };
        let ring_len = superblock.ring_len;
        let least = Frame::length_for(u64::from(superblock.volume.block_size));
        Self {
            salt: superblock.salt,
            ring_len,
            epoch: superblock.epoch + 1,
            frame_max: settings.frame_max.max(least).min(ring_len / 4) / PAGE * PAGE,
            ring: Ring::new(ring_len, superblock.tail.position, head.position),
            next_seq: head.seq,
            chain: head.chain,
            groups: groups.into_iter().map(group).collect(),
            last_group,
            open: OpenFrame::default(),
            in_flight: BTreeMap::new(),
            durable_seq: head.seq - 1,
            vouched_seq: superblock.durable_seq,
            changed_seq: 0,
            acks: VecDeque::new(),
            unstable: 0,
        }
    }

    /// The most bytes of one write in a frame, of whole blocks.
    pub(super) const fn payload_max(&self, block_size: u32) -> u64 {
        let most = self.frame_max - PAGE;
        most - most % block_size as u64
    }

    pub(super) const fn last_group(&self) -> u64 {
        self.last_group
    }

    /// Where the next frame goes.
    pub(super) const fn head(&self) -> LogPoint {
        LogPoint { position: self.ring.head(), seq: self.next_seq, chain: self.chain }
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) const fn durable_seq(&self) -> u64 {
        self.durable_seq
    }

    pub(super) const fn unstable(&self) -> u64 {
        self.unstable
    }

    pub(super) const fn used(&self) -> u64 {
        self.ring.used()
    }

    /// Nothing waits for its place or its write.
    pub(super) fn is_quiet(&self) -> bool {
        self.open.changes.is_empty() && self.in_flight.is_empty()
    }

    /// Where the first group begins that the store lacks, or the first frame that is in flight, whose place must not
    /// be used twice at once, or the next frame.
    pub(super) fn tail(&self) -> LogPoint {
        let group = self.groups.front().and_then(|group| group.start);
        let in_flight = self.in_flight.values().next().map(|frame| frame.point);
        let earlier = group.into_iter().chain(in_flight).min_by_key(|point| point.position);
        earlier.unwrap_or_else(|| self.head())
    }

    /// The group behind the one that was begun last, if it is closed and stable, and whether a flush came between that the
    /// store was not given.
    pub(super) fn sendable(&self, begun: u64) -> Option<(u64, bool)> {
        let at = self.groups.partition_point(|group| group.number <= begun);
        let group = self.groups.get(at)?;
        let is_behind_flush = at > 0 && self.groups[at - 1].is_flushed;
        let is_placed = self.groups.len() > at + 1 || self.open.changes.is_empty();
        let is_ready = group.is_closed && is_placed && group.last_seq <= self.durable_seq;
        is_ready.then_some((group.number, is_behind_flush))
    }

    pub(super) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// The store has all groups up to this one.
    pub(super) fn sent(&mut self, last: u64) {
        let sent = self.groups.partition_point(|group| group.number <= last);
        self.groups.drain(..sent);
    }

    /// A superblock with this tail is stable.
    pub(super) fn freed(&mut self, superblock: &Superblock) {
        self.ring.free(superblock.tail.position);
        self.vouched_seq = self.vouched_seq.max(superblock.durable_seq);
    }

    /// What comes next is of another group.
    pub(super) fn close_group(&mut self) {
        if let Some(group) = self.groups.back_mut() {
            group.is_closed = true;
        }
    }

    /// The same for a flush, or the answer to a durable change: what comes next is sent only when the store has all before.
    pub(super) fn close_group_for_flush(&mut self) {
        self.close_group();
        if let Some(group) = self.groups.back_mut() {
            group.is_flushed = true;
        }
    }

    /// The group that is not closed takes at least so much of the ring.
    pub(super) fn is_group_large(&self, group_max: u64) -> bool {
        self.groups.back().is_some_and(|group| !group.is_closed && group.taken >= group_max)
    }

    /// Makes room for a change with so many bytes in the frame that is gathered. Says whether there is any.
    pub(super) fn make_room(
        &mut self,
        len: u64,
        superblock: u64,
        overlay: &mut Overlay,
        actions: &mut VecDeque<Action>,
    ) -> bool {
        let is_other_group = self.groups.back().is_none_or(|group| group.is_closed);
        let length = Frame::length_for(self.open.payload_len + len);
        let is_full = self.open.changes.len() == DESCRIPTORS_MAX || length > self.frame_max;
        if !(is_other_group || is_full) && self.ring.has_room(length) {
            return true;
        }
        self.place(superblock, overlay, actions);
        self.ring.has_room(Frame::length_for(len))
    }

    /// Adds a change to the frame that is gathered; there is room for it.
    pub(super) fn add(&mut self, span: Span, content: Content, overlay: &mut Overlay) {
        if self.groups.back().is_none_or(|group| group.is_closed) {
            self.last_group += 1;
            let number = self.last_group;
            let group = Group {
                number,
                start: None,
                last_seq: 0,
                taken: 0,
                is_closed: false,
                is_flushed: false,
            };
            self.groups.push_back(group);
        }
        let (change, bytes) = match &content {
            Content::Write { bytes, .. } => {
                let bytes = bytes.clone().unwrap_or_default();
                (Change::Write { crc: crc32c(&bytes) }, bytes)
            }
            Content::Zero(space) => (Change::Zero(*space), Bytes::new()),
            Content::Discard => (Change::Discard, Bytes::new()),
        };
        self.open.payload_len += bytes.len() as u64;
        self.unstable += bytes.len() as u64;
        let number = overlay.push(Unsent { group: self.last_group, span, content });
        self.open.changes.push((number, Descriptor { span, change }, bytes));
    }

    /// A request waits for all that was added. Says whether it need not.
    pub(super) fn wait(&mut self, waiter: Waiter) -> bool {
        let last = self.next_seq - 1;
        if !self.open.changes.is_empty() {
            self.open.waiters.push(waiter);
        } else if last > self.durable_seq {
            self.acks.push_back((last, waiter));
        } else {
            return true;
        }
        false
    }

    /// Somebody waits for the frame that is gathered, and it may be written now.
    pub(super) fn is_urgent(&self, appends_max: usize) -> bool {
        !self.open.waiters.is_empty() && self.in_flight.len() < appends_max
    }

    /// Those who wait for frames, who are told something else.
    pub(super) fn take_waiters(&mut self) -> Vec<u64> {
        let acks = self.acks.drain(..).map(|(_, waiter)| waiter);
        acks.chain(self.open.waiters.drain(..)).map(|waiter| waiter.id).collect()
    }

    /// Gives the frame that is gathered its place, and has it written.
    pub(super) fn place(
        &mut self,
        superblock: u64,
        overlay: &mut Overlay,
        actions: &mut VecDeque<Action>,
    ) {
        if self.open.changes.is_empty() {
            return;
        }
        let OpenFrame { changes, payload_len, waiters } = core::mem::take(&mut self.open);
        let length = Frame::length_for(payload_len);
        let skip = self.ring.skip(length);
        if skip > 0 {
            actions.push_back(self.append(&[], skip, superblock));
        }
        let mut place = offset(self.ring_len, self.ring.head()) + PAGE;
        for (number, descriptor, bytes) in &changes {
            if let Change::Write { crc } = descriptor.change {
                let len = bytes.len() as u64;
                overlay.place(*number, Extent { offset: place, len, crc });
                place += len;
            }
        }
        let seq = self.next_seq;
        self.changed_seq = seq;
        self.acks.extend(waiters.into_iter().map(|waiter| (seq, waiter)));
        let point = LogPoint { position: self.ring.head(), seq, chain: self.chain };
        if let Some(group) = self.groups.back_mut() {
            group.start.get_or_insert(point);
            group.last_seq = seq;
            group.taken += length;
        }
        actions.push_back(self.append(&changes, length, superblock));
    }

    /// Whether the last changes are stable and no frame or superblock says so.
    pub(super) fn wants_mark(&self) -> bool {
        self.is_quiet() && self.vouched_seq < self.changed_seq && self.ring.has_room(PAGE)
    }

    /// A frame that says what is stable, and nothing else.
    pub(super) fn mark(&mut self, superblock: u64) -> Action {
        self.append(&[], PAGE, superblock)
    }

    /// A frame of `length` at the head of the ring.
    fn append(
        &mut self,
        changes: &[(u64, Descriptor, Bytes)],
        length: u64,
        superblock: u64,
    ) -> Action {
        let (seq, durable_seq) = (self.next_seq, self.durable_seq);
        let position = self.ring.take(length);
        let frame = Frame {
            point: LogPoint { position, seq, chain: self.chain },
            epoch: self.epoch,
            group: self.last_group,
            length,
            durable_seq,
            superblock,
            changes: changes.iter().map(|(_, descriptor, _)| *descriptor).collect(),
        };
        let (mut bytes, chain) = frame.encode(&self.salt);
        let payload_len = frame.payload_len();
        bytes.reserve_exact(payload_len.next_multiple_of(PAGE) as usize);
        changes.iter().for_each(|(.., payload)| bytes.extend_from_slice(payload));
        bytes.resize(Frame::length_for(payload_len) as usize, 0);
        self.chain = chain;
        self.next_seq += 1;
        let first = changes.first().map_or(0, |(number, ..)| *number);
        let changes = first..first + changes.len() as u64;
        let point = frame.point;
        let in_flight = InFlight { point, changes, payload_len, durable_seq, is_stable: false };
        self.in_flight.insert(seq, in_flight);
        Action::Append { seq, offset: offset(self.ring_len, position), bytes }
    }

    /// A frame is stable. Answers those that waited for it and all before.
    pub(super) fn appended(
        &mut self,
        seq: u64,
        overlay: &mut Overlay,
        held_max: u64,
    ) -> Vec<Waiter> {
        if let Some(frame) = self.in_flight.get_mut(&seq) {
            frame.is_stable = true;
        }
        while let Some(first) = self.in_flight.first_entry().filter(|frame| frame.get().is_stable) {
            let (seq, frame) = first.remove_entry();
            self.durable_seq = seq;
            self.vouched_seq = self.vouched_seq.max(frame.durable_seq);
            self.unstable -= frame.payload_len;
            frame.changes.for_each(|number| overlay.stable(number, held_max));
        }
        let count = self.acks.partition_point(|(seq, _)| *seq <= self.durable_seq);
        self.acks.drain(..count).map(|(_, waiter)| waiter).collect()
    }
}
