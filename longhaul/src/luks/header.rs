//! A LUKS2 header as it lies on the volume: two binary headers with a checksum, each followed by
//! JSON (LUKS2 On-Disk Format Specification 1.1, sections 2 and 3).
//!
//! It is read here to know what to fetch, what may be overwritten, and what to refuse; everything that
//! has to do with keys is left to libcryptsetup.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use proto::reader::{Reader, Truncated};
use serde::Deserialize;
use sha2::{Digest, Sha256, Sha512};
use volume::Span;

use crate::signatures;

/// The size of the binary part.
const BINARY_SIZE: usize = 4096;

/// Where its checksum lies (section 2.1).
pub(super) const CHECKSUM_AT: usize = 448;

/// The sizes a header may have, which are also the offsets of its second copy (section 2.1).
pub(super) const HEADER_SIZES: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

/// What is kept free for a checkpoint: the largest block of a volume.
const CHECKPOINT_ROOM: u64 = 64 << 10;

/// The slots that a header can have, and the area of one with the longest key.
const SLOTS_MAX: u64 = 32;
const SLOT_AREA_MAX: u64 = 252 << 10;

/// The largest area for key slots that cryptsetup makes; a hostile header must not make us fetch more.
const KEYSLOTS_MAX: u64 = 128 << 20;

const MAGIC_FIRST: &[u8; 6] = b"LUKS\xba\xbe";
const MAGIC_SECOND: &[u8; 6] = b"SKUL\xba\xbe";

/// The one cipher of data and key slots, as LUKS2 and dm-crypt call it.
pub(super) const CIPHER: &str = "aes-xts-plain64";

/// The sizes of volume keys that it has here, in bytes.
const KEY_SIZES: [u32; 2] = [32, 64];

/// Why a header cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("there is no LUKS header")]
    Absent,
    #[error("this is a LUKS1 header; only LUKS2 is supported")]
    Luks1,
    #[error("the LUKS2 header is damaged: neither copy is valid")]
    Damaged,
    #[error("only the second copy of a LUKS2 header is left: where the first was, there is {0}")]
    Replaced(&'static str),
    #[error("its JSON is not understood")]
    Json(#[from] serde_json::Error),
    #[error("it demands what is not supported: {0}")]
    Requirement(String),
    #[error("its data are encrypted with {0}; only {CIPHER} is supported")]
    Cipher(String),
    #[error("its volume key has {0} bits; {CIPHER} is supported with 256 and 512 bits")]
    KeySize(u32),
    #[error("the volume is cut off: it has {has} bytes, and had {needs} at least")]
    CutOff { has: u64, needs: u64 },
    #[error("its data are not one plain segment: {0}")]
    Segment(String),
    #[error("key slot {0} is not enciphered with {CIPHER} but with {1}")]
    SlotCipher(String, String),
    #[error("key slot {0} is of the unknown type {1}")]
    SlotType(String, String),
    #[error("it refers to bytes outside the header")]
    Bounds,
}

/// One valid copy of a header.
#[derive(Debug)]
pub(super) struct Header {
    /// The size of this copy, JSON included.
    pub(super) size: u64,
    /// The copy with the higher number is the newer one.
    pub(super) sequence: u64,
    /// The user's name for the volume.
    pub(super) label: String,
    /// The identity of the volume.
    pub(super) uuid: String,
    /// The JSON.
    pub(super) metadata: Metadata,
}

/// Which of the two copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At the start of the volume.
    First,
    /// Right after the first.
    Second,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "the first copy",
            Self::Second => "the second copy",
        })
    }
}

/// Whether a copy of a header seems to start here, valid or not.
pub(super) fn is_second_copy(start: &[u8]) -> bool {
    start.starts_with(MAGIC_SECOND)
}

/// Whether a header, LUKS1 or LUKS2, seems to start here, valid or not.
pub(super) fn is_first_copy(start: &[u8]) -> bool {
    start.starts_with(MAGIC_FIRST)
}

/// The UUID in the copy of a header at this offset that starts with these bytes, 512 or more, valid or not; `None` if
/// there is none.
pub(super) fn uuid_at(at: u64, copy: &[u8]) -> Option<String> {
    let fields = Binary::parse(copy).ok()?;
    let magic = if at == 0 { MAGIC_FIRST } else { MAGIC_SECOND };
    let is_copy = fields.magic == *magic && fields.version == 2 && fields.offset == at;
    is_copy.then(|| lossy(&fields.uuid))
}

