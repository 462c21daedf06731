use super::*;
use crate::client::ClientId;
use crate::scsi::sense::Additional;
use crate::scsi::transport::TransportId;
use crate::scsi::transport::plain::{self, PLAIN};

/// Nexus `n`: a port of node `n`, by target port 1.
pub(super) fn nexus(n: u8) -> NexusId {
    NexusId { initiator: plain::port(n, 0), target_port: 1, client: ClientId::Unauthenticated }
}

const PORTS: [u16; 2] = [1, 2];

fn device(present: &[NexusId]) -> Device<'_> {
    Device { target_ports: &PORTS, present, durable: true, transports: PLAIN }
}

const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;
const APTPL: u8 = 0x01;

fn list(key: Key, action_key: Key, flags: u8) -> Vec<u8> {
    let mut bytes = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    bytes[20] = flags;
    bytes
}

fn written(id: &TransportId) -> Vec<u8> {
    PLAIN.0[0].write(id)
}

fn naming(key: Key, action_key: Key, flags: u8, ids: &[TransportId]) -> Vec<u8> {
    let ids: Vec<u8> = ids.iter().flat_map(written).collect();
    let mut bytes = list(key, action_key, flags | SPEC_I_PT);
    bytes.extend((ids.len() as u32).to_be_bytes());
    bytes.extend(ids);
    bytes
}

fn moving(key: Key, action_key: Key, flags: u8, port: u16, to: &TransportId) -> Vec<u8> {
    let id = written(to);
    let mut bytes = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    bytes.extend([0, flags]);
    bytes.extend(port.to_be_bytes());
    bytes.extend((id.len() as u32).to_be_bytes());
    bytes.extend(id);
    bytes
}

fn out(action: ReserveOutAction, kind: u8, list: &[u8]) -> Out {
    Out { action, scope: 0, kind, length: list.len() as u32 }
}

/// Runs a service action and makes it come true.
fn run(
    state: &mut Reservations,
    from: &NexusId,
    action: ReserveOutAction,
    kind: u8,
    list: &[u8],
) -> Result<Change, Refused> {
    let change = state.prepare(from, out(action, kind, list), list, &device(&[]))?;
    state.commit(&change, &[]);
    Ok(change)
}

/// Nexuses 1 to `count`, registered with ten times their number.
fn registered(count: u8) -> Reservations {
    let mut state = Reservations::default();
    for n in 1..=count {
        let key = u64::from(n) * 10;
        run(&mut state, &nexus(n), Register, 0, &list(0, key, 0)).unwrap();
    }
    state
}

/// The same, with a reservation of `kind` made by nexus 1.
fn reserved(count: u8, kind: Kind) -> Reservations {
    let mut state = registered(count);
    run(&mut state, &nexus(1), Reserve, kind.code(), &list(10, 0, 0)).unwrap();
    state
}

/// What was on its way when its sender was preempted is not written even where the new holder has gone.
#[test]
fn preempted_session_writes_nothing_until_it_registers_or_begins_anew() {
    let kind = Kind::WriteExclusiveRegistrants;
    for anew in [false, true] {
        let mut state = reserved(2, kind);
        let present = [nexus(1), nexus(2)];
        let list = list(20, 10, 0);
        let out = out(PreemptAndAbort, kind.code(), &list);
        let change = state.prepare(&nexus(2), out, &list, &device(&present)).unwrap();
        state.commit(&change, &present);
        run(&mut state, &nexus(2), Register, 0, &self::list(20, 0, 0)).unwrap();
        assert_eq!(state.check(&nexus(1), Class::Reads), Ok(()));
        assert_eq!(state.check(&nexus(1), Class::Writes), Err(Conflict));
        assert_eq!(state.check(&nexus(3), Class::Writes), Ok(()), "nothing is reserved");
        assert!(state.restrict());
        match anew {
            true => state.nexus_lost(&nexus(1)),
            false => drop(run(&mut state, &nexus(1), Register, 0, &self::list(0, 30, 0)).unwrap()),
        }
        assert_eq!(state.check(&nexus(1), Class::Writes), Ok(()));
    }
}

