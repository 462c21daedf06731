//! The same bytes on several members, of which all but one may fail.
//!
//! `docs/spec/mirror.md` says what stands on the members, and why no stale byte is read after a crash. [`core`] decides, this
//! carries out. A change runs in a task of its own, under a lock of its span: changes that overlap reach all members in one
//! order, and one that its caller has dropped still ends on all of them.

mod core;
mod open;
mod record;
mod reopen;
mod resync;
mod scrub;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::StreamExt as _;
use tokio::sync::{Notify, oneshot};

use self::core::Core;
use self::record::{Record, Recording};
use super::member::Member;
use super::range_lock::RangeLock;
use super::reconnect::Runtime;
use crate::loss::FirstLoss;
use crate::{
    Durability, Error, Extent, ExtentMap, FutureSet, Kind, Result, Shape, Space, Span,
    TRANSFER_MAX, Verb, Volume, Work,
};

pub use open::{MirrorError, MirrorOptions, Opening, create, replace};
pub use record::{AREA, MAGIC, MEMBERS_MAX, RECORDS_AT};
pub use scrub::Scrubbed;

/// A request to one member, whatever becomes of whoever waits for it.
type Request<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// Opens members again.
pub trait Reopen: Send + Sync {
    /// Whether it can do so for the member that was named as the `at`th.
    fn can(&self, at: usize) -> bool;

    /// Lets go of what was opened there, and opens it again: what it is, or why not.
    fn reopen(&self, at: usize) -> Opens<'_, std::result::Result<Member, String>>;

    /// Lets go of it, as it cannot be used.
    fn let_go(&self, at: usize) -> Opens<'_, ()>;
}

/// What a [`Reopen`] does.
pub type Opens<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A mirror. Clones are the same one.
#[derive(Clone)]
pub struct Mirror(Arc<Shared>);

/// Tells how a mirror is that may be closed.
pub struct MirrorObserver(Weak<Shared>);

impl MirrorObserver {
    /// How it is, unless it is closed.
    #[must_use]
    pub fn status(&self) -> Option<MirrorStatus> {
        Some(Mirror(self.0.upgrade()?).status())
    }
}

struct Shared {
    places: Mutex<Vec<Place>>,
    /// Opens members again.
    reopen: Option<Arc<dyn Reopen>>,
    core: Mutex<Core>,
    shape: Shape,
    /// How long a member may take longer than another.
    wait: Duration,
    /// Nothing is changed on the members, though they could be.
    inspect_only: bool,
    /// Changes under way, in one order for all members.
    order: RangeLock,
    /// One at a time writes records.
    recording: tokio::sync::Mutex<()>,
    loss: FirstLoss,
    runtime: Arc<dyn Runtime>,
    /// Something may be to be done for the worker.
    news: Notify,
    /// It is to end.
    stopped: AtomicBool,
}

/// The place of a member.
struct Place {
    name: Arc<str>,
    /// As which it was named when the mirror was opened.
    named: usize,
    /// `None` for one that is not there.
    member: Option<Member>,
}

/// How a mirror is, for people and scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorStatus {
    /// Name of each member, and how it is.
    pub members: Vec<(Arc<str>, MemberState)>,
    /// Regions in which members may differ, of all.
    pub dirty: (u64, u64),
    /// Bytes of a region.
    pub region: u64,
}

impl MirrorStatus {
    /// Whether all members have all.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.members.iter().all(|(_, state)| *state == MemberState::InSync)
    }
}

/// How a member is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has all that was written.
    InSync,
    /// It has what was written durably, and is made equal to another after a crash: regions left.
    Equalized(u64),
    /// It is out, and is given what it lacks: regions left.
    Resyncing(u64),
    /// It is out: why, and regions that it lacks.
    Out(String, u64),
    /// It was not there when the mirror was opened: why.
    Missing(String),
}

impl MemberState {
    /// Whether it lacks something for good.
    #[must_use]
    pub const fn is_out(&self) -> bool {
        matches!(self, Self::Resyncing(_) | Self::Out(..) | Self::Missing(_))
    }
}

impl std::fmt::Display for MemberState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InSync => f.write_str("in sync"),
            Self::Equalized(left) => write!(f, "made equal after a crash, {left} regions left"),
            Self::Resyncing(left) => write!(f, "out, {left} regions left to copy"),
            Self::Out(why, lacks) => write!(f, "out, lacks up to {lacks} regions: {why}"),
            Self::Missing(why) => write!(f, "out, not there: {why}"),
        }
    }
}

