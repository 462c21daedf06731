//! HyperSCSI, as the SCSI side of a volume sees it: sessions with one server, all under one key.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use volume::layer::reconnect::Failure;

use super::connect::{log_in, random_port};
use super::error::SessionError;
use super::session::Session;
use super::stalls::Stalls;
use super::{CONNECT_WITHIN, Credentials, Server, Volume};
use crate::store::scsi::{Address, InitiatorPort, Options, StallCount, Transport};

/// Sessions with one server.
#[derive(Debug)]
pub struct HyperScsiTransport {
    volume: Volume,
    credentials: Credentials,
    /// The number of the initiator port: the same at every login, so that each ends the session before it.
    port: u64,
    /// How long a server may take to answer.
    within: Duration,
    /// How long a command may be at the unit without an answer, where that was not slow.
    stall: Duration,
    stalls: StallCount,
    /// Where no reservation ends what a process that was killed has under way.
    noted: Option<InitiatorPort>,
}

impl HyperScsiTransport {
    pub(super) fn new(volume: Volume, credentials: Credentials, options: &Options) -> Self {
        let noted = note_port(&volume, &credentials, options);
        let port = noted.as_ref().map_or_else(random_port, |noted| noted.number);
        let within = options.login_within.min(CONNECT_WITHIN);
        let (stall, stalls) = (options.stall, StallCount::default());
        Self { volume, credentials, port, within, stall, stalls, noted }
    }
}

/// The port of one who writes beside others.
fn note_port(
    Volume { server, name, .. }: &Volume,
    credentials: &Credentials,
    options: &Options,
) -> Option<InitiatorPort> {
    let user = format!("{}\n{server}\n{name}", credentials.identity.public());
    let state: Option<&Path> = options.state.as_deref();
    InitiatorPort::for_shared((options.writers, options.read_only, state), &user, random_port)
}

impl fmt::Display for HyperScsiTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.volume.server, self.volume.name)
    }
}

impl Transport for HyperScsiTransport {
    type Session = Session;
    type Portal = Server;
    type Error = SessionError;

    /// A volume is called by its name, and is the only unit there.
    fn address(&self) -> Address {
        Address {
            target: self.volume.name.clone(),
            lun: 0,
            portal: self.volume.server.to_string(),
            pin: self.credentials.pin.as_ref().map(ToString::to_string),
        }
    }

    fn portals(&self) -> Vec<Server> {
        vec![self.volume.server.clone()]
    }

    /// The server ends the connection that there was of the same port before it accepts the new one, and its sessions when
    /// none of their commands runs any more: so nothing of an uncertain session is under way.
    async fn log_in(
        &self,
        server: &Server,
        _uncertain: Option<&Session>,
        within: Duration,
    ) -> Result<Session, SessionError> {
        let volume = Volume { server: server.clone(), ..self.volume.clone() };
        let stalls = Stalls::new((self.stall, self.stalls.times()));
        log_in(&volume, &self.credentials, (self.port, self.within.min(within)), stalls).await
    }

    fn opened(&self, _session: &Session, _is_longhaul: bool) {}

    fn is_out_of_reach(why: &SessionError) -> bool {
        matches!(why, SessionError::Silent(..) | SessionError::Refused(..))
    }

    fn is_silent(why: &SessionError) -> bool {
        matches!(why, SessionError::Silent(..))
    }

    fn failure(_why: &SessionError) -> Failure {
        Failure::NoSession
    }

    /// Without a pin whoever has the site key may be the server.
    fn is_secure(&self) -> bool {
        self.credentials.pin.is_some()
    }

    fn replaces_left_session(&self) -> bool {
        self.noted.as_ref().is_some_and(|port| port.is_left)
    }

    fn note_logout(&self) {
        if let Some(port) = &self.noted {
            port.forget();
        }
    }

    fn note_stall(&self, stalled: bool) {
        self.stalls.note(stalled);
    }
}
