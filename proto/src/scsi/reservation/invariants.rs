//! What holds of reservations for any bytes: for property tests and fuzz targets. Each panics where that is broken.

use super::registry::{Holder, PersistentReservation};
use super::{
    Class, Device, Kind, NexusId, Out, READERS_MAX, REGISTRANTS_MAX, Registry, Reservations,
    ReserveInAction, ReserveOutAction, image,
};
use crate::client::ClientId;
use crate::reader::{Reader, Truncated};
use crate::scsi::transport::{InitiatorPort, Protocol, Transports};

/// Where the version stands in an image.
const VERSION: core::ops::Range<usize> = 4..6;

const ACTIONS: [ReserveOutAction; 8] = [
    ReserveOutAction::Register,
    ReserveOutAction::Reserve,
    ReserveOutAction::Release,
    ReserveOutAction::Clear,
    ReserveOutAction::Preempt,
    ReserveOutAction::PreemptAndAbort,
    ReserveOutAction::RegisterAndIgnore,
    ReserveOutAction::RegisterAndMove,
];

/// A kept image of any bytes, with a checksum of any bytes or the right one, is refused, or is the one image of
/// a state that can be.
pub fn any_image(bytes: &[u8]) {
    let mut summed = bytes.to_vec();
    summed.extend(crc_fast::crc32_iscsi(bytes).to_be_bytes());
    for bytes in [bytes, &summed] {
        if let Ok(registry) = image::decode(bytes) {
            check(&registry);
            let image = image::encode(&registry);
            // An image of an earlier version becomes one of this version.
            assert!(image == bytes || bytes[..VERSION.end] != image[..VERSION.end]);
            assert_eq!(image::decode(&image), Ok(registry));
        }
    }
}

/// Reads `bytes` as commands of three initiators, one of whose clients may only read at times, with parameter lists of any bytes. For any script: a holder is
/// registered; nobody's commands end but those of who was preempted; what is kept is what there is; each nexus
/// is either let through or not, and a holder always is.
pub fn any_script(bytes: &[u8]) {
    let clients = [
        ClientId::Unauthenticated,
        ClientId::Account("a".to_owned()),
        ClientId::Account("b".to_owned()),
    ];
    let mut present = [1, 2, 3].map(nexus);
    present.iter_mut().zip(clients).for_each(|(nexus, client)| nexus.client = client);
    let mut simulation = Simulation { present, reservations: Reservations::default() };
    let mut script = Reader::new(bytes);
    while simulation.step(&mut script).is_ok() {}
}

struct Simulation {
    present: [NexusId; 3],
    reservations: Reservations,
}

fn nexus(n: u8) -> NexusId {
    let initiator = InitiatorPort { protocol: Protocol::new(0), id: format!("port-{n}").into() };
    NexusId { initiator, target_port: 1, client: ClientId::Unauthenticated }
}

impl Simulation {
    fn step(&mut self, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let (who, what) = (script.u8()?, script.u8()?);
        let by = self.present[usize::from(who) % self.present.len()].clone();
        match who >> 4 {
            0 => self.reservations.reset(),
            1 => self.reservations.nexus_lost(&by),
            2 => drop(self.reservations.reserve(&by)),
            3 => drop(self.reservations.release(&by)),
            _ => self.change(&by, what, script)?,
        }
        self.check();
        Ok(())
    }

