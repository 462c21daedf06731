//! What a member of a mirror says of all of them: `docs/spec/mirror.md` has the table.

use sha2::{Digest as _, Sha256};

/// Bytes at the front of each member that are the mirror's own.
pub const AREA: u64 = 1 << 20;

/// Records are written in turn to two slots this far apart, so that one is whole whenever the power goes.
const SLOT: u64 = AREA / 2;

/// The most members.
pub const MEMBERS_MAX: usize = 8;

/// The most regions: a record is written before the first write to each.
const REGIONS_MAX: u64 = 65_536;

/// The least bytes of a region of a mirror that is made.
const REGION_MIN: u64 = 1 << 20;

/// The least bytes of a region in a record: the largest block.
const REGION_LEAST: u64 = 65_536;

/// What each record begins with.
pub const MAGIC: &[u8; 8] = b"LHMIRROR";

/// Where records may begin.
pub const RECORDS_AT: [u64; 2] = [0, SLOT];
const VERSION: u32 = 1;

/// What comes before the map of regions.
const HEADER: usize = 4096;

/// Where it is told how often the members were replaced, and in which opening the record was made.
const REPLACED_AT: usize = 64;
const OPENING_AT: usize = 72;

/// Where the digest is.
const DIGEST_AT: usize = 96;

/// Where the last records are told that were sent to the members, and that are durable on them.
const SENT_AT: usize = 128;
const CONFIRMED_AT: usize = SENT_AT + 16 * MEMBERS_MAX;

/// The unit of the length of a record: the largest block of a disk in common use.
const PAGE: usize = 4096;

/// The longest record.
pub(super) const RECORD_MAX: u64 = HEADER as u64 + REGIONS_MAX / 8;

const _: () = assert!(RECORD_MAX <= SLOT);

/// One bit for each region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Regions {
    words: Vec<u64>,
    len: u64,
}

impl Regions {
    pub(super) fn none(len: u64) -> Self {
        Self { words: vec![0; len.div_ceil(64) as usize], len }
    }

    pub(super) fn all(len: u64) -> Self {
        let mut all = Self::none(len);
        (0..len).for_each(|region| all.insert(region));
        all
    }

    pub(super) fn contains(&self, region: u64) -> bool {
        let word = self.words.get((region / 64) as usize).copied().unwrap_or_default();
        word >> (region % 64) & 1 == 1
    }

    pub(super) fn insert(&mut self, region: u64) {
        if let Some(word) = self.words.get_mut((region / 64) as usize) {
            *word |= 1 << (region % 64);
        }
    }

    pub(super) fn remove(&mut self, region: u64) {
        if let Some(word) = self.words.get_mut((region / 64) as usize) {
            *word &= !(1 << (region % 64));
        }
    }

    pub(super) fn extend(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(own, other)| *own |= other);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub(super) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len).filter(|region| self.contains(*region))
    }

    pub(super) const fn len(&self) -> u64 {
        self.len
    }
}

/// Which record it is. Those of one opening are numbered in turn; those of another have nothing to do with these numbers,
/// unless one was made from the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamp {
    /// In which opening of the mirror it was made; random.
    pub(super) opening: u64,
    /// Larger than that of any record that it was made from.
    pub(super) sequence: u64,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Of the mirror; random.
    pub(super) id: [u8; 16],
    /// Whose record it is.
    pub(super) member: usize,
    /// Which it is.
    pub(super) stamp: Stamp,
    /// Bytes of the mirror.
    pub(super) size: u64,
    /// Bytes of a region.
    pub(super) region: u64,
    /// Of each member whether it has all that was written; one that has not lacks some of `dirty`.
    pub(super) in_sync: Vec<bool>,
    /// Of each member the last record that was sent to it, whether or not it got there.
    pub(super) sent: Vec<Stamp>,
    /// Of each member the last record that is known to be durable there.
    pub(super) confirmed: Vec<Stamp>,
    /// How often another has taken the place of each.
    pub(super) replaced: Vec<u8>,
    /// Regions in which members may differ.
    pub(super) dirty: Regions,
}

/// How large the regions of a mirror of `size` bytes are.
pub(super) fn region_of(size: u64) -> u64 {
    size.div_ceil(REGIONS_MAX).next_power_of_two().max(REGION_MIN)
}

