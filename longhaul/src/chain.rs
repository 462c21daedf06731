//! URIs, and the chains they stand for: the only place that names both fronts and stores.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use proto::iscsi::chap::{Account, Algorithm};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::initiator::LoginError;
use proto::iscsi::name::{IscsiName, NameError};
use proto::iscsi::sealed::{KeyTextError, Protection, PublicKey};
use volume::layer::pipeline::Settings;
use volume::layer::read_only::ReadOnly;
use volume::store::memory::Memory;
use volume::{Gate, Volume};

use crate::credentials;
use crate::failure::{Failure, OrFail, Outcome};
use crate::luks;
use crate::patience::Patience;
use crate::pipelined::Pipelined;
use crate::sealing::Seal;
use crate::secret::Secret;
use crate::size::{NotASize, Size};
use crate::stop::Stop;
use crate::store::Local;
use crate::store::file::OpenError;
use crate::store::{device, file, iscsi};

/// The port IANA gave iSCSI.
pub const ISCSI_PORT: u16 = 3260;

/// The block size of what has none of its own.
const BLOCK_SIZE: u32 = 512;

/// How long a program that has been told to end waits for a connection, to flush what it holds.
const GRACE: Duration = Duration::from_secs(10);

/// The schemes there are, for messages.
const KNOWN: &str = "memory:SIZE, file:PATH, device:PATH, iscsi://HOST[:PORT]/IQN/LUN[?pin=KEY]";

/// Names a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uri {
    /// `memory:64M`: gone with the process.
    Memory(Size),
    /// `file:PATH`
    File(PathBuf),
    /// `device:PATH`
    Device(PathBuf),
    /// `iscsi://HOST[:PORT]/IQN/LUN[?pin=KEY]`
    Iscsi(IscsiUri),
}

/// A logical unit of an iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiUri {
    /// Where the target listens.
    pub host: Host,
    /// Its name.
    pub target: IscsiName,
    /// The logical unit.
    pub lun: u16,
    /// The public key the target must have: `?pin=KEY` at the end.
    pub pin: Option<PublicKey>,
}

/// Host and port of a server, as the user wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name or an address, without the brackets of IPv6.
    pub name: String,
    /// The port.
    pub port: u16,
}

/// Why a text is no URI of a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum UriError {
    #[error("`{0}` names no volume: the schemes are {KNOWN}")]
    NoScheme(String),
    #[error("unknown scheme `{0}:`: the schemes are {KNOWN}")]
    UnknownScheme(String),
    #[error("`{0}` has no path")]
    NoPath(String),
    #[error(transparent)]
    Size(#[from] NotASize),
    #[error("a volume of memory must have a size that is a positive multiple of 512, not {0}")]
    MemorySize(Size),
    #[error("`{0}` is not of the form iscsi://HOST[:PORT]/IQN/LUN[?pin=KEY]")]
    Iscsi(String),
    #[error("credentials do not belong in a URI: use --chap-user and --chap-secret-file")]
    Credentials,
    #[error(transparent)]
    Target(#[from] NameError),
    #[error("`{0}` is not HOST or HOST:PORT (IPv6 addresses go in brackets: [::1]:3260)")]
    Host(String),
    #[error("`{0}` is not a logical unit number from 0 to 16383")]
    Lun(String),
    #[error("the pin is not a public key: {0}")]
    Pin(#[from] KeyTextError),
}

impl Uri {
    /// Whether a network lies between here and the volume.
    #[must_use]
    pub const fn is_remote(&self) -> bool {
        match self {
            Self::Memory(_) | Self::File(_) | Self::Device(_) => false,
            Self::Iscsi(_) => true,
        }
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let (scheme, rest) =
            text.split_once(':').ok_or_else(|| UriError::NoScheme(text.to_owned()))?;
        let path = || match rest {
            "" => Err(UriError::NoPath(text.to_owned())),
            path => Ok(PathBuf::from(path)),
        };
        match scheme {
            "memory" => memory(rest.parse()?),
            "file" => Ok(Self::File(path()?)),
            "device" => Ok(Self::Device(path()?)),
            "iscsi" => iscsi(text, rest).map(Self::Iscsi),
            _ => Err(UriError::UnknownScheme(scheme.to_owned())),
        }
    }
}

fn memory(size: Size) -> Result<Uri, UriError> {
    if size.0 == 0 || !size.0.is_multiple_of(512) {
        return Err(UriError::MemorySize(size));
    }
    Ok(Uri::Memory(size))
}

fn iscsi(text: &str, rest: &str) -> Result<IscsiUri, UriError> {
    let malformed = || UriError::Iscsi(text.to_owned());
    let (rest, pin) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query.strip_prefix("pin=").ok_or_else(malformed)?)),
        None => (rest, None),
    };
    let pin = pin.map(str::parse).transpose()?;
    let mut parts = rest.strip_prefix("//").ok_or_else(malformed)?.split('/');
    let (Some(host), Some(target), lun, None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(malformed());
    };
    if host.contains('@') {
        return Err(UriError::Credentials);
    }
    let target = match target {
        "" => return Err(malformed()),
        name => name.parse::<IscsiName>()?,
    };
    // Most targets have one logical unit, number 0.
    let lun = lun.unwrap_or("0");
    let Ok(lun @ 0..=16_383) = lun.parse() else {
        return Err(UriError::Lun(lun.to_owned()));
    };
    Ok(IscsiUri { host: host.parse()?, target, lun, pin })
}

