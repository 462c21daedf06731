//! From the name of a server to a session with it.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use host::link::{Ethernet, EthernetOptions, Link, Mac, Udp};
use proto::hyperscsi::{Address, Client, Config, ETHERTYPE, Endpoint, Fill, Level, LinkId, Remote};
use proto::scsi::Status;
use proto::scsi::command::Command as ScsiCommand;
use proto::scsi::sense::{Key, Sense};
use tokio::net::lookup_host;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::driver::{Choice, Driver, Ready};
use super::error::{Loss, SessionError};
use super::session::{Session, Shared, warn_of_level};
use super::stalls::Stalls;
use super::{CONNECT_WITHIN, ConnectionOptions, Credentials, Server, Volume};
use crate::net::hyperscsi_link::{Wire, with_limits};
use crate::store::scsi::{Completion, Session as _, Task, TransferLimits};
use crate::store::slow_login::warn_if_slow;

/// The longest packet that a machine takes whatever the link carries: that of jumbo frames.
const PACKET_MAX: usize = 9000;

/// Unit attentions that may be told in place of an answer.
const ATTENTIONS_MAX: u32 = 8;

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
    let places = (&volume.server, &volume.paths[..]);
    let terms = Terms { port, within, options: volume.options };
    let connected = connect(places, credentials, terms).await?;
    let Connected { shared, ready } = connected;
    let Ready { devices, data_max, compression, cipher, has_checksum, choose } = ready;
    if compression.is_none() && !volume.options.compression.is_none() {
        let (server, asked) = (&volume.server, volume.options.compression);
        tracing::warn!(%server, %asked, "the server does not compress so: data go as they are");
    }
    if volume.options.checksum && !has_checksum {
        tracing::warn!(server = %volume.server, "the server makes no checksums: data go without");
    }
    let Some(device) = devices.iter().find(|device| *device.name == *volume.name) else {
        let there: Vec<_> = devices.iter().map(|device| &*device.name).collect();
        return Err(SessionError::NoVolume {
            server: volume.server.clone(),
            volume: volume.name.clone(),
            there: if there.is_empty() { "none".to_owned() } else { there.join(", ") },
        });
    };
    let (server, name) = (&volume.server, volume.name.as_str());
    warn_of_level(server, name, device.level, credentials.least == Level::None);
    // Data travel with the command.
    let data_max = data_max.into();
    let limits = TransferLimits { unsolicited: data_max, solicited: 0, data_in: data_max };
    shared.level.set(device.level);
    let (session, receiver) = Session::new(&shared, limits, cipher);
    // If the connection is lost already the session finds out.
    let _ = choose.send(Choice { device: device.handle, receiver, stalls });
    if volume.options.media_lock && !lock_medium(&session).await {
        tracing::warn!(%server, volume = name, "the medium is not locked: the drive lets it be taken out");
    }
    Ok(session)
}

/// Has the drive keep its medium until the connection ends (SBC-3, 5.15); whether it does.
async fn lock_medium(session: &Session) -> bool {
    for _ in 0..ATTENTIONS_MAX {
        let command = ScsiCommand::prevent_removal(true);
        let task = Task { lun: 0, command, data: bytes::Bytes::new(), is_ordered: false };
        // If the connection is lost, whoever uses the session finds out.
        let Ok(executed) = session.execute(task).await else { return true };
        let Ok(Completion { status, sense, .. }) = executed else { return false };
        match (status, Sense::parse(&sense)) {
            (Status::Good, _) => return true,
            // It was noted; the command was not executed (SAM-5, 5.14).
            (Status::CheckCondition, Some(sense)) if sense.key == Key::UnitAttention => {}
            _ => return false,
        }
    }
    false
}

/// The names of the volumes that a server lets us use.
pub async fn volumes(
    server: &Server,
    credentials: &Credentials,
) -> Result<Vec<String>, SessionError> {
    let terms = Terms {
        port: random_port(),
        within: CONNECT_WITHIN,
        options: ConnectionOptions::default(),
    };
    let connecting = connect((server, &[]), credentials, terms);
    let connected = warn_if_slow(server, connecting).await?;
    let devices = connected.ready.devices;
    Ok(devices.into_iter().map(|device| device.name.into()).collect())
}

/// As what, and how, a client connects.
#[derive(Clone, Copy)]
struct Terms {
    /// The initiator port.
    port: u64,
    within: Duration,
    options: ConnectionOptions,
}

/// A place where a server may be reached.
#[derive(Clone, Copy)]
struct Place<'s> {
    server: &'s Server,
    address: Address,
}

