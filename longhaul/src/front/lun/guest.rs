//! An initiator for tests.

use std::future::ready;
use std::sync::{Arc, Mutex};

use proto::iscsi::login::policy::Proven;
use proto::iscsi::name::{IscsiName, Isid};
use proto::scsi::ports::PORT;
use proto::scsi::reservation::{InitiatorPort, NexusId};

use super::{Initiator, Waiting};

/// An initiator that notes which units it was asked to end its tasks on.
pub(super) struct Guest {
    id: NexusId,
    pub(super) aborted: Mutex<Vec<u16>>,
}

impl Guest {
    /// Guest `n`: another is another initiator port, the same is the same one again.
    pub(super) fn new(n: u8) -> Arc<Self> {
        Self::of(n, Proven::Nothing)
    }

    /// Guest `n` that has proven to have a CHAP account.
    pub(super) fn proven(n: u8, account: &str) -> Arc<Self> {
        Self::of(n, Proven::Chap(account.to_owned()))
    }

    fn of(n: u8, client: Proven) -> Arc<Self> {
        let name = IscsiName::new(&format!("iqn.2001-04.com.example:{n}")).unwrap();
        let initiator = InitiatorPort { name, isid: Isid([0x80, 0, 0, 0, 0, n]) };
        let id = NexusId { initiator, target_port: PORT, client };
        Arc::new(Self { id, aborted: Mutex::default() })
    }
}

impl Initiator for Guest {
    fn id(&self) -> &NexusId {
        &self.id
    }

    fn abort_tasks(&self, lun: u16) -> Waiting<()> {
        self.aborted.lock().unwrap().push(lun);
        Box::pin(ready(()))
    }
}
