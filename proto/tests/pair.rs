//! Both machines against each other over an emulated link, on virtual time. A round trip is 100 ms.

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::login::{initiator, target_config};
use common::pair::{DELAY, Pair, cdb};
use proptest::prelude::*;
use proto::iscsi::initiator::{Event, Fault, TaskError, Transfer};
use proto::iscsi::keys::{DigestWish, Offer};
use proto::iscsi::login::initiator::Config;
use proto::iscsi::target::Ending;
use proto::scsi::{Residual, Status};
use testing::link::Conditions;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

fn pair() -> Pair {
    Pair::new(Offer::for_long_links(), Offer::for_long_links())
}

/// What an ordinary target of today answers.
fn ordinary() -> Offer {
    Offer {
        initial_r2t: true,
        max_recv_data_segment: 8192,
        max_burst: 262_144,
        first_burst: 65_536,
        max_outstanding_r2t: 1,
        ..Offer::for_long_links()
    }
}

#[test]
fn a_write_of_any_size_takes_one_round_trip() {
    // RFC 7143, 13.10 and 13.14: InitialR2T=No and a first burst that holds it.
    for len in [4 << 10, 1 << 20, 8 << 20] {
        let mut pair = pair();
        let taken = pair.round_trips(|pair| {
            pair.write(1, 512, pattern(len));
        });
        assert_eq!((taken, pair.only().status), (1, Status::Good), "{len} bytes");
        assert!(pair.target.disk[512..512 + len] == pattern(len), "{len} bytes");
    }
}

#[test]
fn a_read_of_any_size_takes_one_round_trip() {
    for len in [4 << 10, 1 << 20, 8 << 20] {
        let mut pair = pair();
        pair.target.disk[512..512 + len].copy_from_slice(&pattern(len));
        let taken = pair.round_trips(|pair| {
            pair.read(1, 512, len);
        });
        assert_eq!(taken, 1, "{len} bytes");
        assert!(pair.only().data == pattern(len), "{len} bytes");
    }
}

#[test]
fn many_commands_share_their_round_trip() {
    let mut pair = pair();
    let taken = pair.round_trips(|pair| {
        for i in 0..100 {
            pair.write(i, i as usize * 4096, pattern(4096));
        }
    });
    assert_eq!((taken, pair.ended.len()), (1, 100));
}

#[test]
fn a_target_that_insists_on_r2ts_gets_what_it_asks_for() {
    // RFC 7143, 11.8: immediate data first, then one R2T of MaxBurstLength after the other.
    let mut pair = Pair::new(Offer::for_long_links(), ordinary());
    let taken = pair.round_trips(|pair| {
        pair.write(1, 0, pattern(1 << 20));
    });
    assert_eq!(pair.only().status, Status::Good);
    assert!(pair.target.disk[..1 << 20] == pattern(1 << 20));
    assert_eq!(taken, 5, "the last burst is not a full one");
}

#[test]
fn r2ts_that_may_be_outstanding_cost_one_more_round_trip_together() {
    let target = Offer { max_outstanding_r2t: 16, ..ordinary() };
    let mut pair = Pair::new(Offer::for_long_links(), target);
    let taken = pair.round_trips(|pair| {
        pair.write(1, 0, pattern(1 << 20));
    });
    assert_eq!((taken, pair.only().status), (2, Status::Good));
    assert!(pair.target.disk[..1 << 20] == pattern(1 << 20));
}

#[test]
fn digests_cover_headers_and_data() {
    // RFC 7143, 13.1.
    let digests = Offer {
        header_digest: DigestWish::Require,
        data_digest: DigestWish::Require,
        ..Offer::for_long_links()
    };
    let mut pair = Pair::new(digests, ordinary());
    assert!(pair.parameters().header_digest && pair.parameters().data_digest);
    pair.write(1, 0, pattern(100_001));
    pair.drive();
    pair.read(2, 0, 100_001);
    pair.drive();
    assert!(pair.ended.pop().unwrap().1.unwrap().data == pattern(100_001));
}

