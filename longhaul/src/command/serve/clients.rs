//! Clients that are listed, invited and revoked while the server runs.

use std::net::SocketAddr;
use std::path::Path;

use proto::iscsi::invitation::{ADDRESSES_MAX, Invitation, check_name};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::sealed::Protection;

use super::invitations::{Asked, Stored, clients_file, read_text, units};
use super::live::Live;
use super::{policy, portals};
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
            tracing::error!("cannot list the client {name}: {}", why.on_one_line());
            self.invitations.give_back(issued);
            return Err(LoginStatus::TARGET_ERROR);
        }
        let initiator = client.initiator.as_str();
        tracing::info!(client = name, %key, initiator, "client enrolled by invitation");
        if let Err(why) = self.invitations.withdraw(name) {
            // At the next start it is void, as its client is listed.
            tracing::warn!("the invitation of {name} is used and still kept: {why}");
        }
        Ok(())
    }

    /// All that can fail comes before the file is changed.
    async fn add_client(&mut self, new: &NewClient, stored: &Stored) -> Outcome {
        let Stored { name, volumes, read_only, .. } = stored;
        let here = &self.config().volumes;
        let gone = || Failure::new("a volume of the invitation is served no more");
        let client = Client {
            units: Some(units(volumes, here).ok_or_else(gone)?),
            read_only: units(read_only, here).ok_or_else(gone)?,
            protection: Demand(Some(Protection::Encrypt)),
            ..Client::by_key(name.clone(), new.key)
        };
        let mut config = self.config().clone();
        config.clients.push(client);
        let policy = policy(&config).await?;
        let table = ClientTable {
            name: name.clone(),
            key: new.key,
            volumes: volumes.clone(),
            read_only: read_only.clone(),
            remark: format!("Enrolled by invitation on {}, as {}.", utc(now()), new.initiator),
        };
        let file = clients_file(&config)?;
        let known = config.clone();
        blocking(move || {
            let text = with_client(&text_of(&file, &known)?, &table)?;
            refuse_mistakes(&text, &file, &known)?;
            replace(&file, &text)
        })
        .await?;
        drop(self.replace(config, &[], &[], policy));
        Ok(())
    }

    /// Answers a request that is about clients; `None` of anything else.
    pub(super) async fn administer(&mut self, request: &str) -> Option<Outcome<String>> {
        let (verb, rest) = request.split_once(' ').unwrap_or((request, ""));
        Some(match verb {
            "clients" => self.clients(),
            "revoke" => self.revoke(rest).await,
            "invite" => self.answer_invite(rest),
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
    pub(super) fn invite_first(&mut self, name: &str) -> Outcome<Option<Invited>> {
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
        self.invite(request).map(Some)
    }

    fn answer_invite(&mut self, request: &str) -> Outcome<String> {
        let cannot = || "cannot read the request: is the server of another release?".to_owned();
        let invited = self.invite(serde_json::from_str(request).or_fail(cannot)?)?;
        serde_json::to_string(&invited).or_fail(|| "cannot tell the invitation".to_owned())
    }

    fn invite(&mut self, request: InviteRequest) -> Outcome<Invited> {
        let InviteRequest { name, volumes, read_only, seconds, addresses } = request;
        self.refuse_invitation(&name, &volumes)?;
        let rights = if read_only { (Vec::new(), volumes) } else { (volumes, Vec::new()) };
        let stored = Stored::new(&name, now().saturating_add(seconds), rights)?;
        // One that cannot be written down is not made.
        let invited = self.invited(&stored, addresses)?;
        let here = self.config().volumes.clone();
        self.invitations.issue(stored, &here)?;
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
            None => {
                let file = clients_file(config)?;
                // That of the state directory is made with the first client.
                if config.origin.is_some() { refuse_unwritable(&file) } else { Ok(()) }
            }
        }
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
        let addresses = if addresses.is_empty() { self.reachable_at() } else { addresses };
        let (name, target, lun) = (stored.name.clone(), volume.target.clone(), volume.lun);
        let invitation = Invitation { name, addresses, target, lun, server, secret };
        let invitation = invitation.to_text().or_fail(what)?.to_string();
        Ok(Invited { name: stored.name.clone(), invitation, until: stored.until })
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

    /// Takes an invitation and a client from the server: first from the files, so that no restart brings them back.
    async fn revoke(&mut self, name: &str) -> Outcome<String> {
        let was_invited = self.invitations.withdraw(name)?;
        let mut config = self.config().clone();
        // Where the last client goes, nobody may log in.
        config.closed |= !config.clients.is_empty();
        config.clients.retain(|client| client.name != name);
        if config.clients.len() == self.config().clients.len() {
            return match was_invited {
                true => Ok(format!("{name} is invited no more")),
                false => Err(Failure::new(format!(
                    "there is neither a client nor an invitation `{name}`"
                ))
                .hint("`longhaul clients` lists them")),
            };
        }
        let policy = policy(&config).await?;
        let (file, known, name) = (clients_file(&config)?, config.clone(), name.to_owned());
        let revoked = name.clone();
        blocking(move || {
            let text = without_client(&text_of(&file, &known)?, &name)?;
            let text = text.ok_or_else(|| {
                let why = format!("it is not in {}", file.shown());
                Failure::new(format!("cannot revoke {name}"))
                    .because(why)
                    .hint("start the server without it: it stands on the command line")
            })?;
            refuse_mistakes(&text, &file, &known)?;
            replace(&file, &text)
        })
        .await?;
        let applied = self.replace(config, &[], &[], policy);
        tracing::info!(client = revoked, "client revoked: {}", applied.said);
        Ok(format!("{revoked} is no client any more; {}", applied.said))
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
    let (_, wrong) = Config::parse(text, file);
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(crate::config::refuse(file, &wrong)),
    }
}
