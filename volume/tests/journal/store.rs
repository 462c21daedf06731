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
    /// Versions since the last flush.
    cached: Vec<Vec<u64>>,
    /// Versions that are under way: of the request of that id.
    under_way: Vec<(u64, usize, u64)>,
}

impl Store {
    pub(crate) fn new(blocks: usize) -> Self {
        let (durable, cached) = (vec![ZERO; blocks], vec![Vec::new(); blocks]);
        Self { durable, cached, under_way: Vec::new() }
    }

    /// A change is sent.
    pub(crate) fn begin(&mut self, id: u64, span: Span, stamps: &[u64]) {
        let changes = blocks(span).zip(stamps);
        self.under_way.extend(changes.map(|(block, stamp)| (id, block, *stamp)));
    }

    /// It was carried out.
    pub(crate) fn end(&mut self, id: u64) {
        let ended: Vec<_> = self.under_way.extract_if(.., |change| change.0 == id).collect();
        ended.into_iter().for_each(|(_, block, stamp)| self.cached[block].push(stamp));
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

    pub(crate) fn flush(&mut self) {
        for (durable, cached) in self.durable.iter_mut().zip(&mut self.cached) {
            *durable = cached.pop().unwrap_or(*durable);
            cached.clear();
        }
    }

    pub(crate) fn contents(&self) -> Vec<u64> {
        let blocks = self.durable.iter().zip(&self.cached);
        blocks.map(|(durable, cached)| *cached.last().unwrap_or(durable)).collect()
    }

    /// Per block, what may be found after a power cut now.
    pub(crate) fn possible(&self) -> Vec<BTreeSet<u64>> {
        let blocks = self.durable.iter().zip(&self.cached).enumerate();
        let under_way = |at| self.under_way.iter().filter(move |change| change.1 == at);
        let versions = |(at, (durable, cached)): (usize, (&u64, &Vec<u64>))| {
            let sent = under_way(at).map(|change| change.2);
            cached.iter().copied().chain([*durable]).chain(sent).collect()
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
            *durable = if chosen == 0 { *durable } else { cached[chosen - 1] };
            cached.clear();
        }
    }
}
