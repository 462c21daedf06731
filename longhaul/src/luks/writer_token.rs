//! The token in the header that names the one who writes to a volume, where its target has no reservations.
//!
//! It is advice among Longhauls, and no lock: a volume has no operation that reads and writes at once. So the token is
//! written, and read again after all who had seen none before must have written theirs: then it is the last one's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use volume::{Span, Volume};

use super::header::Header;
use super::image::{Image, ImageError, read};
use super::token_kind::{KIND, is_one};
use super::writeback::{self, Before};
use super::{blocking, header_recovery, library};
use crate::failure::{Failure, Outcome};
use crate::printable::OneLine;
use crate::utc::{now, utc};

/// Who wants to be the one who writes to a volume.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// Names the attachment.
    pub key: u64,
    /// Keys of attachments that are gone: their tokens may be replaced.
    pub gone: Vec<u64>,
    /// What is known of others, by their keys.
    pub others: Vec<(u64, String)>,
    /// Any token may be replaced.
    pub take_over: bool,
    /// How long reading a header without a token and writing one to it may take. Whoever takes longer waits longer.
    pub written_within: Duration,
    /// How long it takes until one whose token was replaced has noticed that.
    pub noticed_within: Duration,
}

/// The token, as it stands in the header. Numbers of 64 bits are strings there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Body {
    #[serde(rename = "type")]
    kind: String,
    /// None: the token opens nothing.
    keyslots: Vec<String>,
    key: String,
    host: String,
    /// Seconds since 1970.
    since: String,
    state: String,
}

/// The attachment runs, or was killed.
const ATTACHED: &str = "attached";

/// It has ended, and what it could not write is in a replay log.
const UNFLUSHED: &str = "unflushed";

impl Body {
    fn new(key: u64, state: &str) -> Self {
        Self {
            kind: KIND.to_owned(),
            keyslots: Vec::new(),
            key: name(key),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            since: now().to_string(),
            state: state.to_owned(),
        }
    }

    fn is_of(&self, key: u64) -> bool {
        self.key == name(key)
    }

    /// Who it is, for people. Anybody may have written it.
    fn describe(&self) -> String {
        let since = match self.since.parse() {
            Ok(seconds @ 0..=253_402_300_799) => utc(seconds),
            _ => "an unknown time".to_owned(),
        };
        let state = match self.state.as_str() {
            ATTACHED => "attached and not ended",
            UNFLUSHED => "ended with writes in a replay log there",
            other => other,
        };
        let Self { host, key, .. } = self;
        OneLine(format_args!("host {host}, since {since}, {state}, key {key}")).to_string()
    }
}

fn name(key: u64) -> String {
    format!("{key:#018x}")
}

/// The tokens of writers; `None` stands for one that cannot be read.
fn writers(header: &Header) -> impl Iterator<Item = (u32, Option<Body>)> {
    let tokens = header.metadata.tokens.iter().filter(|(_, token)| is_one(token));
    tokens.map(|(number, token)| (*number, serde_json::from_value(token.clone()).ok()))
}

impl Claim {
    /// Whether the token of another may be replaced.
    fn may_replace(&self, token: Option<&Body>) -> bool {
        self.take_over || token.is_some_and(|token| self.gone.iter().any(|key| token.is_of(*key)))
    }

    /// Refuses a header that another writer has.
    pub(super) fn check(&self, header: &Header) -> Outcome {
        let other = |token: Option<&Body>| !token.is_some_and(|token| token.is_of(self.key));
        let found = writers(header).map(|(_, token)| token);
        match found
            .into_iter()
            .find(|token| other(token.as_ref()) && !self.may_replace(token.as_ref()))
        {
            Some(token) => Err(self.refused(token.as_ref())),
            None => Ok(()),
        }
    }

    fn refused(&self, token: Option<&Body>) -> Failure {
        let known = self.others.iter().find(|(key, _)| token.is_some_and(|it| it.is_of(*key)));
        let known = known.map_or_else(String::new, |(_, known)| format!(" ({known})"));
        let who = token.map_or_else(|| "a token that cannot be read".to_owned(), Body::describe);
        Failure::new("another writer has the volume")
            .because(format!("the token {KIND} in its header says: {who}{known}"))
            .hint(
                "end it there first; if it is gone, or is to lose the volume, `--take-over` of `attach`, `mount`, `copy`, `tune` and `key`; to read, `attach --read-only`",
            )
    }
}

/// The token of one attachment.
pub struct WriterToken {
    store: Arc<dyn Volume>,
    claim: Claim,
    /// Where the copies of the header are.
    span: Span,
    /// It is there, or may be.
    written: AtomicBool,
    /// It may be missing.
    leaving: AtomicBool,
}

