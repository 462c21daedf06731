//! What `serve` serves: read from a file, or from the command line.

mod access;
mod disk;
mod file;
mod limits;
mod pause;
mod table;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proto::iscsi::login::policy::UnitName;
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::PublicKey;
use proto::scsi::ports::AccessState;

use crate::credentials::Chap;
use crate::failure::{Failure, OrFail, Outcome};
use crate::front::iscsi::Limits;
use crate::log::Log;
use crate::sealing::Demand;
use crate::secret::Source;
use crate::size::Size;
use crate::store::iscsi::Connections;
use crate::uri::{Host, Uri};
pub use access::{Access, Group};
pub use disk::{Appearance, BlockSize, Label, PhysicalBlockSize, Rate};
use disk::{Lun, TargetName, switch};
pub use pause::Pause;
pub use table::Wrong;

/// What the name of a volume follows on the wire, unless the file says otherwise.
const TARGET_PREFIX: &str = "iqn.2026-11.dev.longhaul:";

/// Said where sealed sessions are asked for and cannot be.
pub const LACKS_IDENTITY: &str = "sealed sessions need an identity: `longhaul identity new FILE` makes \
    one, and `identity` names it";

/// Where the keys stand that are in no table.
pub const ROOT: &str = "";

/// All that `serve` needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Where to listen; loopback if empty.
    pub listen: Vec<Listen>,
    /// How every session must be sealed, at least.
    pub protection: Demand,
    /// The file that says who this server is in sealed sessions; without it none is sealed.
    pub identity: Option<PathBuf>,
    /// Listen beyond loopback although anyone could then use the volumes.
    pub insecure: bool,
    /// What is served.
    pub volumes: Vec<Served>,
    /// Who may use it; everyone if empty.
    pub clients: Vec<Client>,
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
    pub limits: Limits,
    /// What is logged, where the command line does not say it.
    pub log: Log,
    /// The file it was read from.
    pub origin: Option<Origin>,
}

/// A place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub host: Host,
    /// How sessions that come in here must be sealed, at least.
    pub protection: Demand,
    /// Its portal group.
    pub group: Group,
    /// How volumes are accessed by that group, if it is said here.
    pub access: Option<Access>,
}

impl Listen {
    /// A place of which nothing else is said.
    #[must_use]
    pub fn at(host: Host) -> Self {
        Self { host, protection: Demand::default(), group: Group::default(), access: None }
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
    /// Nobody writes to it.
    pub read_only: bool,
    /// How its sessions must be sealed, at least.
    pub protection: Demand,
    /// How it looks to initiators.
    pub appearance: Appearance,
    /// How fast a SANITIZE overwrites it, per second; as fast as it can if `None`.
    pub sanitize_rate: Option<Rate>,
    /// How this machine logs in where it is.
    pub upstream: Upstream,
    /// What opens it, if it is sealed: its plain text is what is served then.
    pub unseal: Option<Unsealing>,
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
    /// The file that says who it is in a sealed session, if not the usual one.
    pub identity: Option<PathBuf>,
    /// How many connections its session has.
    pub connections: Connections,
}

/// How a sealed volume is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsealing {
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
    /// The public key it proves itself by in sealed sessions. With neither its name is enough.
    pub key: Option<PublicKey>,
    /// The volumes it may read and write; `None` for all.
    pub units: Option<Vec<UnitName>>,
    /// Those it may only read.
    pub read_only: Vec<UnitName>,
}

/// The failure that names every mistake in a file, a line for each.
pub fn refuse(path: &Path, wrong: &[Wrong]) -> Failure {
    let line = |Wrong { line, why }: &Wrong| format!("{}:{line}: {why}", path.display());
    Failure::usage(wrong.iter().map(line).collect::<Vec<_>>().join("\n"))
}

impl Config {
    /// Reads a file. Relative paths in it are relative to its directory. A failure names everything
    /// that is wrong with it.
    pub fn read(path: &Path) -> Outcome<Self> {
        let (config, wrong) = Self::survey(path)?;
        if wrong.is_empty() { Ok(config) } else { Err(refuse(path, &wrong)) }
    }

    /// Reads as much of `text`, which is a file at `path`, as is right, and says what is not.
    #[must_use]
    pub fn parse(text: &str, path: &Path) -> (Self, Vec<Wrong>) {
        file::parse(text, path)
    }

    /// Reads as much of a file as is right, and says what is not.
    pub fn survey(path: &Path) -> Outcome<(Self, Vec<Wrong>)> {
        let text = std::fs::read_to_string(path)
            .or_fail(|| format!("cannot read the configuration {}", path.display()))?;
        Ok(Self::parse(&text, path))
    }

    /// The portal groups, and how volumes are accessed by them.
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

    /// Whether everyone who gets in has proven who he is.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        let proves = |client: &Client| client.chap.is_some() || client.key.is_some();
        !self.clients.is_empty() && self.clients.iter().all(proves)
    }

    /// What asks for sealed sessions although there is no identity to seal them with.
    #[must_use]
    pub fn lacks_identity(&self) -> bool {
        let demands = |demand: Demand| demand.0.is_some();
        self.identity.is_none()
            && (demands(self.protection)
                || self.listen.iter().any(|listen| demands(listen.protection))
                || self.volumes.iter().any(|volume| demands(volume.protection))
                || self.clients.iter().any(|client| client.key.is_some()))
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

impl Served {
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

/// `NAME=URI[,KEY[=VALUE]]...`, as the command line has it.
impl FromStr for Served {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, mut rest) = text
            .split_once('=')
            .ok_or_else(|| "write NAME=URI, such as backup=file:/srv/backup.img".to_owned())?;
        let (mut size, mut read_only, mut sanitize_rate) = (None, false, None);
        let (mut target, mut lun) = (None, Lun::default());
        let (mut protection, mut appearance) = (Demand::default(), Appearance::default());
        // From the end, since a path may hold a comma.
        while let Some((uri, option)) = rest.rsplit_once(',') {
            let (key, value) = match option.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (option, None),
            };
            match (key, value) {
                ("read_only", value) => read_only = switch(value)?,
                ("size", Some(text)) => {
                    size = Some(text.parse::<Size>().map_err(|why| why.to_string())?);
                }
                ("target", Some(text)) => target = Some(text.parse::<TargetName>()?),
                ("lun", Some(text)) => lun = text.parse()?,
                ("sanitize_rate", Some(text)) => sanitize_rate = Some(text.parse::<Rate>()?),
                ("protection", Some(text)) => protection = text.parse::<Demand>()?,
                _ if appearance.set(key, value).map_err(|why| format!("{key}: {why}"))? => {}
                _ => break,
            }
            rest = uri;
        }
        let uri = rest.parse::<Uri>().map_err(|why| why.to_string())?;
        let target = target.map_or_else(|| target_of(name), |target| Ok(target.0))?;
        let name = name.to_owned();
        let (upstream, unseal) = (Upstream::default(), None);
        Ok(Self {
            name,
            target,
            lun: lun.0,
            uri,
            size,
            read_only,
            protection,
            appearance,
            sanitize_rate,
            upstream,
            unseal,
        })
    }
}

#[cfg(test)]
mod tests;