/// A change, as members are given it.
#[derive(Clone)]
enum Change {
    Write(Bytes),
    Zero(Space),
    Discard,
}

impl Change {
    const fn verb(&self) -> Verb {
        match self {
            Self::Write(_) => Verb::Write,
            Self::Zero(_) => Verb::WriteZeroes,
            Self::Discard => Verb::Discard,
        }
    }

    /// What becomes of a part of the span.
    fn part(&self, span: Span, part: Span) -> Self {
        let from = (part.at - span.at) as usize;
        match self {
            Self::Write(data) => Self::Write(data.slice(from..from + part.len as usize)),
            other => other.clone(),
        }
    }

    fn request(&self, volume: Arc<dyn Volume>, span: Span, durability: Durability) -> Request<()> {
        let (change, span) = (self.clone(), on_member(span));
        Box::pin(async move {
            match change {
                Self::Write(data) => volume.write(span.at, data, durability).await,
                Self::Zero(space) => volume.write_zeroes(span, durability, space).await,
                // A member that came back later than the mirror was opened may not do it.
                Self::Discard if volume.shape().discard.is_none_or(|can| !can.reads_zeroes) => {
                    volume.write_zeroes(span, durability, Space::Release).await
                }
                Self::Discard => volume.discard(span).await,
            }
        })
    }
}

/// A span of the mirror on a member.
const fn on_member(span: Span) -> Span {
    Span::new(AREA + span.at, span.len)
}

/// What became of a request to several members.
#[derive(Default)]
struct Outcomes {
    done: Vec<usize>,
    failed: Vec<(usize, Error)>,
}

impl Mirror {
    /// How it is.
    #[must_use]
    pub fn status(&self) -> MirrorStatus {
        let core = self.0.core();
        let why = |member: &core::Known| member.why.clone().unwrap_or_default();
        let state = |member: &core::Known| match (member.is_open, member.is_in) {
            (false, _) => MemberState::Missing(why(member)),
            (true, true) if member.lacks.is_empty() => MemberState::InSync,
            (true, true) => MemberState::Equalized(member.lacks.count()),
            (true, false) if member.accepts && member.why.is_none() => {
                MemberState::Resyncing(member.lacks.count())
            }
            (true, false) => MemberState::Out(why(member), member.lacks.count()),
        };
        let names = self.0.names();
        MirrorStatus {
            members: names.into_iter().zip(core.members.iter().map(state)).collect(),
            dirty: (core.dirty.count(), core.dirty.len()),
            region: core.region,
        }
    }

    /// Whether nothing is changed on its members: there is nothing to be done for it then.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.0.only_reads()
    }

    /// What tells how it is, without keeping it.
    #[must_use]
    pub fn observer(&self) -> MirrorObserver {
        MirrorObserver(Arc::downgrade(&self.0))
    }

    /// Carries out a change in a task of its own.
    fn change(&self, change: Change, span: Span, durability: Durability) -> Work<'_, ()> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let (tell, told) = oneshot::channel();
            let task = Arc::clone(&shared);
            let verb = change.verb();
            shared.runtime.spawn(Box::pin(async move {
                let what = (verb, Some(span), durability);
                let work = task.change(&change, span, durability);
                let _ = tell.send(task.loss.guard(what, work).await);
            }));
            let ended = || Error::new(Kind::Gone, verb, span).because("the program ends");
            told.await.unwrap_or_else(|_| Err(ended()))
        })
    }
}

impl Shared {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member(&self, at: usize) -> Option<Member> {
        self.places().get(at)?.member.clone()
    }

    fn names(&self) -> Vec<Arc<str>> {
        self.places().iter().map(|place| Arc::clone(&place.name)).collect()
    }

    fn name(&self, at: usize) -> Arc<str> {
        self.places().get(at).map_or_else(|| "a member".into(), |place| Arc::clone(&place.name))
    }

    const fn only_reads(&self) -> bool {
        self.inspect_only || self.shape.read_only
    }

