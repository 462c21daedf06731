//! What stands in the file: superblocks, frames and their descriptors. `docs/spec/journal.md` has the tables.

mod reader;

use sha2::{Digest as _, Sha256};

use self::reader::Reader;
use crate::{Space, Span};

/// The unit of places and lengths in the file, in bytes.
pub const PAGE: u64 = 4096;

/// Where the ring begins, in bytes from the start of the file.
pub const RING_START: u64 = 2 << 20;

/// The most changes in one frame: the head is one page, so that any page can be judged by itself.
pub(super) const DESCRIPTORS_MAX: usize = 160;

/// The most bytes of one write in a frame: what has to be read to check one byte of it.
pub(super) const PAYLOAD_MAX: u64 = 64 << 10;

/// No count gets there; sums of such do not overflow.
const COUNT_MAX: u64 = 1 << 62;

pub(super) const VERSION: u32 = 1;

/// The fields of a superblock or checkpoint, which their checksum follows: a disk writes all of a sector or nothing.
const SUMMED: usize = 480;

const SUPERBLOCK_MAGIC: &[u8; 8] = b"LHJOURNL";
const FRAME_MAGIC: &[u8; 8] = b"LHJFRAME";
const FRAME_HEADER: usize = 104;
const DESCRIPTOR: usize = 24;
const FRAME_SUM: usize = 4064;

const _: () = assert!(FRAME_HEADER + DESCRIPTORS_MAX * DESCRIPTOR <= FRAME_SUM);
const _: () = assert!(FRAME_SUM + 32 == PAGE as usize);

/// A SHA-256.
type Sum = [u8; 32];

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// They end too soon.
    #[error("it is cut short")]
    Short,
    /// They do not begin as such bytes do.
    #[error("there is none")]
    Magic,
    /// They are of a version that is not known.
    #[error("version {0} is not known")]
    Version(u32),
    /// They are not those that were written.
    #[error("its checksum is wrong")]
    Checksum,
    /// A field has a value that it cannot have.
    #[error("its {0} cannot be")]
    Field(&'static str),
}

/// A place in the log: what a frame there must state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPoint {
    /// Bytes appended before it since the journal was made; a multiple of [`PAGE`].
    pub position: u64,
    /// The sequence number of the frame there.
    pub seq: u64,
    /// The checksum of the frame before it.
    pub chain: [u8; 32],
}

/// Which volume the changes are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A digest of what identifies it, chosen by the caller.
    pub name: [u8; 32],
    /// Its size in bytes.
    pub size: u64,
    /// Its block size in bytes.
    pub block_size: u32,
}

/// How a journal was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockState {
    /// It is in use, or its user crashed.
    Open,
    /// All changes are durable at the store.
    Clean,
    /// Another writer has the volume: nothing may be sent.
    Frozen,
}

/// Where the log begins and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// How the journal was left.
    pub state: SuperblockState,
    /// Each that is written has the next number.
    pub number: u64,
    /// The id of the journal.
    pub id: [u8; 16],
    /// What checksums of frames begin with.
    pub salt: [u8; 32],
    /// The volume.
    pub volume: Identity,
    /// The length of the ring in bytes.
    pub ring_len: u64,
    /// How often the journal was opened.
    pub epoch: u64,
    /// Who may write to the volume.
    pub token: u64,
    /// Where the log begins.
    pub tail: LogPoint,
    /// The last group that is durable at the store.
    pub drained_group: u64,
    /// The last frame that was known to be stable.
    pub durable_seq: u64,
}

