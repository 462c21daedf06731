//! HyperSCSI beside iSCSI: where it listens, and the node that serves the same volumes by it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use futures_util::future::{join, join_all};
use host::link::{Ethernet, EthernetOptions, Link, Udp};
use proto::hyperscsi::{self, ETHERTYPE, Fill, Level, SiteKey};
use proto::identity::{Identity, PublicKey};
use proto::iscsi::login::policy::{Policy, UnitName};
use proto::scsi::ports::Port;
use tokio::net::lookup_host;
use tokio::task::JoinError;

use super::portals::reachable;
use crate::ciphers::Ciphers;
use crate::command::options::blocking;
use crate::config::{Config, Listen, ListenAt, Served};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::front::hyperscsi::{Node, Offering, Server};
use crate::front::iscsi;
use crate::net::hyperscsi_link::with_limits;
use crate::sealing;
use crate::site_key;
use crate::stop::Stop;
use crate::target::lun::{Administrator, TargetDevice};
use crate::task::unless_broken;
use crate::uri::{Host, HyperScsiOptions, HyperScsiServer, HyperScsiUri, Uri};

/// The longest packet that a machine takes whatever the link carries: that of jumbo frames.
const PACKET_MAX: usize = 9000;

/// The links that servers listen on.
#[derive(Default)]
pub(super) struct Links(Vec<LinksOfOneKind>);

/// Links that one server listens on.
struct LinksOfOneKind {
    links: Vec<Link>,
    /// The interfaces of those of Ethernet.
    interfaces: Vec<String>,
    /// What its machine has to know.
    config: hyperscsi::Config,
}

/// What the links of a configuration need to be opened.
struct Needed {
    places: Vec<HyperScsiServer>,
    identity: Identity,
    site_key: SiteKey,
}

/// Refuses links that cannot be used as they are configured. Reads the identity and the site key, and opens nothing.
pub(in crate::command) async fn refuse_unusable(config: &Config) -> Outcome {
    needed(config).await.map(drop)
}

/// `None`, if no links are named.
async fn needed(config: &Config) -> Outcome<Option<Needed>> {
    let places = config.listen.iter().filter_map(|Listen { at, .. }| match at {
        ListenAt::HyperScsi(server) => Some(server),
        ListenAt::Iscsi(_) => None,
    });
    let places: Vec<_> = places.cloned().collect();
    if places.is_empty() {
        let unused = [
            ("compression", !config.compression.is_none()),
            ("cipher", config.ciphers != Ciphers::default()),
        ];
        let Some((name, _)) = unused.into_iter().find(|(_, is_set)| *is_set) else {
            return Ok(None);
        };
        let what = format!("{name} is of HyperSCSI, by which nothing is served here");
        let hint = format!("leave {name} out, or listen on hyperscsi://ADDR or hseth://INTERFACE");
        return Err(Failure::usage(what).hint(hint));
    }
    let (Some(identity), Some(site_key)) = (config.identity.clone(), config.site_key.clone())
    else {
        let what = "HyperSCSI needs an identity and a site key";
        let hint = "`longhaul identity new FILE` and `longhaul identity site-key FILE` make them, --identity and --site-key \
                    name them; every client has a copy of the site key";
        return Err(Failure::usage(what).hint(hint));
    };
    refuse_open(config, &places)?;
    let read = move || Ok((sealing::read(&identity)?, site_key::read(&site_key)?));
    let (identity, site_key) = blocking(read).await?;
    Ok(Some(Needed { places, identity, site_key }))
}

/// Opens the links that the configuration names.
pub(super) async fn listen(config: &Config) -> Outcome<Links> {
    let Some(Needed { places, identity, site_key }) = needed(config).await? else {
        return Ok(Links::default());
    };
    let mut links = Links::default();
    let (codecs, ciphers) = (config.compression.0, config.ciphers.of_machine());
    let compressing = |link_config| hyperscsi::Config { codecs, ..link_config };
    for place in places {
        let what = || format!("cannot listen on {place}");
        match &place {
            HyperScsiServer::Ip(Host { name, port }) => {
                for address in lookup_host((name.as_str(), *port)).await.or_fail(what)? {
                    let link = Udp::bind(address).or_fail(what)?;
                    let link_config =
                        hyperscsi::Config::ip(identity.clone(), site_key.clone(), ciphers);
                    links.add((link.into(), None), compressing(link_config));
                }
            }
            HyperScsiServer::Ethernet { interface, .. } => {
                let link: Link = Ethernet::open(interface, ETHERTYPE, EthernetOptions::default())
                    .or_fail(what)?
                    .into();
                let mtu = link.sender().mtu().min(PACKET_MAX) as u16;
                let (identity, site_key) = (identity.clone(), site_key.clone());
                let link_config = hyperscsi::Config::ethernet(identity, site_key, ciphers, mtu);
                links.add((link, Some(interface.clone())), compressing(link_config));
            }
        }
    }
    Ok(links)
}

/// Beyond loopback every member of the site could use the volumes unless clients are listed.
fn refuse_open(config: &Config, places: &[HyperScsiServer]) -> Outcome {
    let is_here = |place: &&HyperScsiServer| match place {
        HyperScsiServer::Ip(host) => match host.name.parse::<std::net::IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => host.name == "localhost",
        },
        HyperScsiServer::Ethernet { .. } => false,
    };
    match places.iter().find(|place| !is_here(place)) {
        Some(place) if !config.insecure && !config.is_authenticated() => {
            let why = "whoever has the site key could read and overwrite the volumes";
            let hint = "list clients by their keys (--client-key KEY), or serve all of the site with --insecure";
            Err(Failure::usage(format!("refusing to listen on {place}: {why}")).hint(hint))
        }
        _ => Ok(()),
    }
}