#[test]
fn residuals_say_how_far_a_transfer_missed() {
    // RFC 7143, 11.4.5.
    let mut pair = pair();
    pair.submit(1, cdb(0x88, 0, 512), Transfer::In(1024));
    pair.drive();
    let under = pair.only();
    assert_eq!((under.residual, under.data.len()), (Residual::Under(512), 512));
    pair.submit(2, cdb(0x88, 0, 1024), Transfer::In(512));
    pair.drive();
    let over = pair.only();
    assert_eq!((over.residual, over.data.len()), (Residual::Over(512), 512));
}

#[test]
fn sense_data_come_with_the_status() {
    let mut pair = pair();
    pair.submit(1, cdb(0xff, 0, 0), Transfer::None);
    pair.drive();
    let ended = pair.only();
    assert_eq!((ended.status, ended.sense[2]), (Status::CheckCondition, 5));
}

#[test]
fn a_closed_window_holds_commands_back_and_opens_again() {
    // RFC 7143, 4.2.2.1: nothing beyond MaxCmdSN is sent.
    let mut pair = pair();
    pair.target.holds = true;
    for i in 0..200 {
        pair.read(i, 0, 512);
    }
    pair.drive();
    assert_eq!(pair.target.held.len(), 128);
    pair.target.holds = false;
    for task in std::mem::take(&mut pair.target.held) {
        let data = Bytes::from(vec![0; 512]).into();
        let status = Status::Good;
        let reply = proto::iscsi::target::Reply {
            status,
            data,
            sense: Bytes::new(),
            residual: Residual::None,
        };
        pair.session().complete(task, reply);
    }
    pair.drive();
    assert_eq!((pair.ended.len(), pair.fault), (200, None));
}

#[test]
fn an_aborted_command_ends_as_aborted() {
    // RFC 7143, 11.5: by its tag and CmdSN; no response follows.
    let mut pair = pair();
    pair.target.holds = true;
    let tag = pair.read(1, 0, 512);
    pair.drive();
    pair.initiator.abort(tag);
    pair.drive();
    // A task that runs ends before its abort is reported.
    for task in std::mem::take(&mut pair.target.held) {
        let (status, sense) = (Status::Good, Bytes::new());
        let data = Bytes::from(vec![0; 512]).into();
        pair.session().complete(
            task,
            proto::iscsi::target::Reply { status, data, sense, residual: Residual::None },
        );
    }
    pair.drive();
    assert_eq!(pair.ended, [(1, Err(TaskError::Aborted))]);
    assert_eq!(pair.fault, None);
}

#[test]
fn a_ping_measures_the_round_trip() {
    let mut pair = pair();
    let now = pair.now;
    pair.initiator.ping(now);
    pair.drive();
    let pong = pair.other.iter().find_map(|event| match event {
        Event::Pong(elapsed) => Some(*elapsed),
        _ => None,
    });
    assert_eq!(pong, Some(2 * DELAY));
}

#[test]
fn idle_sides_keep_each_other_alive() {
    // RFC 7143, 11.18 and 11.19: pings both ways, each answered.
    let mut pair = pair();
    pair.pass(Duration::from_secs(3600));
    assert_eq!((pair.fault.take(), pair.target.ending), (None, None));
    pair.read(1, 0, 512);
    pair.drive();
    assert_eq!(pair.only().status, Status::Good);
}

#[test]
fn a_logout_ends_the_session_after_its_commands() {
    // RFC 7143, 11.14.
    let mut pair = pair();
    pair.write(1, 0, pattern(4096));
    let now = pair.now;
    pair.initiator.logout(now);
    assert!(!pair.initiator.has_room());
    pair.drive();
    assert_eq!(pair.only().status, Status::Good);
    assert!(matches!(pair.other.last(), Some(Event::LoggedOut)));
    assert_eq!(pair.target.ending, Some(Ending::Logout));
}