impl Superblock {
    /// The first superblock of a journal in a file of `file_len` bytes. `id` and `salt` are random. Its
    /// [`encode`](Self::encode) is written to both places of a file that is otherwise preallocated, and synchronised,
    /// with the numbers 0 and 1.
    ///
    /// # Errors
    ///
    /// If the file is too short for a ring of sixteen blocks and 64 KiB.
    pub fn new(
        id: [u8; 16],
        salt: [u8; 32],
        volume: Identity,
        file_len: u64,
    ) -> Result<[Self; 2], Invalid> {
        let ring_len = file_len.saturating_sub(RING_START) / PAGE * PAGE;
        check_ring(ring_len, volume.block_size)?;
        let tail = LogPoint { position: 0, seq: 1, chain: [0; 32] };
        let first = Self {
            state: SuperblockState::Clean,
            number: 0,
            id,
            salt,
            volume,
            ring_len,
            epoch: 0,
            token: 0,
            tail,
            drained_group: 0,
            durable_seq: 0,
        };
        Ok([first, Self { number: 1, ..first }])
    }

    /// The bytes at its place, [`PAGE`] of them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let state: u32 = match self.state {
            SuperblockState::Open => 0,
            SuperblockState::Clean => 1,
            SuperblockState::Frozen => 2,
        };
        let mut bytes = Vec::with_capacity(PAGE as usize);
        bytes.extend_from_slice(SUPERBLOCK_MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&state.to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(&self.salt);
        bytes.extend_from_slice(&self.volume.name);
        bytes.extend_from_slice(&self.volume.size.to_le_bytes());
        bytes.extend_from_slice(&self.volume.block_size.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for word in [self.ring_len, self.epoch, self.token, self.tail.position, self.tail.seq] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.tail.chain);
        bytes.extend_from_slice(&self.drained_group.to_le_bytes());
        bytes.extend_from_slice(&self.durable_seq.to_le_bytes());
        with_sum(bytes, PAGE as usize)
    }

    /// Reads what [`encode`](Self::encode) wrote from the first 512 bytes.
    ///
    /// # Errors
    ///
    /// If they are not those of a superblock.
    pub fn decode(bytes: &[u8]) -> Result<Self, Invalid> {
        let mut fields = fields_of(bytes, SUPERBLOCK_MAGIC)?;
        let state = match fields.u32()? {
            0 => SuperblockState::Open,
            1 => SuperblockState::Clean,
            2 => SuperblockState::Frozen,
            _ => return Err(Invalid::Field("state")),
        };
        let (number, id, salt) = (fields.u64()?, fields.array()?, fields.array()?);
        let volume =
            Identity { name: fields.array()?, size: fields.u64()?, block_size: fields.u32()? };
        fields.take(4)?;
        let (ring_len, epoch, token) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let tail = fields.point()?;
        let (drained_group, durable_seq) = (fields.u64()?, fields.u64()?);
        let counts = [number, epoch, tail.position, tail.seq, drained_group, durable_seq];
        if counts.iter().any(|count| *count > COUNT_MAX) {
            return Err(Invalid::Field("counts"));
        }
        if tail.seq == 0 || !tail.position.is_multiple_of(PAGE) {
            return Err(Invalid::Field("tail"));
        }
        check_ring(ring_len, volume.block_size)?;
        Ok(Self {
            state,
            number,
            id,
            salt,
            volume,
            ring_len,
            epoch,
            token,
            tail,
            drained_group,
            durable_seq,
        })
    }
}

/// A frame with a block must fit a quarter of the ring; positions must not overflow.
fn check_ring(ring_len: u64, block_size: u32) -> Result<(), Invalid> {
    let least = 16 * u64::from(block_size).max(PAGE);
    match ring_len.is_multiple_of(PAGE) && (least..COUNT_MAX).contains(&ring_len) {
        true if u64::from(block_size) <= PAYLOAD_MAX => Ok(()),
        true => Err(Invalid::Field("block size")),
        false => Err(Invalid::Field("length of the ring")),
    }
}

/// Where the superblock of that number stands, in bytes from the start of the file.
#[must_use]
pub const fn superblock_offset(number: u64) -> u64 {
    (number % 2) * (1 << 20)
}

/// What a frame says of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The bytes of the volume that it changes.
    pub span: Span,
    /// How.
    pub change: Change,
}

