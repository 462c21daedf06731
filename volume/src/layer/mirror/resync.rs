//! Giving members what they lack, and forgetting what they do not.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;

use super::core::IDLE;
use super::record::Regions;
use super::{Change, Mirror, Request, Shared, chain_of};
use crate::{Durability, Error, Kind, Result, Space, Span, Verb, Volume as _};

/// How much is copied under one lock: writes to it wait so long.
const PIECE: u64 = 1 << 20;

impl Mirror {
    /// Works for the mirror until it is told to [stop](Self::stop): members that are out and can be reached are given what
    /// they lack, and what is the same on all is noted as such.
    pub async fn work(&self) {
        loop {
            self.work_once().await;
            if self.0.is_stopped() {
                return;
            }
            self.0.wait_for_news().await;
        }
    }

    /// Has [`Mirror::work`] end soon, where it stands.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Relaxed);
        self.0.news.notify_one();
    }

    /// Does what is to be done now.
    pub async fn work_once(&self) {
        let shared = &self.0;
        if shared.only_reads() {
            return;
        }
        while !shared.is_stopped() {
            let next = shared.core().to_resync(shared.runtime.now());
            if let Some(at) = next {
                shared.resync(at).await;
                continue;
            }
            let Some(at) = shared.to_reopen() else { break };
            shared.reopen(at).await;
        }
        shared.clean(IDLE).await;
    }

    /// Notes that all members are the same, if they are: the next to open it has nothing to copy. Nobody else uses it any
    /// more.
    pub async fn close(&self) {
        if self.0.only_reads() {
            return;
        }
        if self.flush().await.is_ok() {
            self.0.clean(Duration::ZERO).await;
        }
    }
}

/// How copying to a member has ended.
enum Copied {
    /// It lacks nothing any more, but for what was written meanwhile.
    All,
    /// It was put out, or the program ends.
    Interrupted,
    /// It failed.
    Member(Error),
    /// Something cannot be read from those that have all.
    Source(String),
}

/// Whether a failure is of what was asked for, so that other places may be well.
const fn is_of_the_place(why: &Error) -> bool {
    matches!(why.kind, Kind::Medium | Kind::Integrity)
}

impl Shared {
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    async fn wait_for_news(&self) {
        let deadline = self.core().deadline(self.runtime.now(), self.reopen.is_some());
        let news = self.news.notified();
        let mut news = std::pin::pin!(news);
        let mut timer = deadline.map(|at| self.runtime.sleep_until(at));
        poll_fn(|context| {
            if news.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            timer.as_mut().map_or(Poll::Pending, |timer| timer.as_mut().poll(context))
        })
        .await;
    }

    async fn clean(self: &Arc<Self>, idle: Duration) {
        let is_cleaner = self.core().clean(self.runtime.now(), idle);
        if is_cleaner {
            let version = self.core().version();
            if let Err(why) = self.record(version).await {
                tracing::warn!("no member takes the record of the mirror: {why}");
            }
        }
    }

    /// Gives a member what it lacks.
    async fn resync(self: &Arc<Self>, at: usize) {
        // One that has lost something since it was opened says so, and is not copied to.
        if let Err(why) =
            self.one(at, Verb::Flush, |volume| Box::pin(async move { volume.flush().await })).await
        {
            self.put_out(at, &why);
            if self.can_reopen(at) {
                self.core().fail(at);
            }
            return;
        }
        let (outs, version) = self.core().begin_resync(at);
        if let Err(why) = self.record(version).await {
            tracing::warn!("no member takes the record of the mirror: {why}");
            self.core().defer(at, chain_of(&why), self.runtime.now());
            return;
        }
        let total = self.core().accept(at, outs);
        let Some(total) = total else { return };
        tracing::info!("{} is given what it lacks of the mirror: {total} regions", self.name(at));
        match self.copy_all(at, outs, total).await {
            Copied::All => self.finish(at, outs).await,
            Copied::Interrupted => {}
            Copied::Member(why) => self.put_out(at, &why),
            Copied::Source(what) => {
                tracing::warn!("{} cannot be given all that it lacks: {what}", self.name(at));
                self.core().defer(at, what, self.runtime.now());
            }
        }
    }