    /// A list of few keys, so that they meet, and sometimes of any bytes and any length.
    fn change(&mut self, by: &NexusId, what: u8, script: &mut Reader<'_>) -> Result<(), Truncated> {
        let action = ACTIONS[usize::from(what) % ACTIONS.len()];
        let (kind, shape) = (script.u8()?, script.u8()?);
        let mut list = [[0; 8], [0; 8], [0; 8]].concat();
        (list[7], list[15], list[20]) = (shape & 3, shape >> 2 & 3, shape >> 4);
        if shape >= 0xF0 {
            let len = usize::from(script.u8()?).min(script.rest().len());
            list.extend(script.take(len)?);
        }
        let length = if kind & 0x80 == 0 { list.len() as u32 } else { kind.into() };
        let out = Out { action, scope: kind >> 4 & 1, kind: kind & 15, length };
        let transports = Transports::default();
        let device =
            Device { target_ports: &[1], present: &self.present, durable: true, transports };
        let before = &self.reservations.registry;
        let reader = what & 0x80 != 0 && *by == self.present[2];
        let prepared = match reader {
            true => self.reservations.prepare_reader(by, out, &list, &device),
            false => self.reservations.prepare(by, out, &list, &device),
        };
        let Ok(change) = prepared else { return Ok(()) };
        let after = &change.registry;
        if reader && !before.registrants.contains_key(by) {
            assert_eq!((&before.registrants, &before.held), (&after.registrants, &after.held));
            assert_eq!(before.through_power_loss, after.through_power_loss);
            assert!(change.attentions.is_empty() && change.abort.is_empty());
            let writer = nexus(9);
            let told = |registry: &Registry, generation| {
                let state = Reservations {
                    generation,
                    registry: registry.clone(),
                    ..Reservations::default()
                };
                [
                    ReserveInAction::ReadKeys,
                    ReserveInAction::ReadReservation,
                    ReserveInAction::ReadFullStatus,
                ]
                .map(|action| state.report(&writer, action, &device))
            };
            let counted = u32::from(change.counted);
            assert_eq!(told(before, 0), told(after, counted), "writers are told of it");
        }
        for ended in &change.abort {
            assert_eq!(action, ReserveOutAction::PreemptAndAbort);
            assert!(before.key(ended).is_some() && (after.key(ended).is_none() || ended == by));
        }
        if let Some(image) = &change.keep {
            let kept = image::decode(image).expect("our own image");
            let expected =
                if after.through_power_loss { after.clone() } else { Registry::default() };
            assert_eq!(kept, expected);
        } else {
            let kept = before.through_power_loss || after.through_power_loss;
            assert!(!kept || before == after, "a change that is not kept");
        }
        let generation = self.reservations.generation;
        self.reservations.commit(&change, &[]);
        assert!(self.reservations.generation - generation <= 1);
        Ok(())
    }

    fn check(&self) {
        let Self { present, reservations } = self;
        check(&reservations.registry);
        let transports = Transports::default();
        let device = Device { target_ports: &[1], present, durable: true, transports };
        for nexus in present {
            let passes = |class| reservations.check(nexus, class).is_ok();
            assert!(passes(Class::Free));
            assert!(passes(Class::Reads) || !passes(Class::Writes), "who may write may read");
            assert!(!reservations.registry.is_holder(nexus) || passes(Class::Writes));
            assert!(reservations.restrict() || passes(Class::Writes));
            let silent = reservations.preempted.contains(nexus);
            assert!(
                !silent || (!passes(Class::Writes) && reservations.registry.key(nexus).is_none())
            );
        }
        for action in [
            ReserveInAction::ReadKeys,
            ReserveInAction::ReadReservation,
            ReserveInAction::ReadFullStatus,
        ] {
            for asking in present {
                let report = reservations.report(asking, action, &device);
                let (header, list) = report.split_first_chunk::<8>().expect("a header");
                assert_eq!(header[4..], (list.len() as u32).to_be_bytes());
            }
        }
        let registered = reservations.registry.is_registered_by_any();
        assert!(reservations.reserved.is_none() || !registered, "both kinds at once");
    }
}

fn check(Registry { registrants, readers, held, .. }: &Registry) {
    assert!(registrants.len() <= REGISTRANTS_MAX && readers.len() <= READERS_MAX);
    assert!(readers.iter().all(|(nexus, key)| *key != 0 && !registrants.contains_key(nexus)));
    assert!(registrants.values().all(|key| *key != 0));
    match held {
        None => {}
        Some(PersistentReservation { kind, holder: Holder::Everyone }) => {
            assert!(Kind::all_hold(*kind) && !registrants.is_empty());
        }
        Some(PersistentReservation { kind, holder: Holder::One(holder) }) => {
            assert!(!Kind::all_hold(*kind) && registrants.contains_key(holder));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_image(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            super::any_image(&bytes);
        }

        #[test]
        fn any_script(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            super::any_script(&bytes);
        }
    }
}
