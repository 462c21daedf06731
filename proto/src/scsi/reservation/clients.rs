//! Tests of whose a registration is: of the client that made it, whatever it is called.

use super::tests::nexus;
use super::*;
use crate::iscsi::sealed::PublicKey;
use crate::scsi::sense::Additional;

const APTPL: u8 = 0x01;
const SPEC_I_PT: u8 = 0x08;

/// Nexus 1 as this client has it.
fn of(client: Proven) -> NexusId {
    NexusId { client, ..nexus(1) }
}

fn chap(name: &str) -> Proven {
    Proven::Chap(name.to_owned())
}

fn key(byte: u8) -> Proven {
    Proven::Key(PublicKey::from_bytes([byte; 32]))
}

fn list(key: Key, action_key: Key, flags: u8) -> Vec<u8> {
    let mut bytes = [key.to_be_bytes(), action_key.to_be_bytes(), [0; 8]].concat();
    bytes[20] = flags;
    bytes
}

type Prepare = fn(&Reservations, &NexusId, Out, &[u8], &Device<'_>) -> Result<Change, Refused>;
const WRITER: Prepare = Reservations::prepare;
const READER: Prepare = Reservations::prepare_reader;

fn run(
    state: &mut Reservations,
    (prepare, from): (Prepare, &NexusId),
    (action, kind): (OutAction, u8),
    list: &[u8],
    present: &[NexusId],
) -> Result<Change, Refused> {
    let out = Out { action, scope: 0, kind, length: list.len() as u32 };
    let device = Device { target_ports: &[1], present, durable: true };
    let change = prepare(state, from, out, list, &device)?;
    state.commit(&change, &[]);
    Ok(change)
}

fn register(state: &mut Reservations, from: (Prepare, &NexusId), key: Key, flags: u8) -> Change {
    run(state, from, (OutAction::Register, 0), &list(0, key, flags), &[]).unwrap()
}

#[test]
fn what_is_kept_of_clients_comes_back() {
    let mut state = Reservations::default();
    let owners = [Proven::Nothing, chap("alice"), chap(""), key(7)].map(of);
    let mut kept = None;
    for (owner, at) in owners.iter().zip(1..) {
        kept = register(&mut state, (WRITER, owner), at, APTPL).keep;
    }
    let reader = of(chap("reader"));
    assert!(register(&mut state, (READER, &reader), 9, APTPL).keep.is_some());
    run(&mut state, (WRITER, &owners[1]), (OutAction::Reserve, 3), &list(2, 0, 0), &[]).unwrap();
    let image = image::encode(&state.registry);
    assert_eq!(image[4..6], [0, 2]);
    let back = Reservations::restore(&image).unwrap();
    assert_eq!(back.registry, state.registry);
    assert_eq!(back.check(&owners[1], Class::Writes), Ok(()));
    for other in [&owners[0], &owners[2], &owners[3], &reader] {
        assert_eq!(back.check(other, Class::Reads), Err(Conflict), "{other:?}");
    }
    assert!(kept.is_some());
    // Every byte counts.
    for at in 0..image.len() {
        let mut wrong = image.clone();
        wrong[at] ^= 1;
        let body = wrong.len() - 4;
        let sum = crc_fast::crc32_iscsi(&wrong[..body]).to_be_bytes();
        wrong[body..].copy_from_slice(&sum);
        if let Ok(other) = image::decode(&wrong) {
            assert_eq!(image::encode(&other), wrong, "{at}");
        }
        assert!(image::decode(&image[..at]).is_err(), "{at}");
    }
}

/// The image of an earlier release, byte for byte: nexus 1 holds Write Exclusive with the key 7.
#[test]
fn an_image_without_clients_is_read_and_its_owner_comes_by_its_name() {
    let name = b"iqn.2001-04.com.example:1";
    let mut image = b"LHRS\0\x01\x01\x01\0\0\0\0\0\0\0\x01".to_vec();
    image.extend([0, 0, 0, 0, 0, 0, 0, 7, 0, 1, 0x80, 0, 0, 0, 0, 1, name.len() as u8]);
    image.extend(name);
    image.extend(crc_fast::crc32_iscsi(&image).to_be_bytes());
    let old = Reservations::restore(&image).unwrap();
    assert_eq!(old.check(&nexus(1), Class::Writes), Ok(()), "where there is no authentication");
    assert_eq!(old.check(&of(chap("alice")), Class::Writes), Err(Conflict));
    let mut state = old.clone();
    assert!(state.adopt(&of(chap("alice"))));
    assert_eq!(state.check(&of(chap("alice")), Class::Writes), Ok(()));
    // Once only, and by nobody else.
    assert!(!state.adopt(&of(chap("alice"))) && !state.adopt(&of(chap("mallory"))));
    assert!(!state.adopt(&of(Proven::Nothing)));
    for other in [nexus(1), of(chap("mallory"))] {
        assert_eq!(state.check(&other, Class::Writes), Err(Conflict));
    }
    let back = image::decode(&image::encode(&state.registry)).unwrap();
    assert_eq!(back, state.registry);
    // Another initiator port has nothing to adopt.
    assert!(!old.clone().adopt(&NexusId { client: chap("alice"), ..nexus(2) }));
}

/// Whatever a change does to the registration under the bare name, it does to that of the client that has adopted it
/// since the change was prepared.
#[test]
fn change_that_was_prepared_before_an_adoption_reaches_the_client() {
    let (bare, alice, other) = (nexus(1), of(chap("alice")), nexus(2));
    let mut state = Reservations::default();
    register(&mut state, (WRITER, &bare), 1, 0);
    run(&mut state, (WRITER, &bare), (OutAction::Reserve, 5), &list(1, 0, 0), &[]).unwrap();
    register(&mut state, (WRITER, &other), 2, 0);
    let device = Device { target_ports: &[1], present: &[], durable: true };
    let prepare = |action, list: &[u8]| {
        let out = Out { action, scope: 0, kind: 5, length: list.len() as u32 };
        WRITER(&state, &other, out, list, &device).unwrap()
    };
    let unrelated = prepare(OutAction::Register, &list(2, 3, 0));
    let preempt = prepare(OutAction::PreemptAndAbort, &list(2, 1, 0));
    for (mut change, allowed) in [(unrelated, Ok(())), (preempt, Err(Conflict))] {
        let mut state = state.clone();
        assert!(state.adopt(&alice));
        change.adopt(&alice);
        state.commit(&change, &[alice.clone(), other.clone()]);
        assert_eq!(state.check(&alice, Class::Writes), allowed);
        let told: Vec<_> = change.attentions.iter().map(|(nexus, _)| nexus).collect();
        let (aborted, expected) = (change.abort.iter().collect(), allowed.err().map(|_| &alice));
        assert_eq!([told, aborted], [0; 2].map(|_| expected.into_iter().collect::<Vec<_>>()));
        assert_eq!(state.check(&bare, Class::Writes), Err(Conflict));
    }
}

#[test]
fn a_transport_id_means_the_client_that_uses_the_port() {
    let (alice, bob, carol) = (chap("alice"), chap("bob"), chap("carol"));
    let port = TransportId::Port(nexus(2).initiator);
    let second = |client: &Proven| NexusId { client: client.clone(), ..nexus(2) };
    let mut naming = list(0, 7, SPEC_I_PT);
    naming.extend((port.emit().len() as u32).to_be_bytes());
    naming.extend(port.emit());
    // Who is there, and whose the port is that alice names.
    let rows: [(&[&Proven], Option<&Proven>); 5] = [
        (&[], Some(&alice)),
        (&[&bob], Some(&bob)),
        (&[&bob, &alice], Some(&alice)),
        (&[&bob, &carol], None),
        (&[&bob, &Proven::Nothing], None),
    ];
    for (present, expected) in rows {
        let present: Vec<_> = present.iter().map(|client| second(client)).collect();
        let mut state = Reservations::default();
        let me = of(alice.clone());
        let outcome =
            run(&mut state, (WRITER, &me), (OutAction::Register, 0), &naming, &present).is_ok();
        assert_eq!(outcome, expected.is_some(), "{present:?}");
        let others: Vec<_> = state.registry.registrants.keys().filter(|it| **it != me).collect();
        assert_eq!(others, expected.map(second).iter().collect::<Vec<_>>(), "{present:?}");
    }
}

#[test]
fn a_reader_registers_itself_and_changes_nothing_of_others() {
    let (writer, reader) = (of(chap("writer")), of(chap("reader")));
    let mut state = Reservations::default();
    register(&mut state, (WRITER, &writer), 7, APTPL);
    run(&mut state, (WRITER, &writer), (OutAction::Reserve, 6), &list(7, 0, 0), &[]).unwrap();
    let before = state.registry.clone();
    let flag = |bit| Err(Refused::Sense(Sense::invalid_parameter(20, Some(bit))));
    let ask = |state: &mut Reservations, action, list: &[u8]| {
        run(state, (READER, &reader), (action, 0), list, &[]).map(drop)
    };
    assert_eq!(state.check(&reader, Class::Reads), Err(Conflict));
    // Not for others, and not whether it lasts.
    let mut naming = list(0, 9, SPEC_I_PT | APTPL);
    naming.extend([0; 4]);
    assert_eq!(ask(&mut state, OutAction::Register, &naming), flag(3));
    assert_eq!(ask(&mut state, OutAction::Register, &list(0, 9, 0)), flag(0));
    assert_eq!(ask(&mut state, OutAction::Register, &list(1, 9, APTPL)), Err(Refused::Conflict));
    assert_eq!(state.registry, before);
    ask(&mut state, OutAction::Register, &list(0, 9, APTPL)).unwrap();
    assert_eq!(state.check(&reader, Class::Reads), Ok(()));
    assert_eq!(state.check(&reader, Class::Writes), Err(Conflict));
    ask(&mut state, OutAction::RegisterAndIgnore, &list(0, 7, APTPL)).unwrap();
    assert_eq!(
        (&state.registry.registrants, &state.registry.held),
        (&before.registrants, &before.held)
    );
    // As if it could write, for a change of its rights: it is no registrant yet.
    for action in [OutAction::Reserve, OutAction::Release, OutAction::Clear, OutAction::Preempt] {
        let refused = run(&mut state, (WRITER, &reader), (action, 6), &list(7, 7, 0), &[]);
        assert_eq!(refused.unwrap_err(), Refused::Conflict);
    }
    let mut upgraded = state.clone();
    run(&mut upgraded, (WRITER, &reader), (OutAction::Register, 0), &list(7, 8, APTPL), &[])
        .unwrap();
    assert!(upgraded.registry.readers.is_empty());
    assert_eq!(upgraded.check(&reader, Class::Writes), Ok(()));
    // Who preempts its key is rid of it, and tells it.
    register(&mut state, (WRITER, &nexus(2)), 5, APTPL);
    let preempt = (OutAction::PreemptAndAbort, 6);
    let change = run(&mut state, (WRITER, &nexus(2)), preempt, &list(5, 7, 0), &[]).unwrap();
    assert!(state.registry.readers.is_empty());
    assert!(change.abort.contains(&reader));
    let told = (reader.clone(), Additional::REGISTRATIONS_PREEMPTED);
    assert!(change.attentions.contains(&told));
}

/// It neither keeps a reservation of all registrants in force, nor RESERVE from those who may write.
#[test]
fn nothing_depends_on_the_registration_of_a_reader() {
    let (writer, reader) = (of(chap("writer")), of(chap("reader")));
    let mut state = Reservations::default();
    register(&mut state, (READER, &reader), 9, 0);
    assert_eq!(state.reserve(&writer), Ok(()));
    assert_eq!(state.release(&writer), Ok(()));
    register(&mut state, (WRITER, &writer), 7, 0);
    run(&mut state, (WRITER, &writer), (OutAction::Reserve, 8), &list(7, 0, 0), &[]).unwrap();
    run(&mut state, (WRITER, &writer), (OutAction::Register, 0), &list(7, 0, 0), &[]).unwrap();
    assert!(!state.restrict());
    // Its own table has an end, that of the writers is not touched by it.
    let port = |n: u16| {
        let [high, low] = n.to_be_bytes();
        let mut nexus = of(chap("reader"));
        nexus.initiator.isid = crate::iscsi::name::Isid([0, 0, 0, 0, high, low]);
        nexus
    };
    let mut state = Reservations::default();
    let one = |state: &mut Reservations, nexus: &NexusId| {
        let register = (OutAction::Register, 0);
        run(state, (READER, nexus), register, &list(0, 9, 0), &[]).is_ok()
    };
    let taken = (0..100).filter(|n| one(&mut state, &port(*n))).count();
    assert_eq!(taken, READERS_OF_CLIENT_MAX);
    assert!(one(&mut state, &of(chap("another reader"))));
    register(&mut state, (WRITER, &writer), 7, 0);
}
