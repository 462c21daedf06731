//! Packets that come late and are not lost (spec, 9.4), on virtual time.

use core::time::Duration;

use proto::hyperscsi::{CongestionControl, PathStats};

use super::bottleneck::{LINK, Link, Load, Sim};
use super::net::PACKET;

const CONTROLS: [CongestionControl; 3] =
    [CongestionControl::Cubic, CongestionControl::NewReno, CongestionControl::ByRtt];

/// The share of the link that one connection has, and how its client's path is in the end.
fn share(control: CongestionControl, load: Load, link: Link) -> (f64, PathStats) {
    let mut sim = Sim::new(1, link);
    sim.add(load, control, Duration::ZERO);
    sim.run(Duration::from_secs(2));
    let share = sim.shares(Duration::from_secs(4))[0];
    (share, sim.flows[0].client.paths()[0])
}

/// Without undoing, and a threshold that adapts, there is 4 to 6 % of the link left.
#[test]
fn packets_that_come_late_cost_little() {
    let jitter = Duration::from_millis(5);
    for (control, load) in
        CONTROLS.into_iter().flat_map(|it| [(it, Load::Reads), (it, Load::Writes)])
    {
        let (plain, _) = share(control, load, LINK);
        let (late, stats) = share(control, load, Link { jitter, ..LINK });
        let case = format!("{control:?} {load:?}: {late} of {plain}, {stats:?}");
        assert!(late >= 0.9 * plain, "{case}");
        assert_eq!(stats.packet, PACKET, "{case}");
    }
}

/// Those of a queue that is full among them.
#[test]
fn packets_that_are_lost_are_not_taken_for_late() {
    for (control, losses_per_million) in
        CONTROLS.into_iter().flat_map(|it| [(it, 0), (it, 1000), (it, 10_000)])
    {
        let link = Link { losses_per_million, ..LINK };
        let (_, stats) = share(control, Load::Writes, link);
        assert!(stats.lost > 0);
        assert_eq!(stats.undone, 0, "{control:?} {losses_per_million}: {stats:?}");
    }
}
