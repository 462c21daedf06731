//! SANITIZE (SBC-3, 4.11): the whole medium is overwritten or given back, or its key is destroyed. Nothing that an
//! initiator does ends it once it has begun; the end of the process does, and then the medium is as far as it
//! came.

use std::pin::pin;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select;
use proto::scsi::readiness::Readiness;
use proto::scsi::sanitize::{Method, Overwrite};
use proto::scsi::sense::{Additional, Key};
use proto::scsi::{Blocks, Sense};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use volume::{Durability, Space, Volume};

use super::super::answer::Abort;
use super::super::data;
use super::super::fault::Fault;
use super::Core;
use super::medium::CHUNK;
use crate::task::unless_broken;

/// How much is given back between two looks at the progress.
const STRETCH: u64 = 64 << 20;

/// The sanitize that is under way: there is one at a time.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// How far it is, in parts of 65,536.
    parts: AtomicU16,
    /// The disk is on its way out.
    retired: Notify,
}

impl Progress {
    fn set(&self, done: u64, of: u64) {
        let parts = u128::from(done) * 0xFFFF / u128::from(of.max(1));
        self.parts.store(parts as u16, Ordering::Relaxed);
    }

    /// Ends a pause, as the disk is on its way out.
    pub(super) fn wake(&self) {
        self.retired.notify_waiters();
    }

    /// The same sense, and how far it is.
    pub(super) fn add_to(&self, sense: Sense) -> Sense {
        Sense { progress: Some(self.parts.load(Ordering::Relaxed)), ..sense }
    }
}

/// Keeps an overwrite to a rate, so that it leaves the store to other volumes too.
struct Pace {
    begun: Instant,
    /// Bytes written since.
    written: u64,
    /// Bytes a second; unlimited if `None`.
    rate: Option<u64>,
}

impl Pace {
    fn of(rate: Option<u64>) -> Self {
        Self { begun: Instant::now(), written: 0, rate }
    }

    /// Waits until so many more bytes may have been written.
    async fn keep(&mut self, bytes: u64) {
        self.written += bytes;
        match self.takes(self.written) {
            Some(time) => sleep_until(self.begun + time).await,
            None => yield_now().await,
        }
    }

    /// How long so many bytes take at least.
    fn takes(&self, bytes: u64) -> Option<Duration> {
        let millis = bytes.saturating_mul(1000) / self.rate?.max(1);
        Some(Duration::from_millis(millis))
    }
}

/// What is to be done.
enum Work {
    Overwrite(Overwrite),
    Erase,
    DestroyKey,
}

impl Core {
    /// Sanitizes the medium; `immediate` only begins to. A key is destroyed before the answer in any case: it
    /// takes seconds, and who is told GOOD must not find the old data again after a crash.
    pub(super) async fn sanitize(
        self: &Arc<Self>,
        method: Method,
        immediate: bool,
        unrestricted: bool,
        list: Vec<Bytes>,
        abort: &Abort,
    ) -> Result<Vec<Bytes>, Fault> {
        let work = match method {
            Method::Overwrite => {
                let length = data::length(&list);
                let list = data::joined(list, length);
                Work::Overwrite(Overwrite::parse(&list, self.unit.block_size())?)
            }
            Method::BlockErase => Work::Erase,
            Method::CryptoErase => Work::DestroyKey,
        };
        let failed =
            if unrestricted { Readiness::SanitizeFailed } else { Readiness::SanitizeFailedForGood };
        self.begin()?;
        let core = Arc::clone(self);
        // A task of its own: aborting the command or losing the nexus does not end it (SBC-3, 4.11.2).
        let task = tokio::spawn(async move {
            let broken = Sense::new(Key::HardwareError, Additional::INTERNAL_TARGET_FAILURE);
            let wiped = unless_broken(core.wipe(work)).await;
            let outcome = wiped.unwrap_or_else(|| Err(broken.into()));
            let readiness = if outcome.is_ok() { Readiness::Ready } else { failed };
            core.change(|_, switches| switches.readiness = readiness);
            outcome
        });
        if immediate && method != Method::CryptoErase {
            return Ok(Vec::new());
        }
        match abort.unless(task).await? {
            Ok(Ok(())) => Ok(Vec::new()),
            // SBC-4, 4.11.4, whatever it was.
            _ => Err(Sense::new(Key::MediumError, Additional::SANITIZE_FAILED).into()),
        }
    }

    /// EXIT FAILURE MODE: a medium that could not be sanitized may be used again. Where nothing has failed it
    /// does nothing.
    pub(super) fn exit_failure(&self) -> Result<Vec<Bytes>, Fault> {
        self.change(|_, switches| {
            if switches.readiness == Readiness::SanitizeFailed {
                switches.readiness = Readiness::Ready;
            }
        });
        Ok(Vec::new())
    }

