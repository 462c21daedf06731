//! A gateway of a cluster: it opens the volumes when it takes over, and closes them when it is active no more.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use proto::cluster::{GroupName, Role};
use proto::scsi::inquiry::Identity;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{sleep, timeout};
use volume::{Shape, Volume as _};

use super::live::{Live, OpenVolume};
use super::open_together::open_together;
use super::{
    Remembered, blocking, discard, open_options, open_with, policy, served_before, unless_stopped,
};
use crate::chain::{self, Chain, OpenOptions};
use crate::cluster::{Cluster, Group, Media, Membership, Mover, Reporter, RoleChanges};
use crate::config::{Config, Served};
use crate::control::Request;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::front::iscsi::Offering;
use crate::log_limiter::{LineLimiter, Permit};
use crate::served_volumes::{OnExchange, ServedVolumes, VolumeIdentity};
use crate::stop::Stop;
use crate::store::file::is_locked;
use crate::target::lun::Disk;
use crate::target::node::PortAccess;
use crate::target::sessions::EndReason;

/// How long sessions may take to see that the gateway is active, before it does what else it has to.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// How long volumes may take to be opened before another gateway is let try: its way to them may not hang.
const OPEN_WITHIN: Duration = Duration::from_secs(60);

/// How long is waited before a volume that is not to be had is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// How long an answer may take to an administrator whose session ends by what he has asked for.
const ANSWER_SEEN_WITHIN: Duration = Duration::from_secs(1);

/// How long an end waits for volumes that are being opened.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(5);

/// What has been done of what a role asks for.
pub(super) enum Done {
    /// The volumes are open.
    Opened(Vec<Chain>),
    /// They are closed, or were not to be opened any more.
    Nothing,
}

/// What is being done with each group of volumes.
pub(super) type Work = BTreeMap<GroupName, JoinHandle<Done>>;

/// Volumes that other gateways have, or none.
pub(super) async fn open_standby(volumes: &[Served]) -> Outcome<Vec<Chain>> {
    let mut chains = Vec::new();
    for volume in volumes {
        chains.push(open_one_standby(volume, None).await?);
    }
    Ok(chains)
}

async fn open_one_standby(volume: &Served, known_shape: Option<Shape>) -> Outcome<Chain> {
    let options = OpenOptions {
        standby: true,
        known_shape,
        size: volume.size,
        read_only: volume.read_only,
        block_size: volume.appearance.block_size.map(|size| size.0),
        ..OpenOptions::default()
    };
    let opened = chain::open(&volume.uri, options).await;
    opened.map_err(|why| why.within(&format!("volume {}", volume.name)))
}

/// What it takes to open the volumes. A file system that hangs holds up nobody else.
#[derive(Clone)]
struct Opening {
    volumes: Vec<Served>,
    state: Option<PathBuf>,
    stop: Stop,
    role: watch::Receiver<Role>,
    reporter: Reporter,
    membership: Membership,
    /// That was asked with the lease that it has. Not with each attempt: who asks makes others that start look again.
    is_confirmed: bool,
    media: Media,
    /// It is tried many times.
    log_limiter: Arc<LineLimiter>,
}

impl Opening {
    /// Opens the volumes. As long as another process has one, this is tried again; otherwise for as long as a lease lasts:
    /// then another gateway may be able to.
    async fn run(mut self) -> Done {
        let begun = Instant::now();
        loop {
            match timeout(OPEN_WITHIN, self.open_all()).await {
                Ok(Ok(chains)) => return Done::Opened(chains),
                Ok(Err(failures)) => {
                    self.report(&failures);
                    if begun.elapsed() >= self.reporter.patience() && !self.is_any_locked() {
                        self.give_back().await;
                    }
                }
                // What comes to be open later is closed at once. Nothing else is asked of a file system that hangs.
                Err(_) => {
                    self.report(&[Failure::new(format!(
                        "the volumes could not be opened within {} s",
                        OPEN_WITHIN.as_secs()
                    ))]);
                    self.give_back().await;
                }
            }
            if !self.goes_on().await {
                return Done::Nothing;
            }
        }
    }

