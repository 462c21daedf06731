//! The login phase of a connection.

use std::sync::Arc;

use proto::iscsi::header::{Header, Lengths};
use proto::iscsi::login::target::{
    Admission, Established, Peer, PortalRules, Progress, Reason, Refusal, TargetLogin,
    invalid_during_login,
};
use proto::iscsi::login::{Entropy, LoginStatus};
use proto::iscsi::pdu::{Frame, Outbox, Pdu};
use proto::iscsi::sealed::Seals;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::warn;

use super::enrolment::NewClient;
use super::joining::{Entry, Join, Joins, Place, SessionInfo, session_to_join};
use super::logins::{LoginProgress, LoginStage};
use super::node::{Admittance, Node};
use super::pdu_stream::{PduStream, StreamError};
use crate::log_limiter::Permit;
use crate::target::node::Serving;
use crate::target::sessions::{AddSessionError, SessionHandle};

/// Why a login came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoginError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("refused: {0}")]
    Refused(Reason),
    #[error("it sent something else than a login request")]
    NoLogin,
    #[error("no random numbers: {0}")]
    Random(getrandom::Error),
}

/// A connection whose login has ended.
pub(super) struct LoggedIn {
    pub(super) handle: SessionHandle<SessionInfo>,
    /// Connections that come to join the session.
    pub(super) arrivals: Joins,
    pub(super) established: Established,
    /// What all that follows is sealed with.
    pub(super) seals: Option<Box<Seals>>,
}

/// What a login leads to.
pub(super) enum Outcome {
    /// A session.
    Session(Box<LoggedIn>),
    /// Another connection of this session, if that takes it.
    Connection(Box<Admission>, Place),
}

/// Takes a new connection through its login, in bounded time. `who` is there as soon as it has said so,
/// whatever comes of it.
pub(super) async fn log_in(
    node: &Node,
    stream: &mut PduStream,
    rules: PortalRules,
    who: &mut Option<Peer>,
    progress: &LoginProgress,
) -> Result<Outcome, LoginError> {
    timeout(node.limits().login, exchange(node, stream, rules, who, progress))
        .await
        .unwrap_or(Err(LoginError::Stream(StreamError::Late)))
}

async fn exchange(
    node: &Node,
    stream: &mut PduStream,
    rules: PortalRules,
    who: &mut Option<Peer>,
    progress: &LoginProgress,
) -> Result<Outcome, LoginError> {
    let mut serving = node.target.serving();
    let login = TargetLogin::new(Arc::clone(&serving.authorization.login), rules, entropy()?);
    let live = node.enrolment.as_ref().map(|enrolment| enrolment.live());
    let mut login = login.with_invitations(live.unwrap_or_default());
    let mut begun = false;
    loop {
        let Frame::Pdu(Pdu { header, data, .. }) = stream.frame().await? else {
            return Err(LoginError::NoLogin);
        };
        let Header::LoginRequest(request) = header else {
            let bhs = header.emit(Lengths::default());
            let itt = u32::from_be_bytes([bhs[16], bhs[17], bhs[18], bhs[19]]);
            // RFC 7143, 4.2.4: who does not begin with a login is not answered.
            if begun {
                send(stream, invalid_during_login(itt)).await?;
            }
            return Err(LoginError::NoLogin);
        };
        begun = true;
        progress.reach(LoginStage::Begun);
        match login.handle(&request, &data, &stream.decoder.transcript()) {
            Progress::Continue(next, response) => {
                *who = next.peer();
                if next.has_proven() {
                    progress.reach(LoginStage::Proven);
                }
                send(stream, response).await?;
                login = *next;
            }
            Progress::Admit(admission) => {
                progress.reach(LoginStage::Proven);
                let Established { initiator, target, .. } = admission.established().clone();
                *who = Some(Peer { initiator, target });
                let admission = match enrol(node, *admission).await {
                    Ok(admission) => admission,
                    Err(refusal) => return Err(refuse(stream, *refusal).await?),
                };
                if admission.established().invitation.is_some() {
                    // It is listed there.
                    serving = node.target.serving();
                }
                let port = rules.portal_group_tag;
                return admit(node, &serving, (stream, port), admission).await;
            }
            Progress::Refused(refusal) => {
                who.clone_from(&refusal.peer);
                return Err(refuse(stream, refusal).await?);
            }
        }
    }
}

