//! The bytes of a tape: `docs/spec/tape.md`.

use bytes::{BufMut as _, Bytes, BytesMut};

/// The unit in which everything lies. A volume writes a block of this size whole or not at all.
pub(super) const UNIT: u64 = 512;

/// The two copies of the label. They are so far apart that no physical block holds both.
pub(super) const LABELS: [u64; 2] = [0, 4096];

/// Where the first record lies.
pub(super) const FIRST: u64 = 8192;

/// The longest block that a tape takes.
pub const BLOCK_MAX: u32 = 8 << 20;

/// The header of a record, in bytes; data follow at once.
pub(super) const HEADER: usize = 128;

const LABEL_MAGIC: [u8; 8] = *b"LHTAPE\r\n";
const RECORD_MAGIC: [u8; 4] = *b"LHtr";
const VERSION: u32 = 1;

/// Of a tape that can be written once: a program that does not know these must not write to it.
const VERSION_WRITE_ONCE: u32 = 2;

/// What stands behind the end in a label of that version.
const WRITE_ONCE: u32 = 1;

/// No tape has counted its labels or its runs of writing as far as this.
const COUNT_MAX: u64 = 1 << 63;

/// A place between two records, and what precedes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where the next record begins, in bytes.
    pub at: u64,
    /// How many blocks and file marks lie before it.
    pub object: u64,
    /// How many of these are file marks.
    pub marks: u64,
    /// Where the record before it begins; zero if it is the beginning of the tape.
    pub previous: u64,
    /// The checksum of the header of that record.
    pub previous_sum: u32,
    /// Where the last file mark before it is; zero if there is none.
    pub last_mark: u64,
}

impl Place {
    /// The beginning of the tape.
    pub const BEGINNING: Self =
        Self { at: FIRST, object: 0, marks: 0, previous: 0, previous_sum: 0, last_mark: 0 };

    /// Whether any tape has such a place: each record before it takes room. What is reckoned from one that has passed this
    /// does not overflow, whoever has written it.
    const fn is_possible(&self) -> bool {
        let Self { at, object, marks, previous, last_mark, .. } = *self;
        at >= FIRST
            && at.is_multiple_of(UNIT)
            && object <= (at - FIRST) / UNIT
            && marks <= object
            && previous < at
            && last_mark <= previous
    }

    fn put(&self, to: &mut BytesMut) {
        for field in [self.at, self.object, self.marks, self.previous, self.last_mark] {
            to.put_u64_le(field);
        }
        to.put_u32_le(self.previous_sum);
    }

    fn get(from: &mut Fields<'_>) -> Self {
        let [at, object, marks, previous, last_mark] = [(); 5].map(|()| from.u64());
        Self { at, object, marks, previous, last_mark, previous_sum: from.u32() }
    }
}

/// What is known of a tape without reading its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// Of two copies the one with the higher number is the newer one.
    pub(super) sequence: u64,
    /// Tells the tape from others.
    pub(super) tape: u64,
    /// Counts the runs of writing. Records from an earlier one that were behind the end are known by it.
    pub(super) epoch: u64,
    /// All records before it are stable.
    pub(super) end: Place,
    /// Nothing that is on it is written over.
    pub(super) is_write_once: bool,
}

impl Label {
    /// That of a tape on which nothing was ever written.
    pub(super) const fn blank(tape: u64) -> Self {
        Self { sequence: 0, tape, epoch: 0, end: Place::BEGINNING, is_write_once: false }
    }

    /// Its unit.
    pub(super) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(UNIT as usize);
        bytes.put_slice(&LABEL_MAGIC);
        bytes.put_u32_le(if self.is_write_once { VERSION_WRITE_ONCE } else { VERSION });
        for field in [self.sequence, self.tape, self.epoch] {
            bytes.put_u64_le(field);
        }
        self.end.put(&mut bytes);
        if self.is_write_once {
            bytes.put_u32_le(WRITE_ONCE);
        }
        bytes.resize(UNIT as usize - 4, 0);
        let sum = crc32c(&bytes);
        bytes.put_u32_le(sum);
        bytes.freeze()
    }

    /// Reads a unit.
    pub(super) fn decode(unit: &[u8]) -> Found {
        if unit.iter().all(|byte| *byte == 0) {
            return Found::Nothing;
        }
        let Some((summed, sum)) = unit.split_last_chunk::<4>() else { return Found::Foreign };
        let mut fields = Fields(summed);
        if fields.take() != LABEL_MAGIC {
            return Found::Foreign;
        }
        if u32::from_le_bytes(*sum) != crc32c(summed) {
            return Found::Damaged;
        }
        let version = fields.u32();
        if ![VERSION, VERSION_WRITE_ONCE].contains(&version) {
            return Found::Version(version);
        }
        let [sequence, tape, epoch] = [(); 3].map(|()| fields.u64());
        let end = Place::get(&mut fields);
        let is_write_once = version == VERSION_WRITE_ONCE;
        if is_write_once && fields.u32() != WRITE_ONCE {
            return Found::Version(version);
        }
        let is_possible = end.is_possible() && sequence < COUNT_MAX && epoch < COUNT_MAX;
        match is_possible {
            true => Found::Label(Self { sequence, tape, epoch, end, is_write_once }),
            false => Found::Damaged,
        }
    }
}

