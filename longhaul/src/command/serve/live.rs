//! What a running server serves, and how that follows a changed file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto::iscsi::login::policy::Policy;
use proto::iscsi::name::IscsiName;
use proto::scsi::ports::AccessState;
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;

use super::closing::Closings;
use super::limits::limits;
use super::portals::list as places;
use super::{
    LEVEL, Remembered, conflicts, discard, disks, look, note_sizes, open, policy, refuse_state,
    refuse_strangers, remember, targets, unless_stopped,
};
use crate::chain::{Chain, Growth};
use crate::command::options::blocking;
use crate::config::{Config, Listen, Served};
use crate::failure::{Failure, OrFail, Outcome};
use crate::front::iscsi::{Node, Offering, Portal};
use crate::log::{Log, Tap};
use crate::served_files::{LeftState, OnExchange, ServedFiles};
use crate::stop::Stop;
use crate::target::lun::{Disk, TargetDevice};

/// A volume that is being served.
struct Room {
    chain: Chain,
    disk: Disk,
    /// By which it is noted.
    identity: String,
}

/// All that is being served.
pub(super) struct Live {
    config: Config,
    /// Where it listens, as long as it runs.
    portals: Vec<Portal>,
    rooms: BTreeMap<String, Room>,
    closings: Closings,
    node: Arc<Node>,
    /// What the command line wants to be logged, and where that is changed.
    log: (Log, Tap),
    /// When it is called, volumes of other targets wait no longer for those.
    stop: Stop,
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
    policy: Box<dyn FnOnce(Vec<IscsiName>) -> Policy>,
}

/// The volumes that grow, by name.
type Growths = BTreeMap<String, Growth>;

impl Live {
    /// What `node` serves: the chains and disks are those of the volumes of `config`, in order.
    pub(super) fn new(
        config: Config,
        portals: Vec<Portal>,
        (chains, disks, remembered): (Vec<Chain>, Vec<Disk>, Vec<Remembered>),
        node: Arc<Node>,
        log: (Log, Tap),
        stop: Stop,
    ) -> Self {
        let rooms = rooms(&config.volumes, chains, disks, remembered).collect();
        let closings = Closings::default();
        Self { config, portals, rooms, closings, node, log, stop }
    }

    /// Reads the file again, and opens what is new. A failure has changed nothing. It fails soon once `stop` is called.
    pub(super) async fn prepare(&self, stop: Stop) -> Outcome<Prepared> {
        let origin = self.config.origin.as_ref();
        let path = origin.map(|origin| origin.path.clone());
        let path = path.ok_or_else(|| Failure::new("there is no file to read again"))?;
        let config = unless_stopped(&stop, blocking(move || Config::read(&path))).await?;
        self.refuse_upheaval(&config)?;
        refuse_strangers(&config, &self.portals)?;
        conflicts::refuse(&config, &self.portals)?;
        let filter = self.log.0.clone().or(&config.log).filter(LEVEL)?;
        let policy = unless_stopped(&stop, policy(&config)).await?;
        let is_new = |volume: &&Served| !self.rooms.contains_key(&volume.name);
        let added: Vec<_> = config.volumes.iter().filter(is_new).cloned().collect();
        self.closings.refuse(&added)?;
        self.refuse_handover(&config, &added)?;
        refuse_state(config.state.as_deref())?;
        let found = look(added.clone()).await?;
        let chains = open(&added, config.state.as_deref(), OnExchange::Warn, &stop).await?;
        let growths = match self.prepare_growth(&config, filter) {
            Ok(growths) => growths,
            Err(why) => {
                discard(chains).await;
                return Err(why);
            }
        };
        let remembered = match remember(found, &chains, &config).await {
            Ok(remembered) => remembered,
            Err(why) => {
                growths.into_values().for_each(Growth::undo);
                discard(chains).await;
                return Err(why);
            }
        };
        // Nothing can fail from here on.
        let grown = config.volumes.iter().filter(|volume| growths.contains_key(&volume.name));
        note_sizes(grown.cloned().collect(), config.state.as_deref()).await;
        chains.iter().for_each(|chain| chain.leave_on(self.stop.clone()));
        Ok(Prepared { config, added, remembered, chains, growths, policy: Box::new(policy) })
    }

    /// Serves what was prepared, and says what has changed. What is served no more ends in the background.
    pub(super) fn apply(&mut self, prepared: Prepared) -> Applied {
        let Prepared { config, added, remembered, chains, growths, policy } = prepared;
        let disks = disks(&added, &chains, &remembered);
        let grown = self.grow(growths);
        self.rooms.extend(rooms(&added, chains, disks, remembered));
        self.replace(config, &added, &grown, policy)
    }

