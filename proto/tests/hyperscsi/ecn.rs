//! Explicit congestion notification (spec, 9.3), on virtual time: queues that mark, and paths that do something else.

use core::time::Duration;

use proto::hyperscsi::{Config, CongestionControl};

use super::bottleneck::{Counts, LINK, Link, Load, Marks, Sim, config};
use super::net::{CLIENT, SERVER};

/// From there on packets are marked: the queue has room for three times as many bytes.
const THRESHOLD: u64 = 30_000;

/// The share of the link that one connection has once it has found its rate, and what happens at the link meanwhile and before.
fn share(marks: Marks, load: Load, ends: (Config, Config)) -> (f64, Counts, Counts) {
    let mut sim = Sim::new(1, Link { ecn: marks, ..LINK });
    sim.add_ends(load, ends, Duration::ZERO);
    sim.run(Duration::from_secs(3));
    let before = core::mem::take(&mut sim.counts);
    (sim.shares(Duration::from_secs(4))[0], sim.counts, before)
}

fn ends(congestion: CongestionControl) -> (Config, Config) {
    (config(CLIENT, congestion), config(SERVER, congestion))
}

const CONTROLS: [CongestionControl; 3] =
    [CongestionControl::Cubic, CongestionControl::NewReno, CongestionControl::ByRtt];

/// RFC 9002, 7.1.
#[test]
fn queue_that_marks_is_short_and_loses_nothing() {
    for (control, load) in
        CONTROLS.into_iter().flat_map(|it| [(it, Load::Reads), (it, Load::Writes)])
    {
        let (plain, dropping, _) = share(Marks::None, load, ends(control));
        let (marked, marking, _) = share(Marks::Behind(THRESHOLD), load, ends(control));
        let queue = |counts: Counts| counts.waited / counts.sent;
        let case = format!("{control:?} {load:?}: {plain} {dropping:?} {marked} {marking:?}");
        // BBR sends a twentieth less than what arrives until it looks for more, and has a short queue anyway.
        let is_bbr = control == CongestionControl::ByRtt;
        let (least, shorter) = if is_bbr { (0.93, 1) } else { (0.99, 3) };
        assert!(marked >= least * plain, "{case}");
        assert!(marking.marked > 0 && marking.dropped == 0 && dropping.dropped > 0, "{case}");
        assert!(shorter * queue(marking) < queue(dropping), "{case}");
    }
}

/// RFC 9000, 13.4.2: after the test there is no ECT on the path any more, and all is as without ECN.
#[test]
fn path_that_mangles_ecn_is_used_without() {
    for control in [CongestionControl::Cubic, CongestionControl::ByRtt] {
        for load in [Load::Reads, Load::Writes] {
            let (plain, ..) = share(Marks::None, load, ends(control));
            for marks in [Marks::Bleached, Marks::Exchanged, Marks::All, Marks::Dropped] {
                let (got, counts, before) = share(marks, load, ends(control));
                let case = format!("{control:?} {load:?} {marks:?}: {got} of {plain}, {before:?}");
                assert!(got >= 0.97 * plain, "{case}");
                assert_eq!(counts.with_ect, 0, "{case}");
                assert!((1..=20).contains(&before.with_ect), "ten of each end: {case}");
            }
        }
    }
}

/// Spec, 6.4: so is each one from before this section.
#[test]
fn peer_that_does_not_count_is_sent_nothing_with_ect() {
    for is_client in [false, true] {
        let (mut client, mut server) = ends(CongestionControl::Cubic);
        (if is_client { &mut client } else { &mut server }).ecn = false;
        let (got, counts, before) = share(Marks::Behind(THRESHOLD), Load::Writes, (client, server));
        assert!(got > 90.0, "{got}");
        assert_eq!((counts.with_ect, before.with_ect), (0, 0));
    }
}

/// BBR gives way where there are marks, as it does where packets are lost.
#[test]
fn cubic_beside_bbr_keeps_its_share_of_a_queue_that_marks() {
    use CongestionControl::{ByRtt, Cubic};
    for [first, second] in [[ByRtt, Cubic], [Cubic, ByRtt]] {
        let mut sim = Sim::new(1, Link { ecn: Marks::Behind(THRESHOLD), ..LINK });
        sim.add(Load::Writes, first, Duration::ZERO);
        sim.add(Load::Writes, second, Duration::from_secs(1));
        sim.run(Duration::from_secs(10));
        let shares = sim.shares(Duration::from_secs(20));
        assert!(shares.iter().all(|share| *share >= 35.0), "{first:?} first: {shares:?}");
    }
}
