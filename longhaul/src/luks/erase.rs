//! An encrypted volume whose key can be destroyed while it is open.
//!
//! The header gets a new volume key in one new slot, for the secret that the volume was opened with; all other
//! slots go, and what was enciphered under the old key is noise from then on. The order in which the header is
//! written leaves the old key or the new one at every moment, and what a crash leaves of the old slots is
//! overwritten when the volume is opened next.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use volume::{
    CryptoErase, Durability, Error, Extent, ExtentMap, Kind, Result, Shape, Space, Span, Verb,
    Volume, Work,
};

use super::image::Image;
use super::library;
use super::writeback::{self, Before};
use super::{Encrypted, Key, Options, Unlocked, blocking, header_recovery, plain, unlocked};
use crate::failure::Outcome;
use crate::secret::Secret;

/// The plain text of a volume, until its key is destroyed; then that under the next key.
pub struct Erasable {
    store: Arc<dyn Volume>,
    secret: Secret,
    options: Options,
    shape: Shape,
    /// Nothing while the key changes, and after that if nobody can tell which one the header has.
    now: RwLock<Option<Arc<dyn Volume>>>,
    /// The slot that `secret` opens.
    slot: AtomicU32,
}

impl Erasable {
    /// Opens a volume, and keeps the secret for the next key.
    pub async fn open(encrypted: Encrypted, key: &Key, options: Options) -> Outcome<Self> {
        let store = encrypted.store();
        let (Unlocked { plain, slot }, secret) = encrypted.unlock(key, options).await?;
        let shape = plain.shape().clone();
        let (now, slot) = (RwLock::new(Some(plain)), AtomicU32::new(slot));
        Ok(Self { store, secret, options, shape, now, slot })
    }

    fn now(&self, verb: Verb, span: impl Into<Option<Span>>) -> Result<Arc<dyn Volume>> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.clone().ok_or_else(|| Error::new(Kind::Gone, verb, span))
    }

    fn set(&self, now: Option<Unlocked>) {
        if let Some(Unlocked { slot, .. }) = &now {
            self.slot.store(*slot, Ordering::Relaxed);
        }
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = now.map(|now| now.plain);
    }

    /// Gives the volume another key.
    async fn rekey(&self) -> Outcome<Unlocked> {
        let size = self.store.shape().size;
        let image = header_recovery::fetch(&self.store).await?;
        let (secret, slot) = (self.secret.clone(), self.slot.load(Ordering::Relaxed));
        let (image, changed, opened) = blocking(move || {
            let (bytes, opened) = library::rekey(&image, size, &secret, slot)?;
            let changed = Image::changed(bytes, size)?;
            Ok((image, changed, opened))
        })
        .await?;
        writeback::write(&self.store, Before::Changed(&image), &changed).await?;
        plain(&self.store, &changed, opened, self.options)
    }
}

impl CryptoErase for Erasable {
    fn crypto_erase(&self) -> Work<'_, ()> {
        Box::pin(async move {
            self.set(None);
            let failed = match self.rekey().await {
                Ok(rekeyed) => {
                    self.set(Some(rekeyed));
                    return Ok(());
                }
                Err(why) => why,
            };
            tracing::error!("cannot destroy the volume key: {failed}");
            // Whichever key the header has now, the secret opens it.
            let key = Key::from(self.secret.clone());
            match unlocked(Arc::clone(&self.store), &key, self.options).await {
                Ok((found, _)) => self.set(Some(found)),
                Err(why) => tracing::error!("cannot tell which volume key is in force: {why}"),
            }
            let error = Error::new(Kind::Medium, Verb::CryptoErase, None);
            Err(error.because(failed.to_string()))
        })
    }
}

impl Volume for Erasable {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(async move { self.now(Verb::Read, span)?.read(span).await })
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        Box::pin(async move { self.now(Verb::Write, span)?.write(at, data, durability).await })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        Box::pin(async move {
            self.now(Verb::WriteZeroes, span)?.write_zeroes(span, durability, space).await
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        Box::pin(async move { self.now(Verb::Discard, span)?.discard(span).await })
    }

    fn flush(&self) -> Work<'_, ()> {
        // Whatever the key is: a flush that nobody waits for may come while it changes.
        self.store.flush()
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.store.extents().is_some().then_some(self)
    }
}

impl ExtentMap for Erasable {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let now = self.now(Verb::Extents, span)?;
            match Volume::extents(&now) {
                Some(map) => map.extents(span).await,
                None => Err(Error::new(Kind::Unsupported, Verb::Extents, span)),
            }
        })
    }
}