    async fn change(
        self: &Arc<Self>,
        change: &Change,
        span: Span,
        durability: Durability,
    ) -> Result<()> {
        if self.inspect_only {
            let why = "the mirror was opened to be looked at";
            return Err(Error::new(Kind::ReadOnly, change.verb(), span).because(why));
        }
        let wanted = self.core().begin(span);
        let changed = self.change_all(change, (span, durability), wanted).await;
        let is_durable = changed.is_ok() && durability == Durability::Durable;
        self.core().end(span, is_durable, self.runtime.now());
        changed
    }

    /// Zeroes and discards may be of the whole volume: others have their turn in between, and so has the time that a member
    /// may take longer than another.
    async fn change_all(
        self: &Arc<Self>,
        change: &Change,
        (span, durability): (Span, Durability),
        wanted: u64,
    ) -> Result<()> {
        self.record(wanted).await?;
        for piece in span.pieces(TRANSFER_MAX.into()) {
            let part = change.part(span, piece);
            let _turn = self.order.exclusive(piece).await;
            let targets = self.core().targets(piece);
            let request =
                |_, member: &Member| part.request(Arc::clone(&member.volume), piece, durability);
            let outcomes = self.ask((change.verb(), Some(piece)), targets, request).await;
            self.judge(outcomes, (change.verb(), Some(piece))).await?;
        }
        Ok(())
    }

    /// What follows from what members made of a change or a flush. It is acknowledged once those that lack it are
    /// recorded.
    async fn judge(
        self: &Arc<Self>,
        outcomes: Outcomes,
        (verb, span): (Verb, Option<Span>),
    ) -> Result<()> {
        let Outcomes { done, failed } = outcomes;
        if !self.put_out_all(&done, &failed) {
            if let Some(span) = span {
                self.core().torn(span);
            }
            let none = || Error::new(Kind::Gone, verb, span).because("no member is left");
            return Err(failed.into_iter().next().map_or_else(none, |(_, why)| why));
        }
        let wanted = self.core().acknowledged_at();
        self.record(wanted).await
    }

    /// Members that failed are out, if one that has all has done it; those that have not all are in any case. Says whether
    /// there is one. At once, as another request may fail on just that one.
    fn put_out_all(&self, done: &[usize], failed: &[(usize, Error)]) -> bool {
        let mut core = self.core();
        let is_done = core.has_one_in(done);
        let failed = failed.iter().filter(|(at, _)| is_done || !core.members[*at].is_in);
        let failed: Vec<_> = failed.map(|(at, why)| (*at, chain_of(why))).collect();
        let news: Vec<_> = failed
            .into_iter()
            .filter(|(at, why)| core.put_out(*at, why.clone(), self.runtime.now()))
            .collect();
        drop(core);
        news.iter().for_each(|(at, why)| self.tell_out(*at, why));
        self.news.notify_one();
        is_done
    }

    fn put_out(&self, at: usize, why: &Error) {
        let why = chain_of(why);
        let is_news = self.core().put_out(at, why.clone(), self.runtime.now());
        if is_news {
            self.tell_out(at, &why);
        }
        self.news.notify_one();
    }

    fn tell_out(&self, at: usize, why: &str) {
        tracing::error!("the mirror is degraded: {} is out: {why}", self.name(at));
    }

