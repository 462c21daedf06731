//! A disk that fails on purpose: a volatile write cache that a power cut loses block by block, and
//! verbs that fail when told to.
//!
//! Two questions are kept apart, because they fail differently: whether a *call* fails
//! ([`Faulty::fail`], [`Faulty::cut_after`]) and which *bytes* survive the crash ([`Faulty::crash`]).
//! The same seed gives the same crash.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

use crate::check::Random;
use crate::{
    Discard, Durability, Error, ExtentMap, Kind, Result, Shape, Space, Span, Verb, Volume, Work,
};

/// A small disk with a volatile write cache, in memory.
pub struct Faulty {
    shape: Shape,
    state: Mutex<State>,
}

struct State {
    /// What survives any crash.
    durable: Vec<u8>,
    /// Per block, what was written since the last flush, oldest first: after a crash any one of them,
    /// or the durable bytes, may be there.
    cached: BTreeMap<u64, Vec<Bytes>>,
    /// The next failure of a verb.
    failures: Vec<(Verb, Kind)>,
    /// How many more changing verbs succeed before the power goes.
    until_cut: Option<u64>,
    /// Changing verbs so far.
    changes: u64,
}

impl Faulty {
    /// `size` bytes of zeroes in blocks of `block_size`, all durable.
    ///
    /// # Panics
    ///
    /// If `size` is not a multiple of `block_size`.
    #[must_use]
    pub fn new(size: u64, block_size: u32) -> Self {
        assert!(size.is_multiple_of(u64::from(block_size)));
        Self::holding(vec![0; usize::try_from(size).expect("fits memory")], block_size)
    }

    /// A disk that holds `bytes`, all durable.
    #[must_use]
    pub fn holding(bytes: Vec<u8>, block_size: u32) -> Self {
        Self {
            shape: Shape {
                size: bytes.len() as u64,
                block_size,
                physical_block_size: block_size,
                read_only: false,
                write_cache: true,
                discard: Some(Discard { granularity: block_size, reads_zeroes: true }),
                fast_zeroes: false,
            },
            state: Mutex::new(State {
                durable: bytes,
                cached: BTreeMap::new(),
                failures: Vec::new(),
                until_cut: None,
                changes: 0,
            }),
        }
    }

    /// The next `verb` fails with `kind` and changes nothing.
    pub fn fail(&self, verb: Verb, kind: Kind) {
        self.state().failures.push((verb, kind));
    }

    /// The power goes after `changes` more changing verbs: from then on everything fails with
    /// [`Kind::Gone`].
    pub fn cut_after(&self, changes: u64) {
        self.state().until_cut = Some(changes);
    }

    /// How many changing verbs (writes, zeroes, discards, flushes) were carried out.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// The disk as it may be found after a power cut now: each block holds its durable bytes or one
    /// of the versions written since, chosen by `seed`.
    #[must_use]
    pub fn crash(&self, seed: u64) -> Self {
        let state = self.state();
        let mut random = Random::new(seed);
        let mut bytes = state.durable.clone();
        for (&block, versions) in &state.cached {
            let chosen = random.below(versions.len() as u64 + 1) as usize;
            if let Some(version) = chosen.checked_sub(1).map(|index| &versions[index]) {
                place(&mut bytes, block * u64::from(self.shape.block_size), version);
            }
        }
        drop(state);
        Self::holding(bytes, self.shape.block_size)
    }

    /// The bytes as a reader sees them now.
    #[must_use]
    pub fn contents(&self) -> Vec<u8> {
        self.state().contents(Span::new(0, self.shape.size), self.shape.block_size).to_vec()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out a changing verb unless it is to fail.
    fn change(&self, verb: Verb, span: Option<Span>, act: impl FnOnce(&mut State)) -> Work<'_, ()> {
        let mut state = self.state();
        let allowed = state.permit(verb, span, true);
        if allowed.is_ok() {
            act(&mut state);
        }
        Box::pin(ready(allowed))
    }

    fn put(&self, state: &mut State, at: u64, data: &Bytes, durability: Durability) {
        let block_size = self.shape.block_size as usize;
        for (index, piece) in (0..).zip(data.chunks(block_size)) {
            let block = at / block_size as u64 + index;
            state.cached.entry(block).or_default().push(data.slice_ref(piece));
            if durability == Durability::Durable {
                state.settle(block, self.shape.block_size);
            }
        }
    }
}