/// Where the binary parts of both copies may be, in a volume of this size.
pub(super) fn binary_parts_in(size: u64) -> impl Iterator<Item = Span> {
    let places = [0].into_iter().chain(HEADER_SIZES);
    let places = places.map(|at| Span::new(at, BINARY_SIZE as u64));
    places.filter(move |part| part.end() <= size)
}

impl Header {
    /// Where the binary parts of both copies are.
    pub(super) fn binary_parts(&self) -> [Span; 2] {
        [0, self.size].map(|at| Span::new(at, BINARY_SIZE as u64))
    }

    /// The newest valid copy in `bytes`, which start where the volume does.
    pub(super) fn newest(bytes: &[u8]) -> Result<(Place, Self), HeaderError> {
        match Self::copies(bytes) {
            (Ok(first), Ok(second)) if second.sequence > first.sequence => {
                Ok((Place::Second, second))
            }
            (Ok(first), _) => Ok((Place::First, first)),
            // cryptsetup does not take such a copy for a volume either: a file system made over an old
            // header leaves one behind.
            (Err(HeaderError::Absent), Ok(_)) if let Some(name) = signatures::at_start(bytes) => {
                Err(HeaderError::Replaced(name))
            }
            (Err(HeaderError::Luks1), Ok(_)) => Err(HeaderError::Luks1),
            (Err(_), Ok(second)) => Ok((Place::Second, second)),
            (Err(HeaderError::Absent), Err(why)) | (Err(why), Err(_)) => Err(why),
        }
    }

    /// The copy that is not the newest one, if it is valid and says something else: a change did not come to
    /// its end.
    pub(super) fn superseded(bytes: &[u8]) -> Option<Self> {
        match Self::copies(bytes) {
            (Ok(first), Ok(second)) if second.sequence > first.sequence => Some(first),
            (Ok(first), Ok(second)) if second.sequence < first.sequence => Some(second),
            _ => None,
        }
    }

    /// The copy that is not valid, if the other one is.
    pub(super) fn damaged(bytes: &[u8]) -> Option<Place> {
        match Self::copies(bytes) {
            (Ok(_), Err(_)) => Some(Place::Second),
            (Err(_), Ok(_)) => Some(Place::First),
            _ => None,
        }
    }

    /// Both copies.
    fn copies(bytes: &[u8]) -> (Result<Self, HeaderError>, Result<Self, HeaderError>) {
        let first = Self::parse(bytes, Place::First, 0);
        // The size is only known from a valid copy, so a second one is looked for wherever it can be.
        let second = HEADER_SIZES.iter().map(|&at| Self::parse(bytes, Place::Second, at));
        let second = second.reduce(|found, next| match next {
            Err(HeaderError::Absent) => found,
            _ if found.is_ok() => found,
            next => next,
        });
        (first, second.unwrap_or(Err(HeaderError::Absent)))
    }

    /// Whether whoever opens the volume passes discards on, and zeroes the store has read as zeroes.
    #[must_use]
    pub(super) fn passes_discards(&self) -> bool {
        self.metadata.config.flags.iter().any(|flag| flag == "allow-discards")
    }

    /// How many bytes from the start of the volume belong to the header: both copies and the slots.
    #[must_use]
    pub(super) fn area(&self) -> u64 {
        2 * self.size + self.metadata.config.keyslots_size
    }

    /// Where a checkpoint has its place: in the last 64 KiB of the header area, if cryptsetup, which takes the first gap,
    /// puts no slot there.
    pub(super) fn checkpoint(&self, volume_size: u64) -> Option<u64> {
        self.validate(volume_size).ok()?;
        let at = self.area().checked_sub(CHECKPOINT_ROOM)?;
        let is_free = self.slot_areas().all(|slot| slot.end() <= at);
        (is_free && at >= 2 * self.size + SLOTS_MAX * SLOT_AREA_MAX).then_some(at)
    }

