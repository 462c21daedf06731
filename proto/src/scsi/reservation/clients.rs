//! Tests of whose a registration is: of the client that made it, whatever it is called.

use super::tests::nexus;
use super::*;
use crate::client::ClientId;
use crate::identity::PublicKey;
use crate::scsi::sense::Additional;
use crate::scsi::transport::plain::{self, PLAIN};
use crate::scsi::transport::{InitiatorPort, Protocol};

const APTPL: u8 = 0x01;
const SPEC_I_PT: u8 = 0x08;

/// Nexus 1 as this client has it.
fn of(client: ClientId) -> NexusId {
    NexusId { client, ..nexus(1) }
}

fn chap(name: &str) -> ClientId {
    ClientId::Account(name.to_owned())
}

fn key(byte: u8) -> ClientId {
    ClientId::Key(PublicKey::from_bytes([byte; 32]))
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
    (action, kind): (ReserveOutAction, u8),
    list: &[u8],
    present: &[NexusId],
) -> Result<Change, Refused> {
    let out = Out { action, scope: 0, kind, length: list.len() as u32 };
    let device = Device { target_ports: &[1], present, durable: true, transports: PLAIN };
    let change = prepare(state, from, out, list, &device)?;
    state.commit(&change, &[]);
    Ok(change)
}

fn register(state: &mut Reservations, from: (Prepare, &NexusId), key: Key, flags: u8) -> Change {
    run(state, from, (ReserveOutAction::Register, 0), &list(0, key, flags), &[]).unwrap()
}

