//! A disk that fails on purpose: a volatile write cache that a power cut loses block by block, and
//! verbs that fail when told to.
//!
//! Three questions are kept apart, because they fail differently: whether a *call* fails ([`Faulty::fail`],
//! [`Faulty::tear`], [`Faulty::lose_write_back`], [`Faulty::cut_after`]), *when* it has its effect
//! ([`Faulty::land_late`]) and which *bytes* survive the crash ([`Faulty::crash`]). The same seed gives the same
//! crash. After a failure it tells the truth, as every volume must, unless it is to [`Faulty::forget`].

use std::collections::BTreeMap;
use std::future::{poll_fn, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::{Bytes, BytesMut};

use crate::random::Random;
use crate::{Durability, Error, ExtentMap, Kind, Result, Shape, Space, Span, Verb, Volume, Work};

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
    /// The next failure of a verb, and how many blocks of it are written all the same.
    failures: Vec<(Verb, Kind, u64)>,
    /// The cache could not be written back, and nobody has been told yet.
    lost: Option<Kind>,
    /// The first failure that may have cost what was written before.
    failed: Option<Arc<str>>,
    /// A failure is told once and forgotten, as a careless system does.
    forgets: bool,
    /// How many times a change that succeeds is polled before it has its effect.
    late: u32,
    /// Changes begun that have not had their effect.
    under_way: usize,
    /// How many more changing verbs succeed before the power goes.
    until_cut: Option<u64>,
    /// Changing verbs so far, and the flushes among them.
    changes: u64,
    flushes: u64,
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
        let shape = Shape::in_memory(bytes.len() as u64, block_size);
        Self {
            shape: Shape { write_cache: true, fast_zeroes: false, ..shape },
            state: Mutex::new(State {
                durable: bytes,
                cached: BTreeMap::new(),
                failures: Vec::new(),
                lost: None,
                failed: None,
                forgets: false,
                late: 0,
                under_way: 0,
                until_cut: None,
                changes: 0,
                flushes: 0,
            }),
        }
    }

    /// From now on a failure is told once, to whoever is there, and forgotten: what a layer must not make
    /// worse, and what the conformance suite must find.
    pub fn forget(&self) {
        self.state().forgets = true;
    }

    /// The next `verb` fails with `kind` and changes nothing.
    pub fn fail(&self, verb: Verb, kind: Kind) {
        self.tear(verb, kind, 0);
    }

    /// The next `verb` fails with `kind` after its first `blocks` blocks are written.
    pub fn tear(&self, verb: Verb, kind: Kind, blocks: u64) {
        self.state().failures.push((verb, kind, blocks));
    }

    /// Nothing fails any more that has not failed yet, and nothing lands late.
    pub fn stop_failing(&self) {
        let mut state = self.state();
        state.failures.clear();
        state.late = 0;
    }

    /// How many failures are still to come.
    pub fn failures(&self) -> usize {
        self.state().failures.len()
    }

    /// What is in the cache cannot be written back and is lost. Nobody hears of it before the next flush or
    /// durable change, which fails with `kind`.
    pub fn lose_write_back(&self, kind: Kind) {
        let mut state = self.state();
        state.cached.clear();
        state.lost = Some(kind);
    }

    /// What is in the cache is lost, as by a reset, and nobody is told.
    pub fn lose_cache(&self) {
        self.state().cached.clear();
    }

    /// From now on a change that succeeds has its effect only when it has been polled `polls` times; one that
    /// is dropped before stays [under way](Self::under_way) for ever. One that fails does so at once.
    pub fn land_late(&self, polls: u32) {
        self.state().late = polls;
    }

    /// How many changes have begun and neither failed nor had their effect.
    pub fn under_way(&self) -> usize {
        self.state().under_way
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

    /// How many flushes have reached the medium, as a whole or in part.
    pub fn flushes(&self) -> u64 {
        self.state().flushes
    }

    /// The bytes of `span` that survive any crash.
    #[must_use]
    pub fn durable(&self, span: Span) -> Vec<u8> {
        let (start, end) = (span.at as usize, span.end() as usize);
        self.state().durable[start..end].to_vec()
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

    /// Carries out a changing verb unless it is to fail; `act` does as much of it as it is told.
    fn change<'a>(
        &'a self,
        verb: Verb,
        span: Option<Span>,
        durability: Durability,
        act: impl FnOnce(&mut State, u64) + Send + 'a,
    ) -> Work<'a, ()> {
        let mut state = self.state();
        let late = state.late;
        if late > 0 && !state.failures.iter().any(|(failing, ..)| *failing == verb) {
            state.under_way += 1;
            drop(state);
            return Box::pin(async move {
                wait_for_polls(late).await;
                let mut state = self.state();
                state.under_way -= 1;
                state.change(verb, span, durability, act)
            });
        }
        Box::pin(ready(state.change(verb, span, durability, act)))
    }

    fn put(&self, state: &mut State, at: u64, data: &Bytes, durability: Durability, blocks: u64) {
        let block_size = self.shape.block_size as usize;
        for (index, piece) in (0..blocks).zip(data.chunks(block_size)) {
            let block = at / block_size as u64 + index;
            state.cached.entry(block).or_default().push(data.slice_ref(piece));
            if durability == Durability::Durable {
                state.settle(block, self.shape.block_size);
            }
        }
    }
}

