//! HyperSCSI, as the SCSI side of a volume sees it: sessions with one server, all under one key.

use std::fmt;

use volume::layer::reconnect::Failure;

use super::connect::log_in;
use super::error::SessionError;
use super::session::Session;
use super::{Credentials, Server, Volume};
use crate::store::scsi::{Address, Transport};

/// Sessions with one server.
#[derive(Debug)]
pub struct HyperScsiTransport {
    volume: Volume,
    credentials: Credentials,
}

impl HyperScsiTransport {
    pub(super) const fn new(volume: Volume, credentials: Credentials) -> Self {
        Self { volume, credentials }
    }
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

    /// The server ends the connection that there was with the same key before it accepts the new one, and its sessions when
    /// none of their commands runs any more: so nothing of an uncertain session is under way.
    async fn log_in(
        &self,
        server: &Server,
        _uncertain: Option<&Session>,
    ) -> Result<Session, SessionError> {
        let volume = Volume { server: server.clone(), name: self.volume.name.clone() };
        log_in(&volume, &self.credentials).await
    }

    fn opened(&self, _session: &Session, _is_longhaul: bool) {}

    fn is_out_of_reach(why: &SessionError) -> bool {
        matches!(why, SessionError::Silent(..) | SessionError::Refused(..))
    }

    fn failure(_why: &SessionError) -> Failure {
        Failure::NoSession
    }

    /// Without a pin whoever has the site key may be the server.
    fn is_secure(&self) -> bool {
        self.credentials.pin.is_some()
    }

    fn replaces_left_session(&self) -> bool {
        true
    }

    fn note_stall(&self, _stalled: bool) {}
}
