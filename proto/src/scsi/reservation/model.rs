//! Random sequences of reservation commands from several nexuses, against a model that knows nothing but
//! the sentences of the standard, and the laws of what is kept.

use proptest::prelude::*;

use super::registry::Registry;
use super::tests::nexus;
use super::*;
use crate::scsi::sense::Additional;
use crate::scsi::transport::plain::PLAIN;

const NEXUSES: u8 = 4;

/// A service action with parameters that have a fair chance to fit.
#[derive(Clone, Debug)]
struct Action {
    from: u8,
    action: ReserveOutAction,
    kind: u8,
    key: Key,
    action_key: Key,
    durable: bool,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = proptest::sample::select(vec![
        ReserveOutAction::Register,
        ReserveOutAction::RegisterAndIgnore,
        ReserveOutAction::Reserve,
        ReserveOutAction::Release,
        ReserveOutAction::Clear,
        ReserveOutAction::Preempt,
        ReserveOutAction::PreemptAndAbort,
    ]);
    let one = (0..NEXUSES, action, 0..10u8, 0..3u64, 0..3u64, any::<bool>()).prop_map(
        |(from, action, kind, key, action_key, durable)| Action {
            from,
            action,
            kind,
            key,
            action_key,
            durable,
        },
    );
    proptest::collection::vec(one, 0..60)
}

/// What the standard says of a unit, in the plainest form: the key of each nexus, zero for none, and the
/// reservation with the nexus that made it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    keys: [Key; NEXUSES as usize],
    held: Option<(u8, u8)>,
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Good,
    Conflict,
    Check,
}

const WE: u8 = 1;
const EA: u8 = 3;
const AR: [u8; 2] = [7, 8];
const TYPES: [u8; 6] = [WE, EA, 5, 6, 7, 8];

impl Model {
    fn is_holder(&self, n: u8) -> bool {
        self.held.is_some_and(|(kind, maker)| {
            if AR.contains(&kind) { self.keys[usize::from(n)] != 0 } else { n == maker }
        })
    }

    fn unregister(&mut self, n: u8) {
        let holder = self.is_holder(n);
        self.keys[usize::from(n)] = 0;
        let shared = self.held.is_some_and(|(kind, _)| AR.contains(&kind));
        if holder && (!shared || self.keys == [0; NEXUSES as usize]) {
            self.held = None;
        }
    }

    fn run(&mut self, step: &Action) -> Verdict {
        let own = self.keys[usize::from(step.from)];
        let entering =
            matches!(step.action, ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore);
        if step.action != ReserveOutAction::RegisterAndIgnore && own != step.key {
            return Verdict::Conflict;
        }
        if !entering && own == 0 {
            return Verdict::Conflict;
        }
        match step.action {
            ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore => {
                if own == 0 && step.action_key == 0 {
                    return Verdict::Good;
                }
                match step.action_key {
                    0 => self.unregister(step.from),
                    key => self.keys[usize::from(step.from)] = key,
                }
            }
            ReserveOutAction::Reserve => return self.reserve(step),
            ReserveOutAction::Release => return self.release(step),
            ReserveOutAction::Clear => {
                *self = Self { generation: self.generation, ..Self::default() };
            }
            _ => return self.preempt(step),
        }
        self.generation += 1;
        Verdict::Good
    }

    fn reserve(&mut self, step: &Action) -> Verdict {
        match self.held {
            Some((kind, _)) if self.is_holder(step.from) && kind == step.kind => Verdict::Good,
            Some(_) => Verdict::Conflict,
            None if TYPES.contains(&step.kind) => {
                self.held = Some((step.kind, step.from));
                Verdict::Good
            }
            None => Verdict::Check,
        }
    }

    fn release(&mut self, step: &Action) -> Verdict {
        match self.held {
            Some((kind, _)) if self.is_holder(step.from) && kind != step.kind => Verdict::Check,
            Some(_) if self.is_holder(step.from) => {
                self.held = None;
                Verdict::Good
            }
            _ => Verdict::Good,
        }
    }