impl State {
    /// Whether `verb` may go ahead, counting it if it changes something.
    fn permit(&mut self, verb: Verb, span: Option<Span>, changes: bool) -> Result<()> {
        if self.until_cut == Some(0) {
            return Err(Error::new(Kind::Gone, verb, span).because("the power was cut"));
        }
        if let Some(index) = self.failures.iter().position(|(failing, _)| *failing == verb) {
            let (_, kind) = self.failures.remove(index);
            return Err(Error::new(kind, verb, span).because("told to fail"));
        }
        if changes {
            self.changes += 1;
            self.until_cut = self.until_cut.map(|left| left - 1);
        }
        Ok(())
    }

    /// Makes one block's newest version durable.
    fn settle(&mut self, block: u64, block_size: u32) {
        if let Some(newest) =
            self.cached.remove(&block).and_then(|versions| versions.last().cloned())
        {
            place(&mut self.durable, block * u64::from(block_size), &newest);
        }
    }

    fn contents(&self, span: Span, block_size: u32) -> Bytes {
        let mut bytes = BytesMut::from(&self.durable[span.at as usize..span.end() as usize]);
        let block = u64::from(block_size);
        for (&index, versions) in self.cached.range(span.at / block..span.end() / block) {
            if let Some(newest) = versions.last() {
                place(&mut bytes, index * block - span.at, newest);
            }
        }
        bytes.freeze()
    }
}

fn place(bytes: &mut [u8], at: u64, data: &[u8]) {
    bytes[at as usize..at as usize + data.len()].copy_from_slice(data);
}

impl Volume for Faulty {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        let mut state = self.state();
        let read = state
            .permit(Verb::Read, Some(span), false)
            .map(|()| state.contents(span, self.shape.block_size));
        Box::pin(ready(read))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        self.change(Verb::Write, Some(span), |state| self.put(state, at, &data, durability))
    }

    fn write_zeroes(&self, span: Span, durability: Durability, _: Space) -> Work<'_, ()> {
        let zeroes = Bytes::from(vec![0; span.len as usize]);
        self.change(Verb::WriteZeroes, Some(span), |state| {
            self.put(state, span.at, &zeroes, durability);
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        let zeroes = Bytes::from(vec![0; span.len as usize]);
        self.change(Verb::Discard, Some(span), |state| {
            self.put(state, span.at, &zeroes, Durability::Volatile);
        })
    }

    fn flush(&self) -> Work<'_, ()> {
        self.change(Verb::Flush, None, |state| {
            let blocks: Vec<u64> = state.cached.keys().copied().collect();
            for block in blocks {
                state.settle(block, self.shape.block_size);
            }
        })
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::check;

    fn block(byte: u8) -> Bytes {
        Bytes::from(vec![byte; 512])
    }

    #[tokio::test]
    async fn keeps_the_contract_while_nothing_fails() {
        check::volume(2, Arc::new(Faulty::new(2 << 20, 512))).await;
    }

    #[tokio::test]
    async fn what_was_flushed_or_durable_survives_every_crash() {
        let disk = Faulty::new(4096, 512);
        disk.write(0, block(1), Durability::Volatile).await.unwrap();
        disk.flush().await.unwrap();
        disk.write(512, block(2), Durability::Durable).await.unwrap();
        for seed in 0..50 {
            let found = disk.crash(seed).contents();
            assert_eq!((found[0], found[512]), (1, 2));
        }
    }

    #[tokio::test]
    async fn an_unflushed_block_is_found_old_or_new() {
        let disk = Faulty::new(4096, 512);
        disk.write(0, block(1), Durability::Volatile).await.unwrap();
        disk.write(0, block(2), Durability::Volatile).await.unwrap();
        let mut found: Vec<u8> = (0..50).map(|seed| disk.crash(seed).contents()[0]).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, [0, 1, 2]);
    }

    #[tokio::test]
    async fn fails_when_told_and_dies_when_cut() {
        let disk = Faulty::new(4096, 512);
        disk.fail(Verb::Write, Kind::NoSpace);
        let full = disk.write(0, block(1), Durability::Volatile).await.unwrap_err();
        assert_eq!(full.kind, Kind::NoSpace);
        disk.cut_after(1);
        disk.write(0, block(1), Durability::Volatile).await.unwrap();
        assert_eq!(disk.flush().await.unwrap_err().kind, Kind::Gone);
        assert_eq!(disk.read(Span::new(0, 512)).await.unwrap_err().kind, Kind::Gone);
    }
}
