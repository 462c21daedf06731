//! `longhaul serve`: volumes for others, over iSCSI.

mod access;
mod administration;
mod changer;
mod clients;
mod closing;
mod config_edit;
mod conflicts;
mod devices;
mod gateway;
mod hyperscsi;
mod invitations;
mod limits;
mod live;
mod media;
mod metrics;
mod movements;
mod open_together;
mod pending_edit;
mod portals;
mod requests;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;
use host::socket_activation::PassedSocket;
use proto::identity::PublicKey;
use proto::iscsi::invitation::{InvitationError, check_name};
use proto::iscsi::login::policy::{self, Policy, UnitName};
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::Sealing;
use proto::scsi::device_type::DeviceType;
use proto::scsi::ports::Port;

use tokio::net::TcpListener;
use tokio::signal::unix::Signal;
use tokio::time::timeout;

use super::options::{ReplayLogArgs, blocking};
use super::unless_stopped;
use crate::chain::{self, Chain, Contents, Login, OpenOptions, SEEN_WITHIN, Unlock};
use crate::cluster::Cluster;
use crate::config::{self, Client, Config, Served, ServerOptions, Upstream};
use crate::control::{self, Control};
use crate::credentials::{self, Chap, ChapArgs};
use crate::failure::{Failure, OrFail, Outcome};
use crate::front::iscsi::{Enrolment, Node, Server};
use crate::log::Log;
use crate::luks;
use crate::option_table::{CommandLine, names, terminal_list};
use crate::printable::Shown as _;
use crate::reconnect_limit::ReconnectLimit;
use crate::sealing::{Seal, sealing};
use crate::served_volumes::{Found, LeftState, OnExchange, ServedVolumes, VolumeIdentity};
use crate::state::StateDir;
use crate::stop::Stop;
use crate::store::iscsi::Writers;
use crate::systemd;
use crate::target::lun::{
    Administrator, Disk, Options, PassedThrough, StoredReservations, TargetDevice,
};
use crate::transports;
use crate::uri::{IscsiUri, Location, Uri};
use access::{client, clients_of, policy, shares};
pub(super) use conflicts::find as conflicts;
pub(super) use hyperscsi::refuse_unusable as refuse_unusable_links;
use invitations::OpenInvitations;
use live::Live;
use movements::Movements;
use portals::PassedSockets;
pub(super) use portals::{refuse_unauthenticated, resolve};
use requests::Events;

