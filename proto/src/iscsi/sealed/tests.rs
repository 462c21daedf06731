use bytes::Bytes;
use proptest::prelude::*;

use super::soft::new_aes_256_gcm;
use super::*;
use crate::identity::Identity;
use crate::iscsi::header::BHS_LEN;
use crate::time::Time;

fn fill(byte: u8) -> impl FnMut(&mut [u8]) {
    move |buffer| buffer.fill(byte)
}

fn identity(byte: u8) -> Identity {
    Identity::fresh(&mut fill(byte))
}

fn ephemeral(byte: u8) -> Ephemeral {
    Ephemeral::fresh(&mut fill(byte))
}

fn transcripts(byte: u8) -> Transcripts {
    Transcripts { initiator: [byte; 32], target: [byte ^ 0xff; 32] }
}

/// The masters of both sides of a handshake.
fn shaken(client: &Identity, target: &Identity) -> (Master, Master) {
    let (initiating, first) = Initiating::start(client, &target.public(), ephemeral(3));
    let responding = Responding::read(target, ephemeral(4), &first).unwrap();
    assert_eq!(responding.client(), client.public());
    let (second, theirs) = responding.answer(None);
    (initiating.finish(&second, None).unwrap(), theirs)
}

#[test]
fn both_sides_derive_the_same() {
    let (ours, theirs) = shaken(&identity(1), &identity(2));
    let so_far = transcripts(7);
    assert!(theirs.proof(&so_far).is(ours.proof(&so_far).as_bytes()));
    for direction in [Direction::FromInitiator, Direction::FromTarget] {
        let key = |master: &Master| {
            master.traffic(direction, Protection::Encrypt, 0, &transcripts(9)).key()
        };
        assert_eq!(key(&ours), key(&theirs));
    }
}

/// Anything that is to be bound changes every key.
#[test]
fn keys_differ_where_anything_differs() {
    let (master, _) = shaken(&identity(1), &identity(2));
    let (other, _) = shaken(&identity(5), &identity(2));
    let (from_initiator, from_target) = (Direction::FromInitiator, Direction::FromTarget);
    let (encrypt, integrity) = (Protection::Encrypt, Protection::Integrity);
    let mut swapped = transcripts(9);
    std::mem::swap(&mut swapped.initiator, &mut swapped.target);
    let first = master.traffic(from_initiator, encrypt, 0, &transcripts(9));
    let keys = [
        *first.key(),
        *first.next().key(),
        *first.next().next().key(),
        *master.traffic(from_target, encrypt, 0, &transcripts(9)).key(),
        *master.traffic(from_initiator, integrity, 0, &transcripts(9)).key(),
        *master.traffic(from_initiator, encrypt, 1, &transcripts(9)).key(),
        *master.traffic(from_initiator, encrypt, 0, &transcripts(8)).key(),
        *master.traffic(from_initiator, encrypt, 0, &swapped).key(),
        *other.traffic(from_initiator, encrypt, 0, &transcripts(9)).key(),
        *master.proof(&transcripts(9)).as_bytes(),
    ];
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
}

#[test]
fn the_wrong_target_cannot_answer() {
    let (client, target, impostor) = (identity(1), identity(2), identity(6));
    let (_, first) = Initiating::start(&client, &target.public(), ephemeral(3));
    let read = Responding::read(&impostor, ephemeral(4), &first);
    assert_eq!(read.err(), Some(HandshakeError::First));

    // It answers a handshake of its own making instead.
    let (initiating, _) = Initiating::start(&client, &target.public(), ephemeral(3));
    let (_, for_impostor) = Initiating::start(&client, &impostor.public(), ephemeral(3));
    let (second, _) =
        Responding::read(&impostor, ephemeral(4), &for_impostor).unwrap().answer(None);
    assert_eq!(initiating.finish(&second, None).err(), Some(HandshakeError::Second));
}

#[test]
fn a_changed_handshake_leads_nowhere() {
    let (client, target) = (identity(1), identity(2));
    let start = || Initiating::start(&client, &target.public(), ephemeral(3));
    let (_, first) = start();
    for at in (0..first.len()).step_by(5) {
        let mut changed = first.clone();
        changed[at] ^= 0x20;
        assert!(Responding::read(&target, ephemeral(4), &changed).is_err(), "byte {at}");
    }
    let (second, _) = Responding::read(&target, ephemeral(4), &first).unwrap().answer(None);
    for at in (0..second.len()).step_by(5) {
        let mut changed = second.clone();
        changed[at] ^= 0x20;
        assert!(start().0.finish(&changed, None).is_err(), "byte {at}");
    }
    for len in [0, 1, 32, 80, first.len() - 1, first.len() + 1] {
        let mut cut = first.clone();
        cut.resize(len, 0);
        assert!(Responding::read(&target, ephemeral(4), &cut).is_err(), "{len} bytes");
    }
    assert!(start().0.finish(&second[1..], None).is_err());
}