    /// The lease, which may be taken again later.
    async fn give_back(&mut self) {
        self.is_confirmed = false;
        self.reporter.closed().await;
    }

    /// Whether another process has the file of one.
    fn is_any_locked(&self) -> bool {
        self.volumes.iter().filter_map(|volume| volume.uri.file()).any(is_locked)
    }

    fn report(&self, failures: &[Failure]) {
        let Some((Permit { suppressed }, _)) = self.log_limiter.permit() else { return };
        for why in failures {
            tracing::warn!(suppressed, "cannot take over yet: {}", why.on_one_line());
        }
    }

    /// Waits for a moment; whether the volumes are to be opened still.
    async fn goes_on(&mut self) -> bool {
        tokio::select! {
            () = self.stop.called() => return false,
            () = sleep(TRY_AGAIN) => {}
        }
        *self.role.borrow_and_update() == Role::TakingOver
    }

    /// All of them, or none; then why each that failed did.
    async fn open_all(&mut self) -> Result<Vec<Chain>, Vec<Failure>> {
        if !self.is_confirmed {
            let membership = self.membership.clone();
            blocking(move || membership.confirm()).await.map_err(|why| vec![why])?;
            self.is_confirmed = true;
        }
        let state = self.state.as_deref();
        let served = served_before(state).await.map_err(|why| vec![why])?;
        let open = |volume: Served| {
            let (opening, served) = (self.clone(), Arc::clone(&served));
            let runtime = Handle::current();
            // On a thread of its own, which waits for a file system.
            blocking(move || runtime.block_on(opening.open(&volume, &served)))
        };
        let outcomes = open_together(self.volumes.clone(), open).await;
        let (mut chains, mut opened, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for (volume, outcome) in self.volumes.iter().zip(outcomes) {
            match outcome {
                Some(Ok(chain)) => {
                    chains.push(chain);
                    opened.push(volume.clone());
                }
                Some(Err(why)) => failures.push(why.within(&format!("volume {}", volume.name))),
                None => {}
            }
        }
        if failures.is_empty() {
            return Ok(chains);
        }
        discard(chains, &opened, state).await;
        Err(failures)
    }

    /// A file is never made: where it is not, the file system is not that of the other gateways.
    async fn open(&self, volume: &Served, served: &Arc<ServedVolumes>) -> Outcome<Chain> {
        let noted = (self.state.as_deref(), served);
        let options = open_options(volume, noted, OnExchange::Warn);
        let options = unless_stopped(&self.stop, options).await?;
        let ceph = self.media.ceph();
        let options = OpenOptions { existing_only: true, ceph, ..options };
        open_with(volume, options, &self.stop).await
    }
}

/// A volume that is known by the name of its unit alone, which is the same at every gateway.
pub(super) fn named(volume: &Served) -> Remembered {
    let identity = Identity::new(volume.target.as_str(), volume.lun).serial;
    let serial = volume.configured_serial().unwrap_or(&identity).to_owned();
    Remembered { by: VolumeIdentity { identity, serial }, kept: None }
}

impl Live {
    /// Takes part in a cluster from now on.
    pub(super) fn takes_part(&mut self, mut cluster: Option<Cluster>) {
        if let Some(cluster) = &mut cluster {
            let volumes = self.volumes().iter().filter_map(|volume| {
                let OpenVolume { disk, .. } = self.open_volumes.get(&volume.name)?;
                Some((volume, disk))
            });
            cluster.start(&volumes.collect::<Vec<_>>());
        }
        self.cluster = cluster;
    }

    pub(super) fn role_changes(&self) -> Option<RoleChanges> {
        self.cluster.as_ref().map(Cluster::role_changes)
    }

