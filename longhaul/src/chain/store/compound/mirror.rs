//! Mirrors: made, opened, compared.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use volume::layer::member::Member;
use volume::layer::mirror::{
    self, Mirror, MirrorError, MirrorObserver, MirrorOptions, MirrorStatus, Opening, Reopen,
    Scrubbed,
};

use super::closes::Closes;
use super::{Members, Store, of_member, store};
use crate::chain::OpenOptions;
use crate::failure::{Failure, Outcome};
use crate::reconnect_limit::ReconnectLimit;
use crate::store::abilities::{BoxFuture, Worker, WorkerStatus};
use crate::store::runtime;
use crate::uri::compound::{Compound, Kind, MirrorUri};
use crate::uri::{Location, Uri};

/// How long a member may take longer than another, if nothing is said.
const WAIT: Duration = Duration::from_secs(30);

/// What a mirror is opened to, that is not a part of a chain.
pub struct OpenMirror {
    mirror: Mirror,
    members: Members,
}

/// Opens the members that can be opened, and finds the mirror on them.
pub(super) async fn open(
    uri: &Uri,
    (compound, said): (&Compound, MirrorUri),
    options: &OpenOptions,
    opened: &mut Members,
) -> Outcome<(Mirror, Option<Box<dyn Worker>>)> {
    let mirror = find(uri, (compound, said), options, opened).await?;
    let has_work = !mirror.is_unchanged();
    let worker = has_work.then(|| Box::new(MirrorWorker::new(&mirror)) as Box<dyn Worker>);
    Ok((mirror, worker))
}

async fn find(
    uri: &Uri,
    (compound, said): (&Compound, MirrorUri),
    options: &OpenOptions,
    opened: &mut Members,
) -> Outcome<Mirror> {
    let mut openings: Vec<Opening> = Vec::new();
    for (at, member) in compound.members.iter().enumerate() {
        let opening = opened.open_as(at, member, &of_member(options)).await;
        openings.push(match opening.map(|()| opened.members.pop()) {
            Ok(Some(member)) => Ok(member),
            Ok(None) => Err((member.to_string().into(), String::new())),
            Err(why) => {
                tracing::warn!("a member of the mirror is not there: {}", why.on_one_line());
                Err((member.to_string().into(), why.on_one_line().to_string()))
            }
        });
    }
    let (wait, inspect_only) = (said.wait.unwrap_or(WAIT), options.inspect_only);
    let with = MirrorOptions { wait, alone: said.alone, inspect_only };
    let reopen = Arc::new(Reopener::new(&compound.members, options, &opened.closes));
    let mirror = Mirror::open_with(openings, with, runtime(), Some(reopen)).await;
    mirror.map_err(|why| explain(uri, why))
}

/// How long an outage may last while a member is opened again: it is tried anew later.
const REOPENED_WITHIN: Duration = Duration::from_secs(10);

/// Opens members again that were not there, or have lost something.
struct Reopener {
    uris: Vec<Uri>,
    options: OpenOptions,
    closes: Arc<Closes>,
}

impl Reopener {
    fn new(members: &[Uri], options: &OpenOptions, closes: &Arc<Closes>) -> Self {
        let reconnect_limit = ReconnectLimit(Some(REOPENED_WITHIN));
        let options = OpenOptions { existing_only: true, reconnect_limit, ..of_member(options) };
        Self { uris: members.to_vec(), options, closes: Arc::clone(closes) }
    }
}

/// Whether a member can be opened again: nothing works for it, and it is the same then.
fn can_reopen(uri: &Uri) -> bool {
    match uri.location() {
        Location::Several(compound) => {
            !matches!(compound.kind, Kind::Mirror(_)) && compound.members.iter().all(can_reopen)
        }
        _ => !uri.vanishes(),
    }
}

impl Reopen for Reopener {
    fn can(&self, at: usize) -> bool {
        self.uris.get(at).is_some_and(can_reopen)
    }

    fn reopen(&self, at: usize) -> BoxFuture<'_, Result<Member, String>> {
        Box::pin(async move {
            self.closes.drop_one(at).await;
            let Some(uri) = self.uris.get(at) else { return Err("it is not named".to_owned()) };
            let opened = store(uri, &self.options).await;
            let Store { opened, .. } = opened.map_err(|why| why.on_one_line().to_string())?;
            let name: Arc<str> = uri.to_string().into();
            if let Some(close) = opened.abilities.close {
                self.closes.put(at, Arc::clone(&name), close);
            }
            Ok(Member::new(name, opened.volume))
        })
    }

    fn let_go(&self, at: usize) -> BoxFuture<'_, ()> {
        Box::pin(self.closes.drop_one(at))
    }
}

