//! Several volumes as one: one behind the other, or in stripes.
//!
//! A request is one request to each member that it touches. All of them are waited for, whatever fails; after a failure
//! that may have cost more than itself no member is believed any more.

mod layout;
#[cfg(test)]
mod tests;

use bytes::{Bytes, BytesMut};
use futures_util::stream;

use super::member::{Member, common_shape};
use crate::loss::FirstLoss;
use crate::{
    Discard, Durability, Error, Extent, ExtentMap, Kind, Result, Shape, Space, Span, Verb, Volume,
    Work, complete_all,
};
use layout::{Layout, Part};

/// The most members: each is a file, a device or a session.
pub const MEMBERS_MAX: usize = 64;

/// How many runs one answer of the extents of a striped volume looks through.
const RUNS_MAX: usize = 65_536;

/// Why volumes cannot be joined.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum JoinError {
    #[error("{0} members: at least one is needed, and {MEMBERS_MAX} are the most")]
    Count(usize),
    #[error("stripes of {chunk} bytes are not a whole number of blocks of {block_size} bytes")]
    Chunk { chunk: u64, block_size: u32 },
    #[error("{0} has room for no stripe")]
    Small(String),
    #[error("together they are larger than any volume can be")]
    Large,
}

/// A volume made of several.
pub struct Joined {
    members: Vec<Member>,
    layout: Layout,
    shape: Shape,
    loss: FirstLoss,
}

impl Joined {
    /// One behind the other. Of each what is behind the last whole block of the whole is left out.
    pub fn concat(members: Vec<Member>) -> std::result::Result<Self, JoinError> {
        let common = counted(&members)?;
        let block = u64::from(common.block_size);
        let mut size = 0_u64;
        let mut ends = Vec::with_capacity(members.len());
        for member in &members {
            size = size
                .checked_add(member.volume.shape().size / block * block)
                .ok_or(JoinError::Large)?;
            ends.push(size);
        }
        let shape = Shape { size, ..common };
        Ok(Self { members, layout: Layout::Concat { ends }, shape, loss: FirstLoss::default() })
    }

    /// In turn `chunk` bytes of each. Of each as many stripes are used as the smallest has room for.
    pub fn stripe(members: Vec<Member>, chunk: u64) -> std::result::Result<Self, JoinError> {
        let common = counted(&members)?;
        if chunk == 0 || !chunk.is_multiple_of(common.block_size.into()) {
            return Err(JoinError::Chunk { chunk, block_size: common.block_size });
        }
        let count = members.len() as u64;
        let rows = common.size / chunk;
        if let Some(small) = members.iter().find(|member| member.volume.shape().size < chunk) {
            return Err(JoinError::Small(small.name.to_string()));
        }
        let size = rows.checked_mul(chunk).and_then(|size| size.checked_mul(count));
        // A span that is aligned so has whole units on each member.
        let discard = common.discard.map(|discard| Discard {
            granularity: match u64::from(discard.granularity) <= chunk {
                true => discard.granularity,
                false => {
                    discard.granularity.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
                }
            },
            ..discard
        });
        let shape = Shape { size: size.ok_or(JoinError::Large)?, discard, ..common };
        let layout = Layout::Stripe { chunk, members: count };
        Ok(Self { members, layout, shape, loss: FirstLoss::default() })
    }

    /// Does something to what `span` has on each member.
    async fn on_each<'a, T: Send>(
        &'a self,
        (verb, span): (Verb, Span),
        act: impl Fn(&'a Member, Part) -> Work<'a, T>,
        each: impl FnMut((Part, T)),
    ) -> Result<()> {
        let parts = self.layout.parts(span).map(|part| {
            let member = &self.members[part.member];
            let work = act(member, part);
            async move { member.answer(verb, span, work.await).map(|done| (part, done)) }
        });
        complete_all(self.members.len(), stream::iter(parts), each).await
    }

    async fn read_all(&self, span: Span) -> Result<Bytes> {
        let mut parts = self.layout.parts(span);
        if let (Some(part), None) = (parts.next(), parts.next()) {
            let member = &self.members[part.member];
            return member.answer(Verb::Read, span, member.volume.read(part.span).await);
        }
        let mut whole = BytesMut::zeroed(span.len as usize);
        let scatter = |(part, bytes): (Part, Bytes)| {
            for run in self.layout.runs(part) {
                let from = (run.member_at - part.span.at) as usize;
                let to = (run.span.at - span.at) as usize;
                let len = run.span.len as usize;
                whole[to..to + len].copy_from_slice(&bytes[from..from + len]);
            }
        };
        let what = (Verb::Read, span);
        self.on_each(what, |member, part| member.volume.read(part.span), scatter).await?;
        Ok(whole.freeze())
    }

