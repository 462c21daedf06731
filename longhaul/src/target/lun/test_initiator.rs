//! An initiator for tests.

use std::future::ready;
use std::sync::{Arc, Mutex};

use proto::client::ClientId;
use proto::scsi::ports::PORT;
use proto::scsi::reservation::NexusId;
use proto::scsi::transport::{InitiatorPort, Protocol};

use super::{Initiator, Waiting};

/// An initiator that notes which units it was asked to end its tasks on.
pub(super) struct TestInitiator {
    id: NexusId,
    pub(super) aborted: Mutex<Vec<u16>>,
}

impl TestInitiator {
    /// Guest `n`: another is another initiator port, the same is the same one again.
    pub(super) fn new(n: u8) -> Arc<Self> {
        Self::of(n, ClientId::Unauthenticated)
    }

    /// Guest `n` that has proven to have a CHAP account.
    pub(super) fn proven(n: u8, account: &str) -> Arc<Self> {
        Self::of(n, ClientId::Account(account.to_owned()))
    }

    fn of(n: u8, client: ClientId) -> Arc<Self> {
        let initiator =
            InitiatorPort { protocol: Protocol::new(0), id: format!("port-{n}").into() };
        let id = NexusId { initiator, target_port: PORT, client };
        Arc::new(Self { id, aborted: Mutex::default() })
    }
}

impl Initiator for TestInitiator {
    fn id(&self) -> &NexusId {
        &self.id
    }

    fn abort_tasks(&self, lun: u16) -> Waiting<()> {
        self.aborted.lock().unwrap().push(lun);
        Box::pin(ready(()))
    }
}
