//! From an invitation to a server that lists this machine.

use proto::identity::PublicKey;
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::initiator::LoginError;
use proto::iscsi::name::IscsiName;
use proto::iscsi::sealed::InvitationSecret;

use super::Login;
use crate::explain::explain_connect;
use crate::failure::{Failure, Outcome};
use crate::store::iscsi::{self, ConnectError, SessionError};
use crate::uri::Host;

/// What became of an invitation.
pub enum Enrolment {
    /// The server took it, and lists the identity of this machine under its name.
    Taken(Host),
    /// The server took it not, and lets this machine in without: its key was listed before, perhaps at an earlier try whose
    /// last answer was lost. Under which name, and to do what, the server does not say.
    KnownBefore(Host),
}

/// Shows the secret of an invitation to the server that has this key; afterwards it lists the identity of this machine. Gives
/// the first of `portals` that answers.
pub async fn enrol(
    portals: &[Host],
    login: &Login,
    (server, secret): (PublicKey, &InvitationSecret),
    target: &IscsiName,
) -> Outcome<Enrolment> {
    let what = || "cannot use the invitation".to_owned();
    let mut unreachable = None;
    for portal in portals {
        match log_in(portal, login, (server, Some(secret))).await? {
            Ok(_) => return Ok(Enrolment::Taken(portal.clone())),
            Err(why) if is_unreachable(&why) => {
                unreachable.get_or_insert(why);
            }
            Err(why) if was_not_listed(&why) => return Err(explain_connect(what(), why)),
            Err(why) => {
                let seen = log_in(portal, login, (server, None)).await?;
                let is_seen =
                    seen.is_ok_and(|seen| seen.iter().any(|name| name == target.as_str()));
                return match is_seen {
                    true => Ok(Enrolment::KnownBefore(portal.clone())),
                    false => Err(explain_connect(what(), why)),
                };
            }
        }
    }
    let why = unreachable.map(|why| explain_connect(what(), why));
    Err(why.unwrap_or_else(|| Failure::new(what()).because("it has no address")))
}

/// Logs in and out again; the targets that the server shows.
async fn log_in(
    portal: &Host,
    login: &Login,
    (server, secret): (PublicKey, Option<&InvitationSecret>),
) -> Outcome<Result<Vec<String>, ConnectError>> {
    let mut options = login.connect_options(Some(server))?;
    options.pinned.iter_mut().for_each(|pinned| pinned.invitation = secret.cloned());
    let targets = iscsi::discover(portal, &options).await;
    Ok(targets.map(|targets| targets.into_iter().map(|target| target.name).collect()))
}

/// Whether the server has said that it wanted to list this machine, and could not.
fn was_not_listed(why: &ConnectError) -> bool {
    matches!(why.login(), Some(LoginError::Refused(LoginStatus::TARGET_ERROR)))
}

fn is_unreachable(why: &ConnectError) -> bool {
    matches!(why, ConnectError::Session(SessionError::Connect(..) | SessionError::Timeout(..)))
}
