//! The clients of a device that is passed through, and what each is still to be told.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::super::super::Nexus;

/// Who uses a device.
#[derive(Default)]
pub(super) struct Clients(Mutex<BTreeMap<Nexus, Client>>);

struct Client {
    may_write: bool,
    /// Sense data of a deferred error.
    deferred: Option<Bytes>,
}

impl Clients {
    pub(super) fn attach(&self, nexus: Nexus, may_write: bool) {
        self.lock().insert(nexus, Client { may_write, deferred: None });
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

    /// Does something for each. None comes or leaves meanwhile.
    pub(super) fn each(&self, work: impl FnMut(Nexus)) {
        self.lock().keys().copied().for_each(work);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Nexus, Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
