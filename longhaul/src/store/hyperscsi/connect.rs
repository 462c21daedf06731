//! From the name of a server to a session with it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use host::link::{Ethernet, EthernetOptions, Link, Mac, Udp};
use proto::hyperscsi::{Address, Client, Config, ETHERTYPE, Endpoint, Fill, LinkId, Remote};
use tokio::net::lookup_host;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::driver::{Choice, Driver, Ready};
use super::error::{Loss, SessionError};
use super::session::{Session, Shared};
use super::stalls::Stalls;
use super::{CONNECT_WITHIN, Credentials, Server, Volume};
use crate::net::hyperscsi_link::{Wire, with_limits};
use crate::sealing::new_cipher;
use crate::store::scsi::TransferLimits;
use crate::store::slow_login::warn_if_slow;

/// The longest packet that a machine takes whatever the link carries: that of jumbo frames.
const PACKET_MAX: usize = 9000;

/// A connection that is there, of which no volume was chosen yet.
struct Connected {
    shared: Arc<Shared>,
    ready: Ready,
}

/// Connects as this initiator port and chooses a volume.
pub(super) async fn log_in(
    volume: &Volume,
    credentials: &Credentials,
    (port, within): (u64, Duration),
    stalls: Stalls,
) -> Result<Session, SessionError> {
    let connected = connect(&volume.server, credentials, (port, within)).await?;
    let Connected { shared, ready } = connected;
    let Ready { devices, data_max, choose } = ready;
    let Some(device) = devices.iter().find(|device| *device.name == *volume.name) else {
        let there: Vec<_> = devices.iter().map(|device| &*device.name).collect();
        return Err(SessionError::NoVolume {
            server: volume.server.clone(),
            volume: volume.name.clone(),
            there: if there.is_empty() { "none".to_owned() } else { there.join(", ") },
        });
    };
    // Data travel with the command.
    let data_max = data_max.into();
    let limits = TransferLimits { unsolicited: data_max, solicited: 0, data_in: data_max };
    let (session, receiver) = Session::new(&shared, limits);
    // If the connection is lost already the session finds out.
    let _ = choose.send(Choice { device: device.handle, receiver, stalls });
    Ok(session)
}

/// The names of the volumes that a server lets us use.
pub async fn volumes(
    server: &Server,
    credentials: &Credentials,
) -> Result<Vec<String>, SessionError> {
    let connecting = connect(server, credentials, (random_port(), CONNECT_WITHIN));
    let connected = warn_if_slow(server, connecting).await?;
    let devices = connected.ready.devices;
    Ok(devices.into_iter().map(|device| device.name.into()).collect())
}

/// Tries the addresses of a server until one answers. They share the time.
async fn connect(
    server: &Server,
    credentials: &Credentials,
    (port, within): (u64, Duration),
) -> Result<Connected, SessionError> {
    let mut last = None;
    let addresses = addresses(server).await?;
    let each = within / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
    for address in addresses {
        match connect_to((server, address), credentials, (port, each)).await {
            Ok(connected) => return Ok(connected),
            Err(why) => last = Some(why),
        }
    }
    let none = || SessionError::Lookup(server.clone(), ErrorKind::NotFound.into());
    Err(last.unwrap_or_else(none))
}

async fn addresses(server: &Server) -> Result<Vec<Address>, SessionError> {
    match server {
        Server::Ip(host) => {
            let found = lookup_host((host.name.as_str(), host.port)).await;
            let found = found.map_err(|why| SessionError::Lookup(server.clone(), why))?;
            Ok(found.map(Address::Ip).collect())
        }
        Server::Ethernet { mac: Some(Mac(octets)), .. } => Ok(vec![Address::Ethernet(*octets)]),
        Server::Ethernet { mac: None, .. } => Ok(vec![Address::BROADCAST]),
    }
}

async fn connect_to(
    (server, address): (&Server, Address),
    credentials: &Credentials,
    (port, within): (u64, Duration),
) -> Result<Connected, SessionError> {
    let socket = |why| SessionError::Socket(server.clone(), why);
    let wire = Wire::new(open(server, address)?).map_err(socket)?;
    let Credentials { identity, site_key, pin } = credentials.clone();
    let config = match server {
        Server::Ip(_) => Config::ip(identity, site_key, new_cipher),
        Server::Ethernet { .. } => {
            let mtu = wire.mtu().min(PACKET_MAX) as u16;
            Config::ethernet(identity, site_key, new_cipher, mtu)
        }
    };
    let config = Config { port, ..with_limits(config) };
    let remote = Remote { endpoint: Endpoint { link: LinkId::default(), address }, pin };
    let machine = Client::new(wire.now(), config, remote, random());
    let shared = Arc::<Shared>::default();
    let (sender, ready) = oneshot::channel::<Ready>();
    let driver = Driver::new(server.clone(), (wire, machine), Arc::clone(&shared), sender);
    tokio::spawn(driver.run());
    match timeout(within, ready).await {
        Ok(Ok(ready)) => Ok(Connected { shared, ready }),
        Ok(Err(_)) => {
            let why = shared.lost.get().map_or_else(|| Arc::new(Loss::Broken), Arc::clone);
            Err(SessionError::Refused(server.clone(), why))
        }
        Err(_) => {
            shared.abandoned.notify_one();
            Err(SessionError::Silent(server.clone(), within))
        }
    }
}

fn open(server: &Server, address: Address) -> Result<Link, SessionError> {
    let socket = |why| SessionError::Socket(server.clone(), why);
    match (server, address) {
        (Server::Ethernet { interface, .. }, _) => {
            Ok(Ethernet::open(interface, ETHERTYPE, EthernetOptions::default())?.into())
        }
        (Server::Ip(_), Address::Ip(SocketAddr::V6(_))) => {
            Udp::bind((std::net::Ipv6Addr::UNSPECIFIED, 0).into()).map_err(socket).map(Into::into)
        }
        (Server::Ip(_), _) => {
            Udp::bind((std::net::Ipv4Addr::UNSPECIFIED, 0).into()).map_err(socket).map(Into::into)
        }
    }
}

/// A port that nobody else has.
pub(super) fn random_port() -> u64 {
    let mut bytes = [0; 8];
    random()(&mut bytes);
    u64::from_be_bytes(bytes)
}

/// Fills buffers from the system's random source. Without one nothing that is secret can be made.
fn random() -> Fill {
    Box::new(|buffer| getrandom::fill(buffer).expect("the system gives random numbers"))
}
