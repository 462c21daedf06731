//! Clients that are listed, invited and revoked while the server runs.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use proto::identity::PublicKey;
use proto::iscsi::invitation::{ADDRESSES_MAX, Invitation, check_name};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::sealed::Protection;

use super::invitations::{Asked, Stored, clients_file, locked, read_text, units};
use super::live::Live;
use super::portals;
use crate::command::clients::{Clients, ListedClient, OpenInvitation};
use crate::command::invite::{InviteRequest, Invited};
use crate::command::options::blocking;
use crate::config::edit::{ClientTable, refuse_unwritable, replace, with_client, without_client};
use crate::config::{Client, Config, Served};
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::front::iscsi::NewClient;
use crate::printable::Shown as _;
use crate::sealing::Demand;
use crate::utc::{now, utc};

/// How long an invitation of `serve --invite` is good, in seconds.
const FIRST_FOR: u64 = 3600;

impl Live {
    /// Lists a client that has shown the secret of an invitation, and answers its login.
    pub(super) async fn enrol(&mut self, asked: Asked) {
        let Asked { client, answer } = asked;
        let outcome = self.list(client).await;
        // Nobody waits for it where the connection is lost: the client is listed all the same.
        let _ = answer.send(outcome);
    }

    async fn list(&mut self, client: NewClient) -> Result<(), LoginStatus> {
        let Some((issued, stored)) = self.invitations.claim(client.invitation) else {
            return Err(LoginStatus::AUTHENTICATION_FAILURE);
        };
        let (name, key) = (&stored.name, client.key);
        if let Err(why) = self.add_client(&client, &stored).await {
            tracing::error!(
                "cannot list the client {name}, whose invitation stays good: {}",
                why.on_one_line()
            );
            self.invitations.give_back(issued);
            return Err(LoginStatus::TARGET_ERROR);
        }
        let initiator = client.initiator.as_str();
        tracing::info!(client = name, %key, initiator, "client enrolled by invitation");
        if let Some(other) = self.of_the_same_proof(name).first() {
            tracing::warn!(
                client = name,
                "its key is that of the client {other} too: it has the rights of both"
            );
        }
        if let Err(why) = self.invitations.withdraw(name).await {
            // At the next start it is void, as its client is listed.
            tracing::warn!("the invitation of {name} is used and still kept: {why}");
        }
        Ok(())
    }

    /// All that can fail comes before the file is changed.
    async fn add_client(&mut self, new: &NewClient, stored: &Stored) -> Outcome {
        let Stored { name, volumes, read_only, .. } = stored;
        let here = &self.config().volumes;
        let gone = || Failure::new("a volume of the invitation is served no more, or another one");
        if !stored.is_of(self.config()) {
            return Err(gone());
        }
        let client = Client {
            units: Some(units(volumes, here).ok_or_else(gone)?),
            read_only: units(read_only, here).ok_or_else(gone)?,
            protection: Demand(Some(Protection::Encrypt)),
            ..Client::by_key(name.clone(), new.key)
        };
        let (mut config, mut clients) = (self.config().clone(), self.admitted().to_vec());
        clients.push(super::client(&client)?);
        config.clients.push(client);
        let remark = format!("Enrolled by invitation on {}, as {}.", utc(now()), new.initiator);
        let table = table(stored, new.key, remark, &config);
        let file = clients_file(&config)?;
        let known = config.clone();
        blocking(move || {
            change_clients(&file, &known, |text| {
                let text = with_client(text, &table);
                let text = text.map_err(|why| why.within(&file.shown().to_string()))?;
                refuse_mistakes(&text, &file, &known)?;
                Ok(Some(text))
            })
        })
        .await?;
        drop(self.replace((config, clients), &[], &[]));
        Ok(())
    }

    /// The other clients that prove who they are as the one of this name does.
    fn of_the_same_proof(&self, name: &str) -> Vec<String> {
        let clients = &self.config().clients;
        let Some(client) = clients.iter().find(|client| client.name == name) else {
            return Vec::new();
        };
        same_proof(client, clients)
    }

    /// Answers a request that is about clients; `None` of anything else.
    pub(super) async fn administer(&mut self, request: &str) -> Option<Outcome<String>> {
        let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
        Some(match verb {
            "clients" => self.clients(),
            "revoke" => self.revoke(rest).await,
            "invite" => self.answer_invite(rest).await,
            "media" => self.answer_media(rest).await,
            _ => return None,
        })
    }

