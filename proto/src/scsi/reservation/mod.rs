//! Reservations: which I_T nexus may use a logical unit, and how (SPC-4, 5.13).
//!
//! Two kinds exclude one another. *Persistent* reservations belong to registered I_T nexuses, outlive their
//! sessions and, where an initiator asks for it, the power. RESERVE and RELEASE (SPC-2) belong to one session
//! and end with it. All of it is data in and data out: [`Reservations::prepare`] says what a PERSISTENT
//! RESERVE OUT would do, whoever owns the state makes that durable, and only then [`Reservations::commit`]s
//! it, so that what is answered GOOD is kept and what failed has changed nothing.

mod change;
mod class;
mod image;
#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
mod kind;
mod nexus;
mod parameters;
mod registry;
mod report;

#[cfg(test)]
mod clients;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use change::Change;
pub use class::Class;
pub use image::ImageError;
pub use kind::Kind;
pub use nexus::NexusId;
pub use registry::{
    Holder, Key, PersistentReservation, READERS_MAX, READERS_OF_CLIENT_MAX, REGISTRANTS_MAX,
};

use std::collections::BTreeSet;

use super::Sense;
use super::transport::Transports;
use crate::reader::Truncated;
use registry::Registry;

/// The longest parameter list of PERSISTENT RESERVE OUT that is taken: room for as many of the longest
/// TransportIDs as there can be registrants is not needed by anyone, and 64 KiB hold over 250 of them.
pub const PARAMETERS_MAX: u32 = 64 << 10;

/// The service actions of PERSISTENT RESERVE IN (SPC-4, 6.15.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveInAction {
    /// READ KEYS.
    ReadKeys,
    /// READ RESERVATION.
    ReadReservation,
    /// REPORT CAPABILITIES.
    ReportCapabilities,
    /// READ FULL STATUS.
    ReadFullStatus,
}

/// The service actions of PERSISTENT RESERVE OUT (SPC-4, 6.16.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveOutAction {
    /// REGISTER.
    Register,
    /// RESERVE.
    Reserve,
    /// RELEASE.
    Release,
    /// CLEAR.
    Clear,
    /// PREEMPT.
    Preempt,
    /// PREEMPT AND ABORT.
    PreemptAndAbort,
    /// REGISTER AND IGNORE EXISTING KEY.
    RegisterAndIgnore,
    /// REGISTER AND MOVE.
    RegisterAndMove,
}

impl ReserveInAction {
    /// Its SERVICE ACTION field.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl ReserveOutAction {
    /// Its SERVICE ACTION field.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// The command block of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Out {
    /// SERVICE ACTION.
    pub action: ReserveOutAction,
    /// SCOPE, as it came.
    pub scope: u8,
    /// TYPE, as it came.
    pub kind: u8,
    /// PARAMETER LIST LENGTH.
    pub length: u32,
}

/// What a reservation command needs to know of the target device.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// The relative target port identifier of every target port, for ALL_TG_PT.
    pub target_ports: &'a [u16],
    /// The I_T nexuses there are at this moment, for a TransportID that names a node and no port.
    pub present: &'a [NexusId],
    /// Reservations can be kept through a loss of power.
    pub durable: bool,
    /// The protocols whose TransportIDs are known.
    pub transports: Transports,
}

/// RESERVATION CONFLICT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the logical unit is reserved")]
pub struct Conflict;

/// Why a reservation command was not performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION, with this sense data.
    Sense(Sense),
}

impl From<Conflict> for Refused {
    fn from(_: Conflict) -> Self {
        Self::Conflict
    }
}

impl From<Sense> for Refused {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

/// The reservations of one logical unit.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    /// PRGENERATION: zero after power on, whatever is kept through it (SPC-4, 6.15.2).
    generation: u32,
    registry: Registry,
    /// Who holds the reservation of RESERVE (6) or (10). Never together with a registration.
    reserved: Option<NexusId>,
    /// Who was preempted, with its tasks aborted, in a session that still stands. What it sent before it heard of that
    /// may be on its way for as long as the connection lives, longer than whoever preempted it needs the reservation:
    /// nothing of it is written any more, reservation or not, until it registers anew or begins another session.
    preempted: BTreeSet<NexusId>,
}

impl Reservations {
    /// Those that were kept through a loss of power, from the bytes a [`Change`] once asked to keep.
    pub fn restore(image: &[u8]) -> Result<Self, ImageError> {
        Ok(Self { registry: image::decode(image)?, ..Self::default() })
    }

    /// Whether there is a reservation, so that some command may have to be refused. Where there is none,
    /// [`Reservations::check`] lets every command pass.
    #[must_use]
    pub fn restrict(&self) -> bool {
        self.registry.held.is_some() || self.reserved.is_some() || !self.preempted.is_empty()
    }

    /// Whether `nexus` may run a command of `class` now (SPC-4, table 65 and SBC-3, table 13; SPC-2, table
    /// 10).
    pub fn check(&self, nexus: &NexusId, class: Class) -> Result<(), Conflict> {
        if class == Class::Writes && self.preempted.contains(nexus) {
            return Err(Conflict);
        }
        let allowed = match &self.reserved {
            Some(owner) => class.passes_reserve(owner == nexus),
            None => self.registry.allows(nexus, class),
        };
        if allowed { Ok(()) } else { Err(Conflict) }
    }

    /// RESERVE (6) or (10).
    pub fn reserve(&mut self, nexus: &NexusId) -> Result<(), Conflict> {
        if self.registry.is_registered_by_any() {
            return self.registry.check_reserve_6(nexus);
        }
        if self.reserved.as_ref().is_some_and(|owner| owner != nexus) {
            return Err(Conflict);
        }
        self.reserved = Some(nexus.clone());
        Ok(())
    }