    fn preempt(&mut self, step: &Action) -> Verdict {
        let shared = self.held.is_some_and(|(kind, _)| AR.contains(&kind));
        let victims: Vec<u8> = (0..NEXUSES)
            .filter(|n| match (self.keys[usize::from(*n)], step.action_key) {
                (0, _) => false,
                (_, 0) => shared,
                (key, wanted) => key == wanted,
            })
            .collect();
        if step.action_key == 0 && !shared {
            return Verdict::Check;
        }
        if victims.is_empty() {
            return Verdict::Conflict;
        }
        let holder = !shared && victims.iter().any(|n| self.is_holder(*n));
        if step.action_key == 0 || holder {
            if !TYPES.contains(&step.kind) {
                return Verdict::Check;
            }
            for n in victims.into_iter().filter(|n| *n != step.from) {
                self.keys[usize::from(n)] = 0;
            }
            self.held = Some((step.kind, step.from));
        } else {
            victims.into_iter().for_each(|n| self.unregister(n));
        }
        self.generation += 1;
        Verdict::Good
    }
}

/// What the state says of itself, in the model's terms.
fn seen(state: &Reservations) -> Model {
    let Registry { registrants, held, .. } = &state.registry;
    let key = |n: usize| registrants.get(&nexus(n as u8)).copied().unwrap_or(0);
    let maker = |held: &PersistentReservation| match &held.holder {
        Holder::Everyone => NEXUSES,
        Holder::One(holder) => (0..NEXUSES).find(|n| nexus(*n) == *holder).unwrap(),
    };
    Model {
        keys: core::array::from_fn(key),
        held: held.as_ref().map(|held| (held.kind.code(), maker(held))),
        generation: state.generation,
    }
}

fn verdict(result: &Result<Change, Refused>) -> Verdict {
    match result {
        Ok(_) => Verdict::Good,
        Err(Refused::Conflict) => Verdict::Conflict,
        Err(Refused::Sense(_)) => Verdict::Check,
    }
}

fn prepare(state: &Reservations, step: &Action) -> Result<Change, Refused> {
    let mut list = [step.key.to_be_bytes(), step.action_key.to_be_bytes(), [0; 8]].concat();
    list[20] = u8::from(step.durable);
    let out = Out { action: step.action, scope: 0, kind: step.kind, length: 24 };
    let device = Device { target_ports: &[1], present: &[], durable: true, transports: PLAIN };
    state.prepare(&nexus(step.from), out, &list, &device)
}

/// What holds after every command.
fn invariants(state: &Reservations) {
    let Registry { registrants, held, .. } = &state.registry;
    assert!(registrants.values().all(|key| *key != 0));
    assert_eq!(state.restrict(), held.is_some());
    let Some(held) = held else { return };
    match &held.holder {
        Holder::Everyone => assert!(held.kind.all_hold() && !registrants.is_empty()),
        Holder::One(holder) => {
            assert!(!held.kind.all_hold() && registrants.contains_key(holder));
        }
    }
    for n in 0..NEXUSES {
        let nexus = nexus(n);
        let may = |class| state.check(&nexus, class).is_ok();
        assert!(may(Class::Free) && may(Class::Ready) && may(Class::Persistent));
        assert!(may(Class::Reads) || !may(Class::Writes), "who may write may read");
        if state.registry.is_holder(&nexus) {
            assert!(may(Class::Writes), "a holder is never kept out");
        }
        if !registrants.contains_key(&nexus) {
            assert!(!may(Class::Writes), "a stranger never writes");
        }
    }
}

