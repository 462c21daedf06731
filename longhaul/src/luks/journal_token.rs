//! The token in the header that says which machine keeps changes for the volume in a journal.
//!
//! It keeps nobody away: the reservation does. It tells whoever is kept away what a take-over would leave behind, and
//! `cryptsetup luksDump` shows it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use volume::Volume;

use super::header::{Header, HeaderError};
use super::image::{Image, ImageError};
use super::token_kind::{JOURNAL, is_of};
use super::writeback::{self, Before};
use super::{blocking, library, narrowed};
use crate::failure::Outcome;
use crate::printable::OneLine;
use crate::size::Size;
use crate::utc::{now, utc};

/// What a token says of a journal. Numbers of 64 bits are strings there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct JournalToken {
    #[serde(rename = "type")]
    kind: String,
    /// None: the token opens nothing.
    keyslots: Vec<String>,
    /// The id in its superblock.
    journal: String,
    /// The key of the reservation under which it is used.
    key: String,
    host: String,
    /// Seconds since 1970.
    since: String,
    state: String,
    /// The most bytes that the volume can lack.
    size: String,
}

/// The journal is used, or its machine was cut off.
const OPEN: &str = "open";

impl JournalToken {
    /// Of a journal of this machine that is used from now on, under this key of a reservation, and has room for so many
    /// bytes.
    #[must_use]
    pub fn new(id: &[u8; 16], key: u64, size: u64) -> Self {
        Self {
            kind: JOURNAL.to_owned(),
            keyslots: Vec::new(),
            journal: id.iter().map(|byte| format!("{byte:02x}")).collect(),
            key: name(key),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            since: now().to_string(),
            state: OPEN.to_owned(),
            size: size.to_string(),
        }
    }

    /// Whether it is of the journal with this id.
    #[must_use]
    pub fn is_of(&self, id: &[u8; 16]) -> bool {
        self.journal == Self::new(id, 0, 0).journal
    }

    /// Whether the journal is used under this key of a reservation.
    #[must_use]
    pub fn has_key(&self, key: u64) -> bool {
        self.key == name(key)
    }

    /// Which machine, since when and how much, for people. Anybody may have written it.
    #[must_use]
    pub fn describe(&self) -> String {
        let since = match self.since.parse() {
            Ok(seconds @ 0..=253_402_300_799) => utc(seconds),
            _ => "an unknown time".to_owned(),
        };
        let most =
            self.size.parse().map_or_else(|_| "some".to_owned(), |most| Size(most).to_string());
        let Self { host, journal, .. } = self;
        OneLine(format_args!(
            "host {host} has kept changes in the journal {journal} since {since}: up to {most} of them may not be on the volume"
        ))
        .to_string()
    }
}

fn name(key: u64) -> String {
    format!("{key:#018x}")
}

/// The tokens of journals; `None` stands for one that cannot be read.
fn journals(header: &Header) -> impl Iterator<Item = (u32, Option<JournalToken>)> {
    let tokens = header.metadata.tokens.iter().filter(|(_, token)| is_of(token, JOURNAL));
    tokens.map(|(number, token)| (*number, serde_json::from_value(token.clone()).ok()))
}

/// The token of a journal in the header of `volume`, if that is encrypted and has one that can be read.
pub async fn journal_token(volume: &Arc<dyn Volume>) -> volume::Result<Option<JournalToken>> {
    match Image::copies(&narrowed(Arc::clone(volume))).await {
        Ok((_, header)) => Ok(journals(&header).find_map(|(_, token)| token)),
        Err(ImageError::Header(_)) => Ok(None),
        Err(ImageError::Volume(why)) => Err(why),
    }
}

/// Makes `token` the only one of a journal in the header of `volume`, or has none there. A volume that is not encrypted
/// stays as it is, and so does a header of which a change was cut short: its older copy says what is to be wiped, and nobody
/// has shown a secret.
pub async fn put_journal_token(volume: &Arc<dyn Volume>, token: Option<JournalToken>) -> Outcome {
    let store = narrowed(Arc::clone(volume));
    let size = store.shape().size;
    let bytes = match Image::copies(&store).await {
        Ok((bytes, _)) => bytes,
        Err(ImageError::Header(HeaderError::Absent)) => return Ok(()),
        Err(why) => return Err(why.into_failure()),
    };
    let image = Image::parse(bytes, size).map_err(|why| ImageError::from(why).into_failure())?;
    let old: Vec<u32> = journals(&image.header).map(|(number, _)| number).collect();
    let is_whole = image.damaged.is_none() && Header::superseded(&image.bytes).is_none();
    if (old.is_empty() && token.is_none()) || !is_whole {
        return Ok(());
    }
    let (image, new) = blocking(move || {
        let bytes = library::with_token(&image, size, &old, token.as_ref())?;
        let new = Image::changed(bytes, size)?;
        Ok((image, new))
    })
    .await?;
    writeback::write(&store, Before::Changed(&image), &new).await
}
