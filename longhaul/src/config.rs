//! What `serve` serves: read from a file, or from the command line.

mod access;
mod change;
mod changer;
mod cluster;
mod disk;
mod duration;
pub mod edit;
mod file;
mod limits;
mod listen;
mod option;
mod options;
mod syntax;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proto::cluster::GroupName;
use proto::identity::PublicKey;
use proto::iscsi::login::policy::UnitName;
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::Protection;
use proto::scsi::ports::AccessState;

use crate::ciphers::Ciphers;
use crate::compression::Compression;
use crate::credentials::Chap;
use crate::failure::{Failure, OrFail, Outcome};
use crate::log::Log;
pub use crate::option_table::Wrong;
use crate::printable::Shown as _;
use crate::sealing::Demand;
use crate::secret::Source;
use crate::size::Size;
use crate::store::iscsi::Connections;
use crate::target::fair_queue::Share;
use crate::uri::{
    Host, HyperScsiServer, HyperScsiUri, IscsiUri, Location, ScsiPlace, Uri, UriError,
};
pub use access::{Access, Group};
use change::GivenOptions;
pub use changer::ChangerRole;
pub(crate) use changer::{units_with_drives, with_drives};
pub use cluster::{ClusterOptions, RecordPlace};
use disk::TargetName;
pub use disk::{Appearance, BlankDisc, BlockSize, Label, PhysicalBlockSize, Rate};
pub use duration::ConfigDuration;
pub use limits::LimitOptions;
use option::idle_passed;
pub(crate) use option::{idle_blank, idle_direct, idle_size, idle_worm, trailing_option};
pub use options::{ServerOptions, sections};
pub(crate) use options::{UNLOCK, UPSTREAM};

/// What the name of a volume follows on the wire, unless the file says otherwise.
const TARGET_PREFIX: &str = "iqn.2026-11.dev.longhaul:";

/// Said where secure sessions are asked for and cannot be.
pub const LACKS_IDENTITY: &str = "secure sessions need an identity: `longhaul identity new FILE` makes \
    one, and `identity` (--identity) names it";

/// Where the keys stand that are in no table.
pub const ROOT: &str = "";

/// All that `serve` needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Where to listen; loopback if empty.
    pub listen: Vec<Listen>,
    /// The least protection of every session, if the file says it.
    pub protection: Option<Demand>,
    /// The file with the identity of this server; without it no session is secure.
    pub identity: Option<PathBuf>,
    /// The file with the key of the site; without it there is no HyperSCSI.
    pub site_key: Option<PathBuf>,
    /// How data of HyperSCSI are compressed for clients that ask for it.
    pub compression: Compression,
    /// The ciphers of HyperSCSI.
    pub ciphers: Ciphers,
    /// Listen beyond loopback although anyone could then use the volumes.
    pub insecure: bool,
    /// What is served.
    pub volumes: Vec<Served>,
    /// Who may use it; everyone if empty, unless it is closed.
    pub clients: Vec<Client>,
    /// Only the clients may use it, also if there are none.
    pub closed: bool,
    /// SHA-1 and MD5 are allowed for CHAP.
    pub chap_weak: bool,
    /// Where reservations are kept through a restart; without it they end with the process.
    pub state: Option<PathBuf>,
    /// Where the server can be asked how it is; nowhere if `None`.
    pub control: Option<PathBuf>,
    /// Where it tells its metrics; nowhere if `None`.
    pub metrics: Option<SocketAddr>,
    /// That may be beyond loopback.
    pub metrics_public: bool,
    /// The bounds of what initiators may do.
    pub limits: LimitOptions,
    /// How other gateways serve the same volumes; there are none if `None`.
    pub cluster: Option<ClusterOptions>,
    /// What is logged, where the command line does not say it.
    pub log: Log,
    /// The file it was read from.
    pub origin: Option<Origin>,
}

/// A place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address, and the transport.
    pub at: ListenAt,
    /// The least protection of sessions that come in here, if it is said here.
    pub protection: Option<Demand>,
    /// Its portal group.
    pub group: Group,
    /// How volumes are accessed by that group, if it is said here.
    pub access: Option<Access>,
}

impl Listen {
    /// A place of which nothing else is said.
    #[must_use]
    pub fn at(at: ListenAt) -> Self {
        Self { at, protection: None, group: Group::default(), access: None }
    }
}

/// Where to listen, by which transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAt {
    /// For iSCSI, at a TCP port.
    Iscsi(Host),
    /// For HyperSCSI.
    HyperScsi(HyperScsiServer),
}