    fn parse(bytes: &[u8], place: Place, at: u64) -> Result<Self, HeaderError> {
        let copy = usize::try_from(at).ok().and_then(|at| bytes.get(at..));
        let copy = copy.ok_or(HeaderError::Absent)?;
        let fields = Binary::parse(copy).map_err(|_: Truncated| HeaderError::Absent)?;
        if copy.len() < BINARY_SIZE {
            return Err(HeaderError::Absent);
        }
        let magic = if place == Place::First { MAGIC_FIRST } else { MAGIC_SECOND };
        if fields.magic != *magic {
            return Err(HeaderError::Absent);
        }
        if fields.version == 1 {
            return Err(HeaderError::Luks1);
        }
        let plausible = HEADER_SIZES.contains(&fields.size)
            && fields.offset == at
            && (place == Place::First || fields.size == at);
        if fields.version != 2 || !plausible {
            return Err(HeaderError::Damaged);
        }
        let copy = copy.get(..fields.size as usize).ok_or(HeaderError::Damaged)?;
        if !checksum_holds(copy, &fields) {
            return Err(HeaderError::Damaged);
        }
        let metadata: Metadata = serde_json::from_slice(text_of(&copy[BINARY_SIZE..]))?;
        if metadata.config.keyslots_size > KEYSLOTS_MAX {
            return Err(HeaderError::Bounds);
        }
        Ok(Self {
            size: fields.size,
            sequence: fields.sequence,
            label: lossy(&fields.label),
            uuid: lossy(&fields.uuid),
            metadata,
        })
    }
}

/// The fields of the binary part, in their order (section 2.1). They are its first 512 bytes; the rest is padding.
struct Binary {
    magic: [u8; 6],
    version: u16,
    size: u64,
    sequence: u64,
    label: [u8; 48],
    checksum_name: [u8; 32],
    uuid: [u8; 40],
    offset: u64,
    checksum: [u8; 64],
}

impl Binary {
    fn parse(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let magic = reader.array()?;
        let version = reader.u16()?;
        let size = reader.u64()?;
        let sequence = reader.u64()?;
        let label = reader.array()?;
        let checksum_name = reader.array()?;
        let _salt = reader.array::<64>()?;
        let uuid = reader.array()?;
        let _subsystem = reader.array::<48>()?;
        let offset = reader.u64()?;
        let _padding = reader.array::<184>()?;
        let checksum = reader.array()?;
        Ok(Self { magic, version, size, sequence, label, checksum_name, uuid, offset, checksum })
    }
}

/// The checksum is over the whole copy with its own field zero (section 2.1). It guards against torn
/// writes only: whoever can write the volume can compute it.
fn checksum_holds(copy: &[u8], fields: &Binary) -> bool {
    fn over<D: Digest>(copy: &[u8]) -> Vec<u8> {
        D::new()
            .chain_update(&copy[..CHECKSUM_AT])
            .chain_update([0; 64])
            .chain_update(&copy[CHECKSUM_AT + 64..])
            .finalize()
            .to_vec()
    }
    let digest = match text_of(&fields.checksum_name) {
        b"sha256" => over::<Sha256>(copy),
        b"sha512" => over::<Sha512>(copy),
        _ => return false,
    };
    fields.checksum.starts_with(&digest)
}

/// The bytes before the first NUL.
fn text_of(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(text_of(bytes)).into_owned()
}

/// What of the JSON is looked at here (section 3). 64-bit numbers are decimal strings there.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    /// Key slots by number.
    pub(super) keyslots: BTreeMap<u32, Keyslot>,
    /// Tokens by number: what others keep beside the slots, to open them with.
    #[serde(default)]
    pub(super) tokens: BTreeMap<u32, serde_json::Value>,
    segments: BTreeMap<u32, SegmentObject>,
    #[serde(default)]
    digests: BTreeMap<u32, DigestObject>,
    config: Config,
}

/// One key slot.
#[derive(Debug, Deserialize)]
pub(super) struct Keyslot {
    #[serde(rename = "type")]
    kind: String,
    /// The size of the volume key in bytes.
    pub(super) key_size: u32,
    area: Area,
    /// How the pass-phrase becomes a key; slots of re-encryption have none.
    pub(super) kdf: Option<Kdf>,
    /// 0: never tried unless named; 1: normal, as without it; 2: tried first.
    #[serde(default = "normal_priority")]
    pub(super) priority: u32,
}

const fn normal_priority() -> u32 {
    1
}

