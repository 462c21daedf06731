//! Secure sessions: who this machine is, which is kept in a file, and whom it talks to.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use proto::hyperscsi::Level;
use proto::identity::{Identity, PublicKey};
use proto::iscsi::login::initiator::Pinned;
use proto::iscsi::sealed::{Limits, Protection, Sealing};
use zeroize::Zeroizing;

use crate::ciphers::new_aes_256_gcm;
use crate::durable::{make_directories, sync_directory_of};
use crate::failure::{Failure, OrFail, Outcome};
use crate::printable::Shown as _;
use crate::remembered;
use crate::secret::{keep, refuse_shared};

/// The most bytes of an identity file: a key, and remarks.
const FILE_MAX: u64 = 4096;

/// The heading of these options. Each names it: one of the whole struct would hold for the options behind it too.
const HEADING: &str = "Secure sessions";

/// With whom the sessions of a client are secure.
#[derive(Args, Clone, Debug, Default)]
pub struct SealingArgs {
    /// Who this machine is: a file made by `longhaul identity new`
    #[arg(help_heading = HEADING, long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// The public key the target must have, unless the URI ends in ?pin=KEY
    #[arg(help_heading = HEADING, long, value_name = "KEY", conflicts_with = "chap_user")]
    pin: Option<PublicKey>,
    /// What a secure session gives: `encrypt`, unless this says `integrity`, which is enough for
    /// encrypted volumes
    #[arg(help_heading = HEADING, long, value_name = "PROTECTION")]
    protection: Option<Protection>,
    /// Let data of HyperSCSI pass unprotected, if the server is `--insecure` too
    #[arg(help_heading = HEADING, long, conflicts_with = "protection")]
    insecure: bool,
    /// The key of the site, for HyperSCSI: a file made by `longhaul identity site-key`
    #[arg(help_heading = HEADING, long, value_name = "FILE")]
    site_key: Option<PathBuf>,
}

impl SealingArgs {
    /// Each option, and whether it is given.
    #[must_use]
    pub fn given(&self) -> [(bool, &'static str); 5] {
        [
            (self.pin.is_some(), "--pin"),
            (self.protection.is_some(), "--protection"),
            (self.insecure, "--insecure"),
            (self.identity.is_some(), "--identity"),
            (self.site_key.is_some(), "--site-key"),
        ]
    }

    /// What they say.
    #[must_use]
    pub fn seal(&self) -> Seal {
        let Self { identity, pin, protection, insecure, site_key } = self.clone();
        Seal { identity, pin, protection, insecure, site_key }
    }
}

/// The least protection of sessions: `none`, `integrity` or `encrypt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand(pub Option<Protection>);

impl FromStr for Demand {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self(None)),
            text => match text.parse() {
                Ok(protection) => Ok(Self(Some(protection))),
                Err(_) => Err("write `none`, `integrity` or `encrypt`"),
            },
        }
    }
}

/// The level of HyperSCSI that gives this.
pub(crate) const fn level(protection: Protection) -> Level {
    match protection {
        Protection::Integrity => Level::Integrity,
        Protection::Encrypt => Level::Encrypt,
    }
}

/// How the sessions of a client are secured, where they are.
#[derive(Clone, Debug, Default)]
pub struct Seal {
    /// The file that says who it is; the usual one if `None`.
    pub identity: Option<PathBuf>,
    /// The key of every target; sessions are plain if `None`, unless the URI has one.
    pub pin: Option<PublicKey>,
    /// What a session is given, if it was said: `encrypt` otherwise.
    pub protection: Option<Protection>,
    /// Data of HyperSCSI may pass unprotected.
    pub insecure: bool,
    /// The file with the key of the site; the usual one if `None`.
    pub site_key: Option<PathBuf>,
}

impl Seal {
    /// The target to be met, if one is pinned, here or by `uri`. Reads the identity.
    pub fn pinned(&self, uri: Option<PublicKey>) -> Outcome<Option<Pinned>> {
        if self.insecure {
            return Err(Failure::usage(
                "--insecure is of HyperSCSI: an iSCSI session without the key of its target is plain",
            ));
        }
        let target = match (uri, self.pin, &self.identity) {
            (Some(uri), Some(pin), _) if uri != pin => {
                return Err(Failure::usage("--pin and the URI name different keys of the target"));
            }
            (Some(key), _, _) | (None, Some(key), _) => key,
            (None, None, identity) => {
                let option = match (self.protection, identity) {
                    (Some(protection), _) => format!("--protection {}", protection.name()),
                    (None, Some(_)) => "--identity".to_owned(),
                    (None, None) => return Ok(None),
                };
                // Going on would be a session in plain text, which is not what was asked for.
                let what =
                    format!("{option} without the key of the target, which makes a session secure");
                return Err(Failure::usage(what)
                    .hint("give it with --pin, or use the URI that `serve` prints, which ends in ?pin=KEY"));
            }
        };
        let sealing = sealing(&self.identity.clone().map_or_else(default_path, Ok)?)?;
        let protection = self.protection.unwrap_or(Protection::Encrypt);
        Ok(Some(Pinned { sealing, target, protection, invitation: None }))
    }
}

