//! From an invitation to a server that lists this machine.

use proto::identity::PublicKey;
use proto::iscsi::sealed::InvitationSecret;

use super::Login;
use crate::explain::explain_connect;
use crate::failure::{Failure, Outcome};
use crate::store::iscsi::{self, ConnectError, SessionError};
use crate::uri::Host;

/// Shows the secret of an invitation to the server that has this key; afterwards it lists the identity of this machine. Gives
/// the first of `portals` that answers.
pub async fn enrol(
    portals: &[Host],
    login: &Login,
    (server, secret): (PublicKey, &InvitationSecret),
) -> Outcome<Host> {
    let what = || "cannot use the invitation".to_owned();
    let mut unreachable = None;
    for portal in portals {
        match log_in(portal, login, (server, Some(secret))).await? {
            Ok(()) => return Ok(portal.clone()),
            Err(why) if is_unreachable(&why) => {
                unreachable.get_or_insert(why);
            }
            // The last answer to an earlier try may have been lost.
            Err(why) => match log_in(portal, login, (server, None)).await? {
                Ok(()) => return Ok(portal.clone()),
                Err(_) => return Err(explain_connect(what(), why)),
            },
        }
    }
    let why = unreachable.map(|why| explain_connect(what(), why));
    Err(why.unwrap_or_else(|| Failure::new(what()).because("it has no address")))
}

/// Logs in and out again.
async fn log_in(
    portal: &Host,
    login: &Login,
    (server, secret): (PublicKey, Option<&InvitationSecret>),
) -> Outcome<Result<(), ConnectError>> {
    let mut options = login.connect_options(Some(server))?;
    options.pinned.iter_mut().for_each(|pinned| pinned.invitation = secret.cloned());
    Ok(iscsi::discover(portal, &options).await.map(drop))
}

fn is_unreachable(why: &ConnectError) -> bool {
    matches!(why, ConnectError::Session(SessionError::Connect(..) | SessionError::Timeout(..)))
}