impl fmt::Display for ListenAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iscsi(host) => host.fmt(f),
            Self::HyperScsi(server) => server.fmt(f),
        }
    }
}

impl FromStr for ListenAt {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let wrong = || UriError::Host(text.to_owned());
        match text.split_once("://") {
            None => text.parse().map(Self::Iscsi),
            // A target or unit behind it is none of a host.
            Some(("iscsi", host)) if !host.contains('/') => host.parse().map(Self::Iscsi),
            Some((scheme, rest)) => {
                match HyperScsiServer::parse(scheme, rest).ok_or_else(wrong)?? {
                    HyperScsiServer::Ethernet { mac: Some(_), .. } => Err(wrong()),
                    server => Ok(Self::HyperScsi(server)),
                }
            }
        }
    }
}

/// A file, and where in it things stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file.
    pub path: PathBuf,
    /// The lines of its tables, by `KIND.NAME`, and of some keys.
    lines: BTreeMap<String, usize>,
}

/// A volume, and how it is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its name in the configuration.
    pub name: String,
    /// The target that it is a unit of.
    pub target: IscsiName,
    /// Its number there.
    pub lun: u16,
    /// Where it is.
    pub uri: Uri,
    /// What a missing file is made with.
    pub size: Option<Size>,
    /// A missing or blank tape is made one that is written once.
    pub worm: bool,
    /// A missing disc is made, a blank one of this type.
    pub blank: Option<BlankDisc>,
    /// Clients that may write to the device that it is may also maintain it.
    pub maintenance: bool,
    /// Nobody writes to it.
    pub read_only: bool,
    /// It is used past the page cache.
    pub direct: bool,
    /// The least protection of its sessions.
    pub protection: Demand,
    /// How it looks to initiators.
    pub appearance: Appearance,
    /// How fast a SANITIZE overwrites it, per second; as fast as it can if `None`.
    pub sanitize_rate: Option<Rate>,
    /// How this machine logs in where it is.
    pub upstream: Upstream,
    /// It is refused unless it is encrypted.
    pub encrypted: bool,
    /// What it is of a media changer, if it is part of one.
    pub changer: Option<ChangerRole>,
    /// What opens it, if it is encrypted: its plain text is what is served then.
    pub unlock: Option<Unlocking>,
    /// In a cluster, the volumes that move with it.
    pub group: GroupName,
    /// The options that all of this comes from.
    given: GivenOptions,
}

/// How this machine logs in to the target that has a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// Who it is there, if not named after its host.
    pub initiator: Option<IscsiName>,
    /// How it proves itself.
    pub chap: Option<Chap>,
    /// It may do so with SHA-1 and MD5.
    pub chap_weak: bool,
    /// The file with its identity in a secure session, if not the usual one.
    pub identity: Option<PathBuf>,
    /// How many connections its session has.
    pub connections: Connections,
    /// Others write to it too, and something coordinates them: it is not reserved.
    pub shared: bool,
}

/// How an encrypted volume is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlocking {
    /// The pass-phrase or key.
    pub secret: Source,
    /// Discards go through to the store, which then learns what is in use.
    pub allow_discards: bool,
    /// Initiators may have its key destroyed.
    pub crypto_erase: bool,
}

/// Someone who may log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its name in the configuration.
    pub name: String,
    /// The initiator it must be; `None` for any.
    pub initiator: Option<IscsiName>,
    /// How it proves itself with CHAP.
    pub chap: Option<Chap>,
    /// The public key that it proves in secure sessions. With neither its name is enough.
    pub key: Option<PublicKey>,
    /// The volumes it may read and write; `None` for all.
    pub units: Option<Vec<UnitName>>,
    /// Those it may only read.
    pub read_only: Vec<UnitName>,
    /// The least protection of its sessions, whatever else is demanded of them.
    pub protection: Demand,
    /// It may administer the server.
    pub administers: bool,
    /// It may do nothing for now.
    pub paused: bool,
    /// What it is given of a server that has not enough for all.
    pub share: Share,
}

/// The failure that names every mistake in a file, a line for each.
pub fn refuse(path: &Path, wrong: &[Wrong]) -> Failure {
    let line = |Wrong { line, why }: &Wrong| format!("{}:{line}: {why}", path.shown());
    Failure::usage(wrong.iter().map(line).collect::<Vec<_>>().join("\n"))
}