proptest! {
    #[test]
    fn the_state_follows_the_model(steps in actions()) {
        let (mut state, mut model) = (Reservations::default(), Model::default());
        let mut kept: Option<Vec<u8>> = None;
        for step in &steps {
            let before = seen(&state);
            let result = prepare(&state, step);
            prop_assert_eq!(&seen(&state), &before, "a preparation changes nothing");
            let mut expected = model.clone();
            prop_assert_eq!(verdict(&result), expected.run(step), "{:?}", step);
            if let Ok(change) = result {
                state.commit(&change, &[]);
                attentions_are_fair(&before, step, &change);
                kept = change.keep.or(kept);
                model = expected;
            }
            // Who made a reservation of all is forgotten.
            if let Some((kind, maker)) = &mut model.held && AR.contains(kind) {
                *maker = NEXUSES;
            }
            prop_assert_eq!(&seen(&state), &model, "after {:?}", step);
            invariants(&state);
            // A loss of power at this moment.
            let back = kept.as_ref().map(|image| Reservations::restore(image).unwrap());
            let back = back.unwrap_or_default();
            let expected = if state.registry.through_power_loss { &state.registry } else { &Registry::default() };
            prop_assert_eq!(&back.registry, expected);
        }
    }

    #[test]
    fn any_image_is_read_as_it_is_written_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        invariants::any_image(&bytes);
        // The same with what a random text has no chance to get right.
        for version in 1..=3 {
            invariants::any_image(&[&b"LHRS\0"[..], &[version], &bytes].concat());
        }
    }

    #[test]
    fn a_damaged_image_is_noticed(steps in actions(), at: prop::sample::Index, bit in 0..8u8) {
        let mut state = Reservations::default();
        for step in &steps {
            if let Ok(change) = prepare(&state, step) {
                state.commit(&change, &[]);
            }
        }
        let image = image::encode(&state.registry);
        prop_assert_eq!(&image::decode(&image).unwrap(), &state.registry);
        let mut damaged = image.clone();
        let at = at.index(damaged.len());
        damaged[at] ^= 1 << bit;
        prop_assert!(image::decode(&damaged).is_err());
        prop_assert!(image::decode(&image[..at]).is_err());
    }

    #[test]
    fn any_parameter_list_is_harmless(
        list in proptest::collection::vec(any::<u8>(), 0..120),
        action in 0..8u8,
        kind in 0..16u8,
        flags in 0..16u8,
    ) {
        use ReserveOutAction::*;
        let action = [Register, Reserve, Release, Clear, Preempt, PreemptAndAbort, RegisterAndIgnore, RegisterAndMove]
            [usize::from(action)];
        let mut list = list;
        // Keys that fit, so that what follows them is looked at.
        for (at, byte) in list.iter_mut().enumerate().take(16) {
            *byte = u8::from(at == 7 || at == 15);
        }
        if let Some(byte) = list.get_mut(20).filter(|_| action != RegisterAndMove) {
            *byte = flags;
        }
        let mut state = Reservations::default();
        for from in 1..3 {
            let register = Action { from, action: Register, kind: 0, key: 0, action_key: 1, durable: true };
            let change = prepare(&state, &register).unwrap();
            state.commit(&change, &[]);
        }
        let reserve = Action { from: 1, action: Reserve, kind: WE, key: 1, action_key: 0, durable: false };
        let change = prepare(&state, &reserve).unwrap();
        state.commit(&change, &[]);
        let out = Out { action, scope: 0, kind, length: list.len() as u32 };
        let present = [nexus(1), nexus(2), nexus(3)];
        let device = Device { target_ports: &[1, 2], present: &present, durable: true, transports: PLAIN };
        for from in [1, 3] {
            if let Ok(change) = state.prepare(&nexus(from), out, &list, &device) {
                let mut after = state.clone();
                after.commit(&change, &[]);
                invariants(&after);
            }
        }
    }
}

/// Nobody is told of what he did himself, nor twice; only those are told who were registered; and whose
/// registration was taken by another is told so.
fn attentions_are_fair(before: &Model, step: &Action, change: &Change) {
    let registered = |n: u8| before.keys[usize::from(n)] != 0;
    for n in 0..NEXUSES {
        let told: Vec<_> = change
            .attentions
            .iter()
            .filter(|(who, _)| *who == nexus(n))
            .map(|(_, what)| *what)
            .collect();
        assert!(told.len() <= 1, "{told:?}");
        assert!(told.is_empty() || (n != step.from && registered(n)), "{n} is told {told:?}");
        let lost = registered(n) && change.registry.key(&nexus(n)).is_none();
        let expected = match step.action {
            ReserveOutAction::Clear => Additional::RESERVATIONS_PREEMPTED,
            _ => Additional::REGISTRATIONS_PREEMPTED,
        };
        if lost && n != step.from {
            assert_eq!(told, [expected]);
        }
        let aborted = change.abort.contains(&nexus(n));
        assert!(!aborted || step.action == ReserveOutAction::PreemptAndAbort);
        let all = step.action == ReserveOutAction::PreemptAndAbort && lost;
        assert!(!all || aborted, "the tasks of {n} go on");
    }
}
