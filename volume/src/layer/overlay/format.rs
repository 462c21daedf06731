//! What stands in the file of an overlay: `docs/spec/overlay.md` has the tables.

use sha2::{Digest as _, Sha256};

use crate::Span;

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
const VERSION: u32 = 2;
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
    #[error("its base is another volume, or has changed since the overlay was made")]
    OtherBase,
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

/// What of a base is read to know it again: its beginning and its end, and a little at equal distances between. Over a
/// thin link that must not take long.
const ENDS: u64 = 64 << 10;
const SAMPLES: u64 = 16;
const SAMPLE: u64 = 4 << 10;

/// Of a base that is no larger, all is read.
const SMALL: u64 = 256 << 10;

/// The spans of a base of `size` bytes that its fingerprint is made of, in order.
pub(super) fn samples(size: u64) -> Vec<Span> {
    if size <= SMALL {
        return vec![Span::new(0, size)];
    }
    let end = size - ENDS;
    let mut spans = vec![Span::new(0, ENDS)];
    let between = (1..=SAMPLES).map(|sample| {
        let at = ENDS + (end - ENDS - SAMPLE) / (SAMPLES + 1) * sample;
        Span::new(at - at % SAMPLE, SAMPLE)
    });
    spans.extend(between);
    // Blocks are no larger than a page.
    spans.push(Span::new(end - end % PAGE, size - (end - end % PAGE)));
    spans
}

/// What an overlay stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Base {
    /// In bytes.
    pub(super) size: u64,
    /// SHA-256 of its [`samples`].
    pub(super) fingerprint: [u8; 32],
}

/// The header of an overlay over a `base` that is called `name`.
pub(super) fn header(base: Base, name: &str) -> Vec<u8> {
    let mut page = MAGIC.to_vec();
    page.extend_from_slice(&VERSION.to_le_bytes());
    page.extend_from_slice(&(CLUSTER as u32).to_le_bytes());
    page.extend_from_slice(&base.size.to_le_bytes());
    let name = &name.as_bytes()[..name.len().min(SUM_AT - NAME_AT)];
    page.extend_from_slice(&(name.len() as u32).to_le_bytes());
    page.extend_from_slice(&base.fingerprint);
    page.resize(NAME_AT, 0);
    page.extend_from_slice(name);
    page.resize(SUM_AT, 0);
    let sum = Sha256::digest(&page);
    page.extend_from_slice(&sum);
    page
}

/// Reads a header: the base. `None` if there is none yet.
pub(super) fn base(page: &[u8]) -> Result<Option<Base>, OverlayError> {
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
    let (size, rest) = rest.split_first_chunk().ok_or(OverlayError::Header)?;
    let (_name_len, rest) = rest.split_first_chunk::<4>().ok_or(OverlayError::Header)?;
    let (fingerprint, _) = rest.split_first_chunk().ok_or(OverlayError::Header)?;
    match (u32::from_le_bytes(*version), u64::from(u32::from_le_bytes(*cluster))) {
        (VERSION, CLUSTER) => {
            Ok(Some(Base { size: u64::from_le_bytes(*size), fingerprint: *fingerprint }))
        }
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
        let known = Base { size: 1 << 30, fingerprint: [7; 32] };
        let page = header(known, "file:base");
        assert_eq!(page.len() as u64, PAGE);
        assert_eq!(base(&page).unwrap(), Some(known));
        assert_eq!(base(&[0; PAGE as usize]).unwrap(), None);
        let damaged = |at: usize| {
            let mut page = page.clone();
            page[at] ^= 1;
            base(&page)
        };
        assert!(matches!(damaged(0), Err(OverlayError::NotOne)));
        for at in [8, 12, 16, 30, 70, SUM_AT] {
            assert!(matches!(damaged(at), Err(OverlayError::Header)), "{at}");
        }
        assert!(header(known, &"x".repeat(9000)).len() as u64 == PAGE);
    }

    #[test]
    fn samples_lie_in_the_base_apart_and_in_order() {
        for size in [512, SMALL, SMALL + 512, (1 << 20) + 512, 3 << 20, 80 << 30, 1 << 60] {
            let spans = samples(size);
            assert_eq!((spans[0].at, spans[spans.len() - 1].end()), (0, size), "{size}");
            assert!(spans.is_sorted_by(|one, next| one.end() <= next.at), "{size}: {spans:?}");
            assert!(spans.iter().all(|span| span.at % PAGE == 0 && span.len <= SMALL));
        }
        assert_eq!(samples(80 << 30).len(), 18);
    }
}
