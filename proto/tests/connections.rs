//! Both machines with several connections over emulated links, on virtual time.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::login::{initiator, target_config};
use common::pair::{DELAY, Pair};
use proptest::prelude::*;
use proto::iscsi::initiator::{Event, TaskError};
use proto::iscsi::keys::{DigestWish, Offer};
use proto::iscsi::login::initiator::Config;
use proto::iscsi::login::target;
use proto::iscsi::target::{Ending, Reply};
use proto::scsi::{Residual, Status};
use testing::link::Conditions;

fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + salt) as u8).collect()
}

fn offering(connections: u16) -> Offer {
    Offer { max_connections: connections, ..Offer::for_long_links() }
}

/// A pair whose sides want so many connections, over such links.
fn pair(ours: u16, theirs: u16, link: Conditions) -> Pair {
    let config = Config { offer: offering(ours), ..initiator() };
    let mut pair =
        Pair::connect(config, target::Config { offer: offering(theirs), ..target_config() }, link);
    pair.drive();
    assert!(pair.fault.is_none(), "{:?}", pair.fault);
    pair
}

fn far() -> Conditions {
    Conditions::far(DELAY)
}

/// RFC 7143, 13.2: as many as both want.
#[test]
fn a_session_has_as_many_connections_as_both_sides_want() {
    for (ours, theirs, agreed) in [(4, 8, 4), (8, 3, 3), (4, 1, 1), (1, 4, 1)] {
        let mut pair = pair(ours, theirs, far());
        assert_eq!(pair.join_all(), agreed, "{ours} and {theirs}");
        assert_eq!((pair.fault.take(), pair.target.refused), (None, false));
        let joined = pair.other.iter().filter(|event| matches!(event, Event::Joined(_)));
        assert_eq!(joined.count(), agreed - 1);
    }
}

/// A connection costs one round trip, and commands do not wait for it.
#[test]
fn commands_go_on_while_a_connection_is_added() {
    let mut pair = pair(2, 2, far());
    let taken = pair.round_trips(|pair| {
        assert_eq!(pair.join(), Some(1));
        pair.write(1, 0, pattern(4096, 1));
    });
    assert_eq!((taken, pair.only().status), (1, Status::Good));
    assert!(matches!(pair.other.last(), Some(Event::Joined(1))));
}

/// RFC 7143, 4.2.2.1: the order of submission is the order of execution, by whatever connection and however
/// late each of them is.
#[test]
fn commands_are_carried_out_in_order_over_links_that_lose() {
    for connections in [1, 4] {
        let link = Conditions {
            rate: Some(20_000_000),
            jitter: DELAY / 2,
            losses_per_million: 50_000,
            ..far()
        };
        let mut pair = pair(connections, connections, link);
        assert_eq!(pair.join_all(), usize::from(connections));
        // All write to the same place, and differ in length, so that no connection is the lightest for long.
        for i in 0..200_usize {
            pair.write(i as u32, 0, pattern(1000 + i * 7919 % 90_000, i));
        }
        pair.drive();
        assert_eq!((pair.ended.len(), pair.fault.take()), (200, None));
        assert!(pair.ended.iter().all(|(_, ended)| ended.as_ref().unwrap().status == Status::Good));
        let last = pattern(1000 + 199 * 7919 % 90_000, 199);
        assert!(pair.target.disk[..last.len()] == last[..]);
        pair.ended.clear();
        for i in 0..20_usize {
            pair.read(i as u32, i * 4096, 1 << 16);
        }
        pair.drive();
        for (i, ended) in std::mem::take(&mut pair.ended) {
            let at = i as usize * 4096;
            assert!(ended.unwrap().data == pair.target.disk[at..at + (1 << 16)]);
        }
    }
}

/// Several connections have several congestion windows; the link of each is emulated by itself here, so
/// four of them must be well ahead of one.
#[test]
fn several_connections_carry_more_than_one() {
    let link = Conditions { rate: Some(8_000_000), ..far() };
    let took = |connections: u16| {
        let mut pair = pair(connections, connections, link);
        pair.join_all();
        let begun = pair.now;
        for i in 0..64 {
            pair.write(i, i as usize * 65_536, pattern(65_536, 0));
        }
        pair.drive();
        assert_eq!(pair.ended.len(), 64);
        pair.now - begun
    };
    let (one, four) = (took(1), took(4));
    // Both wait for one round trip.
    assert!((four - 2 * DELAY) * 3 < one - 2 * DELAY, "{four:?} and {one:?}");
}

