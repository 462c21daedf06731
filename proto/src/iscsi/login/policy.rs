//! Which initiators may use which targets, and how they prove who they are.

use std::collections::BTreeMap;

use crate::client::ClientId;
use crate::identity::PublicKey;
use crate::iscsi::chap::{Account, Algorithm};
use crate::iscsi::name::IscsiName;
use crate::iscsi::sealed::Protection;
use crate::scsi::rights::{Access, Rights};

/// What a target node lets whom do.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    targets: Vec<IscsiName>,
    /// Anyone may use every target.
    open: bool,
    clients: Vec<Client>,
    algorithms: Vec<Algorithm>,
    /// How sessions with a target must be sealed, at least.
    demands: BTreeMap<IscsiName, Protection>,
}

/// One initiator, or several that share an account.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// Its node name; `None` for any, told apart by account.
    pub initiator: Option<IscsiName>,
    /// How it proves itself with CHAP.
    pub account: Option<Account>,
    /// How it proves itself in a sealed session. Without this and an account its name is enough; with
    /// both either will do.
    pub key: Option<PublicKey>,
    /// The units it may read and write; `None` for all.
    pub units: Option<Vec<UnitName>>,
    /// The units it may only read.
    pub read_only: Vec<UnitName>,
    /// How its sessions must be sealed, at least, whatever they are with.
    pub protection: Option<Protection>,
    /// It may administer the server, where it has proved its key.
    pub administers: bool,
    /// It may not log in for now, and is told so once it has proved who it is.
    pub paused: bool,
}

/// A logical unit of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitName {
    /// The target.
    pub target: IscsiName,
    /// Its number there.
    pub lun: u16,
}

impl Client {
    fn rights(&self, target: &IscsiName) -> Rights {
        let Some(units) = &self.units else { return Rights::All };
        let those = |units: &[UnitName], access| {
            let here = units.iter().filter(|unit| unit.target == *target);
            Rights::Units(here.map(|unit| (unit.lun, access)).collect())
        };
        those(units, Access::Write).and(those(&self.read_only, Access::Read))
    }

    /// Whether it has nothing to prove.
    const fn is_unproven(&self) -> bool {
        self.account.is_none() && self.key.is_none()
    }

    fn is_proven_by(&self, proven: &ClientId) -> bool {
        match proven {
            ClientId::Unauthenticated => self.is_unproven(),
            ClientId::Account(name) => {
                self.account.as_ref().is_some_and(|account| account.initiator().name == *name)
            }
            // Who needs no proof may have one: its session is sealed all the same.
            ClientId::Key(key) => self.key == Some(*key) || self.is_unproven(),
        }
    }
}

impl Policy {
    /// Anyone may use every target.
    #[must_use]
    pub fn open(targets: Vec<IscsiName>) -> Self {
        Self { targets, open: true, ..Self::default() }
    }

    /// Only these clients may use the targets; `algorithms` are those allowed for CHAP.
    #[must_use]
    pub fn closed(
        targets: Vec<IscsiName>,
        clients: Vec<Client>,
        algorithms: Vec<Algorithm>,
    ) -> Self {
        Self { targets, clients, algorithms, ..Self::default() }
    }

    /// The same policy, which demands of sessions with `target` to be sealed so, or better; the most that was
    /// ever demanded holds.
    #[must_use]
    pub fn demanding(mut self, target: IscsiName, protection: Protection) -> Self {
        let least = self.demands.entry(target).or_insert(protection);
        *least = protection.max(*least);
        self
    }

    /// The same policy with one client more.
    #[must_use]
    pub fn with_client(mut self, client: Client) -> Self {
        self.clients.push(client);
        self
    }

    /// How sessions with a target must be sealed, at least.
    pub(super) fn demanded(&self, target: &IscsiName) -> Option<Protection> {
        self.demands.get(target).copied()
    }

    /// How the sessions of an initiator that proved what it did must be sealed, at least: the most that any client that
    /// it may be demands.
    pub(super) fn demanded_of(
        &self,
        initiator: &IscsiName,
        proven: &ClientId,
    ) -> Option<Protection> {
        let clients = self.candidates(initiator).filter(|client| client.is_proven_by(proven));
        clients.filter_map(|client| client.protection).max()
    }

    /// Whether there is such a target.
    #[must_use]
    pub fn has(&self, target: &IscsiName) -> bool {
        self.targets.contains(target)
    }

    /// Whether this initiator can prove itself, and whether it must.
    pub(super) fn demands(&self, initiator: &IscsiName) -> Demand {
        let mut candidates = self.candidates(initiator).peekable();
        if self.open {
            Demand::Nothing
        } else if self.clients.is_empty() {
            // Who proves what it is, is told that it is not listed.
            Demand::Proof
        } else if candidates.peek().is_none() {
            Demand::Impossible
        } else if candidates.all(|client| !client.is_unproven()) {
            Demand::Proof
        } else {
            Demand::Nothing
        }
    }