#[test]
fn preempted_nexus_that_left_before_the_commit_is_not_silenced() {
    let mut state = reserved(2, Kind::WriteExclusiveRegistrants);
    let present = [nexus(1), nexus(2)];
    let list = list(20, 10, 0);
    let out = out(PreemptAndAbort, Kind::WriteExclusiveRegistrants.code(), &list);
    let change = state.prepare(&nexus(2), out, &list, &device(&present)).unwrap();
    state.nexus_lost(&nexus(1));
    state.commit(&change, &[nexus(2)]);
    run(&mut state, &nexus(2), Register, 0, &self::list(20, 0, 0)).unwrap();
    assert!(!state.restrict(), "nothing is reserved, and nobody has anything on its way");
}

fn generation(state: &Reservations) -> u32 {
    let data = state.report(&nexus(1), ReserveInAction::ReadKeys, &device(&[]));
    u32::from_be_bytes(data[..4].try_into().unwrap())
}

fn keys(state: &Reservations) -> Vec<Key> {
    let data = state.report(&nexus(1), ReserveInAction::ReadKeys, &device(&[]));
    let length = u32::from_be_bytes(data[4..8].try_into().unwrap());
    assert_eq!(length as usize, data.len() - 8);
    data[8..].chunks(8).map(|key| Key::from_be_bytes(key.try_into().unwrap())).collect()
}

/// Key and type of the reservation, as READ RESERVATION tells it.
fn holding(state: &Reservations) -> Option<(Key, u8)> {
    let data = state.report(&nexus(1), ReserveInAction::ReadReservation, &device(&[]));
    match u32::from_be_bytes(data[4..8].try_into().unwrap()) {
        0 => None,
        16 => Some((Key::from_be_bytes(data[8..16].try_into().unwrap()), data[21])),
        other => panic!("{other} bytes"),
    }
}

fn told(change: &Change) -> Vec<(u8, Additional)> {
    let number = |nexus: &NexusId| PLAIN.0[0].device_of(&nexus.initiator).parse().unwrap();
    change.attentions.iter().map(|(nexus, condition)| (number(nexus), *condition)).collect()
}

fn check(sense: Sense) -> Refused {
    Refused::Sense(sense)
}

use Additional as A;
use ReserveOutAction::{
    Clear, Preempt, PreemptAndAbort, Register, RegisterAndIgnore, RegisterAndMove, Release, Reserve,
};

/// SPC-4, table 65 and SBC-3, table 13, column by column: who may do what while nexus 1, registered,
/// holds a reservation. Nexus 2 is registered too, nexus 3 is not.
#[test]
fn the_table_of_allowed_commands() {
    for kind in Kind::ALL {
        let state = reserved(2, kind);
        let admitted = !matches!(kind, Kind::WriteExclusive | Kind::ExclusiveAccess);
        let reads = matches!(
            kind,
            Kind::WriteExclusive | Kind::WriteExclusiveRegistrants | Kind::WriteExclusiveAll
        );
        for (class, holder, registered, other) in [
            (Class::Free, true, true, true),
            (Class::Ready, true, true, true),
            (Class::Persistent, true, true, true),
            (Class::Reads, true, admitted || reads, reads),
            (Class::Writes, true, admitted, false),
        ] {
            for (n, allowed) in [(1, holder), (2, registered), (3, other)] {
                let found = state.check(&nexus(n), class).is_ok();
                assert_eq!(found, allowed, "{kind:?}, {class:?}, nexus {n}");
            }
        }
    }
}

