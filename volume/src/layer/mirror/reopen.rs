//! The return of members that were lost, or were not there, while the mirror is open.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::core::NotReturned;
use super::open::{Found, check_size};
use super::{Member, MirrorError, MirrorOptions, Shared};

impl Shared {
    /// A member that is to be opened again, and can be.
    pub(super) fn to_reopen(&self) -> Option<usize> {
        let now = self.runtime.now();
        self.reopen.as_ref()?;
        let next = self.core().to_reopen(now)?;
        if self.can_reopen(next) {
            return Some(next);
        }
        self.core().never(next);
        self.to_reopen()
    }

    pub(super) fn can_reopen(&self, at: usize) -> bool {
        let named = self.places().get(at).map(|place| place.named);
        named.zip(self.reopen.as_ref()).is_some_and(|(named, reopen)| reopen.can(named))
    }

    /// Opens a member again. If it is the one that it should be it is out from then on, and is given what it lacks.
    pub(super) async fn reopen(self: &Arc<Self>, at: usize) {
        let Some(reopen) = self.reopen.clone() else { return };
        let (named, name) = {
            let mut places = self.places();
            let place = &mut places[at];
            place.member = None;
            (place.named, Arc::clone(&place.name))
        };
        self.core().let_go(at);
        let Some(opened) = self.unless_stopped(reopen.reopen(named)).await else { return };
        let why = match opened {
            Ok(member) => match self.unless_stopped(self.take_back(at, member)).await {
                None => return,
                Some(Ok(())) => {
                    return tracing::info!("{name} is there again, and is out of the mirror still");
                }
                Some(Err(why)) => {
                    reopen.let_go(named).await;
                    why.to_string()
                }
            },
            Err(why) => why,
        };
        let is_news = self.core().not_returned(at, why.clone(), self.runtime.now());
        if is_news {
            tracing::warn!("{name} is not taken back by the mirror: {why}");
        }
    }

    /// Finds out which member it is that was opened again, and whether it belongs to this mirror as it is now.
    async fn take_back(self: &Arc<Self>, at: usize, member: Member) -> Result<(), MirrorError> {
        let name = Arc::clone(&member.name);
        self.is_fit(&member)?;
        let options = MirrorOptions { wait: self.wait, alone: false, inspect_only: false };
        let mut late = self.runtime.sleep_until(self.runtime.now() + self.wait);
        let mut finding = Box::pin(Found::open(member, options, &self.runtime));
        let found = poll_fn(|context| match finding.as_mut().poll(context) {
            Poll::Ready(found) => Poll::Ready(Some(found)),
            Poll::Pending => late.as_mut().poll(context).map(|()| None),
        });
        let silent = || MirrorError::NotThere(format!("no answer for {:?}", self.wait));
        let found = found.await.ok_or_else(silent)??;
        let Found { member, record, slot, unflushed, .. } = found;
        if let Some(why) = unflushed {
            return Err(MirrorError::Volume(name, why));
        }
        let own = record.ok_or_else(|| MirrorError::NoRecord(Arc::clone(&name)))?;
        check_size(&member, &own)?;
        let mut core = self.core();
        let place = core.place_of(&own).map_err(|why| refusal(why, &name))?;
        {
            let mut places = self.places();
            if place != at {
                // Which of several that were missing it is nobody knew before.
                let (named, name) = (places[at].named, Arc::clone(&places[at].name));
                places[at].named = std::mem::replace(&mut places[place].named, named);
                places[at].name = std::mem::replace(&mut places[place].name, name);
            }
            places[place].member = Some(member);
        }
        core.take_back(&own, slot);
        Ok(())
    }

    /// Whether a member can do what users of the mirror were told that it can.
    fn is_fit(&self, member: &Member) -> Result<(), MirrorError> {
        let own = member.volume.shape();
        let unfit = |why: &str| Err(MirrorError::Unfit(Arc::clone(&member.name), why.to_owned()));
        if own.read_only {
            return unfit("can only be read");
        }
        if own.block_size > self.shape.block_size {
            return unfit("has larger blocks than the mirror");
        }
        if own.write_cache && !self.shape.write_cache {
            return unfit("has a write cache, which the mirror has not");
        }
        Ok(())
    }

    /// What comes of it; `None` if the mirror is told to end first.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            if self.is_stopped() {
                return None;
            }
            let news = self.news.notified();
            let mut news = std::pin::pin!(news);
            let done = poll_fn(|context| match work.as_mut().poll(context) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => news.as_mut().poll(context).map(|()| None),
            });
            if let Some(done) = done.await {
                return Some(done);
            }
        }
    }
}

fn refusal(why: NotReturned, name: &Arc<str>) -> MirrorError {
    let name = Arc::clone(name);
    match why {
        NotReturned::Stranger => MirrorError::Stranger(name),
        NotReturned::Replaced => MirrorError::Replaced(name),
        NotReturned::Older => MirrorError::Older(name),
        NotReturned::Split => MirrorError::Split("this mirror".into(), name),
    }
}