impl FromStr for Host {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let wrong = || UriError::Host(text.to_owned());
        let (name, rest) = match text.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once(']').ok_or_else(wrong)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| wrong())?,
            None if rest.is_empty() => ISCSI_PORT,
            None => return Err(wrong()),
        };
        if name.is_empty() || name.contains(char::is_whitespace) {
            return Err(wrong());
        }
        Ok(Self { name: name.to_owned(), port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(size) => write!(f, "memory:{size}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Device(path) => write!(f, "device:{}", path.display()),
            Self::Iscsi(IscsiUri { host, target, lun, pin }) => {
                write!(f, "iscsi://{host}/{target}/{lun}")?;
                pin.map_or(Ok(()), |key| write!(f, "?pin={key}"))
            }
        }
    }
}

/// How a chain is opened.
#[derive(Debug, Default)]
pub struct OpenOptions {
    /// The size of a file that does not exist yet; one that exists must have it.
    pub size: Option<Size>,
    /// Refuse writes.
    pub read_only: bool,
    /// The unit of requests, in bytes; the store's own if `None`.
    pub block_size: Option<u32>,
    /// How to log in, where that is needed.
    pub login: Login,
    /// Open what is sealed in it.
    pub seal: Option<SealOptions>,
    /// Keep the link to it full, if it is behind a network.
    pub pipeline: Option<Settings>,
    /// How long a lost connection is waited for.
    pub patience: Patience,
}

/// Who this machine is to a target.
#[derive(Clone, Debug)]
pub struct Login {
    /// Its name; one made from the host name if `None`.
    pub initiator: Option<IscsiName>,
    /// How it proves it.
    pub account: Option<Account>,
    /// The CHAP algorithms that may be used, best first.
    pub algorithms: Vec<Algorithm>,
    /// How sessions are sealed, where they are.
    pub seal: Seal,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            initiator: None,
            account: None,
            algorithms: credentials::algorithms(false),
            seal: Seal::default(),
        }
    }
}

/// How a sealed volume is opened.
#[derive(Debug)]
pub struct SealOptions {
    /// What opens it.
    pub secret: Secret,
    /// What else may be chosen.
    pub with: luks::Options,
}

/// An open chain.
pub struct Chain {
    uri: Uri,
    volume: Arc<dyn Volume>,
    pipelined: Option<Pipelined>,
    disk: Option<Arc<iscsi::Disk>>,
    /// What can grow under it, if nothing is in between.
    local: Option<Arc<Local>>,
}

impl Chain {
    /// Makes it as large as its store is now, or as `asked`; whether that is larger than it was.
    pub fn grow(&mut self, asked: Option<Size>) -> Outcome<bool> {
        let Some(local) = &self.local else { return Ok(false) };
        let grown = local
            .grown(asked.map(|size| size.0))
            .map_err(|why| explain(format!("cannot grow {}", self.uri), why))?;
        let Some(grown) = grown.map(Arc::new) else { return Ok(false) };
        self.volume = Arc::new(Gate::new("local", Arc::clone(&grown)));
        self.local = Some(grown);
        Ok(true)
    }

    /// Its top.
    #[must_use]
    pub fn volume(&self) -> Arc<dyn Volume> {
        Arc::clone(&self.volume)
    }

    /// Whether nothing of it outlives the process.
    #[must_use]
    pub fn vanishes(&self) -> bool {
        matches!(self.uri, Uri::Memory(_))
    }

    /// What is known of the target and the connection to it, if the store is behind one.
    pub async fn probe(&self) -> Outcome<Option<iscsi::Probe>> {
        match &self.disk {
            Some(disk) => {
                disk.probe().await.or_fail(|| format!("cannot probe {}", self.uri)).map(Some)
            }
            None => Ok(None),
        }
    }