    fn clients(&mut self) -> Outcome<String> {
        let sessions = self.sessions();
        let config = self.config();
        let names = |units: &[_]| {
            let named = |volume: &&Served| units.contains(&volume.unit());
            config.volumes.iter().filter(named).map(|volume| volume.name.clone()).collect()
        };
        let listed = |client: &Client| {
            let chap = client.chap.as_ref().map(|chap| format!("chap:{}", chap.initiator.name));
            let key = client.key.map(|key| key.to_string());
            let proves: Vec<_> = key.into_iter().chain(chap).collect();
            let its = |session: &&Option<String>| {
                session.as_ref().is_some_and(|session| proves.contains(session))
            };
            ListedClient {
                name: client.name.clone(),
                volumes: client.units.as_deref().map(names),
                read_only: names(&client.read_only),
                administrator: client.administers,
                paused: client.paused,
                weight: client.share.weight,
                rate: client.share.bytes,
                iops: client.share.commands,
                sessions: sessions.iter().filter(its).count(),
                proves,
            }
        };
        let clients = config.clients.iter().map(listed).collect();
        let open = |stored: &Stored| OpenInvitation {
            name: stored.name.clone(),
            volumes: stored.volumes.clone(),
            read_only: stored.read_only.clone(),
            until: stored.until,
        };
        let invitations = self.invitations.good().map(open).collect();
        let known = Clients { clients, invitations };
        serde_json::to_string(&known).or_fail(|| "cannot list the clients".to_owned())
    }

    /// Invites the first client, as the command line wants it; nobody if it is listed already.
    pub(super) async fn invite_first(&mut self, name: &str) -> Outcome<Option<Invited>> {
        if self.config().clients.iter().any(|client| client.name == name) {
            tracing::info!(client = name, "it was invited before, and is a client");
            return Ok(None);
        }
        let open = self.invitations.good().find(|stored| stored.name == name).cloned();
        if let Some(stored) = open {
            return self.invited(&stored, Vec::new()).map(Some);
        }
        let volumes = self.config().volumes.iter().map(|volume| volume.name.clone()).collect();
        let (name, addresses) = (name.to_owned(), Vec::new());
        let request =
            InviteRequest { name, volumes, read_only: false, seconds: FIRST_FOR, addresses };
        self.invite(request).await.map(Some)
    }

    async fn answer_invite(&mut self, request: &str) -> Outcome<String> {
        let cannot = || "cannot read the request: is the server of another release?".to_owned();
        let invited = self.invite(serde_json::from_str(request).or_fail(cannot)?).await?;
        serde_json::to_string(&invited).or_fail(|| "cannot tell the invitation".to_owned())
    }

    async fn invite(&mut self, request: InviteRequest) -> Outcome<Invited> {
        let InviteRequest { name, volumes, read_only, seconds, addresses } = request;
        self.refuse_invitation(&name, &volumes)?;
        let rights = if read_only { (Vec::new(), volumes) } else { (volumes, Vec::new()) };
        let until = self.invitations.now().saturating_add(seconds);
        let stored = Stored::new(&name, until, rights, self.config())?;
        // One that cannot be written down is not made.
        let invited = self.invited(&stored, addresses)?;
        self.refuse_unlistable(&stored).await.map_err(|why| {
            why.within(&format!("cannot invite {name}, who could not be listed later"))
        })?;
        let config = self.config().clone();
        self.invitations.issue(stored, &config).await?;
        tracing::info!(client = name, until = utc(invited.until), "client invited");
        Ok(invited)
    }

    fn refuse_invitation(&self, name: &str, volumes: &[String]) -> Outcome {
        let what = || format!("cannot invite {name}");
        let refuse = |why: String| Err(Failure::new(what()).because(why));
        check_name(name).or_fail(|| "cannot invite a client of this name".to_owned())?;
        let config = self.config();
        if self.pin().is_none() {
            return Err(Failure::new(what())
                .because("the server has no identity, without which no session is secure")
                .hint("`longhaul identity new FILE` makes one; name it by `identity`, and restart the server"));
        }
        if config.is_open() {
            return Err(Failure::new(what())
                .because("anyone may use this server")
                .hint("write a table [clients] into its file, or start it with --invite; then nobody may who is not listed"));
        }
        if config.clients.iter().any(|client| client.name == name) {
            return Err(Failure::new(what())
                .because("there is a client of this name")
                .hint(format!("`longhaul revoke {name}` removes it; or give another name")));
        }
        let missing =
            volumes.iter().find(|name| config.volumes.iter().all(|volume| volume.name != **name));
        match missing {
            Some(missing) => {
                let known: Vec<_> = config.volumes.iter().map(|volume| &*volume.name).collect();
                refuse(format!("there is no volume `{missing}`: it has {}", known.join(", ")))
            }
            None if volumes.is_empty() => refuse("to no volume".to_owned()),
            None => Ok(()),
        }
    }