    /// The account an initiator answers for under this CHAP name.
    pub(super) fn account<'a>(
        &'a self,
        initiator: &'a IscsiName,
        chap_name: &str,
    ) -> Option<&'a Account> {
        self.candidates(initiator)
            .filter_map(|client| client.account.as_ref())
            .find(|account| account.initiator().name == chap_name)
    }

    pub(super) fn has_accounts(&self, initiator: &IscsiName) -> bool {
        self.candidates(initiator).any(|client| client.account.is_some())
    }

    /// Whether someone with this key may come under this name.
    pub(super) fn knows(&self, initiator: &IscsiName, key: PublicKey) -> bool {
        let proven = ClientId::Key(key);
        self.open || self.candidates(initiator).any(|it| it.is_proven_by(&proven))
    }

    /// The first of the numbers in a CHAP_A list that is allowed (RFC 7143, 12.1.3).
    pub(super) fn algorithm(&self, numbers: impl Iterator<Item = u64>) -> Option<Algorithm> {
        let mut known = numbers.filter_map(Algorithm::from_number);
        known.find(|algorithm| self.algorithms.contains(algorithm))
    }

    /// The targets an initiator may use, after it proved what it did.
    #[must_use]
    pub fn visible(&self, initiator: &IscsiName, proven: &ClientId) -> Vec<IscsiName> {
        let allowed = |target: &&IscsiName| self.rights(initiator, proven, target).is_some();
        self.targets.iter().filter(allowed).cloned().collect()
    }

    /// Whether all clients that this initiator has proven to be are paused. Somebody without proof is none of them: names are
    /// in clear.
    pub(super) fn pauses(&self, initiator: &IscsiName, proven: &ClientId) -> bool {
        let is_proven = |client: &&Client| !client.is_unproven() && client.is_proven_by(proven);
        let mut clients = self.candidates(initiator).filter(is_proven).peekable();
        !self.open && clients.peek().is_some() && clients.all(|client| client.paused)
    }

    /// What an initiator that proved what it did may do with a target: all that the clients it may be are
    /// allowed. `None` if it may not do anything.
    #[must_use]
    pub fn rights(
        &self,
        initiator: &IscsiName,
        proven: &ClientId,
        target: &IscsiName,
    ) -> Option<Rights> {
        if !self.has(target) {
            return None;
        }
        if self.open {
            return Some(Rights::All);
        }
        let clients = self.candidates(initiator).filter(|client| client.is_proven_by(proven));
        clients.map(|client| client.rights(target)).reduce(Rights::and)?.any()
    }

    /// What somebody with this key may do with a target, by whatever name: of a transport whose clients are known by their
    /// keys alone. `None` if it may not do anything.
    #[must_use]
    pub fn rights_of_key(&self, key: PublicKey, target: &str) -> Option<Rights> {
        let target = self.targets.iter().find(|known| known.as_str() == target)?;
        if self.open {
            return Some(Rights::All);
        }
        let clients = self.clients.iter().filter(|client| client.key == Some(key));
        clients.map(|client| client.rights(target)).reduce(Rights::and)?.any()
    }

    /// How sessions of somebody with this key with a target must be protected, at least, of a transport whose clients are known by
    /// their keys alone.
    #[must_use]
    pub fn demanded_of_key(&self, key: PublicKey, target: &str) -> Option<Protection> {
        let mut targets = self.demands.iter().filter(|(known, _)| known.as_str() == target);
        let clients = self.clients.iter().filter(|client| client.key == Some(key));
        targets.next().map(|(_, least)| *least).max(clients.filter_map(|it| it.protection).max())
    }

    /// Whether all clients with this key are paused, of a transport whose clients are known by their keys alone.
    #[must_use]
    pub fn pauses_key(&self, key: PublicKey) -> bool {
        let mut clients = self.clients.iter().filter(|client| client.key == Some(key)).peekable();
        !self.open && clients.peek().is_some() && clients.all(|client| client.paused)
    }

    /// Whether an initiator that proved what it did may administer the server. A key is proved in secure sessions alone.
    #[must_use]
    pub fn administers(&self, initiator: &IscsiName, proven: &ClientId) -> bool {
        let ClientId::Key(key) = proven else { return false };
        self.candidates(initiator).any(|client| client.administers && client.key == Some(*key))
    }

    /// The same of somebody with this key, by whatever name.
    #[must_use]
    pub fn key_administers(&self, key: PublicKey) -> bool {
        self.clients.iter().any(|client| client.administers && client.key == Some(key))
    }

    /// Whether a session that came in under `before` could have come in so too: neither what it must do has
    /// changed nor the secret it has proven to know. What it may do is another question: see
    /// [`rights`](Self::rights).
    #[must_use]
    pub fn keeps(
        &self,
        before: &Self,
        initiator: &IscsiName,
        proven: &ClientId,
        target: &IscsiName,
    ) -> bool {
        self.keeps_account(before, initiator, proven)
            && self.demanded(target) == before.demanded(target)
            && self.demanded_of(initiator, proven) == before.demanded_of(initiator, proven)
    }

    /// Whether the secret that an initiator has proven to know under `before` is that of the same account now.
    #[must_use]
    pub fn keeps_account(&self, before: &Self, initiator: &IscsiName, proven: &ClientId) -> bool {
        let accounts = |policy: &Self| match proven {
            ClientId::Account(name) => policy.account(initiator, name).cloned(),
            ClientId::Unauthenticated | ClientId::Key(_) => None,
        };
        match (accounts(self), accounts(before)) {
            (Some(new), Some(old)) => new.is_same(&old),
            (new, old) => new.is_none() && old.is_none(),
        }
    }

    /// The clients this initiator may be.
    fn candidates<'a>(&'a self, initiator: &'a IscsiName) -> impl Iterator<Item = &'a Client> {
        let named =
            move |client: &&Client| client.initiator.as_ref().is_none_or(|name| name == initiator);
        self.clients.iter().filter(named)
    }
}

/// What a policy demands of an initiator before it lets it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Its name is enough.
    Nothing,
    /// It must prove itself, in one of the ways its clients have.
    Proof,
    /// It is not known.
    Impossible,
}