    /// Asks several members. Once one that has all has done it, or none such is waited for, the others have so much time; what
    /// they do later they do without anybody who waits for it, and until then they are left alone.
    async fn ask(
        self: &Arc<Self>,
        (verb, span): (Verb, Option<Span>),
        members: Vec<usize>,
        request: impl Fn(usize, &Member) -> Request<()>,
    ) -> Outcomes {
        let mut outcomes = Outcomes::default();
        let mut pending: Vec<(usize, Request<()>)> = Vec::new();
        for at in members {
            if let Some(member) = self.member(at) {
                pending.push((at, request(at, &member)));
            }
        }
        let mut late = None;
        poll_fn(|context| {
            pending.retain_mut(|(at, request)| match request.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(Ok(())) => {
                    outcomes.done.push(*at);
                    false
                }
                Poll::Ready(Err(why)) => {
                    let answered =
                        self.member(*at).map(|member| member.answer(verb, span, Err::<(), _>(why)));
                    outcomes.failed.extend(answered.and_then(Result::err).map(|why| (*at, why)));
                    false
                }
            });
            if pending.is_empty() {
                return Poll::Ready(());
            }
            let waited_for: Vec<_> = pending.iter().map(|(at, _)| *at).collect();
            let core = self.core();
            let is_first = !core.has_one_in(&outcomes.done) && core.has_one_in(&waited_for);
            drop(core);
            if is_first {
                return Poll::Pending;
            }
            let until = self.runtime.now() + self.wait;
            late.get_or_insert_with(|| self.runtime.sleep_until(until)).as_mut().poll(context)
        })
        .await;
        for (at, request) in pending {
            let why = format!("no answer for {:?} after another member's", self.wait);
            let why = Error::new(Kind::Gone, verb, span).because(why);
            outcomes.failed.push((at, why));
            self.abandon(at, request);
        }
        outcomes
    }

    /// Leaves a request to itself. Until it has ended nothing is copied to the member.
    fn abandon<T: Send + 'static>(self: &Arc<Self>, at: usize, request: Request<T>) {
        self.core().members[at].abandoned += 1;
        let shared = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            let _ = request.await;
            shared.core().members[at].abandoned -= 1;
            shared.news.notify_one();
        }));
    }

    /// Returns once the records of all members that have all that was written are of this version or a later one.
    async fn record(self: &Arc<Self>, version: u64) -> Result<()> {
        loop {
            if self.core().is_recorded(version) {
                return Ok(());
            }
            let _turn = self.recording.lock().await;
            if self.core().is_recorded(version) {
                return Ok(());
            }
            let recording = self.core().records();
            self.write_records(&recording, &recording.first).await?;
            if !recording.then.is_empty() {
                // Those that fail are out as they were.
                let _ = self.write_records(&recording, &recording.then).await;
            }
            self.core().recorded(recording.version);
        }
    }

    /// Writes records to some members. An error if none of those that have all has taken one.
    async fn write_records(self: &Arc<Self>, recording: &Recording, to: &[usize]) -> Result<()> {
        let outcomes = self.ask((Verb::Write, None), to.to_vec(), |at, member| {
            let place = Record::places()[self.core().members[at].slot];
            let record = recording.of(at).map(|record| (place, record.encode()));
            write_record(Arc::clone(&member.volume), record)
        });
        let Outcomes { done, failed } = outcomes.await;
        let is_recorded = self.core().confirm(recording, &done);
        self.put_out_all(&done, &failed);
        if is_recorded {
            return Ok(());
        }
        let none = || Error::new(Kind::Gone, Verb::Write, None).because("no member is left");
        Err(failed.into_iter().next().map_or_else(none, |(_, why)| why))
    }

    async fn flush_all(self: &Arc<Self>) -> Result<()> {
        let (mark, members) = {
            let core = self.core();
            let accepts = (0..core.members.len()).filter(|at| core.members[*at].accepts);
            (core.flush_begins(), accepts.collect())
        };
        let outcomes = self.ask((Verb::Flush, None), members, |_, member| {
            let volume = Arc::clone(&member.volume);
            Box::pin(async move { volume.flush().await })
        });
        self.judge(outcomes.await, (Verb::Flush, None)).await?;
        self.core().flushed(mark);
        Ok(())
    }

    async fn read(self: &Arc<Self>, span: Span) -> Result<Bytes> {
        if self.only_reads() {
            return self.read_any(span).await;
        }
        if self.core().may_differ(span) {
            let first = self.core().first();
            self.record(first).await?;
        }
        let is_equal = self.core().lagging(span).is_empty();
        match is_equal {
            true => self.read_any(span).await,
            false => self.read_equal(span).await,
        }
    }

    /// Reads what members may hold in different versions since a crash. Whoever has seen one must see no other when the
    /// source is lost, so that the others are given it before it is told.
    async fn read_equal(self: &Arc<Self>, span: Span) -> Result<Bytes> {
        let _turn = self.order.exclusive(span).await;
        let bytes = self.read_any(span).await?;
        let lagging = self.core().lagging(span);
        for at in lagging {
            let change = Change::Write(bytes.clone());
            let request = |volume| change.request(volume, span, Durability::Volatile);
            if let Err(why) = self.one(at, Verb::Write, request).await {
                if self.core().is_last(at) {
                    return Err(why);
                }
                self.put_out(at, &why);
            }
        }
        let wanted = self.core().acknowledged_at();
        self.record(wanted).await?;
        Ok(bytes)
    }

    /// Reads from the fastest member. If that fails, or takes too long, another is asked too: one that has all by then.
    async fn read_any(self: &Arc<Self>, span: Span) -> Result<Bytes> {
        let mut under_way = FutureSet::new();
        let (mut asked, mut first) = (Vec::new(), None);
        let read = |at| async move { (at, self.read_from(at, span).await) };
        loop {
            if under_way.is_empty() {
                let none = || Error::new(Kind::Gone, Verb::Read, span).because("no member is left");
                match self.next_reader(span, &mut asked) {
                    Some(at) => under_way.push(read(at)),
                    None => return Err(first.unwrap_or_else(none)),
                }
            }
            let mut late = self.runtime.sleep_until(self.runtime.now() + self.wait);
            let answer = poll_fn(|context| match under_way.poll_next_unpin(context) {
                Poll::Ready(answer) => Poll::Ready(answer),
                Poll::Pending => late.as_mut().poll(context).map(|()| None),
            });
            match answer.await {
                Some((at, Ok(bytes))) if self.core().is_reader(at, span) => return Ok(bytes),
                Some((_, Ok(_))) => {}
                Some((_, Err(why))) => {
                    tracing::warn!("read from another member of the mirror: {}", chain_of(&why));
                    first.get_or_insert(why);
                }
                None => {
                    let next = self.next_reader(span, &mut asked).map(read);
                    next.into_iter().for_each(|asked| under_way.push(asked));
                }
            }
        }
    }

    /// The next member that is asked for `span`.
    fn next_reader(&self, span: Span, asked: &mut Vec<usize>) -> Option<usize> {
        let next = self.core().readers(span).into_iter().find(|at| !asked.contains(at))?;
        asked.push(next);
        Some(next)
    }

    async fn read_from(&self, at: usize, span: Span) -> Result<Bytes> {
        let none = || Error::new(Kind::Gone, Verb::Read, span);
        let member = self.member(at).ok_or_else(none)?;
        let begun = self.runtime.now();
        let read = member.volume.read(on_member(span)).await;
        let took = self.runtime.now().saturating_sub(begun);
        // One that fails is as good as one that is slow.
        self.core().measured(at, if read.is_ok() { took } else { took + self.wait });
        member.answer(Verb::Read, span, read)
    }
}