#[test]
fn a_target_that_asks_for_a_logout_gets_it() {
    // RFC 7143, 11.9.1: event 1.
    let mut pair = pair();
    let now = pair.now;
    pair.session().request_logout(now, Duration::from_secs(9));
    pair.drive();
    assert!(pair.other.iter().any(|event| matches!(event, Event::LogoutRequested(_))));
    assert_eq!(pair.target.ending, Some(Ending::Logout));
}

/// RFC 7143, 11.9.1: Parameter3 may be 18 hours, and a command may never be answered. No other is taken meanwhile.
#[test]
fn logout_that_is_asked_for_waits_a_minute_at_most() {
    let mut pair = pair();
    pair.target.holds = true;
    pair.read(7, 0, 512);
    pair.drive();
    let now = pair.now;
    pair.session().request_logout(now, Duration::from_secs(18 * 3600));
    pair.drive();
    assert!(!pair.initiator.has_room() && pair.fault.is_none());
    pair.pass(Duration::from_secs(61));
    let given_up = matches!(pair.fault, Some(Fault::LoginTimeout | Fault::Stalled { .. }));
    assert!(given_up, "{:?}", pair.fault);
    assert_eq!(pair.initiator.unfinished(), [7]);
}

#[test]
fn a_target_that_drops_the_session_says_so() {
    // RFC 7143, 11.9.1: event 3 or 2.
    let mut pair = pair();
    pair.target.holds = true;
    pair.read(7, 0, 512);
    pair.drive();
    pair.session().announce_drop();
    pair.drive();
    assert!(matches!(pair.fault, Some(Fault::Dropped(_))), "{:?}", pair.fault);
    assert_eq!(pair.initiator.unfinished(), [7]);
}

#[test]
fn a_long_list_of_targets_comes_whole() {
    // RFC 7143, 11.11 and appendix C: over many responses, each asked for with the target's tag.
    let config = Config { target: None, ..initiator() };
    let mut pair = Pair::connect(config, target_config(), Conditions::far(DELAY));
    pair.drive();
    pair.initiator.text(Bytes::from_static(b"SendTargets=All\0"));
    pair.drive();
    let Some(Event::Text(text)) = pair.other.last() else { panic!("{:?}", pair.fault) };
    let pairs = proto::iscsi::text::parse(text).unwrap();
    assert_eq!(pairs.iter().filter(|pair| pair.key == "TargetName").count(), 400);
}

#[test]
fn a_rough_link_costs_time_and_nothing_else() {
    let link = Conditions {
        rate: Some(10_000_000),
        jitter: DELAY / 2,
        losses_per_million: 20_000,
        ..Conditions::far(DELAY)
    };
    let mut pair = Pair::connect(initiator(), target_config(), link);
    pair.drive();
    pair.write(1, 0, pattern(3 << 20));
    pair.drive();
    pair.read(2, 0, 3 << 20);
    pair.drive();
    assert!(pair.ended.pop().unwrap().1.unwrap().data == pattern(3 << 20));
}

fn side() -> impl Strategy<Value = Offer> {
    let bools = any::<(bool, bool)>();
    let sizes = (512_u32..40_000, 512_u32..40_000, 0_u32..=100, 1_u16..9);
    (bools, sizes).prop_map(|((initial_r2t, immediate_data), (segment, burst, share, r2ts))| {
        Offer {
            initial_r2t,
            immediate_data,
            max_recv_data_segment: segment,
            max_burst: burst,
            first_burst: (burst / 100 * share).max(512),
            max_outstanding_r2t: r2ts,
            header_digest: DigestWish::Prefer,
            ..Offer::for_long_links()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn data_arrive_under_any_negotiated_parameters(a in side(), b in side(), len in 1_usize..200_000) {
        let mut pair = Pair::new(a, b);
        pair.write(1, 3, pattern(len));
        pair.drive();
        prop_assert_eq!(pair.only().status, Status::Good);
        pair.read(2, 3, len);
        pair.drive();
        prop_assert!(pair.only().data == pattern(len));
        prop_assert!(pair.fault.is_none());
    }
}