/// Serve volumes over iSCSI, until interrupted
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub struct Args {
    /// A volume: NAME=URI[,size=SIZE][,read_only] and more options; may be given several times
    #[arg(long = "volume", value_name = "NAME=URI")]
    volumes: Vec<Served>,
    /// Serve what this file says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["volumes", "chap_user", "chap_weak"])]
    #[arg(conflicts_with_all = names::<ServerOptions>())]
    config: Option<PathBuf>,
    /// Invite a client of this name to all volumes, unless it is one already: prints a line with which it enrols itself,
    /// once, within an hour. Nobody else may use them
    #[arg(long, value_name = "NAME", value_parser = client_name)]
    invite: Option<String>,
    #[command(flatten)]
    server: CommandLine<ServerOptions>,
    #[command(flatten)]
    chap: ChapArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul serve --volume backup=file:/srv/backup.img,size=80G --listen 0.0.0.0 --invite laptop
  longhaul serve --volume backup=file:/srv/backup.img --listen 0.0.0.0 \\
      --chap-user laptop --chap-secret-file laptop.secret
  longhaul serve --volume backup=file:/srv/backup.img --listen 0.0.0.0 \\
      --identity server.identity --client-key lhpub1-...
  longhaul serve --config /etc/longhaul.toml

A volume NAME is logical unit 0 of the target iqn.2026-11.dev.longhaul:NAME, or with ,target=T,lun=1 unit 1 of \
iqn.2026-11.dev.longhaul:T. Prints `ready URI` for each volume once it can be used; with an identity the URI holds its \
public key, and is all that a client needs. SIGTERM or SIGINT ends it: everything acknowledged is flushed.";

fn client_name(name: &str) -> Result<String, InvitationError> {
    check_name(name).map(|()| name.to_owned())
}

/// Examples, and the options that a volume has after its URI.
fn help() -> String {
    let sections = config::sections();
    let volume = sections.iter().find(|section| section.name == "volume");
    let options = volume.map(terminal_list).unwrap_or_default();
    format!("Options of a volume, after its URI:\n{options}\n{EXAMPLES}")
}

/// What is logged unless something else is said.
const LEVEL: &str = "info";

/// Runs until a signal. `handed` are the sockets that were opened for it.
pub async fn run(args: Args, log: Log, handed: io::Result<Vec<PassedSocket>>) -> Outcome {
    host::allocator::return_large();
    let invite = args.invite.clone();
    let config = match &args.config {
        Some(path) => Config::read(path)?,
        None => args.config()?,
    };
    let tap = log.clone().or(&config.log).start(LEVEL)?;
    let invites = invite.is_some();
    let (config, (invitations, newcomers)) = blocking(move || {
        let config = invitations::complete(config, invites)?;
        let invitations = OpenInvitations::read(&config)?;
        Ok((config, invitations))
    })
    .await?;
    if config.lacks_identity() || (invites && config.identity.is_none()) {
        return Err(Failure::usage(config::LACKS_IDENTITY));
    }
    let given =
        PassedSockets::sort(handed.or_fail(|| "cannot use what was handed over".to_owned())?)?;
    let sealing = config.identity.as_deref().map(sealing).transpose()?;
    let pin = sealing.as_ref().map(|sealing| sealing.identity.public());
    let portals = portals::portals(&config, &given.portals).await?;
    refuse_unauthenticated(&config, &portals)?;
    conflicts::refuse(&config, &portals)?;
    let (stop, hangup) = signals(&config)?;
    let clients = unless_stopped(&stop, clients_of(&config)).await?;
    refuse_state(config.state.as_deref())?;
    // Whatever can be refused is asked for before a volume is opened, and a file made.
    let listeners = portals::listen(&portals, given.portals).await?;
    let links = hyperscsi::listen(&config).await?;
    let control = control(&config, given.control)?;
    let metrics = metrics_listener(&config, given.metrics).await?;
    portals::warn_of_plain(&config, &portals);
    let volumes = &config.volumes;
    let cluster = unless_stopped(&stop, open_cluster(&config)).await?;
    let others = portals::others(&config).await?;
    let chains = open_first(&config, &stop).await?;
    let remembered = match remember(volumes, &chains, &config).await {
        Ok(remembered) => remembered,
        Err(why) => {
            discard(chains, volumes, config.state.as_deref()).await;
            return Err(why);
        }
    };
    chains.iter().for_each(|chain| chain.leave_on(stop.clone()));
    let (movements, moved) = movements::channel();
    let (administrator, administered) = administration::channel();
    let disks = disks(&config.volumes, &chains, &remembered, (cluster.as_ref(), &movements));
    let policy = |targets| policy(&config, clients.clone(), targets);
    let secure = sealing.map(|sealing| (sealing, invitations.enrolment()));
    let (node, beside) = nodes((&config, &disks), policy, secure, (links, administrator));
    metrics::begin(metrics, (&node, beside.as_ref().ok()), cluster.as_ref());
    let server = Server::on(listeners, Arc::clone(&node)).map(|it| it.with_others(&others));
    let opened = (chains, disks, remembered);
    let (config, asked) = ((config, clients), (invitations, movements));
    let mut live = Live::new(config, portals, opened, node, (log, tap), stop.clone(), asked);
    // From here on nothing ends but by closing the volumes, which are noted as served.
    live.takes_part(cluster);
    let told = (control, newcomers, live.role_changes(), moved, administered);
    let events = match beside {
        Ok(servers) => {
            live.serves_beside(servers.node());
            let begun = begin((server, &servers), &mut live, pin, invite.as_deref()).await;
            begun.map(|server| {
                let serving = servers.run_beside(server.run(stop.clone()), stop.clone());
                Events::new(serving, told, stop, hangup)
            })
        }
        Err(why) => Err(why),
    };
    let (ended, is_idle) = match events {
        Ok(events) => match requests::attend(&mut live, events).await {
            Ok(is_idle) => (Ok(()), is_idle),
            Err(why) => (Err(why), false),
        },
        // There never was a session.
        Err(why) => (Err(why), true),
    };
    let closed = live.close(is_idle).await;
    if let (Err(_), Err(why)) = (&ended, &closed) {
        tracing::error!("{}", why.on_one_line());
    }
    ended.and(closed)
}

/// What tells it to end, and what to read its file again, if it has one. Both are listened for before anybody is told that it
/// serves: no signal ends it at once.
fn signals(config: &Config) -> Outcome<(Stop, Option<Signal>)> {
    Ok(match config.origin {
        Some(_) => (super::stop_on_termination()?, Some(requests::hangup()?)),
        None => (super::stop_on_signals()?, None),
    })
}

/// What serves the disks to iSCSI and, on `links`, to HyperSCSI.
fn nodes(
    (config, disks): (&Config, &[Disk]),
    policy: impl FnOnce(Vec<IscsiName>) -> Policy,
    secure: Option<(Sealing, Arc<dyn Enrolment>)>,
    (links, administrator): (hyperscsi::Links, Arc<dyn Administrator>),
) -> (Arc<Node>, Outcome<hyperscsi::Servers>) {
    let ports = match config.cluster {
        Some(_) => config.ports_in_cluster(false),
        None => config.ports(),
    };
    let ports = ports.into_iter().map(|(group, access)| Port::new(group, access));
    let ports: Vec<_> = ports.collect();
    let devices = targets(config.volumes.iter().zip(disks));
    let names: BTreeSet<_> = config.volumes.iter().map(|volume| volume.target.clone()).collect();
    let policy = policy(names.into_iter().collect());
    let limits = limits::limits(&config.limits);
    let node = Node::new(devices.clone(), |_| policy.clone());
    let node = node.with_limits(limits).with_ports(ports.clone());
    let mut node = node.with_administrator(Arc::clone(&administrator));
    if let Some((sealing, enrolment)) = secure {
        node = node.with_sealing(sealing).with_enrolment(enrolment);
    }
    let offering = hyperscsi::offering(config, devices, policy);
    let beside = links.servers(offering, ports, (&node, &limits), administrator);
    (Arc::new(node), beside)
}

/// Tells of a server that can serve `live` now.
async fn begin(
    (server, beside): (io::Result<Server>, &hyperscsi::Servers),
    live: &mut Live,
    pin: Option<PublicKey>,
    invite: Option<&str>,
) -> Outcome<Server> {
    let server = server.or_fail(|| "cannot tell where the server listens".to_owned())?;
    live.listens(server.portals(), pin);
    announce(live.volumes(), server.portals(), pin)?;
    for uri in beside.uris(live.volumes(), pin) {
        super::announce(&format!("ready {uri}"))?;
    }
    if let Some(name) = invite
        && let Some(invited) = live.invite_first(name).await?
    {
        invited.print(str::to_owned)?;
    }
    tokio::spawn(systemd::watchdog(server.accept_probe()));
    Ok(server)
}

/// Tells by which URIs the volumes can be used: each of them at each portal.
fn announce(volumes: &[Served], portals: &[SocketAddr], pin: Option<PublicKey>) -> Outcome {
    for Served { target, lun, .. } in volumes {
        for portal in portals {
            let host = portals::reachable(*portal);
            let uri = IscsiUri { host, target: target.clone(), lun: *lun, pin };
            super::announce(&format!("ready {}", Uri::from(uri)))?;
        }
    }
    Ok(())
}

fn control(config: &Config, given: Option<UnixListener>) -> Outcome<Option<Control>> {
    match (given, &config.control) {
        (Some(listener), _) => Control::on(listener).map(Some),
        (None, Some(path)) => Control::bind(path).map(Some),
        // Nobody has asked for one: a server that can have none is only not found by `status` and the like.
        (None, None) => {
            let path = control::runtime_dir().map(|dir| control::of_server(&dir));
            let bound = path.map(|path| Control::bind(&path)).transpose();
            Ok(bound.unwrap_or_else(|why| {
                tracing::debug!(%why, "there is no control socket");
                None
            }))
        }
    }
}

async fn metrics_listener(
    config: &Config,
    given: Option<std::net::TcpListener>,
) -> Outcome<Option<TcpListener>> {
    let what = |at: &dyn Display| format!("cannot tell metrics at {at}");
    match (given, config.metrics) {
        (Some(listener), _) => {
            let listener = TcpListener::from_std(listener);
            listener.map(Some).or_fail(|| what(&"the socket handed over"))
        }
        (None, Some(at)) => TcpListener::bind(at).await.map(Some).or_fail(|| what(&at)),
        (None, None) => Ok(None),
    }
}

impl Args {
    fn config(self) -> Outcome<Config> {
        if self.volumes.is_empty() {
            let what = "nothing to serve: give a --volume NAME=URI, or a --config FILE";
            return Err(Failure::usage(what).hint("`longhaul serve --help` has examples"));
        }
        let volumes = config::with_drives(self.volumes);
        config::distinct(&volumes).map_err(Failure::usage)?;
        let mut config = Config::from(self.server.0);
        config.clients.splice(..0, self.chap.chap().map(Client::by_chap));
        Ok(Config { chap_weak: self.chap.is_weak(), volumes, ..config })
    }
}

async fn open_cluster(config: &Config) -> Outcome<Option<Cluster>> {
    let config = config.clone();
    blocking(move || Cluster::new(&config)).await
}

/// The volumes that a server begins with. Those of a cluster are opened when this gateway takes over.
async fn open_first(config: &Config, stop: &Stop) -> Outcome<Vec<Chain>> {
    match config.cluster {
        Some(_) => gateway::open_standby(&config.volumes).await,
        None => open(&config.volumes, config.state.as_deref(), OnExchange::Refuse, stop).await,
    }
}

/// All of them, or none: if one cannot be opened, those before it are as if they had not been.
async fn open(
    volumes: &[Served],
    state: Option<&Path>,
    exchanged: OnExchange,
    stop: &Stop,
) -> Outcome<Vec<Chain>> {
    let served = unless_stopped(stop, served_before(state)).await?;
    let mut chains = Vec::new();
    for volume in volumes {
        let with_medium = movements::with_last_cartridge(volume, volumes, &chains);
        match open_one(&with_medium, (state, &served), exchanged, stop).await {
            Ok(chain) => chains.push(chain),
            Err(failure) => {
                let named = conflicts::named(volume, &volumes[..chains.len()]);
                discard(chains, volumes, state).await;
                return Err(failure.within(&named));
            }
        }
    }
    Ok(chains)
}

/// What is remembered of a volume: its identity, and the reservations that were kept for it.
struct Remembered {
    by: VolumeIdentity,
    kept: Option<StoredReservations>,
}

/// The volumes that are noted as served before.
pub(super) async fn served_before(state: Option<&Path>) -> Outcome<Arc<ServedVolumes>> {
    let state = state.map(PathBuf::from);
    blocking(move || Ok(Arc::new(ServedVolumes::read(state.as_deref())))).await
}

/// What is remembered of volumes that have just been opened, by their chains. Notes that they are there, before a client
/// sees them.
async fn remember(
    volumes: &[Served],
    chains: &[Chain],
    config: &Config,
) -> Outcome<Vec<Remembered>> {
    if config.cluster.is_some() {
        return Ok(volumes.iter().map(gateway::named).collect());
    }
    let mut found = Vec::new();
    for (volume, chain) in volumes.iter().zip(chains) {
        let upstream = devices::upstream(chain).await?;
        found.push(Found::new(volume.clone(), chain.found_file().as_ref(), upstream));
    }
    let (state, configured) = (config.state.clone(), config.volumes.clone());
    let remembered = move || {
        let mut served = ServedVolumes::read(state.as_deref());
        let identities = served.identify(&found)?;
        let serials = served.serials(&configured, &found, &identities);
        conflicts::refuse_same_serials(&serials)?;
        let kept = load(state.as_deref(), found.iter().zip(&identities))?;
        for (found, identity) in found.iter().zip(&identities) {
            served.tell_of_new_name(&found.volume);
            note(&mut served, state.as_deref(), found, identity);
        }
        Ok(identities.into_iter().zip(kept).map(|(by, kept)| Remembered { by, kept }).collect())
    };
    blocking(remembered).await
}

/// Notes that a volume is served, and forgets the reservations of what never can be this unit again.
fn note(served: &mut ServedVolumes, state: Option<&Path>, found: &Found, by: &VolumeIdentity) {
    let Served { name, uri, .. } = &found.volume;
    if let Err(why) = served.note(found, by) {
        tracing::warn!(
            "volume {name}: another file in the place of {uri}, or none, will not be noticed, and clients take it for \
             another volume when it is served again: {why}"
        );
        return;
    }
    let identities = served.identities_of(&found.volume);
    let (Some(state), Some(mut identities)) = (state, identities) else { return };
    identities.push(by.identity.clone());
    let UnitName { target, lun } = found.volume.unit();
    let forgotten = state_at(state).and_then(|state| {
        let forgotten = state.forget_others(target.as_str(), lun, &identities);
        forgotten.or_fail(|| "cannot forget reservations of volumes that are no more".to_owned())
    });
    if let Err(why) = forgotten {
        tracing::warn!("volume {name}: {why}");
    }
}

/// Notes how large the files of `volumes` are, which have grown: one that is cut off again has lost its end.
async fn note_sizes(volumes: Vec<Served>, state: Option<&Path>) {
    let state = state.map(PathBuf::from);
    let warn = |volume: &Served, why: Failure| {
        let Served { name, uri, .. } = volume;
        tracing::warn!("volume {name}: nobody will notice if {uri} gets shorter: {why}");
    };
    let noted = move || {
        let served = ServedVolumes::read(state.as_deref());
        for volume in &volumes {
            served.note_size(volume).unwrap_or_else(|why| warn(volume, why));
        }
        Ok(())
    };
    let _: Outcome = blocking(noted).await;
}

async fn open_one(
    volume: &Served,
    noted: (Option<&Path>, &Arc<ServedVolumes>),
    exchanged: OnExchange,
    stop: &Stop,
) -> Outcome<Chain> {
    let options = unless_stopped(stop, open_options(volume, noted, exchanged)).await?;
    open_with(volume, options, stop).await
}

async fn open_with(volume: &Served, options: OpenOptions, stop: &Stop) -> Outcome<Chain> {
    let options = OpenOptions { stop: stop.clone(), ..options };
    let chain = chain::open(&volume.uri, options).await?;
    chain.watch_placement();
    match unless_stopped(stop, inspect(volume, &chain)).await {
        Ok(()) => Ok(chain),
        Err(why) => {
            chain.discard().await;
            Err(why)
        }
    }
}

/// Whether it has no blocks of ours: it is a media changer, or a device that is passed through.
fn is_unit_without_blocks(uri: &Uri) -> bool {
    uri.is_changer() || uri.is_passed_through()
}

/// Looks at what is served, and tells what there is to be told of it.
async fn inspect(volume: &Served, chain: &Chain) -> Outcome {
    if !chain.is_decrypted() && !volume.uri.has_medium() && !is_unit_without_blocks(&volume.uri) {
        let late = || Err(Failure::new(format!("its start is not read within {SEEN_WITHIN:?}")));
        let seen = timeout(SEEN_WITHIN, inspect_header(volume, chain)).await;
        seen.unwrap_or_else(|_| late())?;
    }
    Ok(())
}

/// Lets go of the first of `volumes`, side by side: the target of one may be out of reach. That a file
/// was opened may show in the time of its last change, and is no sign that somebody has written to it.
async fn discard(chains: Vec<Chain>, volumes: &[Served], state: Option<&Path>) {
    let Ok(served) = served_before(state).await else { return };
    let discard = |(chain, volume): (Chain, &Served)| {
        let found = Found::new(volume.clone(), chain.found_file().as_ref(), None);
        let (served, state) = (Arc::clone(&served), state.map(PathBuf::from));
        async move {
            if let Some(identity) = served.left_as(&found)
                && let Some(now) = chain.settled().await
            {
                let left = LeftState::of(&now);
                let noted = move || ServedVolumes::note_left(state.as_deref(), &identity, left);
                if let Err(why) = blocking(noted).await {
                    tracing::warn!("{}", why.on_one_line());
                }
            }
            chain.discard().await;
        }
    };
    join_all(chains.into_iter().zip(volumes).map(discard)).await;
}

/// Tells what is served of a volume that is not opened here: its clients have the pass-phrase, which is how the
/// server never sees what they store.
async fn inspect_header(volume: &Served, chain: &Chain) -> Outcome {
    let name = &volume.name;
    match luks::recognise(chain.volume()).await {
        Ok(Some(found)) => {
            let found = found.summary();
            tracing::info!(volume = name, "serving ciphertext: {}", found.name());
            if let (Some(_), Some(trouble)) = (found.uuid, found.trouble) {
                tracing::warn!(volume = name, "{trouble}: opening the volume to write repairs a copy of the header, `longhaul key restore` a key slot");
            }
            Ok(())
        }
        Ok(None) if volume.encrypted => {
            Err(Failure::new(format!("{} is not encrypted: it has no LUKS header", volume.uri))
                .because("`encrypted` demands one")
                .hint("if it was encrypted before, its header is lost: `longhaul key restore` brings one back; `longhaul key init` encrypts an empty volume"))
        }
        Err(why) if volume.encrypted => Err(why),
        Ok(None) => Ok(()),
        Err(why) => {
            tracing::warn!(volume = name, "cannot tell whether it is encrypted: {why}");
            Ok(())
        }
    }
}

/// How a volume is opened. Reads the secrets; `noted` are the state directory and what is noted there.
pub(super) async fn open_options(
    volume: &Served,
    (state, served): (Option<&Path>, &Arc<ServedVolumes>),
    exchanged: OnExchange,
) -> Outcome<OpenOptions> {
    let (volume, served) = (volume.clone(), Arc::clone(served));
    let state = state.map(PathBuf::from);
    blocking(move || {
        let existing_only = served.must_exist(&volume, exchanged)?;
        let elements = volume.elements();
        let Upstream { initiator, chap, chap_weak, identity, connections, shared } =
            volume.upstream;
        let login = Login {
            initiator,
            account: chap.as_ref().map(Chap::account).transpose()?,
            algorithms: credentials::algorithms(chap_weak),
            seal: Seal { identity, ..Seal::default() },
            connections,
        };
        let unlock = volume.unlock.as_ref().map(|unlocking| {
            let secret = unlocking.secret.read(&format!("key of volume {}", volume.name))?;
            let with = luks::Options { allow_discards: unlocking.allow_discards };
            let (key, erasable) = (secret.into(), unlocking.crypto_erase);
            Ok::<_, Failure>(Contents::Plain(Unlock { key, with, erasable, demanded: true }))
        });
        Ok(OpenOptions {
            size: volume.size,
            existing_only,
            may_be_empty: true,
            by_records: true,
            elements,
            passes_through: true,
            read_only: volume.read_only,
            write_once: volume.worm,
            blank: volume.blank,
            direct: volume.direct,
            block_size: volume.appearance.block_size.map(|size| size.0),
            login,
            contents: unlock.transpose()?.unwrap_or_default(),
            reconnect_limit: ReconnectLimit::FOREVER,
            replay_log: match volume.uri.is_remote() && !volume.read_only {
                true => ReplayLogArgs::of_server(state.as_deref()).dir()?,
                false => None,
            },
            state,
            writers: if shared { Writers::Shared } else { Writers::One },
            ..OpenOptions::default()
        })
    })
    .await
}

/// The disks, with their serial numbers and the reservations that were kept.
fn disks(
    volumes: &[Served],
    chains: &[Chain],
    remembered: &[Remembered],
    (cluster, movements): (Option<&Cluster>, &Movements),
) -> Vec<Disk> {
    let volumes = volumes.iter().zip(chains).zip(remembered);
    let disk = |((served, chain), remembered): ((&Served, &Chain), &Remembered)| {
        let (vanishes, key, write_once) = (chain.vanishes(), chain.key(), chain.is_write_once());
        let Remembered { by, kept } = remembered;
        let volume = Some(media::disc_identity(&by.identity, chain));
        let serial = Some(by.serial.clone());
        let options = options(served, kept.clone());
        let shared = cluster.and_then(|cluster| cluster.shared(served));
        let changer = movements.changer(&served.name, chain);
        let maintenance = served.maintenance;
        let passed = chain.device().map(|device| PassedThrough { device, maintenance });
        let device = passed.as_ref().map_or(options.device, PassedThrough::device_type);
        let options = Options { device, vanishes, key, write_once, serial, volume, ..options };
        let recorded = chain.recorded().cloned();
        let space = chain.space();
        let options = Options { shared, changer, passed, recorded, space, ..options };
        Disk::new(chain.volume(), served.target.as_str(), served.lun, options)
    };
    volumes.map(disk).collect()
}

/// The targets that volumes are units of, in the order of their first ones.
fn targets<'a>(volumes: impl Iterator<Item = (&'a Served, &'a Disk)>) -> Vec<Arc<TargetDevice>> {
    let mut targets: Vec<(&str, Vec<(u16, &Disk)>)> = Vec::new();
    for (Served { target, lun, .. }, disk) in volumes {
        match targets.iter_mut().find(|(name, _)| *name == target.as_str()) {
            Some((_, disks)) => disks.push((*lun, disk)),
            None => targets.push((target.as_str(), vec![(*lun, disk)])),
        }
    }
    targets.into_iter().map(|(name, disks)| Arc::new(TargetDevice::with(name, disks))).collect()
}

