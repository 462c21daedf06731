//! `longhaul serve`: volumes for others, over iSCSI.

use std::net::SocketAddr;
use std::path::PathBuf;

use proto::iscsi::login::policy::{self, Policy};
use proto::iscsi::name::IscsiName;

use super::options::blocking;
use crate::chain::{self, Chain, Host, OpenOptions};
use crate::config::{self, Client, Config, Served};
use crate::credentials::{self, ChapArgs};
use crate::failure::{Failure, OrFail, Outcome};
use crate::front::iscsi::{Node, Server};
use crate::front::lun::{Kept, Options, TargetDevice};
use crate::state::StateDir;

/// Serve volumes over iSCSI, until interrupted
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A volume: NAME=URI[,size=SIZE][,read_only]; may be given several times
    #[arg(long = "volume", value_name = "NAME=URI", required_unless_present = "config")]
    volumes: Vec<Served>,
    /// Where to listen, 127.0.0.1:3260 unless said otherwise; may be given several times
    #[arg(long, value_name = "ADDR[:PORT]")]
    listen: Vec<Host>,
    /// Let anyone who can reach it use the volumes
    #[arg(long)]
    insecure: bool,
    /// Keep reservations here through a restart, for initiators that ask for it (APTPL)
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Serve what this file says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["volumes", "listen", "insecure", "state", "chap_user", "chap_weak"])]
    config: Option<PathBuf>,
    #[command(flatten)]
    chap: ChapArgs,
}

const EXAMPLES: &str = "\
Examples:
  longhaul serve --volume backup=file:/srv/backup.img,size=80G
  longhaul serve --volume backup=file:/srv/backup.img --listen 0.0.0.0 \\
      --chap-user laptop --chap-secret-file laptop.secret
  longhaul serve --config /etc/longhaul.toml

A volume NAME is logical unit 0 of the target iqn.2026-11.dev.longhaul:NAME. Prints `ready URI` for each
volume once it can be used. SIGTERM or SIGINT ends it: everything acknowledged is flushed.";

const CHAP_HINT: &str = "\
let clients prove who they are with CHAP:
    openssl rand -hex 16 > laptop.secret
    longhaul serve ... --chap-user laptop --chap-secret-file laptop.secret
  the client then needs the same two options and the same file; or serve anyone with --insecure";

/// The logical unit that a volume is.
const LUN: u16 = 0;

/// Runs until a signal.
pub async fn run(args: Args) -> Outcome {
    let config = match &args.config {
        Some(path) => Config::read(path)?,
        None => args.config()?,
    };
    let portals = resolve(&config.listen).await?;
    refuse_strangers(&config, &portals)?;
    let stop = super::stop_on_signals()?;
    let policy = policy(&config).await?;
    let chains = open(&config.volumes).await?;
    let devices = devices(&config, &chains).await?;
    let node = Node::new(devices, policy);
    let server = Server::bind(&portals, node)
        .await
        .or_fail(|| format!("cannot listen on {}", list(&portals)))?;
    for volume in &config.volumes {
        let portal = reachable(server.portals());
        super::say(&format!("ready iscsi://{portal}/{}/0", volume.target))?;
    }
    server.run(stop).await;
    close(chains).await
}

impl Args {
    fn config(self) -> Outcome<Config> {
        config::distinct(&self.volumes).map_err(Failure::usage)?;
        let client = |chap| Client { initiator: None, chap: Some(chap), targets: None };
        Ok(Config {
            clients: self.chap.chap().map(client).into_iter().collect(),
            chap_weak: self.chap.is_weak(),
            listen: self.listen,
            insecure: self.insecure,
            state: self.state,
            volumes: self.volumes,
        })
    }
}

async fn resolve(listen: &[Host]) -> Outcome<Vec<SocketAddr>> {
    if listen.is_empty() {
        return Ok(vec![SocketAddr::from(([127, 0, 0, 1], chain::ISCSI_PORT))]);
    }
    let mut portals = Vec::new();
    for host in listen {
        let found = tokio::net::lookup_host((host.name.as_str(), host.port))
            .await
            .or_fail(|| format!("cannot find the address to listen on, {host}"))?;
        portals.extend(found);
    }
    Ok(portals)
}

