//! What a running server serves, and how that follows a changed file.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::join_all;
use proto::client::ClientId;
use proto::identity::PublicKey;
use proto::iscsi::login::policy::Client as Admitted;
use proto::scsi::ports::AccessState;
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;

use super::closing::Closings;
use super::devices::device_status;
use super::invitations::OpenInvitations;
use super::limits::limits;
use super::movements::Movements;
use super::pending_edit::PendingEdit;
use super::portals::list as places;
use super::{
    LEVEL, Remembered, clients_of, conflicts, discard, disks, note_sizes, open, policy,
    refuse_state, refuse_unauthenticated, remember, shares, targets, unless_stopped,
};
use crate::chain::{Chain, Growth};
use crate::cluster::Cluster;
use crate::command::options::blocking;
use crate::config::edit::Change;
use crate::config::{Config, Served};
use crate::failure::{Failure, OrFail, Outcome};
use crate::front::hyperscsi;
use crate::front::iscsi::{Node, Offering, Portal};
use crate::log::{Log, LogFilter};
use crate::printable::Counted;
use crate::served_volumes::{LeftState, OnExchange, ServedVolumes};
use crate::stop::Stop;
use crate::target::lun::{Disk, TargetDevice};
use crate::target::status::Status;

/// A volume that is being served.
pub(super) struct OpenVolume {
    pub(super) chain: Chain,
    pub(super) disk: Disk,
    /// By which it is noted.
    pub(super) identity: String,
}

/// New volumes that are open, for a configuration that is not in force yet.
#[derive(Clone, Copy)]
struct Opened<'a> {
    config: &'a Config,
    added: &'a [Served],
    chains: &'a [Chain],
}

/// All that is being served.
pub(super) struct Live {
    config: Config,
    /// Its clients, in the same order, with what they prove: none of that is read again for the sake of another.
    pub(super) clients: Vec<Admitted>,
    /// Where it listens, as long as it runs.
    portals: Vec<Portal>,
    pub(super) open_volumes: BTreeMap<String, OpenVolume>,
    closings: Closings,
    pub(super) node: Arc<Node>,
    /// The same by HyperSCSI, if it is.
    beside: Option<Arc<hyperscsi::Node>>,
    /// What the command line wants to be logged, and where that is changed.
    log: (Log, LogFilter),
    /// When it is called, volumes of other targets wait no longer for those.
    pub(super) stop: Stop,
    /// The part of this server in a cluster.
    pub(super) cluster: Option<Cluster>,
    /// The clients that are listed when they come.
    pub(super) invitations: OpenInvitations,
    /// By which initiators have cartridges moved.
    movements: Movements,
    /// Who the server is, and where it listens, as clients are told.
    known_as: (Option<PublicKey>, Vec<SocketAddr>),
}

/// What became of a reload that was applied.
pub(super) struct Applied {
    /// What has changed.
    pub(super) said: String,
    /// Whether volumes that were removed could be flushed and closed, once the sessions that had to end have ended.
    pub(super) closed: oneshot::Receiver<Outcome>,
}

/// A configuration that can be applied: nothing of that can fail.
pub(super) struct Prepared {
    config: Config,
    added: Vec<Served>,
    remembered: Vec<Remembered>,
    chains: Vec<Chain>,
    growths: Growths,
    clients: Vec<Admitted>,
}

/// The volumes that grow, by name.
type Growths = BTreeMap<String, Growth>;

/// Of a tape that has room, in a file system that has none.
const STORE_FULL: &str =
    "its file system is full, though the tape is not: what was to be written last had no room";

impl Live {
    /// What `node` serves: the chains and disks are those of the volumes of `config`, in order.
    pub(super) fn new(
        (config, clients): (Config, Vec<Admitted>),
        portals: Vec<Portal>,
        (chains, disks, remembered): (Vec<Chain>, Vec<Disk>, Vec<Remembered>),
        node: Arc<Node>,
        log: (Log, LogFilter),
        stop: Stop,
        (invitations, movements): (OpenInvitations, Movements),
    ) -> Self {
        let open_volumes = open_volumes(&config.volumes, chains, disks, remembered).collect();
        node.set_shares(shares(&config));
        let closings = Closings::default();
        let known_as = (None, Vec::new());
        let (beside, cluster) = (None, None);
        Self {
            config,
            clients,
            portals,
            open_volumes,
            closings,
            node,
            beside,
            log,
            stop,
            cluster,
            invitations,
            movements,
            known_as,
        }
    }