/// An old message 1 names its client, but whoever repeats it cannot make the proof.
#[test]
fn a_repeated_first_message_proves_nothing() {
    let (client, target) = (identity(1), identity(2));
    let (initiating, first) = Initiating::start(&client, &target.public(), ephemeral(3));
    let (second, then) = Responding::read(&target, ephemeral(4), &first).unwrap().answer(None);
    let old = initiating.finish(&second, None).unwrap().proof(&transcripts(1));
    assert!(then.proof(&transcripts(1)).is(old.as_bytes()));
    let (_, now) = Responding::read(&target, ephemeral(8), &first).unwrap().answer(None);
    assert!(!now.proof(&transcripts(1)).is(old.as_bytes()));
}

#[test]
fn secrets_are_not_printed() {
    let (master, _) = shaken(&identity(0xab), &identity(2));
    let secret = master.traffic(Direction::FromTarget, Protection::Encrypt, 0, &transcripts(0));
    let sealer = sealer(Protection::Encrypt, Limits::SPEC);
    let all = format!("{:?}", (identity(0xab), ephemeral(0xab), &master, &secret, sealer));
    assert!(!all.contains("171, 171") && !all.to_lowercase().contains("abab"), "{all}");
    assert!(!all.contains(identity(0xab).to_secret_text().as_str()));
}

fn secret() -> Secret {
    let master = Master::extract(&[1; 32], &[2; 32], &[3; 32], None);
    master.traffic(Direction::FromTarget, Protection::Encrypt, 0, &transcripts(0))
}

fn sealer(protection: Protection, limits: Limits) -> Sealer {
    Sealer::new(Direction::FromTarget, protection, secret(), new_aes_256_gcm, limits)
}

fn opener(protection: Protection, limits: Limits) -> Opener {
    Opener::new(Direction::FromTarget, protection, secret(), new_aes_256_gcm, limits)
}

fn header(byte: u8) -> [u8; BHS_LEN] {
    let mut bhs = [byte; BHS_LEN];
    bhs[0] = 0x25;
    bhs
}

fn seal(sealer: &mut Sealer, byte: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let ticket = sealer.next(body.len(), &mut out);
    ticket.seal_header(&header(byte), &mut out);
    if !body.is_empty() {
        ticket.seal_body(body, &mut out);
    }
    out
}

/// Opens one header off the front.
fn open(opener: &mut Opener, wire: &mut Vec<u8>) -> Result<Head, OpenError> {
    let mut header: [u8; SEALED_BHS_LEN] = wire[..SEALED_BHS_LEN].try_into().unwrap();
    wire.drain(..SEALED_BHS_LEN);
    opener.open_header(&mut header)
}

#[test]
fn only_encryption_hides() {
    let body = Bytes::from_static(b"a secret of some length");
    for (protection, readable) in [(Protection::Integrity, true), (Protection::Encrypt, false)] {
        let wire = seal(&mut sealer(protection, Limits::SPEC), 9, &body);
        assert_eq!(wire.len(), SEALED_BHS_LEN + body.len() + TAG_LEN);
        assert_eq!(wire.windows(body.len()).any(|bytes| bytes == body), readable);
        assert_eq!(wire.starts_with(&header(9)), readable);
    }
}

/// Parts are sealed in any order; what is sent is the same.
#[test]
fn the_order_of_sealing_does_not_matter() {
    let mut in_order = sealer(Protection::Encrypt, Limits::SPEC);
    let expected: Vec<_> = (0..8).map(|i| seal(&mut in_order, i, &[i; 99])).collect();
    let mut numbered = sealer(Protection::Encrypt, Limits::SPEC);
    let tickets: Vec<_> = (0..8_u8).map(|i| (i, numbered.next(99, &mut Vec::new()))).collect();
    for (i, ticket) in tickets.iter().rev() {
        let (mut bodies, mut headers) = (Vec::new(), Vec::new());
        ticket.seal_body(&[*i; 99], &mut bodies);
        ticket.seal_header(&header(*i), &mut headers);
        assert_eq!([headers, bodies].concat(), expected[usize::from(*i)]);
    }
}

#[test]
fn a_tag_alone_is_that_of_the_whole_body() {
    let mut sealer = sealer(Protection::Integrity, Limits::SPEC);
    let ticket = sealer.next(4, &mut Vec::new());
    let (mut whole, mut tag) = (Vec::new(), Vec::new());
    ticket.seal_body(b"body", &mut whole);
    ticket.seal_tag(b"body", &mut tag);
    assert!(!ticket.enciphers());
    assert_eq!([b"body", &tag[..]].concat(), whole);
}

