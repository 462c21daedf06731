//! Volumes that are made of others. Each of those is a store of its own, without the layers of a chain, which stand over
//! the whole.

mod closes;
pub mod mirror;

use std::sync::Arc;

use volume::layer::joined::Joined;
use volume::layer::limit::{Limited, Rates};
use volume::layer::member::Member;
use volume::layer::overlay::{Overlay, OverlayError, file_size};
use volume::{Gate, Volume};

use super::{Store, store};
use crate::chain::created_file::CreatedFile;
use crate::chain::{GRACE, OpenOptions};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::size::Size;
use crate::store::abilities::{Abilities, BoxFuture, Close, Opened, Worker, WorkerStatus};
use crate::store::runtime;
use crate::uri::Uri;
use crate::uri::compound::{Compound, Kind};
use closes::Closes;

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
                    opened.closes.one_is_enough(mirror.observer());
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
        if let (Kind::Overlay { create, .. }, 1, [base]) = (compound.kind, at, &opened.members[..])
        {
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
        Kind::Overlay { create, changed } => {
            let [base, over] = &members[..] else { return Err(Failure::usage(cannot())) };
            // Nothing is made by a command that only looks, or for which all must exist.
            let overlay = match create && !options.inspect_only && !options.existing_only {
                true => Overlay::create(base.clone(), over.clone()).await,
                false => Overlay::open(base.clone(), over.clone(), changed).await,
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
        OverlayError::OtherBase => failure.hint(
            "what was written belongs to blocks of the base as it was: name that one; `changed` behind it uses this one all the same, \
             and what is read may be a mixture then",
        ),
        OverlayError::Made => failure.hint("leave out `create`: it is opened as it is then"),
        _ => failure,
    }
}

/// How the members of a volume are opened that is opened so.
pub(super) fn of_member(options: &OpenOptions) -> OpenOptions {
    OpenOptions {
        existing_only: options.existing_only,
        inspect_only: options.inspect_only,
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
    closes: Arc<Closes>,
    workers: Vec<Box<dyn Worker>>,
    made: Option<CreatedFile>,
    is_partly_remote: bool,
}

impl Members {
    /// Opens the next one.
    pub(super) async fn open(&mut self, uri: &Uri, options: &OpenOptions) -> Outcome {
        let at = self.members.len();
        self.open_as(at, uri, options).await
    }

    /// Opens the one that is named as the `at`th.
    pub(super) async fn open_as(&mut self, at: usize, uri: &Uri, options: &OpenOptions) -> Outcome {
        let Store { opened, made, .. } = store(uri, options).await?;
        let Opened { volume, worker, abilities } = opened;
        let name: Arc<str> = uri.to_string().into();
        self.members.push(Member::new(Arc::clone(&name), volume));
        self.is_partly_remote |= abilities.probe.is_some() || abilities.is_partly_remote;
        if let Some(close) = abilities.close {
            self.closes.put(at, name, close);
        }
        self.workers.extend(worker);
        if made.is_one() {
            self.made = Some(made);
        }
        Ok(())
    }

    /// The volume that is made of them.
    fn whole(self, name: &'static str, volume: Arc<dyn Volume>) -> Store {
        let Self { closes, workers, made, is_partly_remote, .. } = self;
        let close = (!closes.is_empty()).then_some(closes as Arc<dyn Close>);
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
        self.closes.leave(GRACE);
        self.closes.let_go().await;
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