    /// The same is served by HyperSCSI.
    pub(super) fn serves_beside(&mut self, node: Option<Arc<hyperscsi::Node>>) {
        self.beside = node;
    }

    /// It listens at these addresses, with this public key.
    pub(super) fn listens(&mut self, addresses: &[SocketAddr], pin: Option<PublicKey>) {
        self.known_as = (pin, addresses.to_vec());
    }

    pub(super) const fn pin(&self) -> Option<PublicKey> {
        self.known_as.0
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.known_as.1
    }

    pub(super) const fn config(&self) -> &Config {
        &self.config
    }

    /// Its clients, as they log in.
    pub(super) fn admitted(&self) -> &[Admitted] {
        &self.clients
    }

    /// The clients of the sessions that there are.
    pub(super) fn sessions(&self) -> Vec<Option<String>> {
        self.node_status().sessions.into_iter().map(|session| session.client).collect()
    }

    /// The volumes, as they are configured.
    pub(super) fn volumes(&self) -> &[Served] {
        &self.config.volumes
    }

    /// Reads the file again, as it is with these changes, and opens what is new. A failure has changed nothing. It fails soon once `stop` is called.
    pub(super) async fn prepare(&self, changes: &[Change], stop: Stop) -> Outcome<Prepared> {
        let origin = self.config.origin.as_ref();
        let path = origin.map(|origin| origin.path.clone());
        let path = path.ok_or_else(|| Failure::new("there is no file to read again"))?;
        let changes = changes.to_vec();
        let made = blocking(move || PendingEdit::make(path, &changes));
        let (mut config, edit) = unless_stopped(&stop, made).await?;
        config.closed |= self.config.closed;
        self.refuse_fixed_changes(&config)?;
        refuse_unauthenticated(&config, &self.portals)?;
        conflicts::refuse(&config, &self.portals)?;
        let filter = self.log.0.clone().or(&config.log).filter(LEVEL)?;
        let clients = unless_stopped(&stop, clients_of(&config)).await?;
        let is_new = |volume: &&Served| !self.open_volumes.contains_key(&volume.name);
        let added: Vec<_> = config.volumes.iter().filter(is_new).cloned().collect();
        self.closings.refuse(&added)?;
        self.refuse_rename(&config, &added)?;
        refuse_state(config.state.as_deref())?;
        let chains = open(&added, config.state.as_deref(), OnExchange::Warn, &stop).await?;
        let opened = Opened { config: &config, added: &added, chains: &chains };
        let (growths, remembered) = match self.prepare_opened(opened, (filter, edit), &stop).await {
            Ok(prepared) => prepared,
            Err(why) => {
                discard(chains, &added, config.state.as_deref()).await;
                return Err(why);
            }
        };
        // Nothing can fail from here on.
        let grown = config.volumes.iter().filter(|volume| growths.contains_key(&volume.name));
        note_sizes(grown.cloned().collect(), config.state.as_deref()).await;
        chains.iter().for_each(|chain| chain.leave_on(self.stop.clone()));
        Ok(Prepared { config, added, remembered, chains, growths, clients })
    }

    /// What is left once the volumes are open: what has grown, the names of all, and last the file, which then says what is
    /// about to be in force.
    async fn prepare_opened(
        &self,
        Opened { config, added, chains }: Opened<'_>,
        (filter, edit): (EnvFilter, Option<PendingEdit>),
        stop: &Stop,
    ) -> Outcome<(Growths, Vec<Remembered>)> {
        let growths = self.prepare_growth(config, filter, stop).await?;
        let remembered = match remember(added, chains, config).await {
            Ok(remembered) => {
                let written = blocking(|| edit.map_or(Ok(()), PendingEdit::write)).await;
                written.map(|()| remembered)
            }
            Err(why) => Err(why),
        };
        match remembered {
            Ok(remembered) => Ok((growths, remembered)),
            Err(why) => {
                growths.into_values().for_each(Growth::undo);
                Err(why)
            }
        }
    }

    /// Whether this client may administer the server as it is now.
    pub(super) fn is_administrator(&self, client: &ClientId) -> bool {
        let ClientId::Key(key) = client else { return false };
        let mut clients = self.config.clients.iter();
        clients.any(|one| one.administers && !one.paused && one.key.as_ref() == Some(key))
    }

