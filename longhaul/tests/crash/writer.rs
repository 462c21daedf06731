//! An initiator with blocks of its own, and what each of them may hold when the target has crashed.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use volume::check::Random;

use crate::peer::{Peer, read_16, write_16};

/// Bytes in a block.
pub(crate) const BLOCK: u32 = 512;

/// Blocks that one writer has for itself.
pub(crate) const BLOCKS: u32 = 64;

/// The most blocks one command changes: space is given back in such units as well.
const MOST: u32 = 8;

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const FUA: u8 = 0x08;

/// How a step ended that was not refused by the end of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Done,
    /// The status was not good: the store has failed.
    Refused,
}

/// A block that all writers count up with COMPARE AND WRITE.
pub(crate) struct Counter {
    pub(crate) lba: u32,
    /// How often that was answered GOOD since the last crash.
    answered: AtomicU64,
    /// Where it stood then.
    base: AtomicU64,
}

impl Counter {
    pub(crate) const fn new(lba: u32) -> Self {
        Self { lba, answered: AtomicU64::new(0), base: AtomicU64::new(0) }
    }

    /// After a crash it counts every answered step, and at most one more of each of `writers`.
    pub(crate) fn check(&self, peer: &mut Peer, writers: u64) {
        let found = stamp_of(&read(peer, self.lba, 1).expect("the counter"));
        let least = self.base.load(Ordering::SeqCst) + self.answered.load(Ordering::SeqCst);
        assert!(
            (least..=least + writers).contains(&found),
            "counted to {found}, answered to {least}"
        );
        self.base.store(found, Ordering::SeqCst);
        self.answered.store(0, Ordering::SeqCst);
    }
}

/// The writer.
pub(crate) struct Writer {
    first: u32,
    random: Random,
    /// For each block, oldest first: what it held at the last flush that was answered, and all that was sent
    /// to it since. A crash may leave any of them, and nothing else.
    may_hold: Vec<Vec<u64>>,
    /// The blocks of which the newest version was sent and not answered.
    in_flight: Range<usize>,
    next: u64,
    /// Blocks of which a crash has taken a write that was answered and not yet flushed.
    pub(crate) lost: u64,
}

impl Writer {
    /// Writer `n` on a disk of zeroes.
    pub(crate) fn new(n: u32, seed: u64) -> Self {
        Self {
            first: n * BLOCKS,
            random: Random::new(seed ^ u64::from(n + 1)),
            may_hold: vec![vec![0]; BLOCKS as usize],
            in_flight: 0..0,
            next: u64::from(n + 1) << 48,
            lost: 0,
        }
    }

    /// After a crash, each block holds one of the versions that it may. From here on it holds that one.
    pub(crate) fn check(&mut self, peer: &mut Peer) {
        let bytes = read(peer, self.first, BLOCKS).expect("the blocks");
        for (index, block) in bytes.chunks_exact(BLOCK as usize).enumerate() {
            let (found, lba) = (stamp_of(block), self.first + index as u32);
            let versions = &self.may_hold[index];
            let Some(at) = versions.iter().rposition(|version| *version == found) else {
                panic!("block {lba} holds {found:#x}, which is none of {versions:#x?}")
            };
            self.lost += u64::from(at < versions.len() - self.unsure(index));
            self.may_hold[index] = vec![found];
        }
        self.in_flight = 0..0;
    }

    /// Nothing that was answered may be lost any more, flushed or not: the target has ended in good order.
    pub(crate) fn expect_all(&mut self) {
        for index in 0..self.may_hold.len() {
            let unsure = self.unsure(index);
            let versions = &mut self.may_hold[index];
            versions.drain(..versions.len() - unsure);
        }
    }

    /// How many versions of a block the last answer leaves open.
    fn unsure(&self, index: usize) -> usize {
        if self.in_flight.contains(&index) { 2 } else { 1 }
    }

    /// Runs some command; `None` if the connection ended before its answer.
    pub(crate) fn step(&mut self, peer: &mut Peer, counter: &Counter) -> Option<Step> {
        match self.random.below(100) {
            0..40 => self.write(peer, false),
            40..53 => self.write(peer, true),
            53..63 => self.write_same(peer),
            63..70 => self.write_zeroes(peer),
            70..77 => self.unmap(peer),
            77..84 => self.compare_and_write(peer),
            84..89 => self.count(peer, counter),
            89..92 => self.look(peer),
            _ => self.flush(peer),
        }
    }

    fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Some blocks: the index of the first of them, and how many.
    fn some(&mut self) -> (u32, u32) {
        let count = 1 + self.random.below(MOST.into()) as u32;
        (self.random.below(u64::from(BLOCKS - count + 1)) as u32, count)
    }

    /// Sends a command that puts `stamps` at `index`; if it is `durable`, its answer settles them.
    fn put(
        &mut self,
        peer: &mut Peer,
        index: u32,
        stamps: &[u64],
        durable: bool,
        (cdb, data): ([u8; 16], Vec<u8>),
    ) -> Option<Step> {
        let at = index as usize;
        for (versions, stamp) in self.may_hold[at..].iter_mut().zip(stamps) {
            versions.push(*stamp);
        }
        self.in_flight = at..at + stamps.len();
        let (status, _) = peer.run(cdb, data, 0)?;
        if status != GOOD {
            return Some(Step::Refused);
        }
        self.in_flight = 0..0;
        if durable {
            self.may_hold[at..at + stamps.len()].iter_mut().for_each(settle);
        }
        Some(Step::Done)
    }

