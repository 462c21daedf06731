//! The ends of the members of a volume, which are that of the whole.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use volume::layer::mirror::MirrorObserver;

use crate::replay_log::Saved;
use crate::store::abilities::{BoxFuture, Close};

/// The ends of all members, with their names. Where one of them is enough only what has happened to all has happened to the
/// whole: to all that have all of it, as what has become of one that is out says nothing of what was acknowledged since.
#[derive(Default)]
pub(super) struct Closes {
    /// By the number of the member.
    closes: Mutex<BTreeMap<usize, Named>>,
    mirror: OnceLock<MirrorObserver>,
    /// Members that were out when that could last be seen.
    out: Mutex<Vec<Arc<str>>>,
    told: Mutex<Settings>,
}

type Named = (Arc<str>, Arc<dyn Close>);

/// What all were told, and one is told that is opened later.
#[derive(Clone, Copy, Default)]
struct Settings {
    outage_limit: Option<Option<Duration>>,
    grace: Option<Duration>,
    watches: bool,
}

impl Closes {
    /// One of the members is enough: this says which are out.
    pub(super) fn one_is_enough(&self, mirror: MirrorObserver) {
        let _ = self.mirror.set(mirror);
    }

    /// The end of a member.
    pub(super) fn put(&self, at: usize, name: Arc<str>, close: Arc<dyn Close>) {
        let told = *self.told();
        if let Some(limit) = told.outage_limit {
            close.set_outage_limit(limit);
        }
        if let Some(grace) = told.grace {
            close.leave(grace);
        }
        if told.watches {
            close.watch_placement();
        }
        self.lock().insert(at, (name, close));
    }

    /// A member is let go of, and its end says nothing more.
    pub(super) async fn drop_one(&self, at: usize) {
        let dropped = self.lock().remove(&at);
        if let Some((_, close)) = dropped {
            close.leave(Duration::ZERO);
            close.let_go().await;
        }
    }

    /// A mirror without a member that has an end may be given one later.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty() && self.mirror.get().is_none()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Named>> {
        self.closes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, Settings> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that there are now.
    fn all(&self) -> Vec<Named> {
        self.lock().values().cloned().collect()
    }

    /// Which of these ends count, and whether one of them is enough.
    fn counted(&self, all: &[Named]) -> (Vec<bool>, bool) {
        let Some(mirror) = self.mirror.get() else { return (vec![true; all.len()], false) };
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(status) = mirror.status() {
            let members = status.members.into_iter();
            *out = members.filter(|(_, state)| state.is_out()).map(|(name, _)| name).collect();
        }
        let counts: Vec<_> = all.iter().map(|(name, _)| !out.contains(name)).collect();
        (if counts.contains(&true) { counts } else { vec![true; counts.len()] }, true)
    }

    /// What holds of the whole, by what holds of the ends of its members.
    fn whole<T>(&self, all: &[Named], found: Vec<Option<T>>) -> Option<T> {
        let (counts, is_one_enough) = self.counted(all);
        let mut found = found.into_iter().zip(counts).filter(|(_, counts)| *counts);
        match is_one_enough {
            true => found.map(|(found, _)| found).collect::<Option<Vec<_>>>()?.into_iter().next(),
            false => found.find_map(|(found, _)| found),
        }
    }

    fn find<T>(&self, find: impl Fn(&dyn Close) -> Option<T>) -> Option<T> {
        let all = self.all();
        let found = all.iter().map(|(_, close)| find(&**close)).collect();
        self.whole(&all, found)
    }

    fn each(&self, tell: impl Fn(&dyn Close)) {
        self.all().iter().for_each(|(_, close)| tell(&**close));
    }
}

impl Close for Closes {
    fn loss(&self) -> Option<String> {
        self.find(|close| close.loss())
    }

    fn misplaced(&self) -> Option<String> {
        self.find(|close| close.misplaced())
    }