    /// How volumes are accessed by each portal group now.
    pub(super) fn access(&self, config: &Config) -> PortAccess {
        let Some(cluster) = &self.cluster else { return config.ports().into() };
        let of = config.volumes.iter().map(|volume| {
            let is_active = cluster.role(&volume.group) == Role::Active;
            (volume.target.as_str().to_owned(), config.ports_in_cluster(is_active))
        });
        PortAccess { all: config.ports_in_cluster(false), of: of.collect() }
    }

    /// Begins what the role asks for.
    pub(super) async fn change_role(&mut self, group: &GroupName, role: Role) -> JoinHandle<Done> {
        let begun = match role {
            Role::TakingOver => self.take_over(group),
            Role::Leaving | Role::Lost => self.stand_by(group).await,
            Role::Standby | Role::Active => None,
        };
        begun.unwrap_or_else(|| {
            tokio::spawn(async {
                sleep(TRY_AGAIN).await;
                Done::Nothing
            })
        })
    }

    /// What it has come to.
    pub(super) async fn worked(&mut self, group: &GroupName, done: Done) {
        let reporter = self.cluster_group(group).map(Group::reporter);
        let (Done::Opened(chains), Some(reporter)) = (done, reporter) else { return };
        drop(self.exchange_chains(group, chains));
        reporter.opened().await;
        // Where the lease is over by now, the next role has them closed.
        let seen = timeout(SEEN_WITHIN, self.offer());
        tokio::spawn(async move {
            if seen.await.is_err() {
                tracing::warn!("a session takes long to see that this gateway is active");
            }
        });
    }

    /// The server ends: what is under way has ended when this returns, but for the opening of a file that hangs.
    pub(super) async fn end_work(&mut self, work: Work) {
        let ended = work.into_iter().map(|(group, work)| {
            let role = self.cluster.as_ref().map(|cluster| cluster.role(&group));
            async move {
                let done = match role == Some(Role::TakingOver) {
                    true => timeout(GIVEN_UP_WITHIN, work).await.ok(),
                    false => Some(work.await),
                };
                (group, done)
            }
        });
        for (group, done) in join_all(ended.collect::<Vec<_>>()).await {
            if let Some(Ok(Done::Opened(chains))) = done {
                drop(self.exchange_chains(&group, chains));
            }
        }
    }

    fn cluster_group(&self, group: &GroupName) -> Option<&Group> {
        self.cluster.as_ref()?.group(group)
    }

    /// The volumes that move together.
    fn volumes_of(&self, group: &GroupName) -> impl Iterator<Item = &Served> {
        self.volumes().iter().filter(move |volume| volume.group == *group)
    }

    fn take_over(&self, group: &GroupName) -> Option<JoinHandle<Done>> {
        let its = self.cluster_group(group)?;
        let opening = Opening {
            volumes: self.volumes_of(group).cloned().collect(),
            state: self.config().state.clone(),
            stop: self.stop.clone(),
            role: its.roles(),
            reporter: its.reporter(),
            membership: its.membership(),
            is_confirmed: false,
            media: its.media(),
            log_limiter: its.take_over_log(),
        };
        let runtime = Handle::current();
        Some(spawn_blocking(move || runtime.block_on(opening.run())))
    }

    /// Puts these chains beneath the disks of a group, and gives those that were there.
    fn exchange_chains(&mut self, group: &GroupName, chains: Vec<Chain>) -> Vec<Chain> {
        let names: Vec<_> = self.volumes_of(group).map(|volume| volume.name.clone()).collect();
        let mut before = Vec::new();
        for (name, chain) in names.iter().zip(chains) {
            let Some(open_volume) = self.open_volumes.get_mut(name) else { continue };
            open_volume.disk = open_volume.disk.grown(chain.volume());
            before.push(replace(&mut open_volume.chain, chain));
        }
        before
    }