impl WriterToken {
    pub(super) fn new(store: Arc<dyn Volume>, header: &Header, claim: Claim) -> Self {
        let span = Span::new(0, 2 * header.size);
        let (written, leaving) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { store, claim, span, written, leaving }
    }

    /// Where on its volume it is.
    #[must_use]
    pub const fn span(&self) -> Span {
        self.span
    }

    /// Whether the bytes of its span hold it and no other's; who else has the volume, if they do not.
    pub fn find(&self, bytes: &[u8]) -> Result<(), String> {
        let Ok((_, header)) = Header::newest(bytes) else {
            return Err("its header was replaced".to_owned());
        };
        let mut ours = self.leaving.load(Ordering::Relaxed);
        for (_, token) in writers(&header) {
            match token {
                Some(token) if token.is_of(self.claim.key) => ours = true,
                Some(token) => return Err(format!("it is held by {}", token.describe())),
                None => return Err("its header holds a token that cannot be read".to_owned()),
            }
        }
        if ours { Ok(()) } else { Err("its header holds no token".to_owned()) }
    }

    /// Puts it into the header of the volume that `opened` is the header of, and finishes changes of that which were cut
    /// short. The answer is the header as it is then.
    pub(super) async fn take(&self, opened: &Image, pass_discards: bool) -> Outcome<Arc<Image>> {
        let begun = Instant::now();
        let image = self.fetch(opened).await?;
        // Somebody may have typed the pass-phrase for a minute.
        let is_same = image.header.uuid == opened.header.uuid && image.payload == opened.payload;
        if !is_same || !image.header.has_key_of(&opened.header) {
            return Err(Failure::new("the header was changed while the volume was opened")
                .hint("another writer may be at work: try again when it has ended"));
        }
        self.claim.check(&image.header)?;
        let running = writers(&image.header).any(|(_, token)| {
            !token.is_some_and(|token| self.claim.gone.iter().any(|key| token.is_of(*key)))
        });
        let image = header_recovery::finish(&self.store, Arc::new(image), pass_discards).await?;
        self.written.store(true, Ordering::Relaxed);
        self.put(image, Some(ATTACHED)).await?;
        let Claim { written_within, noticed_within, .. } = self.claim;
        let is_late = begun.elapsed() > written_within;
        let wait = if running || is_late { noticed_within } else { written_within };
        tracing::info!(
            ?wait,
            "the header has a token of this attachment: waiting for others to see it"
        );
        sleep(wait).await;
        let image = self.fetch(opened).await?;
        let found = self.find(&image.bytes).map(|()| Arc::new(image));
        found.map_err(|why| {
            Failure::new("another writer has begun at the same time")
                .because(why)
                .hint("try again when it has ended")
        })
    }

    /// Takes it out again, or notes in it that not all was written. One that another has replaced is left alone.
    pub async fn give_back(&self, unflushed: bool) -> Outcome {
        if !self.written.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.leaving.store(!unflushed, Ordering::Relaxed);
        let bytes = self.copies().await.map_err(|why| ImageError::from(why).into_failure())?;
        let image = Image::parse(bytes, self.store.shape().size)
            .map_err(|why| ImageError::from(why).into_failure())?;
        if writers(&image.header).any(|(_, token)| token.is_some_and(|it| it.is_of(self.claim.key)))
        {
            self.put(Arc::new(image), unflushed.then_some(UNFLUSHED)).await?;
        }
        self.written.store(unflushed, Ordering::Relaxed);
        Ok(())
    }

    async fn copies(&self) -> volume::Result<Vec<u8>> {
        read(&self.store, self.span).await
    }

    /// The header as it is now; the material of the slots is as it was.
    async fn fetch(&self, opened: &Image) -> Outcome<Image> {
        let copies = self.copies().await.map_err(|why| ImageError::from(why).into_failure())?;
        let mut bytes = opened.bytes.clone();
        bytes[..copies.len()].copy_from_slice(&copies);
        Image::parse(bytes, self.store.shape().size)
            .map_err(|why| ImageError::from(why).into_failure())
    }

    /// Writes a header whose only such token is ours in this state, or which has none.
    async fn put(&self, image: Arc<Image>, state: Option<&str>) -> Outcome {
        let size = self.store.shape().size;
        let token = state.map(|state| Body::new(self.claim.key, state));
        let old: Vec<u32> = writers(&image.header).map(|(number, _)| number).collect();
        let (image, new) = blocking(move || {
            let bytes = library::with_token(&image, size, &old, token.as_ref())?;
            let new = Image::changed(bytes, size)?;
            Ok((image, new))
        })
        .await?;
        writeback::write(&self.store, Before::Changed(&image), &new).await
    }
}