/// SPC-4, table 67, and what else REGISTER may be refused for.
#[test]
fn register() {
    let port = plain::id(&nexus(3).initiator);
    let in_list = |byte| Err(check(Sense::invalid_parameter(byte, None)));
    let flag = |bit| Err(check(Sense::invalid_parameter(20, Some(bit))));
    for (what, from, bytes, expected) in [
        ("unregistered: nothing to do", 4, list(0, 0, 0), Ok(vec![10, 20])),
        ("unregistered: new", 4, list(0, 40, 0), Ok(vec![10, 20, 40])),
        ("unregistered: wrong key", 4, list(10, 40, 0), Err(Refused::Conflict)),
        ("registered: wrong key", 1, list(20, 40, 0), Err(Refused::Conflict)),
        ("registered: no key", 1, list(0, 40, 0), Err(Refused::Conflict)),
        ("registered: gone", 1, list(10, 0, 0), Ok(vec![20])),
        ("registered: changed", 1, list(10, 11, 0), Ok(vec![11, 20])),
        ("registered: names others", 1, naming(10, 11, 0, std::slice::from_ref(&port)), flag(3)),
        (
            "names another",
            4,
            naming(0, 40, 0, std::slice::from_ref(&port)),
            Ok(vec![10, 20, 40, 40]),
        ),
        (
            "names one twice",
            4,
            naming(0, 40, 0, &[port.clone(), port.clone()]),
            Ok(vec![10, 20, 40, 40]),
        ),
        (
            "names one that is registered",
            4,
            naming(0, 40, 0, &[plain::id(&nexus(1).initiator)]),
            in_list(28),
        ),
        ("through all ports", 4, list(0, 40, ALL_TG_PT), Ok(vec![10, 20, 40, 40])),
        ("through all ports, one unknown", 1, list(10, 11, ALL_TG_PT), Err(Refused::Conflict)),
    ] {
        let mut state = registered(2);
        let before = generation(&state);
        let result = run(&mut state, &nexus(from), Register, 0, &bytes).map(|_| keys(&state));
        assert_eq!(result, expected, "{what}");
        let changed = keys(&state) != [10, 20];
        assert_eq!(generation(&state), before + u32::from(changed), "{what}");
    }
}

#[test]
fn register_and_ignore() {
    let mut state = registered(1);
    run(&mut state, &nexus(1), RegisterAndIgnore, 0, &list(99, 11, 0)).unwrap();
    run(&mut state, &nexus(2), RegisterAndIgnore, 0, &list(99, 20, 0)).unwrap();
    assert_eq!(keys(&state), [11, 20]);
    run(&mut state, &nexus(1), RegisterAndIgnore, 0, &list(99, 0, 0)).unwrap();
    run(&mut state, &nexus(1), RegisterAndIgnore, 0, &list(99, 0, 0)).unwrap();
    assert_eq!((keys(&state), generation(&state)), (vec![20], 4));
}

/// SPC-4, 6.16.3: SPEC_I_PT is for REGISTER only.
#[test]
fn only_register_names_initiators() {
    let bytes = naming(10, 0, 0, &[]);
    for action in [RegisterAndIgnore, Reserve, Release, Clear, Preempt, PreemptAndAbort] {
        let mut state = registered(1);
        let refused = run(&mut state, &nexus(1), action, 1, &bytes).unwrap_err();
        assert_eq!(refused, check(Sense::invalid_parameter(20, Some(3))), "{action:?}");
    }
}

/// A node without a port stands for all its ports that are there (SPC-4, 7.6.4.6).
#[test]
fn a_node_stands_for_its_ports() {
    let mut other = nexus(2);
    other.initiator = plain::port(2, 9);
    let present = [nexus(1), nexus(2), other, nexus(3)];
    let bytes = naming(0, 7, 0, &[plain::device(2)]);
    let mut state = Reservations::default();
    let change =
        state.prepare(&nexus(1), out(Register, 0, &bytes), &bytes, &device(&present)).unwrap();
    state.commit(&change, &[]);
    assert_eq!(keys(&state), [7, 7, 7]);
    assert_eq!(generation(&state), 1);
}

#[test]
fn lists_of_a_wrong_length_are_refused() {
    let refused = Err(check(Sense::illegal(A::PARAMETER_LIST_LENGTH_ERROR)));
    let whole = naming(0, 7, 0, &[plain::id(&nexus(2).initiator)]);
    let mut longer = list(0, 7, 0);
    longer.push(0);
    for bytes in
        [&list(0, 7, 0)[..23], &longer, &whole[..24], &whole[..27], &whole[..whole.len() - 1]]
    {
        let mut state = Reservations::default();
        let result = run(&mut state, &nexus(1), Register, 0, bytes).map(|_| ());
        assert_eq!(result, refused, "{} bytes", bytes.len());
        assert!(keys(&state).is_empty());
    }
    let mut state = reserved(1, Kind::WriteExclusive);
    let whole = moving(10, 7, 0, 1, &plain::id(&nexus(2).initiator));
    for length in 0..whole.len() {
        let result = run(&mut state, &nexus(1), RegisterAndMove, 0, &whole[..length]).map(|_| ());
        assert_eq!(result, refused, "{length} bytes");
    }
}

