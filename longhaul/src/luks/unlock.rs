//! Whether a volume is encrypted, and opening it: which secret, how often it is asked for, and what is
//! repaired once a secret has proved that the header is the owner's.

use std::sync::{Arc, OnceLock};

use serde::Serialize;
use volume::{Span, Volume};
use zeroize::Zeroizing;

use super::header::{Header, HeaderError, binary_parts_in, uuid_at};
use super::image::{Image, ImageError};
use super::library::{self, Opened, UnlockResult};
use super::{
    Claim, Options, Unlocked, WriterToken, blocking, damage, header_recovery, narrowed, plain,
    recorded_size, strength,
};
use crate::failure::{Failure, Outcome, print_error};
use crate::printable::Shown as _;
use crate::progress::Spinner;
use crate::secret::{Secret, Source, others_read};

/// How often a person may mistype.
const ATTEMPTS: u32 = 3;

/// What opens a volume: a secret, or where one is had from.
#[derive(Clone, Debug)]
pub struct Key {
    origin: Origin,
    /// Where the volume key is noted once it is known.
    noted: Option<Arc<OnceLock<Secret>>>,
}

#[derive(Clone, Debug)]
enum Origin {
    Given(Secret),
    Asked {
        source: Source,
        what: String,
    },
    New {
        source: Source,
        what: String,
    },
    Another {
        source: Source,
        what: String,
    },
    /// The volume key itself, that an earlier process had; `None` if it had none.
    Volume(Option<Secret>),
}

impl From<Secret> for Key {
    fn from(secret: Secret) -> Self {
        Self::of(Origin::Given(secret))
    }
}

impl Key {
    const fn of(origin: Origin) -> Self {
        Self { origin, noted: None }
    }

    /// The volume key itself, that an earlier process had: no other opens the volume. With `None` it was not encrypted then,
    /// and must not be now.
    #[must_use]
    pub const fn of_volume(key: Option<Secret>) -> Self {
        Self::of(Origin::Volume(key))
    }

    /// The same, and the volume key is noted there once it is known.
    #[must_use]
    pub fn noted_in(self, noted: Arc<OnceLock<Secret>>) -> Self {
        Self { noted: Some(noted), ..self }
    }

    /// Read from `source` once it is needed; `what` names it in the prompt.
    #[must_use]
    pub fn asked(source: Source, what: impl Into<String>) -> Self {
        Self::of(Origin::Asked { source, what: what.into() })
    }

    /// The same for a secret that is about to be set: what is typed is typed twice.
    #[must_use]
    pub fn new(source: Source, what: impl Into<String>) -> Self {
        Self::of(Origin::New { source, what: what.into() })
    }

    /// The same for one that is set beside another: the options that give it have names of their own.
    #[must_use]
    pub fn another(source: Source, what: impl Into<String>) -> Self {
        Self::of(Origin::Another { source, what: what.into() })
    }

    pub(crate) async fn read(&self) -> Outcome<Secret> {
        match self.origin.clone() {
            Origin::Given(secret) => Ok(secret),
            Origin::Volume(_) => Err(Failure::new("a volume key is no pass-phrase")),
            Origin::Asked { source, what } => blocking(move || asked(&source, &what)).await,
            Origin::New { source, what } => blocking(move || new(&source, &what)).await,
            Origin::Another { source, what } => {
                let is_asked = source == Source::Prompt;
                blocking(move || new(&source, &what)).await.map_err(|why| match is_asked {
                    true => why.hint_if_any(
                        "give it with --new-passphrase-file, --new-passphrase-env or --new-key-file instead",
                    ),
                    false => why,
                })
            }
        }
    }

    /// How often it is read where it is wrong.
    pub(crate) const fn attempts(&self) -> u32 {
        match &self.origin {
            Origin::Asked { source: Source::Prompt, .. } => ATTEMPTS,
            _ => 1,
        }
    }

    /// Opens a slot of `image`, of a volume of `size` bytes; answers the secret that did it too. A wrong
    /// pass-phrase is asked for again where a person types it.
    pub(super) async fn open(&self, image: &Arc<Image>, size: u64) -> Outcome<(Opened, Secret)> {
        let (opened, secret) = match &self.origin {
            Origin::Volume(key) => with_volume_key(key.as_ref(), image, size).await?,
            _ => self.open_slot(image, size).await?,
        };
        if let Some(noted) = &self.noted {
            let _ = noted.set(Secret::new(opened.key.to_vec()));
        }
        Ok((opened, secret))
    }

