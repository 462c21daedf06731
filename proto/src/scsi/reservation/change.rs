//! The service actions of PERSISTENT RESERVE OUT (SPC-4, 5.13.7 to 5.13.11): each takes the registrations
//! as they are and gives them as they will be, with all that follows for others.
//!
//! Conflicts are looked for first: RESERVATION CONFLICT takes precedence over CHECK CONDITION (SAM-5,
//! 5.3.3).

use std::collections::BTreeSet;

use super::parameters::{Basic, Move, at, bit};
use super::registry::{PersistentReservation, Registry};
use super::{Device, Key, Kind, NexusId, Out, Refused, ReserveOutAction, image};
use crate::client::ClientId;
use crate::scsi::Sense;
use crate::scsi::sense::Additional;
use crate::scsi::transport::{InitiatorPort, TransportId};

/// What a PERSISTENT RESERVE OUT leads to.
#[derive(Clone, Debug)]
pub struct Change {
    pub(super) registry: Registry,
    /// PRGENERATION counts it.
    pub(super) counted: bool,
    /// Who will be told of what by a unit attention. Those who are not there are told by the power on
    /// condition when they come back.
    pub attentions: Vec<(NexusId, Additional)>,
    /// Whose commands are to be aborted, all but the one that asks for it.
    pub abort: Vec<NexusId>,
    /// What must be durable before the command is answered, in place of what was kept before.
    pub keep: Option<Vec<u8>>,
}

/// SPC-4, 6.15.3.3: the other scopes are gone.
const LU_SCOPE: u8 = 0;

pub(super) fn prepare(
    registry: &Registry,
    nexus: &NexusId,
    out: Out,
    list: &[u8],
    device: &Device<'_>,
) -> Result<Change, Refused> {
    let mut work = Work { nexus, out, device, next: Change::from(registry) };
    match out.action {
        ReserveOutAction::RegisterAndMove => work.register_and_move(&Move::parse(list)?)?,
        _ => work.basic(&Basic::parse(list)?)?,
    }
    work.next.keep = keep(registry, &work.next.registry);
    Ok(work.next)
}

pub(super) fn prepare_reader(
    registry: &Registry,
    nexus: &NexusId,
    out: Out,
    list: &[u8],
    device: &Device<'_>,
) -> Result<Change, Refused> {
    let mut work = Work { nexus, out, device, next: Change::from(registry) };
    work.register_reader(&Basic::parse(list)?)?;
    work.next.keep = keep(registry, &work.next.registry);
    Ok(work.next)
}

/// What follows for others where another device server of the unit has made `after` of it.
pub(super) fn by_another(before: &Registry, after: Registry) -> Change {
    let is_gone = |nexus: &&NexusId| after.key(nexus).is_none();
    let gone: Vec<_> = before.all().map(|(nexus, _)| nexus).filter(is_gone).cloned().collect();
    let told = gone.iter().map(|nexus| (nexus.clone(), Additional::REGISTRATIONS_PREEMPTED));
    let mut attentions: Vec<_> = told.collect();
    let released = before.held.as_ref().filter(|_| after.held.is_none());
    if released.is_some_and(|held| held.kind.admits_registrants()) {
        let stay = after.registrants.keys();
        attentions.extend(stay.map(|it| (it.clone(), Additional::RESERVATIONS_RELEASED)));
    }
    Change { registry: after, counted: false, attentions, abort: gone, keep: None }
}

/// The image to keep, where reservations outlive the power or did until now.
fn keep(before: &Registry, after: &Registry) -> Option<Vec<u8>> {
    let concerned = before.through_power_loss || after.through_power_loss;
    if !concerned || before == after {
        return None;
    }
    // Without APTPL a loss of power ends everything (SPC-4, 5.13.5), so that nothing is what is kept.
    let kept = if after.through_power_loss { after } else { &Registry::default() };
    Some(image::encode(kept))
}