/// Beyond loopback, whoever can reach the portal can use the volumes unless he must prove himself.
fn refuse_strangers(config: &Config, portals: &[SocketAddr]) -> Outcome {
    let open: Vec<_> =
        portals.iter().filter(|portal| !portal.ip().is_loopback()).copied().collect();
    if open.is_empty() || config.insecure || config.is_authenticated() {
        return Ok(());
    }
    let what = "without authentication anyone there could read and overwrite the volumes";
    Err(Failure::usage(format!("refusing to listen on {}: {what}", list(&open))).hint(CHAP_HINT))
}

/// Who may use what. Reads the secrets.
async fn policy(config: &Config) -> Outcome<impl FnOnce(Vec<IscsiName>) -> Policy + use<>> {
    let clients = config.clients.clone();
    let clients = blocking(move || clients.iter().map(client).collect::<Outcome<Vec<_>>>()).await?;
    let algorithms = credentials::algorithms(config.chap_weak);
    Ok(move |targets| match clients.is_empty() {
        true => Policy::open(targets),
        false => Policy::closed(targets, clients, algorithms),
    })
}

fn client(client: &Client) -> Outcome<policy::Client> {
    Ok(policy::Client {
        initiator: client.initiator.clone(),
        account: client.chap.as_ref().map(|chap| chap.account()).transpose()?,
        key: None,
        targets: client.targets.clone(),
    })
}

async fn open(volumes: &[Served]) -> Outcome<Vec<Chain>> {
    let mut chains = Vec::new();
    for volume in volumes {
        let options = OpenOptions {
            size: volume.size,
            read_only: volume.read_only,
            ..OpenOptions::default()
        };
        chains.push(chain::open(&volume.uri, options).await?);
    }
    Ok(chains)
}

/// The targets, with the reservations that were kept.
async fn devices(config: &Config, chains: &[Chain]) -> Outcome<Vec<TargetDevice>> {
    let (state, targets) = (config.state.clone(), targets(&config.volumes));
    let kept = blocking(move || kept(state, &targets)).await?;
    let volumes = config.volumes.iter().zip(chains).zip(kept);
    let device = |((served, chain), kept): ((&Served, &Chain), Option<Kept>)| {
        let disk = (LUN, chain.volume(), Options { kept, ..Options::default() });
        TargetDevice::new(served.target.as_str(), [disk])
    };
    Ok(volumes.map(device).collect())
}

fn targets(volumes: &[Served]) -> Vec<IscsiName> {
    volumes.iter().map(|volume| volume.target.clone()).collect()
}

/// For each target, what was kept of its reservations; nothing is kept where there is no directory for it.
fn kept(state: Option<PathBuf>, targets: &[IscsiName]) -> Outcome<Vec<Option<Kept>>> {
    let Some(path) = state else { return Ok(targets.iter().map(|_| None).collect()) };
    let state = StateDir::open(&path)
        .or_fail(|| format!("cannot use the state directory {}", path.display()))?;
    let load = |target: &IscsiName| {
        let kept = Kept::by(state.reservations(target.as_str(), LUN));
        kept.map(Some).or_fail(|| format!("cannot tell who has reserved {target}"))
    };
    targets.iter().map(load).collect()
}

/// The first portal, as a client on this machine reaches it.
fn reachable(portals: &[SocketAddr]) -> SocketAddr {
    let mut portal = *portals.first().expect("a server has a portal");
    if portal.ip().is_unspecified() {
        portal.set_ip(match portal {
            SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        });
    }
    portal
}

/// Closes every chain, whatever becomes of the others.
async fn close(chains: Vec<Chain>) -> Outcome {
    let mut outcome = Ok(());
    for chain in chains {
        outcome = outcome.and(chain.close().await);
    }
    outcome
}

fn list(portals: &[SocketAddr]) -> String {
    portals.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