    async fn open_slot(&self, image: &Arc<Image>, size: u64) -> Outcome<(Opened, Secret)> {
        if image.header.volume_slots().next().is_none() {
            let what = "the volume has no key slot left: no pass-phrase or key file opens it";
            return Err(Failure::new(what).hint(
                "`longhaul key restore` brings key slots back from a backup of the header; without one the data are lost",
            ));
        }
        let mut left = self.attempts();
        loop {
            let secret = self.read().await?;
            let (image, tried) = (Arc::clone(image), secret.clone());
            let spinner = Spinner::new("deriving the key from the pass-phrase");
            let outcome = blocking(move || library::open(&image, size, &tried)).await;
            drop(spinner);
            match outcome? {
                UnlockResult::Opened(opened) => return Ok((opened, secret)),
                UnlockResult::None(why) => {
                    left -= 1;
                    if left == 0 {
                        return Err(why);
                    }
                    print_error(&format_args!("longhaul: {why}; try again"));
                }
            }
        }
    }
}

/// Opens it with the volume key of before, which needs no slot.
async fn with_volume_key(
    key: Option<&Secret>,
    image: &Arc<Image>,
    size: u64,
) -> Outcome<(Opened, Secret)> {
    let Some(key) = key.cloned() else {
        return Err(Failure::new("the volume is encrypted now, and was not before"));
    };
    let (image, tried) = (Arc::clone(image), key.clone());
    match blocking(move || library::verify(&image, size, tried.expose())).await? {
        true => {
            let slot = u32::MAX;
            Ok((Opened { slot, key: Zeroizing::new(key.expose().to_vec()) }, key))
        }
        false => Err(Failure::new("the volume has another key than before")),
    }
}

fn asked(source: &Source, what: &str) -> Outcome<Secret> {
    if let Some(path) = others_read(source) {
        let path = path.shown();
        print_error(&format_args!(
            "longhaul: others than its owner may read {path}, which opens a volume: chmod 600 {path}"
        ));
    }
    source.read(what)
}

fn new(source: &Source, what: &str) -> Outcome<Secret> {
    let secret = match source {
        Source::Prompt => source.read_new(what)?,
        _ => asked(source, what)?,
    };
    // A key file is random, or its owner's affair.
    if !matches!(source, Source::KeyFile(_))
        && let Some(hint) = strength::hint(secret.expose())
    {
        print_error(&format_args!("longhaul: {hint}"));
    }
    Ok(secret)
}

/// A volume that has a LUKS header, or what is left of one.
pub struct Encrypted {
    store: Arc<dyn Volume>,
    header: Result<Arc<Image>, HeaderError>,
    /// What names the writer to others, if nothing else keeps them away.
    token: Option<Arc<WriterToken>>,
}

/// Looks whether `volume` is encrypted; nothing is written, and no secret is needed. What holds but one
/// copy of a header, or a header that cannot be used, is encrypted.
pub async fn recognise(volume: Arc<dyn Volume>) -> Outcome<Option<Encrypted>> {
    let store = narrowed(volume);
    let header = match Image::fetch(&store).await {
        Ok(image) => Ok(Arc::new(image)),
        Err(ImageError::Header(HeaderError::Absent)) => return Ok(None),
        Err(ImageError::Header(why)) => Err(why),
        Err(why @ ImageError::Volume(_)) => return Err(why.into_failure()),
    };
    Ok(Some(Encrypted { store, header, token: None }))
}

/// What a header says of its volume, to whoever has no secret.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The identity of the volume.
    pub uuid: Option<String>,
    /// Its name for people.
    pub label: Option<String>,
    /// How many bytes its contents have.
    pub size: Option<u64>,
    /// Whether discards are passed on.
    pub discards: bool,
    /// Why it cannot be opened as it is, or what of its header is damaged.
    pub trouble: Option<String>,
}

/// The identity of a volume, if it is encrypted, and how it is found again.
pub struct LuksIdentity {
    /// The identity; `None` if no copy of a header is valid.
    pub uuid: Option<String>,
    /// Where the header has it.
    pub copies: Vec<Span>,
    /// Where else a header would have one.
    pub others: Vec<Span>,
    /// No copy of a header is there, valid or not.
    pub is_blank: bool,
    /// Reads it from what is at an offset.
    pub read: fn(u64, &[u8]) -> Option<String>,
    /// All of the header. What is written there while the volume is unlocked is no data of its user.
    pub area: Option<Span>,
    /// Where in it a journal can have its checkpoint.
    pub checkpoint: Option<u64>,
}

impl LuksIdentity {
    fn of(header: &Header, volume_size: u64) -> Self {
        let (copies, area) = (header.binary_parts().to_vec(), Span::new(0, header.area()));
        let others = binary_parts_in(volume_size).filter(|place| !copies.contains(place)).collect();
        let uuid = Some(header.uuid.clone());
        let checkpoint = header.checkpoint(volume_size);
        Self { uuid, copies, others, is_blank: false, read: uuid_at, area: Some(area), checkpoint }
    }

