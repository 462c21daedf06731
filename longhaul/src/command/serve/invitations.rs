//! The invitations of a server: kept in the state directory until they are used, so that a restart does not end them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::invitations::{Invitations, Invited, Issued};
use proto::iscsi::login::policy::{self, UnitName};
use proto::iscsi::sealed::{INVITATION_LEN, InvitationId, InvitationSecret, Protection};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use zeroize::{Zeroize as _, Zeroizing};

use crate::config::{Client, Config, Served};
use crate::durable::{make_directories, replace_as_owned};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::front::iscsi::{Enrolled, Enrolment, NewClient};
use crate::printable::Shown as _;
use crate::regular_file::read_regular;
use crate::sealing;
use crate::state_dir::state_dir;
use crate::utc::now;

/// The clients of a server that has no configuration file, in the syntax of one.
const CLIENTS: &str = "clients.toml";

/// The identity of a server that was given none.
const IDENTITY: &str = "identity";

const FILE: &str = "invitations.json";

/// Whoever changes the file has locked this one: several servers may share the directory.
const LOCK: &str = "invitations.lock";

/// How many clients may wait to be listed.
const WAITING_MAX: usize = 64;

/// An invitation, as it is kept.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Stored {
    pub(super) name: String,
    /// Seconds since 1970.
    pub(super) until: u64,
    /// In hexadecimal.
    secret: String,
    pub(super) volumes: Vec<String>,
    pub(super) read_only: Vec<String>,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl Stored {
    /// A fresh one.
    pub(super) fn new(name: &str, until: u64, rights: (Vec<String>, Vec<String>)) -> Outcome<Self> {
        let mut drawn = Ok(());
        let secret = InvitationSecret::fresh(&mut |buffer| drawn = getrandom::fill(buffer));
        drawn.or_fail(|| "the system gives no random numbers".to_owned())?;
        let mut text = String::with_capacity(2 * INVITATION_LEN);
        for byte in secret.expose() {
            text.extend(
                [byte >> 4, byte & 15]
                    .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])),
            );
        }
        let (volumes, read_only) = rights;
        Ok(Self { name: name.to_owned(), until, secret: text, volumes, read_only })
    }

    pub(super) fn secret(&self) -> Option<InvitationSecret> {
        let mut bytes = Zeroizing::new([0; INVITATION_LEN]);
        let digits = self.secret.as_bytes();
        if digits.len() != 2 * INVITATION_LEN || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).unwrap_or_default() as u8;
            *byte = digit(0) << 4 | digit(1);
        }
        Some(InvitationSecret::from_bytes(&bytes))
    }

    /// What it makes of a client; `None` if the volumes are not all served here.
    fn issued(&self, volumes: &[Served]) -> Option<Issued> {
        let client = policy::Client {
            units: Some(units(&self.volumes, volumes)?),
            read_only: units(&self.read_only, volumes)?,
            protection: Some(Protection::Encrypt),
            ..policy::Client::default()
        };
        Some(Issued::new(self.name.clone(), self.until, self.secret()?, client))
    }
}

/// The units that volumes are; `None` if one of them is not there.
pub(super) fn units(names: &[String], volumes: &[Served]) -> Option<Vec<UnitName>> {
    let unit = |name: &String| volumes.iter().find(|volume| volume.name == *name).map(Served::unit);
    names.iter().map(unit).collect()
}

/// A client that waits to be listed.
pub(super) struct Asked {
    pub(super) client: NewClient,
    pub(super) answer: oneshot::Sender<Result<(), LoginStatus>>,
}

/// What logins see of the invitations.
struct Book {
    good: Mutex<Invitations>,
    asked: mpsc::Sender<Asked>,
}

