//! The store: blocks with a volatile cache. A block is the stamp of the change that it is of.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use volume::Span;
use volume::layer::journal::Checkpoint;

pub(crate) const BLOCK: u64 = 512;

/// The id of the journal.
pub(crate) const JOURNAL: [u8; 16] = [2; 16];

/// Of a block of zeroes.
pub(crate) const ZERO: u64 = 0;

/// The block of a stamp.
pub(crate) fn block(stamp: u64) -> Bytes {
    stamp.to_le_bytes().repeat(BLOCK as usize / 8).into()
}

/// The stamps of blocks, each of which must be of one.
pub(crate) fn stamps(bytes: &[u8]) -> Vec<u64> {
    let stamp = |bytes: &[u8]| {
        let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes, &block(stamp)[..], "a block of two changes");
        stamp
    };
    bytes.chunks(BLOCK as usize).map(stamp).collect()
}

/// The blocks of a span.
pub(crate) fn blocks(span: Span) -> std::ops::Range<usize> {
    assert!(span.at.is_multiple_of(BLOCK) && span.len.is_multiple_of(BLOCK));
    (span.at / BLOCK) as usize..(span.end() / BLOCK) as usize
}

/// The stamp of a checkpoint.
pub(crate) fn stamp_of(checkpoint: &Checkpoint) -> u64 {
    assert_eq!(checkpoint.journal, JOURNAL);
    assert!(checkpoint.epoch < 1 << 16 && checkpoint.group < 1 << 24 && checkpoint.frame < 1 << 24);
    checkpoint.epoch << 48 | checkpoint.frame << 24 | checkpoint.group
}

/// What it holds. The last block has the checkpoint, and belongs to no user.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    durable: Vec<u64>,
    /// Versions since the last flush, with when they came.
    cached: Vec<Vec<(u64, u64)>>,
    /// How many versions came.
    now: u64,
    /// Flushes under way: by their ids, when they began.
    flushes: Vec<(u64, u64)>,
    /// Versions that are under way: of the request of that id.
    under_way: Vec<(u64, usize, u64)>,
    /// Groups that are under way, in order: a later one begins when all before are durable.
    groups: VecDeque<(u64, Group)>,
}

/// The changes of a group.
pub(crate) type Group = Vec<(Span, Vec<u64>)>;

impl Store {
    pub(crate) fn new(blocks: usize) -> Self {
        let (durable, cached) = (vec![ZERO; blocks + 1], vec![Vec::new(); blocks + 1]);
        let (flushes, under_way, groups) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { durable, cached, now: 0, flushes, under_way, groups }
    }

    /// A change is sent.
    pub(crate) fn begin(&mut self, id: u64, span: Span, stamps: &[u64]) {
        let changes = blocks(span).zip(stamps);
        self.under_way.extend(changes.map(|(block, stamp)| (id, block, *stamp)));
    }

    /// It was carried out.
    pub(crate) fn end(&mut self, id: u64) {
        let ended: Vec<_> = self.under_way.extract_if(.., |change| change.0 == id).collect();
        for (_, block, stamp) in ended {
            self.now += 1;
            self.cached[block].push((self.now, stamp));
        }
    }

    /// It was carried out, and is durable.
    pub(crate) fn end_durably(&mut self, id: u64) {
        let ended: Vec<_> = self.under_way.extract_if(.., |change| change.0 == id).collect();
        for (_, block, stamp) in ended {
            self.durable[block] = stamp;
            self.cached[block].clear();
        }
    }

    /// It was refused, and not carried out; nor is any group behind it.
    pub(crate) fn refuse(&mut self, id: u64) {
        self.under_way.retain(|change| change.0 != id);
        if let Some(at) = self.groups.iter().position(|group| group.0 == id) {
            self.groups.truncate(at);
        }
    }

    /// A group is sent; says how many are under way.
    pub(crate) fn begin_group(&mut self, id: u64, group: Group) -> usize {
        self.groups.push_back((id, group));
        self.groups.len()
    }

    /// It was carried out, and so were those before.
    pub(crate) fn end_group(&mut self, id: u64) {
        let count = self.groups.iter().position(|group| group.0 == id).map_or(0, |at| at + 1);
        for _ in 0..count {
            self.run_group(|| true);
        }
    }

    /// The first group runs: of its changes those that `pick` says. It is durable if all are carried out; whether it is.
    fn run_group(&mut self, mut pick: impl FnMut() -> bool) -> bool {
        let (_, group) = self.groups.pop_front().expect("there is one");
        let mut is_whole = true;
        for (span, stamps) in group {
            if !pick() {
                is_whole = false;
                continue;
            }
            for (block, stamp) in blocks(span).zip(stamps) {
                self.now += 1;
                self.cached[block].push((self.now, stamp));
            }
        }
        if is_whole {
            self.flush();
        }
        is_whole
    }