    /// Copies all regions that it lacks. Those that cannot be read are left for later, the others are copied all the same.
    async fn copy_all(self: &Arc<Self>, at: usize, outs: u64, total: u64) -> Copied {
        let mut unreadable = Regions::none(self.core().dirty.len());
        let (mut first, mut from, mut told) = (None, 0, 0);
        loop {
            if self.is_stopped() || !self.core().is_same(at, outs) {
                return Copied::Interrupted;
            }
            let next = self.core().next_region(at, from, &unreadable);
            let Some((region, left)) = next else { break };
            let done = total.saturating_sub(left) * 10 / total.max(1);
            if done > told {
                told = done;
                tracing::info!("{} has {done}0 % of what it lacked", self.name(at));
            }
            let copied = self.copy(at, region).await;
            self.core().end_region(at, region, copied.is_ok());
            from = region + 1;
            match copied {
                Ok(()) => {}
                Err((true, why)) => return Copied::Member(why),
                Err((false, why)) if is_of_the_place(&why) => {
                    unreadable.insert(region);
                    first.get_or_insert(why);
                }
                Err((false, why)) => return Copied::Source(chain_of(&why)),
            }
        }
        let what =
            |why| format!("{} regions cannot be read: {}", unreadable.count(), chain_of(why));
        first.as_ref().map_or(Copied::All, |why| Copied::Source(what(why)))
    }

    async fn finish(self: &Arc<Self>, at: usize, outs: u64) {
        if let Err(why) =
            self.one(at, Verb::Flush, |volume| Box::pin(async move { volume.flush().await })).await
        {
            return self.put_out(at, &why);
        }
        let version = self.core().join(at, outs);
        let Some(version) = version else { return };
        if let Err(why) = self.record(version).await {
            tracing::warn!("no member takes the record of the mirror: {why}");
            return self.put_out(at, &why);
        }
        let is_in = self.core().put_in(at, outs);
        if is_in {
            tracing::info!("{} has all of the mirror again", self.name(at));
        }
    }

    /// Copies a region to a member. An error says whether it is the member's.
    async fn copy(
        self: &Arc<Self>,
        at: usize,
        region: u64,
    ) -> std::result::Result<(), (bool, Error)> {
        let span = self.core().span_of(region);
        let end = span.end().min(self.shape.size);
        for piece in Span::new(span.at, end.saturating_sub(span.at)).pieces(PIECE) {
            if self.is_stopped() {
                let why = Error::new(Kind::Gone, Verb::Write, piece);
                return Err((false, why.because("the program ends")));
            }
            let _turn = self.order.exclusive(piece).await;
            let bytes: Bytes = self.read_any(piece).await.map_err(|why| (false, why))?;
            let change = match bytes.iter().all(|byte| *byte == 0) {
                true => Change::Zero(Space::Release),
                false => Change::Write(bytes),
            };
            let request = |volume| change.request(volume, piece, Durability::Volatile);
            self.one(at, Verb::Write, request).await.map_err(|why| (true, why))?;
        }
        Ok(())
    }

    /// Asks one member, which has so much time.
    pub(super) async fn one(
        self: &Arc<Self>,
        at: usize,
        verb: Verb,
        request: impl FnOnce(Arc<dyn crate::Volume>) -> Request<()>,
    ) -> Result<()> {
        let gone = |why: &str| Error::new(Kind::Gone, verb, None).because(why.to_owned());
        let member = self.member(at).ok_or_else(|| gone("it is not there"))?;
        let mut request = request(Arc::clone(&member.volume));
        let mut late = self.runtime.sleep_until(self.runtime.now() + self.wait);
        let answer = poll_fn(|context| match request.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => late.as_mut().poll(context).map(|()| None),
        });
        if let Some(answer) = answer.await {
            return member.answer(verb, None, answer);
        }
        self.abandon(at, request);
        Err(gone(&format!("no answer for {:?}", self.wait)))
    }
}