impl Book {
    fn change<T>(&self, change: impl FnOnce(&mut Invitations) -> T) -> T {
        change(&mut self.good.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Enrolment for Book {
    fn live(&self) -> Vec<Arc<Invited>> {
        self.change(|good| good.live(now()))
    }

    fn enrol(&self, client: NewClient) -> Enrolled {
        let asked = self.asked.clone();
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            let unavailable = Err(LoginStatus::SERVICE_UNAVAILABLE);
            if asked.send(Asked { client, answer }).await.is_err() {
                return unavailable;
            }
            answered.await.unwrap_or(unavailable)
        })
    }
}

/// The invitations that were not used yet.
pub(super) struct OpenInvitations {
    book: Arc<Book>,
    stored: BTreeMap<String, Stored>,
    /// Where they are kept; `None` for a user who has no place for that.
    dir: Option<PathBuf>,
}

/// The clients that wait to be listed.
pub(super) type Waiting = mpsc::Receiver<Asked>;

impl OpenInvitations {
    /// Those in the state directory that are for volumes of this server. One whose client is listed was used: nothing but
    /// its end was not noted any more.
    pub(super) fn read(config: &Config) -> Outcome<(Self, Waiting)> {
        let (asked, waiting) = mpsc::channel(WAITING_MAX);
        let book = Arc::new(Book { good: Mutex::default(), asked });
        let mut open = Self { book, stored: BTreeMap::new(), dir: directory(config) };
        let Some(dir) = open.dir.clone() else { return Ok((open, waiting)) };
        for stored in read_file(&dir)? {
            let is_used = config.clients.iter().any(|client| client.name == stored.name);
            let Some(issued) = stored.issued(&config.volumes) else { continue };
            if is_used || stored.until <= now() {
                open.remove_from_file(&stored.name)?;
            } else if open.book.change(|good| good.issue(issued, now())).is_ok() {
                open.stored.insert(stored.name.clone(), stored);
            }
        }
        Ok((open, waiting))
    }

    pub(super) fn enrolment(&self) -> Arc<dyn Enrolment> {
        Arc::clone(&self.book) as _
    }

    /// Those that are good now.
    pub(super) fn good(&mut self) -> impl Iterator<Item = &Stored> {
        self.stored.retain(|_, stored| stored.until > now());
        self.stored.values()
    }

    /// Adds one. It is on the disk before anybody can have it.
    pub(super) fn issue(&mut self, stored: Stored, volumes: &[Served]) -> Outcome {
        let what = || format!("cannot invite {}", stored.name);
        let Some(dir) = self.dir.clone() else {
            return Err(Failure::new(what())
                .because("there is no directory to keep the invitation in")
                .hint("set HOME, or give the server --state DIR"));
        };
        let issued = stored.issued(volumes);
        let issued = issued.ok_or_else(|| Failure::new(what()).because("no such volume"))?;
        self.book.change(|good| good.issue(issued, now())).or_fail(what)?;
        let added = stored.clone();
        let kept = change_file(&dir, |file| {
            file.retain(|other| other.until > now());
            file.push(added);
        });
        if let Err(why) = kept {
            self.book.change(|good| good.withdraw(&stored.name));
            return Err(why.within(&what()));
        }
        self.stored.insert(stored.name.clone(), stored);
        Ok(())
    }

    /// Takes one out for the login that has shown its secret.
    pub(super) fn claim(&mut self, id: InvitationId) -> Option<(Issued, Stored)> {
        let issued = self.book.change(|good| good.claim(id, now()))?;
        let stored = self.stored.get(&issued.name)?.clone();
        Some((issued, stored))
    }

    /// The client could not be listed.
    pub(super) fn give_back(&self, issued: Issued) {
        self.book.change(|good| good.give_back(issued));
    }

    /// Takes one out for good: it does not come back with a restart. Whether there was one.
    pub(super) fn withdraw(&mut self, name: &str) -> Outcome<bool> {
        self.book.change(|good| good.withdraw(name));
        let is_known = self.stored.contains_key(name);
        self.remove_from_file(name)?;
        self.stored.remove(name);
        Ok(is_known)
    }

