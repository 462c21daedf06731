//! The clients of a device that is passed through, and what each is still to be told.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use proto::scsi::pass_through::HeadUse;

use super::super::super::Nexus;

/// Who uses a device.
#[derive(Default)]
pub(super) struct Clients(Mutex<BTreeMap<Nexus, Client>>);

struct Client {
    may_write: bool,
    /// Sense data of a deferred error.
    deferred: Option<Bytes>,
    /// It does not know where the head of the drive is.
    has_lost_head: bool,
}

impl Clients {
    pub(super) fn attach(&self, nexus: Nexus, may_write: bool) {
        self.lock().insert(nexus, Client { may_write, deferred: None, has_lost_head: false });
    }

    pub(super) fn detach(&self, nexus: Nexus) {
        self.lock().remove(&nexus);
    }

    pub(super) fn any_may_write(&self) -> bool {
        self.lock().values().any(|client| client.may_write)
    }

    /// Data that a command had written before could not be kept (SPC-4, 4.5): all who may have sent that command are told,
    /// but `told`, who has heard it from the device.
    pub(super) fn defer(&self, sense: &Bytes, told: Option<Nexus>) {
        let mut clients = self.lock();
        let others = clients.iter_mut().filter(|(nexus, it)| it.may_write && Some(**nexus) != told);
        others.for_each(|(_, client)| client.deferred = Some(sense.clone()));
    }

    /// What this one is to be told.
    pub(super) fn take_deferred(&self, nexus: Nexus) -> Option<Bytes> {
        self.lock().get_mut(&nexus)?.deferred.take()
    }

    /// Nobody knows where the head of the drive is.
    pub(super) fn lose_head(&self) {
        self.lock().values_mut().for_each(|client| client.has_lost_head = true);
    }

    /// Whether this one may send such a command to a tape drive. Those that begin where the head is may have been sent before
    /// it was told that the head is elsewhere.
    pub(super) fn knows_head(&self, nexus: Nexus, usage: HeadUse) -> bool {
        let mut clients = self.lock();
        let Some(client) = clients.get_mut(&nexus) else { return true };
        if usage == HeadUse::Finds {
            client.has_lost_head = false;
        }
        usage != HeadUse::Begins || !client.has_lost_head
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Nexus, Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