    fn watch_placement(&self) {
        self.told().watches = true;
        self.each(|close| close.watch_placement());
    }

    fn set_outage_limit(&self, limit: Option<Duration>) {
        self.told().outage_limit = Some(limit);
        self.each(|close| close.set_outage_limit(limit));
    }

    fn leave(&self, grace: Duration) {
        self.told().grace = Some(grace);
        self.each(|close| close.leave(grace));
    }

    fn is_over(&self) -> bool {
        self.find(|close| close.is_over().then_some(())).is_some()
    }

    fn has_flushed_all(&self) -> bool {
        self.find(|close| (!close.has_flushed_all()).then_some(())).is_none()
    }

    fn unflushed(&self) -> u64 {
        let all = self.all();
        let (counts, is_one_enough) = self.counted(&all);
        let counted = all.iter().zip(counts).filter(|(_, counts)| *counts);
        let unflushed = counted.map(|((_, close), _)| close.unflushed());
        if is_one_enough { unflushed.min().unwrap_or(0) } else { unflushed.sum() }
    }

    fn saved(&self) -> Option<Saved> {
        self.find(|close| close.saved())
    }

    fn let_go(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            for (_, close) in self.all() {
                close.let_go().await;
            }
        })
    }

    fn flush_rest(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            for (_, close) in self.all() {
                close.flush_rest().await;
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, Option<Saved>> {
        Box::pin(async {
            // What is out is to be known while the mirror is there.
            let all = self.all();
            let _ = self.counted(&all);
            let mut saved = Vec::new();
            for (_, close) in &all {
                saved.push(close.close().await);
            }
            self.whole(&all, saved)
        })
    }
}

#[cfg(test)]
mod tests {
    use volume::layer::member::Member;
    use volume::layer::mirror::{AREA, Mirror, MirrorOptions, create};
    use volume::store::memory::Memory;
    use volume::{Durability, Volume as _};

    use super::*;
    use crate::store::runtime;

    struct FixedEnd {
        has_flushed_all: bool,
        unflushed: u64,
        loss: Option<&'static str>,
    }

    impl Close for FixedEnd {
        fn has_flushed_all(&self) -> bool {
            self.has_flushed_all
        }

        fn unflushed(&self) -> u64 {
            self.unflushed
        }

        fn loss(&self) -> Option<String> {
            self.loss.map(str::to_owned)
        }
    }

    /// A mirror whose second member is out, and has nothing more to flush than when it went out.
    #[tokio::test]
    async fn member_that_is_out_does_not_speak_for_the_mirror() {
        let volumes = [(); 2].map(|()| Arc::new(Memory::new(AREA + (1 << 20), 512)));
        let members = ["a", "b"].into_iter().zip(&volumes);
        let members = members.map(|(name, volume)| Member::new(name, Arc::clone(volume) as _));
        let members: Vec<_> = members.collect();
        create(members.clone(), [7; 16]).await.unwrap();
        let options =
            MirrorOptions { wait: Duration::from_secs(30), alone: false, inspect_only: false };
        let openings = members.into_iter().map(Ok).collect();
        let mirror = Mirror::open(openings, options, runtime()).await.unwrap();
        mirror.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
        let told = |has_flushed_all, unflushed, loss| {
            Arc::new(FixedEnd { has_flushed_all, unflushed, loss }) as Arc<dyn Close>
        };
        let ends = [("a", told(false, 512, Some("it is lost"))), ("b", told(true, 0, None))];
        let closes = Closes::default();
        for (at, (name, close)) in ends.into_iter().enumerate() {
            closes.put(at, name.into(), close);
        }
        closes.one_is_enough(mirror.observer());
        assert!(!closes.has_flushed_all());
        assert_eq!((closes.unflushed(), closes.loss().as_deref()), (512, Some("it is lost")));
        drop(mirror);
        assert!(!closes.has_flushed_all(), "it is remembered which was out");
    }
}