impl Record {
    /// Where records may be. A record is written where the last whole one of its member is not.
    pub(super) const fn places() -> [u64; 2] {
        [0, SLOT]
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.dirty.words.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.id);
        for number in [self.stamp.sequence, self.size, self.region] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let states = self.in_sync.iter().enumerate();
        let states = states.fold(0_u8, |bits, (at, in_sync)| bits | u8::from(*in_sync) << at);
        bytes.extend_from_slice(&[self.member as u8, self.in_sync.len() as u8, states]);
        bytes.resize(REPLACED_AT, 0);
        bytes.extend_from_slice(&self.replaced);
        bytes.resize(OPENING_AT, 0);
        bytes.extend_from_slice(&self.stamp.opening.to_le_bytes());
        for (at, stamps) in [(SENT_AT, &self.sent), (CONFIRMED_AT, &self.confirmed)] {
            bytes.resize(at, 0);
            for stamp in stamps {
                bytes.extend_from_slice(&stamp.opening.to_le_bytes());
                bytes.extend_from_slice(&stamp.sequence.to_le_bytes());
            }
        }
        bytes.resize(HEADER, 0);
        self.dirty.words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        let sum = digest(&bytes);
        bytes[DIGEST_AT..SENT_AT].copy_from_slice(&sum);
        bytes
    }

    /// Reads a record from the bytes of a slot; `None` if there is none that is whole.
    pub(super) fn decode(slot: &[u8]) -> Option<Self> {
        let rest = slot.strip_prefix(MAGIC)?;
        let (version, rest) = number(rest)?;
        let (words, rest) = number(rest)?;
        let (id, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = long(rest)?;
        let (size, rest) = long(rest)?;
        let (region, rest) = long(rest)?;
        let &[member, members, states, ..] = rest else { return None };
        let len = HEADER + (words as usize).checked_mul(8)?;
        let whole = slot.get(..len.checked_next_multiple_of(PAGE)?)?;
        if version != VERSION || whole.get(DIGEST_AT..SENT_AT)? != digest(whole) {
            return None;
        }
        let is_sane = sequence < u64::MAX / 2
            && size > 0
            && region >= REGION_LEAST
            && region.is_power_of_two();
        let count = if is_sane { size.div_ceil(region) } else { return None };
        let members_fit = (1..=MEMBERS_MAX).contains(&members.into()) && member < members;
        if !members_fit || count > REGIONS_MAX || count.div_ceil(64) != u64::from(words) {
            return None;
        }
        let map = whole.get(HEADER..len)?.chunks_exact(8);
        let words =
            map.map(|word| word.try_into().map(u64::from_le_bytes)).collect::<Result<_, _>>();
        Some(Self {
            id: *id,
            member: member.into(),
            stamp: Stamp { opening: long(whole.get(OPENING_AT..)?)?.0, sequence },
            size,
            region,
            in_sync: (0..members).map(|at| states >> at & 1 == 1).collect(),
            sent: stamps(whole, SENT_AT, members.into())?,
            confirmed: stamps(whole, CONFIRMED_AT, members.into())?,
            replaced: whole.get(REPLACED_AT..)?.get(..members.into())?.to_vec(),
            dirty: Regions { words: words.ok()?, len: count },
        })
    }

    /// Whether `other`, the record of another member, is known to whoever made this one: it was durable there, or was sent
    /// there after what was. Nothing was then acknowledged there that this record does not follow on.
    pub(super) fn follows(&self, other: &Self) -> bool {
        let stamps = self.sent.get(other.member).zip(self.confirmed.get(other.member));
        stamps.is_some_and(|(sent, confirmed)| {
            let Stamp { opening, sequence } = other.stamp;
            let was_sent = opening == sent.opening && sequence <= sent.sequence;
            other.stamp == *confirmed || was_sent && sequence > confirmed.sequence
        })
    }

    /// Whether `other` is older than a record of the same opening that was durable on its member.
    pub(super) fn is_after(&self, other: &Self) -> bool {
        self.confirmed.get(other.member).is_some_and(|confirmed| {
            confirmed.opening == other.stamp.opening && confirmed.sequence > other.stamp.sequence
        })
    }

    /// The last record of a member was found there, and is durable. What it calls dirty may differ there.
    pub(super) fn found(&mut self, own: &Self) {
        self.sent[own.member] = own.stamp;
        self.confirmed[own.member] = own.stamp;
        self.dirty.extend(&own.dirty);
    }

    /// The number of an opening that begins with this record on the members `there`. These are in it so that no two openings
    /// have one number if chance is poor.
    pub(super) fn opening_after(&self, there: impl Iterator<Item = usize>, random: u64) -> u64 {
        let mut sum = Sha256::new();
        sum.update(random.to_le_bytes());
        there.for_each(|member| sum.update([member as u8]));
        sum.update(self.encode());
        let sum: [u8; 32] = sum.finalize().into();
        long(&sum).map_or(random, |(number, _)| number)
    }
}