    /// Does all that its enrolment will do, but for writing.
    async fn refuse_unlistable(&self, stored: &Stored) -> Outcome {
        let config = self.config().clone();
        let Some(anyone) = self.pin() else { return Ok(()) };
        let table = table(stored, anyone, String::new(), &config);
        let file = clients_file(&config)?;
        blocking(move || {
            // That of the state directory is made with the first client.
            if config.origin.is_some() || file.parent().is_some_and(Path::exists) {
                refuse_unwritable(&file)?;
            }
            let text = with_client(&text_of(&file, &config)?, &table);
            let text = text.map_err(|why| why.within(&file.shown().to_string()))?;
            refuse_mistakes(&text, &file, &config)
        })
        .await
    }

    /// The line.
    fn invited(&self, stored: &Stored, addresses: Vec<String>) -> Outcome<Invited> {
        let what = || format!("cannot invite {}", stored.name);
        let first = stored.volumes.iter().chain(&stored.read_only).next();
        let volume = self.config().volumes.iter().find(|volume| Some(&volume.name) == first);
        let (Some(volume), Some(server), Some(secret)) = (volume, self.pin(), stored.secret())
        else {
            return Err(Failure::new(what()));
        };
        let is_only_here = addresses.is_empty() && self.is_reached_here_only();
        let addresses = if addresses.is_empty() { self.reachable_at() } else { addresses };
        let (name, target, lun) = (stored.name.clone(), volume.target.clone(), volume.lun);
        let invitation = Invitation { name, addresses, target, lun, server, secret };
        let invitation = invitation.to_text().or_fail(what)?.to_string();
        Ok(Invited { name: stored.name.clone(), invitation, until: stored.until, is_only_here })
    }

    /// Whether it listens on every address, but no route leads elsewhere that would tell which one others use.
    fn is_reached_here_only(&self) -> bool {
        let reached = |portal: &SocketAddr| portals::reachable(*portal).name.parse::<IpAddr>();
        let is_local = |portal| reached(portal).is_ok_and(|ip| ip.is_loopback());
        let all = self.addresses();
        all.iter().any(|portal| portal.ip().is_unspecified()) && all.iter().all(is_local)
    }

    fn reachable_at(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for address in
            self.addresses().iter().map(|portal: &SocketAddr| portals::reachable(*portal))
        {
            let address = address.to_string();
            if !all.contains(&address) && all.len() < ADDRESSES_MAX {
                all.push(address);
            }
        }
        all
    }

    /// Takes an invitation and a client from the server: at once, whatever else is wrong, and then from the files, so that
    /// no restart brings them back. What could not be done is an error.
    async fn revoke(&mut self, name: &str) -> Outcome<String> {
        // Before the files are waited for, whose disk may hang.
        self.invitations.stop(name);
        let ended = self.end_access(name);
        let was_invited = self.invitations.withdraw(name).await;
        let config = self.config().clone();
        let file = clients_file(&config)?;
        let (path, owned) = (file.clone(), name.to_owned());
        let removed = blocking(move || remove_client(&path, &config, &owned)).await;
        let what = match (&ended, &removed, &was_invited) {
            (Some(ended), ..) => format!("{name} is no client any more; {}", ended.said),
            (None, Ok(true), _) => {
                format!("{name} is taken out of {}, which was not in force", file.shown())
            }
            (None, _, Ok(true)) => return Ok(format!("{name} is invited no more")),
            (None, _, Err(_)) => format!("{name} is invited no more"),
            (None, Ok(false), _) => {
                let what = format!("there is neither a client nor an invitation `{name}`");
                return Err(Failure::new(what).hint("`longhaul clients` lists them"));
            }
            (None, Err(_), _) => {
                format!("there is neither a client nor an invitation `{name}` in force")
            }
        };
        tracing::info!(client = name, "client revoked: {what}");
        let left = [
            was_invited
                .err()
                .map(|why| format!("a restart makes its invitation good again: {why}")),
            left_in_file(ended.as_ref(), removed, &file),
            ended.and_then(|Ended { others, .. }| {
                let others = (!others.is_empty()).then(|| others.join(", "))?;
                Some(format!("what it proves lets it in as {others}, which has to be revoked too"))
            }),
        ];
        let left: Vec<_> = left.into_iter().flatten().collect();
        match left.is_empty() {
            true => Ok(what),
            false => Err(Failure::new(format!("{what}; but {}", left.join("; and ")))),
        }
    }