/// What a copy of the label turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It was never written.
    Nothing,
    /// It is that of no tape.
    Foreign,
    /// It is not what was written.
    Damaged,
    /// It is that of a later version of the format.
    Version(u32),
    /// It can be used.
    Label(Label),
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A block of data.
    Block = 1,
    /// A file mark.
    Mark = 2,
}

/// What stands before the data of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// What it is.
    pub(super) kind: Kind,
    /// The bytes of data.
    pub(super) len: u32,
    /// Their checksum.
    pub(super) data_sum: u32,
    /// The tape it was written to.
    pub(super) tape: u64,
    /// The run of writing in which it was.
    pub(super) epoch: u64,
    /// The place it is at.
    pub(super) place: Place,
    /// Where the record is that [`skip_target`] names.
    pub(super) skip: u64,
    /// Where the file mark is that [`skip_target`] names, counted among file marks; zero in a block.
    pub(super) mark_skip: u64,
}

/// The number of an earlier record, to which record `number` has a link: with the lowest bit of its number cleared. From
/// the last record any other is found along these and the records before them in some log² steps.
pub(super) const fn skip_target(number: u64) -> u64 {
    number & number.wrapping_sub(1)
}

impl Header {
    /// How many bytes the record takes.
    pub(super) const fn size(len: u32) -> u64 {
        (HEADER as u64 + len as u64).next_multiple_of(UNIT)
    }

    /// The place behind the record.
    pub(super) const fn after(&self, sum: u32) -> Place {
        let Place { at, object, marks, last_mark, .. } = self.place;
        let is_mark = matches!(self.kind, Kind::Mark);
        Place {
            at: at + Self::size(self.len),
            object: object + 1,
            marks: marks + is_mark as u64,
            previous: at,
            previous_sum: sum,
            last_mark: if is_mark { at } else { last_mark },
        }
    }

    /// Its bytes, and their checksum.
    pub(super) fn encode(&self) -> (BytesMut, u32) {
        let mut to = BytesMut::with_capacity(HEADER);
        to.put_slice(&RECORD_MAGIC);
        to.put_u8(self.kind as u8);
        to.put_slice(&[0; 3]);
        to.put_u32_le(self.len);
        to.put_u32_le(self.data_sum);
        to.put_u64_le(self.tape);
        to.put_u64_le(self.epoch);
        self.place.put(&mut to);
        to.put_u64_le(self.skip);
        to.put_u64_le(self.mark_skip);
        to.resize(HEADER - 4, 0);
        let sum = crc32c(&to);
        to.put_u32_le(sum);
        (to, sum)
    }

    /// Reads a header; `None` if it is none, or not what was written. With it comes its checksum.
    pub(super) fn decode(unit: &[u8]) -> Option<(Self, u32)> {
        let (summed, sum) = unit.get(..HEADER)?.split_last_chunk::<4>()?;
        let sum = u32::from_le_bytes(*sum);
        let mut fields = Fields(summed);
        if fields.take() != RECORD_MAGIC || sum != crc32c(summed) {
            return None;
        }
        let kind = match fields.take() {
            [1, 0, 0, 0] => Kind::Block,
            [2, 0, 0, 0] => Kind::Mark,
            _ => return None,
        };
        let [len, data_sum] = [(); 2].map(|()| fields.u32());
        let [tape, epoch] = [(); 2].map(|()| fields.u64());
        let place = Place::get(&mut fields);
        let [skip, mark_skip] = [(); 2].map(|()| fields.u64());
        let header = Self { kind, len, data_sum, tape, epoch, place, skip, mark_skip };
        (len <= BLOCK_MAX && place.is_possible()).then_some((header, sum))
    }
}

/// CRC-32C.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Reads fields one after the other; what is missing reads as zeroes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.0 = rest;
                *taken
            }
            None => [0; N],
        }
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place =
        Place { at: 0x2600, object: 3, marks: 1, previous: 0x2400, previous_sum: 7, last_mark: 9 };

    #[test]
    fn label_is_read_back_and_its_damage_found() {
        assert_eq!(Label::decode(&[0; 512]), Found::Nothing);
        for (is_write_once, version) in [(false, 1), (true, 2)] {
            let label = Label { sequence: 1, tape: 2, epoch: 3, end: PLACE, is_write_once };
            let bytes = label.encode();
            assert_eq!((bytes.len() as u64, bytes[8]), (UNIT, version));
            assert_eq!(Label::decode(&bytes), Found::Label(label));
            for at in 0..bytes.len() {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 0x10;
                let found = Label::decode(&flipped);
                let expected = if at < 8 { Found::Foreign } else { Found::Damaged };
                assert_eq!(found, expected, "byte {at}");
            }
        }
    }

    #[test]
    fn header_is_read_back_and_its_damage_found() {
        let header = Header {
            kind: Kind::Mark,
            len: 0,
            data_sum: 5,
            tape: 6,
            epoch: 7,
            place: PLACE,
            skip: 8,
            mark_skip: 9,
        };
        let (bytes, sum) = header.encode();
        assert_eq!(bytes.len(), HEADER);
        assert_eq!(Header::decode(&bytes), Some((header, sum)));
        for at in 0..HEADER {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1;
            assert_eq!(Header::decode(&flipped), None, "byte {at}");
        }
    }
}
