//! What stands in the file of an overlay: `docs/spec/overlay.md` has the tables.

use sha2::{Digest as _, Sha256};

/// The unit in which the file is told apart from the base, in bytes.
pub const CLUSTER: u64 = 64 << 10;

/// The header is a page of this size, and the map is read and written in such.
pub(super) const PAGE: u64 = 4096;

/// Where the map begins.
const MAP_AT: u64 = PAGE;

/// The map is made of units that are written whole: the smallest block of a disk.
const UNIT: usize = 512;

/// Bytes of a unit that are map.
const UNIT_BYTES: usize = 504;

/// Clusters of a unit.
const UNIT_CLUSTERS: u64 = 8 * UNIT_BYTES as u64;

/// Clusters of a page of the map.
pub(super) const PAGE_CLUSTERS: u64 = UNIT_CLUSTERS * (PAGE / UNIT as u64);

const MAGIC: &[u8; 8] = b"LHOVERLY";
const VERSION: u32 = 1;
const NAME_AT: usize = 64;
const SUM_AT: usize = PAGE as usize - 32;

/// Why a file is not the overlay of a volume.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum OverlayError {
    #[error("it is no overlay")]
    NotOne,
    #[error("it is empty: no overlay was made in it, or all that was written to it is gone")]
    New,
    #[error("it is an overlay already")]
    Made,
    #[error("version {0} of overlays is not known")]
    Version(u32),
    #[error("its header is damaged")]
    Header,
    #[error("its map is damaged in page {0}: which clusters it holds is not known")]
    Map(u64),
    #[error("it is over a volume of {found} bytes, and this one has {size}")]
    OtherSize { found: u64, size: u64 },
    #[error("an overlay of {size} bytes takes a file of {needed} bytes, and it has {found}")]
    Short { size: u64, needed: u64, found: u64 },
    #[error("its blocks of {0} bytes are larger than a page of its map")]
    Blocks(u32),
    #[error("it is read-only, so that no overlay can be made in it")]
    ReadOnly,
    #[error(transparent)]
    Volume(#[from] crate::Error),
}

/// Where things are in the file of an overlay over so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) size: u64,
}

impl Places {
    pub(super) const fn clusters(self) -> u64 {
        self.size.div_ceil(CLUSTER)
    }

    /// How many pages the map has.
    pub(super) const fn pages(self) -> u64 {
        self.clusters().div_ceil(PAGE_CLUSTERS)
    }

    pub(super) const fn page_at(page: u64) -> u64 {
        MAP_AT + page * PAGE
    }

    /// Where the bytes begin, in the order of the base.
    pub(super) const fn data_at(self) -> u64 {
        Self::page_at(self.pages()).next_multiple_of(1 << 20)
    }
}

/// The size of the file of an overlay over a volume of `size` bytes; it is sparse.
#[must_use]
pub const fn file_size(size: u64) -> u64 {
    Places { size }.data_at() + size.next_multiple_of(PAGE)
}

/// The header of an overlay over `size` bytes of what is called `base`.
pub(super) fn header(size: u64, base: &str) -> Vec<u8> {
    let mut page = MAGIC.to_vec();
    page.extend_from_slice(&VERSION.to_le_bytes());
    page.extend_from_slice(&(CLUSTER as u32).to_le_bytes());
    page.extend_from_slice(&size.to_le_bytes());
    let name = &base.as_bytes()[..base.len().min(SUM_AT - NAME_AT)];
    page.extend_from_slice(&(name.len() as u32).to_le_bytes());
    page.resize(NAME_AT, 0);
    page.extend_from_slice(name);
    page.resize(SUM_AT, 0);
    let sum = Sha256::digest(&page);
    page.extend_from_slice(&sum);
    page
}