/// What the owner of an identity file needs for secure sessions.
pub fn sealing(path: &Path) -> Outcome<Sealing> {
    Ok(Sealing { identity: read(path)?, new_cipher: new_aes_256_gcm, limits: Limits::SPEC })
}

/// Where the identities of this user are.
pub fn default_dir() -> Outcome<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    if let Some(dir) = absolute(remembered::OVERRIDE) {
        return Ok(dir);
    }
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let no_home = || Failure::new("there is no HOME to keep an identity in").hint("name a file");
    Ok(config.ok_or_else(no_home)?.join("longhaul"))
}

/// The identity of this user, if he names no other.
pub fn default_path() -> Outcome<PathBuf> {
    Ok(default_dir()?.join("identity"))
}

/// Makes an identity in a new file, which only its owner may read.
pub fn create(path: &Path) -> Outcome<Identity> {
    let mut drawn = Ok(());
    let identity = Identity::fresh(&mut |buffer| drawn = getrandom::fill(buffer));
    drawn.or_fail(|| "the system gives no random numbers".to_owned())?;
    let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize));
    text.push_str("# A Longhaul identity. Keep it to yourself; the public key may be known:\n# ");
    text.push_str(&identity.public().to_string());
    text.push('\n');
    text.push_str(&identity.to_secret_text());
    text.push('\n');
    write_new(path, text.as_bytes()).map_err(|why| {
        let failure = Failure::new(format!("cannot make the identity {}", path.shown()));
        match why.kind() {
            io::ErrorKind::AlreadyExists if path.is_dir() => {
                failure.because("it is a directory").hint("name a file in it")
            }
            io::ErrorKind::AlreadyExists => failure
                .because("there is a file already")
                .hint("`longhaul identity show` shows it; a lost identity cannot be made again"),
            _ => failure.because(why),
        }
    })?;
    Ok(identity)
}

pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        make_directories(dir, 0o777)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    sync_directory_of(path)
}

/// Reads an identity; a file that others may read is none any more.
pub fn read(path: &Path) -> Outcome<Identity> {
    let what = || format!("cannot use the identity {}", path.shown());
    let file = File::open(path).map_err(|why| {
        let missing = why.kind() == io::ErrorKind::NotFound;
        let failure = Failure::new(what()).because(why);
        if missing { failure.hint("`longhaul identity new` makes one") } else { failure }
    })?;
    let metadata = file.metadata().or_fail(what)?;
    refuse_shared(&metadata, path).map_err(|why| why.within("identity"))?;
    parse(file, path)
}

/// Whether there is an identity at `path`, usable or not.
pub fn is_identity(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| parse(file, path).is_ok())
}

fn parse(file: File, path: &Path) -> Outcome<Identity> {
    let what = || format!("cannot use the identity {}", path.shown());
    let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize));
    file.take(FILE_MAX).read_to_string(&mut text).or_fail(what)?;
    let mut keys =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    match (keys.next(), keys.next()) {
        (Some(key), None) => {
            let identity = Identity::from_secret_text(key).or_fail(what)?;
            identity.keep_with(keep);
            Ok(identity)
        }
        _ => Err(Failure::new(what()).because("it does not hold one private key")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    #[test]
    fn an_identity_is_read_as_it_was_made_and_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/identity");
        let made = create(&path).unwrap();
        assert_eq!(read(&path).unwrap().public(), made.public());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let again = create(&path).unwrap_err().to_string();
        assert!(again.contains("there is a file already"), "{again}");
        assert_eq!(read(&path).unwrap().public(), made.public(), "and it is left alone");
        for mode in [0o640, 0o604, 0o622] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refused = read(&path).unwrap_err().to_string();
            assert!(refused.contains("others than its owner"), "{mode:o}: {refused}");
        }
    }

    #[test]
    fn malformed_identity_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity");
        let public = create(&path).unwrap().public().to_string();
        let secret = fs::read_to_string(&path).unwrap();
        for (text, why) in [
            ("", "one private key"),
            ("# only a remark\n", "one private key"),
            (&*format!("{secret}{secret}"), "one private key"),
            (&public, "does not begin with lhsec1-"),
            ("lhsec1-AAAA", "too short"),
        ] {
            fs::write(&path, text).unwrap();
            let refused = read(&path).unwrap_err().to_string();
            assert!(refused.contains(why), "{text}: {refused}");
            assert!(!refused.contains(secret.lines().last().unwrap()), "the secret is not told");
        }
    }
}
