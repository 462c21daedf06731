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

/// A persistent reservation. Its scope is always the logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
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
    pub(super) held: Option<Held>,
    /// APTPL, as it was last received.
    pub(super) through_power_loss: bool,
}

impl Held {
    /// The reservation that `nexus` makes.
    pub(super) fn by(nexus: &NexusId, kind: Kind) -> Self {
        let holder = if kind.all_hold() { Holder::Everyone } else { Holder::One(nexus.clone()) };
        Self { kind, holder }
    }
}

impl Registry {
    pub(super) fn key(&self, nexus: &NexusId) -> Option<Key> {
        self.registrants.get(nexus).copied()
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
            (Class::Reads | Class::Writes, Some(_)) => self.is_trusted(nexus),
        }
    }

    /// SPC-4, 5.13.3, which the CRH bit announces: RESERVE and RELEASE do nothing, with GOOD status, from
    /// those whom the reservation does not keep out. SPC-2, 5.5.1: from others they conflict as long as
    /// anyone is registered.
    pub(super) fn indulges(&self, nexus: &NexusId) -> Result<(), Conflict> {
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
        self.registrants.insert(nexus, key);
        Ok(())
    }

    /// Removes a registration and what depends on it: the reservation of which `nexus` was the holder, or
    /// the last of them. Gives back the reservation that ended so.
    pub(super) fn unregister(&mut self, nexus: &NexusId) -> Option<Held> {
        self.registrants.remove(nexus)?;
        let ends = match &self.held.as_ref()?.holder {
            Holder::Everyone => self.registrants.is_empty(),
            Holder::One(holder) => holder == nexus,
        };
        if ends { self.held.take() } else { None }
    }
}