    /// Has sessions see the volumes as they are now; what is returned ends when they do.
    fn offer(&self) -> impl Future<Output = ()> + use<> {
        let config = self.config();
        let names = config.volumes.iter().map(|volume| volume.target.clone()).collect();
        let offering = Offering {
            devices: self.targets(config),
            policy: policy(config, self.clients.clone(), names),
            limits: super::limits::limits(&config.limits),
            access: self.access(config),
        };
        self.node.replace(offering).1
    }

    /// Closes the volumes of a group. Every session with one of their targets ends: what lies in its connection was meant for a
    /// gateway that was active, and must not be taken for something new when this one is active again.
    async fn stand_by(&mut self, group: &GroupName) -> Option<JoinHandle<Done>> {
        let reporter = self.cluster_group(group)?.reporter();
        let mut chains = Vec::new();
        for volume in self.volumes_of(group) {
            let active = self.open_volumes.get(&volume.name)?;
            let shape = active.chain.volume().shape().clone();
            // What it is like is known, so that this neither waits nor fails.
            chains.push(open_one_standby(volume, Some(shape)).await.ok()?);
        }
        let active = self.exchange_chains(group, chains);
        drop(self.offer());
        let targets: BTreeSet<_> =
            self.volumes_of(group).map(|volume| volume.target.as_str()).collect();
        let ended = self.node.end_sessions(&targets, EndReason::TakenOver);
        let its = self.volumes_of(group).filter_map(|volume| self.open_volumes.get(&volume.name));
        let disks: Vec<_> = its.map(|volume| volume.disk.again()).collect();
        Some(tokio::spawn(async move {
            ended.await;
            join_all(disks.iter().map(Disk::quiesce)).await;
            for closed in join_all(active.into_iter().map(Chain::close)).await {
                if let Err(why) = closed {
                    let why = why.on_one_line();
                    tracing::error!("a volume was not closed as it should be: {why}");
                }
            }
            reporter.closed().await;
            Done::Nothing
        }))
    }

    /// How the cluster is, as JSON.
    pub(super) fn cluster_status(&self) -> Outcome<String> {
        let status = self.cluster.as_ref().ok_or_else(no_gateway)?.observer().status();
        serde_json::to_string(&status).or_fail(|| "cannot tell how the cluster is".to_owned())
    }

    /// Moves a group of volumes, and answers when that is begun. To look for another gateway takes a while, in which nobody waits
    /// who asks for something else.
    pub(super) fn begin_move(&self, meant: &str, request: Request) {
        match self.group_meant(meant).map(Group::mover) {
            Ok(mover) => drop(tokio::spawn(answer_move(mover, request))),
            Err(why) => request.answer(Err(why)),
        }
    }

    /// The group of volumes that somebody means who names one, or TARGET/LUN.
    fn group_meant(&self, meant: &str) -> Outcome<&Group> {
        let cluster = self.cluster.as_ref().ok_or_else(no_gateway)?;
        // No name of a group has a slash.
        let Some((target, lun)) = meant.rsplit_once('/') else {
            return match meant {
                "" => cluster.only_group(),
                name => cluster.named_group(name),
            };
        };
        let is_it =
            |volume: &&Served| volume.target.as_str() == target && volume.lun.to_string() == lun;
        let volume = self.volumes().iter().find(is_it);
        let missing = || Failure::new(format!("{meant} is no volume of this gateway"));
        cluster.named_group(&volume.ok_or_else(missing)?.group.to_string())
    }
}

async fn answer_move(mover: Mover, request: Request) {
    match mover.prepare().await {
        Err(why) => request.answer(Err(why)),
        // The session of whoever asks may be one of those that the move ends.
        Ok(said) if request.client().is_some() => {
            request.answer(Ok(said));
            sleep(ANSWER_SEEN_WITHIN).await;
            mover.begin().await;
        }
        Ok(said) => {
            mover.begin().await;
            request.answer(Ok(said));
        }
    }
}

fn no_gateway() -> Failure {
    let what = "the server is no gateway of a cluster";
    Failure::new(what).hint("a table [cluster] in its configuration makes it one")
}