    fn remove_from_file(&self, name: &str) -> Outcome {
        let Some(dir) = &self.dir else { return Ok(()) };
        if !dir.join(FILE).exists() {
            return Ok(());
        }
        change_file(dir, |file| file.retain(|other| other.name != name))
    }
}

/// Where a server keeps its invitations.
fn directory(config: &Config) -> Option<PathBuf> {
    config.state.clone().or_else(state_dir)
}

/// The file that has the clients of this server.
pub(super) fn clients_file(config: &Config) -> Outcome<PathBuf> {
    let file = match &config.origin {
        Some(origin) => Some(origin.path.clone()),
        None => directory(config).map(|dir| dir.join(CLIENTS)),
    };
    file.ok_or_else(|| Failure::new("there is no directory to keep clients in").hint("set HOME"))
}

/// What a server that was started by its command line was told by invitations: its clients, and its identity, which is
/// made if it `invites`.
pub(super) fn complete(mut config: Config, invites: bool) -> Outcome<Config> {
    let Some(dir) = directory(&config) else { return Ok(config) };
    let file = dir.join(CLIENTS);
    if config.origin.is_none()
        && let Some(clients) = enrolled_clients(&file, &config.volumes)?
    {
        tell_of(&clients, &file);
        // Also if all were revoked, or have other volumes: it was open to nobody else, and is not by a restart.
        config.closed = true;
        config.clients.extend(clients);
    }
    let is_invited =
        |stored: &Stored| stored.until > now() && stored.issued(&config.volumes).is_some();
    config.closed |= invites || read_file(&dir)?.iter().any(is_invited);
    let by_key = config.clients.iter().any(|client| client.key.is_some());
    let identity = dir.join(IDENTITY);
    if config.origin.is_some() || config.identity.is_some() || !(config.closed || by_key) {
        return Ok(config);
    }
    if invites && !identity.exists() {
        make_directories(&dir, 0o777).or_fail(|| format!("cannot make {}", dir.shown()))?;
        sealing::create(&identity)?;
    }
    config.identity = Some(identity).filter(|identity| identity.exists());
    Ok(config)
}

fn tell_of(clients: &[Client], file: &Path) {
    let names = clients.iter().map(|client| client.name.clone());
    if let Some(names) = names.reduce(|all, name| all + ", " + &name) {
        tracing::info!(clients = names, "clients that were invited before may log in");
    } else {
        tracing::warn!(
            file = %file.shown(),
            "this file lists who was invited, and none of them for these volumes: nobody else may log in; invite somebody, \
             or keep other servers' clients apart with --state"
        );
    }
}

/// The clients that may use any of these volumes; `None` if nobody was ever invited.
fn enrolled_clients(path: &Path, volumes: &[Served]) -> Outcome<Option<Vec<Client>>> {
    let text = match read_text(path) {
        Err(why) if is_missing(&why) => return Ok(None),
        text => text.or_fail(|| format!("cannot read the clients in {}", path.shown()))?,
    };
    let mut clients = Config::parse_clients(&text, path, volumes)?;
    clients
        .retain(|client| client.units.iter().flatten().chain(&client.read_only).next().is_some());
    Ok(Some(clients))
}

/// A state directory that is none is refused where it is used.
fn is_missing(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The text of a file that is small.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_regular(path)?)
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why.utf8_error()))
}

fn read_file(dir: &Path) -> Outcome<Vec<Stored>> {
    let path = dir.join(FILE);
    let what = || format!("cannot read the invitations in {}", path.shown());
    match read_regular(&path).map(Zeroizing::new) {
        Err(why) if is_missing(&why) => Ok(Vec::new()),
        bytes => serde_json::from_slice(&bytes.or_fail(what)?)
            .or_fail(what)
            .map_err(|why| why.hint("remove it: those invitations are then void")),
    }
}

/// Changes the file, which only its owner may read: durably, and beside other servers that do the same.
fn change_file(dir: &Path, change: impl FnOnce(&mut Vec<Stored>)) -> Outcome {
    let path = dir.join(FILE);
    let what = || format!("cannot keep invitations in {}", path.shown());
    make_directories(dir, 0o777).or_fail(what)?;
    let lock: File = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(dir.join(LOCK))
        .or_fail(what)?;
    lock.lock().or_fail(what)?;
    let mut stored = read_file(dir)?;
    change(&mut stored);
    let text = Zeroizing::new(serde_json::to_vec(&stored).or_fail(what)?);
    replace_as_owned(&path, &text).or_fail(what)
}
