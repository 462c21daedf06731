//! URIs: how a user names a volume.

pub mod compound;
mod hyperscsi;
pub(crate) mod rbd;
mod scsi;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use host::link::ParseMacError;
use host::rbd::ImageSpec;
use proto::identity::{KeyTextError, PublicKey};
use proto::iscsi::name::{IscsiName, NameError};

use crate::printable::Shown as _;
use crate::size::{NotASize, Size};
use compound::{Compound, Kind};
use hyperscsi::FURTHER_PATHS_MAX;
pub use hyperscsi::{HyperScsiOptions, HyperScsiServer, HyperScsiUri};

/// The port IANA gave iSCSI.
pub const ISCSI_PORT: u16 = 3260;

/// The port of HyperSCSI over UDP.
pub const HYPERSCSI_PORT: u16 = proto::hyperscsi::PORT;

/// The schemes there are, for messages.
const KNOWN: &str = "memory:SIZE, null:SIZE, file:PATH, device:PATH, cdrom:[ISO], tape:[PATH], changer:DIR, scsi:DEVICE, scsi:URI, iscsi://HOST[:PORT]/IQN/LUN[?pin=KEY], \
    hyperscsi://HOST[:PORT]/VOLUME[?pin=KEY], hseth://INTERFACE[/MAC]/VOLUME[?pin=KEY], rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT]";

/// Names a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uri {
    /// `memory:64M`: gone with the process.
    Memory(Size),
    /// `null:64M`: keeps nothing.
    Null(Size),
    /// `file:PATH`
    File(PathBuf),
    /// `device:PATH`
    Device(PathBuf),
    /// `cdrom:ISO`: an optical drive, with that disc or with none.
    Cdrom(Option<PathBuf>),
    /// `tape:PATH`: a tape drive, with that tape or with none.
    Tape(Option<PathBuf>),
    /// `changer:DIR`: a media changer, whose cartridges are the files of that directory.
    Changer(PathBuf),
    /// `scsi:DEVICE`: the device itself, which is passed through; or `scsi:URI` of a unit of another target.
    Scsi(ScsiPlace),
    /// `iscsi://HOST[:PORT]/IQN/LUN[?pin=KEY]`
    Iscsi(IscsiUri),
    /// `concat:(URI,...)` and others that are made of volumes.
    Compound(Box<Compound>),
    /// `hyperscsi://HOST[:PORT]/VOLUME[?pin=KEY][&path=HOST[:PORT]]` and
    /// `hseth://INTERFACE[/MAC]/VOLUME[?pin=KEY][&path=INTERFACE/MAC]`
    HyperScsi(HyperScsiUri),
    /// `rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][?id=USER&conf=FILE&keyring=FILE]`
    Rbd(ImageSpec),
}

/// A SCSI device that is passed through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScsiPlace {
    /// One of this machine, by one of its nodes.
    Device(PathBuf),
    /// A unit of an iSCSI target.
    Unit(IscsiUri),
    /// A volume of a HyperSCSI server.
    Served(HyperScsiUri),
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