/// Records that are to be written, of one version.
pub(super) struct Recording {
    pub(super) records: Vec<Record>,
    /// Members that have all.
    pub(super) first: Vec<usize>,
    /// Members whose own record changes what the others know of them: only once those know it. One that knew more than they
    /// do would be taken for one that was written to without them.
    pub(super) then: Vec<usize>,
    pub(super) version: u64,
    /// How often each member had been put out.
    pub(super) outs: Vec<u64>,
}

impl Recording {
    /// That of a member.
    pub(super) fn of(&self, member: usize) -> Option<&Record> {
        self.records.iter().find(|record| record.member == member)
    }
}

/// A stamp for each member.
fn stamps(record: &[u8], at: usize, members: usize) -> Option<Vec<Stamp>> {
    let stamp = |member| {
        let (opening, rest) = long(record.get(at + 16 * member..)?)?;
        Some(Stamp { opening, sequence: long(rest)?.0 })
    };
    (0..members).map(stamp).collect()
}

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}

fn long(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

/// The digest of a record, but for the place where it stands.
fn digest(bytes: &[u8]) -> [u8; 32] {
    let mut sum = Sha256::new();
    sum.update(bytes.get(..DIGEST_AT).unwrap_or_default());
    sum.update(bytes.get(SENT_AT..).unwrap_or_default());
    sum.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn stamp(opening: u64, sequence: u64) -> Stamp {
        Stamp { opening, sequence }
    }

    fn record() -> Record {
        let mut dirty = Regions::none(100);
        [0, 63, 64, 99].into_iter().for_each(|region| dirty.insert(region));
        Record {
            id: *b"0123456789abcdef",
            member: 1,
            stamp: stamp(3, 7),
            size: 100 << 20,
            region: 1 << 20,
            in_sync: vec![true, false, true],
            sent: vec![stamp(3, 7), stamp(2, 5), stamp(1 << 40, 4)],
            confirmed: vec![stamp(3, 6), stamp(2, 3), stamp(1, 2)],
            replaced: vec![0, 3, 255],
            dirty,
        }
    }

    #[test]
    fn record_is_read_back_and_its_damage_found() {
        let bytes = record().encode();
        assert_eq!(bytes.len(), 8192);
        assert_eq!(Record::decode(&bytes), Some(record()));
        let longer = [&bytes[..], &[7; 4096]].concat();
        assert_eq!(Record::decode(&longer), Some(record()), "what is behind it is not looked at");
        for at in [0, 8, 12, 16, 40, 56, 57, 58, 64, 72, DIGEST_AT, 130, 300, HEADER, 8191] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Record::decode(&damaged), None, "{at}");
        }
        assert_eq!(Record::decode(&bytes[..5000]), None);
        assert_eq!(Record::decode(&[0; 8192]), None);
    }

    #[test]
    fn record_follows_on_those_that_are_durable_or_were_sent_later() {
        let of = |member, stamp| Record { member, stamp, ..record() };
        let follows = |member, stamp| record().follows(&of(member, stamp));
        assert!(follows(0, stamp(3, 6)) && follows(0, stamp(3, 7)));
        assert!(!follows(0, stamp(3, 5)) && !follows(0, stamp(3, 8)));
        // The numbers of another opening say nothing.
        assert!(!follows(0, stamp(2, 7)) && !follows(0, stamp(2, 6)));
        assert!(follows(2, stamp(1, 2)) && !follows(2, stamp(1, 3)) && !follows(2, stamp(1, 1)));
        assert!(follows(2, stamp(1 << 40, 3)) && !follows(2, stamp(1 << 40, 2)));
        assert!(!follows(5, stamp(0, 0)), "there is no such member");
        let is_after = |stamp| record().is_after(&of(1, stamp));
        assert!(is_after(stamp(2, 2)) && !is_after(stamp(2, 3)) && !is_after(stamp(1, 2)));
    }

    #[test]
    fn largest_mirror_has_a_record_that_fits() {
        let size = u64::MAX / 2;
        let region = region_of(size);
        let dirty = Regions::all(size.div_ceil(region));
        let record = Record { size, region, dirty, ..record() };
        let bytes = record.encode();
        assert!(bytes.len() as u64 <= RECORD_MAX);
        assert_eq!(Record::decode(&bytes), Some(record));
        assert_eq!(region_of(1), REGION_MIN);
    }
}
