//! Volumes that are made of others. Each of those is a store of its own, without the layers of a chain, which stand over
//! the whole.

pub mod mirror;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use volume::layer::joined::Joined;
use volume::layer::limit::{Limited, Rates};
use volume::layer::member::Member;
use volume::layer::mirror::MirrorObserver;
use volume::layer::overlay::{Overlay, OverlayError, file_size};
use volume::{Gate, Volume};

use super::{Store, store};
use crate::chain::created_file::CreatedFile;
use crate::chain::{GRACE, OpenOptions};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::replay_log::Saved;
use crate::size::Size;
use crate::store::abilities::{Abilities, BoxFuture, Close, Opened, Worker, WorkerStatus};
use crate::store::runtime;
use crate::uri::Uri;
use crate::uri::compound::{Compound, Kind};

/// Opens the members of a volume, and makes it of them.
pub(super) fn open<'a>(
    uri: &'a Uri,
    compound: &'a Compound,
    options: &'a OpenOptions,
) -> BoxFuture<'a, Outcome<Store>> {
    Box::pin(async move {
        if let (Kind::Limit(rates), [member]) = (compound.kind, &compound.members[..]) {
            return limited(member, rates, options).await;
        }
        if options.make_at.is_some() {
            let why = "a volume that is made of others is not made in one file";
            return Err(Failure::usage(format!("cannot open {uri}")).because(why));
        }
        if let Some(twice) = named_twice(uri) {
            let why = format!("{twice} is in it twice");
            return Err(Failure::usage(format!("cannot open {uri}")).because(why));
        }
        let mut opened = Members::default();
        if let Kind::Mirror(said) = compound.kind {
            return match mirror::open(uri, (compound, said), options, &mut opened).await {
                Ok((mirror, worker)) => {
                    opened.workers.extend(worker);
                    opened.mirror = Some(mirror.observer());
                    Ok(opened.whole("mirror", Arc::new(Gate::new("mirror", mirror))))
                }
                Err(why) => {
                    opened.let_go().await;
                    Err(why)
                }
            };
        }
        match make(uri, compound, options, &mut opened).await {
            Ok(volume) => Ok(opened.whole(compound.kind.name(), volume)),
            Err(why) => {
                opened.let_go().await;
                Err(why)
            }
        }
    })
}

/// A file, a device or a unit that a volume is to be made of twice.
fn named_twice(uri: &Uri) -> Option<&Uri> {
    let leaves = uri.leaves();
    let mut named = leaves.iter().enumerate().filter(|(_, (leaf, _))| !leaf.vanishes());
    let is_before = |at: usize, leaf: &Uri| leaves[..at].iter().any(|(before, _)| *before == leaf);
    named.find(|(at, (leaf, _))| is_before(*at, leaf)).map(|(_, (leaf, _))| *leaf)
}

/// A volume that is not asked for more; all else is as it is without that.
async fn limited(member: &Uri, rates: Rates, options: &OpenOptions) -> Outcome<Store> {
    let Store { opened, made, padding, .. } = store(member, options).await?;
    let limited = Limited::new(Arc::clone(&opened.volume), rates, runtime());
    let over = opened.layer(Arc::new(Gate::new("limit", limited)));
    let opened = Opened { worker: opened.worker, ..over };
    Ok(Store { name: "limit", opened, made, padding })
}

async fn make(
    uri: &Uri,
    compound: &Compound,
    options: &OpenOptions,
    opened: &mut Members,
) -> Outcome<Arc<dyn Volume>> {
    let cannot = || format!("cannot open {uri}");
    for (at, member) in compound.members.iter().enumerate() {
        let mut with = of_member(options);
        with.read_only |= compound.is_only_read(at);
        if let (Kind::Overlay { create }, 1, [base]) = (compound.kind, at, &opened.members[..]) {
            prepare_over((member, create), base, &mut with)
                .map_err(|why| Failure::new(cannot()).because(why).hint(CREATE_HINT))?;
        }
        opened.open(member, &with).await?;
    }
    let members = opened.members.clone();
    Ok(match compound.kind {
        Kind::Concat => Arc::new(Gate::new("concat", Joined::concat(members).or_fail(cannot)?)),
        Kind::Stripe(Size(chunk)) => {
            Arc::new(Gate::new("stripe", Joined::stripe(members, chunk).or_fail(cannot)?))
        }
        Kind::Overlay { create } => {
            let [base, over] = &members[..] else { return Err(Failure::usage(cannot())) };
            // Nothing is made by a command that only looks, or for which all must exist.
            let overlay = match create && !options.looks && !options.existing_only {
                true => Overlay::create(base.clone(), over.clone()).await,
                false => Overlay::open(base.clone(), over.clone()).await,
            };
            let overlay = overlay.map_err(|why| not_an_overlay(cannot(), over, &why, create))?;
            Arc::new(Gate::new("overlay", overlay))
        }
        Kind::Limit(_) | Kind::Mirror(_) => return Err(Failure::usage(cannot())),
    })
}

