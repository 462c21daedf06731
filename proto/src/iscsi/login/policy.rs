//! Which initiators may use which targets, and how they prove who they are.

use crate::iscsi::chap::{Account, Algorithm};
use crate::iscsi::name::IscsiName;

/// What a target node lets whom do.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    targets: Vec<IscsiName>,
    clients: Vec<Client>,
    algorithms: Vec<Algorithm>,
}

/// One initiator, or several that share an account.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its node name; `None` for any, told apart by account.
    pub initiator: Option<IscsiName>,
    /// How it proves itself; `None` if its name is enough.
    pub account: Option<Account>,
    /// The targets it may use; `None` for all.
    pub targets: Option<Vec<IscsiName>>,
}

impl Client {
    fn may_use(&self, target: &IscsiName) -> bool {
        self.targets.as_ref().is_none_or(|targets| targets.contains(target))
    }
}

impl Policy {
    /// Anyone may use every target.
    #[must_use]
    pub fn open(targets: Vec<IscsiName>) -> Self {
        Self { targets, ..Self::default() }
    }

    /// Only these clients may use the targets; `algorithms` are those allowed for CHAP.
    #[must_use]
    pub fn closed(
        targets: Vec<IscsiName>,
        clients: Vec<Client>,
        algorithms: Vec<Algorithm>,
    ) -> Self {
        // An empty list of clients would read as `open`.
        let nobody = Client { initiator: None, account: None, targets: Some(Vec::new()) };
        let clients = if clients.is_empty() { vec![nobody] } else { clients };
        Self { targets, clients, algorithms }
    }

    /// Whether there is such a target.
    #[must_use]
    pub fn has(&self, target: &IscsiName) -> bool {
        self.targets.contains(target)
    }

    /// Whether this initiator can prove itself with CHAP, and whether it must.
    pub(super) fn demands(&self, initiator: &IscsiName) -> Demand {
        let mut candidates = self.candidates(initiator).peekable();
        if self.clients.is_empty() {
            Demand::Nothing
        } else if candidates.peek().is_none() {
            Demand::Impossible
        } else if candidates.all(|client| client.account.is_some()) {
            Demand::Chap
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

    /// The first of the numbers in a CHAP_A list that is allowed (RFC 7143, 12.1.3).
    pub(super) fn algorithm(&self, numbers: impl Iterator<Item = u64>) -> Option<Algorithm> {
        let mut known = numbers.filter_map(Algorithm::from_number);
        known.find(|algorithm| self.algorithms.contains(algorithm))
    }

    /// The targets an initiator may use, after it proved itself under `chap_name`, or without.
    pub(super) fn visible(&self, initiator: &IscsiName, chap_name: Option<&str>) -> Vec<IscsiName> {
        let proven = |client: &&Client| {
            let account = client.account.as_ref();
            account.map(|account| account.initiator().name.as_str()) == chap_name
        };
        let clients: Vec<_> = self.candidates(initiator).filter(proven).collect();
        let allowed = |target: &IscsiName| {
            self.clients.is_empty() || clients.iter().any(|client| client.may_use(target))
        };
        self.targets.iter().filter(|target| allowed(target)).cloned().collect()
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
    /// It must prove itself.
    Chap,
    /// It is not known.
    Impossible,
}
