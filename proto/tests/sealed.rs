//! Sealed sessions, both machines, on virtual time (docs/spec/sealed-iscsi.md, cited as "spec").

mod common;

use std::time::Duration;

use common::login::{initiator, login, other_disk, target_config};
use common::pair::{Pair, Way};
use common::sealed::{CLIENT, STRANGER, TARGET, identity, pinned, sealing, sealing_target};
use proto::client::ClientId;
use proto::iscsi::initiator::{Event, Fault};
use proto::iscsi::login::LoginStatus;
use proto::iscsi::login::initiator::{Config, LoginError};
use proto::iscsi::login::policy::{Client, Policy};
use proto::iscsi::login::target::{self, Reason};
use proto::iscsi::pdu::FrameError;
use proto::iscsi::sealed::{HandshakeError, Limits, OpenError, Protection};
use proto::scsi::Status;
use testing::link::Conditions;

const BOTH: [Protection; 2] = [Protection::Integrity, Protection::Encrypt];

/// Longer than any deadline of the machines.
const LONG: Duration = Duration::from_secs(200);

fn pair(config: Config, target: target::Config) -> Pair {
    Pair::connect(config, target, Conditions::far(common::pair::DELAY))
}

fn sealed(protection: Protection) -> Pair {
    pair(pinned(protection), sealing_target(None))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Each row: bytes to write and read back; none, few (copied among headers), and many.
#[test]
fn written_data_are_read_back() {
    for protection in BOTH {
        let mut pair = sealed(protection);
        pair.drive();
        assert_eq!(pair.parameters().seal, Some(protection));
        for (token, len) in (0..).zip([1, 512, 5000, 1_100_000]) {
            pair.write(2 * token, 4096, pattern(len));
            pair.drive();
            assert_eq!(pair.only().status, Status::Good);
            pair.read(2 * token + 1, 4096, len);
            pair.drive();
            assert!(pair.only().data == pattern(len), "{len} bytes, {protection:?}");
        }
        pair.initiator.logout(pair.now);
        pair.drive();
        assert!(matches!(pair.other.last(), Some(Event::LoggedOut)), "{:?}", pair.fault);
    }
}

/// Spec, 3: one for the handshake, one for everything else.
#[test]
fn the_login_takes_two_round_trips() {
    let done = login(pinned(Protection::Encrypt), sealing_target(None)).unwrap();
    assert_eq!(done.round_trips, 2);
    assert_eq!(done.target.key, Some(identity(CLIENT).public()));
    assert_eq!(done.initiator.parameters.seal, Some(Protection::Encrypt));
    assert_eq!(done.target.parameters.seal, Some(Protection::Encrypt));
}

/// Spec, 5: what is enciphered is not on the wire, in either direction.
#[test]
fn only_encryption_hides() {
    for (protection, readable) in [(Protection::Integrity, true), (Protection::Encrypt, false)] {
        let mut pair = sealed(protection);
        let seen = std::rc::Rc::new(std::cell::RefCell::new([Vec::<u8>::new(), Vec::new()]));
        let watcher = std::rc::Rc::clone(&seen);
        pair.tamper =
            Some(Box::new(move |_, way, bytes| watcher.borrow_mut()[way as usize].extend(&*bytes)));
        pair.drive();
        pair.write(0, 0, pattern(20_000));
        pair.drive();
        pair.read(1, 0, 20_000);
        pair.drive();
        let secret = &pattern(20_000)[512..576];
        for stream in &*seen.borrow() {
            let found = stream.windows(64).any(|bytes| bytes == secret);
            assert_eq!(found, readable, "{protection:?}");
        }
    }
}

/// Spec, 6: each side by itself, in the middle of traffic, without a round trip.
#[test]
fn keys_change_under_way() {
    let tiny = Limits { pdus: 5, ..Limits::SPEC };
    let mut config = pinned(Protection::Encrypt);
    config.pinned.as_mut().unwrap().sealing.limits = tiny;
    let mut target = sealing_target(None);
    target.sealing.as_mut().unwrap().limits = tiny;
    let mut pair = pair(config, target);
    pair.drive();
    for token in 0..40 {
        pair.write(token, 0, pattern(5000));
        pair.read(token + 100, 0, 5000);
    }
    pair.drive();
    assert_eq!((pair.ended.len(), pair.fault.is_none()), (80, true), "{:?}", pair.fault);
    assert!(pair.ended.iter().all(|(_, ended)| ended.as_ref().unwrap().status == Status::Good));
}

#[test]
fn keys_change_with_time() {
    let mut pair = sealed(Protection::Encrypt);
    pair.drive();
    let sent = std::rc::Rc::new(std::cell::Cell::new(0));
    let count = std::rc::Rc::clone(&sent);
    pair.tamper = Some(Box::new(move |_, _, bytes| count.set(count.get() + bytes.len())));
    let spent = |pair: &mut Pair| {
        sent.set(0);
        pair.read(1, 0, 512);
        pair.drive();
        pair.only();
        sent.get()
    };
    let usual = spent(&mut pair);
    // Pings go to and fro meanwhile; the hour ends with one of them, or with the read.
    pair.pass(Limits::SPEC.age + LONG);
    assert_eq!(spent(&mut pair), usual);
    assert!(pair.fault.is_none() && pair.target.broken.is_none());
}

/// Each row: who comes to whom, what the initiator says, and what the target says.
#[test]
fn initiator_that_does_not_match_is_refused() {
    type Row = (&'static str, Config, target::Config, fn(&LoginError) -> bool, fn(&Reason) -> bool);
    let stranger = {
        let mut config = pinned(Protection::Encrypt);
        config.pinned.as_mut().unwrap().sealing = sealing(STRANGER);
        config
    };
    let elsewhere = {
        let mut config = pinned(Protection::Encrypt);
        config.pinned.as_mut().unwrap().target = identity(STRANGER).public();
        config
    };
    let forbidden = Config { target: Some(other_disk()), ..pinned(Protection::Encrypt) };
    let strict = || sealing_target(Some(Protection::Encrypt));
    let open = || Policy::open(vec![common::login::disk()]);
    let demanding = target::Config {
        policy: open().demanding(common::login::disk(), Protection::Integrity),
        ..target_config()
    };
    let key_refused = |error: &LoginError| matches!(error, LoginError::KeyRefused(_));
    let paused = |key| {
        let client =
            Client { key: Some(key), units: Some(vec![]), paused: true, ..Client::default() };
        let policy = Policy::closed(vec![common::login::disk()], vec![client], vec![]);
        target::Config { policy, ..sealing_target(None) }
    };
    let discovery = Config { target: None, ..pinned(Protection::Encrypt) };
    let rows: [Row; 10] = [
        (
            "an unknown client",
            stranger,
            sealing_target(None),
            key_refused,
            |reason| matches!(reason, Reason::UnknownKey { key, .. } if *key == identity(STRANGER).public()),
        ),
        ("a wrong target", elsewhere, sealing_target(None), key_refused, |reason| {
            *reason == Reason::Seal(HandshakeError::First)
        }),
        (
            "another client's volume",
            forbidden,
            sealing_target(None),
            |error| *error == LoginError::TooLittle(Protection::Encrypt),
            |reason| matches!(reason, Reason::NotAllowed(_)),
        ),
        (
            "too little for the volume",
            pinned(Protection::Integrity),
            strict(),
            |error| *error == LoginError::TooLittle(Protection::Integrity),
            |reason| {
                matches!(reason, Reason::Protection { offered: Some(Protection::Integrity), .. })
            },
        ),
        (
            "no seal for a listed client",
            initiator(),
            strict(),
            |error| *error == LoginError::NoCredentials,
            |reason| *reason == Reason::NoMethod,
        ),
        (
            "no seal for a volume that demands one",
            initiator(),
            demanding,
            |error| *error == LoginError::NoCredentials,
            |reason| matches!(reason, Reason::Protection { offered: None, .. }),
        ),
        (
            "a paused client",
            pinned(Protection::Encrypt),
            paused(identity(CLIENT).public()),
            |error| *error == LoginError::Unavailable,
            |reason| matches!(reason, Reason::Paused(_)),
        ),
        (
            "a paused client that asks what is there",
            discovery.clone(),
            paused(identity(CLIENT).public()),
            |error| *error == LoginError::Unavailable,
            |reason| matches!(reason, Reason::Paused(_)),
        ),
        (
            "a stranger beside a paused client",
            discovery,
            paused(identity(STRANGER).public()),
            key_refused,
            |reason| matches!(reason, Reason::UnknownKey { .. }),
        ),
        (
            "a target that does not know it",
            pinned(Protection::Encrypt),
            target_config(),
            key_refused,
            |reason| *reason == Reason::NoMethod,
        ),
    ];
    for (what, config, target, initiator_says, target_says) in rows {
        let mut pair = pair(config, target);
        pair.drive();
        let Some(Fault::Login(error)) = &pair.fault else { panic!("{what}: {:?}", pair.fault) };
        assert!(initiator_says(error), "{what}: {error:?}");
        let reason = pair.target.reason.as_ref().expect("refused");
        assert!(target_says(reason), "{what}: {reason:?}");
    }
}

/// What a portal demands holds for every session that comes in by it, for discovery as well.
#[test]
fn a_portal_has_demands_of_its_own() {
    let meet = |config: Config| {
        let target = target::Config { sealing: Some(sealing(TARGET)), ..target_config() };
        let link = Conditions::far(common::pair::DELAY);
        let mut pair = Pair::drawing(2, Some(Protection::Encrypt), config, target, link);
        pair.drive();
        pair.fault
    };
    let refused = |fault: Option<Fault>| match fault {
        Some(Fault::Login(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(meet(pinned(Protection::Encrypt)).is_none());
    let weak = refused(meet(pinned(Protection::Integrity)));
    assert_eq!(weak, LoginError::TooLittle(Protection::Integrity));
    let discovery = || Config { target: None, ..initiator() };
    assert_eq!(refused(meet(discovery())), LoginError::NoCredentials);
    let pinned = pinned(Protection::Encrypt);
    assert!(meet(Config { target: None, ..pinned }).is_none());
}

/// A client that has nothing to prove may seal its session with a target that listens to anyone.
#[test]
fn anyone_may_seal_where_anyone_may_come() {
    let target = target::Config { sealing: Some(sealing(TARGET)), ..target_config() };
    let done = login(pinned(Protection::Encrypt), target.clone()).unwrap();
    assert_eq!(done.target.visible.len(), 2);
    assert!(login(initiator(), target).is_ok(), "and who does not need not");
}

/// A key and an account are two ways in; either will do.
#[test]
fn a_client_may_have_both_ways_in() {
    let key = Some(identity(CLIENT).public());
    let account = Some(common::login::account("alice"));
    let client = Client { account: account.clone(), key, ..Client::default() };
    let algorithms = proto::iscsi::chap::Algorithm::ALL.to_vec();
    let policy = Policy::closed(vec![common::login::disk()], vec![client], algorithms);
    let target = target::Config { policy, ..sealing_target(None) };
    assert!(login(pinned(Protection::Encrypt), target.clone()).is_ok());
    assert!(login(Config { account, ..initiator() }, target.clone()).is_ok());
    assert_eq!(login(initiator(), target).unwrap_err(), LoginError::NoCredentials);
}

/// What is said of a client holds for it, with whatever target, and for nobody else.
#[test]
fn client_may_have_to_encrypt_where_others_need_not() {
    let disk = common::login::disk;
    let client = |who, protection| {
        let key = Some(identity(who).public());
        Client { key, protection, ..Client::default() }
    };
    let target = |strict, lax| {
        let clients = vec![client(strict, Some(Protection::Encrypt)), client(lax, None)];
        let policy = Policy::closed(vec![disk()], clients, Vec::new());
        target::Config { policy, ..sealing_target(None) }
    };
    for (protection, admitted) in [(Protection::Integrity, false), (Protection::Encrypt, true)] {
        let outcome = login(pinned(protection), target(CLIENT, STRANGER));
        assert_eq!(outcome.is_ok(), admitted, "{protection:?}");
        assert!(login(pinned(protection), target(STRANGER, CLIENT)).is_ok(), "{protection:?}");
        let discovery = Config { target: None, ..pinned(protection) };
        let outcome = login(discovery, target(CLIENT, STRANGER));
        assert_eq!(outcome.is_ok(), admitted, "discovery: {protection:?}");
    }
    let lifted = |before, after| {
        let client = |protection| vec![client(CLIENT, protection)];
        let policy = |protection| Policy::closed(vec![disk()], client(protection), Vec::new());
        let (before, after) = (policy(before), policy(after));
        let initiator = pinned(Protection::Encrypt).initiator;
        after.keeps(&before, &initiator, &ClientId::Key(identity(CLIENT).public()), &disk())
    };
    assert!(lifted(None, None), "nothing has changed");
    assert!(
        !lifted(None, Some(Protection::Encrypt)),
        "a reload asks those who came in to log in anew"
    );
}

/// Replaces text of the same length wherever it goes by, in the clear part of the conversation.
fn replacing(from: &'static str, to: &'static str) -> common::pair::Tamper {
    assert_eq!(from.len(), to.len());
    Box::new(move |_, _, bytes| {
        let found = bytes.windows(from.len()).position(|window| window == from.as_bytes());
        if let Some(at) = found {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        }
    })
}

/// Spec, 1 and 3: the offer stripped, weakened or changed; the answer changed. Each row says what is
/// replaced, by what, and how the initiator or the target finds out.
#[test]
fn a_changed_login_is_noticed() {
    type Seen = fn(&Pair) -> bool;
    let first: Seen = |pair| pair.target.broken == Some(FrameError::Seal(OpenError::First));
    let refused: Seen = |pair| matches!(pair.fault, Some(Fault::Login(_)));
    let rows: [(&str, &str, Seen); 8] = [
        ("AuthMethod=Z-dev.longhaul.noise", "AuthMethod=None,None,None,None.", refused),
        ("MaxBurstLength=16777215", "MaxBurstLength=16777214", first),
        ("InitialR2T=No", "InitialR2T=no", first),
        ("ImmediateData=Yes", "ImmediateData=yes", first),
        ("MaxRecvDataSegmentLength=1048576", "MaxRecvDataSegmentLength=1048575", first),
        ("Y-dev.longhaul.aes256gcm", "Y-dev.longhaul.aes128gcm", refused),
        ("TargetPortalGroupTag=7", "TargetPortalGroupTag=6", refused),
        ("iqn.2026-11.dev.longhaul:client", "iqn.2026-11.dev.longhaul:clienT", refused),
    ];
    for (from, to, seen) in rows {
        let mut pair = sealed(Protection::Encrypt);
        pair.tamper = Some(replacing(from, to));
        pair.drive();
        if pair.fault.is_none() {
            pair.write(0, 0, pattern(600));
            pair.drive();
        }
        assert!(seen(&pair), "{to}: {:?} {:?}", pair.fault, pair.target.broken);
        assert!(
            pair.target.disk[..600].iter().all(|&byte| byte == 0),
            "{to}: written all the same"
        );
    }
}

/// Whoever recorded a login and plays it again does not even end the session it would replace.
#[test]
fn a_recorded_login_is_not_admitted() {
    let recorded = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let recorder = std::rc::Rc::clone(&recorded);
    let mut first = sealed(Protection::Encrypt);
    first.tamper = Some(Box::new(move |_, way, bytes| {
        if way == Way::Up && !bytes.is_empty() {
            recorder.borrow_mut().push(bytes.clone());
        }
    }));
    first.drive();
    assert!(first.fault.is_none());

    let (config, target) = (pinned(Protection::Encrypt), sealing_target(None));
    let mut again = Pair::drawing(77, None, config, target, Conditions::far(common::pair::DELAY));
    let mut script = std::mem::take(&mut *recorded.borrow_mut()).into_iter();
    again.tamper = Some(Box::new(move |_, way, bytes| {
        if way == Way::Up && !bytes.is_empty() {
            *bytes = script.next().unwrap_or_default();
        }
    }));
    again.drive();
    assert_eq!(again.target.reason, Some(Reason::Proof));
}

/// One bit anywhere: in the login, in headers, in data, in tags; up or down. Somebody notices, and
/// nothing is read or written that was not meant so.
#[test]
fn no_bit_can_be_flipped_anywhere() {
    for protection in BOTH {
        let (up, down) = (flipped(protection, Way::Up, None), flipped(protection, Way::Down, None));
        for (way, len) in [(Way::Up, up), (Way::Down, down)] {
            // A stride that is odd, so that all places of a header and all bits have their turn.
            for at in (0..len).step_by(257) {
                flipped(protection, way, Some(at));
            }
        }
    }
}

/// Runs a session with one bit flipped in the byte `at` of the stream; gives the length of the stream.
fn flipped(protection: Protection, way: Way, at: Option<usize>) -> usize {
    let mut pair = sealed(protection);
    let passed = std::rc::Rc::new(std::cell::Cell::new(0));
    let counter = std::rc::Rc::clone(&passed);
    pair.tamper = Some(Box::new(move |_, direction, bytes| {
        if direction == way {
            let here = at.and_then(|at: usize| at.checked_sub(counter.get()));
            if let Some((here, byte)) = here.and_then(|here| Some((here, bytes.get_mut(here)?))) {
                *byte ^= 1 << ((counter.get() + here) % 8);
            }
            counter.set(counter.get() + bytes.len());
        }
    }));
    pair.drive();
    let mut noticed = noticed(&mut pair);
    if !noticed {
        pair.write(0, 0, pattern(1500));
        pair.drive();
        pair.read(1, 0, 1500);
        pair.drive();
        noticed = self::noticed(&mut pair);
    }
    assert_eq!(noticed, at.is_some(), "{way:?} {at:?} {protection:?}");
    let written = &pair.target.disk[..1500];
    assert!(written == pattern(1500) || written.iter().all(|&byte| byte == 0), "{way:?} {at:?}");
    for (token, ended) in &pair.ended {
        let read = ended.as_ref().is_ok_and(|done| *token == 1 && done.data != pattern(1500));
        assert!(!read, "{way:?} {at:?}: wrong data were read");
    }
    passed.get()
}

/// Whether either side has ended the connection, at the latest when it has waited long enough.
fn noticed(pair: &mut Pair) -> bool {
    let ended =
        |pair: &Pair| pair.fault.is_some() || pair.target.broken.is_some() || pair.target.refused;
    let established = pair.other.iter().any(|event| matches!(event, Event::Established(_)));
    if !ended(pair) && (!established || pair.ended.len() == 1) {
        pair.pass(LONG);
    }
    ended(pair)
}

/// A target that refuses tells it by the status the standard has for it.
#[test]
fn statuses_are_those_of_the_specification() {
    let key = identity(CLIENT).public();
    let unknown = Reason::UnknownKey { initiator: common::login::disk(), key };
    let demanded = Protection::Encrypt;
    for (reason, status) in [
        (unknown, LoginStatus::AUTHENTICATION_FAILURE),
        (Reason::Paused(common::login::disk()), LoginStatus::SERVICE_UNAVAILABLE),
        (Reason::Proof, LoginStatus::AUTHENTICATION_FAILURE),
        (Reason::Seal(HandshakeError::First), LoginStatus::AUTHENTICATION_FAILURE),
        (Reason::Protection { offered: None, demanded }, LoginStatus::AUTHENTICATION_FAILURE),
        (
            Reason::Protection { offered: Some(Protection::Integrity), demanded },
            LoginStatus::AUTHORIZATION_FAILURE,
        ),
    ] {
        assert_eq!(reason.status(), status, "{reason}");
    }
    let refused = LoginError::KeyRefused(key).to_string();
    assert!(refused.contains(&key.to_string()), "{refused}");
}