impl From<ServerOptions> for Config {
    fn from(said: ServerOptions) -> Self {
        let by_key = said.client_key.into_iter().map(|key| Client::by_key(key.to_string(), key));
        Self {
            listen: said.listen,
            protection: said.protection,
            identity: said.identity,
            site_key: said.site_key,
            compression: said.compression.unwrap_or_default(),
            ciphers: said.cipher.unwrap_or_default(),
            insecure: said.insecure.unwrap_or_default(),
            clients: by_key.collect(),
            state: said.state,
            control: said.control,
            metrics: said.metrics.map(|at| at.0),
            metrics_public: said.metrics_public.unwrap_or_default(),
            ..Self::default()
        }
    }
}

impl Client {
    /// One that proves this key, and may use all volumes.
    #[must_use]
    pub fn by_key(name: String, key: PublicKey) -> Self {
        Self { key: Some(key), ..Self::named(name) }
    }

    /// One that proves itself by CHAP, and may use all volumes.
    #[must_use]
    pub fn by_chap(chap: Chap) -> Self {
        let name = chap.initiator.name.clone();
        Self { chap: Some(chap), ..Self::named(name) }
    }

    /// One of whom nothing else is said.
    fn named(name: String) -> Self {
        let (initiator, chap, key, units) = (None, None, None, None);
        let (read_only, protection) = (Vec::new(), Demand::default());
        let (administers, paused, share) = <_>::default();
        Self {
            name,
            initiator,
            chap,
            key,
            units,
            read_only,
            protection,
            administers,
            paused,
            share,
        }
    }
}

impl Config {
    /// Reads a file. Relative paths in it are relative to its directory. A failure names everything
    /// that is wrong with it.
    pub fn read(path: &Path) -> Outcome<Self> {
        Self::without_mistakes(Self::survey(path)?, path)
    }

    /// The same of `text`, which is to be a file at `path`.
    pub fn of_text(text: &str, path: &Path) -> Outcome<Self> {
        Self::without_mistakes(Self::parse(text, path), path)
    }

    fn without_mistakes((config, wrong): (Self, Vec<Wrong>), path: &Path) -> Outcome<Self> {
        if wrong.is_empty() { Ok(config) } else { Err(refuse(path, &wrong)) }
    }

    /// Reads as much of `text`, which is a file at `path`, as is right, and says what is not.
    #[must_use]
    pub fn parse(text: &str, path: &Path) -> (Self, Vec<Wrong>) {
        file::parse(text, path)
    }

    /// The clients in `text`, a file at `path` that has nothing but clients. Volumes that are not among `volumes` are left
    /// out, and so are those that the file says are elsewhere.
    pub fn parse_clients(text: &str, path: &Path, volumes: &[Served]) -> Outcome<Vec<Client>> {
        let places = edit::places(text);
        let is_it = |volume: &&Served| {
            places.get(&volume.name).is_none_or(|place| *place == volume.place())
        };
        let volumes: Vec<_> = volumes.iter().filter(is_it).cloned().collect();
        let (clients, wrong) = file::parse_clients(text, path, &volumes);
        if wrong.is_empty() { Ok(clients) } else { Err(refuse(path, &wrong)) }
    }

    /// Reads as much of a file as is right, and says what is not.
    pub fn survey(path: &Path) -> Outcome<(Self, Vec<Wrong>)> {
        let text = read_text(path);
        let text = text.or_fail(|| format!("cannot read the configuration {}", path.shown()))?;
        Ok(Self::parse(&text, path))
    }

    /// The portal groups, and how volumes are accessed by them; in a cluster, by those of this gateway.
    #[must_use]
    pub fn ports(&self) -> BTreeMap<u16, AccessState> {
        if self.listen.is_empty() {
            return BTreeMap::from([(Group::default().0, AccessState::Optimized)]);
        }
        let mut ports = BTreeMap::new();
        for Listen { group, access, .. } in &self.listen {
            let state = ports.entry(group.0).or_default();
            *state = access.map_or(*state, |access| access.0);
        }
        ports
    }

    /// The groups of its volumes, of which each has its own lease in a cluster.
    #[must_use]
    pub fn groups(&self) -> BTreeSet<GroupName> {
        self.volumes.iter().map(|volume| volume.group.clone()).collect()
    }

    /// What contradicts its groups: the kind and name of the table, as of [`line`](Self::line), and why.
    #[must_use]
    pub fn group_conflicts(&self) -> Vec<(&'static str, &str, String)> {
        cluster::group_conflicts(self)
    }

    /// The portal groups of a gateway of a cluster that is active for a volume, or is not.
    #[must_use]
    pub fn ports_in_cluster(&self, is_active: bool) -> BTreeMap<u16, AccessState> {
        let state = |active| if active { AccessState::Optimized } else { AccessState::Standby };
        let peers = self.cluster.iter().flat_map(|cluster| &cluster.peers);
        let others = peers.map(|peer| (peer.group.0, state(!is_active)));
        // A group of both is accessed here as this gateway is.
        others.chain(self.ports().into_keys().map(|group| (group, state(is_active)))).collect()
    }