/// Reads a header: the size of the base. `None` if there is none yet.
pub(super) fn base_size(page: &[u8]) -> Result<Option<u64>, OverlayError> {
    if page.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let rest = page.strip_prefix(MAGIC).ok_or(OverlayError::NotOne)?;
    let (summed, sum) = page.split_at_checked(SUM_AT).ok_or(OverlayError::Header)?;
    if sum != &*Sha256::digest(summed) {
        return Err(OverlayError::Header);
    }
    let (version, rest) = rest.split_first_chunk().ok_or(OverlayError::Header)?;
    let (cluster, rest) = rest.split_first_chunk().ok_or(OverlayError::Header)?;
    let (size, _) = rest.split_first_chunk().ok_or(OverlayError::Header)?;
    match (u32::from_le_bytes(*version), u64::from(u32::from_le_bytes(*cluster))) {
        (VERSION, CLUSTER) => Ok(Some(u64::from_le_bytes(*size))),
        (VERSION, _) => Err(OverlayError::Header),
        (other, _) => Err(OverlayError::Version(other)),
    }
}

/// A page of the map.
pub(super) fn encode_page(page: u64, is_present: impl Fn(u64) -> bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PAGE as usize);
    let units = PAGE / UNIT as u64;
    for unit in page * units..(page + 1) * units {
        let begin = bytes.len();
        let first = unit * UNIT_CLUSTERS;
        let byte = |at: u64| {
            (0..8).fold(0, |byte, bit| byte | u8::from(is_present(first + 8 * at + bit)) << bit)
        };
        bytes.extend((0..UNIT_BYTES as u64).map(byte));
        bytes.extend_from_slice(&(unit as u32).to_le_bytes());
        let sum = sum(&bytes[begin..]);
        bytes.extend_from_slice(&sum);
    }
    bytes
}

/// The clusters that a page of the map names; `None` if it is not what was written. A unit of zeroes was never written.
pub(super) fn decode_page(page: u64, bytes: &[u8]) -> Option<Vec<u64>> {
    let mut present = Vec::new();
    for (unit, bytes) in (page * (PAGE / UNIT as u64)..).zip(bytes.chunks(UNIT)) {
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        let (summed, found) = bytes.split_at_checked(UNIT - 4)?;
        let (map, number) = summed.split_at_checked(UNIT_BYTES)?;
        if found != sum(summed) || number != (unit as u32).to_le_bytes() {
            return None;
        }
        let bits = (0..UNIT_CLUSTERS).filter(|bit| map[(bit / 8) as usize] >> (bit % 8) & 1 == 1);
        present.extend(bits.map(|bit| unit * UNIT_CLUSTERS + bit));
    }
    Some(present)
}

/// CRC-32C.
fn sum(bytes: &[u8]) -> [u8; 4] {
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_of_the_map_is_read_back_and_its_damage_found() {
        let present =
            [PAGE_CLUSTERS, PAGE_CLUSTERS + 4031, PAGE_CLUSTERS + 4032, 2 * PAGE_CLUSTERS - 1];
        let page = encode_page(1, |cluster| present.contains(&cluster));
        assert_eq!(page.len() as u64, PAGE);
        assert_eq!(decode_page(1, &page).unwrap(), present);
        assert_eq!(decode_page(0, &page), None, "it is another page");
        for at in [0, 503, 505, 510, 4095] {
            let mut damaged = page.clone();
            damaged[at] ^= 1;
            assert_eq!(decode_page(1, &damaged), None, "{at}");
        }
        assert_eq!(decode_page(7, &[0; PAGE as usize]).unwrap(), []);
    }

    #[test]
    fn header_is_read_back_and_its_damage_found() {
        let page = header(1 << 30, "file:base");
        assert_eq!(page.len() as u64, PAGE);
        assert_eq!(base_size(&page).unwrap(), Some(1 << 30));
        assert_eq!(base_size(&[0; PAGE as usize]).unwrap(), None);
        let damaged = |at: usize| {
            let mut page = page.clone();
            page[at] ^= 1;
            base_size(&page)
        };
        assert!(matches!(damaged(0), Err(OverlayError::NotOne)));
        for at in [8, 12, 16, 70, SUM_AT] {
            assert!(matches!(damaged(at), Err(OverlayError::Header)), "{at}");
        }
        assert!(header(1 << 30, &"x".repeat(9000)).len() as u64 == PAGE);
    }
}