/// What is served by HyperSCSI too.
pub(super) fn offering(
    config: &Config,
    devices: Vec<Arc<TargetDevice>>,
    policy: Policy,
) -> Offering {
    let volumes = config.volumes.iter().map(|volume| (volume.name.clone(), volume.unit()));
    let volumes: BTreeMap<String, UnitName> = volumes.collect();
    Offering { devices, policy, volumes, access: config.ports(), least: least(config) }
}

/// The lowest level of volumes of which nothing else is demanded: that of the strictest place, since a connection may have paths
/// by all of them. Without protection are only those of a server that says it twice.
fn least(config: &Config) -> Level {
    let places = config.listen.iter().filter(|it| matches!(it.at, ListenAt::HyperScsi(_)));
    match places.filter_map(|listen| config.demanded(listen.protection)).max() {
        Some(protection) => sealing::level(protection),
        None if config.insecure => Level::None,
        None => Level::Integrity,
    }
}

/// What serves HyperSCSI: nothing, if there are no links.
pub(super) struct Servers {
    node: Arc<Node>,
    /// Each with the interfaces of its links.
    servers: Vec<(Server, Vec<String>)>,
}

impl Links {
    /// Links of one kind have one server, so that a connection may have paths by all of them. It has the longest packet and
    /// the timing of its links, which are the same therefore.
    fn add(&mut self, (link, interface): (Link, Option<String>), config: hyperscsi::Config) {
        let kind = |config: &hyperscsi::Config| (config.packet_max, config.timing);
        match self.0.iter_mut().find(|of| kind(&of.config) == kind(&config)) {
            Some(of) => {
                of.links.push(link);
                of.interfaces.extend(interface);
            }
            None => {
                let (links, interfaces) = (vec![link], interface.into_iter().collect());
                self.0.push(LinksOfOneKind { links, interfaces, config });
            }
        }
    }

    /// The node beside that of iSCSI, and a server on the links of each kind.
    pub(super) fn servers(
        self,
        offering: Offering,
        ports: Vec<Port>,
        (other, limits): (&iscsi::Node, &iscsi::Limits),
        administrator: Arc<dyn Administrator>,
    ) -> Outcome<Servers> {
        let node = Node::new(offering, ports, limits.held, other).with_administrator(administrator);
        let node = Arc::new(node);
        let server = |LinksOfOneKind { links, interfaces, config }| {
            let (node, config) = (Arc::clone(&node), with_limits(config));
            let server = Server::new(node, (links, limits.awake), config, random())?;
            Ok::<_, io::Error>((server, interfaces))
        };
        let servers: Result<Vec<_>, _> = self.0.into_iter().map(server).collect();
        let servers = servers.or_fail(|| "cannot serve HyperSCSI".to_owned())?;
        Ok(Servers { node, servers })
    }
}

/// Whether a server ended, and no command of it runs any more.
fn has_ended(run: Result<Option<bool>, JoinError>) -> bool {
    run.ok().flatten().unwrap_or_else(|| {
        tracing::error!("a HyperSCSI server broke down: its address is not served any more");
        false
    })
}

impl Servers {
    /// The node, if it is served anywhere.
    pub(super) fn node(&self) -> Option<Arc<Node>> {
        (!self.servers.is_empty()).then(|| Arc::clone(&self.node))
    }

    /// Serves beside `other` until `stop` is called; whether no command of any runs any more then.
    pub(super) fn run_beside(
        self,
        other: impl Future<Output = bool> + Send,
        stop: Stop,
    ) -> impl Future<Output = bool> + Send {
        // Each in a task of its own: none starves, or takes along, the others.
        let run = |server: Server| tokio::spawn(unless_broken(server.run(stop.clone())));
        let runs: Vec<_> = self.servers.into_iter().map(|(server, _)| run(server)).collect();
        async {
            let (other, all) = join(other, join_all(runs)).await;
            other && all.into_iter().all(has_ended)
        }
    }

    /// The URIs by which the volumes can be used.
    pub(super) fn uris(&self, volumes: &[Served], pin: Option<PublicKey>) -> Vec<Uri> {
        let mut places = Vec::new();
        for (server, interfaces) in &self.servers {
            let mut interfaces = interfaces.iter().cloned();
            places.extend(server.locals().filter_map(|local| match local {
                host::link::Address::Ip { remote, .. } => {
                    Some(HyperScsiServer::Ip(reachable(remote)))
                }
                host::link::Address::Ethernet(mac) => {
                    let interface = interfaces.next()?;
                    Some(HyperScsiServer::Ethernet { interface, mac: Some(mac) })
                }
            }));
        }
        let uri = |volume: &Served, server: &HyperScsiServer| {
            let (server, volume) = (server.clone(), volume.name.clone());
            Uri::from(HyperScsiUri {
                server,
                volume,
                pin,
                paths: Vec::new(),
                options: HyperScsiOptions::default(),
            })
        };
        let uris = volumes.iter().flat_map(|volume| places.iter().map(move |at| uri(volume, at)));
        uris.collect()
    }
}

/// Fills buffers from the system's random source. Without one nothing that is secret can be made.
fn random() -> Fill {
    Box::new(|buffer| getrandom::fill(buffer).expect("the system gives random numbers"))
}
