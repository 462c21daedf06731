//! A local disk: sectors of 512 bytes that are written whole or not at all, and a cache.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub(crate) const SECTOR: u64 = 512;

type Bytes = [u8; SECTOR as usize];

/// What a crash does to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    /// It is lost.
    Power,
    /// Only the program is: the cache stays, and is not on the medium.
    Process,
}

/// A file on such a disk. What was never written is zero.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    durable: BTreeMap<u64, Bytes>,
    /// What is read, and is lost with the power.
    cached: BTreeMap<u64, Bytes>,
    unreadable: BTreeSet<u64>,
    /// The writes to come that fail, by how many others come before.
    pub(crate) fail_after: Option<u64>,
    /// Writes that begin in these bytes fail.
    pub(crate) bad: Option<Range<u64>>,
}

impl Disk {
    fn sector(&self, number: u64) -> Bytes {
        let found = self.cached.get(&number).or_else(|| self.durable.get(&number));
        found.copied().unwrap_or([0; SECTOR as usize])
    }

    /// `None` if a sector of them cannot be read.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let sectors = offset / SECTOR..(offset + len).div_ceil(SECTOR);
        if self.unreadable.range(sectors.clone()).next().is_some() {
            return None;
        }
        let mut bytes = vec![0; ((sectors.end - sectors.start) * SECTOR) as usize];
        for layer in [&self.durable, &self.cached] {
            for (number, sector) in layer.range(sectors.clone()) {
                let at = ((number - sectors.start) * SECTOR) as usize;
                bytes[at..at + SECTOR as usize].copy_from_slice(sector);
            }
        }
        bytes.drain(..(offset % SECTOR) as usize);
        bytes.truncate(len as usize);
        Some(bytes)
    }

    /// Writes and has it stable. Whether it did.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ()> {
        match &mut self.fail_after {
            Some(0) => return Err(()),
            Some(left) => *left -= 1,
            None => {}
        }
        if self.bad.as_ref().is_some_and(|bad| bad.contains(&offset)) {
            return Err(());
        }
        for (number, sector) in sectors(offset, bytes) {
            self.cached.remove(&number);
            self.durable.insert(number, sector);
        }
        Ok(())
    }

    pub(crate) fn sync(&mut self) {
        self.durable.append(&mut self.cached);
    }

    /// How many sectors of a write would change something.
    pub(crate) fn changes(&self, offset: u64, bytes: &[u8]) -> usize {
        sectors(offset, bytes).filter(|(number, new)| self.sector(*number) != *new).count()
    }

    /// A write was under way in a crash: only such sectors of those it changes are written as `pick` says.
    pub(crate) fn tear(
        &mut self,
        offset: u64,
        bytes: &[u8],
        crash: Crash,
        pick: &mut dyn FnMut() -> bool,
    ) {
        for (number, new) in sectors(offset, bytes) {
            if self.sector(number) == new || !pick() {
                continue;
            }
            match crash {
                Crash::Power => drop(self.durable.insert(number, new)),
                Crash::Process => drop(self.cached.insert(number, new)),
            }
        }
    }

    /// The power goes: what is only cached is kept as `pick` says.
    pub(crate) fn lose_cache(&mut self, pick: &mut dyn FnMut() -> bool) {
        for (number, sector) in std::mem::take(&mut self.cached) {
            if pick() {
                self.durable.insert(number, sector);
            }
        }
    }

    pub(crate) fn flip(&mut self, offset: u64, bit: u8) {
        let mut sector = self.sector(offset / SECTOR);
        sector[(offset % SECTOR) as usize] ^= 1 << bit;
        self.durable.insert(offset / SECTOR, sector);
    }

    pub(crate) fn make_unreadable(&mut self, offset: u64) {
        self.unreadable.insert(offset / SECTOR);
    }
}

fn sectors(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, Bytes)> {
    assert!(offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096), "O_DIRECT refuses it");
    let sectors = bytes.chunks_exact(SECTOR as usize).map(|sector| sector.try_into().unwrap());
    (offset / SECTOR..).zip(sectors)
}
