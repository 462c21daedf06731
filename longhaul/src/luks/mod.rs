//! LUKS2 volumes: opening them, and looking after their keys.
//!
//! `docs/spec/seal.md` says what lies where, in which order a header is written, and what the format
//! does not protect from.

mod cipher;
mod cipher_args;
mod cost;
mod damage;
mod erase;
mod header;
mod header_recovery;
mod image;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod journal_token;
mod library;
mod manage;
mod recorded_size;
mod strength;
mod token_kind;
mod unlock;
mod writeback;
mod writer_token;

use std::sync::Arc;

use volume::layer::crypt::{Crypt, Discards, Segment};
use volume::layer::narrow::Narrow;
use volume::{Gate, Volume, Work};

use header::Payload;
use image::{Image, ImageError};
use library::Opened;

use crate::failure::{Failure, OrFail, Outcome};
use crate::secret::Secret;

pub use cipher::PooledXts;
pub use cipher_args::{Cipher, CipherArgs, KeySize};
pub(crate) use cost::{ArgonBudget, refused_argon};
pub use cost::{CostArgs, allow_memory, allow_time};
pub use erase::Erasable;
pub use journal_token::{JournalToken, journal_token, put_journal_token};
pub use manage::{
    Init, Restore, Slots, Test, add, backup, change, init, refuse_unless_blank, remove, repair,
    restore, slots, test,
};
pub use unlock::{Encrypted, Key, LuksIdentity, Summary, identity, recognise};
pub use writer_token::{Claim, WriterToken};

/// The blocks of an encrypted volume, which every initiator can work with.
const BLOCK_SIZE: u32 = 512;

/// How an encrypted volume is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// The store may learn which blocks are unused, now and whenever the volume is opened again: the header
    /// says so from then on, since blocks that were discarded read as zeroes only for who knows of it.
    pub allow_discards: bool,
}

/// Opens the LUKS2 volume on `volume` with a pass-phrase or key file: the answer is its plain text.
pub async fn open(
    volume: Arc<dyn Volume>,
    key: impl Into<Key>,
    options: Options,
) -> Outcome<Arc<dyn Volume>> {
    unlocked(volume, &key.into(), options).await.map(|(unlocked, _)| unlocked.plain)
}

/// The secret that opens a volume, if it is encrypted: nothing is written to it.
pub async fn secret(
    volume: Arc<dyn Volume>,
    key: &Key,
    options: Options,
) -> Outcome<Option<Secret>> {
    let Some(encrypted) = recognise(volume).await? else { return Ok(None) };
    encrypted.unlock(key, options).await.map(|(_, secret)| Some(secret))
}

/// An open volume.
struct Unlocked {
    /// Its plain text.
    plain: Arc<dyn Volume>,
    /// The slot that opened it.
    slot: u32,
}

/// Opens the volume on `volume`, and answers what opened it.
async fn unlocked(
    volume: Arc<dyn Volume>,
    key: &Key,
    options: Options,
) -> Outcome<(Unlocked, Secret)> {
    match recognise(volume).await? {
        Some(encrypted) => encrypted.unlock(key, options).await,
        None => Err(ImageError::Header(header::HeaderError::Absent).into_failure()),
    }
}

/// The plain text of what `image` describes on `store`, under this key.
fn plain(
    store: &Arc<dyn Volume>,
    image: &Image,
    Opened { slot, key }: Opened,
    options: Options,
) -> Outcome<Unlocked> {
    let Payload { span, first_tweak, sector_size } = image.payload;
    let cipher =
        PooledXts::new(&key, sector_size).or_fail(|| "cannot use the volume key".to_owned())?;
    let passes = options.allow_discards || image.header.passes_discards();
    let discards = if passes { Discards::Pass } else { Discards::Refuse };
    let crypt = Crypt::new(Arc::clone(store), cipher, Segment { span, first_tweak }, discards);
    Ok(Unlocked { plain: Arc::new(Gate::new("crypt", crypt)), slot })
}

/// `volume` with small blocks, whatever its own are.
pub fn narrowed(volume: Arc<dyn Volume>) -> Arc<dyn Volume> {
    if volume.shape().block_size == BLOCK_SIZE {
        return volume;
    }
    Arc::new(Gate::new("narrow", Narrow::new(volume, BLOCK_SIZE, detach)))
}

/// Finishes work in a task of its own, whoever stops waiting for it.
fn detach(work: Work<'static, ()>) -> Work<'static, ()> {
    let task = tokio::spawn(work);
    Box::pin(async { task.await.expect("tasks are not cancelled while anything waits for them") })
}

/// Runs what libcryptsetup does beside the runtime: Argon2 takes seconds.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|why| Failure::new("the work on the header ended early").because(why))?
}

#[cfg(test)]
mod tests;