impl From<&Registry> for Change {
    fn from(registry: &Registry) -> Self {
        Self {
            registry: registry.clone(),
            counted: false,
            attentions: Vec::new(),
            abort: Vec::new(),
            keep: None,
        }
    }
}

impl Change {
    /// The registration that `nexus` has under its bare name became its own after this was prepared (see
    /// [`Reservations::adopt`](super::Reservations::adopt)): whatever this does to the one, it does to the other.
    pub fn adopt(&mut self, nexus: &NexusId) {
        let bare = nexus.bare();
        self.registry.adopt(nexus);
        let told = self.attentions.iter_mut().map(|(victim, _)| victim);
        for victim in told.chain(&mut self.abort).filter(|victim| **victim == bare) {
            *victim = nexus.clone();
        }
    }
}

/// A service action at work.
struct Work<'a> {
    nexus: &'a NexusId,
    out: Out,
    device: &'a Device<'a>,
    next: Change,
}

impl Work<'_> {
    fn basic(&mut self, list: &Basic<'_>) -> Result<(), Refused> {
        let action = self.out.action;
        if !matches!(action, ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore) {
            self.registered_as(list.key)?;
        }
        if list.names_initiators && action != ReserveOutAction::Register {
            return Err(invalid_flag(bit::SPEC_I_PT));
        }
        match action {
            ReserveOutAction::Register => self.register(list),
            ReserveOutAction::RegisterAndIgnore => self.register_and_ignore(list),
            ReserveOutAction::Reserve => self.reserve(),
            ReserveOutAction::Release => self.release(),
            ReserveOutAction::Clear => {
                self.clear();
                Ok(())
            }
            ReserveOutAction::Preempt
            | ReserveOutAction::PreemptAndAbort
            | ReserveOutAction::RegisterAndMove => self.preempt(list.action_key),
        }
    }

    /// SPC-4, 6.16.3: whoever is not registered, or does not know its key, gets a conflict.
    fn registered_as(&self, key: Key) -> Result<(), Refused> {
        if self.next.registry.registrants.get(self.nexus) == Some(&key) {
            Ok(())
        } else {
            Err(Refused::Conflict)
        }
    }

    /// SPC-4, table 67.
    fn register(&mut self, list: &Basic<'_>) -> Result<(), Refused> {
        let mut nexuses = self.own_nexuses(list);
        if nexuses.iter().any(|nexus| self.current_key(nexus) != list.key) {
            return Err(Refused::Conflict);
        }
        if list.names_initiators && self.current_key(self.nexus) != 0 {
            return Err(invalid_flag(bit::SPEC_I_PT));
        }
        if list.names_initiators && list.action_key != 0 {
            let named = self.named_nexuses(list)?;
            // Table 67, note b.
            if named.iter().any(|nexus| self.current_key(nexus) != 0) {
                return Err(Sense::invalid_parameter(at::BASIC_TRANSPORT_IDS, None).into());
            }
            nexuses.extend(named);
        }
        self.enter(nexuses, list)
    }

    /// The key of `nexus`; zero, as the parameter list has it, where it is not registered.
    fn current_key(&self, nexus: &NexusId) -> Key {
        self.next.registry.key(nexus).unwrap_or(0)
    }

    /// SPC-4, table 68.
    fn register_and_ignore(&mut self, list: &Basic<'_>) -> Result<(), Refused> {
        self.enter(self.own_nexuses(list), list)
    }

    /// REGISTER, and REGISTER AND IGNORE EXISTING KEY, of a nexus that may only read. It registers nobody else, and
    /// does not decide whether the registrations of others outlive the power.
    fn register_reader(&mut self, list: &Basic<'_>) -> Result<(), Refused> {
        let nexuses = self.own_nexuses(list);
        let known = |nexus: &NexusId| self.current_key(nexus) == list.key;
        if self.out.action == ReserveOutAction::Register && !nexuses.iter().all(known) {
            return Err(Refused::Conflict);
        }
        if list.names_initiators {
            return Err(invalid_flag(bit::SPEC_I_PT));
        }
        let unregisters = list.action_key == 0;
        if unregisters && nexuses.iter().all(|nexus| self.current_key(nexus) == 0) {
            return Ok(());
        }
        if !unregisters && list.through_power_loss != self.next.registry.through_power_loss {
            return Err(invalid_flag(bit::APTPL));
        }
        // PRGENERATION tells writers of one another: one that finds it changed gives way (SPC-4, 6.15.2). It counts what a
        // client that may only read now does to a registration that it made when it could write.
        let registrants = &self.next.registry.registrants;
        self.next.counted = nexuses.iter().any(|nexus| registrants.contains_key(nexus));
        for nexus in nexuses {
            if unregisters {
                self.unregister(&nexus);
            } else {
                self.next.registry.register_reader(nexus, list.action_key)?;
            }
        }
        Ok(())
    }

    /// The nexuses of the sender: through its target port, or through every one with ALL_TG_PT, as if each
    /// had received the command.
    fn own_nexuses(&self, list: &Basic<'_>) -> BTreeSet<NexusId> {
        let mut own = self.through_ports(&self.nexus.initiator, &self.nexus.client, list);
        own.insert(self.nexus.clone());
        own
    }

    fn through_ports(
        &self,
        initiator: &InitiatorPort,
        client: &ClientId,
        list: &Basic<'_>,
    ) -> BTreeSet<NexusId> {
        let own = [self.nexus.target_port];
        let ports = if list.all_target_ports { self.device.target_ports } else { &own };
        let (initiator, client) = (initiator.clone(), client.clone());
        let of_all = NexusId { initiator, target_port: self.nexus.target_port, client };
        ports.iter().map(|port| NexusId { target_port: *port, ..of_all.clone() }).collect()
    }

    /// The client whose initiator port is named so. TransportIDs name no client: it is that of the sender if it uses
    /// the port, or else the only one that does. Where nobody does, the port is the sender's, to be used later.
    /// `None` where several other clients use it.
    fn client_of(&self, port: &InitiatorPort) -> Option<ClientId> {
        let registered = self.next.registry.all().map(|(nexus, _)| nexus);
        let known = self.device.present.iter().chain(registered);
        let clients: BTreeSet<&ClientId> =
            known.filter(|nexus| nexus.initiator == *port).map(|nexus| &nexus.client).collect();
        let own = &self.nexus.client;
        match clients.first() {
            None => Some(own.clone()),
            Some(_) if clients.contains(own) => Some(own.clone()),
            Some(only) => (clients.len() == 1).then(|| ClientId::clone(only)),
        }
    }

    /// The nexuses of the initiator ports that the list names, but for those of the sender.
    fn named_nexuses(&self, list: &Basic<'_>) -> Result<BTreeSet<NexusId>, Sense> {
        let mut named = BTreeSet::new();
        for id in list.transport_ids(self.device.transports)? {
            match id {
                TransportId::Port(port) => {
                    let client = self.client_of(&port);
                    let client =
                        client.ok_or(Sense::invalid_parameter(at::BASIC_TRANSPORT_IDS, None))?;
                    named.extend(self.through_ports(&port, &client, list));
                }
                // SPC-4, 7.6.4.6: all its ports that this device knows.
                TransportId::Device { protocol, name } => {
                    let is_of_device = |port: &InitiatorPort| {
                        self.device.transports.is_port_of(port, protocol, &name)
                    };
                    let known = self.device.present.iter();
                    for nexus in known.filter(|nexus| is_of_device(&nexus.initiator)) {
                        named.extend(self.through_ports(&nexus.initiator, &nexus.client, list));
                    }
                }
            }
        }
        named.retain(|nexus| !self.is_of_sender(nexus));
        Ok(named)
    }

    fn is_of_sender(&self, nexus: &NexusId) -> bool {
        nexus.initiator == self.nexus.initiator && nexus.client == self.nexus.client
    }

    /// Gives `nexuses` the new key, all or none of them; zero unregisters.
    fn enter(&mut self, nexuses: BTreeSet<NexusId>, list: &Basic<'_>) -> Result<(), Refused> {
        let idle = |nexus| self.next.registry.key(nexus).is_none();
        if list.action_key == 0 && nexuses.iter().all(idle) {
            return Ok(());
        }
        self.set_through_power_loss(list.through_power_loss, at::BASIC_FLAGS)?;
        self.next.counted = true;
        for nexus in nexuses {
            if list.action_key == 0 {
                self.unregister(&nexus);
            } else {
                self.next.registry.register(nexus, list.action_key)?;
            }
        }
        Ok(())
    }

    fn set_through_power_loss(&mut self, wanted: bool, byte: u16) -> Result<(), Sense> {
        if wanted && !self.device.durable {
            return Err(Sense::invalid_parameter(byte, Some(bit::APTPL)));
        }
        self.next.registry.through_power_loss = wanted;
        Ok(())
    }

    /// SPC-4, 5.13.11.2.3.
    fn unregister(&mut self, nexus: &NexusId) {
        let ended = self.next.registry.unregister(nexus);
        // Those who lose something by the end of a reservation that was another's are the registered.
        if ended.is_some_and(|held| held.kind.admits_registrants()) {
            self.tell_registered(Additional::RESERVATIONS_RELEASED);
        }
    }

    /// SPC-4, 5.13.9.
    fn reserve(&mut self) -> Result<(), Refused> {
        let Some(held) = &self.next.registry.held else {
            let kind = self.kind()?;
            self.next.registry.held = Some(PersistentReservation::by(self.nexus, kind));
            return Ok(());
        };
        let same = self.out.scope == LU_SCOPE && self.out.kind == held.kind.code();
        if same && self.next.registry.is_holder(self.nexus) {
            Ok(())
        } else {
            Err(Refused::Conflict)
        }
    }

    /// SPC-4, 5.13.11.2.2.
    fn release(&mut self) -> Result<(), Refused> {
        if !self.next.registry.is_holder(self.nexus) {
            return Ok(());
        }
        let (scope, kind) = (self.out.scope, self.out.kind);
        let matching = |held: &PersistentReservation| scope == LU_SCOPE && kind == held.kind.code();
        let Some(held) = self.next.registry.held.take_if(|held| matching(held)) else {
            return Err(
                Sense::illegal(Additional::INVALID_RELEASE_OF_PERSISTENT_RESERVATION).into()
            );
        };
        if held.kind.admits_registrants() {
            self.tell_registered(Additional::RESERVATIONS_RELEASED);
        }
        Ok(())
    }

    /// SPC-4, 5.13.11.2.7.
    fn clear(&mut self) {
        self.next.counted = true;
        self.tell_registered(Additional::RESERVATIONS_PREEMPTED);
        self.next.registry.held = None;
        self.next.registry.registrants.clear();
        self.next.registry.readers.clear();
    }

    /// SPC-4, table 72.
    fn preempt(&mut self, victim: Key) -> Result<(), Refused> {
        let registry = &self.next.registry;
        let everyone = registry.held.as_ref().is_some_and(|held| held.kind.all_hold());
        if victim == 0 && !everyone {
            return Err(Sense::invalid_parameter(at::ACTION_KEY, None).into());
        }
        let matching = |key: Key| victim == 0 || key == victim;
        // Readers that gave the same key go too, but alone they do not make it one that is registered: others cannot
        // read it.
        if !registry.registrants.values().any(|key| matching(*key)) {
            return Err(Refused::Conflict);
        }
        let victims = registry.all().filter(|(_, key)| matching(*key));
        let victims: Vec<NexusId> = victims.map(|(nexus, _)| nexus.clone()).collect();
        let from_holder =
            victim == 0 || (!everyone && victims.iter().any(|nexus| registry.is_holder(nexus)));
        if from_holder {
            self.replace_reservation(&victims)?;
        } else {
            self.remove_registrations(&victims);
        }
        self.next.counted = true;
        if self.out.action == ReserveOutAction::PreemptAndAbort {
            self.next.abort = victims;
            // The sender keeps its registration where it takes the reservation of all.
            self.next.abort.retain(|nexus| victim != 0 || nexus != self.nexus);
        }
        Ok(())
    }

    /// SPC-4, 5.13.11.2.4.3: the reservation becomes the sender's, and its former holders lose their
    /// registrations.
    fn replace_reservation(&mut self, victims: &[NexusId]) -> Result<(), Refused> {
        let kind = self.kind()?;
        for nexus in victims.iter().filter(|nexus| *nexus != self.nexus) {
            self.next.registry.remove(nexus);
            self.next.attentions.push((nexus.clone(), Additional::REGISTRATIONS_PREEMPTED));
        }
        let before = self.next.registry.held.replace(PersistentReservation::by(self.nexus, kind));
        if before.is_some_and(|held| held.kind != kind) {
            self.tell_registered(Additional::RESERVATIONS_RELEASED);
        }
        Ok(())
    }

    /// SPC-4, 5.13.11.2.5: the sender's own registration too, if its key is the one.
    fn remove_registrations(&mut self, victims: &[NexusId]) {
        for nexus in victims {
            self.next.registry.unregister(nexus);
            if nexus != self.nexus {
                self.next.attentions.push((nexus.clone(), Additional::REGISTRATIONS_PREEMPTED));
            }
        }
    }

    /// SPC-4, 5.13.8 and table 70.
    fn register_and_move(&mut self, list: &Move<'_>) -> Result<(), Refused> {
        self.registered_as(list.key)?;
        let Some(held) = self.next.registry.held.clone() else {
            return Err(Sense::invalid_cdb(1, Some(4)).into());
        };
        if held.kind.all_hold() || !self.next.registry.is_holder(self.nexus) {
            return Err(Refused::Conflict);
        }
        if list.action_key == 0 {
            return Err(Sense::invalid_parameter(at::ACTION_KEY, None).into());
        }
        if !self.device.target_ports.contains(&list.target_port) {
            return Err(Sense::invalid_parameter(at::TARGET_PORT, None).into());
        }
        let initiator = list.initiator(self.device.transports)?;
        let wrong = Sense::invalid_parameter(at::MOVE_TRANSPORT_ID, None);
        let client = self.client_of(&initiator).ok_or(wrong)?;
        let to = NexusId { initiator, target_port: list.target_port, client };
        if self.is_of_sender(&to) {
            return Err(wrong.into());
        }
        const FLAGS: u16 = 17;
        self.set_through_power_loss(list.through_power_loss, FLAGS)?;
        // First the old goes: with UNREG, a full table has room for the new one.
        self.next.registry.held = Some(PersistentReservation::by(&to, held.kind));
        if list.unregister {
            self.next.registry.registrants.remove(self.nexus);
        }
        self.next.registry.register(to, list.action_key)?;
        self.next.counted = true;
        Ok(())
    }

    /// The type that the command block asks for.
    fn kind(&self) -> Result<Kind, Sense> {
        if self.out.scope != LU_SCOPE {
            return Err(Sense::invalid_cdb(2, Some(7)));
        }
        Kind::from_code(self.out.kind).ok_or(Sense::invalid_cdb(2, Some(3)))
    }

    /// A unit attention for every registered nexus but the sender.
    fn tell_registered(&mut self, condition: Additional) {
        let all = self.next.registry.all().map(|(nexus, _)| nexus);
        let others = all.filter(|nexus| *nexus != self.nexus);
        self.next.attentions.extend(others.map(|nexus| (nexus.clone(), condition)));
    }
}

fn invalid_flag(bit: u8) -> Refused {
    Sense::invalid_parameter(at::BASIC_FLAGS, Some(bit)).into()
}