#[test]
fn reserve() {
    let conflict = Err(Refused::Conflict);
    for (what, from, key, kind, expected) in [
        ("the same again", 1, 10, 5, Ok(())),
        ("another type", 1, 10, 6, conflict),
        ("a wrong key", 1, 11, 5, conflict),
        ("by another", 2, 20, 5, conflict),
        ("by another, of another type", 2, 20, 1, conflict),
        ("by a stranger", 3, 0, 5, conflict),
    ] {
        let mut state = reserved(2, Kind::WriteExclusiveRegistrants);
        let before = generation(&state);
        let result = run(&mut state, &nexus(from), Reserve, kind, &list(key, 0, 0)).map(|_| ());
        assert_eq!(result, expected, "{what}");
        assert_eq!(holding(&state), Some((10, 5)), "{what}");
        assert_eq!(generation(&state), before, "PRGENERATION does not count {what}");
    }
}

#[test]
fn any_registrant_holds_an_all_registrants_reservation() {
    let mut state = reserved(2, Kind::ExclusiveAccessAll);
    assert_eq!(holding(&state), Some((0, 8)));
    run(&mut state, &nexus(2), Reserve, 8, &list(20, 0, 0)).unwrap();
    let change = run(&mut state, &nexus(2), Release, 8, &list(20, 0, 0)).unwrap();
    assert_eq!(told(&change), [(1, A::RESERVATIONS_RELEASED)]);
    assert_eq!((holding(&state), keys(&state)), (None, vec![10, 20]));
}

#[test]
fn scope_and_type_must_be_known_where_they_count() {
    let bytes = list(10, 10, 0);
    for kind in (0..16).filter(|kind| Kind::from_code(*kind).is_none()) {
        let mut state = registered(1);
        let refused = run(&mut state, &nexus(1), Reserve, kind, &bytes).unwrap_err();
        assert_eq!(refused, check(Sense::invalid_cdb(2, Some(3))), "type {kind}");
        let mut state = reserved(1, Kind::WriteExclusive);
        let refused = run(&mut state, &nexus(1), Preempt, kind, &bytes).unwrap_err();
        assert_eq!(refused, check(Sense::invalid_cdb(2, Some(3))), "type {kind}");
        assert_eq!(holding(&state), Some((10, 1)));
    }
    let scoped = Out { scope: 1, ..out(Reserve, 1, &bytes) };
    let refused = registered(1).prepare(&nexus(1), scoped, &bytes, &device(&[])).unwrap_err();
    assert_eq!(refused, check(Sense::invalid_cdb(2, Some(7))));
}

/// SPC-4, 5.13.11.2.2.
#[test]
fn release() {
    let invalid = Err(check(Sense::illegal(A::INVALID_RELEASE_OF_PERSISTENT_RESERVATION)));
    for kind in Kind::ALL {
        let told_released = if kind.admits_registrants() {
            vec![(2, A::RESERVATIONS_RELEASED), (3, A::RESERVATIONS_RELEASED)]
        } else {
            vec![]
        };
        let code = kind.code();
        for (what, from, key, kind_asked, expected) in [
            ("its own", 1, 10, code, Ok(told_released)),
            ("with a wrong type", 1, 10, 0, invalid.clone()),
            ("with a wrong key", 1, 20, code, Err(Refused::Conflict)),
            ("by a stranger", 4, 0, code, Err(Refused::Conflict)),
        ] {
            let mut state = reserved(3, kind);
            let result = run(&mut state, &nexus(from), Release, kind_asked, &list(key, 0, 0));
            assert_eq!(result.as_ref().map(told).map_err(|refused| *refused), expected, "{what}");
            assert_eq!(holding(&state).is_none(), result.is_ok(), "{kind:?}: {what}");
            assert_eq!(keys(&state), [10, 20, 30]);
        }
        let mut state = reserved(2, kind);
        let change = run(&mut state, &nexus(2), Release, code, &list(20, 0, 0)).unwrap();
        assert_eq!(holding(&state).is_none(), kind.all_hold(), "another's is not released");
        assert_eq!(told(&change).is_empty(), !kind.all_hold());
    }
}

