//! Who may use what, as logins ask for it.

use proto::client::ClientId;
use proto::iscsi::login::policy::{self, Policy};
use proto::iscsi::name::IscsiName;

use crate::command::options::blocking;
use crate::config::{self, Client, Config, Served};
use crate::credentials;
use crate::failure::Outcome;
use crate::target::shares::ListedShare;

/// The clients, in their order. Reads their secrets.
pub(super) async fn clients_of(config: &Config) -> Outcome<Vec<policy::Client>> {
    let clients = config.clients.clone();
    blocking(move || clients.iter().map(client).collect()).await
}

/// Who may use what. `clients` are those of the configuration.
pub(super) fn policy(
    config: &Config,
    clients: Vec<policy::Client>,
    targets: Vec<IscsiName>,
) -> Policy {
    let policy = match config.is_open() {
        true => Policy::open(targets),
        false => {
            let clients = clients.into_iter().map(|client| with_drives_of(config, client));
            Policy::closed(targets, clients.collect(), credentials::algorithms(config.chap_weak))
        }
    };
    let demand = |volume: &Served| Some((volume.target.clone(), volume.protection.0?));
    let demands = config.volumes.iter().filter_map(demand);
    demands.fold(policy, |policy, (target, least)| policy.demanding(target, least))
}

/// What the clients are given of a server that has not enough for all.
pub(super) fn shares(config: &Config) -> Vec<ListedShare> {
    let listed = |client: &Client| {
        let account = client.chap.as_ref().map(|chap| chap.initiator.name.clone());
        let account = account.map(ClientId::Account);
        ListedShare {
            name: client.name.clone(),
            proofs: account.into_iter().chain(client.key.map(ClientId::Key)).collect(),
            initiator: client.initiator.as_ref().map(|name| name.as_str().to_owned()),
            share: client.share,
        }
    };
    config.clients.iter().map(listed).collect()
}

/// A client that may use a media changer may use its drives likewise.
fn with_drives_of(config: &Config, client: policy::Client) -> policy::Client {
    let units = client.units.map(|units| config::units_with_drives(&units, &config.volumes));
    let read_only = config::units_with_drives(&client.read_only, &config.volumes);
    policy::Client { units, read_only, ..client }
}

pub(super) fn client(client: &Client) -> Outcome<policy::Client> {
    // Who is paused is known, and may use nothing.
    let units = |units: &[_]| if client.paused { Vec::new() } else { units.to_vec() };
    let all = || client.paused.then(Vec::new);
    Ok(policy::Client {
        initiator: client.initiator.clone(),
        account: client.chap.as_ref().map(|chap| chap.account()).transpose()?,
        key: client.key,
        units: client.units.as_deref().map(units).or_else(all),
        read_only: units(&client.read_only),
        protection: client.protection.0,
        administers: client.administers && !client.paused,
        paused: client.paused,
    })
}