    /// Serves what was prepared, and says what has changed. What is served no more ends in the background.
    pub(super) fn apply(&mut self, prepared: Prepared) -> Applied {
        let Prepared { config, added, remembered, chains, growths, clients } = prepared;
        let disks = disks(&added, &chains, &remembered, (None, &self.movements));
        let grown = self.grow(growths);
        self.open_volumes.extend(open_volumes(&added, chains, disks, remembered));
        self.replace((config, clients), &added, &grown)
    }

    /// Serves what `config` says: all of it is open.
    pub(super) fn replace(
        &mut self,
        (config, clients): (Config, Vec<Admitted>),
        added: &[Served],
        grown: &[String],
    ) -> Applied {
        let stays = |name: &String| config.volumes.iter().any(|volume| volume.name == *name);
        let (kept, removed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.open_volumes).into_iter().partition(|(name, _)| stays(name));
        self.open_volumes = kept;
        let devices = self.targets(&config);
        let names = config.volumes.iter().map(|volume| volume.target.clone());
        let names: BTreeSet<_> = names.collect();
        let policy = policy(&config, clients.clone(), names.into_iter().collect());
        self.clients = clients;
        let access = self.access(&config);
        let turned = turned(&self.access(&self.config).all, &access.all);
        let same = super::hyperscsi::offering(&config, devices.clone(), policy.clone());
        let offering = Offering { devices, policy, limits: limits(&config.limits), access };
        // Of sessions that stay, too, by whatever transport.
        self.node.set_shares(shares(&config));
        let (leaving, gone) = self.node.replace(offering);
        let beside = self.beside.as_ref().map(|node| node.replace(same));
        let (more, gone_beside) = beside.map_or((0, None), |(more, gone)| (more, Some(gone)));
        let leaving = leaving + more;
        let gone = async {
            gone.await;
            if let Some(gone) = gone_beside {
                gone.await;
            }
        };
        let said = [
            list("added", added.iter().map(|volume| volume.name.as_str())),
            list("removed", removed.keys().map(String::as_str)),
            list("grown", grown.iter().map(String::as_str)),
            list("access of", turned.iter().map(String::as_str)),
            (leaving > 0).then(|| format!("sessions that must log in anew: {leaving}")),
        ];
        let volumes = std::mem::replace(&mut self.config, config).volumes.into_iter();
        let volumes = volumes.filter(|volume| removed.contains_key(&volume.name)).collect();
        let closed = self.closings.begin(volumes, retire(removed, gone, self.config.state.clone()));
        let said: Vec<_> = said.into_iter().flatten().collect();
        let said =
            if said.is_empty() { "nothing to tell sessions".to_owned() } else { said.join("; ") };
        Applied { said, closed }
    }

    /// Some things are fixed while the server runs.
    fn refuse_fixed_changes(&self, new: &Config) -> Outcome {
        if self.cluster.is_some() && self.config.volumes != new.volumes {
            let what = "the volumes of a cluster cannot change while a gateway runs";
            return Err(Failure::usage(what).hint("restart one gateway after the other"));
        }
        if let Some(key) = self.config.fixed_change(new) {
            let what = format!("`{key}` cannot change while the server runs");
            return Err(Failure::usage(what).hint("restart it"));
        }
        for volume in &new.volumes {
            let old = self.config.volumes.iter().find(|old| old.name == volume.name);
            if let Some(option) = old.and_then(|old| old.fixed_change(volume)) {
                let name = &volume.name;
                let what = format!("`{option}` of volume {name} cannot change while it is served");
                let hint = "take it out of the file, reload, and put it in again";
                return Err(Failure::usage(what).hint(hint));
            }
        }
        Ok(())
    }