/// Tries the addresses of a server, then its paths, until one answers; the others are its paths then. They share the
/// time.
async fn connect(
    (server, paths): (&Server, &[Server]),
    credentials: &Credentials,
    terms: Terms,
) -> Result<Connected, SessionError> {
    let own = addresses(server).await?;
    let own: Vec<_> = own.into_iter().map(|address| Place { server, address }).collect();
    let others = path_places(paths).await;
    let mut last = None;
    let count = own.len() + others.len();
    let each = terms.within / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    let terms = Terms { within: each, ..terms };
    for place in own.iter().chain(&others) {
        let is_own = own.iter().any(|one| one.address == place.address);
        // Of its own addresses one will do; who is only looked for is not found twice.
        let first = own.first().filter(|one| !is_own && one.address != Address::BROADCAST);
        let further = others.iter().filter(|one| one.address != place.address);
        let places: Vec<_> = [place].into_iter().chain(first).chain(further).copied().collect();
        match connect_to((server, &places), credentials, terms).await {
            Ok(connected) => return Ok(connected),
            Err(why) => last = Some(why),
        }
    }
    let none = || SessionError::Lookup(server.clone(), ErrorKind::NotFound.into());
    Err(last.unwrap_or_else(none))
}

/// The addresses of further paths: one of each, as far as they are known.
async fn path_places(paths: &[Server]) -> Vec<Place<'_>> {
    let mut places = Vec::new();
    for server in paths {
        match addresses(server).await.map(|found| found.first().copied()) {
            Ok(Some(address)) => places.push(Place { server, address }),
            Ok(None) => tracing::warn!(%server, "the path is left out: it has no address"),
            Err(why) => tracing::warn!(%server, %why, "the path is left out"),
        }
    }
    places
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

/// Connects to the first of these places; the others are further paths.
async fn connect_to(
    (server, places): (&Server, &[Place<'_>]),
    credentials: &Credentials,
    Terms { port, within, options }: Terms,
) -> Result<Connected, SessionError> {
    let socket = |why| SessionError::Socket(server.clone(), why);
    let (links, places) = open_usable(places)?;
    let wire = Wire::new(links).map_err(socket)?;
    let Credentials { identity, site_key, pin, least } = credentials.clone();
    let ciphers = options.ciphers.of_machine();
    let config = match server {
        Server::Ip(_) => Config::ip(identity, site_key, ciphers),
        Server::Ethernet { .. } => {
            let mtu = wire.mtu().min(PACKET_MAX) as u16;
            Config::ethernet(identity, site_key, ciphers, mtu)
        }
    };
    let config = Config {
        port,
        codecs: options.compression.0,
        checksum: options.checksum,
        window: options.window,
        least,
        ..with_limits(config)
    };
    let endpoints = (0..).zip(places);
    let mut endpoints =
        endpoints.map(|(link, place)| Endpoint { link: LinkId(link), address: place.address });
    let Some(endpoint) = endpoints.next() else {
        return Err(SessionError::Lookup(server.clone(), ErrorKind::NotFound.into()));
    };
    let machine = Client::new(wire.now(), config, Remote { endpoint, pin }, random());
    let shared = Arc::<Shared>::default();
    let (sender, ready) = oneshot::channel::<Ready>();
    let means = (wire, machine, endpoints.collect());
    let driver = Driver::new(server.clone(), means, Arc::clone(&shared), sender);
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

/// The links by which these places are reached, without those that cannot be used now, and their places: an interface that is
/// gone costs its path only.
fn open_usable<'a, 'b>(
    places: &'a [Place<'b>],
) -> Result<(Vec<Link>, Vec<&'a Place<'b>>), SessionError> {
    let (mut links, mut usable, mut first_failure) = (Vec::new(), Vec::new(), None);
    for place in places {
        match open(place) {
            Ok(link) => {
                links.push(link);
                usable.push(place);
            }
            Err(why) => {
                if places.len() > 1 {
                    tracing::warn!(server = %place.server, %why, "the path is left out");
                }
                first_failure.get_or_insert(why);
            }
        }
    }
    match first_failure {
        Some(why) if links.is_empty() => Err(why),
        _ => Ok((links, usable)),
    }
}

fn open(Place { server, address }: &Place<'_>) -> Result<Link, SessionError> {
    let any: SocketAddr = match (server, address) {
        (Server::Ethernet { interface, .. }, _) => {
            return Ok(Ethernet::open(interface, ETHERTYPE, EthernetOptions::default())?.into());
        }
        (Server::Ip(_), Address::Ip(SocketAddr::V6(_))) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        (Server::Ip(_), _) => (Ipv4Addr::UNSPECIFIED, 0).into(),
    };
    let socket = |why| SessionError::Socket((*server).clone(), why);
    Udp::bind(any).map(Into::into).map_err(socket)
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
