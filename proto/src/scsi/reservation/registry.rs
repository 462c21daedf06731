//! Registrations and the persistent reservation: the part of the state that can outlive the power.

use std::collections::BTreeMap;

use super::{Class, Conflict, Kind, NexusId};
use crate::scsi::Sense;
use crate::scsi::sense::Additional;

/// A reservation key; never zero in a registration.
pub type Key = u64;

/// How many I_T nexuses may be registered with a unit: more than any cluster has paths, and few enough
/// that a peer who registers one identity after the other gets no further than some 100 KiB.
pub const REGISTRANTS_MAX: usize = 512;

/// How many nexuses that may only read may be registered with a unit, beside those.
pub const READERS_MAX: usize = 128;

/// How many of them may be of one client, so that there is room for others.
pub const READERS_OF_CLIENT_MAX: usize = 16;

/// A persistent reservation. Its scope is always the logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistentReservation {
    /// Its type.
    pub kind: Kind,
    /// Whose it is.
    pub holder: Holder,
}

/// Who holds a persistent reservation (SPC-4, 5.13.10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Every registered nexus.
    Everyone,
    /// This one, which is registered.
    One(NexusId),
}

/// Registrations, the reservation among them, and whether they outlive the power.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Registry {
    pub(super) registrants: BTreeMap<NexusId, Key>,
    /// Registrations of nexuses whose clients may only read. They let them read what is reserved for the registered.
    /// They hold nothing and keep nothing in force, so that nobody who may write depends on them.
    pub(super) readers: BTreeMap<NexusId, Key>,
    pub(super) held: Option<PersistentReservation>,
    /// APTPL, as it was last received.
    pub(super) through_power_loss: bool,
}

impl PersistentReservation {
    /// The reservation that `nexus` makes.
    pub(super) fn by(nexus: &NexusId, kind: Kind) -> Self {
        let holder = if kind.all_hold() { Holder::Everyone } else { Holder::One(nexus.clone()) };
        Self { kind, holder }
    }
}

impl Registry {
    pub(super) fn key(&self, nexus: &NexusId) -> Option<Key> {
        self.registrants.get(nexus).or_else(|| self.readers.get(nexus)).copied()
    }

    /// Every registration, those of readers last.
    pub(super) fn all(&self) -> impl Iterator<Item = (&NexusId, Key)> {
        self.registrants.iter().chain(&self.readers).map(|(nexus, key)| (nexus, *key))
    }

    /// What `asking` is told of: the registrations of those that may write, and those of readers that its own port has
    /// made. A writer takes each key that it reads for that of another writer, so that it would give way to a reader.
    pub(super) fn visible_to(&self, asking: &NexusId) -> impl Iterator<Item = (&NexusId, Key)> {
        let port = (&asking.initiator, &asking.client);
        let own = self.readers.iter().filter(move |(it, _)| (&it.initiator, &it.client) == port);
        self.registrants.iter().chain(own).map(|(nexus, key)| (nexus, *key))
    }

    pub(super) fn is_registered_by_any(&self) -> bool {
        !self.registrants.is_empty()
    }

    pub(super) fn is_holder(&self, nexus: &NexusId) -> bool {
        match self.held.as_ref().map(|held| &held.holder) {
            Some(Holder::Everyone) => self.registrants.contains_key(nexus),
            Some(Holder::One(holder)) => holder == nexus,
            None => false,
        }
    }

    /// The table of SPC-4 (table 65) and SBC-3 (table 13), by class.
    pub(super) fn allows(&self, nexus: &NexusId, class: Class) -> bool {
        match (class, &self.held) {
            (Class::Free | Class::Ready | Class::Persistent | Class::Reserve, _) | (_, None) => {
                true
            }
            (Class::Reads, Some(held)) if held.kind.shares_reads() => true,
            (Class::Reads, Some(held))
                if held.kind.admits_registrants() && self.readers.contains_key(nexus) =>
            {
                true
            }
            (Class::Reads | Class::Writes, Some(_)) => self.is_trusted(nexus),
        }
    }

    /// SPC-4, 5.13.3, which the CRH bit announces: RESERVE and RELEASE do nothing, with GOOD status, from
    /// those whom the reservation does not keep out. SPC-2, 5.5.1: from others they conflict as long as
    /// anyone is registered.
    pub(super) fn check_reserve_6(&self, nexus: &NexusId) -> Result<(), Conflict> {
        if self.is_trusted(nexus) { Ok(()) } else { Err(Conflict) }
    }

    /// A holder, or registered with a reservation that lets the registered in.
    fn is_trusted(&self, nexus: &NexusId) -> bool {
        let admitted = self.held.as_ref().is_some_and(|held| held.kind.admits_registrants());
        self.is_holder(nexus) || (admitted && self.registrants.contains_key(nexus))
    }

    /// Registers `nexus`, or gives it another key.
    pub(super) fn register(&mut self, nexus: NexusId, key: Key) -> Result<(), Sense> {
        let full = self.registrants.len() >= REGISTRANTS_MAX;
        if full && !self.registrants.contains_key(&nexus) {
            return Err(Sense::illegal(Additional::INSUFFICIENT_REGISTRATION_RESOURCES));
        }
        self.readers.remove(&nexus);
        self.registrants.insert(nexus, key);
        Ok(())
    }

    /// The same of a nexus that may only read. A registration that it made when it could write stays one of those.
    pub(super) fn register_reader(&mut self, nexus: NexusId, key: Key) -> Result<(), Sense> {
        if let Some(own) = self.registrants.get_mut(&nexus) {
            *own = key;
            return Ok(());
        }
        let of_client = self.readers.keys().filter(|other| other.client == nexus.client).count();
        let full = self.readers.len() >= READERS_MAX || of_client >= READERS_OF_CLIENT_MAX;
        if full && !self.readers.contains_key(&nexus) {
            return Err(Sense::illegal(Additional::INSUFFICIENT_REGISTRATION_RESOURCES));
        }
        self.readers.insert(nexus, key);
        Ok(())
    }

    /// What was registered under a bare name becomes that of the client that has come under it and has proven who it
    /// is; whether there was such a registration.
    pub(super) fn adopt(&mut self, nexus: &NexusId) -> bool {
        let bare = nexus.bare();
        if bare == *nexus || self.registrants.contains_key(nexus) {
            return false;
        }
        let Some(key) = self.registrants.remove(&bare) else { return false };
        self.registrants.insert(nexus.clone(), key);
        let holder = self.held.as_mut().map(|held| &mut held.holder);
        if let Some(holder) = holder.filter(|holder| **holder == Holder::One(bare)) {
            *holder = Holder::One(nexus.clone());
        }
        true
    }

    /// Removes a registration, and leaves the reservation as it is.
    pub(super) fn remove(&mut self, nexus: &NexusId) {
        self.registrants.remove(nexus);
        self.readers.remove(nexus);
    }

    /// Removes a registration and what depends on it: the reservation of which `nexus` was the holder, or
    /// the last of them. Gives back the reservation that ended so.
    pub(super) fn unregister(&mut self, nexus: &NexusId) -> Option<PersistentReservation> {
        self.readers.remove(nexus);
        self.registrants.remove(nexus)?;
        let ends = match &self.held.as_ref()?.holder {
            Holder::Everyone => self.registrants.is_empty(),
            Holder::One(holder) => holder == nexus,
        };
        if ends { self.held.take() } else { None }
    }
}