fn options(served: &Served, kept: Option<StoredReservations>) -> Options {
    let appearance = served.appearance.clone();
    Options {
        device: match served.uri.location() {
            Location::Drive(_) => DeviceType::Optical,
            Location::Tape(_) => DeviceType::Tape,
            Location::Changer(_) => DeviceType::Changer,
            _ => DeviceType::Disk,
        },
        vendor: appearance.vendor.map(|vendor| vendor.0),
        product: appearance.product.map(|product| product.0),
        removable: appearance.removable,
        physical_block_size: appearance.physical_block_size.map(|size| size.0),
        read_only: served.read_only,
        thin: appearance.thin,
        sanitize_rate: served.sanitize_rate.map(|rate| rate.0.0),
        kept,
        transports: transports::ALL,
        ..Options::default()
    }
}

/// Refuses a directory for reservations that cannot be used.
fn refuse_state(state: Option<&Path>) -> Outcome {
    state.map_or(Ok(()), |path| state_at(path).map(drop))
}

fn state_at(path: &Path) -> Outcome<StateDir> {
    StateDir::open(path).or_fail(|| format!("cannot use the state directory {}", path.shown()))
}

/// For each volume, what was kept of its reservations; nothing is kept where there is no directory for it.
fn load<'a>(
    state: Option<&Path>,
    volumes: impl Iterator<Item = (&'a Found, &'a VolumeIdentity)>,
) -> Outcome<Vec<Option<StoredReservations>>> {
    let Some(path) = state else { return Ok(volumes.map(|_| None).collect()) };
    let state = state_at(path)?;
    let load = |(found, by): (&Found, &VolumeIdentity)| {
        let Served { name, target, lun, .. } = &found.volume;
        let what = || format!("cannot tell who has reserved unit {lun} of {target}");
        let (target, identity) = (target.as_str(), &by.identity);
        let kept = StoredReservations::by(state.reservations(target, *lun, identity)).or_fail(what);
        if kept.as_ref().is_ok_and(StoredReservations::is_reserved) {
            tracing::info!(
                "volume {name}: it is reserved since before this start; if its holder is gone, `--take-over` of a client's `attach`, `mount`, `copy`, `tune` or `key` takes it"
            );
        }
        kept.map(Some).map_err(|why| {
            let file = state.reservations_file(target, *lun, identity);
            why.hint(format!(
                "{} is damaged or cannot be read: bring it back from a backup, or move it away; then nobody has reserved the \
                 volume, and Longhaul's clients that are attached give it up",
                file.shown()
            ))
        })
    };
    volumes.map(load).collect()
}