/// Host and port of a server, as the user or a target wrote them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    #[error("`{0}` names no volume: for {kind} write {scheme}:{0}; the schemes are {KNOWN}, {compounds}", compounds = compound::KNOWN, kind = likely(.0).0, scheme = likely(.0).1)]
    NoScheme(String),
    #[error("unknown scheme `{0}:`: the schemes are {KNOWN}, {compounds}", compounds = compound::KNOWN)]
    UnknownScheme(String),
    #[error("this is an invitation, which only `mount` and `attach` take")]
    Invitation,
    #[error("`{0}` has no path")]
    NoPath(String),
    #[error(transparent)]
    Size(#[from] NotASize),
    #[error("the size of a volume must be a positive multiple of 512, not {0}")]
    NoBlocks(Size),
    #[error("`{0}` is not of the form iscsi://HOST[:PORT]/IQN/LUN[?pin=KEY]")]
    Iscsi(String),
    #[error(
        "`{0}` is not of the form hyperscsi://HOST[:PORT]/VOLUME[?pin=KEY][&path=HOST[:PORT]] or hseth://INTERFACE[/MAC]/VOLUME[?pin=KEY][&path=INTERFACE/MAC]"
    )]
    HyperScsi(String),
    #[error("`{0}` names more than {FURTHER_PATHS_MAX} further paths to its server")]
    Paths(String),
    #[error("compression: {0}")]
    Compression(&'static str),
    #[error("checksum: write `none` or `crc32c`")]
    Checksum,
    #[error("media-lock: write `on` or `off`")]
    MediaLock,
    #[error("window: write from 1 to 1024 packets")]
    Window,
    #[error("cipher: {0}")]
    Cipher(&'static str),
    #[error(
        "`scsi:{0}` passes nothing through: behind `scsi:` stands a device of this machine, such as /dev/sg0, or a unit of a server \
         (iscsi://..., hyperscsi://..., hseth://...); any other volume is served as it is, without `scsi:`"
    )]
    NotPassed(String),
    #[error(
        "media-lock is for volumes that are used here: whoever uses a unit that is passed on locks its medium"
    )]
    PassedMediaLock,
    #[error("`{0}` is not of the form {form}", form = rbd::FORM)]
    Rbd(String),
    #[error("credentials do not belong in a URI: use --chap-user and --chap-secret-file")]
    Credentials,
    #[error(transparent)]
    Target(#[from] NameError),
    #[error(
        "`{0}` is not HOST or HOST:PORT, as in server or 192.0.2.1:3260 (IPv6 addresses go in brackets: [::1]:3260)"
    )]
    Host(String),
    #[error("`{0}` is not a logical unit number from 0 to 16383")]
    Lun(String),
    #[error("`{0}` names no station: {1}")]
    Mac(String, ParseMacError),
    #[error("the pin is not a public key: {0}")]
    Pin(#[from] KeyTextError),
    #[error("`{0}`: {1}")]
    Compound(String, String),
}

/// What a path without a scheme is, by where it is, and the scheme for it.
fn likely(path: &str) -> (&'static str, &'static str) {
    if path.starts_with("/dev/") && !path.starts_with("/dev/shm/") {
        ("a device", "device")
    } else {
        ("a file", "file")
    }
}

