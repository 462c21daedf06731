//! Replay logs: files of changes that were acknowledged, or under way, and that a volume could not be given any more.
//!
//! When an attachment is given up, what it had acknowledged or under way, and not flushed, goes to such a file, as it would have
//! been sent, and `longhaul replay` writes it later. `docs/spec/replay-log.md` specifies the format.
//!
//! ```text
//! a store that gives up -> Writer -> a thread -> the file -> Reader -> a volume
//! ```

mod format;
mod pending;
mod reader;
mod superseded;
mod writer;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use volume::{Space, Span};

pub use pending::{Pending, applied_name, created, is_readable, is_written, of_key, pending};
pub use reader::{ReadError, Reader, Record, Records};
pub use superseded::{forget_superseded, note_superseded, superseded_at};
pub use writer::{Saved, Writer, check_dir};

/// A change of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the verbs of a volume")]
pub enum Change {
    Write { at: u64, data: Bytes },
    Zero { span: Span, space: Space },
    Discard(Span),
}

impl Change {
    /// The bytes that it changes.
    #[must_use]
    pub fn span(&self) -> Span {
        match self {
            Self::Write { at, data } => Span::new(*at, data.len() as u64),
            Self::Zero { span, .. } | Self::Discard(span) => *span,
        }
    }
}

/// Which volume a log belongs to, and who wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The URI it was opened by. It holds no secrets.
    pub volume: String,
    /// The name of the target.
    pub target: String,
    /// The logical unit.
    pub lun: u16,
    /// The serial number of the unit, if it has one.
    pub serial: Option<String>,
    /// VENDOR IDENTIFICATION.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION.
    pub product: String,
    /// Bytes of the volume.
    pub size: u64,
    /// The unit of its requests.
    pub block_size: u32,
    /// When it was opened, in seconds of the Unix epoch: what is in the log was written after that.
    pub opened: u64,
    /// When the log was begun.
    pub created: u64,
    /// The name of the machine.
    pub host: String,
    /// The UUID of the LUKS header, if the volume was opened as an encrypted one.
    #[serde(default)]
    pub luks_uuid: Option<String>,
    /// The key of the reservation, if there was one.
    #[serde(default, with = "key")]
    pub key: Option<u64>,
}

/// A key as people write it, since not every reader of JSON knows numbers of 64 bits.
mod key {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(key: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        key.map(|key| format!("{key:#018x}")).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let digits = text.strip_prefix("0x").ok_or_else(|| D::Error::custom("no key"))?;
        u64::from_str_radix(digits, 16).map(Some).map_err(D::Error::custom)
    }
}
