//! iSCSI, as the SCSI side of a volume sees it: sessions with one target, all under one name.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proto::iscsi::name::Isid;
use volume::layer::reconnect::Failure;

use super::error::SessionError;
use super::login::log_in;
use super::random::random;
use super::session::Session;
use super::{ConnectOptions, IscsiTarget, discover};
use crate::store::scsi::{Address, InitiatorPort, StallCount, Transport};
use crate::uri::Host;

/// How long a target may take to say where else it listens.
const OTHERS_WITHIN: Duration = Duration::from_secs(30);

/// Sessions with one target.
#[derive(Debug)]
pub struct IscsiTransport {
    target: IscsiTarget,
    options: ConnectOptions,
    /// Where else the target listens, as it said last.
    others: Arc<Mutex<Vec<Host>>>,
    stalls: StallCount,
    /// Where no reservation ends what a process that was killed has under way.
    port: Option<InitiatorPort>,
}

impl fmt::Display for IscsiTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IscsiTarget { portal, name, lun } = &self.target;
        write!(f, "iscsi://{portal}/{name}/{lun}")
    }
}

impl IscsiTransport {
    pub(super) fn new(target: IscsiTarget, options: &ConnectOptions) -> Result<Self, SessionError> {
        let mut options = options.clone();
        let first = Isid::random(random()?, 0);
        let port = options.isid.is_none().then(|| take_port(&target, &options, first)).flatten();
        // The same at every login, so that each ends the session before it (RFC 7143, 6.3.5).
        if let Some(port) = &port {
            let [_, _, isid @ ..] = port.number.to_be_bytes();
            options.isid = Some(Isid(isid));
        } else if options.isid.is_none() {
            options.isid = Some(first);
        }
        let (others, stalls) = Default::default();
        Ok(Self { target, options, others, stalls, port })
    }

    /// Asks where else the target listens, if that is of use.
    fn others_by(&self, session: &Session) -> Option<impl Future<Output = ()> + Send + use<>> {
        let group = session.established().portal_group_tag?;
        if !self.options.other_portals {
            return None;
        }
        let IscsiTarget { portal, name, .. } = self.target.clone();
        let (others, session) = (Arc::clone(&self.others), session.clone());
        Some(async move {
            // A target must answer this in any session (RFC 7143, appendix C); tgt, for one, closes the connection.
            let question = format!("SendTargets={}\0", name.as_str());
            let answer = tokio::time::timeout(OTHERS_WITHIN, session.text(question.into())).await;
            if let Ok(Ok(answer)) = answer {
                let found = discover::others(name.as_str(), group, &portal, &answer);
                tracing::debug!(?found, "other portals of the target");
                *others.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
        })
    }
}

/// The port of one who writes beside others; `first`, if it is the first one of its kind.
fn take_port(target: &IscsiTarget, options: &ConnectOptions, first: Isid) -> Option<InitiatorPort> {
    let IscsiTarget { name, lun, .. } = target;
    let user = format!("{}\n{}\n{lun}", options.initiator.as_str(), name.as_str());
    let number = first.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let whose = (options.writers, options.read_only, options.state.as_deref());
    InitiatorPort::for_shared(whose, &user, || number)
}

impl Transport for IscsiTransport {
    type Session = Session;
    type Portal = Host;
    type Error = SessionError;

    fn address(&self) -> Address {
        let IscsiTarget { portal, name, lun } = &self.target;
        Address {
            target: name.as_str().to_owned(),
            lun: *lun,
            portal: portal.to_string(),
            pin: self.options.pinned.as_ref().map(|pinned| pinned.target.to_string()),
        }
    }

    fn portals(&self) -> Vec<Host> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::once(&self.target.portal).chain(&*others).cloned().collect()
    }

    async fn log_in(
        &self,
        portal: &Host,
        uncertain: Option<&Session>,
        within: Duration,
    ) -> Result<Session, SessionError> {
        let is_named = |session: &Session| session.established().can_be_reinstated();
        // A reset of the unit does not reach commands that still lie in the buffers of a connection.
        if uncertain.is_some_and(|session| !is_named(session)) {
            return Err(SessionError::NotReplaced(portal.clone()));
        }
        let mut options = self.options.clone();
        options.timeouts.login = within.min(options.timeouts.login);
        options.timeouts.stall_times *= self.stalls.times();
        let session = log_in(portal, Some(&self.target.name), &options, uncertain).await?;
        if uncertain.is_some() && !is_named(&session) {
            session.close().await;
            // Its login response says so, which is not authenticated: the next may say something else.
            return Err(SessionError::NotReplacing(portal.clone()));
        }
        Ok(session)
    }

    fn opened(&self, session: &Session, is_longhaul: bool) {
        // For when it cannot be reached here any more; nobody waits for that.
        let may_be_lost = self.options.reconnect_for != Some(Duration::ZERO);
        if is_longhaul && may_be_lost {
            self.others_by(session).map(tokio::spawn);
        }
    }

    async fn look_elsewhere(&self, session: &Session) {
        if let Some(asked) = self.others_by(session) {
            asked.await;
        }
    }

    fn is_out_of_reach(why: &SessionError) -> bool {
        use SessionError::{Connect, Silent, Timeout};
        matches!(why, Connect(..) | Timeout(..) | Silent(..))
    }

    fn is_silent(why: &SessionError) -> bool {
        matches!(why, SessionError::Timeout(..) | SessionError::Silent(..))
    }

    fn failure(why: &SessionError) -> Failure {
        match why {
            SessionError::Random(_) | SessionError::NotReplaced(_) => Failure::Local,
            _ => Failure::NoSession,
        }
    }

    fn is_secure(&self) -> bool {
        self.options.pinned.is_some()
    }

    fn replaces_left_session(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.is_left)
    }

    fn note_logout(&self) {
        if let Some(port) = &self.port {
            port.forget();
        }
    }

    fn note_stall(&self, stalled: bool) {
        self.stalls.note(stalled);
    }
}