/// Writes a record and has it durable.
fn write_record(volume: Arc<dyn Volume>, record: Option<(u64, Vec<u8>)>) -> Request<()> {
    Box::pin(async move {
        let Some((at, bytes)) = record else { return Ok(()) };
        let block = volume.shape().block_size as usize;
        let mut bytes = bytes;
        bytes.resize(bytes.len().next_multiple_of(block), 0);
        volume.write(at, bytes.into(), Durability::Durable).await
    })
}

/// An error and its causes, on one line.
fn chain_of(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

impl Volume for Mirror {
    fn shape(&self) -> &Shape {
        &self.0.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(self.0.read(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        self.change(Change::Write(data), span, durability)
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        self.change(Change::Zero(space), span, durability)
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        self.change(Change::Discard, span, Durability::Volatile)
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async move {
            if self.0.only_reads() {
                return Ok(());
            }
            let what = (Verb::Flush, None, Durability::Durable);
            self.0.loss.guard(what, self.0.flush_all()).await
        })
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        let has_map = |place: &Place| {
            place.member.as_ref().is_some_and(|member| member.volume.extents().is_some())
        };
        let has_one = self.0.places().iter().any(has_map);
        has_one.then_some(self)
    }
}

impl ExtentMap for Mirror {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let data = || Ok(vec![Extent { span, hole: false, zero: false }]);
            // That something is zero is as good as having read it.
            if !self.0.only_reads() {
                if self.0.core().may_differ(span) {
                    let first = self.0.core().first();
                    self.0.record(first).await?;
                }
                if !self.0.core().lagging(span).is_empty() {
                    return data();
                }
            }
            let source = self.0.core().source();
            let Some(member) = source.and_then(|at| self.0.member(at)) else { return data() };
            let Some(map) = member.volume.extents() else { return data() };
            // If it cannot tell, everything is data.
            let Ok(mut found) = map.extents(on_member(span)).await else { return data() };
            found.iter_mut().for_each(|extent| extent.span.at -= AREA);
            Ok(found)
        })
    }
}
