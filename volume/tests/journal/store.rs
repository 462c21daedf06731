//! The store: blocks with a volatile cache. A block is the stamp of the change that it is of.

use std::collections::BTreeSet;

use bytes::Bytes;
use volume::Span;

pub(crate) const BLOCK: u64 = 512;

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

/// What it holds.
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
}

impl Store {
    pub(crate) fn new(blocks: usize) -> Self {
        let (durable, cached) = (vec![ZERO; blocks], vec![Vec::new(); blocks]);
        Self { durable, cached, now: 0, flushes: Vec::new(), under_way: Vec::new() }
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

    /// It was refused, and not carried out.
    pub(crate) fn refuse(&mut self, id: u64) {
        self.under_way.retain(|change| change.0 != id);
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
        let blocks = self.durable.iter().zip(&self.cached);
        blocks
            .map(|(durable, cached)| cached.last().map_or(*durable, |(_, stamp)| *stamp))
            .collect()
    }

    /// Per block, what may be found after a power cut now.
    pub(crate) fn possible(&self) -> Vec<BTreeSet<u64>> {
        type Block<'a> = (usize, (&'a u64, &'a Vec<(u64, u64)>));
        let blocks = self.durable.iter().zip(&self.cached).enumerate();
        let under_way = |at| self.under_way.iter().filter(move |change| change.1 == at);
        let versions = |(at, (durable, cached)): Block<'_>| {
            let sent = under_way(at).map(|change| change.2);
            cached.iter().map(|(_, stamp)| *stamp).chain([*durable]).chain(sent).collect()
        };
        blocks.map(versions).collect()
    }

    /// Requests under way.
    pub(crate) fn requests(&self) -> Vec<u64> {
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