    /// Once `stop` is called an outage is waited for only a short time, so that requests that wait for
    /// its end do not keep the program from its own.
    pub fn leave_on(&self, mut stop: Stop) {
        if let Some(disk) = self.disk.as_ref().map(Arc::downgrade) {
            tokio::spawn(async move {
                stop.called().await;
                if let Some(disk) = disk.upgrade() {
                    disk.leave(GRACE);
                }
            });
        }
    }

    /// Makes everything that was acknowledged durable, and lets go of the store. Nobody else may hold
    /// the volume any more. A write that failed after it was acknowledged is told here at the latest.
    pub async fn close(self) -> Outcome {
        let Self { uri, volume, pipelined, disk, local } = self;
        let flushed = volume.flush().await.map_err(|why| {
            Failure::new(format!("cannot flush {uri}"))
                .because(why)
                .hint("what was written since the last flush that succeeded may be lost")
        });
        drop((volume, local));
        if let Some(pipelined) = pipelined {
            // Even after a failure: every write that still lands is worth having.
            pipelined.close().await;
        }
        if let Some(disk) = disk {
            disk.close().await;
        }
        flushed
    }
}

/// Opens the volume that `uri` names.
pub async fn open(uri: &Uri, options: OpenOptions) -> Outcome<Chain> {
    let Store { mut volume, disk, local } = store(uri, &options).await?;
    // The size of a sealed volume is in its header.
    let local = local.filter(|_| options.seal.is_none());
    let block_size = volume.shape().block_size;
    if let Some(asked) = options.block_size.filter(|asked| *asked != block_size) {
        let why = format!("{uri} has blocks of {block_size} bytes, not {asked}");
        return Err(Failure::new(why).hint("leave block_size out"));
    }
    if let Some(seal) = options.seal {
        volume = luks::open(volume, seal.secret, seal.with).await?;
    }
    let settings = options.pipeline.filter(|_| uri.is_remote());
    let pipelined = settings.map(|settings| Pipelined::new(Arc::clone(&volume), settings));
    if let Some(pipelined) = &pipelined {
        volume = pipelined.volume();
    }
    // Files, devices and targets are opened read-only; what cannot be is made so here.
    if options.read_only && !volume.shape().read_only {
        volume = Arc::new(Gate::new("read-only", ReadOnly::new(volume)));
    }
    Ok(Chain { uri: uri.clone(), volume, pipelined, disk, local })
}

/// A store, and what else there is to know of one behind a target, or on this machine.
struct Store {
    volume: Arc<dyn Volume>,
    disk: Option<Arc<iscsi::Disk>>,
    local: Option<Arc<Local>>,
}

impl Store {
    fn local(room: &'static str, local: Local) -> Self {
        let local = Arc::new(local);
        let volume = Arc::new(Gate::new(room, Arc::clone(&local)));
        Self { volume, disk: None, local: Some(local) }
    }
}

async fn store(uri: &Uri, options: &OpenOptions) -> Outcome<Store> {
    let what = || format!("cannot open {uri}");
    Ok(match uri {
        Uri::Memory(size) => {
            let block_size = options.block_size.unwrap_or(BLOCK_SIZE);
            if !size.0.is_multiple_of(u64::from(block_size)) {
                let why = format!("{uri} is not a whole number of blocks of {block_size} bytes");
                return Err(Failure::usage(why));
            }
            let volume = Arc::new(Gate::new("memory", Memory::new(size.0, block_size)));
            Store { volume, disk: None, local: None }
        }
        Uri::File(path) => {
            let with = file::FileOptions {
                size: options.size.map(|size| size.0),
                read_only: options.read_only,
                block_size: options.block_size.unwrap_or(BLOCK_SIZE),
            };
            let store = file::open(path, &with).map_err(|why| explain(what(), why))?;
            Store::local("file", store)
        }
        Uri::Device(path) => {
            let store =
                device::open(path, options.read_only).map_err(|why| explain(what(), why))?;
            Store::local("device", store)
        }
        Uri::Iscsi(place) => {
            let target = iscsi::IscsiTarget {
                portal: place.host.portal(),
                name: place.target.clone(),
                lun: place.lun,
            };
            let mut with = options.login.connect_options(place.pin)?;
            with.read_only = options.read_only;
            with.reconnect_for = options.patience.0;
            let disk =
                iscsi::connect(&target, &with).await.map_err(|why| explain_connect(what(), why))?;
            let disk = Arc::new(disk);
            let volume = Arc::new(Gate::new("iscsi", Arc::clone(&disk)));
            Store { volume, disk: Some(disk), local: None }
        }
    })
}

/// Asks a server which targets this machine may use.
pub async fn discover(host: &Host, login: &Login) -> Outcome<Vec<iscsi::DiscoveredTarget>> {
    let options = login.connect_options(None)?;
    iscsi::discover(&host.portal(), &options)
        .await
        .map_err(|why| explain_connect(format!("cannot discover the targets of {host}"), why))
}