    /// How sessions must be secured, at least, that come in at a portal that says `here`. A server with an identity
    /// wants them secure unless it is told otherwise, for all or for one portal.
    #[must_use]
    pub fn demanded(&self, here: Option<Demand>) -> Option<Protection> {
        match (self.protection, here) {
            (None, None) => self.identity.as_ref().map(|_| Protection::Integrity),
            (all, here) => all.and_then(|Demand(all)| all).max(here.and_then(|Demand(here)| here)),
        }
    }

    /// Whether a session that is not secure can come in somewhere.
    fn admits_plain(&self) -> bool {
        match self.listen.is_empty() {
            true => self.demanded(None).is_none(),
            false => self.listen.iter().any(|listen| self.demanded(listen.protection).is_none()),
        }
    }

    /// The clients that can never log in: they prove themselves by CHAP, which no secure session has, and every
    /// portal demands one.
    pub fn locked_out(&self) -> impl Iterator<Item = &Client> {
        let plain = self.admits_plain();
        let by_chap = |client: &&Client| client.chap.is_some() && client.key.is_none();
        self.clients.iter().filter(by_chap).filter(move |_| !plain)
    }

    /// The volumes that a client is let at and can never reach: a unit of their target demands a secure session, which
    /// takes a key, and the client has none.
    pub fn unreachable<'a>(&'a self, client: &'a Client) -> impl Iterator<Item = &'a Served> {
        let demands = |target: &IscsiName| {
            let mut units = self.volumes.iter().filter(move |volume| volume.target == *target);
            units.any(|volume| volume.protection.0.is_some())
        };
        let units = client.units.iter().flatten().chain(&client.read_only);
        let named = move |volume: &&Served| units.clone().any(|unit| *unit == volume.unit());
        let without_key = client.key.is_none();
        self.volumes
            .iter()
            .filter(named)
            .filter(move |volume| without_key && demands(&volume.target))
    }

    /// Whether everyone who gets in has proven who he is.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        let proves = |client: &Client| client.chap.is_some() || client.key.is_some();
        !self.is_open() && self.clients.iter().all(proves)
    }

    /// Whether anyone may use it.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.clients.is_empty() && !self.closed
    }

    /// Whether secure sessions are asked for although there is no identity.
    #[must_use]
    pub fn lacks_identity(&self) -> bool {
        let demands = |demand: Demand| demand.0.is_some();
        self.identity.is_none()
            && (self.protection.is_some_and(demands)
                || self.listen.iter().filter_map(|listen| listen.protection).any(demands)
                || self.volumes.iter().any(|volume| demands(volume.protection))
                || self
                    .clients
                    .iter()
                    .any(|client| client.key.is_some() || demands(client.protection)))
    }

    /// The line where the table `KIND.NAME` begins, or that of a key if the kind is [`ROOT`]; 1 if there is no
    /// telling.
    #[must_use]
    pub fn line(&self, kind: &str, name: &str) -> usize {
        let lines = self.origin.as_ref().map(|origin| &origin.lines);
        lines.and_then(|lines| lines.get(&format!("{kind}.{name}"))).copied().unwrap_or(1)
    }

    fn remember(&mut self, kind: &str, name: &str, line: usize) {
        if let Some(origin) = &mut self.origin {
            origin.lines.insert(format!("{kind}.{name}"), line);
        }
    }
}

/// A unit is one volume.
pub fn distinct(volumes: &[Served]) -> Result<(), String> {
    let mut rest = volumes;
    while let Some((volume, others)) = rest.split_last() {
        let unit = volume.unit();
        if volume.lun >= disk::Lun::END {
            let (name, lun) = (&volume.name, volume.lun);
            return Err(format!("{name}: units have numbers up to 16383, not {lun}"));
        }
        if let Some(other) = others.iter().find(|other| other.unit() == unit) {
            return Err(taken(&unit, &other.name));
        }
        if others.iter().any(|other| other.name == volume.name) {
            return Err(format!("there are two volumes {}", volume.name));
        }
        rest = others;
    }
    Ok(())
}

fn taken(UnitName { target, lun }: &UnitName, by: &str) -> String {
    format!("unit {lun} of {target} is volume {by} already: give one of them another `lun`")
}