/// SPC-4, 5.13.11.2.3.
#[test]
fn the_reservation_ends_with_its_holder() {
    for kind in Kind::ALL {
        let mut state = reserved(2, kind);
        let change = run(&mut state, &nexus(1), Register, 0, &list(10, 0, 0)).unwrap();
        let registrants_only =
            matches!(kind, Kind::WriteExclusiveRegistrants | Kind::ExclusiveAccessRegistrants);
        let expected = if registrants_only { vec![(2, A::RESERVATIONS_RELEASED)] } else { vec![] };
        assert_eq!(told(&change), expected, "{kind:?}");
        assert_eq!(holding(&state).is_some(), kind.all_hold(), "{kind:?}");
        run(&mut state, &nexus(2), Register, 0, &list(20, 0, 0)).unwrap();
        assert_eq!((holding(&state), state.restrict()), (None, false), "{kind:?}");
    }
}

#[test]
fn clear() {
    let mut state = reserved(3, Kind::WriteExclusive);
    let refused = run(&mut state, &nexus(2), Clear, 0, &list(10, 0, 0)).unwrap_err();
    assert_eq!(refused, Refused::Conflict);
    let change = run(&mut state, &nexus(2), Clear, 0, &list(20, 0, 0)).unwrap();
    assert_eq!(told(&change), [(1, A::RESERVATIONS_PREEMPTED), (3, A::RESERVATIONS_PREEMPTED)]);
    assert_eq!((keys(&state), holding(&state), generation(&state)), (vec![], None, 4));
}

/// A case of [`preempt`]: type before, sender, SERVICE ACTION RESERVATION KEY, type asked for, and what
/// comes of it: keys, reservation, who is told what.
type Case = (Option<Kind>, u8, Key, u8, Vec<Key>, Option<(Key, u8)>, Vec<(u8, Additional)>);

/// SPC-4, table 72, with nexuses 1 to 3; 1 holds the reservation, if there is one.
#[test]
fn preempt() {
    let (lost, released) = (A::REGISTRATIONS_PREEMPTED, A::RESERVATIONS_RELEASED);
    let cases: [Case; 9] = [
        // Registrations only: what SCOPE and TYPE say does not matter.
        (None, 2, 10, 0, vec![20, 30], None, vec![(1, lost)]),
        (None, 2, 20, 0, vec![10, 30], None, vec![]),
        (Some(Kind::WriteExclusive), 2, 30, 0, vec![10, 20], Some((10, 1)), vec![(3, lost)]),
        (Some(Kind::WriteExclusiveAll), 2, 10, 0, vec![20, 30], Some((0, 7)), vec![(1, lost)]),
        // The reservation too.
        (Some(Kind::WriteExclusive), 2, 10, 1, vec![20, 30], Some((20, 1)), vec![(1, lost)]),
        (
            Some(Kind::WriteExclusive),
            2,
            10,
            6,
            vec![20, 30],
            Some((20, 6)),
            vec![(1, lost), (3, released)],
        ),
        (
            Some(Kind::ExclusiveAccessAll),
            2,
            0,
            3,
            vec![20],
            Some((20, 3)),
            vec![(1, lost), (3, lost)],
        ),
        (
            Some(Kind::WriteExclusiveAll),
            2,
            0,
            7,
            vec![20],
            Some((0, 7)),
            vec![(1, lost), (3, lost)],
        ),
        // The holder itself.
        (
            Some(Kind::ExclusiveAccess),
            1,
            10,
            5,
            vec![10, 20, 30],
            Some((10, 5)),
            vec![(2, released), (3, released)],
        ),
    ];
    for (before, from, victim, kind, keys_after, held, attentions) in cases {
        for action in [Preempt, PreemptAndAbort] {
            let mut state = before.map_or_else(|| registered(3), |kind| reserved(3, kind));
            let own = u64::from(from) * 10;
            let bytes = list(own, victim, 0);
            let change = run(&mut state, &nexus(from), action, kind, &bytes).unwrap();
            let what = format!("{before:?} preempted by {from} for {victim} as {kind}");
            assert_eq!(keys(&state), keys_after, "{what}");
            assert_eq!(holding(&state), held, "{what}");
            assert_eq!(told(&change), attentions, "{what}");
            assert_eq!(generation(&state), 4, "{what}");
            let aborts = |n: &u8| match victim {
                0 => *n != from,
                key => u64::from(*n) * 10 == key,
            };
            let aborted: Vec<NexusId> = match action {
                Preempt => vec![],
                _ => (1..=3).filter(aborts).map(nexus).collect(),
            };
            assert_eq!(change.abort, aborted, "{what}");
        }
    }
}

