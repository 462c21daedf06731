//! The invitations of a server: kept in the state directory until they are used, so that a restart does not end them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::invitations::{Invitations, Invited, Issued};
use proto::iscsi::login::policy::{self, UnitName};
use proto::iscsi::sealed::{INVITATION_LEN, InvitationId, InvitationSecret, Protection};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use zeroize::{Zeroize as _, Zeroizing};

use crate::command::options::blocking;
use crate::config::{Client, Config, Served, units_with_drives};
use crate::durable::{lock_file, make_directories, replace_as_owned};
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
    /// The configuration file of the server that has made it; `None` of one that was started by its command line.
    #[serde(default)]
    server: Option<String>,
    /// Where its volumes are, by name: those of another server may have the same names.
    #[serde(default)]
    pub(super) places: BTreeMap<String, String>,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl Stored {
    /// A fresh one of the server with this configuration.
    pub(super) fn new(
        name: &str,
        until: u64,
        rights: (Vec<String>, Vec<String>),
        config: &Config,
    ) -> Outcome<Self> {
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
        let named =
            |volume: &&Served| volumes.iter().chain(&read_only).any(|name| *name == volume.name);
        let places = config.volumes.iter().filter(named);
        let places = places.map(|volume| (volume.name.clone(), volume.place())).collect();
        let (name, server) = (name.to_owned(), server_of(config));
        Ok(Self { name, until, secret: text, volumes, read_only, server, places })
    }

    /// Whether it is for volumes of the server with this configuration, as they were when it was made.
    pub(super) fn is_of(&self, config: &Config) -> bool {
        let is_there = |name: &String| {
            let volume = config.volumes.iter().find(|volume| volume.name == *name);
            volume.is_some_and(|volume| self.places.get(name) == Some(&volume.place()))
        };
        self.server == server_of(config) && self.volumes.iter().chain(&self.read_only).all(is_there)
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
    fn issued(&self, config: &Config) -> Option<Issued> {
        let volumes = Some(&config.volumes).filter(|_| self.is_of(config))?;
        let client = policy::Client {
            units: Some(units(&self.volumes, volumes)?),
            read_only: units(&self.read_only, volumes)?,
            protection: Some(Protection::Encrypt),
            ..policy::Client::default()
        };
        Some(Issued::new(self.name.clone(), self.until, self.secret()?, client))
    }
}

/// By what servers are told apart that share a state directory, beside their volumes.
fn server_of(config: &Config) -> Option<String> {
    let path = &config.origin.as_ref()?.path;
    let path = path.canonicalize().or_else(|_| std::path::absolute(path));
    Some(path.map_or_else(|_| String::new(), |path| path.shown().to_string()))
}

/// The units that volumes are, those of a media changer with its drives; `None` if one of them is not there.
pub(super) fn units(names: &[String], volumes: &[Served]) -> Option<Vec<UnitName>> {
    let unit = |name: &String| volumes.iter().find(|volume| volume.name == *name).map(Served::unit);
    let units: Option<Vec<_>> = names.iter().map(unit).collect();
    units.map(|units| units_with_drives(&units, volumes))
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
    clock: ForwardClock,
}

/// The clock of the machine, which a running server does not follow back: no invitation lasts longer by that.
struct ForwardClock {
    at_start: u64,
    started: Instant,
}

impl ForwardClock {
    fn new() -> Self {
        Self { at_start: now(), started: Instant::now() }
    }

    /// Seconds since 1970.
    fn now(&self) -> u64 {
        self.after(now())
    }

    fn after(&self, told: u64) -> u64 {
        told.max(self.at_start.saturating_add(self.started.elapsed().as_secs()))
    }
}

impl Book {
    fn change<T>(&self, change: impl FnOnce(&mut Invitations) -> T) -> T {
        change(&mut self.good.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Enrolment for Book {
    fn live(&self) -> Vec<Arc<Invited>> {
        self.change(|good| good.live(self.clock.now()))
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
        let clock = ForwardClock::new();
        let book = Arc::new(Book { good: Mutex::default(), asked, clock });
        let mut open = Self { book, stored: BTreeMap::new(), dir: directory(config) };
        let Some(dir) = open.dir.clone() else { return Ok((open, waiting)) };
        for stored in read_file(&dir)? {
            let is_used = config.clients.iter().any(|client| client.name == stored.name);
            let Some(issued) = stored.issued(config) else { continue };
            if is_used || stored.until <= now() {
                remove_from_file(&dir, &stored)?;
            } else if open.book.change(|good| good.issue(issued, now())).is_ok() {
                open.stored.insert(stored.name.clone(), stored);
            }
        }
        Ok((open, waiting))
    }

    pub(super) fn enrolment(&self) -> Arc<dyn Enrolment> {
        Arc::clone(&self.book) as _
    }

    /// The time by which they end.
    pub(super) fn now(&self) -> u64 {
        self.book.clock.now()
    }

    /// Those that are good now.
    pub(super) fn good(&mut self) -> impl Iterator<Item = &Stored> {
        let now = self.now();
        self.stored.retain(|_, stored| stored.until > now);
        self.stored.values()
    }

    /// Adds one. It is on the disk before anybody can have it.
    pub(super) async fn issue(&mut self, stored: Stored, config: &Config) -> Outcome {
        let what = || format!("cannot invite {}", stored.name);
        let Some(dir) = self.dir.clone() else {
            return Err(Failure::new(what())
                .because("there is no directory to keep the invitation in")
                .hint("set HOME, or give the server --state DIR"));
        };
        let issued = stored.issued(config);
        let issued = issued.ok_or_else(|| Failure::new(what()).because("no such volume"))?;
        let now = self.now();
        self.book.change(|good| good.issue(issued, now)).or_fail(what)?;
        let added = stored.clone();
        let kept = blocking(move || change_file(&dir, |file| add(file, added, now))).await;
        if let Err(why) = kept {
            self.book.change(|good| good.withdraw(&stored.name));
            return Err(why.within(&what()));
        }
        self.stored.insert(stored.name.clone(), stored);
        Ok(())
    }

    /// Takes one out for the login that has shown its secret.
    pub(super) fn claim(&mut self, id: InvitationId) -> Option<(Issued, Stored)> {
        let now = self.now();
        let issued = self.book.change(|good| good.claim(id, now))?;
        let stored = self.stored.get(&issued.name)?.clone();
        Some((issued, stored))
    }

    /// The client could not be listed.
    pub(super) fn give_back(&self, issued: Issued) {
        self.book.change(|good| good.give_back(issued));
    }

    /// Lets no login use it from now on.
    pub(super) fn stop(&self, name: &str) {
        self.book.change(|good| good.withdraw(name));
    }

    /// Takes one out: at once for logins, and for good, so that it does not come back with a restart. Whether there was one.
    /// An error says that it may come back.
    pub(super) async fn withdraw(&mut self, name: &str) -> Outcome<bool> {
        self.stop(name);
        let Some(stored) = self.stored.get(name).cloned() else { return Ok(false) };
        if let Some(dir) = self.dir.clone() {
            blocking(move || remove_from_file(&dir, &stored)).await?;
        }
        self.stored.remove(name);
        Ok(true)
    }
}

/// Adds an invitation to those in the file. Of those of servers that list their clients in one file, two have no one name.
fn add(file: &mut Vec<Stored>, added: Stored, now: u64) -> Outcome {
    file.retain(|other| other.until > now);
    if file.iter().any(|other| other.name == added.name && other.server == added.server) {
        return Err(Failure::new("there is an invitation under this name")
            .because("a server that shares the state directory has made it, or this one for volumes that it has no more")
            .hint("give another name, or this server a --state DIR of its own"));
    }
    file.push(added);
    Ok(())
}

fn remove_from_file(dir: &Path, stored: &Stored) -> Outcome {
    if !dir.join(FILE).exists() {
        return Ok(());
    }
    change_file(dir, |file| {
        file.retain(|other| other.secret != stored.secret);
        Ok(())
    })
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
    if invites && config.insecure {
        let what = "--invite lets nobody in but clients with keys, and --insecure lets anybody in";
        return Err(Failure::usage(what).hint("leave one of them out"));
    }
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
    let is_invited = |stored: &Stored| stored.until > now() && stored.is_of(&config);
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
    // Its clients come back after a restart, and so must what keeps other writers away from them.
    config.state.get_or_insert(dir);
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
             or keep other servers' clients apart with `--state DIR`"
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
fn change_file(dir: &Path, change: impl FnOnce(&mut Vec<Stored>) -> Outcome) -> Outcome {
    let path = dir.join(FILE);
    let what = || format!("cannot keep invitations in {}", path.shown());
    locked(dir, || {
        let mut stored = read_file(dir)?;
        change(&mut stored)?;
        let text = Zeroizing::new(serde_json::to_vec(&stored).or_fail(what)?);
        replace_as_owned(&path, &text).or_fail(what)
    })
}

/// Does what no other server may do meanwhile that shares the directory. Blocks.
pub(super) fn locked<T>(dir: &Path, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let path = dir.join(LOCK);
    let what = || format!("cannot lock {}", path.shown());
    make_directories(dir, 0o777).or_fail(what)?;
    let _lock = lock_file(&path).map_err(|why| {
        let is_held = why.kind() == io::ErrorKind::TimedOut;
        let failure = Failure::new(what()).because(why);
        match is_held {
            true => failure.hint("is a server stopped that shares this directory, or its disk stuck? a --state DIR of its own keeps it apart"),
            false => failure,
        }
    })?;
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_is_set_back_makes_no_time() {
        let clock = ForwardClock::new();
        let start = clock.at_start;
        assert_eq!(clock.after(start + 7200), start + 7200);
        assert!(clock.after(start - 3600) >= start);
        assert!(clock.after(0) >= start);
    }
}
