//! A server that is administered over the network, by way of one of its volumes.

use std::fmt;

use super::Login;
use super::store::unit::{UnitOptions, open_unit};
use crate::failure::{Failure, Outcome};
use crate::store::scsi::{AdministrationError, RawUnit, ask_server};
use crate::uri::{Location, Uri};

/// A session with it.
pub struct Administered(Box<dyn RawUnit>);

impl fmt::Debug for Administered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Administered").finish_non_exhaustive()
    }
}

/// Logs in to the server of a volume, which is neither opened nor reserved.
pub async fn administer(uri: &Uri, login: Login) -> Outcome<Administered> {
    let what = || format!("cannot administer the server of {uri}");
    // Who is taken for the server is told secrets, and could confirm what did not happen.
    let is_known = match uri.location() {
        Location::Unit(unit) => login.seal.pinned(unit.pin)?.is_some(),
        Location::Served(served) => served.pin.or(login.seal.pin).is_some(),
        // It is refused for what it is.
        _ => true,
    };
    if !is_known {
        let why = "that takes a secure session, and the URI names no key of the server";
        let hint = "use the URI that the server prints, which ends in ?pin=KEY, or --pin KEY";
        return Err(Failure::usage(what()).because(why).hint(hint));
    }
    let options = UnitOptions { login, ..UnitOptions::default() };
    open_unit(uri, &options).await.map(Administered)
}

impl Administered {
    /// Has the server carry out a request; its answer.
    pub async fn ask(&self, request: &str) -> Outcome<String> {
        ask_server(&*self.0, request).await.map_err(|why| match why {
            AdministrationError::Refused(why) => Failure::new(why),
            AdministrationError::NotAllowed => Failure::new(why.to_string()).hint(
                "on the server: `administrator = true` in the client's table, and `longhaul reload`; its sessions must be encrypted \
                 (--protection encrypt)",
            ),
            why => Failure::new("the server was asked, and there is no answer").because(why),
        })
    }

    /// Logs out.
    pub async fn close(self) {
        self.0.close().await;
    }
}