    fn write(&mut self, peer: &mut Peer, durable: bool) -> Option<Step> {
        let (index, count) = self.some();
        let stamps: Vec<_> = (0..count).map(|_| self.stamp()).collect();
        let mut cdb = write_16(self.first + index, count);
        cdb[1] = if durable { FUA } else { 0 };
        let data = stamps.iter().flat_map(|stamp| block(*stamp)).collect();
        self.put(peer, index, &stamps, durable, (cdb, data))
    }

    fn write_same(&mut self, peer: &mut Peer) -> Option<Step> {
        let (index, count) = self.some();
        let stamp = self.stamp();
        let mut cdb = write_16(self.first + index, count);
        cdb[0] = 0x93;
        self.put(peer, index, &vec![stamp; count as usize], false, (cdb, block(stamp)))
    }

    /// WRITE SAME of zeroes, which gives space back.
    fn write_zeroes(&mut self, peer: &mut Peer) -> Option<Step> {
        const UNMAP: u8 = 0x08;
        let (index, count) = self.some();
        let mut cdb = write_16(self.first + index, count);
        (cdb[0], cdb[1]) = (0x93, UNMAP);
        self.put(peer, index, &vec![0; count as usize], false, (cdb, block(0)))
    }

    /// UNMAP of a whole unit of allocation, as the unit may ignore less.
    fn unmap(&mut self, peer: &mut Peer) -> Option<Step> {
        let index = self.random.below((BLOCKS / MOST).into()) as u32 * MOST;
        let mut list = vec![0; 24];
        (list[1], list[3]) = (22, 16);
        list[12..16].copy_from_slice(&(self.first + index).to_be_bytes());
        list[16..20].copy_from_slice(&MOST.to_be_bytes());
        let mut cdb = [0; 16];
        (cdb[0], cdb[8]) = (0x42, 24);
        self.put(peer, index, &[0; MOST as usize], false, (cdb, list))
    }

    /// Writes that compare what was written last, so that they must succeed.
    fn compare_and_write(&mut self, peer: &mut Peer) -> Option<Step> {
        let (index, count) = self.some();
        let durable = self.random.below(2) == 0;
        let now = (index..index + count).map(|index| self.now(index));
        let mut data: Vec<u8> = now.flat_map(block).collect();
        let stamps: Vec<_> = (0..count).map(|_| self.stamp()).collect();
        data.extend(stamps.iter().flat_map(|stamp| block(*stamp)));
        let cdb = compare_and_write(self.first + index, count, durable);
        self.put(peer, index, &stamps, durable, (cdb, data))
    }

    /// Counts, unless another writer comes between.
    fn count(&mut self, peer: &mut Peer, counter: &Counter) -> Option<Step> {
        let found = read(peer, counter.lba, 1)?;
        let stamp = stamp_of(&found);
        let data = [found, block(stamp + 1)].concat();
        match peer.run(compare_and_write(counter.lba, 1, true), data, 0)?.0 {
            GOOD => drop(counter.answered.fetch_add(1, Ordering::SeqCst)),
            // MISCOMPARE, or a store that has failed; the next step tells.
            CHECK_CONDITION => {}
            other => panic!("{other:#x}"),
        }
        Some(Step::Done)
    }

    /// What was written is read.
    fn look(&mut self, peer: &mut Peer) -> Option<Step> {
        let (index, count) = self.some();
        let found = read(peer, self.first + index, count)?;
        let expected: Vec<_> = (index..index + count).map(|index| self.now(index)).collect();
        let found: Vec<_> = found.chunks_exact(BLOCK as usize).map(stamp_of).collect();
        assert_eq!(found, expected, "from block {} on", self.first + index);
        Some(Step::Done)
    }

    /// SYNCHRONIZE CACHE: every write that was answered before is safe.
    fn flush(&mut self, peer: &mut Peer) -> Option<Step> {
        let mut cdb = [0; 16];
        cdb[0] = 0x91;
        if peer.run(cdb, Vec::new(), 0)?.0 != GOOD {
            return Some(Step::Refused);
        }
        self.may_hold.iter_mut().for_each(settle);
        Some(Step::Done)
    }

    fn now(&self, index: u32) -> u64 {
        *self.may_hold[index as usize].last().expect("some version")
    }
}

/// Only the newest version is left.
fn settle(versions: &mut Vec<u64>) {
    versions.drain(..versions.len() - 1);
}

fn compare_and_write(lba: u32, count: u32, durable: bool) -> [u8; 16] {
    let mut cdb = write_16(lba, 0);
    (cdb[0], cdb[1], cdb[13]) = (0x89, if durable { FUA } else { 0 }, count as u8);
    cdb
}

/// A block that says one thing all over.
fn block(stamp: u64) -> Vec<u8> {
    stamp.to_be_bytes().repeat(BLOCK as usize / 8)
}

/// What a block says; one that says two things was torn.
fn stamp_of(block: &[u8]) -> u64 {
    let mut words = block.chunks_exact(8).map(|word| u64::from_be_bytes(word.try_into().unwrap()));
    let first = words.next().unwrap();
    assert!(words.all(|word| word == first), "a block is torn: {block:02x?}");
    first
}

/// Reads blocks; `None` if the connection has ended.
fn read(peer: &mut Peer, lba: u32, count: u32) -> Option<Vec<u8>> {
    let (status, data) = peer.run(read_16(lba, count), Vec::new(), count * BLOCK)?;
    (status == GOOD).then_some(data)
}