    /// A volume that only gets another name is the one that it was: the reservations that are read for it must not be
    /// changed any more by the clients of the one that leaves.
    fn refuse_rename(&self, new: &Config, added: &[Served]) -> Outcome {
        let leaves = |old: &&Served| new.volumes.iter().all(|volume| volume.name != old.name);
        let kept = |added: &&Served| new.state.is_some() && !added.uri.vanishes();
        for Served { name, target, lun, uri, .. } in added.iter().filter(kept) {
            let mut leaving = self.config.volumes.iter().filter(leaves);
            let is_it = |old: &&Served| (&old.target, old.lun, &old.uri) == (target, *lun, uri);
            let Some(old) = leaving.find(is_it) else { continue };
            let old = &old.name;
            let what =
                format!("volume {name} cannot become unit {lun} of {target} while volume {old} is");
            return Err(Failure::usage(what)
                .because("the reservations of a unit are kept, and clients may still change them")
                .hint(format!("take {old} out of the file, reload, and put {name} in then")));
        }
        Ok(())
    }

    /// Makes files as large as the configuration says, and finds out which other stores have grown; and turns the log as
    /// `filter` says: both, or neither.
    async fn prepare_growth(
        &self,
        config: &Config,
        filter: EnvFilter,
        stop: &Stop,
    ) -> Outcome<Growths> {
        let mut growths = Growths::new();
        let grown = self.grow_stores(config, &mut growths, stop).await;
        let outcome = grown.and_then(|()| self.log.1.turn(filter));
        match outcome {
            Ok(()) => Ok(growths),
            Err(why) => {
                growths.into_values().for_each(Growth::undo);
                Err(why)
            }
        }
    }

    /// All at once, and no longer than until `stop` is called: a target that does not answer keeps nobody from another
    /// reload.
    async fn grow_stores(&self, config: &Config, growths: &mut Growths, stop: &Stop) -> Outcome {
        let open = config.volumes.iter().filter_map(|Served { name, size, .. }| {
            Some((name, *size, &self.open_volumes.get(name)?.chain))
        });
        let prepared = join_all(open.map(|(name, size, chain)| async move {
            let growth = unless_stopped(stop, chain.prepare_growth(size)).await;
            (name, growth.map_err(|why| why.within(&format!("volume {name}"))))
        }));
        let mut outcome = Ok(());
        for (name, growth) in prepared.await {
            // What has grown is undone if another has failed.
            match growth {
                Ok(growth) => growths.extend(growth.map(|growth| (name.clone(), growth))),
                Err(why) => outcome = outcome.and(Err(why)),
            }
        }
        outcome
    }

    /// The volumes are as large as their files; the names of those that were smaller. Nobody is told yet.
    fn grow(&mut self, growths: Growths) -> Vec<String> {
        let mut grown = Vec::new();
        for (name, growth) in growths {
            let Some(OpenVolume { chain, disk, .. }) = self.open_volumes.get_mut(&name) else {
                continue;
            };
            chain.grow(growth);
            // What was told of the end was told to what it was before.
            chain.leave_on(self.stop.clone());
            *disk = disk.grown(chain.volume());
            grown.push(name);
        }
        grown
    }

    /// What is served and where, in a line.
    pub(super) fn summary(&self) -> String {
        let portals = places(self.portals.iter().map(|portal| portal.address));
        format!("Serving {} at {portals}", Counted(self.open_volumes.len(), "volume"))
    }

    pub(super) fn targets(&self, config: &Config) -> Vec<Arc<TargetDevice>> {
        let disk = |volume: &Served| {
            self.open_volumes.get(&volume.name).map(|open_volume| &open_volume.disk)
        };
        targets(config.volumes.iter().filter_map(|volume| Some((volume, disk(volume)?))))
    }

    /// The sessions of all transports, and what was done by each target.
    fn node_status(&self) -> Status {
        let mut status = self.node.status();
        if let Some(beside) = &self.beside {
            status.add_beside(beside.status());
        }
        status
    }

    /// How it is, as JSON.
    pub(super) fn status(&self) -> Outcome<String> {
        let mut status = self.node_status();
        status.keeps_reservations = Some(self.config.state.is_some() || self.cluster.is_some());
        status.cluster = self.cluster.as_ref().map(|cluster| cluster.observer().status());
        for Served { name, target, lun, .. } in &self.config.volumes {
            let Some(OpenVolume { chain, disk, .. }) = self.open_volumes.get(name) else {
                continue;
            };
            if let Some(device) = device_status(chain) {
                let units = status.devices.entry(target.as_str().to_owned()).or_default();
                units.insert(*lun, device);
            }
            let told = [
                (&mut status.outages, chain.observer().outage()),
                (&mut status.losses, chain.loss()),
                (&mut status.moved, chain.moved().filter(|_| chain.loss().is_none())),
                (&mut status.full, disk.is_store_full().then(|| STORE_FULL.to_owned())),
            ];
            for (told, why) in told {
                let Some(why) = why else { continue };
                told.entry(target.as_str().to_owned()).or_default().insert(*lun, why);
            }
        }
        serde_json::to_string(&status).or_fail(|| "cannot tell how it is".to_owned())
    }

