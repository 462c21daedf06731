//! Where a server listens: on sockets of its own, or on those that a service manager has opened for it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;

use host::socket_activation::{Listener, PassedSocket};
use proto::iscsi::login::target::PortalRules;
use tokio::net;

use crate::config::{Config, Group, Listen, ListenAt};
use crate::failure::{Failure, OrFail, Outcome};
use crate::front::iscsi::Portal;
use crate::uri::{Host, ISCSI_PORT};

/// What the socket for metrics is called in a socket unit (FileDescriptorName=).
const METRICS: &str = "metrics";

/// Sockets that were handed over, by what they are for.
#[derive(Default)]
pub(super) struct PassedSockets {
    pub(super) portals: Vec<TcpListener>,
    pub(super) metrics: Option<TcpListener>,
    pub(super) control: Option<UnixListener>,
}

impl PassedSockets {
    pub(super) fn sort(handed: Vec<PassedSocket>) -> Outcome<Self> {
        let mut given = Self::default();
        for PassedSocket { name, listener } in handed {
            let twice = match listener {
                Listener::Tcp(listener) if name == METRICS => {
                    given.metrics.replace(listener).is_some()
                }
                Listener::Unix(listener) => given.control.replace(listener).is_some(),
                Listener::Tcp(listener) => {
                    given.portals.push(listener);
                    false
                }
            };
            if twice {
                let what =
                    format!("two sockets for the same were handed over, the second is `{name}`");
                return Err(Failure::usage(what));
            }
        }
        Ok(given)
    }
}

const CHAP_HINT: &str = "\
let clients prove who they are; `longhaul serve ... --invite laptop` prints what lets the first one in, with keys of both sides
  or name its key (`longhaul identity new` on both machines):
    longhaul serve ... --identity FILE --client-key KEY
  or with CHAP, which does not protect what goes over the wire:
    (umask 077; openssl rand -hex 16 > laptop.secret)
    longhaul serve ... --chap-user laptop --chap-secret-file laptop.secret
  the client then needs the same two options and the same file; or serve anyone with --insecure";

/// The portals that a configuration names.
pub(in crate::command) async fn resolve(config: &Config) -> Outcome<Vec<Portal>> {
    if config.listen.is_empty() {
        return Ok(vec![unnamed(config, SocketAddr::from(([127, 0, 0, 1], ISCSI_PORT)))]);
    }
    let mut portals = Vec::new();
    for Listen { at, protection, group, .. } in &config.listen {
        let ListenAt::Iscsi(host) = at else { continue };
        let demanded = config.demanded(*protection);
        let rules = PortalRules { portal_group_tag: group.0, demanded };
        let found = net::lookup_host((host.name.as_str(), host.port))
            .await
            .or_fail(|| format!("cannot find the address to listen on, {host}"))?;
        portals.extend(found.map(|address| Portal { address, rules }));
    }
    Ok(portals)
}

/// Where other gateways of a cluster listen, and their groups.
pub(super) async fn others(config: &Config) -> Outcome<Vec<(SocketAddr, u16)>> {
    let mut others = Vec::new();
    for Listen { at, group, .. } in config.cluster.iter().flat_map(|cluster| &cluster.peers) {
        let ListenAt::Iscsi(host) = at else { continue };
        let found = net::lookup_host((host.name.as_str(), host.port))
            .await
            .or_fail(|| format!("cannot find the address of the other gateway, {host}"))?;
        others.extend(found.map(|address| (address, group.0)));
    }
    Ok(others)
}

/// A portal of which the configuration says nothing.
fn unnamed(config: &Config, address: SocketAddr) -> Portal {
    let portal_group_tag = Group::default().0;
    let rules = PortalRules { portal_group_tag, demanded: config.demanded(None) };
    Portal { address, rules }
}

/// The portals of a server that was given sockets. Where the configuration says nothing they are where those
/// listen; where it does, each of them must be named, for nobody else would know what it demands.
pub(super) async fn portals(config: &Config, given: &[TcpListener]) -> Outcome<Vec<Portal>> {
    if given.is_empty() {
        return resolve(config).await;
    }
    let given = addresses(given)?;
    if config.listen.is_empty() {
        return Ok(given.iter().map(|&address| unnamed(config, address)).collect());
    }
    let portals = resolve(config).await?;
    let named = |address| portals.iter().any(|portal| portal.address == address);
    if let Some(stranger) = given.iter().find(|address| !named(**address)) {
        let what = format!("the socket handed over at {stranger} is none that `listen` names");
        let hint =
            "leave `listen` out to listen where the socket unit says, or name the same there";
        return Err(Failure::usage(what).hint(hint));
    }
    Ok(portals)
}

