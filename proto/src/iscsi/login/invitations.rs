//! The invitations of a target: clients that it does not list yet and will, each once (docs/spec/sealed-iscsi.md, 7).
//!
//! [`Invitations`] decides which of them are good. Who admits a login that came with one
//! [claims](Invitations::claim) it, so that nobody else can, lists the client durably, and gives the claim back if that
//! fails.

use std::sync::Arc;

use super::policy::Client;
use crate::iscsi::sealed::{InvitationId, InvitationSecret};

/// The most invitations that are good at a time: each login is compared with all of them.
pub const INVITATIONS_MAX: usize = 64;

/// What an invitation makes of whoever knows its secret.
#[derive(Clone, Debug)]
pub struct Invited {
    /// By which a login names it.
    pub id: InvitationId,
    /// What the proof shows.
    pub secret: InvitationSecret,
    /// What it will be listed as, but for its key.
    pub client: Client,
}

/// An invitation that was made.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The name under which the client will be listed.
    pub name: String,
    /// When it ends, by the clock of the target: seconds since 1970.
    pub until: u64,
    /// What it makes of a client.
    pub invited: Arc<Invited>,
}

impl Issued {
    /// An invitation that is good up to `until`.
    #[must_use]
    pub fn new(name: String, until: u64, secret: InvitationSecret, client: Client) -> Self {
        let invited = Arc::new(Invited { id: secret.id(), secret, client });
        Self { name, until, invited }
    }

    const fn is_good(&self, now: u64) -> bool {
        now < self.until
    }
}

/// Why there is no other invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// There are as many as there may be.
    #[error("there are {INVITATIONS_MAX} invitations that nobody has used yet")]
    Full,
    /// A name stands for one client.
    #[error("there is an invitation under this name that nobody has used yet")]
    Taken,
}

/// Those that were not used yet. What time it is, everybody says himself.
#[derive(Debug, Default)]
pub struct Invitations(Vec<Issued>);

impl Invitations {
    /// Those that are good at `now`.
    #[must_use]
    pub fn live(&self, now: u64) -> Vec<Arc<Invited>> {
        self.good(now).map(|issued| Arc::clone(&issued.invited)).collect()
    }

    /// The same, with their names and ends.
    pub fn good(&self, now: u64) -> impl Iterator<Item = &Issued> {
        self.0.iter().filter(move |issued| issued.is_good(now))
    }

    /// Adds one.
    pub fn issue(&mut self, issued: Issued, now: u64) -> Result<(), IssueError> {
        self.0.retain(|other| other.is_good(now));
        if self.0.iter().any(|other| other.name == issued.name) {
            return Err(IssueError::Taken);
        }
        if self.0.len() >= INVITATIONS_MAX {
            return Err(IssueError::Full);
        }
        self.0.push(issued);
        Ok(())
    }

    /// Takes one out for the login that has shown its secret: it is good for no other. `None` if it is not good (any
    /// more).
    pub fn claim(&mut self, id: InvitationId, now: u64) -> Option<Issued> {
        let at = self.0.iter().position(|issued| issued.invited.id == id)?;
        Some(self.0.remove(at)).filter(|issued| issued.is_good(now))
    }

    /// The client could not be listed: the invitation is as good as before.
    pub fn give_back(&mut self, claimed: Issued) {
        self.0.push(claimed);
    }

    /// Takes out the one under this name; whether there was one.
    pub fn withdraw(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|issued| issued.name != name);
        self.0.len() < before
    }
}