    /// Closes everything, after the sessions have ended.
    /// `is_idle` says that no session was dropped, of which a write may be under way.
    pub(super) async fn close(self, is_idle: bool) -> Outcome {
        let Self { open_volumes, closings, node, beside, config, cluster, .. } = self;
        drop((node, beside));
        let closed = close_volumes(open_volumes, (config.state, is_idle)).await;
        if let Some(cluster) = cluster {
            cluster.end().await;
        }
        closed.and(closings.ended().await)
    }
}

/// Closes volumes that were removed, once the sessions that used them are gone. A connection that is lost is not waited
/// for as long as a volume is that is served: neither those sessions nor whoever puts the volume in again could go on.
async fn retire(
    removed: BTreeMap<String, OpenVolume>,
    gone: impl Future<Output = ()>,
    state: Option<PathBuf>,
) -> Outcome {
    removed.values().for_each(|open_volume| open_volume.chain.leave());
    gone.await;
    close_volumes(removed, (state, true)).await
}

/// Closes volumes that no session uses, side by side: one whose target is out of reach, or that breaks down, does not keep
/// the others from being flushed and given back. Notes how they are left, unless a write may be under way.
async fn close_volumes(
    open_volumes: BTreeMap<String, OpenVolume>,
    (state, is_idle): (Option<PathBuf>, bool),
) -> Outcome {
    let closing = |(name, open_volume): (String, OpenVolume)| {
        (name, tokio::spawn(open_volume.close(state.clone(), is_idle)))
    };
    let closings: Vec<_> = open_volumes.into_iter().map(closing).collect();
    let mut outcome = Ok(());
    for (name, closing) in closings {
        let closed = closing.await.or_fail(|| format!("cannot close volume {name}")).flatten();
        if let (Err(_), Err(why)) = (&outcome, &closed) {
            tracing::error!("volume {name} was not closed as it should be: {why}");
        }
        outcome = outcome.and(closed);
    }
    outcome
}

impl OpenVolume {
    async fn close(self, state: Option<PathBuf>, is_idle: bool) -> Outcome {
        // A SANITIZE outlives its session, and may be writing the header that closing writes too.
        self.disk.retire().await;
        // While its lock keeps others away.
        if is_idle {
            self.note_left(state).await;
        }
        let Self { chain, disk, .. } = self;
        drop(disk);
        chain.close().await
    }

    /// Notes how its file is left, so that it shows if others write to it.
    async fn note_left(&self, state: Option<PathBuf>) {
        if self.chain.volume().shape().read_only {
            return;
        }
        let Some(found) = self.chain.settled().await else { return };
        let identity = self.identity.clone();
        let left = LeftState::of(&found);
        let noted = move || ServedVolumes::note_left(state.as_deref(), &identity, left);
        let noted = blocking(noted).await;
        if let Err(why) = noted {
            let uri = self.chain.uri();
            tracing::warn!(
                "nobody will notice if {uri} is written to while it is not served: {why}"
            );
        }
    }
}

fn open_volumes(
    volumes: &[Served],
    chains: Vec<Chain>,
    disks: Vec<Disk>,
    remembered: Vec<Remembered>,
) -> impl Iterator<Item = (String, OpenVolume)> {
    let open_volumes = chains.into_iter().zip(disks).zip(remembered);
    let open_volumes = open_volumes.map(|((chain, disk), Remembered { by, .. })| OpenVolume {
        chain,
        disk,
        identity: by.identity,
    });
    volumes.iter().map(|volume| volume.name.clone()).zip(open_volumes)
}

/// The portal groups that are not accessed as before, and how they are.
fn turned(old: &BTreeMap<u16, AccessState>, new: &BTreeMap<u16, AccessState>) -> Vec<String> {
    let turned = new.iter().filter(|(group, access)| old.get(group) != Some(access));
    turned.map(|(group, access)| format!("group {group} is {}", access.name())).collect()
}

fn list<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
}