#[test]
fn stored_clients_are_read_back() {
    let mut state = Reservations::default();
    let owners = [ClientId::Unauthenticated, chap("alice"), chap(""), key(7)].map(of);
    let mut kept = None;
    for (owner, at) in owners.iter().zip(1..) {
        kept = register(&mut state, (WRITER, owner), at, APTPL).keep;
    }
    let reader = of(chap("reader"));
    assert!(register(&mut state, (READER, &reader), 9, APTPL).keep.is_some());
    run(&mut state, (WRITER, &owners[1]), (ReserveOutAction::Reserve, 3), &list(2, 0, 0), &[])
        .unwrap();
    let image = image::encode(&state.registry);
    assert_eq!(image[4..6], [0, 3]);
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

/// A registration of an earlier release: of this iSCSI node with this key, by target port 1.
fn named(name: &str, key: u8) -> Vec<u8> {
    let fields = [0, 0, 0, 0, 0, 0, 0, key, 0, 1, 0x80, 0, 0, 0, 0, 1, name.len() as u8];
    [&fields, name.as_bytes()].concat()
}

fn summed(mut image: Vec<u8>) -> Vec<u8> {
    image.extend(crc_fast::crc32_iscsi(&image).to_be_bytes());
    image
}

/// Byte for byte: two registrations, and the second holds Write Exclusive.
#[test]
fn images_of_earlier_releases_are_read() {
    let protocol = Protocol::new(5);
    let port =
        |name: &str| InitiatorPort { protocol, id: format!("{name},i,0x800000000001").into() };
    let nexus = |name, client| NexusId { initiator: port(name), target_port: 1, client };
    let head = |version| [&b"LHRS"[..], &[0, version, 1, 1, 0, 0, 0, 1, 0, 0, 0, 2]].concat();
    let bare = ClientId::Unauthenticated;
    // In their order, which is not that of the identifiers: `!` comes before the comma.
    let image = [head(1), named("iqn.a", 6), named("iqn.a!", 7)].concat();
    let first = Reservations::restore(&summed(image.clone())).unwrap();
    assert_eq!(first.check(&nexus("iqn.a!", bare.clone()), Class::Writes), Ok(()));
    assert_eq!(first.check(&nexus("iqn.a", bare.clone()), Class::Writes), Err(Conflict));
    let twice = [head(1), named("iqn.a", 6), named("iqn.a", 7)].concat();
    assert!(Reservations::restore(&summed(twice)).is_err());
    for cut in 0..image.len() {
        assert!(Reservations::restore(&summed(image[..cut].to_vec())).is_err(), "{cut}");
    }
    let (nothing, alice, reader) = ([0, 0, 0], [&[1, 0, 5][..], b"alice"].concat(), [0, 0, 0, 1]);
    let writers = [head(2), named("iqn.a", 6), nothing.to_vec(), named("iqn.b", 7), alice.clone()];
    let image = [writers.concat(), reader.to_vec(), named("iqn.c", 8), alice].concat();
    let second = Reservations::restore(&summed(image)).unwrap();
    assert_eq!(second.check(&nexus("iqn.b", chap("alice")), Class::Writes), Ok(()));
    assert_eq!(second.check(&nexus("iqn.b", bare), Class::Writes), Err(Conflict));
    assert_eq!(second.registry.readers.get(&nexus("iqn.c", chap("alice"))), Some(&8));
    for old in [first, second] {
        assert_eq!(image::decode(&image::encode(&old.registry)).unwrap(), old.registry);
    }
}

/// Nexus 1 holds Write Exclusive with the key 7.
#[test]
fn registration_without_a_client_is_adopted_by_the_first_that_comes_by_its_name() {
    let mut old = Reservations::default();
    register(&mut old, (WRITER, &nexus(1)), 7, 0);
    run(&mut old, (WRITER, &nexus(1)), (ReserveOutAction::Reserve, 1), &list(7, 0, 0), &[])
        .unwrap();
    assert_eq!(old.check(&nexus(1), Class::Writes), Ok(()), "where there is no authentication");
    assert_eq!(old.check(&of(chap("alice")), Class::Writes), Err(Conflict));
    let mut state = old.clone();
    assert!(state.adopt(&of(chap("alice"))));
    assert_eq!(state.check(&of(chap("alice")), Class::Writes), Ok(()));
    // Once only, and by nobody else.
    assert!(!state.adopt(&of(chap("alice"))) && !state.adopt(&of(chap("mallory"))));
    assert!(!state.adopt(&of(ClientId::Unauthenticated)));
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
    run(&mut state, (WRITER, &bare), (ReserveOutAction::Reserve, 5), &list(1, 0, 0), &[]).unwrap();
    register(&mut state, (WRITER, &other), 2, 0);
    let device = Device { target_ports: &[1], present: &[], durable: true, transports: PLAIN };
    let prepare = |action, list: &[u8]| {
        let out = Out { action, scope: 0, kind: 5, length: list.len() as u32 };
        WRITER(&state, &other, out, list, &device).unwrap()
    };
    let unrelated = prepare(ReserveOutAction::Register, &list(2, 3, 0));
    let preempt = prepare(ReserveOutAction::PreemptAndAbort, &list(2, 1, 0));
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
    let port = PLAIN.write(&nexus(2).initiator);
    let second = |client: &ClientId| NexusId { client: client.clone(), ..nexus(2) };
    let mut naming = list(0, 7, SPEC_I_PT);
    naming.extend((port.len() as u32).to_be_bytes());
    naming.extend(port);
    // Who is there, and whose the port is that alice names.
    let rows: [(&[&ClientId], Option<&ClientId>); 5] = [
        (&[], Some(&alice)),
        (&[&bob], Some(&bob)),
        (&[&bob, &alice], Some(&alice)),
        (&[&bob, &carol], None),
        (&[&bob, &ClientId::Unauthenticated], None),
    ];
    for (present, expected) in rows {
        let present: Vec<_> = present.iter().map(|client| second(client)).collect();
        let mut state = Reservations::default();
        let me = of(alice.clone());
        let outcome =
            run(&mut state, (WRITER, &me), (ReserveOutAction::Register, 0), &naming, &present)
                .is_ok();
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
    run(&mut state, (WRITER, &writer), (ReserveOutAction::Reserve, 6), &list(7, 0, 0), &[])
        .unwrap();
    let before = state.registry.clone();
    let flag = |bit| Err(Refused::Sense(Sense::invalid_parameter(20, Some(bit))));
    let ask = |state: &mut Reservations, action, list: &[u8]| {
        run(state, (READER, &reader), (action, 0), list, &[]).map(drop)
    };
    assert_eq!(state.check(&reader, Class::Reads), Err(Conflict));
    // Not for others, and not whether it lasts.
    let mut naming = list(0, 9, SPEC_I_PT | APTPL);
    naming.extend([0; 4]);
    assert_eq!(ask(&mut state, ReserveOutAction::Register, &naming), flag(3));
    assert_eq!(ask(&mut state, ReserveOutAction::Register, &list(0, 9, 0)), flag(0));
    assert_eq!(
        ask(&mut state, ReserveOutAction::Register, &list(1, 9, APTPL)),
        Err(Refused::Conflict)
    );
    assert_eq!(state.registry, before);
    ask(&mut state, ReserveOutAction::Register, &list(0, 9, APTPL)).unwrap();
    assert_eq!(state.check(&reader, Class::Reads), Ok(()));
    assert_eq!(state.check(&reader, Class::Writes), Err(Conflict));
    ask(&mut state, ReserveOutAction::RegisterAndIgnore, &list(0, 7, APTPL)).unwrap();
    assert_eq!(
        (&state.registry.registrants, &state.registry.held),
        (&before.registrants, &before.held)
    );
    // As if it could write, for a change of its rights: it is no registrant yet.
    for action in [
        ReserveOutAction::Reserve,
        ReserveOutAction::Release,
        ReserveOutAction::Clear,
        ReserveOutAction::Preempt,
    ] {
        let refused = run(&mut state, (WRITER, &reader), (action, 6), &list(7, 7, 0), &[]);
        assert_eq!(refused.unwrap_err(), Refused::Conflict);
    }
    let mut upgraded = state.clone();
    run(&mut upgraded, (WRITER, &reader), (ReserveOutAction::Register, 0), &list(7, 8, APTPL), &[])
        .unwrap();
    assert!(upgraded.registry.readers.is_empty());
    assert_eq!(upgraded.check(&reader, Class::Writes), Ok(()));
    // Who preempts its key is rid of it, and tells it.
    register(&mut state, (WRITER, &nexus(2)), 5, APTPL);
    let preempt = (ReserveOutAction::PreemptAndAbort, 6);
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
    run(&mut state, (WRITER, &writer), (ReserveOutAction::Reserve, 8), &list(7, 0, 0), &[])
        .unwrap();
    run(&mut state, (WRITER, &writer), (ReserveOutAction::Register, 0), &list(7, 0, 0), &[])
        .unwrap();
    assert!(!state.restrict());
    // Its own table has an end, that of the writers is not touched by it.
    let port = |n: u16| NexusId { initiator: plain::port(1, n + 1), ..of(chap("reader")) };
    let mut state = Reservations::default();
    let one = |state: &mut Reservations, nexus: &NexusId| {
        let register = (ReserveOutAction::Register, 0);
        run(state, (READER, nexus), register, &list(0, 9, 0), &[]).is_ok()
    };
    let taken = (0..100).filter(|n| one(&mut state, &port(*n))).count();
    assert_eq!(taken, READERS_OF_CLIENT_MAX);
    assert!(one(&mut state, &of(chap("another reader"))));
    register(&mut state, (WRITER, &writer), 7, 0);
}