#[test]
fn keys_change_by_count_by_bytes_and_by_age() {
    let by = |pdus, bytes| Limits { pdus, bytes, age: Limits::SPEC.age };
    let count = by(3, 1 << 20);
    // Of three PDUs under a key one says that the key changes.
    let rekeyed = |limits: Limits, ticks: u32| -> Vec<bool> {
        let (mut sealer, mut opener) =
            (sealer(Protection::Encrypt, limits), opener(Protection::Encrypt, limits));
        let rekeys = (0..6_u8).map(|i| {
            sealer.tick(Time::ZERO + Limits::SPEC.age * ticks * u32::from(i) / 2);
            let mut wire = seal(&mut sealer, i, &[i; 100]);
            let mut rekeyed = false;
            loop {
                match open(&mut opener, &mut wire).unwrap() {
                    Head::Rekeyed => rekeyed = true,
                    Head::Pdu(bhs) => {
                        assert_eq!(bhs, header(i));
                        opener.open_body(&mut wire).unwrap();
                        return rekeyed;
                    }
                }
            }
        });
        rekeys.collect()
    };
    assert_eq!(rekeyed(count, 0), [false, false, true, false, true, false]);
    assert_eq!(rekeyed(by(99, 250), 0), [false, false, true, false, true, false]);
    assert_eq!(rekeyed(Limits::SPEC, 1), [false, false, true, false, true, false]);
    assert_eq!(rekeyed(Limits::SPEC, 0), [false; 6]);
}

#[test]
fn a_peer_that_never_changes_its_key_is_left() {
    let tiny = Limits { pdus: 4, ..Limits::SPEC };
    let mut sealer = sealer(Protection::Encrypt, Limits::SPEC);
    let mut opener = opener(Protection::Encrypt, tiny);
    for i in 0..8 {
        let mut wire = seal(&mut sealer, i, &[]);
        assert_eq!(open(&mut opener, &mut wire), Ok(Head::Pdu(header(i))));
    }
    let mut wire = seal(&mut sealer, 8, &[]);
    assert_eq!(open(&mut opener, &mut wire), Err(OpenError::Overused));
}

#[test]
fn forged_key_change_is_refused() {
    let mut sealer = sealer(Protection::Integrity, Limits::SPEC);
    let mut wire = Vec::new();
    let ticket = sealer.next(0, &mut wire);
    let mut bhs = [0; BHS_LEN];
    (bhs[0], bhs[40]) = (0x3e, 1);
    ticket.seal_header(&bhs, &mut wire);
    let mut opener = opener(Protection::Integrity, Limits::SPEC);
    assert_eq!(open(&mut opener, &mut wire), Err(OpenError::Rekey));
    let mut next = seal(&mut sealer, 1, &[]);
    assert_eq!(open(&mut opener, &mut next), Err(OpenError::Broken));
}

/// Each row: what is done to three PDUs on their way, and what the receiver says to it.
#[test]
fn any_change_on_the_way_is_noticed() {
    type Row = (&'static str, fn(&mut Vec<Vec<u8>>), usize, Option<OpenError>);
    let rows: [Row; 9] = [
        ("nothing", |_| (), 3, None),
        ("a changed first header", |pdus| pdus[0][47] ^= 1, 0, Some(OpenError::First)),
        ("a changed header", |pdus| pdus[1][0] ^= 1, 1, Some(OpenError::Header(1))),
        ("a changed tag", |pdus| pdus[1][63] ^= 0x80, 1, Some(OpenError::Header(1))),
        ("changed data", |pdus| pdus[2][64] ^= 1, 2, Some(OpenError::Body(2))),
        ("a repeated PDU", |pdus| pdus[1] = pdus[0].clone(), 1, Some(OpenError::Header(1))),
        ("PDUs in another order", |pdus| pdus.swap(1, 2), 1, Some(OpenError::Header(1))),
        ("a missing PDU", |pdus| drop(pdus.remove(1)), 1, Some(OpenError::Header(1))),
        (
            "swapped data",
            |pdus| {
                let (a, b) = pdus.split_at_mut(1);
                a[0][64..].swap_with_slice(&mut b[0][64..]);
            },
            0,
            Some(OpenError::Body(0)),
        ),
    ];
    for protection in [Protection::Integrity, Protection::Encrypt] {
        for (what, act, intact, expected) in rows {
            let mut sealer = sealer(protection, Limits::SPEC);
            let mut pdus: Vec<_> = (0..3).map(|i| seal(&mut sealer, i, &[i; 40])).collect();
            act(&mut pdus);
            let mut opener = opener(protection, Limits::SPEC);
            let mut results = pdus.into_iter().map(|mut wire| {
                open(&mut opener, &mut wire)?;
                opener.open_body(&mut wire)
            });
            let opened = results.by_ref().take(intact).filter(Result::is_ok).count();
            assert_eq!(opened, intact, "{what}");
            assert_eq!(results.next().and_then(Result::err), expected, "{what}");
            assert!(results.all(|result| result == Err(OpenError::Broken)), "{what}");
        }
    }
}

proptest! {
    #[test]
    fn invariants_hold_for_a_disturbed_stream(script in prop::collection::vec(any::<u8>(), 0..400)) {
        invariants::holds(new_aes_256_gcm, &script);
    }

    /// Scripts that only send, so that the half of the law about untouched streams is met too.
    #[test]
    fn invariants_hold_for_an_undisturbed_stream(lengths in prop::collection::vec(any::<u16>(), 0..40), setup: u8) {
        let sends = lengths.iter().flat_map(|len| [5, (len >> 8) as u8, *len as u8]);
        let script: Vec<u8> = std::iter::once(setup).chain(sends).collect();
        invariants::holds(new_aes_256_gcm, &script);
    }
}
