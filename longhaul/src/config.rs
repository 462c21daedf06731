//! What `serve` serves: read from a file, or from the command line.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::PublicKey;
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use crate::chain::{Host, Uri};
use crate::credentials::{Chap, Login};
use crate::failure::{Failure, OrFail, Outcome};
use crate::sealing::Demand;
use crate::secret::Source;
use crate::size::Size;

mod disk;

use disk::switch;
pub use disk::{Appearance, BlockSize, Label, PhysicalBlockSize};
use proto::scsi::inquiry::SERIAL_MAX;

/// What the name of a volume follows on the wire, unless the file says otherwise.
const TARGET_PREFIX: &str = "iqn.2026-11.dev.longhaul:";

/// Said where sealed sessions are asked for and cannot be.
pub const LACKS_IDENTITY: &str = "sealed sessions need an identity: `longhaul identity new FILE` makes \
    one, and `identity` names it";

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
}

/// A place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub host: Host,
    /// How sessions that come in here must be sealed, at least.
    pub protection: Demand,
}

/// A volume, and how it is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its name in the configuration.
    pub name: String,
    /// Its name on the wire.
    pub target: IscsiName,
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
}

/// Someone who may log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The initiator it must be; `None` for any.
    pub initiator: Option<IscsiName>,
    /// How it proves itself with CHAP.
    pub chap: Option<Chap>,
    /// The public key it proves itself by in sealed sessions. With neither its name is enough.
    pub key: Option<PublicKey>,
    /// The targets it may use; `None` for all.
    pub targets: Option<Vec<IscsiName>>,
}

impl Config {
    /// Reads a file. Relative paths in it are relative to its directory.
    pub fn read(path: &Path) -> Outcome<Self> {
        let text = std::fs::read_to_string(path)
            .or_fail(|| format!("cannot read the configuration {}", path.display()))?;
        let base = path.parent().unwrap_or_else(|| Path::new(""));
        Self::parse(&text, base).map_err(|wrong| {
            let line = 1 + text.bytes().take(wrong.at.start).filter(|&byte| byte == b'\n').count();
            Failure::usage(format!("{}:{line}: {}", path.display(), wrong.why))
        })
    }

    fn parse(text: &str, base: &Path) -> Result<Self, Wrong> {
        let file: ConfigFile = toml::from_str(text).map_err(|why| Wrong {
            at: why.span().unwrap_or_default(),
            why: why.message().trim_end().replace('\n', ", "),
        })?;
        file.check(base)
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
}

/// A place in the file, and what is wrong there.
#[derive(Debug)]
struct Wrong {
    at: Range<usize>,
    why: String,
}

fn wrong(at: Range<usize>, why: impl Display) -> Wrong {
    Wrong { at, why: why.to_string() }
}

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    listen: Vec<ListenEntry>,
    #[serde(default)]
    protection: Parsed<Demand>,
    identity: Option<PathBuf>,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    chap_weak: bool,
    state: Option<PathBuf>,
    #[serde(default)]
    volumes: BTreeMap<Spanned<String>, VolumeTable>,
    #[serde(default)]
    clients: BTreeMap<Spanned<String>, ClientTable>,
}