    /// RELEASE (6) or (10): of another's reservation, it does nothing (SPC-2, 7.16).
    pub fn release(&mut self, nexus: &NexusId) -> Result<(), Conflict> {
        if self.registry.is_registered_by_any() {
            return self.registry.check_reserve_6(nexus);
        }
        self.release_reserved(nexus);
        Ok(())
    }

    /// The session of `nexus` is gone: its RESERVE goes with it, its registration stays.
    pub fn nexus_lost(&mut self, nexus: &NexusId) {
        self.preempted.remove(nexus);
        self.release_reserved(nexus);
    }

    fn release_reserved(&mut self, nexus: &NexusId) {
        if self.reserved.as_ref() == Some(nexus) {
            self.reserved = None;
        }
    }

    /// The logical unit was reset: RESERVE is undone, persistent reservations stay (SPC-4, 5.13.1).
    pub fn reset(&mut self) {
        self.reserved = None;
    }

    /// What a PERSISTENT RESERVE OUT from `nexus`, with the parameter list `list`, leads to. Nothing is
    /// changed yet.
    pub fn prepare(
        &self,
        nexus: &NexusId,
        out: Out,
        list: &[u8],
        device: &Device<'_>,
    ) -> Result<Change, Refused> {
        // SPC-2, 5.5.1: where RESERVE is in force, even its holder may not use the other kind.
        self.check(nexus, Class::Persistent)?;
        change::prepare(&self.registry, nexus, out, list, device)
    }

    /// The same from a nexus that may only read: it may register itself, and unregister (see
    /// [`RequiredRight`](super::cdb::RequiredRight)).
    pub fn prepare_reader(
        &self,
        nexus: &NexusId,
        out: Out,
        list: &[u8],
        device: &Device<'_>,
    ) -> Result<Change, Refused> {
        self.check(nexus, Class::Persistent)?;
        change::prepare_reader(&self.registry, nexus, out, list, device)
    }

    /// A client that has proven who it is, and may write, has come: what was registered under its bare name, by an
    /// earlier release or before there was authentication, is its own from here on. Whether there was any.
    pub fn adopt(&mut self, nexus: &NexusId) -> bool {
        self.registry.adopt(nexus)
    }

    /// Makes a change come true. `present` are the I_T nexuses there are now: one that was preempted and has gone since
    /// the change was prepared has nothing on its way any more, and its next session is another.
    pub fn commit(&mut self, change: &Change, present: &[NexusId]) {
        if change.counted {
            self.generation = self.generation.wrapping_add(1);
        }
        self.registry.clone_from(&change.registry);
        let silenced = change.abort.iter().filter(|nexus| present.contains(nexus));
        self.preempted.extend(silenced.cloned());
        let Self { preempted, registry, .. } = self;
        preempted.retain(|nexus| registry.key(nexus).is_none());
    }

    /// All that outlives sessions, as it will be after `change`, as bytes for other device servers of the same unit:
    /// PRGENERATION, then the image of what is registered.
    #[must_use]
    pub fn shared_image(&self, change: &Change) -> Vec<u8> {
        let generation = self.generation.wrapping_add(change.counted.into());
        [&generation.to_be_bytes()[..], &image::encode(&change.registry)].concat()
    }

    /// Takes over what another device server of the same unit has made of it; what follows for those `present` here.
    /// Nobody asked for it here, so that whoever is not registered any more was preempted, with its tasks.
    pub fn adopt_shared(
        &mut self,
        bytes: &[u8],
        present: &[NexusId],
    ) -> Result<Change, ImageError> {
        let (generation, mut registry) = decode_shared(bytes)?;
        for nexus in present {
            registry.adopt(nexus);
        }
        let change = change::by_another(&self.registry, registry);
        self.commit(&change, present);
        self.generation = generation;
        Ok(change)
    }

    /// The parameter data of PERSISTENT RESERVE IN for `nexus`, whole: not yet cut to the allocation length.
    #[must_use]
    pub fn report(&self, nexus: &NexusId, action: ReserveInAction, device: &Device<'_>) -> Vec<u8> {
        match action {
            ReserveInAction::ReadKeys => report::keys(self.generation, &self.registry, nexus),
            ReserveInAction::ReadReservation => {
                report::reservation(self.generation, &self.registry)
            }
            ReserveInAction::ReportCapabilities => {
                report::capabilities(device.durable, self.registry.through_power_loss)
            }
            ReserveInAction::ReadFullStatus => {
                let to = (nexus, device.transports);
                report::full_status(self.generation, &self.registry, to)
            }
        }
    }
}

/// Whether these are bytes that [`Reservations::adopt_shared`] takes.
pub fn check_shared(bytes: &[u8]) -> Result<(), ImageError> {
    decode_shared(bytes).map(drop)
}

/// Whether an initiator port is registered in such bytes.
pub fn is_anybody_registered(bytes: &[u8]) -> Result<bool, ImageError> {
    let (_, registry) = decode_shared(bytes)?;
    Ok(!registry.registrants.is_empty() || !registry.readers.is_empty())
}

fn decode_shared(bytes: &[u8]) -> Result<(u32, Registry), ImageError> {
    let missing = Truncated { missing: size_of::<u32>() };
    let (generation, image) = bytes.split_first_chunk().ok_or(missing)?;
    Ok((u32::from_be_bytes(*generation), image::decode(image)?))
}