#[test]
fn preempting_no_one_is_refused() {
    for (before, victim, expected) in [
        (None, 99, Refused::Conflict),
        (Some(Kind::WriteExclusive), 99, Refused::Conflict),
        (Some(Kind::WriteExclusiveAll), 99, Refused::Conflict),
        (None, 0, check(Sense::invalid_parameter(8, None))),
        (Some(Kind::WriteExclusive), 0, check(Sense::invalid_parameter(8, None))),
    ] {
        let mut state = before.map_or_else(|| registered(2), |kind| reserved(2, kind));
        let refused = run(&mut state, &nexus(2), Preempt, 1, &list(20, victim, 0)).unwrap_err();
        assert_eq!(refused, expected, "{before:?}, {victim}");
        let stranger = run(&mut state, &nexus(9), Preempt, 1, &list(0, victim, 0)).unwrap_err();
        assert_eq!(stranger, Refused::Conflict);
    }
}

/// SPC-4, table 70.
#[test]
fn register_and_move() {
    let to = plain::id(&nexus(3).initiator);
    for (unregister, keys_after) in [(0x00, vec![10, 20, 30]), (0x02, vec![20, 30])] {
        let mut state = reserved(2, Kind::ExclusiveAccessRegistrants);
        let bytes = moving(10, 30, unregister, 1, &to);
        let change = run(&mut state, &nexus(1), RegisterAndMove, 0, &bytes).unwrap();
        assert_eq!((keys(&state), holding(&state)), (keys_after, Some((30, 6))));
        assert_eq!((told(&change), generation(&state)), (vec![], 3));
    }
}

#[test]
fn register_and_move_that_is_not_possible_is_refused() {
    let to = plain::id(&nexus(3).initiator);
    let good = moving(10, 30, 0, 1, &to);
    let node = plain::device(3);
    let own = plain::id(&nexus(1).initiator);
    let held = Some(Kind::WriteExclusive);
    let parameter = |byte| check(Sense::invalid_parameter(byte, None));
    for (what, before, from, bytes, expected) in [
        ("nothing reserved", None, 1, good.clone(), check(Sense::invalid_cdb(1, Some(4)))),
        ("a wrong key", held, 1, moving(11, 30, 0, 1, &to), Refused::Conflict),
        ("by a stranger", held, 4, moving(0, 30, 0, 1, &to), Refused::Conflict),
        ("not the holder", held, 2, moving(20, 30, 0, 1, &to), Refused::Conflict),
        ("all hold it", Some(Kind::WriteExclusiveAll), 1, good, Refused::Conflict),
        ("no new key", held, 1, moving(10, 0, 0, 1, &to), parameter(8)),
        ("no such target port", held, 1, moving(10, 30, 0, 7, &to), parameter(18)),
        ("a node, not a port", held, 1, moving(10, 30, 0, 1, &node), parameter(24)),
        ("to itself", held, 1, moving(10, 30, 0, 2, &own), parameter(24)),
    ] {
        let mut state = before.map_or_else(|| registered(2), |kind| reserved(2, kind));
        let refused = run(&mut state, &nexus(from), RegisterAndMove, 0, &bytes).unwrap_err();
        assert_eq!(refused, expected, "{what}");
        assert_eq!(keys(&state), [10, 20], "{what}");
    }
}

/// SPC-2, 5.5.1 and table 10; SPC-4, 5.13.3.
#[test]
fn reserve_6() {
    let mut state = Reservations::default();
    let (one, two) = (nexus(1), nexus(2));
    assert_eq!(state.reserve(&one), Ok(()));
    assert_eq!(state.reserve(&one), Ok(()));
    assert_eq!(state.reserve(&two), Err(Conflict));
    assert_eq!(state.release(&two), Ok(()));
    for (class, holder, other) in [
        (Class::Free, true, true),
        (Class::Ready, true, false),
        (Class::Reads, true, false),
        (Class::Writes, true, false),
        (Class::Reserve, true, true),
        (Class::Persistent, false, false),
    ] {
        assert_eq!(state.check(&one, class).is_ok(), holder, "{class:?}");
        assert_eq!(state.check(&two, class).is_ok(), other, "{class:?}");
    }
    let refused = run(&mut state, &one, Register, 0, &list(0, 1, 0)).unwrap_err();
    assert_eq!(refused, Refused::Conflict);
    for undo in [Reservations::reset, |state: &mut _| Reservations::nexus_lost(state, &nexus(1))] {
        let mut state = state.clone();
        assert!(state.restrict());
        undo(&mut state);
        assert!(!state.restrict() && state.check(&two, Class::Writes).is_ok());
    }
    state.nexus_lost(&two);
    assert!(state.restrict(), "another's loss changes nothing");
    state.release(&one).unwrap();
    assert_eq!(state.reserve(&two), Ok(()));
}

