//! The clients of a device that is passed through, and what each is still to be told.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use proto::scsi::pass_through::MediumUse;

use super::super::super::Nexus;

/// Who uses a device.
#[derive(Default)]
pub(super) struct Clients(Mutex<BTreeMap<Nexus, Client>>);

struct Client {
    may_write: bool,
    /// Sense data of a deferred error.
    deferred: Option<Bytes>,
    /// It does not know what is in the drive, nor where the head of that is.
    must_look: bool,
}

impl Clients {
    pub(super) fn attach(&self, nexus: Nexus, may_write: bool) {
        self.lock().insert(nexus, Client { may_write, deferred: None, must_look: false });
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

    /// Nobody knows what is in the drive, nor where the head of that is.
    pub(super) fn must_look(&self) {
        self.lock().values_mut().for_each(|client| client.must_look = true);
    }

    /// Whether this one may send such a command. Those that rely on the medium may have been sent before it was told that
    /// another one is in the drive, or the head elsewhere.
    pub(super) fn has_looked(&self, nexus: Nexus, usage: MediumUse) -> bool {
        let mut clients = self.lock();
        let Some(client) = clients.get_mut(&nexus) else { return true };
        if usage == MediumUse::Finds {
            client.must_look = false;
        }
        usage != MediumUse::Relies || !client.must_look
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Nexus, Client>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