/// Lists a client that came with an invitation, before it is told that it may log in. Any other is admitted as it is.
async fn enrol(node: &Node, admission: Admission) -> Result<Admission, Box<Refusal>> {
    let Some(client) = NewClient::of(admission.established()) else { return Ok(admission) };
    let outcome = match &node.enrolment {
        Some(enrolment) => enrolment.enrol(client).await,
        None => Err(LoginStatus::AUTHENTICATION_FAILURE),
    };
    match outcome {
        Ok(()) => Ok(admission),
        Err(status) => Err(Box::new(admission.refuse(status))),
    }
}

fn entropy() -> Result<Entropy, LoginError> {
    let mut outcome = Ok(());
    let entropy = Entropy::fresh(&mut |bytes| {
        if let Err(error) = getrandom::fill(bytes) {
            outcome = Err(LoginError::Random(error));
        }
    });
    outcome.map(|()| entropy)
}

/// Gives the session its place, after the one it replaces has ended, and says so to the initiator. A
/// connection for a session that is there is for that to place.
async fn admit(
    node: &Node,
    serving: &Serving<Admittance>,
    (stream, port): (&mut PduStream, u16),
    admission: Admission,
) -> Result<Outcome, LoginError> {
    let peer = stream.peer_addr().map_err(StreamError::Io)?;
    let established = admission.established();
    let (info, arrivals) = SessionInfo::new(established, peer);
    let identity = info.identity(established.proven.clone(), port);
    let (sessions, quota) = (&node.target.sessions, node.limits().client_quota());
    if established.tsih != 0 {
        let (tsih, joining) = (established.tsih, (&identity, &info));
        return match session_to_join(sessions, tsih, joining, quota) {
            Ok(place) => Ok(Outcome::Connection(Box::new(admission), place)),
            Err(status) => Err(refuse(stream, admission.refuse(status)).await?),
        };
    }
    let handle = loop {
        match sessions.add(&identity, quota, || info.clone()) {
            Ok(handle) => break handle,
            Err(AddSessionError::Taken(old)) => {
                // It has to wait for its commands; while one of those is stuck, nobody takes its place, as
                // it could still touch the medium. The initiator is told in time to try again.
                if timeout(node.limits().login / 2, old.gone()).await.is_err() {
                    let refusal = admission.refuse(LoginStatus::SERVICE_UNAVAILABLE);
                    return Err(refuse(stream, refusal).await?);
                }
            }
            Err(AddSessionError::Full) => {
                let refusal = admission.refuse(LoginStatus::OUT_OF_RESOURCES);
                return Err(refuse(stream, refusal).await?);
            }
        }
    };
    // From here on a change finds this session among the others; one that came before is met here.
    if !node.target.serving().keeps(serving, &handle.entry) {
        let refusal = admission.refuse(LoginStatus::SERVICE_UNAVAILABLE);
        return Err(refuse(stream, refusal).await?);
    }
    warn_of_shared_name(node, &handle.entry);
    let (response, established, seals) = admission.admit(handle.entry.number);
    send(stream, response).await?;
    Ok(Outcome::Session(Box::new(LoggedIn { handle, arrivals, established, seals })))
}

/// Two clients that use one name do each other no harm, but whoever reads of that name must not take the one for the
/// other.
fn warn_of_shared_name(node: &Node, entry: &Entry) {
    let peer = entry.transport.peer;
    if node.target.sessions.has_same_name(entry)
        && let Some(Permit { suppressed }) = node.log_limiter.permit(peer)
    {
        let (initiator, client) = (&*entry.identity.name, &entry.identity.client);
        warn!(%peer, initiator, %client, suppressed, "another client uses the same initiator name");
    }
}

/// Hands a connection over to its session, and returns when it has ended or was not taken.
pub(super) async fn join(
    stream: PduStream,
    admission: Admission,
    place: Place,
) -> Result<(), LoginError> {
    let (back, refused) = oneshot::channel();
    place.session().transport.join(Join { stream, admission, place, back });
    match refused.await {
        Ok(refused) => {
            let (mut stream, refusal) = *refused;
            Err(refuse(&mut stream, refusal).await?)
        }
        // Dropped: the connection is over, or the session was before it looked.
        Err(_) => Ok(()),
    }
}

async fn refuse(stream: &mut PduStream, refusal: Refusal) -> Result<LoginError, StreamError> {
    send(stream, refusal.response).await?;
    Ok(LoginError::Refused(refusal.reason))
}

async fn send(stream: &mut PduStream, pdu: Pdu) -> Result<(), StreamError> {
    let mut outbox = Outbox::new();
    outbox.push_pdu(pdu);
    Ok(stream.flush(&mut outbox).await?)
}