/// An address, or a table with one.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "write \"HOST:PORT\" or { address = \"HOST:PORT\", protection = \"encrypt\" }; IPv6 addresses go in brackets"
)]
enum ListenEntry {
    Plain(Parsed<Host>),
    Table(ListenTable),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListenTable {
    address: Parsed<Host>,
    protection: Parsed<Demand>,
}

impl From<ListenEntry> for Listen {
    fn from(entry: ListenEntry) -> Self {
        let (host, protection) = match entry {
            ListenEntry::Plain(host) => (host.0, Demand::default()),
            ListenEntry::Table(table) => (table.address.0, table.protection.0),
        };
        Self { host, protection }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeTable {
    uri: Parsed<Uri>,
    size: Option<Parsed<Size>>,
    #[serde(default)]
    read_only: bool,
    target: Option<Parsed<IscsiName>>,
    #[serde(default)]
    protection: Parsed<Demand>,
    block_size: Option<BlockSize>,
    physical_block_size: Option<PhysicalBlockSize>,
    #[serde(default)]
    removable: bool,
    #[serde(default = "yes")]
    thin: bool,
    vendor: Option<Label<8>>,
    product: Option<Label<16>>,
    serial: Option<Label<SERIAL_MAX>>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientTable {
    volumes: Vec<Spanned<String>>,
    initiator: Option<Parsed<IscsiName>>,
    key: Option<Parsed<PublicKey>>,
    chap_user: Option<String>,
    chap_secret_file: Option<PathBuf>,
    chap_secret_env: Option<String>,
    chap_mutual_user: Option<String>,
    chap_mutual_secret_file: Option<PathBuf>,
    chap_mutual_secret_env: Option<String>,
}

impl ConfigFile {
    fn check(self, base: &Path) -> Result<Config, Wrong> {
        let mut volumes: Vec<Served> = Vec::new();
        for (name, table) in self.volumes {
            let at = name.span();
            let volume = table.check(name, base)?;
            volumes.push(volume);
            distinct(&volumes).map_err(|why| wrong(at, why))?;
        }
        if volumes.is_empty() {
            return Err(wrong(0..0, "there is no volume to serve: write a table [volumes.NAME]"));
        }
        let clients =
            self.clients.into_iter().map(|(name, table)| table.check(name, &volumes, base));
        let config = Config {
            listen: self.listen.into_iter().map(Listen::from).collect(),
            protection: self.protection.0,
            identity: self.identity.map(|file| base.join(file)),
            insecure: self.insecure,
            chap_weak: self.chap_weak,
            state: self.state.map(|state| base.join(state)),
            clients: clients.collect::<Result<_, _>>()?,
            volumes,
        };
        if config.lacks_identity() {
            return Err(wrong(0..0, LACKS_IDENTITY));
        }
        Ok(config)
    }
}

impl VolumeTable {
    fn check(self, name: Spanned<String>, base: &Path) -> Result<Served, Wrong> {
        let (at, name) = (name.span(), name.into_inner());
        let target = match self.target {
            Some(target) => target.0,
            None => target_of(&name).map_err(|why| wrong(at, why))?,
        };
        let uri = match self.uri.0 {
            Uri::File(path) => Uri::File(base.join(path)),
            uri => uri,
        };
        let (size, read_only) = (self.size.map(|size| size.0), self.read_only);
        let protection = self.protection.0;
        let appearance = Appearance {
            block_size: self.block_size,
            physical_block_size: self.physical_block_size,
            removable: self.removable,
            thin: self.thin,
            vendor: self.vendor,
            product: self.product,
            serial: self.serial,
        };
        Ok(Served { name, target, uri, size, read_only, protection, appearance })
    }
}

impl ClientTable {
    fn check(
        self,
        name: Spanned<String>,
        volumes: &[Served],
        base: &Path,
    ) -> Result<Client, Wrong> {
        let (at, name) = (name.span(), name.into_inner());
        let secret = secret(self.chap_secret_file, self.chap_secret_env, base)
            .map_err(|why| wrong(at.clone(), format!("chap_{why}")))?;
        let mutual = secret_of_target(
            self.chap_mutual_user,
            self.chap_mutual_secret_file,
            self.chap_mutual_secret_env,
            base,
        )
        .map_err(|why| wrong(at.clone(), why))?;
        let chap = match secret {
            Some(secret) => {
                let initiator = Login { name: self.chap_user.unwrap_or(name), secret };
                Some(Chap { initiator, target: mutual })
            }
            None if self.chap_user.is_some() || mutual.is_some() => {
                let why = "CHAP needs chap_secret_file or chap_secret_env";
                return Err(wrong(at, why));
            }
            None if self.initiator.is_none() && self.key.is_none() => {
                let why =
                    "a client is known by key, chap_secret_file, chap_secret_env or initiator";
                return Err(wrong(at, why));
            }
            None => None,
        };
        let targets = self.volumes.into_iter().map(|volume| find(volumes, &volume));
        Ok(Client {
            initiator: self.initiator.map(|initiator| initiator.0),
            chap,
            key: self.key.map(|key| key.0),
            targets: Some(targets.collect::<Result<_, _>>()?),
        })
    }
}

fn find(volumes: &[Served], wanted: &Spanned<String>) -> Result<IscsiName, Wrong> {
    match volumes.iter().find(|volume| volume.name == *wanted.get_ref()) {
        Some(volume) => Ok(volume.target.clone()),
        None => Err(wrong(wanted.span(), format!("there is no volume `{}`", wanted.get_ref()))),
    }
}

fn secret(
    file: Option<PathBuf>,
    env: Option<String>,
    base: &Path,
) -> Result<Option<Source>, &'static str> {
    match (file, env) {
        (Some(_), Some(_)) => Err("secret_file and _env exclude each other"),
        (Some(path), None) => Ok(Some(Source::File(base.join(path)))),
        (None, Some(name)) => Ok(Some(Source::Env(name))),
        (None, None) => Ok(None),
    }
}

fn secret_of_target(
    user: Option<String>,
    file: Option<PathBuf>,
    env: Option<String>,
    base: &Path,
) -> Result<Option<Login>, String> {
    let secret = secret(file, env, base).map_err(|why| format!("chap_mutual_{why}"))?;
    match (user, secret) {
        (Some(name), Some(secret)) => Ok(Some(Login { name, secret })),
        (None, None) => Ok(None),
        _ => Err("mutual CHAP needs chap_mutual_user and one of its secrets".to_owned()),
    }
}

/// A target is one volume.
pub fn distinct(volumes: &[Served]) -> Result<(), String> {
    let mut rest = volumes;
    while let Some((volume, others)) = rest.split_last() {
        if let Some(other) = others.iter().find(|other| other.target == volume.target) {
            return Err(format!("{} is the target of {} already", volume.target, other.name));
        }
        rest = others;
    }
    Ok(())
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
        let (mut size, mut read_only) = (None, false);
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
                ("protection", Some(text)) => protection = text.parse::<Demand>()?,
                _ if appearance.set(key, value).map_err(|why| format!("{key}: {why}"))? => {}
                _ => break,
            }
            rest = uri;
        }
        let uri = rest.parse::<Uri>().map_err(|why| why.to_string())?;
        let (name, target) = (name.to_owned(), target_of(name)?);
        Ok(Self { name, target, uri, size, read_only, protection, appearance })
    }
}

/// A value that is written as text.
#[derive(Debug, Default)]
struct Parsed<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