#[test]
fn reserve_6_where_someone_is_registered() {
    let mut state = registered(2);
    assert_eq!(
        (state.reserve(&nexus(1)), state.release(&nexus(3))),
        (Err(Conflict), Err(Conflict))
    );
    for kind in Kind::ALL {
        let mut state = reserved(2, kind);
        let admitted = if kind.admits_registrants() { Ok(()) } else { Err(Conflict) };
        for (n, expected) in [(1, Ok(())), (2, admitted), (3, Err(Conflict))] {
            assert_eq!(state.reserve(&nexus(n)), expected, "{kind:?}, nexus {n}");
            assert_eq!(state.release(&nexus(n)), expected, "{kind:?}, nexus {n}");
        }
        assert!(holding(&state).is_some());
        state.nexus_lost(&nexus(1));
        state.reset();
        assert!(holding(&state).is_some(), "it is persistent");
    }
}

#[test]
fn full_status_names_every_nexus() {
    let state = reserved(2, Kind::WriteExclusiveRegistrants);
    let data = state.report(&nexus(1), ReserveInAction::ReadFullStatus, &device(&[]));
    assert_eq!(data[4..8], (data.len() as u32 - 8).to_be_bytes());
    let mut reader = crate::reader::Reader::new(&data[8..]);
    for (n, holder, kind) in [(1u8, 1, 5), (2, 0, 0)] {
        assert_eq!(reader.u64(), Ok(u64::from(n) * 10));
        reader.take(4).unwrap();
        assert_eq!(reader.array(), Ok([holder, kind]));
        reader.take(4).unwrap();
        assert_eq!(reader.u16(), Ok(1));
        let length = reader.u32().unwrap() as usize;
        let mut id = crate::reader::Reader::new(reader.take(length).unwrap());
        assert_eq!(PLAIN.read(&mut id), Ok(plain::id(&nexus(n).initiator)));
        assert!(id.rest().is_empty());
    }
    assert!(reader.rest().is_empty());
}

#[test]
fn capabilities_are_true() {
    let report = |durable, state: &Reservations| {
        state.report(
            &nexus(1),
            ReserveInAction::ReportCapabilities,
            &Device { durable, ..device(&[]) },
        )
    };
    let mut state = Reservations::default();
    assert_eq!(report(false, &state), [0, 8, 0x1C, 0xC0, 0xEA, 0x01, 0, 0]);
    let bytes = list(0, 1, APTPL);
    let fickle = Device { durable: false, ..device(&[]) };
    let refused = state.prepare(&nexus(1), out(Register, 0, &bytes), &bytes, &fickle).unwrap_err();
    assert_eq!(refused, check(Sense::invalid_parameter(20, Some(0))));
    run(&mut state, &nexus(1), Register, 0, &bytes).unwrap();
    assert_eq!(report(true, &state), [0, 8, 0x1D, 0xC1, 0xEA, 0x01, 0, 0]);
}

#[test]
fn stored_reservations_are_read_back() {
    let mut state = registered(1);
    let change = run(&mut state, &nexus(2), Register, 0, &list(0, 20, APTPL)).unwrap();
    assert!(change.keep.is_some());
    let change = run(&mut state, &nexus(2), Reserve, 6, &list(20, 0, 0)).unwrap();
    let back = Reservations::restore(&change.keep.unwrap()).unwrap();
    assert_eq!((keys(&back), holding(&back)), (vec![10, 20], Some((20, 6))));
    assert_eq!(generation(&back), 0, "PRGENERATION starts anew");
    let same = run(&mut state, &nexus(2), Reserve, 6, &list(20, 0, 0)).unwrap();
    assert!(same.keep.is_none(), "nothing has changed");
    // APTPL of zero: what was kept is to be gone after the next loss of power, not before.
    let change = run(&mut state, &nexus(1), Register, 0, &list(10, 11, 0)).unwrap();
    assert_eq!(keys(&state), [11, 20]);
    let back = Reservations::restore(&change.keep.unwrap()).unwrap();
    assert!(keys(&back).is_empty() && !back.restrict());
    let change = run(&mut state, &nexus(1), Register, 0, &list(11, 12, 0)).unwrap();
    assert!(change.keep.is_none(), "nothing was kept and nothing is");
}