/// How a change changes its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// To bytes with this CRC32C.
    Write {
        /// Of all bytes of the change.
        crc: u32,
    },
    /// To zeroes.
    Zero(Space),
    /// They no longer matter.
    Discard,
}

impl Descriptor {
    /// How many bytes it has behind the head of its frame.
    #[must_use]
    pub const fn payload_len(&self) -> u64 {
        match self.change {
            Change::Write { .. } => self.span.len,
            Change::Zero(_) | Change::Discard => 0,
        }
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        let (kind, flags, crc): (u8, u8, u32) = match self.change {
            Change::Write { crc } => (1, 0, crc),
            Change::Zero(Space::Keep) => (2, 0, 0),
            Change::Zero(Space::Release) => (2, 1, 0),
            Change::Discard => (3, 0, 0),
        };
        bytes.extend_from_slice(&[kind, flags, 0, 0]);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&self.span.at.to_le_bytes());
        bytes.extend_from_slice(&self.span.len.to_le_bytes());
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, Invalid> {
        let (kind, crc) = (reader.array()?, reader.u32()?);
        let span = Span::new(reader.u64()?, reader.u64()?);
        let change = match (kind, crc) {
            ([1, 0, 0, 0], crc) if span.len <= PAYLOAD_MAX => Change::Write { crc },
            ([2, 0, 0, 0], 0) => Change::Zero(Space::Keep),
            ([2, 1, 0, 0], 0) => Change::Zero(Space::Release),
            ([3, 0, 0, 0], 0) => Change::Discard,
            _ => return Err(Invalid::Field("descriptor")),
        };
        match span.at.checked_add(span.len) {
            Some(_) if span.len > 0 => Ok(Self { span, change }),
            _ => Err(Invalid::Field("span")),
        }
    }
}

/// Where the bytes of a write stand in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes from the start of the file.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// Their CRC32C.
    pub crc: u32,
}

impl Extent {
    /// Whether these, read from its place, are the bytes that were written there.
    #[must_use]
    pub fn verify(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.len && crc32c(bytes) == self.crc
    }
}

/// The CRC32C of the bytes of a write.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// The head of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Where it stands, which frame it is, and which was before it.
    pub point: LogPoint,
    /// The epoch that made it.
    pub epoch: u64,
    /// The group of its changes.
    pub group: u64,
    /// Bytes from its position to the next one's; a multiple of [`PAGE`].
    pub length: u64,
    /// All frames up to this one were stable when it was made.
    pub durable_seq: u64,
    /// The last superblock that was stable when it was made.
    pub superblock: u64,
    /// Its changes, in order.
    pub changes: Vec<Descriptor>,
}

impl Frame {
    /// The head, [`PAGE`] bytes, and its checksum, which the next frame states.
    ///
    /// # Panics
    ///
    /// If it has more changes than a head has room for.
    #[must_use]
    pub fn encode(&self, salt: &[u8; 32]) -> (Vec<u8>, [u8; 32]) {
        assert!(self.changes.len() <= DESCRIPTORS_MAX, "{} changes", self.changes.len());
        let count = self.changes.len() as u32;
        let LogPoint { position, seq, chain } = self.point;
        let mut bytes = Vec::with_capacity(PAGE as usize);
        bytes.extend_from_slice(FRAME_MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        let words = [position, seq, self.epoch, self.group, self.length];
        for word in words.into_iter().chain([self.durable_seq, self.superblock]) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&chain);
        self.changes.iter().for_each(|change| change.encode(&mut bytes));
        let sum = salted(salt, &bytes);
        bytes.resize(FRAME_SUM, 0);
        bytes.extend_from_slice(&sum);
        (bytes, sum)
    }