/// Which slots hold one key, and which segments it deciphers. Numbers are strings there.
#[derive(Debug, Deserialize)]
struct DigestObject {
    keyslots: Vec<String>,
    segments: Vec<String>,
    /// Of the key, with this salt: key slots come and go under one that stays.
    salt: Option<String>,
    digest: Option<String>,
    /// Of PBKDF2, which makes it.
    iterations: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Area {
    #[serde(deserialize_with = "decimal")]
    offset: u64,
    #[serde(deserialize_with = "decimal")]
    size: u64,
    encryption: Option<String>,
}

/// A key derivation function with its cost.
#[derive(Debug, Deserialize)]
pub(super) struct Kdf {
    /// `argon2id`, `argon2i` or `pbkdf2`.
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// Argon2: passes over the memory.
    pub(super) time: Option<u32>,
    /// Argon2: memory in KiB.
    pub(super) memory: Option<u32>,
    /// Argon2: threads.
    pub(super) cpus: Option<u32>,
    /// PBKDF2: iterations.
    pub(super) iterations: Option<u32>,
    /// PBKDF2: the hash.
    pub(super) hash: Option<String>,
    /// Random, and never used again.
    salt: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SegmentObject {
    #[serde(rename = "type")]
    kind: String,
    #[serde(deserialize_with = "decimal")]
    offset: u64,
    size: String,
    iv_tweak: Option<String>,
    encryption: Option<String>,
    sector_size: Option<u32>,
    integrity: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(deserialize_with = "decimal")]
    keyslots_size: u64,
    requirements: Option<serde_json::Value>,
    /// What holds for every opening of the volume (section 3.6).
    #[serde(default)]
    flags: Vec<String>,
}

fn decimal<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// The data, as far as the header describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    /// Where they lie on the volume.
    pub(super) span: Span,
    /// The tweak of the first sector.
    pub(super) first_tweak: u64,
    /// The size of a sector.
    pub(super) sector_size: u32,
}

impl Header {
    /// Refuses what would be opened wrongly, or would only seem encrypted.
    ///
    /// The store can write whatever header it likes. A slot with a null cipher would open with any
    /// pass-phrase, and give a volume key that the store chose; a segment with a null cipher would
    /// send plain text. So only what is known to be sound is taken, instead of refusing what is not.
    pub(super) fn validate(&self, volume_size: u64) -> Result<Payload, HeaderError> {
        if let Some(requirements) = &self.metadata.config.requirements {
            return Err(HeaderError::Requirement(requirements.to_string()));
        }
        let mut segments = self.metadata.segments.values();
        let (Some(segment), None) = (segments.next(), segments.next()) else {
            return Err(HeaderError::Segment("it has none, or several".into()));
        };
        // Of a volume with another cipher that is said, and not what follows for its key slots.
        let payload = segment.validate(self.area(), volume_size)?;
        for (number, slot) in &self.metadata.keyslots {
            self.validate_slot(*number, slot)?;
        }
        let mut sizes = self.volume_slots().map(|(_, slot)| slot.key_size);
        match sizes.find(|size| !KEY_SIZES.contains(size)) {
            Some(size) => Err(HeaderError::KeySize(size.saturating_mul(8))),
            None => Ok(payload),
        }
    }

    fn validate_slot(&self, number: u32, slot: &Keyslot) -> Result<(), HeaderError> {
        if slot.kind != "luks2" {
            return Err(HeaderError::SlotType(number.to_string(), slot.kind.clone()));
        }
        match slot.area.encryption.as_deref() {
            Some(CIPHER) => {}
            other => {
                let cipher = other.unwrap_or("nothing").to_owned();
                return Err(HeaderError::SlotCipher(number.to_string(), cipher));
            }
        }
        let area = Span::new(slot.area.offset, slot.area.size);
        if area.at < 2 * self.size || area.end() > self.area() {
            return Err(HeaderError::Bounds);
        }
        Ok(())
    }

    /// Whether the data of both are enciphered with one key, as far as their digests tell.
    pub(super) fn has_key_of(&self, other: &Self) -> bool {
        let digests = |header: &Self| -> Vec<(Option<String>, Option<String>)> {
            let Metadata { segments, digests, .. } = &header.metadata;
            let of_data = |digest: &&DigestObject| {
                digest
                    .segments
                    .iter()
                    .any(|name| segments.keys().any(|segment| segment.to_string() == *name))
            };
            let of_data = digests.values().filter(of_data);
            of_data.map(|digest| (digest.salt.clone(), digest.digest.clone())).collect()
        };
        let (here, there) = (digests(self), digests(other));
        here.iter().any(|digest| there.contains(digest))
    }

    /// How many iterations of PBKDF2 tell whether a slot gave the right key.
    pub(super) fn digest_iterations(&self) -> u64 {
        self.metadata.digests.values().filter_map(|digest| digest.iterations).map(u64::from).sum()
    }

    /// The slots that hold the key of the data. Others may hold keys of something else (`cryptsetup luksAddKey
    /// --unbound`), under which the data would be noise, and what is written lost.
    pub(super) fn volume_slots(&self) -> impl Iterator<Item = (u32, &Keyslot)> {
        let Metadata { keyslots, segments, digests, .. } = &self.metadata;
        let of_data = |digest: &&DigestObject| {
            segments.keys().any(|segment| digest.segments.contains(&segment.to_string()))
        };
        let listed: BTreeSet<&String> =
            digests.values().filter(of_data).flat_map(|digest| &digest.keyslots).collect();
        let slots = keyslots.iter().map(|(number, slot)| (*number, slot));
        slots.filter(move |(number, _)| listed.contains(&number.to_string()))
    }