    /// Ends what a client may do, now. `None` if there is none of this name.
    fn end_access(&mut self, name: &str) -> Option<Ended> {
        let mut config = self.config().clone();
        let clients = config.clients.iter().zip(self.admitted());
        let (gone, kept): (Vec<_>, Vec<_>) = clients
            .map(|(client, admitted)| (client.clone(), admitted.clone()))
            .partition(|(client, _)| client.name == name);
        let (client, _) = gone.first()?;
        let (clients, kept): (Vec<_>, Vec<_>) = kept.into_iter().unzip();
        let others = same_proof(client, &clients);
        config.clients = clients;
        // Where the last client goes, nobody may log in.
        config.closed = true;
        let said = self.replace((config, kept), &[], &[]).said;
        Some(Ended { said, tables: gone.len(), others })
    }
}

/// What became of the access of a client.
struct Ended {
    said: String,
    /// How many clients had its name: one of the command line may have that of one in a file.
    tables: usize,
    /// The clients that prove the same.
    others: Vec<String>,
}

/// Why a client that is revoked comes back, if it does.
fn left_in_file(ended: Option<&Ended>, removed: Outcome<bool>, file: &Path) -> Option<String> {
    let back = "it comes back when the server is started again";
    match (removed, ended) {
        (Err(why), _) => Some(format!(
            "{back}, or reads its file again, as it cannot be taken out of {}: {why}",
            file.shown()
        )),
        (Ok(false), Some(_)) => {
            Some(format!("{back}, as it is not in {}: it stands on the command line", file.shown()))
        }
        (Ok(true), Some(Ended { tables: 2.., .. })) => {
            Some(format!("{back}, as it stands on the command line too"))
        }
        (Ok(_), _) => None,
    }
}

/// Takes a client out of the file; whether it was there. What else is wrong with the file does not matter.
fn remove_client(file: &Path, config: &Config, name: &str) -> Outcome<bool> {
    let mut was_there = false;
    if config.origin.is_some() || file.exists() {
        change_clients(file, config, |text| {
            let without = without_client(text, name)?;
            was_there = without.is_some();
            Ok(without)
        })?;
    }
    Ok(was_there)
}

/// The names of those of `clients` but `client` that prove the same.
fn same_proof(client: &Client, clients: &[Client]) -> Vec<String> {
    let account = |client: &Client| client.chap.as_ref().map(|chap| chap.initiator.name.clone());
    let is_same = |other: &&Client| {
        other.name != client.name
            && (other.key.is_some() && other.key == client.key
                || account(other).is_some() && account(other) == account(client))
    };
    clients.iter().filter(is_same).map(|other| other.name.clone()).collect()
}

/// The table of a client with this key.
fn table(stored: &Stored, key: PublicKey, remark: String, config: &Config) -> ClientTable {
    // A configuration file says itself where its volumes are.
    let places = config.origin.is_none().then(|| stored.places.clone());
    ClientTable {
        name: stored.name.clone(),
        key,
        volumes: stored.volumes.clone(),
        read_only: stored.read_only.clone(),
        places: places.unwrap_or_default(),
        remark,
    }
}

/// Writes the text of the file with the clients as `change` makes it, if it does: beside other servers that have it too.
fn change_clients(
    file: &Path,
    config: &Config,
    change: impl FnOnce(&str) -> Outcome<Option<String>>,
) -> Outcome {
    let work = || match change(&text_of(file, config)?)? {
        Some(text) => replace(file, &text),
        None => Ok(()),
    };
    match file.parent().filter(|_| config.origin.is_none()) {
        Some(dir) => locked(dir, work),
        None => work(),
    }
}

/// The text of the file with the clients. That of the state directory need not be there yet.
fn text_of(file: &Path, config: &Config) -> Outcome<String> {
    match read_text(file) {
        Err(why) if why.kind() == std::io::ErrorKind::NotFound && config.origin.is_none() => {
            Ok("# Clients that were invited; `longhaul clients` lists them.\n".to_owned())
        }
        text => text.or_fail(|| format!("cannot read {}", file.shown())),
    }
}

/// What is written must be read at the next start.
fn refuse_mistakes(text: &str, file: &Path, config: &Config) -> Outcome {
    if config.origin.is_none() {
        return Config::parse_clients(text, file, &config.volumes).map(drop);
    }
    Config::of_text(text, file).map(drop)
}
