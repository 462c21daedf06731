//! The end of a login: a session takes its place.

use std::sync::Arc;

use bytes::Bytes;

use super::super::LoginStatus;
use super::security::UnprovenHandshake;
use super::{Config, Peer, Reason, Refusal, refuse};
use crate::client::ClientId;
use crate::identity::PublicKey;
use crate::iscsi::header::LoginResponse;
use crate::iscsi::keys::{Parameters, Role};
use crate::iscsi::name::{IscsiName, Isid};
use crate::iscsi::pdu::Pdu;
use crate::iscsi::sealed::{InvitationId, Seals, Transcript, Transcripts};

/// A login that has succeeded but for its place among the sessions.
///
/// Before it is admitted, the session it replaces has ended: same initiator, ISID and target with
/// TSIH zero (RFC 7143, 6.3.5).
#[derive(Debug)]
pub struct Admission {
    pub(super) response: LoginResponse,
    pub(super) text: Bytes,
    pub(super) established: Established,
    pub(super) seal: Option<Seal>,
}

/// What a session is sealed with, but for the last response, which goes into its keys as well.
#[derive(Debug)]
pub(super) struct Seal {
    pub(super) shaken: Box<UnprovenHandshake>,
    pub(super) sent: Transcript,
    pub(super) heard: Transcript,
    pub(super) config: Arc<Config>,
}

impl Seal {
    fn close(mut self, response: &Pdu, established: &Established) -> Option<Box<Seals>> {
        self.sent.add_pdu(response);
        let login = Transcripts { initiator: self.heard.hash(), target: self.sent.hash() };
        let place = (established.parameters.seal?, established.cid);
        let sealing = self.config.sealing.as_ref()?;
        Some(Box::new(Seals::new(Role::Target, sealing, &self.shaken.master, place, &login)))
    }
}

impl Admission {
    /// What the login has agreed on. Its TSIH is the one asked for, zero for a new session.
    #[must_use]
    pub const fn established(&self) -> &Established {
        &self.established
    }

    /// Admits the session under `tsih`, which is not zero; gives the last response, and what all after
    /// it is sealed with.
    #[must_use]
    pub fn admit(self, tsih: u16) -> (Pdu, Established, Option<Box<Seals>>) {
        debug_assert_ne!(tsih, 0, "RFC 7143, 11.13.3");
        let established = Established { tsih, ..self.established };
        let response = Pdu::with_data(LoginResponse { tsih, ..self.response }, self.text);
        let seals = self.seal.and_then(|seal| seal.close(&response, &established));
        (response, established, seals)
    }

    /// Adds the connection to the session it asks for, whose ExpCmdSN and MaxCmdSN these are.
    #[must_use]
    pub fn join(
        mut self,
        (exp_cmd_sn, max_cmd_sn): (u32, u32),
    ) -> (Pdu, Established, Option<Box<Seals>>) {
        self.response = LoginResponse { exp_cmd_sn, max_cmd_sn, ..self.response };
        let tsih = self.established.tsih;
        self.admit(tsih)
    }

    /// Refuses the session, or the connection.
    #[must_use]
    pub fn refuse(self, status: LoginStatus) -> Refusal {
        let Established { initiator, target, .. } = self.established;
        refuse(self.response, Reason::NotAdmitted(status), Some(Peer { initiator, target }))
    }
}

/// What a login has led to.
#[derive(Clone, Debug)]
pub struct Established {
    /// Who is there.
    pub initiator: IscsiName,
    /// Its part of the session's name.
    pub isid: Isid,
    /// This side's part.
    pub tsih: u16,
    /// The connection's number.
    pub cid: u16,
    /// The target; `None` in a discovery session.
    pub target: Option<IscsiName>,
    /// The key it has proven to have, if the session is sealed.
    pub key: Option<PublicKey>,
    /// The invitation that it came with. It is admitted once that was claimed, and its key is listed durably.
    pub invitation: Option<InvitationId>,
    /// What it has proven.
    pub proven: ClientId,
    /// The targets the initiator may use, and so what SendTargets=All tells in a discovery session.
    pub visible: Vec<IscsiName>,
    /// What was agreed: by a connection that joins a session, only what is of one connection.
    pub parameters: Parameters,
    /// The first CmdSN of the session, if this is its first connection.
    pub exp_cmd_sn: u32,
    /// The StatSN of the next PDU that carries one.
    pub stat_sn: u32,
}
