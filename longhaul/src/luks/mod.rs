//! LUKS2 volumes: opening them, and looking after their keys.
//!
//! `docs/spec/seal.md` says what lies where, in which order a header is written, and what the format
//! does not protect from.

mod cipher;
mod cost;
mod erase;
mod header;
mod image;
pub mod law;
mod library;
mod manage;
mod settle;
mod writeback;

use std::sync::Arc;

use volume::layer::narrow::Narrow;
use volume::layer::seal::{Discards, Seal, Segment};
use volume::{Gate, Volume, Work};

use header::Payload;
use library::Opened;

use crate::failure::{Failure, OrFail, Outcome};
use crate::secret::Secret;

pub use cipher::PooledXts;
pub use cost::CostArgs;
pub use erase::Erasable;
pub use manage::{Init, Restore, Slots, add, backup, change, init, remove, restore, slots};

/// The blocks of a sealed volume, which every initiator can work with.
const BLOCK_SIZE: u32 = 512;

/// How a sealed volume is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether the store may learn which blocks are unused. What the header says of it does not count:
    /// the store could have written it.
    pub discards: Discards,
}

/// Opens the LUKS2 volume on `volume` with a pass-phrase or key file: the answer is its plain text.
pub async fn open(
    volume: Arc<dyn Volume>,
    secret: Secret,
    options: Options,
) -> Outcome<Arc<dyn Volume>> {
    unsealed(&narrowed(volume), secret, options).await.map(|unsealed| unsealed.plain)
}

/// An open volume.
struct Unsealed {
    /// Its plain text.
    plain: Arc<dyn Volume>,
    /// The slot that opened it.
    slot: u32,
}

/// Opens the volume on `store`, which has small blocks.
async fn unsealed(store: &Arc<dyn Volume>, secret: Secret, options: Options) -> Outcome<Unsealed> {
    let size = store.shape().size;
    let image = settle::fetch(store).await?;
    let payload = image.payload;
    let opened = blocking(move || library::open(&image, size, &secret)).await?;
    plain(store, payload, opened, options)
}

/// The plain text of `payload` on `store`, under this key.
fn plain(
    store: &Arc<dyn Volume>,
    Payload { span, first_tweak, sector_size }: Payload,
    Opened { slot, key }: Opened,
    options: Options,
) -> Outcome<Unsealed> {
    let cipher =
        PooledXts::new(&key, sector_size).or_fail(|| "cannot use the volume key".to_owned())?;
    let seal =
        Seal::new(Arc::clone(store), cipher, Segment { span, first_tweak }, options.discards);
    Ok(Unsealed { plain: Arc::new(Gate::new("seal", seal)), slot })
}

/// `volume` with small blocks, whatever its own are.
fn narrowed(volume: Arc<dyn Volume>) -> Arc<dyn Volume> {
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