/// What makes a new overlay.
const CREATE_HINT: &str = "`create` behind it makes a new one, in which nothing is changed: overlay:(URI,over=FILE,create)";

/// How the file of an overlay is opened. One that is missing is made, as large as its base wants it, only if that is said:
/// what was written to an overlay must not be forgotten because its disk is not mounted.
fn prepare_over(
    (over, create): (&Uri, bool),
    base: &Member,
    with: &mut OpenOptions,
) -> Result<(), String> {
    let is_missing = over.path().is_some_and(|path| !path.exists());
    if is_missing && !create {
        return Err(format!("{over} is not there, which holds what was written"));
    }
    let shape = base.volume.shape();
    with.size = is_missing.then(|| Size(file_size(shape.size)));
    with.block_size = Some(shape.block_size);
    Ok(())
}

fn not_an_overlay(cannot: String, over: &Member, why: &OverlayError, create: bool) -> Failure {
    let failure = Failure::new(cannot).because(format!("{}: {why}", over.name));
    match why {
        OverlayError::New if create => {
            failure.hint("it is made by the first command that may write to it")
        }
        OverlayError::New => failure.hint(CREATE_HINT),
        OverlayError::Made => failure.hint("leave out `create`: it is opened as it is then"),
        _ => failure,
    }
}

/// How the members of a volume are opened that is opened so.
pub(super) fn of_member(options: &OpenOptions) -> OpenOptions {
    OpenOptions {
        existing_only: options.existing_only,
        looks: options.looks,
        read_only: options.read_only,
        block_size: options.block_size,
        login: options.login.clone(),
        pipeline: options.pipeline,
        reconnect_limit: options.reconnect_limit,
        state: options.state.clone(),
        writers: options.writers,
        stop: options.stop.clone(),
        ..OpenOptions::default()
    }
}

/// The members that are open.
#[derive(Default)]
pub(super) struct Members {
    pub(super) members: Vec<Member>,
    closes: Vec<(Arc<str>, Arc<dyn Close>)>,
    workers: Vec<Box<dyn Worker>>,
    made: Option<CreatedFile>,
    is_partly_remote: bool,
    /// One of them is enough.
    mirror: Option<MirrorObserver>,
}

impl Members {
    pub(super) async fn open(&mut self, uri: &Uri, options: &OpenOptions) -> Outcome {
        let Store { opened, made, .. } = store(uri, options).await?;
        let Opened { volume, worker, abilities } = opened;
        let name: Arc<str> = uri.to_string().into();
        self.members.push(Member::new(Arc::clone(&name), volume));
        self.is_partly_remote |= abilities.probe.is_some() || abilities.is_partly_remote;
        self.closes.extend(abilities.close.map(|close| (name, close)));
        self.workers.extend(worker);
        if made.is_one() {
            self.made = Some(made);
        }
        Ok(())
    }

    /// The volume that is made of them.
    fn whole(self, name: &'static str, volume: Arc<dyn Volume>) -> Store {
        let Self { closes, workers, made, is_partly_remote, mirror, .. } = self;
        let closes = Closes { closes, mirror, out: Mutex::default() };
        let close = (!closes.closes.is_empty()).then(|| Arc::new(closes) as Arc<dyn Close>);
        let abilities = Abilities { close, is_partly_remote, ..Abilities::default() };
        let worker =
            (!workers.is_empty()).then(|| Box::new(MemberWorkers(workers)) as Box<dyn Worker>);
        let opened = Opened { volume, worker, abilities };
        Store { name, opened, made: made.unwrap_or(CreatedFile::none()), padding: 0 }
    }

    pub(super) async fn let_go(self) {
        for worker in self.workers {
            worker.close().await;
        }
        for (_, close) in &self.closes {
            close.leave(GRACE);
            close.let_go().await;
        }
    }
}

/// The ends of all members, with their names. Where one of them is enough only what has happened to all has happened to the
/// whole: to all that have all of it, as what has become of one that is out says nothing of what was acknowledged since.
struct Closes {
    closes: Vec<(Arc<str>, Arc<dyn Close>)>,
    mirror: Option<MirrorObserver>,
    /// Members that were out when that could last be seen.
    out: Mutex<Vec<Arc<str>>>,
}

impl Closes {
    fn all(&self) -> impl Iterator<Item = &dyn Close> {
        self.closes.iter().map(|(_, close)| &**close)
    }