#[test]
fn an_abort_finds_its_command_on_any_connection() {
    let mut pair = pair(3, 3, far());
    pair.join_all();
    pair.target.holds = true;
    let tags: Vec<_> = (0..6).map(|token| pair.read(token, 0, 512)).collect();
    pair.drive();
    pair.initiator.abort(tags[4]);
    pair.drive();
    for task in std::mem::take(&mut pair.target.held) {
        let (status, sense) = (Status::Good, Bytes::new());
        let data = Bytes::from(vec![0; 512]).into();
        pair.session().complete(task, Reply { status, data, sense, residual: Residual::None });
    }
    pair.drive();
    assert_eq!((pair.ended.len(), pair.fault.take()), (6, None));
    for (token, ended) in &pair.ended {
        assert_eq!(ended.as_ref().err(), (*token == 4).then_some(&TaskError::Aborted));
    }
}

/// The answer to a command by one connection may come before that to an earlier one by another, which is told what has
/// happened to the unit.
#[test]
fn settled_is_told_after_the_answers_to_all_that_was_under_way() {
    for connections in [1, 3] {
        let mut pair = pair(connections, connections, far());
        pair.join_all();
        pair.initiator.settle();
        assert!(matches!(pair.initiator.poll(), Some(Event::Settled)), "nothing is under way");
        pair.target.holds = true;
        for token in 0..6 {
            pair.read(token, 0, 512);
        }
        pair.drive();
        let is_settled = |pair: &Pair| pair.other.iter().any(|it| matches!(it, Event::Settled));
        // The last is answered first; what is asked later is not waited for.
        let held = std::mem::take(&mut pair.target.held);
        let answer = |pair: &mut Pair, task| {
            let (status, sense) = (Status::Good, Bytes::new());
            let data = Bytes::from(vec![0; 512]).into();
            pair.session().complete(task, Reply { status, data, sense, residual: Residual::None });
            pair.drive();
        };
        let mut tasks = held.into_iter().rev();
        answer(&mut pair, tasks.next().unwrap());
        pair.initiator.settle();
        pair.read(6, 0, 512);
        for task in tasks {
            assert!(!is_settled(&pair), "{} of 6", pair.ended.len());
            answer(&mut pair, task);
        }
        assert_eq!((pair.ended.len(), is_settled(&pair), pair.fault.take()), (6, true, None));
    }
}

#[test]
fn a_logout_ends_all_connections() {
    let mut pair = pair(3, 3, far());
    pair.join_all();
    for token in 0..9 {
        pair.write(token, 0, pattern(5000, 0));
    }
    let now = pair.now;
    pair.initiator.logout(now);
    pair.drive();
    assert_eq!(pair.ended.len(), 9);
    assert!(matches!(pair.other.last(), Some(Event::LoggedOut)));
    assert_eq!(pair.target.ending, Some(Ending::Logout));
}

/// Every connection is kept alive by itself.
#[test]
fn idle_connections_live() {
    let mut pair = pair(4, 4, far());
    pair.join_all();
    pair.pass(Duration::from_secs(3600));
    assert_eq!((pair.fault.take(), pair.target.ending), (None, None));
}

/// Who cannot be added is left out, and the session goes on.
#[test]
fn a_connection_that_is_refused_costs_nothing() {
    let mut pair = pair(4, 4, far());
    let config = pair.target.config().clone();
    // From now on the target knows nobody.
    pair.target.replace_config(target::Config {
        policy: proto::iscsi::login::policy::Policy::closed(vec![], vec![], vec![]),
        ..config
    });
    assert_eq!(pair.join(), Some(1));
    pair.drive();
    assert!(matches!(pair.other.last(), Some(Event::NotJoined(1, _))), "{:?}", pair.other);
    pair.write(1, 0, pattern(4096, 1));
    pair.drive();
    assert_eq!((pair.only().status, pair.fault.take()), (Status::Good, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Data arrive over any number of connections, with digests and R2Ts or without.
    #[test]
    fn data_arrive_under_any_negotiated_parameters(
        connections in 1_u16..6,
        initial_r2t: bool,
        digests: bool,
        segment in 512_u32..70_000,
        lens in prop::collection::vec(1_usize..150_000, 1..20),
    ) {
        let digest = if digests { DigestWish::Require } else { DigestWish::Refuse };
        let offer = Offer {
            initial_r2t,
            header_digest: digest,
            data_digest: digest,
            max_recv_data_segment: segment,
            max_burst: 65_536,
            first_burst: 16_384,
            ..offering(connections)
        };
        let mut pair = Pair::new(offer.clone(), offer);
        prop_assert_eq!(pair.join_all(), usize::from(connections));
        for (i, len) in lens.iter().enumerate() {
            pair.write(i as u32, i << 20, pattern(*len, i));
        }
        pair.drive();
        prop_assert_eq!((pair.ended.len(), pair.fault.take()), (lens.len(), None));
        for (i, len) in lens.iter().enumerate() {
            prop_assert!(pair.target.disk[i << 20..(i << 20) + len] == pattern(*len, i)[..]);
        }
    }
}