    /// The bytes of a write that go to one member.
    fn gathered(&self, part: Part, span: Span, data: &Bytes) -> Bytes {
        let slice = |run: layout::Run| {
            let from = (run.span.at - span.at) as usize;
            data.slice(from..from + run.span.len as usize)
        };
        let mut runs = self.layout.runs(part).map(slice);
        let first = runs.next().unwrap_or_default();
        if first.len() as u64 == part.span.len {
            return first;
        }
        let mut all = BytesMut::with_capacity(part.span.len as usize);
        all.extend_from_slice(&first);
        runs.for_each(|run| all.extend_from_slice(&run));
        all.freeze()
    }
}

fn counted(members: &[Member]) -> std::result::Result<Shape, JoinError> {
    match members.len() {
        1..=MEMBERS_MAX => Ok(common_shape(members)),
        count => Err(JoinError::Count(count)),
    }
}

impl Volume for Joined {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn read(&self, span: Span) -> Work<'_, Bytes> {
        Box::pin(self.read_all(span))
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        Box::pin(async move {
            let what = (Verb::Write, span);
            let write = self.on_each(
                what,
                |member, part| {
                    let data = self.gathered(part, span, &data);
                    member.volume.write(part.span.at, data, durability)
                },
                drop,
            );
            self.loss.guard((Verb::Write, Some(span), durability), write).await
        })
    }

    fn write_zeroes(&self, span: Span, durability: Durability, space: Space) -> Work<'_, ()> {
        Box::pin(async move {
            let zero = self.on_each(
                (Verb::WriteZeroes, span),
                |member, part| member.volume.write_zeroes(part.span, durability, space),
                drop,
            );
            self.loss.guard((Verb::WriteZeroes, Some(span), durability), zero).await
        })
    }

    fn discard(&self, span: Span) -> Work<'_, ()> {
        Box::pin(async move {
            let what = (Verb::Discard, span);
            let discard = self.on_each(what, |member, part| member.volume.discard(part.span), drop);
            self.loss.guard((Verb::Discard, Some(span), Durability::Volatile), discard).await
        })
    }

    fn flush(&self) -> Work<'_, ()> {
        Box::pin(async move {
            let flushes = self
                .members
                .iter()
                .map(async |member| member.answer(Verb::Flush, None, member.volume.flush().await));
            let flush = complete_all(self.members.len(), stream::iter(flushes), drop);
            self.loss.guard((Verb::Flush, None, Durability::Durable), flush).await
        })
    }

    fn extents(&self) -> Option<&dyn ExtentMap> {
        self.members.iter().any(|member| member.volume.extents().is_some()).then_some(self)
    }

    fn is_saving(&self) -> bool {
        self.members.iter().any(|member| member.volume.is_saving())
    }

    fn save_part(&self, at: u64, data: Bytes) -> Work<'_, ()> {
        let span = Span::new(at, data.len() as u64);
        Box::pin(async move {
            for part in self.layout.parts(span) {
                let Member { volume, .. } = &self.members[part.member];
                let _ = volume.save_part(part.span.at, self.gathered(part, span, &data)).await;
            }
            Err(Error::new(Kind::Range, Verb::Write, span))
        })
    }
}

impl ExtentMap for Joined {
    fn extents(&self, span: Span) -> Work<'_, Vec<Extent>> {
        Box::pin(async move {
            let mut known: Vec<Option<(Span, Vec<Extent>)>> = vec![None; self.members.len()];
            self.on_each((Verb::Extents, span), extents_of, |(part, found)| {
                known[part.member] = Some((part.span, found));
            })
            .await?;
            let mut found = Vec::new();
            let mut at = span.at;
            for _ in 0..RUNS_MAX {
                if at == span.end() {
                    break;
                }
                let (member, run) = self.layout.run_of(at);
                let Some((_, extents)) = &known[member] else { break };
                let is_in = |extent: &&Extent| extent.span.contains(run.member_at);
                let Some(extent) = extents.iter().find(is_in) else { break };
                let len = run.span.len.min(extent.span.end() - run.member_at).min(span.end() - at);
                push(&mut found, Extent { span: Span::new(at, len), ..*extent });
                at += len;
            }
            Ok(found)
        })
    }
}

/// What a member says of a part; all of it is data if it has no map.
fn extents_of(member: &Member, part: Part) -> Work<'_, Vec<Extent>> {
    match member.volume.extents() {
        Some(map) => map.extents(part.span),
        None => {
            let data = Extent { span: part.span, hole: false, zero: false };
            Box::pin(std::future::ready(Ok(vec![data])))
        }
    }
}

/// Appends an extent, to the last one if that is of its kind.
fn push(found: &mut Vec<Extent>, next: Extent) {
    match found.last_mut() {
        Some(last) if (last.hole, last.zero) == (next.hole, next.zero) => {
            last.span.len += next.span.len;
        }
        _ => found.push(next),
    }
}
