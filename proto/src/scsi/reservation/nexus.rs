//! Who holds a registration: an I_T nexus under a name that outlives its sessions.

use crate::client::ClientId;
use crate::scsi::transport::InitiatorPort;

/// An I_T nexus: an initiator port and a target port (SAM-5). Two sessions of the same client with the same name, one
/// after the other, are the same nexus. Initiator ports of different clients are different ones whatever they are
/// called, as the identifier of a port is only claimed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NexusId {
    /// The initiator port.
    pub initiator: InitiatorPort,
    /// The relative target port identifier of the target port.
    pub target_port: u16,
    /// The client whose initiator port it is.
    pub client: ClientId,
}

impl NexusId {
    /// The same under its name alone, as a client has it that has proven nothing.
    pub(super) fn bare(&self) -> Self {
        Self { client: ClientId::Unauthenticated, ..self.clone() }
    }
}