    /// A flush is sent: it covers what was carried out before, and need not cover anything later.
    pub(crate) fn begin_flush(&mut self, id: u64) {
        self.flushes.push((id, self.now));
    }

    pub(crate) fn end_flush(&mut self, id: u64) {
        let at = self.flushes.iter().position(|flush| flush.0 == id).expect("it is under way");
        let (_, began) = self.flushes.remove(at);
        for (durable, cached) in self.durable.iter_mut().zip(&mut self.cached) {
            let covered = cached.partition_point(|(when, _)| *when <= began);
            *durable = cached.drain(..covered).next_back().map_or(*durable, |(_, stamp)| stamp);
        }
    }

    /// Everything that was carried out is durable.
    pub(crate) fn flush(&mut self) {
        self.begin_flush(u64::MAX);
        self.end_flush(u64::MAX);
    }

    pub(crate) fn contents(&self) -> Vec<u64> {
        (0..self.blocks()).map(|block| self.newest(block)).collect()
    }

    fn newest(&self, block: usize) -> u64 {
        self.cached[block].last().map_or(self.durable[block], |(_, stamp)| *stamp)
    }

    /// How many blocks a user has.
    fn blocks(&self) -> usize {
        self.durable.len() - 1
    }

    /// Where the checkpoint is.
    pub(crate) fn checkpoint_place(&self) -> Span {
        Span::new(self.blocks() as u64 * BLOCK, BLOCK)
    }

    /// The one that is found there.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        let stamp = self.newest(self.blocks());
        let (frame, group) = (stamp >> 24 & 0xff_ffff, stamp & 0xff_ffff);
        Checkpoint { journal: JOURNAL, frame, group, epoch: stamp >> 48 }
    }

    /// Puts one there, durably.
    pub(crate) fn put_checkpoint(&mut self, checkpoint: &Checkpoint) {
        let block = self.blocks();
        self.durable[block] = stamp_of(checkpoint);
        self.cached[block].clear();
    }

    /// Per block, what may be found after a power cut now, or when the first groups under way have run: no group, one, and
    /// so on.
    pub(crate) fn possible(&self) -> Vec<Vec<BTreeSet<u64>>> {
        let (mut store, mut images) = (self.clone(), Vec::new());
        loop {
            let mut image = store.image();
            let Some((_, group)) = store.groups.front() else {
                image.pop();
                images.push(image);
                return images;
            };
            for (span, stamps) in group {
                for (versions, stamp) in image[blocks(*span)].iter_mut().zip(stamps) {
                    versions.insert(*stamp);
                }
            }
            image.pop();
            images.push(image);
            store.run_group(|| true);
        }
    }

    fn image(&self) -> Vec<BTreeSet<u64>> {
        type Block<'a> = (usize, (&'a u64, &'a Vec<(u64, u64)>));
        let blocks = self.durable.iter().zip(&self.cached).enumerate();
        let under_way = |at| self.under_way.iter().filter(move |change| change.1 == at);
        let versions = |(at, (durable, cached)): Block<'_>| {
            let sent = under_way(at).map(|change| change.2);
            cached.iter().map(|(_, stamp)| *stamp).chain([*durable]).chain(sent).collect()
        };
        blocks.map(versions).collect()
    }

    /// How much may happen or not when the client is gone: requests, and changes of groups.
    pub(crate) fn halves(&self) -> usize {
        self.requests().len() + self.groups.iter().map(|(_, group)| group.len()).sum::<usize>()
    }

    /// Requests under way.
    fn requests(&self) -> Vec<u64> {
        let ids: BTreeSet<u64> = self.under_way.iter().map(|change| change.0).collect();
        ids.into_iter().collect()
    }

    /// The client is gone: what was under way happened as `pick` says.
    pub(crate) fn lose_client(&mut self, pick: &mut dyn FnMut() -> bool) {
        self.flushes.clear();
        for id in self.requests() {
            match pick() {
                true => self.end(id),
                false => self.under_way.retain(|change| change.0 != id),
            }
        }
        let mut runs = true;
        while let Some((_, group)) = self.groups.front() {
            let picked: Vec<bool> = group.iter().map(|_| pick()).collect();
            let mut picked = picked.into_iter();
            runs &= self.run_group(|| runs && picked.next().unwrap_or(false));
        }
    }

    /// The power of the store goes: of each block one version is left.
    pub(crate) fn lose_power(&mut self, choose: &mut dyn FnMut(usize) -> usize) {
        for (durable, cached) in self.durable.iter_mut().zip(&mut self.cached) {
            let chosen = choose(cached.len() + 1);
            *durable = if chosen == 0 { *durable } else { cached[chosen - 1].1 };
            cached.clear();
        }
    }
}