impl State {
    fn change(
        &mut self,
        verb: Verb,
        span: Option<Span>,
        durability: Durability,
        act: impl FnOnce(&mut Self, u64),
    ) -> Result<()> {
        if durability == Durability::Durable {
            self.still_whole(verb, span)?;
        }
        let permitted = self.permit(verb, span);
        match permitted {
            Ok(()) => {
                self.changes += 1;
                self.until_cut = self.until_cut.map(|left| left - 1);
                act(self, u64::MAX);
                Ok(())
            }
            Err((error, written)) => {
                if written > 0 {
                    act(self, written);
                }
                if error.kind.loses(durability) && !self.forgets {
                    self.failed.get_or_insert_with(|| error.to_string().into());
                }
                Err(error)
            }
        }
    }

    /// Whether `verb` may go ahead; if not, how many blocks of it are written all the same.
    fn permit(&mut self, verb: Verb, span: Option<Span>) -> std::result::Result<(), (Error, u64)> {
        if self.until_cut == Some(0) {
            return Err((Error::new(Kind::Gone, verb, span).because("the power was cut"), 0));
        }
        if let Some(index) = self.failures.iter().position(|(failing, ..)| *failing == verb) {
            let (_, kind, written) = self.failures.remove(index);
            return Err((Error::new(kind, verb, span).because("told to fail"), written));
        }
        Ok(())
    }

    /// An error if something was lost before: told for the first time, or kept since.
    fn still_whole(&mut self, verb: Verb, span: Option<Span>) -> Result<()> {
        if let Some(kind) = self.lost.take() {
            let error = Error::new(kind, verb, span).because("the cache was not written back");
            if !self.forgets {
                self.failed.get_or_insert_with(|| error.to_string().into());
            }
            return Err(error);
        }
        match &self.failed {
            Some(first) => Err(Error::new(Kind::Medium, verb, span).because(first.to_string())),
            None => Ok(()),
        }
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

async fn wait_for_polls(polls: u32) {
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
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
            .permit(Verb::Read, Some(span))
            .map(|()| state.contents(span, self.shape.block_size))
            .map_err(|(error, _)| error);
        Box::pin(ready(read))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        self.change(Verb::Write, Some(span), durability, move |state, blocks| {
            self.put(state, at, &data, durability, blocks);
        })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, _: Space) -> Work<'_, ()> {
        let zeroes = Bytes::from(vec![0; span.len as usize]);
        self.change(Verb::WriteZeroes, Some(span), durability, move |state, blocks| {
            self.put(state, span.at, &zeroes, durability, blocks);
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        let zeroes = Bytes::from(vec![0; span.len as usize]);
        self.change(Verb::Discard, Some(span), Durability::Volatile, move |state, blocks| {
            self.put(state, span.at, &zeroes, Durability::Volatile, blocks);
        })
    }

    fn flush(&self) -> Work<'_, ()> {
        self.change(Verb::Flush, None, Durability::Durable, |state, written| {
            state.flushes += 1;
            let blocks: Vec<u64> = state.cached.keys().copied().collect();
            for block in blocks.into_iter().take(usize::try_from(written).unwrap_or(usize::MAX)) {
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
    async fn flushed_or_durable_writes_survive_every_crash() {
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

    #[tokio::test]
    async fn lost_write_back_is_told_to_every_later_flush_and_durable_write() {
        let disk = Faulty::new(4096, 512);
        disk.write(0, block(1), Durability::Volatile).await.unwrap();
        disk.lose_write_back(Kind::NoSpace);
        let told = disk.write(512, block(2), Durability::Durable).await.unwrap_err();
        assert_eq!(told.kind, Kind::NoSpace);
        for _ in 0..2 {
            assert_eq!(disk.flush().await.unwrap_err().kind, Kind::Medium);
            disk.write(512, block(2), Durability::Durable).await.unwrap_err();
        }
        assert_eq!(disk.contents()[..1024], [0; 1024]);
    }

    #[tokio::test]
    async fn a_forgetful_disk_tells_of_lost_write_back_once() {
        let disk = Faulty::new(4096, 512);
        disk.forget();
        disk.write(0, block(1), Durability::Volatile).await.unwrap();
        disk.lose_write_back(Kind::Medium);
        disk.write(512, block(2), Durability::Durable).await.unwrap_err();
        disk.flush().await.unwrap();
        assert_eq!(disk.contents()[0], 0);
    }

    #[tokio::test]
    async fn a_torn_write_leaves_whole_blocks() {
        let disk = Faulty::new(4096, 512);
        disk.tear(Verb::Write, Kind::Medium, 2);
        disk.write(0, Bytes::from(vec![1; 2048]), Durability::Volatile).await.unwrap_err();
        assert_eq!(disk.contents()[..2048], [[1; 1024], [0; 1024]].concat());
        disk.flush().await.unwrap_err();
    }

    #[tokio::test]
    async fn a_late_write_lands_when_it_has_been_waited_for() {
        let disk = Faulty::new(4096, 512);
        disk.land_late(3);
        let write = disk.write(0, block(1), Durability::Volatile);
        assert_eq!((disk.under_way(), disk.contents()[0]), (1, 0));
        write.await.unwrap();
        assert_eq!((disk.under_way(), disk.contents()[0]), (0, 1));
        drop(disk.write(0, block(2), Durability::Volatile));
        assert_eq!((disk.under_way(), disk.contents()[0]), (1, 1), "given up, not ended");
    }
}