    /// The ends of those that count, and whether one of them is enough.
    fn counted(&self) -> (Vec<bool>, bool) {
        let Some(mirror) = &self.mirror else { return (vec![true; self.closes.len()], false) };
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(status) = mirror.status() {
            let members = status.members.into_iter();
            *out = members.filter(|(_, state)| state.is_out()).map(|(name, _)| name).collect();
        }
        let counts: Vec<_> = self.closes.iter().map(|(name, _)| !out.contains(name)).collect();
        (if counts.contains(&true) { counts } else { vec![true; counts.len()] }, true)
    }

    /// What holds of the whole, by what holds of the ends of its members, in their order.
    fn whole<T>(&self, found: Vec<Option<T>>) -> Option<T> {
        let (counts, is_one_enough) = self.counted();
        let mut found = found.into_iter().zip(counts).filter(|(_, counts)| *counts);
        match is_one_enough {
            true => found.map(|(found, _)| found).collect::<Option<Vec<_>>>()?.into_iter().next(),
            false => found.find_map(|(found, _)| found),
        }
    }

    fn find<T>(&self, find: impl Fn(&dyn Close) -> Option<T>) -> Option<T> {
        self.whole(self.all().map(find).collect())
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
        self.all().for_each(|close| close.watch_placement());
    }

    fn set_outage_limit(&self, limit: Option<Duration>) {
        self.all().for_each(|close| close.set_outage_limit(limit));
    }

    fn leave(&self, grace: Duration) {
        self.all().for_each(|close| close.leave(grace));
    }

    fn is_over(&self) -> bool {
        self.find(|close| close.is_over().then_some(())).is_some()
    }

    fn has_flushed_all(&self) -> bool {
        self.find(|close| (!close.has_flushed_all()).then_some(())).is_none()
    }

    fn unflushed(&self) -> u64 {
        let (counts, is_one_enough) = self.counted();
        let counted = self.all().zip(counts).filter(|(_, counts)| *counts);
        let unflushed = counted.map(|(close, _)| close.unflushed());
        if is_one_enough { unflushed.min().unwrap_or(0) } else { unflushed.sum() }
    }

    fn saved(&self) -> Option<Saved> {
        self.find(|close| close.saved())
    }

    fn let_go(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            for (_, close) in &self.closes {
                close.let_go().await;
            }
        })
    }

    fn flush_rest(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            for (_, close) in &self.closes {
                close.flush_rest().await;
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, Option<Saved>> {
        Box::pin(async {
            // What is out is to be known while the mirror is there.
            let _ = self.counted();
            let mut saved = Vec::new();
            for (_, close) in &self.closes {
                saved.push(close.close().await);
            }
            self.whole(saved)
        })
    }
}

/// What works for members.
struct MemberWorkers(Vec<Box<dyn Worker>>);

struct WorkersStatus(Vec<Arc<dyn WorkerStatus>>);

impl Worker for MemberWorkers {
    fn status(&self) -> Arc<dyn WorkerStatus> {
        Arc::new(WorkersStatus(self.0.iter().map(|worker| worker.status()).collect()))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Option<Failure>> {
        Box::pin(async move {
            let mut lacking = None;
            for worker in self.0 {
                lacking = worker.close().await.or(lacking);
            }
            lacking
        })
    }
}

impl WorkerStatus for WorkersStatus {
    fn pending(&self) -> u64 {
        self.0.iter().map(|worker| worker.pending()).sum()
    }

    fn failure(&self) -> Option<String> {
        self.0.iter().find_map(|worker| worker.failure())
    }

    fn trouble(&self) -> Option<String> {
        self.0.iter().find_map(|worker| worker.trouble())
    }

    fn settle(&self) -> bool {
        self.0.iter().filter(|worker| !worker.settle()).count() == 0
    }
}

#[cfg(test)]
mod tests {
    use volume::Durability;
    use volume::layer::mirror::{AREA, Mirror, MirrorOptions, create};
    use volume::store::memory::Memory;

    use super::*;

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
        let options = MirrorOptions { wait: Duration::from_secs(30), alone: false, looks: false };
        let openings = members.into_iter().map(Ok).collect();
        let mirror = Mirror::open(openings, options, runtime()).await.unwrap();
        mirror.write(0, vec![1; 512].into(), Durability::Volatile).await.unwrap();
        let told = |has_flushed_all, unflushed, loss| {
            Arc::new(FixedEnd { has_flushed_all, unflushed, loss }) as Arc<dyn Close>
        };
        let ends = [("a", told(false, 512, Some("it is lost"))), ("b", told(true, 0, None))];
        let closes = Closes {
            closes: ends.map(|(name, close)| (name.into(), close)).to_vec(),
            mirror: Some(mirror.observer()),
            out: Mutex::default(),
        };
        assert!(!closes.has_flushed_all());
        assert_eq!((closes.unflushed(), closes.loss().as_deref()), (512, Some("it is lost")));
        drop(mirror);
        assert!(!closes.has_flushed_all(), "it is remembered which was out");
    }
}