    /// Serves what `config` says: all of it is in the rooms.
    fn replace(
        &mut self,
        config: Config,
        added: &[Served],
        grown: &[String],
        policy: impl FnOnce(Vec<IscsiName>) -> Policy,
    ) -> Applied {
        let stays = |name: &String| config.volumes.iter().any(|volume| volume.name == *name);
        let (kept, removed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.rooms).into_iter().partition(|(name, _)| stays(name));
        self.rooms = kept;
        let devices = self.targets(&config);
        let names = config.volumes.iter().map(|volume| volume.target.clone());
        let names: BTreeSet<_> = names.collect();
        let policy = policy(names.into_iter().collect());
        let access = config.ports();
        let turned = turned(&self.config.ports(), &access);
        let offering = Offering { devices, policy, limits: limits(&config.limits), access };
        let (leaving, gone) = self.node.replace(offering);
        let said = [
            list("added", added.iter().map(|volume| volume.name.as_str())),
            list("removed", removed.keys().map(String::as_str)),
            list("grown", grown.iter().map(String::as_str)),
            list("access of", turned.iter().map(String::as_str)),
            (leaving > 0).then(|| format!("sessions asked to log in anew: {leaving}")),
        ];
        let volumes = std::mem::replace(&mut self.config, config).volumes.into_iter();
        let volumes = volumes.filter(|volume| removed.contains_key(&volume.name)).collect();
        let closed = self.closings.begin(volumes, retire(removed, gone, self.files()));
        let said: Vec<_> = said.into_iter().flatten().collect();
        let said =
            if said.is_empty() { "nothing to tell sessions".to_owned() } else { said.join("; ") };
        Applied { said, closed }
    }

    /// Some things are fixed while the server runs.
    fn refuse_upheaval(&self, new: &Config) -> Outcome {
        let old = &self.config;
        let fixed = [
            ("listen", places_of(old).eq(places_of(new))),
            ("protection", old.protection == new.protection),
            ("identity", old.identity == new.identity),
            ("state", old.state == new.state),
            ("log.format", old.log.format == new.log.format),
            ("control", old.control == new.control),
            ("metrics", old.metrics == new.metrics),
        ];
        if let Some((key, _)) = fixed.iter().find(|(_, same)| !same) {
            let what = format!("`{key}` cannot change while the server runs");
            return Err(Failure::usage(what).hint("restart it"));
        }
        for volume in &new.volumes {
            let Some(old) = old.volumes.iter().find(|old| old.name == volume.name) else {
                continue;
            };
            let may_change = (volume.size, volume.protection);
            let changed = Served { size: may_change.0, protection: may_change.1, ..old.clone() };
            if changed != *volume {
                let (name, option) = (&volume.name, changed_option(&changed, volume));
                let what = format!("{option} of volume {name} cannot change while it is served");
                let hint = "take it out of the file, reload, and put it in again";
                return Err(Failure::usage(what).hint(hint));
            }
        }
        Ok(())
    }