/// Where the bytes of a volume are, as far as a name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location<'a> {
    /// In this process, of whose memory they take so much.
    Process(Size),
    /// In a file of this machine.
    File(&'a Path),
    /// In a device of this machine.
    Device(&'a Path),
    /// In the optical drive that it is: the image of a disc.
    Drive(Option<&'a Path>),
    /// In the tape drive that it is: a tape.
    Tape(Option<&'a Path>),
    /// In none: it is a media changer of the cartridges in that directory.
    Changer(&'a Path),
    /// In a device that is passed through.
    Passed(&'a ScsiPlace),
    /// In a unit of a target.
    Unit(&'a IscsiUri),
    /// In several volumes.
    Several(&'a Compound),
    /// In a volume of a HyperSCSI server.
    Served(&'a HyperScsiUri),
    /// In an image of a Ceph cluster.
    Image(&'a ImageSpec),
}

impl Uri {
    /// The URI of a path.
    #[must_use]
    pub fn of_path(path: PathBuf, is_device: bool) -> Self {
        if is_device { Self::Device(path) } else { Self::File(path) }
    }

    /// The URI of a tape.
    #[must_use]
    pub const fn of_tape(path: PathBuf) -> Self {
        Self::Tape(Some(path))
    }

    /// The URI of a tape drive with nothing in it.
    #[must_use]
    pub const fn tape_drive() -> Self {
        Self::Tape(None)
    }

    /// Another unit of the same target; `None` if it is that unit, or has no number.
    #[must_use]
    pub fn other_unit(&self, lun: u16) -> Option<Self> {
        match self {
            Self::Iscsi(unit) if unit.lun != lun => {
                Some(Self::Iscsi(IscsiUri { lun, ..unit.clone() }))
            }
            _ => None,
        }
    }

    /// The same where the paths of files begin at the directory `base`.
    #[must_use]
    pub fn resolved_in(self, base: &Path) -> Self {
        match self {
            Self::File(path) => Self::File(base.join(path)),
            Self::Cdrom(disc) => Self::Cdrom(disc.map(|path| base.join(path))),
            Self::Tape(tape) => Self::Tape(tape.map(|path| base.join(path))),
            Self::Changer(directory) => Self::Changer(base.join(directory)),
            Self::Compound(compound) => Self::Compound(Box::new(compound.resolved_in(base))),
            Self::Rbd(image) => Self::Rbd(rbd::resolved_in(image, base)),
            other => other,
        }
    }

    /// Where its bytes are. All that is done differently for one volume than for another before it is open follows from
    /// this, and afterwards from what its store can do.
    #[must_use]
    pub fn location(&self) -> Location<'_> {
        match self {
            Self::Memory(size) => Location::Process(*size),
            Self::Null(_) => Location::Process(Size(0)),
            Self::File(path) => Location::File(path),
            Self::Device(path) => Location::Device(path),
            Self::Cdrom(disc) => Location::Drive(disc.as_deref()),
            Self::Tape(tape) => Location::Tape(tape.as_deref()),
            Self::Changer(directory) => Location::Changer(directory),
            Self::Scsi(device) => Location::Passed(device),
            Self::Iscsi(unit) => Location::Unit(unit),
            Self::Compound(compound) => match (compound.kind, &compound.members[..]) {
                (Kind::Limit(_), [limited]) => limited.location(),
                _ => Location::Several(compound),
            },
            Self::HyperScsi(volume) => Location::Served(volume),
            Self::Rbd(image) => Location::Image(image),
        }
    }

    /// The volumes that it is made of, if it is.
    #[must_use]
    pub fn members(&self) -> &[Self] {
        match self {
            Self::Compound(compound) => &compound.members,
            _ => &[],
        }
    }

    /// The volumes that it is made of at last, or itself; and of each whether it is only read, whatever becomes of this
    /// one.
    #[must_use]
    pub fn leaves(&self) -> Vec<(&Self, bool)> {
        let Self::Compound(compound) = self else { return vec![(self, false)] };
        let members = compound.members.iter().enumerate();
        let leaves = members.flat_map(|(at, member)| {
            let is_only_read = compound.is_only_read(at);
            member.leaves().into_iter().map(move |(leaf, only)| (leaf, only || is_only_read))
        });
        leaves.collect()
    }

    /// Whether it names a disc, for an optical drive.
    #[must_use]
    pub fn is_disc(&self) -> bool {
        matches!(self.location(), Location::Drive(Some(_)))
    }

    /// Whether a network lies between here and some of the volume.
    #[must_use]
    pub fn is_partly_remote(&self) -> bool {
        self.leaves().iter().any(|(leaf, _)| leaf.is_remote())
    }

    /// The file that it is in.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self.location() {
            Location::File(path) => Some(path),
            _ => None,
        }
    }

    /// The path of the file or the device that it is in.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self.location() {
            Location::File(path) | Location::Device(path) => Some(path),
            _ => None,
        }
    }

    /// Why it cannot be made with a size; `None` if it can.
    #[must_use]
    pub fn has_size(&self) -> Option<&'static str> {
        match self.location() {
            Location::Process(_) => Some("has its size in its URI"),
            Location::File(_) | Location::Tape(_) => None,
            Location::Device(_) | Location::Unit(_) | Location::Served(_) | Location::Image(_) => {
                Some("has a size of its own")
            }
            Location::Drive(_) => Some("is as large as the disc in it"),
            Location::Changer(_) => Some("has cartridges of any size"),
            Location::Passed(_) => Some("has whatever size its medium has"),
            Location::Several(_) => Some("takes its size from its members"),
        }
    }

    /// Whether nothing of the volume outlives the process.
    #[must_use]
    pub fn vanishes(&self) -> bool {
        match self.location() {
            Location::Process(_) => true,
            Location::Several(_) => self.members().iter().all(Self::vanishes),
            Location::File(_)
            | Location::Device(_)
            | Location::Drive(_)
            | Location::Tape(_)
            | Location::Changer(_)
            | Location::Passed(_)
            | Location::Unit(_)
            | Location::Served(_)
            | Location::Image(_) => false,
        }
    }

    /// Whether it is an optical drive.
    #[must_use]
    pub fn is_drive(&self) -> bool {
        matches!(self.location(), Location::Drive(_))
    }

    /// Whether it is a tape drive.
    #[must_use]
    pub fn is_tape(&self) -> bool {
        matches!(self.location(), Location::Tape(_))
    }

    /// Whether it is a media changer.
    #[must_use]
    pub fn is_changer(&self) -> bool {
        matches!(self.location(), Location::Changer(_))
    }

    /// Whether it is a device that is passed through.
    #[must_use]
    pub fn is_passed_through(&self) -> bool {
        matches!(self.location(), Location::Passed(_))
    }

    /// Whether it is a drive, of whatever media: what is in it may be exchanged.
    #[must_use]
    pub fn has_medium(&self) -> bool {
        self.is_drive() || self.is_tape()
    }

    /// The same drive with another disc or tape in it, or with none; `None` if it is no drive.
    #[must_use]
    pub fn with_disc(&self, disc: Option<PathBuf>) -> Option<Self> {
        match self {
            Self::Cdrom(_) => Some(Self::Cdrom(disc)),
            Self::Tape(_) => Some(Self::Tape(disc)),
            Self::Compound(compound) => match (compound.kind, &compound.members[..]) {
                (kind @ Kind::Limit(_), [limited]) => {
                    let members = vec![limited.with_disc(disc)?];
                    Some(Self::Compound(Box::new(Compound { kind, members })))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether this machine logs in to a server for it: it is a volume or a unit of that.
    #[must_use]
    pub fn has_login(&self) -> bool {
        self.is_remote()
            || matches!(
                self.location(),
                Location::Passed(ScsiPlace::Unit(_) | ScsiPlace::Served(_))
            )
    }

    /// Whether a network lies between here and the volume.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(self.location(), Location::Unit(_) | Location::Served(_))
    }
}

impl From<IscsiUri> for Uri {
    fn from(unit: IscsiUri) -> Self {
        Self::Iscsi(unit)
    }
}

impl From<HyperScsiUri> for Uri {
    fn from(volume: HyperScsiUri) -> Self {
        Self::HyperScsi(volume)
    }
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        Self::read(text, 0)
    }
}

impl Uri {
    /// Reads one that stands in so many others.
    fn read(text: &str, depth: usize) -> Result<Self, UriError> {
        let (scheme, rest) =
            text.split_once(':').ok_or_else(|| UriError::NoScheme(text.to_owned()))?;
        let path = || match rest {
            "" => Err(UriError::NoPath(text.to_owned())),
            path => Ok(PathBuf::from(path)),
        };
        match scheme {
            "memory" => whole_blocks(rest.parse()?).map(Self::Memory),
            "null" => whole_blocks(rest.parse()?).map(Self::Null),
            "file" => Ok(Self::File(path()?)),
            "device" => Ok(Self::Device(path()?)),
            "cdrom" => Ok(Self::Cdrom(path().ok())),
            "tape" => Ok(Self::Tape(path().ok())),
            "changer" => Ok(Self::Changer(path()?)),
            "scsi" => scsi::parse(rest, path()?).map(Self::Scsi),
            "iscsi" => iscsi(text, rest).map(Self::Iscsi),
            "hyperscsi" | "hseth" => hyperscsi::read(text, scheme, rest).map(Self::HyperScsi),
            "rbd" => rbd::parse(text, rest).map(Self::Rbd),
            scheme if compound::is_compound(scheme) => {
                compound::parse(text, depth).map(|read| Self::Compound(Box::new(read)))
            }
            "longhaul" => Err(UriError::Invitation),
            _ => Err(UriError::UnknownScheme(scheme.to_owned())),
        }
    }
}

/// A size that stands in a URI.
fn whole_blocks(size: Size) -> Result<Size, UriError> {
    if size.0 == 0 || !size.0.is_multiple_of(512) {
        return Err(UriError::NoBlocks(size));
    }
    Ok(size)
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
        // Targets have names of all kinds, and some compare them byte by byte.
        name => IscsiName::as_written(name)?,
    };
    // Most targets have one logical unit, number 0.
    let lun = lun.unwrap_or("0");
    let Ok(lun @ 0..=16_383) = lun.parse() else {
        return Err(UriError::Lun(lun.to_owned()));
    };
    let host: Host = host.parse()?;
    if host.port == 0 {
        return Err(UriError::Host(format!("{}:0", host.name)));
    }
    Ok(IscsiUri { host, target, lun, pin })
}

impl FromStr for Host {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        Self::with_port(text, ISCSI_PORT)
    }
}

impl Host {
    /// Reads a host, at port `default` if it names none.
    fn with_port(text: &str, default: u16) -> Result<Self, UriError> {
        let wrong = || UriError::Host(text.to_owned());
        let (name, rest) = match text.strip_prefix('[') {
            Some(bracketed) => bracketed.split_once(']').ok_or_else(wrong)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| wrong())?,
            None if rest.is_empty() => default,
            None => return Err(wrong()),
        };
        // The system takes a number alone for an address: 80 for 0.0.0.80.
        let is_number = name.bytes().all(|digit| digit.is_ascii_digit());
        if is_number || name.contains(|c: char| c.is_whitespace() || "?&=#".contains(c)) {
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
            Self::Null(size) => write!(f, "null:{size}"),
            Self::File(path) => write!(f, "file:{}", path.shown()),
            Self::Device(path) => write!(f, "device:{}", path.shown()),
            Self::Cdrom(None) => f.write_str("cdrom:"),
            Self::Cdrom(Some(path)) => write!(f, "cdrom:{}", path.shown()),
            Self::Tape(None) => f.write_str("tape:"),
            Self::Tape(Some(path)) => write!(f, "tape:{}", path.shown()),
            Self::Changer(path) => write!(f, "changer:{}", path.shown()),
            Self::Scsi(ScsiPlace::Device(path)) => write!(f, "scsi:{}", path.shown()),
            Self::Scsi(ScsiPlace::Unit(unit)) => write!(f, "scsi:{unit}"),
            Self::Scsi(ScsiPlace::Served(volume)) => write!(f, "scsi:{volume}"),
            Self::Iscsi(unit) => unit.fmt(f),
            Self::Compound(compound) => compound.fmt(f),
            Self::HyperScsi(volume) => volume.fmt(f),
            Self::Rbd(image) => rbd::write(f, image),
        }
    }
}

impl fmt::Display for IscsiUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, target, lun, pin } = self;
        write!(f, "iscsi://{host}/{target}/{lun}")?;
        pin.map_or(Ok(()), |key| write!(f, "?pin={key}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_value_is_read_back() {
        for text in [
            "memory:64M",
            "file:/srv/backup.img",
            "file:relative:with:colons",
            "device:/dev/sdb",
            "cdrom:",
            "cdrom:/srv/debian.iso",
            "tape:",
            "tape:/srv/tapes/A.tape",
            "changer:/srv/tapes",
            "scsi:/dev/sg0",
            "scsi:/dev/bsg/0:0:0:0",
            "scsi:0:0:0:0",
            "scsi:iscsi://server:3260/iqn.2026-11.dev.longhaul:library/3",
            "scsi:hyperscsi://server:5674/drive?path=10.0.0.2:5674",
            "scsi:hseth://eth0/drive",
            "iscsi://server:3260/iqn.2026-11.dev.longhaul:backup/0",
            "iscsi://[fe80::1]:3261/iqn.2026-11.dev.longhaul:backup/16383",
            "hyperscsi://server:5674/backup",
            "hyperscsi://server:5674/backup?compression=zstd",
            "hyperscsi://server:5674/backup?compression=lz4&path=10.0.0.2:5674",
            "hyperscsi://server:5674/backup?cipher=chacha20-poly1305&checksum=crc32c",
            "hyperscsi://server:5674/discs?media-lock=on",
            "hyperscsi://server:5674/backup?window=64&path=10.0.0.2:5674",
            "hyperscsi://[fe80::1]:5675/backup",
            "hseth://eth0/backup",
            "hseth://eth0/02:00:5e:10:00:01/backup",
            "hyperscsi://server:5674/backup?path=10.0.0.2:5674",
            "hyperscsi://server:5674/backup?path=10.0.0.2:5674&path=[fe80::1]:5675",
            "hseth://eth0/02:00:5e:10:00:01/backup?path=eth1/02:00:5e:10:00:02",
        ] {
            assert_eq!(text.parse::<Uri>().unwrap().to_string(), text);
        }
    }

    /// RFC 7143, 4.2.7 has three kinds of names, in lower case. A target that keeps to neither is found all the same.
    #[test]
    fn the_name_of_a_target_is_kept_as_it_is_written() {
        for name in ["backup", "naa.52004567ba64678d", "iqn.2003-01.org.example:Disk", "wwn.1"] {
            let text = format!("iscsi://server:3260/{name}/0");
            assert_eq!(text.parse::<Uri>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn port_and_unit_have_defaults() {
        for (text, whole) in [
            ("iscsi://server/iqn.2026-11.dev:b", "iscsi://server:3260/iqn.2026-11.dev:b/0"),
            (
                "hyperscsi://server:7/b?path=10.0.0.2&path=far:8",
                "hyperscsi://server:7/b?path=10.0.0.2:7&path=far:8",
            ),
        ] {
            assert_eq!(text.parse::<Uri>().unwrap().to_string(), whole);
        }
    }

    #[test]
    fn malformed_value_is_named() {
        for (text, wrong) in [
            ("backup.img", "names no volume"),
            ("s4://bucket/x", "unknown scheme `s4:`"),
            ("longhaul:Afft2", "this is an invitation"),
            ("memory:", "is not a size"),
            ("memory:0", "positive multiple of 512"),
            ("memory:1000", "positive multiple of 512"),
            ("file:", "has no path"),
            ("changer:", "has no path"),
            ("scsi:", "has no path"),
            ("scsi:iscsi://host", "`iscsi://host` is not of the form"),
            ("scsi:file:/srv/a.img", "`scsi:file:/srv/a.img` passes nothing through: behind"),
            ("scsi:nbd://host/b", "`scsi:nbd://host/b` passes nothing through: behind"),
            ("scsi:scsi:/dev/sg0", "passes nothing through"),
            ("scsi:hyperscsi://me@host/b", "credentials do not belong"),
            ("scsi:hyperscsi://host/b?media-lock=on", "whoever uses a unit that is passed on"),
            ("iscsi:host/iqn/0", "not of the form"),
            ("iscsi://host", "not of the form"),
            ("iscsi://host//0", "not of the form"),
            ("iscsi://host/a b/0", "cannot stand in an iSCSI name"),
            ("iscsi://host/a\u{1b}/0", "cannot stand in an iSCSI name"),
            ("iscsi://host/iqn/0/1", "not of the form"),
            ("iscsi://me:secret@host/iqn/0", "credentials do not belong"),
            ("iscsi://host:port/iqn.2026-11.dev:b/0", "HOST:PORT"),
            ("iscsi://::1/iqn.2026-11.dev:b/0", "HOST:PORT"),
            ("iscsi://3260/iqn.2026-11.dev:b/0", "HOST:PORT"),
            ("iscsi://:3260/iqn.2026-11.dev:b/0", "HOST:PORT"),
            ("iscsi://host/iqn.2026-11.dev:b/16384", "logical unit number"),
            ("hyperscsi://host", "not of the form"),
            ("hyperscsi://host/", "not of the form"),
            ("hyperscsi://host/a/b", "not of the form"),
            ("hyperscsi://me@host/b", "credentials do not belong"),
            ("hyperscsi://host/b?paths=far", "not of the form"),
            ("hyperscsi://host/b?compression=gzip", "`zstd`"),
            ("hyperscsi://host/b?checksum=md5", "`crc32c`"),
            ("hyperscsi://host/b?media-lock=yes", "`on` or `off`"),
            ("hyperscsi://host/b?window=0", "1024 packets"),
            ("hyperscsi://host/b?window=1025", "1024 packets"),
            ("hyperscsi://host/b?cipher=aes", "`aes-256-gcm`"),
            ("hyperscsi://host/b?compression=lz4&compression=lz4", "not of the form"),
            ("hyperscsi://host/b?path=far:port", "HOST:PORT"),
            // A key that is not where it belongs would not be asked for.
            ("hyperscsi://host/b?path=far?pin=lhpub1-x", "HOST:PORT"),
            ("hyperscsi://host/b?path=far#pin=lhpub1-x", "HOST:PORT"),
            ("hyperscsi://host/b?path=far:7?pin=lhpub1-x", "HOST:PORT"),
            (
                "hyperscsi://h/b?path=a&path=b&path=c&path=d&path=e&path=f&path=g&path=i",
                "more than 7 further paths",
            ),
            ("hseth://eth0/b?path=eth1", "not of the form"),
            ("hseth://eth0/b c", "not of the form"),
            ("hseth:///b", "not of the form"),
            ("hseth://eth0/02:00/b", "names no station"),
        ] {
            let error = text.parse::<Uri>().unwrap_err().to_string();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