fn place_of(uri: &Uri) -> String {
    match uri.location() {
        Location::Process(_) => "memory".to_owned(),
        Location::File(path) => format!("file:{}", absolute(path).shown()),
        Location::Device(path) => format!("device:{}", absolute(path).shown()),
        Location::Drive(disc) => match disc {
            Some(path) => format!("cdrom:{}", absolute(path).shown()),
            None => "cdrom:".to_owned(),
        },
        Location::Tape(tape) => match tape {
            Some(path) => format!("tape:{}", absolute(path).shown()),
            None => "tape:".to_owned(),
        },
        Location::Changer(directory) => format!("changer:{}", absolute(directory).shown()),
        Location::Passed(ScsiPlace::Device(path)) => format!("scsi:{}", absolute(path).shown()),
        Location::Passed(ScsiPlace::Unit(unit)) => {
            format!("scsi:{}", place_of(&Uri::from(unit.clone())))
        }
        Location::Passed(ScsiPlace::Served(volume)) => {
            format!("scsi:{}", place_of(&Uri::from(volume.clone())))
        }
        Location::Unit(IscsiUri { host, target, lun, .. }) => {
            format!("iscsi://{host}/{target}/{lun}")
        }
        Location::Served(HyperScsiUri { server, volume, .. }) => format!("{server}/{volume}"),
        Location::Image(image) => format!("rbd:{image}"),
        Location::Several(compound) => {
            let members: Vec<_> = uri.members().iter().map(place_of).collect();
            format!("{}:({})", compound.kind.name(), members.join(","))
        }
    }
}

/// The path without links, but for the file itself, which may be missing still.
fn absolute(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let directory = path.parent().and_then(|directory| directory.canonicalize().ok());
    directory
        .zip(path.file_name())
        .map_or_else(|| path.clone(), |(directory, name)| directory.join(name))
}

impl Served {
    /// Where it is, under whatever working directory: two servers that share what they keep tell by it whether their
    /// volumes of one name are the same.
    #[must_use]
    pub fn place(&self) -> String {
        place_of(&self.uri)
    }

    /// The unit of `target` that the options describe.
    fn new(
        name: &str,
        target: IscsiName,
        uri: Uri,
        upstream: Upstream,
        mut given: GivenOptions,
    ) -> Self {
        // Whether a default is written or left out makes no difference.
        given.volume.target = Some(TargetName(target.clone()));
        given.chap.chap_user.get_or_insert_with(|| name.to_owned());
        let said = &given.volume;
        Self {
            name: name.to_owned(),
            target,
            lun: said.lun.unwrap_or_default().0,
            uri,
            size: said.size,
            worm: said.worm.unwrap_or_default(),
            blank: said.blank,
            maintenance: said.maintenance.unwrap_or_default(),
            read_only: said.read_only.unwrap_or_default(),
            direct: said.direct.unwrap_or_default(),
            protection: said.protection.unwrap_or_default(),
            appearance: Appearance::from(said),
            sanitize_rate: said.sanitize_rate,
            upstream,
            encrypted: said.encrypted.unwrap_or_default(),
            changer: None,
            unlock: None,
            group: said.group.clone().unwrap_or_default(),
            given,
        }
    }

    /// The same drive with another disc or tape in it; `None` if it is no drive.
    #[must_use]
    pub fn with_disc(&self, disc: Option<PathBuf>) -> Option<Self> {
        let uri = self.uri.with_disc(disc)?;
        Some(Self { uri, ..self.clone() })
    }

    /// The serial number that its configuration gives it.
    #[must_use]
    pub fn configured_serial(&self) -> Option<&str> {
        self.appearance.serial.as_ref().map(|serial| &*serial.0)
    }

    /// Who it is on the wire.
    #[must_use]
    pub fn unit(&self) -> UnitName {
        UnitName { target: self.target.clone(), lun: self.lun }
    }
}

/// The target a volume is, unless the file says otherwise.
pub fn target_of(name: &str) -> Result<IscsiName, String> {
    // Two names that differ in case would be one target.
    if name.is_empty() || name.contains(char::is_uppercase) {
        return Err(format!("`{name}` cannot name a volume: use lower case letters and digits"));
    }
    IscsiName::new(&format!("{TARGET_PREFIX}{name}"))
        .map_err(|why| format!("`{name}` cannot name a volume: {why}"))
}

/// A device, or a disk image, is no configuration, and need not have an end.
const TEXT_MAX: u64 = 1 << 20;

/// The text of a file, which may be a pipe.
fn read_text(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(TEXT_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > TEXT_MAX {
        let why = format!("it has more than {} bytes", Size(TEXT_MAX));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(text)
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why.utf8_error()))
}

#[cfg(test)]
mod tests;