fn explain(uri: &Uri, why: MirrorError) -> Failure {
    let hint = match &why {
        MirrorError::New => {
            "`longhaul mirror init URI` makes one of volumes whose contents are not needed, but for the first"
        }
        MirrorError::NoRecord(_) => {
            "`longhaul mirror replace URI` puts a new volume in the place of a member that is gone"
        }
        MirrorError::Missing { .. } => {
            "wait until it is there; `alone` in the URI opens the mirror without it, and what only it has is lost then"
        }
        MirrorError::Split(..) => {
            "keep what is on one of them: erase the first MiB of the other, and then `longhaul mirror replace URI`"
        }
        MirrorError::Older(_) => {
            "erase the first MiB of that copy, and then `longhaul mirror replace URI` gives it what the others have"
        }
        MirrorError::NoneWhole => {
            "a member that was out, or was being given what it lacks, is not used without one that has all"
        }
        MirrorError::NotBlank(_) => {
            "its first MiB is written over by a mirror: erase that if nothing there is needed"
        }
        _ => "",
    };
    let failure = Failure::new(format!("cannot open {uri}")).because(why);
    if hint.is_empty() { failure } else { failure.hint(hint) }
}

fn compound(uri: &Uri) -> Outcome<(&Compound, MirrorUri)> {
    match uri.location() {
        Location::Several(compound) => match compound.kind {
            Kind::Mirror(said) => Ok((compound, said)),
            _ => Err(Failure::usage(format!("{uri} is no mirror"))),
        },
        _ => Err(Failure::usage(format!("{uri} is no mirror: name it mirror:(URI,URI)"))),
    }
}

/// Opens all members of a mirror that is to be.
async fn all(uri: &Uri, options: &OpenOptions, opened: &mut Members) -> Outcome<MirrorUri> {
    let (compound, said) = compound(uri)?;
    for member in &compound.members {
        opened.open(member, &of_member(options)).await?;
    }
    Ok(said)
}

/// Makes a mirror. What is behind the first MiB of its first member is in it.
pub async fn init(uri: &Uri, options: &OpenOptions) -> Outcome {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|why| Failure::new("cannot make a name").because(why))?;
    let mut opened = Members::default();
    let made = match all(uri, options, &mut opened).await {
        Ok(_) => {
            let made = mirror::create(opened.members.clone(), id).await;
            made.map_err(|why| explain(uri, why))
        }
        Err(why) => Err(why),
    };
    opened.let_go().await;
    made
}

/// Puts new volumes in the places of members that are gone; their names.
pub async fn replace(uri: &Uri, options: &OpenOptions) -> Outcome<Vec<Arc<str>>> {
    let mut opened = Members::default();
    let replaced = match all(uri, options, &mut opened).await {
        Ok(said) => {
            let replaced = mirror::replace(opened.members.clone(), said.alone).await;
            replaced.map_err(|why| explain(uri, why))
        }
        Err(why) => Err(why),
    };
    opened.let_go().await;
    replaced
}

impl OpenMirror {
    /// Opens a mirror; nothing works for it.
    pub async fn open(uri: &Uri, options: &OpenOptions) -> Outcome<Self> {
        let compound = compound(uri)?;
        let mut members = Members::default();
        match find(uri, compound, options, &mut members).await {
            Ok(mirror) => Ok(Self { mirror, members }),
            Err(why) => {
                members.let_go().await;
                Err(why)
            }
        }
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> MirrorStatus {
        self.mirror.status()
    }

    /// Gives members what they lack, as far as they can be reached.
    pub async fn resync(&self) {
        self.mirror.work_once().await;
    }

    /// How many bytes it has.
    #[must_use]
    pub fn size(&self) -> u64 {
        volume::Volume::shape(&self.mirror).size
    }

    /// Compares its members.
    pub async fn scrub(&self, repair: bool, progress: impl FnMut(u64)) -> Outcome<Scrubbed> {
        let scrubbed = self.mirror.scrub(repair, progress).await;
        scrubbed.map_err(|why| Failure::new("cannot compare the members").because(why))
    }

    /// Lets go of it.
    pub async fn close(self) {
        self.mirror.close().await;
        self.members.let_go().await;
    }
}

/// The task that works for a mirror.
struct MirrorWorker {
    mirror: Mirror,
    task: JoinHandle<()>,
}

impl MirrorWorker {
    fn new(mirror: &Mirror) -> Self {
        let works = mirror.clone();
        Self { mirror: mirror.clone(), task: tokio::spawn(async move { works.work().await }) }
    }
}

impl Worker for MirrorWorker {
    fn status(&self) -> Arc<dyn WorkerStatus> {
        Arc::new(Status(self.mirror.observer()))
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Option<Failure>> {
        Box::pin(async move {
            self.mirror.stop();
            let _ = self.task.await;
            self.mirror.close().await;
            None
        })
    }
}

struct Status(MirrorObserver);

impl WorkerStatus for Status {
    fn pending(&self) -> u64 {
        0
    }

    fn failure(&self) -> Option<String> {
        None
    }

    fn trouble(&self) -> Option<String> {
        let status = self.0.status().filter(|status| !status.is_whole())?;
        let is_out = status.members.iter().any(|(_, state)| state.is_out());
        let state = |(name, state): &(Arc<str>, _)| format!("{name} is {state}");
        let members: Vec<_> = status.members.iter().map(state).collect();
        let what = if is_out { "degraded" } else { "open" };
        Some(format!("{what}: {}", members.join("; ")))
    }
}