    /// From here on no command but those that only ask is let in. Only one sanitize can begin.
    fn begin(&self) -> Result<(), Sense> {
        self.state.progress.set(0, 1);
        self.change(|_, switches| {
            let failed = matches!(
                switches.readiness,
                Readiness::SanitizeFailed | Readiness::SanitizeFailedForGood
            );
            if let Some(sense) = switches.readiness.sense().filter(|_| !failed) {
                return Err(sense);
            }
            switches.readiness = Readiness::Sanitizing;
            Ok(())
        })
    }

    /// Sanitizes all that the disk has at the end: what it has grown by meanwhile too.
    async fn wipe(self: &Arc<Self>, work: Work) -> Result<(), Fault> {
        // A command that was let in before must not write behind the sanitizing.
        let _exclusive = self.state.lock.exclusive().await;
        let (mut core, mut from) = (Arc::clone(self), 0);
        loop {
            core.wipe_from(from, &work).await?;
            core.flush().await?;
            from = core.unit.blocks();
            match core.grown() {
                Some(grown) => core = grown,
                None => return Ok(()),
            }
        }
    }

    /// The same disk as large as it is now, if it has grown.
    fn grown(&self) -> Option<Arc<Self>> {
        let grown = self.state.grown.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (volume, unit) = grown.filter(|(_, unit)| unit.blocks() > self.unit.blocks())?;
        let state = Arc::clone(&self.state);
        let Self { generation, tape, disc, administration, .. } = self;
        Some(Arc::new(Self {
            volume,
            unit,
            peers: OnceLock::new(),
            generation: *generation,
            tape: tape.clone(),
            disc: disc.clone(),
            administration: administration.clone(),
            state,
        }))
    }

    async fn wipe_from(&self, from: u64, work: &Work) -> Result<(), Fault> {
        match work {
            Work::Overwrite(overwrite) => {
                let mut pace = Pace::of(self.state.sanitize_rate);
                for pass in 0..overwrite.passes {
                    self.overwrite(from, overwrite, pass, &mut pace).await?;
                }
                Ok(())
            }
            Work::Erase => self.erase(from).await,
            Work::DestroyKey => self.destroy_key().await,
        }
    }

    async fn overwrite(
        &self,
        from: u64,
        overwrite: &Overwrite,
        pass: u8,
        pace: &mut Pace,
    ) -> Result<(), Fault> {
        let (block_size, blocks) = (self.unit.block_size(), self.unit.blocks());
        let block = overwrite.block(pass, block_size);
        let pattern = self.pattern(Blocks { lba: 0, count: (CHUNK / block_size).max(1) }, &block);
        // At a low rate in smaller pieces rather than after longer waits.
        let piece = self.state.sanitize_rate.unwrap_or(u64::MAX).min(CHUNK.into());
        for chunk in self.stretches(from, piece) {
            // Zeroes are written too: the space under them is to be overwritten, not given back.
            self.put_pattern(chunk, &pattern, Durability::Volatile).await?;
            let done = blocks * u64::from(pass) + chunk.lba + u64::from(chunk.count);
            self.state.progress.set(done, blocks * u64::from(overwrite.passes));
            let retired = pin!(self.state.progress.retired.notified());
            self.still_there()?;
            select(pin!(pace.keep(u64::from(chunk.count) * u64::from(block_size))), retired).await;
            self.still_there()?;
        }
        Ok(())
    }

    async fn erase(&self, from: u64) -> Result<(), Fault> {
        for stretch in self.stretches(from, STRETCH) {
            let zeroed =
                self.volume.write_zeroes(self.span(stretch), Durability::Volatile, Space::Release);
            zeroed.await.map_err(|error| self.fault(&error, Some(stretch.lba)))?;
            self.state.progress.set(stretch.lba + u64::from(stretch.count), self.unit.blocks());
            self.still_there()?;
            yield_now().await;
        }
        Ok(())
    }

    async fn destroy_key(&self) -> Result<(), Fault> {
        // Without a key the command was not planned.
        let Some(key) = &self.state.key else { return Ok(()) };
        key.crypto_erase().await.map_err(|error| self.fault(&error, None))
    }

    /// Whether there is still a volume to sanitize, which no other gateway has.
    fn still_there(&self) -> Result<(), Fault> {
        let retired = self.state.retired.load(Ordering::Acquire);
        match retired || self.refuse_without_permit().is_err() {
            true => Err(Sense::new(Key::MediumError, Additional::SANITIZE_FAILED).into()),
            false => Ok(()),
        }
    }

    /// The medium from a block on, in pieces of so many bytes, or of one block if that is more.
    fn stretches(&self, from: u64, bytes: u64) -> impl Iterator<Item = Blocks> + use<> {
        let (all, most) = (self.unit.blocks(), (bytes / u64::from(self.unit.block_size())).max(1));
        (from..all)
            .step_by(most as usize)
            .map(move |lba| Blocks { lba, count: most.min(all - lba) as u32 })
    }
}

#[cfg(test)]
mod tests;
