//! Which clusters are in the file of an overlay, in memory.

use std::collections::BTreeMap;

use super::format::{PAGE_CLUSTERS, Places, encode_page};

/// Bits, and which pages of them are not durable.
pub(super) struct Map {
    bits: Vec<u64>,
    /// Pages with bits that are not durable, and the number of the last change of each.
    dirty: BTreeMap<u64, u64>,
    changes: u64,
}

/// Pages as they were at one time, to be written.
pub(super) struct Pages(Vec<(u64, u64, Vec<u8>)>);

impl Pages {
    /// Number and bytes of each.
    pub(super) fn bytes(&self) -> impl Iterator<Item = (u64, Vec<u8>)> {
        self.0.iter().map(|(page, _, bytes)| (*page, bytes.clone()))
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Map {
    pub(super) fn new(places: Places) -> Self {
        let words = places.clusters().div_ceil(64) as usize;
        Self { bits: vec![0; words], dirty: BTreeMap::new(), changes: 0 }
    }

    pub(super) fn is_present(&self, cluster: u64) -> bool {
        let word = self.bits.get((cluster / 64) as usize).copied().unwrap_or_default();
        word >> (cluster % 64) & 1 == 1
    }

    /// A cluster that is durable already.
    pub(super) fn load(&mut self, cluster: u64) {
        if let Some(word) = self.bits.get_mut((cluster / 64) as usize) {
            *word |= 1 << (cluster % 64);
        }
    }

    /// These clusters are in the file from now on.
    pub(super) fn set(&mut self, clusters: std::ops::Range<u64>) {
        self.changes += 1;
        for cluster in clusters {
            if !self.is_present(cluster) {
                self.load(cluster);
                self.dirty.insert(cluster / PAGE_CLUSTERS, self.changes);
            }
        }
    }

    /// Whether a crash finds all these clusters in the file.
    pub(super) fn is_durable(&self, clusters: std::ops::Range<u64>) -> bool {
        let pages = clusters.start / PAGE_CLUSTERS..=clusters.end.saturating_sub(1) / PAGE_CLUSTERS;
        self.dirty.range(pages).next().is_none()
    }

    /// The pages that are not durable, as they are now.
    pub(super) fn to_write(&self) -> Pages {
        let page = |(page, change): (&u64, &u64)| {
            (*page, *change, encode_page(*page, |cluster| self.is_present(cluster)))
        };
        Pages(self.dirty.iter().map(page).collect())
    }

    /// They are durable.
    pub(super) fn written(&mut self, pages: &Pages) {
        for (page, change, _) in &pages.0 {
            if self.dirty.get(page) == Some(change) {
                self.dirty.remove(page);
            }
        }
    }

    /// How many clusters are present.
    pub(super) fn count(&self) -> u64 {
        self.bits.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}