    /// A volume that only gets another name is the one that it was: the reservations that are read for it must not be
    /// changed any more by the clients of the one that leaves.
    fn refuse_handover(&self, new: &Config, added: &[Served]) -> Outcome {
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

    /// Makes files as large as the configuration says, and turns the log as `filter` says: both, or neither.
    fn prepare_growth(&self, config: &Config, filter: EnvFilter) -> Outcome<Growths> {
        let mut growths = Growths::new();
        let outcome = self.grow_files(config, &mut growths).and_then(|()| self.log.1.turn(filter));
        match outcome {
            Ok(()) => Ok(growths),
            Err(why) => {
                growths.into_values().for_each(Growth::undo);
                Err(why)
            }
        }
    }

    fn grow_files(&self, config: &Config, growths: &mut Growths) -> Outcome {
        for Served { name, size, .. } in &config.volumes {
            let Some(Room { chain, .. }) = self.rooms.get(name) else { continue };
            let growth = chain.prepare_growth(*size);
            let growth = growth.map_err(|why| why.within(&format!("volume {name}")))?;
            growths.extend(growth.map(|growth| (name.clone(), growth)));
        }
        Ok(())
    }

    /// The volumes are as large as their files; the names of those that were smaller. Nobody is told yet.
    fn grow(&mut self, growths: Growths) -> Vec<String> {
        let mut grown = Vec::new();
        for (name, growth) in growths {
            let Some(Room { chain, disk, .. }) = self.rooms.get_mut(&name) else { continue };
            chain.grow(growth);
            *disk = disk.grown(chain.volume());
            grown.push(name);
        }
        grown
    }

    /// What is served and where, in a line.
    pub(super) fn summary(&self) -> String {
        let portals = places(self.portals.iter().map(|portal| portal.address));
        format!("Serving {} volumes at {portals}", self.rooms.len())
    }

    fn targets(&self, config: &Config) -> Vec<Arc<TargetDevice>> {
        let disk = |volume: &Served| self.rooms.get(&volume.name).map(|room| &room.disk);
        targets(config.volumes.iter().filter_map(|volume| Some((volume, disk(volume)?))))
    }

    /// How it is, as JSON.
    pub(super) fn status(&self) -> Outcome<String> {
        let mut status = self.node.status();
        for Served { name, target, lun, .. } in &self.config.volumes {
            let Some(Room { chain, .. }) = self.rooms.get(name) else { continue };
            let told = [
                (&mut status.outages, chain.observer().outage()),
                (&mut status.losses, chain.loss()),
                (&mut status.moved, chain.moved().filter(|_| chain.loss().is_none())),
            ];
            for (told, why) in told {
                let Some(why) = why else { continue };
                told.entry(target.as_str().to_owned()).or_default().insert(*lun, why);
            }
        }
        serde_json::to_string(&status).or_fail(|| "cannot tell how it is".to_owned())
    }

    /// Closes everything, after the sessions have ended.
    pub(super) async fn close(self) -> Outcome {
        let files = self.files();
        let Self { rooms, closings, node, .. } = self;
        drop(node);
        let closed = close_rooms(rooms, &files).await;
        closed.and(closings.ended().await)
    }

    fn files(&self) -> ServedFiles {
        ServedFiles::in_state(self.config.state.as_deref())
    }
}

/// The option that makes a volume differ from what it was.
fn changed_option(old: &Served, new: &Served) -> &'static str {
    let looks = |volume: &Served| volume.appearance.clone();
    let (was, is) = (looks(old), looks(new));
    let options = [
        ("`uri`", old.uri == new.uri),
        ("`target`", old.target == new.target),
        ("`lun`", old.lun == new.lun),
        ("`read_only`", old.read_only == new.read_only),
        ("`encrypted`", old.encrypted == new.encrypted),
        ("`block_size`", was.block_size == is.block_size),
        ("`physical_block_size`", was.physical_block_size == is.physical_block_size),
        ("`removable`", was.removable == is.removable),
        ("`thin`", was.thin == is.thin),
        ("`sanitize_rate`", old.sanitize_rate == new.sanitize_rate),
        ("`vendor`", was.vendor == is.vendor),
        ("`product`", was.product == is.product),
        ("`serial`", was.serial == is.serial),
        ("`shared`", old.upstream.shared == new.upstream.shared),
        ("the way to log in", old.upstream == new.upstream),
        ("the way to decrypt", old.unlock == new.unlock),
    ];
    let changed = options.into_iter().find(|(_, is_same)| !is_same);
    changed.map_or("an option", |(option, _)| option)
}

/// Closes volumes that were removed, once the sessions that used them are gone. A connection that is lost is not waited
/// for as long as a volume is that is served: neither those sessions nor whoever puts the volume in again could go on.
async fn retire(
    removed: BTreeMap<String, Room>,
    gone: impl Future<Output = ()>,
    files: ServedFiles,
) -> Outcome {
    removed.values().for_each(|room| room.chain.leave());
    gone.await;
    close_rooms(removed, &files).await
}

/// Closes volumes that no session uses, side by side: one whose target is out of reach, or that breaks down, does not keep
/// the others from being flushed and given back.
async fn close_rooms(rooms: BTreeMap<String, Room>, files: &ServedFiles) -> Outcome {
    let closing = |(name, room): (String, Room)| (name, tokio::spawn(room.close(files.clone())));
    let closings: Vec<_> = rooms.into_iter().map(closing).collect();
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

impl Room {
    async fn close(self, files: ServedFiles) -> Outcome {
        // A SANITIZE outlives its session, and may be writing the header that closing writes too.
        self.disk.retire().await;
        // While its lock keeps others away.
        self.note_left(files).await;
        let Self { chain, disk, .. } = self;
        drop(disk);
        chain.close().await
    }

    /// Notes how its file is left, so that it shows if others write to it.
    async fn note_left(&self, files: ServedFiles) {
        if self.chain.volume().shape().read_only {
            return;
        }
        let Some(found) = self.chain.settled().await else { return };
        let identity = self.identity.clone();
        let noted = blocking(move || files.note_left(&identity, LeftState::of(&found))).await;
        if let Err(why) = noted {
            let uri = self.chain.uri();
            tracing::warn!(
                "nobody will notice if {uri} is written to while it is not served: {why}"
            );
        }
    }
}

fn rooms(
    volumes: &[Served],
    chains: Vec<Chain>,
    disks: Vec<Disk>,
    remembered: Vec<Remembered>,
) -> impl Iterator<Item = (String, Room)> {
    let rooms = chains.into_iter().zip(disks).zip(remembered);
    let rooms = rooms.map(|((chain, disk), Remembered { by, .. })| Room {
        chain,
        disk,
        identity: by.identity,
    });
    volumes.iter().map(|volume| volume.name.clone()).zip(rooms)
}

/// The places to listen without what may change there.
fn places_of(config: &Config) -> impl Iterator<Item = Listen> {
    config.listen.iter().map(|listen| Listen { access: None, ..listen.clone() })
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
