//! URIs of volumes of HyperSCSI servers.

use std::fmt;
use std::num::NonZeroU16;

use host::link::Mac;
use proto::identity::PublicKey;

use super::{HYPERSCSI_PORT, Host, UriError};
use crate::ciphers::Ciphers;
use crate::compression::Compression;

/// A volume of a HyperSCSI server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HyperScsiUri {
    /// Where the server listens.
    pub server: HyperScsiServer,
    /// What the volume is called there.
    pub volume: String,
    /// The public key the server must have: `?pin=KEY` at the end.
    pub pin: Option<PublicKey>,
    /// Where else the server is: `?path=` or `&path=` at the end, once or more often.
    pub paths: Vec<HyperScsiServer>,
    /// How the connection is.
    pub options: HyperScsiOptions,
}

/// What a client asks of a connection: `?NAME=VALUE` or `&NAME=VALUE` at the end of its URI, each once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HyperScsiOptions {
    /// How data are compressed on their way: `compression=lz4`.
    pub compression: Compression,
    /// The cipher of packets: `cipher=chacha20-poly1305`.
    pub ciphers: Ciphers,
    /// Data have checksums from end to end: `checksum=crc32c`.
    pub checksum: bool,
    /// The medium stays in the drive while it is used: `media-lock=on`.
    pub media_lock: bool,
    /// Packets of a window that is acknowledged as a whole: `window=64`.
    pub window: Option<NonZeroU16>,
}

/// The paths of a connection beside its first one.
pub(super) const FURTHER_PATHS_MAX: usize = proto::hyperscsi::PATHS_MAX as usize - 1;

/// The most packets of a window.
const WINDOW_MAX: u16 = 1024;

/// Where a HyperSCSI server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HyperScsiServer {
    /// At a UDP port.
    Ip(Host),
    /// On the network that an interface of this machine is on.
    Ethernet {
        /// The interface.
        interface: String,
        /// The station; whichever answers if `None`.
        mac: Option<Mac>,
    },
}

/// Reads what stands behind `hyperscsi:` or `hseth:`.
pub(super) fn read(text: &str, scheme: &str, rest: &str) -> Result<HyperScsiUri, UriError> {
    let malformed = || UriError::HyperScsi(text.to_owned());
    let (rest, query) =
        rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (server, volume) =
        rest.strip_prefix("//").and_then(|rest| rest.rsplit_once('/')).ok_or_else(malformed)?;
    if server.contains('@') {
        return Err(UriError::Credentials);
    }
    if volume.is_empty() || volume.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(malformed());
    }
    let server = HyperScsiServer::parse(scheme, server).ok_or_else(malformed)??;
    let (mut pin, mut paths, mut options) = (None, Vec::new(), HyperScsiOptions::default());
    let mut named = Vec::new();
    for part in query.into_iter().flat_map(|query| query.split('&')) {
        let (name, value) = part.split_once('=').ok_or_else(malformed)?;
        if name != "path" && named.contains(&name) {
            return Err(malformed());
        }
        named.push(name);
        match name {
            "pin" => pin = Some(value.parse()?),
            "path" => paths.push(server.path(value).ok_or_else(malformed)??),
            "compression" => {
                options.compression = value.parse().map_err(UriError::Compression)?;
            }
            "checksum" => {
                options.checksum = match value {
                    "none" => false,
                    "crc32c" => true,
                    _ => return Err(UriError::Checksum),
                }
            }
            "media-lock" => {
                options.media_lock = match value {
                    "off" => false,
                    "on" => true,
                    _ => return Err(UriError::MediaLock),
                }
            }
            "window" => {
                let window =
                    value.parse().ok().filter(|window: &NonZeroU16| window.get() <= WINDOW_MAX);
                options.window = Some(window.ok_or(UriError::Window)?);
            }
            "cipher" => options.ciphers = value.parse().map_err(UriError::Cipher)?,
            _ => return Err(malformed()),
        }
    }
    if paths.len() > FURTHER_PATHS_MAX {
        return Err(UriError::Paths(text.to_owned()));
    }
    Ok(HyperScsiUri { server, volume: volume.to_owned(), pin, paths, options })
}

impl HyperScsiServer {
    /// What stands behind `hyperscsi://` or `hseth://`; `None` behind another scheme, and where there is more.
    pub fn parse(scheme: &str, text: &str) -> Option<Result<Self, UriError>> {
        let parts: Vec<_> = text.split('/').collect();
        match (scheme, &parts[..]) {
            ("hyperscsi", [host]) => Some(Host::with_port(host, HYPERSCSI_PORT).map(Self::Ip)),
            ("hseth", [interface, mac @ ..]) if mac.len() < 2 && is_interface(interface) => {
                let mac = mac.first().map(|mac| mac.parse::<Mac>()).transpose();
                let interface = (*interface).to_owned();
                let mac = mac.map_err(|why| UriError::Mac(text.to_owned(), why));
                Some(mac.map(|mac| Self::Ethernet { interface, mac }))
            }
            _ => None,
        }
    }

    /// Where this server is too, as it stands behind `path=`: without a port at the same one. Nobody is looked for on
    /// another network, as others may be there.
    fn path(&self, text: &str) -> Option<Result<Self, UriError>> {
        match self {
            Self::Ip(host) => Some(Host::with_port(text, host.port).map(Self::Ip)),
            Self::Ethernet { .. } => Self::parse("hseth", text)
                .filter(|path| !matches!(path, Ok(Self::Ethernet { mac: None, .. }))),
        }
    }

    /// As it stands behind `path=`.
    fn place(&self) -> String {
        match self {
            Self::Ip(host) => host.to_string(),
            Self::Ethernet { interface, mac: None } => interface.clone(),
            Self::Ethernet { interface, mac: Some(mac) } => format!("{interface}/{mac}"),
        }
    }
}

/// Linux takes names of 1 to 15 bytes without white space, slashes and colons.
fn is_interface(name: &str) -> bool {
    (1..=15).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic() && b != b':')
}

impl fmt::Display for HyperScsiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(_) => write!(f, "hyperscsi://{}", self.place()),
            Self::Ethernet { .. } => write!(f, "hseth://{}", self.place()),
        }
    }
}

impl fmt::Display for HyperScsiUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, volume, pin, paths, options } = self;
        let mut query: Vec<_> = pin.iter().map(|key| format!("pin={key}")).collect();
        let HyperScsiOptions { compression, ciphers, checksum, media_lock, window } = options;
        if !compression.is_none() {
            query.push(format!("compression={compression}"));
        }
        if *ciphers != Ciphers::default() {
            query.push(format!("cipher={ciphers}"));
        }
        if *checksum {
            query.push("checksum=crc32c".to_owned());
        }
        if *media_lock {
            query.push("media-lock=on".to_owned());
        }
        query.extend(window.map(|packets| format!("window={packets}")));
        query.extend(paths.iter().map(|path| format!("path={}", path.place())));
        let query = query.join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        write!(f, "{server}/{volume}{mark}{query}")
    }
}