    /// The numbers of the slots that `other` does not have.
    pub(super) fn slots_without(&self, other: &Self) -> Vec<u32> {
        let slots = self.metadata.keyslots.keys().copied();
        slots.filter(|&slot| self.twin(slot, other).is_none()).collect()
    }

    /// The number that `slot` has in `other`: a slot is known by its salt.
    pub(super) fn twin(&self, slot: u32, other: &Self) -> Option<u32> {
        fn salt(slot: &Keyslot) -> Option<&String> {
            slot.kdf.as_ref()?.salt.as_ref()
        }
        let wanted = salt(self.metadata.keyslots.get(&slot)?);
        let mut slots = other.metadata.keyslots.iter();
        slots.find(|(_, slot)| salt(slot) == wanted).map(|(number, _)| *number)
    }

    /// What is in `bytes` of the key that `slot` holds.
    pub(super) fn material<'a>(&self, slot: u32, bytes: &'a [u8]) -> Option<&'a [u8]> {
        /// LUKS2's only number of stripes.
        const STRIPES: u64 = 4000;
        let slot = self.metadata.keyslots.get(&slot)?;
        let len = slot.area.size.min(STRIPES * u64::from(slot.key_size)) as usize;
        bytes.get(slot.area.offset as usize..)?.get(..len)
    }

    /// Whether the material of `slot` can be what was written there: it is random throughout. What was overwritten
    /// with random bytes cannot be told from it.
    pub(super) fn is_damaged(&self, slot: u32, bytes: &[u8]) -> bool {
        /// Random bytes have 221 different values among 512, five more or less.
        const VALUES_MIN: usize = 160;
        let material = self.material(slot, bytes);
        let is_random = |sector: &[u8]| {
            let mut seen = [false; 256];
            sector.iter().for_each(|&byte| seen[usize::from(byte)] = true);
            seen.iter().filter(|&&seen| seen).count() >= VALUES_MIN
        };
        material.is_some_and(|material| !material.chunks_exact(512).all(is_random))
    }

    /// Where the material of the slots in use lies.
    pub(super) fn slot_areas(&self) -> impl Iterator<Item = Span> {
        self.metadata.keyslots.values().map(|slot| Span::new(slot.area.offset, slot.area.size))
    }
}

impl SegmentObject {
    fn validate(&self, header: u64, volume_size: u64) -> Result<Payload, HeaderError> {
        let wrong = |what: String| Err(HeaderError::Segment(what));
        if self.kind != "crypt" {
            return wrong(format!("it is of type {}", self.kind));
        }
        if self.integrity.is_some() {
            return wrong("it has integrity tags, which need dm-integrity".into());
        }
        match self.encryption.as_deref() {
            Some(CIPHER) => {}
            other => return Err(HeaderError::Cipher(other.unwrap_or("no cipher").to_owned())),
        }
        let Some(sector_size @ (512 | 1024 | 2048 | 4096)) = self.sector_size else {
            return wrong(format!("sectors of {:?} bytes", self.sector_size));
        };
        let first_tweak = match self.iv_tweak.as_deref().map(str::parse) {
            None => 0,
            Some(Ok(tweak)) => tweak,
            Some(Err(_)) => return wrong("its tweak is not a number".into()),
        };
        let rest = volume_size.saturating_sub(self.offset);
        let len = match (self.size.as_str(), self.size.parse()) {
            ("dynamic", _) => rest,
            (_, Ok(len)) => len,
            (size, Err(_)) => return wrong(format!("a size of {size}")),
        };
        // With nothing behind the header there was a sector at least.
        if let Some(needs) = self.offset.checked_add(len.max(sector_size.into()))
            && needs > volume_size
        {
            return Err(HeaderError::CutOff { has: volume_size, needs });
        }
        let len = len - len % u64::from(sector_size);
        if len == 0 || len > rest || self.offset < header || !self.offset.is_multiple_of(512) {
            return wrong(format!(
                "{len} bytes at {} do not lie between the header and the end of the volume \
                 ({volume_size} bytes)",
                self.offset
            ));
        }
        Ok(Payload { span: Span::new(self.offset, len), first_tweak, sector_size })
    }
}

#[cfg(test)]
mod tests;