impl Host {
    fn portal(&self) -> iscsi::Portal {
        iscsi::Portal { host: self.name.clone(), port: self.port }
    }
}

impl Login {
    fn connect_options(&self, pin: Option<PublicKey>) -> Outcome<iscsi::ConnectOptions> {
        let initiator = match &self.initiator {
            Some(name) => name.clone(),
            None => this_machine()?,
        };
        Ok(iscsi::ConnectOptions {
            account: self.account.clone(),
            pinned: self.seal.pinned(pin)?,
            algorithms: self.algorithms.clone(),
            ..iscsi::ConnectOptions::new(initiator)
        })
    }
}

/// The initiator name of this machine: the same at every login, so that a target can list it.
fn this_machine() -> Outcome<IscsiName> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let kept = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.chars().filter(kept).collect();
    IscsiName::new(&format!("iqn.2026-11.dev.longhaul.client:{host}"))
        .or_fail(|| "cannot make an initiator name from the name of this machine".to_owned())
        .map_err(|failure| failure.hint("give one with --initiator"))
}

/// Adds what the user can do about it.
fn explain(what: String, why: OpenError) -> Failure {
    let hint = match &why {
        OpenError::PartialBlock { block_size, .. } => {
            let hint = format!("`truncate -s %{block_size} FILE` pads a file with zeroes");
            return Failure::new(what).because(why).hint(hint);
        }
        OpenError::InUse => "one volume is served once: end the other user of it first",
        OpenError::Missing => "a size, such as 80G, would create a file that is missing",
        _ => return Failure::new(what).because(why),
    };
    Failure::new(what).because(why).hint(hint)
}

fn explain_connect(what: String, why: iscsi::ConnectError) -> Failure {
    use LoginStatus as Status;
    let hint = match why.login() {
        Some(LoginError::NoCredentials) => {
            "give them with --chap-user and --chap-secret-file; or, for a sealed session, --pin KEY"
        }
        Some(LoginError::KeyRefused(_)) => {
            "on the server: a client's `key` in its file, or --client-key; here: --identity or --pin"
        }
        Some(LoginError::TooLittle(Protection::Integrity)) => {
            "ask for `--protection encrypt`; or the server lets this client not use this volume"
        }
        Some(LoginError::TooLittle(Protection::Encrypt)) => {
            "on the server: the volume must be among the client's `volumes`"
        }
        Some(LoginError::NoSeal) => {
            "the server needs an identity: `longhaul serve --identity FILE`"
        }
        Some(LoginError::Refused(Status::AUTHENTICATION_FAILURE)) => {
            "name or secret is not what the target has, or it knows only weak algorithms (--chap-weak)"
        }
        Some(LoginError::Refused(Status::NOT_FOUND)) => {
            "`longhaul discover HOST` lists what is there"
        }
        _ => return Failure::new(what).because(why),
    };
    Failure::new(what).because(why).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_what_was_read() {
        for text in [
            "memory:64M",
            "file:/srv/backup.img",
            "file:relative:with:colons",
            "device:/dev/sdb",
            "iscsi://server:3260/iqn.2026-11.dev.longhaul:backup/0",
            "iscsi://[fe80::1]:3261/iqn.2026-11.dev.longhaul:backup/16383",
        ] {
            assert_eq!(text.parse::<Uri>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn port_and_unit_have_defaults() {
        let uri = "iscsi://server/iqn.2026-11.dev:b".parse::<Uri>().unwrap();
        assert_eq!(uri.to_string(), "iscsi://server:3260/iqn.2026-11.dev:b/0");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, wrong) in [
            ("backup.img", "names no volume"),
            ("s4://bucket/x", "unknown scheme `s4:`"),
            ("memory:", "is not a size"),
            ("memory:0", "positive multiple of 512"),
            ("memory:1000", "positive multiple of 512"),
            ("file:", "has no path"),
            ("iscsi:host/iqn/0", "not of the form"),
            ("iscsi://host", "not of the form"),
            ("iscsi://host//0", "not of the form"),
            ("iscsi://host/backup/0", "an iSCSI name begins with"),
            ("iscsi://host/iqn/0/1", "not of the form"),
            ("iscsi://me:secret@host/iqn/0", "credentials do not belong"),
            ("iscsi://host:port/iqn.2026-11.dev:b/0", "HOST:PORT"),
            ("iscsi://::1/iqn.2026-11.dev:b/0", "HOST:PORT"),
            ("iscsi://host/iqn.2026-11.dev:b/16384", "logical unit number"),
        ] {
            let error = text.parse::<Uri>().unwrap_err().to_string();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