/// Listens on every portal: with the socket that was given for it, or else with its own.
pub(super) async fn listen(
    portals: &[Portal],
    mut given: Vec<TcpListener>,
) -> Outcome<Vec<(net::TcpListener, PortalRules)>> {
    let mut listeners = Vec::new();
    for portal in portals {
        let what = || format!("cannot listen on {}", portal.address);
        let place = addresses(&given)?.iter().position(|address| *address == portal.address);
        let listener = match place {
            Some(place) => net::TcpListener::from_std(given.remove(place)),
            None => net::TcpListener::bind(portal.address).await,
        };
        let listener = listener.map_err(|why| explain(what(), why))?;
        listeners.push((listener, portal.rules));
    }
    Ok(listeners)
}

fn explain(what: String, why: io::Error) -> Failure {
    let hint = match why.kind() {
        io::ErrorKind::AddrInUse => "another program listens there: `ss -ltnp` names it",
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: `ip address` lists those it has"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 are for root: take another one",
        _ => return Failure::new(what).because(why),
    };
    Failure::new(what).because(why).hint(hint)
}

fn addresses(given: &[TcpListener]) -> Outcome<Vec<SocketAddr>> {
    let addresses: Result<_, _> = given.iter().map(TcpListener::local_addr).collect();
    addresses.or_fail(|| "cannot tell where the sockets listen that were handed over".to_owned())
}

/// Beyond loopback, whoever can reach the portal can use the volumes unless he must prove himself.
pub(in crate::command) fn refuse_unauthenticated(config: &Config, portals: &[Portal]) -> Outcome {
    let open: Vec<_> =
        portals.iter().filter(|portal| !portal.address.ip().is_loopback()).copied().collect();
    if open.is_empty() || config.insecure || config.is_authenticated() {
        return Ok(());
    }
    let what = "without authentication anyone there could read and overwrite the volumes";
    let open = list(open.iter().map(|portal| portal.address));
    Err(Failure::usage(format!("refusing to listen on {open}: {what}")).hint(CHAP_HINT))
}

/// Says so where sessions can come in from other machines and cannot be secure.
pub(super) fn warn_of_plain(config: &Config, portals: &[Portal]) {
    let open: Vec<_> = portals.iter().map(|portal| portal.address).filter(is_public).collect();
    if config.identity.is_none() && !open.is_empty() {
        let portals = list(open.into_iter());
        tracing::warn!(
            %portals,
            "sessions are not secure: whoever is on their way can read and change what is sent; give the server an \
             identity (`longhaul identity new`) and the clients keys, or let them come by a tunnel"
        );
    }
}

fn is_public(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

/// Where clients reach a portal. One of all addresses is told by that with which this machine reaches others, or
/// by loopback if it reaches none.
pub(super) fn reachable(portal: SocketAddr) -> Host {
    let ip = match portal.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => source_address(false).unwrap_or_else(|| Ipv4Addr::LOCALHOST.into()),
        // Which takes connections by IPv4 too.
        IpAddr::V6(_) => source_address(true)
            .or_else(|| source_address(false))
            .unwrap_or_else(|| Ipv6Addr::LOCALHOST.into()),
    };
    Host { name: ip.to_string(), port: portal.port() }
}

/// The address from which this machine would send to one that is nobody's (RFC 5737, RFC 3849). To connect a
/// datagram socket asks for the route, and sends nothing.
fn source_address(six: bool) -> Option<IpAddr> {
    let (here, there) = match six {
        false => ("0.0.0.0:0", "192.0.2.1:9"),
        true => ("[::]:0", "[2001:db8::1]:9"),
    };
    let socket = UdpSocket::bind(here).ok()?;
    socket.connect(there).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

pub(super) fn list(portals: impl Iterator<Item = SocketAddr>) -> String {
    portals.map(|portal| portal.to_string()).collect::<Vec<_>>().join(", ")
}