    /// That of a volume of this size without a header, or with one of which no copy is valid.
    #[must_use]
    pub fn none(volume_size: u64, has_header: bool) -> Self {
        let others = binary_parts_in(volume_size).collect();
        let copies = Vec::new();
        let is_blank = !has_header;
        Self { uuid: None, copies, others, is_blank, read: uuid_at, area: None, checkpoint: None }
    }
}

/// The identity of `volume`, whether its header can be used or not.
pub async fn identity(volume: &Arc<dyn Volume>) -> volume::Result<LuksIdentity> {
    let size = volume.shape().size;
    match Image::copies(&narrowed(Arc::clone(volume))).await {
        Ok((_, header)) => Ok(LuksIdentity::of(&header, size)),
        Err(ImageError::Header(why)) => {
            Ok(LuksIdentity::none(size, !matches!(why, HeaderError::Absent)))
        }
        Err(ImageError::Volume(why)) => Err(why),
    }
}

impl Encrypted {
    /// Its identity.
    #[must_use]
    pub fn identity(&self) -> LuksIdentity {
        let size = self.store.shape().size;
        match &self.header {
            Ok(image) => LuksIdentity::of(&image.header, size),
            Err(_) => LuksIdentity::none(size, true),
        }
    }

    /// What its header says.
    #[must_use]
    pub fn summary(&self) -> Summary {
        match &self.header {
            Ok(image) => {
                let Image { header, payload, .. } = &**image;
                let mut damage = damage::damage(image);
                damage.extend(recorded_size::cut(header, self.store.shape().size));
                Summary {
                    uuid: Some(header.uuid.clone()),
                    label: Some(header.label.clone()).filter(|label| !label.is_empty()),
                    size: Some(payload.span.len),
                    discards: header.passes_discards(),
                    trouble: (!damage.is_empty()).then(|| damage.join("; ")),
                }
            }
            Err(why) => {
                let trouble = Some(why.to_string());
                Summary { uuid: None, label: None, size: None, discards: false, trouble }
            }
        }
    }

    /// What holds it, in small blocks.
    pub(super) fn store(&self) -> Arc<dyn Volume> {
        Arc::clone(&self.store)
    }

    /// Refuses one that has the token of another writer.
    pub fn check(&self, claim: &Claim) -> Outcome {
        self.header.as_ref().map_or(Ok(()), |image| claim.check(&image.header))
    }

    /// A token is put into the header when it is opened: nothing else keeps other writers away. There is none if the
    /// header cannot be used.
    pub fn claim(&mut self, claim: Claim) -> Option<Arc<WriterToken>> {
        let image = self.header.as_ref().ok()?;
        let token = WriterToken::new(Arc::clone(&self.store), &image.header, claim);
        self.token.insert(Arc::new(token)).clone().into()
    }

    /// Opens it: the answer is its plain text.
    pub async fn open(self, key: &Key, options: Options) -> Outcome<Arc<dyn Volume>> {
        self.unlock(key, options).await.map(|(unlocked, _)| unlocked.plain)
    }

    /// Opens it, and answers the secret that did it too. Nothing is written before a slot has opened.
    pub(super) async fn unlock(self, key: &Key, options: Options) -> Outcome<(Unlocked, Secret)> {
        let Self { store, header, token } = self;
        let image = header.map_err(|why| ImageError::Header(why).into_failure())?;
        let (opened, secret) = key.open(&image, store.shape().size).await?;
        recorded_size::report(&image.header, store.shape().size);
        let unlocked = async {
            let image = match &token {
                Some(token) => token.take(&image, options.allow_discards).await?,
                None => header_recovery::finish(&store, image, options.allow_discards).await?,
            };
            let image = recorded_size::follow(&store, image).await?;
            plain(&store, &image, opened, options)
        };
        match (unlocked.await, token) {
            (Ok(unlocked), _) => Ok((unlocked, secret)),
            (Err(why), None) => Err(why),
            (Err(why), Some(token)) => {
                if let Err(why) = token.give_back(false).await {
                    tracing::warn!("the token of this attachment stays in the header: {why}");
                }
                Err(why)
            }
        }
    }
}

impl Summary {
    /// The kind of volume in a few words.
    #[must_use]
    pub fn name(&self) -> String {
        match (&self.uuid, &self.trouble) {
            (Some(uuid), _) => format!("LUKS2 volume {uuid}"),
            (None, Some(trouble)) => {
                format!("an encrypted volume that cannot be opened: {trouble}")
            }
            (None, None) => "an encrypted volume".to_owned(),
        }
    }
}