#[test]
fn registrations_are_bounded() {
    let mut state = Reservations::default();
    let ids = |range: core::ops::Range<u16>| -> Vec<TransportId> {
        range.map(|n| plain::id(&plain::port(9, n))).collect()
    };
    let many = ids(0..REGISTRANTS_MAX as u16 - 1);
    run(&mut state, &nexus(1), Register, 0, &naming(0, 1, 0, &many)).unwrap();
    assert_eq!(keys(&state).len(), REGISTRANTS_MAX);
    let full = check(Sense::illegal(A::INSUFFICIENT_REGISTRATION_RESOURCES));
    let refused = run(&mut state, &nexus(2), Register, 0, &list(0, 2, 0)).unwrap_err();
    assert_eq!(refused, full);
    run(&mut state, &nexus(1), Reserve, 1, &list(1, 0, 0)).unwrap();
    let to = plain::id(&nexus(2).initiator);
    let stays = moving(1, 2, 0x00, 1, &to);
    assert_eq!(run(&mut state, &nexus(1), RegisterAndMove, 0, &stays).unwrap_err(), full);
    let goes = moving(1, 2, 0x02, 1, &to);
    run(&mut state, &nexus(1), RegisterAndMove, 0, &goes).unwrap();
    assert_eq!(holding(&state), Some((2, 1)));
}

/// Two device servers of one unit: what one answers GOOD, the other has in force once it has its image.
#[test]
fn change_of_another_device_server_comes_true_here_and_ends_who_is_gone() {
    let kind = Kind::WriteExclusiveRegistrants;
    let mut here = reserved(3, kind);
    let mut there = Reservations::default();
    let none = there.shared_image(&Change::from(&there.registry));
    let image = here.shared_image(&Change::from(&here.registry));
    assert_eq!([none, image.clone()].map(|it| is_anybody_registered(&it)), [Ok(false), Ok(true)]);
    assert!(there.adopt_shared(&image, &[]).unwrap().attentions.is_empty());
    assert_eq!(there.check(&nexus(4), Class::Writes), Err(Conflict));
    let full = ReserveInAction::ReadFullStatus;
    let read = |state: &Reservations| state.report(&nexus(3), full, &device(&[]));
    assert_eq!(read(&there), read(&here), "PRGENERATION too");

    let list = list(30, 10, 0);
    let change = there.prepare(&nexus(3), out(Preempt, kind.code(), &list), &list, &device(&[]));
    let change = change.unwrap();
    let image = there.shared_image(&change);
    there.commit(&change, &[]);
    let present = [nexus(1), nexus(2)];
    let heard = here.adopt_shared(&image, &present).unwrap();
    assert_eq!(heard.abort, [nexus(1)]);
    assert_eq!(heard.attentions, [(nexus(1), Additional::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(here.check(&nexus(1), Class::Writes), Err(Conflict));
    assert_eq!(here.check(&nexus(2), Class::Writes), Ok(()));
    assert_eq!(read(&there), read(&here));
    // What it knows already says nothing new, and what is damaged changes nothing.
    assert!(here.adopt_shared(&image, &present).unwrap().abort.is_empty());
    for at in [0, 3, image.len() - 1] {
        assert!(here.adopt_shared(&image[..at], &present).is_err());
    }
    assert_eq!(read(&there), read(&here));
}

#[test]
fn end_of_a_reservation_at_another_device_server_is_told_to_the_registered() {
    let kind = Kind::WriteExclusiveRegistrants;
    let (mut here, there) = (reserved(2, kind), reserved(2, kind));
    let list = list(10, 0, 0);
    let change = there.prepare(&nexus(1), out(Release, kind.code(), &list), &list, &device(&[]));
    let image = there.shared_image(&change.unwrap());
    let heard = here.adopt_shared(&image, &[nexus(2)]).unwrap();
    let released = |n| (nexus(n), Additional::RESERVATIONS_RELEASED);
    assert_eq!(heard.attentions, [released(1), released(2)]);
    assert!(heard.abort.is_empty() && !here.restrict());
}
