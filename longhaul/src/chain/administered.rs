//! A server that is administered over the network, by way of one of its volumes.

use super::{Login, store};
use crate::explain::explain_connect;
use crate::failure::{Failure, OrFail as _, Outcome};
use crate::store::iscsi::{self, Administration, AdministrationError};
use crate::store::{hyperscsi, scsi};
use crate::uri::{HyperScsiUri, IscsiUri, Location, Uri};

/// A session with it.
#[derive(Debug)]
pub enum Administered {
    /// By iSCSI.
    Iscsi(Administration<iscsi::Session>),
    /// By HyperSCSI.
    HyperScsi(Administration<hyperscsi::Session>),
}

/// Logs in to the server of a volume, to administer it.
pub async fn administer(uri: &Uri, login: &Login) -> Outcome<Administered> {
    let what = || format!("cannot administer the server of {uri}");
    match uri.location() {
        Location::Unit(unit) => {
            let IscsiUri { host, target, lun, pin } = unit.clone();
            let options = login.connect_options(pin).map_err(|why| why.within(&what()))?;
            if options.pinned.is_none() {
                let why = "that takes a secure session, and the URI names no key of the server";
                let hint = "use the URI that the server prints, which ends in ?pin=KEY, or --pin KEY";
                return Err(Failure::usage(what()).because(why).hint(hint));
            }
            let target = iscsi::IscsiTarget { portal: host, name: target, lun };
            let session = iscsi::administer(&target, &options).await;
            session.map(Administered::Iscsi).map_err(|why| explain_connect(what(), why))
        }
        Location::Served(volume) => {
            let HyperScsiUri { server, volume: name, pin, paths } = volume.clone();
            let credentials = store::credentials(&login.seal, pin);
            let credentials = credentials.map_err(|why| why.within(&what()))?;
            let volume = hyperscsi::Volume { server, name, paths };
            let options = scsi::Options::default();
            let session = hyperscsi::administer(&volume, &credentials, &options).await;
            session.map(Administered::HyperScsi).or_fail(what)
        }
        _ => Err(Failure::usage(what()).because("it is no volume of a server").hint(
            "name a volume of the server: iscsi://HOST/TARGET/LUN?pin=KEY or hyperscsi://HOST/VOLUME; of this machine's \
             server ask without `admin`",
        )),
    }
}

impl Administered {
    /// Has the server carry out a request; its answer.
    pub async fn ask(&self, request: &str) -> Outcome<String> {
        let answer = match self {
            Self::Iscsi(session) => session.ask(request).await,
            Self::HyperScsi(session) => session.ask(request).await,
        };
        answer.map_err(|why| match why {
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
        match self {
            Self::Iscsi(session) => session.close().await,
            Self::HyperScsi(session) => session.close().await,
        }
    }
}