    /// Reads a head, and its checksum.
    ///
    /// # Errors
    ///
    /// If these are not the bytes of one that was made with this salt.
    pub fn decode(bytes: &[u8], salt: &[u8; 32]) -> Result<(Self, [u8; 32]), Invalid> {
        let mut reader = Reader::new(bytes);
        let mut fields = Reader::new(reader.take(FRAME_SUM)?);
        let sum: Sum = reader.array()?;
        expect_magic(&mut fields, FRAME_MAGIC)?;
        expect_version(&mut fields)?;
        let count = fields.u32()? as usize;
        if count > DESCRIPTORS_MAX {
            return Err(Invalid::Field("number of changes"));
        }
        if salted(salt, &bytes[..FRAME_HEADER + count * DESCRIPTOR]) != sum {
            return Err(Invalid::Checksum);
        }
        let (position, seq, epoch) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (group, length, durable_seq) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (superblock, chain) = (fields.u64()?, fields.array()?);
        let changes: Vec<_> =
            (0..count).map(|_| Descriptor::decode(&mut fields)).collect::<Result<_, _>>()?;
        let point = LogPoint { position, seq, chain };
        let frame = Self { point, epoch, group, length, durable_seq, superblock, changes };
        if !length.is_multiple_of(PAGE) || length < PAGE + frame.payload_len() {
            return Err(Invalid::Field("length"));
        }
        Ok((frame, sum))
    }

    /// How many bytes of its writes follow the head.
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        self.changes.iter().map(Descriptor::payload_len).sum()
    }

    /// How long a frame with so many bytes of writes is.
    pub(super) const fn length_for(payload_len: u64) -> u64 {
        PAGE + payload_len.next_multiple_of(PAGE)
    }
}

/// Makes the sum of a page fit that begins as the head of a frame does, and its chain the sum of the frame `before`. Gives the
/// sum.
#[cfg(any(test, feature = "invariants"))]
pub(super) fn fit(page: &mut [u8], salt: &[u8; 32], before: &[u8; 32]) -> Option<[u8; 32]> {
    let count = page.strip_prefix(FRAME_MAGIC)?.get(4..8)?.try_into().ok()?;
    let count = (u32::from_le_bytes(count) as usize).min(DESCRIPTORS_MAX);
    page.get_mut(72..104)?.copy_from_slice(before);
    let sum = salted(salt, page.get(..FRAME_HEADER + count * DESCRIPTOR)?);
    page.get_mut(FRAME_SUM..)?.copy_from_slice(&sum);
    Some(sum)
}

fn salted(salt: &[u8; 32], bytes: &[u8]) -> Sum {
    Sha256::new().chain_update(salt).chain_update(bytes).finalize().into()
}

/// These fields, and their checksum, in so many bytes.
pub(super) fn with_sum(mut fields: Vec<u8>, len: usize) -> Vec<u8> {
    fields.resize(SUMMED, 0);
    let sum: Sum = Sha256::digest(&fields).into();
    fields.extend_from_slice(&sum);
    fields.resize(len, 0);
    fields
}

/// The fields that stand there behind this magic and the version.
pub(super) fn fields_of<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Result<Reader<'a>, Invalid> {
    let mut reader = Reader::new(bytes);
    let summed = reader.take(SUMMED)?;
    let (mut fields, sum): (_, Sum) = (Reader::new(summed), reader.array()?);
    expect_magic(&mut fields, magic)?;
    if Sum::from(Sha256::digest(summed)) != sum {
        return Err(Invalid::Checksum);
    }
    expect_version(&mut fields)?;
    Ok(fields)
}

fn expect_magic(fields: &mut Reader<'_>, magic: &[u8; 8]) -> Result<(), Invalid> {
    if fields.array::<8>()? == *magic { Ok(()) } else { Err(Invalid::Magic) }
}

fn expect_version(fields: &mut Reader<'_>) -> Result<(), Invalid> {
    match fields.u32()? {
        VERSION => Ok(()),
        other => Err(Invalid::Version(other)),
    }
}

#[cfg(test)]
mod tests;
